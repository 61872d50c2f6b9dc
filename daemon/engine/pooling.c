/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/pooling.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void pooling_init(struct pooling *p, enum engine_pooling kind, uint32_t n_tokens)
{
	*p = (struct pooling){ .kind = kind };
	if (kind == ENGINE_POOLING_NONE)
		return;
	p->next = kind == ENGINE_POOLING_LAST ? n_tokens - 1 : 0;
	p->end = n_tokens;
}

void pooling_deinit(struct pooling *p)
{
	free(p->sums);
	free(p->values);
	*p = (struct pooling){ 0 };
}

uint64_t pooling_bound(const struct pooling *p, uint32_t n_embd)
{
	if (p->kind == ENGINE_POOLING_NONE)
		return 0;
	return (uint64_t)n_embd * (sizeof(*p->values) + (p->kind == ENGINE_POOLING_MEAN ? sizeof(*p->sums) : 0));
}

int pooling_reserve(struct pooling *p, uint32_t n_embd)
{
	if (p->kind == ENGINE_POOLING_NONE || p->values)
		return 0;
	p->values = calloc(n_embd, sizeof(*p->values));
	if (p->kind == ENGINE_POOLING_MEAN)
		p->sums = calloc(n_embd, sizeof(*p->sums));
	if (!p->values || (p->kind == ENGINE_POOLING_MEAN && !p->sums)) {
		free(p->values);
		free(p->sums);
		p->values = NULL;
		p->sums = NULL;
		return -ENOMEM;
	}
	p->n_embd = n_embd;
	return 0;
}

void pooling_add(struct pooling *p, const float *state)
{
	p->next++;
	if (p->kind == ENGINE_POOLING_LAST) {
		memcpy(p->values, state, p->n_embd * sizeof(*state));
		return;
	}
	for (uint32_t i = 0; i < p->n_embd; i++)
		p->sums[i] += (double)state[i];
}

const float *pooling_result(struct pooling *p)
{
	for (uint32_t i = 0; p->kind == ENGINE_POOLING_MEAN && i < p->n_embd; i++)
		p->values[i] = (float)(p->sums[i] / (double)p->end);
	return p->values;
}
