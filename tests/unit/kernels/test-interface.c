/* SPDX-License-Identifier: Apache-2.0 */
/* The backend's table: levels, tensors, what is refused, copies of tokens. */
#include <errno.h>
#include <math.h>
#include <pthread.h>

#include "fixture.h"
#include "kernels/cpu/cpu.h"

static const struct toy_shape shape = {
	.n_layers = 2, .n_embd = 64, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .n_ff = 96, .n_vocab = 50,
	.max_positions = 100, .type = KB_Q4_0, .head_type = KB_Q8_0,
};

static void test_levels(void **state)
{
	const char *const *levels = kb_cpu_levels();
	struct kb_backend *be = (void *)1;
	struct kb_cpu_options options = { .level = "sse9" };
	size_t n = 0;

	for (; levels[n]; n++) {
		be = open_level(levels[n], 1);
		assert_string_equal(be->ops->level(be), levels[n]);
		assert_string_equal(be->ops->name, "cpu");
		assert_int_equal(be->ops->abi_version, KB_ABI_VERSION);
		be->ops->close(be);
	}
	assert_true(n > 0);
	assert_string_equal(levels[n - 1], "c");
	assert_int_equal(kb_cpu_open(NULL, &be), 0);
	assert_string_equal(be->ops->level(be), levels[0]);
	be->ops->close(be);
	be = (void *)1;
	assert_int_equal(kb_cpu_open(&options, &be), -EINVAL);
	assert_ptr_equal(be, (void *)1);
	if (!kc_level_avx512.supported()) {
		options.level = "avx512";
		assert_int_equal(kb_cpu_open(&options, &be), -ENOTSUP);
	}
}

static void test_set_threads(void **state)
{
	struct kb_backend *be = open_level(NULL, 2);
	uint32_t n = be->ops->n_threads(be);

	assert_int_equal(be->ops->set_threads(be, 1), 0);
	assert_int_equal(be->ops->n_threads(be), 1);
	assert_int_equal(be->ops->set_threads(be, n), 0);
	assert_int_equal(be->ops->set_threads(be, 0), -EINVAL);
	assert_int_equal(be->ops->set_threads(be, n + 1), -EINVAL);
	be->ops->close(be);
}

static int try_tensor(struct kb_backend *be, uint32_t type, uint32_t use, uint32_t rows, uint32_t cols)
{
	struct kb_tensor_desc d = { (enum kb_type)type, (enum kb_use)use, rows, cols };
	struct kb_tensor *t = (void *)1;
	int r = be->ops->tensor_new(be, &d, &t);

	if (r)
		assert_ptr_equal(t, (void *)1);
	else
		be->ops->tensor_free(be, t);
	return r;
}

