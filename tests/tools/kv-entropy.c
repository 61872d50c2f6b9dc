/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv-entropy - how much smaller a model's F16 keys and values get without loss, and how fast.
 *
 * Runs token ids through a model, one thread, and takes the blocks that they fill.  Prints the entropy of the two
 * bytes of a number under several contexts, which bounds what a coder that knows those can reach; then what coders
 * do, daemon/cache/coding.h first; and the time that the model took for the same blocks.
 */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

#include "daemon/cache/coding.h"
#include "daemon/model/model.h"
#include "ipc/base/checked.h"
#include "kernels/backend.h"

#define CHUNK_BYTES (UINT64_C(2) << 20)
#define STEP_TOKENS 256u
#define MAX_TOKENS 8192u

static const char usage[] =
	"usage: kv-entropy MODEL TOKENS [BLOCK_TOKENS]\n"
	"  TOKENS: a file of ids separated by white space, as kvd-tokenize prints them\n";

static struct kb_geometry geometry;
static uint32_t n_blocks;
static uint8_t *blocks;		/* [n_blocks][block_bytes] */

__attribute__((noreturn)) static void die(const char *what, const char *why)
{
	fprintf(stderr, "kv-entropy: %s: %s\n", what, why);
	exit(1);
}

static void check(int err, const char *what)
{
	if (err)
		die(what, strerror(-err));
}

static void *must(void *p)
{
	if (!p)
		die("memory", strerror(ENOMEM));
	return p;
}

/* The processor's time: others may use it, too. */
static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* --- the blocks --- */

static uint32_t read_tokens(const char *path, int32_t *tokens, uint32_t n_vocab)
{
	FILE *f = fopen(path, "r");
	char word[16], *end;
	uint32_t n = 0;

	if (!f)
		die(path, "cannot be opened");
	while (n < MAX_TOKENS && fscanf(f, "%15s", word) == 1) {
		unsigned long id = strtoul(word, &end, 10);

		if (*end || id >= n_vocab)
			die(word, "no such token");
		tokens[n++] = (int32_t)id;
	}
	fclose(f);
	return n;
}

static struct kb_pool *make_pool(struct kb_backend *be, int *fd)
{
	struct kb_pool *pool;
	uint64_t bytes;

	geometry.chunk_bytes = (geometry.block_bytes + CHUNK_BYTES - 1) / CHUNK_BYTES * CHUNK_BYTES;
	geometry.blocks_per_chunk = (uint32_t)(geometry.chunk_bytes / geometry.block_bytes);
	bytes = (n_blocks / geometry.blocks_per_chunk + 1) * geometry.chunk_bytes;
	*fd = memfd_create("kv-entropy", MFD_CLOEXEC);
	if (*fd < 0 || ftruncate(*fd, (off_t)bytes) < 0)
		die("pool", strerror(errno));
	check(be->ops->pool_import(be, *fd, bytes, &pool), "pool");
	return pool;
}

