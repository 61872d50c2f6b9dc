/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/http-format.h"

#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/utf8.h"

/* Columns of completions; a chat has one, of objects. */
enum column { COLUMN_TOKENS, COLUMN_LOGPROBS, COLUMN_TOPS, COLUMN_OFFSETS };

void http_logprobs_deinit(struct http_logprobs *l)
{
	for (size_t i = 0; i < ARRAY_SIZE(l->columns); i++)
		http_writer_deinit(&l->columns[i]);
}

void http_logprobs_clear(struct http_logprobs *l)
{
	for (size_t i = 0; i < ARRAY_SIZE(l->columns); i++)
		l->columns[i].n = 0;
	l->begun = false;
}

size_t http_logprobs_size(const struct http_logprobs *l)
{
	size_t n = 0;

	for (size_t i = 0; i < ARRAY_SIZE(l->columns); i++)
		n += l->columns[i].capacity;
	return n;
}

/* --- tokens --------------------------------------------------------------------------------- */

/* "token", "logprob", "bytes", without brackets. */
static void put_token(struct http_writer *w, float logprob, const uint8_t *bytes, size_t n)
{
	http_put_text(w, "\"token\":");
	http_put_string(w, bytes, n);
	http_put_text(w, ",\"logprob\":");
	http_put_float(w, logprob);
	http_put_text(w, ",\"bytes\":");
	http_put_bytes(w, bytes, n);
}

static void add_chat(struct http_writer *w, const struct http_token *t)
{
	http_put_text(w, "{");
	put_token(w, t->logprob, t->bytes, t->n_bytes);
	http_put_text(w, ",\"top_logprobs\":[");
	for (size_t i = 0; i < t->n_tops; i++) {
		http_put_text(w, i ? ",{" : "{");
		put_token(w, t->tops[i].logprob, t->tops[i].bytes, t->tops[i].n_bytes);
		http_put_text(w, "}");
	}
	http_put_text(w, "]}");
}

static bool same_bytes(const struct sink_alternative *a, const uint8_t *bytes, size_t n)
{
	return a->n_bytes == n && (!n || !memcmp(a->bytes, bytes, n));
}

/*
 * Members' names are tokens, each once: of two tokens with the same bytes the likelier one.  The chosen one is among
 * them.
 */
static void put_tops(struct http_writer *w, const struct http_token *t)
{
	bool has_own = false, any = false;

	http_put_text(w, "{");
	for (size_t i = 0; i < t->n_tops; i++) {
		const struct sink_alternative *a = &t->tops[i];
		bool again = false;

		for (size_t k = 0; k < i && !again; k++)
			again = same_bytes(&t->tops[k], a->bytes, a->n_bytes);
		if (again)
			continue;
		has_own = has_own || same_bytes(a, t->bytes, t->n_bytes);
		if (any)
			http_put_text(w, ",");
		any = true;
		http_put_piece(w, a->bytes, a->n_bytes);
		http_put_text(w, ":");
		http_put_float(w, a->logprob);
	}
	if (!has_own) {
		if (any)
			http_put_text(w, ",");
		http_put_piece(w, t->bytes, t->n_bytes);
		http_put_text(w, ":");
		http_put_float(w, t->logprob);
	}
	http_put_text(w, "}");
}

static void add_completion(struct http_logprobs *l, const struct http_token *t)
{
	http_put_piece(&l->columns[COLUMN_TOKENS], t->bytes, t->n_bytes);
	http_put_float(&l->columns[COLUMN_LOGPROBS], t->logprob);
	/* The first token of a prompt comes after nothing. */
	if (t->wants_tops && t->logprob == t->logprob)
		put_tops(&l->columns[COLUMN_TOPS], t);
	else
		http_put_text(&l->columns[COLUMN_TOPS], "null");
	http_put_u64(&l->columns[COLUMN_OFFSETS], t->offset);
}

void http_logprobs_add(struct http_logprobs *l, bool is_chat, const struct http_token *token)
{
	for (size_t i = 0; l->begun && i < ARRAY_SIZE(l->columns); i++)
		http_put_text(&l->columns[i], ",");
	l->begun = true;
	if (is_chat)
		add_chat(&l->columns[0], token);
	else
		add_completion(l, token);
}

