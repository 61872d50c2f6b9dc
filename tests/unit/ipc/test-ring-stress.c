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
	NO_ORDER,		/* it looks, but with acquire and release only */
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
	uint64_t w;

	switch (s->rule) {
	case NO_SECOND_LOOK:
		sched_yield();
		atomic_store(&r->client->reader_waiting, 1);
		return true;
	case NO_ORDER:
		atomic_store_explicit(&r->client->reader_waiting, 1, memory_order_release);
		w = atomic_load_explicit(&r->header->write_index, memory_order_acquire);
		return w == r->read_index && !atomic_load_explicit(&r->header->closed, memory_order_acquire);
	default:
		return ring_sleep(r);
	}
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

/* --- the order of two words, without any sleep ------------------------------------------- */

/*
 * One round: the ring is empty; at the same moment the reader is about to sleep and
 * the writer publishes a record.  If the reader sleeps and the writer sends
 * no wake, it is lost.  Or: the ring is full; at the same moment the reader gives all of
 * it back and the writer wants to write.  If the writer parks and the reader sends no
 * room, it is parked for ever.  A round takes about a microsecond, so that the
 * two meet within the few nanoseconds in which a store may be passed by a later load.
 */
struct litmus {
	struct stress s;
	bool (*half)(struct stress *s);	/* the reader's half */
	/* The last round in which: */
	_Atomic uint32_t prepared;	/* the writer has filled the ring, or left it empty */
	_Atomic uint32_t ready;		/* the reader has taken what is there */
	_Atomic uint32_t round;		/* both begin */
	_Atomic uint32_t decided;	/* the reader has done its half */
	_Atomic uint32_t settled;	/* and the writer */
	_Atomic uint32_t over;		/* nothing is left of it */
	_Atomic bool quiet;		/* what the reader's half returned */
	_Atomic bool end;
};

static void await(_Atomic uint32_t *word, uint32_t value, _Atomic bool *end)
{
	for (uint32_t i = 1; atomic_load_explicit(word, memory_order_acquire) != value; i++) {
		if (atomic_load(end))
			return;
		if (i % 4096 == 0)
			sched_yield();
	}
}

/* To the n-th CPU that we may use: on one and the same the two never meet. */
static void pin(pthread_t thread, int n)
{
	cpu_set_t all, one;

	if (sched_getaffinity(0, sizeof(all), &all) < 0)
		return;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &all) || n-- > 0)
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		(void)pthread_setaffinity_np(thread, sizeof(one), &one);
		return;
	}
}

/* The reader's half of a round; true: it sends nothing, or sleeps. */
typedef bool (*half_fn)(struct stress *s);

/* A sleep: the ring is empty. */
static bool half_sleep(struct stress *s)
{
	return about_to_sleep(s, &s->f.reader);
}

/* Room: the ring is full, and all of it is read. */
static bool half_consume(struct stress *s)
{
	return !ring_consume(&s->f.reader);
}

static void take_all(struct ring_reader *r)
{
	struct ring_record record;

	while (ring_next(r, &record) == 0)
		continue;
}

static void delay(uint64_t *seed)
{
	for (volatile uint32_t i = prng_below(seed, 400); i > 0; i--)
		continue;
}

static void *litmus_reader(void *arg)
{
	struct litmus *l = arg;
	struct ring_reader *r = &l->s.f.reader;
	uint64_t seed = 11;

	for (uint32_t round = 1;; round++) {
		await(&l->prepared, round, &l->end);
		take_all(r);
		atomic_store_explicit(&l->ready, round, memory_order_release);
		await(&l->round, round, &l->end);
		if (atomic_load(&l->end))
			return NULL;
		delay(&seed);
		atomic_store_explicit(&l->quiet, l->half(&l->s), memory_order_relaxed);
		atomic_store_explicit(&l->decided, round, memory_order_release);
		/* Not earlier: the flag is the writer's to see until then. */
		await(&l->settled, round, &l->end);
		take_all(r);
		ring_consume(r);
		ring_awake(r);
		atomic_store_explicit(&l->over, round, memory_order_release);
	}
}

