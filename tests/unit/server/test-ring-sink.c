/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring sink: what is emitted is what a reader finds; full, gone and broken are
 * told apart; it lives until the last request is released, and then all is given back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <event2/event.h>
#include <math.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/server/ring-sink.h"
#include "daemon/server/stats-pages.h"
#include "ipc/base/checked.h"
#include "ipc/ring.h"

#define UID 1234
#define RING KVD_RING_MIN
#define ARENA KVD_ARENA_MIN

static struct event_base *base;
static struct mailbox *box;
static struct accounts *accounts;
static struct stats_pages *pages;
static struct stats_page *page;
static struct ring_sink *sink;
static struct segment ring, client;
static struct ring_reader reader;
static int peer;
static unsigned n_broken;

static void on_broken(void *arg)
{
	assert_ptr_equal(arg, &n_broken);
	n_broken++;
}

static int set_up(void **state)
{
	struct account_limits limits = { .max = { UINT64_MAX, 1 << 20, UINT64_MAX, UINT64_MAX } };
	struct ring_sink_config config = { .uid = UID, .ring_bytes = RING, .arena_bytes = ARENA,
					   .broken = on_broken, .arg = &n_broken };
	int fds[2];

	n_broken = 0;
	base = event_base_new();
	if (mailbox_new(&box, base) || accounts_new(&accounts, &limits) ||
	    stats_pages_new(&pages, accounts, 0) || stats_pages_get(pages, UID, &page) ||
	    socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds))
		return -1;
	config.mailbox = box;
	config.accounts = accounts;
	config.page = page;
	config.sock = fds[0];
	if (ring_sink_new(&sink, &config))
		return -1;
	/* The sink has a duplicate. */
	close(fds[0]);
	peer = fds[1];
	if (segment_map_ring(&ring, dup(ring_sink_ring(sink)->fd), RING, NULL) ||
	    segment_map_client(&client, dup(ring_sink_client(sink)->fd), ARENA, NULL))
		return -1;
	ring_sink_close_fds(sink);
	ring_reader_init(&reader, &ring, &client);
	return 0;
}

static int tear_down(void **state)
{
	mailbox_deliver(box);
	/* Nothing of the sink is left. */
	assert_int_equal(account_used(accounts, UID, ACCOUNT_MEMORY), 0);
	stats_page_unref(page);
	stats_pages_free(pages);
	accounts_free(accounts);
	mailbox_free(box);
	event_base_free(base);
	segment_deinit(&ring);
	segment_deinit(&client);
	close(peer);
	return 0;
}

static int emit(uint64_t request, const struct sink_event *events, size_t n)
{
	struct sink *s = ring_sink_sink(sink);

	return s->ops->emit(s, request, events, n);
}

static int emit_text(uint64_t request, const void *bytes, size_t n)
{
	return emit(request, &(struct sink_event){ .type = SINK_TEXT, .text = { bytes, n } }, 1);
}

/* The cursor is looked at when the room that was last seen is used up. */
static int emit_until_refused(uint64_t request)
{
	static uint8_t text[4000];
	int r;

	while ((r = emit_text(request, text, sizeof(text))) == 0)
		;
	return r;
}

static int emit_done(uint64_t request)
{
	const struct sink_event last[] = {
		{ .type = SINK_USAGE, .usage = { .prompt_tokens = 3, .generated_tokens = 1 } },
		{ .type = SINK_DONE, .done = { .reason = SINK_FINISH_LENGTH } },
	};

	return emit(request, last, ARRAY_SIZE(last));
}

static void release(uint64_t request)
{
	struct sink *s = ring_sink_sink(sink);

	s->ops->release(s, request);
}

static struct ring_record next_record(void)
{
	struct ring_record r;

	assert_int_equal(ring_next(&reader, &r), 0);
	return r;
}

