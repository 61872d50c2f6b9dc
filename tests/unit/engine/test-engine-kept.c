/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that outlives the engine: what one has computed, the next finds in the descriptors, counted in rows that the
 * model computed; a process that is killed; bits that flip meanwhile; models and sizes that change.  The fake model
 * finds every block that is not exactly the sequence's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/cache/kept.h"
#include "daemon/engine/cache-control.h"
#include "tests/unit/engine/fake-model.h"
#include "tests/unit/engine/fake-client.h"
#include "tests/unit/engine/fixture.h"

/* What is kept between two engines: duplicates, as a service manager has them. */
static int kept_pool = -1, kept_index = -1;

static void forget(void)
{
	if (kept_pool >= 0)
		close(kept_pool);
	if (kept_index >= 0)
		close(kept_index);
	kept_pool = kept_index = -1;
}

static int setup(void **state)
{
	forget();
	return 0;
}

static char told[256];	/* the last event; on the engine's thread, read when it is idle */

static void note_event(void *arg, const char *text)
{
	snprintf(told, sizeof(told), "%s", text);
}

static struct fixture start_kept(const struct engine_config *config)
{
	struct engine_config c = *config;
	struct fixture f;
	int pool, index;

	told[0] = '\0';
	c.kept_event = note_event;
	c.kept_pool = kept_pool >= 0 ? dup(kept_pool) : -1;
	c.kept_index = kept_index >= 0 ? dup(kept_index) : -1;
	f = start(&c);
	engine_kept_fds(f.engine, &pool, &index);
	assert_true(pool >= 0 && index >= 0);
	forget();
	kept_pool = dup(pool);
	kept_index = dup(index);
	return f;
}

static struct fake_request cached_request(uint64_t id, uid_t uid, size_t n_prompt, uint32_t max_tokens)
{
	struct fake_request r = make_request(id, uid, n_prompt, max_tokens);

