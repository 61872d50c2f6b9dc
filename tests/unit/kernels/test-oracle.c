/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain C, the oracle of the other levels, against arithmetic in double.  That
 * the weights are those of the file is test-blocks.c's.
 */
#include "double.h"
#include "kernels/cpu/elementary.h"

#define EPS 0x1p-24	/* half a unit in the last place of a float near 1 */

static void test_f16_exact(void **state)
{
	for (uint32_t h = 0; h < 65536; h++) {
		double v = f16_value(h);
		float f = kc_f16_to_f32((uint16_t)h);

		if (isnan(v)) {
			assert_true(isnan(f));
			continue;
		}
		assert_true((double)f == v && !signbit(f) == !signbit(v));
		assert_int_equal(kc_f32_to_f16(f), h);
	}
}

/* Rounding: between neighbours a < b the nearer one, in the middle the even one. */
static void test_f16_rounding(void **state)
{
	for (uint32_t h = 0; h < 0x7c00; h++) {
		double a = f16_value(h), b = h == 0x7bff ? 65536 : f16_value(h + 1), middle = (a + b) / 2;
		float below = nextafterf((float)middle, 0), above = nextafterf((float)middle, INFINITY);

		assert_int_equal(kc_f32_to_f16((float)middle), h % 2 ? h + 1 : h);
		assert_int_equal(kc_f32_to_f16(below), h);
		assert_int_equal(kc_f32_to_f16(above), h + 1);
		assert_int_equal(kc_f32_to_f16(-above), (h + 1) | 0x8000);
	}
	assert_int_equal(kc_f32_to_f16(INFINITY), 0x7c00);
	assert_true(isnan(kc_f16_to_f32(kc_f32_to_f16(NAN))));
}

static void test_exp(void **state)
{
	double worst = 0;

	for (double x = -87; x <= 88; x += 1.0 / 1024 + 1e-5) {
		double e = exp((double)(float)x);

		worst = fmax(worst, fabs((double)kc_exp((float)x) - e) / e);
	}
	assert_true(worst < 1.3 * 2 * EPS);
	assert_true(kc_exp(0) == 1);
	assert_true(kc_exp(-INFINITY) < 2e-38f && kc_exp(-1000) > 0);
	assert_true(isfinite(kc_exp(INFINITY)) && kc_exp(1000) > 1e38f);
}

static void test_activation(void **state)
{
	for (double x = -30; x < 30; x += 0.00731) {
		float one[16], f = (float)x, y[16], cap[16];
		double silu = (double)f / (1 + exp(-(double)f)), d = f;
		double gelu = 0.5 * d * (1 + tanh(sqrt(2 / M_PI) * (d + 0.044715 * d * d * d)));

		for (int i = 0; i < 16; i++) {
			one[i] = 1;
			y[i] = cap[i] = f;
		}
		kc_level_c.gated(y, one, 16, KB_SILU);
		assert_true(fabs((double)y[3] - silu) <= 16 * EPS * fabs(silu) + 1e-30);
		y[3] = f;
		kc_level_c.gated(y, one, 16, KB_GELU_TANH);
		/* exp(u) carries the rounding error of u, up to |u| of them. */
		assert_true(fabs((double)y[3] - gelu) <= (16 + 4 * d * d) * EPS * fabs(gelu) + 1e-7);
		kc_level_c.softcap(cap, 16, 5);
		assert_true(fabs((double)cap[3] - 5 * tanh(d / 5)) < 5 * 16 * EPS);
	}
}

static float largest(const float *x, int n)
{
	float max = 0;

	for (int k = 0; k < n; k++)
		max = fmaxf(max, fabsf(x[k]));
	return max;
}

