/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention mass per block against softmax in double over all positions by hand; and that measuring it
 * changes nothing else.
 */
#include "double.h"

#define MAX_POSITIONS 1100u
#define MAX_BLOCKS (MAX_POSITIONS / 16 + 1)
#define N_SEQS 8u

static const struct toy_shape plain = {
	.n_layers = 2, .n_embd = 64, .n_heads = 6, .n_kv_heads = 2, .head_dim = 16, .n_ff = 96, .n_vocab = 77,
	.max_positions = MAX_POSITIONS, .type = KB_F32, .head_type = KB_F32, .rope = KB_ROPE_INTERLEAVED,
};
static const struct toy_shape extras = {
	.n_layers = 3, .n_embd = 64, .n_heads = 4, .n_kv_heads = 1, .head_dim = 48, .n_ff = 96, .n_vocab = 50,
	.max_positions = MAX_POSITIONS, .type = KB_F32, .head_type = KB_BF16, .rope = KB_ROPE_HALVES, .window = 70,
	.activation = KB_GELU_TANH, .extras = true,
};

/* Lengths that make a difference, each sequence with a block more than it needs; the last one prefills. */
static const uint32_t lengths[N_SEQS] = { 1, 16, 17, 300, 511, 513, 1040, 40 };

struct world {
	struct toy toy;
	struct toy_seq seqs[N_SEQS];
	float mass[N_SEQS][MAX_BLOCKS];
	float *logits;
	uint32_t n_logits;
	bool flat;		/* layers leave the residual stream as it is, so that every layer's input is known */
};

static void flatten(struct toy *toy)
{
	const struct toy_shape *s = &toy->shape;
	size_t n = (size_t)s->n_embd * s->n_heads * s->head_dim;
	float *zeros = must(calloc(n, sizeof(*zeros)));
	struct kb_tensor *wo = make_matrix(toy->be, KB_F32, s->n_embd, s->n_heads * s->head_dim, zeros);

	toy_keep(toy, wo);
	for (uint32_t i = 0; i < s->n_layers; i++)
		toy->layers[i].out = (struct kb_attn_out){ .wo = wo };
	free(zeros);
}

/* Like toy_step(), but without feed-forward where the world is flat. */
static void step(struct world *w, const struct kb_batch *batch)
{
	struct toy *toy = &w->toy;
	const struct kb_ops *ops = toy->be->ops;

	assert_int_equal(ops->step_begin(toy->ws, batch), 0);
	assert_int_equal(ops->embed(toy->ws, toy->embedding, 1.5f), 0);
	for (uint32_t i = 0; i < toy->shape.n_layers; i++) {
		assert_int_equal(ops->attn_in(toy->ws, i, &toy->layers[i].in), 0);
		assert_int_equal(ops->attention(toy->ws, i, &toy->layers[i].attention), 0);
		assert_int_equal(ops->attn_out(toy->ws, &toy->layers[i].out), 0);
		if (!w->flat)
			assert_int_equal(ops->ffn(toy->ws, &toy->layers[i].ffn), 0);
	}
	assert_int_equal(ops->logits(toy->ws, &toy->logits), 0);
	assert_int_equal(ops->step_submit(toy->ws), 0);
	assert_int_equal(ops->step_wait(toy->ws), 0);
}

/* All but the last token of each sequence (four of the last one) is computed, or taken from another world. */
static void world_init(struct world *w, const char *level, uint32_t n_threads, const struct toy_shape *shape,
		       uint32_t block_tokens, bool flat, const struct world *from)
{
	memset(w, 0, sizeof(*w));
	w->flat = flat;
	toy_init(&w->toy, level, n_threads, shape, block_tokens, N_SEQS * MAX_BLOCKS, 512);
	if (flat)
		flatten(&w->toy);
	for (uint32_t i = 0; i < N_SEQS; i++) {
		struct toy_seq *s = &w->seqs[i];
		uint32_t rows = i + 1 == N_SEQS ? 4 : 1;

		toy_seq_init(s, &w->toy, 10 + i, lengths[i] + block_tokens, i, N_SEQS);
		if (from)
			s->n_done = lengths[i] - rows;
		while (s->n_done < lengths[i] - rows) {
			uint32_t n = lengths[i] - rows - s->n_done < 512 ? lengths[i] - rows - s->n_done : 512;
			const struct kb_seq part = { 0, n, s->n_done, (lengths[i] - 1) / block_tokens + 1, s->blocks };
			const struct kb_batch batch = { .n_rows = n, .tokens = s->tokens + s->n_done, .n_seqs = 1,
							.seqs = &part, .pool = w->toy.pool,
							.geometry = &w->toy.geometry };

			step(w, &batch);
			s->n_done += n;
		}
	}
	if (from)
		memcpy(w->toy.pool_memory, from->toy.pool_memory, w->toy.pool_bytes);
}

