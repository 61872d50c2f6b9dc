/* SPDX-License-Identifier: Apache-2.0 */
/* share-private.h - what export.c, import.c and verify.c have in common: share.c. */
#ifndef KVD_SHARE_PRIVATE_H
#define KVD_SHARE_PRIVATE_H

#include "daemon/cache/export-format.h"
#include "daemon/engine/engine-private.h"
#include "daemon/engine/share.h"

#define SHARE_BYTES (UINT32_C(2) << 20)	/* of blocks in one visit: a millisecond's copying */

/* Entries of a tree, depth first: as they were when it was made. */
struct share_item {
	struct tree_ref ref;
	uint32_t depth;		/* blocks before it */
	bool tried, compared;	/* verify.c's */
};

struct share_list {
	struct share_item *items;
	uint32_t n;
	struct charge charge;
};

/* fn on the engine's thread; waits until it has returned.  0; -ESHUTDOWN: it was not called. */
int share_visit(struct engine *e, void (*fn)(struct engine *e, void *arg), void *arg);

/*
 * On the engine's thread: the entries that fn wants (arg: scope), charged to the uid.  0, -ENOMEM, SHARE_E_QUOTA,
 * SHARE_E_NO_MODEL.
 */
int share_list_init(struct share_list *l, struct engine *e, struct engine_model *em, tree_want_fn fn,
		    struct cache_scope *scope);
void share_list_deinit(struct share_list *l);

/* On the engine's thread: what the model's blocks are; n_vocab, too. */
void share_shape(const struct engine *e, const struct engine_model *em, struct export_shape *out);

#endif
