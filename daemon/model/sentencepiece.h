/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sentencepiece.h - SentencePiece's BPE model over one stretch of text.
 *
 * The stretch's characters are a linked list of symbols.  Of all neighbours that
 * together are a token the pair of the highest score is merged, leftmost first,
 * until there is none (Kudo and Richardson 2018; the order is that of
 * sentencepiece's bpe::Model).  A symbol that is no token in the end becomes the
 * tokens of its bytes, or the unknown token once for a run of such symbols where
 * the vocabulary has no byte tokens.  Tokens of type unused take part in merges,
 * but are taken apart again.
 *
 * A stretch is cut where two characters meet that stand side by side in no token:
 * nothing can be merged across.  So a text of words is merged word by word, with
 * what that takes at hand.
 *
 * A stretch of n bytes costs O(n log n) steps, each at most a hash over one
 * piece, and at most 52 n bytes of memory.
 */
#ifndef KVD_SENTENCEPIECE_H
#define KVD_SENTENCEPIECE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/model/merge-queue.h"
#include "daemon/model/tokenizer.h"
#include "daemon/model/vocab.h"
#include "ipc/base/error.h"

#define SENTENCEPIECE_MAX_PIECE 1024u	/* bytes of a token that merges can lead to */

struct sentencepiece {
	uint32_t *ranks;	/* [vocab.n] by score, 0 is the highest; equal scores share one */
	uint32_t longest;	/* bytes of the longest piece */
	int32_t unknown;	/* -1: none */
	bool has_unused;
	uint64_t *pairs;	/* bits by hash: characters that may stand side by side in a token */
	uint32_t pair_mask;	/* of their numbers */
};

#define SENTENCEPIECE_NULL ((struct sentencepiece){ 0 })

/*
 * scores: [v->n].  0, -ENOMEM, -EINVAL with diag where a score is not finite or
 * a piece too long.
 */
int sentencepiece_init(struct sentencepiece *s, const struct vocab *v, const float *scores, int32_t unknown,
		       struct diag *diag);
void sentencepiece_deinit(struct sentencepiece *s);

/* Memory that stretches share, for one thread at a time. */
struct sentencepiece_work {
	struct sentencepiece_symbol *symbols;
	size_t n_symbols;		/* allocated */
	struct merge_queue queue;
	uint32_t *left_bytes;		/* [v->n] of an unused piece: where its last pair was cut; 0: none */
	size_t unknown_end;		/* how many ids there were behind the last unknown one; 0: none */
};

#define SENTENCEPIECE_WORK_NULL ((struct sentencepiece_work){ 0 })

void sentencepiece_work_deinit(struct sentencepiece_work *w);

/*
 * Appends the ids of one stretch: well-formed UTF-8 in which spaces are U+2581,
 * n < UINT32_MAX.  0 or -ENOMEM; out may have grown on failure.
 */
int sentencepiece_encode(const struct sentencepiece *s, const struct vocab *v, const uint8_t *text, size_t n,
			 struct sentencepiece_work *w, struct token_list *out);
/* Appends the ids of bytes that are no text. */
int sentencepiece_encode_bytes(const struct sentencepiece *s, const struct vocab *v, const uint8_t *bytes,
			       size_t n, struct sentencepiece_work *w, struct token_list *out);

#endif