	for (size_t i = 0; i < n_prompt; i++)
		r.prompt[i] = (int32_t)(3 + (i * i + i / 7) % (FAKE_N_VOCAB - 3));
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

/* The next engine finds all, to the token, in the same namespace only. */
static void test_survives(void **state)
{
	struct fake_request r = cached_request(0, 1, 75, 9);
	struct fixture f = start_kept(&config_default);
	struct engine_kept kept;
	struct engine_stats stats;

	engine_kept(f.engine, &kept);
	assert_false(kept.given);
	assert_int_equal(run(&f, &r), 75 + 8);
	stop(&f);
	for (int i = 0; i < 3; i++) {
		f = start_kept(&config_default);
		engine_kept(f.engine, &kept);
		assert_true(kept.given && kept.taken);
		assert_int_equal(kept.n_blocks, 6);	/* 83 tokens have KV */
		assert_int_equal(kept.n_dropped, 0);
		assert_string_equal(kept.why, "");
		assert_int_equal(run(&f, &r), 1 + 8);
		assert_int_equal(f.client->results[0].n_cached, 74);
		engine_stats(f.engine, &stats);
		assert_int_equal(stats.kept_adopted, 6);
		assert_int_equal(stats.blocks_kept, 6);
		assert_int_equal(stats.kept_verified, 6);
		assert_int_equal(stats.kept_damaged, 0);
		assert_int_equal(stats.kv_bytes_dormant, 0);
		stop(&f);
	}
	f = start_kept(&config_default);
	r.params.ns = "b";
	assert_int_equal(run(&f, &r), 75 + 8);
	stop(&f);
}


/* --- damage --- */

/* A random byte of what the memfd holds, from `from` on: holes have none. */
static uint64_t random_place(int fd, uint64_t from, unsigned *seed)
{
	uint64_t total = 0, pick;
	off_t data, hole = (off_t)from;

	while ((data = lseek(fd, hole, SEEK_DATA)) >= 0 && (hole = lseek(fd, data, SEEK_HOLE)) >= 0)
		total += (uint64_t)(hole - data);
	assert_true(total > 0);
	pick = ((uint64_t)rand_r(seed) << 31 | (uint64_t)rand_r(seed)) % total;
	hole = (off_t)from;
	while ((data = lseek(fd, hole, SEEK_DATA)) >= 0 && (hole = lseek(fd, data, SEEK_HOLE)) >= 0) {
		if (pick < (uint64_t)(hole - data))
			return (uint64_t)data + pick;
		pick -= (uint64_t)(hole - data);
	}
	fail();
	return 0;
}

static void flip(int fd, uint64_t offset, uint8_t bits)
{
	uint8_t byte;

	assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
	byte ^= bits;
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
}

/* What is damaged is a miss, once, and what is before it is not. */
static void test_damaged(void **state)
{
	struct fake_request r = cached_request(0, 1, 75, 2);
	struct fixture f = start_kept(&config_default);
	struct engine_stats stats;

	run(&f, &r);
	stop(&f);
	flip(kept_pool, 512 * 1024 + 16, 1);	/* the second block */
	f = start_kept(&config_default);
	assert_int_equal(run(&f, &r), 75 - 16 + 1);
	assert_int_equal(f.client->results[0].n_cached, 16);
	engine_stats(f.engine, &stats);
	assert_int_equal(stats.kept_damaged, 1);
	stop(&f);
	assert_non_null(strstr(told, "damaged"));
	f = start_kept(&config_default);
	assert_int_equal(run(&f, &r), 1 + 1);
	stop(&f);
	assert_string_equal(told, "");
	/* The tail alone. */
	flip(kept_pool, 4 * 512 * 1024, 1);
	f = start_kept(&config_default);
	assert_int_equal(run(&f, &r), 75 - 64 + 1);
	stop(&f);
}

/* Beside another that runs, large blocks are verified a few in each round. */
static void test_rounds(void **state)
{
	struct fake_request r = cached_request(0, 1, 75, 2), other = make_request(1, 2, 9, 30);
	struct engine_config config = config_default;
	struct engine_stats stats;
	struct fixture f;

	fake_model.block_bytes = 40 << 20;	/* two at once */
	config.block_bytes = 40 << 20;
	config.kv_memory = 400 * MIB;
	f = start_kept(&config);
	run(&f, &r);
	stop(&f);
	f = start_kept(&config);
	fake.n_allowed = 0;
	submit(&f, &other);
	fake_wait_step(1);
	submit(&f, &r);
	fake_allow(1);
	fake_wait_step(2);
	fake_allow(1);
	fake_wait_step(3);
	engine_stats(f.engine, &stats);
	assert_in_range(stats.kept_verified, 2, 4);
	fake_allow(UINT64_MAX);
	fake_client_wait_released(f.client, 2);
	check_whole(&f, &r);
	check_whole(&f, &other);
	assert_int_equal(f.client->results[0].n_cached, 74);
	stop(&f);
	fake_model.block_bytes = 0;
}

#define N_PROMPTS 6

/* Prompts that share beginnings in different ways. */
static struct fake_request shared_request(uint64_t id, uint32_t which)
{
	struct fake_request r = cached_request(id, 1 + which % 2, 30 + which * 9, 4);