static void test_tensor_refused(void **state)
{
	struct kb_backend *be = open_level("c", 1);
	struct kb_tensor *t;
	uint8_t *data;
	uint64_t rng = 1;

	assert_int_equal(try_tensor(be, KB_Q4_1, KB_USE_MATRIX, 16, 64), 0);
	assert_int_equal(try_tensor(be, KB_Q4_1, KB_USE_MATRIX, 0, 64), -EINVAL);
	assert_int_equal(try_tensor(be, KB_Q4_1, KB_USE_MATRIX, 16, 0), -EINVAL);
	assert_int_equal(try_tensor(be, KB_Q4_1, KB_USE_MATRIX, 16, 48), -EINVAL);
	assert_int_equal(try_tensor(be, KB_F32, KB_USE_MATRIX, UINT32_MAX, 32), -EINVAL);
	assert_int_equal(try_tensor(be, KB_F32, KB_USE_MATRIX, 1, UINT32_MAX - 31), -EINVAL);
	assert_int_equal(try_tensor(be, 9, KB_USE_MATRIX, 16, 64), -ENOTSUP);
	assert_int_equal(try_tensor(be, 31, KB_USE_MATRIX, 16, 64), -ENOTSUP);
	assert_int_equal(try_tensor(be, UINT32_MAX, KB_USE_MATRIX, 16, 64), -ENOTSUP);
	assert_int_equal(try_tensor(be, KB_Q4_K, KB_USE_MATRIX, 16, 512), 0);
	assert_int_equal(try_tensor(be, KB_Q4_K, KB_USE_MATRIX, 16, 288), -EINVAL);
	assert_int_equal(try_tensor(be, KB_IQ4_XS, KB_USE_MATRIX, 16, 32), -EINVAL);
	assert_int_equal(try_tensor(be, KB_Q4_0, KB_USE_VECTOR, 1, 64), -ENOTSUP);
	assert_int_equal(try_tensor(be, KB_F32, KB_USE_VECTOR, 2, 64), -EINVAL);
	assert_int_equal(try_tensor(be, KB_F32, 9, 1, 64), -EINVAL);
	/* 2^28 rows of 2^24 columns: 2^54 bytes can't be had. */
	assert_int_equal(try_tensor(be, KB_F32, KB_USE_MATRIX, 1u << 28, 1u << 24), -ENOMEM);
	data = random_rows(&rng, KB_Q8_0, 40, 32, 1);
	t = make_matrix(be, KB_Q8_0, 40, 32, data);
	assert_int_equal(be->ops->tensor_bytes(t), 3 * 16 * 34);
	assert_int_equal(be->ops->tensor_fill(be, t, 16, 24, data), 0);
	assert_int_equal(be->ops->tensor_fill(be, t, 8, 16, data), -EINVAL);
	assert_int_equal(be->ops->tensor_fill(be, t, 0, 8, data), -EINVAL);
	assert_int_equal(be->ops->tensor_fill(be, t, 16, 25, data), -EINVAL);
	assert_int_equal(be->ops->tensor_fill(be, t, 48, 1, data), -EINVAL);
	assert_int_equal(be->ops->tensor_fill(be, t, UINT32_MAX - 15, 16, data), -EINVAL);
	be->ops->tensor_free(be, t);
	be->ops->tensor_free(be, NULL);
	free(data);
	be->ops->close(be);
}

/* Filled piece by piece in any order it is the same as filled at once. */
static void test_fill_pieces(void **state)
{
	struct kb_backend *be = open_level("c", 1);
	struct kb_tensor_desc desc = { KB_Q4_1, KB_USE_MATRIX, 70, 64 };
	uint64_t rng = 2;
	uint8_t *data = random_rows(&rng, desc.type, desc.rows, desc.cols, 1);
	size_t bytes = row_bytes(desc.type, desc.cols);
	struct kb_tensor *a = make_matrix(be, desc.type, desc.rows, desc.cols, data), *b = NULL;

	assert_int_equal(be->ops->tensor_new(be, &desc, &b), 0);
	assert_int_equal(be->ops->tensor_fill(be, b, 48, 22, data + 48 * bytes), 0);
	assert_int_equal(be->ops->tensor_fill(be, b, 0, 16, data), 0);
	assert_int_equal(be->ops->tensor_fill(be, b, 16, 32, data + 16 * bytes), 0);
	assert_memory_equal(a->data, b->data, a->bytes);
	be->ops->tensor_free(be, a);
	be->ops->tensor_free(be, b);
	free(data);
	be->ops->close(be);
}

/* Memory of freed tensors goes back: a thousand large ones in turn. */
static void test_arena(void **state)
{
	struct kb_backend *be = open_level("c", 1);
	struct kb_tensor_desc desc = { KB_F32, KB_USE_MATRIX, 4096, 4096 };

	for (int i = 0; i < 5000; i++) {
		struct kb_tensor *t = NULL;

		assert_int_equal(be->ops->tensor_new(be, &desc, &t), 0);
		be->ops->tensor_free(be, t);
	}
	be->ops->close(be);
}

struct loader {
	struct kb_backend *be;
	float value;		/* in all of its tensors */
	bool wrong;
};

/* Makes, fills and frees tensors of many sizes; each must keep what was put in. */
static void *load_and_unload(void *arg)
{
	struct loader *l = arg;
	struct kb_tensor *tensors[16] = { NULL };
	float data[1024];

	for (size_t i = 0; i < 1024; i++)
		data[i] = l->value;
	for (uint32_t round = 0; round < 300000; round++) {
		struct kb_tensor **t = &tensors[round * 7 % 16];
		struct kb_tensor_desc desc = { KB_F32, KB_USE_VECTOR, 1, round * 37 % 1024 + 1 };

		if (*t)
			l->wrong |= memcmp((*t)->data, data, (*t)->cols * sizeof(float)) != 0;
		l->be->ops->tensor_free(l->be, *t);
		*t = NULL;
		if (l->be->ops->tensor_new(l->be, &desc, t) || l->be->ops->tensor_fill(l->be, *t, 0, 1, data))
			l->wrong = true;
	}
	for (size_t i = 0; i < 16; i++)
		l->be->ops->tensor_free(l->be, tensors[i]);
	return NULL;
}

