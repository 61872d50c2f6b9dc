/* SPDX-License-Identifier: Apache-2.0 */
/* Messages: sending, and handing what comes to the thread it concerns. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/lib/client.h"
#include "ipc/base/clock.h"
#include "ipc/fdpass.h"

/* Milliseconds until deadline_ns for poll(), rounded up; -1 for never. */
static int poll_timeout(uint64_t deadline_ns)
{
	if (deadline_ns == UINT64_MAX)
		return -1;
	uint64_t now = clock_ns();
	if (now >= deadline_ns)
		return 0;
	uint64_t ms = (deadline_ns - now + 999999) / 1000000;
	return ms > INT32_MAX ? INT32_MAX : (int)ms;
}

int client_send(struct kvd_client *c, const struct codec_buf *buf, int timeout_ms)
{
	return client_send_fd(c, buf, -1, timeout_ms);
}

int client_send_fd(struct kvd_client *c, const struct codec_buf *buf, int fd, int timeout_ms)
{
	uint64_t deadline = clock_ns() + (uint64_t)timeout_ms * 1000000;

	for (;;) {
		int r = fdpass_send(c->sock, buf->data, buf->n, &fd, fd >= 0, FDPASS_DONTWAIT);
		if (r == -EPIPE || r == -ECONNRESET || r == -ENOTCONN)
			return KVD_E_CLOSED;
		if (r == -EINTR)
			continue;
		if (r != -EAGAIN && r != -ENOBUFS)
			return r;
		int timeout = poll_timeout(deadline);
		if (!timeout)
			return KVD_E_TIMEOUT;
		struct pollfd p = { .fd = c->sock, .events = POLLOUT };
		if (poll(&p, 1, timeout) < 0 && errno != EINTR)
			return -errno;
	}
}

void client_poke(struct kvd_client *c)
{
	if (c->poked)
		return;
	c->poked = true;
	eventfd_write(c->poke, 1);	/* 0 before: can't block */
}

void client_unpoke(struct kvd_client *c)
{
	eventfd_t value;

	if (!c->poked)
		return;
	c->poked = false;
	eventfd_read(c->poke, &value);
}

static void break_protocol(struct kvd_client *c, const char *what)
{
	client_break(c, KVD_E_PROTOCOL, "the daemon broke the protocol: %s", what);
}

static struct call *find_call(struct kvd_client *c, uint64_t id)
{
	list_for_each(l, &c->calls) {
		struct call *call = list_entry(l, struct call, link);
		if (call->id == id && !call->answered)
			return call;
	}
	return NULL;
}

/* The answer of a question, kept for the thread that asked.  Takes *m over. */
static void answer_call(struct call *call, struct msg **m)
{
	if (call->abandoned) {
		call_free(call);
		return;
	}
	call->reply = steal_ptr(*m);
	call->answered = true;
}

static void refuse_request(struct kvd_client *c, struct request *r, const struct msg_error *e)
{
	r->code = e->code;
	snprintf(r->field, sizeof(r->field), "%s", e->field);
	snprintf(r->text, sizeof(r->text), "%s", e->message);
	arena_free(&r->prompt);
	list_unlink(&r->link);
	list_push_back(&c->refused, &r->link);
}

/* Returns whether it is news for kvd_next(). */
static bool handle_error(struct kvd_client *c, struct msg **m)
{
	struct call *call = find_call(c, (*m)->error.id);
	struct request *request = client_find_request(c, (*m)->error.id);

	if (call)
		answer_call(call, m);
	else if (request)
		refuse_request(c, request, &(*m)->error);
	/* else: of a question that was abandoned, or of a cancel */
	return !call && request;
}

static void handle_reply(struct kvd_client *c, struct msg **m, uint64_t id)
{
	struct call *call = find_call(c, id);

	if (!call)
		return;
	if (call->expected != (*m)->id) {
		break_protocol(c, "an answer of another kind than the question");
		return;
	}
	answer_call(call, m);
}

static void handle_loading(struct kvd_client *c, const struct msg_loading *m)
{
	struct call *call = find_call(c, m->id);

	if (!call || call->expected != KVD_MSG_LOADED)
		return;
	call->percent = m->percent;
	call->heard_ns = clock_ns();
}

static void handle_progress(struct kvd_client *c, const struct msg_cache_progress *m)
{
	struct call *call = find_call(c, m->id);

	if (!call || (call->expected != KVD_MSG_CACHE_SHARED && call->expected != KVD_MSG_CACHE_VERIFIED))
		return;
	call->done = m->done;
	call->total = m->total;
	call->heard_ns = clock_ns();
}

