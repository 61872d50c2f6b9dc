/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/mailbox.h"

#include <errno.h>
#include <event2/event.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ipc/base/fd.h"

struct mailbox {
	pthread_mutex_t lock;
	struct list mails;
	int fd;			/* an eventfd that never leaves the process */
	struct event *event;
};

/* What is there now; false if nothing was. */
static bool deliver_batch(struct mailbox *m)
{
	struct list batch;
	bool any;
	uint64_t n;

	list_init(&batch);
	pthread_mutex_lock(&m->lock);
	if (read(m->fd, &n, sizeof(n)) < 0)
		n = 0;
	while (!list_empty(&m->mails)) {
		struct list *e = m->mails.next;

		list_unlink(e);
		list_push_back(&batch, e);
	}
	pthread_mutex_unlock(&m->lock);
	any = !list_empty(&batch);
	while (!list_empty(&batch)) {
		struct mail *mail = list_entry(batch.next, struct mail, link);

		list_unlink(&mail->link);
		mail->deliver(mail);
	}
	return any;
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
	deliver_batch(arg);
}

int mailbox_new(struct mailbox **out, struct event_base *base)
{
	_cleanup_(mailbox_freep) struct mailbox *m = calloc(1, sizeof(*m));

	if (!m)
		return -ENOMEM;
	pthread_mutex_init(&m->lock, NULL);
	list_init(&m->mails);
	m->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (m->fd < 0)
		return -errno;
	m->event = event_new(base, m->fd, EV_READ | EV_PERSIST, on_readable, m);
	if (!m->event || event_add(m->event, NULL) < 0)
		return -ENOMEM;
	*out = steal_ptr(m);
	return 0;
}

void mailbox_free(struct mailbox *m)
{
	if (!m)
		return;
	if (m->event)
		event_free(m->event);
	fd_closep(&m->fd);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

void mailbox_post(struct mailbox *m, struct mail *mail)
{
	uint64_t one = 1;
	bool wake;

	pthread_mutex_lock(&m->lock);
	wake = list_empty(&m->mails);
	list_push_back(&m->mails, &mail->link);
	/* Under the lock: the mailbox may be freed once the mail is delivered.
	 * A full counter (impossible here) would be readable all the same. */
	while (wake && write(m->fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
	pthread_mutex_unlock(&m->lock);
}

void mailbox_deliver(struct mailbox *m)
{
	while (deliver_batch(m))
		;
}
