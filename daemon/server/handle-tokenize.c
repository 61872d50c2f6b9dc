/* SPDX-License-Identifier: Apache-2.0 */
/* tokenize: text in the arena to ids in the arena, on a worker. */
#include <stdio.h>
#include <string.h>

#include "daemon/model/tokenizer.h"
#include "daemon/server/dispatch.h"
#include "daemon/server/server-internal.h"
#include "daemon/server/session.h"
#include "ipc/base/checked.h"

struct tokenization {
	struct model_job job;
	struct server *server;
	uint64_t session;
	struct ring_sink *sink;		/* a reference: its arena gets the ids */
	struct msg *msg;		/* decoded; .tokenize */
	struct charge request, memory;
	char *text;			/* the copy */

	/* The worker's result. */
	enum kvd_code code;
	const char *field, *message;
	struct diag why;
	uint64_t count;
};

static void tokenization_free(struct tokenization *t)
{
	if (!t)
		return;
	model_job_end(&t->job);
	if (t->sink)
		ring_sink_unref(t->sink);
	charge_deinit(&t->request);
	charge_deinit(&t->memory);
	msg_free(t->msg);
	free(t->text);
	free(t);
}
CLEANUP_DEFINE(struct tokenization, tokenization_free)

static void fail(struct tokenization *t, enum kvd_code code, const char *field, const char *message,
		 uint64_t count)
{
	t->code = code;
	t->field = field;
	t->message = message;
	t->count = count;
}

/* The bytes of ids[i] where it stands. */
static const uint8_t *piece_at(const struct tokenizer *tokenizer, const struct token_list *ids, size_t i, size_t *n)
{
	return tokenizer_bytes_after(tokenizer, i ? ids->ids[i - 1] : -1, ids->ids[i], n);
}

/* Bytes of the sizes and texts behind the ids. */
static uint64_t pieces_size(const struct tokenizer *tokenizer, const struct token_list *ids)
{
	return (uint64_t)ids->n * sizeof(uint32_t) + tokenizer_join(tokenizer, ids->ids, ids->n, NULL);
}

/* The range was checked to be within the arena. */
static void write_pieces(const struct segment *arena, const struct tokenizer *tokenizer,
			 const struct token_list *ids, uint64_t sizes_at)
{
	uint64_t bytes_at = sizes_at + (uint64_t)ids->n * sizeof(uint32_t);

	for (size_t i = 0; i < ids->n; i++) {
		size_t n;
		const uint8_t *bytes = piece_at(tokenizer, ids, i, &n);
		uint32_t size = (uint32_t)n;

		(void)segment_write(arena, sizes_at + i * sizeof(size), &size, sizeof(size));
		(void)segment_write(arena, bytes_at, bytes, n);
		bytes_at += n;
	}
}

static void write_result(struct tokenization *t, const struct tokenizer *tokenizer,
			 const struct token_list *ids)
{
	const struct msg_tokenize *m = &t->msg->tokenize;
	const struct segment *arena = ring_sink_client(t->sink);
	uint64_t ids_size = (uint64_t)ids->n * sizeof(int32_t);
	uint64_t size = ids_size + (m->pieces ? pieces_size(tokenizer, ids) : 0);

	if (size > m->out_length) {
		fail(t, KVD_CODE_BAD_FIELD, "out_length", "the result does not fit",
		     m->pieces ? size : ids->n);
		return;
	}
	(void)segment_write(arena, m->out_offset, ids->ids, ids_size);
	if (m->pieces)
		write_pieces(arena, tokenizer, ids, m->out_offset + ids_size);
	t->count = ids->n;
}

static void run(struct job *job)
{
	struct tokenization *t = list_entry(job, struct tokenization, job.job);
	const struct msg_tokenize *m = &t->msg->tokenize;
	const struct tokenizer *tokenizer = model_tokenizer(t->job.model->hosted.model);
	unsigned flags = (m->special ? TOKENIZE_SPECIAL : 0u) | (m->bos ? TOKENIZE_BOS : 0u);
	struct token_list ids = { 0 };
	int r;

	r = tokenizer_encode(tokenizer, t->text, m->length, flags, &ids);
	if (r)
		fail(t, r == -ENOMEM ? KVD_CODE_NO_MEMORY : KVD_CODE_INTERNAL, "", strerror(-r), 0);
	else
		write_result(t, tokenizer, &ids);
	free(ids.ids);
}

static void done(struct job *job)
{
	_cleanup_(tokenization_freep) struct tokenization *t = list_entry(job, struct tokenization, job.job);
	struct session *s = server_session(t->server, t->session);

	if (job->dropped)
		fail(t, model_job_why(&t->job, &t->why), "", t->why.text, 0);
	if (!s)
		return;
	s->n_queries--;
	if (t->code == KVD_CODE_OK)
		session_send(s, KVD_MSG_TOKENIZED, &(struct msg_tokenized){
			.id = t->msg->tokenize.id, .count = (uint32_t)t->count,
		});
	else
		session_error(s, t->msg->tokenize.id, t->code, t->field, t->message, t->count);
}

/* The arena's ranges, and what the uid may hold. */
static bool check(struct session *s, const struct msg_tokenize *m, struct tokenization *t)
{
	const struct segment *arena = ring_sink_client(s->sink);
	const char *field = NULL;
	int r;

	if (!segment_has(arena, m->offset, m->length))
		field = "length";
	else if (!segment_has(arena, m->out_offset, m->out_length))
		field = "out_length";
	if (field) {
		session_error(s, m->id, KVD_CODE_BAD_FIELD, field,
			      "offset and length are not within the arena", 0);
		return false;
	}
	if (s->n_queries >= SESSION_QUERIES_MAX) {
		session_error(s, m->id, KVD_CODE_BUSY, "",
			      "too many questions of this session are unanswered", 0);
		return false;
	}
	r = charge_init(&t->request, s->server->accounts, s->uid, ACCOUNT_REQUESTS, 1);
	/* The copy, and the ids: at most one for each byte, and BOS. */
	if (!r)
		r = charge_init(&t->memory, s->server->accounts, s->uid, ACCOUNT_MEMORY,
				m->length * (1 + (uint64_t)sizeof(int32_t)) + 64);
	if (r)
		session_error(s, m->id, r == ACCOUNT_E_QUOTA ? KVD_CODE_QUOTA : KVD_CODE_NO_MEMORY, "",
			      r == ACCOUNT_E_QUOTA
				      ? "this user has too many requests, or they take too much memory"
				      : "out of memory",
			      0);
	return !r;
}

void handle_tokenize(struct session *s, struct msg **msg)
{
	_cleanup_(tokenization_freep) struct tokenization *t = calloc(1, sizeof(*t));
	const struct msg_tokenize *m = &(*msg)->tokenize;
	uint64_t id = m->id;
	struct served_model *model = session_model(s, id, m->model);

	if (!model || (t && !check(s, m, t)))
		return;
	if (t)
		t->text = malloc(m->length + 1u);
	if (!t || !t->text || segment_read(ring_sink_client(s->sink), m->offset, t->text, m->length)) {
		session_error(s, id, KVD_CODE_NO_MEMORY, "", "out of memory", 0);
		return;
	}
	t->server = s->server;
	t->session = s->key;
	t->sink = s->sink;
	ring_sink_ref(t->sink);
	t->msg = steal_ptr(*msg);
	t->job.job.uid = s->uid;
	t->job.job.run = run;
	t->job.job.done = done;
	if (model_job_start(&t->job, model)) {
		session_no_place(s, id);
		return;
	}
	s->n_queries++;
	steal_ptr(t);
}
