/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk store when the disk fails: each write, sync, cut and read in turn, those of SQLite too; a full
 * file system; a directory that becomes read-only.  Nobody but the log hears of it, what was said to be
 * stored is there, and it goes on when the disk does.
 */
#include <sched.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <sys/mount.h>

#include "tests/unit/cache/store-fixture.h"

#define PATH 12u

/* --- a disk that fails --- */

static _Atomic int64_t fail_at;		/* the call whose number it is, and those after it as told; 0: none */
static _Atomic int64_t n_failing;
static _Atomic int64_t n_calls, n_failed;
static _Atomic int fail_errno;
static _Atomic bool fail_reads;

static bool fails(bool reading)
{
	int64_t call = ++n_calls;

	if (!fail_at || call < fail_at || call >= fail_at + n_failing || (reading && !fail_reads))
		return false;
	n_failed++;
	errno = fail_errno;
	return true;
}

static void faults_arm(int64_t at, int64_t n, int err, bool reads)
{
	n_calls = n_failed = 0;
	n_failing = n;
	fail_errno = err;
	fail_reads = reads;
	fail_at = at;
}

static ssize_t faulty_preadv(int fd, const struct iovec *iov, int n, off_t offset)
{
	return fails(true) ? -1 : preadv(fd, iov, n, offset);
}

/* Half of it is written before it fails, and anyhow not all at once. */
static ssize_t faulty_pwritev(int fd, const struct iovec *iov, int n, off_t offset)
{
	if (fails(false)) {
		int err = errno;

		(void)!pwrite(fd, iov[0].iov_base, iov[0].iov_len / 2, offset);
		errno = err;
		return -1;
	}
	return n > 1 && n_calls % 2 ? pwrite(fd, iov[0].iov_base, iov[0].iov_len, offset) : pwritev(fd, iov, n, offset);
}

static int faulty_fdatasync(int fd)
{
	return fails(false) ? -1 : fdatasync(fd);
}

static int faulty_ftruncate(int fd, off_t bytes)
{
	return fails(false) ? -1 : ftruncate(fd, bytes);
}

static const struct store_io faulty_io = {
	.preadv = faulty_preadv,
	.pwritev = faulty_pwritev,
	.fdatasync = faulty_fdatasync,
	.ftruncate = faulty_ftruncate,
};

static ssize_t sqlite_write(int fd, const void *data, size_t n)
{
	return fails(false) ? -1 : write(fd, data, n);
}

static ssize_t sqlite_pwrite(int fd, const void *data, size_t n, off_t offset)
{
	return fails(false) ? -1 : pwrite(fd, data, n, offset);
}

static ssize_t sqlite_read(int fd, void *data, size_t n)
{
	return fails(true) ? -1 : read(fd, data, n);
}

static ssize_t sqlite_pread(int fd, void *data, size_t n, off_t offset)
{
	return fails(true) ? -1 : pread(fd, data, n, offset);
}

static int sqlite_ftruncate(int fd, off_t bytes)
{
	return fails(false) ? -1 : ftruncate(fd, bytes);
}

static int sqlite_open(const char *path, int flags, int mode)
{
	return fails(false) ? -1 : open(path, flags, mode);
}

static const struct {
	const char *name;
	sqlite3_syscall_ptr fn;
} sqlite_calls[] = {
	{ "write", (sqlite3_syscall_ptr)sqlite_write }, { "pwrite", (sqlite3_syscall_ptr)sqlite_pwrite },
	{ "pwrite64", (sqlite3_syscall_ptr)sqlite_pwrite }, { "read", (sqlite3_syscall_ptr)sqlite_read },
	{ "pread", (sqlite3_syscall_ptr)sqlite_pread }, { "pread64", (sqlite3_syscall_ptr)sqlite_pread },
	{ "ftruncate", (sqlite3_syscall_ptr)sqlite_ftruncate }, { "open", (sqlite3_syscall_ptr)sqlite_open },
};

static void sqlite_wrap(bool on)
{
	sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);

	for (size_t i = 0; i < ARRAY_SIZE(sqlite_calls); i++)
		vfs->xSetSystemCall(vfs, sqlite_calls[i].name, on ? sqlite_calls[i].fn : NULL);
}

/* --- what is done meanwhile --- */

struct path {
	int32_t tokens[PATH];
	uint32_t stored;		/* tokens that were said to be */
};

static void store_path(struct fixture *f, struct path *p, int number)
{
	uint64_t ids[3];

	make_tokens(p->tokens, PATH, number * 100);
	p->stored = put_path(f, f->root, "n", p->tokens, PATH, ids) * BT;
}

