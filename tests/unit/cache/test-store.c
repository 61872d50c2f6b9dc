/* SPDX-License-Identifier: Apache-2.0 */
/* The disk store: what is written is found, by those who may, as long as it may be. */
#include "tests/unit/cache/store-fixture.h"

static void test_round_trip(void **state)
{
	struct fixture f;
	struct store_found found[8];
	int32_t t[18];
	uint64_t ids[8], other;

	fixture_init(&f);
	fixture_open(&f);
	make_tokens(t, 18, 100);
	assert_int_equal(find(&f, f.root, "uid:1", 0, t, 18, 1, found, 8), 0);
	assert_int_equal(put_path(&f, f.root, "uid:1", t, 18, ids), 5);
	/* The other has something, too, of its own. */
	assert_int_equal(put_path(&f, f.root, "uid:2", t + 1, 4, &other), 1);
	for (int turn = 0; turn < 2; turn++) {
		assert_int_equal(find(&f, f.root, "uid:1", 0, t, 18, 1, found, 8), 5);
		for (int i = 0; i < 5; i++) {
			assert_int_equal(found[i].id, ids[i]);
			assert_int_equal(found[i].n_common, i < 4 ? 4 : 2);
		}
		assert_int_equal(restore(&f, f.root, "uid:1", t, 18), 18);
		assert_int_equal(restore(&f, f.root, "uid:1", t, 15), 15);	/* part of a full block */
		/* From an entry on; no more than asked for. */
		assert_int_equal(find(&f, f.root, "uid:1", ids[1], t + 8, 10, 1, found, 8), 3);
		assert_int_equal(found[0].id, ids[2]);
		assert_int_equal(find(&f, f.root, "uid:1", 0, t, 18, 1, found, 2), 2);
		/* A name of another tree, and another tree's entry. */
		assert_int_equal(restore(&f, f.root, "uid:2", t, 18), 0);
		assert_int_equal(find(&f, f.root, "uid:2", ids[1], t + 8, 10, 1, found, 8), 0);
		assert_int_equal(get(&f, f.root, "uid:2", 0, ids[0], t, 4), STORE_MISS);
		/* Asked for by the wrong tokens, place or parent. */
		t[3]++;
		assert_int_equal(get(&f, f.root, "uid:1", 0, ids[0], t, 4), STORE_MISS);
		t[3]--;
		assert_int_equal(get(&f, f.root, "uid:1", ids[0], ids[2], t, 12), STORE_MISS);
		assert_int_equal(get(&f, f.root, "uid:1", ids[1], ids[2], t, 12), STORE_OK);
		assert_int_equal(get(&f, f.root, "uid:1", ids[1], 12345, t, 12), STORE_MISS);
		fixture_close(&f);
		fixture_open(&f);
	}
	assert_int_equal(f.n_events, 0);
	fixture_deinit(&f);
}

static void test_identity(void **state)
{
	struct fixture f;
	int32_t t[8];
	uint64_t ids[2];
	struct store_root *other;
	struct store_identity id = { 0 };

	fixture_init(&f);
	fixture_open(&f);
	make_tokens(t, 8, 1);
	assert_int_equal(put_path(&f, f.root, "n", t, 8, ids), 2);
	root_open(&f, &other, "another model");
	assert_int_equal(restore(&f, other, "n", t, 8), 0);
	store_root_free(other);
	/* The same twice is one. */
	root_open(&f, &other, "model");
	assert_int_equal(restore(&f, other, "n", t, 8), 8);
	store_root_free(other);
	assert_int_equal(restore(&f, f.root, "n", t, 8), 8);
	/* Another size of blocks. */
	identity_of(&id, "model");
	assert_int_equal(store_root_new(&other, f.store, &id, NULL, BT, BLOCK + 1), 0);
	assert_int_equal(restore(&f, other, "n", t, 8), 0);
	store_root_free(other);
	assert_int_equal(store_root_new(&other, f.store, &id, NULL, STORE_TOKENS_MAX + 1, BLOCK), -EINVAL);
	/* Fields are separate: "ab" "c" is not "a" "bc". */
	id = (struct store_identity){ 0 };
	store_identity_add(&id, STORE_TAG_MODEL, "mode", 4);
	store_identity_add(&id, STORE_TAG_KV_TYPE, "lf16", 4);
	assert_int_equal(store_root_new(&other, f.store, &id, NULL, BT, BLOCK), 0);
	assert_int_equal(restore(&f, other, "n", t, 8), 0);
	store_root_free(other);
	for (int i = 0; i < 200; i++)
		store_identity_add(&id, STORE_TAG_MODEL, t, sizeof(t));
	assert_true(id.overflow);
	assert_int_equal(store_root_new(&other, f.store, &id, NULL, BT, BLOCK), -EINVAL);
	fixture_deinit(&f);
}

