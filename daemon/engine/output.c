/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/output.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/model/tokenizer.h"
#include "ipc/base/checked.h"

int output_init(struct output *o, const char *const *stop, size_t n_stop, uint32_t n_logprobs, bool prompts)
{
	struct output new = { 0 };
	int r;

	n_logprobs = MIN(n_logprobs, (uint32_t)SAMPLER_TOP_MAX);
	if (n_logprobs) {
		new.alternatives = calloc(n_logprobs, sizeof(*new.alternatives));
		if (!new.alternatives)
			return -ENOMEM;
		new.n_alternatives = n_logprobs;
	}
	if (prompts) {
		new.prompts = calloc(OUTPUT_PROMPTS_MAX, sizeof(*new.prompts));
		if (!new.prompts) {
			output_deinit(&new);
			return -ENOMEM;
		}
	}
	r = text_filter_init(&new.filter, stop, n_stop);
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
	*o = (struct output){ 0 };
}

uint64_t output_bound(const struct output *o, uint32_t max_piece)
{
	return o->n_alternatives * sizeof(*o->alternatives) +
	       (o->prompts ? OUTPUT_PROMPTS_MAX * sizeof(*o->prompts) : 0) +
	       text_filter_bound(&o->filter, max_piece);
}

static struct sink_event *add_event(struct output *o, enum sink_event_type type)
{
	struct sink_event *event = &o->events[o->n_events++];

	*event = (struct sink_event){ .type = type };
	return event;
}

static void add_alternatives(struct output *o, const struct tokenizer *t, int32_t previous,
			     const struct sampler_result *token)
{
	struct sink_event *event = add_event(o, SINK_ALTERNATIVES);

	for (uint32_t i = 0; i < token->n_top; i++) {
		struct sink_alternative *a = &o->alternatives[i];

		a->id = token->top[i].id;
		a->logprob = token->top[i].logprob;
		a->bytes = tokenizer_bytes_after(t, previous, a->id, &a->n_bytes);
	}
	event->alternatives.items = o->alternatives;
	event->alternatives.n = token->n_top;
}

static void add_text(struct output *o)
{
	struct sink_event *event = add_event(o, SINK_TEXT);

	event->text.bytes = o->text.bytes;
	event->text.n_bytes = o->text.n;
}

int output_token(struct output *o, const struct tokenizer *t, int32_t previous,
		 const struct sampler_result *token)
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
	event->token.bytes = bytes;
	event->token.n_bytes = n_bytes;
	if (token->n_top)
		add_alternatives(o, t, previous, token);
	if (o->text.n)
		add_text(o);
	return 0;
}

void output_prompt(struct output *o, const struct output_prompt *prompt)
{
	o->prompts[o->n_prompts++] = *prompt;
}

static int emit_prompts(struct output *o, const struct tokenizer *t, struct sink *sink, uint64_t request)
{
	for (; o->next_prompt < o->n_prompts; o->next_prompt++) {
		const struct output_prompt *prompt = &o->prompts[o->next_prompt];
		struct sink_event event = {
			.type = SINK_PROMPT,
			.prompt = {
				.id = prompt->id, .logprob = prompt->logprob, .position = prompt->position,
			},
		};
		int r;

		event.prompt.bytes = tokenizer_bytes_after(t, prompt->previous, prompt->id, &event.prompt.n_bytes);
		r = sink->ops->emit(sink, request, &event, 1);
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
