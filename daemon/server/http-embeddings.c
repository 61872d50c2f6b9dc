/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POST /v1/embeddings: a vector for each of some inputs.
 *
 * Each input is a request of the engine's, a few at a time, so that many of them are neither over the
 * account's limit of requests nor a heap in the queue.  A vector becomes text as soon as it is there: the loop
 * thread has little to do at once, however many there are.
 *
 * The exchange may end while workers still have some of its prompts: what they look at is counted.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/server/http-body.h"
#include "daemon/server/http-code.h"
#include "daemon/server/http-fields.h"
#include "daemon/server/http-prompts.h"
#include "daemon/server/http-request.h"
#include "daemon/server/http-sink.h"
#include "daemon/server/http-vector.h"
#include "daemon/server/http-writer.h"
#include "daemon/server/server-internal.h"
#include "daemon/server/submission.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

#define INPUTS_MAX 256u
#define AT_ONCE 8u		/* inputs on their way to the engine or in it */
#define COPIES 3u		/* of a vector's text, until the reply is sent */

struct input {
	struct http_json prompt;	/* as it stands in the body */
	bool begun;			/* it is under way, or done */
	struct submission *submission;	/* until the engine has it */
	struct http_writer text;	/* its vector, once it is there */
	struct charge memory;		/* of it */
};

struct body {
	char model[KVD_MODEL_NAME_MAX + 1], cache_key[KVD_CACHE_KEY_MAX + 1], format[16], pooling[16];
	struct http_json input;
	bool has_input, has_dimensions;
	uint32_t dimensions;
	double timeout_s;		/* 0: none */
};

struct embeddings {
	unsigned refs;			/* the exchange's, and one for each submission that may still look at it */
	struct http_exchange *x;	/* NULL: it has ended */
	struct server *server;
	struct http_sink *sink;
	uint64_t client;		/* the engine's */
	struct body body;
	struct http_body bytes;		/* which body and prompts refer to; or as long as the exchange */
	struct http_prompts prompts;
	struct namespace_choice namespace;
	uint64_t deadline_ns;
	uint32_t n_embd;		/* 0: not known yet */
	size_t n_under_way, n_done;
	uint64_t prompt_tokens, cached_tokens;
	struct input inputs[];		/* [prompts.n] */
};

#define FIELD(name) offsetof(struct body, name)

static const struct http_field fields[] = {
	{ "model", HTTP_FIELD_STRING, 0, KVD_MODEL_NAME_MAX, FIELD(model) },
	{ "input", HTTP_FIELD_JSON, .offset = FIELD(input), .has = FIELD(has_input) },
	{ "encoding_format", HTTP_FIELD_STRING, 1, 15, FIELD(format) },
	{ "dimensions", HTTP_FIELD_U32, 1, INT32_MAX, FIELD(dimensions), FIELD(has_dimensions) },
	{ "pooling", HTTP_FIELD_STRING, 1, 15, FIELD(pooling) },
	{ "prompt_cache_key", HTTP_FIELD_STRING, 1, KVD_CACHE_KEY_MAX, FIELD(cache_key) },
	{ "timeout", HTTP_FIELD_DOUBLE, 0.001, 86400, FIELD(timeout_s) },
	{ "user", HTTP_FIELD_IGNORED, .harmless = http_is_label },
};

/* --- the end ------------------------------------------------------------------------------------ */

static void unref(struct embeddings *e)
{
	if (--e->refs)
		return;
	for (size_t i = 0; i < e->prompts.n; i++) {
		http_writer_deinit(&e->inputs[i].text);
		charge_deinit(&e->inputs[i].memory);
	}
	http_body_deinit(&e->bytes);
	free(e);
}

/* Cancels what is under way, wherever it is; whoever still looks at e has a reference. */
static void finish(struct embeddings *e)
{
	struct engine *engine = models_engine(e->server->models);

	e->x = NULL;
	/* on_ended() may run inside. */
	for (size_t i = 0; i < e->prompts.n; i++)
		if (e->inputs[i].submission)
			submission_cancel(e->inputs[i].submission);
	if (engine)
		engine_cancel_client(engine, e->client);
	if (e->sink)
		http_sink_close(e->sink);
	unref(e);
}

static void on_closed(struct http_exchange *x)
{
	finish(x->data);
}

static void fail(struct embeddings *e, const struct http_refusal *why)
{
	struct http_exchange *x = e->x;

	finish(e);
	http_reply_refusal(x, why);
}

static void fail_code(struct embeddings *e, enum kvd_code code, const char *param, const char *message)
{
	struct http_refusal why = HTTP_REFUSAL_NULL;

	http_code_refusal(&why, code, param, message);
	http_code_hint(&why, e->server->models, e->x->peer.account);
	fail(e, &why);
}

