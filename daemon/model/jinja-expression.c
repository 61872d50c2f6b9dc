/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A recursive-descent evaluator of expressions over the tokens; the depth of
 * recursion is bounded by JINJA_MAX_DEPTH.  An operand that `and` or `or` skips is
 * parsed with `skipping` set, by the same rules, without being evaluated.
 */
#include "daemon/model/jinja-private.h"

#include "ipc/base/checked.h"

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

/* (NAME=VALUE, ...) of namespace() */
static int call_namespace(struct jinja_run *e, struct jinja_value *v)
{
	struct jinja_value space = { .kind = VALUE_NAMESPACE, .number = e->n_spaces++ };

	while (!jinja_take(e, JINJA_OPERATOR, ")")) {
		const struct jinja_token *name = token(e);
		struct jinja_value value;
		int r;

		e->at++;
		if (name->kind != JINJA_NAME || !jinja_take(e, JINJA_OPERATOR, "="))
			return JINJA_E_UNSUPPORTED;
		r = parse_expression(e, &value);
		if (r == 0 && !e->skipping)
			r = jinja_set_field(e, &space, name->text, name->n, &value);
		if (r)
			return r;
		if (!jinja_take(e, JINJA_OPERATOR, ",") && !is_token(e, JINJA_OPERATOR, ")"))
			return JINJA_E_UNSUPPORTED;
	}
	*v = space;
	return 0;
}

/* Arguments up to the closing bracket: none, or one. */
static int parse_argument(struct jinja_run *e, bool *given, struct jinja_value *argument)
{
	int r;

	*given = !jinja_take(e, JINJA_OPERATOR, ")");
	if (!*given)
		return 0;
	r = parse_expression(e, argument);
	return r == 0 && !jinja_take(e, JINJA_OPERATOR, ")") ? JINJA_E_UNSUPPORTED : r;
}

/* NAME(...); e->at is behind the bracket. */
static int call_function(struct jinja_run *e, const struct jinja_token *name, struct jinja_value *v)
{
	struct jinja_value message;
	bool given;
	int r;

	if (jinja_text_is(name->text, name->n, "namespace"))
		return call_namespace(e, v);
	if (!jinja_text_is(name->text, name->n, "raise_exception"))
		return JINJA_E_UNSUPPORTED;
	r = parse_argument(e, &given, &message);
	if (r || e->skipping)
		return r;
	return JINJA_E_RAISED;
}

/* VALUE.NAME(...) of strings; e->at is behind the bracket. */
static int call_method(struct jinja_run *e, const struct jinja_token *name, struct jinja_value *v)
{
	static const struct {
		const char *name;
		unsigned sides;
	} strips[] = { { "strip", JINJA_LEFT | JINJA_RIGHT }, { "lstrip", JINJA_LEFT }, { "rstrip", JINJA_RIGHT } };
	struct jinja_value argument;
	bool given, starts = jinja_text_is(name->text, name->n, "startswith");
	int r = parse_argument(e, &given, &argument);

	if (r || e->skipping)
		return r;
	for (size_t i = 0; !given && i < ARRAY_SIZE(strips); i++)
		if (jinja_text_is(name->text, name->n, strips[i].name))
			return jinja_strip(e, v, strips[i].sides);
	if (!given || !(starts || jinja_text_is(name->text, name->n, "endswith")) || v->kind != VALUE_STRING ||
	    argument.kind != VALUE_STRING || argument.opaque || argument.n == 0 || !jinja_charge(e, argument.n))
		return JINJA_E_UNSUPPORTED;
	*v = jinja_bool(v->n >= argument.n &&
			memcmp(starts ? v->text : v->text + v->n - argument.n, argument.text, argument.n) == 0);
	return 0;
}

/* What stands in square brackets: an index, [NUMBER:] or [::-1]. */
static int parse_subscript(struct jinja_run *e, struct jinja_value *v)
{
	struct jinja_value index = { .kind = VALUE_INTEGER };
	bool reversed = false;
	int r = 0;

	if (!is_token(e, JINJA_OPERATOR, ":"))
		r = parse_expression(e, &index);
	if (r)
		return r;
	if (jinja_take(e, JINJA_OPERATOR, "]"))
		return e->skipping ? 0 : jinja_subscript(e, v, &index);
	if (!jinja_take(e, JINJA_OPERATOR, ":"))
		return JINJA_E_UNSUPPORTED;
	if (jinja_take(e, JINJA_OPERATOR, ":")) {
		if (!jinja_take(e, JINJA_OPERATOR, "-") || !is_token(e, JINJA_NUMBER, "1"))
			return JINJA_E_UNSUPPORTED;
		e->at++;
		reversed = true;
	}
	if (!jinja_take(e, JINJA_OPERATOR, "]"))
		return JINJA_E_UNSUPPORTED;
	if (e->skipping)
		return 0;
	return index.kind == VALUE_INTEGER && !index.opaque ? jinja_slice(v, index.number, reversed) :
							       JINJA_E_UNSUPPORTED;
}

