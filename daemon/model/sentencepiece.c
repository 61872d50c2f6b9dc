/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/sentencepiece.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/utf8.h"

#define NO_SYMBOL UINT32_MAX

/* A symbol reaches to where the next one starts. */
struct sentencepiece_symbol {
	uint32_t start;		/* its first byte */
	uint32_t previous, next;
	int32_t id;		/* of a merged symbol; -1: one character, not looked up */
	int32_t pair;		/* the token that it is together with the next one, -1: none */
};

/* A piece while they are ranked. */
struct scored {
	float score;
	uint32_t id;
};

static int compare_scores(const void *a, const void *b)
{
	const struct scored *x = a, *y = b;

	return x->score > y->score ? -1 : x->score < y->score;
}

/* The number of the bit for two characters side by side. */
static uint32_t pair_bit(const struct sentencepiece *s, uint32_t left, uint32_t right)
{
	uint64_t h = ((uint64_t)left << 21 | right) * 0x9e3779b97f4a7c15u;

	return (uint32_t)(h >> 32) & s->pair_mask;
}

static bool may_join(const struct sentencepiece *s, uint32_t left, uint32_t right)
{
	uint32_t bit = pair_bit(s, left, right);

	return s->pairs[bit / 64] >> (bit % 64) & 1;
}

/* The character at text, an ill-formed byte by itself; *n_bytes is its length. */
static uint32_t next_char(const uint8_t *text, size_t n, size_t *n_bytes)
{
	uint32_t cp = text[0];
	int len = utf8_decode(text, n, &cp);

	*n_bytes = len > 0 ? (size_t)len : 1;
	return cp;
}

static void note_pairs(struct sentencepiece *s, const uint8_t *text, size_t n)
{
	uint32_t previous = 0;

	for (size_t at = 0, len; at < n; at += len) {
		uint32_t cp = next_char(text + at, n - at, &len);

		if (at > 0) {
			uint32_t bit = pair_bit(s, previous, cp);
			s->pairs[bit / 64] |= UINT64_C(1) << (bit % 64);
		}
		previous = cp;
	}
}

/* Sixteen bits for each token, so that few pairs share one. */
static int find_pairs(struct sentencepiece *s, const struct vocab *v)
{
	uint32_t n_bits = 1024;

	while (n_bits < 16 * (uint64_t)v->n && n_bits < 1u << 26)
		n_bits *= 2;
	s->pair_mask = n_bits - 1;
	s->pairs = calloc(n_bits / 64, sizeof(*s->pairs));
	if (!s->pairs)
		return -ENOMEM;
	for (uint32_t id = 0; id < v->n; id++)
		if (vocab_is_piece(&v->tokens[id]))
			note_pairs(s, vocab_text(v, (int32_t)id), v->tokens[id].n_text);
	return 0;
}

int sentencepiece_init(struct sentencepiece *s, const struct vocab *v, const float *scores, int32_t unknown,
		       struct diag *diag)
{
	_cleanup_(freep) struct scored *pieces = malloc(v->n * sizeof(*pieces));
	_cleanup_(freep) uint32_t *ranks = calloc(v->n, sizeof(*ranks));
	struct sentencepiece made = { .unknown = unknown };
	uint32_t n = 0;

	if (!pieces || !ranks)
		return -ENOMEM;
	for (uint32_t id = 0; id < v->n; id++) {
		const struct vocab_token *t = &v->tokens[id];

		if (!isfinite(scores[id]))
			return diag_set(diag, -EINVAL, "tokenizer.ggml.scores: that of token %u is not finite", id);
		if (!vocab_is_piece(t))
			continue;
		if (t->n_text > SENTENCEPIECE_MAX_PIECE)
			return diag_set(diag, -EINVAL,
					"tokenizer.ggml.tokens: token %u has %u bytes, expected at most %u", id,
					t->n_text, SENTENCEPIECE_MAX_PIECE);
		made.longest = t->n_text > made.longest ? t->n_text : made.longest;
		made.has_unused |= t->type == TOKEN_UNUSED;
		pieces[n++] = (struct scored){ scores[id], id };
	}
	qsort(pieces, n, sizeof(*pieces), compare_scores);
	for (uint32_t i = 1; i < n; i++)
		ranks[pieces[i].id] =
			ranks[pieces[i - 1].id] + (pieces[i].score < pieces[i - 1].score);
	if (find_pairs(&made, v) < 0)
		return -ENOMEM;
	made.ranks = steal_ptr(ranks);
	*s = made;
	return 0;
}

