/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/http-request.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/utf8.h"

/* What is read as JSON first, and then into the request. */
struct body {
	struct http_request *request;
	char model[KVD_MODEL_NAME_MAX + 1], cache_key[KVD_CACHE_KEY_MAX + 1];
	uint32_t n, max_tokens, max_completion_tokens, top_k, best_of, n_logprobs;
	float temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
	int64_t seed;
	double timeout_s;
	bool has_max_tokens, has_max_completion_tokens, has_best_of, has_seed, has_n_logprobs, has_stream_options;
	bool logprobs, echo, ignore_eos, stream, token_ids;
	struct http_json prompt, messages, stop, logit_bias, stream_options, cache_control;
	bool has_prompt, has_messages, has_stop, has_logit_bias, has_cache_control;
};

static bool is_tier(const struct http_json *v)
{
	return http_json_is(v, "auto") || http_json_is(v, "default");
}

static bool is_text_list(const struct http_json *v)
{
	struct http_json_iter it = http_json_begin(v);
	struct http_json e;

	return v->type == HTTP_JSON_ARRAY && http_json_next(&it, NULL, &e) && http_json_is(&e, "text") &&
	       !http_json_next(&it, NULL, &e);
}

#define FIELD(name) offsetof(struct body, name)

/* What both endpoints take. */
#define COMMON \
	{ "model", HTTP_FIELD_STRING, 0, KVD_MODEL_NAME_MAX, FIELD(model) }, \
	{ "n", HTTP_FIELD_U32, 1, HTTP_N_MAX, FIELD(n) }, \
	{ "max_tokens", HTTP_FIELD_U32, 0, INT32_MAX, FIELD(max_tokens), FIELD(has_max_tokens) }, \
	{ "temperature", HTTP_FIELD_FLOAT, 0, 100, FIELD(temperature) }, \
	{ "top_p", HTTP_FIELD_FLOAT, 0, 1, FIELD(top_p) }, \
	{ "top_k", HTTP_FIELD_U32, 0, INT32_MAX, FIELD(top_k) }, \
	{ "min_p", HTTP_FIELD_FLOAT, 0, 1, FIELD(min_p) }, \
	{ "repeat_penalty", HTTP_FIELD_FLOAT, 0.01, 100, FIELD(repeat_penalty) }, \
	{ "presence_penalty", HTTP_FIELD_FLOAT, -2, 2, FIELD(presence_penalty) }, \
	{ "frequency_penalty", HTTP_FIELD_FLOAT, -2, 2, FIELD(frequency_penalty) }, \
	{ "seed", HTTP_FIELD_I64, .offset = FIELD(seed), .has = FIELD(has_seed) }, \
	{ "stop", HTTP_FIELD_JSON, .offset = FIELD(stop), .has = FIELD(has_stop) }, \
	{ "logit_bias", HTTP_FIELD_JSON, .offset = FIELD(logit_bias), .has = FIELD(has_logit_bias) }, \
	{ "ignore_eos", HTTP_FIELD_BOOL, .offset = FIELD(ignore_eos) }, \
	{ "return_token_ids", HTTP_FIELD_BOOL, .offset = FIELD(token_ids) }, \
	{ "stream", HTTP_FIELD_BOOL, .offset = FIELD(stream) }, \
	{ "stream_options", HTTP_FIELD_JSON, .offset = FIELD(stream_options), .has = FIELD(has_stream_options) }, \
	{ "prompt_cache_key", HTTP_FIELD_STRING, 1, KVD_CACHE_KEY_MAX, FIELD(cache_key) }, \
	{ "cache_control", HTTP_FIELD_JSON, .offset = FIELD(cache_control), .has = FIELD(has_cache_control) }, \
	{ "timeout", HTTP_FIELD_DOUBLE, 0.001, 86400, FIELD(timeout_s) }, \
	{ "user", HTTP_FIELD_IGNORED, .harmless = http_is_label }, \
	{ "safety_identifier", HTTP_FIELD_IGNORED, .harmless = http_is_label }, \
	{ "metadata", HTTP_FIELD_IGNORED, .harmless = http_is_object }, \
	{ "store", HTTP_FIELD_UNSUPPORTED, .harmless = http_is_false }, \
	{ "service_tier", HTTP_FIELD_UNSUPPORTED, .harmless = is_tier }, \
	{ "grammar", HTTP_FIELD_UNSUPPORTED }, \
	{ "json_schema", HTTP_FIELD_UNSUPPORTED }, \
	{ "lora", HTTP_FIELD_UNSUPPORTED, .harmless = http_is_empty }

