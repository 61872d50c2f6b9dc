/* SPDX-License-Identifier: Apache-2.0 */
/* POST /tokenize, /detokenize: text to ids and back, on a worker; names and defaults are llama-server's. */
#include <stdlib.h>
#include <string.h>

#include "daemon/model/tokenizer.h"
#include "daemon/server/http-code.h"
#include "daemon/server/http-prompts.h"
#include "daemon/server/http-writer.h"
#include "daemon/server/server-internal.h"
#include "ipc/base/checked.h"
#include "ipc/base/utf8.h"

#define ID_TEXT 11		/* bytes that an id takes in the answer, at most */
#define PIECE_TEXT 32		/* and its piece, beside six times its bytes */

struct tokenization {
	struct model_job job;
	struct http_exchange *x;	/* NULL: the client is gone */
	struct accounts *accounts;
	uid_t account;
	struct charge request, memory, result;
	bool decodes, with_pieces;
	unsigned flags;
	uint8_t *data;			/* [n] text, or ids */
	size_t n;

	/* The worker's. */
	struct http_writer out;
	struct http_refusal why;	/* status 0: none */
};

static void tokenization_free(struct tokenization *t)
{
	if (!t)
		return;
	model_job_end(&t->job);
	charge_deinit(&t->request);
	charge_deinit(&t->memory);
	charge_deinit(&t->result);
	http_writer_deinit(&t->out);
	free(t->data);
	free(t);
}
CLEANUP_DEFINE(struct tokenization, tokenization_free)

/* --- on the worker ------------------------------------------------------------------------------- */

/* What the answer takes, before it is made; buffers may grow to twice that.  False: refused. */
static bool charge_result(struct tokenization *t, uint64_t n)
{
	int r = charge_init(&t->result, t->accounts, t->account, ACCOUNT_MEMORY, 2 * n);

	if (r)
		http_code_refusal(&t->why, r == ACCOUNT_E_QUOTA ? KVD_CODE_QUOTA : KVD_CODE_NO_MEMORY, NULL,
				  r == ACCOUNT_E_QUOTA ? "the answer takes too much memory" : "out of memory");
	return !r;
}

static void put_piece(struct http_writer *w, int32_t id, const uint8_t *bytes, size_t n)
{
	http_put_text(w, "{\"id\":");
	http_put_u64(w, (uint64_t)id);
	http_put_text(w, ",\"piece\":");
	if (utf8_valid(bytes, n))
		http_put_string(w, bytes, n);
	else
		http_put_bytes(w, bytes, n);
	http_put_text(w, "}");
}

static void put_ids(struct tokenization *t, const struct tokenizer *tokenizer, const int32_t *ids, size_t n_ids)
{
	uint64_t size = (uint64_t)n_ids * ID_TEXT + 64;

	if (t->with_pieces)
		size += 6 * (uint64_t)tokenizer_join(tokenizer, ids, n_ids, NULL) + (uint64_t)n_ids * PIECE_TEXT;
	if (!charge_result(t, size))
		return;
	http_put_text(&t->out, "{\"tokens\":[");
	for (size_t i = 0; i < n_ids; i++) {
		const uint8_t *bytes;
		size_t n;

		if (i)
			http_put_text(&t->out, ",");
		if (!t->with_pieces) {
			http_put_u64(&t->out, (uint64_t)ids[i]);
			continue;
		}
		bytes = tokenizer_bytes_after(tokenizer, i ? ids[i - 1] : -1, ids[i], &n);
		put_piece(&t->out, ids[i], bytes, n);
	}
	http_put_text(&t->out, "]}");
}

static void encode(struct tokenization *t, const struct tokenizer *tokenizer)
{
	struct token_list ids = { 0 };
	int r = tokenizer_encode(tokenizer, (const char *)t->data, t->n, t->flags, &ids);

	if (r)
		http_code_refusal(&t->why, r == -ENOMEM ? KVD_CODE_NO_MEMORY : KVD_CODE_BAD_FIELD, "content",
				  r == -ENOMEM ? "out of memory" : "content can't be tokenised");
	else
		put_ids(t, tokenizer, ids.ids, ids.n);
	free(ids.ids);
}

/* False: refused. */
static bool check_ids(struct tokenization *t, const struct tokenizer *tokenizer, const int32_t *ids, size_t n_ids)
{
	uint32_t n_vocab = tokenizer_n_vocab(tokenizer);
	char param[32];

	for (size_t i = 0; i < n_ids; i++) {
		if ((uint32_t)ids[i] < n_vocab)
			continue;
		snprintf(param, sizeof(param), "tokens[%zu]", i);
		http_refusal_write(&t->why, param, HTTP_CODE_VALUE, "%s: token id %d is not within 0..%u", param,
				   ids[i], n_vocab - 1);
		return false;
	}
	return true;
}