/* Models come and go on threads of their own. */
static void test_loaders(void **state)
{
	struct kb_backend *be = open_level("c", 1);
	struct loader loaders[3];
	pthread_t threads[3];

	for (int i = 0; i < 3; i++) {
		loaders[i] = (struct loader){ .be = be, .value = (float)i + 1 };
		assert_int_equal(pthread_create(&threads[i], NULL, load_and_unload, &loaders[i]), 0);
	}
	for (int i = 0; i < 3; i++) {
		pthread_join(threads[i], NULL);
		assert_false(loaders[i].wrong);
	}
	be->ops->close(be);
}

static void test_vector_types(void **state)
{
	struct kb_backend *be = open_level("c", 1);
	const uint16_t half[3] = { 0x3c00, 0xc000, 0x3555 }, brain[3] = { 0x3f80, 0xc000, 0x3eab };
	const float f16[3] = { 1, -2, 0.333251953125f }, bf16[3] = { 1, -2, 0.333984375f };

	for (int i = 0; i < 2; i++) {
		struct kb_tensor_desc desc = { i ? KB_BF16 : KB_F16, KB_USE_VECTOR, 1, 3 };
		struct kb_tensor *t = NULL;

		assert_int_equal(be->ops->tensor_new(be, &desc, &t), 0);
		assert_int_equal(be->ops->tensor_fill(be, t, 0, 1, i ? brain : half), 0);
		assert_same_floats(i ? bf16 : f16, (const float *)(const void *)t->data, 3, "vector");
		be->ops->tensor_free(be, t);
	}
	be->ops->close(be);
}

static void test_rope_refused(void **state)
{
	struct kb_backend *be = open_level("c", 1);
	float inv_freq[8] = { 1 };
	const struct kb_rope_desc good = { KB_ROPE_HALVES, 16, 10, 1, inv_freq };
	struct kb_rope_desc d = good;
	struct kb_rope *rope = NULL;

	d.n_dims = 15;
	assert_int_equal(be->ops->rope_new(be, &d, &rope), -EINVAL);
	d.n_dims = 0;
	assert_int_equal(be->ops->rope_new(be, &d, &rope), -EINVAL);
	d.n_dims = UINT32_MAX - 1;
	assert_int_equal(be->ops->rope_new(be, &d, &rope), -EINVAL);
	d = good;
	d.n_positions = 0;
	assert_int_equal(be->ops->rope_new(be, &d, &rope), -EINVAL);
	d = good;
	d.style = (enum kb_rope_style)2;
	assert_int_equal(be->ops->rope_new(be, &d, &rope), -EINVAL);
	assert_null(rope);
	be->ops->rope_free(be, NULL);
	be->ops->close(be);
}

static void test_pool_refused(void **state)
{
	struct kb_backend *be = open_level("c", 1);
	struct kb_pool *pool = NULL;
	int fd = memfd_create("test", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, 2 << 20), 0);
	assert_int_equal(be->ops->pool_import(be, fd, 4 << 20, &pool), -EINVAL);
	assert_int_equal(be->ops->pool_import(be, fd, 1 << 20, &pool), -EINVAL);
	assert_int_equal(be->ops->pool_import(be, fd, 0, &pool), -EINVAL);
	assert_int_equal(be->ops->pool_import(be, -1, 2 << 20, &pool), -EBADF);
	assert_int_equal(be->ops->pool_import(be, fd, 2 << 20, &pool), 0);
	be->ops->pool_free(be, pool);
	be->ops->pool_free(be, NULL);
	close(fd);
	be->ops->close(be);
}