static const struct http_field completion_fields[] = {
	COMMON,
	{ "prompt", HTTP_FIELD_JSON, .offset = FIELD(prompt), .has = FIELD(has_prompt) },
	{ "echo", HTTP_FIELD_BOOL, .offset = FIELD(echo) },
	{ "logprobs", HTTP_FIELD_U32, 0, HTTP_LOGPROBS_MAX, FIELD(n_logprobs), FIELD(has_n_logprobs) },
	{ "best_of", HTTP_FIELD_U32, 1, HTTP_N_MAX, FIELD(best_of), FIELD(has_best_of) },
	{ "suffix", HTTP_FIELD_UNSUPPORTED },
	{ "response_format", HTTP_FIELD_UNSUPPORTED, .harmless = http_is_text_format },
};

static const struct http_field chat_fields[] = {
	COMMON,
	{ "messages", HTTP_FIELD_JSON, .offset = FIELD(messages), .has = FIELD(has_messages) },
	{ "max_completion_tokens", HTTP_FIELD_U32, 0, INT32_MAX, FIELD(max_completion_tokens),
	  FIELD(has_max_completion_tokens) },
	{ "logprobs", HTTP_FIELD_BOOL, .offset = FIELD(logprobs) },
	{ "top_logprobs", HTTP_FIELD_U32, 0, HTTP_LOGPROBS_MAX, FIELD(n_logprobs), FIELD(has_n_logprobs) },
	{ "tools", HTTP_FIELD_UNSUPPORTED, .harmless = http_is_empty },
	{ "tool_choice", HTTP_FIELD_UNSUPPORTED, .harmless = http_is_none },
	{ "parallel_tool_calls", HTTP_FIELD_UNSUPPORTED },
	{ "functions", HTTP_FIELD_UNSUPPORTED, .harmless = http_is_empty },
	{ "function_call", HTTP_FIELD_UNSUPPORTED, .harmless = http_is_none },
	{ "response_format", HTTP_FIELD_UNSUPPORTED, .harmless = http_is_text_format },
	{ "modalities", HTTP_FIELD_UNSUPPORTED, .harmless = is_text_list },
	{ "audio", HTTP_FIELD_UNSUPPORTED },
	{ "prediction", HTTP_FIELD_UNSUPPORTED },
	{ "reasoning_effort", HTTP_FIELD_UNSUPPORTED },
	{ "verbosity", HTTP_FIELD_UNSUPPORTED },
	{ "web_search_options", HTTP_FIELD_UNSUPPORTED },
};

_Static_assert(ARRAY_SIZE(chat_fields) <= HTTP_FIELDS_MAX && ARRAY_SIZE(completion_fields) <= HTTP_FIELDS_MAX,
	       "a bit for each");

static const struct http_field stream_fields[] = {
	{ "include_usage", HTTP_FIELD_BOOL, .offset = offsetof(struct http_request, include_usage) },
	{ "include_obfuscation", HTTP_FIELD_UNSUPPORTED, .harmless = http_is_false },
};

/* --- stop, logit_bias ----------------------------------------------------------------------- */

static int read_stop_string(struct http_request *r, const struct http_json *v, const char *param,
			    struct http_refusal *why)
{
	char *to = r->stop[r->n_stop];
	size_t n;

	if (v->type != HTTP_JSON_STRING)
		return http_field_refuse_type(v, param, "a string", why);
	n = http_json_string(v, (uint8_t *)to, KVD_STOP_BYTES_MAX);
	if (!n || n > KVD_STOP_BYTES_MAX)
		return http_field_refuse(why, param, HTTP_CODE_VALUE, "%s must have 1 to %d bytes", param,
					 KVD_STOP_BYTES_MAX);
	if (memchr(to, 0, n))
		return http_field_refuse(why, param, HTTP_CODE_VALUE, "%s must not contain NUL", param);
	to[n] = '\0';
	r->stops[r->n_stop++] = to;
	return 0;
}

