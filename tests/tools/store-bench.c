/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store-bench - what the disk store does with a directory's medium.
 *
 *     store-bench DIR [BLOCKS [BLOCK_BYTES [BLOCK_TOKENS]]]
 *
 * Stores BLOCKS blocks (default 512 of 368640 bytes and 16 tokens: those of SmolLM2-135M in F16) in sequences of
 * 200, opens the store again, and reads them: out of the page cache, and after the kernel was
 * asked to forget the file. Prints rates, what was written in all for each token, and times. DIR/store-bench is
 * made and removed.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/cache/store-dir.h"
#include "daemon/cache/store.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"

#define CHAIN 200u
#define IN_FLIGHT 48u

struct bench {
	char dir[4096];
	uint32_t n_blocks, block_tokens;
	uint64_t block_bytes;
	int wake;
	struct store *store;
	struct store_root *root;
	uint8_t *pool;			/* [IN_FLIGHT][block_bytes] */
	int32_t *tokens;		/* [n_blocks][block_tokens] */
	uint64_t *ids;			/* [n_blocks] */
};

struct slot {
	union {
		struct store_request request;
		struct store_write write;
		struct store_read read;
		struct store_touch touch;
	};
	bool busy;
};

static struct slot slots[IN_FLIGHT];
static uint32_t n_bad;

static void on_wake(void *arg)
{
	const struct bench *b = arg;
	uint64_t one = 1;

	(void)!write(b->wake, &one, sizeof(one));
}

static void on_event(void *arg, const char *text)
{
	fprintf(stderr, "store-bench: %s\n", text);
}

static void on_done(struct store_request *r)
{
	struct slot *s = (struct slot *)r;

	n_bad += r->result != STORE_OK;
	s->busy = false;
}

static void wait_some(const struct bench *b)
{
	uint64_t n;

	if (!store_poll(b->store)) {
		(void)!read(b->wake, &n, sizeof(n));
		store_poll(b->store);
	}
}

static struct slot *free_slot(const struct bench *b)
{
	while (true) {
		for (uint32_t i = 0; i < IN_FLIGHT; i++)
			if (!slots[i].busy)
				return &slots[i];
		wait_some(b);
	}
}

static void wait_all(const struct bench *b)
{
	for (uint32_t i = 0; i < IN_FLIGHT; i++)
		while (slots[i].busy)
			wait_some(b);
}

static void store_open(struct bench *b)
{
	struct diag diag = DIAG_NULL;
	struct store_identity id = { 0 };
	struct store_config config = {
		.dir = b->dir, .max_bytes = UINT64_C(1) << 40, .event = on_event, .wake = on_wake, .arg = b,
	};
	struct slot *s = &slots[0];

	store_identity_add(&id, STORE_TAG_MODEL, "bench", 5);
	if (store_new(&b->store, &config, &diag)) {
		fprintf(stderr, "store-bench: %s\n", diag.text);
		exit(1);
	}
	if (store_root_new(&b->root, b->store, &id, NULL, b->block_tokens, b->block_bytes))
		exit(1);
	/* Until the root is open. */
	s->busy = true;
	s->touch = (struct store_touch){ .request.done = on_done };
	store_touch(b->root, &s->touch);
	wait_all(b);
}

static void store_close(struct bench *b)
{
	store_root_free(b->root);
	store_stop(b->store);
	store_poll(b->store);
	store_free(b->store);
}

static uint8_t *memory_of(const struct bench *b, const struct slot *s)
{
	return b->pool + (size_t)(s - slots) * b->block_bytes;
}

static void write_all(struct bench *b)
{
	for (uint32_t i = 0; i < b->n_blocks; i++) {
		struct slot *s = free_slot(b);

		s->write = (struct store_write){
			.request.done = on_done, .name = { "bench", 5 }, .parent = i % CHAIN ? b->ids[i - 1] : 0,
			.tokens = b->tokens + (size_t)i * b->block_tokens, .n_tokens = b->block_tokens,
			.first = i % CHAIN * b->block_tokens, .uid = 1, .now = 1, .expires = STORE_NEVER,
			.block = memory_of(b, s),
		};
		memset(memory_of(b, s), (int)(i % 255) + 1, b->block_bytes);
		s->busy = true;
		while (store_write(b->root, &s->write))
			wait_some(b);
		b->ids[i] = s->write.id;
	}
	wait_all(b);
}

