/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scope cleanup: `_cleanup_(foo_freep) struct foo *f = NULL;` frees f at the
 * end of its scope.  The *p function is declared beside the type.
 */
#ifndef KVD_BASE_CLEANUP_H
#define KVD_BASE_CLEANUP_H

#include <stdlib.h>

#define _cleanup_(fn) __attribute__((cleanup(fn)))

/* Defines `static inline void FNp(TYPE **)`; FN must accept NULL. */
#define CLEANUP_DEFINE(TYPE, FN) \
	static inline void FN##p(TYPE **p) { if (*p) FN(*p); }

static inline void freep(void *p)
{
	free(*(void **)p);
}

/* Moves a pointer out of a cleanup variable. */
#define steal_ptr(p) ({ __typeof__(p) steal_tmp_ = (p); (p) = NULL; steal_tmp_; })

#endif
