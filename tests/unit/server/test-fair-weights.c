/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/server/fair-weights.h"

static void test_good(void **state)
{
	struct fair_weights s;

	assert_int_equal(fair_weights_init(&s, NULL, NULL), 0);
	assert_int_equal(fair_weight(&s, 0), FAIR_WEIGHT);
	assert_int_equal(fair_weights_init(&s, "1000:200, 1001:1 ,root:10000", NULL), 0);
	assert_int_equal(fair_weight(&s, 1000), 200);
	assert_int_equal(fair_weight(&s, 1001), 1);
	assert_int_equal(fair_weight(&s, 0), FAIR_WEIGHT_MAX);
	assert_int_equal(fair_weight(&s, 1002), FAIR_WEIGHT);
}

static void test_bad(void **state)
{
	static const char *const texts[] = {
		"", "1000", "1000:", "1000:0", "1000:10001", "1000:-1", "1000:1.5", "1000:0x10", "1000:1:1", ":5",
		"nobody-of-this-name:5", "4294967295:5", "4294967296:5", "-1:5", "1:1,1:1", "0:1,root:1", "1:1,", ",",
		"1:99999999999999999999",
	};
	char many[FAIR_WEIGHTS_MAX * 8 + 16] = "";
	struct fair_weights s;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		struct diag diag = DIAG_NULL;

		assert_int_equal(fair_weights_init(&s, texts[i], &diag), -EINVAL);
		assert_non_null(strstr(diag.text, "fair-weights"));
	}
	for (int i = 0; i <= FAIR_WEIGHTS_MAX; i++) {
		assert_int_equal(fair_weights_init(&s, i ? many : NULL, NULL), 0);
		snprintf(many + strlen(many), sizeof(many) - strlen(many), "%s%d:1", i ? "," : "", i + 1000);
	}
	assert_int_equal(fair_weights_init(&s, many, NULL), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good),
		cmocka_unit_test(test_bad),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