static void put_logprobs(struct http_writer *w, bool is_chat, const struct http_logprobs *l)
{
	static const char *const names[] = { "tokens", "token_logprobs", "top_logprobs", "text_offset" };

	if (!l) {
		http_put_text(w, "null");
		return;
	}
	if (is_chat) {
		http_put_text(w, "{\"content\":[");
		http_put_writer(w, &l->columns[0]);
		http_put_text(w, "],\"refusal\":null}");
		return;
	}
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		http_put_text(w, i ? ",\"" : "{\"");
		http_put_text(w, names[i]);
		http_put_text(w, "\":[");
		http_put_writer(w, &l->columns[i]);
		http_put_text(w, "]");
	}
	http_put_text(w, "}");
}

/*
 * What has only begun goes on with bytes, or is ill-formed and ends.  How many of them it takes.
 * *whole: it is a character now, or U+FFFD.
 */
static size_t finish_cut(struct http_place *p, const uint8_t *bytes, size_t n, bool *whole)
{
	size_t k = MIN(n, sizeof(p->cut) - p->n_cut);
	uint8_t joined[sizeof(p->cut)];
	int length;

	memcpy(joined, p->cut, p->n_cut);
	memcpy(joined + p->n_cut, bytes, k);
	length = utf8_scan(joined, p->n_cut + k);
	*whole = length != 0;
	if (!length) {
		memcpy(p->cut, joined, p->n_cut + k);
		p->n_cut += k;
		return k;
	}
	k = (size_t)(length < 0 ? -length : length) - p->n_cut;
	p->n_cut = 0;
	p->n_characters++;
	return k;
}

uint64_t http_place_token(struct http_place *p, const uint8_t *bytes, size_t n)
{
	uint64_t begin = p->n_characters;
	bool whole = true;
	size_t at = 0;

	if (p->n_cut && n) {
		at = finish_cut(p, bytes, n, &whole);
		/* It took none of them: they begin behind it. */
		if (!at)
			begin = p->n_characters;
	}
	while (whole && at < n) {
		int length = utf8_scan(bytes + at, n - at);

		if (!length) {
			p->n_cut = n - at;
			memcpy(p->cut, bytes + at, p->n_cut);
			break;
		}
		p->n_characters++;
		at += (size_t)(length < 0 ? -length : length);
	}
	return begin;
}

/* --- usage ------------------------------------------------------------------------------------ */

void http_usage_add(struct http_usage *u, const struct sink_event *event, bool is_first)
{
	u->generated_tokens += event->usage.generated_tokens;
	if (!is_first)
		return;
	u->prompt_tokens += event->usage.prompt_tokens;
	u->cached_tokens += event->usage.cached_tokens;
	if (u->any)
		return;
	u->any = true;
	u->miss = event->usage.miss;
	u->miss_token = event->usage.miss_token;
	u->n_miss_bytes = MIN(event->usage.n_miss_bytes, sizeof(u->miss_bytes));
	if (u->n_miss_bytes)
		memcpy(u->miss_bytes, event->usage.miss_bytes, u->n_miss_bytes);
	u->queue_ns = event->usage.queue_ns;
	u->prefill_ns = event->usage.prefill_ns;
	u->decode_ns = event->usage.decode_ns;
}

static void put_member(struct http_writer *w, const char *name, uint64_t v)
{
	http_put_text(w, name);
	http_put_u64(w, v);
}

