/* SPDX-License-Identifier: Apache-2.0 */
/* generate, cancel, room, wait: the life of a request, as the socket sees it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/server/dispatch.h"
#include "daemon/server/server-internal.h"
#include "daemon/server/session.h"
#include "daemon/server/submission.h"
#include "ipc/base/checked.h"

/* What a submission borrows: the decoded message, whose cache it uses, and the biases in the sampler's form. */
struct strings {
	struct msg *msg;
	struct namespace_choice namespace;
	struct sampler_bias bias[];
};

static void strings_free(void *p)
{
	struct strings *strings = p;

	msg_free(strings->msg);
	free(strings);
}

/* Part i of either form. */
static void part_of(const struct msg_generate *m, size_t i, struct msg_part *out, const char **role)
{
	if (m->n_messages) {
		*out = (struct msg_part){ m->messages[i].kind, m->messages[i].offset, m->messages[i].length };
		*role = m->messages[i].role;
	} else {
		*out = m->prompt[i];
		*role = NULL;
	}
}

static bool check_parts(struct session *s, const struct msg_generate *m, size_t n_parts, uint64_t *total,
			uint64_t *data_bytes)
{
	const char *list = m->n_messages ? "messages" : "prompt", *role;
	char field[KVD_FIELD_MAX + 1];
	struct msg_part part;

	*total = *data_bytes = 0;
	for (size_t i = 0; i < n_parts; i++) {
		part_of(m, i, &part, &role);
		if (!segment_has(ring_sink_client(s->sink), part.offset, part.length)) {
			snprintf(field, sizeof(field), "%s[%zu]", list, i);
			session_error(s, m->id, KVD_CODE_BAD_FIELD, field,
				      "offset and length are not within the arena", 0);
			return false;
		}
		/* 64-bit sums of at most 1024 32-bit numbers. */
		*total += part.length;
		*data_bytes += (part.length + 7u) & ~7ull;
	}
	return true;
}

/* Refuses what can't fit before it is copied. */
static bool check_length(struct session *s, const struct msg_generate *m, const struct served_model *model,
			 uint64_t total)
{
	struct submission_refusal why = { 0 };

	if (!submission_too_long(model, total, &why))
		return true;
	session_error(s, m->id, why.code, why.field, why.message.text, why.count);
	return false;
}

/* The one look at shared memory: everything after works on the copy. */
static int copy_parts(struct session *s, const struct msg_generate *m, struct submission *out)
{
	size_t at = 0;

	for (size_t i = 0; i < out->n_parts; i++) {
		struct submission_part *to = &out->parts[i];
		struct msg_part part;
		int r;

		part_of(m, i, &part, &to->role);
		r = segment_read(ring_sink_client(s->sink), part.offset, out->data + at, part.length);
		if (r)
			return r;
		to->kind = part.kind;
		to->data = out->data + at;
		to->n_bytes = part.length;
		at += (part.length + 7u) & ~(size_t)7;
	}
	return 0;
}

/* False after an error to the session. */
static bool choose_namespace(struct session *s, const struct msg_generate *m, struct namespace_choice *out)
{
	struct diag why = DIAG_NULL;
	int r = namespace_choose(&s->server->namespaces, s->uid, s->groups, m->namespace, m->cache_key, out, &why);

	if (r)
		session_error(s, m->id, r == NAMESPACE_E_DENIED ? KVD_CODE_PERMISSION : KVD_CODE_BAD_FIELD, "namespace",
			      why.text, 0);
	else if (m->pin && (!out->name[0] || s->server->config.no_cache))
		session_error(s, m->id, KVD_CODE_BAD_FIELD, "pin", "the request has no part in the cache", 0);
	else
		return true;
	return false;
}

/* msg is moved into the submission, whose parameters point into it. */
static int take_params(struct submission *out, struct msg **msg, const struct namespace_choice *namespace)
{
	struct msg_generate *m = &(*msg)->generate;
	struct strings *strings = malloc(sizeof(*strings) + m->n_logit_bias * sizeof(strings->bias[0]));

	if (!strings)
		return -ENOMEM;
	for (size_t i = 0; i < m->n_logit_bias; i++)
		strings->bias[i] = (struct sampler_bias){ m->logit_bias[i].id, m->logit_bias[i].bias };
	strings->namespace = *namespace;
	out->id = m->id;
	out->is_chat = m->n_messages > 0;
	out->special = m->special;
	out->bos = m->bos;
	out->params = (struct engine_request_params){
		.sampling = {
			.temperature = m->temperature,
			.top_k = m->top_k,
			.top_p = m->top_p,
			.min_p = m->min_p,
			.repeat_penalty = m->repeat_penalty,
			.repeat_last_n = m->repeat_last_n,
			.seed = m->has_seed ? m->seed : submission_random_seed(),
			.bias = strings->bias,
			.n_bias = m->n_logit_bias,
			.n_logprobs = m->logprobs,
			.logprobs = m->has_logprobs,
		},
		.max_tokens = m->n,
		.stop = m->stop,
		.n_stop = m->n_stop,
		.ignore_eos = m->ignore_eos,
		.progress = m->progress,
		.prompt_logprobs = m->has_prompt_logprobs,
		.prompt_logprobs_from = m->prompt_logprobs,
		.ns = strings->namespace.name,
		.ttl_ns = m->ttl_s * UINT64_C(1000000000),
		.priority = (int)m->priority - KVD_PRIORITY_NORMAL,
		.pin = m->pin,
		.own = strings->namespace.own,
		.also = strings->namespace.also,
		.n_also = strings->namespace.n_also,
	};
	strings->msg = steal_ptr(*msg);
	out->strings = strings;
	out->free_strings = strings_free;
	return 0;
}

