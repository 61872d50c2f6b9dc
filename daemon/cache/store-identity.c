/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/cache/store-identity.h"

#include <endian.h>
#include <string.h>

#include "ipc/base/checked.h"

void store_identity_add(struct store_identity *id, enum store_tag tag, const void *data, uint32_t n)
{
	uint32_t head[2] = { htole32((uint32_t)tag), htole32(n) };

	if (id->overflow || n > sizeof(id->bytes) || sizeof(head) + n > sizeof(id->bytes) - id->n) {
		id->overflow = true;
		return;
	}
	memcpy(id->bytes + id->n, head, sizeof(head));
	if (n)
		memcpy(id->bytes + id->n + sizeof(head), data, n);
	id->n += (uint32_t)sizeof(head) + n;
}

bool store_identity_next(const uint8_t *bytes, uint32_t n, uint32_t *at, struct store_field *out)
{
	uint32_t head[2];

	if (*at > n || n - *at < sizeof(head))
		return false;
	memcpy(head, bytes + *at, sizeof(head));
	if (le32toh(head[1]) > n - *at - sizeof(head))
		return false;
	*out = (struct store_field){
		.tag = (enum store_tag)le32toh(head[0]), .n = le32toh(head[1]), .data = bytes + *at + sizeof(head),
	};
	*at += (uint32_t)sizeof(head) + out->n;
	return true;
}

bool store_identity_find(const uint8_t *bytes, uint32_t n, enum store_tag tag, struct store_field *out)
{
	struct store_field f;
	uint32_t at = 0;

	while (store_identity_next(bytes, n, &at, &f)) {
		if (f.tag != tag)
			continue;
		*out = f;
		return true;
	}
	return false;
}

bool store_identity_differing(const uint8_t *ours, uint32_t n_ours, const uint8_t *other, uint32_t n_other,
			      struct store_field *out)
{
	struct store_field f;
	uint32_t at = 0, begin = 0;

	for (; store_identity_next(ours, n_ours, &at, &f); begin = at) {
		if (at <= n_other && !memcmp(ours + begin, other + begin, at - begin))
			continue;
		*out = f;
		return true;
	}
	return false;
}

const char *store_tag_name(enum store_tag tag)
{
	static const char *const names[] = {
		[STORE_TAG_MODEL] = "the model", [STORE_TAG_KV_TYPE] = "the type of keys and values",
		[STORE_TAG_LAYOUT] = "the layout of a block", [STORE_TAG_ROPE] = "the rotation of positions",
		[STORE_TAG_ADAPTER] = "the adapter", [STORE_TAG_BACKEND] = "the device",
		[STORE_TAG_CPU_LEVEL] = "the CPU level", [STORE_TAG_NUMERICS] = "the version of the numerics",
	};

	return (size_t)tag < ARRAY_SIZE(names) && names[tag] ? names[tag] : "what it depends on";
}
