/* SPDX-License-Identifier: Apache-2.0 */
/* From the engine to the client: a reply in one piece, or a stream of events. */
#include "daemon/server/http-generate-private.h"

#include <event2/event.h>
#include <string.h>

#include "daemon/server/http-code.h"
#include "daemon/server/server-internal.h"

#define PENDING_MAX (64u << 10)	/* unsent bytes of a stream, then its requests wait */
#define OUT_MAX (32u << 10)	/* written at once */
#define PATIENCE 10		/* seconds until a stream begins all the same, then errors are events in it */
#define COLLECT_MIN (64u << 10)	/* bytes of an answer that are charged with what is charged anyway */

/* --- the end ------------------------------------------------------------------------------------ */

void generation_free(struct generation *g)
{
	struct engine *engine = models_engine(g->server->models);

	for (size_t i = 0; i < g->n_choices; i++) {
		struct choice *c = &g->choices[i];
		struct submission *s = c->submission;

		c->submission = NULL;
		if (s) {
			s->owner = NULL;
			submission_cancel(s);
		}
		http_writer_deinit(&c->text);
		http_logprobs_deinit(&c->logprobs);
		http_writer_deinit(&c->ids);
	}
	if (engine)
		engine_cancel_client(engine, g->key);
	if (g->sink)
		http_sink_close(g->sink);
	if (g->timer)
		event_free(g->timer);
	stats_page_unref(g->page);
	charge_deinit(&g->collected);
	http_writer_deinit(&g->prefix);
	http_writer_deinit(&g->out);
	http_request_unref(g->request);
	free(g);
}

/* The exchange ends with this; in a stream as an event. */
static void fail(struct generation *g, const struct http_refusal *why)
{
	struct http_exchange *x = g->x;
	bool begun = g->begun;

	generation_free(g);
	if (!begun) {
		http_reply_refusal(x, why);
	} else {
		struct http_error e = http_refusal_error(why);
		_cleanup_(freep) char *text = http_json_text(http_error_object(&e, why->message.text));
		const char *event = text ? text : HTTP_ERROR_NO_MEMORY;

		/* In pieces, since there may be no memory to put them together. */
		http_stream_write(x, "data: ", 6);
		http_stream_write(x, event, strlen(event));
		http_stream_write(x, "\n\n", 2);
		http_stream_end(x);
	}
}

void generation_fail(struct generation *g, enum kvd_code code, const char *param, const char *message)
{
	struct http_refusal why = HTTP_REFUSAL_NULL;

	http_code_refusal(&why, code, param, message);
	http_code_hint(&why, g->server->models, g->x->peer.account);
	fail(g, &why);
}

/* --- a stream ------------------------------------------------------------------------------------- */

static void write_out(struct generation *g)
{
	if (!g->out.n)
		return;
	http_stream_write(g->x, g->out.data, g->out.n);
	g->out.n = 0;
	g->quiet = false;
}

void generation_begin_stream(struct generation *g)
{
	if (g->begun)
		return;
	g->begun = true;
	(void)http_header(g->x, "Cache-Control", "no-cache");
	http_stream_begin(g->x, "text/event-stream");
}

/* One event with one choice in it. */
static void put_chunk(struct generation *g, const struct http_choice_text *text)
{
	http_put_text(&g->out, "data: ");
	if (!g->prefix.n)
		http_put_head(&g->prefix, &g->head);
	http_put_writer(&g->out, &g->prefix);
	http_put_choice(&g->out, &g->head, text);
	http_put_tail(&g->out, NULL, g->request->include_usage);
	http_put_text(&g->out, "\n\n");
}

/* The first chunk of a chat says who speaks; that of an echo has the prompt. */
static void put_beginning(struct generation *g, struct choice *c)
{
	if (c->role_said)
		return;
	c->role_said = true;
	if (g->head.is_chat || c->text.n)
		put_chunk(g, &(struct http_choice_text){
			.index = c->index, .is_role = true, .escaped = c->text.n ? &c->text : NULL,
		});
	http_writer_deinit(&c->text);
}

