/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/model/byte-alphabet.h"

#define NO_RANK UINT32_MAX
#define NO_SYMBOL UINT32_MAX

struct bpe_symbol {
	int32_t id;		/* -1: merged into the one before it */
	uint32_t previous, next;
};

static uint64_t pair_key(int32_t left, int32_t right)
{
	return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static struct bpe_slot *find_slot(const struct bpe *b, int32_t left, int32_t right)
{
	for (uint32_t i = (uint32_t)hash_u64(&b->key, pair_key(left, right)) & b->mask;;
	     i = (i + 1) & b->mask) {
		struct bpe_slot *s = &b->slots[i];

		if (s->left < 0 || (s->left == left && s->right == right))
			return s;
	}
}

static uint32_t find_rank(const struct bpe *b, int32_t left, int32_t right)
{
	const struct bpe_slot *s = find_slot(b, left, right);

	return s->left < 0 ? NO_RANK : s->rank;
}

static int bad_merge(struct diag *diag, size_t rank, struct gguf_string text, const char *why)
{
	return diag_set(diag, -EINVAL, "tokenizer.ggml.merges: merge %zu, \"%.*s\": %s", rank,
			(int)(text.n < 80 ? text.n : 80), text.data, why);
}

/* Reads one merge and enters it.  buffer has room for its text. */
static int add_merge(struct bpe *b, const struct vocab *v, size_t rank, struct gguf_string text, char *buffer,
		     struct diag *diag)
{
	const char *space = text.n > 2 ? memchr(text.data + 1, ' ', text.n - 2) : NULL;
	struct bpe_merge *m = &b->merges[rank];
	struct bpe_slot *slot;
	size_t n_left, n_right;

	if (!space)
		return bad_merge(diag, rank, text, "expected two tokens with a space between");
	n_left = (size_t)(space - text.data);
	n_right = text.n - n_left - 1;
	memcpy(buffer, text.data, n_left);
	memcpy(buffer + n_left, space + 1, n_right);
	m->left = vocab_find(v, text.data, n_left);
	m->right = vocab_find(v, space + 1, n_right);
	m->result = vocab_find(v, buffer, n_left + n_right);
	if (m->left < 0 || m->right < 0)
		return bad_merge(diag, rank, text, "a part of it is no token");
	if (m->result < 0)
		return bad_merge(diag, rank, text, "its result is no token");
	if (v->tokens[m->left].control || v->tokens[m->right].control || v->tokens[m->result].control)
		return 0;
	slot = find_slot(b, m->left, m->right);
	*slot = (struct bpe_slot){ .left = m->left, .right = m->right, .rank = (uint32_t)rank };
	return 0;
}

static int add_merges(struct bpe *b, const struct vocab *v, const struct gguf_string *merges, size_t n,
		      struct diag *diag)
{
	size_t longest = 0;
	char *buffer;
	int r = 0;

	for (size_t i = 0; i < n; i++)
		if (merges[i].n > longest)
			longest = merges[i].n;
	buffer = malloc(longest + 1);
	if (!buffer)
		return -ENOMEM;
	for (size_t i = 0; r == 0 && i < n; i++)
		r = add_merge(b, v, i, merges[i], buffer, diag);
	free(buffer);
	return r;
}

int bpe_init(struct bpe *b, const struct vocab *v, const struct gguf_string *merges, size_t n,
	     bool whole_words, struct diag *diag)
{
	struct bpe made = { .whole_words = whole_words };
	uint32_t n_slots = 16;
	int r;

	if (n > BPE_MAX_MERGES)
		return diag_set(diag, -EINVAL, "tokenizer.ggml.merges: %zu merges, expected at most %u", n,
				BPE_MAX_MERGES);
	while (n_slots < 2 * n)
		n_slots *= 2;
	made.mask = n_slots - 1;
	made.merges = calloc(n + 1, sizeof(*made.merges));
	made.slots = malloc(n_slots * sizeof(*made.slots));
	if (!made.merges || !made.slots) {
		bpe_deinit(&made);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < n_slots; i++)
		made.slots[i].left = -1;
	hash_key_init(&made.key);
	r = add_merges(&made, v, merges, n, diag);
	if (r < 0) {
		bpe_deinit(&made);
		return r;
	}
	*b = made;
	return 0;
}

void bpe_deinit(struct bpe *b)
{
	free(b->merges);
	free(b->slots);
	*b = BPE_NULL;
}

void bpe_work_deinit(struct bpe_work *w)
{
	free(w->symbols);
	merge_queue_deinit(&w->queue);
	free(w->text);
	*w = BPE_WORK_NULL;
}

/* A merge takes one entry and adds at most two, so that 2 n entries are enough. */
static int work_reserve(struct bpe_work *w, size_t n)
{
	if (n > w->n_symbols) {
		struct bpe_symbol *symbols = realloc(w->symbols, n * sizeof(*symbols));
		if (!symbols)
			return -ENOMEM;
		w->symbols = symbols;
		w->n_symbols = n;
	}
	return merge_queue_reset(&w->queue, 2 * n);
}

/* Enters the pair that begins at symbol i, if there is a merge for it. */
static void push_pair(const struct bpe *b, struct bpe_work *w, uint32_t i)
{
	uint32_t next = w->symbols[i].next, rank;

	if (next == NO_SYMBOL)
		return;
	rank = find_rank(b, w->symbols[i].id, w->symbols[next].id);
	if (rank != NO_RANK)
		merge_queue_push(&w->queue, merge_queue_entry(rank, i));
}

/* Applies merges until none is left. */
static void merge_all(const struct bpe *b, struct bpe_work *w, size_t n_symbols)
{
	uint64_t entry;

	for (size_t i = 0; i + 1 < n_symbols; i++)
		push_pair(b, w, (uint32_t)i);
	while (merge_queue_pop(&w->queue, &entry)) {
		const struct bpe_merge *m = &b->merges[entry >> 32];
		uint32_t i = (uint32_t)entry, next = w->symbols[i].next;
		struct bpe_symbol *s = &w->symbols[i];

		/* A neighbour that was merged meanwhile changed the pair. */
		if (s->id != m->left || next == NO_SYMBOL || w->symbols[next].id != m->right)
			continue;
		s->id = m->result;
		s->next = w->symbols[next].next;
		w->symbols[next].id = -1;
		if (s->next != NO_SYMBOL)
			w->symbols[s->next].previous = i;
		if (s->previous != NO_SYMBOL)
			push_pair(b, w, s->previous);
		push_pair(b, w, i);
	}
}

/* *id = -1 if the word is no token.  0 or -ENOMEM. */
static int find_whole_word(const struct vocab *v, const uint8_t *word, size_t n, struct bpe_work *w,
			   int32_t *id)
{
	*id = -1;
	if (n > v->longest)
		return 0;
	if (2 * n > w->n_text) {
		uint8_t *text = realloc(w->text, 2 * n);
		if (!text)
			return -ENOMEM;
		w->text = text;
		w->n_text = 2 * n;
	}
	*id = vocab_find_ordinary(v, w->text, byte_alphabet_encode(word, n, w->text));
	return 0;
}

int bpe_encode(const struct bpe *b, const struct vocab *v, const uint8_t *word, size_t n, struct bpe_work *w,
	       struct token_list *out)
{
	uint32_t n_symbols = 0;
	int r = 0;

	if (b->whole_words && n > 1) {
		int32_t id;

		r = find_whole_word(v, word, n, w, &id);
		if (r < 0)
			return r;
		if (id >= 0)
			return token_list_push(out, id);
	}
	r = work_reserve(w, n);
	if (r < 0)
		return r;
	for (size_t i = 0; i < n; i++) {
		int32_t id = v->byte_ids[word[i]];

		if (id < 0)
			continue;
		w->symbols[n_symbols] =
			(struct bpe_symbol){ .id = id, .previous = n_symbols - 1, .next = n_symbols + 1 };
		n_symbols++;
	}
	if (n_symbols == 0)
		return 0;
	w->symbols[0].previous = NO_SYMBOL;
	w->symbols[n_symbols - 1].next = NO_SYMBOL;
	merge_all(b, w, n_symbols);
	for (uint32_t i = 0; r == 0 && i != NO_SYMBOL; i = w->symbols[i].next)
		r = token_list_push(out, w->symbols[i].id);
	return r;
}