static void test_every_event(void **state)
{
	const struct sink_alternative tops[] = {
		{ 7, -0.5f, (const uint8_t *)"seven", 5 }, { 8, -2.5f, NULL, 0 },
	};
	const struct sink_event events[] = {
		{ .type = SINK_PROGRESS, .progress = { 2, 5 } },
		{ .type = SINK_PROMPT, .prompt = { 11, -1.5f, 4, (const uint8_t *)"p", 1 } },
		{ .type = SINK_TOKEN, .token = { 42, NAN, true, (const uint8_t *)"ab\xc3", 3 } },
		{ .type = SINK_ALTERNATIVES, .alternatives = { tops, 2 } },
		{ .type = SINK_TEXT, .text = { (const uint8_t *)"text", 4 } },
		{ .type = SINK_USAGE, .usage = { 9, 1, 2, 1, 100, 200, 300 } },
		{ .type = SINK_DONE, .done = { SINK_FINISH_STOP_STRING, 6 } },
	};
	struct ring_alternative a;
	struct ring_record r;

	assert_int_equal(ring_sink_add(sink, 5), 0);
	assert_int_equal(emit(5, events, ARRAY_SIZE(events)), 0);
	r = next_record();
	assert_int_equal(r.type, KVD_REC_PROGRESS);
	assert_int_equal(r.request, 5);
	assert_int_equal(r.progress.done * 10 + r.progress.total, 25);
	r = next_record();
	assert_int_equal(r.type, KVD_REC_PROMPT);
	assert_int_equal(r.prompt.id * 10 + r.prompt.position, 114);
	r = next_record();
	assert_int_equal(r.type, KVD_REC_TOKEN);
	assert_int_equal(r.token.id, 42);
	assert_true(isnan(r.token.logprob) && r.token.is_control);
	assert_memory_equal(r.bytes, "ab\xc3", 3);
	r = next_record();
	assert_int_equal(r.type, KVD_REC_ALTERNATIVES);
	assert_int_equal(r.alternatives.n, 2);
	assert_int_equal(ring_record_alternative(&r, 0, &a), 0);
	assert_int_equal(a.id, 7);
	assert_memory_equal(a.bytes, "seven", 5);
	r = next_record();
	assert_int_equal(r.type, KVD_REC_TEXT);
	assert_memory_equal(r.bytes, "text", 4);
	r = next_record();
	assert_int_equal(r.type, KVD_REC_USAGE);
	assert_int_equal(r.usage.prompt_tokens, 9);
	assert_int_equal(r.usage.decode_ns, 300);
	r = next_record();
	assert_int_equal(r.type, KVD_REC_DONE);
	assert_int_equal(r.done.reason, KVD_FINISH_STOP_STRING);
	assert_int_equal(r.done.stop_index, 6);
	assert_int_equal(ring_next(&reader, &r), RING_E_EMPTY);
	release(5);
	ring_sink_close(sink);
}

static bool woken(void)
{
	char buf[64];

	return recv(peer, buf, sizeof(buf), MSG_DONTWAIT) > 0;
}

static void test_wakes_a_sleeper_once(void **state)
{
	struct sink *s = ring_sink_sink(sink);

	assert_int_equal(ring_sink_add(sink, 1), 0);
	emit_text(1, "a", 1);
	s->ops->flush(s);
	assert_false(woken());
	next_record();
	ring_consume(&reader);
	assert_true(ring_sleep(&reader));
	emit_text(1, "b", 1);
	s->ops->flush(s);
	s->ops->flush(s);
	assert_true(woken());
	assert_false(woken());
	/* A client without fences asks by message: at once if there is something, else later. */
	assert_false(ring_sink_wait(sink));
	assert_true(woken());
	next_record();
	ring_consume(&reader);
	assert_false(ring_sink_wait(sink));
	assert_false(woken());
	emit_text(1, "c", 1);
	s->ops->flush(s);
	assert_true(woken());
	emit_done(1);
	release(1);
	ring_sink_close(sink);
}

/* A socket that is full, or closed by the peer, stops nobody. */
static void test_wake_never_blocks(void **state)
{
	struct sink *s = ring_sink_sink(sink);
	struct kvd_client_header *header = segment_client(&client);

	assert_int_equal(ring_sink_add(sink, 1), 0);
	for (int i = 0; i < 5000; i++) {
		atomic_store(&header->reader_waiting, 1);
		emit_text(1, "", 0);
		s->ops->flush(s);
		while (ring_next(&reader, &(struct ring_record){ 0 }) == 0)
			;
		ring_consume(&reader);
	}
	close(peer);
	peer = -1;
	atomic_store(&header->reader_waiting, 1);
	emit_text(1, "", 0);
	s->ops->flush(s);
	release(1);
	ring_sink_close(sink);
}

