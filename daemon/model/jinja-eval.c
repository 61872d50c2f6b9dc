/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A recursive-descent evaluator over the tokens; the depth of recursion is
 * bounded by JINJA_MAX_DEPTH.  An operand that `and` or `or` skips is parsed with
 * `skipping` set, by the same rules, without being evaluated.
 */
#include "daemon/model/jinja-eval.h"

#include <stdint.h>
#include <string.h>

#include "ipc/base/checked.h"

#define MAX_VARIABLES 64

enum value_kind { UNDEFINED, NONE, BOOL, INTEGER, STRING, MESSAGES, MESSAGE, LOOP };

struct value {
	enum value_kind kind;
	bool opaque;		/* of STRING: holds message content */
	int64_t number;		/* of BOOL, INTEGER, MESSAGE (index) */
	const char *text;	/* of STRING */
	size_t n;
};

struct variable {
	const char *name;
	size_t n;
	struct value value;
};

struct eval {
	const struct jinja_input *input;
	const struct jinja_token *tokens;
	size_t at;
	struct jinja_buffer *out, *heap;
	struct variable variables[MAX_VARIABLES];	/* later ones hide earlier ones */
	size_t n_variables;
	unsigned n_steps;
	int depth;
	bool skipping;
};

static int run(struct eval *e, size_t end);
static int parse_expression(struct eval *e, struct value *v);

static const struct jinja_token *token(const struct eval *e)
{
	return &e->tokens[e->at];
}

static bool text_is(const char *text, size_t n, const char *s)
{
	return strlen(s) == n && memcmp(text, s, n) == 0;
}

static bool is_token(const struct eval *e, enum jinja_token_kind kind, const char *text)
{
	return token(e)->kind == kind && text_is(token(e)->text, token(e)->n, text);
}

/* Steps over an operator or a word if it is the next token. */
static bool take(struct eval *e, enum jinja_token_kind kind, const char *text)
{
	if (!is_token(e, kind, text))
		return false;
	e->at++;
	return true;
}

static int append(struct jinja_buffer *b, const char *text, size_t n)
{
	if (n > b->size - b->n)
		return JINJA_E_UNSUPPORTED;
	memcpy(b->data + b->n, text, n);
	b->n += n;
	return 0;
}

static struct value string_value(const char *text)
{
	return (struct value){ .kind = STRING, .text = text, .n = strlen(text) };
}

static struct value bool_value(bool b)
{
	return (struct value){ .kind = BOOL, .number = b };
}

static int push_variable(struct eval *e, const char *name, size_t n, struct value v)
{
	if (e->n_variables == MAX_VARIABLES)
		return JINJA_E_UNSUPPORTED;
	e->variables[e->n_variables++] = (struct variable){ name, n, v };
	return 0;
}

static int truth(const struct value *v, bool *out)
{
	switch (v->kind) {
	case UNDEFINED:
	case NONE:
		*out = false;
		return 0;
	case STRING:
		*out = v->n > 0;
		return v->opaque ? JINJA_E_UNSUPPORTED : 0;
	case BOOL:
	case INTEGER:
		*out = v->number != 0;
		return 0;
	default:
		*out = true;
		return 0;
	}
}

/* Words that are no names; where one stands for an operand, something is not known here. */
static bool is_keyword(const char *name, size_t n)
{
	static const char *const words[] = { "and", "or", "not", "in", "is", "if", "else", "elif", "for", "recursive" };

	for (size_t i = 0; i < ARRAY_SIZE(words); i++)
		if (text_is(name, n, words[i]))
			return true;
	return false;
}

/* Names that transformers defines and that are not known here. */
static bool is_foreign_name(const char *name, size_t n)
{
	static const char *const names[] = { "range", "dict", "lipsum", "cycler", "joiner", "namespace", "raise_exception",
					     "strftime_now", "self", "super", "caller", "varargs", "kwargs" };

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (text_is(name, n, names[i]))
			return true;
	return (n >= 6 && memcmp(name + n - 6, "_token", 6) == 0) || (n >= 7 && memcmp(name + n - 7, "_tokens", 7) == 0);
}

