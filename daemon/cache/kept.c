/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/cache/kept.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/base/hash.h"

#define PAGE 4096u
#define CHUNK_UNIT (UINT64_C(2) << 20)
#define ROOTS_OFFSET PAGE
#define AREAS_OFFSET (ROOTS_OFFSET + KEPT_ROOTS * KEPT_ROOT_BYTES)

_Static_assert(sizeof(struct kept_header) <= PAGE, "the header is a page");
_Static_assert(sizeof(struct kept_root) <= KEPT_ROOT_BYTES, "a root has a slot");

static const char magic[8] = "KVDKEPT\n";

struct kept {
	int fd;
	uint8_t *map;
	uint64_t n_map;
	uint64_t chunk_bytes, seed;
	uint64_t next_serial;
	uint32_t n_chunks;
	uint32_t per_chunk;		/* records in an area */
	uint64_t area_bytes;
	/* Private copies: what is in the memfd is not believed twice. */
	uint64_t root_sums[KEPT_ROOTS];	/* 0: none */
	uint64_t root_bytes[KEPT_ROOTS];	/* of a block */
	uint32_t root_chunks[KEPT_ROOTS];	/* with records of it */
	uint32_t root_users[KEPT_ROOTS];
	uint32_t *chunk_root, *chunk_n;
};

/* --- places --- */

static int set_geometry(struct kept *k, uint64_t chunk_bytes)
{
	uint64_t n = chunk_bytes / KEPT_BLOCK_MIN, bytes;

	if (!chunk_bytes || chunk_bytes % CHUNK_UNIT || n > UINT32_MAX / 2 ||
	    !checked_mul_u64(n, sizeof(struct kept_record), &bytes) ||
	    !checked_add_u64(bytes, KEPT_AREA_HEAD, &bytes) || !checked_align_u64(bytes, PAGE, &k->area_bytes))
		return -EINVAL;
	k->chunk_bytes = chunk_bytes;
	k->per_chunk = (uint32_t)n;
	return 0;
}

static uint8_t *area_of(const struct kept *k, uint32_t chunk)
{
	return k->map + AREAS_OFFSET + chunk * k->area_bytes;
}

static _Atomic uint64_t *root_word(const struct kept *k, uint32_t chunk)
{
	return (_Atomic uint64_t *)area_of(k, chunk);
}

static struct kept_root *root_at(const struct kept *k, uint32_t root)
{
	return (struct kept_root *)(k->map + ROOTS_OFFSET + (size_t)root * KEPT_ROOT_BYTES);
}

struct kept_record *kept_at(const struct kept *k, uint32_t chunk, uint32_t i)
{
	if (chunk >= k->n_chunks || i >= k->per_chunk)
		return NULL;
	return (struct kept_record *)(area_of(k, chunk) + KEPT_AREA_HEAD) + i;
}

int kept_fd(const struct kept *k)
{
	return k->fd;
}

uint64_t kept_chunk_bytes(const struct kept *k)
{
	return k->chunk_bytes;
}

uint32_t kept_chunk_root(const struct kept *k, uint32_t chunk)
{
	return k->chunk_root[chunk];
}

uint32_t kept_chunk_n(const struct kept *k, uint32_t chunk)
{
	return k->chunk_n[chunk];
}

/* --- sums --- */

static uint64_t header_sum(const struct kept_header *h)
{
	return hash_u64(h, offsetof(struct kept_header, sum), 0);
}

/* Of a root that n fits.  Never 0. */
static uint64_t root_sum(const struct kept *k, const struct kept_root *r)
{
	size_t head = offsetof(struct kept_root, block_bytes), end = offsetof(struct kept_root, bytes) + r->n;
	uint64_t sum = hash_u64((const uint8_t *)r + head, end - head, k->seed);

	return sum ? sum : 1;
}

