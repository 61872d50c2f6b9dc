/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/http-fields.h"

#include <string.h>

#include "ipc/base/utf8.h"

#define NAME_MAX_BYTES 63	/* of a member; no field's is as long */
#define LABEL_MAX 1024		/* characters */

void http_refusal_write(struct http_refusal *why, const char *param, const char *code, const char *fmt, ...)
{
	va_list ap;

	*why = (struct http_refusal){ .status = 400, .code = code };
	snprintf(why->param, sizeof(why->param), "%s", param ? param : "");
	va_start(ap, fmt);
	vsnprintf(why->message.text, sizeof(why->message.text), fmt, ap);
	va_end(ap);
	utf8_make_readable(why->param, strlen(why->param));
	utf8_make_readable(why->message.text, strlen(why->message.text));
}

int http_field_refuse_type(const struct http_json *v, const char *param, const char *wanted, struct http_refusal *why)
{
	return http_field_refuse(why, param, HTTP_CODE_TYPE, "%s must be %s, it is %s", param, wanted,
				 http_type_name(v));
}

struct http_error http_refusal_error(const struct http_refusal *why)
{
	return (struct http_error){
		.status = why->status,
		.param = why->param[0] ? why->param : NULL,
		.code = why->code,
		.retry_after_s = why->retry_after_s,
	};
}

void http_reply_refusal(struct http_exchange *x, const struct http_refusal *why)
{
	struct http_error e = http_refusal_error(why);

	http_reply_error(x, &e, "%s", why->message.text);
}

const char *http_type_name(const struct http_json *v)
{
	static const char *const names[] = {
		[HTTP_JSON_NULL] = "null", [HTTP_JSON_FALSE] = "a boolean", [HTTP_JSON_TRUE] = "a boolean",
		[HTTP_JSON_NUMBER] = "a number", [HTTP_JSON_STRING] = "a string", [HTTP_JSON_ARRAY] = "an array",
		[HTTP_JSON_OBJECT] = "an object",
	};

	return names[v->type];
}

bool http_is_object(const struct http_json *v)
{
	return v->type == HTTP_JSON_OBJECT;
}

bool http_is_label(const struct http_json *v)
{
	uint8_t bytes[4 * LABEL_MAX];
	size_t n = v->type == HTTP_JSON_STRING ? http_json_string(v, bytes, sizeof(bytes)) : SIZE_MAX, n_characters = 0;

	if (n > sizeof(bytes))
		return false;
	for (size_t i = 0; i < n; i++)
		n_characters += (bytes[i] & 0xc0) != 0x80;
	return n_characters <= LABEL_MAX;
}

bool http_is_false(const struct http_json *v)
{
	return v->type == HTTP_JSON_FALSE;
}

bool http_is_none(const struct http_json *v)
{
	return http_json_is(v, "none");
}

bool http_is_empty(const struct http_json *v)
{
	return (v->type == HTTP_JSON_ARRAY || v->type == HTTP_JSON_OBJECT) && !http_json_count(v);
}

bool http_is_text_format(const struct http_json *v)
{
	struct http_json key, value;
	struct http_json_iter it;
	bool is_text = false;

	if (v->type != HTTP_JSON_OBJECT)
		return false;
	it = http_json_begin(v);
	while (http_json_next(&it, &key, &value)) {
		if (!http_json_is(&key, "type") || !http_json_is(&value, "text"))
			return false;
		is_text = true;
	}
	return is_text;
}

int http_fields_parse(const uint8_t *body, size_t n, struct http_json *root, struct http_refusal *why)
{
	struct diag diag = DIAG_NULL;
	struct http_json v;

	if (http_json_parse(body, n, &v, &diag))
		return http_field_refuse(why, NULL, HTTP_CODE_JSON, "%s", diag.text);
	if (v.type != HTTP_JSON_OBJECT)
		return http_field_refuse(why, NULL, HTTP_CODE_TYPE, "the body must be a JSON object, it is %s",
				   http_type_name(&v));
	*root = v;
	return 0;
}

/* --- one field ---------------------------------------------------------------------- */

/* One value on its way into the struct. */
struct place {
	const struct http_field *field;
	const struct http_json *value;
	const char *param;
	void *to;
	struct http_refusal *why;
};

static int wrong_type(const struct place *p, const char *wanted)
{
	return http_field_refuse_type(p->value, p->param, wanted, p->why);
}

static int wrong_number(const struct place *p, const char *kind)
{
	return http_field_refuse(p->why, p->param, HTTP_CODE_VALUE, "%s must be %s within %.16g..%.16g", p->param, kind,
			   p->field->min, p->field->max);
}

static int read_u32(const struct place *p)
{
	const struct http_field *f = p->field;
	uint64_t v;

	if (p->value->type != HTTP_JSON_NUMBER)
		return wrong_type(p, "an integer");
	if (!http_json_u64(p->value, &v) || v < (uint64_t)f->min || v > (uint64_t)f->max)
		return wrong_number(p, "an integer");
	*(uint32_t *)p->to = (uint32_t)v;
	return 0;
}

