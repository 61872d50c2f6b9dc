/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/views.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/server/server-internal.h"

/* On the engine's thread. */
static void on_views(void *arg, const struct engine_request_view *views, size_t n)
{
	struct views_feed *f = arg;

	if (n) {
		f->views = malloc(n * sizeof(*views));
		f->failed = !f->views;
	}
	if (f->views) {
		memcpy(f->views, views, n * sizeof(*views));
		f->n = n;
	}
	mailbox_post(f->server->mailbox, &f->mail);
}

static void answer_all(struct views_feed *f)
{
	while (!list_empty(&f->asked)) {
		struct views_query *q = list_entry(f->asked.next, struct views_query, link);

		list_unlink(&q->link);
		q->views = f->views;
		q->n = f->n;
		q->failed = f->failed;
		q->answer(q);
		free(q);
	}
	free(f->views);
	f->views = NULL;
	f->n = 0;
	f->failed = false;
}

/* Asks for everyone who waits. */
static void ask(struct views_feed *f)
{
	struct engine *engine = models_engine(f->server->models);

	while (!list_empty(&f->waiting)) {
		struct list *e = f->waiting.next;

		list_unlink(e);
		list_push_back(&f->asked, e);
	}
	if (engine && engine_ps(engine, on_views, f) == 0) {
		f->under_way = true;
		return;
	}
	f->failed = engine != NULL;
	answer_all(f);
}

static void deliver(struct mail *mail)
{
	struct views_feed *f = list_entry(mail, struct views_feed, mail);

	f->under_way = false;
	answer_all(f);
	if (!list_empty(&f->waiting))
		ask(f);
}

void views_feed_init(struct views_feed *f, struct server *server)
{
	*f = (struct views_feed){ .server = server, .mail.deliver = deliver };
	list_init(&f->waiting);
	list_init(&f->asked);
}

static void drop(struct list *queries)
{
	while (!list_empty(queries)) {
		struct views_query *q = list_entry(queries->next, struct views_query, link);

		list_unlink(&q->link);
		free(q);
	}
}

void views_feed_deinit(struct views_feed *f)
{
	drop(&f->waiting);
	drop(&f->asked);
	free(f->views);
	f->views = NULL;
}

int views_ask(struct views_feed *f, uint64_t session, uint64_t message, void (*answer)(struct views_query *q))
{
	struct views_query *q = calloc(1, sizeof(*q));

	if (!q)
		return -ENOMEM;
	q->server = f->server;
	q->session = session;
	q->message = message;
	q->answer = answer;
	list_push_back(&f->waiting, &q->link);
	if (!f->under_way)
		ask(f);
	return 0;
}