static void world_deinit(struct world *w)
{
	for (uint32_t i = 0; i < N_SEQS; i++)
		toy_seq_deinit(&w->seqs[i], &w->toy);
	free(w->logits);
	toy_deinit(&w->toy);
}

/* The next token of all sequences in one step, which may be done again; logits of every row. */
static void decode(struct world *w, bool want_mass)
{
	uint32_t block_tokens = w->toy.geometry.block_tokens, logit_rows[N_SEQS + 3];
	int32_t tokens[N_SEQS + 3];
	struct kb_seq parts[N_SEQS];
	struct kb_batch batch = { .tokens = tokens, .seqs = parts, .n_seqs = N_SEQS, .logit_rows = logit_rows,
				  .pool = w->toy.pool, .geometry = &w->toy.geometry };
	size_t size;

	for (uint32_t i = 0; i < N_SEQS; i++) {
		uint32_t n = lengths[i] - w->seqs[i].n_done;

		parts[i] = (struct kb_seq){ batch.n_rows, n, w->seqs[i].n_done,
					    (lengths[i] - 1) / block_tokens + 2, w->seqs[i].blocks,
					    .mass = want_mass ? w->mass[i] : NULL };
		for (uint32_t b = 0; b < MAX_BLOCKS; b++)
			w->mass[i][b] = -7;
		for (uint32_t j = 0; j < n; j++, batch.n_rows++) {
			tokens[batch.n_rows] = w->seqs[i].tokens[w->seqs[i].n_done + j];
			logit_rows[batch.n_rows] = batch.n_rows;
		}
	}
	batch.n_logits = batch.n_rows;
	step(w, &batch);
	w->n_logits = batch.n_rows * w->toy.shape.n_vocab;
	size = w->n_logits * sizeof(float);
	free(w->logits);
	w->logits = memcpy(must(malloc(size)), w->toy.be->ops->step_logits(w->toy.ws), size);
}

/* --- by hand --- */

static void query(const struct toy *toy, uint32_t layer, const double *x, uint32_t pos, double *q)
{
	const struct toy_shape *s = &toy->shape;
	const struct kb_attn_in *in = &toy->layers[layer].in;
	double n[256];

	norm(in->norm, x, n, s->n_embd);
	matrix_times(in->wq, n, q);
	add_bias(in->bq, q, s->n_heads * s->head_dim);
	for (uint32_t h = 0; h < s->n_heads; h++) {
		if (in->q_norm)
			norm(in->q_norm, q + h * s->head_dim, q + h * s->head_dim, s->head_dim);
		rotate(s, q + h * s->head_dim, pos);
		mix(s, q + h * s->head_dim);
	}
}

/* Adds one layer's part to mass [MAX_BLOCKS]. */
static void add_layer(const struct toy *toy, const struct toy_seq *seq, uint32_t layer, const double *q, uint32_t pos,
		      double *mass)
{
	const struct toy_shape *s = &toy->shape;
	const struct kb_attention *op = &toy->layers[layer].attention;
	uint32_t first = op->window && pos + 1 > op->window ? pos + 1 - op->window : 0;
	static double p[MAX_POSITIONS], keys[MAX_POSITIONS * 64];
	uint32_t kv_dim = s->n_kv_heads * s->head_dim;

	assert_true(kv_dim <= 64);
	for (uint32_t t = first; t <= pos; t++)
		load_stored(toy, seq, layer, t, false, false, keys + (size_t)t * kv_dim);
	for (uint32_t h = 0; h < s->n_heads; h++) {
		double sum = 0;

		for (uint32_t t = first; t <= pos; t++) {
			const double *key = keys + (size_t)t * kv_dim + h / (s->n_heads / s->n_kv_heads) * s->head_dim;
			double score = 0;

			for (uint32_t d = 0; d < s->head_dim; d++)
				score += q[(size_t)h * s->head_dim + d] * key[d];
			p[t] = exp(softcapped(score * (double)op->scale, (double)op->softcap));
			sum += p[t];
		}
		for (uint32_t t = first; t <= pos; t++)
			mass[t / toy->geometry.block_tokens] += p[t] / sum / s->n_layers / s->n_heads;
	}
}

static void check_seq(const struct world *w, uint32_t i)
{
	const struct toy *toy = &w->toy;
	const struct toy_seq *seq = &w->seqs[i];
	uint32_t pos = lengths[i] - 1, n_blocks = pos / toy->geometry.block_tokens + 2;
	double x[256], q[512], mass[MAX_BLOCKS] = { 0 }, sum = 0;
	float row[256];

	kc_tensor_row(toy->embedding, (uint32_t)seq->tokens[pos], row);
	for (uint32_t k = 0; k < toy->shape.n_embd; k++)
		x[k] = (double)row[k] * 1.5;
	for (uint32_t l = 0; l < toy->shape.n_layers; l++) {
		query(toy, l, x, pos, q);
		add_layer(toy, seq, l, q, pos, mass);
	}
	for (uint32_t b = 0; b < n_blocks; b++) {
		if (fabs((double)w->mass[i][b] - mass[b]) > 1e-5 * mass[b] + 1e-9)
			fail_msg("sequence %u, block %u of %u: %.9g, not %.9g", i, b, n_blocks, (double)w->mass[i][b],
				 mass[b]);
		sum += (double)w->mass[i][b];
	}
	assert_true(fabs(sum - 1) < 1e-5);
	assert_true(w->mass[i][n_blocks - 1] == 0);
	assert_true(w->mass[i][n_blocks] == -7);
}

