/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/http-generate.h"

#include <event2/event.h>
#include <math.h>
#include <string.h>

#include "daemon/model/tokenizer.h"
#include "daemon/server/http-code.h"
#include "daemon/server/http-generate-private.h"
#include "daemon/server/server-internal.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

#define REPEAT_LAST_N 64	/* tokens that repeat_penalty looks back on, as on the socket */

/* --- on the way to the engine ------------------------------------------------------------------- */

/* The prompt as it is shown: text as it was sent, ids as what they stand for. */
static void put_echo(struct choice *c, const struct submission *s, const struct tokenizer *t)
{
	const struct submission_part *part = &s->parts[0];
	const int32_t *ids = (const int32_t *)(const void *)part->data;
	_cleanup_(freep) uint8_t *bytes = NULL;
	size_t n_ids = part->n_bytes / sizeof(*ids), n_total;

	if (part->kind == KVD_PART_TEXT) {
		http_put_escaped(&c->text, part->data, part->n_bytes);
		return;
	}
	/* Characters may reach from one token into the next. */
	n_total = tokenizer_join(t, ids, n_ids, NULL);
	bytes = malloc(n_total + 1);
	if (!bytes) {
		c->text.failed = true;
		return;
	}
	(void)tokenizer_join(t, ids, n_ids, bytes);
	http_put_escaped(&c->text, bytes, n_total);
}

/* Whether a BOS comes before the prompt that is none of its text. */
static bool has_bos(const struct submission *s, const struct tokenizer *t)
{
	const struct submission_part *part = &s->parts[0];
	const uint8_t *bytes;
	size_t n;

	if (part->kind != KVD_PART_TEXT || !tokenizer_add_bos(t) || tokenizer_bos(t) < 0)
		return false;
	bytes = tokenizer_bytes(t, tokenizer_bos(t), &n);
	return !n || part->n_bytes < n || memcmp(part->data, bytes, n) != 0;
}

/* What is known once there is a model. */
static void note_model(struct generation *g, struct choice *c, const struct submission *s)
{
	const struct model *model = s->job.model->hosted.model;
	const struct model_host *host = models_host(g->server->models);
	const uint8_t *hash = model_info(model)->content_hash;

	if (!g->head.fingerprint[0])
		snprintf(g->head.fingerprint, sizeof(g->head.fingerprint), "kvd-%02x%02x%02x%02x%02x%02x-%.16s-%u",
			 hash[0], hash[1], hash[2], hash[3], hash[4], hash[5], model_host_level(host),
			 model_host_numerics(host));
	if (!g->request->echo)
		return;
	c->skips_bos = has_bos(s, model_tokenizer(model));
	put_echo(c, s, model_tokenizer(model));
}

/* The field of the body that a worker's refusal is about. */
static void name_field(const struct generation *g, const struct choice *c, const char *field,
		       char out[HTTP_PARAM_MAX + 1])
{
	const struct http_request *r = g->request;

	if (!strncmp(field, "logit_bias", 10))
		snprintf(out, HTTP_PARAM_MAX + 1, "logit_bias");
	else if (r->is_chat)
		snprintf(out, HTTP_PARAM_MAX + 1, "%s", *field ? field : "messages");
	else if (r->prompts.is_list)
		snprintf(out, HTTP_PARAM_MAX + 1, "prompt[%zu]", (size_t)(c->index / r->n));
	else
		snprintf(out, HTTP_PARAM_MAX + 1, "prompt");
}

/* Whether a refusal is about the request itself, so that a field can be named. */
static bool is_about_field(enum kvd_code code)
{
	return code == KVD_CODE_BAD_FIELD || code == KVD_CODE_CONTEXT_LENGTH || code == KVD_CODE_TEMPLATE;
}

static void fail_submission(struct generation *g, const struct choice *c, const struct submission_refusal *why)
{
	char param[HTTP_PARAM_MAX + 1] = "";
	struct submission_refusal copy = *why;

	if (is_about_field(copy.code))
		name_field(g, c, copy.field, param);
	generation_fail(g, copy.code, param, copy.message.text);
}

