/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk store with a directory that others have been at. Whatever lies there: it opens, no
 * wrong block is read (restore() compares each to the byte), and it goes on storing.
 */
#include <sqlite3.h>

#include "tests/unit/cache/store-fixture.h"

#define N_PATHS 12
#define PATH 10u

static void path_tokens(int32_t *t, int number)
{
	make_tokens(t, PATH, number * 100);
}

static bool try_fill(struct fixture *f)
{
	int32_t t[PATH];
	uint64_t ids[4];
	uint32_t n = 0;

	for (int i = 0; i < N_PATHS; i++) {
		path_tokens(t, i);
		n += put_path(f, f->root, "n", t, PATH, ids);
	}
	return n == N_PATHS * 3;
}

static void fill(struct fixture *f)
{
	assert_true(try_fill(f));
}

/* Tokens that can be had. */
static uint32_t count(struct fixture *f)
{
	int32_t t[PATH];
	uint32_t n = 0;

	for (int i = 0; i < N_PATHS; i++) {
		path_tokens(t, i);
		n += restore(f, f->root, "n", t, PATH);
	}
	return n;
}

static void file_name(const struct fixture *f, const char *name, char *out, size_t n)
{
	char dir[300];

	root_dir(f, dir, sizeof(dir));
	snprintf(out, n, "%s/%s", dir, name);
}

/*
 * It goes on: everything can be stored again, and is there after a restart. Damage may show only when it is come
 * across, and then takes with it what was stored just before.
 */
static void assert_works(struct fixture *f)
{
	for (int tries = 0; !(try_fill(f) && count(f) == N_PATHS * PATH); tries++) {
		assert_true(tries < 4);
		settle(f);
	}
	fixture_close(f);
	fixture_open(f);
	assert_int_equal(count(f), N_PATHS * PATH);
}

enum harm { EMPTY, ONE_BYTE, HALF, LINK, FIFO, DIRECTORY, GONE, LONGER, N_HARMS };

static void do_harm(const char *path, enum harm harm, const char *elsewhere)
{
	struct stat st = { 0 };
	int fd;

	stat(path, &st);
	switch (harm) {
	case EMPTY:
		assert_int_equal(truncate(path, 0), 0);
		break;
	case ONE_BYTE:
		assert_int_equal(truncate(path, 1), 0);
		break;
	case HALF:
		assert_int_equal(truncate(path, st.st_size / 2), 0);
		break;
	case LINK:
		assert_int_equal(unlink(path), 0);
		assert_int_equal(symlink(elsewhere, path), 0);
		break;
	case FIFO:
		assert_int_equal(unlink(path), 0);
		assert_int_equal(mkfifo(path, 0600), 0);
		break;
	case DIRECTORY:
		assert_int_equal(unlink(path), 0);
		assert_int_equal(mkdir(path, 0700), 0);
		break;
	case GONE:
		assert_int_equal(unlink(path), 0);
		break;
	default:
		fd = open(path, O_WRONLY | O_APPEND);
		assert_int_equal(write(fd, "more than there was", 19), 19);
		close(fd);
	}
}

static void test_files(void **state)
{
	static const char *const files[] = { "identity", "slots", "index" };
	struct fixture f;
	char path[400], elsewhere[200], content[8] = { 0 };

	for (size_t file = 0; file < ARRAY_SIZE(files); file++) {
		for (enum harm harm = 0; harm < N_HARMS; harm++) {
			FILE *victim;
			uint32_t n;

			fixture_init(&f);
			fixture_open(&f);
			fill(&f);
			assert_int_equal(count(&f), N_PATHS * PATH);
			fixture_close(&f);
			snprintf(elsewhere, sizeof(elsewhere), "%s/../victim", f.dir);
			victim = fopen(elsewhere, "w");
			fputs("victim", victim);
			fclose(victim);
			file_name(&f, files[file], path, sizeof(path));
			do_harm(path, harm, elsewhere);
			fixture_open(&f);
			n = count(&f);
			if (harm != LONGER && !(file == 1 && harm == HALF))
				assert_int_equal(n, 0);
			if (file == 1 && harm == HALF)
				assert_true(n > 0 && n < N_PATHS * PATH);
			assert_works(&f);
			victim = fopen(elsewhere, "r");
			assert_int_equal(fread(content, 1, sizeof(content), victim), 6);
			fclose(victim);
			assert_string_equal(content, "victim");
			fixture_deinit(&f);
		}
	}
}

