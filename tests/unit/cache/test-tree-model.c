/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tree against a naive model: a list of all that is stored, with the tokens
 * from position 0 on, searched from end to end.  Random sequences in a tiny pool with
 * two or three different tokens, so that nearly everything has
 * something in common with something else; after each operation everything is compared.
 *
 * A block's content is the tokens that were computed into it, with all before them, and bytes that they
 * give.  A sequence that reads what other tokens gave is found at once.
 *
 * With a host tier, nearly full of other blocks, victims move there; which ones is the tree's choice.
 * At times all that is there is damaged.
 *
 * All of it for types of keys and values whose blocks are of use to the token (F16, Q8), and as a whole (Q4).
 */
#include <sys/stat.h>
#include <unistd.h>

#include "tree-model.h"

/* --- operations --- */

static void note_gone(const struct stored *e)
{
	gone[n_gone++ % ARRAY_SIZE(gone)] = *e;
}

struct ids {
	uint32_t n;
	uint64_t ids[N_ENTRIES];
	bool hosted[N_ENTRIES];
};

/* What went, of each tier, or from the pool to the host. */
struct losses {
	uint32_t pool, host, moved, expired;	/* expired: of those of the pool */
};

static bool collect(void *arg, const struct tree_view *v)
{
	struct ids *ids = arg;

	assert_non_null(stored_of(v));
	ids->hosted[ids->n] = v->tier == TREE_TIER_HOST;
	ids->ids[ids->n++] = v->id;
	return true;
}

static void follow_moves(const struct ids *ids, struct losses *out)
{
	for (uint32_t k = 0; k < ids->n; k++) {
		for (uint32_t i = 0; i < N_ENTRIES; i++) {
			struct stored *e = &stored[i];

			if (!e->used || e->zombie || e->id != ids->ids[k] || e->hosted || !ids->hosted[k])
				continue;
			assert_true(evictable(e));
			assert_true(now < e->expires);
			e->hosted = true;
			out->moved++;
		}
	}
	seen.moved += out->moved;
}

/* What the tree has lost goes out of the model: each must have been free to go, leaves first. */
static struct losses follow_losses(bool only_expired)
{
	struct losses out = { 0 };
	struct ids ids = { 0 };
	bool again = true;

	tree_walk(f.tree, collect, &ids);
	while (again) {
		again = false;
		for (uint32_t i = 0; i < N_ENTRIES; i++) {
			struct stored *e = &stored[i];
			bool there = !e->used || e->zombie;

			for (uint32_t k = 0; k < ids.n && !there; k++)
				there = ids.ids[k] == e->id;
			if (there || has_children(e))
				continue;
			assert_false(locked(e));
			out.pool += !e->hosted;
			out.host += e->hosted;
			out.expired += !e->hosted && now >= e->expires;
			assert_true(!only_expired || now >= e->expires);
			note_gone(e);
			e->used = false;
			again = true;
		}
	}
	follow_moves(&ids, &out);
	return out;
}

static bool evict(const uid_t *uid)
{
	bool any = false, any_hosted = false, expired = false, done;
	struct losses lost;

	bury();
	for (uint32_t i = 0; i < N_ENTRIES; i++) {
		const struct stored *e = &stored[i];

		if (!e->used || !evictable(e) || (uid && e->uid != *uid))
			continue;
		any |= !e->hosted;
		any_hosted |= e->hosted;
		expired |= !e->hosted && now >= e->expires;
	}
	done = tree_evict(f.tree, uid, now);
	assert_int_equal(done, any || (uid && any_hosted));
	lost = follow_losses(false);
	if (uid && any_hosted) {
		assert_int_equal(lost.pool + lost.moved, 0);
		assert_int_equal(lost.host, 1);
	} else {
		assert_int_equal(lost.pool + lost.moved, any);
	}
	if (uid)
		assert_int_equal(lost.moved, 0);	/* it would still be charged */
	else
		assert_int_equal(lost.expired, expired);	/* what has expired goes first */
	seen.evicted += done;
	seen.shrunk += lost.host;
	return done;
}

