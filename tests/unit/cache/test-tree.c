/* SPDX-License-Identifier: Apache-2.0 */
/* The tree's promises one by one; test-tree-model.c tries them in every mixture. */
#include "tree-fixture.h"

#include <errno.h>
#include <math.h>

#define BT 4u
#define NAME(s) ((struct tree_name){ (s), sizeof(s) - 1 })

static struct fixture f;
static uint64_t now;

static int setup(void **state)
{
	now = 1;
	fixture_init(&f, 4, BT, UINT64_MAX, (struct tree_config){ .seed = 9 });
	return 0;
}

static int teardown(void **state)
{
	fixture_deinit(&f);
	return 0;
}

/* 1 2 3 4, 5 6 7 8 ... */
static void count_up(int32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = (int32_t)i + 1;
}

static struct tree_match lookup(struct tree_path *p, const int32_t *tokens, uint32_t n, bool may_wait)
{
	struct tree_match m;

	tree_lookup(p, tokens, n, may_wait, NULL, 0, ++now, &m);
	return m;
}

static uint32_t enter(struct tree_path *p, const int32_t *tokens)
{
	uint32_t block;

	assert_int_equal(pool_block_get(f.root, p->uid->uid, &block), 0);
	assert_int_equal(tree_enter(p, tokens, ++now, &block), 0);
	pool_block_unref(f.root, block);	/* the tree's own keeps it */
	return block;
}

static void open_path(struct tree_path *p, const char *name, uid_t uid)
{
	struct tree_name n = { name, strlen(name) };

	assert_int_equal(tree_path_init(p, f.tree, n, uid, &(struct evict_terms){ 0 }, ++now), 0);
}

/* Stores n tokens, a tail too. */
static void store(const char *name, uid_t uid, const int32_t *tokens, uint32_t n)
{
	struct tree_path p;
	uint32_t block, done;

	open_path(&p, name, uid);
	lookup(&p, tokens, n + 1 - n % BT, false);
	tree_tail_done(&p);
	for (done = tree_path_n_blocks(&p) * BT; n - done >= BT; done += BT)
		enter(&p, tokens + done);
	if (n - done) {
		assert_int_equal(pool_block_get(f.root, uid, &block), 0);
		assert_int_equal(tree_keep_tail(&p, tokens + done, n - done, block, ++now), 0);
		pool_block_unref(f.root, block);
	}
	tree_path_deinit(&p, ++now);
}

static uint32_t found(const char *name, const int32_t *tokens, uint32_t n, enum tree_miss *miss)
{
	struct tree_path p;
	struct tree_match m;

	open_path(&p, name, 9);
	m = lookup(&p, tokens, n, false);
	if (miss)
		*miss = m.miss;
	tree_path_deinit(&p, ++now);
	return m.n_tokens;
}

static struct tree_stats stats(void)
{
	struct tree_stats s;

	tree_stats(f.tree, &s);
	return s;
}

/* All but the last of what was stored, to the token; never all. */
static void test_to_the_token(void **state)
{
	int32_t t[16], other[16];

	count_up(t, 16);
	store("a", 0, t, 10);
	for (uint32_t n = 1; n <= 16; n++)
		assert_int_equal(found("a", t, n, NULL), MIN(n - 1, 10u));
	for (uint32_t k = 0; k < 10; k++) {
		memcpy(other, t, sizeof(t));
		other[k] = 99;
		assert_int_equal(found("a", other, 16, NULL), k);
	}
	assert_int_equal(found("b", t, 16, NULL), 0);
}

/* Branches share what they have in common, a rewound sequence finds where it was. */
static void test_branches(void **state)
{
	int32_t t[16], other[16];

	count_up(t, 16);
	memcpy(other, t, sizeof(t));
	other[9] = 99;
	store("a", 0, t, 16);
	store("a", 1, other, 16);
	assert_int_equal(stats().n_entries, 6);
	assert_int_equal(pool_root_n_used(f.root), 6);
	assert_int_equal(account_used(f.accounts, 1, ACCOUNT_KV) / FIXTURE_BLOCK, 2);
	assert_int_equal(found("a", t, 16, NULL), 15);
	assert_int_equal(found("a", other, 16, NULL), 15);
	assert_int_equal(found("a", t, 7, NULL), 6);
}