static void read_all(struct bench *b)
{
	for (uint32_t i = 0; i < b->n_blocks; i++) {
		struct slot *s = free_slot(b);

		s->read = (struct store_read){
			.request.done = on_done, .name = { "bench", 5 }, .id = b->ids[i],
			.parent = i % CHAIN ? b->ids[i - 1] : 0, .tokens = b->tokens + (size_t)i * b->block_tokens,
			.n_tokens = b->block_tokens, .first = i % CHAIN * b->block_tokens, .block = memory_of(b, s),
		};
		s->busy = true;
		store_read(b->root, &s->read);
	}
	wait_all(b);
}

/* The kernel is to forget the slots. */
static int forget(void *arg, const char *name)
{
	struct bench *b = arg;
	_cleanup_(fd_closep) int dir = open(b->dir, O_RDONLY | O_DIRECTORY), fd = -1;
	char path[64];

	snprintf(path, sizeof(path), "%.32s/slots", name);
	fd = openat(dir, path, O_RDONLY);
	if (fd >= 0)
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	return 0;
}

static int remove_root(void *arg, const char *name)
{
	return dir_remove(*(int *)arg, name);
}

static double seconds(uint64_t since)
{
	return (double)(clock_ns() - since) * 1e-9;
}

static void run(struct bench *b)
{
	double mb = (double)b->n_blocks * (double)b->block_bytes * 1e-6, t;
	struct store_stats st;
	uint64_t begun;
	int fd;

	store_open(b);
	begun = clock_ns();
	write_all(b);
	t = seconds(begun);
	store_stats(b->store, &st);
	printf("write   %8.0f MB/s  %6.0f tokens/s  %u blocks, %llu commits\n", mb / t,
	       (double)st.tokens_written / t, b->n_blocks, (unsigned long long)st.commits);
	printf("written %8.0f bytes per token; %.4f of the blocks' bytes (slots %.4f, index %.4f)\n",
	       (double)(st.slot_bytes_written + st.index_bytes_written) / (double)st.tokens_written,
	       (double)(st.slot_bytes_written + st.index_bytes_written) / (double)st.block_bytes_written,
	       (double)st.slot_bytes_written / (double)st.block_bytes_written,
	       (double)st.index_bytes_written / (double)st.block_bytes_written);
	store_close(b);
	begun = clock_ns();
	store_open(b);
	printf("open    %8.2f ms\n", seconds(begun) * 1e3);
	begun = clock_ns();
	read_all(b);
	printf("read    %8.0f MB/s, from the page cache\n", mb / seconds(begun));
	fd = open(b->dir, O_RDONLY | O_DIRECTORY);
	dir_each_sub(fd, forget, b);
	begun = clock_ns();
	read_all(b);
	printf("read    %8.0f MB/s, after the kernel was asked to forget\n", mb / seconds(begun));
	store_close(b);
	dir_each_sub(fd, remove_root, &fd);
	unlinkat(fd, "lock", 0);
	close(fd);
	rmdir(b->dir);
}

int main(int argc, char **argv)
{
	struct bench b = { .n_blocks = 512, .block_tokens = 16, .block_bytes = 368640 };

	if (argc < 2 || argc > 5) {
		fputs("usage: store-bench DIR [BLOCKS [BLOCK_BYTES [BLOCK_TOKENS]]]\n", stderr);
		return 2;
	}
	snprintf(b.dir, sizeof(b.dir), "%s/store-bench", argv[1]);
	if (argc > 2)
		b.n_blocks = (uint32_t)strtoul(argv[2], NULL, 10);
	if (argc > 3)
		b.block_bytes = strtoull(argv[3], NULL, 10);
	if (argc > 4)
		b.block_tokens = (uint32_t)strtoul(argv[4], NULL, 10);
	if (!b.n_blocks || !b.block_bytes || !b.block_tokens || b.block_tokens > STORE_TOKENS_MAX)
		return 2;
	b.wake = eventfd(0, EFD_CLOEXEC);
	b.pool = malloc(IN_FLIGHT * b.block_bytes);
	b.tokens = malloc((size_t)b.n_blocks * b.block_tokens * sizeof(*b.tokens));
	b.ids = calloc(b.n_blocks, sizeof(*b.ids));
	if (b.wake < 0 || !b.pool || !b.tokens || !b.ids)
		return 1;
	for (size_t i = 0; i < (size_t)b.n_blocks * b.block_tokens; i++)
		b.tokens[i] = (int32_t)i;
	run(&b);
	free(b.pool);
	free(b.tokens);
	free(b.ids);
	if (n_bad)
		fprintf(stderr, "store-bench: %u requests did not do what they should\n", n_bad);
	return n_bad ? 1 : 0;
}