/* Of input i: on its way to the engine. */
static void fail_submission(struct embeddings *e, uint64_t i, const struct submission_refusal *why)
{
	struct submission_refusal copy = *why;
	char param[HTTP_PARAM_MAX + 1] = "input";
	bool is_its = copy.code == KVD_CODE_BAD_FIELD || copy.code == KVD_CODE_CONTEXT_LENGTH;

	if (e->prompts.is_list)
		snprintf(param, sizeof(param), "input[%llu]", (unsigned long long)i);
	fail_code(e, copy.code, is_its ? param : NULL, copy.message.text);
}

static void reply(struct embeddings *e)
{
	struct http_exchange *x = e->x;
	struct http_writer w = { 0 };

	http_put_text(&w, "{\"object\":\"list\",\"model\":");
	http_put_cstring(&w, e->body.model);
	http_put_text(&w, ",\"data\":[");
	for (size_t i = 0; i < e->prompts.n; i++) {
		http_put_format(&w, "%s{\"object\":\"embedding\",\"index\":%zu,\"embedding\":", i ? "," : "", i);
		http_put_writer(&w, &e->inputs[i].text);
		http_put_text(&w, "}");
		http_writer_deinit(&e->inputs[i].text);
	}
	http_put_format(&w, "],\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu,"
			    "\"prompt_tokens_details\":{\"cached_tokens\":%llu}}}",
			(unsigned long long)e->prompt_tokens, (unsigned long long)e->prompt_tokens,
			(unsigned long long)e->cached_tokens);
	if (w.failed) {
		fail_code(e, KVD_CODE_NO_MEMORY, NULL, "out of memory for the answer");
	} else {
		finish(e);
		http_reply(x, 200, "application/json", w.data, w.n);
	}
	http_writer_deinit(&w);
}

/* --- what the engine says -------------------------------------------------------------------------- */

/* False: the exchange has ended. */
static bool check_dimensions(struct embeddings *e, uint32_t n_embd)
{
	struct http_refusal why = HTTP_REFUSAL_NULL;

	/* A model that was loaded anew meanwhile may be another. */
	if (e->n_embd && e->n_embd != n_embd) {
		fail_code(e, KVD_CODE_UNLOADED, NULL, "the model was unloaded");
		return false;
	}
	e->n_embd = n_embd;
	if (!e->body.has_dimensions || e->body.dimensions == n_embd)
		return true;
	http_refusal_write(&why, "dimensions", HTTP_CODE_VALUE, "dimensions must be what the model has, %u", n_embd);
	fail(e, &why);
	return false;
}

/* The vector becomes text.  False: the exchange has ended. */
static bool take_vector(struct embeddings *e, struct input *input, const float *values, uint32_t n)
{
	int r;

	if (!check_dimensions(e, n))
		return false;
	if (!http_vector_is_finite(values, n)) {
		fail_code(e, KVD_CODE_INTERNAL, NULL, "the model's state is not finite");
		return false;
	}
	if (!strcmp(e->body.format, "base64"))
		http_put_vector_base64(&input->text, values, n);
	else
		http_put_vector(&input->text, values, n);
	if (input->text.failed) {
		fail_code(e, KVD_CODE_NO_MEMORY, NULL, "out of memory for the answer");
		return false;
	}
	r = charge_init(&input->memory, e->server->accounts, e->x->peer.account, ACCOUNT_MEMORY,
			COPIES * (uint64_t)input->text.capacity);
	if (r)
		fail_code(e, r == ACCOUNT_E_QUOTA ? KVD_CODE_QUOTA : KVD_CODE_NO_MEMORY, NULL,
			  "the answers of this user take too much memory");
	return !r;
}

static bool take_event(struct embeddings *e, uint64_t i, const struct sink_event *event)
{
	switch (event->type) {
	case SINK_EMBEDDING:
		return take_vector(e, &e->inputs[i], event->embedding.values, event->embedding.n);
	case SINK_USAGE:
		e->prompt_tokens += event->usage.prompt_tokens;
		e->cached_tokens += event->usage.cached_tokens;
		return true;
	case SINK_DONE:
		if (event->done.reason != SINK_FINISH_CANCELLED) {
			e->n_under_way--;
			e->n_done++;
			return true;
		}
		fail_code(e, KVD_CODE_CANCELLED, NULL, "the request was cancelled");
		return false;
	case SINK_ERROR:
		fail_code(e, (enum kvd_code)event->error.code, NULL, event->error.text);
		return false;
	case SINK_TOKEN:
	case SINK_TEXT:
	case SINK_PROMPT:
	case SINK_ALTERNATIVES:
	case SINK_PROGRESS:
	default:
		return true;
	}
}