static void assert_stored(struct fixture *f, const struct path *paths, int n)
{
	for (int i = 0; i < n; i++)
		assert_true(restore(f, f->root, "n", paths[i].tokens, PATH) >= paths[i].stored);
}

/* Stores, reads, opens again, while the call number `at` and those after it fail. True: some did. */
static bool try_faults(int64_t at, int64_t n, int err, bool reads)
{
	struct fixture f;
	struct path paths[4];
	struct store_wipe w = { .request.done = on_done, .name = name_of("other") };
	bool failed;

	fixture_init(&f);
	f.config.io = &faulty_io;
	fixture_open(&f);
	store_path(&f, &paths[0], 0);
	faults_arm(at, n, err, reads);
	store_path(&f, &paths[1], 1);
	restore(&f, f.root, "n", paths[0].tokens, PATH);
	store_wipe(f.store, NULL, &w);
	await(&f, &w.request);
	fixture_close(&f);
	fixture_open(&f);
	store_path(&f, &paths[2], 2);
	restore(&f, f.root, "n", paths[0].tokens, PATH);
	failed = n_failed > 0;
	faults_arm(0, 0, 0, false);
	/* Not a line for each of them. */
	assert_true(f.n_events <= 6);
	/* All is well again, perhaps after a pause; what was said to be stored is there, unless reading failed. */
	for (int tries = 0; store_path(&f, &paths[3], 3), paths[3].stored < PATH; tries++) {
		assert_true(tries < 10000);
		usleep(1000);
	}
	if (!reads)
		assert_stored(&f, paths, 4);
	fixture_close(&f);
	fixture_open(&f);
	for (int i = 0; i < 4; i++)
		if (!reads || i == 3)
			assert_stored(&f, paths + i, 1);
	fixture_deinit(&f);
	return failed;
}

static void test_each_call_fails(void **state)
{
	static const int errors[] = { EIO, ENOSPC, EROFS };
	int step = getenv("KVD_TEST_LONG") ? 1 : 11;
	uint32_t n = 0;

	sqlite_wrap(true);
	for (size_t e = 0; e < ARRAY_SIZE(errors); e++)
		for (int reads = 0; reads < 2; reads++)
			for (int64_t at = 1 + (int64_t)e; ; at += step) {
				bool once = try_faults(at, 1, errors[e], reads);

				n += once;
				n += try_faults(at, 1000, errors[e], reads);
				if (!once && at > 30)
					break;
			}
	sqlite_wrap(false);
	print_message("%u runs with a failing call\n", n);
	assert_true(n > 50);
}

/* As long as the disk fails there is one line, and only few tries. */
static void test_no_storm(void **state)
{
	struct fixture f;
	struct path p;
	int64_t calls;

	fixture_init(&f);
	f.config.io = &faulty_io;
	f.config.retry_ns = UINT64_C(3600000000000);
	fixture_open(&f);
	store_path(&f, &p, 0);
	assert_int_equal(p.stored, PATH);
	faults_arm(1, INT64_MAX / 2, ENOSPC, false);
	store_path(&f, &p, 1);
	assert_int_equal(p.stored, 0);
	calls = n_calls;
	for (int i = 2; i < 100; i++) {
		store_path(&f, &p, i);
		assert_int_equal(p.stored, 0);
	}
	assert_int_equal(n_calls, calls);
	assert_int_equal(f.n_events, 1);
	assert_true(stats_of(&f).dropped_paused >= 98);
	/* What is there is read meanwhile. */
	store_path(&f, &p, 0);
	assert_int_equal(restore(&f, f.root, "n", p.tokens, PATH), PATH);
	faults_arm(0, 0, 0, false);
	fixture_deinit(&f);
}

/* --- the order of writing --- */

static _Atomic bool unsynced;			/* what was written to slots is not on the medium yet */
static _Atomic int64_t log_at_sync;		/* bytes of the log when it got there */
static char log_path[400];

static int64_t log_bytes(void)
{
	struct stat st;

	return stat(log_path, &st) ? 0 : st.st_size;
}

static ssize_t ordered_pwritev(int fd, const struct iovec *iov, int n, off_t offset)
{
	unsynced = true;
	return pwritev(fd, iov, n, offset);
}

static int ordered_fdatasync(int fd)
{
	log_at_sync = log_bytes();
	unsynced = false;
	return fdatasync(fd);
}

