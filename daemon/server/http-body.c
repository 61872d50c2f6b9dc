/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/http-body.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/server/http-code.h"
#include "daemon/server/server-internal.h"

#define AT_ONCE_MAX (128u << 10)	/* bytes: about a millisecond */

void http_body_deinit(struct http_body *body)
{
	charge_deinit(&body->memory);
	free(body->copy);
	body->copy = NULL;
}

/* A long body on its way through a worker, which has a copy: the client may go meanwhile. */
struct reading {
	struct job job;
	const struct http_body_reader *reader;
	struct http_exchange *x;	/* NULL: the client is gone */
	struct http_body body;
	size_t n;

	/* The worker's. */
	void *request;			/* NULL: refused */
	struct http_refusal why;
};

static void reading_free(struct reading *r)
{
	if (!r)
		return;
	if (r->request)
		r->reader->free(r->request);
	http_body_deinit(&r->body);
	free(r);
}
CLEANUP_DEFINE(struct reading, reading_free)

static void refuse(struct http_exchange *x, enum kvd_code code, const char *message)
{
	struct http_refusal why = HTTP_REFUSAL_NULL;

	http_code_refusal(&why, code, NULL, message);
	http_code_hint(&why, x->server->models, x->peer.account);
	http_reply_refusal(x, &why);
}

static void run(struct job *job)
{
	struct reading *r = list_entry(job, struct reading, job);

	r->request = r->reader->read(r->body.copy, r->n, &r->why);
}

static void done(struct job *job)
{
	_cleanup_(reading_freep) struct reading *r = list_entry(job, struct reading, job);

	if (!r->x)
		return;
	if (job->dropped) {
		refuse(r->x, KVD_CODE_SHUTDOWN, "the daemon is stopping");
	} else if (r->request) {
		struct http_body body = r->body;

		r->body = (struct http_body){ 0 };
		r->reader->take(r->x, steal_ptr(r->request), &body);
	} else {
		http_reply_refusal(r->x, &r->why);
	}
}

static void on_closed(struct http_exchange *x)
{
	struct reading *r = x->data;

	r->x = NULL;
	workers_drop(x->server->workers, &r->job);
}

/* 0, ACCOUNT_E_QUOTA or -ENOMEM. */
static int reading_new(struct reading **out, struct http_exchange *x, const struct http_body_reader *reader)
{
	_cleanup_(reading_freep) struct reading *r = calloc(1, sizeof(*r));
	int err;

	if (!r)
		return -ENOMEM;
	err = charge_init(&r->body.memory, x->server->accounts, x->peer.account, ACCOUNT_MEMORY, x->n_body);
	if (err)
		return err;
	r->body.copy = malloc(x->n_body);
	if (!r->body.copy)
		return -ENOMEM;
	memcpy(r->body.copy, x->body, x->n_body);
	r->n = x->n_body;
	r->reader = reader;
	r->job.uid = x->peer.account;
	r->job.run = run;
	r->job.done = done;
	r->x = x;
	*out = steal_ptr(r);
	return 0;
}

static void read_later(struct http_exchange *x, const struct http_body_reader *reader)
{
	_cleanup_(reading_freep) struct reading *r = NULL;
	int err = reading_new(&r, x, reader);

	if (err) {
		refuse(x, err == ACCOUNT_E_QUOTA ? KVD_CODE_QUOTA : KVD_CODE_NO_MEMORY,
		       err == ACCOUNT_E_QUOTA ? "the prompts of this user take too much memory" : "out of memory");
		return;
	}
	if (workers_submit(x->server->workers, &r->job)) {
		struct diag why;
		enum kvd_code code = models_no_place(x->server->models, &why);

		refuse(x, code, why.text);
		return;
	}
	x->data = steal_ptr(r);
	x->closed = on_closed;
	http_body_release(x);
}

void http_body_read(struct http_exchange *x, const struct http_body_reader *reader)
{
	struct http_refusal why = HTTP_REFUSAL_NULL;
	void *request;

	if (x->n_body > AT_ONCE_MAX) {
		read_later(x, reader);
		return;
	}
	request = reader->read(x->body, x->n_body, &why);
	if (request)
		reader->take(x, request, &(struct http_body){ 0 });
	else
		http_reply_refusal(x, &why);
}