static bool get_block(struct seq *s)
{
	int err;

	while ((err = pool_block_get(f.root, s->uid, &s->blocks[s->n_blocks])) > 0)
		if (!evict(err == POOL_E_QUOTA ? &s->uid : NULL))
			return false;
	assert_int_equal(err, 0);
	content[s->blocks[s->n_blocks]].uid = s->uid;
	content[s->blocks[s->n_blocks]].n = 0;
	s->n_blocks++;
	return true;
}

static void give_back(struct seq *s)
{
	while (s->n_blocks)
		pool_block_unref(f.root, s->blocks[--s->n_blocks]);
	s->n_computed = 0;
}

static void preempt(struct seq *s)
{
	touch_path(s->at, NULL, s->ttl);
	tree_path_reset(&s->path, now);
	s->at = NULL;
	s->claims = 0;
	give_back(s);
	s->state = QUEUED;
}

static void put_bytes(uint32_t block, const int32_t *tokens, uint32_t p)
{
	for (int plane = 0; plane < 2; plane++) {
		uint64_t *to = fixture_plane(pool_device(f.pool), pool_root_geometry(f.root), block, plane);

		for (uint32_t i = 0; i < 4; i++)
			to[p % BT * 4 + i] = hash_u64(tokens, (p + 1) * sizeof(*tokens), 8 * plane + i);
	}
}

static void check_bytes(uint32_t block, const int32_t *tokens, uint32_t p)
{
	for (int plane = 0; plane < 2; plane++) {
		const uint64_t *at = fixture_plane(pool_device(f.pool), pool_root_geometry(f.root), block, plane);

		for (uint32_t i = 0; i < 4; i++)
			assert_true(at[p % BT * 4 + i] == hash_u64(tokens, (p + 1) * sizeof(*tokens), 8 * plane + i));
	}
}

/* Everything in the sequence's blocks is what its own tokens gave. */
static void check_content(const struct seq *s)
{
	for (uint32_t i = 0; i < s->n_computed; i++) {
		uint32_t b = s->blocks[i / BT];

		assert_true(content[b].n > i);
		assert_int_equal(common(content[b].tokens, i + 1, s->tokens, i + 1), i + 1);
		check_bytes(b, s->tokens, i);
	}
}

static void check_miss(const struct seq *s, const struct tree_match *m)
{
	seen.miss[m->miss]++;
	assert_int_equal(m->miss == TREE_MISS_NONE, m->n_tokens == s->n - 1);
	assert_int_equal(m->miss == TREE_MISS_BLOCK, whole && m->miss != TREE_MISS_NONE && s->n - 1 - m->n_tokens < BT);
	assert_true(!whole || m->n_tokens % BT == 0);
	switch (m->miss) {
	case TREE_MISS_EMPTY:
		/* What has expired and is still there may hide what differs. */
		assert_false(!any_expired() && differs(s->name, s->tokens, s->n - 1, m->n_tokens));
		break;
	case TREE_MISS_DIFFERS:
		assert_true(differs(s->name, s->tokens, s->n - 1, m->n_tokens));
		if (!any_expired())
			assert_int_equal(m->n_tokens + m->n_same, longest_common(s->name, s->tokens, s->n - 1));
		break;
	case TREE_MISS_EXPIRED:
	case TREE_MISS_EVICTED:
		assert_true(went(s->name, s->tokens, s->n, m->n_tokens + (whole ? BT - 1 : 0)));
		break;
	case TREE_MISS_NAMESPACE:
		assert_true(longest(2, s->tokens, s->n - 1) > m->n_tokens);
		break;
	case TREE_MISS_NONE:
	case TREE_MISS_BLOCK:
		break;
	}
}

static void take_found(struct seq *s)
{
	uint32_t n = tree_path_n_blocks(&s->path);

	tree_path_blocks(&s->path, 0, s->blocks);
	for (uint32_t i = 0; i < n; i++)
		pool_block_ref(f.root, s->blocks[i]);
	s->n_blocks = n;
	s->n_computed = n * BT;
	s->at = n ? find_stored(s->name, s->tokens, n * BT) : NULL;
	assert_true(!n || s->at);
	touch_path(s->at, NULL, s->ttl);
	check_content(s);
}

