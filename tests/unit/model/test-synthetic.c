/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Synthetic models: shapes against the published numbers of parameters, weights of each type against what they
 * should be by a step of each, bytes that do not depend on how they are asked for, and text that comes back.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/model/model.h"
#include "daemon/model/synthetic.h"
#include "daemon/model/tokenizer.h"
#include "ipc/base/checked.h"

#define POOL_BYTES (UINT64_C(2) << 20)
#define N_TOKENS 12

static int setup(void **state)
{
	struct kb_cpu_options cpu = { .n_threads = 1 };
	struct kb_backend *be;

	assert_int_equal(kb_cpu_open(&cpu, &be), 0);
	*state = be;
	return 0;
}

static int teardown(void **state)
{
	struct kb_backend *be = *state;

	be->ops->close(be);
	return 0;
}

static uint64_t n_params(const struct gguf *g)
{
	uint64_t sum = 0;

	for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
		struct gguf_tensor t;

		gguf_tensor_at(g, i, &t);
		sum += t.n_elements;
	}
	return sum;
}

/* Of the models' cards and checkpoints. */
static void test_shapes(void **state)
{
	static const struct {
		const char *what;
		uint64_t n_params;
	} known[] = {
		{ "smollm2-135m:q4_1", 134515008 },   { "smollm2-360m:q8_0", 361821120 },
		{ "smollm2-1.7b:f16", 1711376384 },   { "tinyllama-1.1b:q4_0", 1100048384 },
		{ "llama-2-7b:q4_0", 6738415616 },    { "llama-2-13b:q4_0", 13015864320 },
		{ "llama-3-8b:q4_k", 8030261248 },    { "llama-3.2-1b:q4_0", 1235814400 },
		{ "mistral-7b:q6_k", 7241732096 },    { "gemma-3-270m:q4_k", 268098176 },
		{ "gemma-3-1b:q4_k", 999885952 },     { "qwen2.5-0.5b:q5_1", 494032768 },
		{ "qwen3-0.6b:bf16", 596049920 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(known); i++) {
		struct synthetic *s = NULL;
		struct diag diag = DIAG_NULL;
		uint64_t bytes = 0;

		if (synthetic_new(&s, known[i].what, &diag))
			fail_msg("%s: %s", known[i].what, diag.text);
		if (n_params(synthetic_header(s)) != known[i].n_params)
			fail_msg("%s: %llu parameters", known[i].what,
				 (unsigned long long)n_params(synthetic_header(s)));
		assert_int_equal(synthetic_file_bytes(known[i].what, &bytes, NULL), 0);
		assert_int_equal(bytes, gguf_file_size(synthetic_header(s)));
		synthetic_free(s);
	}
	/* 18 bytes for 32 weights, and a header. */
	struct synthetic *s = NULL;

	assert_int_equal(synthetic_new(&s, "llama-2-7b:q4_0", NULL), 0);
	assert_true(gguf_file_size(synthetic_header(s)) > 6738415616 / 32 * 18);
	assert_true(gguf_file_size(synthetic_header(s)) < 6738415616 / 32 * 18 + (8 << 20));
	synthetic_free(s);
}

static void refused(const char *what, const char *says)
{
	struct diag diag = DIAG_NULL;
	struct synthetic *s = NULL;

	assert_int_equal(synthetic_check(what, &diag), -EINVAL);
	if (!strstr(diag.text, says))
		fail_msg("%s: %s", what, diag.text);
	assert_int_equal(synthetic_new(&s, what, NULL), -EINVAL);
	assert_null(s);
}

static void test_refused(void **state)
{
	refused("", "no \"\"; there are smollm2-135m");
	refused("llama-9-7b:q4_0", "no \"llama-9-7b");
	refused("llama-2-7:q4_0", "no \"llama-2-7");
	refused("llama-2-7b", "not NAME:TYPE");
	refused("llama-2-7b:", "with a type of f32, f16");
	refused("llama-2-7b:q9_0", "llama-2-7b:q9_0");
	refused("llama-2-7b:Q4_0", "llama-2-7b:Q4_0");
}

/* The bytes behind the header, in pieces of any size: always the same. */
static void test_pieces(void **state)
{
	static const char *const types[] = { "f32", "f16", "q4_1", "q8_0", "q4_k", "q6_k" };
	enum { N = 300000 };
	uint8_t *whole = malloc(N), *cut = malloc(N);
	unsigned random = 1;

	assert_non_null(whole);
	assert_non_null(cut);
	for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
		struct synthetic *s = NULL;
		struct gguf_tensor t;
		char what[32];

		snprintf(what, sizeof(what), "tiny:%s", types[i]);
		assert_int_equal(synthetic_new(&s, what, NULL), 0);
		gguf_tensor_at(synthetic_header(s), 3, &t);
		assert_true(t.offset + t.n_bytes + N / 2 < gguf_file_size(synthetic_header(s)));
		assert_int_equal(synthetic_read(s, whole, N, t.offset - 1000), 0);
		for (size_t at = 0, n; at < N; at += n) {
			random = random * 1103515245 + 12345;
			n = MIN((size_t)(random >> 16) % 3000 + 1, N - at);
			assert_int_equal(synthetic_read(s, cut + at, n, t.offset - 1000 + at), 0);
		}
		assert_memory_equal(whole, cut, N);
		synthetic_free(s);
	}
	free(whole);
	free(cut);
}

/* --- as models ------------------------------------------------------------------- */

