/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chat-format.h - the forms of prompts that families of models are trained on, as
 * a table: what stands before and behind a message by its role, where the system
 * message goes, and which markers have to be control tokens.
 */
#ifndef KVD_CHAT_FORMAT_H
#define KVD_CHAT_FORMAT_H

#include <stdbool.h>
#include <stddef.h>

enum chat_role {
	CHAT_SYSTEM,
	CHAT_USER,
	CHAT_ASSISTANT,
	CHAT_N_ROLES,
};

extern const char *const chat_role_names[CHAT_N_ROLES];

/* Stand for the texts of BOS and EOS in the strings of the table. */
#define CHAT_BOS "\x06"
#define CHAT_EOS "\x07"

/* Where a system message at the beginning goes. */
enum chat_system {
	CHAT_SYSTEM_TURN,		/* a turn of its own, as any other may be */
	CHAT_SYSTEM_FIRST_USER,		/* into the first user's turn, before its content */
	CHAT_SYSTEM_LAST_USER,		/* into the last message's turn, before its content */
};

#define CHAT_MAX_MARKERS 5

struct chat_format {
	const char *name;
	struct chat_turn {
		const char *open, *close;
	} turns[CHAT_N_ROLES];		/* of the system: around it, where it is folded in */
	const char *reply;		/* the prompt's end */
	enum chat_system system;
	const char *markers[CHAT_MAX_MARKERS];	/* in these strings; their control tokens are meant */
	size_t n_required;		/* so many of the markers have to be control tokens; others may be text */
	bool spaces_skipped;		/* the model's own tokenizer drops white space behind markers */
};

extern const struct chat_format chat_formats[];
extern const size_t chat_n_formats;

/* The role by its name; false if there is none. */
bool chat_role_find(const char *name, enum chat_role *role);

#endif
