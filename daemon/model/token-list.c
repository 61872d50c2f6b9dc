/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "daemon/model/tokenizer.h"

int token_list_push(struct token_list *l, int32_t id)
{
	if (l->n == l->capacity) {
		size_t capacity = l->capacity ? l->capacity + l->capacity / 2 : 64;
		int32_t *ids;

		if (capacity > SIZE_MAX / sizeof(*ids))
			return -ENOMEM;
		ids = realloc(l->ids, capacity * sizeof(*ids));
		if (!ids)
			return -ENOMEM;
		l->ids = ids;
		l->capacity = capacity;
	}
	l->ids[l->n++] = id;
	return 0;
}
