/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/interrupt.h"
#include "client/ctl/progress.h"
#include "client/ctl/stream-show.h"
#include "client/ctl/stream.h"

#define CANCEL_WAIT_NS 2000000000u	/* for the last event of a cancelled request */

struct stream {
	struct ctl *ctl;
	struct kvd_client *c;
	uint64_t request;
	struct show show;
	struct progress progress;
	struct reply *reply;
	bool no_figures;
	bool interrupted;	/* Ctrl-C */
	bool broken;		/* nobody reads stdout */
	int output_error;	/* -errno, other than a closed pipe */
	uint64_t cancelled_ns;	/* when it was cancelled, 0: it was not */
	bool ended;
	int status;
};

void reply_deinit(struct reply *reply)
{
	free(reply->text.data);
	free(reply->ids);
	free(reply->miss_bytes.data);
	*reply = (struct reply){ 0 };
}

static int reply_add_id(struct reply *reply, int32_t id)
{
	if (reply->n_ids == reply->ids_capacity) {
		size_t capacity = reply->ids_capacity ? 2 * reply->ids_capacity : 256;
		int32_t *ids = reallocarray(reply->ids, capacity, sizeof(*ids));
		if (!ids)
			return -ENOMEM;
		reply->ids = ids;
		reply->ids_capacity = capacity;
	}
	reply->ids[reply->n_ids++] = id;
	return 0;
}

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void stream_cancel(struct stream *s)
{
	if (s->cancelled_ns)
		return;
	s->cancelled_ns = now_ns();
	kvd_cancel(s->c, s->request);	/* a daemon that is gone shows at the next event */
}

/* Output that failed is no reason to let the daemon work on. */
static void stream_output_failed(struct stream *s, int r)
{
	if (r == -EINTR)
		s->interrupted = true;
	else if (r == -EPIPE)
		s->broken = true;
	else
		s->output_error = r;
	stream_cancel(s);
}

static int stream_usage(struct reply *reply, const struct kvd_event *e)
{
	reply->has_usage = true;
	reply->prompt_tokens = e->prompt_tokens;
	reply->cached_tokens = e->cached_tokens;
	reply->generated_tokens = e->generated_tokens;
	reply->queue_ns = e->queue_ns;
	reply->prefill_ns = e->prefill_ns;
	reply->decode_ns = e->decode_ns;
	reply->miss = e->miss;
	reply->miss_token = e->id;
	reply->miss_bytes.n = 0;
	return text_append(&reply->miss_bytes, e->bytes, e->n_bytes);
}

static void stream_refused(struct stream *s, const struct kvd_event *e)
{
	char text[512];
	bool template = e->code == KVD_REFUSED_TEMPLATE;
	const char *hint = template ? "; --raw sends the prompt without a template" : "";

	snprintf(text, sizeof(text), "%.*s", (int)(e->n_bytes < 500 ? e->n_bytes : 500),
		 (const char *)e->bytes);
	progress_clear(&s->progress);
	ctl_error(s->ctl, "%s%s", *text ? text : refusal_name(e->code), hint);
	s->reply->error_code = e->code;
	s->status = ctl_refused_status((int)e->code);
	if (!s->broken && !s->output_error)
		show_error(&s->show, text, e->code, e->field);
	s->ended = true;
}

static void stream_event(struct stream *s, const struct kvd_event *e)
{
	struct reply *reply = s->reply;
	int r = 0;

	switch (e->type) {
	case KVD_EVENT_PROGRESS:
		progress_show(&s->progress, "prefill %u/%u", e->done, e->total);
		return;
	case KVD_EVENT_TOKEN:
		r = reply_add_id(reply, e->id);
		break;
	case KVD_EVENT_TEXT:
		progress_clear(&s->progress);
		r = text_append(&reply->text, e->bytes, e->n_bytes);
		break;
	case KVD_EVENT_USAGE:
		r = stream_usage(reply, e);
		if (r)
			stream_output_failed(s, r);
		return;
	case KVD_EVENT_DONE:
		reply->finished = true;
		reply->finish = e->finish;
		s->ended = true;
		return;
	case KVD_EVENT_ERROR:
		stream_refused(s, e);
		return;
	default:
		break;
	}
	if (!r && !s->cancelled_ns)
		r = show_event(&s->show, e);
	if (r)
		stream_output_failed(s, r);
}

