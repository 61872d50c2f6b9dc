/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/special-tokens.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/model/sentencepiece-text.h"
#include "ipc/base/cleanup.h"

/* A special token while the trie is built. */
struct entry {
	const uint8_t *text;
	uint32_t n;
	int32_t id;
	bool control;
};

/* A node's tokens are entries[low..high), which share their first depth bytes. */
struct span {
	uint32_t low, high, depth;
};

static int compare_entries(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;
	int c = memcmp(x->text, y->text, x->n < y->n ? x->n : y->n);

	if (c)
		return c;
	if (x->n != y->n)
		return x->n < y->n ? -1 : 1;
	return x->id < y->id ? -1 : x->id > y->id;
}

static bool is_special(const struct vocab_token *t)
{
	return (t->control || t->type == TOKEN_USER_DEFINED) && t->n_text > 0;
}

/* Texts are matched as encoding rewrites them: with SentencePiece without spaces. */
static struct entry entry_of(const struct vocab *v, uint32_t id, uint8_t *room)
{
	const struct vocab_token *t = &v->tokens[id];
	struct entry e = { vocab_text(v, (int32_t)id), t->n_text, (int32_t)id, t->control };

	if (v->alphabet == VOCAB_SENTENCEPIECE) {
		e.n = (uint32_t)sentencepiece_escape(e.text, e.n, room);
		e.text = room;
	}
	return e;
}

/* Removes all but the first of those with one text; returns how many are left. */
static uint32_t unique(struct entry *entries, uint32_t n)
{
	uint32_t n_left = 0;

	for (uint32_t i = 0; i < n; i++)
		if (i == 0 || entries[i].n != entries[n_left - 1].n ||
		    memcmp(entries[i].text, entries[n_left - 1].text, entries[i].n) != 0)
			entries[n_left++] = entries[i];
	return n_left;
}

/* Sets *entries and *n, and *texts, to which they may point; *n_bytes is the sum of their lengths. */
static int collect(const struct vocab *v, struct entry **entries, uint8_t **texts, uint32_t *n,
		   size_t *n_bytes, struct diag *diag)
{
	_cleanup_(freep) struct entry *found = calloc(v->n, sizeof(*found));
	_cleanup_(freep) uint8_t *room = NULL;
	uint32_t n_found = 0;
	size_t sum = 0;

	for (uint32_t id = 0; id < v->n; id++)
		if (is_special(&v->tokens[id]))
			sum += SENTENCEPIECE_SPACE_BYTES * (size_t)v->tokens[id].n_text;
	room = malloc(sum + 1);
	if (!found || !room)
		return -ENOMEM;
	sum = 0;
	for (uint32_t id = 0; id < v->n; id++) {
		const struct vocab_token *t = &v->tokens[id];

		if (!is_special(t))
			continue;
		if (t->n_text > SPECIAL_MAX_LENGTH)
			return diag_set(
				diag, -EINVAL,
				"tokenizer.ggml.tokens: special token %u has %u bytes, expected at most %u",
				id, t->n_text, SPECIAL_MAX_LENGTH);
		found[n_found] = entry_of(v, id, room + sum);
		sum += found[n_found++].n;
	}
	qsort(found, n_found, sizeof(*found), compare_entries);
	n_found = unique(found, n_found);
	*entries = steal_ptr(found);
	*texts = steal_ptr(room);
	*n = n_found;
	*n_bytes = sum;
	return 0;
}

/* Appends the children of node i, whose tokens are in spans[i]. */
static void expand(struct special_tokens *s, struct span *spans, uint32_t i, const struct entry *entries)
{
	struct span span = spans[i];
	struct special_node *node = &s->nodes[i];

	node->id = -1;
	if (span.low < span.high && entries[span.low].n == span.depth) {
		node->id = entries[span.low].id;
		node->control = entries[span.low].control;
		span.low++;
	}
	node->children = s->n_nodes;
	while (span.low < span.high) {
		uint8_t byte = entries[span.low].text[span.depth];
		uint32_t end = span.low + 1;

		while (end < span.high && entries[end].text[span.depth] == byte)
			end++;
		spans[s->n_nodes] = (struct span){ span.low, end, span.depth + 1 };
		s->nodes[s->n_nodes].byte = byte;
		s->n_nodes++;
		node->n_children++;
		span.low = end;
	}
}

int special_tokens_init(struct special_tokens *s, const struct vocab *v, struct diag *diag)
{
	_cleanup_(freep) struct entry *entries = NULL;
	_cleanup_(freep) uint8_t *texts = NULL;
	_cleanup_(freep) struct span *spans = NULL;
	struct special_tokens made = SPECIAL_TOKENS_NULL;
	uint32_t n = 0;
	size_t n_bytes = 0;
	int r;

	r = collect(v, &entries, &texts, &n, &n_bytes, diag);
	if (r < 0)
		return r;
	/* A node for the root and at most one for each byte. */
	made.nodes = calloc(n_bytes + 1, sizeof(*made.nodes));
	spans = calloc(n_bytes + 1, sizeof(*spans));
	if (!made.nodes || !spans) {
		special_tokens_deinit(&made);
		return -ENOMEM;
	}
	spans[0].high = n;
	made.n_nodes = 1;
	for (uint32_t i = 0; i < made.n_nodes; i++)
		expand(&made, spans, i, entries);
	for (uint32_t i = 0; i < made.nodes[0].n_children; i++) {
		uint32_t child = made.nodes[0].children + i;
		made.first[made.nodes[child].byte] = child;
	}
	*s = made;
	return 0;
}

void special_tokens_deinit(struct special_tokens *s)
{
	free(s->nodes);
	*s = SPECIAL_TOKENS_NULL;
}

/* The child by byte, 0 if there is none. */
static uint32_t find_child(const struct special_tokens *s, uint32_t node, uint8_t byte)
{
	uint32_t low = s->nodes[node].children, high = low + s->nodes[node].n_children;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (s->nodes[middle].byte == byte)
			return middle;
		if (s->nodes[middle].byte < byte)
			low = middle + 1;
		else
			high = middle;
	}
	return 0;
}

size_t special_tokens_match(const struct special_tokens *s, const uint8_t *text, size_t n, bool control,
			    int32_t *id)
{
	uint32_t node = s->first[text[0]];
	size_t best = 0;

	for (size_t depth = 1; node; depth++) {
		const struct special_node *here = &s->nodes[node];

		if (here->id >= 0 && (control || !here->control)) {
			best = depth;
			*id = here->id;
		}
		node = depth < n ? find_child(s, node, text[depth]) : 0;
	}
	return best;
}

int32_t special_tokens_find(const struct special_tokens *s, const uint8_t *text, size_t n, size_t from,
			    bool control, size_t *at, size_t *len)
{
	for (size_t i = from; i < n; i++) {
		int32_t id;
		size_t k;

		if (!s->first[text[i]])
			continue;
		k = special_tokens_match(s, text + i, n - i, control, &id);
		if (k) {
			*at = i;
			*len = k;
			return id;
		}
	}
	return -1;
}
