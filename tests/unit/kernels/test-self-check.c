/* SPDX-License-Identifier: Apache-2.0 */
/* Levels that compute wrongly, or not at all, are found before they are used. */
#include <errno.h>
#include <pthread.h>

#include "fixture.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/levels.h"
#include "kernels/cpu/self-check.h"

/* --- plain C, but for one operation ---------------------------------------------- */

static float flip(float x)
{
	return kc_bits_float(kc_float_bits(x) ^ 1);
}

static void wrong_quantize(const float *x, uint32_t n, int8_t *q, float *d, float *h, float *s)
{
	kc_level_c.quantize(x, n, q, d, h, s);
	s[n / 32 - 1] = flip(s[n / 32 - 1]);
}

static void wrong_quantize16(const float *x, uint32_t n, int16_t *q, float *d)
{
	kc_level_c.quantize16(x, n, q, d);
	q[n - 1] ^= 1;
}

static void wrong_rmsnorm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
	kc_level_c.rmsnorm(y, x, w, n, eps);
	y[n - 1] = flip(y[n - 1]);
}

static enum kb_rope_style wrong_style;

static void wrong_rotate(float *x, const float *angles, uint32_t n_dims, enum kb_rope_style style)
{
	kc_level_c.rotate(x, angles, n_dims, style);
	if (style == wrong_style)
		x[n_dims - 1] = flip(x[n_dims - 1]);
}

/* Writes beyond. */
static void long_rotate(float *x, const float *angles, uint32_t n_dims, enum kb_rope_style style)
{
	kc_level_c.rotate(x, angles, n_dims, style);
	x[n_dims] = 0;
}

static void wrong_hadamard(float *x, uint32_t n)
{
	kc_level_c.hadamard(x, n);
	x[n - 1] = flip(x[n - 1]);
}

static enum kb_activation wrong_activation;

static void wrong_gated(float *gate, const float *up, uint32_t n, enum kb_activation activation)
{
	kc_level_c.gated(gate, up, n, activation);
	if (activation == wrong_activation)
		gate[n - 1] = flip(gate[n - 1]);
}

static void wrong_softcap(float *x, uint32_t n, float cap)
{
	kc_level_c.softcap(x, n, cap);
	x[0] = flip(x[0]);
}

static void wrong_store_f16(uint16_t *y, const float *x, uint32_t n)
{
	kc_level_c.store_f16(y, x, n);
	y[n - 1] ^= 1;
}

static enum kb_type wrong_type;
static uint32_t wrong_rows;

static void wrong_product(const struct kb_tensor *w, uint32_t group0, uint32_t n_groups, const struct kc_rows *in,
			  uint32_t row0, uint32_t n_rows, float *out, size_t out_stride)
{
	float *last = out + (n_rows - 1) * out_stride + KC_LANES - 1;

	kc_level_c.product(w, group0, n_groups, in, row0, n_rows, out, out_stride);
	if (w->type == wrong_type && n_rows == wrong_rows)
		*last = flip(*last);
}

/* An instruction that this machine does not have. */
static void deadly_product(const struct kb_tensor *w, uint32_t group0, uint32_t n_groups, const struct kc_rows *in,
			   uint32_t row0, uint32_t n_rows, float *out, size_t out_stride)
{
	__builtin_trap();
}

static enum kb_kv_type wrong_kv;
static uint32_t wrong_queries;
static bool wrong_mass;

static void wrong_attend(const struct kc_queries *queries, uint32_t segment, const struct kc_partial *out,
			 float *scratch)
{
	uint32_t n = queries->n_rows * queries->n_heads;
	float *o = out->o + (size_t)n * queries->head_dim - 1;

	kc_level_c.attend(queries, segment, out, scratch);
	if (queries->geometry->kv_type != wrong_kv || n != wrong_queries)
		return;
	if (wrong_mass)
		out->mass[n * KC_GRANULES - 1] = flip(out->mass[n * KC_GRANULES - 1]);
	else
		*o = flip(*o);
}

static void wrong_merge(float *m, float *l, float *o, const struct kc_partial *part, uint32_t j, uint32_t head_dim)
{
	kc_level_c.merge(m, l, o, part, j, head_dim);
	*l = flip(*l);
}

static struct kc_level like_c(void)
{
	struct kc_level level = kc_level_c;

	level.name = "changed";
	return level;
}

/* --- the check -------------------------------------------------------------------- */

static void assert_right(const struct kc_level *level)
{
	char fault[96] = "untouched";
	bool right = false;

	assert_int_equal(kc_self_check(level, &right, fault, sizeof(fault)), 0);
	if (!right)
		fail_msg("%s: %s", level->name, fault);
	assert_string_equal(fault, "untouched");
}

static void assert_wrong(const struct kc_level *level, const char *what)
{
	char fault[96] = "";
	bool right = true;

	assert_int_equal(kc_self_check(level, &right, fault, sizeof(fault)), 0);
	assert_false(right);
	if (!strstr(fault, what))
		fail_msg("\"%s\" does not name \"%s\"", fault, what);
}

static void test_right(void **state)
{
	static const struct kc_level *const levels[] = {
#ifdef __x86_64__
		&kc_level_avx2, &kc_level_avx512, &kc_level_avx512vnni, &kc_level_amx,
#endif
		&kc_level_c,
	};

	for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
		if (levels[i]->supported())
			assert_right(levels[i]);
	}
}

static void *check_in_thread(void *arg)
{
	char fault[96];
	bool right = false;

	return !kc_self_check(arg, &right, fault, sizeof(fault)) && right ? arg : NULL;
}

