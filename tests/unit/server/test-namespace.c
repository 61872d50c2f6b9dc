/* SPDX-License-Identifier: Apache-2.0 */
/* Whose cache: every name that may be asked for, by every kind of peer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include <grp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/server/namespace.h"
#include "ipc/base/checked.h"

#define UNKNOWN NAMESPACE_E_UNKNOWN
#define DENIED NAMESPACE_E_DENIED

static const struct namespaces closed = { .public = false };
static const struct namespaces open = {
	.public = true, .n_groups = 2, .groups = { { 5, "group:five" }, { 9, "group:nine" } },
};

static void test_names(void **state)
{
	static const struct {
		const struct namespaces *n;
		uint32_t groups;
		const char *name, *key;
		int result;
		const char *chosen;
	} cases[] = {
		{ &closed, 0, NULL, NULL, 0, "uid:7" }, { &closed, 0, "own", NULL, 0, "uid:7" },
		{ &closed, 0, "uid:7", NULL, 0, "uid:7" }, { &closed, 0, "own", "k", 0, "uid:7/k" },
		{ &closed, 0, NULL, "k", 0, "uid:7/k" }, { &closed, 0, "none", NULL, 0, "" },
		{ &closed, 0, "none", "k", 0, "" }, { &closed, 0, "public", NULL, DENIED, NULL },
		{ &closed, 3, "group:five", NULL, DENIED, NULL }, { &closed, 0, "uid:8", NULL, DENIED, NULL },
		{ &closed, 0, "uid:7/k", NULL, DENIED, NULL }, { &closed, 0, "uid:", NULL, DENIED, NULL },
		{ &closed, 0, "own/k", NULL, UNKNOWN, NULL }, { &closed, 0, "Own", NULL, UNKNOWN, NULL },
		{ &closed, 0, "group", NULL, UNKNOWN, NULL }, { &closed, 0, "group:", NULL, UNKNOWN, NULL },
		{ &open, 0, "public", NULL, 0, "public" }, { &open, 0, "public", "k", 0, "public/k" },
		{ &open, 0, "public/k", NULL, UNKNOWN, NULL }, { &open, 0, "publicx", NULL, UNKNOWN, NULL },
		{ &open, 1, "group:five", NULL, 0, "group:five" }, { &open, 1, "group:five", "k", 0, "group:five/k" },
		{ &open, 1, "group:nine", NULL, DENIED, NULL }, { &open, 2, "group:nine", NULL, 0, "group:nine" },
		{ &open, 0, "group:five", NULL, DENIED, NULL }, { &open, 3, "group:fiv", NULL, DENIED, NULL },
		{ &open, 3, "group:five/k", NULL, DENIED, NULL }, { &open, 3, "uid:0", NULL, DENIED, NULL },
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct namespace_choice c = { .name = "untouched" };
		struct diag diag = DIAG_NULL;
		int r = namespace_choose(cases[i].n, 7, cases[i].groups, cases[i].name, cases[i].key, &c, &diag);

		if (r != cases[i].result || strcmp(c.name, r ? "untouched" : cases[i].chosen) || !r != !diag.text[0])
			fail_msg("case %zu: %d, \"%s\", \"%s\"", i, r, c.name, diag.text);
	}
}

/* What a miss may be explained by: what the peer could have asked for itself. */
static void test_also(void **state)
{
	struct namespace_choice c;
	struct diag diag = DIAG_NULL;

	assert_int_equal(namespace_choose(&closed, 4294967294u, 3, NULL, NULL, &c, &diag), 0);
	assert_string_equal(c.own, "uid:4294967294");
	assert_int_equal(c.n_also, 0);
	assert_int_equal(namespace_choose(&open, 7, 0, NULL, NULL, &c, &diag), 0);
	assert_int_equal(c.n_also, 1);
	assert_string_equal(c.also[0], "public");
	assert_int_equal(namespace_choose(&open, 7, 2, "public", NULL, &c, &diag), 0);
	assert_int_equal(c.n_also, 2);
	assert_string_equal(c.also[0], "group:nine");
}

