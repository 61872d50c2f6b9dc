/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-request.h - what a body asks to be generated: /v1/completions and /v1/chat/completions, read by their
 * tables (http-fields.h) and checked as far as that is possible without a model.
 *
 * It is shared by the choices of an exchange and by their ways to the engine, which may outlive the exchange:
 * references are counted.  Thread: the loop thread; workers read what it points to.
 */
#ifndef KVD_SERVER_HTTP_REQUEST_H
#define KVD_SERVER_HTTP_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/engine/sampler.h"
#include "daemon/server/http-fields.h"
#include "daemon/server/http-prompts.h"
#include "daemon/server/namespace.h"
#include "ipc/base/cleanup.h"
#include "ipc/protocol.h"

#define HTTP_N_MAX 16		/* choices for a prompt */
#define HTTP_PROMPTS_MAX 64
#define HTTP_LOGPROBS_MAX 20

struct http_request {
	unsigned refs;
	bool is_chat;

	/* Valid while the body is there. */
	struct http_prompts prompts;	/* completions */
	struct http_json messages;	/* chat: checked, http_request_message() reads them */
	size_t n_messages;

	char model[KVD_MODEL_NAME_MAX + 1];	/* "": the default one */
	uint32_t n;
	uint32_t max_tokens;		/* UINT32_MAX: until the context is full */
	float temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
	uint32_t top_k;
	int64_t seed;
	bool has_seed;
	bool logprobs;
	uint32_t n_logprobs;		/* alternatives */
	bool echo, ignore_eos, stream, include_usage, token_ids;
	char stop[KVD_STOP_MAX][KVD_STOP_BYTES_MAX + 1];
	const char *stops[KVD_STOP_MAX];	/* [n_stop], to stop */
	size_t n_stop;
	struct sampler_bias bias[KVD_LOGIT_BIAS_MAX];
	size_t n_bias;
	char cache_key[KVD_CACHE_KEY_MAX + 1];	/* "": none */
	uint64_t ttl_s;			/* 0: as configured */
	int priority;			/* -1, 0, 1 */
	bool pin;
	double timeout_s;		/* 0: none */

	struct namespace_choice namespace;	/* the exchange's */
};

/* 0, or -EINVAL with the refusal filled in.  The body stays where it is while prompts and messages are wanted. */
int http_request_read_completion(struct http_request **out, const uint8_t *body, size_t n, struct http_refusal *why);
int http_request_read_chat(struct http_request **out, const uint8_t *body, size_t n, struct http_refusal *why);
void http_request_ref(struct http_request *r);
void http_request_unref(struct http_request *r);	/* NULL is fine */
CLEANUP_DEFINE(struct http_request, http_request_unref)

/* A message of a chat, in turn; it begins as http_json_begin(&r->messages).  role: a literal. */
struct http_message {
	const char *role;
	struct http_json content;	/* a string, or an array of parts with text; or, */
	enum kvd_part_kind kind;	/* IDS: an array of token ids */
};
bool http_request_message(struct http_json_iter *it, struct http_message *out);
/* How much room its bytes need, at most; its text or ids (int32_t, aligned), and how many bytes. */
size_t http_message_room(const struct http_message *m);
size_t http_message_write(const struct http_message *m, uint8_t *out);

/* A prompt_cache_key, which names a part of a namespace.  0, or -EINVAL with the refusal filled in. */
int http_request_check_key(const char *key, struct http_refusal *why);

/* The seed of choice i: the request's own for the first. */
uint64_t http_request_seed(uint64_t seed, uint64_t i);

#endif
