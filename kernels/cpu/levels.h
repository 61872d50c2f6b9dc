/* SPDX-License-Identifier: Apache-2.0 */
/*
 * levels.h - the choice among CPU levels: the best that the machine has and that gives plain C's bits on it.
 *
 * A level is compared (self-check.h) when it is first chosen in a process, and the verdict holds until its end.
 * Any thread; two that choose at once wait for each other.
 */
#ifndef KC_LEVELS_H
#define KC_LEVELS_H

#include <stdbool.h>
#include <stddef.h>

struct kc_level;

/* A level to choose from; but for the first field all is 0 at first. */
struct kc_choice {
	const struct kc_level *level;
	bool checked, right;
	char fault[96];		/* where it is checked and not right: what differed */
};

/*
 * The first of the n choices, best first, or the one of that name.  -EINVAL: no such name; -ENOTSUP: this machine
 * lacks it; -EIO: it computes wrongly here; -ENOMEM.
 */
int kc_levels_choose(struct kc_choice *choices, size_t n, const char *name, const struct kc_level **out);

/* Among the levels of this program. */
int kc_levels_find(const char *name, const struct kc_level **out);

/* What was found wrong with the level of that name; NULL: nothing so far. */
const char *kc_levels_fault(const struct kc_choice *choices, size_t n, const char *name);

#endif
