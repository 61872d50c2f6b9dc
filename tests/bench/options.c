/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/options.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/synthetic.h"
#include "ipc/base/checked.h"

enum {
	OPT_LEVEL = 0x100, OPT_CHUNK, OPT_BLOCK, OPT_JSON, OPT_HTML, OPT_PRODUCTS, OPT_MASS, OPT_SYNTHETIC, OPT_TEXT,
	OPT_KV_TYPE, OPT_INPUT, OPT_OUTPUT, OPT_CONTEXT, OPT_TIME, OPT_DIRECTORY, OPT_PROBE, OPT_PEER,
};

static const struct option longs[] = {
	{ "model", required_argument, NULL, 'm' },
	{ "synthetic", required_argument, NULL, OPT_SYNTHETIC },
	{ "threads", required_argument, NULL, 't' },
	{ "rounds", required_argument, NULL, 'r' },
	{ "tokens", required_argument, NULL, 'n' },
	{ "input", required_argument, NULL, OPT_INPUT },
	{ "output", required_argument, NULL, OPT_OUTPUT },
	{ "max-context", required_argument, NULL, OPT_CONTEXT },
	{ "max-time", required_argument, NULL, OPT_TIME },
	{ "kv-type", required_argument, NULL, OPT_KV_TYPE },
	{ "text", required_argument, NULL, OPT_TEXT },
	{ "directory", required_argument, NULL, OPT_DIRECTORY },
	{ "probe-memory", required_argument, NULL, OPT_PROBE },
	{ "chunk", required_argument, NULL, OPT_CHUNK },
	{ "block-tokens", required_argument, NULL, OPT_BLOCK },
	{ "level", required_argument, NULL, OPT_LEVEL },
	{ "json", no_argument, NULL, OPT_JSON },
	{ "html", required_argument, NULL, OPT_HTML },
	{ "quiet", no_argument, NULL, 'q' },
	{ "products", no_argument, NULL, OPT_PRODUCTS },
	{ "mass", no_argument, NULL, OPT_MASS },
	{ "peer-worker", no_argument, NULL, OPT_PEER },
	{ "help", no_argument, NULL, 'h' },
	{ 0 },
};

static void print_help(FILE *out)
{
	fputs("usage: kvd-bench [OPTION...] [TABLE...]\n"
	      "       kvd-bench --products [-r N] [--level NAME]\n"
	      "       kvd-bench --mass [-r N] [--level NAME] [--block-tokens N]\n"
	      "\n"
	      "What this machine makes of a model, in tables (without a name: all of them):\n\n", out);
	for (uint32_t i = 0; i < n_table_defs; i++)
		fprintf(out, "  %-13s %s\n", table_defs[i].name, table_defs[i].what);
	fputs("\noptions:\n"
	      "  -m, --model FILE      the GGUF file ($KVD_TEST_MODEL)\n"
	      "      --synthetic NAME:TYPE  a made-up model instead, e.g. llama-2-7b:q4_0\n"
	      "  -t, --threads N       threads that compute (all CPUs that may be used)\n"
	      "  -r, --rounds N        rounds, 1 to 64 (5)\n"
	      "  -n, --tokens N        tokens decoded per sequence and round (64)\n"
	      "      --input N         the comparison's prompt, in tokens (256)\n"
	      "      --output N        and its answer (512)\n"
	      "      --max-context N   the longest context that is measured (8000)\n"
	      "      --max-time N      seconds that no further round may last beyond (1800)\n"
	      "      --kv-type TYPES   only these keys and values: f16,q8,q4\n"
	      "      --text FILE       also the perplexity of this text\n"
	      "      --directory DIR   where daemons have their files for the time ($TMPDIR, /tmp)\n"
	      "      --probe-memory N  MB that the probe reads: more than all caches (512)\n"
	      "      --chunk N         prompt tokens per step (512)\n"
	      "      --block-tokens N  16, 32 or 64 (32)\n"
	      "      --level NAME      CPU instructions: c, avx2, avx512, avx512vnni, amx (the best there is)\n"
	      "      --json            one JSON document to standard output\n"
	      "      --html FILE       also one page of HTML, with plots\n"
	      "  -q, --quiet           no progress on standard error\n"
	      "      --products        matrix products of every type of weights instead\n"
	      "      --mass            what measuring attention mass adds to attention instead\n"
	      "  -h, --help            this text\n", out);
}

/* Wrong usage: a message, and the exit status for it. */
__attribute__((format(printf, 1, 2)))
static int bad(const char *fmt, ...)
{
	va_list args;

	fputs("kvd-bench: ", stderr);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputs("\nkvd-bench: try --help\n", stderr);
	return 2;
}

static bool number(const char *text, uint32_t low, uint32_t high, uint32_t *out)
{
	size_t n = strlen(text);
	unsigned long v;

	errno = 0;
	v = strtoul(text, NULL, 10);
	if (!n || strspn(text, "0123456789") != n || errno || v < low || v > high)
		return false;
	*out = (uint32_t)v;
	return true;
}

static bool kv_types(const char *text, uint32_t *out)
{
	static const char *const names[KV_TYPES] = { "f16", "q8", "q4" };
	uint32_t bits = 0;

	while (*text) {
		size_t n = strcspn(text, ",");
		uint32_t i = 0;

		while (i < KV_TYPES && (strlen(names[i]) != n || strncmp(names[i], text, n) != 0))
			i++;
		if (i == KV_TYPES)
			return false;
		bits |= 1u << i;
		text += n;
		if (*text && !*++text)
			return false;
	}
	*out = bits;
	return bits != 0;
}