static void test_workspace_refused(void **state)
{
	struct kb_backend *be = open_level("c", 1);
	const struct kb_workspace_desc good = { 4, 2, 64, 4, 2, 16, 96, 50, 100 };
	struct kb_workspace *ws = NULL;

	for (size_t i = 0; i < sizeof(good) / sizeof(uint32_t); i++) {
		struct kb_workspace_desc d = good;

		((uint32_t *)&d)[i] = 0;
		assert_int_equal(be->ops->workspace_new(be, &d, &ws), -EINVAL);
		((uint32_t *)&d)[i] = UINT32_MAX;
		assert_int_equal(be->ops->workspace_new(be, &d, &ws), -EINVAL);
	}
	assert_null(ws);
	assert_int_equal(be->ops->workspace_new(be, &good, &ws), 0);
	assert_true(be->ops->workspace_bytes(ws) > 4 * 64 * sizeof(float));
	be->ops->workspace_free(be, ws);
	be->ops->workspace_free(be, NULL);
	be->ops->close(be);
}

/* A batch of two sequences that is valid; each case spoils one thing. */
struct bad {
	int32_t tokens[5];
	uint32_t logit_rows[3], hidden_rows[2], blocks[2][3];
	struct kb_seq seqs[2];
	struct kb_geometry geometry;
	struct kb_batch batch;
};

static void bad_init(struct bad *b, const struct toy *toy)
{
	*b = (struct bad){
		.tokens = { 1, 2, 3, 4, 49 }, .logit_rows = { 0, 2, 4 }, .blocks = { { 0, 1, 2 }, { 3, 4, 5 } },
		.geometry = toy->geometry, .hidden_rows = { 1, 3 },
	};
	b->seqs[0] = (struct kb_seq){ 0, 3, 30, 3, b->blocks[0] };
	b->seqs[1] = (struct kb_seq){ 3, 2, 0, 1, b->blocks[1] };
	b->batch = (struct kb_batch){ 5, b->tokens, 2, b->seqs, 3, b->logit_rows, toy->pool, &b->geometry,
				      2, b->hidden_rows };
}

static void test_batch_refused(void **state)
{
	struct toy toy;
	struct bad b;

	toy_init(&toy, NULL, 1, &shape, 16, 10, 8);
#define REFUSED(change) \
	do { \
		bad_init(&b, &toy); \
		change; \
		assert_int_equal(toy.be->ops->step_begin(toy.ws, &b.batch), -EINVAL); \
		assert_int_equal(toy.be->ops->embed(toy.ws, toy.embedding, 1), -EINVAL); \
	} while (0)
	REFUSED(b.tokens[4] = 50);
	REFUSED(b.tokens[0] = -1);
	REFUSED(b.batch.tokens = NULL);
	REFUSED(b.batch.n_rows = 0);
	REFUSED(b.batch.n_rows = 9);
	REFUSED(b.batch.n_rows = 4);
	REFUSED(b.batch.n_seqs = 1);
	REFUSED(b.batch.seqs = NULL);
	REFUSED(b.batch.pool = NULL);
	REFUSED(b.batch.geometry = NULL);
	REFUSED(b.seqs[1].first_row = 2);
	REFUSED(b.seqs[1].n_rows = 0);
	REFUSED(b.seqs[1].n_rows = UINT32_MAX);
	REFUSED(b.seqs[0].first_pos = 98);
	REFUSED(b.seqs[0].first_pos = UINT32_MAX - 1);
	REFUSED(b.seqs[0].n_blocks = 2);
	REFUSED(b.seqs[0].block_table = NULL);
	REFUSED(b.blocks[0][2] = toy.n_blocks);
	REFUSED(b.blocks[1][0] = UINT32_MAX);
	REFUSED(b.logit_rows[2] = 5);
	REFUSED(b.logit_rows[1] = 0);
	REFUSED(b.batch.n_logits = 9);
	REFUSED(b.batch.logit_rows = NULL);
	REFUSED(b.hidden_rows[1] = 5);
	REFUSED(b.hidden_rows[1] = 1);
	REFUSED(b.batch.hidden_rows = NULL);
	REFUSED(b.geometry.head_dim = 32);
	REFUSED(b.geometry.n_kv_heads = 1);
	REFUSED(b.geometry.n_layers = 0);
	REFUSED(b.geometry.n_layers = UINT32_MAX);
	REFUSED(b.geometry.block_tokens = 17);
	REFUSED(b.geometry.block_tokens = 0);
	REFUSED(b.geometry.block_bytes -= 64);
	REFUSED(b.geometry.block_bytes += 2);
	REFUSED(b.geometry.blocks_per_chunk = 0);
	REFUSED(b.geometry.blocks_per_chunk += 1);
	REFUSED(b.geometry.chunk_bytes = 0);
	REFUSED(b.geometry.kv_type = (enum kb_kv_type)3);
	REFUSED(b.geometry.kv_type = KB_KV_Q4);
	bad_init(&b, &toy);
	assert_int_equal(toy.be->ops->step_begin(toy.ws, &b.batch), 0);
	toy_deinit(&toy);
}

