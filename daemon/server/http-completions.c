/* SPDX-License-Identifier: Apache-2.0 */
/* POST /v1/completions, /v1/chat/completions. */
#include "daemon/server/http-body.h"
#include "daemon/server/http-generate.h"

static void *read_completion(const uint8_t *bytes, size_t n, struct http_refusal *why)
{
	struct http_request *request;

	return http_request_read_completion(&request, bytes, n, why) ? NULL : request;
}

static void *read_chat(const uint8_t *bytes, size_t n, struct http_refusal *why)
{
	struct http_request *request;

	return http_request_read_chat(&request, bytes, n, why) ? NULL : request;
}

static void take(struct http_exchange *x, void *request, struct http_body *body)
{
	http_generate(x, request);
	/* All prompts are copied by then. */
	http_body_deinit(body);
}

static void free_request(void *request)
{
	http_request_unref(request);
}

void http_post_completions(struct http_exchange *x)
{
	static const struct http_body_reader reader = { read_completion, take, free_request };

	http_body_read(x, &reader);
}

void http_post_chat(struct http_exchange *x)
{
	static const struct http_body_reader reader = { read_chat, take, free_request };

	http_body_read(x, &reader);
}
