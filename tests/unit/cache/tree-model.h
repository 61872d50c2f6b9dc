/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The naive model that test-tree-model.c has beside the tree: what is stored, who holds what, and the comparison
 * of everything.
 */
#ifndef KVD_TESTS_TREE_MODEL_H
#define KVD_TESTS_TREE_MODEL_H

#include "tree-fixture.h"

#include "ipc/base/hash.h"

#define BT 4u			/* tokens of a block */
#define MAX_TOKENS 36u
#define N_CHUNKS 4u
#define N_BLOCKS (N_CHUNKS * FIXTURE_PER_CHUNK)
#define N_SEQS 7u
#define N_UIDS 3u
#define N_ENTRIES 256u
#define N_HOSTED 24u		/* blocks that the host tier has room for */
#define N_BALLAST 104u
#define BALLAST_UID 7u

static const struct tree_name names[] = { { "uid:0", 5 }, { "uid:1", 5 }, { "public", 6 }, { "", 0 } };
#define N_NAMES ARRAY_SIZE(names)

/* What is stored, or was. */
struct stored {
	bool used, zombie;	/* zombie: dropped while something held it */
	uint64_t id;
	bool hosted, damaged, voided;	/* in the host tier; not as it was put there; known to be so */
	uint32_t name, n, block, n_pins;
	int32_t tokens[MAX_TOKENS];
	struct stored *parent;
	uid_t uid;
	uint64_t expires;
	bool seen;
};

enum state { NONE, QUEUED, WAITING, RUNNING };

struct seq {
	enum state state;
	struct tree_path path;
	uint32_t name, n, n_computed, n_blocks;
	uint32_t claims;	/* bit k: the block of tokens k * BT ... */
	uid_t uid;
	uint64_t ttl;
	int32_t tokens[MAX_TOKENS];
	uint32_t blocks[MAX_TOKENS / BT + 1];
	struct stored *at;	/* NULL: the root */
	struct stored *tail;		/* being copied */
	uint32_t target;	/* WAITING: for so many tokens */
};

static struct fixture f;
static struct stored stored[N_ENTRIES];
static struct seq seqs[N_SEQS];
static struct { uint32_t n; int32_t tokens[MAX_TOKENS]; uid_t uid; } content[N_BLOCKS];
static struct stored gone[1 << 15];		/* evicted or expired, the last ones */
static uint32_t n_gone, alphabet;
static uint64_t now, entry_bytes;
static bool whole;		/* blocks are of use as a whole: nothing is stored that is less */
static struct {
	uint32_t hit, waited, woken, dedup, evicted, expired, takeover, tail, zombie, miss[7];
	uint32_t moved, restored, entered, tail_stored, damaged, vanished, shrunk;
} seen;

static uint32_t common(const int32_t *a, uint32_t n_a, const int32_t *b, uint32_t n_b)
{
	uint32_t i = 0;

	while (i < n_a && i < n_b && a[i] == b[i])
		i++;
	return i;
}

static bool is_below(const struct stored *e, const struct stored *top)
{
	while (e && e != top)
		e = e->parent;
	return e != NULL;
}

/* s has claimed what comes after e. */
static bool claims_below(const struct seq *s, const struct stored *e)
{
	return s->state == RUNNING && !e->zombie && s->name == e->name && e->n % BT == 0 && s->claims >> e->n / BT &&
	       common(s->tokens, s->n, e->tokens, e->n) == e->n;
}

static bool locked(const struct stored *e)
{
	for (uint32_t i = 0; i < N_SEQS; i++)
		if (seqs[i].state != NONE &&
		    (is_below(seqs[i].at, e) || is_below(seqs[i].tail, e) || claims_below(&seqs[i], e)))
			return true;
	for (uint32_t i = 0; i < N_ENTRIES; i++)
		if (stored[i].used && stored[i].n_pins && is_below(&stored[i], e))
			return true;
	return false;
}

static bool has_children(const struct stored *e)
{
	for (uint32_t i = 0; i < N_ENTRIES; i++)
		if (stored[i].used && stored[i].parent == e)
			return true;
	return false;
}