static void set_content(const struct seq *s, uint32_t block, uint32_t n)
{
	content[block].n = n;
	memcpy(content[block].tokens, s->tokens, n * sizeof(int32_t));
}

static void lose(struct stored *e)
{
	e->voided = true;
	note_gone(e);
	seen.damaged++;
}

/* What is stored after the path comes back, as far as it goes.  False: the sequence lacked a block. */
static bool restore(struct seq *s, uint32_t n)
{
	while (n--) {
		uint32_t depth = s->at ? s->at->n / BT : 0, *block;
		struct stored *e;
		int err;

		if (!get_block(s)) {
			preempt(s);
			return false;
		}
		block = &s->blocks[s->n_blocks - 1];
		e = find_stored(s->name, s->tokens, (depth + 1) * BT);
		err = tree_restore(&s->path, s->tokens + depth * BT, now, block);
		if (!err) {
			assert_true(e && e->hosted && !e->damaged);
			promote(s, e, *block);
			touch(e, s->ttl);
			s->at = e;
			s->n_computed += BT;
			set_content(s, *block, s->n_computed);
			check_content(s);
			seen.restored++;
			continue;
		}
		pool_block_unref(f.root, s->blocks[--s->n_blocks]);
		if (e && e->damaged) {
			assert_int_equal(err, TREE_E_GONE);
			lose(e);
		} else {
			assert_int_equal(err, e ? TREE_E_QUOTA : TREE_E_GONE);
			seen.vanished += !e;
		}
		return true;
	}
	return true;
}

static bool find_held(void *arg, const struct tree_view *v)
{
	struct stored *e = stored_of(v);

	if (v->tier == TREE_TIER_HOST && v->n_users)
		*(struct stored **)arg = e;
	return true;
}

/* The tail stays until it is copied, whatever must go for the place. */
static void take_stored_tail(struct seq *s, const struct tree_match *m)
{
	uint32_t block;

	tree_walk(f.tree, find_held, &s->tail);
	assert_non_null(s->tail);
	assert_int_equal(common(s->tail->tokens, s->tail->n, s->tokens, s->n - 1), m->n_tokens);
	touch(s->tail, s->ttl);
	seen.tail_stored++;
	if (!get_block(s))
		return;
	block = s->blocks[s->n_blocks - 1];
	if (tree_restore_tail(&s->path, block)) {
		assert_true(s->tail->damaged);
		lose(s->tail);
		return;
	}
	assert_false(s->tail->damaged);
	set_content(s, block, m->n_tokens);
	s->n_computed = m->n_tokens;
	check_content(s);
}

static void take_tail(struct seq *s, const struct tree_match *m)
{
	uint8_t bytes[FIXTURE_PLAIN];
	uint32_t block;

	seen.tail++;
	for (uint32_t i = 0; i < N_ENTRIES; i++)	/* the tail's entry is used now */
		if (stored[i].used && !stored[i].zombie && !stored[i].hosted && stored[i].block == m->tail_block)
			s->tail = &stored[i];
	assert_non_null(s->tail);
	touch(s->tail, s->ttl);
	assert_true(content[m->tail_block].n >= m->n_tokens);
	assert_int_equal(common(content[m->tail_block].tokens, m->n_tokens, s->tokens, m->n_tokens), m->n_tokens);
	assert_true(pool_block_n_refs(f.root, m->tail_block) > 0);
	if (!get_block(s))
		return;
	block = s->blocks[s->n_blocks - 1];
	pool_block_read(f.root, m->tail_block, m->n_tail, bytes);
	pool_block_write(f.root, block, m->n_tail, bytes);
	set_content(s, block, m->n_tokens);
	s->n_computed = m->n_tokens;
	check_content(s);
}

