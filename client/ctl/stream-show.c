/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/json.h"
#include "client/ctl/stream-show.h"

const char *finish_name(uint32_t finish)
{
	static const char *const names[] = {
		[KVD_DONE_STOP] = "stop", [KVD_DONE_STOP_STRING] = "stop_string",
		[KVD_DONE_LENGTH] = "length", [KVD_DONE_CANCELLED] = "cancelled",
	};

	return finish < sizeof(names) / sizeof(names[0]) && names[finish] ? names[finish] : "unknown";
}

const char *refusal_name(uint32_t code)
{
	static const char *const names[] = {
		[KVD_REFUSED_BAD_MESSAGE] = "bad_message", [KVD_REFUSED_BAD_FIELD] = "bad_field",
		[KVD_REFUSED_VERSION] = "version", [KVD_REFUSED_QUOTA] = "quota",
		[KVD_REFUSED_PERMISSION] = "permission", [KVD_REFUSED_BUSY] = "busy",
		[KVD_REFUSED_CONTEXT_LENGTH] = "context_length_exceeded", [KVD_REFUSED_NO_MODEL] = "no_model",
		[KVD_REFUSED_TEMPLATE] = "template", [KVD_REFUSED_NO_MEMORY] = "no_memory",
		[KVD_REFUSED_SHUTDOWN] = "shutdown", [KVD_REFUSED_INTERNAL] = "internal",
		[KVD_REFUSED_LOADING] = "loading", [KVD_REFUSED_NO_ENTRY] = "no_entry",
		[KVD_REFUSED_DEADLINE] = "deadline",
	};

	return code < sizeof(names) / sizeof(names[0]) && names[code] ? names[code] : "unknown";
}

static const struct { const char *name, *words; } misses[] = {
	[KVD_CACHE_MISS_NONE] = { "none", "nothing is missing" },
	[KVD_CACHE_MISS_NO_CACHE] = { "no_cache", "the request has no part in the cache" },
	[KVD_CACHE_MISS_EMPTY] = { "empty", "nothing is stored from there on" },
	[KVD_CACHE_MISS_DIFFERS] = { "differs", "differs" },
	[KVD_CACHE_MISS_EXPIRED] = { "expired", "expired" },
	[KVD_CACHE_MISS_EVICTED] = { "evicted", "evicted" },
	[KVD_CACHE_MISS_NAMESPACE] = { "namespace", "another namespace has it" },
	[KVD_CACHE_MISS_LOGPROBS] = { "logprobs", "the prompt's log-probabilities were asked for" },
	[KVD_CACHE_MISS_KEY] = { "key", "another cache key has it" },
	[KVD_CACHE_MISS_BLOCK] = { "block", "less than a block, and whole ones are kept" },
};

const char *miss_name(uint32_t miss)
{
	return miss < sizeof(misses) / sizeof(misses[0]) ? misses[miss].name : "unknown";
}

const char *miss_words(uint32_t miss)
{
	return miss < sizeof(misses) / sizeof(misses[0]) ? misses[miss].words : "unknown";
}

void show_miss(json_t *v, const struct reply *reply)
{
	json_object_set_new(v, "miss", json_string(miss_name(reply->miss)));
	if (reply->miss_token < 0)
		return;
	json_object_set_new(v, "miss_token", json_integer(reply->miss_token));
	json_object_set_new(v, "miss_text", json_text(reply->miss_bytes.data, reply->miss_bytes.n));
	json_object_set_new(v, "miss_bytes", json_bytes(reply->miss_bytes.data, reply->miss_bytes.n));
}

void show_init(struct show *s, enum stream_mode mode, bool want_alternatives)
{
	*s = (struct show){ .mode = mode, .want_alternatives = want_alternatives };
	output_init(&s->out);
}

void show_deinit(struct show *s)
{
	free(s->bytes.data);
}

