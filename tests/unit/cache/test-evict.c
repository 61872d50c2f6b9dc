/* SPDX-License-Identifier: Apache-2.0 */
/* The order of victims against a scan of everything; and the heap beneath against a sorted list. */
#include "tree-fixture.h"

#define N_ITEMS 60u
#define N_UIDS 5u
#define CAPACITY 40u
#define IDLE 1000u

static const struct evict_terms forever;
static struct evict e;
static struct evict_item items[N_ITEMS];
static bool used[N_ITEMS], offered[N_ITEMS];
static struct { uint64_t last_active; uint32_t n_active; struct evict_uid *u; } uids[N_UIDS];
static uint64_t now;
static uint32_t n_stale, n_slow, n_beyond;	/* victims by the second, third and fourth rule */

/* --- naive --- */

static uint32_t n_blocks(uid_t uid)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < N_ITEMS; i++)
		n += used[i] && items[i].uid->uid == uid;
	return n;
}

static bool idle(uid_t uid)
{
	return !uids[uid].n_active && now - uids[uid].last_active > IDLE;
}

/* The lowest score of the uid's that are offered, or N_ITEMS. */
static uint32_t lowest(uid_t uid)
{
	uint32_t best = N_ITEMS;

	for (uint32_t i = 0; i < N_ITEMS; i++) {
		if (!offered[i] || items[i].uid->uid != uid)
			continue;
		if (best == N_ITEMS || evict_score(&e, &items[i]) < evict_score(&e, &items[best]) ||
		    (evict_score(&e, &items[i]) == evict_score(&e, &items[best]) && items[i].use < items[best].use))
			best = i;
	}
	return best;
}

static uint32_t expired(void)
{
	uint32_t best = N_ITEMS;

	for (uint32_t i = 0; i < N_ITEMS; i++)
		if (offered[i] && items[i].expires <= now &&
		    (best == N_ITEMS || items[i].expires < items[best].expires ||
		     (items[i].expires == items[best].expires && items[i].use < items[best].use)))
			best = i;
	return best;
}

static uint32_t expect(void)
{
	uint32_t n_active = 0, best = expired();
	uid_t chosen = N_UIDS;

	if (best < N_ITEMS)
		return best;
	for (uid_t u = 0; u < N_UIDS; u++) {
		n_active += !idle(u);
		if (lowest(u) < N_ITEMS && (best == N_ITEMS || items[lowest(u)].last_use < items[best].last_use))
			best = lowest(u);
		if (lowest(u) < N_ITEMS && (chosen == N_UIDS || n_blocks(u) > n_blocks(chosen)))
			chosen = u;
	}
	if (best == N_ITEMS)
		return best;
	if (now - items[best].last_use > IDLE) {
		n_stale++;
		return best;
	}
	if (n_blocks(items[best].uid->uid) * n_active > CAPACITY || n_blocks(chosen) * n_active <= CAPACITY)
		return best;
	if (now - items[lowest(chosen)].last_use > IDLE / 10) {
		n_slow++;
		return best;
	}
	n_beyond++;
	return lowest(chosen);
}

/* --- operations --- */

static void check(void)
{
	uint32_t i = expect();
	struct evict_item *victim = evict_victim(&e, NULL, now);

	assert_ptr_equal(victim, i < N_ITEMS ? &items[i] : NULL);
	i = lowest(1);
	assert_ptr_equal(evict_victim(&e, uids[1].u, now), i < N_ITEMS ? &items[i] : NULL);
	i = expired();
	assert_ptr_equal(evict_next_expired(&e, now), i < N_ITEMS ? &items[i] : NULL);
}

static void make(uint32_t i)
{
	struct evict_uid *u = evict_uid_get(&e, below(N_UIDS));

	assert_non_null(u);
	evict_item_init(&e, &items[i], u, below(4) * 1000);
	evict_touch(&e, &items[i], now, &(struct evict_terms){ .ttl = below(2) ? 0 : 50 + below(400) }, false);
	used[i] = true;
}

static void evict_one(void)
{
	uint32_t i = expect();
	struct evict_item *victim = evict_victim(&e, NULL, now);

	if (!victim)
		return;
	evict_note_victim(&e, victim);
	evict_item_deinit(&e, victim);
	used[i] = offered[i] = false;
}