/* Tiles are asked for by one thread, and then every other has them, too. */
static void test_other_thread(void **state)
{
	struct kc_level level;
	pthread_t thread;
	void *result;

	for (const char *const *name = kb_cpu_levels(); *name; name++) {
		const struct kc_level *found = NULL;

		assert_int_equal(kc_levels_find(*name, &found), 0);
		level = *found;
		assert_int_equal(pthread_create(&thread, NULL, check_in_thread, &level), 0);
		assert_int_equal(pthread_join(thread, &result), 0);
		assert_ptr_equal(result, &level);
	}
}

#define ASSERT_WRONG(operation, what) \
	do { \
		struct kc_level level = like_c(); \
		level.operation = wrong_##operation; \
		assert_wrong(&level, what ": not the bits of plain C"); \
	} while (0)

static void test_wrong_rows(void **state)
{
	struct kc_level beyond = like_c();

	ASSERT_WRONG(quantize, "quantisation to 8 bits");
	ASSERT_WRONG(quantize16, "quantisation to 16 bits");
	ASSERT_WRONG(rmsnorm, "norm");
	wrong_style = KB_ROPE_INTERLEAVED;
	ASSERT_WRONG(rotate, "rotation of pairs");
	wrong_style = KB_ROPE_HALVES;
	ASSERT_WRONG(rotate, "rotation of halves");
	ASSERT_WRONG(hadamard, "mixture of channels");
	wrong_activation = KB_SILU;
	ASSERT_WRONG(gated, "SiLU");
	wrong_activation = KB_GELU_TANH;
	ASSERT_WRONG(gated, "GELU");
	ASSERT_WRONG(softcap, "soft cap");
	ASSERT_WRONG(store_f16, "conversion to F16");
	ASSERT_WRONG(merge, "merge of segments");
	beyond.rotate = long_rotate;
	assert_wrong(&beyond, "rotation of pairs");
}

/* Each type, and each number of rows. */
static void test_wrong_product(void **state)
{
	static const uint32_t counts[] = { 1, 3, 4, 9 };
	struct kc_level level = like_c();
	char what[64];

	level.product = wrong_product;
	for (size_t i = 0; i < N_TEST_TYPES; i++) {
		wrong_type = test_types[i].type;
		wrong_rows = counts[i % 4];
		snprintf(what, sizeof(what), "product of %u rows and GGUF type %u", wrong_rows, (unsigned)wrong_type);
		assert_wrong(&level, what);
	}
}

static void test_wrong_attention(void **state)
{
	static const char *const names[] = { "KV F16", "KV Q8", "KV Q4" };

	for (int type = KB_KV_F16; type <= KB_KV_Q4; type++) {
		struct kc_level level = like_c();

		level.attend = wrong_attend;
		wrong_kv = (enum kb_kv_type)type;
		for (int i = 0; i < 4; i++) {
			wrong_queries = i % 2 ? 9 : 3;
			wrong_mass = i / 2;
			assert_wrong(&level, names[type]);
		}
	}
}

static void test_fault(void **state)
{
	struct kc_level level = like_c();

	level.product = deadly_product;
	assert_wrong(&level, "product of 1 rows and GGUF type 0: signal");
}

/* --- the choice ----------------------------------------------------------------------- */

static bool lacking(void)
{
	return false;
}

static void test_choice(void **state)
{
	struct kc_level lacks = like_c(), dies = like_c(), errs = like_c(), right = like_c();
	struct kc_choice choices[] = { { &lacks }, { &dies }, { &errs }, { &right }, { &kc_level_c } };
	const struct kc_level *out = NULL;

	lacks.name = "lacks";
	lacks.supported = lacking;
	dies.name = "dies";
	dies.product = deadly_product;
	errs.name = "errs";
	errs.rmsnorm = wrong_rmsnorm;
	right.name = "right";
	assert_null(kc_levels_fault(choices, 5, "errs"));
	assert_int_equal(kc_levels_choose(choices, 5, NULL, &out), 0);
	assert_ptr_equal(out, &right);
	assert_null(kc_levels_fault(choices, 5, "lacks"));
	assert_null(kc_levels_fault(choices, 5, "right"));
	assert_non_null(strstr(kc_levels_fault(choices, 5, "dies"), "signal"));
	assert_non_null(strstr(kc_levels_fault(choices, 5, "errs"), "norm"));
	/* By name: the level or an error, never another one. */
	out = NULL;
	assert_int_equal(kc_levels_choose(choices, 5, "errs", &out), -EIO);
	assert_int_equal(kc_levels_choose(choices, 5, "dies", &out), -EIO);
	assert_int_equal(kc_levels_choose(choices, 5, "lacks", &out), -ENOTSUP);
	assert_int_equal(kc_levels_choose(choices, 5, "none", &out), -EINVAL);
	assert_null(out);
	assert_int_equal(kc_levels_choose(choices, 5, "c", &out), 0);
	assert_ptr_equal(out, &kc_level_c);
	/* Once in a process. */
	right.rmsnorm = wrong_rmsnorm;
	assert_int_equal(kc_levels_choose(choices, 5, "right", &out), 0);
	assert_ptr_equal(out, &right);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_right),
		cmocka_unit_test(test_other_thread),
		cmocka_unit_test(test_wrong_rows),
		cmocka_unit_test(test_wrong_product),
		cmocka_unit_test(test_wrong_attention),
		cmocka_unit_test(test_fault),
		cmocka_unit_test(test_choice),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