/* Some of it is stored: that comes first, and the rest of the lookup then.  False: not now. */
static bool lookup_again(struct seq *s, struct tree_match *m)
{
	uint32_t best;

	assert_int_equal(m->n_tail, 0);
	if (!restore(s, m->n_stored))
		return false;
	best = longest(s->name, s->tokens, s->n - 1);
	tree_lookup(&s->path, s->tokens, s->n, false, &names[2], s->name != 2, now, m);
	if (m->n_stored) {	/* the uid's share is used up */
		assert_int_equal(m->n_tokens, in_pool(s->name, s->tokens, best));
		return true;
	}
	touch_path(s->at, NULL, s->ttl);
	assert_int_equal(m->n_tokens, best);
	return true;
}

static void lookup(struct seq *s)
{
	uint32_t best = longest(s->name, s->tokens, s->n - 1), full = best / BT * BT, pending = 0;
	uint32_t ready = in_pool(s->name, s->tokens, full);
	bool may_wait = below(4) != 0;
	struct tree_peek peek;
	struct tree_match m;

	while (full + pending + BT <= s->n - 1 && claimed(s->name, s->tokens, full + pending + BT, s))
		pending += BT;
	tree_peek(&s->path, s->tokens, s->n, now, &peek);
	assert_int_equal(peek.n_stored, (full - ready) / BT);
	tree_lookup(&s->path, s->tokens, s->n, may_wait, &names[2], s->name != 2, now, &m);
	assert_int_equal(m.n_stored, peek.n_stored);
	assert_int_equal(m.n_pending, pending);
	assert_int_equal(m.waits, pending && may_wait);
	if (m.waits) {
		assert_int_equal(m.n_tokens, full);
		s->state = WAITING;
		s->target = full + pending;
		seen.waited++;
		return;
	}
	assert_int_equal(m.n_tokens, m.n_stored ? ready : best);
	take_found(s);
	if (m.n_stored && !lookup_again(s, &m))
		return;
	if (!m.n_stored)
		check_miss(s, &m);
	seen.hit += m.n_tokens > 0;
	if (m.n_tail) {
		if (m.tail_stored)
			take_stored_tail(s, &m);
		else
			take_tail(s, &m);
		tree_tail_done(&s->path);
		s->tail = NULL;
	}
	s->state = RUNNING;
	s->claims = 0;
	if (below(5)) {
		uint32_t n = tree_claim(&s->path, s->tokens, s->n, now);

		full = s->at ? s->at->n : 0;
		s->claims = ((1u << n) - 1) << full / BT;
		for (uint32_t k = 1; k <= n; k++)	/* nobody else has or claims it */
			assert_false(claimed(s->name, s->tokens, full + k * BT, s));
	}
}

static void enter(struct seq *s)
{
	uint32_t depth = s->at ? s->at->n / BT : 0, *block = &s->blocks[depth], mine = *block;
	struct stored *there = s->at && s->at->zombie ? NULL : find_stored(s->name, s->tokens, (depth + 1) * BT);
	int err = tree_enter(&s->path, s->tokens + depth * BT, now, block);

	if (err) {
		assert_int_equal(*block, mine);
		assert_int_equal(err, s->at && s->at->zombie ? TREE_E_PARENT : TREE_E_QUOTA);
		return;
	}
	assert_false(s->at && s->at->zombie);
	if (there && there->hosted) {
		assert_int_equal(*block, mine);
		promote(s, there, mine);
		seen.entered++;
	} else if (there) {
		assert_int_equal(*block, there->block);
		seen.dedup += mine != *block;
	} else {
		there = new_stored(s, (depth + 1) * BT, mine, s->at);
		for (uint32_t i = 0; i < N_SEQS; i++)
			if (seqs[i].name == s->name &&
			    common(seqs[i].tokens, seqs[i].n, s->tokens, there->n) == there->n)
				seqs[i].claims &= ~(1u << depth);
		absorb(there);
	}
	s->at = there;
	touch(there, s->ttl);
}