static int find_name(const struct eval *e, const char *name, size_t n, struct value *v)
{
	const struct jinja_input *in = e->input;
	const char *special = NULL;

	for (size_t i = e->n_variables; i > 0; i--)
		if (e->variables[i - 1].n == n && memcmp(e->variables[i - 1].name, name, n) == 0) {
			*v = e->variables[i - 1].value;
			return 0;
		}
	*v = (struct value){ .kind = UNDEFINED };
	if (text_is(name, n, "messages"))
		v->kind = MESSAGES;
	else if (text_is(name, n, "add_generation_prompt") || text_is(name, n, "true") || text_is(name, n, "True"))
		*v = bool_value(true);
	else if (text_is(name, n, "false") || text_is(name, n, "False"))
		*v = bool_value(false);
	else if (text_is(name, n, "none") || text_is(name, n, "None"))
		v->kind = NONE;
	else if (text_is(name, n, "tools") || text_is(name, n, "documents"))
		v->kind = in->none_given ? NONE : UNDEFINED;
	else if (text_is(name, n, "bos_token"))
		special = in->bos;
	else if (text_is(name, n, "eos_token"))
		special = in->eos;
	else if (is_foreign_name(name, n) || is_keyword(name, n))
		return JINJA_E_UNSUPPORTED;
	if (special)
		*v = string_value(special);
	return 0;
}

/* message.NAME: what no message of ours has is undefined; methods of a dict are not known. */
static int message_field(const struct eval *e, int64_t i, const char *name, size_t n, struct value *v)
{
	static const char *const methods[] = { "items", "keys", "values", "get", "pop", "popitem", "copy", "update", "clear",
					       "setdefault", "fromkeys" };

	if (text_is(name, n, "role")) {
		*v = string_value(e->input->roles[i]);
		return 0;
	}
	if (text_is(name, n, "content")) {
		int r;

		*v = (struct value){ .kind = STRING, .opaque = true, .text = e->heap->data + e->heap->n, .n = 3 };
		r = append(e->heap, JINJA_CONTENT(i), 3);
		return r;
	}
	for (size_t k = 0; k < ARRAY_SIZE(methods); k++)
		if (text_is(name, n, methods[k]))
			return JINJA_E_UNSUPPORTED;
	if (n == 0 || name[0] == '_')
		return JINJA_E_UNSUPPORTED;
	*v = (struct value){ .kind = UNDEFINED };
	return 0;
}

static int field(const struct eval *e, struct value *v, const char *name, size_t n)
{
	int64_t loop_at = v->number;

	if (v->kind == MESSAGE)
		return message_field(e, v->number, name, n, v);
	if (v->kind != LOOP)
		return JINJA_E_UNSUPPORTED;
	if (text_is(name, n, "first"))
		*v = bool_value(loop_at == 0);
	else if (text_is(name, n, "last"))
		*v = bool_value(loop_at + 1 == (int64_t)e->input->n_messages);
	else
		return JINJA_E_UNSUPPORTED;
	return 0;
}

static int subscript(const struct eval *e, struct value *v, const struct value *index)
{
	if (v->kind == MESSAGES && index->kind == INTEGER && (index->number == 0 || index->number == -1)) {
		*v = (struct value){ .kind = MESSAGE, .number = index->number ? (int64_t)e->input->n_messages - 1 : 0 };
		return 0;
	}
	if (v->kind == MESSAGE && index->kind == STRING && !index->opaque)
		return message_field(e, v->number, index->text, index->n, v);
	return JINJA_E_UNSUPPORTED;
}

static int parse_number(struct eval *e, struct value *v)
{
	*v = (struct value){ .kind = INTEGER };
	if (token(e)->n > 9)
		return JINJA_E_UNSUPPORTED;
	for (size_t i = 0; i < token(e)->n; i++)
		v->number = 10 * v->number + (token(e)->text[i] - '0');
	e->at++;
	return 0;
}

