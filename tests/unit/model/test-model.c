/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading a tiny model and stepping it: what the model says of itself, the
 * content hash against the library's one-shot function, files that change under
 * it, giving up, and batches that must be refused.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmocka.h>

#include "daemon/model/chat-template.h"
#include "daemon/model/model.h"
#include "daemon/model/tokenizer.h"
#include "ipc/base/fd.h"

#define POOL_BYTES (UINT64_C(2) << 20)

struct fixture {
	char path[64];
	uint8_t *bytes;		/* the file's */
	size_t n;
	struct kb_backend *be;
};

/* The maker runs from the top of the tree, as tests/run does. */
static void make_file(const char *path, const char *arch)
{
	const char *const argv[] = {
		"/usr/bin/python3",
		"tests/tools/make_tiny_gguf.py",
		"--arch",
		arch,
		"--type",
		"q8_0",
		"--ctx",
		"100",
		"-o",
		path,
		NULL,
	};
	pid_t pid;
	int status = -1;

	assert_int_equal(posix_spawn(&pid, argv[0], NULL, NULL, (char *const *)argv, environ), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct kb_cpu_options cpu = { .n_threads = 1, .level = "c" };
	struct stat st;
	int fd;

	assert_non_null(f);
	strcpy(f->path, "/tmp/test-model-XXXXXX.gguf");
	fd = mkstemps(f->path, 5);
	assert_true(fd >= 0);
	make_file(f->path, "llama");
	assert_int_equal(fstat(fd, &st), 0);
	f->n = (size_t)st.st_size;
	f->bytes = malloc(f->n);
	assert_non_null(f->bytes);
	assert_int_equal(fd_pread_full(fd, f->bytes, f->n, 0), 0);
	close(fd);
	assert_int_equal(kb_cpu_open(&cpu, &f->be), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	f->be->ops->close(f->be);
	unlink(f->path);
	free(f->bytes);
	free(f);
	return 0;
}

static int load(struct fixture *f, const struct model_options *options, struct model **out, struct diag *diag)
{
	_cleanup_(fd_closep) int fd = open(f->path, O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	return model_load(out, f->be, fd, "/some/where/tiny.x.gguf", options, diag);
}

static void test_info(void **state)
{
	struct fixture *f = *state;
	_cleanup_(model_freep) struct model *m = NULL;
	struct diag diag = DIAG_NULL;
	const struct model_info *info;
	struct kb_geometry g;
	XXH128_canonical_t hash;

	assert_int_equal(load(f, NULL, &m, &diag), 0);
	info = model_info(m);
	assert_string_equal(info->name, "tiny.x");
	assert_string_equal(info->title, "tiny");
	assert_string_equal(info->arch, "llama");
	assert_int_equal(info->n_vocab, 512);
	assert_int_equal(info->n_layers, 2);
	assert_int_equal(info->head_dim, 16);
	assert_int_equal(info->file_bytes, f->n);
	/* 2 x 512 x 64, and 2 layers of (64 + 32 + 32 + 64) x 64, 3 x 64 x 128, 2 x 64, and 64 */
	assert_int_equal(info->n_params, 65536 + 2 * (192 * 64 + 3 * 64 * 128 + 128) + 64);
	assert_true(info->weight_bytes >= info->n_params);
	XXH128_canonicalFromHash(&hash, XXH3_128bits(f->bytes, f->n));
	assert_memory_equal(info->content_hash, hash.digest, 16);
	assert_int_equal(model_n_ctx(m), 100);
	assert_int_equal(tokenizer_n_vocab(model_tokenizer(m)), 512);
	assert_string_equal(chat_template_name(model_chat_template(m)), "chatml");
	model_geometry(m, KB_KV_F16, 16, &g);
	assert_int_equal(g.block_bytes, 2 * 2 * 2 * 16 * 16 * 2);
	assert_string_equal(diag.text, "");
}

static void test_options(void **state)
{
	struct fixture *f = *state;
	struct model_options options = { .name = "given", .n_ctx = 64 };
	struct model *m = NULL;

	assert_int_equal(load(f, &options, &m, NULL), 0);
	assert_string_equal(model_info(m)->name, "given");
	assert_int_equal(model_n_ctx(m), 64);
	model_free(m);
	options.n_ctx = 5000;
	assert_int_equal(load(f, &options, &m, NULL), 0);
	assert_int_equal(model_n_ctx(m), 100);
	assert_int_equal(model_info(m)->n_ctx_train, 100);
	model_free(m);
}

struct progress {
	uint64_t calls, done, total, give_up_at;
};

static bool on_progress(void *arg, uint64_t done, uint64_t total)
{
	struct progress *p = arg;

	assert_true(done >= p->done && done <= total);
	p->calls++;
	p->done = done;
	p->total = total;
	return p->calls != p->give_up_at;
}

static void test_progress(void **state)
{
	struct fixture *f = *state;
	struct progress p = { 0 };
	struct model_options options = { .progress = on_progress, .progress_arg = &p };
	struct model *m = NULL;
	uint64_t calls;

	assert_int_equal(load(f, &options, &m, NULL), 0);
	model_free(m);
	assert_int_equal(p.done, f->n);
	assert_int_equal(p.total, f->n);
	calls = p.calls;
	assert_true(calls > 2);
	/* Given up at any point, nothing is left behind (a sanitizer sees that). */
	for (uint64_t i = 1; i <= calls; i++) {
		p = (struct progress){ .give_up_at = i };
		m = NULL;
		assert_int_equal(load(f, &options, &m, NULL), -ECANCELED);
		assert_null(m);
		assert_int_equal(p.calls, i);
	}
}

/* A tensor that becomes several operands is read once, counted once, and freed with a model given up half-way. */
static void test_fused(void **state)
{
	struct fixture *f = *state;
	char path[] = "/tmp/test-model-XXXXXX.gguf";
	struct progress p = { 0 };
	struct model_options options = { .progress = on_progress, .progress_arg = &p };
	_cleanup_(fd_closep) int fd = mkstemps(path, 5);
	struct model *m = NULL;
	uint64_t calls;

	assert_true(fd >= 0);
	make_file(path, "phi3");
	unlink(path);
	assert_int_equal(model_load(&m, f->be, fd, path, &options, NULL), 0);
	assert_int_equal(p.done, p.total);
	assert_int_equal(model_info(m)->n_params, 65536 + 2 * (192 * 64 + 3 * 64 * 128 + 128) + 64);
	model_free(m);
	calls = p.calls;
	for (uint64_t i = 1; i <= calls; i++) {
		p = (struct progress){ .give_up_at = i };
		m = NULL;
		assert_int_equal(model_load(&m, f->be, fd, path, &options, NULL), -ECANCELED);
		assert_null(m);
	}
}

/* The file is cut while it is read: an error, no crash, as it is never mapped. */
struct cutter {
	int fd;
	unsigned calls;
};

static bool cut(void *arg, uint64_t done, uint64_t total)
{
	struct cutter *c = arg;

	if (++c->calls == 3)
		assert_int_equal(ftruncate(c->fd, (off_t)done), 0);
	return true;
}

static void test_cut_while_loading(void **state)
{
	struct fixture *f = *state;
	struct cutter cutter = { .fd = memfd_create("model", MFD_CLOEXEC) };
	struct model_options options = { .progress = cut, .progress_arg = &cutter };
	struct diag diag = DIAG_NULL;
	struct model *m = NULL;

	assert_int_equal(fd_write_full(cutter.fd, f->bytes, f->n), 0);
	assert_int_equal(model_load(&m, f->be, cutter.fd, "m", &options, &diag), -EIO);
	assert_null(m);
	assert_non_null(strstr(diag.text, "cannot be read"));
	close(cutter.fd);
}

/* One flipped bit anywhere: another hash, or a refusal; never the same. */
static void test_hash_sees_every_byte(void **state)
{
	struct fixture *f = *state;
	uint8_t hash[16];
	struct model *m = NULL;
	int fd = memfd_create("model", MFD_CLOEXEC);

	assert_int_equal(fd_write_full(fd, f->bytes, f->n), 0);
	assert_int_equal(model_load(&m, f->be, fd, "m", NULL, NULL), 0);
	memcpy(hash, model_info(m)->content_hash, sizeof(hash));
	model_free(m);
	for (size_t i = 0; i < f->n; i += f->n / 50) {
		uint8_t flipped = f->bytes[i] ^ 1;

		assert_int_equal(pwrite(fd, &flipped, 1, (off_t)i), 1);
		m = NULL;
		if (!model_load(&m, f->be, fd, "m", NULL, NULL)) {
			assert_memory_not_equal(model_info(m)->content_hash, hash, sizeof(hash));
			model_free(m);
		}
		assert_int_equal(pwrite(fd, &f->bytes[i], 1, (off_t)i), 1);
	}
	close(fd);
}

/* A batch that fits, to be spoilt in one place. */
struct stepper {
	struct kb_geometry geometry;
	int32_t tokens[4];
	uint32_t table[2], rows[2], hidden_rows[3];
	struct kb_seq seqs[2];
	struct kb_batch batch;
};

static void make_batch(struct stepper *s, const struct model *m, struct kb_pool *pool)
{
	*s = (struct stepper){
		.tokens = {1, 2, 3, 511},
		.table = {1, 0},
		.rows = {1, 3},
		.hidden_rows = {0, 1, 3},
		.seqs =
			{
				{.first_row = 0,
				 .n_rows = 2,
				 .first_pos = 0,
				 .n_blocks = 1,
				 .block_table = s->table},
				{.first_row = 2,
				 .n_rows = 2,
				 .first_pos = 0,
				 .n_blocks = 1,
				 .block_table = s->table + 1},
			},
		.batch = {.n_rows = 4, .n_seqs = 2, .n_logits = 2, .pool = pool, .n_hidden = 3},
	};
	model_geometry(m, KB_KV_F16, 16, &s->geometry);
	s->geometry.chunk_bytes = POOL_BYTES;
	s->geometry.blocks_per_chunk = (uint32_t)(POOL_BYTES / s->geometry.block_bytes);
	s->batch.tokens = s->tokens;
	s->batch.seqs = s->seqs;
	s->batch.logit_rows = s->rows;
	s->batch.hidden_rows = s->hidden_rows;
	s->batch.geometry = &s->geometry;
}

#define REFUSED(change) do { \
		make_batch(&s, m, pool); \
		change; \
		assert_int_equal(model_step(m, ws, &s.batch), -EINVAL); \
	} while (0)

static void test_step(void **state)
{
	struct fixture *f = *state;
	const struct kb_ops *ops = f->be->ops;
	struct model *m = NULL;
	struct kb_pool *pool;
	struct kb_workspace *ws;
	struct kb_workspace_desc desc;
	struct stepper s;
	const float *logits, *hidden;
	float last[64];
	int fd = memfd_create("pool", MFD_CLOEXEC);

	assert_int_equal(ftruncate(fd, (off_t)POOL_BYTES), 0);
	assert_int_equal(ops->pool_import(f->be, fd, POOL_BYTES, &pool), 0);
	close(fd);
	assert_int_equal(load(f, NULL, &m, NULL), 0);
	model_workspace_desc(m, &desc);
	desc.max_rows = desc.max_logits = 4;
	assert_int_equal(ops->workspace_new(f->be, &desc, &ws), 0);

	REFUSED(s.tokens[3] = 512);
	REFUSED(s.tokens[0] = -1);
	REFUSED(s.rows[1] = 4);
	REFUSED(s.rows[1] = 1);
	REFUSED(s.hidden_rows[2] = 4);
	REFUSED(s.hidden_rows[1] = 0);
	REFUSED(s.seqs[0].n_rows = 1);
	REFUSED(s.seqs[1].n_rows = 3);
	REFUSED(s.seqs[1].n_rows = 0);
	REFUSED(s.seqs[1].first_row = 1);
	REFUSED(s.seqs[1].first_pos = 99);
	REFUSED(s.seqs[1].first_pos = UINT32_MAX);
	REFUSED(s.seqs[1].first_pos = 15);
	REFUSED(s.seqs[1].n_blocks = 0);
	REFUSED(s.batch.n_seqs = 1);
	REFUSED(s.batch.n_rows = 0; s.batch.n_seqs = 0; s.batch.n_logits = 0; s.batch.n_hidden = 0);
	REFUSED(s.geometry.n_layers = 1);
	REFUSED(s.geometry.n_kv_heads = 4);
	REFUSED(s.geometry.head_dim = 32);

	make_batch(&s, m, pool);
	assert_int_equal(model_step(m, ws, &s.batch), 0);
	assert_int_equal(ops->step_wait(ws), 0);
	logits = ops->step_logits(ws);
	assert_memory_not_equal(logits, logits + 512, 512 * sizeof(float));
	for (size_t i = 0; i < 2 * 512; i++)
		assert_true(logits[i] > -100 && logits[i] < 100);
	hidden = ops->step_hidden(ws);
	assert_memory_not_equal(hidden, hidden + 64, 64 * sizeof(float));
	assert_memory_not_equal(hidden, hidden + 2 * 64, 64 * sizeof(float));
	memcpy(last, hidden + 2 * 64, sizeof(last));

	/* Hidden states alone, without a head. */
	make_batch(&s, m, pool);
	s.batch.n_logits = 0;
	s.batch.n_hidden = 1;
	s.hidden_rows[0] = 3;
	assert_int_equal(model_step(m, ws, &s.batch), 0);
	assert_int_equal(ops->step_wait(ws), 0);
	assert_memory_equal(ops->step_hidden(ws), last, sizeof(last));
	ops->workspace_free(f->be, ws);
	model_free(m);
	ops->pool_free(f->be, pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_info),
		cmocka_unit_test(test_options),
		cmocka_unit_test(test_progress),
		cmocka_unit_test(test_fused),
		cmocka_unit_test(test_cut_while_loading),
		cmocka_unit_test(test_hash_sees_every_byte),
		cmocka_unit_test(test_step),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