static void test_second_daemon(void **state)
{
	struct fixture f;
	struct store *second;
	struct diag diag = DIAG_NULL;

	fixture_init(&f);
	fixture_open(&f);
	assert_int_equal(store_new(&second, &f.config, &diag), -EBUSY);
	assert_non_null(strstr(diag.text, "another daemon"));
	fixture_deinit(&f);
}

/* What another wrote meanwhile is used, and what follows it too, though it was put before that was known. */
static void test_exists(void **state)
{
	struct fixture f;
	int32_t t[12];
	uint64_t ids[3], id;
	uint8_t blocks[3][BLOCK] = { 0 };
	struct store_write w[3];

	fixture_init(&f);
	fixture_open(&f);
	make_tokens(t, 12, 7);
	assert_int_equal(put_path(&f, f.root, "n", t, 8, ids), 2);
	for (uint32_t i = 0; i < 3; i++) {
		block_of(blocks[i], "n", t, 4 * (i + 1));
		w[i] = (struct store_write){
			.request.done = on_counted, .name = name_of("n"), .parent = i ? w[i - 1].id : 0,
			.tokens = t + 4 * i, .n_tokens = 4, .first = 4 * i, .uid = 1000, .now = 2,
			.expires = STORE_NEVER, .block = blocks[i],
		};
		assert_int_equal(store_write(f.root, &w[i]), 0);
		assert_true(w[i].id && w[i].id != ids[0] && w[i].id != ids[1]);
	}
	id = w[2].id;
	await_counted(&f, 3);
	assert_int_equal(w[0].request.result, STORE_EXISTS);
	assert_int_equal(w[1].request.result, STORE_EXISTS);
	assert_int_equal(w[2].request.result, STORE_OK);
	assert_int_equal(w[0].stored_id, ids[0]);
	assert_int_equal(w[1].stored_id, ids[1]);
	assert_int_equal(w[2].stored_id, id);
	assert_int_equal(restore(&f, f.root, "n", t, 12), 12);
	/* Nothing goes where there is nothing before it. */
	assert_int_equal(put(&f, f.root, "n", 4711, t, 12, 1, STORE_NEVER, &id), STORE_ORPHAN);
	assert_int_equal(put(&f, f.root, "n", ids[0], t, 12, 1, STORE_NEVER, &id), STORE_ORPHAN);
	assert_int_equal(put(&f, f.root, "other", ids[1], t, 12, 1, STORE_NEVER, &id), STORE_ORPHAN);
	fixture_deinit(&f);
}

static void test_drop_and_wipe(void **state)
{
	struct fixture f;
	int32_t t[16], u[16];
	uint64_t ids[4], more[4];
	char path[300], slots[400];
	struct stat st;

	fixture_init(&f);
	fixture_open(&f);
	make_tokens(t, 16, 1);
	make_tokens(u, 16, 1);
	u[9] = 77;
	assert_int_equal(put_path(&f, f.root, "a", t, 16, ids), 4);
	assert_int_equal(put_path(&f, f.root, "a", u, 16, more), 4);
	assert_int_equal(more[1], ids[1]);
	assert_int_equal(put_path(&f, f.root, "b", t, 16, more), 4);
	assert_int_equal(drop(&f, ids[2]), 2);
	assert_int_equal(restore(&f, f.root, "a", t, 16), 9);	/* one token of the other branch */
	assert_int_equal(restore(&f, f.root, "a", u, 16), 16);
	assert_int_equal(drop(&f, ids[2]), 0);
	assert_int_equal(wipe(&f, "a"), 4);
	assert_int_equal(restore(&f, f.root, "a", u, 16), 0);
	assert_int_equal(restore(&f, f.root, "b", t, 16), 16);
	fixture_close(&f);
	fixture_open(&f);
	assert_int_equal(restore(&f, f.root, "a", u, 16), 0);
	assert_int_equal(restore(&f, f.root, "b", t, 16), 16);
	assert_int_equal(wipe(&f, "none such"), 0);
	assert_int_equal(wipe(&f, NULL), 4);
	assert_int_equal(restore(&f, f.root, "b", t, 16), 0);
	root_dir(&f, path, sizeof(path));
	snprintf(slots, sizeof(slots), "%s/slots", path);
	assert_int_equal(stat(slots, &st), 0);
	assert_int_equal(st.st_size, 0);
	settle(&f);
	assert_int_equal(put_path(&f, f.root, "a", t, 16, ids), 4);
	assert_int_equal(restore(&f, f.root, "a", t, 16), 16);
	fixture_deinit(&f);
}