static void random_op(void)
{
	uint32_t i = below(N_ITEMS), op = below(12);
	uid_t uid = below(N_UIDS);

	if (op == 0) {
		int by = uids[uid].n_active && below(2) ? -1 : (int)below(2);

		evict_uid_activity(&e, uids[uid].u, by, now);
		uids[uid].last_active = now;
		uids[uid].n_active += (uint32_t)by;
	} else if (op == 1) {
		evict_one();
	} else if (!used[i]) {
		make(i);
	} else if (op < 4) {
		struct evict_terms terms = { .ttl = 1 + below(500) };

		terms.priority = (enum evict_priority)below(3) + EVICT_PRIORITY_LOW;
		evict_touch(&e, &items[i], now, &terms, below(2));
	} else if (op < 8) {
		evict_offer(&e, &items[i]);
		offered[i] = true;
	} else if (op < 9) {
		evict_withdraw(&e, &items[i]);
		offered[i] = false;
	} else if (op < 10 && !offered[i]) {
		items[i].mass = (float)below(100) / 100;
	} else if (op < 11 && !offered[i]) {
		struct evict_uid *u = evict_uid_get(&e, uid);

		assert_non_null(u);
		evict_item_move(&e, &items[i], u);
	}
}

static void test_random(void **state)
{
	fixture_seed = 11;
	now = 1000;
	evict_init(&e, EVICT_SCORE, CAPACITY, IDLE);
	for (uid_t u = 0; u < N_UIDS; u++) {
		uids[u].u = evict_uid_get(&e, u);
		evict_uid_activity(&e, uids[u].u, 0, now);
		uids[u].last_active = now;
	}
	for (uint32_t i = 0; i < 60000; i++) {
		/* Distinct times: in which order uids went idle is then no matter of taste. */
		now += 1 + below(3);
		/* Time goes by for those who have sequences. */
		for (uid_t u = 0; u < N_UIDS; u++)
			if (uids[u].n_active && now - uids[u].last_active > IDLE) {
				evict_uid_activity(&e, uids[u].u, 0, now);
				uids[u].last_active = now;
			}
		random_op();
		check();
	}
	assert_true(n_stale > 100 && n_slow > 100 && n_beyond > 100);
	for (uint32_t i = 0; i < N_ITEMS; i++)
		if (used[i])
			evict_item_deinit(&e, &items[i]);
	for (uid_t u = 0; u < N_UIDS; u++)
		evict_uid_unref(&e, uids[u].u);
	assert_null(e.by_size.top);
	assert_null(e.by_age.top);
	assert_null(e.by_expiry.top);
	assert_true(list_empty(&e.active) && list_empty(&e.idle));
	assert_int_equal(e.n_active, 0);
}

static void test_heap(void **state)
{
	static struct heap_node nodes[200];
	struct heap h = { 0 };
	bool in[200] = { false };

	fixture_seed = 5;
	for (uint32_t step = 0; step < 20000; step++) {
		uint32_t i = below(200), best = 200;

		if (in[i])
			heap_remove(&h, &nodes[i]);
		else
			heap_push(&h, &nodes[i], below(40), i);
		in[i] = !in[i];
		for (uint32_t k = 0; k < 200; k++)
			if (in[k] && (best == 200 || nodes[k].key < nodes[best].key))
				best = k;
		assert_ptr_equal(h.top, best < 200 ? &nodes[best] : NULL);
	}
	heap_remove(&h, &nodes[0]);
	heap_remove(&h, &nodes[0]);
}