static uint64_t record_sum(const struct kept *k, uint32_t root, uint32_t chunk, uint32_t i,
			   const struct kept_record *r)
{
	const uint64_t place[] = { k->root_sums[root], chunk, i };
	size_t head = offsetof(struct kept_record, serial);

	return hash_u64((const uint8_t *)r + head, sizeof(*r) - head, hash_u64(place, sizeof(place), k->seed));
}

static uint64_t random_u64(void)
{
	uint64_t v;

	return getrandom(&v, sizeof(v), GRND_NONBLOCK) == (ssize_t)sizeof(v) ? v : clock_ns();
}

/* --- records --- */

bool kept_get(const struct kept *k, uint32_t root, uint32_t chunk, uint32_t i, struct kept_record *out)
{
	const struct kept_record *r = kept_at(k, chunk, i);

	if (!r || atomic_load_explicit(&r->commit, memory_order_acquire) != KEPT_COMMITTED)
		return false;
	memcpy(out, r, sizeof(*out));
	return out->sum == record_sum(k, root, chunk, i, out) && out->n_tokens && out->n_tokens <= KEPT_TOKENS_MAX &&
	       out->n_name <= KEPT_NAME_MAX;
}

/* The commit word goes first, then the rest, which has the prompt. */
static void erase(struct kept_record *r)
{
	atomic_store(&r->commit, 0);
	atomic_signal_fence(memory_order_seq_cst);
	memset((uint8_t *)r + sizeof(r->commit), 0, sizeof(*r) - sizeof(r->commit));
}

static void chunk_is_empty(struct kept *k, uint32_t chunk)
{
	if (k->chunk_root[chunk] != KEPT_NONE)
		k->root_chunks[k->chunk_root[chunk]]--;
	k->chunk_root[chunk] = KEPT_NONE;
	k->chunk_n[chunk] = 0;
}

void kept_clear(struct kept *k, uint32_t chunk, struct kept_record *record)
{
	erase(record);
	atomic_signal_fence(memory_order_seq_cst);
	if (!--k->chunk_n[chunk])
		chunk_is_empty(k, chunk);
}

/* The first n records of a chunk, whatever they are. */
static void erase_all(struct kept *k, uint32_t chunk, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct kept_record *r = kept_at(k, chunk, i);

		if (atomic_load(&r->commit))
			erase(r);
	}
}

static uint32_t n_records(const struct kept *k, uint32_t root)
{
	return (uint32_t)MIN((uint64_t)k->per_chunk, k->chunk_bytes / k->root_bytes[root]);
}

void kept_chunk_clear(struct kept *k, uint32_t chunk)
{
	if (!k->chunk_n[chunk])
		return;
	erase_all(k, chunk, n_records(k, k->chunk_root[chunk]));
	chunk_is_empty(k, chunk);
}

uint32_t kept_chunk_forget(struct kept *k, uint32_t chunk, kept_record_fn fn, void *arg)
{
	uint32_t root = k->chunk_root[chunk], n = 0;
	struct kept_record copy;

	for (uint32_t i = 0; k->chunk_n[chunk] && i < n_records(k, root); i++) {
		struct kept_record *r = kept_at(k, chunk, i);

		if (!atomic_load(&r->commit) ||
		    (kept_get(k, root, chunk, i, &copy) && !fn(arg, &copy, k->root_bytes[root])))
			continue;
		kept_clear(k, chunk, r);
		n++;
	}
	return n;
}

static void count_record(struct kept *k, uint32_t root, uint32_t chunk)
{
	if (!k->chunk_n[chunk]++) {
		k->chunk_root[chunk] = root;
		k->root_chunks[root]++;
	}
}

