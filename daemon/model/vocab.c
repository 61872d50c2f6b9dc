/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/model/byte-alphabet.h"
#include "daemon/model/sentencepiece-text.h"
#include "ipc/base/utf8.h"

static int allocate(struct vocab *v, const struct gguf_string *tokens, size_t n, struct diag *diag)
{
	uint64_t n_bytes = 1;
	uint32_t n_slots = 16;

	if (n == 0 || n > VOCAB_MAX_TOKENS)
		return diag_set(diag, -EINVAL, "tokenizer.ggml.tokens: %zu tokens, expected 1 to %u", n,
				VOCAB_MAX_TOKENS);
	for (size_t i = 0; i < n; i++)
		n_bytes += 2 * (uint64_t)tokens[i].n;
	if (n_bytes > UINT32_MAX)
		return diag_set(diag, -EINVAL, "tokenizer.ggml.tokens: the texts are too long");
	while (n_slots < 2 * n)
		n_slots *= 2;
	v->tokens = calloc(n, sizeof(*v->tokens));
	v->arena = malloc((size_t)n_bytes);
	v->slots = calloc(n_slots, sizeof(*v->slots));
	if (!v->tokens || !v->arena || !v->slots)
		return -ENOMEM;
	v->mask = n_slots - 1;
	hash_key_init(&v->key);
	return 0;
}

/* Above the id + 1 a slot has bits of the text's hash, so that other texts are told apart without a look at them. */
#define SLOT_ID_BITS 23
_Static_assert(VOCAB_MAX_TOKENS < 1u << SLOT_ID_BITS, "an id + 1 has room");

static uint32_t slot_tag(uint64_t hash)
{
	return (uint32_t)(hash >> (32 + SLOT_ID_BITS)) << SLOT_ID_BITS;
}

static int32_t slot_id(uint32_t slot)
{
	return (int32_t)(slot & ((1u << SLOT_ID_BITS) - 1)) - 1;
}

/* The slot of a text: the one that holds it, or the free one where it belongs. */
static uint32_t *find_slot(const struct vocab *v, const void *text, size_t n, uint64_t hash)
{
	for (uint32_t i = (uint32_t)hash & v->mask;; i = (i + 1) & v->mask) {
		uint32_t *slot = &v->slots[i];
		const struct vocab_token *t;

		if (*slot == 0)
			return slot;
		if ((*slot ^ slot_tag(hash)) >> SLOT_ID_BITS)
			continue;
		t = &v->tokens[slot_id(*slot)];
		if (t->n_text == n && memcmp(v->arena + t->text, text, n) == 0)
			return slot;
	}
}

/* The bytes that a token's text stands for; out has room for n.  Returns how many. */
static size_t decode_byte_level(int type, const uint8_t *text, size_t n, uint8_t *out)
{
	if (type != TOKEN_USER_DEFINED)
		return byte_alphabet_decode(text, n, out);
	/* Written plainly, not in the alphabet of bytes. */
	memcpy(out, text, n);
	return n;
}

static size_t decode_sentencepiece(int type, const uint8_t *text, size_t n, uint8_t *out)
{
	if (type != TOKEN_BYTE)
		return sentencepiece_unescape(text, n, out);
	out[0] = (uint8_t)sentencepiece_byte(text, n);
	return 1;
}

static void find_bytes_byte_level(struct vocab *v)
{
	for (int b = 0; b < 256; b++) {
		uint8_t text[4];
		size_t n = utf8_encode(byte_alphabet_char((uint8_t)b), text);

		v->byte_ids[b] = vocab_find_ordinary(v, text, n);
	}
}

static void find_bytes_sentencepiece(struct vocab *v)
{
	for (int b = 0; b < 256; b++)
		v->byte_ids[b] = -1;
	for (uint32_t id = v->n; id-- > 0;)
		if (v->tokens[id].type == TOKEN_BYTE)
			v->byte_ids[*vocab_bytes(v, (int32_t)id)] = (int32_t)id;
}

static const struct alphabet {
	size_t (*decode)(int type, const uint8_t *text, size_t n, uint8_t *out);
	void (*find_bytes)(struct vocab *v);
} alphabets[] = {
	[VOCAB_BYTE_LEVEL] = { decode_byte_level, find_bytes_byte_level },
	[VOCAB_SENTENCEPIECE] = { decode_sentencepiece, find_bytes_sentencepiece },
};