static void flip(struct fixture *f, const char *name, uint64_t *seed, uint32_t n)
{
	char path[400];
	struct stat st;
	int fd;

	file_name(f, name, path, sizeof(path));
	fd = open(path, O_RDWR);
	if (fd < 0)
		return;
	assert_int_equal(fstat(fd, &st), 0);
	while (n-- && st.st_size) {
		off_t at = (off_t)(prng(seed) % (uint64_t)st.st_size);
		uint8_t byte;

		assert_int_equal(pread(fd, &byte, 1, at), 1);
		byte ^= (uint8_t)(1u << prng(seed) % 8);
		assert_int_equal(pwrite(fd, &byte, 1, at), 1);
	}
	close(fd);
}

/* Of all bytes alike: most of the index's are free space, so there are many of them. */
static void test_flipped(void **state)
{
	uint32_t rounds = getenv("KVD_TEST_LONG") ? 400 : 24, whole = 0, some = 0, none = 0;
	uint64_t seed = 4;
	struct fixture f;

	for (uint32_t i = 0; i < rounds; i++) {
		uint32_t n;

		fixture_init(&f);
		fixture_open(&f);
		fill(&f);
		fixture_close(&f);
		flip(&f, i % 2 ? "index" : "slots", &seed, i % 4 < 2 ? 2 : 200);
		fixture_open(&f);
		n = count(&f);
		whole += n == N_PATHS * PATH;
		some += n && n < N_PATHS * PATH;
		none += !n;
		assert_works(&f);
		fixture_deinit(&f);
	}
	assert_true(whole && some && none);
}

/* A damaged slot is a miss; what is before and after it stays, and the block that is written again closes the gap. */
static void test_gap(void **state)
{
	struct fixture f;
	int32_t t[16];
	uint64_t ids[4], again[4];
	char path[400];
	int fd;

	fixture_init(&f);
	fixture_open(&f);
	make_tokens(t, 16, 1);
	assert_int_equal(put_path(&f, f.root, "n", t, 16, ids), 4);
	fixture_close(&f);
	file_name(&f, "slots", path, sizeof(path));
	fd = open(path, O_WRONLY);
	assert_int_equal(pwrite(fd, "x", 1, STRIDE + 6000), 1);
	close(fd);
	fixture_open(&f);
	assert_int_equal(restore(&f, f.root, "n", t, 16), 4);
	assert_int_equal(restore(&f, f.root, "n", t, 16), 4);
	assert_int_equal(stats_of(&f).damaged, 1);
	assert_int_equal(stats_of(&f).resets, 0);
	assert_int_equal(put(&f, f.root, "n", ids[0], t, 8, 1, STORE_NEVER, &again[1]), STORE_OK);
	assert_int_equal(again[1], ids[1]);
	assert_int_equal(restore(&f, f.root, "n", t, 16), 16);
	assert_int_equal(f.n_events, 0);
	fixture_deinit(&f);
}

/* Slots of one root under another's name, and slots exchanged. */
static void test_exchanged(void **state)
{
	struct fixture f;
	int32_t t[4], u[4];
	uint64_t id;
	char path[400];
	static uint8_t a[STRIDE], b[STRIDE];
	int fd;

	fixture_init(&f);
	fixture_open(&f);
	make_tokens(t, 4, 1);
	make_tokens(u, 4, 100);
	assert_int_equal(put(&f, f.root, "n", 0, t, 4, 1, STORE_NEVER, &id), STORE_OK);
	assert_int_equal(put(&f, f.root, "other", 0, u, 4, 1, STORE_NEVER, &id), STORE_OK);
	fixture_close(&f);
	file_name(&f, "slots", path, sizeof(path));
	fd = open(path, O_RDWR);
	assert_int_equal(pread(fd, a, STRIDE, 0), STRIDE);
	assert_int_equal(pread(fd, b, STRIDE, STRIDE), STRIDE);
	assert_int_equal(pwrite(fd, b, STRIDE, 0), STRIDE);
	assert_int_equal(pwrite(fd, a, STRIDE, STRIDE), STRIDE);
	close(fd);
	fixture_open(&f);
	assert_int_equal(restore(&f, f.root, "n", t, 4), 0);
	assert_int_equal(restore(&f, f.root, "other", u, 4), 0);
	assert_int_equal(restore(&f, f.root, "n", u, 4), 0);
	assert_int_equal(stats_of(&f).damaged, 2);
	fixture_deinit(&f);
}

