/* SPDX-License-Identifier: Apache-2.0 */
/* kv-type.h - the types of keys and values by the names that people use. */
#ifndef KVD_KV_TYPE_H
#define KVD_KV_TYPE_H

#include <stdbool.h>
#include <string.h>

#include "kernels/backend.h"

static inline const char *kv_type_name(enum kb_kv_type type)
{
	switch (type) {
	case KB_KV_F16:
		return "f16";
	case KB_KV_Q8:
		return "q8";
	case KB_KV_Q4:
		return "q4";
	}
	return "unknown";
}

/* False: there is none of that name; *out is untouched. */
static inline bool kv_type_parse(const char *name, enum kb_kv_type *out)
{
	for (int type = KB_KV_F16; type <= KB_KV_Q4; type++) {
		if (strcmp(name, kv_type_name((enum kb_kv_type)type)) == 0) {
			*out = (enum kb_kv_type)type;
			return true;
		}
	}
	return false;
}

/* Tokens of a block where nobody has said how many. */
static inline uint32_t kv_type_block_tokens(enum kb_kv_type type)
{
	return type == KB_KV_Q4 ? KB_Q4_BLOCK_TOKENS : 16;
}

#endif
