/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "ipc/stats.h"

/* Every word depends on n, so that a mix of two states is seen. */
static struct kvd_stats figures(uint64_t n)
{
	uint64_t words[KVD_STATS_WORDS] = { 0 };
	struct kvd_stats s;

	for (size_t i = 0; i < KVD_STATS_WORDS; i++)
		words[i] = n * 1000003u + i;
	memcpy(&s, words, sizeof(s));
	return s;
}

static bool consistent(const struct kvd_stats *s)
{
	uint64_t words[KVD_STATS_WORDS];

	memcpy(words, s, sizeof(words));
	for (size_t i = 1; i < KVD_STATS_WORDS; i++)
		if (words[i] != words[0] + i)
			return false;
	return words[0] % 1000003u == 0;
}

static void test_there_and_back(void **state)
{
	struct kvd_stats in = figures(12), out;
	const struct kvd_stats_page *page;
	struct segment daemon, client;

	assert_int_equal(stats_new(&daemon, KVD_STATS_UID, 1234), 0);
	assert_int_equal(stats_map(&client, fcntl(daemon.fd, F_DUPFD_CLOEXEC, 0), NULL), 0);
	assert_int_equal(stats_read(&client, &out), 0);
	assert_int_equal(out.pid, 0);
	stats_write(&daemon, &in);
	assert_int_equal(stats_read(&client, &out), 0);
	assert_memory_equal(&in, &out, sizeof(in));
	page = client.map;
	assert_int_equal(page->scope, KVD_STATS_UID);
	assert_int_equal(page->uid, 1234);
	assert_int_equal(page->n_words, KVD_STATS_WORDS);
	segment_deinit(&client);
	segment_deinit(&daemon);
}

static void test_totals_name_no_uid(void **state)
{
	struct segment s;

	assert_int_equal(stats_new(&s, KVD_STATS_ALL, 1234), 0);
	assert_int_equal(((const struct kvd_stats_page *)s.map)->scope, KVD_STATS_ALL);
	assert_int_equal(((const struct kvd_stats_page *)s.map)->uid, 0);
	segment_deinit(&s);
}

/* A daemon that died while writing: readers give up, and are not held. */
static void test_writer_in_the_way(void **state)
{
	struct kvd_stats in = figures(1), out = figures(2), before = out;
	struct kvd_stats_page *page;
	struct segment s;

	assert_int_equal(stats_new(&s, KVD_STATS_ALL, 0), 0);
	stats_write(&s, &in);
	page = s.map;
	atomic_fetch_add(&page->sequence, 1);
	assert_int_equal(stats_read(&s, &out), STATS_E_BUSY);
	assert_memory_equal(&out, &before, sizeof(out));
	segment_deinit(&s);
}

/* A thread sanitizer sees a race in one read as well as in many, and makes each take a hundred times as long. */
#ifdef __SANITIZE_THREAD__
#define N_READS 2000
#else
#define N_READS 200000
#endif

static struct segment shared;
static _Atomic bool stop;

static void *writer(void *arg)
{
	for (uint64_t n = 1; !atomic_load(&stop); n++) {
		struct kvd_stats s = figures(n);

		stats_write(&shared, &s);
		for (volatile int i = 0; i < 200; i++)
			continue;
	}
	return NULL;
}

static void test_no_torn_copies(void **state)
{
	uint64_t last = 0, n_different = 0, n_read = 0;
	struct kvd_stats first = figures(0);
	pthread_t thread;

	assert_int_equal(stats_new(&shared, KVD_STATS_ALL, 0), 0);
	stats_write(&shared, &first);
	assert_int_equal(pthread_create(&thread, NULL, writer, NULL), 0);
	for (uint64_t i = 0; i < 200000000 && (n_read < N_READS || n_different < 100); i++) {
		struct kvd_stats s;

		if (stats_read(&shared, &s))
			continue;
		n_read++;
		assert_true(consistent(&s));
		assert_true(s.started_ns >= last);	/* time does not go back */
		n_different += s.started_ns != last;
		last = s.started_ns;
	}
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	assert_true(n_different >= 100);
	segment_deinit(&shared);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_there_and_back),
		cmocka_unit_test(test_totals_name_no_uid),
		cmocka_unit_test(test_writer_in_the_way),
		cmocka_unit_test(test_no_torn_copies),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
