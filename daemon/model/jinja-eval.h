/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jinja-eval.h - evaluates a chat template of the simple kind on a conversation
 * whose contents are unknown.
 *
 * Known: text, {{ }}, if/elif/else, for over messages, set; names, literals,
 * + - ~ % == != < > <= >= in not and or, `A if B else C`; tests (`is defined`, none,
 * string, mapping, iterable, true...); messages[0], messages[-1], messages[1:],
 * messages[::-1], role, content, loop.first, .last, .index0...; length, trim,
 * strip(), startswith(), endswith(); namespace(); raise_exception().
 *
 * Message content is opaque: it can be printed, concatenated and stripped, but
 * nothing may depend on it, with one exception: content is taken to be words
 * that no template looks for, so `'X' in content` and content.startswith('X') are
 * false.  It is also taken to be more than white space.  Whatever else is met
 * while evaluating ends with JINJA_E_UNSUPPORTED; a branch that is not taken may
 * hold anything.
 *
 * Positions and numbers of messages may be compared with each other and with
 * numbers up to JINJA_MAX_NUMBER, and taken modulo 2.  So what is printed for a
 * message depends on roles, on parity, and on where it lies among the first and last
 * few; it can't depend on a larger count.  chat-template.c relies on that.
 *
 * Work is bounded by JINJA_MAX_STEPS over all evaluations of one template, memory by the
 * caller's buffers.
 */
#ifndef KVD_JINJA_EVAL_H
#define KVD_JINJA_EVAL_H

#include <stdbool.h>
#include <stddef.h>

#include "daemon/model/jinja-lexer.h"

#define JINJA_MAX_STEPS 1000000	/* tokens walked over; real templates take at most three hundred thousand */
#define JINJA_MAX_MESSAGES 8

#define JINJA_MAX_NUMBER 2

/*
 * What stands for the content of message i in the output: three bytes that no
 * template can write.  The last one says where white space was stripped.
 */
#define JINJA_CONTENT(i, stripped) ((const char[]){ 1, (char)('a' + (i)), (char)(2 + (stripped)), 0 })
#define JINJA_CONTENT_BYTES 3
enum jinja_stripped { JINJA_LEFT = 1, JINJA_RIGHT = 2 };

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
 * 0, JINJA_E_UNSUPPORTED, JINJA_E_RAISED.
 */
int jinja_eval(const struct jinja_source *s, const struct jinja_input *input, struct jinja_buffer *out,
	       struct jinja_buffer *heap);

#endif
