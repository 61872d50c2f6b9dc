/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jinja-eval.h - evaluates a chat template of the simple kind on a conversation
 * whose contents are unknown.
 *
 * Known: text, {{ }}, if/elif/else, for over messages, set; names, literals,
 * + ~ == != not and or, `is defined`, `is none`, `is string`; messages[0],
 * messages[-1], role, content, loop.first, loop.last.  Message content is
 * opaque: it can be printed and concatenated, but nothing may depend on it.
 * Whatever else is met while evaluating (a filter, a call, a comparison of
 * content) ends with JINJA_E_UNSUPPORTED; a branch that is not taken may hold
 * anything.
 *
 * So what is printed for a message depends on its role and on whether it is
 * first or last, on the same of the first and the last message, and, by nested
 * loops, of any other message; it can't depend on a count or a number.
 * chat-template.c relies on that.
 *
 * Work is bounded by JINJA_MAX_STEPS over all evaluations of one template, memory by the
 * caller's buffers.
 */
#ifndef KVD_JINJA_EVAL_H
#define KVD_JINJA_EVAL_H

#include <stdbool.h>
#include <stddef.h>

#include "daemon/model/jinja-lexer.h"

#define JINJA_MAX_STEPS 2000000	/* tokens walked over; real templates take some hundred thousand at most */
#define JINJA_MAX_MESSAGES 8

/* What stands for the content of message i in the output: three bytes that no template can write. */
#define JINJA_CONTENT(i) ((const char[]){ 1, (char)('a' + (i)), 2, 0 })

struct jinja_input {
	const char *const *roles;	/* [n_messages] */
	size_t n_messages;		/* at most JINJA_MAX_MESSAGES */
	const char *bos, *eos;		/* texts of the tokens; NULL: undefined */
	size_t *n_steps;		/* taken so far; goes on from evaluation to evaluation */
	bool none_given;		/* tools and documents are given as none, not undefined */
};

/* Text under construction. */
struct jinja_buffer {
	char *data;
	size_t n, size;
};

/*
 * Renders with add_generation_prompt.  out and heap (for intermediate strings)
 * are set to empty first; one that is too small is a JINJA_E_UNSUPPORTED.
 */
int jinja_eval(const struct jinja_source *s, const struct jinja_input *input, struct jinja_buffer *out,
	       struct jinja_buffer *heap);

#endif
