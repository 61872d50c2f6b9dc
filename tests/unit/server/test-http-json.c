/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading JSON and bodies by a table.  The oracle for what is JSON, and for what a string says, is jansson.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/server/http-fields.h"
#include "ipc/base/checked.h"

/* http-exchange.c is not linked. */
void http_reply_error(struct http_exchange *x, const struct http_error *e, const char *fmt, ...)
{
}

static int parse(const char *text, size_t n, struct http_json *v)
{
	struct diag diag = DIAG_NULL;
	int r = http_json_parse((const uint8_t *)text, n, v, &diag);

	assert_int_equal(r == 0, diag.text[0] == '\0');
	return r;
}

/* The same value, all the way down. */
static void compare(const struct http_json *v, const json_t *oracle)
{
	struct http_json key, value;
	struct http_json_iter it;
	size_t i = 0, n;
	double d;

	switch (json_typeof(oracle)) {
	case JSON_OBJECT:
		assert_int_equal(v->type, HTTP_JSON_OBJECT);
		assert_int_equal(http_json_count(v), json_object_size(oracle));
		for (it = http_json_begin(v); http_json_next(&it, &key, &value);) {
			uint8_t name[256] = { 0 };

			assert_true(http_json_string(&key, name, sizeof(name) - 1) < sizeof(name));
			assert_non_null(json_object_get(oracle, (char *)name));
			assert_true(http_json_is(&key, (char *)name) || strlen((char *)name) > 63);
			compare(&value, json_object_get(oracle, (char *)name));
		}
		break;
	case JSON_ARRAY:
		assert_int_equal(v->type, HTTP_JSON_ARRAY);
		assert_int_equal(http_json_count(v), json_array_size(oracle));
		for (it = http_json_begin(v); http_json_next(&it, NULL, &value); i++)
			compare(&value, json_array_get(oracle, i));
		break;
	case JSON_STRING: {
		uint8_t *bytes = malloc(v->n);

		assert_int_equal(v->type, HTTP_JSON_STRING);
		n = http_json_string(v, bytes, v->n);
		assert_int_equal(n, json_string_length(oracle));
		assert_memory_equal(bytes, json_string_value(oracle), n);
		free(bytes);
		break;
	}
	case JSON_INTEGER:
	case JSON_REAL:
		assert_int_equal(v->type, HTTP_JSON_NUMBER);
		assert_true(http_json_double(v, &d));
		assert_true(d == json_number_value(oracle));
		break;
	case JSON_TRUE:
		assert_int_equal(v->type, HTTP_JSON_TRUE);
		break;
	case JSON_FALSE:
		assert_int_equal(v->type, HTTP_JSON_FALSE);
		break;
	case JSON_NULL:
		assert_int_equal(v->type, HTTP_JSON_NULL);
		break;
	}
}

static void check(const char *text, size_t n)
{
	json_t *oracle = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	char *copy = malloc(n ? n : 1);
	struct http_json v;
	int r;

	/* Exactly as long, so that a sanitizer sees a step too far. */
	memcpy(copy, text, n);
	r = parse(copy, n, &v);
	if ((r == 0) != (oracle != NULL))
		fail_msg("%s: %d", text, r);
	/* A lone number ends with the text and can't be walked; it is compared as an element. */
	if (oracle && v.type >= HTTP_JSON_STRING)
		compare(&v, oracle);
	json_decref(oracle);
	free(copy);
}

