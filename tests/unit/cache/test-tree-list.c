/* SPDX-License-Identifier: Apache-2.0 */
/* Pages, chains and sums of the tree, against a walk over all of it. */
#include "tree-fixture.h"

#define BT 4u
#define ALL_MAX 512u

static struct fixture f;
static uint64_t now;

static int setup(void **state)
{
	now = 1;
	fixture_seed = 77;
	fixture_init(&f, 40, BT, UINT64_MAX, (struct tree_config){ .seed = 9 });
	return 0;
}

static int teardown(void **state)
{
	fixture_deinit(&f);
	return 0;
}

static void store(const char *name, uid_t uid, const int32_t *tokens, uint32_t n)
{
	struct tree_name ns = { name, strlen(name) };
	struct tree_path p;
	struct tree_match m;
	uint32_t block;

	assert_int_equal(tree_path_init(&p, f.tree, ns, uid, &(struct evict_terms){ 0 }, ++now), 0);
	tree_lookup(&p, tokens, n + 1, false, NULL, 0, ++now, &m);
	tree_tail_done(&p);
	for (uint32_t at = tree_path_n_blocks(&p) * BT; at < n; at += BT) {
		assert_int_equal(pool_block_get(f.root, uid, &block), 0);
		if (n - at >= BT)
			assert_int_equal(tree_enter(&p, tokens + at, ++now, &block), 0);
		else
			assert_int_equal(tree_keep_tail(&p, tokens + at, n - at, block, ++now), 0);
		pool_block_unref(f.root, block);
	}
	tree_path_deinit(&p, ++now);
}

struct all {
	struct tree_view views[ALL_MAX];
	uint32_t n;
};

static bool add(void *arg, const struct tree_view *v)
{
	struct all *a = arg;

	assert_true(a->n < ALL_MAX);
	a->views[a->n++] = *v;
	return true;
}

static int by_id(const void *a, const void *b)
{
	const struct tree_view *x = a, *y = b;

	return x->id < y->id ? -1 : x->id > y->id;
}

static struct all *walk(void)
{
	static struct all a;

	a.n = 0;
	tree_walk(f.tree, add, &a);
	qsort(a.views, a.n, sizeof(a.views[0]), by_id);
	return &a;
}

static const struct tree_view *view_of(const struct all *a, uint64_t id)
{
	for (uint32_t i = 0; i < a->n; i++)
		if (a->views[i].id == id)
			return &a->views[i];
	return NULL;
}

static bool named(void *arg, struct tree_name name, uid_t uid)
{
	const char *want = arg;

	return name.n == strlen(want) && !memcmp(name.bytes, want, name.n);
}

static bool of_uid(void *arg, struct tree_name name, uid_t uid)
{
	return uid == *(uid_t *)arg;
}

static bool any(void *arg, struct tree_name name, uid_t uid)
{
	return true;
}

/* Prompts with common beginnings, of three uids in three namespaces. */
static void grow(uint32_t n)
{
	static const char *const names[] = { "a", "b", "a/k" };
	int32_t t[40];

	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t k = 0; k < ARRAY_SIZE(t); k++)
			t[k] = (int32_t)below(k < 8 ? 1 : 2) + (int32_t)(k / 8);
		store(names[below(3)], below(3), t, 1 + below(40));
	}
}

/* Pages of every size give the same as the walk, in order, whoever is asked for. */
static void test_pages(void **state)
{
	struct tree_view page[ALL_MAX];
	uid_t uid = 1;

	grow(30);
	for (uint32_t size = 1; size < 40; size += 1 + size / 3) {
		const struct all *a = walk();
		uint64_t after = 0;
		uint32_t at = 0, n;

		assert_true(a->n > 60);
		while ((n = tree_list(f.tree, after, NULL, NULL, page, size))) {
			for (uint32_t i = 0; i < n; i++, at++) {
				assert_int_equal(page[i].id, a->views[at].id);
				assert_ptr_equal(page[i].tokens, a->views[at].tokens);
				assert_true(page[i].parent < page[i].id);
			}
			after = page[n - 1].id;
		}
		assert_int_equal(at, a->n);
		at = 0;
		after = 0;
		while ((n = tree_list(f.tree, after, of_uid, &uid, page, size))) {
			for (uint32_t i = 0; i < n; i++)
				assert_int_equal(page[i].uid, 1);
			at += n;
			after = page[n - 1].id;
		}
		for (uint32_t i = 0; i < a->n; i++)
			at -= a->views[i].uid == 1;
		assert_int_equal(at, 0);
	}
	assert_int_equal(tree_list(f.tree, 0, NULL, NULL, page, 0), 0);
}

