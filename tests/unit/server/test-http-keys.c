/* SPDX-License-Identifier: Apache-2.0 */
/* The file of keys: what its lines mean, and which key is found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/server/http-keys.h"
#include "ipc/base/checked.h"
#include "ipc/base/hash.h"

static struct http_keys *parse(const char *text)
{
	struct http_keys *keys = NULL;
	struct diag diag = DIAG_NULL;

	if (http_keys_parse(&keys, text, strlen(text), "keys", &diag))
		fail_msg("%s", diag.text);
	return keys;
}

static void refused(const char *text, const char *word)
{
	struct http_keys *keys = NULL;
	struct diag diag = DIAG_NULL;

	assert_int_equal(http_keys_parse(&keys, text, strlen(text), "keys", &diag), -EINVAL);
	assert_null(keys);
	if (!strstr(diag.text, word) || strstr(diag.text, "secret"))
		fail_msg("\"%s\" does not say \"%s\", or says a key", diag.text, word);
}

static void test_lines(void **state)
{
	_cleanup_(http_keys_freep) struct http_keys *keys = parse(
		"# alice secret-0123456789\n"
		"\n \t\n"
		"alice secret-a-0123456789 weight=250 requests=7 sessions=3 kv-memory=512M memory=2G # and so on\n"
		"\tbob\tsecret-b-0123456789\tnamespace=none\n"
		"c.a-r_l secret#c#0123456789 namespace=group:staff\n"
		"dora secret-d-0123456789 namespace=uid:1000\n"
		"emil secret-e-0123456789 namespace=public weight=10000 metrics=all");

	assert_int_equal(keys->n, 5);
	assert_string_equal(keys->keys[0].name, "alice");
	assert_string_equal(keys->keys[0].own, "key:alice");
	assert_int_equal(keys->keys[0].weight, 250);
	assert_int_equal(keys->keys[0].limits.max[ACCOUNT_REQUESTS], 7);
	assert_int_equal(keys->keys[0].limits.max[ACCOUNT_SESSIONS], 3);
	assert_int_equal(keys->keys[0].limits.max[ACCOUNT_KV], 512 << 20);
	assert_true(keys->keys[0].limits.max[ACCOUNT_MEMORY] == 2ull << 30);
	assert_true(keys->keys[0].limits.max[ACCOUNT_WEIGHTS] == UINT64_MAX);
	assert_int_equal(keys->keys[1].weight, 100);
	assert_false(keys->keys[1].all_metrics);
	assert_true(keys->keys[4].all_metrics);
	assert_string_equal(keys->keys[1].own, "");
	assert_true(keys->keys[1].limits.max[ACCOUNT_REQUESTS] == UINT64_MAX);
	assert_string_equal(keys->keys[2].own, "group:staff");
	assert_string_equal(keys->keys[3].own, "uid:1000");
	assert_string_equal(keys->keys[4].own, "public");
	for (size_t i = 0; i < keys->n; i++)
		assert_true(keys->keys[i].account >= ACCOUNT_ID_KEYS && keys->keys[i].account < UINT32_MAX);
}

/* The same name is the same account in every life, and other names are other ones. */
static void test_accounts(void **state)
{
	_cleanup_(http_keys_freep) struct http_keys *a = parse("alice secret-a-0123456789\nbob secret-b-0123456789\n");
	_cleanup_(http_keys_freep) struct http_keys *b = parse("bob secret-c-0123456789\n");

	assert_int_equal(a->keys[1].account, b->keys[0].account);
	assert_int_not_equal(a->keys[0].account, a->keys[1].account);
}

struct named {
	uint32_t account;
	unsigned number;
};

static int compare(const void *a, const void *b)
{
	const struct named *x = a, *y = b;

	return x->account < y->account ? -1 : x->account > y->account;
}

/* Two names that would be one account: found among many, since the ids have 31 bits. */
static void test_names_that_collide(void **state)
{
	const size_t n = 300000;
	struct named *all = malloc(n * sizeof(*all));
	size_t i, pairs = 0;

	assert_non_null(all);
	for (i = 0; i < n; i++) {
		char name[16];

		snprintf(name, sizeof(name), "k%zu", i);
		all[i].number = (unsigned)i;
		all[i].account = (uint32_t)(hash_u64(name, strlen(name), 0) % (UINT32_MAX - ACCOUNT_ID_KEYS));
	}
	qsort(all, n, sizeof(*all), compare);
	for (i = 1; i < n && pairs < 3; i++) {
		char text[128], both[64];

		if (all[i].account != all[i - 1].account)
			continue;
		pairs++;
		snprintf(text, sizeof(text), "k%u secret-a-0123456789\nk%u secret-b-0123456789\n", all[i - 1].number,
			 all[i].number);
		snprintf(both, sizeof(both), "k%u and k%u", all[i - 1].number, all[i].number);
		refused(text, both);
	}
	assert_true(pairs > 0);
	free(all);
}