/* Two prompts at once: one computes, the other waits and has all of it. */
static void test_one_prefill(void **state)
{
	struct tree_path a, b;
	struct tree_match m;
	int32_t t[16];

	count_up(t, 16);
	open_path(&a, "a", 0);
	open_path(&b, "a", 1);
	lookup(&a, t, 14, true);
	assert_int_equal(tree_claim(&a, t, 14, ++now), 3);
	m = lookup(&b, t, 16, true);
	assert_true(m.waits);
	assert_int_equal(m.n_pending, 12);
	for (uint32_t i = 0; i < 3; i++) {
		assert_null(tree_next_woken(f.tree));
		enter(&a, t + i * BT);
	}
	assert_ptr_equal(tree_next_woken(f.tree), &b);
	assert_null(tree_next_woken(f.tree));
	m = lookup(&b, t, 16, true);
	assert_false(m.waits);
	assert_int_equal(m.n_tokens, 12);
	assert_int_equal(pool_root_n_used(f.root), 3);
	/* What they share stays while either has it. */
	tree_path_deinit(&a, ++now);
	assert_false(tree_evict(f.tree, NULL, ++now));
	assert_int_equal(tree_n_evictable(f.tree), 0);
	tree_path_deinit(&b, ++now);
	assert_int_equal(tree_n_evictable(f.tree), 3);
}

/* The owner gives up half-way: the first follower goes on from there, the other waits for it. */
static void test_takeover(void **state)
{
	struct tree_path a, b, c;
	struct tree_match m;
	uint32_t block;
	int32_t t[16];

	count_up(t, 16);
	open_path(&a, "a", 0);
	open_path(&b, "a", 1);
	open_path(&c, "a", 2);
	lookup(&a, t, 16, true);
	tree_claim(&a, t, 16, ++now);
	assert_true(lookup(&b, t, 16, true).waits);
	assert_true(lookup(&c, t, 16, true).waits);
	enter(&a, t);
	tree_abandon(&a);
	assert_ptr_equal(tree_next_woken(f.tree), &b);
	m = lookup(&b, t, 16, true);
	assert_false(m.waits);
	assert_int_equal(m.n_tokens, 4);
	assert_int_equal(tree_claim(&b, t, 16, ++now), 3);
	assert_ptr_equal(tree_next_woken(f.tree), &c);
	assert_true(lookup(&c, t, 16, true).waits);
	/* The first goes on after all, and is as far as b: either's block will do. */
	block = enter(&a, t + 4);
	assert_int_equal(account_used(f.accounts, 0, ACCOUNT_KV) / FIXTURE_BLOCK, 2);
	assert_int_equal(enter(&b, t + 4), block);
	assert_int_equal(stats().deduplicated, 1);
	tree_path_deinit(&b, ++now);
	assert_ptr_equal(tree_next_woken(f.tree), &c);
	tree_path_deinit(&c, ++now);
	tree_path_deinit(&a, ++now);
	assert_int_equal(stats().n_pending, 0);
}