static void start_some(struct embeddings *e);

static void on_ready(void *arg)
{
	struct embeddings *e = arg;
	struct http_batch b;

	while (http_sink_next(e->sink, &b))
		for (size_t i = 0; i < b.n; i++)
			if (!take_event(e, b.request, &b.events[i]))
				return;
	if (http_sink_failed(e->sink)) {
		fail_code(e, KVD_CODE_NO_MEMORY, NULL, "out of memory for the answer");
		return;
	}
	if (http_sink_room(e->sink))
		engine_room(models_engine(e->server->models), e->client);
	if (e->n_done == e->prompts.n)
		reply(e);
	else
		start_some(e);
}

/* --- on the way to the engine ------------------------------------------------------------------------- */

/*
 * Input i can't begin.  Where that is so because of what is under way already, its own included, it is tried again
 * when some of that has ended.
 */
static void refuse_or_wait(struct embeddings *e, uint64_t i, const struct submission_refusal *why)
{
	if (e->n_under_way && (why->code == KVD_CODE_QUOTA || why->code == KVD_CODE_BUSY))
		e->inputs[i].begun = false;
	else
		fail_submission(e, i, why);
}

/* A worker is through with it: the engine has it, or it was refused or cancelled. */
static void on_ended(struct submission *submission)
{
	_cleanup_(submission_freep) struct submission *s = submission;
	struct embeddings *e = s->owner;
	bool submitted = s->refusal.code == KVD_CODE_OK && atomic_load(&s->submitted);

	e->inputs[s->id].submission = NULL;
	if (!submitted) {
		http_sink_drop((struct http_sink *)s->sink, s->id);
		if (e->x) {
			e->n_under_way--;
			refuse_or_wait(e, s->id, &s->refusal);
		}
	}
	unref(e);
}

static void set_params(const struct embeddings *e, struct submission *s)
{
	s->params = (struct engine_request_params){
		.sampling = { .top_p = 1, .repeat_penalty = 1 },
		.pooling = strcmp(e->body.pooling, "last") ? ENGINE_POOLING_MEAN : ENGINE_POOLING_LAST,
		.weight = e->x->peer.weight,
		.deadline_ns = e->deadline_ns,
		.ns = e->namespace.name,
		.own = e->namespace.own,
		.also = e->namespace.also,
		.n_also = e->namespace.n_also,
	};
	s->bos = true;
	s->client = e->client;
	s->uid = e->x->peer.account;
	s->sink = http_sink_sink(e->sink);
	s->ended = on_ended;
	s->owner = (void *)e;
}

/* Input i begins.  0; 1: refused. */
static int start(struct embeddings *e, struct served_model *model, uint64_t i, struct submission_refusal *why)
{
	_cleanup_(submission_freep) struct submission *s = submission_new(1);
	const struct http_json *prompt = &e->inputs[i].prompt;
	size_t room = http_prompt_room(&e->prompts, prompt);

	if (submission_too_long(model, room, why))
		return 1;
	*why = (struct submission_refusal){ .code = KVD_CODE_NO_MEMORY, .message = { "out of memory" } };
	if (!s || submission_charge(s, e->server->accounts, e->x->peer.account, room, why) ||
	    submission_reserve(s, room) || http_sink_add(e->sink, i))
		return 1;
	s->parts[0] = (struct submission_part){ .kind = e->prompts.kind, .data = s->data };
	s->parts[0].n_bytes = http_prompt_write(&e->prompts, prompt, s->data);
	s->id = i;
	set_params(e, s);
	if (submission_start(s, model)) {
		http_sink_drop(e->sink, i);
		why->code = models_no_place(e->server->models, &why->message);
		return 1;
	}
	list_push_back(&e->server->http_submissions, &s->link);
	e->refs++;
	e->n_under_way++;
	e->inputs[i].submission = steal_ptr(s);
	return 0;
}

/* As many as may be under way at once. */
static void start_some(struct embeddings *e)
{
	struct http_refusal refusal = HTTP_REFUSAL_NULL;
	struct submission_refusal why = { .code = KVD_CODE_OK };
	struct served_model *model = http_choose_model(e->server->models, e->body.model, &refusal);

	if (!model) {
		fail(e, &refusal);
		return;
	}
	for (size_t i = 0; i < e->prompts.n && e->n_under_way < AT_ONCE; i++) {
		if (e->inputs[i].begun)
			continue;
		e->inputs[i].begun = true;
		if (start(e, model, i, &why)) {
			refuse_or_wait(e, i, &why);
			return;
		}
	}
}