/* Seconds that the model takes for the blocks, which come into `blocks`. */
static double fill_blocks(struct model *model, struct kb_backend *be, const int32_t *tokens)
{
	struct kb_workspace_desc desc;
	struct kb_workspace *ws;
	struct kb_pool *pool;
	uint64_t began;
	uint32_t *table;
	double seconds;
	int fd;

	pool = make_pool(be, &fd);
	model_workspace_desc(model, &desc);
	desc.max_rows = STEP_TOKENS;
	desc.max_logits = 1;
	check(be->ops->workspace_new(be, &desc, &ws), "workspace");
	table = must(calloc(n_blocks, sizeof(*table)));
	for (uint32_t i = 0; i < n_blocks; i++)
		table[i] = i;
	began = cpu_ns();
	for (uint32_t pos = 0, n = n_blocks * geometry.block_tokens; pos < n; pos += STEP_TOKENS) {
		uint32_t n_rows = MIN(STEP_TOKENS, n - pos);
		struct kb_seq seq = {
			.n_rows = n_rows, .first_pos = pos, .block_table = table,
			.n_blocks = (pos + n_rows) / geometry.block_tokens,
		};
		struct kb_batch batch = {
			.n_rows = n_rows, .tokens = tokens + pos, .n_seqs = 1, .seqs = &seq,
			.pool = pool, .geometry = &geometry,
		};

		check(model_step(model, ws, &batch), "step");
		check(be->ops->step_wait(ws), "step");
	}
	seconds = (double)(cpu_ns() - began) / 1e9;
	blocks = must(malloc(n_blocks * geometry.block_bytes));
	for (uint32_t i = 0; i < n_blocks; i++)
		check(be->ops->block_read(pool, &geometry, i, geometry.block_tokens, blocks + i * geometry.block_bytes),
		      "block");
	free(table);
	be->ops->workspace_free(be, ws);
	be->ops->pool_free(be, pool);
	close(fd);
	return seconds;
}

/* --- entropy --- */

enum context { NO_CONTEXT, BY_CHANNEL, BY_PREVIOUS_TOKEN, N_CONTEXTS };

static const uint16_t *number_at(uint32_t block, uint32_t plane, uint32_t token, uint32_t channel)
{
	const uint16_t *b = (const uint16_t *)(const void *)(blocks + block * geometry.block_bytes);

	return b + ((size_t)plane * geometry.block_tokens + token) * geometry.head_dim + channel;
}

static double entropy(const uint32_t counts[256], double *n_out)
{
	double n = 0, bits = 0;

	for (int i = 0; i < 256; i++)
		n += counts[i];
	for (int i = 0; i < 256; i++)
		if (counts[i])
			bits -= counts[i] * log2(counts[i] / n);
	*n_out += n;
	return bits;
}

/* Bits of a byte (shift 8: the high one) of numbers of K (kv 0) or V (1), in each context a distribution of its own. */
static double conditional_entropy(uint32_t kv, uint32_t shift, enum context context)
{
	uint32_t n_planes = 2 * geometry.n_layers * geometry.n_kv_heads, dim = geometry.head_dim;
	size_t n_contexts = context == BY_CHANNEL ? (size_t)n_planes * dim : 256;
	uint32_t (*counts)[256] = must(calloc(n_contexts, sizeof(*counts)));
	double bits = 0, n = 0;

	for (uint32_t b = 0; b < n_blocks; b++)
		for (uint32_t plane = kv; plane < n_planes; plane += 2)
			for (uint32_t t = 1; t < geometry.block_tokens; t++)
				for (uint32_t c = 0; c < dim; c++) {
					size_t in = context == BY_CHANNEL ? plane * dim + c :
						    context == NO_CONTEXT ? 0 : *number_at(b, plane, t - 1, c) >> 8;

					counts[in][*number_at(b, plane, t, c) >> shift & 255]++;
				}
	for (size_t i = 0; i < n_contexts; i++)
		bits += entropy(counts[i], &n);
	free(counts);
	return bits / n;
}

static void print_entropy(void)
{
	static const char *const names[] = { "alone", "by channel", "by the token before" };

	puts("entropy, bits           K high  K low   V high  V low");
	for (enum context c = 0; c < N_CONTEXTS; c++)
		printf("  %-20s  %6.2f  %6.2f  %6.2f  %6.2f\n", names[c], conditional_entropy(0, 8, c),
		       conditional_entropy(0, 0, c), conditional_entropy(1, 8, c), conditional_entropy(1, 0, c));
}

/* --- coders --- */

static void print_coder(const char *name, double coded, double code_s, double decode_s)
{
	double bytes = (double)n_blocks * (double)geometry.block_bytes;

	printf("  %-20s  ratio %.3f   %5.0f MB/s to code, %5.0f to decode\n", name, coded / bytes,
	       bytes / code_s / 1e6, bytes / decode_s / 1e6);
}

