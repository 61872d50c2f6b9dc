/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HTTP sink: what is emitted is what is read, in its order; a reader that stops fills it to a bound, and the last
 * batches still fit; it lives until the last request is released, and then all is given back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <event2/event.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>

#include "daemon/server/http-sink.h"
#include "daemon/server/stats-pages.h"
#include "ipc/base/checked.h"
#include "ipc/protocol.h"

#define ACCOUNT 1234
#define REQUESTS 20

static struct event_base *base;
static struct mailbox *box;
static struct accounts *accounts;
static struct stats_pages *pages;
static struct stats_page *page;
static struct http_sink *sink;
static unsigned n_ready;

static void on_ready(void *arg)
{
	assert_ptr_equal(arg, &n_ready);
	n_ready++;
}

static int set_up(void **state)
{
	struct account_limits limits = { .max = { UINT64_MAX, 8 << 20, UINT64_MAX, UINT64_MAX } };
	struct http_sink_config config = { .account = ACCOUNT, .n_requests = REQUESTS,
					   .ready = on_ready, .arg = &n_ready };

	n_ready = 0;
	base = event_base_new();
	if (mailbox_new(&box, base) || accounts_new(&accounts, &limits) || stats_pages_new(&pages, accounts, 0) ||
	    stats_pages_get(pages, ACCOUNT, &page))
		return -1;
	config.mailbox = box;
	config.accounts = accounts;
	config.page = page;
	return http_sink_new(&sink, &config);
}

static int tear_down(void **state)
{
	mailbox_deliver(box);
	/* Nothing of the sink is left. */
	assert_int_equal(account_used(accounts, ACCOUNT, ACCOUNT_MEMORY), 0);
	stats_page_unref(page);
	stats_pages_free(pages);
	accounts_free(accounts);
	mailbox_free(box);
	event_base_free(base);
	return 0;
}

static int emit(uint64_t request, const struct sink_event *events, size_t n)
{
	struct sink *s = http_sink_sink(sink);

	return s->ops->emit(s, request, events, n);
}

static void flush(void)
{
	struct sink *s = http_sink_sink(sink);

	s->ops->flush(s);
}

static void release(uint64_t request)
{
	struct sink *s = http_sink_sink(sink);

	s->ops->release(s, request);
}

static int emit_text(uint64_t request, const void *bytes, size_t n)
{
	return emit(request, &(struct sink_event){ .type = SINK_TEXT, .text = { bytes, n } }, 1);
}

static int emit_done(uint64_t request, const void *text, size_t n_text)
{
	const struct sink_event last[] = {
		{ .type = SINK_TEXT, .text = { text, n_text } },
		{ .type = SINK_USAGE, .usage = { .prompt_tokens = 3, .miss_bytes = text, .n_miss_bytes = 500 } },
		{ .type = SINK_DONE, .done = { .reason = SINK_FINISH_LENGTH } },
	};

	return emit(request, last, ARRAY_SIZE(last));
}

static bool same(const uint8_t *a, size_t n_a, const char *b)
{
	return n_a == strlen(b) && !memcmp(a, b, n_a);
}

