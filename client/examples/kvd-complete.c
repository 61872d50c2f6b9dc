/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvd-complete - continues every line of its input, many at a time.
 *
 *	kvd-complete [-m MODEL] [-n TOKENS] [-j JOBS] < prompts > answers
 *
 * An example of libkvd in an event loop: one client, one poll() over standard
 * input and kvd_fd(), and as many requests at once as JOBS says.  The daemon
 * batches them, so that eight prompts take little longer than one.  Answers come
 * out one per line in the order of the prompts, newlines in them as "\n".
 *
 * Outside of this tree it includes <kvd.h>, which is where pkg-config says:
 *
 *	cc kvd-complete.c $(pkg-config --cflags --libs kvd)
 */
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/kvd.h"

#define JOBS_MAX 64
#define LINE_BYTES_MAX (1u << 20)

struct buffer {
	char *data;
	size_t n, capacity;
};

/* A prompt that was read: a ring of them, oldest first. */
struct job {
	uint64_t request;
	bool ended;
	struct buffer answer;
};

struct app {
	struct kvd_client *client;
	struct kvd_params params;
	struct job jobs[JOBS_MAX];
	size_t first, n, n_max;
	struct buffer input;
	bool end_of_input;
	int status;
};

static int append(struct buffer *b, const void *p, size_t n)
{
	if (b->n + n > b->capacity) {
		size_t capacity = 2 * b->capacity + n + 64;
		char *data = realloc(b->data, capacity);
		if (!data)
			return -ENOMEM;
		b->data = data;
		b->capacity = capacity;
	}
	if (n)
		memcpy(b->data + b->n, p, n);
	b->n += n;
	return 0;
}

static struct job *job_at(struct app *app, size_t i)
{
	return &app->jobs[(app->first + i) % JOBS_MAX];
}

static int fail(const char *what, const char *why)
{
	fprintf(stderr, "kvd-complete: %s: %s\n", what, why);
	return -1;
}

/* kvd_submit() copies the line, so it may go at once. */
static int submit(struct app *app, const char *line, size_t n)
{
	struct kvd_part part = { .text = line, .n = n };
	struct job *job = job_at(app, app->n);
	struct kvd_params params = app->params;

	params.parts = &part;
	params.n_parts = 1;
	job->answer.n = 0;
	job->ended = n == 0;	/* an empty line has an empty answer */
	if (n && kvd_submit(app->client, &params, &job->request))
		return fail("cannot submit", kvd_client_error(app->client));
	app->n++;
	return 0;
}

/* Submits whole lines while there are free jobs; at the end of input the rest is a line too. */
static int submit_lines(struct app *app)
{
	struct buffer *in = &app->input;
	size_t done = 0;

	while (app->n < app->n_max && done < in->n) {
		char *line = in->data + done;
		char *end = memchr(line, '\n', in->n - done);
		if (!end && !app->end_of_input)
			break;
		size_t n = end ? (size_t)(end - line) : in->n - done;
		if (submit(app, line, n))
			return -1;
		done += end ? n + 1 : n;
	}
	if (done)
		memmove(in->data, in->data + done, in->n -= done);
	return 0;
}

static int read_input(struct app *app)
{
	char chunk[65536];
	ssize_t n = read(STDIN_FILENO, chunk, sizeof(chunk));

	if (n < 0)
		return errno == EINTR || errno == EAGAIN ? 0 : fail("standard input", strerror(errno));
	app->end_of_input = n == 0;
	if (app->input.n + (size_t)n > LINE_BYTES_MAX || append(&app->input, chunk, (size_t)n))
		return fail("standard input", "a line is too long");
	return 0;
}

static void print_answers(struct app *app)
{
	while (app->n && job_at(app, 0)->ended) {
		const struct buffer *answer = &job_at(app, 0)->answer;
		for (size_t i = 0; i < answer->n; i++) {
			if (answer->data[i] == '\n')
				fputs("\\n", stdout);
			else
				putchar(answer->data[i]);
		}
		putchar('\n');
		app->first = (app->first + 1) % JOBS_MAX;
		app->n--;
	}
	fflush(stdout);
}

