/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "tests/bench/private.h"

#define REQUESTS_MAX 64u
#define SILENCE_MS 600000	/* a prompt of a large model takes its time */

static int failed(const struct request *q, const char *what)
{
	complain("%s: %s", what, q->client ? kvd_client_error(q->client) : "no connection");
	return -EIO;
}

int request_open(struct request *q, const struct private *p)
{
	struct kvd_connect_options options = { .socket = p->socket, .name = "kvd-bench" };
	char why[256] = "";

	*q = (struct request){ 0 };
	if (!kvd_connect(&q->client, &options, why, sizeof(why)))
		return 0;
	complain("can't connect to the daemon: %s", why);
	return -EIO;
}

void request_close(struct request *q)
{
	kvd_close(q->client);
	q->client = NULL;
}

int request_submit(struct request *q, const int32_t *ids, uint32_t n, uint32_t max_tokens)
{
	struct kvd_part part = { .ids = ids, .n = n };
	struct kvd_params params;
	uint64_t id;

	kvd_params_init(&params);
	params.parts = &part;
	params.n_parts = 1;
	params.no_bos = 1;
	params.max_tokens = max_tokens;
	params.temperature = 0;
	params.ignore_eos = 1;
	q->first = q->last = 0;
	q->n_tokens = 0;
	q->done = false;
	q->submitted = clock_ns();
	return kvd_submit(q->client, &params, &id) ? failed(q, "can't submit") : 0;
}

/* Takes all that is there. */
static int take(struct request *q)
{
	const struct kvd_event *e;
	int r;

	while (!(r = kvd_next(q->client, 0, &e))) {
		switch (e->type) {
		case KVD_EVENT_TOKEN:
			q->last = clock_ns();
			if (!q->n_tokens++)
				q->first = q->last;
			break;
		case KVD_EVENT_USAGE:
			q->prompt_tokens = e->prompt_tokens;
			q->cached_tokens = e->cached_tokens;
			break;
		case KVD_EVENT_DONE:
			q->done = true;
			break;
		case KVD_EVENT_ERROR:
			complain("the daemon refused a request: %.*s", (int)MIN(e->n_bytes, (size_t)300),
				 (const char *)e->bytes);
			return -EIO;
		default:
			break;
		}
	}
	return r == KVD_E_TIMEOUT ? 0 : failed(q, "no answer");
}

int requests_wait(struct request *q, uint32_t n)
{
	struct pollfd fds[REQUESTS_MAX];
	uint32_t left;

	if (n > REQUESTS_MAX)
		return -EINVAL;
	for (;;) {
		left = 0;
		for (uint32_t i = 0; i < n; i++) {
			int r = q[i].done ? 0 : take(&q[i]);

			if (r)
				return r;
			left += !q[i].done;
			fds[i] = (struct pollfd){ .fd = q[i].done ? -1 : kvd_fd(q[i].client),
						  .events = POLLIN };
		}
		if (!left)
			return 0;
		if (poll(fds, n, SILENCE_MS) == 0)
			return failed(&q[0], "nothing comes any more");
	}
}

void made_up_ids(uint32_t seed, uint32_t n_vocab, int32_t *ids, uint32_t n)
{
	uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;

	/* xorshift64* (Vigna 2016); without the first ids, which are control tokens with most vocabularies */
	for (uint32_t i = 0; i < n; i++) {
		uint32_t low = n_vocab / 4;

		x ^= x >> 12;
		x ^= x << 25;
		x ^= x >> 27;
		ids[i] = (int32_t)(low +
				   (uint32_t)((x * UINT64_C(0x2545f4914f6cdd1d)) >> 33) % (n_vocab - low));
	}
}

int private_model(const struct private *p, uint32_t *n_vocab, uint32_t *n_ctx)
{
	struct request q;
	struct kvd_model *models = NULL;
	size_t n = 0;
	int r = request_open(&q, p);

	if (r)
		return r;
	if (kvd_models(q.client, &models, &n) || !n)
		r = failed(&q, "can't list the models");
	if (!r) {
		*n_vocab = models[0].n_vocab;
		*n_ctx = models[0].n_ctx;
	}
	free(models);
	request_close(&q);
	return r;
}
