/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an earlier process has left in memory: records that say anything, with right sums, then bytes of the index that
 * change without. What is adopted is exactly what a naive look at the records finds; with changed bytes nothing
 * else, and less.
 *
 * Input: number of records; seven bytes for each; then three bytes for each change: place, and what is added there.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/cache/tree.h"
#include "ipc/base/checked.h"
#include "tests/fuzz/fuzz.h"

#define CHUNK (UINT64_C(2) << 20)
#define BLOCK 4096u
#define BT 4u
#define N_BLOCKS 12u
#define N_VOCAB 100u
#define AREAS 266240u		/* where they begin in the index, see kept.h */

/* --- a backend that does nothing --- */

static int import(struct kb_backend *be, int fd, uint64_t bytes, struct kb_pool **out)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		return -errno;
	*out = p;
	return 0;
}

static void pool_gone(struct kb_backend *be, struct kb_pool *pool)
{
	munmap(pool, CHUNK);
}

static void *memory(struct kb_pool *pool, const struct kb_geometry *g, uint32_t block)
{
	return (uint8_t *)pool + kb_block_offset(g, block);
}

static const struct kb_ops ops = { .pool_import = import, .pool_free = pool_gone, .block_memory = memory };
static struct kb_backend backend = { .ops = &ops };

/* --- the two processes --- */

struct process {
	struct accounts *accounts;
	struct pool *pool;
	struct pool_root *root;
	struct tree *tree;
	struct tree_adopted adopted;
};

static struct accounts *new_accounts(void)
{
	struct account_limits limits;
	struct accounts *a;

	for (int i = 0; i < ACCOUNT_N_KINDS; i++)
		limits.max[i] = UINT64_MAX;
	FUZZ_CHECK(accounts_new(&a, &limits) == 0);
	return a;
}

/* The pool and its index are taken over. */
static void begin(struct process *p, int *pool_fd, struct kept **kept)
{
	struct kb_geometry g = {
		.n_layers = 1, .n_kv_heads = 1, .head_dim = 16, .block_bytes = BLOCK, .block_tokens = BT,
	};
	struct store_identity id = { 0 };
	struct tree_config config = { .seed = 1 };

	store_identity_add(&id, STORE_TAG_MODEL, "m", 1);
	p->accounts = config.accounts = new_accounts();
	FUZZ_CHECK(pool_new_on(&p->pool, &backend, p->accounts, CHUNK, 1, pool_fd, kept) == 0);
	FUZZ_CHECK(pool_root_new(&p->root, p->pool, &g) == 0);
	config.root = p->root;
	FUZZ_CHECK(tree_new(&p->tree, &config) == 0);
	pool_root_keep(p->root, &id);
	FUZZ_CHECK(pool_root_kept(p->root) != KEPT_NONE);
	FUZZ_CHECK(tree_adopt(p->tree, N_VOCAB, 1000, &p->adopted) == 0);
}

static void end(struct process *p)
{
	tree_free(p->tree);
	FUZZ_CHECK(pool_root_n_used(p->root) == 0);
	for (uid_t uid = 0; uid < 4; uid++)
		FUZZ_CHECK(account_used(p->accounts, uid, ACCOUNT_KV) == 0);
	pool_root_free(p->root);
	pool_free(p->pool);
	accounts_free(p->accounts);
}

/* --- records, and what they come to --- */

struct said {
	bool there, good;
	struct kept_record r;
};

static void take_record(struct fuzz_input *in, struct process *p, struct said *said)
{
	uint32_t block = fuzz_u8(in) % N_BLOCKS, shape = fuzz_u8(in), from = fuzz_u8(in), base = fuzz_u8(in);
	struct said *s = &said[block];
	struct kept_record r = { .last_use = 1, .expires = EVICT_NEVER };
	struct kept_record *at;

	r.n_tokens = shape % 8 == 7 ? 65 : shape % 8;
	r.first = shape / 8 % 8 * BT + (shape >= 224);
	r.uid = fuzz_u8(in) % 4;
	r.n_name = 1 + from / 64 % 2;
	memset(r.name, 'a' + from / 128, r.n_name);
	r.parent_block = from % 16 == 15 ? UINT32_MAX : from % 16;
	if (r.parent_block < N_BLOCKS && said[r.parent_block].there)
		r.parent_serial = said[r.parent_block].r.serial + (from / 16 % 4 == 3);
	else
		r.parent_serial = from / 16 % 4 == 3;
	for (uint32_t i = 0; i < MIN(r.n_tokens, KEPT_TOKENS_MAX); i++)
		r.tokens[i] = base == 255 ? -1 : base / 16 * 8 + (int32_t)i;
	r.priority = (int8_t)fuzz_u8(in);
	r.hits = (uint32_t)fuzz_u8(in) << 20;
	/* A place is cleared before it is used again. */
	if (s->there)
		pool_block_unkeep(p->root, block);
	at = pool_block_keep(p->root, block, &r);
	FUZZ_CHECK(at);
	if (from == 255)
		kept_pin(at, r.uid);
	*s = (struct said){ .there = true, .r = *at };
}