static void test_full_parks_and_the_last_fits(void **state)
{
	static uint8_t text[KVD_RING_FINAL_TEXT];
	struct ring_record r;
	unsigned n = 0;

	assert_int_equal(ring_sink_add(sink, 1), 0);
	assert_int_equal(ring_sink_add(sink, 2), 0);
	while (emit_text(1, text, 4000) == 0)
		n++;
	assert_int_equal(emit_text(1, text, 4000), SINK_E_FULL);
	/* Progress alone may be lost: it never waits. */
	for (int i = 0; i < 1000; i++)
		assert_int_equal(emit(2, &(struct sink_event){ .type = SINK_PROGRESS }, 1), 0);
	/* Usage, done and 4 KiB of text always fit. */
	const struct sink_event last[] = {
		{ .type = SINK_TEXT, .text = { text, KVD_RING_FINAL_TEXT } },
		{ .type = SINK_USAGE },
		{ .type = SINK_DONE, .done = { SINK_FINISH_LENGTH, 0 } },
	};
	assert_int_equal(emit(1, last, 3), 0);
	assert_int_equal(emit_done(2), 0);
	release(1);
	release(2);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(next_record().n_bytes, 4000);
	do {
		r = next_record();
	} while (r.type == KVD_REC_PROGRESS);
	assert_int_equal(r.n_bytes, KVD_RING_FINAL_TEXT);
	assert_int_equal(next_record().type, KVD_REC_USAGE);
	assert_int_equal(next_record().type, KVD_REC_DONE);
	assert_int_equal(next_record().request, 2);
	ring_sink_close(sink);
}

/* A last batch larger than the reserve waits like any other, then ends the request. */
static void test_large_last_batch_waits(void **state)
{
	static uint8_t text[12000];
	const struct sink_event last[] = {
		{ .type = SINK_TEXT, .text = { text, sizeof(text) } },
		{ .type = SINK_DONE, .done = { SINK_FINISH_STOP, 0 } },
	};

	assert_int_equal(ring_sink_add(sink, 1), 0);
	while (emit_text(1, text, 4000) == 0)
		;
	assert_int_equal(emit(1, last, 2), SINK_E_FULL);
	while (ring_next(&reader, &(struct ring_record){ 0 }) == 0)
		;
	assert_true(ring_consume(&reader));
	assert_true(ring_sink_room(sink));
	assert_false(ring_sink_room(sink));
	assert_int_equal(emit(1, last, 2), 0);
	release(1);
	ring_sink_close(sink);
}

static void test_ids(void **state)
{
	assert_int_equal(ring_sink_add(sink, 1), 0);
	assert_int_equal(ring_sink_add(sink, 1), RING_SINK_E_DUPLICATE);
	/* Once the client has seen the end it may use the id again, released or not. */
	assert_int_equal(emit_done(1), 0);
	assert_int_equal(ring_sink_add(sink, 1), 0);
	assert_int_equal(ring_sink_add(sink, 1), RING_SINK_E_DUPLICATE);
	release(1);
	assert_int_equal(ring_sink_add(sink, 1), RING_SINK_E_DUPLICATE);
	assert_int_equal(emit_done(1), 0);
	release(1);
	/* No more than the ring has reserve for. */
	for (uint64_t id = 10; id < 10 + KVD_RING_REQUESTS(RING); id++)
		assert_int_equal(ring_sink_add(sink, id), 0);
	assert_int_equal(ring_sink_add(sink, 99), RING_SINK_E_FULL);
	ring_sink_drop(sink, 10);
	assert_int_equal(ring_sink_add(sink, 99), 0);
	for (uint64_t id = 11; id < 10 + KVD_RING_REQUESTS(RING); id++)
		ring_sink_drop(sink, id);
	ring_sink_drop(sink, 99);
	ring_sink_close(sink);
}