static void test_every_event(void **state)
{
	const struct sink_alternative tops[] = {
		{ 7, -0.5f, (const uint8_t *)"seven", 5 },
		{ 8, -2.5f, NULL, 0 },
		{ 9, -3.5f, (const uint8_t *)"nine.", 5 },
	};
	const struct sink_event events[] = {
		{ .type = SINK_TOKEN, .token = { 42, NAN, true, (const uint8_t *)"ab\xc3", 3 } },
		{ .type = SINK_ALTERNATIVES, .alternatives = { tops, 3 } },
		{ .type = SINK_TEXT, .text = { (const uint8_t *)"text", 4 } },
	};
	const struct sink_event prompt = { .type = SINK_PROMPT, .prompt = { 11, -1.5f, 4, (const uint8_t *)"p", 1 } };
	static const float values[] = { 0.25f, -1.5f, 3 };
	const struct sink_event embedding = { .type = SINK_EMBEDDING, .embedding = { .values = values, .n = 3 } };
	const struct sink_event error = { .type = SINK_ERROR, .error = { SINK_ERROR_BUSY, "why" } };
	struct http_batch b;

	assert_int_equal(http_sink_add(sink, 3), 0);
	assert_int_equal(http_sink_add(sink, 3), -EINVAL);
	assert_int_equal(emit(3, events, 3), 0);
	assert_int_equal(emit(3, &prompt, 1), 0);
	assert_int_equal(emit(3, &(struct sink_event){ .type = SINK_PROGRESS, .progress = { 2, 5 } }, 1), 0);
	assert_int_equal(emit(3, &embedding, 1), 0);
	assert_int_equal(emit(3, &error, 1), 0);
	/* After its last batch, and one that was never added. */
	assert_int_equal(emit(3, &prompt, 1), SINK_E_GONE);
	assert_int_equal(emit(4, &prompt, 1), SINK_E_GONE);

	assert_true(http_sink_next(sink, &b));
	assert_true(b.request == 3 && b.n == 3);
	assert_true(b.events[0].token.id == 42 && b.events[0].token.is_control);
	assert_true(isnan(b.events[0].token.logprob));
	assert_true(same(b.events[0].token.bytes, b.events[0].token.n_bytes, "ab\xc3"));
	assert_int_equal(b.events[1].alternatives.n, 3);
	assert_true(same(b.events[1].alternatives.items[0].bytes, b.events[1].alternatives.items[0].n_bytes, "seven"));
	assert_int_equal(b.events[1].alternatives.items[1].n_bytes, 0);
	assert_true(same(b.events[1].alternatives.items[2].bytes, b.events[1].alternatives.items[2].n_bytes, "nine."));
	assert_true(b.events[1].alternatives.items[2].id == 9 && b.events[1].alternatives.items[2].logprob == -3.5f);
	assert_true(same(b.events[2].text.bytes, b.events[2].text.n_bytes, "text"));
	assert_true(http_sink_next(sink, &b));
	assert_true(b.n == 1 && b.events[0].prompt.position == 4 && same(b.events[0].prompt.bytes, 1, "p"));
	assert_true(http_sink_next(sink, &b));
	assert_true(b.events[0].progress.total == 5);
	assert_true(http_sink_next(sink, &b));
	assert_int_equal(b.events[0].embedding.n, 3);
	assert_memory_equal(b.events[0].embedding.values, values, sizeof(values));
	assert_true(http_sink_next(sink, &b));
	assert_int_equal(b.events[0].error.code, SINK_ERROR_BUSY);
	assert_string_equal(b.events[0].error.text, "why");
	assert_false(http_sink_next(sink, &b));
	release(3);
	http_sink_close(sink);
}

/* One mail, however often it is flushed, and another after it. */
static void test_wake(void **state)
{
	struct http_batch b;

	assert_int_equal(http_sink_add(sink, 0), 0);
	flush();
	mailbox_deliver(box);
	assert_int_equal(n_ready, 0);
	for (int round = 1; round <= 2; round++) {
		for (int i = 0; i < 3; i++) {
			assert_int_equal(emit_text(0, "x", 1), 0);
			flush();
		}
		mailbox_deliver(box);
		assert_int_equal(n_ready, round);
		while (http_sink_next(sink, &b))
			;
	}
	assert_int_equal(emit_text(0, "x", 1), 0);
	flush();
	http_sink_close(sink);
	mailbox_deliver(box);
	assert_int_equal(n_ready, 2);
	assert_int_equal(emit_text(0, "x", 1), SINK_E_GONE);
	release(0);
}