/* The request never reached the engine: say so, and give back what it held. */
static void on_ended(struct submission *submission)
{
	_cleanup_(submission_freep) struct submission *s = submission;
	struct ring_sink *sink = (struct ring_sink *)s->sink;
	struct session *session = s->owner;

	if (s->refusal.code == KVD_CODE_OK && atomic_load(&s->submitted))
		return;
	if (s->refusal.code == KVD_CODE_OK) {
		/* Cancelled before it was submitted. */
		const struct sink_event last[] = {
			{ .type = SINK_USAGE, .usage = { .miss = SINK_MISS_NO_CACHE, .miss_token = -1 } },
			{ .type = SINK_DONE, .done = { .reason = SINK_FINISH_CANCELLED } },
		};

		(void)s->sink->ops->emit(s->sink, s->id, last, ARRAY_SIZE(last));
		s->sink->ops->flush(s->sink);
	} else if (session) {
		session_error(session, s->id, s->refusal.code, s->refusal.field, s->refusal.message.text,
			      s->refusal.count);
	}
	ring_sink_drop(sink, s->id);
}

static void refuse_add(struct session *s, uint64_t id, int r)
{
	if (r == RING_SINK_E_DUPLICATE)
		session_error(s, id, KVD_CODE_BAD_FIELD, "id", "a request with this id is queued or running",
			      0);
	else if (r == RING_SINK_E_FULL)
		session_error(s, id, KVD_CODE_BUSY, "",
			      "the ring has no space for one more request; read from it, "
			      "or wait for another to end",
			      0);
	/* RING_SINK_E_GONE: the session is about to end. */
}

void handle_generate(struct session *s, struct msg **msg)
{
	_cleanup_(submission_freep) struct submission *submission = NULL;
	const struct msg_generate *m = &(*msg)->generate;
	size_t n_parts = m->n_messages ? m->n_messages : m->n_prompt;
	uint64_t total, data_bytes, id = m->id;
	struct submission_refusal why;
	struct namespace_choice namespace;
	struct served_model *model = session_model(s, id, m->model);
	int r;

	if (!model || !check_parts(s, m, n_parts, &total, &data_bytes) || !check_length(s, m, model, total) ||
	    !choose_namespace(s, m, &namespace))
		return;
	submission = submission_new(n_parts);
	if (!submission) {
		session_error(s, id, KVD_CODE_NO_MEMORY, "", "out of memory", 0);
		return;
	}
	if (submission_charge(submission, s->server->accounts, s->uid, data_bytes, &why)) {
		session_error(s, id, why.code, why.field, why.message.text, why.count);
		return;
	}
	r = submission_reserve(submission, data_bytes);
	if (!r)
		r = copy_parts(s, m, submission);
	if (!r)
		r = take_params(submission, msg, &namespace);
	if (r) {
		session_error(s, id, KVD_CODE_NO_MEMORY, "", "out of memory", 0);
		return;
	}
	submission->client = s->key;
	submission->uid = s->uid;
	submission->params.weight = fair_weight(&s->server->weights, s->uid);
	submission->owner = s;
	submission->sink = ring_sink_sink(s->sink);
	submission->ended = on_ended;
	r = ring_sink_add(s->sink, id);
	if (r) {
		refuse_add(s, id, r);
		return;
	}
	if (submission_start(submission, model)) {
		ring_sink_drop(s->sink, id);
		session_no_place(s, id);
		return;
	}
	list_push_back(&s->submissions, &submission->link);
	steal_ptr(submission);
}

void handle_cancel(struct session *s, struct msg **msg)
{
	uint64_t id = (*msg)->cancel.id;
	struct engine *engine = models_engine(s->server->models);

	/* There may be a second one with this id, whose request has ended by now. */
	list_for_each_safe(e, next, &s->submissions) {
		struct submission *submission = list_entry(e, struct submission, link);

		if (submission->id == id)
			submission_cancel(submission);
	}
	models_give_up(s->server->models, &(struct models_asker){ s->key, id });
	server_give_up_shares(s->server, s->key, id);
	if (engine)
		engine_cancel(engine, s->key, id);
}

static void tell_engine(struct session *s)
{
	struct engine *engine = models_engine(s->server->models);

	if (engine)
		engine_room(engine, s->key);
}

void handle_room(struct session *s, struct msg **msg)
{
	if (ring_sink_room(s->sink))
		tell_engine(s);
}

void handle_wait(struct session *s, struct msg **msg)
{
	if (ring_sink_wait(s->sink))
		tell_engine(s);
}
