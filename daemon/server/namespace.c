/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/namespace.h"

#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "ipc/base/checked.h"
#include "ipc/base/cleanup.h"

#define OVERFLOW_GID 65534	/* the kernel's word for any group that has no number here */

/* --- configuration --- */

/* A group by its name or number; its name is what namespaces are called by. */
static int add_group(struct namespaces *n, const char *name, struct diag *diag)
{
	char *end;
	unsigned long number = strtoul(name, &end, 10);
	const struct group *g = *name >= '0' && *name <= '9' && !*end && number <= UINT32_MAX
					? getgrgid((gid_t)number) : getgrnam(name);

	if (!g)
		return diag_set(diag, -EINVAL, "cache-groups: there is no group \"%s\" here", name);
	if (g->gr_gid == OVERFLOW_GID)
		return diag_set(diag, -EINVAL, "cache-groups: \"%s\" stands for groups that are not known here", name);
	if (strchr(g->gr_name, '/') || strlen(g->gr_name) > KVD_WORD_MAX)
		return diag_set(diag, -EINVAL, "cache-groups: \"%s\": the name is longer than %d bytes or has a '/'",
				name, KVD_WORD_MAX);
	if (n->n_groups == NAMESPACE_GROUPS_MAX)
		return diag_set(diag, -EINVAL, "cache-groups: more than %d groups", NAMESPACE_GROUPS_MAX);
	n->groups[n->n_groups].gid = g->gr_gid;
	snprintf(n->groups[n->n_groups].name, sizeof(n->groups[0].name), "group:%s", g->gr_name);
	n->n_groups++;
	return 0;
}

int namespaces_init(struct namespaces *n, const char *groups, bool public, struct diag *diag)
{
	_cleanup_(freep) char *copy = groups ? strdup(groups) : NULL;
	char *rest = copy, *name;
	int r;

	*n = (struct namespaces){ .public = public };
	if (groups && !copy)
		return -ENOMEM;
	while ((name = strsep(&rest, ","))) {
		name += strspn(name, " \t");
		name[strcspn(name, " \t")] = '\0';
		r = add_group(n, name, diag);
		if (r)
			return r;
	}
	return 0;
}

/* --- peers --- */

static uint32_t bit_of(const struct namespaces *n, gid_t gid)
{
	for (size_t i = 0; i < n->n_groups; i++)
		if (n->groups[i].gid == gid)
			return 1u << i;
	return 0;
}

uint32_t namespaces_groups_of(const struct namespaces *n, int sock, gid_t gid)
{
	uint32_t bits = bit_of(n, gid);
	_cleanup_(freep) gid_t *gids = NULL;
	socklen_t size = 0;

	/* Asks for the size first; what can't be read is no membership. */
	if (!n->n_groups || getsockopt(sock, SOL_SOCKET, SO_PEERGROUPS, NULL, &size) == 0 || errno != ERANGE)
		return bits;
	gids = malloc(size);
	if (!gids || getsockopt(sock, SOL_SOCKET, SO_PEERGROUPS, gids, &size) < 0)
		return bits;
	for (size_t i = 0; i < size / sizeof(*gids); i++)
		bits |= bit_of(n, gids[i]);
	return bits;
}

/* --- requests --- */

void namespace_own(uid_t uid, char out[NAMESPACE_OWN_MAX])
{
	snprintf(out, NAMESPACE_OWN_MAX, "uid:%u", (unsigned)uid);
}

static int choose_group(const struct namespaces *n, uint32_t groups, const char *name, struct diag *diag)
{
	for (size_t i = 0; i < n->n_groups; i++)
		if ((groups & 1u << i) && !strcmp(name, n->groups[i].name))
			return 0;
	/* The same whether there is such a group, the peer is not in it, or nobody may use it. */
	return diag_set(diag, NAMESPACE_E_DENIED,
			"the cache of %.40s is not for this user, or not permitted by the daemon's configuration",
			name);
}

/* The base of the name that was asked for. */
static int choose(const struct namespaces *n, uint32_t groups, const char *own, const char *name, struct diag *diag)
{
	if (!strcmp(name, own))
		return 0;
	if (!strncmp(name, "group:", 6) && name[6])
		return choose_group(n, groups, name, diag);
	if (!strcmp(name, "public"))
		return n->public ? 0 : diag_set(diag, NAMESPACE_E_DENIED,
						"the public cache is not permitted by the daemon's configuration");
	if (!strncmp(name, "uid:", 4))
		return diag_set(diag, NAMESPACE_E_DENIED, "another user's cache is not for this one");
	return diag_set(diag, NAMESPACE_E_UNKNOWN, "must be own, group:NAME, public or none");
}

int namespace_choose_as(const struct namespaces *n, const char *own, uint32_t groups, const char *name,
			const char *key, struct namespace_choice *out, struct diag *diag)
{
	struct namespace_choice c = { .n_also = 0 };
	int r;

	snprintf(c.own, sizeof(c.own), "%s", own);
	name = !name || !strcmp(name, "own") ? own : name;
	if (*own && strcmp(name, "none")) {
		r = choose(n, groups, own, name, diag);
		if (r)
			return r;
		/* One that is cut would be another's. */
		if (snprintf(c.name, sizeof(c.name), "%s%s%s", name, key ? "/" : "", key ? key : "") >=
		    (int)sizeof(c.name))
			return diag_set(diag, NAMESPACE_E_UNKNOWN, "with the cache key it is too long");
	}
	for (size_t i = 0; *own && i < n->n_groups; i++)
		if (groups & 1u << i)
			c.also[c.n_also++] = n->groups[i].name;
	if (*own && n->public)
		c.also[c.n_also++] = "public";
	*out = c;
	return 0;
}

int namespace_choose(const struct namespaces *n, uid_t uid, uint32_t groups, const char *name, const char *key,
		     struct namespace_choice *out, struct diag *diag)
{
	char own[NAMESPACE_OWN_MAX];

	namespace_own(uid, own);
	return namespace_choose_as(n, own, groups, name, key, out, diag);
}

bool namespace_filter(uid_t uid, const char *filter, char out[KVD_NAMESPACE_MAX + 1])
{
	char own[NAMESPACE_OWN_MAX];
	bool is_own = namespace_within(filter, "own");

	namespace_own(uid, own);
	return snprintf(out, KVD_NAMESPACE_MAX + 1, "%s%s", is_own ? own : "", is_own ? filter + 3 : filter) <=
	       KVD_NAMESPACE_MAX;
}

bool namespace_within(const char *name, const char *top)
{
	size_t n = strlen(top);

	return !strncmp(name, top, n) && (!name[n] || name[n] == '/');
}
