/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the numbers in a model's blocks depend on.  The rope's settings, scaled or not, are in the file, whose every
 * byte is in the hash; no option changes them.
 */
#include "daemon/engine/engine-private.h"
#include "daemon/model/kv-type.h"
#include "ipc/base/checked.h"

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

void engine_describe_identity(const struct store_field *f, char *out, size_t size)
{
	uint32_t v[4] = { 0 };

	out[0] = '\0';
	if (!f->n)
		return;
	memcpy(v, f->data, MIN((size_t)f->n, sizeof(v)));
	if (f->tag == STORE_TAG_KV_TYPE && f->n == sizeof(*v))
		snprintf(out, size, "%s", kv_type_name((enum kb_kv_type)v[0]));
	else if (f->tag == STORE_TAG_LAYOUT && f->n == sizeof(v))
		snprintf(out, size, "%u tokens", v[3]);
	else if (f->tag == STORE_TAG_BACKEND || f->tag == STORE_TAG_CPU_LEVEL)
		snprintf(out, size, "%.*s", (int)MIN(f->n, 32u), (const char *)f->data);
	else if (f->tag == STORE_TAG_NUMERICS && f->n == sizeof(*v))
		snprintf(out, size, "%u", v[0]);
}
