/* SPDX-License-Identifier: Apache-2.0 */
/* The ring's records, sizes and flags, in one thread. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "tests/unit/ipc/ring-fixture.h"

static const uint8_t *b(const char *s)
{
	return (const uint8_t *)s;
}

static void assert_bytes(const struct ring_record *r, const char *s)
{
	assert_int_equal(r->n_bytes, strlen(s));
	assert_memory_equal(r->bytes, s, strlen(s));
}

static void test_every_record(void **state)
{
	struct ring_alternative alternatives[3] = {
		{ 1, -0.5f, b("one"), 3 }, { 2, -1.5f, b(""), 0 },
		{ INT32_MAX, -INFINITY, b("\xff\xfe\xfd\xfc\xfb"), 5 },
	};
	struct ring_usage usage = { 1, 2, 3, KVD_MISS_DIFFERS, 1ull << 40, 5, UINT64_MAX, INT32_MAX, b(" \xc3"), 2 };
	struct ring_fixture f;
	struct ring_record r;
	struct ring_alternative a;

	ring_fixture_init(&f, KVD_RING_MIN, 0);
	assert_int_equal(ring_next(&f.reader, &r), RING_E_EMPTY);
	assert_int_equal(ring_reserve(&f.writer), 0);
	ring_begin(&f.writer, false);
	ring_put_progress(&f.writer, 9, 5, 10);
	ring_put_prompt(&f.writer, 9, 3, NAN, 0, b("p"), 1);
	ring_put_token(&f.writer, 9, 77, -1.25f, true, b("tok"), 3);
	ring_put_alternatives(&f.writer, 9, alternatives, 3);
	ring_put_alternatives(&f.writer, 9, NULL, 0);
	ring_put_text(&f.writer, 9, b("h\xc3\xa9"), 3);
	ring_put_text(&f.writer, 9, NULL, 0);
	assert_int_equal(ring_next(&f.reader, &r), RING_E_EMPTY);
	assert_int_equal(ring_commit(&f.writer), 0);
	ring_begin(&f.writer, true);
	ring_put_usage(&f.writer, 9, &usage);
	ring_put_done(&f.writer, 9, KVD_FINISH_STOP_STRING, 4);
	assert_int_equal(ring_commit(&f.writer), 0);
	ring_unreserve(&f.writer);

	assert_int_equal(ring_next(&f.reader, &r), 0);
	assert_int_equal(r.type, KVD_REC_PROGRESS);
	assert_int_equal(r.request, 9);
	assert_true(r.progress.done == 5 && r.progress.total == 10);
	assert_int_equal(ring_next(&f.reader, &r), 0);
	assert_int_equal(r.type, KVD_REC_PROMPT);
	assert_true(r.prompt.id == 3 && isnan(r.prompt.logprob) && r.prompt.position == 0);
	assert_bytes(&r, "p");
	assert_int_equal(ring_next(&f.reader, &r), 0);
	assert_int_equal(r.type, KVD_REC_TOKEN);
	assert_true(r.token.id == 77 && r.token.logprob == -1.25f && r.token.is_control);
	assert_bytes(&r, "tok");
	assert_int_equal(ring_next(&f.reader, &r), 0);
	assert_int_equal(r.type, KVD_REC_ALTERNATIVES);
	assert_int_equal(r.alternatives.n, 3);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(ring_record_alternative(&r, i, &a), 0);
		assert_int_equal(a.id, alternatives[i].id);
		assert_true(a.logprob == alternatives[i].logprob);
		assert_int_equal(a.n_bytes, alternatives[i].n_bytes);
		assert_memory_equal(a.bytes, alternatives[i].bytes, a.n_bytes);
	}
	assert_int_equal(ring_next(&f.reader, &r), 0);
	assert_true(r.type == KVD_REC_ALTERNATIVES && r.alternatives.n == 0);
	assert_int_equal(ring_next(&f.reader, &r), 0);
	assert_int_equal(r.type, KVD_REC_TEXT);
	assert_bytes(&r, "h\xc3\xa9");
	assert_int_equal(ring_next(&f.reader, &r), 0);
	assert_true(r.type == KVD_REC_TEXT && r.n_bytes == 0);
	assert_int_equal(ring_next(&f.reader, &r), 0);
	assert_int_equal(r.type, KVD_REC_USAGE);
	assert_bytes(&r, " \xc3");
	assert_true(r.usage.miss_bytes == r.bytes && r.usage.n_miss_bytes == 2);
	assert_memory_equal(&r.usage, &usage, offsetof(struct ring_usage, miss_token));
	assert_int_equal(r.usage.miss_token, INT32_MAX);
	assert_int_equal(ring_next(&f.reader, &r), 0);
	assert_int_equal(r.type, KVD_REC_DONE);
	assert_true(r.done.reason == KVD_FINISH_STOP_STRING && r.done.stop_index == 4);
	assert_int_equal(ring_next(&f.reader, &r), RING_E_EMPTY);
	ring_fixture_deinit(&f);
}

/* The bytes of PROTOCOL.md, looked at without the reader. */
static void test_layout(void **state)
{
	struct ring_fixture f;
	const uint8_t *p;
	uint32_t words[12];
	uint64_t request;

	ring_fixture_init(&f, KVD_RING_MIN, 0);
	ring_begin(&f.writer, false);
	ring_put_token(&f.writer, 0x1122334455667788u, -2, 1.0f, false, b("ab"), 2);
	assert_int_equal(ring_staged(&f.writer), 40);
	assert_int_equal(ring_commit(&f.writer), 0);
	p = (uint8_t *)f.ring.map + 4096;
	memcpy(words, p, 40);
	memcpy(&request, p + 8, 8);
	assert_int_equal(words[0], 40);
	assert_int_equal(words[1], KVD_REC_TOKEN);
	assert_true(request == 0x1122334455667788u);
	assert_int_equal((int32_t)words[4], -2);
	assert_int_equal(words[5], 0x3f800000);
	assert_int_equal(words[6], 2);
	assert_int_equal(words[7], 0);
	assert_memory_equal(p + 32, "ab\0\0\0\0\0\0", 8);
	assert_int_equal(*(uint64_t *)((uint8_t *)f.ring.map + 64), 40);
	ring_fixture_deinit(&f);
}

