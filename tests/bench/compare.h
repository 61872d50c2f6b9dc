/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compare.h - a row of the comparison: a request with a type of keys and values, or without a cache.
 *
 * What a round measures of the cached ways: the prompt's prefill, and the answer token by token; where the
 * answer would take more than COMPARE_SECONDS, stretches of it at COMPARE_SAMPLES places, from the contexts
 * that are there. Without a cache every token is a prefill of all that is before it: measured at
 * COMPARE_SAMPLES places at most, fewer where that takes too long, and in between by straight lines.  For large
 * models there are fewer rounds than asked for, too: COMPARE_ROW_SECONDS for each row.
 *
 * Thread: the subject's.
 */
#ifndef KVD_BENCH_COMPARE_H
#define KVD_BENCH_COMPARE_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/bench/tables.h"

#define COMPARE_SAMPLES 8u
#define COMPARE_WINDOW 512u	/* tokens of a text that are seen at once */
#define COMPARE_SECONDS 20.0	/* of one row in one round, about */
#define COMPARE_ROW_SECONDS 75.0	/* of one row in all its rounds, if that is more than one */

enum { COMPARE_TOKENS, COMPARE_KV, COMPARE_TOTAL, COMPARE_P50, COMPARE_P99, COMPARE_PERPLEXITY,
       COMPARE_SAME };

struct variant {
	struct run *run;
	struct subject *subject;
	struct lane *lane;	/* NULL: the row says why */
	struct row *row;
	bool cached;
	uint32_t input, output;
	uint32_t n_places;	/* 0: the whole answer is measured */
	uint32_t stretch;	/* tokens at each place */
	double *ns;		/* [output] of each token */
	uint32_t n_windows;	/* of text */
	struct lane_scores scores;
};

/* 0 with lane NULL where it can't be measured here; -errno. */
int variant_init(struct variant *v, struct run *run, struct subject *s, enum kb_kv_type type, bool cached,
		 struct row *row);
void variant_deinit(struct variant *v);
int variant_round(struct variant *v);
/* Of the text of --text; f16: a variant that has done this, whose most likely tokens are compared, or NULL. */
int variant_perplexity(struct variant *v, const struct variant *f16);
/* What was sampled. */
void variant_note(const struct variant *v, struct table *t);

#endif