/* --- the beginning ------------------------------------------------------------------------------------- */

static int check_body(const struct body *b, struct http_refusal *why)
{
	if (!b->has_input)
		return http_field_refuse(why, "input", HTTP_CODE_MISSING, "input is missing or null");
	if (strcmp(b->format, "float") && strcmp(b->format, "base64"))
		return http_field_refuse(why, "encoding_format", HTTP_CODE_VALUE,
					 "encoding_format must be float or base64");
	if (strcmp(b->pooling, "mean") && strcmp(b->pooling, "last"))
		return http_field_refuse(why, "pooling", HTTP_CODE_VALUE, "pooling must be mean or last");
	return http_request_check_key(b->cache_key, why);
}

/* The body, as far as that is possible without knowing whose it is. */
static void *read_body(const uint8_t *bytes, size_t n, struct http_refusal *why)
{
	struct body b = { .format = "float", .pooling = "mean" };
	struct http_prompts prompts;
	struct embeddings *e;
	struct http_json root;

	if (http_fields_parse(bytes, n, &root, why) ||
	    http_fields_read(&root, fields, ARRAY_SIZE(fields), "", &b, why) || check_body(&b, why) ||
	    http_prompts_init(&prompts, &b.input, "input", INPUTS_MAX, why))
		return NULL;
	e = calloc(1, sizeof(*e) + prompts.n * sizeof(e->inputs[0]));
	if (!e) {
		http_code_refusal(why, KVD_CODE_NO_MEMORY, NULL, "out of memory");
		return NULL;
	}
	e->refs = 1;
	e->body = b;
	e->prompts = prompts;
	for (size_t i = 0; i < prompts.n; i++)
		http_prompts_next(&e->prompts, &e->inputs[i].prompt);
	return e;
}

static void free_request(void *request)
{
	unref(request);
}

static int choose_namespace(struct embeddings *e, struct http_refusal *why)
{
	const struct http_exchange *x = e->x;
	const char *key = *e->body.cache_key ? e->body.cache_key : NULL;
	struct diag diag = DIAG_NULL;

	if (namespace_choose_as(&e->server->namespaces, x->peer.own, x->peer.groups, NULL, key, &e->namespace, &diag))
		return http_field_refuse(why, "prompt_cache_key", HTTP_CODE_VALUE, "prompt_cache_key: %s", diag.text);
	return 0;
}

static int make_sink(struct embeddings *e)
{
	struct http_sink_config config = {
		.mailbox = e->server->mailbox, .accounts = e->server->accounts, .account = e->x->peer.account,
		.n_requests = e->prompts.n, .ready = on_ready, .arg = e,
	};
	int r = stats_pages_get(e->server->pages, e->x->peer.account, &config.page);

	if (!r)
		r = http_sink_new(&e->sink, &config);
	stats_page_unref(config.page);
	return r;
}

/* The exchange is ready to begin.  NULL: it has ended. */
static struct served_model *prepare(struct embeddings *e)
{
	struct http_refusal why = HTTP_REFUSAL_NULL;
	struct served_model *model = NULL;
	int r;

	if (!choose_namespace(e, &why))
		model = http_choose_model(e->server->models, e->body.model, &why);
	if (!model) {
		http_code_hint(&why, e->server->models, e->x->peer.account);
		fail(e, &why);
		return NULL;
	}
	/* What the default one is may change. */
	snprintf(e->body.model, sizeof(e->body.model), "%s", model->name);
	r = make_sink(e);
	if (!r)
		return model;
	fail_code(e, r == HTTP_SINK_E_QUOTA ? KVD_CODE_QUOTA : KVD_CODE_NO_MEMORY, NULL,
		  r == HTTP_SINK_E_QUOTA ? "the answers of this user take too much memory" : "out of memory");
	return NULL;
}

static void take(struct http_exchange *x, void *request, struct http_body *bytes)
{
	struct embeddings *e = request;
	struct served_model *model;

	e->x = x;
	e->server = x->server;
	e->bytes = *bytes;
	e->client = ++x->server->next_session;
	if (e->body.timeout_s > 0)
		e->deadline_ns = clock_ns() + (uint64_t)(e->body.timeout_s * 1e9);
	x->data = e;
	x->closed = on_closed;
	model = prepare(e);
	if (model && (!model->hosted.model || check_dimensions(e, model_info(model->hosted.model)->n_embd)))
		start_some(e);
}

void http_post_embeddings(struct http_exchange *x)
{
	static const struct http_body_reader reader = { read_body, take, free_request };

	http_body_read(x, &reader);
}