static void test_error_text_is_cut(void **state)
{
	char text[KVD_ERROR_TEXT_MAX + 10];
	struct ring_fixture f;
	struct ring_record r;

	ring_fixture_init(&f, KVD_RING_MIN, 0);
	memset(text, 'e', sizeof(text));
	memcpy(text + KVD_ERROR_TEXT_MAX - 2, "\xe2\x82\xac", 4);
	assert_int_equal(ring_reserve(&f.writer), 0);
	ring_begin(&f.writer, true);
	ring_put_error(&f.writer, 1, KVD_CODE_SHUTDOWN, text);
	assert_int_equal(ring_commit(&f.writer), 0);
	assert_int_equal(ring_next(&f.reader, &r), 0);
	assert_true(r.type == KVD_REC_ERROR && r.error.code == KVD_CODE_SHUTDOWN);
	assert_int_equal(r.n_bytes, KVD_ERROR_TEXT_MAX - 2);
	ring_fixture_deinit(&f);
}

static void test_abort_and_sizes(void **state)
{
	static uint8_t large[KVD_RING_MIN];
	static struct ring_alternative many[KVD_LOGPROBS_MAX + 2];
	struct ring_fixture f;
	struct ring_record r;

	ring_fixture_init(&f, KVD_RING_MIN, 0);
	assert_int_equal(ring_writer_init(&f.writer, &f.ring, &f.client, 12), -EINVAL);
	ring_begin(&f.writer, false);
	ring_put_text(&f.writer, 1, large, 100);
	ring_abort(&f.writer);
	ring_begin(&f.writer, false);
	assert_int_equal(ring_commit(&f.writer), 0);
	assert_int_equal(ring_next(&f.reader, &r), RING_E_EMPTY);

	/* Exactly the largest batch, and one of 8 bytes more, in one record and in two. */
	ring_begin(&f.writer, false);
	ring_put_text(&f.writer, 1, large, KVD_RING_BATCH_MAX(KVD_RING_MIN) - 24);
	assert_int_equal(ring_commit(&f.writer), 0);
	ring_begin(&f.writer, false);
	ring_put_text(&f.writer, 1, large, KVD_RING_BATCH_MAX(KVD_RING_MIN) - 23);
	assert_int_equal(ring_commit(&f.writer), -EMSGSIZE);
	ring_begin(&f.writer, false);
	ring_put_text(&f.writer, 1, large, KVD_RING_BATCH_MAX(KVD_RING_MIN) - 24 - 16);
	ring_put_progress(&f.writer, 1, 1, 1);
	assert_int_equal(ring_commit(&f.writer), -EMSGSIZE);
	ring_begin(&f.writer, false);
	ring_put_text(&f.writer, 1, large, SIZE_MAX);
	assert_int_equal(ring_commit(&f.writer), -EMSGSIZE);
	ring_begin(&f.writer, false);
	ring_put_alternatives(&f.writer, 1, many, KVD_LOGPROBS_MAX + 2);
	assert_int_equal(ring_commit(&f.writer), -EMSGSIZE);
	ring_begin(&f.writer, true);
	ring_put_text(&f.writer, 1, large, KVD_RING_FINAL_RESERVE);
	assert_int_equal(ring_commit(&f.writer), -EMSGSIZE);
	assert_int_equal(ring_next(&f.reader, &r), 0);
	assert_int_equal(ring_next(&f.reader, &r), RING_E_EMPTY);
	ring_fixture_deinit(&f);
}

