/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations on the disk store against a naive list, with the store closed and
 * opened in between, few different tokens, and hashes cut short so that they collide.
 */
#include "tests/unit/cache/store-fixture.h"

#define MAX_ENTRIES 400
#define MAX_DEPTH 5u
#define N_NAMES 3u
#define ALPHABET 2u

struct entry {
	int parent;			/* -1: it begins a sequence */
	uint32_t name;
	uint32_t n;			/* tokens up to its end */
	int32_t tokens[PATH_TOKENS];	/* from the beginning on */
	uint64_t id;
	bool gone;
};

struct model {
	struct fixture f;
	uint64_t seed;
	struct entry entries[MAX_ENTRIES];
	int n;
	uint32_t n_hits, n_puts;
};

static const char *const names[N_NAMES] = { "uid:1", "", "uid:10" };

static uint32_t below(struct model *m, uint32_t n)
{
	return (uint32_t)(prng(&m->seed) % n);
}

static void random_tokens(struct model *m, int32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = (int32_t)below(m, ALPHABET) - 1;
}

/* An entry that is there, or -1. */
static int pick(struct model *m)
{
	for (int i = 0; m->n && i < 20; i++) {
		int e = (int)below(m, (uint32_t)m->n);

		if (!m->entries[e].gone)
			return e;
	}
	return -1;
}

static uint32_t own_first(const struct entry *e)
{
	return (e->n - 1) / BT * BT;
}

/* The child of parent (-1: root of the name) with exactly these own tokens. */
static int child_of(const struct model *m, int parent, uint32_t name, const int32_t *own, uint32_t n_own)
{
	for (int i = 0; i < m->n; i++) {
		const struct entry *e = &m->entries[i];

		if (!e->gone && e->parent == parent && e->name == name && e->n - own_first(e) == n_own &&
		    !memcmp(e->tokens + own_first(e), own, n_own * sizeof(*own)))
			return i;
	}
	return -1;
}

static uint32_t best_common(const struct model *m, int parent, uint32_t name, const int32_t *tokens, uint32_t n)
{
	uint32_t best = 0;

	for (int i = 0; i < m->n; i++) {
		const struct entry *e = &m->entries[i];
		uint32_t first = own_first(e), k = 0;

		if (e->gone || e->parent != parent || e->name != name)
			continue;
		while (k < MIN(n, e->n - first) && tokens[k] == e->tokens[first + k])
			k++;
		best = MAX(best, k);
	}
	return best;
}

static void do_put(struct model *m)
{
	int parent = below(m, 4) ? pick(m) : -1, there;
	struct entry e = { .parent = parent, .name = below(m, N_NAMES) };
	enum store_result r;
	uint32_t own = below(m, 4) ? BT : 1 + below(m, BT - 1);

	if (m->n == MAX_ENTRIES)
		return;
	if (parent >= 0) {
		const struct entry *p = &m->entries[parent];

		if (p->n % BT || p->n / BT >= MAX_DEPTH)
			return;
		e = *p;
		e.parent = parent;
	}
	random_tokens(m, e.tokens + e.n, own);
	e.n += own;
	there = child_of(m, e.parent, e.name, e.tokens + e.n - own, own);
	r = put(&m->f, m->f.root, names[e.name], parent >= 0 ? m->entries[parent].id : 0, e.tokens, e.n, 1, STORE_NEVER,
		&e.id);
	if (there >= 0) {
		assert_int_equal(r, STORE_EXISTS);
		assert_int_equal(e.id, m->entries[there].id);
		return;
	}
	assert_int_equal(r, STORE_OK);
	for (int i = 0; i < m->n; i++)
		assert_int_not_equal(m->entries[i].id, e.id);
	m->entries[m->n++] = e;
	m->n_puts++;
}

