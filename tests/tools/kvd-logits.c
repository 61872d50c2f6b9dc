/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvd-logits - runs token ids through a model file, without a daemon.
 *
 * The sequence is cut, batched with random neighbours and spread over blocks as
 * the options say; none of that may change a bit of what comes out.  The
 * pool is filled with NaN first, and its blocks are handed out in random order.
 */
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/model/model.h"
#include "ipc/base/checked.h"
#include "ipc/base/hash.h"
#include "kernels/backend.h"

#define CHUNK_BYTES (UINT64_C(2) << 20)
#define NEIGHBOUR_TOKENS 300u	/* a neighbour begins anew after at most so many */
#define NEIGHBOUR_ROWS 9u	/* at most so many in a step, and no more than the first sequence */

static const char usage[] =
	"usage: kvd-logits [options] MODEL\n"
	"  --tokens FILE       ids, separated by white space (default: standard input)\n"
	"  --random N          N random ids instead\n"
	"  --greedy N          append the likeliest token N times; the ids go to standard output\n"
	"  --chunk N           prompt tokens per step (default 128)\n"
	"  --batch N           run together with N - 1 random sequences\n"
	"  --threads N  --level c|avx2|avx512  --block-tokens N (default 16)  --seed N\n"
	"  --kv-type f16|q8|q4 (q4: blocks have 32 tokens)\n"
	"  --ctx N             open the model for so many positions\n"
	"  --output FILE       float32 logits of every position\n"
	"  --hidden FILE       float32 final hidden states of every position\n"
	"  --summary FILE      a line per position: likeliest id, log of the sum of exponentials, logit of the next\n"
	"                      token, if there is one\n"
	"  --hash              a hash of every position's logits and hidden state on standard output\n"
	"       kvd-logits --levels\n"
	"  prints the CPU levels that this machine can run\n";

struct options {
	const char *model, *tokens, *output, *hidden, *summary, *level;
	uint32_t n_random, n_greedy, chunk, batch, threads, block_tokens, ctx;
	uint64_t seed;
	enum kb_kv_type kv_type;
	bool hash;
};

struct sequence {
	int32_t *tokens;
	uint32_t n_tokens, pos;
	uint32_t n_rows;		/* in this step */
	uint32_t *blocks;
	uint32_t first_row;		/* in this step's batch */
	struct kb_open *open;		/* Q4 */
};

struct run {
	struct options o;
	uint64_t rng;
	struct kb_backend *be;
	struct model *model;
	const struct model_info *info;
	struct kb_geometry geometry;
	struct kb_pool *pool;
	struct kb_workspace *ws;
	struct sequence *seqs;		/* [batch]; the first is the one that counts */
	uint32_t *order;		/* [batch] of the sequences within a step */
	struct kb_seq *kb_seqs;		/* [batch] */
	int32_t *batch_tokens;		/* [max_rows] */
	uint32_t *logit_rows;		/* [max_rows] */
	uint32_t *hidden_rows;		/* [chunk] the first sequence's */
	FILE *output, *hidden, *summary;
};

__attribute__((noreturn, format(printf, 1, 2)))
static void die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fputs("kvd-logits: ", stderr);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	va_end(ap);
	exit(1);
}

static void *must(void *p)
{
	if (!p)
		die("no memory");
	return p;
}