static void litmus_start(struct litmus *l, enum rule rule, half_fn half, pthread_t *thread, cpu_set_t *cpus)
{
	memset(l, 0, sizeof(*l));
	stress_init(&l->s, rule, 0, true);
	l->half = half;
	assert_int_equal(sched_getaffinity(0, sizeof(*cpus), cpus), 0);
	assert_int_equal(pthread_create(thread, NULL, litmus_reader, l), 0);
	pin(*thread, 1);
	pin(pthread_self(), 0);
}

static void litmus_stop(struct litmus *l, pthread_t thread, const cpu_set_t *cpus)
{
	atomic_store(&l->end, true);
	pthread_join(thread, NULL);
	(void)pthread_setaffinity_np(pthread_self(), sizeof(*cpus), cpus);
	stress_deinit(&l->s);
}

/* Both sides have decided; returns whether the reader was quiet. */
static bool litmus_settle(struct litmus *l, uint32_t round)
{
	atomic_store_explicit(&l->settled, round, memory_order_release);
	await(&l->decided, round, &l->end);
	return atomic_load(&l->quiet);
}

/* How many wake-ups are lost in n rounds, or until the first if until_lost. */
static uint32_t run_sleep_litmus(enum rule rule, uint32_t n, bool until_lost)
{
	static struct litmus l;
	uint64_t seed = 12;
	uint32_t n_lost = 0;
	cpu_set_t cpus;
	pthread_t thread;

	litmus_start(&l, rule, half_sleep, &thread, &cpus);
	for (uint32_t round = 1; round <= n && !(until_lost && n_lost > 0); round++) {
		bool woken;

		atomic_store_explicit(&l.prepared, round, memory_order_release);
		await(&l.ready, round, &l.end);
		atomic_store_explicit(&l.round, round, memory_order_release);
		delay(&seed);
		assert_int_equal(write_record(&l.s, 0), 0);
		woken = ring_needs_wake(&l.s.f.writer);
		n_lost += litmus_settle(&l, round) && !woken;
		await(&l.over, round, &l.end);
	}
	litmus_stop(&l, thread, &cpus);
	return n_lost;
}

static int write_large(struct stress *s)
{
	static const uint8_t text[KVD_RING_BATCH_MAX(KVD_RING_MIN) - 24];

	ring_begin(&s->f.writer, false);
	ring_put_text(&s->f.writer, 1, text, sizeof(text));
	return ring_commit(&s->f.writer);
}

/* How many times in n rounds the writer parks for ever. */
static uint32_t run_room_litmus(uint32_t n)
{
	static struct litmus l;
	uint64_t seed = 13;
	uint32_t n_lost = 0;
	cpu_set_t cpus;
	pthread_t thread;

	litmus_start(&l, WHOLE, half_consume, &thread, &cpus);
	for (uint32_t round = 1; round <= n; round++) {
		int r;

		while (write_large(&l.s) == 0)
			continue;
		ring_room(&l.s.f.writer);
		atomic_store_explicit(&l.prepared, round, memory_order_release);
		await(&l.ready, round, &l.end);
		atomic_store_explicit(&l.round, round, memory_order_release);
		delay(&seed);
		r = write_large(&l.s);
		assert_true(r == 0 || r == RING_E_FULL);
		n_lost += litmus_settle(&l, round) && r == RING_E_FULL;
		await(&l.over, round, &l.end);
	}
	litmus_stop(&l, thread, &cpus);
	return n_lost;
}

static void test_order(void **state)
{
	assert_int_equal(run_sleep_litmus(WHOLE, scaled(30000), false), 0);
	/* And the rounds do see a reader that forgets the second look. */
	assert_true(run_sleep_litmus(NO_SECOND_LOOK, 1000, false) > 0);
}

static void test_order_of_room(void **state)
{
	assert_int_equal(run_room_litmus(scaled(20000)), 0);
}

/*
 * Acquire and release are not enough.  Whether that shows depends on two cores being
 * ours at the same moment, so that only the long run insists.
 */
static void test_missing_order_is_seen(void **state)
{
	assert_int_equal(run_sleep_litmus(NO_ORDER, 20000000, true), 1);
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
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_order_of_room),
	};
	const struct CMUnitTest long_tests[] = {
		cmocka_unit_test(test_missing_order_is_seen),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);

	if (getenv("KVD_TEST_LONG"))
		failed += cmocka_run_group_tests(long_tests, NULL, NULL);
	return failed;
}