/* What is committed is there also if the power fails: slots are synced, and after that the log gets the rows. */
static void test_synced_before_commit(void **state)
{
	static const struct store_io io = {
		.preadv = preadv, .pwritev = ordered_pwritev, .fdatasync = ordered_fdatasync, .ftruncate = ftruncate,
	};
	struct fixture f;
	struct path p;
	char root[300];

	fixture_init(&f);
	f.config.io = &io;
	fixture_open(&f);
	store_path(&f, &p, 0);
	root_dir(&f, root, sizeof(root));
	snprintf(log_path, sizeof(log_path), "%s/index-wal", root);
	/* Not so many that the log is moved over. */
	for (int i = 1; i < 3; i++) {
		int64_t before = log_bytes();

		store_path(&f, &p, i);
		assert_int_equal(p.stored, PATH);
		assert_false(unsynced);
		assert_in_range(log_at_sync, before, log_bytes() - 1);
	}
	fixture_deinit(&f);
}

/* --- file systems --- */

/* A file system of its own at dir, of so many bytes. False: this process may not mount. */
static bool mount_small(const char *dir, const char *size)
{
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return false;
	return !mount("kvd-test", dir, "tmpfs", MS_NOSUID | MS_NODEV, size);
}

static void test_small_file_system(void **state)
{
	struct fixture f;
	struct path p, first;
	uint32_t n_stored = 0, later = 0;

	fixture_init(&f);
	assert_int_equal(mkdir(f.dir, 0700), 0);
	if (!mount_small(f.dir, "size=8m,mode=0700")) {
		fixture_deinit(&f);
		skip();
	}
	/* More than there is: the medium's own limit is met. */
	f.config.max_bytes = 64u << 20;
	fixture_open(&f);
	store_path(&f, &first, 0);
	for (int i = 1; i < 1000; i++) {
		store_path(&f, &p, i);
		if (p.stored)
			assert_true(restore(&f, f.root, "n", p.tokens, p.stored) == p.stored);
		n_stored += p.stored;
		later += i >= 500 ? p.stored : 0;
	}
	/* It goes on storing in what there is, in place of what was used longest ago. */
	assert_true(n_stored > 8u * 1024 * 1024 / STRIDE * BT);
	assert_true(later > 400 * PATH);
	assert_true(f.n_events >= 1 && f.n_events <= 4);
	fixture_close(&f);
	fixture_open(&f);
	assert_int_equal(restore(&f, f.root, "n", p.tokens, PATH), p.stored);
	fixture_close(&f);
	assert_int_equal(umount(f.dir), 0);
	fixture_deinit(&f);
}

/* As somebody who is not above permissions. */
static void test_read_only_directory(void **state)
{
	struct fixture f;
	struct path p[4];
	uid_t uid = geteuid();
	char root[300];

	fixture_init(&f);
	if (!uid) {
		*strrchr(f.dir, '/') = '\0';
		assert_int_equal(chown(f.dir, 65534, 65534), 0);
		f.dir[strlen(f.dir)] = '/';
		assert_int_equal(seteuid(65534), 0);
	}
	fixture_open(&f);
	store_path(&f, &p[0], 0);
	assert_int_equal(p[0].stored, PATH);
	root_dir(&f, root, sizeof(root));
	assert_int_equal(chmod(root, 0500), 0);
	assert_int_equal(chmod(f.dir, 0500), 0);
	store_path(&f, &p[1], 1);
	assert_stored(&f, p, 2);
	fixture_close(&f);
	fixture_open(&f);
	for (int i = 0; i < 20; i++) {
		store_path(&f, &p[2], 2);
		restore(&f, f.root, "n", p[0].tokens, PATH);
	}
	assert_true(f.n_events <= 1);
	fixture_close(&f);
	assert_int_equal(chmod(f.dir, 0700), 0);
	assert_int_equal(chmod(root, 0700), 0);
	fixture_open(&f);
	assert_stored(&f, p, 3);
	store_path(&f, &p[3], 3);
	assert_int_equal(p[3].stored, PATH);
	assert_stored(&f, p, 4);
	fixture_close(&f);
	if (!uid)
		assert_int_equal(seteuid(0), 0);
	fixture_deinit(&f);
}

static int setup(void **state)
{
	faults_arm(0, 0, 0, false);
	sqlite_wrap(false);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_each_call_fails, setup),
		cmocka_unit_test_setup(test_no_storm, setup),
		cmocka_unit_test_setup(test_synced_before_commit, setup),
		cmocka_unit_test_setup(test_read_only_directory, setup),
		cmocka_unit_test_setup(test_small_file_system, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