static void compute(struct seq *s)
{
	uint32_t n = 1 + below(7);

	for (; n && s->n_computed < s->n; n--) {
		uint32_t p = s->n_computed, b;

		if (p / BT == s->n_blocks && !get_block(s)) {
			preempt(s);
			return;
		}
		b = s->blocks[p / BT];
		content[b].n = p + 1;
		memcpy(content[b].tokens, s->tokens, (p + 1) * sizeof(int32_t));
		put_bytes(b, s->tokens, p);
		s->n_computed++;
		if (s->n_computed % BT == 0)
			while ((s->at ? s->at->n : 0) + BT <= s->n_computed) {
				const struct stored *at = s->at;

				enter(s);
				if (s->at == at)
					break;
			}
		if (s->n_computed == s->n && s->n < MAX_TOKENS && below(3))
			s->tokens[s->n++] = (int32_t)below(alphabet);
	}
	check_content(s);
}

/* Which one of several was used is the tree's choice. */
static bool take_over(void *arg, const struct tree_view *v)
{
	struct stored *e = stored_of(v);

	if (e->seen && v->expires == *(uint64_t *)arg)
		e->expires = MAX(e->expires, v->expires);
	return true;
}

static bool follow_promotion(void *arg, const struct tree_view *v)
{
	const struct seq *s = arg;
	struct stored *e = stored_of(v);

	if (!e->hosted || v->tier == TREE_TIER_HOST)
		return true;
	assert_true(e->seen);
	assert_int_equal(e->n, s->n_computed);
	promote(s, e, s->blocks[s->n_computed / BT]);
	return true;
}

static void keep_tail(struct seq *s)
{
	uint32_t end = s->at ? s->at->n : 0, n = s->n_computed - end;
	bool there = false;
	int err;

	if (n >= BT)
		return;
	for (uint32_t i = 0; i < N_ENTRIES; i++)
		stored[i].seen = false;
	for (uint32_t i = 0; i < N_ENTRIES && n; i++) {
		struct stored *e = &stored[i];

		if (e->used && !e->zombie && e->name == s->name && e->parent == s->at &&
		    common(e->tokens, e->n, s->tokens, s->n_computed) == s->n_computed &&
		    (usable(e) || e->n == s->n_computed))
			there = e->seen = true;
	}
	err = tree_keep_tail(&s->path, s->tokens + end, n, n ? s->blocks[end / BT] : 0, now);
	if (s->at && s->at->zombie) {
		assert_int_equal(err, TREE_E_PARENT);
	} else if (whole) {
		assert_int_equal(err, 0);
	} else if (err) {
		assert_int_equal(err, TREE_E_QUOTA);
	} else if (n && !there) {
		struct stored *e = new_stored(s, s->n_computed, s->blocks[end / BT], s->at);

		absorb(e);
		touch(e, s->ttl);
	} else if (n) {
		uint64_t expires = s->ttl == EVICT_NEVER ? EVICT_NEVER : now + s->ttl;

		tree_walk(f.tree, follow_promotion, s);
		tree_walk(f.tree, take_over, &expires);
	}
}

static void end(struct seq *s)
{
	if (s->state == RUNNING && below(4))
		keep_tail(s);
	touch_path(s->at, NULL, s->ttl);
	tree_path_deinit(&s->path, now);
	s->state = NONE;
	s->claims = 0;
	s->at = NULL;
	give_back(s);
}

static void start(struct seq *s)
{
	const struct seq *other = &seqs[below(N_SEQS)];
	struct evict_terms terms;
	uint32_t n_same = 0;

	s->uid = below(N_UIDS);
	s->name = below(8) ? s->uid % 2 : below(N_NAMES);
	s->n = 1 + below(MAX_TOKENS - 6);
	s->ttl = below(3) ? EVICT_NEVER : 20 + below(300);
	if (other != s && below(2))
		n_same = MIN(s->n, other->n);
	for (uint32_t i = 0; i < s->n; i++)
		s->tokens[i] = i < n_same ? other->tokens[i] : (int32_t)below(alphabet);
	s->at = NULL;
	s->n_blocks = s->n_computed = s->claims = 0;
	terms = (struct evict_terms){
		.ttl = s->ttl == EVICT_NEVER ? 0 : s->ttl,
		.priority = (enum evict_priority)below(3) + EVICT_PRIORITY_LOW,
	};
	assert_int_equal(tree_path_init(&s->path, f.tree, names[s->name], s->uid, &terms, now), 0);
	s->state = QUEUED;
}

