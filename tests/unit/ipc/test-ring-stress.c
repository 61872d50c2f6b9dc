/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two sides at once, as threads (so that the thread sanitizer sees them) and as
 * processes: data under back-pressure, and the rule of sleep and wake.
 *
 * Nothing depends on time.  A sleep that lasts is looked into: if the other side
 * has done all it will do for what is in the ring, and no datagram is pending, then the
 * wake-up is lost for ever.  A reader and a writer that leave out the rule's
 * second look live in this file, to prove that the test sees what it is for.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/fdpass.h"
#include "tests/unit/ipc/prng.h"
#include "tests/unit/ipc/ring-fixture.h"

#define LOOK_MS 20	/* how long a sleep lasts before it is looked into */

enum rule {
	WHOLE,
	NO_SECOND_LOOK,		/* the reader sets its flag and sleeps */
	NO_ROOM_LOOK,		/* the writer parks without looking at the cursor again */
};

/* What both sides tell the test, and only the test. */
struct report {
	_Atomic uint64_t flushed;	/* write index up to which the writer has sent what it must */
	_Atomic uint64_t announced;	/* read index up to which the reader has sent what it must */
	_Atomic bool over;
	_Atomic uint32_t lost_wakes, lost_rooms;
	_Atomic uint32_t sleeps, parks;
	_Atomic uint32_t wrong;		/* records that are not what was written */
};

struct stress {
	struct ring_fixture f;
	int daemon, client;	/* a pair of sockets */
	struct report *report;
	enum rule rule;
	uint32_t n;		/* records to write */
	uint64_t seed;
	bool lockstep;		/* the writer waits until each record is read: a lost wake stops both */
};

static void stress_init(struct stress *s, enum rule rule, uint32_t n, bool lockstep)
{
	int fds[2];

	memset(s, 0, sizeof(*s));
	ring_fixture_init(&s->f, KVD_RING_MIN, UINT64_MAX - 4095);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
	s->daemon = fds[0];
	s->client = fds[1];
	s->report = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(s->report, MAP_FAILED);
	atomic_store(&s->report->flushed, UINT64_MAX - 4095);
	atomic_store(&s->report->announced, UINT64_MAX - 4095);
	s->rule = rule;
	s->n = n;
	s->lockstep = lockstep;
	s->seed = 7;
}

static void stress_deinit(struct stress *s)
{
	ring_fixture_deinit(&s->f);
	close(s->daemon);
	close(s->client);
	munmap(s->report, 4096);
}

static void spin(uint64_t *seed)
{
	for (volatile uint32_t i = prng_below(seed, 300); i > 0; i--)
		continue;
}

/* A datagram within LOOK_MS. */
static bool wait_datagram(int sock)
{
	struct pollfd p = { .fd = sock, .events = POLLIN };
	uint8_t byte;
	size_t n;

	if (poll(&p, 1, LOOK_MS) <= 0)
		return false;
	(void)fdpass_recv(sock, &byte, 1, &n, NULL, 0, NULL, FDPASS_DONTWAIT);
	return true;
}

static bool pending(int sock)
{
	struct pollfd p = { .fd = sock, .events = POLLIN };

	return poll(&p, 1, 0) > 0;
}

static void send_byte(int sock)
{
	/* Full counts as sent: there is something to wake up for already. */
	(void)fdpass_send(sock, "x", 1, NULL, 0, FDPASS_DONTWAIT);
}

/* --- writer ---------------------------------------------------------------------------- */

static uint8_t body(uint32_t number, size_t i)
{
	return (uint8_t)((number * 2654435761u >> 16) + i * 13u);
}

static size_t length_of(uint32_t number)
{
	return (number * 2654435761u >> 8) % 700;
}

static int write_record(struct stress *s, uint32_t number)
{
	uint8_t text[700];
	size_t n = length_of(number);

	for (size_t i = 0; i < n; i++)
		text[i] = body(number, i);
	ring_begin(&s->f.writer, false);
	ring_put_text(&s->f.writer, number, text, n);
	return ring_commit(&s->f.writer);
}