struct kept_record *kept_put(struct kept *k, uint32_t root, uint32_t chunk, uint32_t i,
			     const struct kept_record *record)
{
	size_t head = offsetof(struct kept_record, serial);
	struct kept_record *r = kept_at(k, chunk, i);

	if (!r || (k->chunk_n[chunk] && k->chunk_root[chunk] != root))
		return NULL;
	if (!k->chunk_n[chunk])
		atomic_store(root_word(k, chunk), root + 1);
	kept_touch(r, record->last_use, record->expires, record->hits, record->priority);
	memcpy((uint8_t *)r + head, (const uint8_t *)record + head, sizeof(*r) - head);
	r->serial = k->next_serial++;
	r->sum = record_sum(k, root, chunk, i, r);
	atomic_store(&r->commit, KEPT_COMMITTED);
	count_record(k, root, chunk);
	return r;
}

/* --- pins --- */

static uint64_t pin_of(const struct kept_record *r, uid_t uid)
{
	const uint64_t of[] = { r->serial, uid };

	return hash_u64(of, sizeof(of), r->sum) << 32 | uid;
}

void kept_pin(struct kept_record *record, uid_t uid)
{
	uint64_t pin = pin_of(record, uid);
	uint32_t unused = KEPT_PINS;

	for (uint32_t i = KEPT_PINS; i--;) {
		if (record->pins[i] == pin)
			return;
		if (!record->pins[i])
			unused = i;
	}
	if (unused < KEPT_PINS)
		record->pins[unused] = pin;
}

void kept_unpin(struct kept_record *record, uid_t uid)
{
	uint64_t pin = pin_of(record, uid);

	for (uint32_t i = 0; i < KEPT_PINS; i++)
		if (record->pins[i] == pin)
			record->pins[i] = 0;
}

bool kept_pinned_by(const struct kept_record *record, uint32_t i, uid_t *uid)
{
	uint64_t pin = record->pins[i];

	if (!pin || pin != pin_of(record, (uid_t)pin))
		return false;
	*uid = (uid_t)pin;
	return true;
}

/* --- roots --- */

static uint32_t find_root(const struct kept *k, const struct kept_root *want)
{
	uint64_t sum = root_sum(k, want);

	for (uint32_t i = 0; i < KEPT_ROOTS; i++) {
		const struct kept_root *r = root_at(k, i);

		if (k->root_sums[i] == sum && r->n == want->n && r->block_bytes == want->block_bytes &&
		    r->block_tokens == want->block_tokens && !memcmp(r->bytes, want->bytes, want->n))
			return i;
	}
	return KEPT_NONE;
}

/* A slot that nothing refers to. */
static uint32_t free_root(const struct kept *k)
{
	uint32_t unused = KEPT_NONE;

	for (uint32_t i = 0; i < KEPT_ROOTS; i++) {
		if (!k->root_sums[i])
			return i;
		if (!k->root_chunks[i] && !k->root_users[i])
			unused = i;
	}
	return unused;
}

uint32_t kept_root_get(struct kept *k, const struct store_identity *id, uint32_t block_tokens, uint64_t block_bytes)
{
	struct kept_root want = { .block_bytes = block_bytes, .block_tokens = block_tokens, .n = id->n };
	uint32_t i;

	if (id->overflow || !id->n || !block_bytes || block_bytes > k->chunk_bytes)
		return KEPT_NONE;
	memcpy(want.bytes, id->bytes, id->n);
	i = find_root(k, &want);
	if (i == KEPT_NONE) {
		i = free_root(k);
		if (i == KEPT_NONE)
			return KEPT_NONE;
		memcpy(root_at(k, i), &want, offsetof(struct kept_root, bytes) + want.n);
		root_at(k, i)->sum = k->root_sums[i] = root_sum(k, &want);
		k->root_bytes[i] = block_bytes;
	}
	k->root_users[i]++;
	return i;
}

void kept_root_put(struct kept *k, uint32_t root)
{
	if (root != KEPT_NONE)
		k->root_users[root]--;
}

static void scan_roots(struct kept *k)
{
	for (uint32_t i = 0; i < KEPT_ROOTS; i++) {
		const struct kept_root *r = root_at(k, i);

		if (!r->sum || r->n > STORE_IDENTITY_MAX || !r->block_bytes || r->block_bytes > k->chunk_bytes ||
		    r->sum != root_sum(k, r))
			continue;
		k->root_sums[i] = r->sum;
		k->root_bytes[i] = r->block_bytes;
	}
}

