/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/submission.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "daemon/model/chat-template.h"
#include "daemon/model/tokenizer.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

/* A prompt up to this is always tokenised, so that a refusal has the exact number. */
#define EXACT_BYTES (4u << 20)

struct submission *submission_new(size_t n_parts)
{
	struct submission *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	list_init(&s->link);
	s->parts = calloc(n_parts ? n_parts : 1, sizeof(*s->parts));
	s->n_parts = n_parts;
	s->created_ns = clock_ns();
	if (!s->parts) {
		submission_free(s);
		return NULL;
	}
	return s;
}

int submission_charge(struct submission *s, struct accounts *accounts, uid_t account, uint64_t n_bytes,
		      struct submission_refusal *why)
{
	int r;

	r = charge_init(&s->request, accounts, account, ACCOUNT_REQUESTS, 1);
	if (!r)
		r = charge_init(&s->memory, accounts, account, ACCOUNT_MEMORY, n_bytes);
	if (!r)
		return 0;
	*why = (struct submission_refusal){ .code = r == ACCOUNT_E_QUOTA ? KVD_CODE_QUOTA : KVD_CODE_NO_MEMORY };
	diag_set(&why->message, 0, "%s",
		 r != ACCOUNT_E_QUOTA ? "out of memory" :
		 s->request.account ? "the prompts of this user take too much memory; wait for requests to end" :
				      "too many requests of this user are queued or running");
	return 1;
}

uint64_t submission_random_seed(void)
{
	uint64_t seed;

	/* Never short for 8 bytes; early in the boot the clock has to do. */
	if (getrandom(&seed, sizeof(seed), GRND_NONBLOCK) < 0)
		seed = clock_ns();
	return seed;
}

int submission_reserve(struct submission *s, size_t n_bytes)
{
	s->data = malloc(n_bytes ? n_bytes : 1);
	return s->data ? 0 : -ENOMEM;
}

void submission_free(struct submission *s)
{
	if (!s)
		return;
	model_job_end(&s->job);
	list_unlink(&s->link);
	charge_deinit(&s->request);
	charge_deinit(&s->memory);
	if (s->free_strings)
		s->free_strings(s->strings);
	free(s->parts);
	free(s->data);
	free(s);
}

/* --- on the worker -------------------------------------------------------------- */

__attribute__((format(printf, 4, 5)))
static int refuse(struct submission *s, enum kvd_code code, const char *field, const char *fmt, ...)
{
	va_list ap;

	s->refusal.code = code;
	snprintf(s->refusal.field, sizeof(s->refusal.field), "%s", field);
	va_start(ap, fmt);
	vsnprintf(s->refusal.message.text, sizeof(s->refusal.message.text), fmt, ap);
	va_end(ap);
	return 1;
}

static int refuse_errno(struct submission *s, int err, const char *what)
{
	if (err == -ENOMEM)
		return refuse(s, KVD_CODE_NO_MEMORY, "", "out of memory");
	return refuse(s, KVD_CODE_INTERNAL, "", "%s: %s", what, strerror(-err));
}

bool submission_too_long(const struct served_model *m, uint64_t n_bytes, struct submission_refusal *why)
{
	const struct model *model = m->hosted.model;

	if (!model || n_bytes <= MAX(m->hosted.max_prompt, (uint64_t)EXACT_BYTES))
		return false;
	why->code = KVD_CODE_CONTEXT_LENGTH;
	why->field[0] = '\0';
	why->message = DIAG_NULL;
	why->count = n_bytes / (m->hosted.max_prompt / model_n_ctx(model));
	diag_set(&why->message, 0, "the prompt has at least %llu tokens, the context is %u tokens long",
		 (unsigned long long)why->count, model_n_ctx(model));
	return true;
}

/* What came while the model was loading could not be checked then. */
static int check_length(struct submission *s)
{
	uint64_t total = 0;

	for (size_t i = 0; i < s->n_parts; i++)
		total += s->parts[i].n_bytes;
	return submission_too_long(s->job.model, total, &s->refusal);
}

static int check_ids(struct submission *s, const int32_t *ids, size_t n, uint32_t n_vocab, const char *list,
		     size_t part)
{
	char field[KVD_FIELD_MAX + 1];

	for (size_t i = 0; i < n; i++) {
		if (ids[i] >= 0 && (uint32_t)ids[i] < n_vocab)
			continue;
		snprintf(field, sizeof(field), "%s[%zu]", list, part);
		return refuse(s, KVD_CODE_BAD_FIELD, field, "token id %d is not within 0..%u", ids[i],
			      n_vocab - 1);
	}
	return 0;
}

static int check_bias(struct submission *s, uint32_t n_vocab)
{
	for (size_t i = 0; i < s->params.sampling.n_bias; i++) {
		int32_t id = s->params.sampling.bias[i].id;
		int r = check_ids(s, &id, 1, n_vocab, "logit_bias", i);

		if (r)
			return r;
	}
	return 0;
}

static int tokenise_raw(struct submission *s, const struct tokenizer *t, struct token_list *out)
{
	unsigned flags = (s->special ? TOKENIZE_SPECIAL : 0u) | (s->bos ? TOKENIZE_BOS : 0u);

	for (size_t i = 0; i < s->n_parts; i++) {
		const struct submission_part *part = &s->parts[i];
		const int32_t *ids = (const int32_t *)(const void *)part->data;
		size_t n = part->n_bytes / sizeof(*ids);
		int r = 0;

		if (part->kind == KVD_PART_TEXT) {
			r = tokenizer_encode(t, (const char *)part->data, part->n_bytes, flags, out);
		} else {
			if (check_ids(s, ids, n, tokenizer_n_vocab(t), "prompt", i))
				return 1;
			for (size_t k = 0; k < n && !r; k++)
				r = token_list_push(out, ids[k]);
		}
		if (r)
			return refuse_errno(s, r, "the prompt cannot be tokenised");
		/* Only what begins the prompt gets a BOS; ids come as they are. */
		flags &= ~(unsigned)TOKENIZE_BOS;
	}
	if (!out->n)
		return refuse(s, KVD_CODE_BAD_FIELD, "prompt", "the prompt has no tokens");
	return 0;
}

