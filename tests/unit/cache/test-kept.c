/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What outlives the process, record by record: after every single instruction of a process at work (it is traced),
 * what is committed is whole; records that contradict each other; damage; terms; the host tier beside it.
 */
#include "kept-fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>

static struct kept_fixture f;
static uint64_t now;

static int setup(void **state)
{
	f = KEPT_FIXTURE_NULL;
	kf_block = KF_BLOCK;
	now = 1;
	return 0;
}

static int teardown(void **state)
{
	kf_close(&f);
	return 0;
}

static struct tree_adopted start(void)
{
	return kf_init(&f, 4, UINT64_MAX, 0, ++now);
}

static void open_path(struct tree_path *p, const char *name, uid_t uid)
{
	struct tree_name n = { name, strlen(name) };

	assert_int_equal(tree_path_init(p, f.tree, n, uid, &(struct evict_terms){ 0 }, ++now), 0);
}

/* Computes and stores what of n tokens is not there, a tail too; returns how many were there. */
static uint32_t store(const char *name, uid_t uid, const int32_t *tokens, uint32_t n)
{
	struct tree_path p = { 0 };
	struct tree_match m;
	uint64_t path = 0;
	uint32_t i = 0, block, found;

	open_path(&p, name, uid);
	tree_lookup(&p, tokens, n + 1, false, NULL, 0, ++now, &m);
	found = m.n_tokens;
	if (m.n_tail)
		tree_tail_done(&p);
	for (; i < n; i += KF_BT) {
		uint32_t n_tokens = MIN(n - i, KF_BT);

		path = kf_path(path, name, tokens + i, n_tokens);
		if (i / KF_BT < tree_path_n_blocks(&p))
			continue;
		if (pool_block_get(f.root, uid, &block))
			break;
		kf_compute(&f, block, path);
		if (n_tokens == KF_BT)
			(void)tree_enter(&p, tokens + i, ++now, &block);
		else
			(void)tree_keep_tail(&p, tokens + i, n_tokens, block, ++now);
		pool_block_unref(f.root, block);
	}
	tree_path_deinit(&p, ++now);
	return found;
}

/* How many tokens are found; what is found is what it should be. */
static uint32_t found(const char *name, uid_t uid, const int32_t *tokens, uint32_t n)
{
	struct tree_path p = { 0 };
	struct tree_match m;
	uint32_t blocks[64];
	uint64_t path = 0;

	open_path(&p, name, uid);
	tree_lookup(&p, tokens, n + 1, false, NULL, 0, ++now, &m);
	tree_path_blocks(&p, 0, blocks);
	for (uint32_t i = 0; i < tree_path_n_blocks(&p); i++) {
		path = kf_path(path, name, tokens + i * KF_BT, KF_BT);
		assert_true(kf_holds(pool_block_memory(f.root, blocks[i]), path));
	}
	if (m.n_tail && n % KF_BT == m.n_tail)
		assert_true(kf_holds(pool_block_memory(f.root, m.tail_block),
				     kf_path(path, name, tokens + n - m.n_tail, m.n_tail)));
	tree_path_deinit(&p, ++now);
	return m.n_tokens;
}

static void count_up(int32_t *tokens, uint32_t n, int32_t first)
{
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = first + (int32_t)i;
}

static void test_comes_back(void **state)
{
	int32_t a[22], b[22];
	struct tree_adopted adopted;
	struct tree_stats stats;

	count_up(a, 22, 1);
	count_up(b, 22, 1);
	b[9] = 500;
	start();
	assert_int_equal(store("x", 1, a, 22), 0);
	assert_int_equal(store("x", 1, b, 10), 9);
	assert_int_equal(store("y", 2, a, 8), 0);
	kf_deinit(&f);
	for (int i = 0; i < 3; i++) {
		adopted = start();
		assert_int_equal(f.found.n_blocks, 9);	/* 6, a tail, 2 */
		assert_int_equal(adopted.n_entries, 9);
		assert_int_equal(adopted.n_orphans + adopted.n_quota + adopted.n_bad, 0);
		tree_stats(f.tree, &stats);
		assert_int_equal(stats.verified, 0);
		assert_int_equal(found("x", 1, a, 22), 22);
		assert_int_equal(found("x", 1, b, 10), 10);
		assert_int_equal(found("y", 2, a, 22), 8);
		assert_int_equal(found("z", 1, a, 22), 0);
		tree_stats(f.tree, &stats);
		assert_int_equal(stats.verified, 9);
		assert_int_equal(stats.kept_damaged, 0);
		kf_deinit(&f);
	}
}

