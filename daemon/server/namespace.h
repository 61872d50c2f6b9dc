/* SPDX-License-Identifier: Apache-2.0 */
/*
 * namespace.h - whose cache a request reads and fills.
 *
 *	uid:N, group:NAME, public	and with a cache key uid:N/KEY ...
 *
 * The uid is the kernel's word for the peer.  A group's namespace is for those who are in it, by the list that
 * the kernel recorded when they connected, and only if the configuration names it; `public` only
 * if the configuration permits it.  Groups are looked up once, at start.
 *
 * Thread: the loop thread; namespaces_init() before others exist.
 */
#ifndef KVD_SERVER_NAMESPACE_H
#define KVD_SERVER_NAMESPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/engine/engine.h"
#include "ipc/base/error.h"
#include "ipc/protocol.h"

#define NAMESPACE_GROUPS_MAX 8
#define NAMESPACE_OWN_MAX 16	/* "uid:4294967295" */

struct namespaces {
	bool public;
	size_t n_groups;
	struct {
		gid_t gid;
		char name[KVD_WORD_MAX + 8];	/* "group:NAME" */
	} groups[NAMESPACE_GROUPS_MAX];
};

/*
 * groups: names or numbers between commas, NULL for none.  0; -EINVAL: diag says which is none, or is no
 * group of this machine.
 */
int namespaces_init(struct namespaces *n, const char *groups, bool public, struct diag *diag);

/* Which of the groups a connected peer is in, a bit each. */
uint32_t namespaces_groups_of(const struct namespaces *n, int sock, gid_t gid);

/* What a request's fields come to. */
struct namespace_choice {
	char name[KVD_NAMESPACE_MAX + 1];	/* "": it has no part in the cache */
	char own[KVD_NAMESPACE_MAX + 1];
	const char *also[ENGINE_ALSO_MAX];	/* shared ones that the peer may use; as long as `namespaces` lives */
	size_t n_also;
};

#define NAMESPACE_E_UNKNOWN 1	/* that is none */
#define NAMESPACE_E_DENIED 2

/* name, key: of the message, or NULL.  groups: namespaces_groups_of().  0, NAMESPACE_E_*; diag. */
int namespace_choose(const struct namespaces *n, uid_t uid, uint32_t groups, const char *name, const char *key,
		     struct namespace_choice *out, struct diag *diag);
/* The same for one whose own namespace is not that of a uid; "": it has none, and no part in the cache. */
int namespace_choose_as(const struct namespaces *n, const char *own, uint32_t groups, const char *name,
			const char *key, struct namespace_choice *out, struct diag *diag);

void namespace_own(uid_t uid, char out[NAMESPACE_OWN_MAX]);
/* A filter of the peer's: "own" and "own/KEY" become what they stand for.  False: too long. */
bool namespace_filter(uid_t uid, const char *filter, char out[KVD_NAMESPACE_MAX + 1]);
/* Whether name is top or below it. */
bool namespace_within(const char *name, const char *top);

#endif