/* Sleeps until there is an event, Ctrl-C, or nobody who reads stdout. */
static void stream_wait(struct stream *s)
{
	int timeout = -1;
	struct pollfd p[3] = {
		{ .fd = kvd_fd(s->c), .events = POLLIN },
		{ .fd = s->interrupted ? -1 : interrupt_fd(), .events = POLLIN },
		{ .fd = s->cancelled_ns ? -1 : STDOUT_FILENO },	/* errors only */
	};

	if (s->cancelled_ns) {
		uint64_t past = now_ns() - s->cancelled_ns;
		if (past >= CANCEL_WAIT_NS) {
			s->ended = true;
			return;
		}
		timeout = (int)((CANCEL_WAIT_NS - past) / 1000000) + 1;
	}
	if (poll(p, 3, timeout) > 0 && (p[2].revents & (POLLERR | POLLHUP)))
		stream_output_failed(s, -EPIPE);
}

static void stream_loop(struct stream *s)
{
	while (!s->ended) {
		const struct kvd_event *event;
		if (interrupt_pending() && !s->interrupted) {
			s->interrupted = true;
			stream_cancel(s);
		}
		int r = kvd_next(s->c, 0, &event);
		if (!r) {
			if (event->request == s->request)
				stream_event(s, event);
		} else if (r == KVD_E_TIMEOUT) {
			stream_wait(s);
		} else {
			progress_clear(&s->progress);
			s->status = ctl_client_failed(s->ctl, s->c, r, "the answer ended early");
			show_error(&s->show, "the answer ended early", KVD_REFUSED_INTERNAL, "");
			return;
		}
	}
}

/* Why not all of the prompt was cached. */
static void print_miss(const struct reply *reply)
{
	char quoted[64];

	if (reply->miss == KVD_CACHE_MISS_NONE || reply->miss == KVD_CACHE_MISS_NO_CACHE || reply->miss_token < 0)
		return;
	text_quote(reply->miss_bytes.data, reply->miss_bytes.n, quoted, sizeof(quoted));
	fprintf(stderr, "[%u of %u prompt tokens cached; first that %s: ", reply->cached_tokens, reply->prompt_tokens,
		reply->miss == KVD_CACHE_MISS_DIFFERS ? "differs" : "is not");
	text_print_visible(stderr, quoted, strlen(quoted));
	if (reply->miss == KVD_CACHE_MISS_DIFFERS)
		fputs("]\n", stderr);
	else
		fprintf(stderr, " (%s)]\n", miss_words(reply->miss));
}

static void print_figures(const struct reply *reply)
{
	double seconds = (double)reply->decode_ns / 1e9;

	fprintf(stderr, "[%u prompt tokens (%u cached) in %.2f s, %u tokens in %.2f s", reply->prompt_tokens,
		reply->cached_tokens, (double)reply->prefill_ns / 1e9, reply->generated_tokens, seconds);
	if (seconds > 0 && reply->generated_tokens)
		fprintf(stderr, ", %.1f tok/s", reply->generated_tokens / seconds);
	fprintf(stderr, "; %s]\n", finish_name(reply->finish));
	print_miss(reply);
}

static void stream_finish(struct stream *s)
{
	struct reply *reply = s->reply;
	int r = 0;

	progress_clear(&s->progress);
	if (s->interrupted && !reply->finished) {
		reply->finish = KVD_DONE_CANCELLED;
		reply->finished = true;
	}
	if (reply->finished && !s->broken && !s->output_error)
		r = show_summary(&s->show, reply);
	if (r && r != -EPIPE && r != -EINTR)
		s->output_error = r;
	if (s->output_error)
		ctl_error(s->ctl, "cannot write the output: %s", strerror(-s->output_error));
	if (s->interrupted)
		s->status = CTL_INTERRUPTED;
	else if (s->broken || s->output_error || r)
		s->status = CTL_FAILED;
	if (s->progress.enabled && !s->no_figures && reply->has_usage && !s->broken)
		print_figures(reply);
}

int stream_run(struct ctl *ctl, struct kvd_client *c, const struct kvd_params *params,
	       const struct stream_options *options, struct reply *reply)
{
	struct stream s = { .ctl = ctl, .c = c, .reply = reply, .no_figures = options->no_figures };
	struct kvd_params p = *params;

	progress_init(&s.progress, options->quiet);
	p.progress = s.progress.enabled;
	int r = kvd_submit(c, &p, &s.request);
	if (r)
		return ctl_client_failed(ctl, c, r, "cannot submit the prompt");
	show_init(&s.show, options->mode, params->logprobs > 0);
	s.show.out.end_line = options->end_line;
	stream_loop(&s);
	stream_finish(&s);
	show_deinit(&s.show);
	return s.status;
}
