/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/base/hash.h"

#include <errno.h>
#include <string.h>
#include <xxhash.h>

/* A hasher is libxxhash's state, which asks for an alignment of its own. */

int hasher_new(struct hasher **out)
{
	XXH3_state_t *state = XXH3_createState();

	if (!state)
		return -ENOMEM;
	XXH3_128bits_reset(state);
	*out = (struct hasher *)state;
	return 0;
}

void hasher_free(struct hasher *h)
{
	if (h)
		XXH3_freeState((XXH3_state_t *)h);
}

void hasher_update(struct hasher *h, const void *data, size_t n)
{
	XXH3_128bits_update((XXH3_state_t *)h, data, n);
}

void hasher_digest(const struct hasher *h, uint8_t out[16])
{
	XXH128_canonical_t canonical;

	XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest((const XXH3_state_t *)h));
	memcpy(out, canonical.digest, sizeof(canonical.digest));
}

uint64_t hash_u64(const void *data, size_t n, uint64_t seed)
{
	return XXH3_64bits_withSeed(data, n, seed);
}
