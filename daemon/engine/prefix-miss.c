/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why a prompt was not in the cache: where else the one who asks could have had it.
 *
 * What is told is of namespaces that he could have named himself: his own with all of its keys, and
 * those that he is permitted to use.
 */
#include "daemon/engine/engine-private.h"

#define KEYS_MAX 16u	/* of his own namespace that are looked at */

/* Bytes of a name without its key. */
static size_t base_of(struct tree_name name)
{
	const char *slash = memchr(name.bytes, '/', name.n);

	return slash ? (size_t)(slash - (const char *)name.bytes) : name.n;
}

static struct tree_name name_of(const char *s)
{
	return (struct tree_name){ s, strlen(s) };
}

static bool same_base(struct tree_name a, struct tree_name b)
{
	return base_of(a) == base_of(b) && !memcmp(a.bytes, b.bytes, base_of(a));
}

static bool same_name(struct tree_name a, struct tree_name b)
{
	return a.n == b.n && !memcmp(a.bytes, b.bytes, a.n);
}

/* tree_want_fn: his own namespaces but the one that was looked in. */
static bool is_other_key(void *arg, struct tree_name name, uid_t uid)
{
	const struct engine_request *r = arg;

	return same_base(name, name_of(r->own)) && !same_name(name, name_of(r->ns));
}

size_t engine_prefix_also(const struct engine_request *r, struct tree_name *out)
{
	size_t n = 0;

	if (r->own)
		n = tree_names(r->model->tree, is_other_key, (void *)r, out, KEYS_MAX);
	for (size_t i = 0; i < ENGINE_ALSO_MAX && r->also[i]; i++)
		if (!same_name(name_of(r->also[i]), name_of(r->ns)))
			out[n++] = name_of(r->also[i]);
	return n;
}

enum sink_miss engine_prefix_miss(const struct engine_request *r, const struct tree_match *match,
				  const struct tree_name *also)
{
	static const enum sink_miss of[] = {
		[TREE_MISS_NONE] = SINK_MISS_NONE,       [TREE_MISS_EMPTY] = SINK_MISS_EMPTY,
		[TREE_MISS_DIFFERS] = SINK_MISS_DIFFERS, [TREE_MISS_EXPIRED] = SINK_MISS_EXPIRED,
		[TREE_MISS_EVICTED] = SINK_MISS_EVICTED, [TREE_MISS_NAMESPACE] = SINK_MISS_NAMESPACE,
		[TREE_MISS_BLOCK] = SINK_MISS_BLOCK,
	};

	if (match->miss == TREE_MISS_NAMESPACE && same_base(also[match->miss_also], name_of(r->ns)))
		return SINK_MISS_KEY;
	return of[match->miss];
}