static void test_as_jansson(void **state)
{
	static const char *const texts[] = {
		"", " ", "null", "true", "false", "nul", "truex", "tru", "[]", "{}", "[", "]", "{", "}",
		"[,]", "[1,]", "[,1]", "{,}", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{\"a\":1 \"b\":2}",
		"{a:1}", "{1:1}", "[1 2]", "[1}", "{\"a\":1]",
		" { \"a\" : [ 1 , 2.5 , -3e2 , { } , [ ] ] , \"b\" : null } ", "[[[[]]],[[]]]",
		"[[] , [ ],{ \"x\" : {}}]", "0", "-0", "01", "[-]", "[1.]", "[.5]", "[1e]", "[1e+]",
		"[1E-2,0.5e0,-0.0]", "[+1]", "[1.5.2]", "[0x10]", "[NaN]", "[Infinity]", "[-Infinity]",
		"[nan]", "\"\"", "\"abc", "\"\\\"", "\"\\\\\"", "[\"\\\\\",\"\\\"\"]",
		"[\"a\\/\\b\\f\\n\\r\\t\"]", "[\"\\x\"]", "[\"\\u12\"]", "[\"\\u00e9\\u20AC\"]",
		"[\"\\ud83d\\ude00\"]", "[\"\\ud83d\"]", "[\"\\ude00\"]", "[\"\\ud83d\\u0041\"]",
		"[\"\\ud83dx\"]", "[\"\\u0000\",\"a\\u0000b\"]", "[\"é€😀\"]", "[\"\xc3\"]", "[\"\xff\"]",
		"[\"\xed\xa0\x80\"]", "[\"\xc0\x80\"]", "[\"\xf4\x90\x80\x80\"]", "[\"a\nb\"]",
		"[\"\x01\"]", "[\"\x7f\"]", "[\"]\",\"}\",\"[{\\\"\"]",
		"{\"]\":\"}\",\"\\u0061b\":[\"\\\\\"]}", "[1]x", "[1] [2]", "\xef\xbb\xbf[]", "// c\n[]",
		"['a']", "{\"a\":{\"b\":{\"c\":[{\"d\":1},{}]}}}", "[1]\n", "[1]\f", "[true,false,null]",
		"[truefalse]", "[true false]", "{\"a\":1}}", "[[1]", "{\"a\":[1}", "[1,2",
	};

	for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
		check(texts[i], strlen(texts[i]));
	check("[\"a\0b\"]", 7);
	check("[1]\0", 4);
	check("\0", 1);
}

/* Every byte of a text replaced by every one of some others, and every cut. */
static void test_mutations(void **state)
{
	static const char text[] =
		"{\"a\\u00e9\": [1, -2.5e1, \"x\\ud83d\\ude00\xc3\xa9\"], \"b\": {\"c\": null, \"d\": [true]}}";
	static const char others[] = "\"\\{}[],:0-.eEu \xc3\x80\xff\x01tna";
	char copy[sizeof(text)];

	for (size_t i = 0; i < sizeof(text) - 1; i++) {
		check(text, i);
		for (size_t k = 0; k < sizeof(others); k++) {
			memcpy(copy, text, sizeof(text));
			copy[i] = others[k];
			check(copy, sizeof(text) - 1);
		}
	}
}

static void test_depth(void **state)
{
	static char text[20001];
	struct http_json v;

	for (size_t depth = 1; depth <= 10000; depth = depth < 40 ? depth + 1 : depth * 5) {
		memset(text, '[', depth);
		memset(text + depth, ']', depth);
		assert_int_equal(parse(text, 2 * depth, &v) == 0, depth <= HTTP_JSON_DEPTH_MAX);
		assert_int_not_equal(parse(text, depth, &v), 0);
		for (size_t i = 0; i + 5 < sizeof(text) && i / 5 < depth; i += 5)
			memcpy(text + i, "{\"a\":", 5);
		assert_int_not_equal(parse(text, MIN(5 * depth, (size_t)20000), &v), 0);
	}
}

static void number(const char *text, bool is_double, bool is_u64, uint64_t whole)
{
	char list[128];
	struct http_json v, e;
	struct http_json_iter it;
	uint64_t u = 77;
	double d;

	snprintf(list, sizeof(list), "[%s]", text);
	assert_int_equal(parse(list, strlen(list), &v), 0);
	it = http_json_begin(&v);
	assert_true(http_json_next(&it, NULL, &e));
	if (http_json_double(&e, &d) != is_double || http_json_u64(&e, &u) != is_u64)
		fail_msg("%s", text);
	if (is_double)
		assert_true(d == strtod(text, NULL));
	assert_true(u == (is_u64 ? whole : 77));
}

static void test_numbers(void **state)
{
	number("0", true, true, 0);
	number("-0", true, true, 0);
	number("1.0", true, true, 1);
	number("1e3", true, true, 1000);
	number("1.5", true, false, 0);
	number("-1", true, false, 0);
	number("9007199254740993", true, true, 9007199254740993);
	number("9223372036854775807", true, true, INT64_MAX);
	number("9223372036854775808", true, true, UINT64_C(9223372036854775808));
	number("18446744073709551615", true, true, UINT64_MAX);
	number("18446744073709551616", true, false, 0);
	number("1e999", false, false, 0);
	number("-1e999", false, false, 0);
	number("1e-999", true, true, 0);
	number("1e19", true, false, 0);
	number("100000000000000000000000000000000000000000000000000000000000000000000", false, false, 0);
}

/* --- fields ------------------------------------------------------------------------------ */

struct body {
	bool flag, has_size;
	uint32_t size;
	int64_t seed;
	float top_p;
	double wait;
	char name[5];
	struct http_json any;
};

static const struct http_field table[] = {
	{ "flag", HTTP_FIELD_BOOL, .offset = offsetof(struct body, flag) },
	{ "size", HTTP_FIELD_U32, 1, 4294967295.0, offsetof(struct body, size), offsetof(struct body, has_size) },
	{ "seed", HTTP_FIELD_I64, .offset = offsetof(struct body, seed) },
	{ "top_p", HTTP_FIELD_FLOAT, 0, 1, offsetof(struct body, top_p) },
	{ "wait", HTTP_FIELD_DOUBLE, 0.5, 9, offsetof(struct body, wait) },
	{ "name", HTTP_FIELD_STRING, 1, 4, offsetof(struct body, name) },
	{ "any", HTTP_FIELD_JSON, .offset = offsetof(struct body, any) },
	{ "user", HTTP_FIELD_IGNORED },
	{ "metadata", HTTP_FIELD_IGNORED, .harmless = http_is_object },
	{ "label", HTTP_FIELD_IGNORED, .harmless = http_is_label },
	{ "tools", HTTP_FIELD_UNSUPPORTED, .harmless = http_is_empty },
	{ "tool_choice", HTTP_FIELD_UNSUPPORTED, .harmless = http_is_none },
	{ "response_format", HTTP_FIELD_UNSUPPORTED, .harmless = http_is_text_format },
	{ "store", HTTP_FIELD_UNSUPPORTED, .harmless = http_is_false },
	{ "grammar", HTTP_FIELD_UNSUPPORTED },
};

static int read_body(const char *text, struct body *out, struct http_refusal *why)
{
	struct http_json root;
	int r = http_fields_parse((const uint8_t *)text, strlen(text), &root, why);

	return r ? r : http_fields_read(&root, table, ARRAY_SIZE(table), "", out, why);
}

static void refused(const char *text, const char *param, const char *code, const char *part)
{
	struct http_refusal why = HTTP_REFUSAL_NULL;
	struct body body = { 0 };

	if (!read_body(text, &body, &why) || strcmp(why.param, param) || strcmp(why.code, code) ||
	    !strstr(why.message.text, part) || why.status != 400)
		fail_msg("%s: %s %s %s", text, why.param, why.code, why.message.text);
}

static void test_fields(void **state)
{
	struct http_refusal why = HTTP_REFUSAL_NULL;
	struct body b = { .wait = 2 };

	static const char text[] =
		"{\"flag\": true, \"size\": 4294967295, \"seed\": 9223372036854775807, \"top_p\": 0.25,"
		"\"name\": \"\\u20acx\", \"any\": [1], \"user\": {\"a\": 1}, \"metadata\": {}, \"label\": \"x\","
		"\"tools\": [], \"store\": false, \"tool_choice\": \"none\", \"response_format\": {\"type\": \"text\"},"
		"\"grammar\": null, \"wait\": null}";

	assert_int_equal(read_body(text, &b, &why), 0);
	assert_true(b.flag && b.has_size && b.size == UINT32_MAX && b.seed == INT64_MAX && b.top_p == 0.25f);
	assert_true(b.wait == 2);
	assert_string_equal(b.name, "€x");
	assert_true(b.any.type == HTTP_JSON_ARRAY && b.any.n == 3);
	assert_int_equal(read_body("{\"seed\": -9223372036854775808}", &b, &why), 0);
	assert_true(b.seed == INT64_MIN);
	b = (struct body){ 0 };
	assert_int_equal(read_body("{\"size\": 2.0, \"top_p\": 1, \"\\u0073eed\": 0}", &b, &why), 0);
	assert_true(b.size == 2 && b.top_p == 1);
}

static void test_refused(void **state)
{
	refused("", "", HTTP_CODE_JSON, "byte 0");
	refused("[1]", "", HTTP_CODE_TYPE, "an array");
	refused("{\"size\": 1, \"size\": 1}", "size", HTTP_CODE_VALUE, "twice");
	refused("{\"size\": 1, \"size\": null}", "size", HTTP_CODE_VALUE, "twice");
	refused("{\"what\": null}", "what", HTTP_CODE_UNKNOWN, "what");
	refused("{\"fla\": true}", "fla", HTTP_CODE_UNKNOWN, "fla");
	refused("{\"flag\\u0000\": true}", "flag?", HTTP_CODE_UNKNOWN, "flag?");
	refused("{\"\": true}", "", HTTP_CODE_UNKNOWN, "unknown");
	refused("{\"flag\": 1}", "flag", HTTP_CODE_TYPE, "a boolean, it is a number");
	refused("{\"any\": 1, \"name\": 2}", "name", HTTP_CODE_TYPE, "a string");
	refused("{\"name\": \"\"}", "name", HTTP_CODE_VALUE, "1 to 4");
	refused("{\"name\": \"abcde\"}", "name", HTTP_CODE_VALUE, "1 to 4");
	refused("{\"name\": \"a\\u0000\"}", "name", HTTP_CODE_VALUE, "NUL");
	refused("{\"metadata\": 1}", "metadata", HTTP_CODE_TYPE, "metadata");
	refused("{\"label\": {}}", "label", HTTP_CODE_TYPE, "label");
	refused("{\"seed\": -9223372036854775809}", "seed", HTTP_CODE_VALUE, "-9223372036854775808..");
	refused("{\"seed\": 0.5}", "seed", HTTP_CODE_VALUE, "integer");
	refused("{\"tools\": [1]}", "tools", HTTP_CODE_UNSUPPORTED, "not supported");
	refused("{\"tool_choice\": \"auto\"}", "tool_choice", HTTP_CODE_UNSUPPORTED, "");
	refused("{\"store\": true}", "store", HTTP_CODE_UNSUPPORTED, "");
	refused("{\"grammar\": \"\"}", "grammar", HTTP_CODE_UNSUPPORTED, "");
	refused("{\"response_format\": {\"type\": \"json_object\"}}", "response_format", HTTP_CODE_UNSUPPORTED, "");
	refused("{\"response_format\": {\"type\": \"text\", \"x\": 1}}", "response_format", HTTP_CODE_UNSUPPORTED, "");
	refused("{\"response_format\": {}}", "response_format", HTTP_CODE_UNSUPPORTED, "");
}

/* What is in no number field's range, in each of them; the range is told. */
static void test_bad_numbers(void **state)
{
	static const char *const values[] = { "-1", "-1e300", "1e999", "-1e999", "9223372036854775808", "1e300",
					      "18446744073709551616" };
	static const char *const ranges[][2] = {
		{ "size", "1..4294967295" }, { "seed", "-9223372036854775808..9223372036854775807" },
		{ "top_p", "0..1" }, { "wait", "0.5..9" },
	};
	char text[128];

	for (size_t f = 0; f < ARRAY_SIZE(ranges); f++) {
		for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
			/* A seed may be negative. */
			if (f == 1 && i == 0)
				continue;
			snprintf(text, sizeof(text), "{\"%s\": %s}", ranges[f][0], values[i]);
			refused(text, ranges[f][0], HTTP_CODE_VALUE, ranges[f][1]);
		}
		snprintf(text, sizeof(text), "{\"%s\": NaN}", ranges[f][0]);
		refused(text, "", HTTP_CODE_JSON, "byte");
		snprintf(text, sizeof(text), "{\"%s\": \"1\"}", ranges[f][0]);
		refused(text, ranges[f][0], HTTP_CODE_TYPE, "it is a string");
	}
	refused("{\"size\": 0}", "size", HTTP_CODE_VALUE, "1..");
	refused("{\"size\": 1.5}", "size", HTTP_CODE_VALUE, "integer");
}

static void test_long_names(void **state)
{
	struct http_refusal why = HTTP_REFUSAL_NULL;
	struct body body = { 0 };
	char text[1200] = "{\"";

	for (int i = 0; i < 190; i++)
		strcat(text, i % 2 ? "\\u00e9" : "é");
	strcat(text, "\": 1}");
	assert_int_not_equal(read_body(text, &body, &why), 0);
	assert_string_equal(why.code, HTTP_CODE_UNKNOWN);
	assert_int_equal(strlen(why.param), 62);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_as_jansson), cmocka_unit_test(test_mutations), cmocka_unit_test(test_depth),
		cmocka_unit_test(test_numbers), cmocka_unit_test(test_fields), cmocka_unit_test(test_refused),
		cmocka_unit_test(test_bad_numbers), cmocka_unit_test(test_long_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
