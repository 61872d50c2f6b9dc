/* SPDX-License-Identifier: Apache-2.0 */
/* What people may see of the cache and do with it, command by command, over the fake model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <unistd.h>

#include "daemon/engine/cache-control.h"
#include "daemon/engine/scheduler.h"
#include "tests/unit/engine/fake-model.h"
#include "tests/unit/engine/fake-client.h"
#include "tests/unit/engine/fixture.h"

/* A command, and whether it was carried out. */
struct asked {
	struct cache_command command;	/* first */
	struct cache_entry entries[CACHE_PAGE_MAX];
	struct removal done;
};

static void on_done(struct cache_command *c)
{
	note_removed(&((struct asked *)c)->done);
}

static struct asked asked;

/* Waits until it is carried out; its result. */
static int ask(struct fixture *f, struct cache_command c)
{
	asked = (struct asked){ .command = c };
	asked.done = (struct removal){ .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
	asked.command.entries = asked.entries;
	asked.command.done = on_done;
	assert_int_equal(engine_cache(f->engine, &asked.command), 0);
	wait_removal(&asked.done);
	return asked.command.result;
}

static struct cache_scope scope_of(uid_t uid)
{
	struct cache_scope s = { .uid = uid };

	snprintf(s.own, sizeof(s.own), "uid:%u", (unsigned)uid);
	return s;
}

static const struct cache_scope admin = { .admin = true, .uid = 7, .own = "uid:7" };

static uint32_t list(struct fixture *f, struct cache_scope scope, const char *filter)
{
	snprintf(scope.filter, sizeof(scope.filter), "%s", filter);
	assert_int_equal(ask(f, (struct cache_command){ .op = CACHE_LS, .model = f->em, .scope = scope }), 0);
	return asked.command.n;
}

static void run(struct fixture *f, uint64_t id, uid_t uid, const char *ns, size_t n_prompt, size_t begin)
{
	struct fake_request r = make_request(id, uid, n_prompt, 0);

	for (size_t i = 0; i < n_prompt; i++)
		r.prompt[i] = (int32_t)(3 + (begin + i * i + i / 7) % (FAKE_N_VOCAB - 3));
	r.params.ns = ns;
	submit(f, &r);
	fake_client_wait_released(f->client, (uint32_t)id + 1);
}

/* Namespaces that look alike, and two users of a shared one. */
static struct fixture start_filled(void)
{
	struct fixture f = start(&config_default);

	run(&f, 0, 1, "uid:1", 33, 0);
	run(&f, 1, 1, "uid:1/k", 20, 0);
	run(&f, 2, 2, "uid:12", 20, 0);
	run(&f, 3, 1, "public", 17, 0);
	/* Its second block takes the place of the tail that was there. */
	run(&f, 4, 2, "public", 33, 0);
	return f;
}

static void test_who_sees_what(void **state)
{
	struct fixture f = start_filled();
	static const struct { uid_t uid; const char *filter; uint32_t n; } cases[] = {
		{ 1, "", 3 + 2 + 1 }, { 1, "uid:1", 5 }, { 1, "uid:1/k", 2 }, { 1, "uid:1/", 0 }, { 1, "uid:12", 0 },
		{ 1, "public", 1 }, { 1, "uid", 0 }, { 2, "", 2 + 2 }, { 2, "public", 2 }, { 2, "uid:1", 0 },
		{ 12, "", 2 }, { 12, "uid:1", 0 }, { 3, "", 0 }, { 3, "public", 0 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		uint32_t n = list(&f, scope_of(cases[i].uid), cases[i].filter);

		if (n != cases[i].n)
			fail_msg("uid %u, \"%s\": %u entries", (unsigned)cases[i].uid, cases[i].filter, n);
	}
	assert_int_equal(list(&f, admin, ""), 3 + 2 + 2 + 3);
	assert_int_equal(list(&f, admin, "uid:1"), 5);
	assert_int_equal(list(&f, admin, "public"), 3);
	stop(&f);
}

/* What is seen can be shown and pinned, what is not is not there. */
static void test_what_may_be_done(void **state)
{
	struct fixture f = start_filled();
	struct cache_entry all[16];
	uint32_t n = list(&f, admin, "");

	memcpy(all, asked.entries, n * sizeof(all[0]));
	for (uint32_t i = 0; i < n; i++) {
		for (uid_t uid = 1; uid < 4; uid++) {
			struct cache_command c = { .model = f.em, .scope = scope_of(uid), .entry = all[i].number };
			bool own = (uid == 1 && strstr(all[i].ns, "uid:1") == all[i].ns && all[i].ns[5] != '2');
			bool seen = own || all[i].uid == uid;

			c.op = CACHE_SHOW;
			assert_int_equal(ask(&f, c), seen ? 0 : CACHE_E_NO_ENTRY);
			if (seen)
				assert_int_equal(asked.entries[0].number, all[i].number);
			c.op = CACHE_UNPIN;
			assert_int_equal(ask(&f, c), seen ? CACHE_E_NOT_PINNED : CACHE_E_NO_ENTRY);
			c.op = CACHE_PIN;
			assert_int_equal(ask(&f, c), seen ? 0 : CACHE_E_NO_ENTRY);
			c.op = CACHE_UNPIN;
			assert_int_equal(ask(&f, c), seen ? 0 : CACHE_E_NO_ENTRY);
			c.op = CACHE_DROP;
			if (!own)
				assert_int_equal(ask(&f, c), seen ? CACHE_E_DENIED : CACHE_E_NO_ENTRY);
		}
	}
	assert_int_equal(list(&f, admin, ""), n);
	/* A wipe is of what is his own, whatever the filter says. */
	for (int all_of_them = 0; all_of_them < 2; all_of_them++) {
		struct cache_command c = { .op = CACHE_WIPE, .scope = scope_of(2), .all = all_of_them };

		snprintf(c.scope.filter, sizeof(c.scope.filter), "public");
		assert_int_equal(ask(&f, c), 0);
		assert_int_equal(asked.command.n_entries, 0);
	}
	assert_int_equal(ask(&f, (struct cache_command){ .op = CACHE_WIPE, .scope = scope_of(1), .all = true }), 0);
	assert_int_equal(asked.command.n_entries, 5);
	assert_int_equal(asked.command.n_tokens, 53);
	assert_int_equal(list(&f, admin, ""), n - 5);
	assert_int_equal(ask(&f, (struct cache_command){ .op = CACHE_WIPE, .scope = admin, .all = true }), 0);
	assert_int_equal(list(&f, admin, ""), 0);
	stop(&f);
}

static void test_usage(void **state)
{
	struct fixture f = start_filled();

	assert_int_equal(ask(&f, (struct cache_command){ .op = CACHE_USAGE, .scope = scope_of(1) }), 0);
	assert_int_equal(asked.command.n_entries, 6);
	assert_int_equal(ask(&f, (struct cache_command){ .op = CACHE_USAGE, .scope = scope_of(5) }), 0);
	assert_int_equal(asked.command.n_entries, 0);
	stop(&f);
}

/* A model that goes: what comes after is told so. */
static void test_model_gone(void **state)
{
	struct fixture f = start_filled();
	struct engine_model *other = add_other(f.engine);
	struct removal removal;

	assert_int_equal(ask(&f, (struct cache_command){ .op = CACHE_LS, .model = other, .scope = admin }), 0);
	assert_int_equal(asked.command.n, 0);
	ask_removal(f.engine, other, &removal);
	wait_removal(&removal);
	for (int op = CACHE_LS; op <= CACHE_USAGE; op++)
		assert_int_equal(ask(&f, (struct cache_command){ .op = op, .model = other, .scope = admin }),
				 CACHE_E_NO_MODEL);
	engine_model_free(other);
	stop(&f);
}

/* A request that pins holds no more than the share for all; more is refused, and what runs goes on. */
static void test_pins_of_requests(void **state)
{
	struct fixture f = start(&config_default);
	uint32_t n_refused = 0;

	for (uint64_t id = 0; id < 12; id++) {
		struct fake_request r = make_request(id, 1, 17, 2);

		r.prompt[0] = (int32_t)(3 + id % 4);
		r.prompt[1] = (int32_t)(3 + id / 4);
		r.params.ns = "uid:1";
		r.params.pin = true;
		submit(&f, &r);
		fake_client_wait_released(f.client, (uint32_t)id + 1);
		if (f.client->results[id].error) {
			assert_int_equal(f.client->results[id].error, SINK_ERROR_QUOTA);
			n_refused++;
		}
	}
	if (!n_refused || n_refused == 12)
		fail_msg("%u were refused", n_refused);
	list(&f, scope_of(1), "");
	for (uint32_t i = 0, n = 0; i < asked.command.n; i++) {
		n += asked.entries[i].pinned;
		assert_true(n <= 12 - n_refused);
	}
	stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_who_sees_what),
		cmocka_unit_test(test_what_may_be_done),
		cmocka_unit_test(test_usage),
		cmocka_unit_test(test_model_gone),
		cmocka_unit_test(test_pins_of_requests),
	};

	return cmocka_run_group_tests_name("cache-control", tests, NULL, NULL);
}
