/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/output.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/tokenizer.h"
#include "ipc/base/checked.h"

static int init_arrays(struct output *o, const struct output_options *options)
{
	o->n_alternatives = MIN(options->n_logprobs, (uint32_t)SAMPLER_TOP_MAX);
	if (o->n_alternatives) {
		o->alternatives = calloc(o->n_alternatives, sizeof(*o->alternatives));
		if (!o->alternatives)
			return -ENOMEM;
	}
	if (!options->prompts)
		return 0;
	o->prompts = calloc(OUTPUT_PROMPTS_MAX, sizeof(*o->prompts));
	if (!o->prompts)
		return -ENOMEM;
	o->n_prompt_tops = options->n_prompt_tops;
	if (o->n_prompt_tops) {
		o->prompt_tops = calloc((size_t)OUTPUT_PROMPTS_MAX * o->n_prompt_tops, sizeof(*o->prompt_tops));
		if (!o->prompt_tops)
			return -ENOMEM;
	}
	return 0;
}

int output_init(struct output *o, const struct output_options *options)
{
	struct output new = { 0 };
	int r = init_arrays(&new, options);

	if (!r)
		r = text_filter_init(&new.filter, options->stop, options->n_stop);
	if (r) {
		output_deinit(&new);
		return r;
	}
	*o = new;
	return 0;
}

void output_deinit(struct output *o)
{
	text_filter_deinit(&o->filter);
	free(o->text.bytes);
	free(o->alternatives);
	free(o->prompts);
	free(o->prompt_tops);
	*o = (struct output){ 0 };
}

uint64_t output_bound(const struct output *o, uint32_t max_piece)
{
	return o->n_alternatives * sizeof(*o->alternatives) +
	       (o->prompts ? OUTPUT_PROMPTS_MAX * sizeof(*o->prompts) : 0) +
	       (uint64_t)OUTPUT_PROMPTS_MAX * o->n_prompt_tops * sizeof(*o->prompt_tops) +
	       text_filter_bound(&o->filter, max_piece);
}

static struct sink_event *add_event(struct output *o, enum sink_event_type type)
{
	struct sink_event *event = &o->events[o->n_events++];

	*event = (struct sink_event){ .type = type };
	return event;
}

/* The event of n tokens that could have come behind previous; items: [n]. */
static void set_alternatives(struct sink_event *event, const struct tokenizer *t, int32_t previous,
			     const struct sampler_top *tops, uint32_t n, struct sink_alternative *items)
{
	for (uint32_t i = 0; i < n; i++) {
		items[i] = (struct sink_alternative){ .id = tops[i].id, .logprob = tops[i].logprob };
		items[i].bytes = tokenizer_bytes_after(t, previous, tops[i].id, &items[i].n_bytes);
	}
	event->alternatives.items = items;
	event->alternatives.n = n;
}

static void add_text(struct output *o)
{
	struct sink_event *event = add_event(o, SINK_TEXT);

	event->text.bytes = o->text.bytes;
	event->text.n_bytes = o->text.n;
}

int output_token(struct output *o, const struct tokenizer *t, int32_t previous,
		 const struct sampler_result *token, uint64_t gap_ns)
{
	size_t n_bytes = 0;
	const uint8_t *bytes = tokenizer_bytes_after(t, previous, token->id, &n_bytes);
	bool is_control = tokenizer_is_control(t, token->id) || tokenizer_is_eog(t, token->id);
	struct sink_event *event;

	o->text.n = 0;
	if (!is_control) {
		int r = text_filter_push(&o->filter, bytes, n_bytes, &o->text);
		if (r)
			return r;
	}
	event = add_event(o, SINK_TOKEN);
	event->token.id = token->id;
	event->token.logprob = token->logprob;
	event->token.is_control = is_control;
	event->token.gap_ns = gap_ns;
	event->token.bytes = bytes;
	event->token.n_bytes = n_bytes;
	if (token->n_top)
		set_alternatives(add_event(o, SINK_ALTERNATIVES), t, previous, token->top, token->n_top,
				 o->alternatives);
	if (o->text.n)
		add_text(o);
	return 0;
}