static void flush(struct stress *s)
{
	if (ring_needs_wake(&s->f.writer))
		send_byte(s->daemon);
	atomic_store(&s->report->flushed, s->f.writer.write_index);
}

/* Until there is room, by the reader's message alone. */
static void park(struct stress *s)
{
	atomic_fetch_add(&s->report->parks, 1);
	while (!wait_datagram(s->daemon)) {
		uint64_t all = s->f.writer.write_index;

		if (atomic_load(&s->report->announced) == all && !pending(s->daemon)) {
			atomic_fetch_add(&s->report->lost_rooms, 1);
			break;
		}
	}
	ring_room(&s->f.writer);
}

/* Parks without the writer's second look at the cursor: as ring_commit() would with a rule forgotten. */
static int write_record_carelessly(struct stress *s, uint32_t number)
{
	struct ring_writer *w = &s->f.writer;
	uint64_t unread = w->write_index - w->read_index;
	int r;

	if (unread + 800 <= w->size / 2)
		return write_record(s, number);
	w->read_index = atomic_load(&w->client->read_index);
	if (w->write_index - w->read_index + 800 > w->size / 2) {
		sched_yield();
		atomic_store(&w->header->writer_waiting, ++w->n_parked);
		return RING_E_FULL;
	}
	r = write_record(s, number);
	return r;
}

static int write_by_rule(struct stress *s, uint32_t number)
{
	return s->rule == NO_ROOM_LOOK ? write_record_carelessly(s, number) : write_record(s, number);
}

static bool lost(const struct stress *s)
{
	return atomic_load(&s->report->lost_wakes) + atomic_load(&s->report->lost_rooms) > 3;
}

static void write_all(struct stress *s)
{
	uint64_t seed = s->seed;

	for (uint32_t number = 0; number < s->n && !lost(s); number++) {
		while (write_by_rule(s, number) == RING_E_FULL) {
			flush(s);
			park(s);
			if (lost(s))
				break;
		}
		if (s->lockstep || prng_below(&seed, 3) == 0)
			flush(s);
		while (s->lockstep && ring_unread(&s->f.writer) > 0 && !lost(s))
			spin(&seed);
	}
	flush(s);
	ring_close(&s->f.writer);
	flush(s);
	atomic_store(&s->report->over, true);
	send_byte(s->daemon);	/* the end of what is read, in the rules' broken forms too */
}

/* --- reader ---------------------------------------------------------------------------- */

static bool about_to_sleep(struct stress *s, struct ring_reader *r)
{
	if (s->rule != NO_SECOND_LOOK)
		return ring_sleep(r);
	sched_yield();
	atomic_store(&r->client->reader_waiting, 1);
	return true;
}

static void sleep_until_woken(struct stress *s, struct ring_reader *r)
{
	if (!about_to_sleep(s, r))
		return;
	atomic_fetch_add_explicit(&s->report->sleeps, 1, memory_order_relaxed);
	while (!wait_datagram(s->client)) {
		uint64_t done = atomic_load(&s->report->flushed);

		if ((int64_t)(done - r->read_index) > 0 && !pending(s->client)) {
			atomic_fetch_add(&s->report->lost_wakes, 1);
			return;
		}
		if (atomic_load(&s->report->over))
			return;
	}
}

static void check_record(struct stress *s, const struct ring_record *record, uint32_t number)
{
	bool good = record->type == KVD_REC_TEXT && record->request == number &&
		    record->n_bytes == length_of(number);

	for (uint32_t i = 0; good && i < record->n_bytes; i++)
		good = record->bytes[i] == body(number, i);
	if (!good)
		atomic_fetch_add(&s->report->wrong, 1);
}

static void read_all(struct stress *s, struct ring_reader *r)
{
	uint64_t seed = s->seed + 1;
	uint32_t number = 0;

	for (;;) {
		struct ring_record record;
		int e = ring_next(r, &record);

		if (e == 0) {
			check_record(s, &record, number++);
			if (!s->lockstep && prng_below(&seed, 4) > 0)
				continue;
		}
		if (ring_consume(r))
			send_byte(s->client);
		atomic_store(&s->report->announced, r->consumed);
		if (e == RING_E_EMPTY)
			sleep_until_woken(s, r);
		else if (e)
			break;
		if (!s->lockstep && prng_below(&seed, 2000) == 0)
			usleep(500);	/* so that the ring fills up */
	}
	if (number != s->n && !lost(s))
		atomic_fetch_add(&s->report->wrong, 1);
}