static void check(int r, const char *what)
{
	if (r)
		die("%s: %s", what, strerror(-r));
}

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t draw(struct run *run)
{
	uint64_t z = run->rng += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static void shuffle(struct run *run, uint32_t *a, uint32_t n)
{
	for (uint32_t i = n; i > 1; i--) {
		uint32_t j = (uint32_t)(draw(run) % i), t = a[i - 1];

		a[i - 1] = a[j];
		a[j] = t;
	}
}

static void randomise(struct run *run, struct sequence *s, uint32_t n)
{
	s->n_tokens = n;
	s->pos = 0;
	for (uint32_t i = 0; i < n; i++)
		s->tokens[i] = (int32_t)(draw(run) % run->info->n_vocab);
}

static void read_tokens(struct run *run, struct sequence *s, uint32_t capacity)
{
	FILE *f = run->o.tokens && strcmp(run->o.tokens, "-") ? fopen(run->o.tokens, "r") : stdin;
	char word[16];

	if (!f)
		die("%s: cannot be opened", run->o.tokens);
	while (fscanf(f, "%15s", word) == 1) {
		char *end;
		unsigned long id = strtoul(word, &end, 10);

		if (s->n_tokens == capacity)
			die("more than %u tokens", capacity);
		if (*end || id >= run->info->n_vocab)
			die("%s: no such token", word);
		s->tokens[s->n_tokens++] = (int32_t)id;
	}
	if (f != stdin)
		fclose(f);
	if (!s->n_tokens)
		die("no tokens");
}

static void load_model(struct run *run)
{
	struct kb_cpu_options cpu = { .n_threads = run->o.threads, .level = run->o.level };
	struct model_options options = { .n_ctx = run->o.ctx };
	struct diag diag = DIAG_NULL;
	int fd, r;

	check(kb_cpu_open(&cpu, &run->be), "backend");
	fd = open(run->o.model, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		die("%s: cannot be opened", run->o.model);
	r = model_load(&run->model, run->be, fd, run->o.model, &options, &diag);
	if (r)
		die("%s: %s (%s)", run->o.model, diag.text, strerror(-r));
	close(fd);
	run->info = model_info(run->model);
}

static uint32_t blocks_of(const struct run *run, uint32_t n_tokens)
{
	return (n_tokens + run->geometry.block_tokens - 1) / run->geometry.block_tokens;
}

/* A pool half as large again as needed; returns its shuffled block numbers. */
static uint32_t *make_pool(struct run *run, uint32_t n_blocks)
{
	struct kb_geometry *g = &run->geometry;
	uint32_t *blocks, n = n_blocks + n_blocks / 2 + 1;
	uint64_t n_chunks, bytes;
	void *map;
	int fd;

	g->chunk_bytes = (g->block_bytes + CHUNK_BYTES - 1) / CHUNK_BYTES * CHUNK_BYTES;
	g->blocks_per_chunk = (uint32_t)(g->chunk_bytes / g->block_bytes);
	n_chunks = (n + g->blocks_per_chunk - 1) / g->blocks_per_chunk;
	bytes = n_chunks * g->chunk_bytes;
	fd = memfd_create("kvd-logits", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0)
		die("no memory for the pool");
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		die("no memory for the pool");
	memset(map, 0xff, bytes);
	munmap(map, bytes);
	check(run->be->ops->pool_import(run->be, fd, bytes, &run->pool), "pool");
	close(fd);
	blocks = must(calloc(n, sizeof(*blocks)));
	for (uint32_t i = 0; i < n; i++)
		blocks[i] = i;
	shuffle(run, blocks, n);
	return blocks;
}

static void make_sequences(struct run *run)
{
	uint32_t capacity = model_n_ctx(run->model), neighbour = MIN(capacity, NEIGHBOUR_TOKENS);
	uint32_t *blocks, n_blocks;

	model_geometry(run->model, run->o.kv_type, run->o.block_tokens, &run->geometry);
	if (!run->geometry.block_bytes)
		die("block geometry is not valid");
	run->seqs = must(calloc(run->o.batch, sizeof(*run->seqs)));
	run->seqs[0].tokens = must(calloc(capacity, sizeof(int32_t)));
	if (run->o.n_random > capacity)
		die("the context is %u tokens", capacity);
	if (run->o.n_random)
		randomise(run, &run->seqs[0], run->o.n_random);
	else
		read_tokens(run, &run->seqs[0], capacity);
	if (run->seqs[0].n_tokens + run->o.n_greedy > capacity)
		die("the context is %u tokens", capacity);
	n_blocks = blocks_of(run, run->seqs[0].n_tokens + run->o.n_greedy);
	blocks = make_pool(run, n_blocks + (run->o.batch - 1) * blocks_of(run, neighbour));
	run->seqs[0].blocks = blocks;
	for (uint32_t i = 1; i < run->o.batch; i++) {
		struct sequence *s = &run->seqs[i];

		s->tokens = must(calloc(neighbour, sizeof(int32_t)));
		s->blocks = blocks + n_blocks + (i - 1) * blocks_of(run, neighbour);
		randomise(run, s, 1 + (uint32_t)(draw(run) % neighbour));
	}
	for (uint32_t i = 0; i < run->o.batch && kb_open_bytes(&run->geometry); i++)
		check(run->be->ops->open_new(run->be, &run->geometry, &run->seqs[i].open), "open block");
}

static void make_workspace(struct run *run)
{
	struct kb_workspace_desc desc;
	uint32_t max_rows = run->o.chunk + (run->o.batch - 1) * NEIGHBOUR_ROWS;

	model_workspace_desc(run->model, &desc);
	desc.max_rows = desc.max_logits = max_rows;
	check(run->be->ops->workspace_new(run->be, &desc, &run->ws), "workspace");
	run->order = must(calloc(run->o.batch, sizeof(*run->order)));
	run->kb_seqs = must(calloc(run->o.batch, sizeof(*run->kb_seqs)));
	run->batch_tokens = must(calloc(max_rows, sizeof(*run->batch_tokens)));
	run->logit_rows = must(calloc(max_rows, sizeof(*run->logit_rows)));
	run->hidden_rows = must(calloc(run->o.chunk, sizeof(*run->hidden_rows)));
	for (uint32_t i = 0; i < run->o.batch; i++)
		run->order[i] = i;
}

static void choose_rows(struct run *run)
{
	for (uint32_t i = 0; i < run->o.batch; i++) {
		struct sequence *s = &run->seqs[i];
		uint32_t n = i ? 1 + (uint32_t)(draw(run) % MIN(run->o.chunk, NEIGHBOUR_ROWS)) : run->o.chunk;

		if (i && s->pos == s->n_tokens)
			randomise(run, s,
				  1 + (uint32_t)(draw(run) % MIN(model_n_ctx(run->model), NEIGHBOUR_TOKENS)));
		s->n_rows = MIN(n, s->n_tokens - s->pos);
	}
}

/* Neighbours have logits of their last row, the first sequence of every row. */
static uint32_t add_rows(struct run *run, struct kb_batch *b, struct sequence *s, uint32_t n_logits)
{
	bool first = s == run->seqs;

	s->first_row = b->n_rows;
	run->kb_seqs[b->n_seqs++] = (struct kb_seq){
		.first_row = b->n_rows,
		.n_rows = s->n_rows,
		.first_pos = s->pos,
		.n_blocks = blocks_of(run, s->pos + s->n_rows),
		.block_table = s->blocks,
		.open = s->open,
	};
	for (uint32_t i = 0; i < s->n_rows; i++) {
		if (first || i == s->n_rows - 1)
			run->logit_rows[n_logits++] = b->n_rows;
		if (first && (run->hidden || run->o.hash))
			run->hidden_rows[b->n_hidden++] = b->n_rows;
		run->batch_tokens[b->n_rows++] = s->tokens[s->pos + i];
	}
	s->pos += s->n_rows;
	return n_logits;
}

static uint32_t argmax(const float *logits, uint32_t n)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < n; i++)
		if (logits[i] > logits[best])
			best = i;
	return best;
}