/* What went, was dropped or wiped does not come back, nor what follows it; also where it was in use. */
static void test_stays_away(void **state)
{
	struct tree_path p = { 0 };
	struct tree_stats stats;
	struct tree_match m;
	int32_t a[20];

	count_up(a, 20, 1);
	start();
	store("x", 1, a, 20);
	store("y", 1, a, 20);
	store("z", 1, a, 20);
	assert_true(tree_evict(f.tree, NULL, ++now));	/* x's last */
	tree_wipe(f.tree, &(struct tree_name){ "y", 1 });
	open_path(&p, "z", 1);
	tree_lookup(&p, a, 20, false, NULL, 0, ++now, &m);
	tree_drop(f.tree, tree_path_entry(&p, 8));
	tree_stats(f.tree, &stats);
	assert_int_equal(stats.n_kept, 4 + 1);
	tree_path_deinit(&p, ++now);
	kf_deinit(&f);
	assert_int_equal(start().n_entries, 4 + 1);
	assert_int_equal(found("x", 1, a, 20), 16);
	assert_int_equal(found("y", 1, a, 20), 0);
	assert_int_equal(found("z", 1, a, 20), 4);
	kf_deinit(&f);
}

/* The names and tokens of what was wiped are not in the index any more. */
static void test_wiped_words(void **state)
{
	int32_t secret[8] = { 771, 772, 773, 774, 775, 776, 777, 778 };
	uint8_t *map;
	struct stat st;
	uint32_t n;

	for (int wiped = 0; wiped < 2; wiped++) {
		start();
		store("quite-a-name", 1, secret, 6);
		if (wiped)
			tree_wipe(f.tree, NULL);
		kf_deinit(&f);
		assert_int_equal(fstat(f.index_fd, &st), 0);
		map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, f.index_fd, 0);
		assert_ptr_not_equal(map, MAP_FAILED);
		n = memmem(map, (size_t)st.st_size, secret, 16) != NULL;
		n += memmem(map, (size_t)st.st_size, "quite-a-name", 12) != NULL;
		assert_int_equal(n, wiped ? 0 : 2);
		munmap(map, (size_t)st.st_size);
	}
}

/* --- the order of things --- */

/* What the traced process does: blocks that come, go, and are used again for something else. */
static void script(void)
{
	int32_t a[11], b[8];

	count_up(a, 11, 1);
	count_up(b, 8, 100);
	store("x", 1, a, 11);
	tree_drop(f.tree, tree_find(f.tree, 3));
	store("y", 2, b, 8);
	tree_evict(f.tree, NULL, ++now);
	store("x", 1, a, 11);
	tree_wipe(f.tree, NULL);
	store("y", 2, a, 6);
}

/* The path that a record ends, as far as those before it are good; 0: they aren't. */
static uint64_t path_of(const struct kept *k, const struct kept_record *r)
{
	char name[KEPT_NAME_MAX + 1] = "";
	struct kept_record parent;
	uint64_t before = 0;

	memcpy(name, r->name, r->n_name);
	if (r->parent_serial) {
		if (!kept_get(k, 0, 0, r->parent_block, &parent) || parent.serial != r->parent_serial)
			return 0;
		before = path_of(k, &parent);
		if (!before)
			return 0;
	}
	return kf_path(before, name, r->tokens, r->n_tokens);
}

/* If the process were killed now: how many good records there are, each of a block that holds what it says. */
static uint32_t check_memory(const struct kept *k, const uint8_t *pool)
{
	struct kept_record r;
	uint32_t n = 0;

	for (uint32_t i = 0; i < 8; i++) {
		const uint8_t *block = pool + (size_t)i * KF_BLOCK;
		uint64_t path;

		if (!kept_get(k, 0, 0, i, &r))
			continue;
		path = path_of(k, &r);
		if (!path)
			continue;
		assert_int_equal(r.kv_sum, hash_u64(block, KF_BLOCK, 0));
		assert_true(kf_holds(block, path));
		n++;
	}
	return n;
}