static void *reader_thread(void *arg)
{
	struct stress *s = arg;

	read_all(s, &s->f.reader);
	return NULL;
}

static void run_threads(struct stress *s)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, reader_thread, s), 0);
	write_all(s);
	pthread_join(thread, NULL);
}

/* As libkvd: the segments come through the socket and are mapped anew. */
static int reader_process(struct stress *s)
{
	struct segment ring, client;
	struct ring_reader reader;
	uint8_t byte;
	size_t n, n_fds;
	int fds[2];

	if (fdpass_recv(s->client, &byte, 1, &n, fds, 2, &n_fds, 0) || n_fds != 2)
		return 1;
	if (segment_map_ring(&ring, fds[0], KVD_RING_MIN, NULL) ||
	    segment_map_client(&client, fds[1], KVD_ARENA_MIN, NULL))
		return 2;
	ring_reader_init(&reader, &ring, &client);
	read_all(s, &reader);
	return 0;
}

static void run_processes(struct stress *s)
{
	int fds[2] = { s->f.ring.fd, s->f.client.fd }, status;
	pid_t child;

	assert_int_equal(fdpass_send(s->daemon, "x", 1, fds, 2, 0), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		_exit(reader_process(s));
	write_all(s);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* --- tests ------------------------------------------------------------------------------ */

static uint32_t scaled(uint32_t n)
{
	return getenv("KVD_TEST_LONG") ? n * 20 : n;
}

static void assert_clean(const struct stress *s)
{
	assert_int_equal(atomic_load(&s->report->lost_wakes), 0);
	assert_int_equal(atomic_load(&s->report->lost_rooms), 0);
	assert_int_equal(atomic_load(&s->report->wrong), 0);
}

static void test_data_threads(void **state)
{
	struct stress s;

	stress_init(&s, WHOLE, scaled(50000), false);
	run_threads(&s);
	assert_clean(&s);
	assert_true(atomic_load(&s.report->parks) > 0);
	stress_deinit(&s);
}

static void test_data_processes(void **state)
{
	struct stress s;

	stress_init(&s, WHOLE, scaled(50000), false);
	run_processes(&s);
	assert_clean(&s);
	assert_true(atomic_load(&s.report->parks) > 0);
	stress_deinit(&s);
}

/* Record by record: the reader sleeps as often as it can. */
static void test_wake_threads(void **state)
{
	struct stress s;

	stress_init(&s, WHOLE, scaled(20000), true);
	run_threads(&s);
	assert_clean(&s);
	assert_true(atomic_load(&s.report->sleeps) > 100);
	stress_deinit(&s);
}

static void test_wake_processes(void **state)
{
	struct stress s;

	stress_init(&s, WHOLE, scaled(20000), true);
	run_processes(&s);
	assert_clean(&s);
	assert_true(atomic_load(&s.report->sleeps) > 100);
	stress_deinit(&s);
}

/* The same test sees lost wake-ups when there is no second look. */
static void test_broken_sleep_is_seen(void **state)
{
	struct stress s;

	stress_init(&s, NO_SECOND_LOOK, 2000000, true);
	run_processes(&s);
	assert_true(atomic_load(&s.report->lost_wakes) > 0);
	stress_deinit(&s);
}

/* And the same for room. */
static void test_broken_park_is_seen(void **state)
{
	struct stress s;

	stress_init(&s, NO_ROOM_LOOK, 2000000, false);
	run_processes(&s);
	assert_true(atomic_load(&s.report->lost_rooms) > 0);
	stress_deinit(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_data_threads),
		cmocka_unit_test(test_data_processes),
		cmocka_unit_test(test_wake_threads),
		cmocka_unit_test(test_wake_processes),
		cmocka_unit_test(test_broken_sleep_is_seen),
		cmocka_unit_test(test_broken_park_is_seen),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