/* Those that are no users: a key has what it is given, and who has none has no part in anything. */
static void test_no_users(void **state)
{
	static const struct {
		const char *own, *name, *key;
		int result;
		const char *chosen;
		size_t n_also;
	} cases[] = {
		{ "key:bob", NULL, NULL, 0, "key:bob", 1 }, { "key:bob", "own", "k", 0, "key:bob/k", 1 },
		{ "key:bob", "key:bob", NULL, 0, "key:bob", 1 }, { "key:bob", "none", NULL, 0, "", 1 },
		{ "key:bob", "public", NULL, 0, "public", 1 }, { "key:bob", "key:eve", NULL, UNKNOWN, NULL, 0 },
		{ "key:bob", "uid:7", NULL, DENIED, NULL, 0 }, { "key:bob", "group:five", NULL, DENIED, NULL, 0 },
		{ "uid:7", "uid:7", NULL, 0, "uid:7", 1 }, { "uid:7", "uid:8", NULL, DENIED, NULL, 0 },
		{ "group:five", NULL, "k", 0, "group:five/k", 1 }, { "public", NULL, NULL, 0, "public", 1 },
		{ "", NULL, NULL, 0, "", 0 }, { "", "own", "k", 0, "", 0 }, { "", "none", NULL, 0, "", 0 },
		{ "", "public", NULL, 0, "", 0 }, { "", "group:five", NULL, 0, "", 0 }, { "", "uid:0", NULL, 0, "", 0 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct namespace_choice c = { .name = "untouched" };
		struct diag diag = DIAG_NULL;
		int r = namespace_choose_as(&open, cases[i].own, 0, cases[i].name, cases[i].key, &c, &diag);

		if (r != cases[i].result || strcmp(c.name, r ? "untouched" : cases[i].chosen) ||
		    c.n_also != cases[i].n_also)
			fail_msg("case %zu: %d, \"%s\", %zu, \"%s\"", i, r, c.name, c.n_also, diag.text);
	}
}

static void test_longest(void **state)
{
	char key[KVD_CACHE_KEY_MAX + 1] = "", text[KVD_NAMESPACE_MAX + 2] = "", out[KVD_NAMESPACE_MAX + 1];
	struct namespaces n = { .n_groups = 1, .groups = { { 5, "group:" } } };
	struct namespace_choice c;
	struct diag diag = DIAG_NULL;

	memset(key, 'k', KVD_CACHE_KEY_MAX);
	memset(n.groups[0].name + 6, 'g', KVD_WORD_MAX);
	assert_int_equal(namespace_choose(&n, 7, 1, n.groups[0].name, key, &c, &diag), 0);
	assert_int_equal(strlen(c.name), 6 + KVD_WORD_MAX + 1 + KVD_CACHE_KEY_MAX);
	memset(text, 'x', KVD_NAMESPACE_MAX);
	assert_true(namespace_filter(7, text, out));
	memcpy(text, "own/", 4);
	assert_false(namespace_filter(4294967294u, text, out));
}

static void test_filter(void **state)
{
	static const struct { const char *filter, *out; } cases[] = {
		{ "own", "uid:7" }, { "own/k", "uid:7/k" }, { "ownx", "ownx" }, { "uid:9", "uid:9" },
		{ "public", "public" },
	};
	char out[KVD_NAMESPACE_MAX + 1];

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		assert_true(namespace_filter(7, cases[i].filter, out));
		assert_string_equal(out, cases[i].out);
	}
	assert_true(namespace_within("uid:1", "uid:1") && namespace_within("uid:1/k", "uid:1"));
	assert_false(namespace_within("uid:12", "uid:1") || namespace_within("uid:1", "uid:12"));
	assert_false(namespace_within("", "uid:1"));
}

static void test_configuration(void **state)
{
	const struct group *g = getgrgid(0);
	char both[128];
	struct namespaces n;
	struct diag diag = DIAG_NULL;

	assert_non_null(g);
	snprintf(both, sizeof(both), " 0 ,\t%s", g->gr_name);
	assert_int_equal(namespaces_init(&n, NULL, true, &diag), 0);
	assert_true(n.public && n.n_groups == 0);
	assert_int_equal(namespaces_init(&n, both, false, &diag), 0);
	assert_true(!n.public && n.n_groups == 2 && n.groups[0].gid == 0 && n.groups[1].gid == 0);
	assert_int_equal(strncmp(n.groups[0].name, "group:", 6), 0);
	assert_int_equal(namespaces_init(&n, "no such group", false, &diag), -EINVAL);
	assert_int_equal(namespaces_init(&n, "0,", false, &diag), -EINVAL);
	assert_int_equal(namespaces_init(&n, "4294967296", false, &diag), -EINVAL);
	assert_int_equal(namespaces_init(&n, "0,0,0,0,0,0,0,0", false, &diag), 0);
	assert_int_equal(namespaces_init(&n, "0,0,0,0,0,0,0,0,0", false, &diag), -EINVAL);
}

/* The kernel's list of our own groups. */
static void test_peer(void **state)
{
	struct namespaces n = { .n_groups = 2, .groups = { { 4242, "group:a" }, { 4343, "group:b" } } };
	gid_t gids[256];
	int fds[2], k = getgroups(ARRAY_SIZE(gids), gids);

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds), 0);
	assert_int_equal(namespaces_groups_of(&n, fds[0], 4343), 2);
	assert_int_equal(namespaces_groups_of(&n, fds[0], 1), 0);
	if (k > 0) {
		n.groups[0].gid = gids[k - 1];
		assert_int_equal(namespaces_groups_of(&n, fds[0], 4343), 3);
		assert_int_equal(namespaces_groups_of(&closed, fds[0], gids[0]), 0);
	}
	close(fds[0]);
	close(fds[1]);
	assert_int_equal(namespaces_groups_of(&n, fds[0], 4343), 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_also),
		cmocka_unit_test(test_no_users),
		cmocka_unit_test(test_longest),
		cmocka_unit_test(test_filter),
		cmocka_unit_test(test_configuration),
		cmocka_unit_test(test_peer),
	};

	return cmocka_run_group_tests_name("namespace", tests, NULL, NULL);
}
