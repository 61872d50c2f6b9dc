/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-format.h - how what was generated looks in JSON: completions and chat completions, whole and in chunks
 * (OpenAI's API reference), written by hand (http-writer.h).
 *
 * Thread: any, one at a time.
 */
#ifndef KVD_SERVER_HTTP_FORMAT_H
#define KVD_SERVER_HTTP_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/engine/sink.h"
#include "daemon/server/http-writer.h"
#include "ipc/protocol.h"

/* What every object of a reply begins with. */
struct http_head {
	bool is_chat, is_chunk;
	char id[48];
	char model[KVD_MODEL_NAME_MAX + 1];
	char fingerprint[64];
	uint64_t created;	/* seconds since 1970 */
};

/* Log-probabilities of a stretch of tokens, by columns where the format has columns.  Zero-initialise. */
struct http_logprobs {
	struct http_writer columns[4];
	bool begun;
};
void http_logprobs_deinit(struct http_logprobs *l);
void http_logprobs_clear(struct http_logprobs *l);	/* keeps the memory */
size_t http_logprobs_size(const struct http_logprobs *l);

struct http_token {
	int32_t id;
	float logprob;
	const uint8_t *bytes;
	size_t n_bytes;
	const struct sink_alternative *tops;	/* [n_tops] */
	size_t n_tops;
	bool wants_tops;	/* alternatives were asked for */
	uint64_t offset;	/* in characters of the text */
};
void http_logprobs_add(struct http_logprobs *l, bool is_chat, const struct http_token *token);

/* Where the text of tokens has come to.  Zero-initialise. */
struct http_place {
	uint64_t n_characters;	/* but for one that has only begun: */
	uint8_t cut[4];		/* [n_cut] */
	size_t n_cut;
};
/*
 * The text goes on with a token's bytes.  Returns where they begin, in characters as the text has them (text.h): a
 * token that goes on with a character begins at that one.
 */
uint64_t http_place_token(struct http_place *p, const uint8_t *bytes, size_t n);

struct http_usage {
	uint64_t prompt_tokens, cached_tokens, generated_tokens;
	bool any;			/* what follows is of the first prompt */
	uint32_t miss;			/* enum kvd_miss */
	int32_t miss_token;
	uint8_t miss_bytes[KVD_MISS_BYTES_MAX];
	size_t n_miss_bytes;
	uint64_t queue_ns, prefill_ns, decode_ns;
};
/* Another choice's; is_first: of its prompt. */
void http_usage_add(struct http_usage *u, const struct sink_event *event, bool is_first);
/* The object. */
void http_put_usage(struct http_writer *w, const struct http_usage *u);

/* {"id": ..., "choices":[  */
void http_put_head(struct http_writer *w, const struct http_head *h);
/* ] ... }  usage: NULL in a chunk without it; says_null: "usage": null then. */
void http_put_tail(struct http_writer *w, const struct http_usage *usage, bool says_null);

/* "stop", "length"; KVD_FINISH_*; 0: null. */
struct http_choice_text {
	uint64_t index;
	const struct http_writer *escaped;	/* text: as it stands in a string, or */
	const uint8_t *bytes;			/* [n_bytes] as they are */
	size_t n_bytes;
	const struct http_logprobs *logprobs;	/* NULL: null */
	const struct http_writer *ids;		/* of its tokens, between commas; NULL: not asked for */
	uint32_t finish;
	bool is_role;				/* a chat's first chunk */
	bool is_last;				/* a chunk that only says how it ended */
};
/* One choice, whole or a chunk's. */
void http_put_choice(struct http_writer *w, const struct http_head *h, const struct http_choice_text *c);

#endif