/* What stays while others come and go is in the pages once. */
static void test_pages_of_a_changing_tree(void **state)
{
	struct tree_view page[7];
	uint64_t stay[ALL_MAX], after = 0;
	uint32_t n_stay = 0, n;

	grow(20);
	for (const struct tree_view *v = walk()->views; v < walk()->views + walk()->n; v++)
		stay[n_stay++] = v->id;
	while ((n = tree_list(f.tree, after, NULL, NULL, page, ARRAY_SIZE(page)))) {
		for (uint32_t i = 0; i < n; i++)
			for (uint32_t k = 0; k < n_stay; k++)
				if (stay[k] == page[i].id)
					stay[k] = 0;
		after = page[n - 1].id;
		for (uint32_t i = below(4); i; i--)
			tree_evict(f.tree, NULL, ++now);
		if (after < 150)
			grow(1);
	}
	for (uint32_t k = 0; k < n_stay; k++)
		assert_true(!stay[k] || !tree_find(f.tree, stay[k]));
}

/* The rule of the header, told from a walk alone. */
static void test_chains(void **state)
{
	const struct all *a;

	grow(25);
	a = walk();
	assert_int_equal(tree_pin(f.tree, a->views[a->n / 2].entry, 5), 0);
	a = walk();
	for (uint32_t i = 0; i < a->n; i++) {
		const struct tree_view *v = &a->views[i], *p = view_of(a, v->parent), *first = v;
		uint32_t n_children = 0, depth = 1;

		for (uint32_t k = 0; k < a->n; k++)
			n_children += v->parent && a->views[k].parent == v->parent;
		assert_int_equal(v->joined, p && n_children == 1 && p->uid == v->uid && !p->n_pins);
		for (; first->joined; first = view_of(a, first->parent))
			;
		assert_ptr_equal(tree_chain_first(v->entry), first->entry);
		for (; p; p = view_of(a, p->parent))
			depth++;
		assert_int_equal(tree_depth(v->entry), depth);
	}
	assert_true(tree_unpin(f.tree, a->views[a->n / 2].entry, 5));
}

static void test_tokens_of_a_path(void **state)
{
	int32_t t[11], got[16];
	const struct all *a;

	for (uint32_t i = 0; i < ARRAY_SIZE(t); i++)
		t[i] = 50 + (int32_t)i;
	store("a", 0, t, 11);
	a = walk();
	assert_int_equal(a->n, 3);
	for (uint32_t n = 0; n <= 16; n++) {
		memset(got, 0, sizeof(got));
		assert_int_equal(tree_path_tokens(a->views[2].entry, got, n), MIN(n, 11u));
		assert_memory_equal(got, t, MIN(n, 11u) * sizeof(*t));
		assert_int_equal(got[MIN(n, 15u)], 0);
	}
	assert_int_equal(tree_path_tokens(a->views[0].entry, got, 16), 4);
}

static void test_sums(void **state)
{
	const struct all *a;
	uint32_t n_blocks[3] = { 0 };

	grow(25);
	a = walk();
	for (uint32_t i = 0; i < a->n; i++) {
		uint64_t n_tokens, tokens = 0;
		uint32_t below_it = 0, n = tree_n_below(a->views[i].entry, &n_tokens);

		for (uint32_t k = 0; k < a->n; k++) {
			const struct tree_view *v = &a->views[k];

			while (v && v->id != a->views[i].id)
				v = view_of(a, v->parent);
			if (!v || k == i)
				continue;
			below_it++;
			tokens += a->views[k].n_tokens;
		}
		assert_int_equal(n, below_it);
		assert_int_equal(n_tokens, tokens);
		n_blocks[a->views[i].uid]++;
	}
	for (uid_t uid = 0; uid < 3; uid++)
		assert_int_equal(tree_n_blocks_of(f.tree, uid), n_blocks[uid]);
	assert_int_equal(tree_n_blocks_of(f.tree, 6), 0);
}

static void test_wipe_some(void **state)
{
	char a_name[] = "a", none[] = "none";
	uint32_t n[2] = { 0 };
	const struct all *a;

	grow(25);
	a = walk();
	for (uint32_t i = 0; i < a->n; i++)
		n[named(a_name, a->views[i].name, 0)]++;
	assert_int_equal(tree_wipe_if(f.tree, named, none), 0);
	assert_int_equal(tree_wipe_if(f.tree, named, a_name), n[1]);
	a = walk();
	assert_int_equal(a->n, n[0]);
	for (uint32_t i = 0; i < a->n; i++)
		assert_false(named(a_name, a->views[i].name, 0));
	assert_int_equal(tree_wipe_if(f.tree, any, NULL), n[0]);
	assert_int_equal(walk()->n, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_pages, setup, teardown),
		cmocka_unit_test_setup_teardown(test_pages_of_a_changing_tree, setup, teardown),
		cmocka_unit_test_setup_teardown(test_chains, setup, teardown),
		cmocka_unit_test_setup_teardown(test_tokens_of_a_path, setup, teardown),
		cmocka_unit_test_setup_teardown(test_sums, setup, teardown),
		cmocka_unit_test_setup_teardown(test_wipe_some, setup, teardown),
	};

	return cmocka_run_group_tests_name("tree-list", tests, NULL, NULL);
}