static int read_stop(struct http_request *r, const struct http_json *v, struct http_refusal *why)
{
	struct http_json_iter it;
	struct http_json e;
	char param[32];
	int err = 0;

	if (v->type == HTTP_JSON_STRING)
		return read_stop_string(r, v, "stop", why);
	if (v->type != HTTP_JSON_ARRAY)
		return http_field_refuse_type(v, "stop", "a string or an array of strings", why);
	for (it = http_json_begin(v); !err && http_json_next(&it, NULL, &e);) {
		if (r->n_stop == KVD_STOP_MAX)
			return http_field_refuse(why, "stop", HTTP_CODE_VALUE,
						 "stop must not have more than %d elements", KVD_STOP_MAX);
		snprintf(param, sizeof(param), "stop[%zu]", r->n_stop);
		err = read_stop_string(r, &e, param, why);
	}
	return err;
}

/* A member's name that is a token id: digits, as they are written.  False: it is none. */
static bool id_of_key(const struct http_json *key, int32_t *id)
{
	char text[16];
	size_t n = http_json_string(key, (uint8_t *)text, sizeof(text) - 1);
	struct http_json number = { .type = HTTP_JSON_NUMBER, .text = (uint8_t *)text, .n = n };
	uint64_t v;

	if (!n || n >= sizeof(text) || (text[0] == '0' && n > 1))
		return false;
	text[n] = '\0';
	if (strspn(text, "0123456789") != n || !http_json_u64(&number, &v) || v > INT32_MAX)
		return false;
	*id = (int32_t)v;
	return true;
}

static int read_bias(struct http_request *r, const struct http_json *v, struct http_refusal *why)
{
	struct http_json_iter it;
	struct http_json key, e;

	if (v->type != HTTP_JSON_OBJECT)
		return http_field_refuse_type(v, "logit_bias", "an object", why);
	for (it = http_json_begin(v); http_json_next(&it, &key, &e);) {
		char param[48];
		double bias;
		int32_t id;

		if (r->n_bias == KVD_LOGIT_BIAS_MAX)
			return http_field_refuse(why, "logit_bias", HTTP_CODE_VALUE,
						 "logit_bias must not have more than %d members", KVD_LOGIT_BIAS_MAX);
		if (!id_of_key(&key, &id))
			return http_field_refuse(why, "logit_bias", HTTP_CODE_VALUE,
						 "names in logit_bias must be token ids");
		snprintf(param, sizeof(param), "logit_bias.%d", id);
		if (e.type != HTTP_JSON_NUMBER)
			return http_field_refuse_type(&e, param, "a number", why);
		if (!http_json_double(&e, &bias) || bias < -100 || bias > 100)
			return http_field_refuse(why, param, HTTP_CODE_VALUE, "%s must be a number within -100..100",
						 param);
		r->bias[r->n_bias++] = (struct sampler_bias){ .id = id, .bias = (float)bias };
	}
	return 0;
}

/* --- cache_control ----------------------------------------------------------------------------- */

struct terms {
	char type[16], priority[16];
	bool pin, has_type, has_priority, has_ttl;
	struct http_json ttl;
};

static const struct http_field term_fields[] = {
	{ "type", HTTP_FIELD_STRING, 1, 15, offsetof(struct terms, type), offsetof(struct terms, has_type) },
	{ "ttl", HTTP_FIELD_JSON, .offset = offsetof(struct terms, ttl), .has = offsetof(struct terms, has_ttl) },
	{ "pin", HTTP_FIELD_BOOL, .offset = offsetof(struct terms, pin) },
	{ "priority", HTTP_FIELD_STRING, 1, 15, offsetof(struct terms, priority),
	  offsetof(struct terms, has_priority) },
};