	for (size_t i = 20 * (which % 4); i < r.n_prompt; i++)
		r.prompt[i] = (int32_t)(3 + (i * (which + 2)) % (FAKE_N_VOCAB - 3));
	r.params.sampling.seed = which;
	return r;
}

static uint32_t run_shared(struct fixture *f)
{
	uint32_t n_cached = 0;

	for (uint32_t i = 0; i < N_PROMPTS; i++) {
		struct fake_request r = shared_request(i, i);

		run(f, &r);
		n_cached += f->client->results[i].n_cached;
	}
	return n_cached;
}

/* Bits that flip anywhere: right answers (stop() looks for violations), and most is found all the same. */
static void test_flips(void **state)
{
	uint32_t n = getenv("KVD_TEST_LONG") ? 3000 : 150, n_taken = 0, n_cached = 0, least;
	struct engine_stats stats;
	uint64_t n_damaged = 0;
	struct fixture f;
	unsigned seed = 1;

	fake_model.block_bytes = 64 << 10;
	f = start_kept(&config_default);
	least = run_shared(&f);
	stop(&f);
	for (uint32_t i = 0; i < n; i++) {
		struct engine_kept kept;

		for (uint32_t k = 1 + (uint32_t)rand_r(&seed) % 8; k--;) {
			int fd = rand_r(&seed) % 2 ? kept_pool : kept_index;

			/* The header makes a cold start: not each time. */
			flip(fd, random_place(fd, fd == kept_index && rand_r(&seed) % 8 ? 4096 : 0, &seed),
			     (uint8_t)(1u << rand_r(&seed) % 8));
		}
		f = start_kept(&config_default);
		n_cached += run_shared(&f);
		engine_kept(f.engine, &kept);
		engine_stats(f.engine, &stats);
		n_taken += kept.taken;
		n_damaged += stats.kept_damaged + kept.n_dropped;
		stop(&f);
	}
	fake_model.block_bytes = 0;
	assert_true(n_taken > n / 2 && n_damaged > n / 8);
	assert_true(n_cached > n * least);
}

/* --- kill -9 --- */

struct progress {
	_Atomic uint32_t n_done;
};

static void work_until_killed(struct progress *p)
{
	struct fixture f = start_kept(&config_default);

	for (uint32_t i = 0; i < FAKE_REQUESTS_MAX; i++) {
		struct fake_request r = shared_request(i, i % N_PROMPTS);

		run(&f, &r);
		p->n_done++;
	}
	pause();
}

/* What had been answered when the process was killed is there in whole blocks. */
static void test_killed(void **state)
{
	uint32_t n = getenv("KVD_TEST_LONG") ? 1000 : 60;
	struct progress *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct fixture f;
	unsigned seed = 2;

	assert_ptr_not_equal(p, MAP_FAILED);
	fake_model.block_bytes = 64 << 10;
	for (uint32_t i = 0; i < n; i++) {
		pid_t child;
		int status;

		forget();
		f = start_kept(&config_default);
		stop(&f);
		p->n_done = 0;
		child = fork();
		assert_true(child >= 0);
		if (!child)
			work_until_killed(p);
		while (p->n_done < i % (2 * N_PROMPTS))
			usleep(20);
		usleep((unsigned)rand_r(&seed) % 500);
		kill(child, SIGKILL);
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		f = start_kept(&config_default);
		for (uint32_t k = 0; k < MIN(p->n_done, (uint32_t)N_PROMPTS); k++) {
			struct fake_request r = shared_request(k, k);

			run(&f, &r);
			assert_true(f.client->results[k].n_cached >= (r.n_prompt - 1) / 16 * 16);
		}
		stop(&f);
	}
	munmap(p, 4096);
	fake_model.block_bytes = 0;
}

/* --- other sizes, other models --- */

static void check_start(const struct engine_config *config, bool taken, uint32_t n_cached)
{
	struct fake_request r = cached_request(0, 1, 40, 2);
	struct fixture f = start_kept(config);
	struct engine_kept kept;

	engine_kept(f.engine, &kept);
	assert_int_equal(kept.taken, taken);
	assert_true(taken || !kept.given || kept.why[0]);
	run(&f, &r);
	assert_int_equal(f.client->results[0].n_cached, n_cached);
	stop(&f);
}

static void test_sizes(void **state)
{
	struct engine_config config = config_default;
	struct engine_stats stats;
	struct fixture f;

	check_start(&config, false, 0);
	config.kv_memory = 24 * MIB;
	check_start(&config, true, 39);
	config.kv_memory = 4 * MIB;
	check_start(&config, true, 39);
	/* The larger that there was once; then the suggestion is more. */
	config.kv_memory_auto = true;
	check_start(&config, true, 39);
	config.kv_memory = 32 * MIB;
	check_start(&config, true, 39);
	config.kv_memory = 8 * MIB;
	f = start_kept(&config);
	engine_stats(f.engine, &stats);
	assert_int_equal(stats.kv_bytes, 32 * MIB);
	stop(&f);
	/* Blocks that the kept chunks have no room for. */
	config.kv_memory = 64 * MIB;
	config.block_bytes = 3 * MIB;
	check_start(&config, false, 0);
}

/* A pool that is cut in the middle of what it holds. */
static void test_cut(void **state)
{
	struct engine_config config = config_default;
	struct fixture f = start_kept(&config);
	uint32_t before = run_shared(&f), n_cached = 0;
	struct engine_kept kept;

	stop(&f);
	f = start_kept(&config);
	engine_kept(f.engine, &kept);
	stop(&f);
	assert_true(kept.n_blocks > 8);
	config.kv_memory = 4 * MIB;
	f = start_kept(&config);
	engine_kept(f.engine, &kept);
	assert_true(kept.taken && kept.n_blocks == 8 && kept.why[0]);
	n_cached = run_shared(&f);
	stop(&f);
	(void)before;
	config.kv_memory = 12 * MIB;
	f = start_kept(&config);
	engine_kept(f.engine, &kept);
	assert_true(kept.taken && kept.n_blocks <= 8);
	assert_true(run_shared(&f) + n_cached > 0);
	stop(&f);
}

static void remove_model(struct fixture *f, struct engine_model *em)
{
	struct removal removal;

	ask_removal(f->engine, em, &removal);
	wait_removal(&removal);
	engine_model_free(em);
}

/* A model that comes back has what it had, also in another process. */
static void test_swap(void **state)
{
	struct fake_request r = cached_request(0, 1, 60, 2), mine = cached_request(0, 1, 75, 2);
	struct fixture f = start_kept(&config_default);
	struct engine_model *other = add_other(f.engine);
	struct engine_stats stats;

	r.model = &other_model;
	r.em = other;
	run(&f, &r);
	remove_model(&f, other);
	engine_stats(f.engine, &stats);
	assert_int_equal(stats.kv_bytes_dormant, 2 * MIB);
	mine.id = 1;
	run(&f, &mine);
	for (uint64_t id = 2; id < 5; id++) {
		other = add_other(f.engine);
		r.em = other;
		r.id = id;
		assert_int_equal(run(&f, &r), 1 + 1);
		remove_model(&f, other);
	}
	stop(&f);
	f = start_kept(&config_default);
	mine.id = 0;
	assert_int_equal(run(&f, &mine), 1 + 1);
	other = add_other(f.engine);
	r.em = other;
	r.id = 1;
	assert_int_equal(run(&f, &r), 1 + 1);
	remove_model(&f, other);
	stop(&f);
}

/* Who needs the room gets it: what is dormant goes first, chunk by chunk. */
static void test_dormant_gives_way(void **state)
{
	struct engine_config config = config_default;
	struct fake_request r = cached_request(0, 1, 60, 2);
	struct engine_stats stats;
	struct engine_model *other;
	struct fixture f;

	config.kv_memory = 4 * MIB;
	f = start_kept(&config);
	other = add_other(f.engine);
	r.model = &other_model;
	r.em = other;
	run(&f, &r);
	remove_model(&f, other);
	for (uint64_t id = 1; id < 4; id++) {
		struct fake_request m = make_request(id, 1, 60, 2);

		m.params.ns = "a";
		run(&f, &m);
	}
	engine_stats(f.engine, &stats);
	assert_int_equal(stats.kv_bytes_dormant, 0);
	/* What came in its place is kept in its place. */
	assert_int_equal(stats.blocks_kept, 8);
	other = add_other(f.engine);
	r.em = other;
	r.id = 4;
	assert_int_equal(run(&f, &r), 60 + 1);
	remove_model(&f, other);
	stop(&f);
}

struct wipe {
	struct cache_command command;	/* first */
	struct removal done;
};

static void on_wiped(struct cache_command *c)
{
	note_removed(&((struct wipe *)c)->done);
}

static uint64_t wipe_own(struct fixture *f, const char *own)
{
	struct wipe w = { .command = { .op = CACHE_WIPE, .all = true, .done = on_wiped } };

	w.done = (struct removal){ .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
	snprintf(w.command.scope.own, sizeof(w.command.scope.own), "%s", own);
	assert_int_equal(engine_cache(f->engine, &w.command), 0);
	wait_removal(&w.done);
	assert_int_equal(w.command.result, 0);
	return w.command.n_entries;
}

/* Who wipes what is his wipes it also where no model is loaded that it is of; others' stays. */
static void test_wipe_dormant(void **state)
{
	struct fake_request r = cached_request(0, 1, 60, 2), s = cached_request(1, 2, 60, 2);
	struct engine_model *other;
	struct fixture f = start_kept(&config_default);

	other = add_other(f.engine);
	r.params.ns = "uid:1/key";
	s.params.ns = "uid:11";
	r.em = s.em = other;
	r.model = s.model = &other_model;
	run(&f, &r);
	run(&f, &s);
	remove_model(&f, other);
	assert_int_equal(wipe_own(&f, "uid:1"), 4);
	assert_int_equal(wipe_own(&f, "uid:1"), 0);
	stop(&f);
	f = start_kept(&config_default);
	other = add_other(f.engine);
	r.em = s.em = other;
	assert_int_equal(run(&f, &s), 1 + 1);
	r.id = 0;
	assert_int_equal(run(&f, &r), 60 + 1);
	assert_int_equal(wipe_own(&f, "uid:1"), 4);
	assert_int_equal(wipe_own(&f, "uid:11"), 4);
	remove_model(&f, other);
	stop(&f);
	f = start_kept(&config_default);
	other = add_other(f.engine);
	r.em = other;
	assert_int_equal(run(&f, &r), 60 + 1);
	remove_model(&f, other);
	stop(&f);
}

static char dir[] = "/tmp/kvd-unit-XXXXXX";

static int remove_file(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

static struct fixture start_disk(void)
{
	struct engine_config config = config_default;

	config.store = open_store(dir, 64 * MIB);
	return start_kept(&config);
}

/* What the memory has lost is read from disk, after what it has. */
static void test_disk_behind(void **state)
{
	struct fake_request r = cached_request(0, 1, 75, 2), again = cached_request(1, 1, 75, 2);
	struct fixture f;

	assert_non_null(mkdtemp(dir));
	f = start_disk();
	run(&f, &r);
	stop(&f);
	flip(kept_pool, 2 * 512 * 1024 + 16, 1);	/* the third block of four and a tail */
	f = start_disk();
	assert_int_equal(run(&f, &r), 75 - 64 + 1);
	assert_int_equal(f.client->results[0].n_cached, 64);
	assert_int_equal(run(&f, &again), 1 + 1);
	stop(&f);
	/* What is not on disk either is computed, and stored. */
	flip(kept_pool, 512 * 1024 + 16, 1);
	f = start_disk();
	r.prompt[40] ^= 1;
	assert_int_equal(run(&f, &r), 75 - 32 + 1);
	stop(&f);
	forget();
	f = start_disk();
	assert_int_equal(run(&f, &r), 75 - 64 + 1);
	stop(&f);
	nftw(dir, remove_file, 16, FTW_DEPTH | FTW_PHYS);
}

/* Another identity, by the content of the model alone. */
static void test_other_identity(void **state)
{
	struct fake_request r = cached_request(0, 1, 40, 2);
	struct engine_stats stats;
	struct fixture f = start_kept(&config_default);

	run(&f, &r);
	stop(&f);
	fake_model.info.content_hash[3] ^= 1;
	f = start_kept(&config_default);
	assert_int_equal(run(&f, &r), 40 + 1);
	engine_stats(f.engine, &stats);
	assert_int_equal(stats.kv_bytes_dormant, 2 * MIB);
	stop(&f);
	fake_model.info.content_hash[3] ^= 1;
	f = start_kept(&config_default);
	assert_int_equal(run(&f, &r), 1 + 1);
	stop(&f);
}

/* More identities than there is room for: the first ones are kept. */
static void test_many_identities(void **state)
{
	struct engine_config config = config_default;
	struct fake_request r = cached_request(0, 1, 20, 2);
	struct fixture f;

	config.kv_memory = 1280 * MIB;	/* 40 chunks, hardly touched */
	for (uint32_t i = 0; i < 2 * KEPT_ROOTS + 4; i++) {
		fake_model.info.content_hash[3] = (uint8_t)(i % (KEPT_ROOTS + 2));
		f = start_kept(&config);
		assert_int_equal(run(&f, &r), i >= KEPT_ROOTS + 2 && i % (KEPT_ROOTS + 2) < KEPT_ROOTS ? 2 : 20 + 1);
		stop(&f);
	}
	fake_model.info.content_hash[3] = 0;
}

/* --- terms --- */

static void test_expiry(void **state)
{
	struct fake_request r = cached_request(0, 1, 40, 2);
	struct fixture f = start_kept(&config_default);

	r.params.ttl_ns = UINT64_C(3600) * 1000000000u;
	run(&f, &r);
	stop(&f);
	f = start_kept(&config_default);
	assert_int_equal(run(&f, &r), 1 + 1);
	stop(&f);
	forget();
	r.params.ttl_ns = 1000000;
	f = start_kept(&config_default);
	run(&f, &r);
	stop(&f);
	usleep(1100);
	f = start_kept(&config_default);
	assert_int_equal(run(&f, &r), 40 + 1);
	stop(&f);
}

/* Others' blocks stay others', and are charged to them; who has no right to so much any more loses some. */
static void test_uids(void **state)
{
	struct fake_request r = cached_request(0, 1, 60, 2), other = cached_request(1, 2, 60, 2);
	struct engine_config config = config_default;
	struct accounts *accounts;
	struct fixture f = start_kept(&config);

	r.params.ns = "uid:1";
	other.params.ns = "uid:2";
	run(&f, &r);
	stop(&f);
	f = start_kept(&config);
	assert_int_equal(run(&f, &other), 60 + 1);
	assert_int_equal(f.client->results[1].n_cached, 0);
	assert_true(account_used(f.accounts, 1, ACCOUNT_KV) >= 4 * 512 * 1024);
	assert_int_equal(run(&f, &r), 1 + 1);
	stop(&f);
	/* The next process allows less. */
	config.kept_pool = dup(kept_pool);
	config.kept_index = dup(kept_index);
	config.kept_event = note_event;
	accounts = fake_accounts(UINT64_MAX, UINT64_MAX, 3 * 512 * 1024);
	f = start_with(&config, accounts);
	r = cached_request(0, 1, 30, 2);
	r.params.ns = "uid:1";
	assert_int_equal(run(&f, &r), 30 - 16 + 1);	/* no room to copy of the second */
	assert_true(account_used(accounts, 1, ACCOUNT_KV) <= 3 * 512 * 1024);
	stop(&f);
	assert_non_null(strstr(told, "beyond their user's share"));
}

/* What was pinned is so after the restart: a flood does not wash it away. */
static void test_pins(void **state)
{
	struct fake_request r = cached_request(0, 1, 64, 2);
	struct engine_config config = config_default;
	struct fixture f;

	config.kv_memory = 8 * MIB;	/* 16 blocks, of which 4 may be pinned */
	f = start_kept(&config);
	r.params.pin = true;
	run(&f, &r);
	stop(&f);
	for (int i = 0; i < 2; i++) {
		f = start_kept(&config);
		for (uint64_t id = 1; id < 9; id++) {
			struct fake_request m = make_request(id, 1, 60, 2);

			m.params.ns = "a";
			run(&f, &m);
		}
		r.params.pin = false;
		assert_int_equal(run(&f, &r), 64 - 63 + 1);
		stop(&f);
	}
}

/* --- descriptors --- */

static int sealed_memfd(uint64_t bytes, int seals)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	if (seals)
		assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static int copy_of(int fd, int seals)
{
	struct stat st;
	uint8_t buf[65536];
	off_t at = 0;
	int copy;

	assert_int_equal(fstat(fd, &st), 0);
	copy = sealed_memfd((uint64_t)st.st_size, 0);
	while ((at = lseek(fd, at, SEEK_DATA)) >= 0) {
		ssize_t n = pread(fd, buf, 4096, at);

		assert_int_equal(pwrite(copy, buf, (size_t)n, at), n);
		at += n;
	}
	if (seals)
		assert_int_equal(fcntl(copy, F_ADD_SEALS, seals), 0);
	return copy;
}

static int read_only(int fd)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, O_RDONLY | O_CLOEXEC);
}

/* Whatever they are: a cold start, with a reason, and they are closed. */
static void check_refused(int pool, int index)
{
	struct fake_request r = cached_request(0, 1, 40, 2);
	struct engine_config config = config_default;
	struct engine_kept kept;
	struct fixture f;
	struct stat st;

	config.kept_pool = pool;
	config.kept_index = index;
	f = start(&config);
	engine_kept(f.engine, &kept);
	assert_true(kept.given);
	assert_false(kept.taken);
	assert_true(kept.why[0]);
	assert_int_equal(run(&f, &r), 40 + 1);
	stop(&f);
	assert_true(pool < 0 || fstat(pool, &st) < 0);
	assert_true(index < 0 || fstat(index, &st) < 0);
}

static void test_descriptors(void **state)
{
	struct fake_request r = cached_request(0, 1, 40, 2);
	struct fixture f = start_kept(&config_default);
	int pipes[2];

	run(&f, &r);
	stop(&f);
	check_refused(dup(kept_pool), -1);
	check_refused(-1, dup(kept_index));
	check_refused(dup(kept_index), dup(kept_pool));
	check_refused(dup(kept_pool), dup(kept_pool));
	check_refused(dup(kept_index), dup(kept_index));
	assert_int_equal(pipe(pipes), 0);
	check_refused(pipes[0], pipes[1]);
	assert_int_equal(pipe(pipes), 0);
	close(pipes[1]);
	check_refused(dup(kept_pool), pipes[0]);
	check_refused(open("/dev/null", O_RDWR), open("/dev/zero", O_RDWR));
	check_refused(open("/", O_RDONLY), open("/proc/self/exe", O_RDONLY));
	check_refused(dup(kept_pool), sealed_memfd(0, F_SEAL_SHRINK));
	check_refused(dup(kept_pool), sealed_memfd(12 * MIB, F_SEAL_SHRINK));
	check_refused(dup(kept_pool), copy_of(kept_index, 0));
	check_refused(copy_of(kept_pool, F_SEAL_SHRINK), dup(kept_index));
	check_refused(read_only(kept_pool), dup(kept_index));
	check_refused(dup(kept_pool), read_only(kept_index));
	/* A copy of the index is as good as the index, also a shorter one, but for what it lacks. */
	f = start_kept(&config_default);
	assert_int_equal(run(&f, &r), 1 + 1);
	stop(&f);
	check_refused(dup(kept_pool), copy_of(kept_index, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE));
}

/* A pool that nothing can be kept of. */
static void test_not_kept(void **state)
{
	struct engine_config config = config_default;
	struct engine_kept kept;
	struct fixture f;
	int pool, index;

	f = start_kept(&config);
	stop(&f);
	config.no_cache = true;
	config.kept_pool = dup(kept_pool);
	config.kept_index = dup(kept_index);
	f = start(&config);
	engine_kept_fds(f.engine, &pool, &index);
	assert_true(pool == -1 && index == -1);
	engine_kept(f.engine, &kept);
	assert_true(kept.given && !kept.taken);
	stop(&f);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, setup)
	const struct CMUnitTest tests[] = {
		TEST(test_survives),
		TEST(test_damaged),
		TEST(test_rounds),
		TEST(test_flips),
		TEST(test_killed),
		TEST(test_sizes),
		TEST(test_cut),
		TEST(test_swap),
		TEST(test_dormant_gives_way),
		TEST(test_wipe_dormant),
		TEST(test_disk_behind),
		TEST(test_other_identity),
		TEST(test_many_identities),
		TEST(test_expiry),
		TEST(test_uids),
		TEST(test_pins),
		TEST(test_descriptors),
		TEST(test_not_kept),
	};

	alarm(getenv("KVD_TEST_LONG") ? 600 : 60);	/* a hang is a failure */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