static double log_sum_exp(const float *logits, uint32_t n, float max)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += exp((double)logits[i] - (double)max);
	return (double)max + log(sum);
}

static void print_hash(const float *logits, uint32_t n, const float *hidden, uint32_t n_embd)
{
	_cleanup_(hasher_freep) struct hasher *h = NULL;
	uint8_t digest[16];

	check(hasher_new(&h), "hash");
	hasher_update(h, logits, n * sizeof(*logits));
	hasher_update(h, hidden, n_embd * sizeof(*hidden));
	hasher_digest(h, digest);
	for (size_t i = 0; i < sizeof(digest); i++)
		printf("%02x", digest[i]);
	putchar('\n');
}

/* hidden: there where it is hashed or written; next: the token that follows, or -1. */
static void put_position(struct run *run, const float *logits, const float *hidden, int32_t next)
{
	uint32_t n = run->info->n_vocab, best = argmax(logits, n), n_embd = run->info->n_embd;

	if (run->output && fwrite(logits, sizeof(*logits), n, run->output) != n)
		die("%s: cannot be written", run->o.output);
	if (run->summary)
		fprintf(run->summary, "%u %.9g", best, log_sum_exp(logits, n, logits[best]));
	if (run->summary && next >= 0)
		fprintf(run->summary, " %.9g", logits[next]);
	if (run->summary)
		fputc('\n', run->summary);
	if (run->o.hash)
		print_hash(logits, n, hidden, n_embd);
	if (run->hidden && fwrite(hidden, sizeof(*hidden), n_embd, run->hidden) != n_embd)
		die("%s: cannot be written", run->o.hidden);
}

