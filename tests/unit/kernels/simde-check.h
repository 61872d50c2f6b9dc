/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simde-check.h - a program that checks a level of AVX-512 against plain C on a
 * machine with AVX2 only: the same headers as the native level, their
 * intrinsics emulated by SIMDe, those of tiles by emulated-amx.h.  EMULATED
 * names it; KC_VNNI as in the level; KC_AMX: with tiles.
 */
#ifndef KERNELS_SIMDE_CHECK_H
#define KERNELS_SIMDE_CHECK_H

#include <string.h>

#if __has_include(<simde/x86/avx512.h>) && defined(__AVX2__)
#define HAVE_SIMDE 1
#include "simde-avx512.h"
#include "emulated-amx.h"
#endif

#include "level-check.h"

#ifdef HAVE_SIMDE
#define KC_EMULATED
#include "kernels/cpu/features.h"
#include "kernels/cpu/simd-avx512.h"
#include "kernels/cpu/simd-level.h"
#ifdef KC_AMX
#include "kernels/cpu/simd-amx.h"
#define PRODUCT amx_product
#else
#include "kernels/cpu/simd-product-512.h"
#define PRODUCT simd_product
#endif

static const struct kc_level emulated = {
	.name = EMULATED " by SIMDe",
	.supported = kc_has_avx2,
	.product = PRODUCT,
	SIMD_LEVEL,
};

/* By every check of a level that has them. */
static void check_tiles_used(void)
{
#ifdef KC_AMX
	assert_true(emulated_amx.n_products > 0);
	assert_false(emulated_amx.configured);
	emulated_amx.n_products = 0;
#endif
}

#define TEST(name) \
	static void test_##name(void **state) \
	{ \
		if (!emulated.supported()) \
			skip(); \
		check_##name(&emulated); \
		check_tiles_used(); \
	}
#else
#define TEST(name) \
	static void test_##name(void **state) \
	{ \
		print_message("built without libsimde-dev: " #name " of " EMULATED " is not emulated\n"); \
		skip(); \
	}
#endif
TEST(products)
TEST(saturation)
#ifndef KC_VNNI
TEST(quantize)
TEST(rmsnorm)
TEST(rotate)
TEST(hadamard)
TEST(activations)
TEST(store_f16)
TEST(attention)
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_products),
		cmocka_unit_test(test_saturation),
#ifndef KC_VNNI
		cmocka_unit_test(test_quantize),
		cmocka_unit_test(test_rmsnorm),
		cmocka_unit_test(test_rotate),
		cmocka_unit_test(test_hadamard),
		cmocka_unit_test(test_activations),
		cmocka_unit_test(test_store_f16),
		cmocka_unit_test(test_attention),
#endif
	};

	return _cmocka_run_group_tests(EMULATED, tests, sizeof(tests) / sizeof(tests[0]), NULL, NULL);
}

#endif