static void test_requests_by_size(void **state)
{
	static const struct { uint32_t size, requests; } table[] = {	/* PROTOCOL.md, Ring */
		{ 64 << 10, 7 }, { 128 << 10, 14 }, { 256 << 10, 28 }, { 512 << 10, 56 }, { 1 << 20, 64 },
		{ 16 << 20, 64 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		struct ring_fixture f;

		ring_fixture_init(&f, table[i].size, 0);
		for (uint32_t k = 0; k < table[i].requests; k++)
			assert_int_equal(ring_reserve(&f.writer), 0);
		assert_int_equal(ring_reserve(&f.writer), RING_E_FULL);
		ring_unreserve(&f.writer);
		assert_int_equal(ring_reserve(&f.writer), 0);
		ring_fixture_deinit(&f);
	}
}

static void test_close(void **state)
{
	struct ring_fixture f;
	struct ring_record r;

	ring_fixture_init(&f, KVD_RING_MIN, 0);
	ring_begin(&f.writer, false);
	ring_put_progress(&f.writer, 1, 1, 2);
	assert_int_equal(ring_commit(&f.writer), 0);
	ring_close(&f.writer);
	ring_begin(&f.writer, false);
	ring_put_progress(&f.writer, 1, 2, 2);
	assert_int_equal(ring_commit(&f.writer), RING_E_GONE);
	assert_int_equal(ring_reserve(&f.writer), RING_E_GONE);
	assert_false(ring_sleep(&f.reader));
	assert_int_equal(ring_next(&f.reader, &r), 0);
	assert_int_equal(ring_next(&f.reader, &r), RING_E_CLOSED);
	assert_false(ring_sleep(&f.reader));
	assert_true(ring_wait(&f.writer));
	ring_fixture_deinit(&f);
}

static void put_one(struct ring_fixture *f)
{
	ring_begin(&f->writer, false);
	ring_put_progress(&f->writer, 1, 1, 2);
	assert_int_equal(ring_commit(&f->writer), 0);
}

static void test_wake_protocol(void **state)
{
	struct ring_fixture f;
	struct ring_record r;

	ring_fixture_init(&f, KVD_RING_MIN, 0);
	put_one(&f);
	assert_false(ring_needs_wake(&f.writer));
	assert_false(ring_sleep(&f.reader));	/* there is something */
	put_one(&f);
	assert_false(ring_needs_wake(&f.writer));	/* the flag was taken back */
	assert_int_equal(ring_next(&f.reader, &r), 0);
	assert_int_equal(ring_next(&f.reader, &r), 0);
	assert_int_equal(ring_next(&f.reader, &r), RING_E_EMPTY);
	assert_true(ring_sleep(&f.reader));
	put_one(&f);
	assert_true(ring_needs_wake(&f.writer));
	assert_false(ring_needs_wake(&f.writer));	/* one wake for one sleep */
	assert_int_equal(ring_next(&f.reader, &r), 0);
	assert_true(ring_sleep(&f.reader));
	ring_awake(&f.reader);
	put_one(&f);
	assert_false(ring_needs_wake(&f.writer));

	/* By message: at once, since one is unread; later, when all was read. */
	assert_true(ring_wait(&f.writer));
	assert_false(ring_needs_wake(&f.writer));
	assert_int_equal(ring_next(&f.reader, &r), 0);
	ring_consume(&f.reader);
	assert_false(ring_wait(&f.writer));
	assert_false(ring_wait(&f.writer));
	put_one(&f);
	assert_true(ring_needs_wake(&f.writer));
	assert_false(ring_needs_wake(&f.writer));
	ring_fixture_deinit(&f);
}

static void test_room_protocol(void **state)
{
	static uint8_t large[8192];
	struct ring_fixture f;
	struct ring_record r;
	int n = 0, n_room = 0, err;

	ring_fixture_init(&f, KVD_RING_MIN, 0);
	for (;;) {
		ring_begin(&f.writer, false);
		ring_put_text(&f.writer, 1, large, sizeof(large));
		err = ring_commit(&f.writer);
		if (err)
			break;
		n++;
	}
	assert_int_equal(err, RING_E_FULL);
	assert_int_equal(n, 7);
	/* Room is announced once, as soon as half of the ring is read. */
	for (int i = 0; i < n; i++) {
		assert_int_equal(ring_next(&f.reader, &r), 0);
		if (ring_consume(&f.reader)) {
			assert_true(ring_unread(&f.writer) <= KVD_RING_MIN / 2);
			n_room++;
		}
		assert_false(ring_consume(&f.reader));
	}
	assert_int_equal(n_room, 1);
	ring_room(&f.writer);
	assert_int_equal(atomic_load(&f.writer.header->writer_waiting), 0);
	/* Again: another value, another room. */
	n = 0;
	do {
		ring_begin(&f.writer, false);
		ring_put_text(&f.writer, 1, large, sizeof(large));
		err = ring_commit(&f.writer);
		n += !err;
	} while (!err);
	for (int i = 0; i < n; i++) {
		assert_int_equal(ring_next(&f.reader, &r), 0);
		n_room += ring_consume(&f.reader);
	}
	assert_int_equal(n_room, 2);
	ring_fixture_deinit(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_record),
		cmocka_unit_test(test_layout),
		cmocka_unit_test(test_error_text_is_cut),
		cmocka_unit_test(test_abort_and_sizes),
		cmocka_unit_test(test_requests_by_size),
		cmocka_unit_test(test_close),
		cmocka_unit_test(test_wake_protocol),
		cmocka_unit_test(test_room_protocol),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
