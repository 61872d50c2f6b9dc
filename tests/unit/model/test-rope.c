/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frequencies and scales of every kind of rope scaling against recorded ones (tests/data/README.md), and
 * what must hold of them whatever the numbers are.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/model/rope.h"
#include "ipc/base/checked.h"

#include "tests/unit/model/oracle-file.h"

#define MAX_PAIRS 512u
/* The recorded values were computed in FP32, ours in FP64. */
#define TOLERANCE 2e-6

struct record {
	char name[32];
	struct rope_params rope;
	float divisors[MAX_PAIRS];
	size_t n_divisors;
	double scale;
};

static void set_field(struct rope_params *rope, const char *field, double v)
{
	if (!strcmp(field, "n_dims"))
		rope->n_dims = (uint32_t)v;
	else if (!strcmp(field, "base"))
		rope->base = (float)v;
	else if (!strcmp(field, "factor"))
		rope->factor = (float)v;
	else if (!strcmp(field, "ctx_orig"))
		rope->n_ctx_orig = (uint32_t)v;
	else if (!strcmp(field, "attn_factor"))
		rope->attn_factor = (float)v;
	else if (!strcmp(field, "yarn_fast"))
		rope->yarn_fast = (float)v;
	else if (!strcmp(field, "yarn_slow"))
		rope->yarn_slow = (float)v;
	else if (!strcmp(field, "yarn_attn"))
		rope->yarn_attn = (float)v;
	else
		fail_msg("no such field: %s", field);
}

static void read_case(struct oracle_file *o, struct record *c)
{
	static const char *const kinds[] = { "none", "linear", "yarn", "longrope" };
	char *word, *value;
	size_t kind = 0;

	*c = (struct record){ .rope = { .factor = 1, .attn_factor = 1, .yarn_ext = 1, .yarn_fast = 32,
					.yarn_slow = 1 } };
	snprintf(c->name, sizeof(c->name), "%s", oracle_word(o));
	word = oracle_word(o);
	while (kind < ARRAY_SIZE(kinds) && strcmp(word, kinds[kind]))
		kind++;
	assert_true(kind < ARRAY_SIZE(kinds));
	c->rope.scaling = (enum rope_scaling)kind;
	while ((word = oracle_word(o))) {
		value = strchr(word, '=');
		assert_non_null(value);
		*value = '\0';
		set_field(&c->rope, word, strtod(value + 1, NULL));
	}
}

static size_t read_floats(struct oracle_file *o, float *out)
{
	size_t n = 0;
	char *word;

	while ((word = oracle_word(o))) {
		assert_true(n < MAX_PAIRS);
		out[n++] = strtof(word, NULL);
	}
	return n;
}

static void check(const struct record *c, const float *want, size_t n)
{
	float got[MAX_PAIRS];

	assert_int_equal(n, c->rope.n_dims / 2);
	assert_true(!c->n_divisors || c->n_divisors == n);
	rope_inv_freq(&c->rope, c->n_divisors ? c->divisors : NULL, got);
	for (size_t i = 0; i < n; i++)
		if (!(fabs((double)got[i] / (double)want[i] - 1) < TOLERANCE))
			fail_msg("%s: pair %zu: %.9g, recorded %.9g", c->name, i, (double)got[i], (double)want[i]);
	if (!(fabs((double)rope_scale(&c->rope) / c->scale - 1) < TOLERANCE))
		fail_msg("%s: scale %.9g, recorded %.9g", c->name, (double)rope_scale(&c->rope), c->scale);
}

static void test_recorded(void **state)
{
	struct oracle_file o;
	struct record c = { 0 };
	float want[MAX_PAIRS];
	size_t n_cases = 0;
	char *word;

	oracle_open(&o, "tests/data/rope-oracle.txt");
	while ((word = oracle_next(&o))) {
		if (!strcmp(word, "case")) {
			read_case(&o, &c);
		} else if (!strcmp(word, "divisors")) {
			c.n_divisors = read_floats(&o, c.divisors);
		} else if (!strcmp(word, "scale")) {
			c.scale = strtod(oracle_word(&o), NULL);
		} else {
			assert_string_equal(word, "inv_freq");
			check(&c, want, read_floats(&o, want));
			n_cases++;
		}
	}
	oracle_close(&o);
	assert_int_equal(n_cases, 7);
}

/* Between linear scaling and none, falling, for any numbers that a file may state. */
static void test_yarn_between(void **state)
{
	static const float bases[] = { 2, 100, 1e4f, 1e6f, 1e15f };
	static const float factors[] = { 1, 1.5f, 32, 1e6f };
	static const uint32_t contexts[] = { 1, 16, 4096, 1u << 22 };

	for (size_t i = 0; i < ARRAY_SIZE(bases) * ARRAY_SIZE(factors) * ARRAY_SIZE(contexts); i++) {
		struct rope_params yarn = {
			.scaling = ROPE_YARN,
			.n_dims = 64,
			.base = bases[i % ARRAY_SIZE(bases)],
			.factor = factors[i / ARRAY_SIZE(bases) % ARRAY_SIZE(factors)],
			.n_ctx_orig = contexts[i / ARRAY_SIZE(bases) / ARRAY_SIZE(factors)],
			.attn_factor = 1,
			.yarn_ext = 1,
			.yarn_fast = 32,
			.yarn_slow = 1,
		};
		struct rope_params linear = yarn, none = yarn;
		float y[32], l[32], n[32];

		linear.scaling = ROPE_LINEAR;
		none.scaling = ROPE_UNSCALED;
		rope_inv_freq(&yarn, NULL, y);
		rope_inv_freq(&linear, NULL, l);
		rope_inv_freq(&none, NULL, n);
		for (size_t k = 0; k < 32; k++) {
			assert_true(y[k] >= l[k] && y[k] <= n[k]);
			assert_true(!k || y[k] <= y[k - 1]);
		}
	}
}

/* A base of 1 turns all pairs alike, and makes YaRN's choice of pairs a division by 0. */
static void test_base_of_one(void **state)
{
	struct rope_params rope = {
		.scaling = ROPE_YARN, .n_dims = 8, .base = 1, .factor = 4, .n_ctx_orig = 100, .attn_factor = 1,
		.yarn_ext = 1, .yarn_fast = 32, .yarn_slow = 1,
	};
	float y[4];

	rope_inv_freq(&rope, NULL, y);
	for (size_t k = 0; k < 4; k++)
		assert_true(y[k] >= 0.25f && y[k] <= 1);
}

/* Which list is used hangs on the context that was opened, at the exact length. */
static void test_long_or_short(void **state)
{
	struct rope_params rope = { .scaling = ROPE_LONG, .n_ctx_orig = 4096 };

	assert_false(rope_is_long(&rope, 4095));
	assert_false(rope_is_long(&rope, 4096));
	assert_true(rope_is_long(&rope, 4097));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_recorded),
		cmocka_unit_test(test_yarn_between),
		cmocka_unit_test(test_base_of_one),
		cmocka_unit_test(test_long_or_short),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