/* "while nothing comes": comments, which clients pass over, so that they and what is between see that it lives. */
void generation_tick(evutil_socket_t fd, short what, void *arg)
{
	static const char ping[] = ": ping\n\n";
	struct generation *g = arg;

	if (!g->is_open && ++g->n_ticks < PATIENCE)
		return;
	generation_begin_stream(g);
	if (g->quiet && http_stream_pending(g->x) < PENDING_MAX)
		http_stream_write(g->x, ping, sizeof(ping) - 1);
	g->quiet = true;
}

/* --- what comes from the sink --------------------------------------------------------------------- */

struct view {
	const struct sink_event *token, *prompt, *alternatives, *text, *usage, *done, *error;
};

static struct view view_of(const struct http_batch *b)
{
	struct view v = { .token = NULL };

	for (size_t i = 0; i < b->n; i++) {
		const struct sink_event *e = &b->events[i];

		switch (e->type) {
		case SINK_TOKEN:
			v.token = e;
			break;
		case SINK_PROMPT:
			v.prompt = e;
			break;
		case SINK_ALTERNATIVES:
			v.alternatives = e;
			break;
		case SINK_TEXT:
			v.text = e;
			break;
		case SINK_USAGE:
			v.usage = e;
			break;
		case SINK_DONE:
			v.done = e;
			break;
		case SINK_ERROR:
			v.error = e;
			break;
		case SINK_PROGRESS:
		case SINK_EMBEDDING:
		default:
			break;
		}
	}
	return v;
}

/*
 * A token's log-probability, where it is asked for.  Control tokens are no part of a chat's text and don't
 * show there; completions have one for every token, since programs count them.
 */
static void add_token(struct generation *g, struct choice *c, const struct view *v)
{
	const struct sink_event *e = v->token ? v->token : v->prompt;
	struct http_token t = { .wants_tops = g->request->n_logprobs > 0 };
	bool is_shown = !v->token || !v->token->token.is_control;

	if (!e || !g->request->logprobs)
		return;
	if (v->token) {
		if (g->head.is_chat && e->token.is_control)
			return;
		t.id = e->token.id;
		t.logprob = e->token.logprob;
		t.bytes = e->token.bytes;
		t.n_bytes = e->token.n_bytes;
	} else {
		if (c->skips_bos && !e->prompt.position)
			return;
		t.id = e->prompt.id;
		t.logprob = e->prompt.logprob;
		t.bytes = e->prompt.bytes;
		t.n_bytes = e->prompt.n_bytes;
	}
	if (v->alternatives) {
		t.tops = v->alternatives->alternatives.items;
		t.n_tops = v->alternatives->alternatives.n;
	}
	t.offset = http_place_token(&c->place, t.bytes, is_shown ? t.n_bytes : 0);
	http_logprobs_add(&c->logprobs, g->head.is_chat, &t);
}

static void add_id(const struct generation *g, struct choice *c, const struct view *v)
{
	if (!v->token || !g->request->token_ids)
		return;
	if (c->ids.n)
		http_put_text(&c->ids, ",");
	http_put_u64(&c->ids, (uint64_t)v->token->token.id);
}

static void stream(struct generation *g, struct choice *c, const struct view *v)
{
	put_beginning(g, c);
	if (v->text || c->logprobs.begun || c->ids.n)
		put_chunk(g, &(struct http_choice_text){
			.index = c->index,
			.bytes = v->text ? v->text->text.bytes : NULL,
			.n_bytes = v->text ? v->text->text.n_bytes : 0,
			.logprobs = c->logprobs.begun ? &c->logprobs : NULL,
			.ids = c->ids.n ? &c->ids : NULL,
		});
	http_logprobs_clear(&c->logprobs);
	c->ids.n = 0;
	if (v->done)
		put_chunk(g, &(struct http_choice_text){ .index = c->index, .is_last = true, .finish = c->finish });
}

/* Bytes that are kept for a reply. */
static size_t collected_bytes(const struct generation *g)
{
	size_t n = 0;

	for (size_t i = 0; i < g->n_choices; i++)
		n += g->choices[i].text.capacity + g->choices[i].ids.capacity +
		     http_logprobs_size(&g->choices[i].logprobs);
	return n;
}