static void open_all(struct generation *g)
{
	g->is_open = true;
	if (g->request->stream)
		generation_begin_stream(g);
	generation_drain(g);
}

/* A worker is through with one: the engine has it, or it was refused or cancelled. */
static void on_ended(struct submission *submission)
{
	_cleanup_(submission_freep) struct submission *s = submission;
	struct choice *c = s->owner;
	struct generation *g = c ? c->generation : NULL;
	bool submitted = s->refusal.code == KVD_CODE_OK && atomic_load(&s->submitted);

	if (!submitted) {
		struct sink *sink = s->sink;

		http_sink_drop((struct http_sink *)sink, s->id);
	}
	if (!g)
		return;
	c->submission = NULL;
	g->n_waiting--;
	if (!submitted) {
		fail_submission(g, c, &s->refusal);
		return;
	}
	note_model(g, c, s);
	if (!g->n_waiting)
		open_all(g);
}

static void free_request(void *request)
{
	http_request_unref(request);
}

static void set_params(const struct generation *g, const struct choice *c, struct submission *s)
{
	struct http_request *r = g->request;
	uint64_t i = r->has_seed ? c->index % r->n : c->index;

	s->is_chat = r->is_chat;
	/* Who sends text as it is may write control tokens in it. */
	s->special = s->bos = !r->is_chat;
	s->params = (struct engine_request_params){
		.sampling = {
			.temperature = r->temperature,
			.top_k = r->top_k,
			.top_p = r->top_p,
			.min_p = r->min_p,
			.repeat_penalty = r->repeat_penalty,
			.repeat_last_n = REPEAT_LAST_N,
			.presence_penalty = r->presence_penalty,
			.frequency_penalty = r->frequency_penalty,
			.seed = http_request_seed((uint64_t)r->seed, i),
			.bias = r->bias,
			.n_bias = r->n_bias,
			.n_logprobs = r->n_logprobs,
			.logprobs = r->logprobs,
		},
		.max_tokens = r->max_tokens,
		.stop = r->stops,
		.n_stop = r->n_stop,
		.ignore_eos = r->ignore_eos,
		.prompt_logprobs = r->echo && r->logprobs,
		.prompt_alternatives = r->echo && r->logprobs ? r->n_logprobs : 0,
		.weight = g->x->peer.weight,
		.deadline_ns = r->timeout_s > 0 ? s->created_ns + (uint64_t)(r->timeout_s * 1e9) : 0,
		.ns = r->namespace.name,
		.ttl_ns = r->ttl_s * UINT64_C(1000000000),
		.priority = r->priority,
		.pin = r->pin,
		.own = r->namespace.own,
		.also = r->namespace.also,
		.n_also = r->namespace.n_also,
	};
	http_request_ref(r);
	s->strings = r;
	s->free_strings = free_request;
}

/* Ids are aligned. */
static size_t aligned(size_t n)
{
	return (n + 7) & ~(size_t)7;
}

/* A prompt's bytes, as the body has them: one stretch, or one for each message. */
static size_t prompt_room(const struct http_request *r, const struct http_json *prompt)
{
	struct http_json_iter it;
	struct http_message m;
	size_t n = 0;

	if (!r->is_chat)
		return http_prompt_room(&r->prompts, prompt);
	for (it = http_json_begin(&r->messages); http_request_message(&it, &m);)
		n += aligned(http_message_room(&m));
	return n;
}

/* The same as another's. */
static void copy_prompt(const struct submission *from, struct submission *s)
{
	for (size_t i = 0; i < s->n_parts; i++) {
		uint8_t *to = s->data + (from->parts[i].data - from->data);

		s->parts[i] = from->parts[i];
		s->parts[i].data = to;
		memcpy(to, from->parts[i].data, from->parts[i].n_bytes);
	}
}

