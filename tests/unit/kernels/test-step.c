/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Same tokens, same bits: the logits and hidden states of a small transformer must not
 * depend on level, batch, cutting of the prompt, block size, place in the pool or threads.
 */
#include <math.h>

#include "fixture.h"
#include "kernels/cpu/cpu.h"

/* Past two boundaries of segments where it is cheap, one elsewhere. */
static const uint32_t n_tokens[] = { 530, 530, 1040, 520, 40, 530, 200, 530 };
static const struct toy_shape shapes[] = {
	{ .n_layers = 2, .n_embd = 96, .n_heads = 6, .n_kv_heads = 2, .head_dim = 16, .n_ff = 160, .n_vocab = 77,
	  .max_positions = 1100, .type = KB_Q4_1, .head_type = KB_Q8_0, .rope = KB_ROPE_INTERLEAVED },
	{ .n_layers = 2, .n_embd = 64, .n_heads = 4, .n_kv_heads = 1, .head_dim = 48, .n_ff = 96, .n_vocab = 50,
	  .max_positions = 1100, .type = KB_Q4_0, .head_type = KB_F16, .rope = KB_ROPE_HALVES, .window = 100,
	  .activation = KB_GELU_TANH, .extras = true },
	{ .n_layers = 1, .n_embd = 64, .n_heads = 2, .n_kv_heads = 2, .head_dim = 64, .n_ff = 64, .n_vocab = 33,
	  .max_positions = 1100, .type = KB_Q8_0, .head_type = KB_F32, .rope = KB_ROPE_HALVES },
	{ .n_layers = 1, .n_embd = 32, .n_heads = 2, .n_kv_heads = 1, .head_dim = 128, .n_ff = 32, .n_vocab = 40,
	  .max_positions = 1100, .type = KB_BF16, .head_type = KB_BF16 },
	{ .n_layers = 1, .n_embd = 256, .n_heads = 8, .n_kv_heads = 1, .head_dim = 32, .n_ff = 256, .n_vocab = 40,
	  .max_positions = 1100, .type = KB_Q4_K, .head_type = KB_Q6_K },
	{ .n_layers = 2, .n_embd = 96, .n_heads = 6, .n_kv_heads = 2, .head_dim = 16, .n_ff = 160, .n_vocab = 77,
	  .max_positions = 1100, .type = KB_Q4_1, .head_type = KB_Q8_0, .kv_type = KB_KV_Q8 },
	{ .n_layers = 2, .n_embd = 64, .n_heads = 4, .n_kv_heads = 1, .head_dim = 48, .n_ff = 96, .n_vocab = 50,
	  .max_positions = 1100, .type = KB_Q4_0, .head_type = KB_F16, .rope = KB_ROPE_HALVES, .window = 100,
	  .activation = KB_GELU_TANH, .extras = true, .kv_type = KB_KV_Q4 },
	{ .n_layers = 2, .n_embd = 64, .n_heads = 3, .n_kv_heads = 1, .head_dim = 64, .n_ff = 64, .n_vocab = 33,
	  .max_positions = 1100, .type = KB_Q4_0, .head_type = KB_Q8_0, .kv_type = KB_KV_Q4 },
};
#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))
#define MAX_ROWS 600

/* What every way of computing must give. */
struct expected {
	float *logits;		/* [length][n_vocab] */
	float *hidden;		/* [length][n_embd] */
};

static void expected_deinit(struct expected *e)
{
	free(e->logits);
	free(e->hidden);
}

/* Where the head has floats, a row's logits are its products with the hidden state, in the order of NUMERICS.md. */
static void check_hidden(const struct toy *toy, const struct toy_seq *s)
{
	uint32_t n_embd = toy->shape.n_embd, n_vocab = toy->shape.n_vocab;
	float w[512];

	for (uint32_t v = 0; v < n_vocab; v++) {
		kc_tensor_row(toy->logits.head, v, w);
		for (uint32_t p = 0; p < s->n_tokens; p++) {
			float y = 0;

			for (uint32_t k = 0; k < n_embd; k++)
				y = fmaf(w[k], s->hidden[(size_t)p * n_embd + k], y);
			if (toy_wants_hidden(p))
				assert_true(y == s->logits[(size_t)p * n_vocab + v]);
		}
	}
}

/* The oracle: plain C, one thread, token by token. */
static struct expected oracle(const struct toy_shape *shape, uint64_t seed, uint32_t length)
{
	struct expected e;
	struct toy toy;
	struct toy_seq s;

