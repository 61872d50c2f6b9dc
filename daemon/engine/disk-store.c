/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/disk-store.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "daemon/cache/store-dir.h"
#include "daemon/cache/store.h"
#include "daemon/engine/engine-private.h"
#include "ipc/base/checked.h"
#include "ipc/base/fd.h"

#define AUTO_BYTES (UINT64_C(8) << 30)
#define AUTO_SHARE 10u			/* a tenth of what is left */
#define AUTO_BYTES_MIN (UINT64_C(16) << 20)

/* Of the hash by which blocks are found: see engine-model.c. */
#ifdef KVD_TEST_HASH_BITS
#define HASH_BITS KVD_TEST_HASH_BITS
#else
#define HASH_BITS 0
#endif

/* Without a disk, then; or not at all, where a person has to look. */
static int give_up(const struct disk_store_config *c, int err, const struct diag *why, struct diag *diag)
{
	struct diag line = DIAG_NULL;
	bool meant = err != -EBUSY && err != -ENOENT && err != -ENOTDIR;

	if (err == -ENOMEM || err == -EINVAL || (c->named && !meant))
		return diag_set(diag, err, "%s", why->text[0] ? why->text : strerror(-err));
	diag_write(&line, "no cache on disk: %.220s", why->text);
	if (c->event)
		c->event(c->arg, line.text);
	return 0;
}

/* Makes it and, of a default place, the folders that it is in. */
static int make_dir(const char *path, bool parents)
{
	char part[PATH_MAX];

	if (strlen(path) >= sizeof(part))
		return -ENAMETOOLONG;
	for (const char *slash = strchr(path + 1, '/'); parents && slash; slash = strchr(slash + 1, '/')) {
		memcpy(part, path, (size_t)(slash - path));
		part[slash - path] = '\0';
		if (mkdir(part, 0700) && errno != EEXIST)
			return -errno;
	}
	return mkdir(path, 0700) && errno != EEXIST ? -errno : 0;
}

struct bytes_of {
	int dir;
	uint64_t bytes;
};

static int add_root(void *arg, const char *name)
{
	_cleanup_(fd_closep) int fd = -1;
	struct bytes_of *b = arg;

	if (!dir_open_sub(b->dir, name, false, &fd))
		b->bytes += dir_bytes(fd);
	return 0;
}

/* What the store has on disk already. */
static uint64_t bytes_there(int state)
{
	_cleanup_(fd_closep) int fd = -1;
	struct bytes_of b = { 0 };

	if (dir_open_sub(state, "cache", false, &fd))
		return 0;
	b.dir = fd;
	dir_each_sub(fd, add_root, &b);
	return b.bytes;
}

static int auto_bytes(int state, uint64_t *out)
{
	struct statvfs fs;
	uint64_t left;

	if (fstatvfs(state, &fs))
		return -errno;
	if (!checked_mul_u64(fs.f_bavail, fs.f_frsize, &left) || !checked_add_u64(left, bytes_there(state), &left))
		left = UINT64_MAX;
	*out = MIN(left / AUTO_SHARE, AUTO_BYTES);
	return *out < AUTO_BYTES_MIN ? -ENOSPC : 0;
}

static int open_store(struct store **out, const struct disk_store_config *c, struct diag *why)
{
	struct store_config store = {
		.max_bytes = c->max_bytes, .event = c->event, .note = c->note, .describe = engine_describe_identity,
		.arg = c->arg, .hash_bits = HASH_BITS,
	};
	_cleanup_(fd_closep) int fd = -1;
	char path[PATH_MAX];
	int r = make_dir(c->state_dir, !c->named);

	if (!r) {
		fd = open(c->state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		r = fd < 0 ? -errno : 0;
	}
	if (!r && (size_t)snprintf(path, sizeof(path), "%s/cache", c->state_dir) >= sizeof(path))
		r = -ENAMETOOLONG;
	if (!r && c->max_bytes == DISK_STORE_AUTO)
		r = auto_bytes(fd, &store.max_bytes);
	if (r)
		return diag_set(why, r, "state directory %.160s: %s", c->state_dir, strerror(-r));
	store.dir = path;
	r = store_new(out, &store, why);
	/* Something else is where it should lie: no fault of who named the directory. */
	return r == -ENOENT || r == -ENOTDIR ? -EPERM : r;
}

int disk_store_open(struct store **out, const struct disk_store_config *c, struct diag *diag)
{
	struct store *s = NULL;
	struct diag why = DIAG_NULL;
	int r = -ENOENT;

	if (c->state_dir && c->state_dir[0])
		r = open_store(&s, c, &why);
	else
		diag_write(&why, "no state directory is known");
	if (r)
		r = give_up(c, r, &why, diag);
	if (!r)
		*out = s;
	return r;
}

void disk_store_close(struct store *s)
{
	if (!s)
		return;
	store_stop(s);
	store_poll(s);
	store_free(s);
}

void disk_store_stats(struct store *s, struct disk_store_stats *out)
{
	struct store_stats stats = { 0 };

	if (s)
		store_stats(s, &stats);
	*out = (struct disk_store_stats){
		.max_bytes = stats.max_bytes,
		.bytes = stats.bytes,
		.useless_bytes = stats.useless_bytes,
		.n_blocks = stats.n_slots - stats.n_free,
		.lookups = stats.lookups,
		.hits = stats.lookup_hits,
		.written = stats.written,
		.read = stats.read_ok,
		.evicted = stats.evicted + stats.expired,
		.damaged = stats.damaged,
		.errors = stats.errors,
	};
	_Static_assert(sizeof(out->trouble) == sizeof(stats.trouble), "the whole line");
	memcpy(out->trouble, stats.trouble, sizeof(out->trouble));
}