/* One step; the first sequence's logits begin at the row that is returned. */
static const float *step(struct run *run)
{
	const struct kb_ops *ops = run->be->ops;
	struct kb_batch b = {
		.tokens = run->batch_tokens,
		.seqs = run->kb_seqs,
		.logit_rows = run->logit_rows,
		.hidden_rows = run->hidden_rows,
		.pool = run->pool,
		.geometry = &run->geometry,
	};
	uint32_t first_logit = 0;

	choose_rows(run);
	shuffle(run, run->order, run->o.batch);
	for (uint32_t i = 0; i < run->o.batch; i++) {
		if (run->order[i] == 0)
			first_logit = b.n_logits;
		b.n_logits = add_rows(run, &b, &run->seqs[run->order[i]], b.n_logits);
	}
	check(model_step(run->model, run->ws, &b), "step");
	check(ops->step_wait(run->ws), "step");
	return ops->step_logits(run->ws) + (size_t)first_logit * run->info->n_vocab;
}

static void run_all(struct run *run)
{
	struct sequence *s = &run->seqs[0];
	uint32_t n_vocab = run->info->n_vocab, n_greedy = run->o.n_greedy;

	while (s->pos < s->n_tokens) {
		const float *logits = step(run), *hidden = run->be->ops->step_hidden(run->ws);

		for (uint32_t i = 0, at = s->pos - s->n_rows + 1; i < s->n_rows; i++, at++)
			put_position(run, logits + (size_t)i * n_vocab, hidden + (size_t)i * run->info->n_embd,
				     at < s->n_tokens ? s->tokens[at] : -1);
		if (s->pos == s->n_tokens && n_greedy) {
			s->tokens[s->n_tokens] =
				(int32_t)argmax(logits + (size_t)(s->n_rows - 1) * n_vocab, n_vocab);
			printf("%d\n", s->tokens[s->n_tokens++]);
			n_greedy--;
		}
	}
}

static void run_free(struct run *run)
{
	const struct kb_ops *ops = run->be->ops;

	ops->workspace_free(run->be, run->ws);
	ops->pool_free(run->be, run->pool);
	free(run->seqs[0].blocks);
	for (uint32_t i = 0; i < run->o.batch; i++) {
		free(run->seqs[i].tokens);
		ops->open_free(run->be, run->seqs[i].open);
	}
	free(run->seqs);
	free(run->order);
	free(run->kb_seqs);
	free(run->batch_tokens);
	free(run->logit_rows);
	free(run->hidden_rows);
	model_free(run->model);
	ops->close(run->be);
	if (run->output && fclose(run->output))
		die("%s: cannot be written", run->o.output);
	if (run->hidden && fclose(run->hidden))
		die("%s: cannot be written", run->o.hidden);
	if (run->summary && fclose(run->summary))
		die("%s: cannot be written", run->o.summary);
}

