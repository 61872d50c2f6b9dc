/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coding and the host tier, and what the tree does with them, one by one; test-tree-model.c tries it in every
 * mixture.
 */
#include "tree-fixture.h"

#include <sys/stat.h>
#include <unistd.h>

#include "daemon/cache/coding.h"

#define BT 16u
#define N_PLAIN (BT * FIXTURE_TOKEN)
#define PAGES(n) (((n) + HOST_PAGE - 1) / HOST_PAGE * HOST_PAGE)

static struct fixture f;
static uint64_t now;

/* --- the coding --- */

enum shape { ZEROS, ONES, RANDOM, LIKE_KV, N_SHAPES };

static void make_plain(uint8_t *plain, size_t n, enum shape shape)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t exponent = (uint32_t)__builtin_ctz(below(1u << 16) | 1u << 15);

		if (shape == LIKE_KV && i % 2)
			plain[i] = (uint8_t)(below(2) << 7 | (16 - exponent) << 2 | below(4));
		else
			plain[i] = shape == ZEROS ? 0 : shape == ONES ? 0xff : (uint8_t)below(256);
	}
}

static void test_coding_exact(void **state)
{
	static const size_t sizes[] = { 2, 4, 126, 4096, 65534, 368640, 1 << 20 };
	uint8_t *plain = malloc(1 << 20);
	struct coder *c;

	assert_int_equal(coder_new(&c), 0);
	for (uint32_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		size_t n = sizes[i];
		uint64_t before = coder_bytes(c), needs = coder_needs(c, n);

		assert_int_equal(coder_reserve(c, n), 0);
		assert_true(coder_bytes(c) <= before + needs);
		before = coder_bytes(c);
		for (enum shape shape = 0; shape < N_SHAPES; shape++) {
			size_t n_coded;

			make_plain(plain, n, shape);
			memcpy(coder_plain(c), plain, n);
			assert_int_equal(coder_encode(c, n, &n_coded), 0);
			assert_true(n_coded <= coder_bound(n));
			memset(coder_plain(c), 0x55, n);
			assert_int_equal(coder_decode(c, n_coded, n), 0);
			assert_memory_equal(coder_plain(c), plain, n);
			if (n > 4096 && shape == LIKE_KV)
				assert_true(n_coded < n * 9 / 10);
			if (n > 4096 && shape == RANDOM)
				assert_true(n_coded < n + n / 100);
		}
		assert_int_equal(coder_bytes(c), before);
	}
	assert_int_equal(coder_reserve(c, 3), -EINVAL);
	assert_int_equal(coder_encode(c, 0, &(size_t){ 0 }), -EINVAL);
	assert_int_equal(coder_encode(c, (1 << 20) + 2, &(size_t){ 0 }), -EINVAL);
	coder_free(c);
	free(plain);
}

/* Whatever the bytes are, decoding ends, within its buffers, and says whether it understood. */
static void test_coding_garbage(void **state)
{
	const size_t n = 4096;
	size_t n_coded;
	struct coder *c;

	assert_int_equal(coder_new(&c), 0);
	assert_int_equal(coder_reserve(c, n), 0);
	for (uint32_t i = 0; i < 3000; i++) {
		uint8_t *coded = coder_coded(c);

		make_plain(coder_plain(c), n, LIKE_KV);
		assert_int_equal(coder_encode(c, n, &n_coded), 0);
		for (uint32_t k = below(4); k--;)
			coded[below((uint32_t)(n_coded - n / 2))] ^= (uint8_t)(1 + below(255));
		if (!below(3))
			n_coded = below((uint32_t)n_coded + 1);
		(void)coder_decode(c, n_coded, n);
	}
	assert_int_equal(coder_decode(c, n / 2 - 1, n), CODER_E_DAMAGED);
	assert_int_equal(coder_decode(c, 0, n), CODER_E_DAMAGED);
	assert_int_equal(coder_decode(c, coder_bound(n) + 1, n), -EINVAL);
	coder_free(c);
}

/* --- the host alone --- */

static struct accounts *limited(uint64_t max_kv)
{
	struct account_limits limits;
	struct accounts *a;

	for (int i = 0; i < ACCOUNT_N_KINDS; i++)
		limits.max[i] = UINT64_MAX;
	limits.max[ACCOUNT_KV] = max_kv;
	assert_int_equal(accounts_new(&a, &limits), 0);
	return a;
}