static bool has_ready_children(const struct stored *e)
{
	for (uint32_t i = 0; i < N_ENTRIES; i++)
		if (stored[i].used && stored[i].parent == e && !stored[i].hosted)
			return true;
	return false;
}

static bool evictable(const struct stored *e)
{
	return !locked(e) && (e->hosted ? !has_children(e) : !has_ready_children(e));
}

static struct stored *find_stored(uint32_t name, const int32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < N_ENTRIES; i++) {
		struct stored *e = &stored[i];

		if (e->used && !e->zombie && e->name == name && e->n == n && common(e->tokens, n, tokens, n) == n)
			return e;
	}
	return NULL;
}

static bool usable(const struct stored *e)
{
	for (const struct stored *up = e; up; up = up->parent)
		if (up->voided)
			return false;
	return now < e->expires || locked(e);
}

/* Tokens in full blocks of the pool, at most n. */
static uint32_t in_pool(uint32_t name, const int32_t *tokens, uint32_t n)
{
	const struct stored *e;
	uint32_t end = 0;

	while (end + BT <= n && (e = find_stored(name, tokens, end + BT)) && !e->hosted && usable(e))
		end += BT;
	return end;
}

/* The longest common prefix with anything in the namespace, of use or not. */
static uint32_t longest_common(uint32_t name, const int32_t *tokens, uint32_t n)
{
	uint32_t best = 0;

	for (uint32_t i = 0; i < N_ENTRIES; i++)
		if (stored[i].used && !stored[i].zombie && stored[i].name == name && usable(&stored[i]))
			best = MAX(best, common(stored[i].tokens, stored[i].n, tokens, n));
	return best;
}

/* What of it is of use. */
static uint32_t longest(uint32_t name, const int32_t *tokens, uint32_t n)
{
	uint32_t best = longest_common(name, tokens, n);

	return whole ? best / BT * BT : best;
}

/* The same with what has expired, or went: are there more than n_found tokens in common? */
static bool went(uint32_t name, const int32_t *tokens, uint32_t n, uint32_t n_found)
{
	for (uint32_t i = 0; i < MIN(n_gone, (uint32_t)ARRAY_SIZE(gone)); i++)
		if (gone[i].name == name && common(gone[i].tokens, gone[i].n, tokens, n) > n_found)
			return true;
	for (uint32_t i = 0; i < N_ENTRIES; i++)
		if (stored[i].used && stored[i].name == name && !usable(&stored[i]) &&
		    common(stored[i].tokens, stored[i].n, tokens, n) > n_found)
			return true;
	return false;
}

static bool differs(uint32_t name, const int32_t *tokens, uint32_t n, uint32_t n_found)
{
	for (uint32_t i = 0; i < N_ENTRIES; i++) {
		const struct stored *e = &stored[i];
		uint32_t n_same;

		if (!e->used || e->zombie || !usable(e) || e->name != name || e->n <= n_found)
			continue;
		n_same = common(e->tokens, e->n, tokens, n);
		if (n_same == n_found || (whole && n_same > n_found))
			return true;
	}
	return false;
}

static bool any_expired(void)
{
	for (uint32_t i = 0; i < N_ENTRIES; i++)
		if (stored[i].used && !usable(&stored[i]))
			return true;
	return false;
}

/* Claimed by another than s: blocks that end at n tokens. */
static bool claimed(uint32_t name, const int32_t *tokens, uint32_t n, const struct seq *but)
{
	for (uint32_t i = 0; i < N_SEQS; i++) {
		const struct seq *s = &seqs[i];

		if (s != but && s->state == RUNNING && s->name == name && s->claims >> (n / BT - 1) & 1 &&
		    common(s->tokens, n, tokens, n) == n)
			return true;
	}
	return false;
}

/* --- the model follows the tree --- */

static struct stored *new_stored(const struct seq *s, uint32_t n, uint32_t block, struct stored *parent)
{
	for (uint32_t i = 0; i < N_ENTRIES; i++) {
		if (stored[i].used)
			continue;
		stored[i] = (struct stored){
			.used = true, .name = s->name, .n = n, .block = block, .parent = parent, .uid = s->uid,
		};
		memcpy(stored[i].tokens, s->tokens, n * sizeof(int32_t));
		return &stored[i];
	}
	fail_msg("more entries than blocks");
	return NULL;
}

