/* SPDX-License-Identifier: Apache-2.0 */
/* The disk store keeps within its bytes, and what goes is what should. */
#include "tests/unit/cache/store-fixture.h"

#define LIMIT (2u << 20)

/* A sequence of its own for each number. */
static void chain(int32_t *t, uint32_t n, int number)
{
	make_tokens(t, n, number * 1000);
}

static void assert_within(const struct fixture *f, uint64_t limit)
{
	assert_true(tree_bytes(f->dir) <= limit);
}

static void test_bounded(void **state)
{
	struct fixture f;
	struct store_stats stats;
	int32_t hot[16], t[16];
	uint64_t ids[4];
	uint32_t kept = 0;

	fixture_init(&f);
	f.config.max_bytes = LIMIT;
	fixture_open(&f);
	chain(hot, 16, 1000);
	assert_int_equal(put_path(&f, f.root, "n", hot, 16, ids), 4);
	for (int i = 0; i < 150; i++) {
		chain(t, 16, i);
		assert_int_equal(put_path(&f, f.root, "n", t, 16, ids), 4);
		assert_within(&f, LIMIT);
		assert_int_equal(restore(&f, f.root, "n", t, 16), 16);
		/* What is used stays. */
		assert_int_equal(restore(&f, f.root, "n", hot, 16), 16);
	}
	stats = stats_of(&f);
	assert_true(stats.evicted > 300);
	assert_true(stats.bytes <= LIMIT);
	/* It is full, not merely within: room for the log apart. */
	assert_true(stats.n_slots * STRIDE > LIMIT / 2);
	for (int i = 0; i < 150; i++) {
		uint32_t n;

		chain(t, 16, i);
		n = restore(&f, f.root, "n", t, 16);
		kept += n / 4;
		if (i < 90)
			assert_int_equal(n, 0);
	}
	assert_true(kept > 20);
	fixture_close(&f);
	assert_within(&f, LIMIT);
	fixture_open(&f);
	assert_int_equal(restore(&f, f.root, "n", hot, 16), 16);
	assert_int_equal(f.n_events, 0);
	fixture_deinit(&f);
}

/* Leaves go before what is before them, expired ones first. */
static void test_order(void **state)
{
	struct fixture f;
	int32_t root[4], t[8];
	uint64_t root_id, id;

	fixture_init(&f);
	f.config.max_bytes = LIMIT;
	fixture_open(&f);
	chain(root, 4, 500);
	assert_int_equal(put(&f, f.root, "n", 0, root, 4, 1, STORE_NEVER, &root_id), STORE_OK);
	memcpy(t, root, sizeof(root));
	for (int i = 0; i < 300; i++) {
		for (int k = 4; k < 8; k++)
			t[k] = i * 10 + k;
		/* The even ones expire before the next is written. */
		assert_int_equal(put(&f, f.root, "n", root_id, t, 8, (uint64_t)(100 + i),
				     i % 2 ? STORE_NEVER : (uint64_t)(101 + i), &id), STORE_OK);
	}
	assert_int_equal(restore(&f, f.root, "n", root, 4), 4);
	assert_true(stats_of(&f).expired > 100);
	for (int i = 300 - 1; i > 300 - 60; i -= 2) {
		for (int k = 4; k < 8; k++)
			t[k] = i * 10 + k;
		assert_int_equal(restore(&f, f.root, "n", t, 8), 8);
	}
	fixture_deinit(&f);
}

/* A root that nobody has open gives way, a part at a time, and what is left of it is right. */
static void test_model_swap(void **state)
{
	struct fixture f;
	struct store_root *other;
	int32_t t[16];
	uint64_t ids[4];
	uint32_t before = 0, after = 0, kept = 0;

	fixture_init(&f);
	f.config.max_bytes = LIMIT;
	fixture_open(&f);
	root_open(&f, &other, "other");
	for (int i = 0; i < 25; i++) {
		chain(t, 16, i);
		restore(&f, other, "n", t, 16);
		assert_int_equal(put_path(&f, other, "n", t, 16, ids), 4);
	}
	for (int i = 0; i < 25; i++) {
		chain(t, 16, i);
		before += restore(&f, other, "n", t, 16);
	}
	store_root_free(other);
	fixture_close(&f);
	assert_within(&f, LIMIT);
	fixture_open(&f);
	for (int i = 0; i < 20; i++) {
		chain(t, 16, i);
		assert_int_equal(put_path(&f, f.root, "n", t, 16, ids), 4);
		assert_within(&f, LIMIT);
	}
	for (int i = 0; i < 20; i++) {
		chain(t, 16, i);
		kept += restore(&f, f.root, "n", t, 16);
	}
	assert_int_equal(kept, 20 * 16);
	root_open(&f, &other, "other");
	for (int i = 0; i < 25; i++) {
		chain(t, 16, i);
		after += restore(&f, other, "n", t, 16);
	}
	assert_true(before >= 24 * 16 && after < before && after > 0);
	store_root_free(other);
	/* Until nothing of it is left. */
	for (int i = 0; i < 60; i++) {
		chain(t, 16, i);
		assert_int_equal(put_path(&f, f.root, "n", t, 16, ids), 4);
		assert_within(&f, LIMIT);
	}
	assert_true(stats_of(&f).n_roots == 1 || stats_of(&f).n_slots * STRIDE > LIMIT / 2);
	assert_int_equal(f.n_events, 0);
	fixture_deinit(&f);
}

/* A smaller limit at the next start. */
static void test_smaller_limit(void **state)
{
	struct fixture f;
	int32_t t[16];
	uint64_t ids[4];
	uint32_t n = 0;

	fixture_init(&f);
	f.config.max_bytes = 2 * LIMIT;
	fixture_open(&f);
	for (int i = 0; i < 70; i++) {
		chain(t, 16, i);
		assert_int_equal(put_path(&f, f.root, "n", t, 16, ids), 4);
	}
	fixture_close(&f);
	assert_true(tree_bytes(f.dir) > LIMIT + LIMIT / 4);
	f.config.max_bytes = LIMIT;
	fixture_open(&f);
	assert_within(&f, LIMIT);
	for (int i = 0; i < 70; i++) {
		chain(t, 16, i);
		n += restore(&f, f.root, "n", t, 16);
	}
	assert_true(n > 30 * 4);
	chain(t, 16, 77);
	assert_int_equal(put_path(&f, f.root, "n", t, 16, ids), 4);
	assert_within(&f, LIMIT);
	assert_int_equal(f.n_events, 0);
	fixture_deinit(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bounded),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_model_swap),
		cmocka_unit_test(test_smaller_limit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