static struct stored *any_stored(void)
{
	struct stored *e = &stored[below(N_ENTRIES)];

	for (uint32_t i = 0; i < N_ENTRIES; i++, e = e == &stored[N_ENTRIES - 1] ? stored : e + 1)
		if (e->used && !e->zombie)
			return e;
	return NULL;
}

static void pin_or_unpin(void)
{
	struct stored *e = any_stored();
	struct tree_entry *entry = e ? tree_find(f.tree, e->id) : NULL;
	uid_t uid;

	if (!e)
		return;
	if (e->n_pins) {
		assert_true(tree_pinned_by(f.tree, entry, 0, &uid));
		assert_int_equal(uid, 0);
		assert_false(tree_unpin(f.tree, entry, 1));
		assert_true(tree_unpin(f.tree, entry, 0));
		e->n_pins = 0;
	} else if (!tree_pin(f.tree, entry, 0)) {
		assert_int_equal(tree_pin(f.tree, entry, 0), 0);
		e->n_pins = 1;
	}
}

static void drop(void)
{
	struct stored *top = any_stored();

	if (!top)
		return;
	for (uint32_t i = 0; i < N_SEQS; i++)
		if (claims_below(&seqs[i], top))
			seqs[i].claims = 0;
	tree_drop(f.tree, tree_find(f.tree, top->id));
	for (uint32_t i = 0; i < N_ENTRIES; i++) {
		if (stored[i].used && is_below(&stored[i], top)) {
			stored[i].zombie = true;
			stored[i].n_pins = 0;
		}
	}
}

static void abandon(struct seq *s)
{
	tree_abandon(&s->path);
	s->claims = 0;
}

static void expire(void)
{
	uint32_t max = below(4), n;
	struct losses lost;

	bury();
	n = tree_expire(f.tree, now, max);

	assert_true(n <= max);
	lost = follow_losses(true);
	assert_int_equal(lost.pool + lost.host, n);
	assert_int_equal(lost.moved, 0);
	seen.expired += n;
}

/* Every page. */
static void damage(void)
{
	static const char bytes[16] = "not what it was";
	struct stat st;

	if (!f.host)
		return;
	assert_int_equal(fstat(host_fd(f.host), &st), 0);
	for (off_t at = 0; at < st.st_size / 4; at += HOST_PAGE)
		assert_int_equal(pwrite(host_fd(f.host), bytes, sizeof(bytes), at), sizeof(bytes));
	for (uint32_t i = 0; i < N_ENTRIES; i++)
		stored[i].damaged = stored[i].used && stored[i].hosted;
}

static void random_op(void)
{
	struct seq *s = &seqs[below(N_SEQS)];
	uint32_t op = below(100);

	now += below(5);
	if (op < 2)
		pin_or_unpin();
	else if (op < 3)
		drop();
	else if (op < 6)
		evict(NULL);
	else if (op < 8)
		expire();
	else if (op < 9 && !below(10))
		damage();
	else if (s->state == NONE)
		start(s);
	else if (s->state == QUEUED)
		lookup(s);
	else if (s->state == WAITING && op < 90)
		return;
	else if (s->state == WAITING)
		end(s);
	else if (op < 12)
		preempt(s);
	else if (op < 16)
		abandon(s);
	else if (op < 24 || s->n_computed == s->n)
		end(s);
	else
		compute(s);
}

/* Random bytes, each in a page of its own. */
static void put_ballast(struct host_block *ballast)
{
	size_t n = BT * FIXTURE_TOKEN;

	assert_int_equal(host_reserve(f.host, n), 0);
	for (uint32_t i = 0; i < N_BALLAST; i++) {
		for (size_t k = 0; k < n; k++)
			((uint8_t *)host_plain(f.host))[k] = (uint8_t)below(256);
		assert_int_equal(host_encode(f.host, n), 0);
		assert_int_equal(host_put(f.host, BALLAST_UID, &ballast[i]), 0);
	}
}