static int read_i64(const struct place *p)
{
	if (p->value->type != HTTP_JSON_NUMBER)
		return wrong_type(p, "an integer");
	if (!http_json_i64(p->value, p->to))
		return http_field_refuse(p->why, p->param, HTTP_CODE_VALUE,
				   "%s must be an integer within -9223372036854775808..9223372036854775807", p->param);
	return 0;
}

static int read_double(const struct place *p, double *out)
{
	if (p->value->type != HTTP_JSON_NUMBER)
		return wrong_type(p, "a number");
	if (!http_json_double(p->value, out) || *out < p->field->min || *out > p->field->max)
		return wrong_number(p, "a number");
	return 0;
}

static int read_string(const struct place *p)
{
	size_t min = (size_t)p->field->min, max = (size_t)p->field->max, n;
	char *to = p->to;

	if (p->value->type != HTTP_JSON_STRING)
		return wrong_type(p, "a string");
	n = http_json_string(p->value, (uint8_t *)to, max);
	if (n < min || n > max)
		return http_field_refuse(p->why, p->param, HTTP_CODE_VALUE, "%s must have %zu to %zu bytes",
					 p->param, min, max);
	if (memchr(to, 0, n))
		return http_field_refuse(p->why, p->param, HTTP_CODE_VALUE, "%s must not contain NUL", p->param);
	to[n] = '\0';
	return 0;
}

static int read_value(const struct place *p)
{
	double d;
	int r;

	switch (p->field->kind) {
	case HTTP_FIELD_BOOL:
		if (p->value->type != HTTP_JSON_TRUE && p->value->type != HTTP_JSON_FALSE)
			return wrong_type(p, "a boolean");
		*(bool *)p->to = p->value->type == HTTP_JSON_TRUE;
		return 0;
	case HTTP_FIELD_U32:
		return read_u32(p);
	case HTTP_FIELD_I64:
		return read_i64(p);
	case HTTP_FIELD_FLOAT:
		r = read_double(p, &d);
		if (!r)
			*(float *)p->to = (float)d;
		return r;
	case HTTP_FIELD_DOUBLE:
		r = read_double(p, &d);
		if (!r)
			*(double *)p->to = d;
		return r;
	case HTTP_FIELD_STRING:
		return read_string(p);
	case HTTP_FIELD_JSON:
		*(struct http_json *)p->to = *p->value;
		return 0;
	case HTTP_FIELD_IGNORED:
		if (!p->field->harmless || p->field->harmless(p->value))
			return 0;
		return http_field_refuse(p->why, p->param, HTTP_CODE_TYPE, "%s can't have this value", p->param);
	case HTTP_FIELD_UNSUPPORTED:
		if (p->field->harmless && p->field->harmless(p->value))
			return 0;
		return http_field_refuse(p->why, p->param, HTTP_CODE_UNSUPPORTED, "%s is not supported here", p->param);
	}
	return -EINVAL;
}

/* --- an object ------------------------------------------------------------------------ */

/* A member's name as a string, cut where it is too long for any field. */
static void name_of(const struct http_json *key, char name[NAME_MAX_BYTES + 1])
{
	size_t n = http_json_string(key, (uint8_t *)name, NAME_MAX_BYTES);

	if (n > NAME_MAX_BYTES)
		n = utf8_complete((const uint8_t *)name, NAME_MAX_BYTES);
	name[n] = '\0';
	/* A NUL would make it another name. */
	for (char *nul = name; (nul = memchr(nul, 0, n - (size_t)(nul - name))) != NULL;)
		*nul = '?';
}

static const struct http_field *find(const struct http_field *table, size_t n_table, const char *name)
{
	for (size_t i = 0; i < n_table; i++)
		if (!strcmp(table[i].name, name))
			return &table[i];
	return NULL;
}

int http_fields_read(const struct http_json *object, const struct http_field *table, size_t n_table,
		     const char *prefix, void *out, struct http_refusal *why)
{
	struct http_json_iter it = http_json_begin(object);
	char name[NAME_MAX_BYTES + 1], param[HTTP_PARAM_MAX + 1];
	struct http_json key, value;
	uint64_t seen = 0;

	while (http_json_next(&it, &key, &value)) {
		const struct http_field *f;
		int r;

		name_of(&key, name);
		snprintf(param, sizeof(param), "%s%s", prefix, name);
		f = find(table, n_table, name);
		if (!f)
			return http_field_refuse(why, param, HTTP_CODE_UNKNOWN, "unknown field %s", param);
		if (seen & UINT64_C(1) << (f - table))
			return http_field_refuse(why, param, HTTP_CODE_VALUE, "%s is there twice", param);
		seen |= UINT64_C(1) << (f - table);
		if (value.type == HTTP_JSON_NULL)
			continue;
		r = read_value(&(struct place){ f, &value, param, (char *)out + f->offset, why });
		if (r)
			return r;
		if (f->has)
			*((bool *)out + f->has) = true;
	}
	return 0;
}
