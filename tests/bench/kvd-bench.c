/* SPDX-License-Identifier: Apache-2.0 */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/clock.h"
#include "tests/bench/bench.h"

#define BATCH 8
#define LONG_PROMPT 2048
#define SHORT_PROMPT 256
#define MEMORY_BYTES (512u << 20)	/* beyond any last-level cache that this is meant for */

enum work { PREFILL_SHORT, PREFILL_LONG, DECODE, DECODE_LONG, DECODE_BATCH, N_WORK };

static const char *const work_names[N_WORK] = {
	[PREFILL_SHORT] = "prefill 256",
	[PREFILL_LONG] = "prefill 2048",
	[DECODE] = "decode 1 at context 0",
	[DECODE_LONG] = "decode 1 at context 2048",
	[DECODE_BATCH] = "decode 8 at context 0",
};

struct run {
	struct bench *bench;
	struct probe *memory, *weights;
	struct series read_memory, read_weights;
	struct series work[N_WORK];
	uint32_t n_decode;
	bool long_fits;		/* the model has room for the long prompt */
};

static void usage(FILE *out)
{
	fputs("usage: kvd-bench [OPTION...] -m MODEL\n"
	      "       kvd-bench --products [-r N] [--level NAME]\n"
	      "       kvd-bench --mass [-r N] [--level NAME] [--block-tokens N]\n"
	      "\n"
	      "Measures a model's step on this machine, without the daemon: prefill of 256 and\n"
	      "2,048 tokens, decoding of one sequence and of eight, and the rate at which plain\n"
	      "loads read memory.  Median and range over rounds.\n"
	      "\n"
	      "  -m, --model FILE      the GGUF file ($KVD_TEST_MODEL)\n"
	      "  -t, --threads N       threads of the backend (all CPUs that may be used)\n"
	      "  -r, --reps N          rounds, 1 to 64 (5)\n"
	      "  -n, --tokens N        tokens decoded per sequence and round (128)\n"
	      "      --chunk N         prompt tokens per step (512)\n"
	      "      --block-tokens N  16, 32 or 64 (32)\n"
	      "      --level NAME      c, avx2, avx512 or avx512vnni (the best there is)\n"
	      "      --json            for programs\n"
	      "      --products        matrix products of every type of weights instead\n"
	      "      --mass            what measuring attention mass adds to attention instead\n"
	      "  -h, --help\n", out);
}

/* A number of low..high, else the program ends with 2. */
static uint32_t number(const char *name, const char *text, uint32_t low, uint32_t high)
{
	char *end;
	unsigned long v;

	errno = 0;
	v = strtoul(text, &end, 10);
	if (errno || end == text || *end || v < low || v > high) {
		fprintf(stderr, "kvd-bench: --%s is a number of %u to %u\n", name, low, high);
		exit(2);
	}
	return (uint32_t)v;
}

/* Runs one piece of work; the rate goes to the series unless this is the warm-up. */
static int measure(struct run *run, enum work w, uint32_t n_seqs, uint32_t n, bool warm_up)
{
	uint64_t start = clock_ns();
	int r = w == PREFILL_SHORT || w == PREFILL_LONG ? bench_prefill(run->bench, n) :
							  bench_decode(run->bench, n_seqs, n);

	if (!r && !warm_up)
		series_add(&run->work[w], (double)n_seqs * n * 1e9 / (double)(clock_ns() - start));
	return r;
}

static int read_once(struct probe *p, struct series *s, uint32_t passes)
{
	double rate;
	int r = probe_read(p, passes, &rate);

	if (!r)
		series_add(s, rate);
	return r;
}

static int round_once(struct run *run, bool warm_up)
{
	int r = 0;

	if (!warm_up) {
		r = read_once(run->memory, &run->read_memory, 2);
		if (!r)
			r = read_once(run->weights, &run->read_weights, 8);
	}
	bench_reset(run->bench);
	if (!r)
		r = measure(run, PREFILL_SHORT, 1, SHORT_PROMPT, warm_up);
	if (!warm_up && run->long_fits) {
		bench_reset(run->bench);
		if (!r)
			r = measure(run, PREFILL_LONG, 1, LONG_PROMPT, false);
		if (!r)
			r = measure(run, DECODE_LONG, 1, run->n_decode, false);
	}
	bench_reset(run->bench);
	if (!r)
		r = measure(run, DECODE, 1, warm_up ? 8 : run->n_decode, warm_up);
	bench_reset(run->bench);
	if (!r)
		r = measure(run, DECODE_BATCH, BATCH, warm_up ? 8 : run->n_decode, warm_up);
	return r;
}