static uint64_t memory_of(const struct host *h)
{
	struct stat st;

	assert_int_equal(fstat(host_fd(h), &st), 0);
	return (uint64_t)st.st_blocks * 512;
}

static int put(struct host *h, uid_t uid, size_t n, uint64_t seed, struct host_block *block)
{
	fixture_seed = seed;
	make_plain(host_plain(h), n, LIKE_KV);
	assert_int_equal(host_encode(h, n), 0);
	return host_put(h, uid, block);
}

static void check_get(struct host *h, const struct host_block *block, size_t n, uint64_t seed)
{
	uint8_t *plain = malloc(n);

	fixture_seed = seed;
	make_plain(plain, n, LIKE_KV);
	assert_int_equal(host_get(h, block, n), 0);
	assert_memory_equal(host_plain(h), plain, n);
	free(plain);
}

/* Blocks of many sizes come and go; all memory stays within the budget, and goes back. */
static void test_budget(void **state)
{
	enum { N = 400 };
	static struct { struct host_block block; size_t n; uint64_t seed; } have[N];
	struct accounts *accounts = limited(UINT64_MAX);
	const uint64_t bytes = 9 << 20;
	uint32_t n_full = 0, n_put = 0;
	struct host_stats stats;
	uint64_t coded = 0;
	struct host *h;

	assert_int_equal(host_new(&h, accounts, HOST_BYTES_MIN - 1, EVICT_SCORE, 1), -EINVAL);
	assert_int_equal(host_new(&h, accounts, bytes, EVICT_SCORE, 1), 0);
	assert_int_equal(host_reserve(h, 1 << 20), 0);
	assert_int_equal(host_reserve(h, 8 << 20), HOST_E_FULL);
	assert_int_equal(host_put(h, 0, &have[0].block), -EINVAL);	/* nothing was coded */
	for (uint32_t i = 1; i < 6000; i++) {
		uint32_t k = (uint32_t)(i * UINT64_C(2654435761) % N);
		int err;

		if (have[k].block.n_bytes) {
			check_get(h, &have[k].block, have[k].n, have[k].seed);
			coded -= host_block_bytes(&have[k].block);
			host_drop(h, &have[k].block, have[k].n);
			host_drop(h, &have[k].block, have[k].n);
		} else {
			have[k].n = 2 * (1 + i * UINT64_C(40503) % (i % 7 ? 20000 : 200000));
			have[k].seed = i;
			err = put(h, k % 3, have[k].n, i, &have[k].block);
			n_full += err == HOST_E_FULL;
			n_put += !err;
			assert_true(!err || (err == HOST_E_FULL && !have[k].block.n_bytes));
			coded += err ? 0 : host_block_bytes(&have[k].block);
		}
		host_stats(h, &stats);
		assert_int_equal(stats.coded, coded);
		assert_true(stats.used <= bytes);
		assert_true(memory_of(h) <= bytes - (stats.used - stats.coded));
		assert_int_equal(account_used(accounts, 0, ACCOUNT_KV) + account_used(accounts, 1, ACCOUNT_KV) +
				 account_used(accounts, 2, ACCOUNT_KV), coded);
	}
	assert_true(n_full > 100 && n_put > 1000);
	/* A larger size takes memory that pages had, once they are free. */
	while (host_reserve(h, 2 << 20) == HOST_E_FULL) {
		uint32_t k = 0;

		while (!have[k].block.n_bytes)
			k++;
		host_drop(h, &have[k].block, have[k].n);
	}
	host_stats(h, &stats);
	assert_true(stats.used <= bytes && memory_of(h) <= bytes - (stats.used - stats.coded));
	for (uint32_t k = 0; k < N; k++)
		host_drop(h, &have[k].block, have[k].n);
	assert_int_equal(memory_of(h), 0);
	host_free(h);
	accounts_free(accounts);
}