void sentencepiece_deinit(struct sentencepiece *s)
{
	free(s->ranks);
	free(s->pairs);
	*s = SENTENCEPIECE_NULL;
}

void sentencepiece_work_deinit(struct sentencepiece_work *w)
{
	free(w->symbols);
	free(w->left_bytes);
	merge_queue_deinit(&w->queue);
	*w = SENTENCEPIECE_WORK_NULL;
}

/* A merge takes one entry and adds at most two, so that 2 n entries are enough. */
static int work_reserve(struct sentencepiece_work *w, const struct sentencepiece *s, const struct vocab *v,
			size_t n)
{
	if (n > w->n_symbols) {
		struct sentencepiece_symbol *symbols = malloc(n * sizeof(*symbols));
		if (!symbols)
			return -ENOMEM;
		free(w->symbols);
		w->symbols = symbols;
		w->n_symbols = n;
	}
	if (s->has_unused && !w->left_bytes) {
		w->left_bytes = calloc(v->n, sizeof(*w->left_bytes));
		if (!w->left_bytes)
			return -ENOMEM;
	}
	return merge_queue_reset(&w->queue, 2 * n);
}

/* The token that a piece of text is, -1 if none that merges can lead to. */
static int32_t find_piece(const struct sentencepiece *s, const struct vocab *v, const uint8_t *text, size_t n)
{
	int32_t id = n > s->longest ? -1 : vocab_find(v, text, n);

	return id >= 0 && vocab_is_piece(&v->tokens[id]) ? id : -1;
}

/* One call of sentencepiece_encode(). */
struct stretch {
	const struct sentencepiece *s;
	const struct vocab *v;
	const uint8_t *text;
	uint32_t n;
	struct sentencepiece_work *w;
	struct token_list *out;
};

static uint32_t start_of(const struct stretch *e, uint32_t symbol)
{
	return symbol == NO_SYMBOL ? e->n : e->w->symbols[symbol].start;
}

/* Looks up the pair that begins at symbol i. */
static void push_pair(const struct stretch *e, uint32_t i)
{
	struct sentencepiece_symbol *s = &e->w->symbols[i];
	uint32_t middle, end;

	s->pair = -1;
	if (s->next == NO_SYMBOL)
		return;
	middle = e->w->symbols[s->next].start;
	end = start_of(e, e->w->symbols[s->next].next);
	s->pair = find_piece(e->s, e->v, e->text + s->start, end - s->start);
	if (s->pair < 0)
		return;
	if (e->v->tokens[s->pair].type == TOKEN_UNUSED)
		e->w->left_bytes[s->pair] = middle - s->start;
	merge_queue_push(&e->w->queue, merge_queue_entry(e->s->ranks[s->pair], i));
}

static void merge_all(const struct stretch *e, size_t n_symbols)
{
	struct sentencepiece_symbol *symbols = e->w->symbols;
	uint64_t entry;

	for (size_t i = 0; i < n_symbols; i++)
		push_pair(e, (uint32_t)i);
	while (merge_queue_pop(&e->w->queue, &entry)) {
		uint32_t i = (uint32_t)entry, next;
		struct sentencepiece_symbol *s = &symbols[i];

		/* A neighbour that was merged meanwhile changed the pair, or took the symbol. */
		if (s->pair < 0 || e->s->ranks[s->pair] != entry >> 32)
			continue;
		next = s->next;
		s->id = s->pair;
		s->next = symbols[next].next;
		symbols[next].pair = -1;
		if (s->next != NO_SYMBOL)
			symbols[s->next].previous = i;
		if (s->previous != NO_SYMBOL)
			push_pair(e, s->previous);
		push_pair(e, i);
	}
}

static int push_unknown(const struct sentencepiece *s, struct sentencepiece_work *w, struct token_list *out)
{
	int r;

	if (s->unknown < 0 || (w->unknown_end && w->unknown_end == out->n))
		return 0;
	r = token_list_push(out, s->unknown);
	w->unknown_end = out->n;
	return r;
}