static void decode(struct tokenization *t, const struct tokenizer *tokenizer)
{
	const int32_t *ids = (const int32_t *)(const void *)t->data;
	size_t n_ids = t->n / sizeof(*ids), n_bytes;
	_cleanup_(freep) uint8_t *bytes = NULL;

	if (!check_ids(t, tokenizer, ids, n_ids))
		return;
	n_bytes = tokenizer_join(tokenizer, ids, n_ids, NULL);
	if (!charge_result(t, 7 * (uint64_t)n_bytes + 64))
		return;
	/* Characters may reach from one token into the next. */
	bytes = malloc(n_bytes + 1);
	if (!bytes) {
		t->out.failed = true;
		return;
	}
	(void)tokenizer_join(tokenizer, ids, n_ids, bytes);
	http_put_text(&t->out, "{\"content\":");
	http_put_string(&t->out, bytes, n_bytes);
	http_put_text(&t->out, "}");
}

static void run(struct job *job)
{
	struct tokenization *t = list_entry(job, struct tokenization, job.job);
	const struct tokenizer *tokenizer = model_tokenizer(t->job.model->hosted.model);

	if (t->decodes)
		decode(t, tokenizer);
	else
		encode(t, tokenizer);
	if (t->out.failed)
		http_code_refusal(&t->why, KVD_CODE_NO_MEMORY, NULL, "out of memory");
}

/* --- on the loop thread -------------------------------------------------------------------------- */

static void done(struct job *job)
{
	_cleanup_(tokenization_freep) struct tokenization *t = list_entry(job, struct tokenization, job.job);
	struct http_exchange *x = t->x;
	struct diag diag = DIAG_NULL;

	if (!x)
		return;
	if (job->dropped)
		http_code_refusal(&t->why, model_job_why(&t->job, &diag), NULL, diag.text);
	if (t->why.status) {
		http_code_hint(&t->why, x->server->models, x->peer.account);
		http_reply_refusal(x, &t->why);
	} else {
		http_reply(x, 200, "application/json", t->out.data, t->out.n);
	}
}

static void on_closed(struct http_exchange *x)
{
	struct tokenization *t = x->data;

	t->x = NULL;
	/* done() frees it, soon or inside. */
	model_job_drop(&t->job);
}

/* False: the refusal is filled in. */
static bool prepare(struct tokenization *t, struct http_exchange *x, size_t room, struct http_refusal *why)
{
	int r;

	t->x = x;
	t->accounts = x->server->accounts;
	t->account = x->peer.account;
	r = charge_init(&t->request, t->accounts, t->account, ACCOUNT_REQUESTS, 1);
	/* The copy, and of a text the ids: at most one for each byte, and two more, in a list that grows. */
	if (!r)
		r = charge_init(&t->memory, t->accounts, t->account, ACCOUNT_MEMORY,
				(uint64_t)room * (t->decodes ? 1 : 1 + 2 * sizeof(int32_t)) + 64);
	if (!r) {
		t->data = malloc(room + 1);
		r = t->data ? 0 : -ENOMEM;
	}
	if (r)
		http_code_refusal(why, r == ACCOUNT_E_QUOTA ? KVD_CODE_QUOTA : KVD_CODE_NO_MEMORY, NULL,
				  r == ACCOUNT_E_QUOTA ? "this user has too many requests, or they take too much memory"
						       : "out of memory");
	return !r;
}

/* Takes t over. */
static void start(struct tokenization *new, struct http_exchange *x, const char *model)
{
	_cleanup_(tokenization_freep) struct tokenization *t = new;
	struct http_refusal why = HTTP_REFUSAL_NULL;
	struct served_model *m = http_choose_model(x->server->models, model, &why);

	if (!m) {
		http_reply_refusal(x, &why);
		return;
	}
	t->job.job.uid = x->peer.account;
	t->job.job.run = run;
	t->job.job.done = done;
	if (model_job_start(&t->job, m)) {
		struct diag diag;
		enum kvd_code code = models_no_place(x->server->models, &diag);

		http_code_refusal(&why, code, NULL, diag.text);
		http_code_hint(&why, x->server->models, x->peer.account);
		http_reply_refusal(x, &why);
		return;
	}
	x->data = steal_ptr(t);
	x->closed = on_closed;
	http_body_release(x);
}

