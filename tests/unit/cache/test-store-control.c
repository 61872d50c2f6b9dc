/* SPDX-License-Identifier: Apache-2.0 */
/* What people ask of the store: lists, pins, removal; shares of uids and priorities. */
#include "tests/unit/cache/store-fixture.h"

#define LIMIT (UINT64_C(4) << 20)

struct terms {
	uid_t uid;
	int priority;
	uint64_t now, expires;
};

static const struct terms plain = { .uid = 1000, .now = 1, .expires = STORE_NEVER };

/* As put(), of a uid. */
static enum store_result put_of(struct fixture *f, const struct terms *terms, const char *name, uint64_t parent,
				const int32_t *tokens, uint32_t n, uint64_t *id)
{
	uint32_t first = (n - 1) / BT * BT;
	uint8_t block[BLOCK] = { 0 };
	struct store_write w = {
		.request.done = on_done, .name = name_of(name), .parent = parent, .tokens = tokens + first,
		.n_tokens = n - first, .first = first, .uid = terms->uid, .priority = terms->priority,
		.now = terms->now, .expires = terms->expires, .block = block,
	};
	enum store_result result;

	block_of(block, name, tokens, n);
	assert_int_equal(store_write(f->root, &w), 0);
	result = await(f, &w.request);
	*id = w.stored_id;
	return result;
}

/* Sequences of a block each: of i. */
static void tokens_of(int32_t *tokens, int32_t i)
{
	for (int32_t k = 0; k < (int32_t)BT; k++)
		tokens[k] = i * (int32_t)BT + k;
}

static uint64_t put_one(struct fixture *f, const struct terms *terms, const char *name, int32_t i)
{
	int32_t t[BT];
	uint64_t id;

	tokens_of(t, i);
	assert_int_equal(put_of(f, terms, name, 0, t, BT, &id), STORE_OK);
	return id;
}

static bool has(struct fixture *f, const char *name, int32_t i)
{
	struct store_found found[1];
	int32_t t[BT];

	tokens_of(t, i);
	return find(f, f->root, name, 0, t, BT, 1, found, 1) == 1;
}

static uint32_t n_of(struct fixture *f, const char *name, int32_t from, int32_t to)
{
	uint32_t n = 0;

	for (int32_t i = from; i < to; i++)
		n += has(f, name, i);
	return n;
}

static enum store_result pin(struct fixture *f, uint64_t id, uid_t uid, bool on, bool every)
{
	struct store_pin p = { .request.done = on_done, .id = id, .uid = uid, .pin = on, .every = every };

	store_pin(f->root, &p);
	return await(f, &p.request);
}

static void reopen(struct fixture *f)
{
	fixture_close(f);
	fixture_open(f);
}

/* --- who goes --- */

static void test_pins(void **state)
{
	struct fixture f;
	uint64_t id, other, ids[4];
	int32_t t[16];
	struct store_found found[4];

	fixture_init(&f);
	f.config.max_bytes = LIMIT;
	fixture_open(&f);
	id = put_one(&f, &(struct terms){ 1000, 0, 1, 50 }, "n", -1);
	other = put_one(&f, &plain, "n", -2);
	assert_int_equal(pin(&f, id, 7, true, false), STORE_OK);
	assert_int_equal(pin(&f, id, 7, true, false), STORE_OK);
	assert_int_equal(pin(&f, id, 8, true, false), STORE_OK);
	assert_int_equal(pin(&f, other, 7, false, false), STORE_MISS);
	assert_int_equal(pin(&f, id + (1u << 30), 7, true, false), STORE_MISS);
	reopen(&f);
	for (int32_t i = 0; i < 1000; i++)
		put_one(&f, &(struct terms){ 1000, 0, 100, STORE_NEVER }, "n", i);
	assert_true(stats_of(&f).evicted > 100);
	assert_false(has(&f, "n", -2));
	/* It has expired, too, but for the pins. */
	tokens_of(t, -1);
	assert_int_equal(find(&f, f.root, "n", 0, t, BT, 100, found, 1), 1);
	assert_int_equal(found[0].n_pins, 2);
	assert_int_equal(found[0].pinned_by[0], 7);
	assert_int_equal(found[0].pinned_by[1], 8);
	assert_int_equal(pin(&f, id, 9, false, false), STORE_MISS);
	assert_int_equal(pin(&f, id, 7, false, false), STORE_OK);
	assert_int_equal(find(&f, f.root, "n", 0, t, BT, 100, found, 1), 1);
	assert_int_equal(pin(&f, id, 0, false, true), STORE_OK);
	assert_int_equal(find(&f, f.root, "n", 0, t, BT, 100, found, 1), 0);
	for (int32_t i = 1000; i < 1016; i++)
		put_one(&f, &(struct terms){ 1000, 0, 100, STORE_NEVER }, "n", i);
	assert_int_equal(pin(&f, id, 7, true, false), STORE_MISS);
	/* What is before a pinned one stays as well; a drop takes pins along. */
	make_tokens(t, 16, 5000);
	assert_int_equal(put_path(&f, f.root, "n", t, 16, ids), 4);
	assert_int_equal(pin(&f, ids[3], 7, true, false), STORE_OK);
	for (int32_t i = 2000; i < 3000; i++)
		put_one(&f, &plain, "n", i);
	assert_int_equal(restore(&f, f.root, "n", t, 16), 16);
	assert_int_equal(drop(&f, ids[1]), 3);
	assert_int_equal(restore(&f, f.root, "n", t, 16), 4);
	/* No more than a part of all. */
	for (int32_t i = 3000; i < 3200; i++) {
		id = put_one(&f, &plain, "n", i);
		if (pin(&f, id, 7, true, false) == STORE_DROPPED)
			break;
		assert_true(i < 3100);
	}
	put_one(&f, &plain, "n", 4000);
	fixture_deinit(&f);
}