/* What is used more, computed at greater cost or attended to more outlives what is used once; all age. */
static void test_worth(void **state)
{
	struct evict_item a = { 0 }, b = { 0 };
	struct evict_uid *u;

	evict_init(&e, EVICT_SCORE, 10, IDLE);
	u = evict_uid_get(&e, 0);
	u->n_refs += 2;
	evict_item_init(&e, &a, u, 0);
	evict_item_init(&e, &b, u, 8000);
	evict_touch(&e, &a, 1, &forever, false);
	evict_touch(&e, &b, 1, &forever, false);
	assert_true(evict_score(&e, &a) < evict_score(&e, &b));
	b.hits = 1;
	a.hits = EVICT_HITS_MAX;
	assert_true(evict_score(&e, &a) < evict_score(&e, &b));
	b.hits = 0;
	assert_true(evict_score(&e, &b) < 2 * EVICT_COST_UNIT * 2);
	b.mass = 1;
	assert_true(evict_score(&e, &b) > evict_score(&e, &a));
	evict_offer(&e, &b);
	evict_note_victim(&e, &b);
	evict_item_deinit(&e, &b);
	evict_touch(&e, &a, 2, &forever, true);
	assert_true(evict_score(&e, &a) > u->base && u->base > EVICT_COST_UNIT);
	evict_item_deinit(&e, &a);
	evict_uid_unref(&e, u);
}

static void make_plain(uint32_t i, struct evict_uid *u, enum evict_priority priority)
{
	u->n_refs++;
	evict_item_init(&e, &items[i], u, 0);
	evict_touch(&e, &items[i], ++now, &(struct evict_terms){ .priority = priority }, false);
	evict_offer(&e, &items[i]);
}

static void expect_victim(uint32_t i)
{
	struct evict_item *victim = evict_victim(&e, NULL, now);

	assert_ptr_equal(victim, &items[i]);
	evict_note_victim(&e, victim);
	evict_item_deinit(&e, victim);
}

/* The last user's priority counts, outweighs hits and place, and ages like all else. */
static void test_priority(void **state)
{
	struct evict_uid *u;

	now = 1;
	evict_init(&e, EVICT_SCORE, 10, IDLE);
	u = evict_uid_get(&e, 0);
	make_plain(0, u, EVICT_PRIORITY_HIGH);
	make_plain(1, u, EVICT_PRIORITY_NORMAL);
	make_plain(2, u, EVICT_PRIORITY_LOW);
	make_plain(3, u, EVICT_PRIORITY_LOW);
	make_plain(4, u, EVICT_PRIORITY_HIGH);
	for (uint32_t i = 0; i < 5; i++)
		evict_touch(&e, &items[1], ++now, &forever, true);
	evict_touch(&e, &items[3], ++now, &forever, false);
	evict_touch(&e, &items[4], ++now, &(struct evict_terms){ .priority = EVICT_PRIORITY_LOW }, false);
	expect_victim(2);
	expect_victim(4);
	expect_victim(3);
	expect_victim(1);
	/* What comes and goes is worth the more, the more has gone: one of high priority that nobody uses goes, too. */
	for (uint32_t i = 0; i < 8 && u->base < 4 * EVICT_COST_UNIT; i++) {
		make_plain(1, u, EVICT_PRIORITY_NORMAL);
		if (evict_victim(&e, NULL, now) == &items[0])
			break;
		expect_victim(1);
	}
	expect_victim(0);
	evict_item_deinit(&e, &items[1]);
	evict_uid_unref(&e, u);
}

/* High priority takes no place from another uid, nor does low priority give it one. */
static void test_priority_of_others(void **state)
{
	struct evict_uid *a, *b;

	now = 1;
	evict_init(&e, EVICT_SCORE, 4, IDLE);
	a = evict_uid_get(&e, 0);
	b = evict_uid_get(&e, 1);
	evict_uid_activity(&e, a, 0, now);
	evict_uid_activity(&e, b, 0, now);
	for (uint32_t i = 0; i < 2; i++)
		make_plain(i, b, EVICT_PRIORITY_LOW);
	for (uint32_t i = 2; i < 6; i++)
		make_plain(i, a, EVICT_PRIORITY_HIGH);
	/* b's are the oldest, but within its share. */
	expect_victim(2);
	expect_victim(3);
	for (uint32_t i = 4; i < 6; i++)
		evict_item_deinit(&e, &items[i]);
	for (uint32_t i = 0; i < 2; i++)
		evict_item_deinit(&e, &items[i]);
	evict_uid_unref(&e, a);
	evict_uid_unref(&e, b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_heap),
		cmocka_unit_test(test_worth),
		cmocka_unit_test(test_priority),
		cmocka_unit_test(test_priority_of_others),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
