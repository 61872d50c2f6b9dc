/* SPDX-License-Identifier: Apache-2.0 */
/* The parser of requests: memory, and what it says about a head; the daemon's tests have what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/server/http-parse.h"
#include "ipc/base/checked.h"

static enum http_parse feed(struct http_parser *p, const char *text, size_t *used)
{
	return http_parser_feed(p, (const uint8_t *)text, strlen(text), used);
}

static void test_head(void **state)
{
	static const char text[] = "POST /a%20b/%c3%a4?x=%00 HTTP/1.1\r\nhost: h\r\nX-One: 1\r\nx-one:2\r\nEmpty:\r\n"
				   "Connection: Upgrade , Close\r\nContent-Length: 3\r\n\r\nabcGET";
	struct http_parser p;
	size_t used, n = strlen(text);

	http_parser_init(&p, 100);
	assert_false(http_parser_begun(&p));
	assert_int_equal(feed(&p, text, &used), HTTP_PARSE_HEAD);
	assert_true(http_parser_begun(&p));
	assert_int_equal(used, n - 6);
	assert_string_equal(p.method, "POST");
	assert_string_equal(p.path, "/a b/\xc3\xa4");
	assert_string_equal(p.query, "x=%00");
	assert_string_equal(p.host, "h");
	assert_string_equal(http_parser_field(&p, "X-ONE"), "1");
	assert_string_equal(http_parser_field(&p, "empty"), "");
	assert_null(http_parser_field(&p, "X-On"));
	assert_false(p.keep_alive);
	assert_true(p.has_body && !p.chunked && p.content_length == 3);
	assert_int_equal(feed(&p, text + used, &used), HTTP_PARSE_DONE);
	assert_int_equal(used, 3);
	assert_memory_equal(p.body, "abc", 3);
	/* Nothing more is taken until the next one may come. */
	assert_int_equal(feed(&p, "GET", &used), HTTP_PARSE_DONE);
	assert_int_equal(used, 0);
	http_parser_next(&p);
	assert_false(http_parser_begun(&p));
	assert_int_equal(feed(&p, "GET", &used), HTTP_PARSE_MORE);
	http_parser_deinit(&p);
}

static void test_keeping_alive(void **state)
{
	static const struct { const char *version, *header; bool keep; } cases[] = {
		{ "1.1", "", true }, { "1.1", "Connection: close\r\n", false }, { "1.0", "", false },
		{ "1.0", "Connection: keep-alive\r\n", true }, { "1.1", "Connection: closed\r\n", true },
		{ "1.1", "Connection: a,b\r\nConnection: c,close\r\n", false },
		{ "1.0", "Connection: close, keep-alive\r\n", false },
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct http_parser p;
		char text[200];
		size_t used;

		snprintf(text, sizeof(text), "GET / HTTP/%s\r\nHost: h\r\n%s\r\n", cases[i].version, cases[i].header);
		http_parser_init(&p, 100);
		assert_int_equal(feed(&p, text, &used), HTTP_PARSE_HEAD);
		assert_int_equal(p.keep_alive, cases[i].keep);
		http_parser_deinit(&p);
	}
}

/* --- memory ------------------------------------------------------------------------------ */

struct grown {
	size_t capacity, limit;
	unsigned n;
};

static unsigned grow(void *arg, size_t capacity)
{
	struct grown *g = arg;

	assert_true(capacity > g->capacity);
	if (capacity > g->limit)
		return 429;
	g->capacity = capacity;
	g->n++;
	return 0;
}

static const char length_head[] = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n";
static const char chunk_head[] = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";

/* Memory is asked for as bytes come, not as they are announced, and never more than they can be. */
static void test_growth(void **state)
{
	static const char piece[1000] = "";
	struct grown g = { .limit = SIZE_MAX };
	struct http_parser p;
	size_t used;

	http_parser_init(&p, 1000000);
	p.grow = grow;
	p.arg = &g;
	assert_int_equal(feed(&p, length_head, &used), HTTP_PARSE_HEAD);
	assert_int_equal(g.capacity, 0);
	for (size_t n = sizeof(piece); n < 1000000; n += sizeof(piece)) {
		assert_int_equal(http_parser_feed(&p, (const uint8_t *)piece, sizeof(piece), &used), HTTP_PARSE_MORE);
		assert_true(g.capacity >= n && g.capacity <= MAX(2 * n, (size_t)16384));
	}
	assert_int_equal(http_parser_feed(&p, (const uint8_t *)piece, sizeof(piece), &used), HTTP_PARSE_DONE);
	assert_int_equal(g.capacity, 1000000);
	assert_true(g.n < 10);
	http_parser_deinit(&p);
}

static void test_no_room(void **state)
{
	static const char *const heads[] = { length_head, chunk_head };

	for (size_t i = 0; i < ARRAY_SIZE(heads); i++) {
		struct grown g = { .limit = 20000 };
		struct http_parser p;
		enum http_parse r = HTTP_PARSE_MORE;
		size_t used, n;

		http_parser_init(&p, 1000000);
		p.grow = grow;
		p.arg = &g;
		assert_int_equal(feed(&p, heads[i], &used), HTTP_PARSE_HEAD);
		for (n = 0; n < 30000 && r == HTTP_PARSE_MORE; n++)
			r = feed(&p, i ? "1\r\nx\r\n" : "x", &used);
		assert_int_equal(r, HTTP_PARSE_BAD);
		assert_int_equal(p.status, 429);
		assert_int_equal(n, 16385);
		http_parser_deinit(&p);
	}
}

/* What is passed over takes no memory, but is counted. */
static void test_discard(void **state)
{
	struct grown g = { .limit = 0 };
	struct http_parser p;
	enum http_parse r = HTTP_PARSE_MORE;
	size_t used, n;

	http_parser_init(&p, 5000);
	p.grow = grow;
	p.arg = &g;
	assert_int_equal(feed(&p, chunk_head, &used), HTTP_PARSE_HEAD);
	p.discard = true;
	for (n = 0; n < 6000 && r == HTTP_PARSE_MORE; n++)
		r = feed(&p, "1\r\nx\r\n", &used);
	assert_int_equal(r, HTTP_PARSE_BAD);
	assert_int_equal(p.status, 413);
	assert_int_equal(n, 5001);
	assert_null(p.body);
	http_parser_deinit(&p);
}

static void test_lists(void **state)
{
	assert_true(http_list_has("a", "a") && http_list_has("b, A", "a") && http_list_has("\t,a ,", "a"));
	assert_false(http_list_has("", "a") || http_list_has("ab", "a") || http_list_has("b,c", "a"));
	assert_false(http_list_has(NULL, "a") || http_list_has(",,", ""));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_head),
		cmocka_unit_test(test_keeping_alive),
		cmocka_unit_test(test_growth),
		cmocka_unit_test(test_no_room),
		cmocka_unit_test(test_discard),
		cmocka_unit_test(test_lists),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