/* 0, or an exit status. */
static int take(struct options *o, int c, const char *spelling)
{
	static const struct { int c; uint32_t low, high; size_t at; } numbers[] = {
		{ 't', 1, 1024, offsetof(struct options, bench.n_threads) },
		{ 'r', 1, SERIES_MAX, offsetof(struct options, bench.rounds) },
		{ 'n', 2, 4096, offsetof(struct options, bench.tokens) },
		{ OPT_INPUT, 1, 1u << 20, offsetof(struct options, bench.input) },
		{ OPT_OUTPUT, 2, 1u << 20, offsetof(struct options, bench.output) },
		{ OPT_CONTEXT, 16, 1u << 20, offsetof(struct options, bench.max_context) },
		{ OPT_TIME, 1, 1000000, offsetof(struct options, bench.seconds) },
		{ OPT_PROBE, 2, 1u << 20, offsetof(struct options, bench.probe_mb) },
		{ OPT_CHUNK, 16, 4096, offsetof(struct options, bench.chunk) },
		{ OPT_BLOCK, 16, 64, offsetof(struct options, bench.block_tokens) },
	};

	for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
		if (numbers[i].c != c)
			continue;
		uint32_t *out = (uint32_t *)(void *)((char *)o + numbers[i].at);

		if (number(optarg, numbers[i].low, numbers[i].high, out))
			return 0;
		return bad("%s is a number of %u to %u: %s", spelling, numbers[i].low, numbers[i].high, optarg);
	}
	switch (c) {
	case 'm': o->bench.model = optarg; o->model_given = true; return 0;
	case OPT_SYNTHETIC: o->bench.synthetic = optarg; return 0;
	case OPT_LEVEL: o->bench.level = optarg; return 0;
	case OPT_TEXT: o->bench.text = optarg; return 0;
	case OPT_DIRECTORY: o->bench.directory = optarg; return 0;
	case OPT_KV_TYPE:
		return kv_types(optarg, &o->bench.kv_types) ? 0 :
		       bad("%s: not f16, q8 or q4, with commas between: %s", spelling, optarg);
	case OPT_JSON: o->json = true; return 0;
	case OPT_HTML: o->html = optarg; return 0;
	case 'q': o->bench.quiet = true; return 0;
	case OPT_PRODUCTS: o->products = true; return 0;
	case OPT_MASS: o->mass = true; return 0;
	case OPT_PEER: o->peer_worker = true; return 0;
	default: return 2;
	}
}

static int find_table(const char *name, uint32_t *bits)
{
	for (uint32_t i = 0; i < n_table_defs; i++) {
		if (strcmp(table_defs[i].name, name))
			continue;
		*bits |= 1u << i;
		return 0;
	}
	return bad("there is no table \"%s\"", name);
}

/* Whether this machine has the CPU level: 0, or an exit status. */
static int check_level(const char *name)
{
	const struct kb_cpu_options options = { 1, name };
	struct kb_backend *be;
	int r = kb_cpu_open(&options, &be);

	if (!r) {
		be->ops->close(be);
		return 0;
	}
	if (r == -EINVAL)
		return bad("--level: there is no level \"%s\"", name);
	if (r == -ENOTSUP)
		return bad("--level: this machine lacks %s", name);
	return bad("--level: %s", strerror(-r));
}

static int check(struct options *o)
{
	const struct bench_options *b = &o->bench;
	struct diag diag = DIAG_NULL;

	if (b->level && check_level(b->level))
		return 2;
	if (o->products || o->mass)
		return o->tables ? bad("%s and tables exclude each other", o->mass ? "--mass" : "--products")
				 : 0;
	if (b->synthetic && o->model_given)
		return bad("--model and --synthetic exclude each other");
	if (b->synthetic && synthetic_check(b->synthetic, &diag))
		return bad("--synthetic: %s", diag.text);
	if (!b->synthetic && (!b->model || !*b->model))
		return bad("--model names the model, or --synthetic");
	if (b->synthetic && b->text)
		return bad("--text says nothing about a synthetic model");
	if (b->block_tokens & (b->block_tokens - 1))
		return bad("--block-tokens is 16, 32 or 64");
	if (b->synthetic)
		o->bench.model = NULL;
	return 0;
}

int options_read(struct options *o, int argc, char **argv)
{
	int c, status, index = -1;

	*o = (struct options){
		.bench = {
			.model = getenv("KVD_TEST_MODEL"), .rounds = 5, .tokens = 64,
			.input = 256, .output = 512,
			.chunk = 512, .block_tokens = 32, .seconds = 1800, .probe_mb = 512,
			.kv_types = (1u << KV_TYPES) - 1,
		},
	};
	while ((c = getopt_long(argc, argv, "m:t:r:n:qh", longs, &index)) != -1) {
		char spelling[32];

		if (index >= 0)
			snprintf(spelling, sizeof(spelling), "--%.28s", longs[index].name);
		else
			snprintf(spelling, sizeof(spelling), "-%c", c);
		if (c == 'h') {
			print_help(stdout);
			return OPTIONS_HELP;
		}
		if (c == '?')
			return bad("wrong usage");
		status = take(o, c, spelling);
		if (status)
			return status;
		index = -1;
	}
	for (; optind < argc; optind++) {
		status = find_table(argv[optind], &o->tables);
		if (status)
			return status;
	}
	status = check(o);
	if (!o->tables)
		o->tables = UINT32_MAX;
	return status;
}