static void test_quota(void **state)
{
	struct accounts *accounts = limited(5 * HOST_PAGE);
	struct host_block a = { 0 }, b = { 0 };
	struct host *h;

	assert_int_equal(host_new(&h, accounts, 8 << 20, EVICT_SCORE, 1), 0);
	assert_int_equal(host_reserve(h, 16384), 0);
	assert_int_equal(put(h, 1, 16384, 1, &a), 0);
	assert_int_equal(account_used(accounts, 1, ACCOUNT_KV), PAGES(a.n_bytes));
	assert_int_equal(put(h, 1, 16384, 2, &b), HOST_E_QUOTA);
	assert_int_equal(b.n_bytes, 0);
	assert_int_equal(put(h, 2, 16384, 2, &b), 0);
	host_drop(h, &a, 16384);
	assert_int_equal(account_used(accounts, 1, ACCOUNT_KV), 0);
	check_get(h, &b, 16384, 2);
	host_drop(h, &b, 16384);
	host_free(h);
	accounts_free(accounts);
}

/* Each bit counts, wherever it is. */
static void test_damage(void **state)
{
	struct accounts *accounts = limited(UINT64_MAX);
	struct host_block block = { 0 };
	struct host *h;
	uint8_t byte;

	assert_int_equal(host_new(&h, accounts, 8 << 20, EVICT_SCORE, 1), 0);
	assert_int_equal(host_reserve(h, 16384), 0);
	assert_int_equal(put(h, 1, 16384, 1, &block), 0);
	for (uint32_t at = 0; at < block.n_bytes; at += 97) {
		off_t where = (off_t)block.first_page * HOST_PAGE + at;

		assert_int_equal(pread(host_fd(h), &byte, 1, where), 1);
		byte ^= 1u << at % 8;
		assert_int_equal(pwrite(host_fd(h), &byte, 1, where), 1);
		assert_int_equal(host_get(h, &block, 16384), HOST_E_DAMAGED);
		byte ^= 1u << at % 8;
		assert_int_equal(pwrite(host_fd(h), &byte, 1, where), 1);
	}
	check_get(h, &block, 16384, 1);
	host_drop(h, &block, 16384);
	host_free(h);
	accounts_free(accounts);
}

/* --- the tree --- */

static void init(uint32_t n_chunks, uint64_t max_kv)
{
	now = 1;
	fixture_init_host(&f, n_chunks, BT, max_kv, 8 << 20, (struct tree_config){ .seed = 9 });
}

static int teardown(void **state)
{
	fixture_deinit(&f);
	return 0;
}

static void open_path(struct tree_path *p, const char *name, uid_t uid)
{
	struct tree_name n = { name, strlen(name) };

	assert_int_equal(tree_path_init(p, f.tree, n, uid, &(struct evict_terms){ 0 }, ++now), 0);
}

static void fill(uint32_t block, uint32_t seed)
{
	uint8_t plain[N_PLAIN];

	fixture_seed = seed;
	make_plain(plain, sizeof(plain), LIKE_KV);
	assert_int_equal(pool_block_write(f.root, block, BT, plain), 0);
}

/* Its first n_tokens tokens. */
static void check_filled(uint32_t block, uint32_t seed, uint32_t n_tokens)
{
	uint8_t plain[N_PLAIN], got[N_PLAIN];

	fixture_seed = seed;
	make_plain(plain, sizeof(plain), LIKE_KV);
	assert_int_equal(pool_block_read(f.root, block, n_tokens, got), 0);
	for (uint32_t plane = 0; plane < 2; plane++)
		assert_memory_equal(got + plane * n_tokens * FIXTURE_TOKEN / 2, plain + plane * N_PLAIN / 2,
				    n_tokens * FIXTURE_TOKEN / 2);
}

static uint32_t get_block(uid_t uid)
{
	uint32_t block;

	assert_int_equal(pool_block_get(f.root, uid, &block), 0);
	return block;
}

/* n tokens from first on, a tail too; block k has the content of seed first + k. */
static void store(const char *name, uid_t uid, int32_t first, uint32_t n)
{
	int32_t t[128];
	struct tree_path p;
	uint32_t block, k = 0;

	for (uint32_t i = 0; i < n; i++)
		t[i] = first + (int32_t)i;
	open_path(&p, name, uid);
	for (; k < n / BT; k++) {
		block = get_block(uid);
		fill(block, (uint32_t)first + k);
		assert_int_equal(tree_enter(&p, t + k * BT, ++now, &block), 0);
		pool_block_unref(f.root, block);
	}
	if (n % BT) {
		block = get_block(uid);
		fill(block, (uint32_t)first + k);
		assert_int_equal(tree_keep_tail(&p, t + k * BT, n % BT, block, ++now), 0);
		pool_block_unref(f.root, block);
	}
	tree_path_deinit(&p, ++now);
}

