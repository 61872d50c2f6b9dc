/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/cache/store-identity.h"

#include <endian.h>
#include <string.h>

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
