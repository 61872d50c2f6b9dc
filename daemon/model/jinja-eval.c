/* SPDX-License-Identifier: Apache-2.0 */
/* The statements of a template.  Their depth is bounded by JINJA_MAX_DEPTH. */
#include "daemon/model/jinja-private.h"

static int push_variable(struct jinja_run *e, const char *name, size_t n, struct jinja_value v)
{
	if (e->n_variables == JINJA_MAX_VARIABLES)
		return JINJA_E_UNSUPPORTED;
	e->variables[e->n_variables++] = (struct jinja_variable){ name, n, v };
	return 0;
}

static int run(struct jinja_run *e, size_t end);

/* Text that Jinja may treat otherwise than ASCII is not known here. */
static int print_text(struct jinja_run *e, const struct jinja_token *t)
{
	for (size_t i = 0; i < t->n; i++) {
		unsigned char c = (unsigned char)t->text[i];

		if (c >= 0x7f || (c < ' ' && c != '\n' && c != '\t'))
			return JINJA_E_UNSUPPORTED;
	}
	return jinja_append(e->out, t->text, t->n);
}

static int print_value(struct jinja_run *e)
{
	struct jinja_value v;
	int r = jinja_parse_to_end(e, JINJA_OUTPUT_END, &v);

	if (r || v.kind == VALUE_UNDEFINED)
		return r;
	return v.kind == VALUE_STRING ? jinja_append(e->out, v.text, v.n) : JINJA_E_UNSUPPORTED;
}

static int skip_tag(struct jinja_run *e)
{
	size_t from = e->at;

	while (e->tokens[e->at].kind != JINJA_TAG_END)
		e->at++;
	e->at++;
	return jinja_charge_tokens(e, from) ? 0 : JINJA_E_UNSUPPORTED;
}

/* e->at is at the if; afterwards behind the endif. */
static int run_if(struct jinja_run *e)
{
	uint32_t branch = (uint32_t)e->at, last = branch;

	while (e->tokens[last].tag != JINJA_ENDIF) {
		last = e->tokens[last].next;
		if (!jinja_charge(e, 0))
			return JINJA_E_UNSUPPORTED;
	}
	while (branch != last) {
		const struct jinja_token *tag = &e->tokens[branch];
		struct jinja_value v = jinja_bool(true);
		bool taken;
		int r = 0;

		e->at = branch + 1;
		if (tag->tag == JINJA_ELSE)
			e->at++;
		else
			r = jinja_parse_to_end(e, JINJA_TAG_END, &v);
		if (r == 0)
			r = jinja_truth(&v, &taken);
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
	return skip_tag(e);
}

/* for NAME in messages */
static int run_for(struct jinja_run *e)
{
	uint32_t end = e->tokens[e->at].next;
	const struct jinja_token *name = &e->tokens[e->at + 1];
	size_t n_variables = e->n_variables, body;
	struct jinja_value list;
	int r;

	e->at += 2;
	if (name->kind != JINJA_NAME || !jinja_take(e, JINJA_NAME, "in"))
		return JINJA_E_UNSUPPORTED;
	r = jinja_parse_to_end(e, JINJA_TAG_END, &list);
	if (r || list.kind != VALUE_MESSAGES)
		return r ? r : JINJA_E_UNSUPPORTED;
	body = e->at;
	e->n_loops++;
	for (size_t i = 0; r == 0 && i < list.n; i++) {
		struct jinja_value message = { .kind = VALUE_MESSAGE };

		message.number = list.number + (int64_t)(list.reversed ? list.n - 1 - i : i);
		r = push_variable(e, name->text, name->n, message);
		if (r == 0)
			r = push_variable(e, "loop", 4, (struct jinja_value){
				.kind = VALUE_LOOP, .number = (int64_t)i, .n = list.n,
			});
		e->at = body;
		if (r == 0)
			r = run(e, end);
		e->n_variables = n_variables;
	}
	e->n_loops--;
	if (r)
		return r;
	e->at = end;
	return skip_tag(e);
}

/* What a loop leaves in a namespace may count its rounds: numbers are marked, strings must be the template's own. */
static int mark_counted(const struct jinja_run *e, struct jinja_value *v)
{
	if (!e->n_loops)
		return 0;
	if (v->kind == VALUE_INTEGER)
		v->opaque = true;
	return v->kind == VALUE_STRING && v->text >= e->heap->data && v->text <= e->heap->data + e->heap->n ?
		JINJA_E_UNSUPPORTED : 0;
}

/* set NAME = EXPRESSION, set NAME.FIELD = EXPRESSION */
static int run_set(struct jinja_run *e)
{
	const struct jinja_token *name = &e->tokens[e->at + 1], *field = NULL;
	struct jinja_value v, space;
	int r;

	e->at += 2;
	if (name->kind == JINJA_NAME && jinja_take(e, JINJA_OPERATOR, "."))
		field = &e->tokens[e->at++];
	if (name->kind != JINJA_NAME || (field && field->kind != JINJA_NAME) || !jinja_take(e, JINJA_OPERATOR, "="))
		return JINJA_E_UNSUPPORTED;
	r = jinja_parse_to_end(e, JINJA_TAG_END, &v);
	if (r)
		return r;
	if (!field)
		return push_variable(e, name->text, name->n, v);
	r = jinja_find_name(e, name->text, name->n, &space);
	if (r == 0)
		r = mark_counted(e, &v);
	return r ? r : jinja_set_field(e, &space, field->text, field->n, &v);
}

/* Evaluates up to the tag at index end. */
static int run(struct jinja_run *e, size_t end)
{
	while (e->at < end) {
		const struct jinja_token *t = &e->tokens[e->at];
		int r = JINJA_E_UNSUPPORTED;

		if (!jinja_charge(e, t->n))
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
	struct jinja_run e = { .input = input, .tokens = s->tokens, .out = out, .heap = heap };

	if (input->n_messages == 0 || input->n_messages > JINJA_MAX_MESSAGES)
		return JINJA_E_UNSUPPORTED;
	out->n = heap->n = 0;
	return run(&e, s->n - 1);
}