static int read_ttl(struct http_request *r, const struct http_json *v, struct http_refusal *why)
{
	static const char param[] = "cache_control.ttl";

	if (http_json_is(v, "5m"))
		r->ttl_s = 300;
	else if (http_json_is(v, "1h"))
		r->ttl_s = 3600;
	else if (v->type != HTTP_JSON_NUMBER || !http_json_u64(v, &r->ttl_s) || !r->ttl_s || r->ttl_s > UINT32_MAX)
		return http_field_refuse(why, param, HTTP_CODE_VALUE,
					 "%s must be \"5m\", \"1h\" or seconds within 1..%u", param, UINT32_MAX);
	return 0;
}

static int read_terms(struct http_request *r, const struct http_json *v, struct http_refusal *why)
{
	static const char *const priorities[] = { "low", "normal", "high" };
	struct terms terms = { .priority = "normal" };
	int err;

	if (v->type != HTTP_JSON_OBJECT)
		return http_field_refuse_type(v, "cache_control", "an object", why);
	err = http_fields_read(v, term_fields, ARRAY_SIZE(term_fields), "cache_control.", &terms, why);
	if (err)
		return err;
	if (!terms.has_type || strcmp(terms.type, "ephemeral"))
		return http_field_refuse(why, "cache_control.type", HTTP_CODE_VALUE,
					 "cache_control.type must be ephemeral");
	for (int i = 0; i < 3; i++) {
		if (strcmp(terms.priority, priorities[i]))
			continue;
		r->priority = i - 1;
		r->pin = terms.pin;
		return terms.has_ttl ? read_ttl(r, &terms.ttl, why) : 0;
	}
	return http_field_refuse(why, "cache_control.priority", HTTP_CODE_VALUE,
				 "cache_control.priority must be low, normal or high");
}

/* --- messages -------------------------------------------------------------------------------------- */

struct message_body {
	char role[KVD_ROLE_MAX + 1];
	struct http_json content, ids;
	bool has_role, has_content, has_ids;
};

static const struct http_field message_fields[] = {
	{ "role", HTTP_FIELD_STRING, 1, KVD_ROLE_MAX, offsetof(struct message_body, role),
	  offsetof(struct message_body, has_role) },
	{ "content", HTTP_FIELD_JSON, .offset = offsetof(struct message_body, content),
	  .has = offsetof(struct message_body, has_content) },
	{ "token_ids", HTTP_FIELD_JSON, .offset = offsetof(struct message_body, ids),
	  .has = offsetof(struct message_body, has_ids) },
	{ "name", HTTP_FIELD_IGNORED, .harmless = http_is_label },
	{ "annotations", HTTP_FIELD_UNSUPPORTED, .harmless = http_is_empty },
	{ "tool_calls", HTTP_FIELD_UNSUPPORTED, .harmless = http_is_empty },
	{ "tool_call_id", HTTP_FIELD_UNSUPPORTED },
	{ "function_call", HTTP_FIELD_UNSUPPORTED },
	{ "refusal", HTTP_FIELD_UNSUPPORTED },
	{ "audio", HTTP_FIELD_UNSUPPORTED },
	{ "reasoning_content", HTTP_FIELD_UNSUPPORTED },
};