/* Operations whose operands do not fit, and calls out of order. */
static void test_operations_refused(void **state)
{
	struct toy toy;
	struct bad b;
	const struct kb_ops *ops;
	struct kb_attn_in in;
	struct kb_attn_out out;
	struct kb_ffn ffn;
	struct kb_logits logits;
	struct kb_hidden hidden = { NULL, 1e-5f };
	struct kb_attention attention = { .scale = 1 };

	toy_init(&toy, NULL, 1, &shape, 16, 10, 8);
	ops = toy.be->ops;
	assert_int_equal(ops->embed(toy.ws, toy.embedding, 1), -EINVAL);
	assert_int_equal(ops->step_submit(toy.ws), -EINVAL);
	assert_int_equal(ops->step_wait(toy.ws), -EINVAL);
	bad_init(&b, &toy);
	assert_int_equal(ops->step_begin(toy.ws, &b.batch), 0);
	assert_int_equal(ops->embed(toy.ws, NULL, 1), -EINVAL);
	assert_int_equal(ops->embed(toy.ws, toy.layers[0].in.wq, 1), -EINVAL);
#define SPOILED(op, from, change, call) \
	do { \
		op = from; \
		change; \
		assert_int_equal(call, -EINVAL); \
	} while (0)
	SPOILED(in, toy.layers[0].in, in.norm = NULL, ops->attn_in(toy.ws, 0, &in));
	SPOILED(in, toy.layers[0].in, in.wk = in.wq, ops->attn_in(toy.ws, 0, &in));
	SPOILED(in, toy.layers[0].in, in.wv = in.norm, ops->attn_in(toy.ws, 0, &in));
	SPOILED(in, toy.layers[0].in, in.rope = NULL, ops->attn_in(toy.ws, 0, &in));
	SPOILED(in, toy.layers[0].in, in.bk = in.norm, ops->attn_in(toy.ws, 0, &in));
	SPOILED(in, toy.layers[0].in, in.q_norm = in.norm, ops->attn_in(toy.ws, 0, &in));
	SPOILED(in, toy.layers[0].in, (void)0, ops->attn_in(toy.ws, 2, &in));
	SPOILED(attention, attention, (void)0, ops->attention(toy.ws, 2, &attention));
	SPOILED(attention, attention, attention.softcap = -1, ops->attention(toy.ws, 0, &attention));
	SPOILED(attention, ((struct kb_attention){ 0 }), attention.scale = NAN, ops->attention(toy.ws, 0, &attention));
	SPOILED(out, toy.layers[0].out, out.wo = NULL, ops->attn_out(toy.ws, &out));
	SPOILED(out, toy.layers[0].out, out.bo = toy.layers[0].in.wq, ops->attn_out(toy.ws, &out));
	SPOILED(ffn, toy.layers[0].ffn, ffn.down = ffn.up, ops->ffn(toy.ws, &ffn));
	SPOILED(ffn, toy.layers[0].ffn, ffn.gate = ffn.down, ops->ffn(toy.ws, &ffn));
	SPOILED(logits, toy.logits, logits.head = toy.layers[0].in.wq, ops->logits(toy.ws, &logits));
	SPOILED(logits, toy.logits, logits.softcap = INFINITY, ops->logits(toy.ws, &logits));
	assert_int_equal(ops->hidden(toy.ws, &hidden), -EINVAL);
	hidden.norm = toy.layers[0].in.q_norm ? toy.layers[0].in.q_norm : toy.embedding;
	assert_int_equal(ops->hidden(toy.ws, &hidden), -EINVAL);
	/* None of them was recorded. */
	assert_int_equal(ops->step_submit(toy.ws), 0);
	assert_int_equal(ops->step_begin(toy.ws, &b.batch), -EBUSY);
	assert_int_equal(ops->step_wait(toy.ws), 0);
	hidden.norm = toy.logits.norm;
	assert_int_equal(ops->hidden(toy.ws, &hidden), -EINVAL);	/* no step is recorded */
	toy_deinit(&toy);
}

