/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts in all their forms; what is none is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/server/http-prompts.h"

#define MAX 3

/* http-exchange.c is not linked. */
void http_reply_error(struct http_exchange *x, const struct http_error *e, const char *fmt, ...)
{
}

static struct http_json parsed(const char *text)
{
	struct diag diag = DIAG_NULL;
	struct http_json v;

	assert_int_equal(http_json_parse((const uint8_t *)text, strlen(text), &v, &diag), 0);
	return v;
}

/* The next prompt's bytes are these. */
static void next_is(struct http_prompts *p, const void *bytes, size_t n)
{
	struct http_json v;
	uint8_t *out;
	size_t room;

	assert_true(http_prompts_next(p, &v));
	room = http_prompt_room(p, &v);
	out = malloc(room);
	assert_true(room >= n);
	assert_int_equal(http_prompt_write(p, &v, out), n);
	assert_memory_equal(out, bytes, n);
	free(out);
}

static struct http_prompts prompts(const char *text, size_t n, bool is_list, enum kvd_part_kind kind)
{
	struct http_refusal why = HTTP_REFUSAL_NULL;
	struct http_json v = parsed(text);
	struct http_prompts p;

	assert_int_equal(http_prompts_init(&p, &v, "prompt", MAX, &why), 0);
	assert_true(p.n == n && p.is_list == is_list && p.kind == kind);
	return p;
}

static void no_more(struct http_prompts *p)
{
	struct http_json v;

	assert_false(http_prompts_next(p, &v));
}

static void test_forms(void **state)
{
	static const int32_t ids[] = { 1, 0, 2147483647 }, one[] = { 7 };
	struct http_prompts p = prompts("\"a\\u0000\\u20ac\"", 1, false, KVD_PART_TEXT);

	next_is(&p, "a\0€", 5);
	no_more(&p);
	p = prompts("[\"x\", \"yy\", \"z\"]", 3, true, KVD_PART_TEXT);
	next_is(&p, "x", 1);
	next_is(&p, "yy", 2);
	next_is(&p, "z", 1);
	no_more(&p);
	p = prompts("[1,0, 2147483647 ]", 1, false, KVD_PART_IDS);
	next_is(&p, ids, sizeof(ids));
	no_more(&p);
	p = prompts("[[7], [1.0,0,2147483647]]", 2, true, KVD_PART_IDS);
	next_is(&p, one, sizeof(one));
	next_is(&p, ids, sizeof(ids));
	no_more(&p);
}

static void refused(const char *text, const char *param, const char *code)
{
	struct http_refusal why = HTTP_REFUSAL_NULL;
	struct http_json v = parsed(text);
	struct http_prompts p;

	if (!http_prompts_init(&p, &v, "prompt", MAX, &why) || strcmp(why.param, param) || strcmp(why.code, code))
		fail_msg("%s: %s %s %s", text, why.param, why.code, why.message.text);
}

static void test_refused(void **state)
{
	refused("\"\"", "prompt", HTTP_CODE_VALUE);
	refused("[]", "prompt", HTTP_CODE_VALUE);
	refused("[[]]", "prompt[0]", HTTP_CODE_VALUE);
	refused("[\"a\",\"\"]", "prompt[1]", HTTP_CODE_VALUE);
	refused("[-1]", "prompt[0]", HTTP_CODE_VALUE);
	refused("[1,1.5]", "prompt[1]", HTTP_CODE_VALUE);
	refused("[1,2147483648]", "prompt[1]", HTTP_CODE_VALUE);
	refused("[1e999]", "prompt[0]", HTTP_CODE_VALUE);
	refused("[null]", "prompt[0]", HTTP_CODE_TYPE);
	refused("[true]", "prompt[0]", HTTP_CODE_TYPE);
	refused("[1,\"a\"]", "prompt[1]", HTTP_CODE_TYPE);
	refused("[\"a\",1]", "prompt[1]", HTTP_CODE_TYPE);
	refused("[\"a\",[1]]", "prompt[1]", HTTP_CODE_TYPE);
	refused("[[1],\"a\"]", "prompt[1]", HTTP_CODE_TYPE);
	refused("[[1],[2,null]]", "prompt[1][1]", HTTP_CODE_TYPE);
	refused("[[[1]]]", "prompt[0][0]", HTTP_CODE_TYPE);
	refused("[\"a\",\"b\",\"c\",\"d\"]", "prompt", HTTP_CODE_VALUE);
	refused("{}", "prompt", HTTP_CODE_TYPE);
	refused("1", "prompt", HTTP_CODE_TYPE);
	refused("true", "prompt", HTTP_CODE_TYPE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_forms),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