static uint32_t evict_all(void)
{
	uint32_t n = 0;

	while (tree_evict(f.tree, NULL, ++now))
		n++;
	return n;
}

static struct tree_match lookup(struct tree_path *p, int32_t first, uint32_t n)
{
	struct tree_match m;
	int32_t t[128];

	for (uint32_t i = 0; i < n; i++)
		t[i] = first + (int32_t)i;
	tree_lookup(p, t, n, false, NULL, 0, ++now, &m);
	return m;
}

static int restore(struct tree_path *p, int32_t first, uint32_t *block)
{
	uint32_t depth = tree_path_n_blocks(p);
	int32_t t[BT];

	for (uint32_t i = 0; i < BT; i++)
		t[i] = first + (int32_t)(depth * BT + i);
	return tree_restore(p, t, ++now, block);
}

static struct tree_stats stats_now(void)
{
	struct tree_stats s;

	tree_stats(f.tree, &s);
	return s;
}

/* Blocks and a tail go, and come back to the bit. */
static void test_there_and_back(void **state)
{
	struct tree_path p;
	struct tree_match m;
	uint32_t block[4], own;

	init(4, UINT64_MAX);
	store("a", 1, 100, 3 * BT + 5);
	assert_int_equal(evict_all(), 4);
	assert_int_equal(pool_root_n_used(f.root), 0);
	assert_int_equal(tree_n_evictable(f.tree), 0);
	assert_int_equal(stats_now().n_stored, 4);
	assert_int_equal(stats_now().stored, 4);
	assert_int_equal(stats_now().evicted, 0);
	/* What is stored is charged in its own size, and the entries. */
	assert_true(account_used(f.accounts, 1, ACCOUNT_KV) < 4 * (HOST_PAGE + 600));

	open_path(&p, "a", 2);
	m = lookup(&p, 100, 4 * BT);
	assert_int_equal(m.n_stored, 3);
	assert_int_equal(m.n_tokens, 0);
	for (uint32_t i = 0; i < 3; i++) {
		own = block[i] = get_block(2);
		assert_int_equal(restore(&p, 100, &block[i]), 0);
		assert_int_equal(block[i], own);
		check_filled(own, 100 + i, BT);
	}
	m = lookup(&p, 100, 4 * BT);
	assert_int_equal(m.n_tokens, 3 * BT + 5);
	assert_int_equal(m.n_tail, 5);
	assert_true(m.tail_stored);
	block[3] = get_block(2);
	assert_int_equal(tree_restore_tail(&p, block[3]), 0);
	tree_tail_done(&p);
	check_filled(block[3], 103, 5);
	assert_int_equal(stats_now().restored, 4);
	assert_int_equal(stats_now().n_stored, 1);	/* the tail itself stays there */
	assert_int_equal(stats_now().lookups, 1);
	assert_int_equal(stats_now().hit_tokens, 3 * BT + 5);
	tree_path_deinit(&p, ++now);
	for (uint32_t i = 0; i < 4; i++)
		pool_block_unref(f.root, block[i]);
	assert_int_equal(tree_n_evictable(f.tree), 3);
}

/* Two want the same: one decodes, the other shares. */
static void test_once(void **state)
{
	struct tree_path p, q;
	uint32_t a, b, own;

	init(4, UINT64_MAX);
	store("a", 1, 100, 2 * BT);
	evict_all();
	open_path(&p, "a", 1);
	open_path(&q, "a", 1);
	assert_int_equal(lookup(&p, 100, 2 * BT + 1).n_stored, 2);
	assert_int_equal(lookup(&q, 100, 2 * BT + 1).n_stored, 2);
	a = get_block(1);
	own = b = get_block(1);
	assert_int_equal(restore(&p, 100, &a), 0);
	assert_int_equal(restore(&q, 100, &b), 0);
	assert_int_equal(a, b);
	assert_int_equal(pool_block_n_refs(f.root, own), 0);
	assert_int_equal(stats_now().restored, 1);
	assert_int_equal(tree_path_n_blocks(&q), 1);
	pool_block_unref(f.root, a);
	pool_block_unref(f.root, b);
	tree_path_deinit(&p, ++now);
	tree_path_deinit(&q, ++now);
}

