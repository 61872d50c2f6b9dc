/* SPDX-License-Identifier: Apache-2.0 */
/*
 * views.h - asks the engine what runs, on behalf of many.
 *
 * One listing is under way at a time; whoever asks meanwhile gets the next one, all
 * of them the same.  So however many ask, the engine makes one list per step.
 *
 * Thread: the loop thread.
 */
#ifndef KVD_SERVER_VIEWS_H
#define KVD_SERVER_VIEWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/engine/engine.h"
#include "daemon/server/mailbox.h"
#include "ipc/base/list.h"

struct server;

struct views_query {
	struct list link;
	struct server *server;
	uint64_t session, message;	/* who asked, and the id to answer with; 0: nobody */
	void (*answer)(struct views_query *q);
	/* During answer(): */
	const struct engine_request_view *views;	/* [n] */
	size_t n;
	bool failed;			/* there is no listing */
};

struct views_feed {
	struct server *server;
	struct list waiting, asked;	/* struct views_query: for the next listing, for this one */
	bool under_way;
	struct mail mail;
	struct engine_request_view *views;	/* [n] the engine's, until its mail is delivered */
	size_t n;
	bool failed;
};

void views_feed_init(struct views_feed *f, struct server *server);
/* The engine is gone and its mail delivered. */
void views_feed_deinit(struct views_feed *f);

/*
 * answer() is called later, or at once with no views while there is no engine;
 * not at all if the server ends first.  0 or -ENOMEM.
 */
int views_ask(struct views_feed *f, uint64_t session, uint64_t message,
	      void (*answer)(struct views_query *q));

#endif
