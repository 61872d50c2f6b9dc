/* SPDX-License-Identifier: Apache-2.0 */
/* What attention blocks draw reaches their entries in the tree: which tokens are measured, and when none is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <unistd.h>

#include "daemon/engine/engine-private.h"
#include "tests/unit/engine/fake-model.h"
#include "tests/unit/engine/fake-client.h"
#include "tests/unit/engine/fixture.h"

#define N_PROMPT 50u
#define N_GENERATED 20u
#define N_BLOCKS ((N_PROMPT + N_GENERATED) / 16)

struct seen {
	uint32_t n;
	float mass[N_BLOCKS + 1];
	uint64_t score[N_BLOCKS + 1];
};

static bool note_view(void *arg, const struct tree_view *view)
{
	struct seen *seen = arg;

	/* The other request's and the tail's do not matter. */
	if (view->uid != 1 || view->n_tokens < 16)
		return true;
	assert_true(view->first / 16 < N_BLOCKS);
	seen->mass[view->first / 16] = view->mass;
	seen->score[view->first / 16] = view->score;
	seen->n++;
	return true;
}

/* Runs a request, then looks at the tree while the engine is held in another's step. */
static struct seen run(const struct engine_config *config, const char *ns, bool no_room)
{
	struct fixture f = start(config);
	struct fake_request r = make_request(0, 1, N_PROMPT, N_GENERATED), other = make_request(1, 2, 5, 1);
	struct seen seen = { 0 };
	uint64_t n_steps;

	fake.no_room = no_room;
	r.params.ns = ns;
	submit(&f, &r);
	fake_client_wait_released(f.client, 1);
	check_whole(&f, &r);
	n_steps = fake.n_entered;
	fake.n_allowed = n_steps;
	submit(&f, &other);
	fake_wait_step(n_steps + 1);
	tree_walk(f.em->tree, note_view, &seen);
	stop(&f);
	return seen;
}

/* As tree_path_mass() keeps it: by half what was, by half what is. */
static void expect_mass(float want[N_BLOCKS])
{
	for (uint32_t n = 1; n < N_GENERATED; n += ENGINE_MASS_EVERY) {
		uint32_t position = N_PROMPT + n - 1;

		for (uint32_t i = 0; i < position / 16; i++)
			want[i] = (want[i] + fake_share(i, position / 16 + 1)) / 2;
	}
}

static void test_reaches_tree(void **state)
{
	struct seen on = run(&config_default, "a", false);
	float want[N_BLOCKS] = { 0 };

	(void)state;
	assert_int_equal(fake.n_mass_seen, (N_GENERATED - 2) / ENGINE_MASS_EVERY + 1);
	expect_mass(want);
	assert_int_equal(on.n, N_BLOCKS);
	for (uint32_t i = 0; i < N_BLOCKS; i++) {
		assert_true(want[i] > 0);
		assert_float_equal(on.mass[i], want[i], 1e-6);
	}
}

/* It counts for the score. */
static void test_score(void **state)
{
	struct engine_config config = config_default;
	struct seen on = run(&config_default, "a", false), off;

	(void)state;
	config.attention_mass = false;
	off = run(&config, "a", false);
	assert_int_equal(fake.n_mass_seen, 0);
	assert_int_equal(off.n, N_BLOCKS);
	for (uint32_t i = 0; i < N_BLOCKS; i++) {
		assert_true(off.mass[i] == 0);
		assert_true(on.score[i] > off.score[i]);
	}
}

/* A request without cache, a backend that can't, or has no room: nothing is asked or kept. */
static void test_not_measured(void **state)
{
	struct kb_ops ops = fake_ops;
	struct kb_backend backend = { .ops = &ops };
	struct engine_config config = config_default;
	struct seen seen;

	(void)state;
	run(&config, NULL, false);
	assert_int_equal(fake.n_mass_seen, 0);
	seen = run(&config, "a", true);
	assert_true(fake.n_mass_seen > 0);
	for (uint32_t i = 0; i < N_BLOCKS; i++)
		assert_true(seen.mass[i] == 0);
	ops.measures_mass = false;
	config.backend = &backend;
	run(&config, "a", false);
	assert_int_equal(fake.n_mass_seen, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reaches_tree),
		cmocka_unit_test(test_score),
		cmocka_unit_test(test_not_measured),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