static void traced(void)
{
	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
		_exit(2);
	raise(SIGSTOP);
	script();
	_exit(0);
}

static void test_every_instruction(void **state)
{
	struct diag diag = DIAG_NULL;
	struct kept_found kept_found;
	struct kept *k;
	uint32_t least = UINT32_MAX, most = 0, last = 0, n_changes = 0;
	uint64_t n_steps = 0, bytes;
	const uint8_t *pool;
	int status, fd;
	pid_t child;

	start();
	fd = dup(f.index_fd);
	assert_int_equal(kept_open(&k, &fd, f.pool_fd, &bytes, &diag), 0);
	assert_int_equal(kept_resize(k, f.pool_fd, 4, &kept_found), 0);
	pool = mmap(NULL, KF_CHUNK, PROT_READ, MAP_SHARED, f.pool_fd, 0);
	assert_ptr_not_equal(pool, MAP_FAILED);
	child = fork();
	assert_true(child >= 0);
	if (!child)
		traced();
	assert_int_equal(waitpid(child, &status, 0), child);
	if (WIFEXITED(status))
		skip();		/* nobody may trace here */
	while (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0 && waitpid(child, &status, 0) == child &&
	       WIFSTOPPED(status)) {
		uint32_t n = check_memory(k, pool);

		n_steps++;
		n_changes += n != last;
		last = n;
		most = MAX(most, n);
		least = n_changes ? MIN(least, n) : least;
	}
	assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
	assert_true(n_steps > 10000);
	assert_int_equal(most, 5);
	assert_int_equal(least, 0);
	assert_int_equal(last, 2);
	munmap((void *)pool, KF_CHUNK);
	kept_free(k);
	kf_deinit(&f);
}

/* --- records that contradict each other --- */

/* A record of tokens first, first + 1 ... at those positions. */
static struct kept_record record_of(uint32_t first, uint32_t n_tokens, const struct kept_record *parent,
				    uint32_t parent_block)
{
	struct kept_record r = { .expires = EVICT_NEVER, .last_use = 1, .uid = 1, .first = first, .n_name = 1 };

	r.n_tokens = n_tokens;
	for (uint32_t i = 0; i < MIN(n_tokens, KEPT_TOKENS_MAX); i++)
		r.tokens[i] = (int32_t)(first + i);
	r.name[0] = 'x';
	if (parent) {
		r.parent_serial = parent->serial;
		r.parent_block = parent_block;
	}
	return r;
}

/* The other process: its records are those of the pool, chunk 0. */
static const struct kept_record *put(uint32_t block, struct kept_record r)
{
	const struct kept_record *p = pool_block_keep(f.root, block, &r);

	assert_non_null(p);
	return p;
}

static struct tree_adopted again(void)
{
	struct tree_adopted adopted;

	kf_deinit(&f);
	adopted = start();
	kf_deinit(&f);
	/* What was not taken is gone, so that the next time all is in order. */
	start();
	assert_int_equal(f.found.n_blocks, adopted.n_entries);
	assert_int_equal(f.found.n_damaged, 0);
	tree_wipe(f.tree, NULL);
	return adopted;
}

