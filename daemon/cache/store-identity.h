/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store-identity.h - the identity of a root: everything that stored numbers depend on but tokens and namespace, as
 * tagged fields with their lengths (FORMAT.md, "identity"). Blocks of one identity are good for another model, or
 * for another daemon, if and only if its own is the same, byte for byte.
 *
 * Thread: any.
 */
#ifndef KVD_STORE_IDENTITY_H
#define KVD_STORE_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

#define STORE_IDENTITY_MAX 4096u	/* bytes of fields */

enum store_tag {	/* of a root identity's fields; numbers are never used again */
	STORE_TAG_MODEL = 1,		/* hash of the content */
	STORE_TAG_KV_TYPE = 2,
	STORE_TAG_LAYOUT = 3,		/* layers, heads, head size, order in a block */
	STORE_TAG_ROPE = 4,
	STORE_TAG_ADAPTER = 5,		/* hash and scale */
	STORE_TAG_BACKEND = 6,
	STORE_TAG_CPU_LEVEL = 7,
	STORE_TAG_NUMERICS = 8,
};

/* Zeroed: no fields yet. */
struct store_identity {
	uint32_t n;
	bool overflow;			/* a field did not fit: it is of no use */
	uint8_t bytes[STORE_IDENTITY_MAX];
};
void store_identity_add(struct store_identity *id, enum store_tag tag, const void *data, uint32_t n);

/* --- fields, as they stand in `bytes` or in a file --- */

struct store_field {
	enum store_tag tag;		/* or another number */
	uint32_t n;
	const uint8_t *data;		/* [n], in those bytes */
};
/* The field that begins at *at, which moves behind it.  False: there is none that is whole. */
bool store_identity_next(const uint8_t *bytes, uint32_t n, uint32_t *at, struct store_field *out);
/* The first field with that tag.  False: there is none. */
bool store_identity_find(const uint8_t *bytes, uint32_t n, enum store_tag tag, struct store_field *out);
/* The first of ours that is not in the other's at the same place.  False: there is none. */
bool store_identity_differing(const uint8_t *ours, uint32_t n_ours, const uint8_t *other, uint32_t n_other,
			      struct store_field *out);
/* "the type of keys and values" */
const char *store_tag_name(enum store_tag tag);

#endif
