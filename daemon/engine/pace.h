/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pace.h - how long steps take, and how many prompt tokens one may have beside sequences that decode.
 *
 * From measured times alone, of one model:
 *
 *	step = decode(n) + prefill tokens * token(position)
 *
 * decode(n), with n tokens of decoding, is the median of the last PACE_SAMPLES steps without prefill, by classes of n.
 * token(position), what one more prompt token adds, is a moving average by classes of its position (attention
 * costs more further on) times one of how slow the device is, which follows quickly; an outlier counts in both as twice
 * or half of what was expected.  A class that is not known
 * is taken for what the nearest one further on costs, or in proportion to the position for what the nearest one before
 * it does.  There are four classes to an octave.
 *
 * decode(n) has to be known before it can be kept to, and slowly changes: pace_quantum() asks for a step without
 * prefill where it is not known yet, or was measured long ago.
 *
 * No clock and no randomness: the same notes give the same answers.  Thread: one.
 */
#ifndef KVD_PACE_H
#define KVD_PACE_H

#include <stdbool.h>
#include <stdint.h>

#define PACE_SAMPLES 7u
#define PACE_KNOWN 3u		/* samples, after which decode(n) counts as known */
#define PACE_STALE 64u		/* steps with prefill, after which it is measured again */
#define PACE_FIRST 16u		/* prompt tokens while nothing is known of them */
#define PACE_LEAST 4u		/* prompt tokens in any case, so that prompts get on */
#define PACE_N_DECODE 32u	/* classes */
#define PACE_N_POSITION 64u

struct pace_decode {
	uint64_t ns[PACE_SAMPLES];	/* a ring */
	uint32_t n, next;
	uint32_t age;			/* steps with prefill since the last sample */
};

/* Zeroed: nothing is known. */
struct pace {
	struct pace_decode decode[PACE_N_DECODE];
	double token_ns[PACE_N_POSITION];	/* times slowness; 0: not known */
	double slowness;		/* of the device now, against what classes say; 0: as they say */
};

/* A step that was made. */
struct pace_step {
	uint32_t n_decode, n_prefill;	/* rows */
	uint64_t positions;		/* the sum of the prefill rows' */
	uint64_t ns;
};

void pace_note(struct pace *p, const struct pace_step *step);

/* Of a step without prefill; 0: not known. */
uint64_t pace_decode_ns(const struct pace *p, uint32_t n_decode);

/* It should be measured (again), by a step without prefill. */
bool pace_wants_decode(const struct pace *p, uint32_t n_decode);

/* How many prompt tokens from this position on take no longer than that: PACE_LEAST at least, max at most. */
uint32_t pace_tokens(const struct pace *p, uint32_t position, uint64_t ns, uint32_t max);

#endif
