/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a synthetic model's file, in the format of gguf.h. */
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/byte-alphabet.h"
#include "daemon/model/synthetic-private.h"
#include "ipc/base/checked.h"

#define ALIGNMENT 32u		/* the format's default */
#define N_BYTES 256u

/* Bytes that grow; out of memory is noticed at the end. */
struct writer {
	uint8_t *bytes;
	size_t n, capacity;
	bool failed;
	uint64_t n_keys, n_tensors, data_bytes;
	const struct synthetic_shape *shape;
	const struct hparams *hp;
	const struct synthetic_type *type;
};

static void put(struct writer *w, const void *data, size_t n)
{
	if (w->failed)
		return;
	if (n > w->capacity - w->n) {
		size_t capacity = MAX(w->capacity * 2, w->n + n + 65536);
		uint8_t *larger = realloc(w->bytes, capacity);

		if (!larger) {
			w->failed = true;
			return;
		}
		w->bytes = larger;
		w->capacity = capacity;
	}
	memcpy(w->bytes + w->n, data, n);
	w->n += n;
}

static void put_u32(struct writer *w, uint32_t v)
{
	v = htole32(v);
	put(w, &v, sizeof(v));
}

static void put_u64(struct writer *w, uint64_t v)
{
	v = htole64(v);
	put(w, &v, sizeof(v));
}

static void put_bytes(struct writer *w, const void *s, size_t n)
{
	put_u64(w, n);
	put(w, s, n);
}

static void put_string(struct writer *w, const char *s)
{
	put_bytes(w, s, strlen(s));
}

/* --- metadata ------------------------------------------------------------------- */

/* A suffix that begins with '.' is below the architecture's name. */
static void key(struct writer *w, const char *name, uint32_t type)
{
	char whole[96];

	snprintf(whole, sizeof(whole), "%s%s", name[0] == '.' ? w->shape->arch->name : "", name);
	put_string(w, whole);
	put_u32(w, type);
	w->n_keys++;
}

static void key_u32(struct writer *w, const char *name, uint32_t v)
{
	key(w, name, GGUF_U32);
	put_u32(w, v);
}

static void key_f32(struct writer *w, const char *name, float v)
{
	uint32_t bits;

	memcpy(&bits, &v, sizeof(bits));
	key(w, name, GGUF_F32);
	put_u32(w, bits);
}

static void key_string(struct writer *w, const char *name, const char *v)
{
	key(w, name, GGUF_STRING);
	put_string(w, v);
}

static void key_array(struct writer *w, const char *name, uint32_t type, uint64_t n)
{
	key(w, name, GGUF_ARRAY);
	put_u32(w, type);
	put_u64(w, n);
}

/* A space and letters, another word for each number. */
static void put_word(struct writer *w, uint32_t number)
{
	static const uint8_t space = ' ';
	char letters[16], text[24];
	size_t n = 0, k;

	for (uint32_t v = number + 1; v; v = (v - 1) / 26)
		letters[n++] = (char)('a' + (v - 1) % 26);
	k = byte_alphabet_encode(&space, 1, (uint8_t *)text);
	while (n)
		text[k++] = letters[--n];
	put_bytes(w, text, k);
}

static void put_tokens(struct writer *w)
{
	key_array(w, "tokenizer.ggml.tokens", GGUF_STRING, w->hp->n_vocab);
	for (uint32_t i = 0; i < w->hp->n_vocab; i++) {
		uint8_t byte = (uint8_t)i, text[2];

		if (i < N_BYTES)
			put_bytes(w, text, byte_alphabet_encode(&byte, 1, text));
		else
			put_word(w, i - N_BYTES);
	}
	key_array(w, "tokenizer.ggml.merges", GGUF_STRING, 0);
}