static void refuse(struct http_exchange *x, struct http_refusal *why)
{
	http_code_hint(why, x->server->models, x->peer.account);
	http_reply_refusal(x, why);
}

/* --- bodies ------------------------------------------------------------------------------------------ */

struct body {
	char model[KVD_MODEL_NAME_MAX + 1];
	struct http_json value;
	bool has_value, add_special, parse_special, with_pieces;
};

static const struct http_field encode_fields[] = {
	{ "model", HTTP_FIELD_STRING, 0, KVD_MODEL_NAME_MAX, offsetof(struct body, model) },
	{ "content", HTTP_FIELD_JSON, .offset = offsetof(struct body, value), .has = offsetof(struct body, has_value) },
	{ "add_special", HTTP_FIELD_BOOL, .offset = offsetof(struct body, add_special) },
	{ "parse_special", HTTP_FIELD_BOOL, .offset = offsetof(struct body, parse_special) },
	{ "with_pieces", HTTP_FIELD_BOOL, .offset = offsetof(struct body, with_pieces) },
};

static const struct http_field decode_fields[] = {
	{ "model", HTTP_FIELD_STRING, 0, KVD_MODEL_NAME_MAX, offsetof(struct body, model) },
	{ "tokens", HTTP_FIELD_JSON, .offset = offsetof(struct body, value), .has = offsetof(struct body, has_value) },
};

static int read_body(const struct http_exchange *x, const struct http_field *table, size_t n_table,
		     const char *value, struct body *out, struct http_refusal *why)
{
	struct http_json root;
	int r = http_fields_parse(x->body, x->n_body, &root, why);

	if (!r)
		r = http_fields_read(&root, table, n_table, "", out, why);
	if (!r && !out->has_value)
		return http_field_refuse(why, value, HTTP_CODE_MISSING, "%s is missing or null", value);
	return r;
}

void http_post_tokenize(struct http_exchange *x)
{
	_cleanup_(tokenization_freep) struct tokenization *t = calloc(1, sizeof(*t));
	struct http_refusal why = HTTP_REFUSAL_NULL;
	struct body b = { .parse_special = true };
	int r = read_body(x, encode_fields, ARRAY_SIZE(encode_fields), "content", &b, &why);

	if (!r && b.value.type != HTTP_JSON_STRING)
		r = http_field_refuse_type(&b.value, "content", "a string", &why);
	if (!r && !t)
		http_code_refusal(&why, KVD_CODE_NO_MEMORY, NULL, "out of memory");
	if (r || !t || !prepare(t, x, b.value.n, &why)) {
		refuse(x, &why);
		return;
	}
	t->with_pieces = b.with_pieces;
	t->flags = (b.add_special ? TOKENIZE_BOS | TOKENIZE_EOS : 0u) | (b.parse_special ? TOKENIZE_SPECIAL : 0u);
	t->n = http_json_string(&b.value, t->data, b.value.n);
	start(steal_ptr(t), x, b.model);
}

/* A list of ids, which may be empty.  0, or the refusal is filled in. */
static int read_ids(const struct http_json *v, struct http_prompts *out, struct http_refusal *why)
{
	int r;

	if (v->type != HTTP_JSON_ARRAY)
		return http_field_refuse_type(v, "tokens", "an array of token ids", why);
	if (!http_json_count(v)) {
		*out = (struct http_prompts){ .value = *v, .kind = KVD_PART_IDS };
		return 0;
	}
	r = http_prompts_init(out, v, "tokens", 1, why);
	if (!r && (out->is_list || out->kind != KVD_PART_IDS))
		return http_field_refuse(why, "tokens", HTTP_CODE_TYPE, "tokens must be an array of token ids");
	return r;
}

void http_post_detokenize(struct http_exchange *x)
{
	_cleanup_(tokenization_freep) struct tokenization *t = calloc(1, sizeof(*t));
	struct http_refusal why = HTTP_REFUSAL_NULL;
	struct http_prompts ids = { .n = 0 };
	struct body b = { .has_value = false };
	int r = read_body(x, decode_fields, ARRAY_SIZE(decode_fields), "tokens", &b, &why);

	if (!r)
		r = read_ids(&b.value, &ids, &why);
	if (!r && !t)
		http_code_refusal(&why, KVD_CODE_NO_MEMORY, NULL, "out of memory");
	if (t)
		t->decodes = true;
	if (r || !t || !prepare(t, x, http_prompt_room(&ids, &ids.value), &why)) {
		refuse(x, &why);
		return;
	}
	t->n = http_prompt_write(&ids, &ids.value, t->data);
	start(steal_ptr(t), x, b.model);
}
