/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/fair-weights.h"

#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"

/* Digits alone, up to max. */
static int parse_number(const char *text, uint64_t max, uint64_t *out)
{
	char *end;
	unsigned long long v;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	v = strtoull(text, &end, 10);
	if (errno || *end || v > max)
		return -EINVAL;
	*out = v;
	return 0;
}

static int find_user(const char *name, uid_t *out)
{
	const struct passwd *user;
	uint64_t uid;

	/* The last number stands for no user. */
	if (!parse_number(name, UINT32_MAX - 1, &uid)) {
		*out = (uid_t)uid;
		return 0;
	}
	user = getpwnam(name);
	if (!user)
		return -EINVAL;
	*out = user->pw_uid;
	return 0;
}

static int add(struct fair_weights *s, char *entry, struct diag *diag)
{
	char *weight = strchr(entry, ':');
	uint64_t number;
	uid_t uid;

	if (!weight)
		return diag_set(diag, -EINVAL, "fair-weights: \"%s\" is not a user and a weight, as in 1000:200",
				entry);
	*weight++ = '\0';
	if (find_user(entry, &uid))
		return diag_set(diag, -EINVAL, "fair-weights: there is no user \"%s\" here", entry);
	if (parse_number(weight, FAIR_WEIGHT_MAX, &number) || !number)
		return diag_set(diag, -EINVAL, "fair-weights: the weight \"%s\" is not within 1..%u", weight,
				FAIR_WEIGHT_MAX);
	for (size_t i = 0; i < s->n_users; i++)
		if (s->users[i].uid == uid)
			return diag_set(diag, -EINVAL, "fair-weights: user %u is named twice", (unsigned)uid);
	if (s->n_users == FAIR_WEIGHTS_MAX)
		return diag_set(diag, -EINVAL, "fair-weights: more than %d users", FAIR_WEIGHTS_MAX);
	s->users[s->n_users].uid = uid;
	s->users[s->n_users++].weight = (uint32_t)number;
	return 0;
}

int fair_weights_init(struct fair_weights *s, const char *text, struct diag *diag)
{
	_cleanup_(freep) char *copy = text ? strdup(text) : NULL;
	char *rest = copy, *entry;
	int r;

	*s = (struct fair_weights){ .n_users = 0 };
	if (text && !copy)
		return -ENOMEM;
	while ((entry = strsep(&rest, ","))) {
		entry += strspn(entry, " \t");
		entry[strcspn(entry, " \t")] = '\0';
		r = add(s, entry, diag);
		if (r)
			return r;
	}
	return 0;
}

uint32_t fair_weight(const struct fair_weights *s, uid_t uid)
{
	for (size_t i = 0; i < s->n_users; i++)
		if (s->users[i].uid == uid)
			return s->users[i].weight;
	return FAIR_WEIGHT;
}
