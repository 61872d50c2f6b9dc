/* SPDX-License-Identifier: Apache-2.0 */
/* Values of a template's expressions, and what its names stand for. */
#include "daemon/model/jinja-private.h"

#include "ipc/base/checked.h"

int jinja_append(struct jinja_buffer *b, const char *text, size_t n)
{
	if (n > b->size - b->n)
		return JINJA_E_UNSUPPORTED;
	memcpy(b->data + b->n, text, n);
	b->n += n;
	return 0;
}

int jinja_truth(const struct jinja_value *v, bool *out)
{
	switch (v->kind) {
	case VALUE_UNDEFINED:
	case VALUE_NONE:
		*out = false;
		return 0;
	case VALUE_STRING:
		*out = v->n > 0;
		return v->opaque ? JINJA_E_UNSUPPORTED : 0;
	case VALUE_BOOL:
	case VALUE_INTEGER:
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
	static const char *const words[] = { "and", "or",   "not",  "in",  "is",
					     "if",  "else", "elif", "for", "recursive" };

	for (size_t i = 0; i < ARRAY_SIZE(words); i++)
		if (jinja_text_is(name, n, words[i]))
			return true;
	return false;
}

/* Names that transformers defines and that are not known here. */
static bool is_foreign_name(const char *name, size_t n)
{
	static const char *const names[] = { "range",  "dict",      "lipsum",          "cycler",
					     "joiner", "namespace", "raise_exception", "strftime_now",
					     "self",   "super",     "caller",          "varargs",
					     "kwargs" };

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (jinja_text_is(name, n, names[i]))
			return true;
	return (n >= 6 && memcmp(name + n - 6, "_token", 6) == 0) ||
	       (n >= 7 && memcmp(name + n - 7, "_tokens", 7) == 0);
}

int jinja_find_name(const struct jinja_run *e, const char *name, size_t n, struct jinja_value *v)
{
	const struct jinja_input *in = e->input;
	const char *special = NULL;

	for (size_t i = e->n_variables; i > 0; i--)
		if (e->variables[i - 1].n == n && memcmp(e->variables[i - 1].name, name, n) == 0) {
			*v = e->variables[i - 1].value;
			return 0;
		}
	*v = (struct jinja_value){ .kind = VALUE_UNDEFINED };
	if (jinja_text_is(name, n, "messages"))
		v->kind = VALUE_MESSAGES;
	else if (jinja_text_is(name, n, "add_generation_prompt") || jinja_text_is(name, n, "true") ||
		 jinja_text_is(name, n, "True"))
		*v = jinja_bool(true);
	else if (jinja_text_is(name, n, "false") || jinja_text_is(name, n, "False"))
		*v = jinja_bool(false);
	else if (jinja_text_is(name, n, "none") || jinja_text_is(name, n, "None"))
		v->kind = VALUE_NONE;
	else if (jinja_text_is(name, n, "tools") || jinja_text_is(name, n, "documents"))
		v->kind = in->none_given ? VALUE_NONE : VALUE_UNDEFINED;
	else if (jinja_text_is(name, n, "bos_token"))
		special = in->bos;
	else if (jinja_text_is(name, n, "eos_token"))
		special = in->eos;
	else if (is_foreign_name(name, n) || is_keyword(name, n))
		return JINJA_E_UNSUPPORTED;
	if (special)
		*v = jinja_string(special);
	return 0;
}

/* message.NAME: what no message of ours has is undefined; methods of a dict are not known. */
static int message_field(const struct jinja_run *e, int64_t i, const char *name, size_t n,
			 struct jinja_value *v)
{
	static const char *const methods[] = { "items", "keys",       "values",  "get",
					       "pop",   "popitem",    "copy",    "update",
					       "clear", "setdefault", "fromkeys" };

	if (jinja_text_is(name, n, "role")) {
		*v = jinja_string(e->input->roles[i]);
		return 0;
	}
	if (jinja_text_is(name, n, "content")) {
		*v = (struct jinja_value){ .kind = VALUE_STRING, .opaque = true };
		v->text = e->heap->data + e->heap->n;
		v->n = 3;
		return jinja_append(e->heap, JINJA_CONTENT(i), 3);
	}
	for (size_t k = 0; k < ARRAY_SIZE(methods); k++)
		if (jinja_text_is(name, n, methods[k]))
			return JINJA_E_UNSUPPORTED;
	if (n == 0 || name[0] == '_')
		return JINJA_E_UNSUPPORTED;
	*v = (struct jinja_value){ .kind = VALUE_UNDEFINED };
	return 0;
}

int jinja_field(const struct jinja_run *e, struct jinja_value *v, const char *name, size_t n)
{
	int64_t loop_at = v->number;

	if (v->kind == VALUE_MESSAGE)
		return message_field(e, v->number, name, n, v);
	if (v->kind != VALUE_LOOP)
		return JINJA_E_UNSUPPORTED;
	if (jinja_text_is(name, n, "first"))
		*v = jinja_bool(loop_at == 0);
	else if (jinja_text_is(name, n, "last"))
		*v = jinja_bool(loop_at + 1 == (int64_t)e->input->n_messages);
	else
		return JINJA_E_UNSUPPORTED;
	return 0;
}

int jinja_subscript(const struct jinja_run *e, struct jinja_value *v, const struct jinja_value *index)
{
	if (v->kind == VALUE_MESSAGES && index->kind == VALUE_INTEGER &&
	    (index->number == 0 || index->number == -1)) {
		*v = (struct jinja_value){ .kind = VALUE_MESSAGE };
		v->number = index->number ? (int64_t)e->input->n_messages - 1 : 0;
		return 0;
	}
	if (v->kind == VALUE_MESSAGE && index->kind == VALUE_STRING && !index->opaque)
		return message_field(e, v->number, index->text, index->n, v);
	return JINJA_E_UNSUPPORTED;
}

int jinja_concatenate(struct jinja_run *e, struct jinja_value *a, const struct jinja_value *b)
{
	struct jinja_value joined = { .kind = VALUE_STRING, .opaque = a->opaque || b->opaque };
	int r;

	if (a->kind != VALUE_STRING || b->kind != VALUE_STRING)
		return JINJA_E_UNSUPPORTED;
	joined.text = e->heap->data + e->heap->n;
	joined.n = a->n + b->n;
	r = jinja_append(e->heap, a->text, a->n);
	if (r == 0)
		r = jinja_append(e->heap, b->text, b->n);
	*a = joined;
	return r;
}

int jinja_equal(const struct jinja_value *a, const struct jinja_value *b, bool *out)
{
	if (a->kind == VALUE_STRING && b->kind == VALUE_STRING) {
		*out = a->n == b->n && memcmp(a->text, b->text, a->n) == 0;
		return a->opaque || b->opaque ? JINJA_E_UNSUPPORTED : 0;
	}
	if (a->kind == VALUE_BOOL && b->kind == VALUE_BOOL) {
		*out = a->number == b->number;
		return 0;
	}
	/* A string is equal to no value of another kind. */
	*out = false;
	if (a->kind == VALUE_STRING)
		return b->kind == VALUE_NONE || b->kind == VALUE_UNDEFINED ? 0 : JINJA_E_UNSUPPORTED;
	if (b->kind == VALUE_STRING)
		return a->kind == VALUE_NONE || a->kind == VALUE_UNDEFINED ? 0 : JINJA_E_UNSUPPORTED;
	return JINJA_E_UNSUPPORTED;
}