static void test_closed_session(void **state)
{
	struct sink *s = ring_sink_sink(sink);
	struct ring_record r;

	assert_int_equal(ring_sink_add(sink, 1), 0);
	emit_text(1, "a", 1);
	ring_sink_close(sink);
	assert_int_equal(emit_text(1, "b", 1), SINK_E_GONE);
	assert_int_equal(emit_done(1), SINK_E_GONE);
	s->ops->flush(s);
	mailbox_deliver(box);
	/* Still there for the engine, charge and all. */
	assert_true(account_used(accounts, UID, ACCOUNT_MEMORY) > RING + ARENA);
	assert_int_equal(ring_next(&reader, &r), 0);
	assert_int_equal(ring_next(&reader, &r), RING_E_CLOSED);
	release(1);
}

static void test_broken_cursor(void **state)
{
	struct kvd_client_header *header = segment_client(&client);

	assert_int_equal(ring_sink_add(sink, 1), 0);
	emit_text(1, "a", 1);
	atomic_store(&header->read_index, 1u << 20);
	assert_int_equal(emit_until_refused(1), SINK_E_GONE);
	assert_int_equal(emit_text(1, "b", 1), SINK_E_GONE);
	assert_int_equal(ring_sink_add(sink, 2), RING_SINK_E_GONE);
	mailbox_deliver(box);
	assert_int_equal(n_broken, 1);
	release(1);
	ring_sink_close(sink);
}

/* Nobody is told once the session has closed: it may be freed by then. */
static void test_broken_then_closed(void **state)
{
	struct kvd_client_header *header = segment_client(&client);

	assert_int_equal(ring_sink_add(sink, 1), 0);
	atomic_store(&header->read_index, UINT64_MAX);
	assert_int_equal(emit_until_refused(1), SINK_E_GONE);
	release(1);
	ring_sink_close(sink);
	mailbox_deliver(box);
	assert_int_equal(n_broken, 0);
}

static void test_quota(void **state)
{
	struct ring_sink *other;
	struct ring_sink_config config = {
		.mailbox = box, .accounts = accounts, .uid = UID, .page = page, .sock = peer,
		.ring_bytes = KVD_RING_DEFAULT, .arena_bytes = ARENA,
	};

	assert_int_equal(ring_sink_new(&other, &config), RING_SINK_E_QUOTA);
	config.ring_bytes = RING + 8;
	assert_int_equal(ring_sink_new(&other, &config), -EINVAL);
	assert_int_equal(account_used(accounts, UID, ACCOUNT_MEMORY), RING + ARENA + 2 * KVD_SEGMENT_DATA);
	ring_sink_close(sink);
}

static void test_counts(void **state)
{
	const struct sink_event token = { .type = SINK_TOKEN }, cancelled = {
		.type = SINK_DONE, .done = { SINK_FINISH_CANCELLED, 0 },
	}, error = { .type = SINK_ERROR, .error = { SINK_ERROR_SHUTDOWN, "stop" } };
	struct kvd_stats stats;

	for (uint64_t id = 1; id <= 5; id++)
		assert_int_equal(ring_sink_add(sink, id), 0);
	emit(1, &token, 1);
	emit(1, &token, 1);
	emit_done(1);
	emit(2, &cancelled, 1);
	emit(3, &error, 1);
	for (uint64_t id = 1; id <= 4; id++)
		release(id);	/* 4: its reader was gone */
	ring_sink_drop(sink, 5);
	stats_page_read(page, accounts, NULL, 0, &stats);
	assert_int_equal(stats.generated_tokens, 2);
	assert_int_equal(stats.prompt_tokens, 3);
	assert_int_equal(stats.requests_done, 1);
	assert_int_equal(stats.requests_cancelled, 2);
	assert_int_equal(stats.requests_failed, 1);
	assert_int_equal(stats.memory_bytes, RING + ARENA + 2 * KVD_SEGMENT_DATA);
	ring_sink_close(sink);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_every_event, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_wakes_a_sleeper_once, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_wake_never_blocks, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_full_parks_and_the_last_fits, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_large_last_batch_waits, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_ids, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_closed_session, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_broken_cursor, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_broken_then_closed, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_quota, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_counts, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
