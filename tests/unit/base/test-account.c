/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "ipc/base/account.h"

static const struct account_limits limits = {
	.max = {
		[ACCOUNT_SESSIONS] = 3,
		[ACCOUNT_MEMORY] = 1000,
		[ACCOUNT_REQUESTS] = UINT64_MAX,
		[ACCOUNT_KV] = 0,
	},
};

static void test_limit_is_exact(void **state)
{
	struct accounts *a;
	struct charge c[4] = { CHARGE_NULL, CHARGE_NULL, CHARGE_NULL, CHARGE_NULL };

	assert_int_equal(accounts_new(&a, &limits), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(charge_init(&c[i], a, 7, ACCOUNT_SESSIONS, 1), 0);
	assert_int_equal(charge_init(&c[3], a, 7, ACCOUNT_SESSIONS, 1), ACCOUNT_E_QUOTA);
	assert_null(c[3].account);
	assert_int_equal(account_used(a, 7, ACCOUNT_SESSIONS), 3);

	/* Another uid and another kind are not concerned. */
	assert_int_equal(charge_init(&c[3], a, 8, ACCOUNT_SESSIONS, 3), 0);
	charge_deinit(&c[3]);
	assert_int_equal(charge_init(&c[3], a, 7, ACCOUNT_MEMORY, 1000), 0);
	charge_deinit(&c[3]);

	charge_deinit(&c[0]);
	assert_int_equal(charge_init(&c[3], a, 7, ACCOUNT_SESSIONS, 1), 0);
	for (int i = 0; i < 4; i++)
		charge_deinit(&c[i]);
	assert_int_equal(account_used(a, 7, ACCOUNT_SESSIONS), 0);
	accounts_free(a);
}

static void test_amounts_do_not_wrap(void **state)
{
	struct accounts *a;
	struct charge c = CHARGE_NULL, d = CHARGE_NULL;

	assert_int_equal(accounts_new(&a, &limits), 0);
	assert_int_equal(charge_init(&c, a, 1, ACCOUNT_MEMORY, 1001), ACCOUNT_E_QUOTA);
	assert_int_equal(charge_init(&c, a, 1, ACCOUNT_MEMORY, UINT64_MAX), ACCOUNT_E_QUOTA);
	assert_int_equal(charge_init(&c, a, 1, ACCOUNT_MEMORY, 1), 0);
	assert_int_equal(charge_init(&d, a, 1, ACCOUNT_MEMORY, UINT64_MAX), ACCOUNT_E_QUOTA);
	charge_deinit(&c);

	/* Unlimited stops where the counter ends. */
	assert_int_equal(charge_init(&c, a, 1, ACCOUNT_REQUESTS, UINT64_MAX), 0);
	assert_int_equal(charge_init(&d, a, 1, ACCOUNT_REQUESTS, 1), ACCOUNT_E_QUOTA);
	charge_deinit(&c);

	/* Nothing is within a limit of nothing. */
	assert_int_equal(charge_init(&c, a, 1, ACCOUNT_KV, 0), 0);
	assert_int_equal(charge_init(&d, a, 1, ACCOUNT_KV, 1), ACCOUNT_E_QUOTA);
	charge_deinit(&c);
	accounts_free(a);
}

/* One account's own limits hold for it alone, until they are taken back; what was charged stays. */
static void test_own_limits(void **state)
{
	struct account_limits own = limits;
	struct charge c[5] = { 0 };
	struct accounts *a;

	assert_int_equal(accounts_new(&a, &limits), 0);
	own.max[ACCOUNT_SESSIONS] = 5;
	own.max[ACCOUNT_MEMORY] = 10;
	assert_int_equal(accounts_set_limits(a, 9, NULL), 0);	/* there is no such account */
	assert_int_equal(accounts_set_limits(a, 7, &own), 0);
	assert_int_equal(account_limit(a, 7, ACCOUNT_SESSIONS), 5);
	assert_int_equal(account_limit(a, 8, ACCOUNT_SESSIONS), limits.max[ACCOUNT_SESSIONS]);
	for (int i = 0; i < 5; i++)
		assert_int_equal(charge_init(&c[i], a, 7, ACCOUNT_SESSIONS, 1), 0);
	assert_int_equal(charge_init(&(struct charge){ 0 }, a, 7, ACCOUNT_SESSIONS, 1), ACCOUNT_E_QUOTA);
	assert_int_equal(charge_init(&(struct charge){ 0 }, a, 7, ACCOUNT_MEMORY, 11), ACCOUNT_E_QUOTA);
	assert_int_equal(charge_init(&(struct charge){ 0 }, a, 8, ACCOUNT_SESSIONS, 4), ACCOUNT_E_QUOTA);

	/* They outlive what is charged, and a change of them what is over it. */
	for (int i = 0; i < 5; i++)
		charge_deinit(&c[i]);
	assert_int_equal(charge_init(&c[0], a, 7, ACCOUNT_SESSIONS, 5), 0);
	assert_int_equal(accounts_set_limits(a, 7, NULL), 0);
	assert_int_equal(account_limit(a, 7, ACCOUNT_SESSIONS), limits.max[ACCOUNT_SESSIONS]);
	assert_int_equal(account_used(a, 7, ACCOUNT_SESSIONS), 5);
	assert_int_equal(charge_init(&c[1], a, 7, ACCOUNT_SESSIONS, 1), ACCOUNT_E_QUOTA);
	charge_deinit(&c[0]);
	assert_int_equal(charge_init(&c[0], a, 7, ACCOUNT_SESSIONS, 4), ACCOUNT_E_QUOTA);
	assert_int_equal(charge_init(&c[0], a, 7, ACCOUNT_MEMORY, 1000), 0);
	charge_deinit(&c[0]);

	assert_int_equal(accounts_set_limits(a, 7, &own), 0);
	assert_int_equal(accounts_set_limits(a, 7, NULL), 0);
	assert_int_equal(accounts_set_limits(a, 11, &own), 0);	/* goes with the registry */
	accounts_free(a);
}

static void test_deinit_twice(void **state)
{
	struct accounts *a;
	struct charge c = CHARGE_NULL, other = CHARGE_NULL;

	assert_int_equal(accounts_new(&a, &limits), 0);
	charge_deinit(&c);
	assert_int_equal(charge_init(&other, a, 5, ACCOUNT_MEMORY, 10), 0);
	assert_int_equal(charge_init(&c, a, 5, ACCOUNT_MEMORY, 20), 0);
	charge_deinit(&c);
	charge_deinit(&c);
	assert_int_equal(account_used(a, 5, ACCOUNT_MEMORY), 10);
	charge_deinit(&other);
	accounts_free(a);
	accounts_free(NULL);
}

/* Many uids at once against plain sums, with accounts coming and going. */
static void test_against_sums(void **state)
{
	enum { N_UIDS = 600, N_CHARGES = 900, N_STEPS = 20000 };
	static struct charge charges[N_CHARGES];
	static uint64_t sums[N_UIDS];
	static uid_t uids[N_CHARGES];
	uint64_t used[ACCOUNT_N_KINDS], all;
	struct accounts *a;
	uint32_t seed = 12345;

	assert_int_equal(accounts_new(&a, &limits), 0);
	for (int step = 0; step < N_STEPS; step++) {
		seed = seed * 1664525u + 1013904223u;
		uint32_t i = (seed >> 8) % N_CHARGES, uid = (seed >> 3) % N_UIDS, n = (seed >> 20) % 600;

		if (charges[i].account) {
			sums[uids[i]] -= charges[i].amount;
			charge_deinit(&charges[i]);
		} else {
			int r = charge_init(&charges[i], a, uid, ACCOUNT_MEMORY, n);

			assert_int_equal(r, sums[uid] + n > 1000 ? ACCOUNT_E_QUOTA : 0);
			if (r == 0) {
				uids[i] = uid;
				sums[uid] += n;
			}
		}
		assert_int_equal(account_used(a, uid, ACCOUNT_MEMORY), sums[uid]);
		all = 0;
		for (uid_t k = 0; k < N_UIDS; k++)
			all += sums[k];
		accounts_used(a, used);
		assert_int_equal(used[ACCOUNT_MEMORY], all);
		assert_int_equal(used[ACCOUNT_SESSIONS], 0);
	}
	for (int i = 0; i < N_CHARGES; i++)
		charge_deinit(&charges[i]);
	for (uid_t uid = 0; uid < N_UIDS; uid++)
		assert_int_equal(account_used(a, uid, ACCOUNT_MEMORY), 0);
	accounts_free(a);
}

static void *churn(void *arg)
{
	struct accounts *a = arg;

	for (int i = 0; i < 20000; i++) {
		struct charge c = CHARGE_NULL, d = CHARGE_NULL;

		(void)charge_init(&c, a, i % 3, ACCOUNT_SESSIONS, 1);
		(void)charge_init(&d, a, i % 3, ACCOUNT_MEMORY, 600);
		charge_deinit(&c);
		charge_deinit(&d);
	}
	return NULL;
}

static void test_threads(void **state)
{
	struct accounts *a;
	pthread_t threads[4];

	assert_int_equal(accounts_new(&a, &limits), 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, churn, a), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	for (uid_t uid = 0; uid < 3; uid++)
		for (int k = 0; k < ACCOUNT_N_KINDS; k++)
			assert_int_equal(account_used(a, uid, k), 0);
	accounts_free(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_limit_is_exact),
		cmocka_unit_test(test_amounts_do_not_wrap),
		cmocka_unit_test(test_own_limits),
		cmocka_unit_test(test_deinit_twice),
		cmocka_unit_test(test_against_sums),
		cmocka_unit_test(test_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