	toy_init(&toy, "c", 1, shape, 16, 80, 1);
	toy_seq_init(&s, &toy, seed, length, 3, 1);
	toy_run(&toy, &s, 1);
	for (size_t i = 0; i < (size_t)length * shape->n_vocab; i++)
		assert_true(s.logits[i] == s.logits[i]);
	if (shape->head_type == KB_F32 || shape->head_type == KB_BF16)
		check_hidden(&toy, &s);
	e = (struct expected){ .logits = s.logits, .hidden = s.hidden };
	s.logits = s.hidden = NULL;
	toy_seq_deinit(&s, &toy);
	toy_deinit(&toy);
	return e;
}

static void run_pieces(const char *level, uint32_t n_threads, const struct toy_shape *shape, uint32_t block_tokens,
		       uint32_t piece, uint32_t length, const struct expected *expected)
{
	struct toy toy;
	struct toy_seq s;
	char what[128];

	toy_init(&toy, level, n_threads, shape, block_tokens, 80, MAX_ROWS);
	toy_seq_init(&s, &toy, 1, length, 5, 1);
	toy_run(&toy, &s, piece);
	snprintf(what, sizeof(what), "shape %zu, level %s, %u threads, blocks of %u, pieces of %u",
		 (size_t)(shape - shapes), level, n_threads, toy.geometry.block_tokens, piece);
	assert_same_floats(expected->logits, s.logits, (size_t)length * shape->n_vocab, what);
	assert_same_floats(expected->hidden, s.hidden, (size_t)length * shape->n_embd, what);
	toy_seq_deinit(&s, &toy);
	toy_deinit(&toy);
}

static void test_pieces(void **state)
{
	static const uint32_t pieces[] = { 1, 7, 64, 512 };
	static const uint32_t blocks[] = { 16, 32, 64 };

	for (size_t i = 0; i < N_SHAPES; i++) {
		struct expected expected = oracle(&shapes[i], 1, n_tokens[i]);

		for (const char *const *level = kb_cpu_levels(); *level; level++) {
			/* Plain C is slow: one cut suffices for it. */
			for (size_t j = strcmp(*level, "c") ? 0 : 3; j < 4; j++)
				run_pieces(*level, 1 + j % 2, &shapes[i], blocks[(i + j) % 3], pieces[j], n_tokens[i],
					   &expected);
		}
		expected_deinit(&expected);
	}
}

/* A sequence alone against eight together, at different places of their own. */
static void run_batch(const char *level, uint32_t n_threads, const struct toy_shape *shape)
{
	enum { N = 8 };
	static const uint32_t lengths[N] = { 520, 1, 15, 16, 17, 33, 130, 64 };
	struct toy_seq seqs[N], *all[N];
	struct expected expected[N];
	struct toy toy;

	toy_init(&toy, level, n_threads, shape, 16, 512, MAX_ROWS);
	assert_true(toy.n_blocks >= 34 * N);	/* no block is used twice */
	for (uint32_t i = 0; i < N; i++) {
		expected[i] = oracle(shape, 100 + i, lengths[i]);
		toy_seq_init(&seqs[i], &toy, 100 + i, lengths[i], i, N);
		all[i] = &seqs[i];
	}
	for (uint32_t step = 0; seqs[0].n_done < seqs[0].n_tokens; step++) {
		uint32_t rows[N];

		/* Some decode while others prefill. */
		for (uint32_t i = 0; i < N; i++)
			rows[i] = (step + i) % 3 ? 1 : 1 + (37 * i + 11 * step) % 90;
		toy_advance(&toy, all, rows, N);
	}
	for (uint32_t i = 0; i < N; i++) {
		while (seqs[i].n_done < seqs[i].n_tokens)
			toy_advance(&toy, &all[i], (uint32_t[]){ 1 }, 1);
		assert_same_floats(expected[i].logits, seqs[i].logits, (size_t)lengths[i] * shape->n_vocab,
				   "logits, batch of 8");
		assert_same_floats(expected[i].hidden, seqs[i].hidden, (size_t)lengths[i] * shape->n_embd,
				   "hidden states, batch of 8");
		expected_deinit(&expected[i]);
		toy_seq_deinit(&seqs[i], &toy);
	}
	toy_deinit(&toy);
}

static void test_batch(void **state)
{
	static const size_t some[] = { 0, 1, 5, 6 };

	for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++)
		run_batch(kb_cpu_levels()[0], 2, &shapes[some[i]]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_batch),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