static void test_miss(void **state)
{
	int32_t t[16], other[16];
	enum tree_miss miss;
	struct tree_path p;
	struct tree_match m;
	const uid_t uid = 0;

	count_up(t, 16);
	memcpy(other, t, sizeof(t));
	other[6] = 99;
	found("a", t, 16, &miss);
	assert_int_equal(miss, TREE_MISS_EMPTY);
	store("a", 0, t, 12);
	found("a", t, 12, &miss);
	assert_int_equal(miss, TREE_MISS_NONE);
	found("a", t, 16, &miss);
	assert_int_equal(miss, TREE_MISS_EMPTY);
	assert_int_equal(found("a", other, 16, &miss), 6);
	assert_int_equal(miss, TREE_MISS_DIFFERS);
	assert_true(tree_evict(f.tree, &uid, ++now));
	assert_int_equal(found("a", t, 16, &miss), 8);
	assert_int_equal(miss, TREE_MISS_EVICTED);

	open_path(&p, "b", 0);
	tree_lookup(&p, t, 16, false, &NAME("a"), 1, ++now, &m);
	assert_int_equal(m.miss, TREE_MISS_NAMESPACE);
	assert_int_equal(m.n_tokens, 0);
	p.terms.ttl = 100;
	lookup(&p, t, 16, false);
	enter(&p, t);
	tree_path_deinit(&p, ++now);
	now += 99;
	assert_int_equal(found("b", t, 16, &miss), 0);
	assert_int_equal(miss, TREE_MISS_EXPIRED);
	assert_int_equal(tree_expire(f.tree, now, 9), 1);
	found("b", t, 16, &miss);
	assert_int_equal(miss, TREE_MISS_EXPIRED);
}

/* A pinned path stays, is charged to who pinned, and bounded. */
static void test_pins(void **state)
{
	struct tree_view first = { 0 };
	int32_t t[40];
	uint64_t bytes;

	count_up(t, 40);
	store("a", 0, t, 36);
	for (uint64_t id = 1; id < 20; id++) {
		struct tree_entry *e = tree_find(f.tree, id);

		if (!e)
			continue;
		if (!first.entry)
			first.entry = e;
		first.id = id;	/* the deepest */
	}
	assert_int_equal(tree_pin(f.tree, tree_find(f.tree, first.id), 3), TREE_E_FULL);	/* 9 of 32 */
	assert_int_equal(tree_pin(f.tree, tree_find(f.tree, first.id - 2), 3), 0);
	bytes = account_used(f.accounts, 3, ACCOUNT_KV);
	assert_int_equal(bytes / FIXTURE_BLOCK, 7);
	assert_int_equal(tree_pin(f.tree, tree_find(f.tree, first.id - 2), 3), 0);
	assert_int_equal(account_used(f.accounts, 3, ACCOUNT_KV), bytes);
	assert_int_equal(tree_pin(f.tree, first.entry, 4), 0);
	assert_int_equal(tree_pin(f.tree, first.entry, 5), TREE_E_FULL);
	while (tree_evict(f.tree, NULL, ++now))
		;
	assert_int_equal(found("a", t, 40, NULL), 28);
	assert_false(tree_unpin(f.tree, tree_find(f.tree, first.id - 2), 4));
	assert_true(tree_unpin(f.tree, tree_find(f.tree, first.id - 2), 3));
	assert_int_equal(account_used(f.accounts, 3, ACCOUNT_KV), 0);
	while (tree_evict(f.tree, NULL, ++now))
		;
	assert_int_equal(found("a", t, 40, NULL), 4);
}

/* What was dropped is not found, though a sequence still uses it; it goes with the sequence. */
static void test_drop_in_use(void **state)
{
	struct tree_path a;
	int32_t t[16];

	count_up(t, 16);
	store("a", 0, t, 12);
	store("b", 0, t, 12);
	open_path(&a, "a", 0);
	assert_int_equal(lookup(&a, t, 9, false).n_tokens, 8);
	tree_wipe(f.tree, &NAME("a"));
	assert_int_equal(found("a", t, 16, NULL), 0);
	assert_int_equal(found("b", t, 16, NULL), 12);
	assert_int_equal(pool_root_n_used(f.root), 5);
	assert_int_equal(tree_enter(&a, t + 8, ++now, &(uint32_t){ 0 }), TREE_E_PARENT);
	assert_int_equal(tree_keep_tail(&a, t + 8, 1, 0, ++now), TREE_E_PARENT);
	tree_path_deinit(&a, ++now);
	assert_int_equal(pool_root_n_used(f.root), 3);
	tree_wipe(f.tree, NULL);
	assert_int_equal(pool_root_n_used(f.root), 0);
	assert_int_equal(stats().n_namespaces, 0);
}

