/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/model/byte-alphabet.h"
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

/* The slot of a text: the one that holds it, or the free one where it belongs. */
static uint32_t *find_slot(const struct vocab *v, const void *text, size_t n)
{
	for (uint32_t i = (uint32_t)hash_bytes(&v->key, text, n) & v->mask;; i = (i + 1) & v->mask) {
		uint32_t *slot = &v->slots[i];
		const struct vocab_token *t;

		if (*slot == 0)
			return slot;
		t = &v->tokens[*slot - 1];
		if (t->n_text == n && memcmp(v->arena + t->text, text, n) == 0)
			return slot;
	}
}

/* Copies one token behind what the arena holds; returns the new end. */
static uint32_t add_token(struct vocab *v, uint32_t id, struct gguf_string text, int32_t type, uint32_t end)
{
	struct vocab_token *t = &v->tokens[id];

	t->type = (uint8_t)type;
	t->control = type == TOKEN_CONTROL || type == TOKEN_UNKNOWN;
	t->text = end;
	t->n_text = (uint32_t)text.n;
	if (t->n_text > v->longest)
		v->longest = t->n_text;
	if (text.n)
		memcpy(v->arena + end, text.data, text.n);
	end += t->n_text;
	if (t->control || type == TOKEN_USER_DEFINED) {
		/* Written plainly, not in the alphabet of bytes. */
		t->bytes = t->text;
		t->n_bytes = t->n_text;
		return end;
	}
	t->bytes = end;
	t->n_bytes = (uint32_t)byte_alphabet_decode(v->arena + t->text, text.n, v->arena + end);
	return end + t->n_bytes;
}

static void find_byte_tokens(struct vocab *v)
{
	for (int b = 0; b < 256; b++) {
		uint8_t text[4];
		size_t n = utf8_encode(byte_alphabet_char((uint8_t)b), text);

		v->byte_ids[b] = vocab_find_ordinary(v, text, n);
	}
}

int vocab_init(struct vocab *v, const struct gguf_string *tokens, const int32_t *types, size_t n,
	       struct diag *diag)
{
	struct vocab made = VOCAB_NULL;
	uint32_t end = 0;
	int r;

	r = allocate(&made, tokens, n, diag);
	for (uint32_t id = 0; r == 0 && id < n; id++) {
		int32_t type = types ? types[id] : TOKEN_NORMAL;
		uint32_t *slot;

		if (type < TOKEN_UNDEFINED || type > TOKEN_BYTE) {
			r = diag_set(diag, -EINVAL,
				     "tokenizer.ggml.token_type: token %u has the unknown type %d", id, type);
			break;
		}
		end = add_token(&made, id, tokens[id], type, end);
		if (tokens[id].n == 0)
			continue;
		slot = find_slot(&made, tokens[id].data, tokens[id].n);
		if (*slot)
			r = diag_set(diag, -EINVAL,
				     "tokenizer.ggml.tokens: tokens %u and %u are the same, \"%.*s\"",
				     *slot - 1, id, (int)(tokens[id].n < 80 ? tokens[id].n : 80),
				     tokens[id].data);
		else
			*slot = id + 1;
	}
	if (r < 0) {
		vocab_deinit(&made);
		return r;
	}
	made.n = (uint32_t)n;
	find_byte_tokens(&made);
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
	return (int32_t)*find_slot(v, text, n) - 1;
}

int32_t vocab_find_ordinary(const struct vocab *v, const void *text, size_t n)
{
	int32_t id = vocab_find(v, text, n);

	return id >= 0 && v->tokens[id].control ? -1 : id;
}