/* The type of a token; where the file states none, SentencePiece's bytes are known by their form. */
static int find_type(enum vocab_alphabet alphabet, const struct gguf_string *tokens, const int32_t *types,
		     uint32_t id, int32_t *type, struct diag *diag)
{
	int byte = alphabet == VOCAB_SENTENCEPIECE ?
		sentencepiece_byte((const uint8_t *)tokens[id].data, tokens[id].n) : -1;

	if (!types) {
		*type = byte < 0 ? TOKEN_NORMAL : TOKEN_BYTE;
		return 0;
	}
	if (types[id] < TOKEN_UNDEFINED || types[id] > TOKEN_BYTE)
		return diag_set(diag, -EINVAL, "tokenizer.ggml.token_type: token %u has the unknown type %d",
				id, types[id]);
	if (types[id] == TOKEN_BYTE && alphabet == VOCAB_SENTENCEPIECE && byte < 0)
		return diag_set(diag, -EINVAL,
				"tokenizer.ggml.token_type: token %u is a byte, but \"%.*s\" is none of <0x00> to "
				"<0xFF>", id, (int)(tokens[id].n < 80 ? tokens[id].n : 80), tokens[id].data);
	*type = types[id];
	return 0;
}

/* Copies one token behind what the arena holds; returns the new end. */
static uint32_t add_token(struct vocab *v, uint32_t id, struct gguf_string text, int32_t type, uint32_t end)
{
	struct vocab_token *t = &v->tokens[id];

	t->type = (uint8_t)type;
	t->control = type == TOKEN_CONTROL || type == TOKEN_UNKNOWN;
	t->text = t->bytes = end;
	t->n_text = t->n_bytes = (uint32_t)text.n;
	if (t->n_text > v->longest)
		v->longest = t->n_text;
	if (text.n == 0)
		return end;
	memcpy(v->arena + end, text.data, text.n);
	end += t->n_text;
	if (t->control)
		return end;
	t->bytes = end;
	t->n_bytes = (uint32_t)alphabets[v->alphabet].decode(type, v->arena + t->text, text.n, v->arena + end);
	return end + t->n_bytes;
}

int vocab_init(struct vocab *v, enum vocab_alphabet alphabet, const struct gguf_string *tokens,
	       const int32_t *types, size_t n, struct diag *diag)
{
	struct vocab made = { .alphabet = alphabet };
	uint32_t end = 0;
	int r;

	r = allocate(&made, tokens, n, diag);
	for (uint32_t id = 0; r == 0 && id < n; id++) {
		int32_t type;
		uint32_t *slot;
		uint64_t hash;

		r = find_type(alphabet, tokens, types, id, &type, diag);
		if (r < 0)
			break;
		end = add_token(&made, id, tokens[id], type, end);
		if (tokens[id].n == 0)
			continue;
		hash = hash_bytes(&made.key, tokens[id].data, tokens[id].n);
		slot = find_slot(&made, tokens[id].data, tokens[id].n, hash);
		if (*slot)
			r = diag_set(diag, -EINVAL,
				     "tokenizer.ggml.tokens: tokens %d and %u are the same, \"%.*s\"",
				     slot_id(*slot), id, (int)(tokens[id].n < 80 ? tokens[id].n : 80),
				     tokens[id].data);
		else
			*slot = slot_tag(hash) | (id + 1);
	}
	if (r < 0) {
		vocab_deinit(&made);
		return r;
	}
	made.n = (uint32_t)n;
	alphabets[alphabet].find_bytes(&made);
	*v = made;
	return 0;
}

void vocab_deinit(struct vocab *v)
{
	free(v->tokens);
	free(v->arena);
	free(v->slots);
	*v = VOCAB_NULL;
}

void vocab_set_control(struct vocab *v, int32_t id)
{
	struct vocab_token *t = &v->tokens[id];

	if (t->control)
		return;
	t->control = true;
	for (int b = 0; b < 256; b++)
		if (v->byte_ids[b] == id)
			v->byte_ids[b] = -1;
}

int32_t vocab_find(const struct vocab *v, const void *text, size_t n)
{
	return slot_id(*find_slot(v, text, n, hash_bytes(&v->key, text, n)));
}

int32_t vocab_find_ordinary(const struct vocab *v, const void *text, size_t n)
{
	int32_t id = vocab_find(v, text, n);

	return id >= 0 && v->tokens[id].control ? -1 : id;
}
