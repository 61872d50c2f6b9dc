/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SentencePiece: the whole text is rewritten with U+2581 for spaces, and what
 * lies between special tokens is merged as one stretch (sentencepiece.h).
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/model/sentencepiece-text.h"
#include "daemon/model/tokenizer-kind.h"
#include "ipc/base/cleanup.h"

static int init(struct tokenizer *t, const struct tokenizer_source *source, struct diag *diag)
{
	if (!source->scores)
		return diag_set(diag, -EINVAL, "tokenizer.ggml.scores: missing");
	t->add_bos = true;
	t->add_space = source->add_space_prefix != 0;
	t->collapse_spaces = source->remove_extra_whitespaces > 0;
	return sentencepiece_init(&t->sentencepiece, &t->vocab, source->scores, source->unknown, diag);
}

/* How many bytes a space at the end of text takes, written either way; 0: there is none. */
static size_t trailing_space(const uint8_t *text, size_t n)
{
	if (n > 0 && text[n - 1] == ' ')
		return 1;
	if (n < SENTENCEPIECE_SPACE_BYTES)
		return 0;
	text += n - SENTENCEPIECE_SPACE_BYTES;
	return memcmp(text, SENTENCEPIECE_SPACE, SENTENCEPIECE_SPACE_BYTES) ? 0 : SENTENCEPIECE_SPACE_BYTES;
}

/*
 * Drops spaces at the ends, and all but one inside; U+2581 counts at the end
 * only, as for sentencepiece.  Returns the length.
 */
static size_t collapse(const uint8_t *text, size_t n, uint8_t *out)
{
	size_t n_out = 0, n_space;

	for (size_t i = 0; i < n; i++)
		if (text[i] != ' ' || (n_out > 0 && out[n_out - 1] != ' '))
			out[n_out++] = text[i];
	while ((n_space = trailing_space(out, n_out)) > 0)
		n_out -= n_space;
	return n_out;
}

/* Leaves room for one U+2581 in front: begin() writes it there. */
static int rewrite(const struct tokenizer *t, struct tokenizer_work *w, const uint8_t *text, size_t *from,
		   size_t *n)
{
	_cleanup_(freep) uint8_t *collapsed = NULL;
	size_t n_text = *n, n_spaces = 0;

	if (t->collapse_spaces) {
		collapsed = malloc(n_text + 1);
		if (!collapsed)
			return -ENOMEM;
		n_text = collapse(text, n_text, collapsed);
		text = collapsed;
	}
	for (size_t i = 0; i < n_text; i++)
		n_spaces += text[i] == ' ';
	w->text = malloc(SENTENCEPIECE_SPACE_BYTES * (1 + n_spaces) + n_text);
	if (!w->text)
		return -ENOMEM;
	*from = SENTENCEPIECE_SPACE_BYTES;
	*n = *from + sentencepiece_escape(text, n_text, w->text + *from);
	return 0;
}

/* What stands before is done with, or the room that rewrite() left. */
static size_t begin(const struct tokenizer *t, struct tokenizer_work *w, size_t at)
{
	if (!t->add_space)
		return at;
	at -= SENTENCEPIECE_SPACE_BYTES;
	memcpy(w->text + at, SENTENCEPIECE_SPACE, SENTENCEPIECE_SPACE_BYTES);
	return at;
}

static int encode(const struct tokenizer *t, struct tokenizer_work *w, const uint8_t *text, size_t n,
		  struct token_list *out)
{
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
	.begin = begin,
	.encode = encode,
	.encode_bytes = encode_bytes,
};
