/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of an entry, of either tier, and room for bytes that come in.
 */
#include <string.h>

#include "daemon/cache/tree-private.h"

int tree_read(struct tree *t, struct tree_ref ref, void *dst)
{
	struct tree_entry *e = ref.entry;
	uint64_t n;
	int err;

	if (!e || e->id != ref.id || e->pending || tree_is_void(e))
		return TREE_E_GONE;
	if (!e->stored && !tree_verified(t, e))
		return TREE_E_GONE;
	if (!e->stored)
		return pool_block_read(t->config.root, e->block, e->n_tokens, dst);
	err = tree_decode(t, e, &n);
	if (!err)
		memcpy(dst, host_plain(t->config.host), n);
	return err;
}

bool tree_evict_unused(struct tree *t, uid_t uid, uint64_t since, uint64_t now)
{
	struct evict_uid *only = evict_uid_get(&t->evict, uid);
	struct evict_item *item;

	if (!only)
		return false;
	item = evict_victim(&t->evict, only, now);
	evict_uid_unref(&t->evict, only);
	if (!item || item->last_use >= since)
		return false;
	tree_remove_all(t, list_entry(item, struct tree_entry, item), now);
	return true;
}