static void write_prompt(const struct http_request *r, const struct http_json *prompt, struct submission *s)
{
	struct http_json_iter it;
	struct http_message m;
	uint8_t *to = s->data;
	size_t i = 0;

	if (!r->is_chat) {
		s->parts[0] = (struct submission_part){ .kind = r->prompts.kind, .data = to };
		s->parts[0].n_bytes = http_prompt_write(&r->prompts, prompt, to);
		return;
	}
	for (it = http_json_begin(&r->messages); i < s->n_parts && http_request_message(&it, &m); i++) {
		size_t n = http_message_write(&m, to);

		s->parts[i] = (struct submission_part){ m.role, m.kind, to, n };
		to += aligned(n);
	}
}

/* One choice's way to the engine begins.  False: it is refused; s is gone. */
static bool start(struct generation *g, struct choice *c, const struct http_json *prompt, size_t room,
		  struct served_model *model, struct submission_refusal *why)
{
	struct http_request *r = g->request;
	_cleanup_(submission_freep) struct submission *s = submission_new(r->is_chat ? r->n_messages : 1);
	uint64_t id = (uint64_t)(c - g->choices);

	*why = (struct submission_refusal){ .code = KVD_CODE_NO_MEMORY, .message = { "out of memory" } };
	if (!s || submission_charge(s, g->server->accounts, g->x->peer.account, room, why) ||
	    submission_reserve(s, room) || http_sink_add(g->sink, id))
		return false;
	/* Nobody is through with the one before: that is heard of on this thread. */
	if (c->is_first)
		write_prompt(r, prompt, s);
	else
		copy_prompt(c[-1].submission, s);
	set_params(g, c, s);
	s->client = g->key;
	s->id = id;
	s->uid = g->x->peer.account;
	s->owner = c;
	s->sink = http_sink_sink(g->sink);
	s->ended = on_ended;
	if (submission_start(s, model)) {
		http_sink_drop(g->sink, id);
		*why = (struct submission_refusal){ 0 };
		why->code = models_no_place(g->server->models, &why->message);
		return false;
	}
	list_push_back(&g->server->http_submissions, &s->link);
	c->submission = steal_ptr(s);
	g->n_waiting++;
	return true;
}

/* All of them, in the order of prompts.  False: the exchange has ended. */
static bool start_all(struct generation *g, struct served_model *model)
{
	struct http_request *r = g->request;
	struct submission_refusal why = { .code = KVD_CODE_OK };
	struct http_json prompt = { 0 };

	for (size_t i = 0; i < g->n_choices; i++) {
		struct choice *c = &g->choices[i];
		size_t room;

		c->generation = g;
		c->index = i;
		c->is_first = i % r->n == 0;
		if (c->is_first && !r->is_chat)
			http_prompts_next(&r->prompts, &prompt);
		room = prompt_room(r, &prompt);
		if (submission_too_long(model, room, &why) || !start(g, c, &prompt, room, model, &why)) {
			fail_submission(g, c, &why);
			return false;
		}
	}
	return true;
}

/* --- the beginning ---------------------------------------------------------------------------------- */

static void on_closed(struct http_exchange *x)
{
	generation_free(x->data);
}

static void on_ready(void *arg)
{
	generation_drain(arg);
}

static void on_drained(struct http_exchange *x)
{
	generation_drain(x->data);
}

/* Whose cache it uses.  False: the refusal is filled in. */
static bool choose_namespace(struct http_exchange *x, struct http_request *r, struct http_refusal *why)
{
	const char *key = r->cache_key[0] ? r->cache_key : NULL;
	struct diag diag = DIAG_NULL;
	int err = namespace_choose_as(&x->server->namespaces, x->peer.own, x->peer.groups, NULL, key, &r->namespace,
				      &diag);

	if (err)
		http_refusal_write(why, "prompt_cache_key", HTTP_CODE_VALUE, "prompt_cache_key: %s", diag.text);
	else if (r->pin && (!r->namespace.name[0] || x->server->config.no_cache))
		http_refusal_write(why, "cache_control.pin", HTTP_CODE_VALUE, "the request has no part in the cache");
	else
		return true;
	return false;
}