void output_prompt(struct output *o, int32_t previous, uint32_t position, const struct sampler_result *token)
{
	uint32_t n_top = MIN(token->n_top, o->n_prompt_tops);

	if (n_top)
		memcpy(o->prompt_tops + (size_t)o->n_prompts * o->n_prompt_tops, token->top,
		       n_top * sizeof(*token->top));
	o->prompts[o->n_prompts++] = (struct output_prompt){
		.id = token->id, .previous = previous, .logprob = token->logprob, .position = position,
		.n_top = n_top,
	};
}

void output_embedding(struct output *o, const float *values, uint32_t n)
{
	struct sink_event *event = add_event(o, SINK_EMBEDDING);

	event->embedding.values = values;
	event->embedding.n = n;
}

static int emit_prompts(struct output *o, const struct tokenizer *t, struct sink *sink, uint64_t request)
{
	for (; o->next_prompt < o->n_prompts; o->next_prompt++) {
		const struct output_prompt *prompt = &o->prompts[o->next_prompt];
		struct sink_alternative items[ENGINE_PROMPT_ALTERNATIVES_MAX];
		struct sink_event events[2] = {
			{
				.type = SINK_PROMPT,
				.prompt = {
					.id = prompt->id, .logprob = prompt->logprob, .position = prompt->position,
				},
			},
			{ .type = SINK_ALTERNATIVES },
		};
		int r;

		events[0].prompt.bytes = tokenizer_bytes_after(t, prompt->previous, prompt->id,
							       &events[0].prompt.n_bytes);
		if (prompt->n_top)
			set_alternatives(&events[1], t, prompt->previous,
					 o->prompt_tops + (size_t)o->next_prompt * o->n_prompt_tops, prompt->n_top,
					 items);
		r = sink->ops->emit(sink, request, events, prompt->n_top ? 2 : 1);
		if (r)
			return r;
	}
	o->next_prompt = o->n_prompts = 0;
	return 0;
}

int output_emit(struct output *o, const struct tokenizer *t, struct sink *sink, uint64_t request)
{
	int r = emit_prompts(o, t, sink, request);

	if (r)
		return r;
	if (!o->n_events)
		return 0;
	r = sink->ops->emit(sink, request, o->events, o->n_events);
	if (!r)
		o->n_events = 0;
	return r;
}

/* What was held back is shown now; *stopped: a stop string ended the text. */
static int finish_text(struct output *o, bool *stopped)
{
	int r = text_filter_finish(&o->filter, &o->text);

	if (r)
		return r;
	*stopped = o->filter.decided;
	if (o->text.n)
		add_text(o);
	return 0;
}

int output_done(struct output *o, struct sink *sink, uint64_t request,
		const struct output_usage *usage, enum sink_finish reason)
{
	struct sink_event *event;
	bool stopped = false;
	int r;

	o->n_events = 0;
	o->text.n = 0;
	if (reason != SINK_FINISH_CANCELLED) {
		r = finish_text(o, &stopped);
		if (r)
			return r;
	}
	event = add_event(o, SINK_USAGE);
	event->usage.prompt_tokens = usage->prompt_tokens;
	event->usage.generated_tokens = usage->generated_tokens;
	event->usage.cached_tokens = usage->cached_tokens;
	event->usage.miss = usage->miss;
	event->usage.miss_token = usage->miss_token;
	event->usage.miss_bytes = usage->miss_bytes;
	event->usage.n_miss_bytes = usage->n_miss_bytes;
	event->usage.queue_ns = usage->queue_ns;
	event->usage.prefill_ns = usage->prefill_ns;
	event->usage.decode_ns = usage->decode_ns;
	event = add_event(o, SINK_DONE);
	event->done.reason = stopped ? SINK_FINISH_STOP_STRING : reason;
	event->done.stop_index = stopped ? (uint32_t)o->filter.match_index : 0;
	r = sink->ops->emit(sink, request, o->events, o->n_events);
	o->n_events = 0;
	return r;
}