/* Full, with the last batches of all still to come, each as long as it may be. */
static void test_full(void **state)
{
	static uint8_t text[4096];
	struct http_batch b;
	unsigned n_text = 0, n_last = 0, n_emitted = 0;

	for (unsigned i = 0; i < REQUESTS; i++)
		assert_int_equal(http_sink_add(sink, i), 0);
	while (emit_text(0, text, 1000) == 0)
		n_emitted++;
	assert_in_range(n_emitted, HTTP_SINK_QUEUE_MAX / 1100, HTTP_SINK_QUEUE_MAX / 1000);
	assert_int_equal(emit_text(1, text, 1000), SINK_E_FULL);
	assert_int_equal(emit(1, &(struct sink_event){ .type = SINK_PROGRESS }, 1), 0);
	for (unsigned i = 1; i < REQUESTS; i++)
		assert_int_equal(emit_done(i, text, sizeof(text)), 0);
	assert_true(http_sink_room(sink));
	assert_false(http_sink_room(sink));
	while (http_sink_next(sink, &b)) {
		n_text += b.events[0].type == SINK_TEXT && b.n == 1;
		n_last += b.n == 3;
		if (b.n == 3) {
			assert_int_equal(b.events[0].text.n_bytes, 4096);
			assert_int_equal(b.events[1].usage.n_miss_bytes, KVD_MISS_BYTES_MAX);
		}
	}
	assert_true(n_text == n_emitted && n_last == REQUESTS - 1);
	/* There is room again, also for one batch that is larger than the whole queue. */
	{
		static uint8_t large[2 * HTTP_SINK_QUEUE_MAX];

		assert_int_equal(emit_text(0, large, sizeof(large)), 0);
		assert_int_equal(emit_text(0, large, 1), SINK_E_FULL);
		assert_true(http_sink_next(sink, &b));
		assert_int_equal(b.events[0].text.n_bytes, sizeof(large));
		assert_false(http_sink_next(sink, &b));
	}
	assert_int_equal(emit_done(0, text, sizeof(text)), 0);
	for (unsigned i = 0; i < REQUESTS; i++)
		release(i);
	/* The requests are gone; what they said is still there. */
	assert_true(http_sink_next(sink, &b));
	assert_true(b.request == 0 && b.n == 3);
	http_sink_close(sink);
}

static void test_quota(void **state)
{
	struct http_sink_config config = { .mailbox = box, .accounts = accounts, .account = ACCOUNT,
					   .n_requests = HTTP_SINK_REQUESTS_MAX };
	struct http_sink *other;

	assert_int_equal(http_sink_new(&other, &config), HTTP_SINK_E_QUOTA);
	config.n_requests++;
	assert_int_equal(http_sink_new(&other, &config), -EINVAL);
	assert_int_equal(http_sink_add(sink, 0), 0);
	http_sink_close(sink);
	http_sink_drop(sink, 0);
}

/* --- two threads --------------------------------------------------------------------------- */

#define ROUNDS 20000


static void *emitter(void *arg)
{
	uint8_t text[600];

	for (uint32_t i = 0; i < ROUNDS;) {
		uint64_t request = i % REQUESTS;

		memset(text, (int)(i & 0xff), sizeof(text));
		if (emit(request, (struct sink_event[]){
				 { .type = SINK_TOKEN, .token = { (int32_t)i, 0, false, text, i % 7 } },
				 { .type = SINK_TEXT, .text = { text, i % sizeof(text) } } }, 2) == 0)
			i++;
		else
			poll(NULL, 0, 1);
		if (i % 3 == 0)
			flush();
	}
	for (unsigned i = 0; i < REQUESTS; i++) {
		assert_int_equal(emit_done(i, text, sizeof(text)), 0);
		flush();
		release(i);
	}
	return NULL;
}

static void test_threads(void **state)
{
	unsigned n_done = 0;
	struct http_batch b;
	uint32_t next = 0;
	pthread_t thread;

	for (unsigned i = 0; i < REQUESTS; i++)
		assert_int_equal(http_sink_add(sink, i), 0);
	assert_int_equal(pthread_create(&thread, NULL, emitter, NULL), 0);
	while (n_done < REQUESTS) {
		mailbox_deliver(box);
		while (http_sink_next(sink, &b)) {
			if (b.n == 3) {
				n_done++;
				continue;
			}
			assert_int_equal(b.n, 2);
			assert_int_equal(b.events[0].token.id, (int32_t)next);
			assert_int_equal(b.request, next % REQUESTS);
			assert_int_equal(b.events[1].text.n_bytes, next % 600);
			for (size_t i = 0; i < b.events[1].text.n_bytes; i++)
				assert_int_equal(b.events[1].text.bytes[i], next & 0xff);
			next++;
		}
		http_sink_room(sink);
		assert_false(http_sink_failed(sink));
	}
	assert_int_equal(next, ROUNDS);
	pthread_join(thread, NULL);
	http_sink_close(sink);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_every_event, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_wake, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_full, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_quota, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_threads, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