int sentencepiece_encode_bytes(const struct sentencepiece *s, const struct vocab *v, const uint8_t *bytes,
			       size_t n, struct sentencepiece_work *w, struct token_list *out)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < n; i++) {
		int32_t id = v->byte_ids[bytes[i]];

		r = id < 0 ? push_unknown(s, w, out) : token_list_push(out, id);
	}
	return r;
}

/* Takes an unused piece apart along the pairs it was made of. */
static int emit_unused(const struct stretch *e, uint32_t start, uint32_t n)
{
	/* Pieces are cut in two, so that never more than their bytes wait. */
	struct { uint32_t start, n; } waiting[SENTENCEPIECE_MAX_PIECE] = { { start, n } };
	size_t n_waiting = 1;
	int r = 0;

	while (r == 0 && n_waiting > 0) {
		uint32_t at = waiting[n_waiting - 1].start, len = waiting[n_waiting - 1].n, left;
		int32_t id = find_piece(e->s, e->v, e->text + at, len);

		n_waiting--;
		left = id >= 0 && e->v->tokens[id].type == TOKEN_UNUSED ? e->w->left_bytes[id] : 0;
		if (left) {
			waiting[n_waiting].start = at + left;
			waiting[n_waiting++].n = len - left;
			waiting[n_waiting].start = at;
			waiting[n_waiting++].n = left;
		} else if (id >= 0) {
			r = token_list_push(e->out, id);
		} else {
			r = sentencepiece_encode_bytes(e->s, e->v, e->text + at, len, e->w, e->out);
		}
	}
	return r;
}

static int emit_symbol(const struct stretch *e, uint32_t i)
{
	uint32_t start = e->w->symbols[i].start, n = start_of(e, e->w->symbols[i].next) - start;
	int32_t id = e->w->symbols[i].id;

	if (id < 0)
		id = find_piece(e->s, e->v, e->text + start, n);
	if (id < 0)
		return sentencepiece_encode_bytes(e->s, e->v, e->text + start, n, e->w, e->out);
	if (e->v->tokens[id].type == TOKEN_UNUSED)
		return emit_unused(e, start, n);
	return token_list_push(e->out, id);
}

/* Text in which each character may be joined with the next. */
static int encode_joined(const struct stretch *e)
{
	struct sentencepiece_work *w = e->w;
	uint32_t n_symbols = 0;
	int r = work_reserve(w, e->s, e->v, e->n);

	if (r < 0)
		return r;
	for (size_t at = 0, len; at < e->n; at += len) {
		next_char(e->text + at, e->n - at, &len);
		w->symbols[n_symbols] = (struct sentencepiece_symbol){
			.start = (uint32_t)at, .previous = n_symbols - 1, .next = n_symbols + 1, .id = -1, .pair = -1,
		};
		n_symbols++;
	}
	w->symbols[0].previous = NO_SYMBOL;
	w->symbols[n_symbols - 1].next = NO_SYMBOL;
	merge_all(e, n_symbols);
	for (uint32_t i = 0; r == 0 && i != NO_SYMBOL; i = w->symbols[i].next)
		r = emit_symbol(e, i);
	return r;
}

/* The length of the text up to where nothing can be merged across. */
static size_t joined_length(const struct sentencepiece *s, const uint8_t *text, size_t n)
{
	size_t len, at;
	uint32_t cp = next_char(text, n, &len);

	for (at = len; at < n; at += len) {
		uint32_t next = next_char(text + at, n - at, &len);

		if (!may_join(s, cp, next))
			break;
		cp = next;
	}
	return at;
}

int sentencepiece_encode(const struct sentencepiece *s, const struct vocab *v, const uint8_t *text, size_t n,
			 struct sentencepiece_work *w, struct token_list *out)
{
	int r = 0;

	while (r == 0 && n > 0) {
		size_t k = joined_length(s, text, n);
		struct stretch e = { .s = s, .v = v, .text = text, .n = (uint32_t)k, .w = w, .out = out };

		r = encode_joined(&e);
		text += k;
		n -= k;
	}
	return r;
}