/* One who writes much takes no place from one who has less than an even share. */
static void test_shares(void **state)
{
	const struct terms flood = { 1, 0, 1, STORE_NEVER }, small = { 2, 0, 1, STORE_NEVER };
	struct fixture f;

	fixture_init(&f);
	f.config.max_bytes = LIMIT;
	fixture_open(&f);
	for (int32_t i = 0; i < 60; i++)
		put_one(&f, &small, "small", i);
	for (int32_t i = 0; i < 800; i++)
		put_one(&f, &flood, "flood", i);
	assert_int_equal(n_of(&f, "small", 0, 60), 60);
	reopen(&f);
	for (int32_t i = 800; i < 1600; i++)
		put_one(&f, &flood, "flood", i);
	assert_int_equal(n_of(&f, "small", 0, 60), 60);
	assert_true(n_of(&f, "flood", 1500, 1600) == 100);
	/* Both can have half. */
	for (int32_t i = 100; i < 600; i++)
		put_one(&f, &small, "small", i);
	assert_true(n_of(&f, "small", 0, 600) > 100);
	assert_true(n_of(&f, "flood", 0, 1600) > 100);
	/* Who has not written for a month has no share. */
	for (int32_t i = 2000; i < 2800; i++)
		put_one(&f, &(struct terms){ 3, 0, UINT64_C(30) * 24 * 3600 * 1000000000, STORE_NEVER }, "new", i);
	assert_int_equal(n_of(&f, "small", 0, 600) + n_of(&f, "flood", 0, 1600), 0);
	fixture_deinit(&f);
}

static void test_priorities(void **state)
{
	struct fixture f;

	fixture_init(&f);
	f.config.max_bytes = LIMIT;
	fixture_open(&f);
	for (int32_t i = 0; i < 200; i++)
		put_one(&f, &(struct terms){ 1000, i % 3 - 1, 1, STORE_NEVER }, "n", i);
	for (int32_t i = 1000; i < 1180; i++)
		put_one(&f, &plain, "n", i);
	for (int32_t i = 60; i < 200; i++) {
		if (i % 3 == 0)
			assert_false(has(&f, "n", i));
		if (i % 3 == 2)
			assert_true(has(&f, "n", i));
	}
	fixture_deinit(&f);
}

/* --- removal --- */

static struct store_removed wipe_as(struct fixture *f, const char *name, bool below, struct store_root *root)
{
	struct store_wipe w = { .request.done = on_done, .all = !name, .below = below };

	if (name)
		w.name = name_of(name);
	store_wipe(f->store, root, &w);
	assert_int_equal(await(f, &w.request), STORE_OK);
	return w.removed;
}

