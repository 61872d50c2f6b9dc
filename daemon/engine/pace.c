/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/pace.h"

#include "ipc/base/checked.h"

#define CLIP 2.0
/* Of how much a figure is off, what is put down to the device's speed now, if slower, if faster; and to the class. */
#define SLOWER 0.5
#define FASTER 0.25
#define CLASS 0.125
#define FIRST_POSITIONS 256u	/* all one class */

/* Four classes to an octave: 0..7 by themselves, then by the two bits after the first. */
static uint32_t octave_class(uint32_t v)
{
	uint32_t bits = v > 3 ? 29 - (uint32_t)__builtin_clz(v) : 0;

	return bits * 4 + (v >> bits);
}

static uint32_t decode_class(uint32_t n)
{
	return MIN(octave_class(n), PACE_N_DECODE - 1);
}

static uint32_t position_class(uint64_t position)
{
	uint64_t v = MIN(position / FIRST_POSITIONS, (uint64_t)UINT32_MAX);

	return MIN(octave_class((uint32_t)v), PACE_N_POSITION - 1);
}

/* Where a class of positions begins. */
static double class_position(uint32_t class)
{
	uint32_t bits = class > 7 ? class / 4 - 1 : 0;	/* octave_class() backwards */

	return (double)FIRST_POSITIONS * ((uint64_t)(class - bits * 4) << bits);
}

/* --- decoding --- */

static void note_decode(struct pace *p, uint32_t n, uint64_t ns)
{
	struct pace_decode *d = &p->decode[decode_class(n)];

	d->ns[d->next] = ns;
	d->next = (d->next + 1) % PACE_SAMPLES;
	d->n = MIN(d->n + 1, PACE_SAMPLES);
	d->age = 0;
}

uint64_t pace_decode_ns(const struct pace *p, uint32_t n_decode)
{
	const struct pace_decode *d = &p->decode[decode_class(n_decode)];
	uint64_t sorted[PACE_SAMPLES];

	for (uint32_t i = 0; i < d->n; i++) {
		uint32_t k = i;

		for (; k && sorted[k - 1] > d->ns[i]; k--)
			sorted[k] = sorted[k - 1];
		sorted[k] = d->ns[i];
	}
	return d->n ? sorted[d->n / 3] : 0;
}

bool pace_wants_decode(const struct pace *p, uint32_t n_decode)
{
	const struct pace_decode *d = &p->decode[decode_class(n_decode)];

	return d->n < PACE_KNOWN || d->age >= PACE_STALE;
}

/* --- prefill --- */

static double slowness(const struct pace *p)
{
	return p->slowness > 0 ? p->slowness : 1;
}

/* What a token is expected to cost; 0: nobody knows. */
static double class_ns(const struct pace *p, uint64_t position)
{
	uint32_t class = position_class(position), k;

	for (k = class; k < PACE_N_POSITION; k++)
		if (p->token_ns[k] > 0)
			return p->token_ns[k];
	for (k = class; k-- > 0;)
		if (p->token_ns[k] > 0)
			return p->token_ns[k] * (class_position(class) + FIRST_POSITIONS) /
			       (class_position(k) + FIRST_POSITIONS);
	return 0;
}

static void note_prefill(struct pace *p, const struct pace_step *step)
{
	uint64_t decode = step->n_decode ? pace_decode_ns(p, step->n_decode) : 0;
	uint64_t position = step->positions / step->n_prefill;
	double *known = &p->token_ns[position_class(position)];
	double ns = (double)(step->ns - MIN(decode, step->ns)) / step->n_prefill;
	double expected = class_ns(p, position) * slowness(p), off;

	/* The first of all: no less than a part of what rows cost on average. */
	if (expected <= 0)
		expected = MAX(ns, (double)step->ns / (step->n_decode + step->n_prefill) / 4);
	ns = MIN(MAX(ns, expected / CLIP), expected * CLIP);
	if (*known <= 0) {
		*known = ns / slowness(p);
		return;
	}
	off = ns / expected - 1;
	p->slowness = slowness(p) * (1 + off * (off > 0 ? SLOWER : FASTER));
	*known *= 1 + off * CLASS;
}

uint32_t pace_tokens(const struct pace *p, uint32_t position, uint64_t ns, uint32_t max)
{
	double each = class_ns(p, position) * slowness(p);
	double n = each > 0 ? (double)ns / each : PACE_FIRST;

	if (n >= max)
		return max;
	return MIN(MAX((uint32_t)n, PACE_LEAST), max);
}

void pace_note(struct pace *p, const struct pace_step *step)
{
	if (!step->n_prefill) {
		if (step->n_decode)
			note_decode(p, step->n_decode, step->ns);
		return;
	}
	note_prefill(p, step);
	if (step->n_decode)
		p->decode[decode_class(step->n_decode)].age++;
}
