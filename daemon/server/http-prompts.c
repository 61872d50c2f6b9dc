/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/http-prompts.h"

#include <string.h>

/* The token id at v.  False: it is none. */
static bool id_of(const struct http_json *v, int32_t *id)
{
	uint64_t u;

	if (v->type != HTTP_JSON_NUMBER || !http_json_u64(v, &u) || u > INT32_MAX)
		return false;
	*id = (int32_t)u;
	return true;
}

int http_prompts_check_ids(const struct http_json *list, const char *name, struct http_refusal *why)
{
	char param[HTTP_PARAM_MAX + 1];
	struct http_json_iter it;
	struct http_json v;
	size_t i = 0;
	int32_t id;

	if (list->type != HTTP_JSON_ARRAY)
		return http_field_refuse_type(list, name, "an array of token ids", why);
	for (it = http_json_begin(list); http_json_next(&it, NULL, &v); i++) {
		if (id_of(&v, &id))
			continue;
		snprintf(param, sizeof(param), "%s[%zu]", name, i);
		if (v.type != HTTP_JSON_NUMBER)
			return http_field_refuse_type(&v, param, "a token id", why);
		return http_field_refuse(why, param, HTTP_CODE_VALUE, "%s must be a token id within 0..%d", param,
					 INT32_MAX);
	}
	if (!i)
		return http_field_refuse(why, name, HTTP_CODE_VALUE, "%s is empty", name);
	return 0;
}

static int check_text(const struct http_json *v, const char *name, struct http_refusal *why)
{
	return v->n > 2 ? 0 : http_field_refuse(why, name, HTTP_CODE_VALUE, "%s is empty", name);
}

/* A list of texts or of lists of ids, all of a kind. */
static int check_list(const struct http_json *list, const char *name, enum http_json_type type, size_t max,
		      size_t *n, struct http_refusal *why)
{
	struct http_json_iter it = http_json_begin(list);
	char param[HTTP_PARAM_MAX + 1];
	struct http_json v;
	size_t i = 0;
	int r = 0;

	for (; !r && http_json_next(&it, NULL, &v); i++) {
		snprintf(param, sizeof(param), "%s[%zu]", name, i);
		if (i == max)
			return http_field_refuse(why, name, HTTP_CODE_VALUE,
						 "%s must not have more than %zu elements", name, max);
		if (v.type != type)
			r = http_field_refuse_type(&v, param,
						   type == HTTP_JSON_STRING ? "a string" : "a list of token ids", why);
		else if (type == HTTP_JSON_STRING)
			r = check_text(&v, param, why);
		else
			r = http_prompts_check_ids(&v, param, why);
	}
	if (!r)
		*n = i;
	return r;
}

int http_prompts_init(struct http_prompts *p, const struct http_json *value, const char *name, size_t max,
		      struct http_refusal *why)
{
	struct http_prompts new = { .value = *value, .n = 1, .kind = KVD_PART_TEXT };
	struct http_json_iter it;
	struct http_json first;
	int r;

	if (value->type == HTTP_JSON_STRING) {
		r = check_text(value, name, why);
	} else if (value->type != HTTP_JSON_ARRAY) {
		r = http_field_refuse_type(value, name, "a string or an array", why);
	} else {
		it = http_json_begin(value);
		if (!http_json_next(&it, NULL, &first))
			return http_field_refuse(why, name, HTTP_CODE_VALUE, "%s is empty", name);
		new.is_list = first.type == HTTP_JSON_STRING || first.type == HTTP_JSON_ARRAY;
		new.kind = first.type == HTTP_JSON_STRING ? KVD_PART_TEXT : KVD_PART_IDS;
		r = new.is_list ? check_list(value, name, first.type, max, &new.n, why)
				: http_prompts_check_ids(value, name, why);
	}
	if (!r)
		*p = new;
	return r;
}

bool http_prompts_next(struct http_prompts *p, struct http_json *prompt)
{
	if (p->is_list) {
		if (!p->begun)
			p->next = http_json_begin(&p->value);
		p->begun = true;
		return http_json_next(&p->next, NULL, prompt);
	}
	if (p->begun)
		return false;
	p->begun = true;
	*prompt = p->value;
	return true;
}

size_t http_ids_room(const struct http_json *list)
{
	return http_json_count(list) * sizeof(int32_t);
}

size_t http_ids_write(const struct http_json *list, uint8_t *out)
{
	struct http_json_iter it = http_json_begin(list);
	struct http_json v;
	size_t n = 0;
	int32_t id;

	/* Checked before: all of them are ids. */
	for (; http_json_next(&it, NULL, &v) && id_of(&v, &id); n += sizeof(id))
		memcpy(out + n, &id, sizeof(id));
	return n;
}

size_t http_prompt_room(const struct http_prompts *p, const struct http_json *prompt)
{
	return p->kind == KVD_PART_TEXT ? prompt->n - 2 : http_ids_room(prompt);
}

size_t http_prompt_write(const struct http_prompts *p, const struct http_json *prompt, uint8_t *out)
{
	return p->kind == KVD_PART_TEXT ? http_json_string(prompt, out, prompt->n - 2) : http_ids_write(prompt, out);
}