/* A damaged block is a miss; once it has been computed again, those behind it are as good as before. */
static void test_damaged_entry(void **state)
{
	static uint8_t saved[64 * HOST_PAGE];
	struct tree_match m;
	struct tree_path p;
	uint32_t block[3];
	int32_t t[BT];

	init(4, UINT64_MAX);
	store("a", 1, 100, 3 * BT);
	evict_all();
	assert_int_equal(pread(host_fd(f.host), saved, sizeof(saved), 0), sizeof(saved));
	assert_int_equal(pwrite(host_fd(f.host), "damage", 6, 2 * HOST_PAGE), 6);	/* leaves went first */
	open_path(&p, "a", 1);
	assert_int_equal(lookup(&p, 100, 3 * BT + 1).n_stored, 3);
	block[0] = get_block(1);
	assert_int_equal(restore(&p, 100, &block[0]), TREE_E_GONE);
	assert_int_equal(stats_now().damaged, 1);
	m = lookup(&p, 100, 3 * BT + 1);
	assert_int_equal(m.n_stored, 0);
	assert_int_equal(m.n_tokens, 0);
	assert_int_equal(m.miss, TREE_MISS_EVICTED);
	for (uint32_t i = 0; i < BT; i++)
		t[i] = 100 + (int32_t)i;
	fill(block[0], 100);
	assert_int_equal(tree_enter(&p, t, ++now, &block[0]), 0);
	assert_int_equal(lookup(&p, 100, 3 * BT + 1).n_stored, 2);
	for (uint32_t i = 1; i < 3; i++) {
		block[i] = get_block(1);
		assert_int_equal(restore(&p, 100, &block[i]), 0);
		check_filled(block[i], 100 + i, BT);
	}
	tree_path_deinit(&p, ++now);
	for (uint32_t i = 0; i < 3; i++)
		pool_block_unref(f.root, block[i]);
}

/* What is computed again, or kept as a tail again, takes the stored one's place. */
static void test_computed_again(void **state)
{
	struct tree_path p;
	uint32_t block, own;
	int32_t t[2 * BT];

	init(4, UINT64_MAX);
	store("a", 1, 100, BT + 3);
	evict_all();
	for (uint32_t i = 0; i < 2 * BT; i++)
		t[i] = 100 + (int32_t)i;
	open_path(&p, "a", 2);
	assert_int_equal(tree_claim(&p, t, BT, ++now), 0);
	own = block = get_block(2);
	fill(block, 100);
	assert_int_equal(tree_enter(&p, t, ++now, &block), 0);
	assert_int_equal(block, own);
	assert_int_equal(stats_now().n_stored, 1);
	pool_block_unref(f.root, block);
	block = get_block(2);
	fill(block, 101);
	assert_int_equal(tree_keep_tail(&p, t + BT, 3, block, ++now), 0);
	assert_int_equal(stats_now().n_stored, 0);
	assert_int_equal(pool_block_n_refs(f.root, block), 2);
	pool_block_unref(f.root, block);
	tree_path_deinit(&p, ++now);
	assert_int_equal(account_used(f.accounts, 1, ACCOUNT_KV), 0);
}

/* Who is at its quota gives up for good, first what is stored. */
static void test_tree_quota(void **state)
{
	const uid_t uid = 1;

	init(4, 4 * FIXTURE_BLOCK);
	store("a", 1, 100, 3 * BT);
	assert_true(tree_evict(f.tree, NULL, ++now));
	assert_int_equal(stats_now().n_stored, 1);
	assert_true(tree_evict(f.tree, &uid, ++now));
	assert_int_equal(stats_now().n_stored, 0);
	assert_int_equal(pool_root_n_used(f.root), 2);
	assert_true(tree_evict(f.tree, &uid, ++now));
	assert_int_equal(stats_now().n_stored, 0);
	assert_int_equal(pool_root_n_used(f.root), 1);
}