static int parse_primary(struct eval *e, struct value *v)
{
	const struct jinja_token *t = token(e);
	int r;

	switch (t->kind) {
	case JINJA_NAME:
		e->at++;
		return find_name(e, t->text, t->n, v);
	case JINJA_STRING:
		e->at++;
		*v = (struct value){ .kind = STRING, .text = t->text, .n = t->n };
		/* Adjacent strings would be one. */
		return token(e)->kind == JINJA_STRING ? JINJA_E_UNSUPPORTED : 0;
	case JINJA_NUMBER:
		return parse_number(e, v);
	default:
		break;
	}
	if (take(e, JINJA_OPERATOR, "-")) {
		if (token(e)->kind != JINJA_NUMBER)
			return JINJA_E_UNSUPPORTED;
		r = parse_number(e, v);
		v->number = -v->number;
		return r;
	}
	if (!take(e, JINJA_OPERATOR, "("))
		return JINJA_E_UNSUPPORTED;
	r = parse_expression(e, v);
	if (r)
		return r;
	return take(e, JINJA_OPERATOR, ")") ? 0 : JINJA_E_UNSUPPORTED;
}

/* A primary with what follows it: .NAME and [EXPRESSION]. */
static int parse_postfix(struct eval *e, struct value *v)
{
	int r = parse_primary(e, v);

	while (r == 0) {
		if (take(e, JINJA_OPERATOR, ".")) {
			const struct jinja_token *name = token(e);

			if (name->kind != JINJA_NAME)
				return JINJA_E_UNSUPPORTED;
			e->at++;
			if (!e->skipping)
				r = field(e, v, name->text, name->n);
		} else if (take(e, JINJA_OPERATOR, "[")) {
			struct value index;

			r = parse_expression(e, &index);
			if (r == 0 && !take(e, JINJA_OPERATOR, "]"))
				r = JINJA_E_UNSUPPORTED;
			if (r == 0 && !e->skipping)
				r = subscript(e, v, &index);
		} else {
			return 0;
		}
	}
	return r;
}

/* VALUE is [not] TEST */
static int parse_test(struct eval *e, struct value *v)
{
	int r = parse_postfix(e, v);
	bool negated, result;

	if (r || !take(e, JINJA_NAME, "is"))
		return r;
	negated = take(e, JINJA_NAME, "not");
	if (take(e, JINJA_NAME, "defined"))
		result = v->kind != UNDEFINED;
	else if (take(e, JINJA_NAME, "undefined"))
		result = v->kind == UNDEFINED;
	else if (take(e, JINJA_NAME, "none"))
		result = v->kind == NONE;
	else if (take(e, JINJA_NAME, "string"))
		result = v->kind == STRING;
	else
		return JINJA_E_UNSUPPORTED;
	*v = bool_value(result != negated);
	return is_token(e, JINJA_NAME, "is") ? JINJA_E_UNSUPPORTED : 0;
}

static int concatenate(struct eval *e, struct value *a, const struct value *b)
{
	struct value joined = { .kind = STRING, .opaque = a->opaque || b->opaque, .text = e->heap->data + e->heap->n,
				.n = a->n + b->n };
	int r;

	if (a->kind != STRING || b->kind != STRING)
		return JINJA_E_UNSUPPORTED;
	r = append(e->heap, a->text, a->n);
	if (r == 0)
		r = append(e->heap, b->text, b->n);
	*a = joined;
	return r;
}

/* Operands joined by one operator, "~" or "+". */
static int parse_joined(struct eval *e, struct value *v, const char *op)
{
	bool inner = *op == '+';
	int r = inner ? parse_joined(e, v, "~") : parse_test(e, v);

	while (r == 0 && take(e, JINJA_OPERATOR, op)) {
		struct value right;

		r = inner ? parse_joined(e, &right, "~") : parse_test(e, &right);
		if (r == 0 && !e->skipping)
			r = concatenate(e, v, &right);
	}
	return r;
}