static void test_quantize(void **state)
{
	static const int order[4] = { 0, 2, 1, 3 };
	uint64_t rng = 1;

	for (int n = 0; n < 2000; n++) {
		float x[32], d[2], h[2], s, d16;
		double sum[2] = { 0 };
		int16_t q16[32];
		int8_t q[32];

		for (int k = 0; k < 32; k++)
			x[k] = rng_float(&rng, ldexpf(1, n % 40 - 20));
		kc_level_c.quantize(x, 32, q, d, h, &s);
		for (int k = 0; k < 32; k++) {
			double scale = (double)d[k / 16];

			assert_true(fabs(scale - (double)largest(x + k / 16 * 16, 16) / 127) <= EPS * scale);
			assert_true(fabs((double)x[k] - scale * q[k]) <= (0.5 + 1e-4) * scale);
			sum[k / 16] += scale * q[k];
		}
		assert_true(fabs((double)h[0] - sum[0]) <= EPS * fabs(sum[0]));
		assert_true(fabs((double)h[1] - sum[1]) <= EPS * fabs(sum[1]));
		assert_true(fabs((double)s - sum[0] - sum[1]) <= 2 * EPS * (fabs(sum[0]) + fabs(sum[1])));
		kc_level_c.quantize16(x, 32, q16, &d16);
		assert_true(fabs((double)d16 - (double)largest(x, 32) / 32767) <= EPS * (double)d16);
		for (int k = 0; k < 32; k++) {
			int place = k / 4 * 4 + order[k % 4];

			assert_true(fabs((double)x[k] - (double)d16 * q16[place]) <= (0.5 + 0.02) * (double)d16);
		}
	}
}

/* --- products -------------------------------------------------------------------- */

/* The sum of the magnitudes that one output may be made of, over the activations' magnitude. */
static double block_size(const struct test_type *t, const uint8_t *row, uint32_t k, double w)
{
	const uint8_t *block = row + (size_t)t->bytes * (k / t->weights);

	if (t->d < 0)
		return fabs(w);
	return fabs(read_f16(block + t->d)) * (double)t->d_factor +
	       (t->m < 0 ? 0 : fabs(read_f16(block + t->m)) * (double)t->m_factor);
}

static void check_output(const struct kb_tensor *w, uint32_t r, const uint8_t *row, const struct kc_rows *in,
			 uint32_t i, float y)
{
	static const int order[4] = { 0, 2, 1, 3 };
	const struct test_type *t = test_type(w->type);
	unsigned forms = kc_type_forms(w->type);
	uint32_t n_terms = forms ? 4 * (in->cols / 32) : in->cols;
	float *weights = must(malloc(in->cols * sizeof(*weights)));
	double sum = 0, size = 0;

	kc_tensor_row(w, r, weights);
	for (uint32_t k = 0; k < in->cols; k++) {
		size_t at = (size_t)i * in->cols + k, place = at / 4 * 4 + (size_t)order[at % 4];
		double x = (double)in->f[at];

		if (forms == KC_FORM_16)
			x = (double)in->d16[at / 32] * in->q16[place];
		else if (forms == KC_FORM_8)
			x = (double)in->d[at / 16] * in->q[at];
		sum += (double)weights[k] * x;
		size += block_size(t, row, k, (double)weights[k]) * fabs(x);
	}
	/* Each of the terms is rounded once as it is added, the weights and a scale or two before. */
	if (!(fabs((double)y - sum) <= (n_terms + 4) * EPS * size))
		fail_msg("%s, row %u: %.9g, not %.9g", t->name, r, (double)y, sum);
	free(weights);
}

static void rows_init(struct kc_rows *in, uint64_t *rng, uint32_t n, uint32_t cols)
{
	size_t count = (size_t)n * cols;

	*in = (struct kc_rows){
		.cols = cols, .f = random_floats(rng, count, 2), .q = must(malloc(count)),
		.d = must(malloc(count)), .h = must(malloc(count)), .s = must(malloc(count)),
		.q16 = must(malloc(count * sizeof(*in->q16))), .d16 = must(malloc(count)),
	};
	kc_level_c.quantize(in->f, (uint32_t)count, in->q, in->d, in->h, in->s);
	kc_level_c.quantize16(in->f, (uint32_t)count, in->q16, in->d16);
}

static void rows_deinit(struct kc_rows *in)
{
	free(in->f);
	free(in->q);
	free(in->d);
	free(in->h);
	free(in->s);
	free(in->q16);
	free(in->d16);
}

