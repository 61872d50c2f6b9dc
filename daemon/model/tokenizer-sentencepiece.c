/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SentencePiece: the whole text is rewritten with U+2581 for spaces, and what
 * lies between special tokens is merged as one stretch (sentencepiece.h).
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/model/sentencepiece-text.h"
#include "daemon/model/tokenizer-kind.h"

static int init(struct tokenizer *t, const struct tokenizer_source *source, struct diag *diag)
{
	if (!source->scores)
		return diag_set(diag, -EINVAL, "tokenizer.ggml.scores: missing");
	t->add_bos = true;
	t->add_space = source->add_space_prefix != 0;
	t->collapse_spaces = source->remove_extra_whitespaces > 0;
	return sentencepiece_init(&t->sentencepiece, &t->vocab, source->scores, source->unknown, diag);
}

/* Drops spaces at the ends, and all but one inside; returns the length. */
static size_t collapse(const uint8_t *text, size_t n, uint8_t *out)
{
	size_t n_out = 0;

	for (size_t i = 0; i < n; i++)
		if (text[i] != ' ' || (n_out > 0 && out[n_out - 1] != ' '))
			out[n_out++] = text[i];
	while (n_out > 0 && out[n_out - 1] == ' ')
		n_out--;
	return n_out;
}

/* Leaves room for one U+2581 in front: encode() writes it there. */
static int rewrite(const struct tokenizer *t, struct tokenizer_work *w, const uint8_t **text, size_t *n)
{
	uint8_t *collapsed = NULL;
	const uint8_t *from = *text;
	size_t n_from = *n, n_spaces = 0;

	if (t->collapse_spaces) {
		collapsed = malloc(n_from + 1);
		if (!collapsed)
			return -ENOMEM;
		n_from = collapse(from, n_from, collapsed);
		from = collapsed;
	}
	for (size_t i = 0; i < n_from; i++)
		n_spaces += from[i] == ' ';
	w->text = malloc(SENTENCEPIECE_SPACE_BYTES * (1 + n_spaces) + n_from);
	if (w->text) {
		*n = sentencepiece_escape(from, n_from, w->text + SENTENCEPIECE_SPACE_BYTES);
		*text = w->text + SENTENCEPIECE_SPACE_BYTES;
	}
	free(collapsed);
	return w->text ? 0 : -ENOMEM;
}

static int encode(const struct tokenizer *t, struct tokenizer_work *w, const uint8_t *text, size_t n,
		  bool begins, struct token_list *out)
{
	if (begins && t->add_space) {
		/* What stands before is done with, or the room that rewrite() left. */
		size_t at = (size_t)(text - w->text) - SENTENCEPIECE_SPACE_BYTES;

		memcpy(w->text + at, SENTENCEPIECE_SPACE, SENTENCEPIECE_SPACE_BYTES);
		text = w->text + at;
		n += SENTENCEPIECE_SPACE_BYTES;
	}
	return sentencepiece_encode(&t->sentencepiece, &t->vocab, text, n, &w->sentencepiece, out);
}

static int encode_bytes(const struct tokenizer *t, struct tokenizer_work *w, const uint8_t *bytes, size_t n,
			struct token_list *out)
{
	return sentencepiece_encode_bytes(&t->sentencepiece, &t->vocab, bytes, n, &w->sentencepiece, out);
}

const struct tokenizer_kind tokenizer_kind_sentencepiece = {
	.alphabet = VOCAB_SENTENCEPIECE,
	.init = init,
	.rewrite = rewrite,
	.encode = encode,
	.encode_bytes = encode_bytes,
};