static int render_chat(struct submission *s, const struct model *model, struct token_list *out)
{
	const struct tokenizer *t = model_tokenizer(model);
	const struct chat_template *template = model_chat_template(model);
	_cleanup_(freep) struct chat_message *messages = calloc(s->n_parts, sizeof(*messages));
	struct diag diag = DIAG_NULL;
	int r;

	if (!messages)
		return refuse_errno(s, -ENOMEM, "");
	if (!template)
		return refuse(s, KVD_CODE_TEMPLATE, "messages",
			      "the model has no chat template; send a raw prompt (kvctl generate --raw)");
	for (size_t i = 0; i < s->n_parts; i++) {
		const struct submission_part *part = &s->parts[i];

		messages[i].role = part->role;
		if (part->kind == KVD_PART_TEXT) {
			messages[i].text = (const char *)part->data;
			messages[i].n = part->n_bytes;
			continue;
		}
		messages[i].ids = (const int32_t *)(const void *)part->data;
		messages[i].n = part->n_bytes / sizeof(int32_t);
		if (check_ids(s, messages[i].ids, messages[i].n, tokenizer_n_vocab(t), "messages", i))
			return 1;
	}
	r = chat_template_render(template, t, messages, s->n_parts, out, &diag);
	if (r == CHAT_E_UNKNOWN)
		return refuse(s, KVD_CODE_TEMPLATE, "messages",
			      "the model's chat template is not one that is known here; send a raw prompt "
			      "(kvctl generate --raw)");
	if (r == -EINVAL)
		return refuse(s, KVD_CODE_BAD_FIELD, "messages", "%s", diag.text);
	if (r)
		return refuse_errno(s, r, "the chat template cannot be rendered");
	return 0;
}

static int submit(struct submission *s, struct token_list *ids)
{
	struct engine_model *model = s->job.model->hosted.engine_model;
	struct engine_request *request;
	struct diag diag = DIAG_NULL;
	size_t n = ids->n;
	int r;

	r = engine_request_new(&request, model, s->client, s->id, s->uid, ids->ids, n, &s->params, s->sink);
	if (r)
		return refuse_errno(s, r, "the request cannot be made");
	*ids = (struct token_list){ 0 };
	charge_deinit(&s->request);
	atomic_store(&s->submitted, true);
	r = engine_submit(s->engine, request, &diag);
	if (!r)
		return 0;
	atomic_store(&s->submitted, false);
	engine_request_free(request);
	switch (r) {
	case ENGINE_E_CONTEXT:
	case ENGINE_E_TOO_BIG:
		/* To come back later doesn't help with either. */
		s->refusal.count = n;
		return refuse(s, KVD_CODE_CONTEXT_LENGTH, "", "%s", diag.text);
	case ENGINE_E_BUSY:
		return refuse(s, KVD_CODE_BUSY, "", "the queue is full; try again later");
	case ENGINE_E_QUOTA:
		return refuse(s, KVD_CODE_QUOTA, "", "too many requests of this user are queued or running");
	case ENGINE_E_UNLOADED:
		return refuse(s, KVD_CODE_UNLOADED, "", "the model was unloaded");
	default:
		return refuse_errno(s, r, "the request cannot be submitted");
	}
}

static void run(struct job *job)
{
	struct submission *s = list_entry(job, struct submission, job.job);
	const struct served_model *served = s->job.model;
	const struct model *model = served->hosted.model;
	struct token_list ids = { 0 };
	int r;

	if (atomic_load(&s->cancelled))
		return;
	s->engine = models_engine(served->models);
	r = check_length(s);
	if (!r && atomic_load(&served->going))
		r = refuse(s, KVD_CODE_UNLOADED, "", "the model was unloaded");
	if (!r)
		r = check_bias(s, model_info(model)->n_vocab);
	if (!r)
		r = s->is_chat ? render_chat(s, model, &ids) : tokenise_raw(s, model_tokenizer(model), &ids);
	/* What was long enough to wait for is worth another look. */
	if (!r && !atomic_load(&s->cancelled))
		r = submit(s, &ids);
	free(ids.ids);
	/* A cancel that came after the last look found no request in the engine yet. */
	if (!r && atomic_load(&s->cancelled) && atomic_load(&s->submitted))
		engine_cancel(s->engine, s->client, s->id);
}

static void done(struct job *job)
{
	struct submission *s = list_entry(job, struct submission, job.job);

	if (job->dropped && !atomic_load(&s->cancelled))
		s->refusal.code = model_job_why(&s->job, &s->refusal.message);
	s->ended(s);
}

/* --- on the loop thread ------------------------------------------------------------- */

int submission_start(struct submission *s, struct served_model *m)
{
	s->job.job.uid = s->uid;
	s->job.job.run = run;
	s->job.job.done = done;
	return model_job_start(&s->job, m);
}

void submission_cancel(struct submission *s)
{
	struct engine *engine = models_engine(s->job.model->models);

	atomic_store(&s->cancelled, true);
	if (engine)
		engine_cancel(engine, s->client, s->id);
	model_job_drop(&s->job);
}