static void scan_chunk(struct kept *k, uint32_t chunk, struct kept_found *found)
{
	uint64_t root = atomic_load(root_word(k, chunk)) - 1;
	struct kept_record copy;

	if (root == UINT64_MAX)
		return;
	if (root >= KEPT_ROOTS || !k->root_sums[root]) {
		found->n_chunks_dropped++;
		(void)fallocate(k->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				(off_t)(AREAS_OFFSET + chunk * k->area_bytes), (off_t)k->area_bytes);
		return;
	}
	for (uint32_t i = 0; i < n_records(k, (uint32_t)root); i++) {
		if (!atomic_load(&kept_at(k, chunk, i)->commit))
			continue;
		if (kept_get(k, (uint32_t)root, chunk, i, &copy)) {
			count_record(k, (uint32_t)root, chunk);
			found->n_blocks++;
		} else {
			erase(kept_at(k, chunk, i));
			found->n_damaged++;
		}
	}
}

/* --- life --- */

static struct kept *alloc(void)
{
	struct kept *k = calloc(1, sizeof(*k));

	if (!k)
		return NULL;
	k->fd = -1;
	k->map = MAP_FAILED;
	/* Odds of meeting one of another process: none worth naming. */
	k->next_serial = (random_u64() >> 2) + 1;
	return k;
}

void kept_free(struct kept *k)
{
	if (!k)
		return;
	if (k->map != MAP_FAILED)
		munmap(k->map, k->n_map);
	fd_closep(&k->fd);
	free(k->chunk_root);
	free(k->chunk_n);
	free(k);
}

/* Maps so many chunks' areas of a file that has them. */
static int map_chunks(struct kept *k, uint32_t n_chunks)
{
	uint64_t bytes;

	if (!checked_mul_u64(n_chunks, k->area_bytes, &bytes) || !checked_add_u64(bytes, AREAS_OFFSET, &bytes) ||
	    bytes > INT64_MAX)
		return -EINVAL;
	k->chunk_root = calloc(n_chunks, sizeof(*k->chunk_root));
	k->chunk_n = calloc(n_chunks, sizeof(*k->chunk_n));
	if (!k->chunk_root || !k->chunk_n)
		return -ENOMEM;
	for (uint32_t i = 0; i < n_chunks; i++)
		k->chunk_root[i] = KEPT_NONE;
	k->map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, k->fd, 0);
	if (k->map == MAP_FAILED)
		return -errno;
	k->n_map = bytes;
	k->n_chunks = n_chunks;
	/* A record touches a page, not two megabytes. */
	(void)madvise(k->map, bytes, MADV_NOHUGEPAGE);
	return 0;
}

static int grow(int fd, uint64_t bytes)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	if ((uint64_t)st.st_size < bytes && ftruncate(fd, (off_t)bytes) < 0)
		return -errno;
	return 0;
}

/* What is beyond gives its memory back, and reads as zeros should the file be used whole again. */
static void cut(int fd, uint64_t bytes)
{
	struct stat st;

	if (!fstat(fd, &st) && (uint64_t)st.st_size > bytes)
		(void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)bytes,
				(off_t)((uint64_t)st.st_size - bytes));
}

