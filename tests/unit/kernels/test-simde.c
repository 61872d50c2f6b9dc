/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The AVX-512 kernels against plain C on a machine with AVX2 only: the same
 * headers as the native level, their intrinsics emulated by SIMDe.
 */
#include <string.h>

#if __has_include(<simde/x86/avx512.h>) && defined(__AVX2__)
#define HAVE_SIMDE 1
#include "simde-avx512.h"
#endif

#include "level-check.h"

#ifdef HAVE_SIMDE
#include "kernels/cpu/simd-avx512.h"
#include "kernels/cpu/simd-attention.h"
#include "kernels/cpu/simd-product.h"
#include "kernels/cpu/simd-rows.h"

static bool supported(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && kc_cpu_has_f16c();
}

static const struct kc_level emulated = {
	.name = "avx512 by SIMDe",
	.supported = supported,
	.quantize = simd_quantize,
	.quantize16 = simd_quantize16,
	.rmsnorm = simd_rmsnorm,
	.rotate = simd_rotate,
	.gated = simd_gated,
	.softcap = simd_softcap,
	.store_f16 = simd_store_f16,
	.product = simd_product,
	.attend = simd_attend,
	.merge = simd_merge,
};

#define TEST(name) \
	static void test_##name(void **state) \
	{ \
		if (!emulated.supported()) \
			skip(); \
		check_##name(&emulated); \
	}
#else
#define TEST(name) \
	static void test_##name(void **state) \
	{ \
		print_message("built without libsimde-dev: " #name " of AVX-512 is not emulated\n"); \
		skip(); \
	}
#endif
TEST(quantize)
TEST(rmsnorm)
TEST(rotate)
TEST(activations)
TEST(store_f16)
TEST(products)
TEST(saturation)
TEST(attention)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_quantize),
		cmocka_unit_test(test_rmsnorm),
		cmocka_unit_test(test_rotate),
		cmocka_unit_test(test_activations),
		cmocka_unit_test(test_store_f16),
		cmocka_unit_test(test_products),
		cmocka_unit_test(test_saturation),
		cmocka_unit_test(test_attention),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
