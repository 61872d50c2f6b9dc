/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chat-shape.h - what a template is known to print: a format, and what differs
 * between templates of that format.  Made by chat-recognise.c, rendered by
 * chat-template.c.
 */
#ifndef KVD_CHAT_SHAPE_H
#define KVD_CHAT_SHAPE_H

#include "daemon/model/chat-format.h"
#include "daemon/model/tokenizer.h"
#include "ipc/base/error.h"

struct chat_shape {
	const struct chat_format *format;	/* NULL: not recognised */
	bool bos;			/* the prompt begins with BOS */
	unsigned stripped[CHAT_N_ROLES];	/* enum jinja_stripped: where contents lose white space */
	unsigned stripped_folded;	/* the same of the one that a system message is folded into */
	char *lead;			/* text before a system message inside its turn, "" mostly */
	char *system;			/* the whole text of the turn where there is no system message; NULL: no turn */
	/* Which conversations the template takes, and so do we. */
	bool no_system;
	bool system_first;		/* a system message comes first or not at all */
	bool alternates;		/* user and assistant take turns, the user begins */
	bool user_last;			/* the last message is not the assistant's */
};

#define CHAT_SHAPE_NULL ((struct chat_shape){ 0 })

/* Leaves s->format NULL for a template that is not known.  0 or -ENOMEM. */
int chat_shape_init(struct chat_shape *s, const struct tokenizer *t, const char *text, size_t n);
void chat_shape_deinit(struct chat_shape *s);

/* NULL if the template takes these roles, else what it wants of message *at. */
const char *chat_shape_refuses(const struct chat_shape *s, const enum chat_role *roles, size_t n, size_t *at);

/* A system message that begins the conversation goes into the turn of message *at. */
static inline bool chat_shape_folds(const struct chat_shape *s, const enum chat_role *roles, size_t n, size_t *at)
{
	if (s->format->system == CHAT_SYSTEM_TURN || roles[0] != CHAT_SYSTEM)
		return false;
	*at = s->format->system == CHAT_SYSTEM_FIRST_USER ? 1 : n - 1;
	return true;
}

#endif