static void put_keys(struct writer *w)
{
	const struct synthetic_shape *s = w->shape;
	char title[96];

	snprintf(title, sizeof(title), "synthetic %s:%s", s->name, w->type->name);
	key_string(w, "general.architecture", s->arch->name);
	key_string(w, "general.name", title);
	key_u32(w, ".block_count", s->n_layers);
	key_u32(w, ".context_length", s->n_ctx);
	key_u32(w, ".embedding_length", s->n_embd);
	key_u32(w, ".feed_forward_length", s->n_ff);
	key_u32(w, ".attention.head_count", s->n_heads);
	key_u32(w, ".attention.head_count_kv", s->n_kv_heads);
	key_u32(w, ".attention.key_length", s->head_dim);
	key_u32(w, ".attention.value_length", s->head_dim);
	key_f32(w, ".attention.layer_norm_rms_epsilon", s->norm_eps);
	key_f32(w, ".rope.freq_base", s->rope_base);
	if (s->window)
		key_u32(w, ".attention.sliding_window", s->window);
	key_string(w, "tokenizer.ggml.model", "gpt2");
	key_string(w, "tokenizer.ggml.pre", "gpt-2");
	put_tokens(w);
}

/* --- tensors -------------------------------------------------------------------- */

static enum kb_type type_of(const struct writer *w, const struct arch_tensor *t)
{
	uint32_t n_elements, n_bytes;

	if (t->use == KB_USE_VECTOR)
		return KB_F32;
	gguf_tensor_type_block(w->type->type, &n_elements, &n_bytes);
	return hparams_dim(w->hp, t->cols) % n_elements ? w->type->fallback : w->type->type;
}

static void put_tensor(struct writer *w, const struct arch_tensor *t, const char *prefix)
{
	uint64_t rows = hparams_dim(w->hp, t->rows), cols = hparams_dim(w->hp, t->cols);
	enum kb_type type = type_of(w, t);
	uint32_t n_elements, n_bytes;
	char name[96];

	gguf_tensor_type_block(type, &n_elements, &n_bytes);
	snprintf(name, sizeof(name), "%s%s", prefix, t->name);
	put_string(w, name);
	put_u32(w, t->use == KB_USE_VECTOR ? 1 : 2);
	put_u64(w, cols);
	if (t->use != KB_USE_VECTOR)
		put_u64(w, rows);
	put_u32(w, type);
	put_u64(w, w->data_bytes);
	w->data_bytes += rows * cols / n_elements * n_bytes;
	w->data_bytes = (w->data_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	w->n_tensors++;
}

/* Of optional ones the output's matrix alone, where it is not the embedding's. */
static void put_rows(struct writer *w, const struct arch_tensor *rows, size_t n, const char *prefix)
{
	for (size_t i = 0; i < n; i++)
		if (!rows[i].optional || (!w->shape->tied && !strcmp(rows[i].name, "output.weight")))
			put_tensor(w, &rows[i], prefix);
}

static void put_tensors(struct writer *w)
{
	char prefix[24];

	put_rows(w, w->shape->arch->ends, w->shape->arch->n_ends, "");
	for (uint32_t i = 0; i < w->shape->n_layers; i++) {
		snprintf(prefix, sizeof(prefix), "blk.%u.", i);
		put_rows(w, w->shape->arch->layer, w->shape->arch->n_layer, prefix);
	}
}

/* The counts are in front of what they count. */
static void put_counts(struct writer *w, size_t at)
{
	const uint64_t counts[] = { htole64(w->n_tensors), htole64(w->n_keys) };

	if (!w->failed)
		memcpy(w->bytes + at, counts, sizeof(counts));
}

int synthetic_write_header(const struct synthetic_shape *shape, const struct synthetic_type *type, uint8_t **out,
			   size_t *n, uint64_t *file_size)
{
	const struct hparams hp = {
		.n_vocab = shape->n_vocab, .n_embd = shape->n_embd, .n_layers = shape->n_layers,
		.n_heads = shape->n_heads, .n_kv_heads = shape->n_kv_heads, .head_dim = shape->head_dim,
		.n_ff = shape->n_ff,
	};
	struct writer w = { .shape = shape, .hp = &hp, .type = type };
	size_t counts;

	put(&w, "GGUF", 4);
	put_u32(&w, 3);
	counts = w.n;
	put_u64(&w, 0);
	put_u64(&w, 0);
	put_keys(&w);
	put_tensors(&w);
	put_counts(&w, counts);
	if (w.failed) {
		free(w.bytes);
		return -ENOMEM;
	}
	*out = w.bytes;
	*n = w.n;
	*file_size = (w.n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + w.data_bytes;
	return 0;
}