/* A primary with what follows it: .NAME, .NAME(...), [...], NAME(...) */
static int parse_postfix(struct jinja_run *e, struct jinja_value *v)
{
	const struct jinja_token *name = token(e);
	int r;

	if (name->kind == JINJA_NAME && e->tokens[e->at + 1].kind == JINJA_OPERATOR &&
	    jinja_text_is(e->tokens[e->at + 1].text, e->tokens[e->at + 1].n, "(") && !is_token(e, JINJA_NAME, "not")) {
		e->at += 2;
		r = call_function(e, name, v);
	} else {
		r = parse_primary(e, v);
	}
	while (r == 0) {
		if (jinja_take(e, JINJA_OPERATOR, ".")) {
			name = token(e);
			if (name->kind != JINJA_NAME)
				return JINJA_E_UNSUPPORTED;
			e->at++;
			if (jinja_take(e, JINJA_OPERATOR, "("))
				r = call_method(e, name, v);
			else if (!e->skipping)
				r = jinja_field(e, v, name->text, name->n);
		} else if (jinja_take(e, JINJA_OPERATOR, "[")) {
			r = parse_subscript(e, v);
		} else {
			return 0;
		}
	}
	return r;
}

/* VALUE | FILTER ...; e->at is behind the bar. */
static int parse_filter(struct jinja_run *e, struct jinja_value *v)
{
	int r = JINJA_E_UNSUPPORTED;

	if (jinja_take(e, JINJA_NAME, "trim"))
		r = e->skipping ? 0 : jinja_strip(e, v, JINJA_LEFT | JINJA_RIGHT);
	else if (jinja_take(e, JINJA_NAME, "length"))
		r = e->skipping ? 0 : jinja_length(v);
	return r;
}

/* [not] TEST; e->at is behind the `is`. */
static int parse_is(struct jinja_run *e, struct jinja_value *v)
{
	bool negated = jinja_take(e, JINJA_NAME, "not"), result;

	if (jinja_take(e, JINJA_NAME, "defined"))
		result = v->kind != VALUE_UNDEFINED;
	else if (jinja_take(e, JINJA_NAME, "undefined"))
		result = v->kind == VALUE_UNDEFINED;
	else if (jinja_take(e, JINJA_NAME, "none"))
		result = v->kind == VALUE_NONE;
	else if (jinja_take(e, JINJA_NAME, "string"))
		result = v->kind == VALUE_STRING;
	else if (jinja_take(e, JINJA_NAME, "mapping"))
		result = v->kind == VALUE_MESSAGE;
	else if (jinja_take(e, JINJA_NAME, "iterable"))
		result = v->kind == VALUE_STRING || v->kind == VALUE_MESSAGES || v->kind == VALUE_MESSAGE ||
			 v->kind == VALUE_UNDEFINED;
	else if (jinja_take(e, JINJA_NAME, "true"))
		result = v->kind == VALUE_BOOL && v->number;
	else if (jinja_take(e, JINJA_NAME, "false"))
		result = v->kind == VALUE_BOOL && !v->number;
	else
		return JINJA_E_UNSUPPORTED;
	*v = jinja_bool(result != negated);
	return is_token(e, JINJA_NAME, "is") ? JINJA_E_UNSUPPORTED : 0;
}

/* Filters and tests bind closer than operators. */
static int parse_filtered(struct jinja_run *e, struct jinja_value *v)
{
	int r = parse_postfix(e, v);

	while (r == 0) {
		if (jinja_take(e, JINJA_OPERATOR, "|"))
			r = parse_filter(e, v);
		else if (jinja_take(e, JINJA_NAME, "is"))
			r = parse_is(e, v);
		else
			return 0;
	}
	return r;
}

static int join(struct jinja_run *e, char op, struct jinja_value *v, const struct jinja_value *right)
{
	if (e->skipping)
		return 0;
	if (op == '~' || (op == '+' && v->kind == VALUE_STRING))
		return jinja_concatenate(e, v, right);
	return jinja_calculate(op, v, right);
}