/* A KV type that is sealed by the block: reuse to the block, no short leaves. */
static void test_whole_blocks(void **state)
{
	const uid_t uid = 0;
	struct tree_path p;
	struct tree_match m;
	enum tree_miss miss;
	int32_t t[16], other[16];

	count_up(t, 16);
	fixture_deinit(&f);
	fixture_init(&f, 4, BT, UINT64_MAX, (struct tree_config){ .whole_blocks = true });
	store("a", 0, t, 15);
	assert_int_equal(stats().n_entries, 3);
	assert_int_equal(found("a", t, 16, NULL), 12);
	assert_int_equal(found("a", t, 12, NULL), 8);
	found("a", t, 13, &miss);
	assert_int_equal(miss, TREE_MISS_NONE);
	found("a", t, 16, &miss);
	assert_int_equal(miss, TREE_MISS_BLOCK);
	found("a", t, 12, &miss);
	assert_int_equal(miss, TREE_MISS_BLOCK);
	/* The token that differs is in a block of which nothing is of use. */
	memcpy(other, t, sizeof(t));
	other[6] = 99;
	open_path(&p, "a", 0);
	tree_lookup(&p, other, 16, false, NULL, 0, ++now, &m);
	assert_int_equal(m.n_tokens, 4);
	assert_int_equal(m.miss, TREE_MISS_DIFFERS);
	assert_int_equal(m.n_same, 2);
	tree_path_deinit(&p, ++now);
	/* What has gone is told to have gone, but not where it would not have been of use. */
	assert_true(tree_evict(f.tree, &uid, ++now));
	assert_int_equal(found("a", t, 16, &miss), 8);
	assert_int_equal(miss, TREE_MISS_EVICTED);
	assert_int_equal(found("a", t, 12, &miss), 8);
	assert_int_equal(miss, TREE_MISS_BLOCK);
	other[6] = t[6];
	other[11] = 99;
	assert_int_equal(found("a", other, 16, &miss), 8);
	assert_int_equal(miss, TREE_MISS_EMPTY);
	assert_int_equal(found("b", t, 16, &miss), 0);
	assert_int_equal(miss, TREE_MISS_EMPTY);
}

/* Nobody within its share loses a block to one who is beyond its own. */
static void test_shares(void **state)
{
	struct tree_path quiet;
	int32_t t[32];

	count_up(t, 32);
	store("q", 1, t, 32);		/* 8 of 32 */
	open_path(&quiet, "q", 1);	/* it is not idle, and holds nothing */
	for (int32_t i = 0; i < 100; i++) {
		for (uint32_t k = 0; k < 32; k++)
			t[k] = 1000 + i * 100 + (int32_t)k;
		while (pool_root_n_free(f.root) < 8)
			assert_true(tree_evict(f.tree, NULL, ++now));
		store("l", 2, t, 32);
	}
	count_up(t, 32);
	assert_int_equal(found("q", t, 32, NULL), 31);
	tree_path_deinit(&quiet, ++now);
}

/* A uid at its quota stores no more, and says so; its own blocks are what goes for it. */
static void test_quota(void **state)
{
	const uid_t uid = 0, other = 1;
	struct tree_path p;
	uint32_t block;
	int32_t t[16];

	count_up(t, 16);
	fixture_deinit(&f);
	fixture_init(&f, 4, BT, 3 * FIXTURE_BLOCK + 1400, (struct tree_config){ 0 });
	store("a", 0, t, 8);
	open_path(&p, "a", 0);
	lookup(&p, t, 16, false);
	tree_tail_done(&p);
	assert_int_equal(pool_block_get(f.root, 0, &block), 0);
	assert_int_equal(tree_claim(&p, t, 16, ++now), 1);
	assert_int_equal(tree_enter(&p, t + 8, ++now, &block), 0);
	assert_int_equal(pool_block_get(f.root, 0, &(uint32_t){ 0 }), POOL_E_QUOTA);
	tree_path_deinit(&p, ++now);
	pool_block_unref(f.root, block);
	assert_false(tree_evict(f.tree, &other, ++now));
	assert_true(tree_evict(f.tree, &uid, ++now));
	assert_int_equal(pool_block_get(f.root, 0, &block), 0);
	pool_block_unref(f.root, block);
}