/* What templates call a role; NULL: there is none such here. */
static const char *role_of(const char *name)
{
	static const char *const roles[][2] = {
		{ "system", "system" }, { "developer", "system" }, { "user", "user" }, { "assistant", "assistant" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(roles); i++)
		if (!strcmp(name, roles[i][0]))
			return roles[i][1];
	return NULL;
}

struct part_body {
	char type[32];
	struct http_json text;
	bool has_type, has_text;
};

static const struct http_field part_fields[] = {
	{ "type", HTTP_FIELD_STRING, 1, 31, offsetof(struct part_body, type), offsetof(struct part_body, has_type) },
	{ "text", HTTP_FIELD_JSON, .offset = offsetof(struct part_body, text),
	  .has = offsetof(struct part_body, has_text) },
	{ "image_url", HTTP_FIELD_UNSUPPORTED },
	{ "input_audio", HTTP_FIELD_UNSUPPORTED },
	{ "file", HTTP_FIELD_UNSUPPORTED },
};

/* {"type": "text", "text": ...} */
static int check_part(const struct http_json *part, const char *param, struct http_refusal *why)
{
	struct part_body p = { .has_type = false };
	char prefix[HTTP_PARAM_MAX + 2], name[HTTP_PARAM_MAX + 8];
	int r;

	if (part->type != HTTP_JSON_OBJECT)
		return http_field_refuse_type(part, param, "an object", why);
	snprintf(prefix, sizeof(prefix), "%s.", param);
	r = http_fields_read(part, part_fields, ARRAY_SIZE(part_fields), prefix, &p, why);
	if (r)
		return r;
	snprintf(name, sizeof(name), "%s.type", param);
	if (!p.has_type)
		return http_field_refuse(why, name, HTTP_CODE_MISSING, "%s is missing", name);
	if (strcmp(p.type, "text"))
		return http_field_refuse(why, name, HTTP_CODE_UNSUPPORTED,
					 "%s must be text, nothing else is supported here", name);
	snprintf(name, sizeof(name), "%s.text", param);
	if (!p.has_text)
		return http_field_refuse(why, name, HTTP_CODE_MISSING, "%s is missing", name);
	return p.text.type == HTTP_JSON_STRING ? 0 : http_field_refuse_type(&p.text, name, "a string", why);
}

static int check_content(const struct http_json *content, const char *param, struct http_refusal *why)
{
	char part[HTTP_PARAM_MAX + 1];
	struct http_json_iter it;
	struct http_json v;
	size_t i = 0;
	int r = 0;

	if (content->type == HTTP_JSON_STRING)
		return 0;
	if (content->type != HTTP_JSON_ARRAY)
		return http_field_refuse_type(content, param, "a string or an array of text parts", why);
	for (it = http_json_begin(content); !r && http_json_next(&it, NULL, &v); i++) {
		if (i == KVD_PARTS_MAX)
			return http_field_refuse(why, param, HTTP_CODE_VALUE, "%s must not have more than %d elements",
						 param, KVD_PARTS_MAX);
		snprintf(part, sizeof(part), "%s[%zu]", param, i);
		r = check_part(&v, part, why);
	}
	if (!r && !i)
		return http_field_refuse(why, param, HTTP_CODE_VALUE, "%s is empty", param);
	return r;
}

/* What the model has said it may get back as it was generated: the same tokens, so that the cache has them. */
static int check_message_ids(const struct message_body *m, size_t i, struct http_refusal *why)
{
	char param[48];

	snprintf(param, sizeof(param), "messages[%zu].token_ids", i);
	if (strcmp(m->role, "assistant"))
		return http_field_refuse(why, param, HTTP_CODE_VALUE, "%s is only for messages of the assistant",
					 param);
	return http_prompts_check_ids(&m->ids, param, why);
}

static int check_message(const struct http_json *v, size_t i, struct http_refusal *why)
{
	struct message_body m = { .has_role = false };
	char prefix[32], param[48];
	int r;

	snprintf(param, sizeof(param), "messages[%zu]", i);
	if (v->type != HTTP_JSON_OBJECT)
		return http_field_refuse_type(v, param, "an object", why);
	snprintf(prefix, sizeof(prefix), "messages[%zu].", i);
	r = http_fields_read(v, message_fields, ARRAY_SIZE(message_fields), prefix, &m, why);
	if (r)
		return r;
	snprintf(param, sizeof(param), "messages[%zu].role", i);
	if (!m.has_role)
		return http_field_refuse(why, param, HTTP_CODE_MISSING, "%s is missing", param);
	if (!strcmp(m.role, "tool") || !strcmp(m.role, "function"))
		return http_field_refuse(why, param, HTTP_CODE_UNSUPPORTED, "%s %s is not supported here", param,
					 m.role);
	if (!role_of(m.role))
		return http_field_refuse(why, param, HTTP_CODE_VALUE, "%s must be system, developer, user or assistant",
					 param);
	snprintf(param, sizeof(param), "messages[%zu].content", i);
	if (!m.has_content)
		return http_field_refuse(why, param, HTTP_CODE_MISSING, "%s is missing or null", param);
	r = check_content(&m.content, param, why);
	return r || !m.has_ids ? r : check_message_ids(&m, i, why);
}

static int check_messages(struct http_request *r, const struct http_json *list, struct http_refusal *why)
{
	struct http_json_iter it;
	struct http_json v;
	int err = 0;

	if (list->type != HTTP_JSON_ARRAY)
		return http_field_refuse_type(list, "messages", "an array", why);
	for (it = http_json_begin(list); !err && http_json_next(&it, NULL, &v);) {
		if (r->n_messages == KVD_PARTS_MAX)
			return http_field_refuse(why, "messages", HTTP_CODE_VALUE,
						 "messages must not have more than %d elements", KVD_PARTS_MAX);
		err = check_message(&v, r->n_messages++, why);
	}
	if (!err && !r->n_messages)
		return http_field_refuse(why, "messages", HTTP_CODE_VALUE, "messages is empty");
	r->messages = *list;
	return err;
}

/* Later a message is what it was when it was checked. */
bool http_request_message(struct http_json_iter *it, struct http_message *out)
{
	struct message_body m = { .has_role = false };
	struct http_refusal ignored;
	struct http_json v;

	if (!http_json_next(it, NULL, &v) ||
	    http_fields_read(&v, message_fields, ARRAY_SIZE(message_fields), "", &m, &ignored))
		return false;
	*out = (struct http_message){
		.role = role_of(m.role),
		.content = m.has_ids ? m.ids : m.content,
		.kind = m.has_ids ? KVD_PART_IDS : KVD_PART_TEXT,
	};
	return true;
}

/* The text of a part that was checked. */
static struct http_json text_of(const struct http_json *part)
{
	struct http_json_iter it = http_json_begin(part);
	struct http_json key, v;

	while (http_json_next(&it, &key, &v))
		if (http_json_is(&key, "text"))
			break;
	return v;
}

size_t http_message_room(const struct http_message *m)
{
	return m->kind == KVD_PART_IDS ? http_ids_room(&m->content) : m->content.n;
}

size_t http_message_write(const struct http_message *m, uint8_t *out)
{
	struct http_json_iter it;
	struct http_json part;
	size_t n = 0;

	if (m->kind == KVD_PART_IDS)
		return http_ids_write(&m->content, out);
	if (m->content.type == HTTP_JSON_STRING)
		return http_json_string(&m->content, out, m->content.n);
	for (it = http_json_begin(&m->content); http_json_next(&it, NULL, &part);) {
		struct http_json text = text_of(&part);

		n += http_json_string(&text, out + n, text.n);
	}
	return n;
}

/* --- the whole body ------------------------------------------------------------------------------ */

int http_request_check_key(const char *key, struct http_refusal *why)
{
	char readable[KVD_CACHE_KEY_MAX + 1];

	snprintf(readable, sizeof(readable), "%s", key);
	utf8_make_readable(readable, strlen(readable));
	if (!strchr(key, '/') && !strcmp(readable, key))
		return 0;
	return http_field_refuse(why, "prompt_cache_key", HTTP_CODE_VALUE,
				 "prompt_cache_key must not contain / or control characters");
}

static void take(struct http_request *r, const struct body *b)
{
	memcpy(r->model, b->model, sizeof(r->model));
	memcpy(r->cache_key, b->cache_key, sizeof(r->cache_key));
	r->n = b->n;
	r->max_tokens = b->has_max_completion_tokens ? b->max_completion_tokens : b->max_tokens;
	r->temperature = b->temperature;
	r->top_p = b->top_p;
	r->top_k = b->top_k;
	r->min_p = b->min_p;
	r->repeat_penalty = b->repeat_penalty;
	r->presence_penalty = b->presence_penalty;
	r->frequency_penalty = b->frequency_penalty;
	r->seed = b->seed;
	r->has_seed = b->has_seed;
	r->logprobs = b->logprobs;
	r->n_logprobs = b->n_logprobs;
	r->echo = b->echo;
	r->ignore_eos = b->ignore_eos;
	r->stream = b->stream;
	r->token_ids = b->token_ids;
	r->timeout_s = b->timeout_s;
}

/* What both have, behind the table. */
static int read_common(struct http_request *r, const struct body *b, struct http_refusal *why)
{
	int err = http_request_check_key(b->cache_key, why);

	take(r, b);
	if (!err && b->has_stop)
		err = read_stop(r, &b->stop, why);
	if (!err && b->has_logit_bias)
		err = read_bias(r, &b->logit_bias, why);
	if (!err && b->has_cache_control)
		err = read_terms(r, &b->cache_control, why);
	if (err || !b->has_stream_options)
		return err;
	if (!b->stream)
		return http_field_refuse(why, "stream_options", HTTP_CODE_VALUE, "stream_options is only for streams");
	if (b->stream_options.type != HTTP_JSON_OBJECT)
		return http_field_refuse_type(&b->stream_options, "stream_options", "an object", why);
	return http_fields_read(&b->stream_options, stream_fields, ARRAY_SIZE(stream_fields), "stream_options.", r,
				why);
}

static struct http_request *request_new(struct http_refusal *why)
{
	struct http_request *r = calloc(1, sizeof(*r));

	if (r) {
		r->refs = 1;
	} else {
		http_refusal_write(why, NULL, NULL, "out of memory");
		why->status = 503;
	}
	return r;
}

static const struct body defaults = {
	.n = 1, .max_tokens = UINT32_MAX, .temperature = 1, .top_p = 1, .repeat_penalty = 1,
};

int http_request_read_completion(struct http_request **out, const uint8_t *body, size_t n, struct http_refusal *why)
{
	_cleanup_(http_request_unrefp) struct http_request *r = request_new(why);
	struct body b = defaults;
	struct http_json root;
	int err;

	if (!r)
		return -EINVAL;
	b.max_tokens = 16;
	err = http_fields_parse(body, n, &root, why);
	if (!err)
		err = http_fields_read(&root, completion_fields, ARRAY_SIZE(completion_fields), "", &b, why);
	if (err)
		return err;
	b.logprobs = b.has_n_logprobs;
	if (!b.has_prompt)
		return http_field_refuse(why, "prompt", HTTP_CODE_MISSING, "prompt is missing or null");
	if (b.has_best_of && b.best_of != b.n)
		return http_field_refuse(why, "best_of", HTTP_CODE_UNSUPPORTED, "best_of must be what n is");
	err = http_prompts_init(&r->prompts, &b.prompt, "prompt", HTTP_PROMPTS_MAX, why);
	if (!err)
		err = read_common(r, &b, why);
	if (!err)
		*out = steal_ptr(r);
	return err;
}

int http_request_read_chat(struct http_request **out, const uint8_t *body, size_t n, struct http_refusal *why)
{
	_cleanup_(http_request_unrefp) struct http_request *r = request_new(why);
	struct body b = defaults;
	struct http_json root;
	int err;

	if (!r)
		return -EINVAL;
	err = http_fields_parse(body, n, &root, why);
	if (!err)
		err = http_fields_read(&root, chat_fields, ARRAY_SIZE(chat_fields), "", &b, why);
	if (err)
		return err;
	if (!b.has_messages)
		return http_field_refuse(why, "messages", HTTP_CODE_MISSING, "messages is missing or null");
	if (b.has_n_logprobs && !b.logprobs)
		return http_field_refuse(why, "top_logprobs", HTTP_CODE_VALUE,
					 "top_logprobs is only for logprobs: true");
	r->is_chat = true;
	err = check_messages(r, &b.messages, why);
	if (!err)
		err = read_common(r, &b, why);
	if (!err)
		*out = steal_ptr(r);
	return err;
}

void http_request_ref(struct http_request *r)
{
	r->refs++;
}

void http_request_unref(struct http_request *r)
{
	if (r && !--r->refs)
		free(r);
}

/* splitmix64, of Steele, Lea and Flood 2014 (doi:10.1145/2660193.2660195): far apart, whatever the seed. */
uint64_t http_request_seed(uint64_t seed, uint64_t i)
{
	uint64_t z = seed + i * UINT64_C(0x9e3779b97f4a7c15);

	if (!i)
		return seed;
	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}