static void run_with(uint64_t host_bytes, uint32_t hash_bits, uint32_t n_ops, uint64_t max_kv, uint32_t letters,
		     uint64_t seed)
{
	struct host_block ballast[N_BALLAST] = { 0 };

	memset(stored, 0, sizeof(stored));
	memset(seqs, 0, sizeof(seqs));
	memset(gone, 0, sizeof(gone));
	n_gone = 0;
	fixture_seed = seed;
	alphabet = letters;
	now = 1000;
	fixture_init_host(&f, N_CHUNKS, BT, max_kv, host_bytes,
			  (struct tree_config){ .seed = seed, .hash_bits = hash_bits, .idle_ns = 50,
						.whole_blocks = whole });
	if (f.host) {
		assert_int_equal(host_max_blocks(f.host), N_BALLAST + N_HOSTED);
		put_ballast(ballast);
	}
	for (uint32_t i = 0; i < n_ops; i++) {
		random_op();
		check_all();
	}
	for (uint32_t i = 0; i < N_SEQS; i++)
		if (seqs[i].state != NONE)
			end(&seqs[i]);
	check_all();
	for (uint32_t i = 0; f.host && i < N_BALLAST; i++)
		host_drop(f.host, &ballast[i], BT * FIXTURE_TOKEN);
	fixture_deinit(&f);
}

static void run(uint32_t hash_bits, uint32_t n_ops, uint64_t max_kv, uint32_t letters, uint64_t seed)
{
	run_with(0, hash_bits, n_ops, max_kv, letters, seed);
}

static uint32_t n_ops(void)
{
	return getenv("KVD_TEST_LONG") ? 200000 : 12000;
}

static void test_64_bits(void **state)
{
	run(0, n_ops(), UINT64_MAX, 2, 1);
	run(0, n_ops(), UINT64_MAX, 3, 2);
}

static void test_8_bits(void **state)
{
	run(8, n_ops(), UINT64_MAX, 2, 3);
}

static void test_4_bits(void **state)
{
	run(4, n_ops(), UINT64_MAX, 2, 4);
	run(1, n_ops(), UINT64_MAX, 3, 5);
}

static void test_quota(void **state)
{
	run(6, n_ops(), 14 * FIXTURE_BLOCK, 2, 6);
}

static void test_host(void **state)
{
	run_with(HOST_BYTES_MIN, 0, n_ops(), UINT64_MAX, 2, 7);
	run_with(HOST_BYTES_MIN, 4, n_ops(), UINT64_MAX, 3, 8);
}

static void test_host_quota(void **state)
{
	run_with(HOST_BYTES_MIN, 8, n_ops(), 14 * FIXTURE_BLOCK, 2, 9);
}

/* A type of keys and values that is of use by the block: alone, with a quota, with a host tier. */
static void test_whole_blocks(void **state)
{
	whole = true;
	run(0, n_ops(), UINT64_MAX, 2, 10);
	run(4, n_ops(), 14 * FIXTURE_BLOCK, 3, 11);
	run_with(HOST_BYTES_MIN, 0, n_ops(), UINT64_MAX, 2, 12);
	whole = false;
}

/* The random operations have come to all that they are meant to try. */
static void test_reached(void **state)
{
	assert_true(seen.hit > 500 && seen.waited > 100 && seen.woken > 50 && seen.takeover > 20);
	assert_true(seen.dedup > 50 && seen.evicted > 500 && seen.expired > 50 && seen.tail > 100 && seen.zombie > 20);
	for (uint32_t i = 0; i < ARRAY_SIZE(seen.miss); i++)
		assert_true(seen.miss[i] > 10);
	assert_true(seen.moved > 1000 && seen.restored > 200 && seen.shrunk > 100 && seen.tail_stored > 50);
	assert_true(seen.damaged > 10 && seen.vanished > 0 && seen.entered > 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_64_bits),
		cmocka_unit_test(test_8_bits),
		cmocka_unit_test(test_4_bits),
		cmocka_unit_test(test_quota),
		cmocka_unit_test(test_host),
		cmocka_unit_test(test_host_quota),
		cmocka_unit_test(test_whole_blocks),
		cmocka_unit_test(test_reached),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
