/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output.h - from a sampled token to the events that a sink gets.
 *
 * The events of one step stay here until the sink has taken them: there is
 * room for one step's, so a request with pending events makes no token.
 *
 * Thread: the engine thread.
 */
#ifndef KVD_OUTPUT_H
#define KVD_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/engine/engine.h"
#include "daemon/engine/sampler.h"
#include "daemon/engine/sink.h"
#include "daemon/engine/text.h"

struct tokenizer;

#define OUTPUT_PROMPTS_MAX 33	/* prompt tokens with a log-probability in one step */

struct output_prompt {
	int32_t id, previous;	/* previous: the token before, -1: none */
	float logprob;
	uint32_t position;
	uint32_t n_top;		/* alternatives that it has */
};

struct output {
	struct output_prompt *prompts;		/* [OUTPUT_PROMPTS_MAX] where asked for, pending before the events */
	struct sampler_top *prompt_tops;	/* [OUTPUT_PROMPTS_MAX][n_prompt_tops] their alternatives */
	uint32_t n_prompt_tops;
	uint32_t n_prompts, next_prompt;	/* those before next_prompt were taken */
	struct text_filter filter;
	struct text_buffer text;		/* of the pending text event */
	struct sink_alternative *alternatives;	/* [n_alternatives] */
	uint32_t n_alternatives;
	struct sink_event events[3];
	size_t n_events;			/* pending; 0: none */
};

/* Figures of the usage event. */
struct output_usage {
	uint32_t prompt_tokens, cached_tokens, generated_tokens;
	enum sink_miss miss;
	int32_t miss_token;
	const uint8_t *miss_bytes;	/* what it stands for */
	size_t n_miss_bytes;
	uint64_t queue_ns, prefill_ns, decode_ns;
};

struct output_options {
	const char *const *stop;	/* [n_stop] */
	size_t n_stop;
	uint32_t n_logprobs;		/* alternatives of a generated token, at most; cut to SAMPLER_TOP_MAX */
	bool prompts;			/* prompt tokens will come ... */
	uint32_t n_prompt_tops;		/* ... with so many alternatives, <= ENGINE_PROMPT_ALTERNATIVES_MAX */
};

/* 0, -ENOMEM, -EINVAL (stop strings, see text.h). */
int output_init(struct output *o, const struct output_options *options);
void output_deinit(struct output *o);
/* Bytes that it may hold beside itself, where no token has more than max_piece bytes. */
uint64_t output_bound(const struct output *o, uint32_t max_piece);

/*
 * Makes the events of a token that comes behind the token previous (-1: none):
 * token, alternatives if there are any, text if any is released (never for a
 * control token).  None may be pending.  gap_ns: as in the event.  0 or -ENOMEM.
 */
int output_token(struct output *o, const struct tokenizer *t, int32_t previous,
		 const struct sampler_result *token, uint64_t gap_ns);

/*
 * A prompt token, behind previous (-1: it is the first), with its log-probability and alternatives; there is room
 * for those of one step, and they come before the token's.
 */
void output_prompt(struct output *o, int32_t previous, uint32_t position, const struct sampler_result *token);

/* The event of a vector [n], which stays until the sink has taken it.  No other may be pending. */
void output_embedding(struct output *o, const float *values, uint32_t n);

/* A stop string was found: nothing more will be shown. */
static inline bool output_stopped(const struct output *o)
{
	return o->filter.decided;
}

static inline bool output_pending(const struct output *o)
{
	return o->n_events || o->next_prompt < o->n_prompts;
}

/*
 * Offers what is pending; what emit() returned.  Nothing is pending after 0;
 * otherwise something may have been taken all the same.
 */
int output_emit(struct output *o, const struct tokenizer *t, struct sink *sink, uint64_t request);

/* The last events: the rest of the text, usage and done.  What emit() returned, or -ENOMEM. */
int output_done(struct output *o, struct sink *sink, uint64_t request,
		const struct output_usage *usage, enum sink_finish reason);

#endif