/* A wipe reaches the roots of models that are not loaded, too, and writes that were put before. */
static void test_wipe_reaches_all(void **state)
{
	struct fixture f;
	int32_t t[8];
	uint64_t ids[2];
	struct store_root *other;
	uint8_t block[BLOCK] = { 0 };
	struct store_write w[40];
	struct store_wipe wipe_request = { .request.done = on_done, .name = name_of("n") };
	uint32_t put_before = 0;

	fixture_init(&f);
	fixture_open(&f);
	make_tokens(t, 8, 1);
	root_open(&f, &other, "other");
	assert_int_equal(restore(&f, other, "n", t, 8), 0);
	assert_int_equal(put_path(&f, other, "n", t, 8, ids), 2);
	store_root_free(other);
	for (uint32_t i = 0; i < ARRAY_SIZE(w); i++) {
		w[i] = (struct store_write){
			.request.done = on_counted, .name = name_of("n"), .tokens = t + i % 4, .n_tokens = 4, .uid = 1,
			.now = 1, .expires = STORE_NEVER, .block = block,
		};
		put_before += !store_write(f.root, &w[i]);
	}
	store_wipe(f.store, NULL, &wipe_request);
	await(&f, &wipe_request.request);
	await_counted(&f, put_before);
	for (int i = 0; i < 4; i++)
		assert_int_equal(restore(&f, f.root, "n", t + i, 4), 0);
	root_open(&f, &other, "other");
	assert_int_equal(restore(&f, other, "n", t, 8), 0);
	store_root_free(other);
	fixture_deinit(&f);
}

static void test_expiry(void **state)
{
	struct fixture f;
	struct store_found found[4];
	int32_t t[12];
	uint64_t ids[3], id;
	struct store_lookup l = { .request.done = on_done, .name = name_of("n"), .found = found, .max_found = 4 };

	fixture_init(&f);
	fixture_open(&f);
	make_tokens(t, 12, 1);
	assert_int_equal(put(&f, f.root, "n", 0, t, 4, 100, 200, &ids[0]), STORE_OK);
	assert_int_equal(put(&f, f.root, "n", ids[0], t, 8, 100, 300, &ids[1]), STORE_OK);
	/* What follows it lives no longer. */
	assert_int_equal(find(&f, f.root, "n", 0, t, 8, 199, found, 4), 2);
	assert_int_equal(find(&f, f.root, "n", 0, t, 8, 200, found, 4), 0);
	assert_int_equal(find(&f, f.root, "n", ids[0], t + 4, 4, 200, found, 4), 0);
	/* The clock was set back: it is there, and nothing else happens. */
	assert_int_equal(find(&f, f.root, "n", 0, t, 8, 5, found, 4), 2);
	/* A use lets it live longer, over a restart too. */
	l.tokens = t + 4;
	l.n_tokens = 4;
	l.parent = ids[0];
	l.now = 150;
	l.expires = 1000;
	store_lookup(f.root, &l);
	assert_int_equal(await(&f, &l.request), STORE_OK);
	fixture_close(&f);
	fixture_open(&f);
	assert_int_equal(find(&f, f.root, "n", 0, t, 8, 999, found, 4), 2);
	assert_int_equal(find(&f, f.root, "n", 0, t, 8, 1000, found, 4), 0);
	assert_int_equal(put(&f, f.root, "n", 0, t + 1, 4, 100, 100, &id), STORE_DROPPED);
	fixture_deinit(&f);
}

static void test_queue_is_bounded(void **state)
{
	struct fixture f;
	int32_t t[4] = { 1, 2, 3, 4 };
	static struct store_write w[2000];
	static uint8_t block[BLOCK];
	uint32_t taken = 0;
	struct store_stats stats;

	fixture_init(&f);
	f.config.max_queue = 3;
	fixture_open(&f);
	for (uint32_t i = 0; i < ARRAY_SIZE(w); i++) {
		w[i] = (struct store_write){
			.request.done = on_counted, .name = name_of("n"), .tokens = t, .n_tokens = 4, .uid = 1,
			.now = 1, .expires = STORE_NEVER, .block = block,
		};
		taken += !store_write(f.root, &w[i]);
		assert_true(stats_of(&f).queued <= 3);
	}
	await_counted(&f, taken);
	stats = stats_of(&f);
	assert_true(taken > 0);
	assert_int_equal(stats.dropped_full, ARRAY_SIZE(w) - taken);
	fixture_deinit(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_identity),
		cmocka_unit_test(test_second_daemon),
		cmocka_unit_test(test_exists),
		cmocka_unit_test(test_drop_and_wipe),
		cmocka_unit_test(test_wipe_reaches_all),
		cmocka_unit_test(test_expiry),
		cmocka_unit_test(test_queue_is_bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