static void try_coding(void)
{
	uint64_t code_ns = 0, decode_ns = 0;
	double coded = 0;
	struct coder *c;

	check(coder_new(&c), "coder");
	check(coder_reserve(c, geometry.block_bytes), "coder");
	for (uint32_t i = 0; i < n_blocks; i++) {
		const uint8_t *plain = blocks + i * geometry.block_bytes;
		uint64_t began;
		size_t n;

		memcpy(coder_plain(c), plain, geometry.block_bytes);
		began = cpu_ns();
		check(coder_encode(c, geometry.block_bytes, &n), "coder");
		code_ns += cpu_ns() - began;
		memset(coder_plain(c), 0, geometry.block_bytes);
		began = cpu_ns();
		if (coder_decode(c, n, geometry.block_bytes))
			die("coder", "does not understand itself");
		decode_ns += cpu_ns() - began;
		if (memcmp(coder_plain(c), plain, geometry.block_bytes) != 0)
			die("coder", "not exact");
		coded += (double)n;
	}
	coder_free(c);
	print_coder("coding.h", coded, (double)code_ns / 1e9, (double)decode_ns / 1e9);
}

static void try_zstd(const char *name, int level)
{
	size_t n = geometry.block_bytes, bound = ZSTD_compressBound(n);
	uint8_t *out = must(malloc(bound)), *back = must(malloc(n));
	uint64_t code_ns = 0, decode_ns = 0;
	double coded = 0;

	for (uint32_t i = 0; i < n_blocks; i++) {
		uint64_t began = cpu_ns();
		size_t n_out = ZSTD_compress(out, bound, blocks + i * n, n, level);

		code_ns += cpu_ns() - began;
		began = cpu_ns();
		if (ZSTD_isError(n_out) || ZSTD_decompress(back, n, out, n_out) != n)
			die(name, "failed");
		decode_ns += cpu_ns() - began;
		coded += (double)n_out;
	}
	free(out);
	free(back);
	print_coder(name, coded, (double)code_ns / 1e9, (double)decode_ns / 1e9);
}

int main(int argc, char **argv)
{
	struct kb_cpu_options cpu = { .n_threads = 1 };
	struct model_options options = { .n_ctx = MAX_TOKENS };
	static int32_t tokens[MAX_TOKENS];
	struct diag diag = DIAG_NULL;
	struct kb_backend *be;
	struct model *model;
	double seconds;
	int fd;

	if (argc < 3 || argc > 4) {
		fputs(usage, stderr);
		return 2;
	}
	check(kb_cpu_open(&cpu, &be), "backend");
	fd = open(argv[1], O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		die(argv[1], strerror(errno));
	if (model_load(&model, be, fd, argv[1], &options, &diag))
		die(argv[1], diag.text);
	close(fd);
	model_geometry(model, KB_KV_F16, argc == 4 ? (uint32_t)atoi(argv[3]) : 16, &geometry);
	if (!geometry.block_bytes)
		die(argv[3], "not a number of tokens in a block");
	n_blocks = MIN(read_tokens(argv[2], tokens, model_info(model)->n_vocab), model_n_ctx(model)) /
		   geometry.block_tokens;
	if (!n_blocks)
		die(argv[2], "less than a block");
	seconds = fill_blocks(model, be, tokens);
	printf("%u blocks of %u tokens, %llu bytes\n", n_blocks, geometry.block_tokens,
	       (unsigned long long)geometry.block_bytes);
	print_entropy();
	puts("coders, one thread");
	try_coding();
	try_zstd("zstd 1, as it is", 1);
	try_zstd("zstd 9, as it is", 9);
	printf("  %-20s                %5.1f MB/s\n", "computing them",
	       (double)n_blocks * (double)geometry.block_bytes / seconds / 1e6);
	free(blocks);
	model_free(model);
	be->ops->close(be);
	return 0;
}