/* Takes v over. */
static int show_json(struct show *s, json_t *v)
{
	char *line = v ? json_dumps(v, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
	size_t n = line ? strlen(line) : 0;
	int r = -ENOMEM;

	json_decref(v);
	if (line) {
		line[n] = '\n';	/* in the place of the NUL: one write */
		r = output_raw(&s->out, line, n + 1);
	}
	free(line);
	return r;
}

static json_t *json_alternatives(const struct kvd_event *event)
{
	json_t *list = json_array();

	for (size_t i = 0; list && i < event->n_alternatives; i++) {
		const struct kvd_alternative *a = &event->alternatives[i];
		json_array_append_new(list, json_pack("{s:i,s:o,s:o,s:o}", "id", a->id,
						      "logprob", json_number(a->logprob),
						      "text", json_text(a->bytes, a->n_bytes),
						      "bytes", json_bytes(a->bytes, a->n_bytes)));
	}
	return list;
}

static int token_json(struct show *s, const struct kvd_event *alternatives)
{
	json_t *v = json_pack("{s:s,s:i,s:o,s:b,s:o,s:o}", "type", "token", "id", s->id,
			      "logprob", json_number(s->logprob), "control", s->is_control,
			      "text", json_text(s->bytes.data, s->bytes.n),
			      "bytes", json_bytes(s->bytes.data, s->bytes.n));

	if (v && alternatives)
		json_object_set_new(v, "alternatives", json_alternatives(alternatives));
	return show_json(s, v);
}

#define QUOTED_MAX 48
#define TOKEN_COLUMN 18

static int token_row(struct show *s, const struct kvd_event *alternatives)
{
	char quoted[QUOTED_MAX], line[128 + QUOTED_MAX];
	struct text_buffer row = { 0 };
	int r = 0;

	if (!s->header_shown) {
		s->header_shown = true;
		snprintf(line, sizeof(line), "%8s %9s  %s%s\n", "ID", "LOGPROB", "TOKEN",
			 s->want_alternatives ? "             ALTERNATIVES" : "");
		r = text_append(&row, line, strlen(line));
	}
	text_quote(s->bytes.data, s->bytes.n, quoted, sizeof(quoted));
	size_t columns = text_columns(quoted);
	int pad = alternatives && columns < TOKEN_COLUMN ? (int)(TOKEN_COLUMN - columns) : 0;
	snprintf(line, sizeof(line), "%8d %9.4f  %s%*s", s->id, (double)s->logprob, quoted, pad, "");
	if (!r)
		r = text_append(&row, line, strlen(line));
	for (size_t i = 0; !r && alternatives && i < alternatives->n_alternatives; i++) {
		const struct kvd_alternative *a = &alternatives->alternatives[i];
		text_quote(a->bytes, a->n_bytes, quoted, sizeof(quoted));
		snprintf(line, sizeof(line), "%s%s %.4f", i ? "  " : "", quoted, (double)a->logprob);
		r = text_append(&row, line, strlen(line));
	}
	if (!r)
		r = text_append(&row, "\n", 1);
	if (!r)
		r = output_raw(&s->out, row.data, row.n);
	free(row.data);
	return r;
}

static int show_pending(struct show *s, const struct kvd_event *alternatives)
{
	if (!s->pending)
		return 0;
	s->pending = false;
	return s->mode == STREAM_JSON ? token_json(s, alternatives) : token_row(s, alternatives);
}

static int show_token(struct show *s, const struct kvd_event *event)
{
	s->bytes.n = 0;
	int r = text_append(&s->bytes, event->bytes, event->n_bytes);
	if (r)
		return r;
	s->id = event->id;
	s->logprob = event->logprob;
	s->is_control = event->is_control;
	s->pending = true;
	return s->want_alternatives ? 0 : show_pending(s, NULL);
}

static int show_text(struct show *s, const struct kvd_event *event)
{
	if (s->mode == STREAM_TEXT)
		return output_text(&s->out, event->bytes, event->n_bytes);
	if (s->mode == STREAM_JSON)
		return show_json(s, json_pack("{s:s,s:o}", "type", "text",
					      "text", json_text(event->bytes, event->n_bytes)));
	return 0;
}

int show_event(struct show *s, const struct kvd_event *event)
{
	int r = 0;

	if (event->type == KVD_EVENT_ALTERNATIVES)
		return show_pending(s, event);
	r = show_pending(s, NULL);
	if (r)
		return r;
	if (event->type == KVD_EVENT_TOKEN && s->mode != STREAM_TEXT)
		return show_token(s, event);
	if (event->type == KVD_EVENT_TEXT)
		return show_text(s, event);
	return 0;
}

int show_summary(struct show *s, const struct reply *reply)
{
	int r = show_pending(s, NULL);

	if (r)
		return r;
	if (s->mode != STREAM_JSON)
		return output_end_line(&s->out);
	json_t *v = json_pack("{s:s,s:s,s:o}", "type", "done", "finish", finish_name(reply->finish),
			      "text", json_text(reply->text.data, reply->text.n));
	if (v && reply->has_usage) {
		json_t *usage = json_pack("{s:o,s:o,s:o,s:o,s:o,s:o}",
			"prompt_tokens", json_u64(reply->prompt_tokens),
			"cached_tokens", json_u64(reply->cached_tokens),
			"generated_tokens", json_u64(reply->generated_tokens),
			"queue_ns", json_u64(reply->queue_ns), "prefill_ns", json_u64(reply->prefill_ns),
			"decode_ns", json_u64(reply->decode_ns));

		if (usage)
			show_miss(usage, reply);
		json_object_set_new(v, "usage", usage);
	}
	return show_json(s, v);
}

int show_error(struct show *s, const char *text, uint32_t code, const char *field)
{
	if (s->mode != STREAM_JSON)
		return output_end_line(&s->out);
	return show_json(s, json_pack("{s:s,s:s,s:o,s:o}", "type", "error", "code", refusal_name(code),
				      "error", json_text(text, strlen(text)),
				      "field", json_text(field, strlen(field))));
}
