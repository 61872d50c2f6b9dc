/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - linked into kvd-hash8: says on standard error, when a tree goes, how many entries came under the
 * hash of another, so that the test knows that there was something to get wrong.
 */
#include <stdio.h>

#include "daemon/cache/tree.h"

void __real_tree_free(struct tree *t);
void __wrap_tree_free(struct tree *t);

void __wrap_tree_free(struct tree *t)
{
	struct tree_stats stats;

	if (t) {
		tree_stats(t, &stats);
		fprintf(stderr, "hash8: %llu collisions, %llu hits\n", (unsigned long long)stats.collisions,
			(unsigned long long)stats.hits);
	}
	__real_tree_free(t);
}
