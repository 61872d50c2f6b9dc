/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/peer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

#define BASE 0u		/* sequence as long as the longest context that was asked for */
#define WORK 1u		/* first of those that are measured */
#define SEQS_MAX 32u
#define TOKENS_MAX 512u	/* of a sequence behind its context, in a batch */

struct peer {
	struct run run;
	struct lane *lanes[KV_TYPES];	/* NULL: not asked for yet */
};

static int find_lane(struct peer *p, enum kb_kv_type type, struct lane **out)
{
	struct lane_options options = lane_options_of(&p->run, type, p->run.n_ctx, WORK + SEQS_MAX);
	int r = 0;

	/* The longest context, a prompt or forks beside it. */
	options.n_blocks = (2 * p->run.n_ctx + SEQS_MAX * TOKENS_MAX) / p->run.o.block_tokens + SEQS_MAX;
	if (!p->lanes[type])
		r = lane_open(&p->lanes[type], p->run.subject, &options);
	if (!r)
		*out = p->lanes[type];
	return r;
}

/* *seconds that it took. */
static int prefill(struct peer *p, uint32_t tokens, double *seconds)
{
	struct lane *lane;
	uint64_t start;
	int r = tokens > p->run.n_ctx ? -ENOSPC : find_lane(p, KB_KV_F16, &lane);

	if (r)
		return r;
	start = clock_ns();
	lane_forget(lane, WORK);
	r = lane_prefill(lane, WORK, tokens);
	*seconds = (double)(clock_ns() - start) / 1e9;
	return r;
}

static int decode(struct peer *p, enum kb_kv_type type, uint32_t n_seqs, uint32_t context, uint32_t tokens,
		  double *seconds)
{
	struct lane *lane;
	uint64_t start;
	int r = context > p->run.n_ctx ? -ENOSPC : find_lane(p, type, &lane);

	if (r)
		return r;
	for (uint32_t i = 0; i < SEQS_MAX; i++)
		lane_forget(lane, WORK + i);
	if (context > lane_n_tokens(lane, BASE))
		r = lane_prefill(lane, BASE, context - lane_n_tokens(lane, BASE));
	if (!r && context)
		r = lane_fork(lane, WORK, BASE, context);
	start = clock_ns();
	if (!r)
		r = lane_decode(lane, WORK, n_seqs, tokens, NULL);
	*seconds = (double)(clock_ns() - start) / 1e9;
	return r;
}

static bool find_type(const char *name, enum kb_kv_type *out)
{
	for (uint32_t i = 0; i < KV_TYPES; i++)
		if (!strcasecmp(name, kv_type_name((enum kb_kv_type)i))) {
			*out = (enum kb_kv_type)i;
			return true;
		}
	return false;
}

static int answer(struct peer *p, const char *line)
{
	struct kb_backend *be = p->run.subject->be;
	enum kb_kv_type type = KB_KV_F16;
	uint32_t seqs = 1, context = 0, n;
	double seconds;
	char name[4], end;
	int r;

	if (!strcmp(line, "about\n")) {
		printf("%s %s, level %s, %u threads\n", KVD_VERSION, model_info(p->run.subject->model)->arch,
		       be->ops->level(be), p->run.subject->n_threads);
		return fflush(stdout) ? -EIO : 0;
	}
	if (sscanf(line, "prefill %u %c", &n, &end) == 1 && n)
		r = prefill(p, n, &seconds);
	else if (sscanf(line, "decode %u %u %u %3s %c", &seqs, &context, &n, name, &end) == 4 && n &&
		 n <= TOKENS_MAX && seqs && seqs <= SEQS_MAX && (!context || seqs == 1) && find_type(name, &type))
		r = decode(p, type, seqs, context, n, &seconds);
	else
		r = -EINVAL;
	if (r)
		printf("- %s\n", r == -ENOSPC ? "longer than the model's context" : strerror(-r));
	else
		printf("%.6g\n", (double)seqs * n / seconds);
	return fflush(stdout) ? -EIO : 0;
}

int peer_run(const struct bench_options *options)
{
	struct peer p = { .run = { .o = *options } };
	struct diag diag = DIAG_NULL;
	char line[128];
	int r;

	p.run.n_ctx = options->max_context;
	r = open_subject(&p.run, NULL, &p.run.subject, &diag);
	if (r < 0) {
		complain("%s", diag.text[0] ? diag.text : strerror(-r));
		return r;
	}
	p.run.n_ctx = model_n_ctx(p.run.subject->model);
	while (!r && fgets(line, sizeof(line), stdin))
		r = answer(&p, line);
	if (r)
		complain("%s", strerror(-r));
	for (uint32_t i = 0; i < KV_TYPES; i++)
		lane_close(p.lanes[i]);
	subject_close(p.run.subject);
	return r;
}
