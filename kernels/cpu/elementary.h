/* SPDX-License-Identifier: Apache-2.0 */
/*
 * elementary.h - the constants of our own exp, and exp for one float.
 *
 * exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln(2)/2 (Cody and Waite's
 * reduction; ln 2 in two parts, the first product exact inside the fused
 * multiply-add).  exp(r) = 1 + r + r^2 P(r); P has degree 4 and was fitted by
 * iteratively reweighted least squares on Chebyshev nodes: relative error at
 * most 4e-9 before rounding.  The vector forms do these very operations, the
 * polynomial by the same list.
 */
#ifndef KC_ELEMENTARY_H
#define KC_ELEMENTARY_H

#include <math.h>
#include <stdint.h>

#include "half.h"

#define KC_EXP_MAX 88.0f	/* arguments are clamped, so that 2^n stays normal */
#define KC_EXP_MIN (-87.0f)
#define KC_LOG2E 0x1.715476p+0f
#define KC_LN2_HIGH 0x1.62e43p-1f
#define KC_LN2_LOW (-0x1.05c61p-29f)
#define KC_EXP_ROUND 0x1.8p23f	/* adding it rounds to an integer kept in the low bits */
/* The coefficients of exp(r), highest power first, as Horner's scheme takes them: FIRST begins, NEXT goes on. */
#define KC_EXP_SERIES(FIRST, NEXT) \
	FIRST(0x1.6a2434p-10f) NEXT(0x1.1239e2p-7f) NEXT(0x1.5558f2p-5f) NEXT(0x1.555492p-3f) NEXT(0x1.fffffcp-2f) \
	NEXT(1.0f) NEXT(1.0f)

/* gelu(x) = x / (1 + exp(x (A + B x^2))), from 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). */
#define KC_GELU_A (-1.5957691216057308f)
#define KC_GELU_B (-0.07135481282636583f)

/* 2^n * exp(r); t: KC_EXP_ROUND + n. */
static inline float kc_exp_end(float t, float r)
{
	float p;

#define FIRST(c) p = (c);
#define NEXT(c) p = fmaf(p, r, (c));
	KC_EXP_SERIES(FIRST, NEXT)
#undef FIRST
#undef NEXT
	return kc_bits_float(kc_float_bits(p) + (kc_float_bits(t) << 23));
}

/* A NaN counts as KC_EXP_MAX. */
static inline float kc_exp(float x)
{
	float t, n, r;

	x = x < KC_EXP_MAX ? x : KC_EXP_MAX;
	x = x > KC_EXP_MIN ? x : KC_EXP_MIN;
	t = fmaf(x, KC_LOG2E, KC_EXP_ROUND);
	n = t - KC_EXP_ROUND;
	r = fmaf(n, -KC_LN2_HIGH, x);
	return kc_exp_end(t, fmaf(n, -KC_LN2_LOW, r));
}

/*
 * exp(x) for a softmax, x <= 0: the upper bound and the low part of ln 2 are left out.  That changes the result by
 * at most 2^-28 |x| of it, which where x is far from 0 is far below the weight of the largest score.  A NaN counts
 * as KC_EXP_MIN.
 */
static inline float kc_exp_weight(float x)
{
	float t;

	x = x > KC_EXP_MIN ? x : KC_EXP_MIN;
	t = fmaf(x, KC_LOG2E, KC_EXP_ROUND);
	return kc_exp_end(t, fmaf(t - KC_EXP_ROUND, -KC_LN2_HIGH, x));
}

/* cap * tanh(x / cap), tanh(u) = 1 - 2 / (exp(2u) + 1). */
static inline float kc_softcap(float x, float cap)
{
	float e = kc_exp((x / cap) * 2.0f);

	return cap * (1.0f - 2.0f / (e + 1.0f));
}

#endif