static void test_wipe_below(void **state)
{
	static const char *const names[] = { "uid:5", "uid:5/a", "uid:5/b/c", "uid:50", "uid:5-", "uid:4", "" };
	struct store_removed removed;
	struct store_root *second;
	struct fixture f;
	uint64_t id;
	int32_t t[BT];

	fixture_init(&f);
	fixture_open(&f);
	root_open(&f, &second, "second");
	for (uint32_t i = 0; i < ARRAY_SIZE(names); i++)
		put_one(&f, &plain, names[i], (int32_t)i);
	tokens_of(t, 9);
	assert_int_equal(put(&f, second, "uid:5/x", 0, t, BT, 1, STORE_NEVER, &id), STORE_OK);
	removed = wipe_as(&f, "uid:5/b", false, NULL);
	assert_true(removed.entries == 0);
	/* Of one root only, then of one that is not open. */
	removed = wipe_as(&f, "uid:5", true, f.root);
	assert_true(removed.entries == 3 && removed.tokens == 3 * BT && removed.bytes == 3 * BLOCK);
	for (uint32_t i = 0; i < ARRAY_SIZE(names); i++)
		assert_int_equal(has(&f, names[i], (int32_t)i), i >= 3);
	assert_int_equal(restore(&f, second, "uid:5/x", t, BT), BT);
	store_root_free(second);
	removed = wipe_as(&f, "uid:5", true, NULL);
	assert_true(removed.entries == 1);
	removed = wipe_as(&f, "", false, NULL);
	assert_true(removed.entries == 1);
	removed = wipe_as(&f, NULL, false, f.root);
	assert_true(removed.entries == 3);
	fixture_deinit(&f);
}

static void test_drop_by_tokens(void **state)
{
	struct store_drop d = { .request.done = on_done, .name = name_of("n") };
	struct fixture f;
	uint64_t ids[4];
	int32_t t[14], tail[14];

	fixture_init(&f);
	fixture_open(&f);
	make_tokens(t, 14, 10);
	assert_int_equal(put_path(&f, f.root, "n", t, 14, ids), 4);
	/* It leads nowhere. */
	memcpy(tail, t, sizeof(t));
	tail[13]++;
	d.tokens = tail;
	d.n_tokens = 14;
	store_drop(f.root, &d);
	assert_int_equal(await(&f, &d.request), STORE_OK);
	assert_true(d.removed.entries == 0);
	d.tokens = t;
	store_drop(f.root, &d);
	assert_int_equal(await(&f, &d.request), STORE_OK);
	assert_true(d.removed.entries == 1 && d.removed.tokens == 2 && d.removed.bytes == BLOCK);
	d.n_tokens = 8;
	store_drop(f.root, &d);
	assert_int_equal(await(&f, &d.request), STORE_OK);
	assert_true(d.removed.entries == 2);
	assert_int_equal(restore(&f, f.root, "n", t, 14), 4);
	fixture_deinit(&f);
}

/* A disk that takes its time: what is in the queue, or being written, when it is wiped does not come back. */
static ssize_t slow_pwritev(int fd, const struct iovec *iov, int n, off_t offset)
{
	usleep(2000);
	return pwritev(fd, iov, n, offset);
}

static void test_wiped_in_flight(void **state)
{
	static const uint8_t block[BLOCK];
	struct store_io slow = store_io_system;
	struct store_write writes[24];
	struct store_wipe w = { .request.done = on_counted, .name = name_of("uid:1"), .below = true };
	int32_t t[ARRAY_SIZE(writes)][BT];
	uint32_t n_kept = 0;
	struct fixture f;

	slow.pwritev = slow_pwritev;
	fixture_init(&f);
	f.config.io = &slow;
	fixture_open(&f);
	for (uint32_t i = 0; i < ARRAY_SIZE(writes); i++) {
		tokens_of(t[i], (int32_t)i);
		writes[i] = (struct store_write){
			.request.done = on_counted, .name = name_of(i % 2 ? "uid:1/k" : "uid:2"), .tokens = t[i],
			.n_tokens = BT, .uid = 1, .now = 1, .expires = STORE_NEVER, .block = block,
		};
		assert_int_equal(store_write(f.root, &writes[i]), 0);
	}
	usleep(9000);
	store_wipe(f.store, NULL, &w);
	await_counted(&f, ARRAY_SIZE(writes) + 1);
	assert_int_equal(w.request.result, STORE_OK);
	assert_true(stats_of(&f).dropped_wiped > 0);
	for (uint32_t i = 0; i < ARRAY_SIZE(writes); i++) {
		if (i % 2)
			assert_false(has(&f, "uid:1/k", (int32_t)i));
		else
			n_kept += has(&f, "uid:2", (int32_t)i);
	}
	assert_int_equal(n_kept, ARRAY_SIZE(writes) / 2);
	fixture_deinit(&f);
}

/* --- lists --- */

static enum store_want wants_below(const void *arg, const struct store_name *name)
{
	if (name->n >= 5 && !memcmp(name->bytes, "uid:5", 5))
		return STORE_WANT_ALL;
	return name->n >= 5 && !memcmp(name->bytes, "group", 5) ? STORE_WANT_OWN : STORE_WANT_NONE;
}

