/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf-mutate - loads many damaged copies of a model file, in one process.
 *
 *     gguf-mutate truncate STEP FILE      cut at every STEP bytes
 *     gguf-mutate flip FROM TO FILE       each bit of the bytes FROM to TO - 1 turned
 *
 * Each copy is loaded as a daemon loads it, from a file in memory.  What loads (a turned
 * bit may be harmless) also runs a step; what doesn't must say why, and with nothing
 * but "malformed".  Prints "N loaded, M refused"; exit status 1 where a copy was neither.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/model/model.h"
#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "ipc/base/utf8.h"
#include "kernels/backend.h"

#define N_CTX 64u
#define BLOCK_TOKENS 16u
#define N_TOKENS 3u

struct run {
	struct kb_backend *be;
	uint8_t *bytes;		/* the good file */
	size_t n;
	int fd;			/* of the copy */
	uint64_t n_loaded, n_refused, n_wrong;
};

static void die(const char *what)
{
	fprintf(stderr, "gguf-mutate: %s\n", what);
	exit(2);
}

static void read_file(struct run *run, const char *path)
{
	FILE *f = fopen(path, "re");
	long n;

	if (!f || fseek(f, 0, SEEK_END) || (n = ftell(f)) <= 0 || fseek(f, 0, SEEK_SET))
		die("the file cannot be read");
	run->n = (size_t)n;
	run->bytes = malloc(run->n);
	if (!run->bytes || fread(run->bytes, 1, run->n, f) != run->n)
		die("the file cannot be read");
	fclose(f);
	run->fd = memfd_create("gguf-mutate", MFD_CLOEXEC);
	if (run->fd < 0 || write(run->fd, run->bytes, run->n) != (ssize_t)run->n)
		die("no memory");
}

/* One step over a few tokens: whatever numbers the model has by now, they lead nowhere outside. */
static int step(struct run *run, struct model *m)
{
	const struct kb_ops *ops = run->be->ops;
	struct kb_geometry g;
	struct kb_workspace_desc desc;
	struct kb_workspace *ws = NULL;
	struct kb_pool *pool = NULL;
	uint32_t block = 0, logit_row = N_TOKENS - 1;
	int32_t tokens[N_TOKENS] = { 0, 1, 2 };
	struct kb_seq seq = { .n_rows = N_TOKENS, .n_blocks = 1, .block_table = &block };
	struct kb_batch batch = { .geometry = &g, .tokens = tokens, .n_rows = N_TOKENS, .seqs = &seq, .n_seqs = 1,
				  .logit_rows = &logit_row, .n_logits = 1 };
	int fd, r;

	model_geometry(m, KB_KV_F16, BLOCK_TOKENS, &g);
	g.chunk_bytes = (g.block_bytes + 0x1fffff) & ~(uint64_t)0x1fffff;
	g.blocks_per_chunk = (uint32_t)(g.chunk_bytes / g.block_bytes);
	model_workspace_desc(m, &desc);
	desc.max_rows = N_TOKENS;
	desc.max_logits = 1;
	fd = memfd_create("gguf-mutate-pool", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)g.chunk_bytes))
		die("no memory");
	r = ops->pool_import(run->be, fd, g.chunk_bytes, &pool);
	close(fd);
	batch.pool = pool;
	if (!r)
		r = ops->workspace_new(run->be, &desc, &ws);
	if (!r)
		r = model_step(m, ws, &batch);
	if (!r)
		r = ops->step_wait(ws);
	if (ws)
		ops->workspace_free(run->be, ws);
	if (pool)
		ops->pool_free(run->be, pool);
	return r;
}

static void wrong(struct run *run, const char *name, size_t at, int r, const char *text)
{
	run->n_wrong++;
	printf("%s %zu: %s: \"%s\"\n", name, at, r ? strerror(-r) : "loaded", text);
}

static void try_copy(struct run *run, const char *name, size_t at, bool must_fail)
{
	struct model_options options = { .name = "mutated", .n_ctx = N_CTX };
	struct model *m = NULL;
	struct diag diag = DIAG_NULL;
	int r = model_load(&m, run->be, run->fd, "mutated.gguf", &options, &diag);

	if (r == 0) {
		run->n_loaded++;
		r = step(run, m);
		if (r || must_fail)
			wrong(run, name, at, r, "");
		model_free(m);
		return;
	}
	run->n_refused++;
	if (r != -EINVAL || !diag.text[0] || !utf8_valid((const uint8_t *)diag.text, strlen(diag.text)))
		wrong(run, name, at, r, diag.text);
}

static void truncate_all(struct run *run, size_t step_bytes)
{
	for (size_t n = (run->n - 1) / step_bytes * step_bytes;; n -= step_bytes) {
		if (ftruncate(run->fd, (off_t)n))
			die("ftruncate");
		try_copy(run, "cut at", n, true);
		if (!n)
			break;
	}
}

static void flip_all(struct run *run, size_t from, size_t to)
{
	for (size_t i = from; i < to && i < run->n; i++) {
		for (int bit = 0; bit < 8; bit++) {
			uint8_t b = run->bytes[i] ^ (uint8_t)(1 << bit);

			if (pwrite(run->fd, &b, 1, (off_t)i) != 1)
				die("pwrite");
			try_copy(run, "bit", i * 8 + (size_t)bit, false);
		}
		if (pwrite(run->fd, &run->bytes[i], 1, (off_t)i) != 1)
			die("pwrite");
	}
}

int main(int argc, char **argv)
{
	struct kb_cpu_options cpu = { .n_threads = 1 };
	struct run run = { .fd = -1 };

	if (argc < 4)
		die("usage: gguf-mutate truncate STEP FILE | flip FROM TO FILE");
	if (kb_cpu_open(&cpu, &run.be))
		die("no backend");
	read_file(&run, argv[argc - 1]);
	if (strcmp(argv[1], "truncate") == 0)
		truncate_all(&run, strtoul(argv[2], NULL, 10));
	else
		flip_all(&run, strtoul(argv[2], NULL, 10), strtoul(argv[3], NULL, 10));
	printf("%llu loaded, %llu refused\n", (unsigned long long)run.n_loaded, (unsigned long long)run.n_refused);
	run.be->ops->close(run.be);
	close(run.fd);
	free(run.bytes);
	return run.n_wrong ? 1 : 0;
}