static bool note_view(void *arg, const struct tree_view *view)
{
	struct tree_view *by_first = arg;

	by_first[view->first / BT] = *view;
	return true;
}

/* A path's priority and mass go to all that it uses; who uses it next says anew. */
static void test_priority_and_mass(void **state)
{
	const float mass[] = { 0.5f, -1, NAN, 7 };
	struct tree_view v[4];
	struct tree_path p;
	int32_t t[16];
	uint64_t plain;

	count_up(t, 16);
	open_path(&p, "a", 0);
	p.terms.priority = EVICT_PRIORITY_HIGH;
	for (uint32_t i = 0; i < 4; i++)
		enter(&p, t + i * BT);
	tree_path_mass(&p, mass, 4);
	tree_walk(f.tree, note_view, v);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(v[i].priority, EVICT_PRIORITY_HIGH);
	assert_float_equal(v[0].mass, 0.25, 0);
	assert_float_equal(v[1].mass, 0, 0);
	assert_float_equal(v[2].mass, 0, 0);
	assert_float_equal(v[3].mass, 0.5, 0);
	tree_path_deinit(&p, ++now);

	assert_int_equal(found("a", t, 9, NULL), 8);
	tree_walk(f.tree, note_view, v);
	assert_int_equal(v[0].priority, EVICT_PRIORITY_NORMAL);
	assert_int_equal(v[1].priority, EVICT_PRIORITY_NORMAL);
	assert_int_equal(v[2].priority, EVICT_PRIORITY_HIGH);
	plain = v[1].score;
	assert_true(v[0].score > plain);
	assert_true(v[2].score > 3 * plain && v[2].score < 5 * plain);
}

static void test_refuses(void **state)
{
	char name[TREE_NAME_MAX + 1] = { 0 };
	const struct evict_terms terms = { 0 };
	struct tree_path p = { 0 };
	struct tree *t = NULL;

	assert_int_equal(tree_path_init(&p, f.tree, (struct tree_name){ name, sizeof(name) }, 0, &terms, now), -EINVAL);
	assert_null(p.tree);
	tree_path_deinit(&p, now);
	assert_int_equal(tree_path_init(&p, f.tree, (struct tree_name){ name, TREE_NAME_MAX }, 0, &terms, now), 0);
	tree_path_deinit(&p, now);
	tree_path_deinit(&p, now);
	assert_int_equal(tree_new(&t, &(struct tree_config){
		.accounts = f.accounts, .root = f.root, .hash_bits = 65 }), -EINVAL);
	assert_null(t);
	tree_free(NULL);
	assert_null(tree_find(f.tree, 0));
	assert_null(tree_find(f.tree, 12345));
}

/* A peek says what the lookup after it finds, and changes nothing. */
static void test_peek(void **state)
{
	struct tree_peek peek;
	struct tree_path p, q;
	struct tree_match m;
	struct tree_stats before, after;
	int32_t t[20];

	count_up(t, 20);
	store("a", 1, t, 10);
	open_path(&p, "a", 1);
	tree_stats(f.tree, &before);
	tree_peek(&p, t, 20, ++now, &peek);
	tree_stats(f.tree, &after);
	assert_memory_equal(&before, &after, sizeof(before));
	assert_int_equal(peek.n_tokens, 10);
	assert_int_equal(peek.n_tail, 2);
	assert_int_equal(peek.n_pending, 0);
	assert_int_equal(peek.n_evictable, 3);
	tree_peek(&p, t, 8, ++now, &peek);	/* of which the last is computed in any case */
	assert_int_equal(peek.n_tokens, 7);
	assert_int_equal(peek.n_evictable, 2);

	/* What another holds is not to be had by evicting. */
	open_path(&q, "a", 2);
	m = lookup(&q, t, 6, false);
	assert_int_equal(m.n_tokens, 5);
	tree_tail_done(&q);
	tree_peek(&p, t, 20, ++now, &peek);
	assert_int_equal(peek.n_evictable, 2);
	lookup(&q, t, 9, false);
	assert_int_equal(tree_claim(&q, t, 20, ++now), 3);
	tree_peek(&p, t, 20, ++now, &peek);
	assert_int_equal(peek.n_tokens, 10);
	assert_int_equal(peek.n_pending, 8);	/* up to 16: the last token of 20 is nobody's */
	tree_path_deinit(&q, ++now);
	tree_path_deinit(&p, ++now);
}