int kept_new(struct kept **out, int pool_fd, uint64_t chunk_bytes, uint32_t n_chunks)
{
	_cleanup_(kept_freep) struct kept *k = alloc();
	struct kept_header header = { .version = KEPT_VERSION, .record_bytes = sizeof(struct kept_record) };
	struct stat st;
	int err;

	if (!k)
		return -ENOMEM;
	err = set_geometry(k, chunk_bytes);
	if (err)
		return err;
	k->fd = memfd_create("kvd-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (k->fd < 0 || fstat(pool_fd, &st) < 0)
		return -errno;
	err = grow(k->fd, AREAS_OFFSET + n_chunks * k->area_bytes);
	if (!err)
		err = map_chunks(k, n_chunks);
	if (err)
		return err;
	if (fcntl(k->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
		return -errno;
	k->seed = random_u64();
	memcpy(header.magic, magic, sizeof(magic));
	header.chunk_bytes = chunk_bytes;
	header.pool_device = st.st_dev;
	header.pool_inode = st.st_ino;
	header.seed = k->seed;
	header.sum = header_sum(&header);
	memcpy(k->map, &header, sizeof(header));
	*out = steal_ptr(k);
	return 0;
}

/* A memfd of our kind, which nobody can make shorter. */
static int check_memfd(int fd, const char *what, struct stat *st, struct diag *diag)
{
	int seals, flags;

	if (fstat(fd, st) < 0)
		return diag_set(diag, -errno, "the %s can't be looked at: %s", what, strerror(errno));
	flags = fcntl(fd, F_GETFL);
	seals = fcntl(fd, F_GET_SEALS);
	if (!S_ISREG(st->st_mode) || flags < 0 || (flags & (O_ACCMODE | O_PATH)) != O_RDWR || seals < 0)
		return diag_set(diag, -EINVAL, "the %s is no memory that can be written to", what);
	if (!(seals & F_SEAL_SHRINK))
		return diag_set(diag, -EINVAL, "the %s is not sealed", what);
	return 0;
}

int kept_open(struct kept **out, int *index_fd, int pool_fd, uint64_t *pool_bytes, struct diag *diag)
{
	_cleanup_(kept_freep) struct kept *k = alloc();
	struct kept_header header;
	struct stat index, pool;
	int err;

	if (!k)
		return -ENOMEM;
	err = check_memfd(*index_fd, "index", &index, diag);
	if (!err)
		err = check_memfd(pool_fd, "pool", &pool, diag);
	if (err)
		return err;
	if ((uint64_t)index.st_size < AREAS_OFFSET || fd_pread_full(*index_fd, &header, sizeof(header), 0))
		return diag_set(diag, -EINVAL, "the index is too short");
	if (memcmp(header.magic, magic, sizeof(magic)) || header.sum != header_sum(&header))
		return diag_set(diag, -EINVAL, "the index is damaged");
	if (header.version != KEPT_VERSION || header.record_bytes != sizeof(struct kept_record))
		return diag_set(diag, -EINVAL, "the index is of version %u, not %u", header.version, KEPT_VERSION);
	if (header.pool_device != pool.st_dev || header.pool_inode != pool.st_ino)
		return diag_set(diag, -EINVAL, "the index is of another pool");
	if (set_geometry(k, header.chunk_bytes))
		return diag_set(diag, -EINVAL, "the index has impossible chunks");
	k->seed = header.seed;
	k->fd = fd_steal(index_fd);
	*pool_bytes = (uint64_t)pool.st_size / k->chunk_bytes * k->chunk_bytes;
	*out = steal_ptr(k);
	return 0;
}

int kept_resize(struct kept *k, int pool_fd, uint32_t n_chunks, struct kept_found *found)
{
	struct kept_found f = { 0 };
	uint64_t pool_bytes;
	int err;

	if (!checked_mul_u64(n_chunks, k->chunk_bytes, &pool_bytes) || pool_bytes > INT64_MAX)
		return -EINVAL;
	err = grow(pool_fd, pool_bytes);
	if (!err)
		err = grow(k->fd, AREAS_OFFSET + n_chunks * k->area_bytes);
	if (!err)
		err = map_chunks(k, n_chunks);
	if (err)
		return err;
	/* The index first: what has no block has no record. */
	cut(k->fd, k->n_map);
	cut(pool_fd, pool_bytes);
	scan_roots(k);
	for (uint32_t c = 0; c < n_chunks; c++)
		scan_chunk(k, c, &f);
	*found = f;
	return 0;
}