void http_put_usage(struct http_writer *w, const struct http_usage *u)
{
	static const char *const misses[] = {
		[KVD_MISS_NONE] = "none", [KVD_MISS_NO_CACHE] = "no_cache", [KVD_MISS_EMPTY] = "empty",
		[KVD_MISS_DIFFERS] = "differs", [KVD_MISS_EXPIRED] = "expired", [KVD_MISS_EVICTED] = "evicted",
		[KVD_MISS_NAMESPACE] = "namespace", [KVD_MISS_LOGPROBS] = "logprobs", [KVD_MISS_KEY] = "key",
		[KVD_MISS_BLOCK] = "block",
	};

	put_member(w, "{\"prompt_tokens\":", u->prompt_tokens);
	put_member(w, ",\"completion_tokens\":", u->generated_tokens);
	put_member(w, ",\"total_tokens\":", u->prompt_tokens + u->generated_tokens);
	put_member(w, ",\"prompt_tokens_details\":{\"cached_tokens\":", u->cached_tokens);
	http_put_text(w, "},\"kvd\":{\"miss\":");
	http_put_cstring(w, u->miss < ARRAY_SIZE(misses) ? misses[u->miss] : "unknown");
	if (u->miss != KVD_MISS_NONE && u->miss_token >= 0 && u->n_miss_bytes) {
		put_member(w, ",\"miss_token\":", (uint64_t)u->miss_token);
		http_put_text(w, ",\"miss_text\":");
		http_put_string(w, u->miss_bytes, u->n_miss_bytes);
	}
	put_member(w, ",\"queue_us\":", u->queue_ns / 1000);
	put_member(w, ",\"prefill_us\":", u->prefill_ns / 1000);
	put_member(w, ",\"decode_us\":", u->decode_ns / 1000);
	http_put_text(w, "}}");
}

/* --- objects ------------------------------------------------------------------------------------ */

void http_put_head(struct http_writer *w, const struct http_head *h)
{
	http_put_text(w, "{\"id\":");
	http_put_cstring(w, h->id);
	http_put_text(w, ",\"object\":");
	http_put_cstring(w, !h->is_chat ? "text_completion" :
			    h->is_chunk ? "chat.completion.chunk" : "chat.completion");
	put_member(w, ",\"created\":", h->created);
	http_put_text(w, ",\"model\":");
	http_put_cstring(w, h->model);
	http_put_text(w, ",\"system_fingerprint\":");
	http_put_cstring(w, h->fingerprint);
	http_put_text(w, ",\"choices\":[");
}

void http_put_tail(struct http_writer *w, const struct http_usage *usage, bool says_null)
{
	http_put_text(w, "]");
	if (usage) {
		http_put_text(w, ",\"usage\":");
		http_put_usage(w, usage);
	} else if (says_null) {
		http_put_text(w, ",\"usage\":null");
	}
	http_put_text(w, "}");
}

static void put_text_of(struct http_writer *w, const struct http_choice_text *c)
{
	http_put_text(w, "\"");
	if (c->escaped)
		http_put_writer(w, c->escaped);
	else
		http_put_escaped(w, c->bytes, c->n_bytes);
	http_put_text(w, "\"");
}

static void put_ids(struct http_writer *w, const struct http_choice_text *c)
{
	if (!c->ids)
		return;
	http_put_text(w, ",\"token_ids\":[");
	http_put_writer(w, c->ids);
	http_put_text(w, "]");
}

static void put_content(struct http_writer *w, const struct http_head *h, const struct http_choice_text *c)
{
	if (!h->is_chat) {
		http_put_text(w, ",\"text\":");
		put_text_of(w, c);
		put_ids(w, c);
	} else if (!h->is_chunk) {
		http_put_text(w, ",\"message\":{\"role\":\"assistant\",\"content\":");
		put_text_of(w, c);
		http_put_text(w, ",\"refusal\":null");
		put_ids(w, c);
		http_put_text(w, "}");
	} else if (c->is_last) {
		http_put_text(w, ",\"delta\":{}");
	} else {
		http_put_text(w, ",\"delta\":{");
		http_put_text(w, c->is_role ? "\"role\":\"assistant\",\"content\":" : "\"content\":");
		put_text_of(w, c);
		put_ids(w, c);
		http_put_text(w, "}");
	}
}

void http_put_choice(struct http_writer *w, const struct http_head *h, const struct http_choice_text *c)
{
	put_member(w, "{\"index\":", c->index);
	put_content(w, h, c);
	http_put_text(w, ",\"logprobs\":");
	put_logprobs(w, h->is_chat, c->logprobs);
	http_put_text(w, ",\"finish_reason\":");
	http_put_text(w, !c->finish ? "null" : c->finish == KVD_FINISH_LENGTH ? "\"length\"" : "\"stop\"");
	http_put_text(w, "}");
}
