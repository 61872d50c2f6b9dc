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
	static const char *const names[] = { "range", "dict",  "lipsum", "cycler",  "joiner",
					     "self",  "super", "caller", "varargs", "kwargs" };

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
		*v = (struct jinja_value){ .kind = VALUE_MESSAGES, .n = in->n_messages };
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
		v->n = JINJA_CONTENT_BYTES;
		return jinja_append(e->heap, JINJA_CONTENT(i, 0), JINJA_CONTENT_BYTES);
	}
	for (size_t k = 0; k < ARRAY_SIZE(methods); k++)
		if (jinja_text_is(name, n, methods[k]))
			return JINJA_E_UNSUPPORTED;
	if (n == 0 || name[0] == '_')
		return JINJA_E_UNSUPPORTED;
	*v = (struct jinja_value){ .kind = VALUE_UNDEFINED };
	return 0;
}

static int namespace_field(const struct jinja_run *e, struct jinja_value *v, const char *name, size_t n)
{
	for (size_t i = 0; i < e->n_fields; i++) {
		const struct jinja_member *f = &e->fields[i];

		if (f->space == v->number && f->n == n && memcmp(f->name, name, n) == 0) {
			*v = f->value;
			return 0;
		}
	}
	*v = (struct jinja_value){ .kind = VALUE_UNDEFINED };
	return 0;
}

int jinja_set_field(struct jinja_run *e, const struct jinja_value *space, const char *name, size_t n,
		    const struct jinja_value *v)
{
	if (space->kind != VALUE_NAMESPACE)
		return JINJA_E_UNSUPPORTED;
	for (size_t i = 0; i < e->n_fields; i++) {
		struct jinja_member *f = &e->fields[i];

		if (f->space == space->number && f->n == n && memcmp(f->name, name, n) == 0) {
			f->value = *v;
			return 0;
		}
	}
	if (e->n_fields == JINJA_MAX_FIELDS)
		return JINJA_E_UNSUPPORTED;
	e->fields[e->n_fields++] = (struct jinja_member){ space->number, name, n, *v };
	return 0;
}

static struct jinja_value count_of(int64_t number)
{
	return (struct jinja_value){ .kind = VALUE_INTEGER, .opaque = true, .number = number };
}

int jinja_field(const struct jinja_run *e, struct jinja_value *v, const char *name, size_t n)
{
	int64_t at = v->number, count = (int64_t)v->n;

	if (v->kind == VALUE_MESSAGE)
		return message_field(e, v->number, name, n, v);
	if (v->kind == VALUE_NAMESPACE)
		return namespace_field(e, v, name, n);
	if (v->kind != VALUE_LOOP)
		return JINJA_E_UNSUPPORTED;
	if (jinja_text_is(name, n, "first"))
		*v = jinja_bool(at == 0);
	else if (jinja_text_is(name, n, "last"))
		*v = jinja_bool(at + 1 == count);
	else if (jinja_text_is(name, n, "index0"))
		*v = count_of(at);
	else if (jinja_text_is(name, n, "index"))
		*v = count_of(at + 1);
	else if (jinja_text_is(name, n, "length"))
		*v = count_of(count);
	else
		return JINJA_E_UNSUPPORTED;
	return 0;
}

/* A number that a template may name: more would tell long conversations apart. */
static bool is_small(const struct jinja_value *v)
{
	return v->number >= -JINJA_MAX_NUMBER && v->number <= JINJA_MAX_NUMBER;
}

/* Whether two integers may meet. */
static bool may_meet(const struct jinja_value *a, const struct jinja_value *b)
{
	return a->kind == VALUE_INTEGER && b->kind == VALUE_INTEGER &&
	       (a->opaque || !b->opaque || is_small(a)) && (b->opaque || !a->opaque || is_small(b));
}

int jinja_less(const char *op, const struct jinja_value *a, const struct jinja_value *b, bool *out)
{
	if (!may_meet(a, b))
		return JINJA_E_UNSUPPORTED;
	if (op[0] == '<')
		*out = op[1] ? a->number <= b->number : a->number < b->number;
	else
		*out = op[1] ? a->number >= b->number : a->number > b->number;
	return 0;
}

int jinja_calculate(char op, struct jinja_value *a, const struct jinja_value *b)
{
	if (!may_meet(a, b))
		return JINJA_E_UNSUPPORTED;
	if (op == '%') {
		/* Python's result has the sign of b; 2 is all that is asked for. */
		if (b->opaque || b->number != 2)
			return JINJA_E_UNSUPPORTED;
		a->number &= 1;
		a->opaque = false;
		return 0;
	}
	a->number += op == '+' ? b->number : -b->number;
	a->opaque |= b->opaque;
	return a->number > INT32_MAX || a->number < INT32_MIN ? JINJA_E_UNSUPPORTED : 0;
}

