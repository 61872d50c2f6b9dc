/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jinja-private.h - what the parts of the evaluator share: values and names
 * (jinja-value.c), expressions (jinja-expression.c), statements (jinja-eval.c).
 *
 * Functions return 0, JINJA_E_UNSUPPORTED or JINJA_E_RAISED.
 */
#ifndef KVD_JINJA_PRIVATE_H
#define KVD_JINJA_PRIVATE_H

#include <stdint.h>
#include <string.h>

#include "daemon/model/jinja-eval.h"

#define JINJA_MAX_VARIABLES 64
#define JINJA_MAX_FIELDS 16	/* of all namespaces */

enum jinja_value_kind {
	VALUE_UNDEFINED,
	VALUE_NONE,
	VALUE_BOOL,
	VALUE_INTEGER,
	VALUE_STRING,
	VALUE_MESSAGES,
	VALUE_MESSAGE,
	VALUE_LOOP,
	VALUE_NAMESPACE,
};

struct jinja_value {
	enum jinja_value_kind kind;
	bool opaque;		/* of STRING: holds message content; of INTEGER: counts messages */
	bool reversed;		/* of VALUE_MESSAGES */
	/* of BOOL, INTEGER; index of MESSAGE; first of MESSAGES; place of LOOP; number of NAMESPACE */
	int64_t number;
	const char *text;	/* of VALUE_STRING */
	size_t n;		/* bytes of STRING; messages of MESSAGES, LOOP */
};

/* A field of a namespace. */
struct jinja_member {
	int64_t space;
	const char *name;
	size_t n;
	struct jinja_value value;
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
	struct jinja_member fields[JINJA_MAX_FIELDS];
	size_t n_fields;
	int64_t n_spaces;
	int n_loops;			/* that are running */
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
/* op: "<", ">", "<=" or ">="; integers. */
int jinja_less(const char *op, const struct jinja_value *a, const struct jinja_value *b, bool *out);
/* Whether a is in b: a string, or a message's fields. */
int jinja_contains(const struct jinja_value *b, const struct jinja_value *a, bool *out);
/* Replaces a by a + b, a - b or a % b; integers. */
int jinja_calculate(char op, struct jinja_value *a, const struct jinja_value *b);
/* messages[from:], messages[::-1] */
int jinja_slice(struct jinja_value *v, int64_t from, bool reversed);
/* Strips white space; sides are of enum jinja_stripped. */
int jinja_strip(struct jinja_run *e, struct jinja_value *v, unsigned sides);
/* The number of messages, or of bytes of a string that is no content. */
int jinja_length(struct jinja_value *v);
/* Sets a field of a namespace. */
int jinja_set_field(struct jinja_run *e, const struct jinja_value *space, const char *name, size_t n,
		    const struct jinja_value *v);

/* Evaluates an expression that fills the rest of its tag, and steps behind the tag. */
int jinja_parse_to_end(struct jinja_run *e, enum jinja_token_kind end, struct jinja_value *v);

/* Steps over an operator or a word if it is the next token. */
bool jinja_take(struct jinja_run *e, enum jinja_token_kind kind, const char *text);

#endif
