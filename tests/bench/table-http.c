/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same streams of tokens through shared memory and through HTTP on a Unix socket, by the readers of
 * tests/load.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "tests/bench/private.h"
#include "tests/bench/tables.h"
#include "tests/load/load.h"

#define STREAMS_MAX 8u
#define SILENCE_MS 600000

static const struct way {
	const char *name;
	bool http;
	uint32_t n_streams;
} ways[] = {
	{ "shared memory, 1 stream", false, 1 }, { "HTTP, 1 stream", true, 1 },
	{ "shared memory, 8 streams", false, 8 }, { "HTTP, 8 streams", true, 8 },
};

enum { TOKENS, DAEMON_US, CLIENT_US, BYTES, GAP50, GAP99 };

static const struct column columns[] = {
	[TOKENS] = { "tokens_per_s", "tokens/s", 1 }, [DAEMON_US] = { "daemon_us_per_token", "daemon, us", 1 },
	[CLIENT_US] = { "client_us_per_token", "client, us", 2 }, [BYTES] = { "bytes_per_token", "bytes", 1 },
	[GAP50] = { "ms_between_p50", "ms, p50", 2 }, [GAP99] = { "ms_between_p99", "ms, p99", 2 },
};

struct http {
	struct run *run;
	struct table *table;
	struct private daemon;
	struct row *rows[ARRAY_SIZE(ways)];
};

/* Gaps between tokens of the run that is measured. */
static struct {
	uint64_t last[STREAMS_MAX];
	double *gaps;		/* [most] */
	uint32_t n, most;
} gaps;

uint64_t load_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

bool load_fail(const struct stream *s, const char *fmt, ...)
{
	char text[300];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	complain("stream %u: %s", s->index, text);
	return false;
}

void load_token(struct stream *s, uint64_t now)
{
	if (s->n_seen++ && gaps.n < gaps.most)
		gaps.gaps[gaps.n++] = (double)(now - gaps.last[s->index]) / 1e6;
	gaps.last[s->index] = now;
}

bool load_done(struct stream *s, uint32_t n_tokens)
{
	if (n_tokens != s->load->n_tokens)
		return load_fail(s, "%u tokens instead of %u", n_tokens, s->load->n_tokens);
	s->load->tokens += n_tokens;
	s->load->n_running--;
	return true;
}

static bool begin(struct load *l, struct stream *streams)
{
	for (uint32_t i = 0; i < l->n_streams; i++)
		streams[i] = (struct stream){ .load = l, .index = i, .fd = -1 };
	for (uint32_t i = 0; i < l->n_streams; i++) {
		struct stream *s = &streams[i];
		struct epoll_event event = { .events = EPOLLIN, .data.ptr = s };

		if (!l->transport->open(s) || epoll_ctl(l->epoll, EPOLL_CTL_ADD, s->fd, &event))
			return false;
	}
	return true;
}

static bool read_all(struct load *l, struct stream *streams)
{
	struct epoll_event events[STREAMS_MAX];

	l->n_running = l->n_streams;
	for (uint32_t i = 0; i < l->n_streams; i++) {
		streams[i].seed = l->seed + i;
		if (!l->transport->submit(&streams[i]))
			return false;
	}
	while (l->n_running) {
		int n = epoll_wait(l->epoll, events, STREAMS_MAX, SILENCE_MS);

		if (!n)
			return load_fail(&streams[0], "nothing comes any more");
		for (int i = 0; i < n; i++)
			if (!l->transport->take(events[i].data.ptr))
				return false;
	}
	return true;
}

static double thread_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int measure(struct http *h, const struct way *way, struct row *row)
{
	char address[PATH_MAX + 8];
	struct stream streams[STREAMS_MAX];
	_cleanup_(fd_closep) int epoll = epoll_create1(EPOLL_CLOEXEC);
	struct load l = {
		.transport = way->http ? &load_http : &load_ring,
		.address = address,
		.prompt = "Once upon a time",
		.n_streams = way->n_streams,
		.n_requests = 1,
		.n_tokens = h->run->o.tokens,
		.epoll = epoll,
	};
	double daemon, client;
	uint64_t start;
	bool good;

	snprintf(address, sizeof(address), "%s%s", way->http ? "unix:" : "",
		 way->http ? h->daemon.http : h->daemon.socket);
	if (epoll < 0)
		return -errno;
	good = begin(&l, streams);
	gaps.n = 0;
	daemon = private_cpu_seconds(&h->daemon);
	client = thread_seconds();
	start = load_now();
	good = good && read_all(&l, streams);
	if (good && row) {
		double seconds = (double)(load_now() - start) / 1e9, n = (double)l.tokens;

		cell_add(row, TOKENS, n / seconds);
		cell_add(row, CLIENT_US, (thread_seconds() - client) / n * 1e6);
		cell_add(row, DAEMON_US, (private_cpu_seconds(&h->daemon) - daemon) / n * 1e6);
		cell_add(row, BYTES, (double)l.bytes / n);
		cell_add(row, GAP50, percentile(gaps.gaps, gaps.n, 0.5));
		cell_add(row, GAP99, percentile(gaps.gaps, gaps.n, 0.99));
	}
	for (uint32_t i = 0; i < l.n_streams; i++)
		l.transport->close(&streams[i]);
	return good ? 0 : -EIO;
}

static int start_daemon(struct http *h)
{
	static const char *const options[] = { "--kv-memory", "512M", "--disk", "off",
					       "--max-seqs",  "16",   NULL };
	struct diag diag = DIAG_NULL;
	int r = private_init(&h->daemon, h->run, options, &diag);

	if (!r)
		r = private_start(&h->daemon, &diag);
	for (uint32_t i = 0; r && i < ARRAY_SIZE(ways); i++)
		row_missing(h->rows[i], "%.150s", diag.text[0] ? diag.text : strerror(-r));
	return r ? 1 : 0;
}

int http_run(struct run *run)
{
	struct http h = { .run = run, .daemon = { .pid = -1, .notify = -1 } };
	int r = results_table(run->results, "http",
			      "streams of tokens through shared memory and through HTTP", columns,
			      ARRAY_SIZE(columns), &h.table);

	if (r)
		return r;
	table_plot(h.table, PLOT_BARS, DAEMON_US, NULL, false);
	for (uint32_t i = 0; i < ARRAY_SIZE(ways); i++)
		h.rows[i] = table_row(h.table, ways[i].n_streams, "%s", ways[i].name);
	gaps.most = STREAMS_MAX * run->o.tokens;
	gaps.gaps = calloc(gaps.most, sizeof(*gaps.gaps));
	r = gaps.gaps ? start_daemon(&h) : -ENOMEM;
	/* The prompt is cached from then on. */
	for (uint32_t i = 0; !r && i < 2; i++)
		r = measure(&h, &ways[i], NULL);
	for (uint32_t k = 0; !r && round_begins(run, h.table, k, run->o.rounds); k++)
		for (uint32_t i = 0; !r && i < ARRAY_SIZE(ways); i++)
			r = measure(&h, &ways[i], h.rows[i]);
	private_deinit(&h.daemon);
	free(gaps.gaps);
	gaps.gaps = NULL;
	table_note(h.table,
		   "%u tokens of each stream; the prompt is cached, so that it is decoding that is measured.  "
		   "us: processor time for a token, the daemon's with what it computes.  ms: between two "
		   "tokens of a stream, as it reads them.",
		   run->o.tokens);
	if (r >= 0)
		table_whole(h.table);
	return MIN(r, 0);
}

double http_seconds(const struct run *run)
{
	return 2 + run->o.rounds * decode_seconds(run, 7.0 * run->o.tokens);
}