static void test_contradictions(void **state)
{
	const struct kept_record *a, *b, *c;
	struct tree_adopted adopted;
	struct kept_record r;

	start();
	a = put(7, record_of(0, 4, NULL, 0));
	b = put(3, record_of(4, 4, a, 7));
	put(5, record_of(8, 3, b, 3));
	adopted = again();
	assert_int_equal(adopted.n_entries, 3);

	/* A parent that is not there, one with another serial, beyond the pool; and what follows. */
	a = put(7, record_of(0, 4, NULL, 0));
	b = put(3, record_of(4, 4, a, 6));
	put(5, record_of(8, 4, b, 3));
	r = record_of(4, 4, a, 7);
	r.parent_serial++;
	put(4, r);
	put(1, record_of(4, 4, a, UINT32_MAX));
	adopted = again();
	assert_int_equal(adopted.n_entries, 1);
	assert_int_equal(adopted.n_orphans, 4);

	/* Positions that do not fit; a first one that is not the first. */
	a = put(7, record_of(0, 4, NULL, 0));
	put(3, record_of(8, 4, a, 7));
	put(4, record_of(0, 4, a, 7));
	put(5, record_of(4, 4, NULL, 0));
	adopted = again();
	assert_int_equal(adopted.n_entries, 1);
	assert_int_equal(adopted.n_orphans, 3);

	/* A cycle. */
	r = record_of(4, 4, NULL, 0);
	r.parent_serial = 1;
	b = put(3, r);
	c = put(4, record_of(4, 4, b, 3));
	((struct kept_record *)(uintptr_t)c)->parent_serial = c->serial;
	adopted = again();
	assert_int_equal(adopted.n_entries, 0);

	/* Below a short one; the namespace of another. */
	a = put(7, record_of(0, 3, NULL, 0));
	put(3, record_of(3, 4, a, 7));
	r = record_of(4, 4, put(2, record_of(0, 4, NULL, 0)), 2);
	r.name[0] = 'y';
	put(4, r);
	adopted = again();
	assert_int_equal(adopted.n_entries, 2);
	assert_int_equal(adopted.n_orphans, 2);

	/* Twice the same. */
	put(0, record_of(0, 4, NULL, 0));
	put(1, record_of(0, 4, NULL, 0));
	adopted = again();
	assert_int_equal(adopted.n_entries, 1);
	assert_int_equal(adopted.n_bad, 1);

	/* Tokens that are none, too many of them. */
	r = record_of(0, 4, NULL, 0);
	r.tokens[3] = -1;
	put(0, r);
	r.tokens[3] = 1000;
	put(1, r);
	put(2, record_of(0, 5, NULL, 0));
	put(3, record_of(0, 64, NULL, 0));
	adopted = again();
	assert_int_equal(adopted.n_entries, 0);
	assert_int_equal(adopted.n_bad, 4);
	put(3, record_of(0, 65, NULL, 0));
	put(4, record_of(0, 0, NULL, 0));
	adopted = again();
	assert_int_equal(adopted.n_entries, 0);
	kf_deinit(&f);
}

/* --- damage --- */

static void test_damaged(void **state)
{
	int32_t a[20];
	struct tree_stats stats;
	uint8_t byte;

	count_up(a, 20, 1);
	start();
	store("x", 1, a, 20);
	kf_deinit(&f);
	assert_int_equal(pread(f.pool_fd, &byte, 1, 2 * KF_BLOCK + 77), 1);
	byte ^= 4;
	assert_int_equal(pwrite(f.pool_fd, &byte, 1, 2 * KF_BLOCK + 77), 1);
	assert_int_equal(start().n_entries, 5);
	/* Somebody who computes it, too, does not get it either. */
	assert_int_equal(found("x", 1, a, 20), 8);
	tree_stats(f.tree, &stats);
	assert_int_equal(stats.kept_damaged, 1);
	assert_int_equal(stats.n_entries, 2);
	assert_int_equal(stats.n_kept, 2);
	kf_deinit(&f);
	assert_int_equal(start().n_entries, 2);
	kf_deinit(&f);
}

/* A damaged one is not exchanged for the block that a sequence has computed, nor is a tail given up for one. */
static void test_damaged_entered(void **state)
{
	struct tree_path p = { 0 };
	int32_t a[7];
	uint32_t block[2];
	uint8_t *memory;

	count_up(a, 7, 1);
	start();
	store("x", 1, a, 7);
	kf_deinit(&f);
	start();
	/* Both blocks change behind the tree's back. */
	memory = pool_block_memory(f.root, 0);
	memory[5]++;
	memory[KF_BLOCK + 5]++;
	open_path(&p, "x", 1);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(pool_block_get(f.root, 1, &block[i]), 0);
		assert_true(block[i] > 1);
	}
	kf_compute(&f, block[0], kf_path(0, "x", a, 4));
	kf_compute(&f, block[1], kf_path(kf_path(0, "x", a, 4), "x", a + 4, 3));
	assert_int_equal(tree_enter(&p, a, ++now, &block[0]), 0);
	assert_true(block[0] > 1);
	assert_int_equal(tree_keep_tail(&p, a + 4, 3, block[1], ++now), 0);
	pool_block_unref(f.root, block[0]);
	pool_block_unref(f.root, block[1]);
	tree_path_deinit(&p, ++now);
	assert_int_equal(found("x", 1, a, 7), 7);
	kf_deinit(&f);
	start();
	assert_int_equal(found("x", 1, a, 7), 7);
	kf_deinit(&f);
}