/* What the disk still writes is wiped when its sequence is gone: the last of its namespace goes with the hold. */
static void test_wiped_while_held(void **state)
{
	struct tree_path p;
	struct tree_ref ref;
	int32_t t[20];

	count_up(t, 20);
	for (int whole = 0; whole < 2; whole++) {
		store("a", 1, t, 16);
		open_path(&p, "a", 1);
		lookup(&p, t, 17, false);
		ref = tree_path_ref(&p, whole ? 3 : 0);
		tree_hold(f.tree, ref);
		tree_path_deinit(&p, ++now);
		tree_wipe(f.tree, NULL);
		assert_int_equal(found("a", t, 17, NULL), 0);
		assert_int_equal(pool_root_n_used(f.root), whole ? 4 : 1);
		tree_let_go(f.tree, ref);
		assert_int_equal(pool_root_n_used(f.root), 0);
	}
}

static bool is_block(void *arg, uint32_t block)
{
	return block == *(uint32_t *)arg;
}

static void set_block(void *arg, uint32_t block)
{
	((bool *)arg)[block] = true;
}

/* Blocks that are wanted go with what is after them; used and pinned ones stay. */
static void test_evict_blocks(void **state)
{
	bool pinned[4 * FIXTURE_PER_CHUNK] = { false };
	struct tree_entry *second;
	struct tree_path p;
	uint32_t blocks[4], n_used;
	int32_t t[20], u[20];

	count_up(t, 20);
	count_up(u, 20);
	u[9] = 99;
	store("a", 1, t, 16);
	store("a", 1, u, 12);
	open_path(&p, "a", 1);
	lookup(&p, t, 9, false);
	second = p.at;
	lookup(&p, t, 17, false);
	tree_path_blocks(&p, 0, blocks);
	tree_evict_blocks(f.tree, is_block, &blocks[0], ++now);
	assert_int_equal(tree_path_n_blocks(&p), 4);
	assert_int_equal(pool_root_n_used(f.root), 5);
	tree_pinned_blocks(f.tree, set_block, pinned);
	assert_false(pinned[blocks[0]]);
	assert_int_equal(tree_pin(f.tree, second, 1), 0);
	tree_pinned_blocks(f.tree, set_block, pinned);
	assert_true(pinned[blocks[0]] && pinned[blocks[1]] && !pinned[blocks[2]]);
	tree_path_deinit(&p, ++now);

	tree_evict_blocks(f.tree, is_block, &blocks[0], ++now);
	assert_int_equal(pool_root_n_used(f.root), 5);
	tree_evict_blocks(f.tree, is_block, &blocks[2], ++now);
	n_used = pool_root_n_used(f.root);
	assert_int_equal(n_used, 3);		/* the two that are pinned, and the branch */
	assert_int_equal(found("a", t, 17, NULL), 9);	/* of the branch one token is the same */
	assert_int_equal(found("a", u, 13, NULL), 12);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_to_the_token),
		TEST(test_branches),
		TEST(test_one_prefill),
		TEST(test_takeover),
		TEST(test_miss),
		TEST(test_pins),
		TEST(test_drop_in_use),
		TEST(test_wiped_while_held),
		TEST(test_whole_blocks),
		TEST(test_shares),
		TEST(test_quota),
		TEST(test_priority_and_mass),
		TEST(test_refuses),
		TEST(test_peek),
		TEST(test_evict_blocks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