static void touch(struct stored *e, uint64_t ttl)
{
	uint64_t expires = ttl == EVICT_NEVER ? EVICT_NEVER : now + ttl;

	if (!e->expires || expires > e->expires)
		e->expires = expires;
}

static void touch_path(struct stored *e, const struct stored *before, uint64_t ttl)
{
	for (; e && e != before; e = e->parent)
		touch(e, ttl);
}

static void promote(const struct seq *s, struct stored *e, uint32_t block)
{
	e->hosted = e->damaged = e->voided = false;
	e->block = block;
	e->uid = s->uid;
}

/* Zombies go when nothing holds them. */
static void bury(void)
{
	bool again = true;

	while (again) {
		again = false;
		for (uint32_t i = 0; i < N_ENTRIES; i++) {
			struct stored *e = &stored[i];

			if (!e->used || !e->zombie || locked(e) || has_children(e))
				continue;
			e->used = false;
			again = true;
		}
	}
}

/* Short leaves that begin e are told by it. */
static void absorb(const struct stored *e)
{
	for (uint32_t i = 0; i < N_ENTRIES; i++) {
		struct stored *o = &stored[i];

		if (o->used && !o->zombie && o != e && o->name == e->name && o->parent == e->parent && o->n % BT &&
		    o->n < e->n && common(o->tokens, o->n, e->tokens, e->n) == o->n && !locked(o))
			o->used = false;
	}
}

/* --- comparing --- */

/* What the model has in place of what the tree shows; the walk goes from parents to children. */
static struct stored *stored_of(const struct tree_view *v)
{
	static int32_t line[MAX_TOKENS + BT];
	struct stored *e;
	uint32_t name = 0;

	while (names[name].n != v->name.n || memcmp(names[name].bytes, v->name.bytes, v->name.n))
		name++;
	assert_true(v->first + v->n_tokens <= MAX_TOKENS);
	memcpy(line + v->first, v->tokens, v->n_tokens * sizeof(int32_t));
	e = find_stored(name, line, v->first + v->n_tokens);
	if (e && !e->id)
		e->id = v->id;
	return e;
}

static bool see(void *arg, const struct tree_view *v)
{
	struct stored *e = stored_of(v);

	assert_non_null(e);
	assert_false(e->seen);		/* one copy */
	e->seen = true;
	assert_int_equal(v->id, e->id);
	assert_int_equal(v->parent, e->parent ? e->parent->id : 0);
	assert_int_equal(v->tier, e->hosted ? TREE_TIER_HOST : TREE_TIER_POOL);
	if (!e->hosted)
		assert_int_equal(v->block, e->block);
	assert_int_equal(v->bytes, e->voided ? 0 : e->hosted ? HOST_PAGE : FIXTURE_BLOCK);
	assert_false(!e->hosted && e->parent && e->parent->hosted);
	assert_int_equal(v->uid, e->uid);
	assert_int_equal(v->n_pins, e->n_pins);
	assert_int_equal(v->expires, e->expires);
	assert_int_equal(v->evictable, evictable(e));
	assert_ptr_equal(tree_find(f.tree, v->id), v->entry);
	++*(uint32_t *)arg;
	return true;
}

static void check_blocks(void)
{
	uint32_t refs[N_BLOCKS] = { 0 }, n_used = 0, by_entry[N_BLOCKS] = { 0 };

	for (uint32_t i = 0; i < N_ENTRIES; i++)
		if (stored[i].used && !stored[i].hosted)
			by_entry[stored[i].block]++;
	for (uint32_t i = 0; i < N_SEQS; i++)
		for (uint32_t k = 0; seqs[i].state != NONE && k < seqs[i].n_blocks; k++)
			refs[seqs[i].blocks[k]]++;
	for (uint32_t b = 0; b < N_BLOCKS; b++) {
		assert_true(by_entry[b] <= 1);
		assert_int_equal(pool_block_n_refs(f.root, b), refs[b] + by_entry[b]);
		n_used += refs[b] + by_entry[b] > 0;
	}
	assert_int_equal(pool_root_n_used(f.root), n_used);
}