/* A tail alone that is damaged; the lookup goes on to the next best. */
static void test_damaged_tail(void **state)
{
	int32_t a[3] = { 1, 2, 3 }, b[3] = { 1, 2, 9 };

	start();
	store("x", 1, a, 3);
	store("x", 1, b, 3);
	kf_deinit(&f);
	start();
	((uint8_t *)pool_block_memory(f.root, 0))[9]++;
	assert_int_equal(found("x", 1, a, 3), 2);
	assert_int_equal(found("x", 1, b, 3), 3);
	kf_deinit(&f);
}

/* --- the host tier --- */

/* What goes there is not kept; what comes back is; what is damaged does not get there. */
static void test_host(void **state)
{
	int32_t a[8], b[8];
	struct tree_stats stats;
	struct tree_path p = { 0 };
	struct tree_match m;
	uint32_t block;

	count_up(a, 8, 1);
	count_up(b, 8, 100);
	kf_init(&f, 4, UINT64_MAX, 4 << 20, ++now);
	store("x", 1, a, 8);
	store("x", 1, b, 8);
	for (int i = 0; i < 2; i++)
		assert_true(tree_evict(f.tree, NULL, ++now));
	tree_stats(f.tree, &stats);
	assert_int_equal(stats.n_stored, 2);
	assert_int_equal(stats.n_kept, 2);
	kf_deinit(&f);
	assert_int_equal(kf_init(&f, 4, UINT64_MAX, 4 << 20, ++now).n_entries, 2);
	store("x", 1, a, 8);
	store("x", 1, b, 8);
	while (tree_evict(f.tree, NULL, ++now))
		;
	tree_stats(f.tree, &stats);
	assert_int_equal(stats.n_stored, 4);
	assert_int_equal(stats.n_kept, 0);
	open_path(&p, "x", 1);
	tree_lookup(&p, a, 9, false, NULL, 0, ++now, &m);
	assert_int_equal(m.n_stored, 2);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(pool_block_get(f.root, 1, &block), 0);
		assert_int_equal(tree_restore(&p, a + 4 * i, ++now, &block), 0);
		pool_block_unref(f.root, block);
	}
	tree_path_deinit(&p, ++now);
	kf_deinit(&f);
	assert_int_equal(kf_init(&f, 4, UINT64_MAX, 4 << 20, ++now).n_entries, 2);
	for (uint32_t i = 0; i < 16; i++)
		((uint8_t *)pool_block_memory(f.root, i))[9]++;
	while (tree_evict(f.tree, NULL, ++now))
		;
	assert_int_equal(found("x", 1, a, 8), 0);
	tree_stats(f.tree, &stats);
	assert_int_equal(stats.n_stored, 0);
	kf_deinit(&f);
}

/* --- terms --- */