/* Logits of the last of some tokens; their deviation. */
static double deviation_of_step(struct kb_backend *be, struct model *m, float **logits)
{
	const uint32_t table = 0, row = N_TOKENS - 1, n_vocab = model_info(m)->n_vocab;
	int32_t tokens[N_TOKENS];
	struct kb_seq seq = { .n_rows = N_TOKENS, .n_blocks = 1, .block_table = &table };
	struct kb_geometry g;
	struct kb_workspace_desc desc;
	struct kb_workspace *ws;
	struct kb_pool *pool;
	int fd = memfd_create("pool", MFD_CLOEXEC);
	double sum = 0, squares = 0;

	assert_int_equal(ftruncate(fd, (off_t)POOL_BYTES), 0);
	assert_int_equal(be->ops->pool_import(be, fd, POOL_BYTES, &pool), 0);
	close(fd);
	for (int i = 0; i < N_TOKENS; i++)
		tokens[i] = 100 + i;
	model_geometry(m, KB_KV_F16, 16, &g);
	g.chunk_bytes = POOL_BYTES;
	g.blocks_per_chunk = (uint32_t)(POOL_BYTES / g.block_bytes);
	model_workspace_desc(m, &desc);
	desc.max_rows = N_TOKENS;
	desc.max_logits = 1;
	assert_int_equal(be->ops->workspace_new(be, &desc, &ws), 0);
	assert_int_equal(model_step(m, ws, &(struct kb_batch){
		.n_rows = N_TOKENS, .tokens = tokens, .n_seqs = 1, .seqs = &seq, .n_logits = 1, .logit_rows = &row,
		.pool = pool, .geometry = &g,
	}), 0);
	assert_int_equal(be->ops->step_wait(ws), 0);
	*logits = malloc(n_vocab * sizeof(float));
	assert_non_null(*logits);
	memcpy(*logits, be->ops->step_logits(ws), n_vocab * sizeof(float));
	for (uint32_t i = 0; i < n_vocab; i++) {
		sum += (double)(*logits)[i];
		squares += (double)(*logits)[i] * (double)(*logits)[i];
	}
	be->ops->workspace_free(be, ws);
	be->ops->pool_free(be, pool);
	return sqrt(squares / n_vocab - sum / n_vocab * (sum / n_vocab));
}

/* The head has rows of a length of 1 and gets states of as many ones: a deviation of 1. */
static void test_types(void **state)
{
	static const char *const types[] = {
		"f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k",
	};
	struct kb_backend *be = *state;

	for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
		struct model_options one = { .n_threads = 1 }, four = { .n_threads = 4, .name = "given" };
		struct model *m = NULL, *again = NULL;
		struct diag diag = DIAG_NULL;
		float *logits, *others;
		char what[32];
		double d;

		snprintf(what, sizeof(what), "tiny:%s", types[i]);
		if (model_load_synthetic(&m, be, what, &one, &diag))
			fail_msg("%s: %s", what, diag.text);
		assert_string_equal(model_info(m)->name, what);
		assert_true(model_info(m)->synthetic);
		d = deviation_of_step(be, m, &logits);
		if (!(d > 0.6 && d < 1.7))
			fail_msg("%s: logits have a deviation of %g", what, d);
		assert_int_equal(model_load_synthetic(&again, be, what, &four, NULL), 0);
		assert_string_equal(model_info(again)->name, "given");
		assert_memory_equal(model_info(m)->content_hash, model_info(again)->content_hash, 16);
		deviation_of_step(be, again, &others);
		assert_memory_equal(logits, others, model_info(m)->n_vocab * sizeof(float));
		free(logits);
		free(others);
		model_free(m);
		model_free(again);
	}
}

static void test_text(void **state)
{
	static const char text[] = "One two, \t 12345\n \xc3\xa4\xe2\x82\xac\xff\x01";
	struct kb_backend *be = *state;
	struct model *m = NULL;
	const struct tokenizer *t;
	struct token_list ids = { 0 };
	uint8_t back[64];
	size_t n;

	assert_int_equal(model_load_synthetic(&m, be, "tiny:q4_0", NULL, NULL), 0);
	t = model_tokenizer(m);
	assert_int_equal(tokenizer_encode(t, text, sizeof(text), TOKENIZE_BOS, &ids), 0);
	assert_int_equal(ids.n, sizeof(text));
	assert_int_equal(tokenizer_join(t, ids.ids, ids.n, back), sizeof(text));
	assert_memory_equal(back, text, sizeof(text));
	for (int32_t i = 0; i < (int32_t)tokenizer_n_vocab(t); i++) {
		assert_false(tokenizer_is_eog(t, i));
		tokenizer_bytes(t, i, &n);
		assert_true(n > 0);
	}
	assert_memory_equal(tokenizer_bytes(t, 256 + 27, &n), " ab", 3);
	assert_int_equal(n, 3);
	free(ids.ids);
	model_free(m);
}

static bool give_up(void *arg, uint64_t done, uint64_t total)
{
	return ++*(unsigned *)arg < 3;
}

static void test_cancel(void **state)
{
	unsigned n_calls = 0;
	struct model_options options = { .progress = give_up, .progress_arg = &n_calls };
	struct model *m = NULL;

	assert_int_equal(model_load_synthetic(&m, *state, "llama-2-13b:f16", &options, NULL), -ECANCELED);
	assert_null(m);
	assert_int_equal(n_calls, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shapes), cmocka_unit_test(test_refused), cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_types),  cmocka_unit_test(test_text),    cmocka_unit_test(test_cancel),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