/* Operands joined by operators of one rank: + and -, inside them ~, inside these %. */
static int parse_joined(struct jinja_run *e, struct jinja_value *v, int rank)
{
	static const char *const ops[][2] = { { "+", "-" }, { "~", "~" }, { "%", "%" } };
	int last = (int)ARRAY_SIZE(ops) - 1;
	int r = rank < last ? parse_joined(e, v, rank + 1) : parse_filtered(e, v);

	while (r == 0 && (is_token(e, JINJA_OPERATOR, ops[rank][0]) || is_token(e, JINJA_OPERATOR, ops[rank][1]))) {
		char op = *token(e)->text;
		struct jinja_value right;

		e->at++;
		r = rank < last ? parse_joined(e, &right, rank + 1) : parse_filtered(e, &right);
		if (r == 0)
			r = join(e, op, v, &right);
	}
	return r;
}

/* VALUE in [A, B, ...]; e->at is behind the bracket. */
static int parse_in_list(struct jinja_run *e, const struct jinja_value *v, bool *result)
{
	*result = false;
	do {
		struct jinja_value item;
		bool same = false;
		int r = parse_expression(e, &item);

		if (r == 0 && !e->skipping)
			r = jinja_equal(v, &item, &same);
		if (r)
			return r;
		*result |= same;
	} while (jinja_take(e, JINJA_OPERATOR, ","));
	return jinja_take(e, JINJA_OPERATOR, "]") ? 0 : JINJA_E_UNSUPPORTED;
}

static int parse_in(struct jinja_run *e, const struct jinja_value *v, bool *result)
{
	struct jinja_value right;
	int r;

	if (jinja_take(e, JINJA_OPERATOR, "["))
		return parse_in_list(e, v, result);
	r = parse_joined(e, &right, 0);
	if (r || e->skipping)
		return r;
	return jinja_charge(e, right.kind == VALUE_STRING ? right.n : 0) ? jinja_contains(&right, v, result) :
									  JINJA_E_UNSUPPORTED;
}

/* The comparison that comes next, NULL if none does; stepped over. */
static const char *take_comparison(struct jinja_run *e)
{
	static const char *const ops[] = { "==", "!=", "<=", ">=", "<", ">" };

	for (size_t i = 0; i < ARRAY_SIZE(ops); i++)
		if (jinja_take(e, JINJA_OPERATOR, ops[i]))
			return ops[i];
	if (jinja_take(e, JINJA_NAME, "in"))
		return "in";
	if (is_token(e, JINJA_NAME, "not") && e->tokens[e->at + 1].kind == JINJA_NAME &&
	    jinja_text_is(e->tokens[e->at + 1].text, e->tokens[e->at + 1].n, "in")) {
		e->at += 2;
		return "not in";
	}
	return NULL;
}

static int compare(struct jinja_run *e, const char *op, const struct jinja_value *v, bool *result)
{
	struct jinja_value right;
	int r;

	if (!jinja_charge(e, v->kind == VALUE_STRING ? v->n : 0))
		return JINJA_E_UNSUPPORTED;
	if (*op == 'i' || *op == 'n')
		return parse_in(e, v, result);
	r = parse_joined(e, &right, 0);
	if (r || e->skipping)
		return r;
	return *op == '=' || *op == '!' ? jinja_equal(v, &right, result) : jinja_less(op, v, &right, result);
}

static int parse_comparison(struct jinja_run *e, struct jinja_value *v)
{
	int r = parse_joined(e, v, 0);
	const char *op = r ? NULL : take_comparison(e);
	bool result = false;

	if (!op)
		return r;
	r = compare(e, op, v, &result);
	*v = jinja_bool(result != (*op == '!' || *op == 'n'));
	/* A chain compares each neighbour; nobody writes that. */
	return r == 0 && take_comparison(e) ? JINJA_E_UNSUPPORTED : r;
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

/* VALUE if CONDITION else OTHER; e->at is behind the `if`. */
static int parse_choice(struct jinja_run *e, struct jinja_value *v)
{
	struct jinja_value condition, other = { .kind = VALUE_UNDEFINED };
	bool skipping = e->skipping, taken = true;
	int r = parse_logical(e, &condition, true);

	if (r == 0 && !skipping)
		r = jinja_truth(&condition, &taken);
	if (r == 0 && jinja_take(e, JINJA_NAME, "else")) {
		e->skipping = skipping || taken;
		r = parse_expression(e, &other);
		e->skipping = skipping;
	}
	if (!taken)
		*v = other;
	return r;
}

static int parse_expression(struct jinja_run *e, struct jinja_value *v)
{
	int r;

	if (e->depth == JINJA_MAX_DEPTH)
		return JINJA_E_UNSUPPORTED;
	e->depth++;
	r = parse_logical(e, v, true);
	if (r == 0 && jinja_take(e, JINJA_NAME, "if"))
		r = parse_choice(e, v);
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