static void test_terms(void **state)
{
	int32_t a[8];
	struct tree_path p = { 0 };
	struct tree_match m;
	struct tree_view v;
	uid_t uid;

	count_up(a, 8, 1);
	start();
	now = 100;
	store("x", 3, a, 8);
	assert_int_equal(tree_path_init(&p, f.tree, (struct tree_name){ "x", 1 }, 3,
					&(struct evict_terms){ .ttl = 5000, .priority = EVICT_PRIORITY_HIGH }, now), 0);
	now = 200;
	tree_lookup(&p, a, 9, false, NULL, 0, now, &m);
	assert_int_equal(m.n_tokens, 8);
	assert_int_equal(tree_pin(f.tree, tree_path_entry(&p, 8), 4), 0);
	assert_int_equal(tree_pin(f.tree, tree_path_entry(&p, 8), 5), 0);
	assert_true(tree_unpin(f.tree, tree_path_entry(&p, 8), 4));
	tree_path_deinit(&p, now);
	kf_deinit(&f);
	now = 300;
	assert_int_equal(start().n_entries, 2);
	open_path(&p, "x", 3);
	tree_lookup(&p, a, 9, false, NULL, 0, 250, &m);
	tree_view(f.tree, tree_path_entry(&p, 8), &v);
	assert_int_equal(v.uid, 3);
	assert_int_equal(v.expires, EVICT_NEVER);	/* as store() left it: terms only ever put it off */
	assert_int_equal(v.n_pins, 1);
	assert_true(v.hits >= 2);
	assert_true(v.created >= 100 && v.created < 200);
	assert_true(tree_pinned_by(f.tree, v.entry, 0, &uid) && uid == 5);
	assert_true(account_used(f.accounts, 5, ACCOUNT_KV) > 2 * KF_BLOCK);
	tree_path_deinit(&p, now);
	kf_deinit(&f);
}

/* Fewer blocks than there are places for records, smaller than those are made for. */
static void test_small_blocks(void **state)
{
	struct kb_geometry g = {
		.n_layers = 1, .n_kv_heads = 1, .head_dim = 16, .block_bytes = 1024, .block_tokens = 4,
	};
	struct kept_record r = record_of(0, 4, NULL, 0);
	struct store_identity id = kf_identity(2);
	struct pool_root *root;

	start();
	assert_int_equal(pool_root_new(&root, f.pool, &g), 0);
	assert_null(pool_block_record(root, 512));
	pool_root_keep(root, &id);
	assert_non_null(pool_block_record(root, 511));
	assert_null(pool_block_record(root, 512));
	assert_null(pool_block_keep(root, 512, &r));
	assert_non_null(pool_block_keep(root, 2048 + 511, &r));
	pool_root_free(root);
	kf_deinit(&f);
}

/* What is before a block has no place: it is not kept either. */
static void test_no_place(void **state)
{
	int32_t a[KF_BT * 600];
	struct tree_path p = { 0 };
	struct tree_stats stats;
	uint32_t block;

	kf_block = 1024;
	count_up(a, KF_BT * 600, 0);
	for (uint32_t i = 0; i < KF_BT * 600; i++)
		a[i] %= 1000;
	start();
	open_path(&p, "x", 1);
	for (uint32_t i = 0; i < 600; i++) {
		assert_int_equal(pool_block_get(f.root, 1, &block), 0);
		assert_int_equal(tree_enter(&p, a + i * KF_BT, ++now, &block), 0);
		pool_block_unref(f.root, block);
	}
	/* A place comes free, but what would be there has nothing before it. */
	tree_drop(f.tree, tree_path_entry(&p, KF_BT * 600));
	tree_stats(f.tree, &stats);
	assert_int_equal(stats.n_kept, 512);
	tree_path_deinit(&p, ++now);
	open_path(&p, "y", 1);
	assert_int_equal(pool_block_get(f.root, 1, &block), 0);
	assert_int_equal(block, 599);
	assert_int_equal(tree_enter(&p, a, ++now, &block), 0);
	pool_block_unref(f.root, block);
	tree_wipe(f.tree, &(struct tree_name){ "x", 1 });
	assert_int_equal(pool_block_get(f.root, 1, &block), 0);
	assert_true(block < 599);
	assert_int_equal(tree_enter(&p, a + KF_BT, ++now, &block), 0);
	pool_block_unref(f.root, block);
	tree_stats(f.tree, &stats);
	assert_int_equal(stats.n_kept, 0);
	tree_path_deinit(&p, ++now);
	kf_deinit(&f);
	assert_int_equal(start().n_entries, 0);
	kf_deinit(&f);
}