/* SQLite finds nothing wrong with these. */
static void test_rows_changed(void **state)
{
	static const char *const changes[] = {
		"UPDATE entry SET expires = 1000000", "UPDATE entry SET slot = slot + 1000",
		"UPDATE entry SET uid = 0", "UPDATE entry SET tokens = zeroblob(16)", "UPDATE entry SET children = 0",
		"UPDATE namespace SET id = id + 1", "UPDATE state SET next_id = 1", "UPDATE state SET n_slots = 1",
		"DELETE FROM state", "PRAGMA user_version = 1", "PRAGMA application_id = 0",
	};
	struct fixture f;
	char path[400];

	for (size_t i = 0; i < ARRAY_SIZE(changes); i++) {
		sqlite3 *db;

		fixture_init(&f);
		fixture_open(&f);
		fill(&f);
		fixture_close(&f);
		file_name(&f, "index", path, sizeof(path));
		assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
		assert_int_equal(sqlite3_exec(db, changes[i], NULL, NULL, NULL), SQLITE_OK);
		assert_int_equal(sqlite3_close(db), SQLITE_OK);
		fixture_open(&f);
		assert_int_equal(count(&f), 0);
		assert_int_equal(stats_of(&f).resets, 1);
		assert_int_equal(f.n_events, 1);
		file_name(&f, "index.corrupt", path, sizeof(path));
		assert_int_equal(access(path, F_OK), 0);
		assert_works(&f);
		fixture_deinit(&f);
	}
}

/* Rows of `free` have no sum. What can't be right is found when a slot is taken: nothing grows or stands still. */
static void test_free_changed(void **state)
{
	static const char *const changes[] = {
		"UPDATE free SET slot = slot + 1000000", "UPDATE free SET slot = -slot - 1", "DELETE FROM free",
		"INSERT INTO free VALUES (0)",
	};
	struct fixture f;
	char path[400];
	struct stat st;

	for (size_t i = 0; i < ARRAY_SIZE(changes); i++) {
		uint64_t ids[4];
		int32_t t[PATH];
		sqlite3 *db;

		fixture_init(&f);
		fixture_open(&f);
		fill(&f);
		path_tokens(t, 5);
		put_path(&f, f.root, "n", t, PATH, ids);
		assert_int_equal(drop(&f, ids[0]), 3);
		fixture_close(&f);
		file_name(&f, "index", path, sizeof(path));
		assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
		assert_int_equal(sqlite3_exec(db, changes[i], NULL, NULL, NULL), SQLITE_OK);
		assert_int_equal(sqlite3_close(db), SQLITE_OK);
		fixture_open(&f);
		assert_works(&f);
		assert_int_equal(stats_of(&f).errors, 0);
		file_name(&f, "slots", path, sizeof(path));
		assert_int_equal(stat(path, &st), 0);
		assert_true((uint64_t)st.st_size < f.config.max_bytes);
		fixture_deinit(&f);
	}
}

static void copy_file(const char *from, const char *to)
{
	static uint8_t bytes[1 << 20];
	int fd = open(from, O_RDONLY);
	ssize_t n = read(fd, bytes, sizeof(bytes));

	assert_in_range(n, 1, sizeof(bytes) - 1);
	close(fd);
	fd = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	assert_int_equal(write(fd, bytes, (size_t)n), n);
	close(fd);
}

/* An index of before does not know which ids were given out since: it gives out others. */
static void test_ids_of_an_old_index(void **state)
{
	struct fixture f;
	char path[400], old[420];
	int32_t t[PATH];
	uint64_t ids[4], later[4];

	fixture_init(&f);
	fixture_open(&f);
	fill(&f);
	fixture_close(&f);
	file_name(&f, "index", path, sizeof(path));
	snprintf(old, sizeof(old), "%s.old", path);
	copy_file(path, old);
	for (int i = 0; i < 2; i++) {
		fixture_open(&f);
		path_tokens(t, 50 + i);
		put_path(&f, f.root, "n", t, PATH, i ? later : ids);
		fixture_close(&f);
		copy_file(old, path);
	}
	for (int i = 0; i < 3; i++)
		for (int k = 0; k < 3; k++)
			assert_true(ids[i] != later[k]);
	assert_int_equal(unlink(old), 0);
	fixture_open(&f);
	assert_works(&f);
	fixture_deinit(&f);
}

