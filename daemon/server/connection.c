/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/connection.h"

#include <errno.h>
#include <event2/event.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/fdpass.h"
#include "ipc/protocol.h"

struct packet {
	struct list link;
	size_t n;
	uint8_t data[];
};

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
	struct connection *c = arg;

	for (unsigned i = 0; i < CONNECTION_BATCH && !c->dead && c->n_queued == 0; i++) {
		int received[KVD_LOAD_FDS];
		size_t n, n_fds = 0;
		int r = fdpass_recv(c->fd, c->buffer, KVD_MESSAGE_MAX, &n, received, KVD_LOAD_FDS, &n_fds,
				    FDPASS_DONTWAIT);

		if (r == 0)
			c->ops->message(c, c->buffer, n, n_fds ? received[0] : -1);
		else if (r == FDPASS_E_TRUNCATED || r == FDPASS_E_FDS)
			c->ops->discarded(c, r);
		else if (r == -EAGAIN || r == -EINTR)
			break;
		else
			c->dead = true;
	}
	if (c->dead)
		c->ops->closed(c);
}

/* Sends what is queued; true when nothing is left. */
static bool flush(struct connection *c)
{
	while (!list_empty(&c->queue)) {
		struct packet *p = list_entry(c->queue.next, struct packet, link);
		int r = fdpass_send(c->fd, p->data, p->n, NULL, 0, FDPASS_DONTWAIT);

		if (r == -EAGAIN)
			return false;
		if (r) {
			c->dead = true;
			return false;
		}
		list_unlink(&p->link);
		free(p);
		c->n_queued--;
	}
	return true;
}

static void on_writable(evutil_socket_t fd, short what, void *arg)
{
	struct connection *c = arg;

	if (!c->dead && flush(c)) {
		event_del(c->writable);
		if (event_add(c->readable, NULL) < 0)
			c->dead = true;
	}
	if (c->dead)
		c->ops->closed(c);
}

int connection_init(struct connection *c, struct event_base *base, int fd, uint8_t *buffer,
		    const struct connection_ops *ops)
{
	*c = (struct connection){ .ops = ops, .fd = -1, .buffer = buffer };
	list_init(&c->queue);
	c->readable = event_new(base, fd, EV_READ | EV_PERSIST, on_readable, c);
	c->writable = event_new(base, fd, EV_WRITE | EV_PERSIST, on_writable, c);
	if (!c->readable || !c->writable || event_add(c->readable, NULL) < 0) {
		connection_deinit(c);
		return -ENOMEM;
	}
	c->fd = fd;
	return 0;
}

void connection_deinit(struct connection *c)
{
	if (!c->ops)
		return;
	if (c->readable)
		event_free(c->readable);
	if (c->writable)
		event_free(c->writable);
	while (!list_empty(&c->queue)) {
		struct packet *p = list_entry(c->queue.next, struct packet, link);

		list_unlink(&p->link);
		free(p);
	}
	if (c->fd >= 0)
		fdpass_close(c->fd);
	*c = (struct connection){ .fd = -1 };
}

void connection_kill(struct connection *c)
{
	if (c->dead)
		return;
	c->dead = true;
	event_active(c->writable, EV_WRITE, 0);
}

static int enqueue(struct connection *c, const void *data, size_t n)
{
	struct packet *p;

	if (c->n_queued >= CONNECTION_QUEUE_MAX)
		return -ENOBUFS;
	p = malloc(sizeof(*p) + n);
	if (!p)
		return -ENOMEM;
	p->n = n;
	memcpy(p->data, data, n);
	if (c->n_queued == 0) {
		event_del(c->readable);
		if (event_add(c->writable, NULL) < 0) {
			free(p);
			return -ENOMEM;
		}
	}
	list_push_back(&c->queue, &p->link);
	c->n_queued++;
	return 0;
}

void connection_send(struct connection *c, const void *data, size_t n)
{
	int r = -EAGAIN;

	if (c->dead)
		return;
	if (c->n_queued == 0)
		r = fdpass_send(c->fd, data, n, NULL, 0, FDPASS_DONTWAIT);
	if (r == -EAGAIN)
		r = enqueue(c, data, n);
	if (r)
		connection_kill(c);
}

void connection_hint(struct connection *c, const void *data, size_t n)
{
	if (!c->dead && c->n_queued == 0)
		(void)fdpass_send(c->fd, data, n, NULL, 0, FDPASS_DONTWAIT);
}

int connection_send_fds(struct connection *c, const void *data, size_t n, const int *fds, size_t n_fds)
{
	return c->dead ? -EPIPE : fdpass_send(c->fd, data, n, fds, n_fds, FDPASS_DONTWAIT);
}