static void check_product(struct kb_backend *be, uint64_t *rng, enum kb_type type, uint32_t rows, uint32_t cols)
{
	enum { N = 3 };
	uint8_t *data = random_rows(rng, type, rows, cols, 1);
	struct kb_tensor *w = make_matrix(be, type, rows, cols, data);
	size_t stride = (size_t)w->n_groups * 16;
	float *y = must(malloc(sizeof(*y) * N * stride));
	struct kc_rows in;

	rows_init(&in, rng, N, cols);
	kc_level_c.product(w, 0, w->n_groups, &in, 0, N, y, stride);
	for (uint32_t i = 0; i < N; i++) {
		for (uint32_t r = 0; r < rows; r++)
			check_output(w, r, data + row_bytes(type, cols) * r, &in, i, y[i * stride + r]);
		/* Rows that only fill up a group are zero. */
		for (size_t r = rows; r < stride; r++)
			assert_true(y[i * stride + r] == 0);
	}
	free(data);
	free(y);
	rows_deinit(&in);
	be->ops->tensor_free(be, w);
}

static void test_product(void **state)
{
	static const uint32_t shapes[][2] = { { 1, 1 }, { 16, 2 }, { 33, 18 }, { 70, 3 } };
	struct kb_backend *be = open_level("c", 1);
	uint64_t rng = 3;

	for (size_t t = 0; t < N_TEST_TYPES; t++) {
		uint32_t block = test_types[t].weights > 32 ? test_types[t].weights : 32;

		for (size_t s = 0; s < 4; s++)
			check_product(be, &rng, test_types[t].type, shapes[s][0], shapes[s][1] * block);
	}
	be->ops->close(be);
}

/* --- a whole transformer ------------------------------------------------------------ */

/* Keys and values of one layer as the pool keeps them. */
struct memory {
	double *k, *v;		/* [position][kv head][head_dim] */
};

/*
 * Stored is what was computed, rounded as the type says, but for float's own errors before.  n: channels of a head, of
 * which there are several.
 */
static void check_stored(enum kb_kv_type type, const double *computed, const double *stored, uint32_t n_heads,
			 uint32_t n)
{
	for (uint32_t i = 0; i < n_heads * n; i++) {
		uint32_t first = i - i % n % KB_KV_GROUP, end = first + kc_group_channels(n, i % n / KB_KV_GROUP);
		double error = 0x1.01p-11 * fabs(computed[i]), max = 0;

		for (uint32_t k = first; k < end; k++)
			max = fmax(max, fabs(computed[k]));
		if (type == KB_KV_Q8)
			error = 0.505 * max / 127;
		assert_true(fabs(computed[i] - stored[i]) <= error + 2e-5);
	}
}

/* n values x, f16, became y = d * q + m. */
static void check_four_bits(const double *x, const double *y, uint32_t n, size_t step)
{
	double low = x[0], high = x[0], d;

	for (uint32_t i = 0; i < n; i++) {
		low = fmin(low, x[i * step]);
		high = fmax(high, x[i * step]);
	}
	d = (high - low) / 15;
	for (uint32_t i = 0; i < n; i++)
		assert_true(fabs(x[i * step] - y[i * step]) <= 0.5 * d + 0x1p-11 * (fabs(low) + 16 * d) + 1e-6);
}

static void attend(const struct toy_shape *s, const struct kb_attention *op, const struct memory *mem, const double *q,
		   uint32_t pos, double *out)
{
	uint32_t first = op->window && pos + 1 > op->window ? pos + 1 - op->window : 0, hd = s->head_dim;

	for (uint32_t h = 0; h < s->n_heads; h++) {
		uint32_t kv = h / (s->n_heads / s->n_kv_heads);
		double sum = 0;

		memset(out + (size_t)h * hd, 0, hd * sizeof(*out));
		for (uint32_t t = first; t <= pos; t++) {
			const double *k = mem->k + ((size_t)t * s->n_kv_heads + kv) * hd;
			const double *v = mem->v + ((size_t)t * s->n_kv_heads + kv) * hd;
			double score = 0, p;

			for (uint32_t d = 0; d < hd; d++)
				score += q[(size_t)h * hd + d] * k[d];
			p = exp(softcapped(score * (double)op->scale, (double)op->softcap));
			sum += p;
			for (uint32_t d = 0; d < hd; d++)
				out[(size_t)h * hd + d] += p * v[d];
		}
		for (uint32_t d = 0; d < hd; d++)
			out[(size_t)h * hd + d] /= sum;
	}
}