/* Returns whether it is news for kvd_next(). */
static bool handle_message(struct kvd_client *c, struct msg **m)
{
	switch ((*m)->id) {
	case KVD_MSG_WAKE:
		return true;
	case KVD_MSG_ERROR:
		return handle_error(c, m);
	case KVD_MSG_TOKENIZED:
		handle_reply(c, m, (*m)->tokenized.id);
		return false;
	case KVD_MSG_STATUS_REPLY:
		handle_reply(c, m, (*m)->status_reply.id);
		return false;
	case KVD_MSG_MODELS_REPLY:
		handle_reply(c, m, (*m)->models_reply.id);
		return false;
	case KVD_MSG_PS_REPLY:
		handle_reply(c, m, (*m)->ps_reply.id);
		return false;
	case KVD_MSG_LOADED:
		handle_reply(c, m, (*m)->loaded.id);
		return false;
	case KVD_MSG_UNLOADED:
		handle_reply(c, m, (*m)->unloaded.id);
		return false;
	case KVD_MSG_CACHE_LS_REPLY:
		handle_reply(c, m, (*m)->cache_ls_reply.id);
		return false;
	case KVD_MSG_CACHE_SHOW_REPLY:
		handle_reply(c, m, (*m)->cache_show_reply.id);
		return false;
	case KVD_MSG_CACHE_DONE:
		handle_reply(c, m, (*m)->cache_done.id);
		return false;
	case KVD_MSG_CACHE_SHARED:
		handle_reply(c, m, (*m)->cache_shared.id);
		return false;
	case KVD_MSG_CACHE_VERIFIED:
		handle_reply(c, m, (*m)->cache_verified.id);
		return false;
	case KVD_MSG_CACHE_PROGRESS:
		handle_progress(c, &(*m)->cache_progress);
		return false;
	case KVD_MSG_LOADING:
		handle_loading(c, &(*m)->loading);
		return false;
	default:
		break_protocol(c, "a message that it must not send");
		return true;
	}
}

int client_recv_datagram(struct kvd_client *c, size_t *n, int *fds, size_t max_fds, size_t *n_fds)
{
	bool was_reset = false;

	for (;;) {
		int r = fdpass_recv(c->sock, c->datagram, KVD_MESSAGE_MAX, n, fds, max_fds, n_fds,
				    FDPASS_DONTWAIT);
		if (r == -EINTR || (r == -ECONNRESET && !was_reset))
			was_reset = r == -ECONNRESET;
		else
			return r == -ECONNRESET ? FDPASS_E_EOF : r;
	}
}

bool client_receive(struct kvd_client *c, bool is_next)
{
	_cleanup_(msg_freep) struct msg *m = NULL;
	struct codec_error error;
	size_t n = 0;
	int r;

	if (c->broken)
		return false;
	r = client_recv_datagram(c, &n, NULL, 0, NULL);
	if (r == -EAGAIN)
		return false;
	if (r == FDPASS_E_EOF || r < 0) {
		client_break(c, KVD_E_CLOSED, "the daemon is gone%s%s", r < 0 ? ": " : "",
					r < 0 ? strerror(-r) : "");
	} else if (r) {
		break_protocol(c, r == FDPASS_E_FDS ? "descriptors that nobody asked for" :
			       "a message too large");
	} else {
		r = codec_decode(&m, c->datagram, n, &error);
		if (r == CODEC_E_INVALID)
			break_protocol(c, error.text);
		else if (r)	/* no memory: the message is lost, so what waits for it would wait for ever */
			client_break(c, KVD_E_CLOSED, "out of memory");
	}
	bool news = c->broken || (m && handle_message(c, &m)) || c->broken;
	if (news && !is_next)
		client_poke(c);
	return true;
}

static int wait_on_cond(struct kvd_client *c, uint64_t deadline_ns)
{
	struct timespec ts = { .tv_sec = (time_t)(deadline_ns / 1000000000u),
			       .tv_nsec = (long)(deadline_ns % 1000000000u) };
	int r = deadline_ns == UINT64_MAX ? pthread_cond_wait(&c->cond, &c->lock) :
		pthread_cond_timedwait(&c->cond, &c->lock, &ts);

	return r == ETIMEDOUT ? -ETIMEDOUT : 0;
}

/* Somebody else may read the socket now. */
static void hand_over(struct kvd_client *c)
{
	c->reading = false;
	pthread_cond_broadcast(&c->cond);
	if (c->next_sleeping)
		client_poke(c);
}

int client_wait(struct kvd_client *c, uint64_t deadline_ns, bool is_next)
{
	bool reads = !c->reading;
	struct pollfd p[2] = {
		{ .fd = reads ? c->sock : -1, .events = POLLIN },
		{ .fd = is_next ? c->poke : -1, .events = POLLIN },
	};

	if (!reads && !is_next)
		return wait_on_cond(c, deadline_ns);
	if (reads)
		c->reading = true;
	else
		c->next_sleeping = true;
	if (is_next && c->room_owed && reads)
		p[0].events |= POLLOUT;
	pthread_mutex_unlock(&c->lock);
	int n = poll(p, 2, poll_timeout(deadline_ns));
	int err = n < 0 ? errno : 0;
	pthread_mutex_lock(&c->lock);
	if (is_next)
		c->next_sleeping = false;
	if (p[0].revents & (POLLIN | POLLHUP | POLLERR) && n > 0)
		client_receive(c, is_next);
	if (reads)
		hand_over(c);
	if (err == EINTR)
		return is_next ? -EINTR : 0;
	if (err)
		return -err;
	return n ? 0 : -ETIMEDOUT;
}
