/* SPDX-License-Identifier: Apache-2.0 */
/*
 *	stream-load (--ring SOCKET | --http ADDR:PORT | --http unix:PATH) [--streams N] [--requests N] [--tokens N]
 *	            [--prompt TEXT] [--seed N] [--times FILE]
 *
 * Prints one line of JSON: tokens, seconds, the reader's processor time, bytes.  Exit status 1: something
 * that was asked for did not come.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "tests/load/load.h"

#define STREAMS_MAX 1024

uint64_t load_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

bool load_fail(const struct stream *s, const char *fmt, ...)
{
	va_list args;

	fprintf(stderr, "stream-load: stream %u: ", s->index);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	return false;
}

void load_token(struct stream *s, uint64_t now)
{
	struct load_time time = { .seed = s->seed, .index = s->n_seen++, .ns = now };

	s->load->pieces++;
	if (s->load->times)
		fwrite(&time, sizeof(time), 1, s->load->times);
}

static bool next_request(struct stream *s)
{
	struct load *l = s->load;

	s->seed = l->seed + (uint64_t)s->index * l->n_requests + s->n_made;
	s->n_made++;
	s->n_seen = 0;
	return l->transport->submit(s);
}

bool load_done(struct stream *s, uint32_t n_tokens)
{
	struct load *l = s->load;

	if (n_tokens != l->n_tokens)
		return load_fail(s, "%u tokens instead of %u", n_tokens, l->n_tokens);
	l->tokens += n_tokens;
	if (s->n_made < l->n_requests)
		return next_request(s);
	l->n_running--;
	return true;
}

static bool begin(struct load *l, struct stream *streams)
{
	for (uint32_t i = 0; i < l->n_streams; i++) {
		struct stream *s = &streams[i];
		struct epoll_event event = { .events = EPOLLIN, .data.ptr = s };

		*s = (struct stream){ .load = l, .index = i, .fd = -1 };
		if (!l->transport->open(s))
			return false;
		if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, s->fd, &event) < 0)
			return load_fail(s, "epoll_ctl: %s", strerror(errno));
	}
	return true;
}

static bool run(struct load *l, struct stream *streams)
{
	struct epoll_event events[64];

	l->n_running = l->n_streams;
	for (uint32_t i = 0; i < l->n_streams; i++) {
		if (!next_request(&streams[i]))
			return false;
	}
	while (l->n_running) {
		int n = epoll_wait(l->epoll, events, 64, 120000);

		if (n <= 0 && errno != EINTR)
			return load_fail(&streams[0], "nothing comes any more");
		for (int i = 0; i < n; i++) {
			struct stream *s = events[i].data.ptr;

			if (!l->transport->take(s))
				return false;
		}
	}
	return true;
}

static double processor_time(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static int measure(struct load *l, struct stream *streams)
{
	double cpu;
	uint64_t start;
	bool done;

	if (!begin(l, streams))
		return EXIT_FAILURE;
	cpu = processor_time();
	start = load_now();
	done = run(l, streams);
	if (!done)
		return EXIT_FAILURE;
	printf("{\"tokens\": %" PRIu64 ", \"pieces\": %" PRIu64 ", \"seconds\": %.6f, \"cpu\": %.6f, "
	       "\"bytes\": %" PRIu64 ", \"prompt_tokens\": %u, \"cached_tokens\": %u}\n",
	       l->tokens, l->pieces, (double)(load_now() - start) / 1e9, processor_time() - cpu, l->bytes,
	       streams[0].prompt_tokens, streams[0].cached_tokens);
	for (uint32_t i = 0; i < l->n_streams; i++)
		l->transport->close(&streams[i]);
	return EXIT_SUCCESS;
}

static int usage(void)
{
	fputs("usage: stream-load (--ring SOCKET | --http ADDR:PORT | --http unix:PATH) [--streams N] [--requests N]\n"
	      "                   [--tokens N] [--prompt TEXT] [--seed N] [--times FILE]\n", stderr);
	return 2;
}

static bool number(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
	char *end;

	errno = 0;
	*out = strtoull(text, &end, 10);
	return !errno && end != text && !*end && *out >= min && *out <= max;
}

static bool read_options(struct load *l, int argc, char **argv)
{
	static const struct option options[] = {
		{ "ring", 1, NULL, 'r' },     { "http", 1, NULL, 'h' },   { "streams", 1, NULL, 's' },
		{ "requests", 1, NULL, 'q' }, { "tokens", 1, NULL, 'n' }, { "prompt", 1, NULL, 'p' },
		{ "seed", 1, NULL, 'S' },     { "times", 1, NULL, 't' },  { NULL, 0, NULL, 0 },
	};
	uint64_t streams = 16, requests = 1, tokens = 64;
	bool good = true;
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'r':
		case 'h':
			l->transport = c == 'r' ? &load_ring : &load_http;
			l->address = optarg;
			break;
		case 's':
			good &= number(optarg, 1, STREAMS_MAX, &streams);
			break;
		case 'q':
			good &= number(optarg, 1, 1000000, &requests);
			break;
		case 'n':
			good &= number(optarg, 1, 1000000, &tokens);
			break;
		case 'p':
			l->prompt = optarg;
			break;
		case 'S':
			good &= number(optarg, 0, UINT64_MAX / 2, &l->seed);
			break;
		case 't':
			l->times = fopen(optarg, "wb");
			good &= l->times != NULL;
			break;
		default:
			return false;
		}
	}
	l->n_streams = (uint32_t)streams;
	l->n_requests = (uint32_t)requests;
	l->n_tokens = (uint32_t)tokens;
	return good && l->transport && optind == argc;
}

int main(int argc, char **argv)
{
	struct load l = { .prompt = "Once upon a time", .epoll = epoll_create1(EPOLL_CLOEXEC) };
	struct stream *streams;
	int status;

	if (l.epoll < 0 || !read_options(&l, argc, argv))
		return usage();
	streams = calloc(l.n_streams, sizeof(*streams));
	status = streams ? measure(&l, streams) : EXIT_FAILURE;
	if (l.times && fclose(l.times))
		status = EXIT_FAILURE;
	free(streams);
	close(l.epoll);
	return status;
}
