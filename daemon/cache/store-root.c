/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/cache/store-root.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/cache/store-dir.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/base/hash.h"

#define IDENTITY_HEAD 32u
#define IDENTITY_BYTES_MAX (IDENTITY_HEAD + STORE_IDENTITY_MAX + 8u)
#define PAUSE_MAX_NS UINT64_C(300000000000)
#define FULL_NS UINT64_C(600000000000)
#define NAMESPACE_IDS 256

static const char identity_magic[8] = "KVDROOT\n";

void disk_event(struct disk *d, bool good, const char *fmt, ...)
{
	char text[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	snprintf(d->stats.trouble, sizeof(d->stats.trouble), "%.*s", (int)STORE_TROUBLE_MAX, good ? "" : text);
	if (d->event)
		d->event(d->arg, text);
}

/* --- identity --- */

static void put_u32(uint8_t *p, uint32_t v)
{
	v = htole32(v);
	memcpy(p, &v, sizeof(v));
}

static void put_u64(uint8_t *p, uint64_t v)
{
	v = htole64(v);
	memcpy(p, &v, sizeof(v));
}

static uint32_t get_u32(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return le32toh(v);
}

static uint64_t get_u64(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return le64toh(v);
}

/* XXH3-128 of version, tokens, bytes of a block and fields. */
static int identity_id(const uint8_t *file, uint32_t n_fields, uint8_t id[16], char name[33])
{
	_cleanup_(hasher_freep) struct hasher *h = NULL;
	int r = hasher_new(&h);

	if (r)
		return r;
	hasher_update(h, file + 8, 16);
	hasher_update(h, file + IDENTITY_HEAD, n_fields);
	hasher_digest(h, id);
	for (int i = 0; i < 16; i++)
		snprintf(name + 2 * i, 3, "%02x", id[i]);
	return 0;
}

int disk_identity_make(const struct store_identity *fields, uint32_t block_tokens, uint64_t block_bytes,
		       uint8_t **file, uint32_t *n, uint8_t id[16], char name[33])
{
	uint32_t size = IDENTITY_HEAD + fields->n + 8;
	_cleanup_(freep) uint8_t *f = calloc(1, size);
	int r;

	if (!f)
		return -ENOMEM;
	memcpy(f, identity_magic, sizeof(identity_magic));
	put_u32(f + 8, 1);
	put_u32(f + 12, block_tokens);
	put_u64(f + 16, block_bytes);
	put_u32(f + 24, fields->n);
	memcpy(f + IDENTITY_HEAD, fields->bytes, fields->n);
	put_u64(f + size - 8, hash_u64(f, size - 8, 0));
	r = identity_id(f, fields->n, id, name);
	if (r)
		return r;
	*file = steal_ptr(f);
	*n = size;
	return 0;
}

/* What the file of a root says that nobody has open. */
static int identity_read(struct disk_root *r)
{
	_cleanup_(freep) uint8_t *f = malloc(IDENTITY_BYTES_MAX);
	uint8_t id[16];
	char name[33];
	size_t n;
	int err;

	if (!f)
		return -ENOMEM;
	err = dir_read_file(r->fd, "identity", f, IDENTITY_BYTES_MAX, &n);
	if (err)
		return err;
	if (n < IDENTITY_HEAD + 8 || memcmp(f, identity_magic, sizeof(identity_magic)) || get_u32(f + 8) != 1 ||
	    get_u32(f + 24) != n - IDENTITY_HEAD - 8 || get_u64(f + n - 8) != hash_u64(f, n - 8, 0))
		return -EUCLEAN;
	r->block_tokens = get_u32(f + 12);
	r->block_bytes = get_u64(f + 16);
	if (!r->block_tokens || r->block_tokens > STORE_TOKENS_MAX || !r->block_bytes ||
	    r->block_bytes > SLOT_BLOCK_MAX)
		return -EUCLEAN;
	err = identity_id(f, get_u32(f + 24), id, name);
	if (err)
		return err;
	if (strcmp(name, r->name))
		return -EUCLEAN;
	memcpy(r->id, id, sizeof(id));
	r->identity = steal_ptr(f);
	r->n_identity = (uint32_t)n;
	return 0;
}

int disk_root_identify(struct disk_root *r)
{
	int err;

	if (r->identity)
		return 0;
	err = dir_open_sub(r->disk->fd, r->name, false, &r->fd);
	if (!err)
		err = identity_read(r);
	fd_closep(&r->fd);
	return err;
}

const uint8_t *disk_root_fields(const struct disk_root *r, uint32_t *n)
{
	*n = get_u32(r->identity + 24);
	return r->identity + IDENTITY_HEAD;
}

/* Whether the directory's identity is ours. */
static bool identity_is_there(const struct disk_root *r)
{
	_cleanup_(freep) uint8_t *f = malloc(IDENTITY_BYTES_MAX);
	size_t n;

	return f && !dir_read_file(r->fd, "identity", f, IDENTITY_BYTES_MAX, &n) && n == r->n_identity &&
	       !memcmp(f, r->identity, n);
}

/* --- life --- */

int disk_root_new(struct disk_root **out, struct disk *d, const char *name)
{
	struct disk_root *r = calloc(1, sizeof(*r));

	if (!r)
		return -ENOMEM;
	list_init(&r->link);
	r->disk = d;
	r->fd = r->slots_fd = -1;
	memcpy(r->name, name, sizeof(r->name) - 1);
	list_push_back(&d->roots, &r->link);
	*out = r;
	return 0;
}

void disk_root_expect(struct disk_root *r, uint8_t *identity, uint32_t n_identity, const uint8_t id[16])
{
	/* It may have been opened for the sake of its bytes, as what its file says. */
	if (r->identity && (r->n_identity != n_identity || memcmp(r->identity, identity, n_identity)))
		disk_root_close(r);
	free(r->identity);
	r->identity = identity;
	r->n_identity = n_identity;
	r->block_tokens = get_u32(identity + 12);
	r->block_bytes = get_u64(identity + 16);
	memcpy(r->id, id, sizeof(r->id));
}

void disk_root_free(struct disk_root *r)
{
	if (!r)
		return;
	disk_root_close(r);
	list_unlink(&r->link);
	free(r->identity);
	free(r->owners);
	free(r);
}

static int random_state(const struct disk_root *r, struct index_state *state)
{
	uint64_t random[2];

	if (getrandom(random, sizeof(random), 0) != sizeof(random))
		return -EIO;
	*state = (struct index_state){
		.seed = (int64_t)random[0],
		.next_id = (INT64_C(1) << 40) + (int64_t)(random[1] >> 2),
	};
	memcpy(state->root, r->id, sizeof(state->root));
	return 0;
}

static int open_index(struct disk_root *r)
{
	_cleanup_(fd_closep) int fd = -1;
	struct index_state first;
	static const char *const not_ours[] = { "index-journal", "index-shm" };
	char path[PATH_MAX];
	int err = random_state(r, &first);

	if (err)
		return err;
	if ((size_t)snprintf(path, sizeof(path), "%s/%s/index", r->disk->path, r->name) >= sizeof(path))
		return -ENAMETOOLONG;
	/* What SQLite might take for its own. */
	for (size_t i = 0; i < ARRAY_SIZE(not_ours); i++)
		if (unlinkat(r->fd, not_ours[i], 0))
			dir_refuse_strange(r->fd, not_ours[i]);
	dir_refuse_strange(r->fd, "index-wal");
	err = dir_open_file(r->fd, "index", &fd);
	if (err)
		return err;
	/* Before SQLite has it open: closing a file gives up the process's locks on it. */
	fd_closep(&fd);
	return index_new(&r->index, path, &first, r->disk->hash_mask);
}

/* The index goes and with it what it says of the slots. keep: it was damaged, for a person to look at. */
static int start_cold(struct disk_root *r, bool keep)
{
	int err;

	index_free(steal_ptr(r->index));
	if (!keep || dir_file_bytes(r->fd, "index") > r->disk->max_bytes / 8 ||
	    renameat(r->fd, "index", r->fd, "index.corrupt")) {
		if (unlinkat(r->fd, "index", 0) && errno != ENOENT)
			return -errno;
	}
	/* Without its database SQLite would not read the log. */
	if (unlinkat(r->fd, "index-wal", 0) && errno != ENOENT)
		return -errno;
	err = slot_truncate(&r->slots, 0);
	return err ? err : open_index(r);
}

static int adopt_state(struct disk_root *r)
{
	uint64_t jump;
	int err = index_state(r->index, &r->state);

	if (err)
		return err;
	err = disk_owners_load(r);
	if (err)
		return err;
	r->ids_next = r->ids_end = 0;
	r->n_freed = 0;
	r->slots_written = r->punch = false;
	/* A damaged log may have taken the index back: what it reserved last was perhaps given out. */
	if (getrandom(&jump, sizeof(jump), 0) != sizeof(jump))
		return -EIO;
	r->state.next_id += 1 + (int64_t)(jump >> 24);
	if (r->state.next_id <= 0)
		return -EUCLEAN;
	r->disk->use = MAX(r->disk->use, r->state.use);
	return 0;
}

static int open_files(struct disk_root *r)
{
	bool fresh = false;
	int err = dir_open_sub(r->disk->fd, r->name, r->n_users > 0, &r->fd);

	if (err)
		return err;
	unlinkat(r->fd, "identity.new", 0);
	if (!r->identity) {
		err = identity_read(r);
		r->useless = err && err != -ENOMEM && err != -EIO;
		if (err)
			return err;
	} else if (!identity_is_there(r)) {
		fresh = true;
	}
	err = dir_open_file(r->fd, "slots", &r->slots_fd);
	if (err)
		return err;
	slot_file_init(&r->slots, r->disk->io, r->slots_fd, r->id, r->block_tokens, r->block_bytes);
	if (fresh) {
		unlinkat(r->fd, "index", 0);
		err = dir_write_file(r->fd, "identity", r->identity, r->n_identity);
		if (!err)
			err = start_cold(r, false);
	} else {
		err = open_index(r);
	}
	return err;
}

static void close_files(struct disk_root *r)
{
	index_free(steal_ptr(r->index));
	fd_closep(&r->slots_fd);
	fd_closep(&r->fd);
	r->open = false;
}

static void pause_root(struct disk_root *r, int err, const char *doing)
{
	struct disk *d = r->disk;
	bool first = !r->pause_ns;

	d->stats.errors++;
	r->pause_ns = first ? d->retry_ns : MIN(2 * r->pause_ns, MAX(PAUSE_MAX_NS, d->retry_ns));
	r->paused_until = clock_ns() + r->pause_ns;
	/* The medium has less room than the limit: where there are slots enough, some give way to others. */
	if (err == -ENOSPC && r->open && r->state.n_slots > 2 * DISK_BATCH) {
		d->reduced_bytes = disk_bytes(d) - (uint64_t)r->state.n_slots * r->slots.stride / 8;
		d->reduced_until = clock_ns() + FULL_NS;
	}
	if (first)
		disk_event(d, false, "cache on disk, root %.8s: %s: %s; going on without it, trying again later",
			   r->name, doing, strerror(-err));
}

static void note_reset(struct disk_root *r)
{
	r->disk->stats.resets++;
	disk_event(r->disk, false, "cache on disk, root %.8s: the index is damaged; it begins cold", r->name);
}

bool disk_root_open(struct disk_root *r)
{
	int err;

	if (r->open)
		return true;
	if (r->paused_until > clock_ns())
		return false;
	err = open_files(r);
	if (!err)
		err = adopt_state(r);
	if (err == -EUCLEAN && r->identity && r->slots_fd >= 0) {
		note_reset(r);
		err = start_cold(r, true);
		if (!err)
			err = adopt_state(r);
	}
	if (!err)
		err = slot_truncate(&r->slots, (uint64_t)r->state.n_slots);
	if (err) {
		close_files(r);
		pause_root(r, err, "opening");
		return false;
	}
	r->open = true;
	r->index_written = 0;
	disk_root_measure(r);
	return true;
}

void disk_root_close(struct disk_root *r)
{
	if (r->open) {
		disk_commit(r);
		if (r->index)
			index_checkpoint(r->index, 0);
	}
	close_files(r);
}

int disk_root_clear(struct disk_root *r)
{
	int err;

	index_rollback(r->index);
	unlinkat(r->fd, "index.corrupt", 0);
	err = start_cold(r, false);
	if (!err)
		err = adopt_state(r);
	if (err) {
		close_files(r);
		pause_root(r, err, "emptying");
		return err;
	}
	r->index_written = 0;
	disk_root_measure(r);
	return 0;
}

int disk_root_remove(struct disk_root *r)
{
	close_files(r);
	return dir_remove(r->disk->fd, r->name);
}

bool disk_root_writable(const struct disk_root *r)
{
	return r->open && r->paused_until <= clock_ns();
}

void disk_root_measure(struct disk_root *r)
{
	struct stat st;

	if (r->fd < 0)
		return;
	r->log_bytes = dir_file_bytes(r->fd, "index-wal");
	r->slots_bytes = r->slots_fd >= 0 && !fstat(r->slots_fd, &st) ? (uint64_t)st.st_size : 0;
	r->other_bytes = dir_file_bytes(r->fd, "index") + dir_file_bytes(r->fd, "identity") +
			 dir_file_bytes(r->fd, "index.corrupt");
}

/* --- transactions --- */

int disk_begin(struct disk_root *r, uint32_t n_freed)
{
	int err;

	if (r->n_freed + n_freed > DISK_CHANGES_MAX) {
		err = disk_commit(r);
		if (err)
			return err;
	}
	if (index_in_transaction(r->index))
		return 0;
	return index_begin(r->index);
}

static int commit(struct disk_root *r)
{
	int err;

	for (uint32_t i = 0; i < r->n_freed; i++) {
		err = index_free_put(r->index, r->freed[i]);
		if (err)
			return err;
	}
	r->state.n_free += r->n_freed;
	r->state.use = r->disk->use;
	err = disk_owners_flush(r);
	if (!err)
		err = index_state_set(r->index, &r->state);
	/* What a committed row refers to is on the medium. */
	if (!err && r->slots_written)
		err = slot_sync(&r->slots);
	if (!err)
		err = index_commit(r->index);
	return err;
}

static void count_written(struct disk_root *r)
{
	uint64_t written = index_bytes_written(r->index);

	r->disk->stats.index_bytes_written += written - r->index_written;
	r->index_written = written;
}

int disk_commit(struct disk_root *r)
{
	bool punch = r->punch;
	uint64_t reserve;
	int err;

	if (!r->open || !index_in_transaction(r->index))
		return 0;
	err = commit(r);
	if (err) {
		disk_failed(r, err, "writing");
		return err;
	}
	r->disk->stats.commits++;
	if (punch)
		for (uint32_t i = 0; i < r->n_freed; i++)
			slot_punch(&r->slots, (uint64_t)r->freed[i]);
	r->n_freed = 0;
	r->slots_written = r->punch = false;
	/* What was dropped must not stay in the log. */
	disk_root_measure(r);
	reserve = disk_log_reserve(r->disk);
	err = index_checkpoint(r->index, punch || r->log_bytes > reserve ? 0 : (uint32_t)(reserve / INDEX_PAGE / 4));
	count_written(r);
	disk_root_measure(r);
	if (err) {
		disk_failed(r, err, "moving the log");
	} else if (r->pause_ns) {
		r->pause_ns = r->paused_until = 0;
		disk_event(r->disk, true, "cache on disk, root %.8s: works again", r->name);
	}
	return 0;
}

/*
 * A full medium has no room for the log either, in which removing something would be noted: what the log holds
 * is moved over, and if that was not enough, the last slots are cut off: their rows are misses then.
 */
static void relieve(struct disk_root *r)
{
	uint64_t now = clock_ns();

	index_checkpoint(r->index, 0);
	if (!r->pause_ns || r->state.n_slots <= 2 * DISK_BATCH || now < r->cut_until)
		return;
	r->cut_until = now + FULL_NS;
	slot_truncate(&r->slots, (uint64_t)(r->state.n_slots - r->state.n_slots / 16));
}

void disk_failed(struct disk_root *r, int err, const char *doing)
{
	r->lost = true;
	index_rollback(r->index);
	if (err != -EUCLEAN) {
		int again = adopt_state(r);

		if (!again) {
			/* What the transaction added to the file has no row. */
			slot_truncate(&r->slots, MIN((uint64_t)r->state.n_slots, r->slots_bytes / r->slots.stride));
			if (err == -ENOSPC)
				relieve(r);
		}
		pause_root(r, err, doing);
		if (!again) {
			disk_root_measure(r);
			return;
		}
		err = again;
	}
	if (err == -EUCLEAN) {
		note_reset(r);
		err = start_cold(r, true);
		if (!err)
			err = adopt_state(r);
		r->index_written = 0;
	}
	if (err) {
		close_files(r);
		pause_root(r, err, doing);
		return;
	}
	disk_root_measure(r);
}

int disk_reserve_ids(struct disk_root *r, int64_t *first)
{
	int64_t id;
	int err = disk_begin(r, 0);

	if (!err && r->state.next_id > INT64_MAX - DISK_IDS)
		err = -EUCLEAN;
	if (err) {
		disk_failed(r, err, "reserving ids");
		return err;
	}
	id = r->state.next_id;
	r->state.next_id += DISK_IDS;
	err = disk_commit(r);
	if (!err)
		*first = id;
	return err;
}

int64_t disk_take_id(struct disk_root *r)
{
	if (r->ids_next == r->ids_end) {
		r->ids_next = r->state.next_id;
		r->ids_end = r->state.next_id += NAMESPACE_IDS;
	}
	return r->ids_next++;
}

void disk_free_slot(struct disk_root *r, int64_t slot)
{
	r->freed[r->n_freed++] = slot;
}

int disk_take_free_slot(struct disk_root *r, int64_t *slot)
{
	int64_t got;
	int err = index_free_take(r->index, &got);

	/* Rows of `free` have no sum: a damaged one must not make the file grow, nor hold up all that is to come. */
	if (err == INDEX_E_NONE)
		return r->state.n_free ? -EUCLEAN : INDEX_E_NONE;
	if (err)
		return err;
	if (got < 0 || got >= r->state.n_slots || r->state.n_free <= 0)
		return -EUCLEAN;
	r->state.n_free--;
	*slot = got;
	return 0;
}
