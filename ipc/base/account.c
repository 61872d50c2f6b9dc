/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/base/account.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "ipc/base/list.h"

#define N_BUCKETS 256u

/* Exists as long as something is charged to it, or it has limits of its own. */
struct account {
	struct list entry;	/* in its bucket */
	struct accounts *accounts;
	uid_t uid;
	size_t n_charges;
	uint64_t used[ACCOUNT_N_KINDS];
	bool has_limits;
	struct account_limits limits;
};

struct accounts {
	pthread_mutex_t lock;
	struct account_limits limits;
	struct list buckets[N_BUCKETS];
};

int accounts_new(struct accounts **out, const struct account_limits *limits)
{
	struct accounts *accounts = calloc(1, sizeof(*accounts));
	int r;

	if (!accounts)
		return -ENOMEM;
	r = pthread_mutex_init(&accounts->lock, NULL);
	if (r) {
		free(accounts);
		return -r;
	}
	accounts->limits = *limits;
	for (size_t i = 0; i < N_BUCKETS; i++)
		list_init(&accounts->buckets[i]);
	*out = accounts;
	return 0;
}

static void account_free(struct account *account)
{
	list_unlink(&account->entry);
	free(account);
}

void accounts_free(struct accounts *accounts)
{
	if (!accounts)
		return;
	for (size_t i = 0; i < N_BUCKETS; i++)
		list_for_each_safe(e, next, &accounts->buckets[i])
			account_free(list_entry(e, struct account, entry));
	pthread_mutex_destroy(&accounts->lock);
	free(accounts);
}

static struct list *bucket(struct accounts *accounts, uid_t uid)
{
	/* Fibonacci hashing (Knuth, TAOCP 3, 6.4): spreads neighbouring uids. */
	return &accounts->buckets[(uint32_t)uid * 2654435769u >> 24];
}

static struct account *find(struct accounts *accounts, uid_t uid)
{
	struct list *head = bucket(accounts, uid);

	list_for_each(e, head) {
		struct account *account = list_entry(e, struct account, entry);
		if (account->uid == uid)
			return account;
	}
	return NULL;
}

static struct account *account_new(struct accounts *accounts, uid_t uid)
{
	struct account *account = calloc(1, sizeof(*account));

	if (!account)
		return NULL;
	account->accounts = accounts;
	account->uid = uid;
	list_push_back(bucket(accounts, uid), &account->entry);
	return account;
}

static int set_limits_locked(struct accounts *accounts, uid_t uid, const struct account_limits *limits)
{
	struct account *account = find(accounts, uid);

	if (!account && limits)
		account = account_new(accounts, uid);
	if (!account)
		return limits ? -ENOMEM : 0;
	account->has_limits = limits != NULL;
	if (limits)
		account->limits = *limits;
	else if (!account->n_charges)
		account_free(account);
	return 0;
}

int accounts_set_limits(struct accounts *accounts, uid_t uid, const struct account_limits *limits)
{
	int r;

	pthread_mutex_lock(&accounts->lock);
	r = set_limits_locked(accounts, uid, limits);
	pthread_mutex_unlock(&accounts->lock);
	return r;
}

static int charge_locked(struct charge *charge, struct accounts *accounts, uid_t uid,
			 enum account_kind kind, uint64_t amount)
{
	struct account *account = find(accounts, uid);
	const struct account_limits *limits = account && account->has_limits ? &account->limits : &accounts->limits;
	uint64_t used = account ? account->used[kind] : 0, max = limits->max[kind];

	if (amount > max || used > max - amount)
		return ACCOUNT_E_QUOTA;
	if (!account) {
		account = account_new(accounts, uid);
		if (!account)
			return -ENOMEM;
	}
	account->used[kind] += amount;
	account->n_charges++;
	*charge = (struct charge){ .account = account, .kind = kind, .amount = amount };
	return 0;
}

int charge_init(struct charge *charge, struct accounts *accounts, uid_t uid,
		enum account_kind kind, uint64_t amount)
{
	int r;

	pthread_mutex_lock(&accounts->lock);
	r = charge_locked(charge, accounts, uid, kind, amount);
	pthread_mutex_unlock(&accounts->lock);
	return r;
}

void charge_deinit(struct charge *charge)
{
	struct account *account = charge->account;
	struct accounts *accounts;

	if (!account)
		return;
	accounts = account->accounts;
	pthread_mutex_lock(&accounts->lock);
	account->used[charge->kind] -= charge->amount;
	if (--account->n_charges == 0 && !account->has_limits)
		account_free(account);
	pthread_mutex_unlock(&accounts->lock);
	*charge = CHARGE_NULL;
}

uint64_t account_limit(struct accounts *accounts, uid_t uid, enum account_kind kind)
{
	struct account *account;
	uint64_t max;

	pthread_mutex_lock(&accounts->lock);
	account = find(accounts, uid);
	max = account && account->has_limits ? account->limits.max[kind] : accounts->limits.max[kind];
	pthread_mutex_unlock(&accounts->lock);
	return max;
}

uint64_t account_used(struct accounts *accounts, uid_t uid, enum account_kind kind)
{
	struct account *account;
	uint64_t used;

	pthread_mutex_lock(&accounts->lock);
	account = find(accounts, uid);
	used = account ? account->used[kind] : 0;
	pthread_mutex_unlock(&accounts->lock);
	return used;
}

void accounts_used(struct accounts *accounts, uint64_t used[ACCOUNT_N_KINDS])
{
	for (size_t kind = 0; kind < ACCOUNT_N_KINDS; kind++)
		used[kind] = 0;
	pthread_mutex_lock(&accounts->lock);
	for (size_t i = 0; i < N_BUCKETS; i++) {
		list_for_each(e, &accounts->buckets[i]) {
			for (size_t kind = 0; kind < ACCOUNT_N_KINDS; kind++)
				used[kind] += list_entry(e, struct account, entry)->used[kind];
		}
	}
	pthread_mutex_unlock(&accounts->lock);
}
