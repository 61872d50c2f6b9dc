/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mailbox.h - how other threads reach the loop thread.
 *
 * A mail is embedded in what it is about and posted by any thread; its
 * function runs on the loop thread, in the order of posting.  Posting never
 * blocks, allocates or fails.
 */
#ifndef KVD_SERVER_MAILBOX_H
#define KVD_SERVER_MAILBOX_H

#include <stdbool.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/list.h"

struct event_base;
struct mailbox;

struct mail {
	struct list link;
	void (*deliver)(struct mail *mail);	/* may free the mail */
};

int mailbox_new(struct mailbox **out, struct event_base *base);
/* Everything posted has been delivered. */
void mailbox_free(struct mailbox *m);
CLEANUP_DEFINE(struct mailbox, mailbox_free)

/* Any thread. */
void mailbox_post(struct mailbox *m, struct mail *mail);
/* Loop thread: delivers all that is there, and what that posts. */
void mailbox_deliver(struct mailbox *m);

#endif