/* --- blocks -------------------------------------------------------------------------- */

/* Every element of a block is its own number; or all bits are set. */
static void number_block(struct toy *toy, uint32_t block, bool numbered)
{
	const struct kb_geometry *g = &toy->geometry;
	uint8_t *p = toy->pool_memory + kb_block_offset(g, block);
	uint32_t width = g->kv_type == KB_KV_F16 ? 2 : 1;

	for (uint64_t i = 0; i < g->block_bytes; i++)
		p[i] = numbered ? (uint8_t)(i / width >> (i % width ? 8 : 0)) : 0xff;
}

/* Whether all elements of a token's key and value, in all layers and heads, and their scales are the same. */
static bool token_is_same(const struct toy *toy, uint32_t a, uint32_t b, uint32_t token)
{
	const struct kb_geometry *g = &toy->geometry;

	for (uint32_t i = 0; i < g->n_layers * g->n_kv_heads; i++) {
		struct kc_kv x[2];
		size_t size = g->kv_type == KB_KV_F16 ? 2 : 1, t = token % 16, dim = g->head_dim;

		for (int k = 0; k < 2; k++) {
			uint8_t *block = toy->pool_memory + kb_block_offset(g, k ? b : a);

			block += i * kb_head_bytes(g);
			x[k] = kc_kv_tile(g->kv_type, g->head_dim, g->block_tokens, block, token);
		}
		for (size_t c = 0; c < dim; c++) {
			if (memcmp(x[0].k + (c * 16 + t) * size, x[1].k + (c * 16 + t) * size, size))
				return false;
		}
		if (memcmp(x[0].v + t * dim * size, x[1].v + t * dim * size, dim * size))
			return false;
		for (uint32_t n = 0; n < kb_kv_groups(g->head_dim) && g->kv_type == KB_KV_Q8; n++) {
			if (x[0].k_d[n * g->block_tokens + t] != x[1].k_d[n * g->block_tokens + t] ||
			    x[0].v_d[n * g->block_tokens + t] != x[1].v_d[n * g->block_tokens + t])
				return false;
		}
	}
	return true;
}

/* Tokens of block 2 were put into block 7, which had nothing: those asked for, and no more. */
static void check_tokens(const struct toy *toy, uint32_t n_tokens)
{
	for (uint32_t t = 0; t < toy->geometry.block_tokens; t++)
		assert_int_equal(token_is_same(toy, 2, 7, t), t < n_tokens);
}

static const struct toy_shape block_shapes[] = {
	{ .n_layers = 2, .n_embd = 64, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .n_ff = 96, .n_vocab = 50,
	  .max_positions = 100, .type = KB_Q4_0, .head_type = KB_Q8_0, .kv_type = KB_KV_F16 },
	{ .n_layers = 2, .n_embd = 64, .n_heads = 4, .n_kv_heads = 2, .head_dim = 48, .n_ff = 96, .n_vocab = 50,
	  .max_positions = 100, .type = KB_Q4_0, .head_type = KB_Q8_0, .kv_type = KB_KV_Q8 },
};

static void test_copy_tokens(void **state)
{
	for (int i = 0; i < 4; i++) {
		struct toy toy;
		const struct kb_geometry *g = &toy.geometry;

		toy_init(&toy, NULL, 1, &block_shapes[i % 2], i < 2 ? 16 : 64, 10, 8);
		for (uint32_t n = 0; n <= g->block_tokens; n += i < 2 ? 1 : 9) {
			number_block(&toy, 2, true);
			number_block(&toy, 7, false);
			assert_int_equal(toy.be->ops->copy_tokens(toy.pool, g, 7, 2, n), 0);
			check_tokens(&toy, n);
		}
		assert_int_equal(toy.be->ops->copy_tokens(toy.pool, g, 7, 7, 5), 0);
		assert_int_equal(toy.be->ops->copy_tokens(toy.pool, g, 7, 2, g->block_tokens + 1), -EINVAL);
		assert_int_equal(toy.be->ops->copy_tokens(toy.pool, g, toy.n_blocks, 2, 1), -EINVAL);
		assert_int_equal(toy.be->ops->copy_tokens(toy.pool, g, 7, UINT32_MAX, 1), -EINVAL);
		toy_deinit(&toy);
	}
}