static void test_list(void **state)
{
	const struct terms us = { 5, 1, 3, 1000 };
	struct store_view views[4];
	struct store_list l = { .request.done = on_done, .now = 10, .wants = wants_below, .uid = 5, .views = views,
				.max = ARRAY_SIZE(views) };
	uint64_t own[10], ids[4], known[2], last = 0;
	bool there[3];
	uint32_t n = 0;
	struct fixture f;
	int32_t t[16];

	fixture_init(&f);
	fixture_open(&f);
	for (int32_t i = 0; i < 10; i++) {
		put_one(&f, &plain, "uid:6", i);
		put_one(&f, &plain, "group:g", 100 + i);
		own[i] = put_one(&f, &us, i % 3 ? "uid:5" : i % 2 ? "group:g" : "uid:5/key", i);
		put_one(&f, &(struct terms){ 5, 0, 1, 5 }, "uid:5", 200 + i);	/* has expired */
	}
	/* A page at a time, in order. */
	do {
		store_list(f.root, &l);
		assert_int_equal(await(&f, &l.request), STORE_OK);
		for (uint32_t i = 0; i < l.n; i++) {
			assert_true(views[i].id > last && views[i].id == own[n]);
			assert_true(views[i].uid == 5 && views[i].created == 3 && views[i].expires == 1000 &&
				    views[i].priority == 1 && !views[i].parent && !views[i].joined);
			assert_int_equal(views[i].tokens[0], (int32_t)n * (int32_t)BT);
			last = l.after = views[i].id;
			n++;
		}
	} while (l.n);
	assert_int_equal(n, 10);
	/* Some are known, some are there. */
	known[0] = own[1];
	known[1] = own[2];
	l.after = 0;
	l.known = known;
	l.n_known = 2;
	l.check = (uint64_t[]){ own[3], own[3] + (1u << 30), own[9] };
	l.n_check = 3;
	l.there = there;
	store_list(f.root, &l);
	assert_int_equal(await(&f, &l.request), STORE_OK);
	assert_true(views[0].id == own[0] && views[1].id == own[3]);
	assert_true(there[0] && !there[1] && there[2]);
	/* All of all, with their tree. */
	make_tokens(t, 16, 5000);
	assert_int_equal(put_path(&f, f.root, "x", t, 16, ids), 4);
	l = (struct store_list){ .request.done = on_done, .now = 10, .after = ids[0] - 1, .views = views, .max = 4 };
	store_list(f.root, &l);
	assert_int_equal(await(&f, &l.request), STORE_OK);
	assert_int_equal(l.n, 4);
	for (uint32_t i = 0; i < 4; i++) {
		assert_true(views[i].id == ids[i] && views[i].parent == (i ? ids[i - 1] : 0));
		assert_true(views[i].joined == (i > 0) && views[i].first == i * BT && views[i].n_name == 1);
	}
	fixture_deinit(&f);
}

static void test_show(void **state)
{
	int32_t t[16], seen[10];
	struct store_show s = { .request.done = on_done, .tokens = seen, .max_tokens = ARRAY_SIZE(seen) };
	uint64_t ids[4];
	struct fixture f;

	fixture_init(&f);
	fixture_open(&f);
	make_tokens(t, 16, 5000);
	assert_int_equal(put_path(&f, f.root, "x", t, 16, ids), 4);
	assert_int_equal(pin(&f, ids[1], 7, true, false), STORE_OK);
	s.id = ids[1];
	store_show(f.root, &s);
	assert_int_equal(await(&f, &s.request), STORE_OK);
	assert_true(s.n_path == 2 && s.n_below == 2 && s.n_tokens == 8);
	assert_memory_equal(seen, t, 8 * sizeof(*t));
	assert_true(s.view.n_pins == 1 && s.view.pinned_by[0] == 7);
	s.id = ids[3];
	store_show(f.root, &s);
	assert_int_equal(await(&f, &s.request), STORE_OK);
	assert_true(s.n_path == 4 && s.n_below == 0 && s.n_tokens == 10);
	assert_memory_equal(seen, t, sizeof(seen));
	s.id++;
	store_show(f.root, &s);
	assert_int_equal(await(&f, &s.request), STORE_MISS);
	fixture_deinit(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pins),
		cmocka_unit_test(test_shares),
		cmocka_unit_test(test_priorities),
		cmocka_unit_test(test_wipe_below),
		cmocka_unit_test(test_drop_by_tokens),
		cmocka_unit_test(test_wiped_in_flight),
		cmocka_unit_test(test_list),
		cmocka_unit_test(test_show),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
