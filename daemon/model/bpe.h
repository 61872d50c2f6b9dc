/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bpe.h - byte-pair encoding of one word.
 *
 * The word's bytes are a linked list of symbols; the applicable merge of the
 * lowest rank, leftmost first, is taken from a queue until there is none
 * (Sennrich et al. 2016; the order is that of `tokenizers`' BPE model).  A word
 * of n bytes costs O(n log n) time and at most 50 n bytes of memory.
 *
 * Bytes for which the vocabulary has no token are left out, as `tokenizers`
 * does for a model without an unknown token.
 */
#ifndef KVD_BPE_H
#define KVD_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/model/keyed-hash.h"
#include "daemon/model/merge-queue.h"
#include "daemon/model/tokenizer.h"
#include "daemon/model/vocab.h"
#include "ipc/base/error.h"

#define BPE_MAX_MERGES (1u << 22)

struct bpe_merge {
	int32_t left, right, result;
};

struct bpe_slot {
	int32_t left, right;	/* left = -1: free */
	uint32_t rank;
};

struct bpe {
	struct bpe_merge *merges;	/* by rank */
	struct hash_key key;
	struct bpe_slot *slots;		/* [mask + 1] open addressing: the rank of a pair */
	uint32_t mask;
	bool whole_words;		/* a word that is a token is taken whole, whatever the merges say */
};

#define BPE_NULL ((struct bpe){ 0 })

/*
 * merges: "LEFT RIGHT" in order of rank.  Each names two tokens whose
 * concatenation is a token; one that touches a control token is never applied.
 * Of two merges of the same pair the later counts.
 * 0, -ENOMEM, -EINVAL with diag naming the merge.
 */
int bpe_init(struct bpe *b, const struct vocab *v, const struct gguf_string *merges, size_t n,
	     bool whole_words, struct diag *diag);
void bpe_deinit(struct bpe *b);

/* Memory that words share, for one thread at a time. */
struct bpe_work {
	struct bpe_symbol *symbols;
	size_t n_symbols;	/* allocated */
	struct merge_queue queue;
	uint8_t *text;
	size_t n_text;		/* allocated */
};

#define BPE_WORK_NULL ((struct bpe_work){ 0 })

void bpe_work_deinit(struct bpe_work *w);

/* Appends the ids of one word, n <= UINT32_MAX / 2 bytes.  0 or -ENOMEM; out may have grown on failure. */
int bpe_encode(const struct bpe *b, const struct vocab *v, const uint8_t *word, size_t n, struct bpe_work *w,
	       struct token_list *out);

#endif
