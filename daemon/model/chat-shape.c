/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/chat-shape.h"

#include <stdlib.h>

void chat_shape_deinit(struct chat_shape *s)
{
	free(s->lead);
	free(s->system);
	*s = CHAT_SHAPE_NULL;
}

/* What a message of this role at index i is refused for. */
static const char *refuses_one(const struct chat_shape *s, const enum chat_role *roles, size_t i)
{
	bool system_before = roles[0] == CHAT_SYSTEM;
	bool folded = s->format->system != CHAT_SYSTEM_TURN;

	if (roles[i] == CHAT_SYSTEM) {
		if (s->no_system)
			return "the model's template has no system message";
		if (i > 0 && (s->system_first || s->alternates || folded))
			return "in the model's template a system message comes first";
		return NULL;
	}
	if (s->alternates && (roles[i] == CHAT_USER) != ((i - system_before) % 2 == 0))
		return "in the model's template user and assistant take turns, the user begins";
	return NULL;
}

const char *chat_shape_refuses(const struct chat_shape *s, const enum chat_role *roles, size_t n, size_t *at)
{
	size_t into;

	for (*at = 0; *at < n; ++*at) {
		const char *why = refuses_one(s, roles, *at);
		if (why)
			return why;
	}
	*at = n - 1;
	if (s->user_last && roles[n - 1] == CHAT_ASSISTANT)
		return "in the model's template the last message is not the assistant's";
	if (chat_shape_folds(s, roles, n, &into) && (into == 0 || into >= n || roles[into] != CHAT_USER))
		return "in the model's template a system message goes into a user's message";
	return NULL;
}