int jinja_slice(struct jinja_value *v, int64_t from, bool reversed)
{
	if (v->kind != VALUE_MESSAGES || from < 0 || from > JINJA_MAX_NUMBER || (reversed && v->reversed) ||
	    (from && v->reversed))
		return JINJA_E_UNSUPPORTED;
	if ((size_t)from > v->n)
		from = (int64_t)v->n;
	v->number += from;
	v->n -= (size_t)from;
	v->reversed = reversed;
	return 0;
}

int jinja_subscript(const struct jinja_run *e, struct jinja_value *v, const struct jinja_value *index)
{
	if (v->kind == VALUE_MESSAGES && index->kind == VALUE_INTEGER && (index->opaque || is_small(index))) {
		int64_t at = index->number < 0 ? index->number + (int64_t)v->n : index->number;
		int64_t first = v->number, n = (int64_t)v->n;

		if (at < 0 || at >= n) {
			*v = (struct jinja_value){ .kind = VALUE_UNDEFINED };
			return 0;
		}
		at = v->reversed ? n - 1 - at : at;
		*v = (struct jinja_value){ .kind = VALUE_MESSAGE, .number = first + at };
		return 0;
	}
	if (v->kind == VALUE_MESSAGE && index->kind == VALUE_STRING && !index->opaque)
		return message_field(e, v->number, index->text, index->n, v);
	return JINJA_E_UNSUPPORTED;
}

int jinja_length(struct jinja_value *v)
{
	if (v->kind == VALUE_MESSAGES)
		*v = count_of((int64_t)v->n);
	else if (v->kind == VALUE_STRING && !v->opaque)
		*v = (struct jinja_value){ .kind = VALUE_INTEGER, .number = (int64_t)v->n };
	else
		return JINJA_E_UNSUPPORTED;
	return 0;
}

static bool is_space(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Content ends what is stripped, and is marked; it is more than white space. */
int jinja_strip(struct jinja_run *e, struct jinja_value *v, unsigned sides)
{
	char *copy = e->heap->data + e->heap->n;
	size_t from = 0, n;

	if (v->kind != VALUE_STRING || !jinja_charge(e, v->n) || jinja_append(e->heap, v->text, v->n))
		return JINJA_E_UNSUPPORTED;
	n = v->n;
	if (sides & JINJA_LEFT) {
		while (from < n && is_space(copy[from]))
			from++;
		if (from < n && copy[from] == JINJA_CONTENT(0, 0)[0])
			copy[from + 2] = (char)(2 + ((copy[from + 2] - 2) | JINJA_LEFT));
	}
	if (sides & JINJA_RIGHT) {
		/* The last byte of content is none that could be white space. */
		while (n > from && is_space(copy[n - 1]))
			n--;
		if (n - from >= JINJA_CONTENT_BYTES && copy[n - JINJA_CONTENT_BYTES] == JINJA_CONTENT(0, 0)[0])
			copy[n - 1] = (char)(2 + ((copy[n - 1] - 2) | JINJA_RIGHT));
	}
	v->text = copy + from;
	v->n = n - from;
	return 0;
}

int jinja_contains(const struct jinja_value *b, const struct jinja_value *a, bool *out)
{
	if (a->kind != VALUE_STRING || a->opaque)
		return JINJA_E_UNSUPPORTED;
	if (b->kind == VALUE_MESSAGE)
		*out = jinja_text_is(a->text, a->n, "role") || jinja_text_is(a->text, a->n, "content");
	else if (b->kind == VALUE_STRING && a->n > 0)
		*out = memmem(b->text, b->n, a->text, a->n) != NULL;
	else
		return JINJA_E_UNSUPPORTED;
	return 0;
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

static bool is_no_text(const struct jinja_value *v)
{
	return v->kind == VALUE_NONE || v->kind == VALUE_UNDEFINED || v->kind == VALUE_BOOL;
}

int jinja_equal(const struct jinja_value *a, const struct jinja_value *b, bool *out)
{
	if (a->kind == VALUE_STRING && b->kind == VALUE_STRING) {
		*out = a->n == b->n && memcmp(a->text, b->text, a->n) == 0;
		return a->opaque || b->opaque ? JINJA_E_UNSUPPORTED : 0;
	}
	if ((a->kind == VALUE_BOOL && b->kind == VALUE_BOOL) || may_meet(a, b)) {
		*out = a->number == b->number;
		return 0;
	}
	/* A string is equal to no value of another kind. */
	*out = false;
	if (a->kind == VALUE_STRING)
		return is_no_text(b) ? 0 : JINJA_E_UNSUPPORTED;
	if (b->kind == VALUE_STRING)
		return is_no_text(a) ? 0 : JINJA_E_UNSUPPORTED;
	return JINJA_E_UNSUPPORTED;
}
