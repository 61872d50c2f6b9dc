/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that stores is killed at random instants, again and again on one of two
 * directories.  What it was told to be committed is there afterwards, and right.  In the other directory
 * some bytes are changed each time, and what is read is right all the same.
 */
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/unit/cache/store-fixture.h"

#define PATH 12u
#define PATHS_MAX 100000u

/* Shared with the process that is killed. */
struct shared {
	_Atomic uint32_t n_started;		/* paths begun, over all turns */
	_Atomic uint32_t n_blocks[PATHS_MAX];	/* of a path, committed */
	uint32_t turn[PATHS_MAX];		/* in which it was begun */
};

static struct shared *shared;

static void path_tokens(int32_t *t, uint32_t number)
{
	/* Half of a path is another's, too. */
	make_tokens(t, PATH, (int32_t)(number / 4 * 1000));
	for (uint32_t i = PATH / 2; i < PATH; i++)
		t[i] += (int32_t)(number % 4) * 100;
}

struct job {
	struct store_write w;
	int32_t tokens[PATH];
	uint8_t block[BLOCK];
	uint32_t path;
	bool busy;
};

static void on_stored(struct store_request *r)
{
	struct job *j = list_entry(r, struct job, w.request);
	uint32_t blocks = (j->w.first + j->w.n_tokens) / BT;

	/* Its own are committed in their order. */
	if ((r->result == STORE_OK || r->result == STORE_EXISTS) && shared->n_blocks[j->path] == blocks - 1)
		shared->n_blocks[j->path] = blocks;
	j->busy = false;
}

/* Stores paths until it is killed; ends with what must not happen. */
static void store_on(struct fixture *f)
{
	static struct job jobs[24];
	uint64_t parent = 0;
	uint32_t path = 0, at = PATH;

	fixture_open(f);
	while (true) {
		struct job *j = NULL;

		for (size_t i = 0; i < ARRAY_SIZE(jobs) && !j; i++)
			j = jobs[i].busy ? NULL : &jobs[i];
		if (!j) {
			store_poll(f->store);
			continue;
		}
		if (at == PATH) {
			path = shared->n_started++;
			if (path >= PATHS_MAX)
				_exit(2);
			parent = 0;
			at = 0;
		}
		path_tokens(j->tokens, path);
		j->path = path;
		memset(j->block, 0, BLOCK);
		block_of(j->block, "n", j->tokens, at + BT);
		j->w = (struct store_write){
			.request.done = on_stored, .name = name_of("n"), .parent = parent, .tokens = j->tokens + at,
			.n_tokens = BT, .first = at, .uid = 1000, .now = 1, .expires = STORE_NEVER, .block = j->block,
		};
		j->busy = true;
		if (store_write(f->root, &j->w)) {
			j->busy = false;
			store_poll(f->store);
			continue;
		}
		parent = j->w.id;
		at += BT;
	}
}

static void flip_some(const struct fixture *f, uint64_t *seed)
{
	static const char *const files[] = { "slots", "index", "index-wal" };
	char dir[300] = "", path[400];
	struct stat st;
	int fd;

	root_dir(f, dir, sizeof(dir));
	snprintf(path, sizeof(path), "%s/%s", dir, files[prng(seed) % ARRAY_SIZE(files)]);
	fd = open(path, O_RDWR);
	if (fd < 0 || fstat(fd, &st))
		return;
	for (int i = 0; i < 20 && st.st_size; i++) {
		uint8_t byte = (uint8_t)prng(seed);

		assert_int_equal(pwrite(fd, &byte, 1, (off_t)(prng(seed) % (uint64_t)st.st_size)), 1);
	}
	close(fd);
}

/* Blocks of a path that are there. complete: what was committed has to be. */
static uint32_t look(struct fixture *f, uint32_t path, bool complete)
{
	int32_t t[PATH];
	uint32_t got;

	path_tokens(t, path);
	got = restore(f, f->root, "n", t, PATH) / BT;
	if (complete && got < shared->n_blocks[path])
		fail_msg("path %u: %u blocks of %u", path, got, shared->n_blocks[path]);
	return got;
}

static void test_kill(void **state)
{
	uint32_t turns = getenv("KVD_TEST_LONG") ? 100 : 14, n_found = 0, n_complete = 0;
	uint64_t seed = 11;
	struct fixture fixtures[2];		/* one of them is damaged */

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(shared, MAP_FAILED);
	for (int i = 0; i < 2; i++) {
		fixture_init(&fixtures[i]);
		fixtures[i].config.max_bytes = UINT64_C(1) << 30;
	}
	/* Where all is slow, nothing may be there yet: then more turns, and longer ones. */
	for (uint32_t i = 0; i < turns || ((!n_found || !n_complete) && i < 6 * turns); i++) {
		bool flipped = i % 2;
		struct fixture *f = &fixtures[i % 2];
		uint32_t from = shared->n_started, n = 0;
		int status;
		pid_t pid = fork();

		assert_true(pid >= 0);
		if (!pid) {
			store_on(f);
			_exit(3);
		}
		/* Any instant from before it opens on. */
		usleep((useconds_t)(prng(&seed) % (60000u << i / turns)));
		assert_int_equal(kill(pid, SIGKILL), 0);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		if (flipped && !access(f->dir, F_OK))
			flip_some(f, &seed);
		fixture_open(f);
		/* All that was ever stored there. */
		for (uint32_t path = 0; path < shared->n_started; path++) {
			if (path >= from)
				shared->turn[path] = i;
			if (shared->turn[path] % 2 != i % 2)
				continue;
			n += look(f, path, !flipped);
			n_complete += flipped ? 0 : shared->n_blocks[path];
		}
		n_found += n;
		if (!flipped)
			assert_int_equal(f->n_events, 0);
		fixture_close(f);
		f->n_events = 0;
	}
	assert_true(n_found > 0 && n_complete > 0);
	print_message("%u blocks known to be committed, %u found\n", n_complete, n_found);
	fixture_deinit(&fixtures[0]);
	fixture_deinit(&fixtures[1]);
	munmap(shared, sizeof(*shared));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kill),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
