/* SPDX-License-Identifier: Apache-2.0 */
/* Which Host headers name us, and which addresses can be listened on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "daemon/server/http-address.h"
#include "daemon/server/http-host.h"
#include "ipc/base/checked.h"

static bool is_ours(const char *host, const char *local, const char *more)
{
	struct http_address a;

	assert_int_equal(http_address_parse(&a, local, NULL), 0);
	return http_host_is_ours(host, &a.sa, more);
}

static void test_hosts(void **state)
{
	static const struct { const char *host, *local, *more; bool ours; } cases[] = {
		{ "localhost", "127.0.0.1:80", NULL, true }, { "LOCALHOST:1", "[::1]:80", NULL, true },
		{ "x.localhost", "127.0.0.1:80", NULL, true }, { ".localhost", "127.0.0.1:80", NULL, false },
		{ "localhost.", "127.0.0.1:80", NULL, true }, { "xlocalhost", "127.0.0.1:80", NULL, false },
		{ "127.0.0.1", "127.0.0.1:80", NULL, true }, { "127.9.9.9", "127.0.0.1:80", NULL, true },
		{ "[::1]", "127.0.0.1:80", NULL, true }, { "127.0.0.1", "[::1]:80", NULL, true },
		{ "10.0.0.1", "127.0.0.1:80", NULL, false }, { "10.0.0.1:80", "10.0.0.1:80", NULL, true },
		{ "10.0.0.2", "10.0.0.1:80", NULL, false }, { "127.0.0.1", "10.0.0.1:80", NULL, false },
		{ "[::1]", "10.0.0.1:80", NULL, false }, { "[fe80::1]:8", "[fe80::1]:80", NULL, true },
		{ "[fe80::2]:8", "[fe80::1]:80", NULL, false }, { "fe80::1", "[fe80::1]:80", NULL, false },
		{ "127.0.0.1.x", "127.0.0.1:80", NULL, false }, { "127.1", "127.0.0.1:80", NULL, false },
		{ "a.lan", "127.0.0.1:80", NULL, false }, { "a.lan", "127.0.0.1:80", "a.lan", true },
		{ "A.LAN:8080", "127.0.0.1:80", " b.lan , a.lan", true },
		{ "c.lan", "127.0.0.1:80", "a.lan,b.lan", false },
		{ "a.la", "127.0.0.1:80", "a.lan", false }, { "a.lan.", "127.0.0.1:80", "a.lan", true },
		{ "", "127.0.0.1:80", NULL, false }, { ":", "127.0.0.1:80", NULL, false },
		{ ".", "127.0.0.1:80", NULL, false }, { "[]", "127.0.0.1:80", NULL, false },
		{ "[::1", "127.0.0.1:80", NULL, false }, { "[::1]x", "127.0.0.1:80", NULL, false },
		{ "localhost:8o", "127.0.0.1:80", NULL, false }, { "localhost:", "127.0.0.1:80", NULL, true },
		{ "a.lan,localhost", "127.0.0.1:80", "a.lan", false },
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		if (is_ours(cases[i].host, cases[i].local, cases[i].more) != cases[i].ours)
			fail_msg("\"%s\" at %s", cases[i].host, cases[i].local);
	}
}

static void test_long_names(void **state)
{
	char host[400];

	for (size_t n = 1; n < sizeof(host); n++) {
		memset(host, 'a', n);
		host[n] = '\0';
		assert_false(is_ours(host, "127.0.0.1:80", NULL));
		assert_int_equal(is_ours(host, "127.0.0.1:80", host), n <= 253);
	}
}

static void test_addresses(void **state)
{
	static const struct { const char *text, *printed; bool is_local; } fine[] = {
		{ "127.0.0.1:0", "127.0.0.1:0", true }, { "127.255.0.1:65535", "127.255.0.1:65535", true },
		{ "localhost:8080", "127.0.0.1:8080", true }, { "LocalHost:1", "127.0.0.1:1", true },
		{ "[::1]:80", "[::1]:80", true }, { "0.0.0.0:80", "0.0.0.0:80", false },
		{ "[::]:80", "[::]:80", false }, { "10.1.2.3:80", "10.1.2.3:80", false },
		{ "[fe80::1]:80", "[fe80::1]:80", false }, { "128.0.0.1:80", "128.0.0.1:80", false },
	};
	static const char *const wrong[] = {
		"", ":", "80", ":80", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:0x50",
		"127.0.0.1: 80", "127.0.0.1:000080", "::1:80", "[::1]", "[::1:80", "[]:80", "[::ffff:127.0.0.1]:80",
		"example.org:80", "1.2.3:80", "unix:", "off", "http://127.0.0.1:80",
		"[0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0001]:80",
	};
	struct http_address a = { .n = 77 };
	struct diag diag;

	for (size_t i = 0; i < ARRAY_SIZE(fine); i++) {
		char text[HTTP_ADDRESS_TEXT_MAX];

		assert_int_equal(http_address_parse(&a, fine[i].text, &diag), 0);
		http_address_print(&a, text);
		assert_string_equal(text, fine[i].printed);
		assert_int_equal(http_address_is_local(&a), fine[i].is_local);
	}
	assert_int_equal(http_address_parse(&a, "unix:/x:80", &diag), 0);
	assert_string_equal(a.path, "/x:80");
	assert_true(http_address_is_local(&a));
	a.n = 77;
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		diag = DIAG_NULL;
		assert_int_equal(http_address_parse(&a, wrong[i], &diag), -EINVAL);
		assert_non_null(strstr(diag.text, "http: "));
		assert_int_equal(a.n, 77);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hosts),
		cmocka_unit_test(test_long_names),
		cmocka_unit_test(test_addresses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