/* They are charged in large steps.  False: they are too many for the account. */
static bool charge_collected(struct generation *g)
{
	/* Twice, since the reply is put together out of them.  They grow to powers of two. */
	uint64_t n = 2 * (uint64_t)collected_bytes(g);

	if (n <= COLLECT_MIN || n <= g->collected.amount)
		return true;
	charge_deinit(&g->collected);
	return !charge_init(&g->collected, g->server->accounts, g->x->peer.account, ACCOUNT_MEMORY, n);
}

/* The reply in one piece. */
static void reply(struct generation *g)
{
	struct http_exchange *x = g->x;
	struct http_writer w = { 0 };

	http_put_head(&w, &g->head);
	for (size_t i = 0; i < g->n_choices; i++) {
		struct choice *c = &g->choices[i];

		if (i)
			http_put_text(&w, ",");
		http_put_choice(&w, &g->head, &(struct http_choice_text){
			.index = c->index, .escaped = &c->text, .finish = c->finish,
			.logprobs = g->request->logprobs ? &c->logprobs : NULL,
			.ids = g->request->token_ids ? &c->ids : NULL,
		});
		w.failed = w.failed || c->text.failed;
		http_writer_deinit(&c->text);
		http_logprobs_deinit(&c->logprobs);
		http_writer_deinit(&c->ids);
	}
	http_put_tail(&w, &g->usage, false);
	if (w.failed) {
		generation_fail(g, KVD_CODE_NO_MEMORY, NULL, "out of memory for the answer");
	} else {
		generation_free(g);
		http_reply(x, 200, "application/json", w.data, w.n);
	}
	http_writer_deinit(&w);
}

static void end_stream(struct generation *g)
{
	struct http_exchange *x = g->x;

	if (g->request->include_usage) {
		http_put_text(&g->out, "data: ");
		http_put_head(&g->out, &g->head);
		http_put_tail(&g->out, &g->usage, false);
		http_put_text(&g->out, "\n\n");
	}
	http_put_text(&g->out, "data: [DONE]\n\n");
	if (g->out.failed) {
		generation_fail(g, KVD_CODE_NO_MEMORY, NULL, "out of memory for the answer");
		return;
	}
	write_out(g);
	generation_free(g);
	http_stream_end(x);
}

/* False: the exchange has ended. */
static bool take(struct generation *g, const struct http_batch *b)
{
	struct choice *c = &g->choices[b->request];
	struct view v = view_of(b);

	if (v.error) {
		generation_fail(g, (enum kvd_code)v.error->error.code, NULL, v.error->error.text);
		return false;
	}
	if (v.usage)
		http_usage_add(&g->usage, v.usage, c->is_first);
	if (v.done && v.done->done.reason == SINK_FINISH_CANCELLED) {
		generation_fail(g, KVD_CODE_CANCELLED, NULL, "the request was cancelled");
		return false;
	}
	if (v.done)
		c->finish = (enum kvd_finish)v.done->done.reason;
	add_token(g, c, &v);
	add_id(g, c, &v);
	if (g->request->stream)
		stream(g, c, &v);
	else if (v.text)
		http_put_escaped(&c->text, v.text->text.bytes, v.text->text.n_bytes);
	if (v.done && !c->ended) {
		c->ended = true;
		g->n_ended++;
	}
	if (g->out.failed) {
		generation_fail(g, KVD_CODE_NO_MEMORY, NULL, "out of memory for the answer");
		return false;
	}
	if (!g->request->stream && !charge_collected(g)) {
		generation_fail(g, KVD_CODE_QUOTA, NULL, "the answers of this user take too much memory");
		return false;
	}
	if (g->n_ended < g->n_choices)
		return true;
	if (g->request->stream)
		end_stream(g);
	else
		reply(g);
	return false;
}

void generation_drain(struct generation *g)
{
	struct http_batch b;
	bool any = false;

	if (!g->is_open)
		return;
	while (!g->begun || http_stream_pending(g->x) < PENDING_MAX) {
		if (!http_sink_next(g->sink, &b))
			break;
		any = true;
		if (!take(g, &b))
			return;
		if (g->out.n >= OUT_MAX)
			write_out(g);
	}
	if (g->begun)
		write_out(g);
	if (http_sink_failed(g->sink)) {
		generation_fail(g, KVD_CODE_NO_MEMORY, NULL, "out of memory for the answer");
		return;
	}
	if (any && http_sink_room(g->sink))
		engine_room(models_engine(g->server->models), g->key);
}

