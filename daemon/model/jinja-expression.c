/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A recursive-descent evaluator of expressions over the tokens; the depth of
 * recursion is bounded by JINJA_MAX_DEPTH.  An operand that `and` or `or` skips is
 * parsed with `skipping` set, by the same rules, without being evaluated.
 */
#include "daemon/model/jinja-private.h"

static const struct jinja_token *token(const struct jinja_run *e)
{
	return &e->tokens[e->at];
}

static bool is_token(const struct jinja_run *e, enum jinja_token_kind kind, const char *text)
{
	return token(e)->kind == kind && jinja_text_is(token(e)->text, token(e)->n, text);
}

bool jinja_take(struct jinja_run *e, enum jinja_token_kind kind, const char *text)
{
	if (!is_token(e, kind, text))
		return false;
	e->at++;
	return true;
}

static int parse_expression(struct jinja_run *e, struct jinja_value *v);

static int parse_number(struct jinja_run *e, struct jinja_value *v)
{
	*v = (struct jinja_value){ .kind = VALUE_INTEGER };
	if (token(e)->n > 9)
		return JINJA_E_UNSUPPORTED;
	for (size_t i = 0; i < token(e)->n; i++)
		v->number = 10 * v->number + (token(e)->text[i] - '0');
	e->at++;
	return 0;
}

static int parse_primary(struct jinja_run *e, struct jinja_value *v)
{
	const struct jinja_token *t = token(e);
	int r;

	switch (t->kind) {
	case JINJA_NAME:
		e->at++;
		return jinja_find_name(e, t->text, t->n, v);
	case JINJA_STRING:
		e->at++;
		*v = (struct jinja_value){ .kind = VALUE_STRING, .text = t->text, .n = t->n };
		/* Adjacent strings would be one. */
		return token(e)->kind == JINJA_STRING ? JINJA_E_UNSUPPORTED : 0;
	case JINJA_NUMBER:
		return parse_number(e, v);
	default:
		break;
	}
	if (jinja_take(e, JINJA_OPERATOR, "-")) {
		if (token(e)->kind != JINJA_NUMBER)
			return JINJA_E_UNSUPPORTED;
		r = parse_number(e, v);
		v->number = -v->number;
		return r;
	}
	if (!jinja_take(e, JINJA_OPERATOR, "("))
		return JINJA_E_UNSUPPORTED;
	r = parse_expression(e, v);
	if (r)
		return r;
	return jinja_take(e, JINJA_OPERATOR, ")") ? 0 : JINJA_E_UNSUPPORTED;
}

/* A primary with what follows it: .NAME and [EXPRESSION]. */
static int parse_postfix(struct jinja_run *e, struct jinja_value *v)
{
	int r = parse_primary(e, v);

	while (r == 0) {
		if (jinja_take(e, JINJA_OPERATOR, ".")) {
			const struct jinja_token *name = token(e);

			if (name->kind != JINJA_NAME)
				return JINJA_E_UNSUPPORTED;
			e->at++;
			if (!e->skipping)
				r = jinja_field(e, v, name->text, name->n);
		} else if (jinja_take(e, JINJA_OPERATOR, "[")) {
			struct jinja_value index;

			r = parse_expression(e, &index);
			if (r == 0 && !jinja_take(e, JINJA_OPERATOR, "]"))
				r = JINJA_E_UNSUPPORTED;
			if (r == 0 && !e->skipping)
				r = jinja_subscript(e, v, &index);
		} else {
			return 0;
		}
	}
	return r;
}

