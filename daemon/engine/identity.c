/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the numbers in a model's blocks depend on.  The rope's settings, scaled or not, are in the file, whose every
 * byte is in the hash; no option changes them.
 */
#include "daemon/engine/engine-private.h"

void engine_identify(const struct engine *e, const struct engine_model *em, struct store_identity *id)
{
	const struct kb_geometry *g = pool_root_geometry(em->root);
	const uint32_t kv_type = g->kv_type, numerics = e->be->ops->numerics_version;
	const uint32_t layout[] = { g->n_layers, g->n_kv_heads, g->head_dim, g->block_tokens };
	const char *level = e->be->ops->level ? e->be->ops->level(e->be) : "";

	store_identity_add(id, STORE_TAG_MODEL, model_info(em->model)->content_hash,
			   sizeof(model_info(em->model)->content_hash));
	store_identity_add(id, STORE_TAG_KV_TYPE, &kv_type, sizeof(kv_type));
	store_identity_add(id, STORE_TAG_LAYOUT, layout, sizeof(layout));
	store_identity_add(id, STORE_TAG_BACKEND, e->be->ops->name, (uint32_t)strlen(e->be->ops->name));
	store_identity_add(id, STORE_TAG_CPU_LEVEL, level, (uint32_t)strlen(level));
	store_identity_add(id, STORE_TAG_NUMERICS, &numerics, sizeof(numerics));
}
