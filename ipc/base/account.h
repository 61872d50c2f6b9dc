/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accounts: what is charged to a uid.
 *
 * Every resource that a peer can make the daemon hold is charged through a
 * `struct charge` that is embedded beside the resource and released by its
 * deinit, so that quota can't leak.  A charge is either NULL or holds an amount
 * of one kind on one account, which it keeps alive.
 *
 * Thread: any; the registry has a lock of its own.
 */
#ifndef KVD_BASE_ACCOUNT_H
#define KVD_BASE_ACCOUNT_H

#include <stdint.h>
#include <sys/types.h>

enum account_kind {
	ACCOUNT_SESSIONS,	/* connections */
	ACCOUNT_MEMORY,		/* bytes of buffers, segments and prompts */
	ACCOUNT_REQUESTS,	/* queued and running requests */
	ACCOUNT_KV,		/* bytes of KV blocks */
	ACCOUNT_WEIGHTS,	/* bytes of model files that it had loaded */
	ACCOUNT_N_KINDS,
};

/*
 * Ids from here on are no users of the machine but stand for others who are charged: keys of the HTTP
 * endpoint, and all of its peers of whom nothing is known.  Users have no such ids: systemd's UIDS-GIDS and
 * POSIX leave the upper half alone, since some code takes a uid for signed; a peer that has one is refused.
 */
#define ACCOUNT_ID_NOBODY UINT32_C(0x80000000)
#define ACCOUNT_ID_KEYS UINT32_C(0x80000001)	/* .. 0xfffffffe: from the hash of a key's name */

struct account;
struct accounts;

/* Limits of an account, indexed by account_kind; UINT64_MAX = no limit. */
struct account_limits {
	uint64_t max[ACCOUNT_N_KINDS];
};

struct charge {
	struct account *account;	/* NULL: nothing charged */
	enum account_kind kind;
	uint64_t amount;
};

#define CHARGE_NULL ((struct charge){ 0 })
#define ACCOUNT_E_QUOTA 1	/* the charge would pass the uid's limit */

int accounts_new(struct accounts **out, const struct account_limits *limits);
void accounts_free(struct accounts *accounts);	/* every charge must be gone */
/*
 * Limits of one account from now on, in place of those for all; NULL: those again.  What it is charged beyond
 * them stays.  0 or -ENOMEM.
 */
int accounts_set_limits(struct accounts *accounts, uid_t uid, const struct account_limits *limits);

/*
 * Charges amount to uid.  0, ACCOUNT_E_QUOTA or -ENOMEM.  *charge must be
 * CHARGE_NULL before.
 */
int charge_init(struct charge *charge, struct accounts *accounts, uid_t uid,
		enum account_kind kind, uint64_t amount);
/* Gives back what is charged; charge becomes CHARGE_NULL; twice is harmless. */
void charge_deinit(struct charge *charge);

/* What uid may be charged at most. */
uint64_t account_limit(struct accounts *accounts, uid_t uid, enum account_kind kind);
/* What uid is charged now. */
uint64_t account_used(struct accounts *accounts, uid_t uid, enum account_kind kind);
/* What all together are. */
void accounts_used(struct accounts *accounts, uint64_t used[ACCOUNT_N_KINDS]);

#endif
