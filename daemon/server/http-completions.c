/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POST /v1/completions, /v1/chat/completions: the body is read, at once or, if it is long, by a worker, since the
 * loop has others to answer.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/server/http-code.h"
#include "daemon/server/http-generate.h"
#include "daemon/server/server-internal.h"

#define AT_ONCE_MAX (128u << 10)	/* bytes of a body: about a millisecond */

/* A long body on its way through a worker, which has a copy of its own: the client may go meanwhile. */
struct reading {
	struct job job;
	struct http_exchange *x;	/* NULL: the client is gone */
	struct charge memory;
	bool is_chat;
	uint8_t *body;			/* [n] */
	size_t n;

	/* The worker's. */
	struct http_request *request;	/* NULL: refused */
	struct http_refusal why;
};

static void reading_free(struct reading *r)
{
	if (!r)
		return;
	http_request_unref(r->request);
	charge_deinit(&r->memory);
	free(r->body);
	free(r);
}
CLEANUP_DEFINE(struct reading, reading_free)

/* NULL: the refusal is filled in. */
static struct http_request *read_body(bool is_chat, const uint8_t *body, size_t n, struct http_refusal *why)
{
	struct http_request *request;
	int r = is_chat ? http_request_read_chat(&request, body, n, why) :
			  http_request_read_completion(&request, body, n, why);

	return r ? NULL : request;
}

static void refuse(struct http_exchange *x, enum kvd_code code, const char *message)
{
	struct http_refusal why;

	http_code_refusal(&why, code, NULL, message);
	http_code_hint(&why, x->server->models, x->peer.account);
	http_reply_refusal(x, &why);
}

static void run(struct job *job)
{
	struct reading *r = list_entry(job, struct reading, job);

	r->request = read_body(r->is_chat, r->body, r->n, &r->why);
}

static void done(struct job *job)
{
	_cleanup_(reading_freep) struct reading *r = list_entry(job, struct reading, job);

	if (!r->x)
		return;
	if (job->dropped)
		refuse(r->x, KVD_CODE_SHUTDOWN, "the daemon is stopping");
	else if (r->request)
		http_generate(r->x, steal_ptr(r->request));
	else
		http_reply_refusal(r->x, &r->why);
}

static void on_closed(struct http_exchange *x)
{
	struct reading *r = x->data;

	r->x = NULL;
	workers_drop(x->server->workers, &r->job);
}

/* 0, ACCOUNT_E_QUOTA or -ENOMEM. */
static int reading_new(struct reading **out, struct http_exchange *x, bool is_chat)
{
	_cleanup_(reading_freep) struct reading *r = calloc(1, sizeof(*r));
	int err;

	if (!r)
		return -ENOMEM;
	err = charge_init(&r->memory, x->server->accounts, x->peer.account, ACCOUNT_MEMORY, x->n_body);
	if (err)
		return err;
	r->body = malloc(x->n_body);
	if (!r->body)
		return -ENOMEM;
	memcpy(r->body, x->body, x->n_body);
	r->n = x->n_body;
	r->is_chat = is_chat;
	r->job.uid = x->peer.account;
	r->job.run = run;
	r->job.done = done;
	r->x = x;
	*out = steal_ptr(r);
	return 0;
}

static void read_later(struct http_exchange *x, bool is_chat)
{
	_cleanup_(reading_freep) struct reading *r = NULL;
	int err = reading_new(&r, x, is_chat);

	if (err) {
		refuse(x, err == ACCOUNT_E_QUOTA ? KVD_CODE_QUOTA : KVD_CODE_NO_MEMORY,
		       err == ACCOUNT_E_QUOTA ? "the prompts of this user take too much memory" : "out of memory");
		return;
	}
	if (workers_submit(x->server->workers, &r->job)) {
		refuse(x, KVD_CODE_BUSY, "the queue is full; try again later");
		return;
	}
	x->data = steal_ptr(r);
	x->closed = on_closed;
	http_body_release(x);
}

static void post(struct http_exchange *x, bool is_chat)
{
	struct http_refusal why = HTTP_REFUSAL_NULL;
	struct http_request *request;

	if (x->n_body > AT_ONCE_MAX) {
		read_later(x, is_chat);
		return;
	}
	request = read_body(is_chat, x->body, x->n_body, &why);
	if (request)
		http_generate(x, request);
	else
		http_reply_refusal(x, &why);
}

void http_post_completions(struct http_exchange *x)
{
	post(x, false);
}

void http_post_chat(struct http_exchange *x)
{
	post(x, true);
}