static void test_by_hand(void **state)
{
	static const uint32_t blocks[] = { 16, 32, 64 };

	for (size_t b = 0; b < 3; b++) {
		for (int shape = 0; shape < 2; shape++) {
			static struct world w;

			world_init(&w, kb_cpu_levels()[0], 1 + (b + (size_t)shape) % 2, shape ? &extras : &plain,
				   blocks[b], true, NULL);
			decode(&w, true);
			for (uint32_t i = 0; i + 1 < N_SEQS; i++)
				check_seq(&w, i);
			world_deinit(&w);
		}
	}
}

/* --- what it must not change, and not depend on --- */

/* Logits have the same bits with it and without; a prefill is not measured; shares add up in a model that is one. */
static void test_changes_nothing(void **state)
{
	static struct world with, without;

	for (int shape = 0; shape < 2; shape++) {
		world_init(&with, kb_cpu_levels()[0], 2, shape ? &extras : &plain, 32, false, NULL);
		world_init(&without, kb_cpu_levels()[0], 2, shape ? &extras : &plain, 32, false, NULL);
		decode(&with, true);
		decode(&without, false);
		assert_same_floats(without.logits, with.logits, with.n_logits, "logits with mass");
		assert_memory_equal(without.toy.pool_memory, with.toy.pool_memory, with.toy.pool_bytes);
		for (uint32_t i = 0; i < N_SEQS; i++) {
			double sum = 0;

			for (uint32_t b = 0; b < (lengths[i] - 1) / 32 + 2; b++) {
				assert_true(without.mass[i][b] == -7);
				sum += (double)with.mass[i][b];
			}
			if (i + 1 < N_SEQS)
				assert_true(fabs(sum - 1) < 1e-5);
			else
				assert_true(with.mass[i][0] == -7);
		}
		/* Again, now with it in a workspace that had none, and the reverse. */
		decode(&without, true);
		assert_memory_equal(without.mass, with.mass, sizeof(with.mass));
		decode(&with, false);
		assert_same_floats(without.logits, with.logits, with.n_logits, "logits without mass again");
		world_deinit(&with);
		world_deinit(&without);
	}
}

static void test_levels_and_threads(void **state)
{
	static struct world first, w;

	for (int shape = 0; shape < 2; shape++) {
		const struct toy_shape *s = shape ? &extras : &plain;

		world_init(&first, kb_cpu_levels()[0], 1, s, 16, false, NULL);
		decode(&first, true);
		for (const char *const *level = kb_cpu_levels(); *level; level++) {
			for (uint32_t n_threads = 1; n_threads <= 2; n_threads++) {
				world_init(&w, *level, n_threads, s, 16, false, &first);
				decode(&w, true);
				assert_memory_equal(first.mass, w.mass, sizeof(w.mass));
				world_deinit(&w);
			}
		}
		world_deinit(&first);
	}
}

/* More long sequences than can be spread over segments: some are measured, the rest left alone. */
static void test_no_room(void **state)
{
	enum { N = 40, LENGTH = 520 };
	static float mass[N][LENGTH / 16 + 1];
	static struct world w;
	uint32_t n_measured = 0;
	int32_t tokens[N];
	struct kb_seq parts[N];
	struct kb_batch batch = { .tokens = tokens, .seqs = parts, .n_seqs = N, .n_rows = N };

	world_init(&w, kb_cpu_levels()[0], 1, &plain, 16, false, NULL);
	batch.pool = w.toy.pool;
	batch.geometry = &w.toy.geometry;
	/* One thread, and the same token: all may write the same place. */
	for (uint32_t i = 0; i < N; i++) {
		tokens[i] = w.seqs[6].tokens[LENGTH - 1];
		parts[i] = (struct kb_seq){ i, 1, LENGTH - 1, LENGTH / 16 + 1, w.seqs[6].blocks, .mass = mass[i] };
		mass[i][0] = -7;
	}
	step(&w, &batch);
	for (uint32_t i = 0; i < N; i++) {
		if (mass[i][0] == -7)
			continue;
		assert_memory_equal(mass[i], mass[0], sizeof(mass[0]));
		n_measured++;
	}
	assert_true(n_measured >= 10 && n_measured < N);
	world_deinit(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_by_hand),
		cmocka_unit_test(test_changes_nothing),
		cmocka_unit_test(test_levels_and_threads),
		cmocka_unit_test(test_no_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
