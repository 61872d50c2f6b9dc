/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bodies of requests.  The first byte chooses the endpoint, the rest is the body.  What is JSON is decided by jansson
 * as well; what is refused has a status, a sentence and a name that are fit to be sent; what is taken is
 * within its ranges, and its prompts fit the room that they ask for.
 */
#include <jansson.h>

#include "daemon/server/http-request.h"
#include "ipc/base/utf8.h"
#include "tests/fuzz/fuzz.h"

/* Depth is bounded here, and numbers aren't; duplicates are refused by those who read members. */
static void check_json(const uint8_t *body, size_t n)
{
	json_error_t error;
	json_t *oracle = json_loadb((const char *)body, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
	enum json_error_code why = oracle ? json_error_unknown : json_error_code(&error);
	struct diag diag = DIAG_NULL;
	struct http_json v;
	int r = http_json_parse(body, n, &v, &diag);

	FUZZ_CHECK((r == 0) == !diag.text[0]);
	/* jansson takes a NUL behind a lone number for the end. */
	FUZZ_CHECK(!r || !oracle || memchr(body, 0, n) || strstr(diag.text, "inside each other"));
	/* It takes more: numbers that a double or 64 bits don't hold, and names with \u0000 in them. */
	FUZZ_CHECK(r || oracle || why == json_error_numeric_overflow || why == json_error_null_byte_in_key);
	json_decref(oracle);
}

static bool is_fit(const char *text)
{
	for (const char *p = text; *p; p++)
		if ((uint8_t)*p < 0x20 || *p == 0x7f)
			return false;
	return utf8_valid((const uint8_t *)text, strlen(text));
}

static void check_refusal(const struct http_refusal *why)
{
	FUZZ_CHECK(why->status == 400 && why->code && why->message.text[0]);
	FUZZ_CHECK(is_fit(why->param) && is_fit(why->message.text));
}

static void check_prompts(struct http_prompts *p)
{
	struct http_json prompt;
	size_t n = 0;

	for (; http_prompts_next(p, &prompt); n++) {
		size_t room = http_prompt_room(p, &prompt), written;
		uint8_t *out = malloc(room ? room : 1);

		FUZZ_CHECK(out);
		written = http_prompt_write(p, &prompt, out);
		FUZZ_CHECK(written && written <= room);
		if (p->kind == KVD_PART_TEXT)
			FUZZ_CHECK(utf8_valid(out, written));
		else
			for (size_t i = 0; i < written; i += 4)
				FUZZ_CHECK(out[i + 3] < 0x80);
		free(out);
	}
	FUZZ_CHECK(n == p->n && n >= 1 && n <= HTTP_PROMPTS_MAX);
}

static void check_messages(const struct http_request *r)
{
	struct http_json_iter it = http_json_begin(&r->messages);
	struct http_message m;
	size_t n = 0;

	for (; http_request_message(&it, &m); n++) {
		size_t room = http_message_room(&m), written;
		uint8_t *out = malloc(room);

		FUZZ_CHECK(out && m.role);
		written = http_message_write(&m, out);
		FUZZ_CHECK(written <= room);
		FUZZ_CHECK(m.kind == KVD_PART_IDS ? written && written % 4 == 0 : utf8_valid(out, written));
		free(out);
	}
	FUZZ_CHECK(n == r->n_messages && n >= 1);
}

static void check_request(const struct http_request *r)
{
	FUZZ_CHECK(r->n >= 1 && r->n <= HTTP_N_MAX && r->n_logprobs <= HTTP_LOGPROBS_MAX);
	FUZZ_CHECK(r->temperature >= 0 && r->temperature <= 100 && r->top_p >= 0 && r->top_p <= 1);
	FUZZ_CHECK(r->min_p >= 0 && r->min_p <= 1 && r->repeat_penalty > 0 && r->repeat_penalty <= 100);
	FUZZ_CHECK(r->presence_penalty >= -2 && r->presence_penalty <= 2);
	FUZZ_CHECK(r->frequency_penalty >= -2 && r->frequency_penalty <= 2);
	FUZZ_CHECK(r->max_tokens <= INT32_MAX || r->max_tokens == UINT32_MAX);
	FUZZ_CHECK(r->timeout_s >= 0 && r->timeout_s <= 86400 && r->ttl_s <= UINT32_MAX);
	FUZZ_CHECK(!strchr(r->cache_key, '/') && is_fit(r->cache_key) && r->n_stop <= KVD_STOP_MAX);
	for (size_t i = 0; i < r->n_stop; i++)
		FUZZ_CHECK(r->stops[i] == r->stop[i] && r->stop[i][0]);
	for (size_t i = 0; i < r->n_bias; i++)
		FUZZ_CHECK(r->bias[i].id >= 0 && r->bias[i].bias >= -100 && r->bias[i].bias <= 100);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct http_refusal why = HTTP_REFUSAL_NULL;
	struct http_request *r;
	uint8_t *body;
	bool is_chat;
	int err;

	if (!n)
		return 0;
	is_chat = data[0] & 1;
	n--;
	body = fuzz_copy(data + 1, n);
	check_json(body, n);
	err = is_chat ? http_request_read_chat(&r, body, n, &why) : http_request_read_completion(&r, body, n, &why);
	if (err) {
		check_refusal(&why);
	} else {
		check_request(r);
		if (is_chat)
			check_messages(r);
		else
			check_prompts(&r->prompts);
		http_request_unref(r);
	}
	free(body);
	return 0;
}