static void check_charges(uint32_t n_pending)
{
	uint64_t bytes[N_UIDS] = { 0 };
	uint32_t n_claims = 0;

	for (uint32_t b = 0; b < N_BLOCKS; b++)
		if (pool_block_n_refs(f.root, b))
			bytes[content[b].uid] += FIXTURE_BLOCK;
	for (uint32_t i = 0; i < N_ENTRIES; i++)
		if (stored[i].used)
			bytes[stored[i].uid] += entry_bytes + (stored[i].hosted && !stored[i].voided) * HOST_PAGE;
	for (uint32_t i = 0; i < N_SEQS; i++) {
		uint32_t n = (uint32_t)__builtin_popcount(seqs[i].claims);

		bytes[seqs[i].uid] += n * entry_bytes;
		n_claims += n;
	}
	assert_int_equal(n_pending, n_claims);
	for (uint32_t i = 0; i < N_ENTRIES; i++)
		for (uint32_t k = 0; stored[i].used && k < stored[i].n_pins; k++)
			bytes[0] += (FIXTURE_BLOCK + entry_bytes) * ((stored[i].n + BT - 1) / BT);
	for (uid_t uid = 0; uid < N_UIDS; uid++)
		assert_int_equal(account_used(f.accounts, uid, ACCOUNT_KV), bytes[uid]);
}

static void check_host(const struct tree_stats *stats)
{
	uint32_t n = 0, n_bytes = 0;
	struct host_stats host;

	for (uint32_t i = 0; i < N_ENTRIES; i++) {
		n += stored[i].used && stored[i].hosted;
		n_bytes += stored[i].used && stored[i].hosted && !stored[i].voided ? HOST_PAGE : 0;
	}
	assert_int_equal(stats->n_stored, n);
	assert_int_equal(stats->stored_bytes, n_bytes);
	if (!f.host)
		return;
	host_stats(f.host, &host);
	assert_true(host.used <= host.bytes);
	assert_int_equal(host.coded, n_bytes + N_BALLAST * HOST_PAGE);
}

static void check_waiting(void)
{
	struct tree_path *p;

	while ((p = tree_next_woken(f.tree))) {
		struct seq *s = list_entry(p, struct seq, path);

		assert_int_equal(s->state, WAITING);
		assert_false(p->waits);
		s->state = QUEUED;
		seen.woken++;
		if (!find_stored(s->name, s->tokens, s->target))
			seen.takeover++;
		assert_false(claimed(s->name, s->tokens, s->target, s));
	}
	for (uint32_t i = 0; i < N_SEQS; i++)
		if (seqs[i].state == WAITING)
			assert_true(claimed(seqs[i].name, seqs[i].tokens, seqs[i].target, &seqs[i]));
}

static void check_all(void)
{
	uint32_t n = 0, n_stored = 0, n_zombies = 0, n_evictable = 0;
	struct tree_stats stats;
	uint64_t tokens = 0;

	bury();
	for (uint32_t i = 0; i < N_ENTRIES; i++) {
		stored[i].seen = false;
		n_stored += stored[i].used && !stored[i].zombie;
		n_zombies += stored[i].used && stored[i].zombie;
		n_evictable += stored[i].used && !stored[i].hosted && !locked(&stored[i]);
		if (stored[i].used)
			tokens += stored[i].n - (stored[i].parent ? stored[i].parent->n : 0);
	}
	tree_walk(f.tree, see, &n);
	assert_int_equal(n, n_stored);
	tree_stats(f.tree, &stats);
	assert_int_equal(stats.n_entries - stats.n_pending, n_stored + n_zombies);
	assert_int_equal(stats.tokens, tokens);
	if (stats.n_entries)
		entry_bytes = stats.bytes / stats.n_entries;
	assert_int_equal(tree_n_evictable(f.tree), n_evictable);
	seen.zombie += n_zombies > 0;
	check_blocks();
	check_charges(stats.n_pending);
	check_host(&stats);
	check_waiting();
	for (uint32_t i = 0; i < N_SEQS; i++)
		if (seqs[i].state != NONE)
			assert_int_equal(tree_path_n_blocks(&seqs[i].path), seqs[i].at ? seqs[i].at->n / BT : 0);
}

#endif
