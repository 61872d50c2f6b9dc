/* SPDX-License-Identifier: Apache-2.0 */
/* Every CPU level that this machine has against plain C, bit for bit. */
#include "level-check.h"

static const struct kc_level *const levels[] = {
#ifdef __x86_64__
	&kc_level_avx2,
	&kc_level_avx512,
	&kc_level_avx512vnni,
	&kc_level_amx,
#endif
	&kc_level_c,
};
#define N_LEVELS (sizeof(levels) / sizeof(levels[0]))

/* state: the level */
#define TEST(name) \
	static void test_##name(void **state) \
	{ \
		const struct kc_level *level = *state; \
		if (!level->supported()) \
			skip(); \
		check_##name(level); \
	}
TEST(quantize)
TEST(rmsnorm)
TEST(rotate)
TEST(hadamard)
TEST(activations)
TEST(store_f16)
TEST(products)
TEST(saturation)
TEST(attention)

int main(void)
{
	int failed = 0;

	for (size_t i = 0; i < N_LEVELS; i++) {
		void *level = (void *)(uintptr_t)levels[i];
		const struct CMUnitTest tests[] = {
			cmocka_unit_test_prestate(test_quantize, level),
			cmocka_unit_test_prestate(test_rmsnorm, level),
			cmocka_unit_test_prestate(test_rotate, level),
			cmocka_unit_test_prestate(test_hadamard, level),
			cmocka_unit_test_prestate(test_activations, level),
			cmocka_unit_test_prestate(test_store_f16, level),
			cmocka_unit_test_prestate(test_products, level),
			cmocka_unit_test_prestate(test_saturation, level),
			cmocka_unit_test_prestate(test_attention, level),
		};

		failed |= _cmocka_run_group_tests(levels[i]->name, tests, sizeof(tests) / sizeof(tests[0]), NULL, NULL);
	}
	return failed;
}