static void set_head(struct generation *g, const struct served_model *model)
{
	g->head.is_chat = g->request->is_chat;
	g->head.is_chunk = g->request->stream;
	g->head.created = clock_real_ns() / 1000000000u;
	snprintf(g->head.id, sizeof(g->head.id), "%s-%016llx", g->head.is_chat ? "chatcmpl" : "cmpl",
		 (unsigned long long)submission_random_seed());
	snprintf(g->head.model, sizeof(g->head.model), "%s", model->name);
}

/* 0, or a code with the refusal filled in. */
static int prepare(struct generation *g)
{
	struct http_sink_config config = {
		.mailbox = g->server->mailbox,
		.accounts = g->server->accounts,
		.account = g->x->peer.account,
		.n_requests = g->n_choices,
		.ready = on_ready,
		.arg = g,
	};
	const struct timeval second = { .tv_sec = 1 };
	int r = stats_pages_get(g->server->pages, g->x->peer.account, &g->page);

	if (r)
		return r;
	config.page = g->page;
	r = http_sink_new(&g->sink, &config);
	if (r || !g->request->stream)
		return r;
	g->timer = event_new(g->server->base, -1, EV_PERSIST, generation_tick, g);
	return g->timer && !event_add(g->timer, &second) ? 0 : -ENOMEM;
}

static struct generation *generation_new(struct http_exchange *x, struct http_request *r)
{
	size_t n = (r->is_chat ? 1 : r->prompts.n) * r->n;
	struct generation *g = calloc(1, sizeof(*g) + n * sizeof(g->choices[0]));

	if (!g) {
		http_request_unref(r);
		return NULL;
	}
	g->x = x;
	g->server = x->server;
	g->request = r;
	g->n_choices = n;
	g->quiet = true;
	g->key = server_http_client(x->server);
	return g;
}

/* More than the account may ever have at a time would be told to try again for ever. */
static bool may_have_so_many(const struct http_exchange *x, const struct http_request *r, struct http_refusal *why)
{
	uint64_t n = r->n * (uint64_t)(r->is_chat ? 1 : r->prompts.n);
	uint64_t max = account_limit(x->server->accounts, x->peer.account, ACCOUNT_REQUESTS);

	if (n <= max)
		return true;
	http_refusal_write(why, r->n > 1 ? "n" : "prompt", HTTP_CODE_VALUE,
			   "%llu choices are more than the %llu requests that this user may have at a time",
			   (unsigned long long)n, (unsigned long long)max);
	return false;
}

void http_generate(struct http_exchange *x, struct http_request *request)
{
	_cleanup_(http_request_unrefp) struct http_request *r = request;
	struct http_refusal why = HTTP_REFUSAL_NULL;
	struct served_model *model = http_choose_model(x->server->models, r->model, &why);
	struct generation *g;
	int err;

	if (!model || !choose_namespace(x, r, &why) || !may_have_so_many(x, r, &why)) {
		http_code_hint(&why, x->server->models, x->peer.account);
		http_reply_refusal(x, &why);
		return;
	}
	if (!r->has_seed)
		r->seed = (int64_t)submission_random_seed();
	g = generation_new(x, steal_ptr(r));
	err = g ? prepare(g) : -ENOMEM;
	if (!g) {
		http_code_refusal(&why, KVD_CODE_NO_MEMORY, NULL, "out of memory");
		http_reply_refusal(x, &why);
		return;
	}
	if (err) {
		generation_fail(g, err == HTTP_SINK_E_QUOTA ? KVD_CODE_QUOTA : KVD_CODE_NO_MEMORY, NULL,
			  err == HTTP_SINK_E_QUOTA ? "the answers of this user take too much memory" : "out of memory");
		return;
	}
	set_head(g, model);
	x->data = g;
	x->closed = on_closed;
	x->drained = on_drained;
	if (start_all(g, model))
		http_body_release(x);
}