static void test_links(void **state)
{
	struct fixture f;
	struct diag diag = DIAG_NULL;
	struct store *s;
	char dir[300], away[300], link_name[300], lock[300];
	struct stat st;

	fixture_init(&f);
	fixture_open(&f);
	fill(&f);
	fixture_close(&f);
	/* A root's directory: the link goes, what it points to stays. */
	root_dir(&f, dir, sizeof(dir));
	snprintf(away, sizeof(away), "%s/../away", f.dir);
	assert_int_equal(rename(dir, away), 0);
	assert_int_equal(symlink(away, dir), 0);
	fixture_open(&f);
	assert_int_equal(count(&f), 0);
	assert_works(&f);
	fixture_close(&f);
	assert_int_equal(lstat(dir, &st), 0);
	assert_true(S_ISDIR(st.st_mode));
	/* The lock. */
	snprintf(lock, sizeof(lock), "%s/lock", f.dir);
	assert_int_equal(unlink(lock), 0);
	assert_int_equal(symlink("/dev/null", lock), 0);
	fixture_open(&f);
	fixture_close(&f);
	assert_int_equal(lstat(lock, &st), 0);
	assert_true(S_ISREG(st.st_mode));
	/* The directory itself. */
	snprintf(link_name, sizeof(link_name), "%s/../link", f.dir);
	assert_int_equal(symlink(f.dir, link_name), 0);
	f.config.dir = link_name;
	assert_true(store_new(&s, &f.config, &diag) < 0);
	f.config.dir = f.dir;
	fixture_deinit(&f);
}

static void test_modes(void **state)
{
	struct fixture f;
	char path[400];
	struct stat st;
	static const char *const files[] = { "identity", "slots", "index", "index-wal" };
	mode_t before = umask(0);

	fixture_init(&f);
	fixture_open(&f);
	fill(&f);
	assert_int_equal(stat(f.dir, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
	root_dir(&f, path, sizeof(path));
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
	for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
		file_name(&f, files[i], path, sizeof(path));
		assert_int_equal(stat(path, &st), 0);
		assert_int_equal(st.st_mode & 07777, 0600);
	}
	fixture_deinit(&f);
	umask(before);
}

/* Names are bytes, and never become a file's. */
static void test_names(void **state)
{
	static const char *const names[] = {
		"../../../tmp/x", "/etc/passwd", "a/b", "..", "'; DROP TABLE entry; --", "",
	};
	struct fixture f;
	int32_t t[4] = { 1, 2, 3, 4 };
	uint64_t id;
	char longest[STORE_NAME_MAX + 2];

	fixture_init(&f);
	fixture_open(&f);
	memset(longest, 'n', sizeof(longest));
	longest[STORE_NAME_MAX + 1] = '\0';
	assert_int_equal(put(&f, f.root, longest, 0, t, 4, 1, STORE_NEVER, &id), STORE_DROPPED);
	assert_int_equal(restore(&f, f.root, longest, t, 4), 0);
	longest[STORE_NAME_MAX] = '\0';
	assert_int_equal(put(&f, f.root, longest, 0, t, 4, 1, STORE_NEVER, &id), STORE_OK);
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		assert_int_equal(restore(&f, f.root, names[i], t, 4), 0);
		assert_int_equal(put(&f, f.root, names[i], 0, t, 4, 1, STORE_NEVER, &id), STORE_OK);
	}
	fixture_close(&f);
	fixture_open(&f);
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		assert_int_equal(restore(&f, f.root, names[i], t, 4), 4);
	assert_int_equal(restore(&f, f.root, longest, t, 4), 4);
	fixture_deinit(&f);
}

/* Strange files beside the store's own are left alone and counted for nothing. */
static void test_strangers(void **state)
{
	struct fixture f;
	char path[300];
	struct stat st;

	fixture_init(&f);
	fixture_open(&f);
	fill(&f);
	fixture_close(&f);
	snprintf(path, sizeof(path), "%s/lost+found", f.dir);
	assert_int_equal(mkdir(path, 0700), 0);
	/* Of a root's form, but with nothing that tells what it is. */
	snprintf(path, sizeof(path), "%s/%032d", f.dir, 7);
	assert_int_equal(mkdir(path, 0700), 0);
	fixture_open(&f);
	assert_int_equal(count(&f), N_PATHS * PATH);
	snprintf(path, sizeof(path), "%s/lost+found", f.dir);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(wipe(&f, NULL), N_PATHS * 3);
	assert_int_equal(stat(path, &st), 0);
	snprintf(path, sizeof(path), "%s/%032d", f.dir, 7);
	assert_int_equal(stat(path, &st), -1);
	fixture_deinit(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_files),
		cmocka_unit_test(test_flipped),
		cmocka_unit_test(test_gap),
		cmocka_unit_test(test_exchanged),
		cmocka_unit_test(test_rows_changed),
		cmocka_unit_test(test_free_changed),
		cmocka_unit_test(test_ids_of_an_old_index),
		cmocka_unit_test(test_links),
		cmocka_unit_test(test_modes),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_strangers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
