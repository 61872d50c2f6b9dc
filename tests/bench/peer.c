/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/peer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

#define BASE 0u		/* sequence as long as the longest context that was asked for */
#define WORK 1u		/* first of those that are measured */
#define SEQS_MAX 32u
#define TOKENS_MAX 512u	/* of a sequence behind its context, in a batch */

struct peer {
	struct run run;
	struct lane *lane;
};

/* *seconds that it took; tokens in *n. */
static int prefill(struct peer *p, uint32_t tokens, double *seconds)
{
	uint64_t start = clock_ns();
	int r;

	lane_forget(p->lane, WORK);
	r = lane_prefill(p->lane, WORK, tokens);
	*seconds = (double)(clock_ns() - start) / 1e9;
	return r;
}

static int decode(struct peer *p, uint32_t n_seqs, uint32_t context, uint32_t tokens, double *seconds)
{
	uint64_t start;
	int r = 0;

	for (uint32_t i = 0; i < SEQS_MAX; i++)
		lane_forget(p->lane, WORK + i);
	if (context > lane_n_tokens(p->lane, BASE))
		r = lane_prefill(p->lane, BASE, context - lane_n_tokens(p->lane, BASE));
	if (!r && context)
		r = lane_fork(p->lane, WORK, BASE, context);
	start = clock_ns();
	if (!r)
		r = lane_decode(p->lane, WORK, n_seqs, tokens, NULL);
	*seconds = (double)(clock_ns() - start) / 1e9;
	return r;
}

static int answer(struct peer *p, const char *line)
{
	uint32_t seqs = 1, context = 0, n;
	double seconds;
	char end;
	int r;

	if (sscanf(line, "prefill %u %c", &n, &end) == 1 && n && n <= p->run.n_ctx)
		r = prefill(p, n, &seconds);
	else if (sscanf(line, "decode %u %u %u %c", &seqs, &context, &n, &end) == 3 && n && n <= TOKENS_MAX &&
		 seqs && seqs <= SEQS_MAX && context <= p->run.n_ctx && (!context || seqs == 1))
		r = decode(p, seqs, context, n, &seconds);
	else
		r = -EINVAL;
	if (r)
		printf("- %s\n", strerror(-r));
	else
		printf("%.6g\n", (double)seqs * n / seconds);
	return fflush(stdout) ? -EIO : 0;
}

int peer_run(const struct bench_options *options)
{
	struct peer p = { .run = { .o = *options } };
	struct diag diag = DIAG_NULL;
	struct lane_options lane;
	char line[128];
	int r;

	p.run.n_ctx = options->max_context;
	r = open_subject(&p.run, NULL, &p.run.subject, &diag);
	if (r < 0) {
		complain("%s", diag.text[0] ? diag.text : strerror(-r));
		return r;
	}
	p.run.n_ctx = model_n_ctx(p.run.subject->model);
	lane = lane_options_of(&p.run, KB_KV_F16, p.run.n_ctx, WORK + SEQS_MAX);
	/* The longest context, a prompt or forks beside it. */
	lane.n_blocks = (2 * p.run.n_ctx + SEQS_MAX * TOKENS_MAX) / options->block_tokens + SEQS_MAX;
	r = lane_open(&p.lane, p.run.subject, &lane);
	while (!r && fgets(line, sizeof(line), stdin))
		r = answer(&p, line);
	if (r)
		complain("%s", strerror(-r));
	lane_close(p.lane);
	subject_close(p.run.subject);
	return r;
}
