/* SPDX-License-Identifier: Apache-2.0 */
/* stream.h - runs one request and shows what it produces, as it comes. */
#ifndef KVD_CTL_STREAM_H
#define KVD_CTL_STREAM_H

#include "client/ctl/ctl.h"
#include "client/ctl/text.h"

enum stream_mode {
	STREAM_TEXT,	/* the text alone */
	STREAM_TABLE,	/* a line per token with log-probabilities */
	STREAM_JSON,	/* an object per line */
};

struct stream_options {
	enum stream_mode mode;
	bool quiet;		/* nothing on stderr but errors */
	bool no_figures;	/* at the end */
	bool end_line;		/* a newline at the end also where stdout is no terminal */
};

/* What a request gave; reply_deinit(). */
struct reply {
	struct text_buffer text;
	int32_t *ids;		/* as generated, for the next turn's prompt */
	size_t n_ids, ids_capacity;
	bool finished;		/* finish is known */
	uint32_t finish;	/* enum kvd_event_finish */
	bool has_usage;
	uint32_t prompt_tokens, cached_tokens, generated_tokens;
	uint64_t queue_ns, prefill_ns, decode_ns;
	uint32_t miss;		/* enum kvd_cache_miss */
	int32_t miss_token;	/* -1: none */
	struct text_buffer miss_bytes;
	uint32_t error_code;	/* enum kvd_client_code, 0: none */
};

void reply_deinit(struct reply *reply);

/*
 * Submits and follows the request to its end.  interrupt_init() must have been
 * called: Ctrl-C cancels.  Returns an exit status; messages are printed.  A reply
 * that Ctrl-C stopped holds what came until then.
 */
int stream_run(struct ctl *ctl, struct kvd_client *c, const struct kvd_params *params,
	       const struct stream_options *options, struct reply *reply);

#endif