/* Events of all requests come in one stream; event->request says whose. */
static void take_event(struct app *app, const struct kvd_event *event)
{
	for (size_t i = 0; i < app->n; i++) {
		struct job *job = job_at(app, i);
		if (job->ended || job->request != event->request)
			continue;
		switch (event->type) {
		case KVD_EVENT_TEXT:
			if (append(&job->answer, event->bytes, event->n_bytes))
				app->status = EXIT_FAILURE;
			break;
		case KVD_EVENT_ERROR:
			fprintf(stderr, "kvd-complete: %.*s\n", (int)event->n_bytes,
				(const char *)event->bytes);
			app->status = EXIT_FAILURE;
			job->ended = true;
			break;
		case KVD_EVENT_DONE:
			job->ended = true;
			break;
		default:
			break;
		}
		return;
	}
}

/* Everything that is there; KVD_E_TIMEOUT says that kvd_fd() may be polled now. */
static int take_events(struct app *app)
{
	const struct kvd_event *event;
	int r;

	while (!(r = kvd_next(app->client, 0, &event)))
		take_event(app, event);
	return r == KVD_E_TIMEOUT ? 0 : fail("the daemon", kvd_client_error(app->client));
}

static int loop(struct app *app)
{
	for (;;) {
		if (submit_lines(app) || take_events(app))
			return -1;
		print_answers(app);
		/* answers that are printed leave room for lines that have been read */
		if (app->n < app->n_max && app->input.n && (app->end_of_input ||
		    memchr(app->input.data, '\n', app->input.n)))
			continue;
		if (app->end_of_input && !app->n && !app->input.n)
			return 0;
		bool wants_input = !app->end_of_input && app->n < app->n_max;
		struct pollfd p[2] = {
			{ .fd = kvd_fd(app->client), .events = POLLIN },
			{ .fd = wants_input ? STDIN_FILENO : -1, .events = POLLIN },
		};
		if (poll(p, 2, -1) < 0 && errno != EINTR)
			return fail("poll", strerror(errno));
		if (p[1].revents && read_input(app))
			return -1;
	}
}

static int usage(void)
{
	fprintf(stderr, "usage: kvd-complete [-m MODEL] [-n TOKENS] [-j JOBS] < prompts\n");
	return 2;
}

static bool parse_number(const char *text, unsigned long max, unsigned long *out)
{
	char *end;

	errno = 0;
	unsigned long v = strtoul(text, &end, 10);
	if (errno || *end || *text < '0' || *text > '9' || !v || v > max)
		return false;
	*out = v;
	return true;
}

static bool parse(struct app *app, int argc, char **argv)
{
	unsigned long v = 0;
	int c;

	while ((c = getopt(argc, argv, "m:n:j:")) != -1) {
		if (c == 'm')
			app->params.model = optarg;
		else if (c == 'n' && parse_number(optarg, UINT32_MAX, &v))
			app->params.max_tokens = (uint32_t)v;
		else if (c == 'j' && parse_number(optarg, JOBS_MAX, &v))
			app->n_max = v;
		else
			return false;
	}
	return optind == argc;
}

int main(int argc, char **argv)
{
	struct app app = { .n_max = 8 };
	char diag[256];

	kvd_params_init(&app.params);
	app.params.temperature = 0;
	app.params.max_tokens = 32;
	if (!parse(&app, argc, argv))
		return usage();
	if (kvd_connect(&app.client, NULL, diag, sizeof(diag))) {
		fail("cannot attach", diag);
		return EXIT_FAILURE;
	}
	if (loop(&app))
		app.status = EXIT_FAILURE;
	kvd_close(app.client);
	for (size_t i = 0; i < JOBS_MAX; i++)
		free(app.jobs[i].answer.data);
	free(app.input.data);
	return app.status;
}