static uint32_t number(const char *text, uint32_t min)
{
	char *end;
	unsigned long v = strtoul(text, &end, 10);

	if (*end || end == text || v < min || v > 1u << 24)
		die("%s: not a number from %u", text, min);
	return (uint32_t)v;
}

static enum kb_kv_type kv_type(const char *name)
{
	static const char *const names[] = { [KB_KV_F16] = "f16", [KB_KV_Q8] = "q8", [KB_KV_Q4] = "q4" };

	for (int i = 0; i <= KB_KV_Q4; i++)
		if (!strcmp(name, names[i]))
			return (enum kb_kv_type)i;
	die("%s: no such type of keys and values", name);
}

static void parse_options(struct options *o, int argc, char **argv)
{
	static const struct option longs[] = {
		{ "tokens", 1, NULL, 't' }, { "random", 1, NULL, 'r' }, { "greedy", 1, NULL, 'g' },
		{ "chunk", 1, NULL, 'c' }, { "batch", 1, NULL, 'b' }, { "threads", 1, NULL, 'j' },
		{ "level", 1, NULL, 'l' }, { "block-tokens", 1, NULL, 'k' }, { "seed", 1, NULL, 's' },
		{ "ctx", 1, NULL, 'x' }, { "kv-type", 1, NULL, 'v' },
		{ "output", 1, NULL, 'o' }, { "hidden", 1, NULL, 'H' }, { "summary", 1, NULL, 'm' },
		{ "hash", 0, NULL, 'h' }, { "levels", 0, NULL, 'L' },
		{ NULL, 0, NULL, 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (c) {
		case 't': o->tokens = optarg; break;
		case 'r': o->n_random = number(optarg, 1); break;
		case 'g': o->n_greedy = number(optarg, 0); break;
		case 'c': o->chunk = number(optarg, 1); break;
		case 'b': o->batch = number(optarg, 1); break;
		case 'j': o->threads = number(optarg, 1); break;
		case 'l': o->level = optarg; break;
		case 'k': o->block_tokens = number(optarg, 1); break;
		case 'x': o->ctx = number(optarg, 1); break;
		case 's': o->seed = number(optarg, 0); break;
		case 'v': o->kv_type = kv_type(optarg); break;
		case 'o': o->output = optarg; break;
		case 'H': o->hidden = optarg; break;
		case 'm': o->summary = optarg; break;
		case 'h': o->hash = true; break;
		case 'L':
			for (const char *const *l = kb_cpu_levels(); *l; l++)
				puts(*l);
			exit(0);
		default:
			fputs(usage, stderr);
			exit(2);
		}
	}
	if (optind != argc - 1) {
		fputs(usage, stderr);
		exit(2);
	}
	if (o->kv_type == KB_KV_Q4)
		o->block_tokens = KB_Q4_BLOCK_TOKENS;
	o->model = argv[optind];
}

static FILE *open_output(const char *path)
{
	FILE *f = path ? fopen(path, "w") : NULL;

	if (path && !f)
		die("%s: cannot be opened", path);
	return f;
}

int main(int argc, char **argv)
{
	struct run run = { .o = { .chunk = 128, .batch = 1, .threads = 1, .block_tokens = 16, .seed = 1 } };

	parse_options(&run.o, argc, argv);
	run.rng = run.o.seed;
	load_model(&run);
	make_sequences(&run);
	make_workspace(&run);
	run.output = open_output(run.o.output);
	run.hidden = open_output(run.o.hidden);
	run.summary = open_output(run.o.summary);
	run_all(&run);
	run_free(&run);
	return 0;
}
