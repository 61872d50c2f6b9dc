/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that take as long as they take, and may be given up. */
#include <errno.h>

#include "client/lib/client.h"
#include "ipc/base/clock.h"

#define SLICE_NS 100000000u	/* between two looks at whether to stop */

/* Also of what waits its turn the daemon tells. */
static bool is_silent(const struct call *call)
{
	return clock_ns() - call->heard_ns > (uint64_t)CALL_TIMEOUT_MS * 1000000;
}

static bool is_given_up(struct kvd_client *c, struct call *call, call_stop_fn wants_stop, void *arg)
{
	struct call seen = { .percent = call->percent, .done = call->done, .total = call->total };
	bool stop;

	pthread_mutex_unlock(&c->lock);
	stop = wants_stop(arg, &seen);
	pthread_mutex_lock(&c->lock);
	return stop;
}

/* Tells the daemon, which answers soon: until then it is at work. */
static int give_up(struct kvd_client *c, struct call *call)
{
	_cleanup_(codec_buf_deinit) struct codec_buf buf = CODEC_BUF_NULL;
	int r = codec_encode_cancel(&buf, &(struct msg_cancel){ .id = call->id });

	if (r)
		return r;
	pthread_mutex_unlock(&c->lock);
	r = client_send(c, &buf, CALL_TIMEOUT_MS);
	pthread_mutex_lock(&c->lock);
	if (!r)
		r = call_await(c, call, clock_ns() + (uint64_t)CALL_TIMEOUT_MS * 1000000);
	return r ? -ECANCELED : 0;
}

int call_await_long(struct kvd_client *c, struct call *call, call_stop_fn wants_stop, void *arg)
{
	call->heard_ns = clock_ns();
	for (;;) {
		int r = call_await(c, call, clock_ns() + SLICE_NS);
		if (r != -ETIMEDOUT)
			return r;
		if (is_silent(call))
			return client_fail(c, KVD_E_TIMEOUT, "the daemon does not answer");
		if (is_given_up(c, call, wants_stop, arg))
			return give_up(c, call);
	}
}

int call_long_result(struct kvd_client *c, const struct call *call)
{
	if (call->reply->id != KVD_MSG_ERROR)
		return 0;
	call_refused(c, &call->reply->error);
	return c->code == KVD_CODE_CANCELLED ? -ECANCELED : KVD_E_REFUSED;
}