static void test_refusals(void **state)
{
	static const char *const options[] = {
		"weight=0", "weight=10001", "weight=", "weight", "weight=1x", "weight=-1", "weight=0x10", "Weight=1",
		"namespace=", "namespace=own", "namespace=uid:", "namespace=uid:2147483648", "namespace=uid:01",
		"namespace=uid:1/k", "namespace=group:", "namespace=group:a/b", "namespace=key:bob",
		"namespace=publicx", "requests=0", "requests=18446744073709551616", "sessions=1M", "memory=1K",
		"memory=1X", "kv-memory=99999999T", "=1", "colour=red",
		"metrics=", "metrics=some",
	};
	char text[128];

	refused("", "no key");
	refused("# nothing\n\n", "no key");
	refused("alice", "keys:1: the key of alice");
	refused("alice secret-1234567\n", "keys:1: the key of alice");
	refused("al/ice secret-a-0123456789\n", "a name");
	refused("012345678901234567890123456789012 secret-a-0123456789\n", "a name");
	refused("a secret-a-0123456789\n\na secret-b-0123456789\n", "keys:3: a is there twice");
	refused("a secret-a-0123456789 weight=10 metrics=own weight=10\n", "keys:1: weight of a is there twice");
	refused("a secret-a-0123456789 namespace=group:longer namespace=group:x\n", "namespace of a is there twice");
	refused("a secret-a-0123456789\nb secret-a-0123456789\n", "the same key");
	refused("a secret-a-0123456789\r\n", "the key of a");
	refused("a secret-\xc3\xa4-0123456789\n", "the key of a");
	for (size_t i = 0; i < ARRAY_SIZE(options); i++) {
		snprintf(text, sizeof(text), "a secret-a-0123456789 %s\n", options[i]);
		refused(text, "keys:1: ");
	}
}

static void test_number_of_keys(void **state)
{
	struct http_keys *keys = NULL;
	struct diag diag = DIAG_NULL;
	char text[(HTTP_KEYS_MAX + 1) * 32] = "";
	size_t n = 0;

	for (int i = 0; i < HTTP_KEYS_MAX; i++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "k%d secret-%012d\n", i, i);
	keys = parse(text);
	assert_int_equal(keys->n, HTTP_KEYS_MAX);
	for (int i = 0; i < HTTP_KEYS_MAX; i++) {
		char secret[32];

		snprintf(secret, sizeof(secret), "secret-%012d", i);
		assert_ptr_equal(http_keys_find(keys, secret), &keys->keys[i]);
	}
	http_keys_free(keys);
	keys = NULL;
	snprintf(text + n, sizeof(text) - n, "more secret-0123456789ab\n");
	assert_int_equal(http_keys_parse(&keys, text, strlen(text), "keys", &diag), -EINVAL);
	assert_non_null(strstr(diag.text, "more than"));
}

static void test_find(void **state)
{
	char longest[HTTP_KEY_MAX + 1], text[512], longer[HTTP_KEY_MAX + 2];
	_cleanup_(http_keys_freep) struct http_keys *keys = NULL;

	memset(longest, 'x', HTTP_KEY_MAX);
	longest[HTTP_KEY_MAX] = '\0';
	snprintf(text, sizeof(text), "a secret-a-0123456789\nb secret-b-0123456789\nc %s\n", longest);
	keys = parse(text);
	assert_ptr_equal(http_keys_find(keys, "secret-a-0123456789"), &keys->keys[0]);
	assert_ptr_equal(http_keys_find(keys, "secret-b-0123456789"), &keys->keys[1]);
	assert_ptr_equal(http_keys_find(keys, longest), &keys->keys[2]);
	assert_null(http_keys_find(keys, ""));
	assert_null(http_keys_find(keys, "secret-a-012345678"));
	assert_null(http_keys_find(keys, "secret-a-01234567890"));
	assert_null(http_keys_find(keys, "secret-c-0123456789"));
	assert_null(http_keys_find(keys, "Secret-a-0123456789"));
	/* What is too long is none, though the key's own bytes are right. */
	snprintf(longer, sizeof(longer), "%sx", longest);
	assert_null(http_keys_find(keys, longer));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lines),
		cmocka_unit_test(test_accounts),
		cmocka_unit_test(test_names_that_collide),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_number_of_keys),
		cmocka_unit_test(test_find),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