/* Out of one block and into another: the tokens asked for, and no more; memory outside has no more than they need. */
static void test_block_read_write(void **state)
{
	for (int i = 0; i < 4; i++) {
		struct toy toy;
		const struct kb_geometry *g = &toy.geometry;

		toy_init(&toy, NULL, 1, &block_shapes[i % 2], i < 2 ? 16 : 64, 10, 8);
		for (uint32_t n = 1; n <= g->block_tokens; n += 3) {
			uint8_t *outside = must(malloc(kb_tokens_bytes(g, n)));

			number_block(&toy, 2, true);
			number_block(&toy, 7, false);
			assert_int_equal(toy.be->ops->block_read(toy.pool, g, 2, n, outside), 0);
			assert_int_equal(toy.be->ops->block_write(toy.pool, g, 7, n, outside), 0);
			check_tokens(&toy, n);
			free(outside);
		}
		assert_int_equal(toy.be->ops->block_read(toy.pool, g, 2, g->block_tokens + 1, &toy), -EINVAL);
		assert_int_equal(toy.be->ops->block_write(toy.pool, g, toy.n_blocks, 1, &toy), -EINVAL);
		toy_deinit(&toy);
	}
}

/* Q4: whole blocks or nothing, and a step needs what is open. */
static void test_whole_blocks(void **state)
{
	struct toy_shape s = shape;
	struct toy toy;
	const struct kb_geometry *g = &toy.geometry;
	struct kb_geometry other;
	struct kb_open *open = NULL;
	uint8_t *outside;
	struct bad b;

	s.kv_type = KB_KV_Q4;
	toy_init(&toy, NULL, 1, &s, 32, 10, 8);
	outside = must(malloc(g->block_bytes));
	number_block(&toy, 2, true);
	assert_int_equal(toy.be->ops->copy_tokens(toy.pool, g, 7, 2, 31), -EINVAL);
	assert_int_equal(toy.be->ops->block_read(toy.pool, g, 2, 31, outside), -EINVAL);
	assert_int_equal(toy.be->ops->block_write(toy.pool, g, 7, 1, outside), -EINVAL);
	assert_int_equal(toy.be->ops->copy_tokens(toy.pool, g, 6, 2, 32), 0);
	assert_int_equal(toy.be->ops->block_read(toy.pool, g, 6, 32, outside), 0);
	assert_int_equal(toy.be->ops->block_write(toy.pool, g, 7, 32, outside), 0);
	assert_memory_equal(toy.pool_memory + kb_block_offset(g, 2), toy.pool_memory + kb_block_offset(g, 7),
			    g->block_bytes);
	free(outside);
	other = *g;
	other.kv_type = KB_KV_F16;
	assert_int_equal(toy.be->ops->open_new(toy.be, &other, &open), -EINVAL);
	other = *g;
	other.n_layers = 1;
	assert_int_equal(toy.be->ops->open_new(toy.be, &other, &open), 0);
	bad_init(&b, &toy);
	assert_int_equal(toy.be->ops->step_begin(toy.ws, &b.batch), -EINVAL);	/* none */
	b.seqs[0].open = b.seqs[1].open = open;
	assert_int_equal(toy.be->ops->step_begin(toy.ws, &b.batch), -EINVAL);	/* too small */
	toy.be->ops->open_free(toy.be, open);
	toy.be->ops->open_free(toy.be, NULL);
	toy_deinit(&toy);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_levels),
		cmocka_unit_test(test_set_threads),
		cmocka_unit_test(test_tensor_refused),
		cmocka_unit_test(test_fill_pieces),
		cmocka_unit_test(test_arena),
		cmocka_unit_test(test_loaders),
		cmocka_unit_test(test_vector_types),
		cmocka_unit_test(test_rope_refused),
		cmocka_unit_test(test_pool_refused),
		cmocka_unit_test(test_workspace_refused),
		cmocka_unit_test(test_batch_refused),
		cmocka_unit_test(test_operations_refused),
		cmocka_unit_test(test_copy_tokens),
		cmocka_unit_test(test_block_read_write),
		cmocka_unit_test(test_whole_blocks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