/* Pins keep it where it is; dropping, wiping and expiry reach both tiers. */
static void test_control(void **state)
{
	struct tree_path p;
	struct tree_entry *e = NULL;
	uint32_t block;

	init(4, UINT64_MAX);
	store("a", 1, 100, 2 * BT);
	store("b", 1, 200, 2 * BT);
	evict_all();
	for (uint64_t id = 1; !e; id++)
		e = tree_find(f.tree, id);
	assert_int_equal(tree_pin(f.tree, e, 1), 0);
	open_path(&p, "a", 1);
	block = get_block(1);
	assert_int_equal(lookup(&p, 100, 2 * BT + 1).n_stored, 2);
	assert_int_equal(restore(&p, 100, &block), 0);
	pool_block_unref(f.root, block);
	tree_path_deinit(&p, ++now);
	assert_int_equal(stats_now().n_stored, 3);
	assert_int_equal(tree_n_evictable(f.tree), 0);
	assert_true(tree_unpin(f.tree, e, 1));
	assert_int_equal(tree_n_evictable(f.tree), 1);
	tree_drop(f.tree, e);
	assert_int_equal(stats_now().n_stored, 2);
	tree_wipe(f.tree, &(struct tree_name){ "b", 1 });
	assert_int_equal(stats_now().n_entries, 0);

	now = 1000;
	assert_int_equal(tree_path_init(&p, f.tree, (struct tree_name){ "a", 1 }, 1,
					&(struct evict_terms){ .ttl = 50 }, now), 0);
	block = get_block(1);
	assert_int_equal(tree_enter(&p, (int32_t[BT]){ 0 }, now, &block), 0);
	pool_block_unref(f.root, block);
	tree_path_deinit(&p, now);
	assert_true(tree_evict(f.tree, NULL, now));
	assert_int_equal(stats_now().n_stored, 1);
	assert_int_equal(tree_next_expiry(f.tree), 1050);
	assert_int_equal(tree_expire(f.tree, 1049, 9), 0);
	assert_int_equal(tree_expire(f.tree, 1050, 9), 1);
	assert_int_equal(stats_now().n_entries, 0);
}

/* A chunk is emptied: what it had goes on, in the right order. */
static bool any_block(void *arg, uint32_t block)
{
	return true;
}

static void test_chunk(void **state)
{
	init(4, UINT64_MAX);
	store("a", 1, 100, 5 * BT);
	tree_evict_blocks(f.tree, any_block, NULL, ++now);
	assert_int_equal(pool_root_n_used(f.root), 0);
	assert_int_equal(stats_now().n_stored, 5);
}

/* Two trees share one host: what one stores may push out what the other has. */
static void test_two_trees(void **state)
{
	struct tree_config config = { .seed = 3 };
	struct tree *other, *mine;
	struct host_stats host;
	uint32_t n = 0;

	init(8, UINT64_MAX);
	config.accounts = f.accounts;
	config.root = f.root;
	config.host = f.host;
	assert_int_equal(tree_new(&other, &config), 0);
	mine = f.tree;
	for (int32_t first = 0; first < 600; first++) {
		f.tree = first % 2 ? other : mine;
		store("a", 1, first * 1000, BT);
		n += evict_all();
		host_stats(f.host, &host);
		assert_true(host.used <= host.bytes);
	}
	assert_int_equal(n, 600);
	f.tree = other;
	n = stats_now().n_stored;
	assert_true(n > 100 && stats_now().evicted > 20);
	f.tree = mine;
	assert_true(stats_now().n_stored > 100 && stats_now().evicted > 20);
	assert_int_equal(host.n_blocks, n + stats_now().n_stored);
	tree_free(other);
	host_stats(f.host, &host);
	assert_int_equal(host.n_blocks, stats_now().n_stored);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_coding_exact),
		cmocka_unit_test(test_coding_garbage),
		cmocka_unit_test(test_budget),
		cmocka_unit_test(test_quota),
		cmocka_unit_test(test_damage),
		cmocka_unit_test_teardown(test_there_and_back, teardown),
		cmocka_unit_test_teardown(test_once, teardown),
		cmocka_unit_test_teardown(test_damaged_entry, teardown),
		cmocka_unit_test_teardown(test_computed_again, teardown),
		cmocka_unit_test_teardown(test_tree_quota, teardown),
		cmocka_unit_test_teardown(test_control, teardown),
		cmocka_unit_test_teardown(test_chunk, teardown),
		cmocka_unit_test_teardown(test_two_trees, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