static void attention_half(const struct toy *toy, const struct toy_seq *seq, uint32_t layer,
			   const struct memory *mem, double *x, uint32_t pos)
{
	const struct toy_shape *s = &toy->shape;
	const struct toy_layer *l = &toy->layers[layer];
	uint32_t hd = s->head_dim, nq = s->n_heads * hd, nkv = s->n_kv_heads * hd;
	double n[256], q[512], k[512], v[512], o[512], y[256];
	bool open = s->kv_type == KB_KV_Q4;

	norm(l->in.norm, x, n, s->n_embd);
	matrix_times(l->in.wq, n, q);
	matrix_times(l->in.wk, n, k);
	matrix_times(l->in.wv, n, v);
	add_bias(l->in.bq, q, nq);
	add_bias(l->in.bk, k, nkv);
	add_bias(l->in.bv, v, nkv);
	for (uint32_t h = 0; h < s->n_heads; h++) {
		if (l->in.q_norm)
			norm(l->in.q_norm, q + h * hd, q + h * hd, hd);
		rotate(s, q + h * hd, pos);
		mix(s, q + h * hd);
	}
	for (uint32_t h = 0; h < s->n_kv_heads; h++) {
		if (l->in.k_norm)
			norm(l->in.k_norm, k + h * hd, k + h * hd, hd);
		rotate(s, k + h * hd, pos);
		mix(s, k + h * hd);
		mix(s, v + h * hd);
	}
	load_stored(toy, seq, layer, pos, false, open, mem->k + (size_t)pos * nkv);
	load_stored(toy, seq, layer, pos, true, open, mem->v + (size_t)pos * nkv);
	check_stored(s->kv_type, k, mem->k + (size_t)pos * nkv, s->n_kv_heads, hd);
	check_stored(s->kv_type, v, mem->v + (size_t)pos * nkv, s->n_kv_heads, hd);
	attend(s, &l->attention, mem, q, pos, o);
	for (uint32_t h = 0; h < s->n_heads; h++)
		mix(s, o + h * hd);
	matrix_times(l->out.wo, o, y);
	add_bias(l->out.bo, y, s->n_embd);
	if (l->out.post_norm)
		norm(l->out.post_norm, y, y, s->n_embd);
	for (uint32_t i = 0; i < s->n_embd; i++)
		x[i] += y[i];
}

static void ffn_half(const struct toy *toy, const struct toy_layer *l, double *x)
{
	const struct toy_shape *s = &toy->shape;
	double n[256], gate[512], up[512], y[256];

	norm(l->ffn.norm, x, n, s->n_embd);
	matrix_times(l->ffn.gate, n, gate);
	matrix_times(l->ffn.up, n, up);
	for (uint32_t i = 0; i < s->n_ff; i++) {
		double g = gate[i];

		if (s->activation == KB_SILU)
			gate[i] = g / (1 + exp(-g)) * up[i];
		else
			gate[i] = 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * up[i];
	}
	matrix_times(l->ffn.down, gate, y);
	if (l->ffn.post_norm)
		norm(l->ffn.post_norm, y, y, s->n_embd);
	for (uint32_t i = 0; i < s->n_embd; i++)
		x[i] += y[i];
}

/* The block that ends at pos is sealed now. */
static void reload_sealed(const struct toy *toy, const struct toy_seq *seq, uint32_t layer, const struct memory *mem,
			  uint32_t pos)
{
	const struct toy_shape *s = &toy->shape;
	uint32_t nkv = s->n_kv_heads * s->head_dim, first = pos + 1 - KB_Q4_BLOCK_TOKENS;
	static double k[KB_Q4_BLOCK_TOKENS * 64], v[KB_Q4_BLOCK_TOKENS * 64];
	size_t at = (size_t)first * nkv;

	assert_true(nkv <= 64);
	for (uint32_t i = 0; i < KB_Q4_BLOCK_TOKENS; i++) {
		load_stored(toy, seq, layer, first + i, false, false, k + (size_t)i * nkv);
		load_stored(toy, seq, layer, first + i, true, false, v + (size_t)i * nkv);
		for (uint32_t c = 0; c < nkv; c += kc_group_channels(s->head_dim, c % s->head_dim / KB_KV_GROUP))
			check_four_bits(mem->v + at + (size_t)i * nkv + c, v + (size_t)i * nkv + c,
					kc_group_channels(s->head_dim, c % s->head_dim / KB_KV_GROUP), 1);
	}
	for (uint32_t c = 0; c < nkv; c++)
		check_four_bits(mem->k + at + c, k + c, KB_Q4_BLOCK_TOKENS, nkv);
	memcpy(mem->k + at, k, sizeof(*k) * KB_Q4_BLOCK_TOKENS * nkv);
	memcpy(mem->v + at, v, sizeof(*v) * KB_Q4_BLOCK_TOKENS * nkv);
}