/* Each bit of a record counts, but for those that are said not to. */
static void test_record_bits(void **state)
{
	int32_t a[4] = { 1, 2, 3, 4 };
	struct kept_record copy, *r;
	const struct kept *k;
	size_t n_good = 0;

	start();
	store("x", 1, a, 4);
	k = pool_kept(f.pool);
	r = kept_at(k, 0, 0);
	for (size_t i = 0; i < 8 * sizeof(*r); i++) {
		((uint8_t *)r)[i / 8] ^= (uint8_t)(1u << i % 8);
		n_good += kept_get(k, 0, 0, 0, &copy);
		((uint8_t *)r)[i / 8] ^= (uint8_t)(1u << i % 8);
	}
	assert_int_equal(n_good, 8 * (offsetof(struct kept_record, serial) - offsetof(struct kept_record, expires)));
	assert_true(kept_get(k, 0, 0, 0, &copy));
	/* Nor is it good anywhere else, or for another root. */
	memcpy(kept_at(k, 0, 1), r, sizeof(*r));
	memcpy(kept_at(k, 1, 0), r, sizeof(*r));
	assert_false(kept_get(k, 0, 0, 1, &copy));
	assert_false(kept_get(k, 0, 1, 0, &copy));
	memset(kept_at(k, 0, 1), 0, sizeof(*r));
	memset(kept_at(k, 1, 0), 0, sizeof(*r));
	kf_deinit(&f);
}

/* A chunk's word that becomes the number of another root. */
static void test_root_word(void **state)
{
	const uint64_t word = 2;
	struct store_identity id = kf_identity(2);
	int32_t a[8];

	count_up(a, 8, 1);
	start();
	store("x", 1, a, 8);
	assert_int_equal(kept_root_get(pool_kept(f.pool), &id, KF_BT, KF_BLOCK), 1);
	kf_deinit(&f);
	assert_int_equal(pwrite(f.index_fd, &word, sizeof(word), 266240), sizeof(word));
	assert_int_equal(start().n_entries, 0);
	assert_int_equal(f.found.n_blocks, 0);
	assert_int_equal(f.found.n_damaged, 2);
	kf_deinit(&f);
}

/* A root that somebody uses, or that has records, keeps its number; others give theirs. */
static void test_roots(void **state)
{
	struct store_identity id;
	struct kept *k;
	uint32_t first;

	start();	/* has one of them */
	k = pool_kept(f.pool);
	for (uint32_t i = 0; i < 2 * KEPT_ROOTS; i++) {
		id = kf_identity(100 + i);
		first = kept_root_get(k, &id, KF_BT, KF_BLOCK);
		assert_int_not_equal(first, KEPT_NONE);
		assert_int_not_equal(first, pool_root_kept(f.root));
		kept_root_put(k, first);
	}
	for (uint32_t i = 0; i < KEPT_ROOTS - 1; i++) {
		id = kf_identity(200 + i);
		assert_int_not_equal(kept_root_get(k, &id, KF_BT, KF_BLOCK), KEPT_NONE);
	}
	id = kf_identity(300);
	assert_int_equal(kept_root_get(k, &id, KF_BT, KF_BLOCK), KEPT_NONE);
	/* Of two users one goes. */
	id = kf_identity(202);
	first = kept_root_get(k, &id, KF_BT, KF_BLOCK);
	kept_root_put(k, first);
	id = kf_identity(300);
	assert_int_equal(kept_root_get(k, &id, KF_BT, KF_BLOCK), KEPT_NONE);
	kept_root_put(k, first);
	assert_int_equal(kept_root_get(k, &id, KF_BT, KF_BLOCK), first);
	id = kf_identity(201);
	assert_int_equal(kept_root_get(k, &id, KF_BT, KF_BLOCK + 1), KEPT_NONE);
	assert_int_equal(kept_root_get(k, &id, KF_BT + 1, KF_BLOCK), KEPT_NONE);
	assert_int_not_equal(kept_root_get(k, &id, KF_BT, KF_BLOCK), KEPT_NONE);
	kf_deinit(&f);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_comes_back),
		TEST(test_stays_away),
		TEST(test_wiped_words),
		TEST(test_every_instruction),
		TEST(test_contradictions),
		TEST(test_damaged),
		TEST(test_damaged_entered),
		TEST(test_damaged_tail),
		TEST(test_host),
		TEST(test_terms),
		TEST(test_small_blocks),
		TEST(test_no_place),
		TEST(test_record_bits),
		TEST(test_root_word),
		TEST(test_roots),
	};

	alarm(60);	/* a hang is a failure */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