static void name_series(struct run *run)
{
	run->read_memory.name = "memory";
	run->read_weights.name = "weights";
	for (int i = 0; i < N_WORK; i++)
		run->work[i].name = work_names[i];
	run->work[DECODE].bytes_per_token = bench_step_bytes(run->bench, 1, run->n_decode / 2);
	run->work[DECODE_LONG].bytes_per_token = bench_step_bytes(run->bench, 1, LONG_PROMPT + run->n_decode / 2);
	run->work[DECODE_BATCH].bytes_per_token = bench_step_bytes(run->bench, BATCH, run->n_decode / 2) / BATCH;
}

static int run_all(struct run *run, uint32_t n_threads, uint32_t reps)
{
	int r = probe_new(&run->memory, n_threads, MEMORY_BYTES);

	if (!r)
		r = probe_new(&run->weights, n_threads, bench_model_info(run->bench)->weight_bytes);
	if (!r)
		r = round_once(run, true);
	for (uint32_t i = 0; i < reps && !r; i++)
		r = round_once(run, false);
	return r;
}

static const char *level(const char *name)
{
	const struct kb_cpu_options options = { 1, name };
	struct kb_backend *be;
	int r = kb_cpu_open(&options, &be);

	if (!r) {
		be->ops->close(be);
		return name;
	}
	if (r == -EINVAL)
		fprintf(stderr, "kvd-bench: --level: there is no level \"%s\"\n", name);
	else if (r == -ENOTSUP)
		fprintf(stderr, "kvd-bench: --level: this machine lacks %s\n", name);
	else
		fprintf(stderr, "kvd-bench: --level: %s\n", strerror(-r));
	exit(2);
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "model", required_argument, NULL, 'm' },
		{ "threads", required_argument, NULL, 't' },
		{ "reps", required_argument, NULL, 'r' },
		{ "tokens", required_argument, NULL, 'n' },
		{ "chunk", required_argument, NULL, 'c' },
		{ "block-tokens", required_argument, NULL, 'b' },
		{ "level", required_argument, NULL, 'l' },
		{ "json", no_argument, NULL, 'j' },
		{ "products", no_argument, NULL, 'p' },
		{ "mass", no_argument, NULL, 'M' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	struct bench_options o = {
		.model_path = getenv("KVD_TEST_MODEL"),
		.n_decode = 128,
		.chunk = 512,
		.block_tokens = 32,
		.n_seqs = BATCH,
	};
	struct diag diag = DIAG_NULL;
	struct run run = { 0 };
	struct report report;
	uint32_t reps = 5;
	bool json = false, products = false, mass = false;
	int c, r;

	while ((c = getopt_long(argc, argv, "m:t:r:n:h", longs, NULL)) != -1) {
		switch (c) {
		case 'm': o.model_path = optarg; break;
		case 't': o.n_threads = number("threads", optarg, 1, 1024); break;
		case 'r': reps = number("reps", optarg, 1, SERIES_MAX); break;
		case 'n': o.n_decode = number("tokens", optarg, 1, 4096); break;
		case 'c': o.chunk = number("chunk", optarg, 1, 4096); break;
		case 'b': o.block_tokens = number("block-tokens", optarg, 16, 64); break;
		case 'l': o.level = level(optarg); break;
		case 'j': json = true; break;
		case 'p': products = true; break;
		case 'M': mass = true; break;
		case 'h': usage(stdout); return 0;
		default: usage(stderr); return 2;
		}
	}
	if (optind < argc || (!products && !mass && (!o.model_path || !o.model_path[0]))) {
		usage(stderr);
		return 2;
	}
	if (products || mass) {
		r = products ? products_run(stdout, o.level, reps) :
			       mass_run(stdout, o.level, o.block_tokens, reps);
		if (r < 0)
			fprintf(stderr, "kvd-bench: %s\n", strerror(-r));
		return r < 0;
	}
	o.n_ctx = LONG_PROMPT + o.n_decode;
	r = bench_open(&run.bench, &o, &diag);
	if (r < 0) {
		fprintf(stderr, "kvd-bench: %s\n", diag.text[0] ? diag.text : strerror(-r));
		return 1;
	}
	run.n_decode = o.n_decode;
	run.long_fits = bench_n_ctx(run.bench) >= o.n_ctx;
	name_series(&run);
	o.n_threads = bench_backend(run.bench)->ops->n_threads(bench_backend(run.bench));
	r = run_all(&run, o.n_threads, reps);
	report = (struct report){
		.options = &o,
		.model = bench_model_info(run.bench),
		.backend = bench_backend(run.bench)->ops->name,
		.level = bench_backend(run.bench)->ops->level(bench_backend(run.bench)),
		.n_threads = o.n_threads,
		.read_memory = &run.read_memory,
		.read_weights = &run.read_weights,
		.work = run.work,
		.n_work = N_WORK,
	};
	if (r < 0)
		fprintf(stderr, "kvd-bench: %s\n", strerror(-r));
	else if (json)
		report_json(stdout, &report);
	else
		report_text(stdout, &report);
	probe_free(run.memory);
	probe_free(run.weights);
	bench_close(run.bench);
	return r < 0;
}
