/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache on disk behind the engine: what one engine has computed, another finds, counted in rows that the model
 * computed; requests that end while the disk works for them; a disk that fails.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <semaphore.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/engine/cache-control.h"
#include "daemon/engine/disk-store.h"
#include "tests/unit/engine/fake-model.h"
#include "tests/unit/engine/fake-client.h"
#include "tests/unit/engine/fixture.h"

static char dir[] = "/tmp/kvd-unit-XXXXXX";

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return strcmp(path, dir) ? remove(path) : 0;
}

static void clean(void)
{
	nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static int setup(void **state)
{
	clean();
	return 0;
}

static struct fixture start_disk(uint64_t disk_bytes)
{
	struct engine_config config = config_default;

	config.store = open_store(dir, disk_bytes);
	return start(&config);
}

static struct fake_request cached_request(uint64_t id, uid_t uid, size_t n_prompt, uint32_t max_tokens)
{
	struct fake_request r = make_request(id, uid, n_prompt, max_tokens);

	for (size_t i = 0; i < n_prompt; i++)
		r.prompt[i] = (int32_t)(3 + (i * i + i / 7) % (FAKE_N_VOCAB - 3));
	r.params.ns = "a";
	return r;
}

/* Its prompt has nothing in common with others'. */
static struct fake_request other_request(uint64_t id, size_t n_prompt)
{
	struct fake_request r = make_request(id, 1, n_prompt, 1);

	for (size_t i = 0; i < n_prompt; i++)
		r.prompt[i] = (int32_t)(3 + fake_mix(id * FAKE_TOKENS_MAX + i) % (FAKE_N_VOCAB - 3));
	r.params.ns = "a";
	return r;
}

/* Runs it alone; returns the rows that it took. */
static uint64_t run(struct fixture *f, const struct fake_request *r)
{
	uint64_t before = fake.n_rows_seen;
	uint32_t n_released = f->client->n_released;	/* nothing runs now */

	submit(f, r);
	fake_client_wait_released(f->client, n_released + 1);
	check_whole(f, r);
	return fake.n_rows_seen - before;
}

/* The next engine finds whole blocks, in the same namespace only. */
static void test_survives(void **state)
{
	struct fake_request r = cached_request(0, 1, 75, 9);
	struct fixture f = start_disk(64 * MIB);

	assert_int_equal(run(&f, &r), 75 + 8);
	stop(&f);
	f = start_disk(64 * MIB);
	assert_int_equal(run(&f, &r), 75 - 64 + 8);
	assert_int_equal(f.client->results[0].n_cached, 64);
	r.id = 1;
	r.params.ns = "b";
	assert_int_equal(run(&f, &r), 75 + 8);
	/* From then on it is in memory, to the token. */
	r.id = 2;
	r.params.ns = "a";
	assert_int_equal(run(&f, &r), 1 + 8);
	stop(&f);
	/* What was generated is there as well. */
	f = start_disk(64 * MIB);
	r = cached_request(0, 1, 75, 9);
	run(&f, &r);
	memcpy(r.prompt + 75, f.client->results[0].tokens, 9 * sizeof(*r.prompt));
	r.n_prompt = 84;
	r.id = 1;
	assert_int_equal(run(&f, &r), 1 + 8);
	stop(&f);
	f = start_disk(64 * MIB);
	assert_int_equal(run(&f, &r), 4 + 8);
	stop(&f);
}

/* What the tree has is not read; what it has lost is read again. */
static void test_below_tree(void **state)
{
	struct engine_config config = config_default;
	struct fake_request r = cached_request(0, 1, 50, 1), other = make_request(0, 1, 60, 1);
	struct fixture f;

	config.kv_memory = 2 * MIB;	/* 4 blocks */
	config.store = open_store(dir, 64 * MIB);
	f = start(&config);
	for (uint64_t id = 0; id < 12; id++) {
		struct fake_request *next = id % 2 ? &other : &r;

		next->id = id;
		next->params.ns = "a";
		assert_int_equal(run(&f, next), id < 2 ? next->n_prompt : next->n_prompt - 48);
	}
	stop(&f);
}

/* More at once than the queue of writes takes: all of it goes there, also when the engine stops at once. */
static void test_backlog(void **state)
{
	struct engine_config config = config_default;
	uint64_t n_seen;

	config.kv_memory = 160 * MIB;
	for (int again = 0; again < 2; again++) {
		struct fixture f;

		config.store = open_store(dir, 256 * MIB);
		f = start(&config);
		n_seen = fake.n_rows_seen;
		for (uint64_t id = 0; id < 40; id++) {
			struct fake_request r = other_request(id, 81);

			submit(&f, &r);
		}
		fake_client_wait_released(f.client, 40);
		assert_in_range(fake.n_rows_seen - n_seen, again ? 40 : 40 * 75, again ? 40 : 40 * 81);
		stop(&f);
	}
}

/* On a disk of 7 blocks: what is used, out of memory, stays there; what is computed but once goes. */
static void test_used_stays(void **state)
{
	struct fake_request r = cached_request(0, 1, 33, 1);
	struct fixture f = start_disk(5 * MIB);

	for (uint64_t id = 0; id < 24; id++) {
		struct fake_request other = other_request(id, 33);

		r.id = id;
		if (id % 2)
			assert_true(run(&f, &other) > 16);
		else
			assert_int_equal(run(&f, &r), id ? 1 : 33);
	}
	stop(&f);
	f = start_disk(5 * MIB);
	r.id = 0;
	assert_int_equal(run(&f, &r), 1);
	stop(&f);
}

/* Requests that end at any moment of what the disk does for them. */
static void test_cancelled(void **state)
{
	struct fixture f = start_disk(64 * MIB);
	uint32_t n_cancelled = 0;

	for (uint64_t id = 0; id < 8; id++) {
		struct fake_request r = make_request(id, 1, 60, 1);

		r.params.ns = "a";
		run(&f, &r);
	}
	stop(&f);
	for (int i = 0; i < 40; i++) {
		f = start_disk(64 * MIB);
		for (uint64_t id = 0; id < 8; id++) {
			struct fake_request r = make_request(id, 1, 60, 1);

			r.params.ns = "a";
			submit(&f, &r);
		}
		usleep((unsigned)(i * 50));
		for (uint64_t id = 0; id < 8; id += 2)
			engine_cancel(f.engine, 1, id);
		if (i % 4 == 3) {
			stop(&f);	/* while the disk is at work */
			continue;
		}
		fake_client_wait_released(f.client, 8);
		for (uint64_t id = 0; id < 8; id++) {
			struct fake_request r = make_request(id, 1, 60, 1);

			if (id % 2)
				check_whole(&f, &r);
			else
				n_cancelled += f.client->results[id].finish == SINK_FINISH_CANCELLED;
		}
		stop(&f);
	}
	assert_true(n_cancelled > 0);
}

/* A model that goes while its blocks are written and read. */
static void test_model_goes(void **state)
{
	for (int i = 0; i < 20; i++) {
		struct fixture f = start_disk(64 * MIB);
		struct engine_model *other = add_other(f.engine);
		struct removal removal;

		for (uint64_t id = 0; id < 4; id++) {
			struct fake_request r = make_request(id, 1, 60, 10);

			r.params.ns = "a";
			r.em = other;
			r.model = &other_model;
			submit(&f, &r);
		}
		usleep((unsigned)(i * 100));
		ask_removal(f.engine, other, &removal);
		wait_removal(&removal);
		engine_model_free(other);
		stop(&f);
	}
}

static void damage(const char *name)
{
	DIR *d = opendir(dir);
	struct dirent *entry;

	assert_non_null(d);
	while ((entry = readdir(d))) {
		char path[512];
		uint8_t byte;
		int fd;

		if (entry->d_name[0] == '.' || strlen(entry->d_name) != 32)
			continue;
		snprintf(path, sizeof(path), "%s/%s/%s", dir, entry->d_name, name);
		fd = open(path, O_RDWR);
		assert_true(fd >= 0);
		/* Within the second block. */
		assert_int_equal(pread(fd, &byte, 1, 4096 + 512 * 1024 + 4096 + 16), 1);
		byte ^= 1;
		assert_int_equal(pwrite(fd, &byte, 1, 4096 + 512 * 1024 + 4096 + 16), 1);
		close(fd);
	}
	closedir(d);
}

/* What is damaged is a miss, and what is before it is not. */
static void test_damaged(void **state)
{
	struct fake_request r = cached_request(0, 1, 75, 2);
	struct fixture f = start_disk(64 * MIB);

	run(&f, &r);
	stop(&f);
	damage("slots");
	f = start_disk(64 * MIB);
	assert_int_equal(run(&f, &r), 75 - 16 + 1);
	assert_int_equal(f.client->results[0].n_cached, 16);
	stop(&f);
	/* It was written anew. */
	f = start_disk(64 * MIB);
	assert_int_equal(run(&f, &r), 75 - 64 + 1);
	stop(&f);
}

/* --- what people ask meanwhile --- */

static ssize_t slow_preadv(int fd, const struct iovec *iov, int n, off_t offset)
{
	usleep(3000);
	return preadv(fd, iov, n, offset);
}

static ssize_t slow_pwritev(int fd, const struct iovec *iov, int n, off_t offset)
{
	usleep(3000);
	return pwritev(fd, iov, n, offset);
}

static struct fixture start_slow(void)
{
	static struct store_io io;
	struct store_config slow = { .dir = dir, .max_bytes = 64 * MIB, .io = &io };
	struct engine_config config = config_default;

	io = store_io_system;
	io.preadv = slow_preadv;
	io.pwritev = slow_pwritev;
	assert_int_equal(store_new(&config.store, &slow, NULL), 0);
	return start(&config);
}

struct asked {
	struct cache_command command;	/* first */
	sem_t done;
};

static void note_asked(struct cache_command *c)
{
	sem_post(&((struct asked *)c)->done);
}

static uint64_t wipe_cache(struct fixture *f)
{
	struct asked a = {
		.command = { .op = CACHE_WIPE, .scope = { .uid = 1, .admin = true, .filter = "a" },
			     .done = note_asked },
	};

	sem_init(&a.done, 0, 0);
	assert_int_equal(engine_cache(f->engine, &a.command), 0);
	while (sem_wait(&a.done))
		;
	sem_destroy(&a.done);
	assert_int_equal(a.command.result, 0);
	return a.command.disk_entries;
}

/* Wiped at any moment of what a slow disk does: it does not come back, and the answer is right. */
static void test_wiped(void **state)
{
	struct fake_request r = cached_request(0, 1, 75, 2);

	for (int i = 0; i < 16; i++) {
		struct fixture f = start_disk(64 * MIB);
		uint32_t n_released;

		run(&f, &r);
		stop(&f);
		f = start_slow();
		n_released = f.client->n_released;
		submit(&f, &r);
		usleep((unsigned)i * 1500);
		wipe_cache(&f);
		fake_client_wait_released(f.client, n_released + 1);
		check_whole(&f, &r);
		/* What it left since is what it computed since. */
		wipe_cache(&f);
		r.id = 1;
		assert_int_equal(run(&f, &r), 75 + 1);
		r.id = 0;
		wipe_cache(&f);
		assert_int_equal(wipe_cache(&f), 0);
		stop(&f);
		f = start_disk(64 * MIB);
		assert_int_equal(run(&f, &r), 75 + 1);
		wipe_cache(&f);
		stop(&f);
	}
}

/* --- the state directory --- */

static char last_event[256];

static void note_event(void *arg, const char *text)
{
	snprintf(last_event, sizeof(last_event), "%s", text);
}

/* What is opened is a cache, NULL where it runs without one and says why. */
static int open_state(struct store **out, const char *state_dir, bool named, uint64_t max_bytes)
{
	struct disk_store_config config = {
		.state_dir = state_dir, .named = named, .max_bytes = max_bytes, .event = note_event,
	};
	struct diag diag = DIAG_NULL;
	int r;

	*out = NULL;
	last_event[0] = '\0';
	r = disk_store_open(out, &config, &diag);
	assert_int_equal(r != 0, diag.text[0] != '\0');
	assert_int_equal(!r && !*out, last_event[0] != '\0');
	return r;
}

static uint64_t max_bytes_of(struct store *s)
{
	struct disk_store_stats stats;

	disk_store_stats(s, &stats);
	return stats.max_bytes;
}

static void test_state_dir(void **state)
{
	char path[64], below[96];
	struct store *s, *second;
	struct stat st;

	snprintf(path, sizeof(path), "%s/state", dir);
	assert_int_equal(open_state(&s, path, true, 64 * MIB), 0);
	assert_true(max_bytes_of(s) == 64 * MIB);
	snprintf(below, sizeof(below), "%s/cache/lock", path);
	assert_int_equal(stat(below, &st), 0);
	/* A second one is refused where the directory was named, and elsewhere does without. */
	assert_int_equal(open_state(&second, path, true, 64 * MIB), -EBUSY);
	assert_int_equal(open_state(&second, path, false, 64 * MIB), 0);
	assert_null(second);
	disk_store_close(s);
	assert_int_equal(open_state(&s, path, true, DISK_STORE_AUTO), 0);
	assert_non_null(s);
	assert_true(max_bytes_of(s) >= 16 * MIB && max_bytes_of(s) <= 8192 * MIB);
	disk_store_close(s);
	/* A default place is made with the folders that it is in, others not. */
	snprintf(below, sizeof(below), "%s/a/b/c", dir);
	assert_int_equal(open_state(&s, below, true, 64 * MIB), -ENOENT);
	assert_int_equal(open_state(&s, below, false, 64 * MIB), 0);
	assert_non_null(s);
	disk_store_close(s);
	assert_int_equal(stat(below, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
	/* A file in its place. */
	snprintf(below, sizeof(below), "%s/cache/lock", path);
	assert_int_equal(open_state(&s, below, true, 64 * MIB), -ENOTDIR);
	assert_int_equal(open_state(&s, below, false, 64 * MIB), 0);
	assert_null(s);
	assert_int_equal(open_state(&s, NULL, false, 64 * MIB), 0);
	assert_null(s);
	/* No link is followed to somewhere else. */
	snprintf(below, sizeof(below), "%s/linked", dir);
	assert_int_equal(mkdir(below, 0700), 0);
	snprintf(below, sizeof(below), "%s/linked/cache", dir);
	assert_int_equal(symlink(path, below), 0);
	snprintf(below, sizeof(below), "%s/linked", dir);
	assert_int_equal(open_state(&s, below, false, 64 * MIB), 0);
	assert_null(s);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, setup)
	const struct CMUnitTest tests[] = {
		TEST(test_survives),
		TEST(test_below_tree),
		TEST(test_backlog),
		TEST(test_used_stays),
		TEST(test_cancelled),
		TEST(test_model_goes),
		TEST(test_damaged),
		TEST(test_wiped),
		TEST(test_state_dir),
	};
	int failed;

	alarm(60);	/* a hang is a failure */
	if (!mkdtemp(dir))
		return 1;
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	clean();
	rmdir(dir);
	return failed;
}
