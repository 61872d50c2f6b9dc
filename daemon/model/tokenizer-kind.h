/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer-kind.h - what differs between kinds of tokenizers, as a table of
 * functions, and the tokenizer that they work on.  For the tokenizer-*.c only.
 */
#ifndef KVD_TOKENIZER_KIND_H
#define KVD_TOKENIZER_KIND_H

#include "daemon/model/bpe.h"
#include "daemon/model/pretokenizer.h"
#include "daemon/model/sentencepiece.h"
#include "daemon/model/special-tokens.h"
#include "daemon/model/tokenizer-source.h"
#include "daemon/model/vocab.h"

#define TOKENIZER_MAX_EOG 32

struct tokenizer {
	const struct tokenizer_kind *kind;
	struct vocab vocab;
	struct special_tokens special;
	int32_t bos, eos;
	bool add_bos, add_eos;
	bool add_space;			/* a space goes before text that begins, or follows a control token */
	bool collapse_spaces;		/* runs of spaces are one, none at the ends */
	int32_t eog[TOKENIZER_MAX_EOG];
	size_t n_eog;

	/* Of the one kind or the other. */
	struct bpe bpe;
	struct pretokenizer *pre;
	struct sentencepiece sentencepiece;
};

/* Memory of one tokenizer_encode(). */
struct tokenizer_work {
	struct bpe_work bpe;
	struct sentencepiece_work sentencepiece;
	uint8_t *text;			/* the text as it was rewritten */
};

struct tokenizer_kind {
	enum vocab_alphabet alphabet;
	/* Makes what is of this kind; vocab and roles are there.  Sets add_bos to what is usual. */
	int (*init)(struct tokenizer *t, const struct tokenizer_source *source, struct diag *diag);
	/*
	 * Rewrites a whole text before it is cut, into w->text; it begins there at
	 * *from and ends at *n.  NULL: it stays as it is.  0 or -ENOMEM.
	 */
	int (*rewrite)(const struct tokenizer *t, struct tokenizer_work *w, const uint8_t *text, size_t *from,
		       size_t *n);
	/*
	 * Text begins at a place of the rewritten text, or goes on behind a control
	 * token; may put something before it, and returns the place where it begins
	 * then.  NULL: nothing.
	 */
	size_t (*begin)(const struct tokenizer *t, struct tokenizer_work *w, size_t at);
	/* Appends the ids of well-formed text without special tokens, n > 0. */
	int (*encode)(const struct tokenizer *t, struct tokenizer_work *w, const uint8_t *text, size_t n,
		      struct token_list *out);
	/* Appends the ids of bytes that are no text. */
	int (*encode_bytes)(const struct tokenizer *t, struct tokenizer_work *w, const uint8_t *bytes, size_t n,
			    struct token_list *out);
};

extern const struct tokenizer_kind tokenizer_kind_bpe, tokenizer_kind_sentencepiece;

#endif