static void do_lookup(struct model *m)
{
	int32_t tokens[PATH_TOKENS];
	uint32_t name = below(m, N_NAMES), n = 1 + below(m, BT * (MAX_DEPTH + 1)), n_found, at = 0, i = 0;
	struct store_found found[16];
	int e = pick(m), at_entry = -1;

	random_tokens(m, tokens, n);
	/* Mostly something that begins like what is there. */
	if (e >= 0 && below(m, 4))
		memcpy(tokens, m->entries[e].tokens, MIN(n, m->entries[e].n) * sizeof(*tokens));
	n_found = find(&m->f, m->f.root, names[name], 0, tokens, n, 1, found, ARRAY_SIZE(found));
	while (at < n) {
		int next = n - at >= BT ? child_of(m, at_entry, name, tokens + at, BT) : -1;
		uint32_t common = next >= 0 ? BT : best_common(m, at_entry, name, tokens + at, MIN(n - at, BT));

		if (!common)
			break;
		assert_true(i < n_found);
		assert_int_equal(found[i].n_common, common);
		if (next >= 0)
			assert_int_equal(found[i].id, m->entries[next].id);
		i++;
		at += common;
		at_entry = next;
		if (next < 0)
			break;
	}
	assert_int_equal(n_found, i);
	assert_int_equal(restore(&m->f, m->f.root, names[name], tokens, n), at);
	m->n_hits += at > 0;
}

static void do_read(struct model *m)
{
	const struct entry *e;
	bool gone;

	if (!m->n)
		return;
	e = &m->entries[below(m, (uint32_t)m->n)];
	gone = e->gone;
	assert_int_equal(get(&m->f, m->f.root, names[e->name], e->parent >= 0 ? m->entries[e->parent].id : 0, e->id,
			     e->tokens, e->n), gone ? STORE_MISS : STORE_OK);
	assert_int_equal(get(&m->f, m->f.root, names[(e->name + 1) % N_NAMES],
			     e->parent >= 0 ? m->entries[e->parent].id : 0, e->id, e->tokens, e->n), STORE_MISS);
}

static uint32_t remove_below(struct model *m, int e)
{
	uint32_t n = 1;

	m->entries[e].gone = true;
	for (int i = 0; i < m->n; i++)
		if (!m->entries[i].gone && m->entries[i].parent == e)
			n += remove_below(m, i);
	return n;
}

static void do_drop(struct model *m)
{
	int e = pick(m);

	if (e < 0 || (m->entries[e].n <= BT && below(m, 4)))
		return;
	assert_int_equal(drop(&m->f, m->entries[e].id), remove_below(m, e));
}

static void do_wipe(struct model *m)
{
	bool all = !below(m, 3);
	uint32_t name = below(m, N_NAMES), n = 0;

	for (int i = 0; i < m->n; i++) {
		n += !m->entries[i].gone && (all || m->entries[i].name == name);
		m->entries[i].gone |= all || m->entries[i].name == name;
	}
	assert_int_equal(wipe(&m->f, all ? NULL : names[name]), n);
}

static void run_model(uint64_t seed, uint32_t n_ops)
{
	static struct model m;
	static const uint32_t bits[] = { 0, 1, 8 };

	memset(&m, 0, sizeof(m));
	fixture_init(&m.f);
	m.seed = seed;
	m.f.config.hash_bits = bits[seed % ARRAY_SIZE(bits)];
	fixture_open(&m.f);
	for (uint32_t i = 0; i < n_ops; i++) {
		uint32_t op = below(&m, 200);

		if (op < 100)
			do_put(&m);
		else if (op < 150)
			do_lookup(&m);
		else if (op < 185)
			do_read(&m);
		else if (op < 196)
			do_drop(&m);
		else if (op < 197)
			do_wipe(&m);
		else {
			fixture_close(&m.f);
			fixture_open(&m.f);
		}
	}
	assert_true(m.n_hits > 10 && m.n_puts > 50);
	assert_int_equal(m.f.n_events, 0);
	fixture_deinit(&m.f);
}

static void test_model(void **state)
{
	uint32_t rounds = getenv("KVD_TEST_LONG") ? 100 : 6;

	for (uint32_t i = 0; i < rounds; i++)
		run_model(i, 700);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_model),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