static int equal(const struct value *a, const struct value *b, bool *out)
{
	if (a->kind == STRING && b->kind == STRING) {
		*out = a->n == b->n && memcmp(a->text, b->text, a->n) == 0;
		return a->opaque || b->opaque ? JINJA_E_UNSUPPORTED : 0;
	}
	if (a->kind == BOOL && b->kind == BOOL) {
		*out = a->number == b->number;
		return 0;
	}
	/* A string is equal to no value of another kind. */
	*out = false;
	if (a->kind == STRING)
		return b->kind == NONE || b->kind == UNDEFINED ? 0 : JINJA_E_UNSUPPORTED;
	if (b->kind == STRING)
		return a->kind == NONE || a->kind == UNDEFINED ? 0 : JINJA_E_UNSUPPORTED;
	return JINJA_E_UNSUPPORTED;
}

static int parse_comparison(struct eval *e, struct value *v)
{
	int r = parse_joined(e, v, "+");
	struct value right;
	bool negated, result = false;

	if (r)
		return r;
	negated = is_token(e, JINJA_OPERATOR, "!=");
	if (!negated && !is_token(e, JINJA_OPERATOR, "=="))
		return 0;
	e->at++;
	r = parse_joined(e, &right, "+");
	if (r == 0 && !e->skipping)
		r = equal(v, &right, &result);
	*v = bool_value(result != negated);
	/* A chain compares each neighbour; nobody writes that. */
	if (is_token(e, JINJA_OPERATOR, "==") || is_token(e, JINJA_OPERATOR, "!="))
		return JINJA_E_UNSUPPORTED;
	return r;
}

static int parse_not(struct eval *e, struct value *v)
{
	bool negated = false, any = false, result = false;
	int r;

	while (take(e, JINJA_NAME, "not")) {
		negated = !negated;
		any = true;
	}
	r = parse_comparison(e, v);
	if (r || !any)
		return r;
	if (!e->skipping)
		r = truth(v, &result);
	*v = bool_value(result != negated);
	return r;
}

/* Operands joined by "and" or "or"; the value is the operand that decides. */
static int parse_logical(struct eval *e, struct value *v, bool is_or)
{
	bool skipping = e->skipping;
	int r = is_or ? parse_logical(e, v, false) : parse_not(e, v);

	while (r == 0 && take(e, JINJA_NAME, is_or ? "or" : "and")) {
		struct value right;
		bool decided = false;

		if (!e->skipping) {
			r = truth(v, &decided);
			if (r)
				break;
			e->skipping = decided == is_or;
		}
		r = is_or ? parse_logical(e, &right, false) : parse_not(e, &right);
		if (!e->skipping)
			*v = right;
		e->skipping = skipping;
	}
	e->skipping = skipping;
	return r;
}

static int parse_expression(struct eval *e, struct value *v)
{
	int r;

	if (e->depth == JINJA_MAX_DEPTH || ++e->n_steps > JINJA_MAX_STEPS)
		return JINJA_E_UNSUPPORTED;
	e->depth++;
	r = parse_logical(e, v, true);
	e->depth--;
	return r;
}

/* An expression that fills the rest of its tag. */
static int parse_to_end(struct eval *e, enum jinja_token_kind end, struct value *v)
{
	int r = parse_expression(e, v);

	if (r)
		return r;
	return e->tokens[e->at++].kind == end ? 0 : JINJA_E_UNSUPPORTED;
}

/* Text that Jinja may treat otherwise than ASCII is not known here. */
static int print_text(struct eval *e, const struct jinja_token *t)
{
	for (size_t i = 0; i < t->n; i++) {
		unsigned char c = (unsigned char)t->text[i];

		if (c >= 0x7f || (c < ' ' && c != '\n' && c != '\t'))
			return JINJA_E_UNSUPPORTED;
	}
	return append(e->out, t->text, t->n);
}

static int print_value(struct eval *e)
{
	struct value v;
	int r = parse_to_end(e, JINJA_OUTPUT_END, &v);

	if (r || v.kind == UNDEFINED)
		return r;
	return v.kind == STRING ? append(e->out, v.text, v.n) : JINJA_E_UNSUPPORTED;
}