/* Token by token, so that open blocks can be looked at. */
static void check_transformer(const struct toy_shape *s, uint32_t length)
{
	struct memory mem[TOY_MAX_LAYERS];
	double x[256], n[256], logits[512], worst = 0, largest = 0;
	struct toy_seq seq;
	struct toy toy;

	toy_init(&toy, "c", 1, s, 16, 80, 64);
	toy_seq_init(&seq, &toy, 9, length, 0, 1);
	for (uint32_t i = 0; i < s->n_layers; i++) {
		size_t size = (size_t)length * s->n_kv_heads * s->head_dim * sizeof(double);

		mem[i] = (struct memory){ must(malloc(size)), must(malloc(size)) };
	}
	for (uint32_t pos = 0; pos < length; pos++) {
		struct toy_seq *one = &seq;
		float row[256];

		toy_advance(&toy, &one, &(uint32_t){ 1 }, 1);
		kc_tensor_row(toy.embedding, (uint32_t)seq.tokens[pos], row);
		for (uint32_t i = 0; i < s->n_embd; i++)
			x[i] = (double)row[i] * 1.5;
		for (uint32_t i = 0; i < s->n_layers; i++) {
			attention_half(&toy, &seq, i, &mem[i], x, pos);
			ffn_half(&toy, &toy.layers[i], x);
			if (s->kv_type == KB_KV_Q4 && (pos + 1) % KB_Q4_BLOCK_TOKENS == 0)
				reload_sealed(&toy, &seq, i, &mem[i], pos);
		}
		norm(toy.logits.norm, x, n, s->n_embd);
		matrix_times(toy.logits.head, n, logits);
		for (uint32_t i = 0; i < s->n_vocab; i++) {
			double d = softcapped(logits[i], (double)toy.logits.softcap);

			worst = fmax(worst, fabs(d - (double)seq.logits[(size_t)pos * s->n_vocab + i]));
			largest = fmax(largest, fabs(d));
		}
	}
	/* Attention continues from the stored keys and values, so only float's errors are left. */
	print_message("    largest logit %.3f, largest difference %.2e\n", largest, worst);
	assert_true(worst < 2e-5 * largest);
	for (uint32_t i = 0; i < s->n_layers; i++) {
		free(mem[i].k);
		free(mem[i].v);
	}
	toy_seq_deinit(&seq, &toy);
	toy_deinit(&toy);
}

static void test_transformer(void **state)
{
	struct toy_shape plain = { .n_layers = 2, .n_embd = 96, .n_heads = 6, .n_kv_heads = 2, .head_dim = 16,
					 .n_ff = 160, .n_vocab = 77, .max_positions = 700, .type = KB_F32,
					 .head_type = KB_F32, .rope = KB_ROPE_INTERLEAVED };
	struct toy_shape extras = { .n_layers = 2, .n_embd = 64, .n_heads = 4, .n_kv_heads = 1, .head_dim = 48,
					  .n_ff = 96, .n_vocab = 50, .max_positions = 700, .type = KB_F16,
					  .head_type = KB_BF16, .rope = KB_ROPE_HALVES, .window = 70,
					  .activation = KB_GELU_TANH, .extras = true };

	for (int type = KB_KV_F16; type <= KB_KV_Q4; type++) {
		plain.kv_type = extras.kv_type = (enum kb_kv_type)type;
		check_transformer(&plain, type == KB_KV_F16 ? 520 : 200);
		check_transformer(&extras, 150);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_f16_exact),
		cmocka_unit_test(test_f16_rounding),
		cmocka_unit_test(test_exp),
		cmocka_unit_test(test_activation),
		cmocka_unit_test(test_quantize),
		cmocka_unit_test(test_product),
		cmocka_unit_test(test_transformer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