static bool same_name(const struct kept_record *a, const struct kept_record *b)
{
	return a->n_name == b->n_name && !memcmp(a->name, b->name, a->n_name);
}

static bool same_parent(const struct kept_record *a, const struct kept_record *b)
{
	return same_name(a, b) && !a->parent_serial == !b->parent_serial &&
	       (!a->parent_serial || a->parent_block == b->parent_block);
}

static bool alone_is_good(const struct kept_record *r)
{
	for (uint32_t i = 0; i < MIN(r->n_tokens, BT); i++)
		if (r->tokens[i] < 0 || r->tokens[i] >= (int32_t)N_VOCAB)
			return false;
	return r->n_tokens && r->n_tokens <= BT;
}

static bool parent_is_good(const struct said *said, const struct kept_record *r)
{
	const struct said *parent;

	if (!r->parent_serial)
		return !r->first;
	if (r->parent_block >= N_BLOCKS)
		return false;
	parent = &said[r->parent_block];
	return parent->there && parent->good && parent->r.serial == r->parent_serial && parent->r.n_tokens == BT &&
	       parent->r.first + BT == r->first && same_name(&parent->r, r);
}

/*
 * By position, then by block: what is good of all that is there.  twins: also the second of two that say the same,
 * which is good if something happens to the first.
 */
static uint32_t judge(struct said *said, bool twins)
{
	uint32_t n = 0;

	for (uint32_t first = 0; first < 64; first++)
		for (uint32_t b = 0; b < N_BLOCKS; b++) {
			struct said *s = &said[b];

			if (!s->there || s->r.first != first || !alone_is_good(&s->r) || !parent_is_good(said, &s->r))
				continue;
			s->good = true;
			for (uint32_t o = 0; o < N_BLOCKS && !twins; o++)
				if (o != b && said[o].good && same_parent(&said[o].r, &s->r) &&
				    said[o].r.first == first && said[o].r.n_tokens == s->r.n_tokens &&
				    !memcmp(said[o].r.tokens, s->r.tokens, sizeof(s->r.tokens)))
					s->good = false;
			n += s->good;
		}
	return n;
}

/* An entry is of the block's record, and nothing else. */
static bool check_entry(void *arg, const struct tree_view *v)
{
	const struct said *s = &((const struct said *)arg)[v->block];

	FUZZ_CHECK(v->block < N_BLOCKS && s->there && s->good);
	FUZZ_CHECK(v->n_tokens == s->r.n_tokens && v->first == s->r.first && v->uid == s->r.uid);
	FUZZ_CHECK(!memcmp(v->tokens, s->r.tokens, v->n_tokens * sizeof(*v->tokens)));
	FUZZ_CHECK(v->name.n == s->r.n_name && !memcmp(v->name.bytes, s->r.name, s->r.n_name));
	FUZZ_CHECK(!v->parent == !s->r.parent_serial);
	return true;
}

/* Bytes of header, first root and first records.  Returns whether any changed. */
static bool change_bytes(struct fuzz_input *in, int fd)
{
	bool changed = false;

	while (in->n >= 3) {
		uint64_t at = fuzz_number(in, 2), base = at < 64 ? 0 : at < 128 ? 4096 - 64 : AREAS - 128;
		uint8_t byte, add = fuzz_u8(in);

		at += base;
		FUZZ_CHECK(pread(fd, &byte, 1, (off_t)at) == 1);
		byte += add;
		FUZZ_CHECK(pwrite(fd, &byte, 1, (off_t)at) == 1);
		changed |= add != 0;
	}
	return changed;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct fuzz_input in = { data, n };
	struct said said[N_BLOCKS] = { 0 };
	struct diag diag = DIAG_NULL;
	struct kept_found found;
	struct kept *kept;
	struct process p;
	int pool_fd, index_fd, keep_pool;
	uint32_t n_good;
	uint64_t bytes;
	bool changed;

	FUZZ_CHECK(pool_memory_new(&pool_fd, CHUNK) == 0 && kept_new(&kept, pool_fd, CHUNK, 1) == 0);
	keep_pool = dup(pool_fd);
	index_fd = dup(kept_fd(kept));
	begin(&p, &pool_fd, &kept);
	for (uint32_t k = fuzz_u8(&in) % 32; k; k--)
		take_record(&in, &p, said);
	end(&p);
	changed = change_bytes(&in, index_fd);
	n_good = judge(said, changed);
	if (kept_open(&kept, &index_fd, keep_pool, &bytes, &diag)) {
		FUZZ_CHECK(changed && diag.text[0]);
		close(keep_pool);
		close(index_fd);
		return 0;
	}
	FUZZ_CHECK(bytes == CHUNK && kept_resize(kept, keep_pool, 1, &found) == 0);
	begin(&p, &keep_pool, &kept);
	FUZZ_CHECK(changed ? p.adopted.n_entries <= n_good : p.adopted.n_entries == n_good);
	tree_walk(p.tree, check_entry, said);
	while (tree_evict(p.tree, NULL, 2000))
		;
	tree_wipe(p.tree, NULL);
	end(&p);
	return 0;
}