static void skip_tag(struct eval *e)
{
	while (e->tokens[e->at].kind != JINJA_TAG_END)
		e->at++;
	e->at++;
}

/* e->at is at the if; afterwards behind the endif. */
static int run_if(struct eval *e)
{
	uint32_t branch = (uint32_t)e->at, last = branch;

	while (e->tokens[last].tag != JINJA_ENDIF)
		last = e->tokens[last].next;
	while (branch != last) {
		const struct jinja_token *tag = &e->tokens[branch];
		struct value v = bool_value(true);
		bool taken;
		int r = 0;

		e->at = branch + 1;
		if (tag->tag == JINJA_ELSE)
			e->at++;
		else
			r = parse_to_end(e, JINJA_TAG_END, &v);
		if (r == 0)
			r = truth(&v, &taken);
		if (r)
			return r;
		if (taken) {
			r = run(e, tag->next);
			if (r)
				return r;
			break;
		}
		branch = tag->next;
	}
	e->at = last;
	skip_tag(e);
	return 0;
}

/* for NAME in MESSAGES */
static int run_for(struct eval *e)
{
	uint32_t end = token(e)->next;
	const struct jinja_token *name = &e->tokens[e->at + 1];
	size_t n_variables = e->n_variables, body;
	struct value list;
	int r;

	e->at += 2;
	if (name->kind != JINJA_NAME || !take(e, JINJA_NAME, "in"))
		return JINJA_E_UNSUPPORTED;
	r = parse_to_end(e, JINJA_TAG_END, &list);
	if (r || list.kind != MESSAGES)
		return r ? r : JINJA_E_UNSUPPORTED;
	body = e->at;
	for (size_t i = 0; r == 0 && i < e->input->n_messages; i++) {
		r = push_variable(e, name->text, name->n, (struct value){ .kind = MESSAGE, .number = (int64_t)i });
		if (r == 0)
			r = push_variable(e, "loop", 4, (struct value){ .kind = LOOP, .number = (int64_t)i });
		e->at = body;
		if (r == 0)
			r = run(e, end);
		e->n_variables = n_variables;
	}
	e->at = end;
	skip_tag(e);
	return r;
}

/* set NAME = EXPRESSION */
static int run_set(struct eval *e)
{
	const struct jinja_token *name = &e->tokens[e->at + 1];
	struct value v;
	int r;

	e->at += 2;
	if (name->kind != JINJA_NAME || !take(e, JINJA_OPERATOR, "="))
		return JINJA_E_UNSUPPORTED;
	r = parse_to_end(e, JINJA_TAG_END, &v);
	return r ? r : push_variable(e, name->text, name->n, v);
}

/* Evaluates up to the tag at index end. */
static int run(struct eval *e, size_t end)
{
	while (e->at < end) {
		const struct jinja_token *t = token(e);
		int r = JINJA_E_UNSUPPORTED;

		if (++e->n_steps > JINJA_MAX_STEPS)
			return JINJA_E_UNSUPPORTED;
		if (t->kind == JINJA_TEXT) {
			e->at++;
			r = print_text(e, t);
		} else if (t->kind == JINJA_OUTPUT) {
			e->at++;
			r = print_value(e);
		} else if (t->kind == JINJA_TAG && t->tag == JINJA_IF) {
			r = run_if(e);
		} else if (t->kind == JINJA_TAG && t->tag == JINJA_FOR) {
			r = run_for(e);
		} else if (t->kind == JINJA_TAG && t->tag == JINJA_SET) {
			r = run_set(e);
		}
		if (r)
			return r;
	}
	return 0;
}

int jinja_eval(const struct jinja_source *s, const struct jinja_input *input, struct jinja_buffer *out,
	       struct jinja_buffer *heap)
{
	struct eval e = { .input = input, .tokens = s->tokens, .out = out, .heap = heap };

	if (input->n_messages == 0 || input->n_messages > JINJA_MAX_MESSAGES)
		return JINJA_E_UNSUPPORTED;
	out->n = heap->n = 0;
	return run(&e, s->n - 1);
}
