/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jinja-private.h - what the parts of the evaluator share: values and names
 * (jinja-value.c), expressions (jinja-expression.c), statements (jinja-eval.c).
 *
 * Functions return 0 or JINJA_E_UNSUPPORTED.
 */
#ifndef KVD_JINJA_PRIVATE_H
#define KVD_JINJA_PRIVATE_H

#include <stdint.h>
#include <string.h>

#include "daemon/model/jinja-eval.h"

#define JINJA_MAX_VARIABLES 64

enum jinja_value_kind {
	VALUE_UNDEFINED,
	VALUE_NONE,
	VALUE_BOOL,
	VALUE_INTEGER,
	VALUE_STRING,
	VALUE_MESSAGES,
	VALUE_MESSAGE,
	VALUE_LOOP,
};

struct jinja_value {
	enum jinja_value_kind kind;
	bool opaque;		/* of STRING: holds message content */
	int64_t number;		/* of VALUE_BOOL, VALUE_INTEGER, VALUE_MESSAGE (index) */
	const char *text;	/* of VALUE_STRING */
	size_t n;
};

struct jinja_variable {
	const char *name;
	size_t n;
	struct jinja_value value;
};

struct jinja_run {
	const struct jinja_input *input;
	const struct jinja_token *tokens;
	size_t at;
	struct jinja_buffer *out, *heap;
	struct jinja_variable variables[JINJA_MAX_VARIABLES];	/* later ones hide earlier ones */
	size_t n_variables;
	int depth;
	bool skipping;
};

static inline bool jinja_text_is(const char *text, size_t n, const char *s)
{
	return strlen(s) == n && memcmp(text, s, n) == 0;
}

static inline struct jinja_value jinja_string(const char *text)
{
	return (struct jinja_value){ .kind = VALUE_STRING, .text = text, .n = strlen(text) };
}

static inline struct jinja_value jinja_bool(bool b)
{
	return (struct jinja_value){ .kind = VALUE_BOOL, .number = b };
}

/* Counts work of the size of n bytes; false if it was too much. */
static inline bool jinja_charge(struct jinja_run *e, size_t n)
{
	*e->input->n_steps += 1 + n / 16;
	return *e->input->n_steps <= JINJA_MAX_STEPS;
}

/* Counts the tokens that were walked over since from. */
static inline bool jinja_charge_tokens(struct jinja_run *e, size_t from)
{
	bool ok = true;

	for (size_t i = from; i < e->at; i++)
		ok = jinja_charge(e, e->tokens[i].n);
	return ok;
}

int jinja_append(struct jinja_buffer *b, const char *text, size_t n);
/* Whether the value counts as true; unknown of content. */
int jinja_truth(const struct jinja_value *v, bool *out);
/* The value of a name. */
int jinja_find_name(const struct jinja_run *e, const char *name, size_t n, struct jinja_value *v);
/* Replaces v by v.NAME, or by v[index]. */
int jinja_field(const struct jinja_run *e, struct jinja_value *v, const char *name, size_t n);
int jinja_subscript(const struct jinja_run *e, struct jinja_value *v, const struct jinja_value *index);
/* Replaces a by the string a followed by b. */
int jinja_concatenate(struct jinja_run *e, struct jinja_value *a, const struct jinja_value *b);
int jinja_equal(const struct jinja_value *a, const struct jinja_value *b, bool *out);

/* Evaluates an expression that fills the rest of its tag, and steps behind the tag. */
int jinja_parse_to_end(struct jinja_run *e, enum jinja_token_kind end, struct jinja_value *v);

/* Steps over an operator or a word if it is the next token. */
bool jinja_take(struct jinja_run *e, enum jinja_token_kind kind, const char *text);

#endif