/* VALUE is [not] TEST */
static int parse_test(struct jinja_run *e, struct jinja_value *v)
{
	int r = parse_postfix(e, v);
	bool negated, result;

	if (r || !jinja_take(e, JINJA_NAME, "is"))
		return r;
	negated = jinja_take(e, JINJA_NAME, "not");
	if (jinja_take(e, JINJA_NAME, "defined"))
		result = v->kind != VALUE_UNDEFINED;
	else if (jinja_take(e, JINJA_NAME, "undefined"))
		result = v->kind == VALUE_UNDEFINED;
	else if (jinja_take(e, JINJA_NAME, "none"))
		result = v->kind == VALUE_NONE;
	else if (jinja_take(e, JINJA_NAME, "string"))
		result = v->kind == VALUE_STRING;
	else
		return JINJA_E_UNSUPPORTED;
	*v = jinja_bool(result != negated);
	return is_token(e, JINJA_NAME, "is") ? JINJA_E_UNSUPPORTED : 0;
}

/* Operands joined by one operator, "~" or "+". */
static int parse_joined(struct jinja_run *e, struct jinja_value *v, const char *op)
{
	bool inner = *op == '+';
	int r = inner ? parse_joined(e, v, "~") : parse_test(e, v);

	while (r == 0 && jinja_take(e, JINJA_OPERATOR, op)) {
		struct jinja_value right;

		r = inner ? parse_joined(e, &right, "~") : parse_test(e, &right);
		if (r == 0 && !e->skipping)
			r = jinja_concatenate(e, v, &right);
	}
	return r;
}

static int parse_comparison(struct jinja_run *e, struct jinja_value *v)
{
	int r = parse_joined(e, v, "+");
	struct jinja_value right;
	bool negated, result = false;

	if (r)
		return r;
	negated = is_token(e, JINJA_OPERATOR, "!=");
	if (!negated && !is_token(e, JINJA_OPERATOR, "=="))
		return 0;
	e->at++;
	r = parse_joined(e, &right, "+");
	if (r == 0 && !e->skipping && !jinja_charge(e, v->kind == VALUE_STRING ? v->n : 0))
		r = JINJA_E_UNSUPPORTED;
	if (r == 0 && !e->skipping)
		r = jinja_equal(v, &right, &result);
	*v = jinja_bool(result != negated);
	/* A chain compares each neighbour; nobody writes that. */
	if (is_token(e, JINJA_OPERATOR, "==") || is_token(e, JINJA_OPERATOR, "!="))
		return JINJA_E_UNSUPPORTED;
	return r;
}

static int parse_not(struct jinja_run *e, struct jinja_value *v)
{
	bool negated = false, any = false, result = false;
	int r;

	while (jinja_take(e, JINJA_NAME, "not")) {
		negated = !negated;
		any = true;
	}
	r = parse_comparison(e, v);
	if (r || !any)
		return r;
	if (!e->skipping)
		r = jinja_truth(v, &result);
	*v = jinja_bool(result != negated);
	return r;
}

/* Operands joined by "and" or "or"; the value is the operand that decides. */
static int parse_logical(struct jinja_run *e, struct jinja_value *v, bool is_or)
{
	bool skipping = e->skipping;
	int r = is_or ? parse_logical(e, v, false) : parse_not(e, v);

	while (r == 0 && jinja_take(e, JINJA_NAME, is_or ? "or" : "and")) {
		struct jinja_value right;
		bool decided = false;

		if (!e->skipping) {
			r = jinja_truth(v, &decided);
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

static int parse_expression(struct jinja_run *e, struct jinja_value *v)
{
	int r;

	if (e->depth == JINJA_MAX_DEPTH)
		return JINJA_E_UNSUPPORTED;
	e->depth++;
	r = parse_logical(e, v, true);
	e->depth--;
	return r;
}

int jinja_parse_to_end(struct jinja_run *e, enum jinja_token_kind end, struct jinja_value *v)
{
	size_t from = e->at;
	int r = parse_expression(e, v);

	if (r == 0 && !jinja_charge_tokens(e, from))
		r = JINJA_E_UNSUPPORTED;
	if (r)
		return r;
	return e->tokens[e->at++].kind == end ? 0 : JINJA_E_UNSUPPORTED;
}
