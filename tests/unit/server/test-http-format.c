/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of replies: jansson reads what was put in; where tokens begin in the text is counted on the whole text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "daemon/server/http-format.h"
#include "ipc/base/checked.h"
#include "ipc/base/utf8.h"

/* The character that byte i of the text belongs to, or begins. */
static uint64_t character_at(const uint8_t *text, size_t n, size_t i)
{
	uint64_t count = 0;

	for (size_t at = 0; at < n;) {
		int k = utf8_scan(text + at, n - at);
		size_t end = at + (size_t)(k > 0 ? k : k < 0 ? -k : (int)(n - at));

		if (i < end)
			return count;
		count++;
		at = end;
	}
	return count;
}

static void test_places(void **state)
{
	static const uint8_t alphabet[] = {
		'a', 'b', 0xc3, 0xa9, 0xe2, 0x82, 0xac, 0xf0, 0x9f, 0x98, 0x80, 0xff, 0xed, 0xa0,
	};
	uint64_t random = 1;
	uint8_t text[40];

	for (unsigned round = 0; round < 50000; round++) {
		struct http_place p = { .n_characters = 0 };
		size_t n = sizeof(text), at = 0;

		for (size_t i = 0; i < n; i++) {
			random = random * 6364136223846793005u + 1442695040888963407u;
			text[i] = alphabet[(random >> 33) % sizeof(alphabet)];
		}
		while (at < n) {
			size_t k;
			uint64_t got;

			random = random * 6364136223846793005u + 1442695040888963407u;
			k = MIN((size_t)(random >> 40) % 6, n - at);
			got = http_place_token(&p, text + at, k);
			if (k)
				assert_int_equal(got, character_at(text, n, at));
			at += k;
		}
	}
}

static const struct sink_alternative tops[] = {
	{ 1, -0.5f, (const uint8_t *)"a\"", 2 },
	{ 2, -1.5f, (const uint8_t *)"\xe2\x82", 2 },
	{ 3, -2.5f, (const uint8_t *)"a\"", 2 },
	{ 4, -INFINITY, (const uint8_t *)"z", 1 },
};

static json_t *choice_of(bool is_chat, bool is_chunk, const struct http_choice_text *text,
			 const struct http_usage *usage)
{
	struct http_head head = { .is_chat = is_chat, .is_chunk = is_chunk, .id = "id-1", .model = "m\"x" };
	struct http_writer w = { 0 };
	json_t *v;

	http_put_head(&w, &head);
	http_put_choice(&w, &head, text);
	http_put_tail(&w, usage, true);
	assert_false(w.failed);
	v = json_loadb(w.data, w.n, JSON_REJECT_DUPLICATES, NULL);
	assert_non_null(v);
	assert_string_equal(json_string_value(json_object_get(v, "model")), "m\"x");
	http_writer_deinit(&w);
	return v;
}

static void test_chat(void **state)
{
	const struct http_writer ids = { .data = (char []){ "1,22" }, .n = 4 };
	struct http_logprobs l = { .begun = false };
	json_t *v, *c, *t;

	for (int i = 0; i < 2; i++)
		http_logprobs_add(&l, true, &(struct http_token){
			9, -0.25f, (const uint8_t *)"\xac\n", 2, tops, 4, true, 0 });
	v = choice_of(true, false, &(struct http_choice_text){
		.index = 3, .bytes = (const uint8_t *)"h\n\xff", .n_bytes = 3, .logprobs = &l, .ids = &ids,
		.finish = KVD_FINISH_STOP_STRING }, NULL);
	assert_string_equal(json_string_value(json_object_get(v, "object")), "chat.completion");
	assert_true(json_is_null(json_object_get(v, "usage")));
	c = json_array_get(json_object_get(v, "choices"), 0);
	assert_int_equal(json_integer_value(json_object_get(c, "index")), 3);
	assert_string_equal(json_string_value(json_object_get(c, "finish_reason")), "stop");
	t = json_object_get(json_object_get(c, "message"), "content");
	assert_string_equal(json_string_value(t), "h\n\xef\xbf\xbd");
	t = json_object_get(json_object_get(c, "message"), "token_ids");
	assert_int_equal(json_integer_value(json_array_get(t, 1)), 22);
	c = json_object_get(json_object_get(c, "logprobs"), "content");
	assert_int_equal(json_array_size(c), 2);
	t = json_array_get(c, 1);
	assert_true(json_real_value(json_object_get(t, "logprob")) == -0.25);
	assert_int_equal(json_integer_value(json_array_get(json_object_get(t, "bytes"), 0)), 0xac);
	assert_int_equal(json_array_size(json_object_get(t, "top_logprobs")), 4);
	json_decref(v);

	http_logprobs_clear(&l);
	http_logprobs_add(&l, true, &(struct http_token){ 9, -1, (const uint8_t *)"x", 1, NULL, 0, false, 0 });
	v = choice_of(true, true, &(struct http_choice_text){ .index = 1, .is_role = true, .logprobs = &l }, NULL);
	assert_string_equal(json_string_value(json_object_get(v, "object")), "chat.completion.chunk");
	c = json_array_get(json_object_get(v, "choices"), 0);
	assert_true(json_is_null(json_object_get(c, "finish_reason")));
	assert_string_equal(json_string_value(json_object_get(json_object_get(c, "delta"), "role")), "assistant");
	assert_int_equal(json_array_size(json_object_get(json_object_get(c, "logprobs"), "content")), 1);
	json_decref(v);
	v = choice_of(true, true, &(struct http_choice_text){ .is_last = true, .finish = KVD_FINISH_LENGTH }, NULL);
	c = json_array_get(json_object_get(v, "choices"), 0);
	assert_int_equal(json_object_size(json_object_get(c, "delta")), 0);
	assert_string_equal(json_string_value(json_object_get(c, "finish_reason")), "length");
	json_decref(v);
	http_logprobs_deinit(&l);
}

/* Names of alternatives: each once, and the chosen token among them. */
static void test_completion(void **state)
{
	const struct sink_event usage_event = { .type = SINK_USAGE, .usage = {
		.prompt_tokens = 10, .cached_tokens = 4, .generated_tokens = 3, .miss = SINK_MISS_DIFFERS,
		.miss_token = 17, .miss_bytes = (const uint8_t *)"\"", .n_miss_bytes = 1 } };
	struct http_logprobs l = { .begun = false };
	struct http_usage u = { .any = false };
	json_t *v, *c, *t;

	http_logprobs_add(&l, false, &(struct http_token){ 9, NAN, (const uint8_t *)"h", 1, NULL, 0, true, 0 });
	http_logprobs_add(&l, false, &(struct http_token){
		9, -7, (const uint8_t *)"\xe2\x82\x28", 3, tops, 4, true, 1 });
	http_logprobs_add(&l, false, &(struct http_token){ 1, -0.5f, (const uint8_t *)"a\"", 2, tops, 1, true, 2 });
	for (int i = 0; i < 3; i++)
		http_usage_add(&u, &usage_event, i != 1);
	v = choice_of(false, false, &(struct http_choice_text){ .logprobs = &l, .finish = KVD_FINISH_STOP }, &u);
	assert_string_equal(json_string_value(json_object_get(v, "object")), "text_completion");
	c = json_object_get(json_array_get(json_object_get(v, "choices"), 0), "logprobs");
	t = json_array_get(json_object_get(c, "tokens"), 1);
	assert_string_equal(json_string_value(t), "bytes:\\xe2\\x82\\x28");
	assert_true(json_is_null(json_array_get(json_object_get(c, "token_logprobs"), 0)));
	assert_true(json_is_null(json_array_get(json_object_get(c, "top_logprobs"), 0)));
	t = json_array_get(json_object_get(c, "top_logprobs"), 1);
	assert_int_equal(json_object_size(t), 4);
	assert_true(json_real_value(json_object_get(t, "a\"")) == -0.5);
	assert_true(json_number_value(json_object_get(t, "bytes:\\xe2\\x82\\x28")) == -7);
	assert_true(json_real_value(json_object_get(t, "z")) == -9999);
	assert_int_equal(json_object_size(json_array_get(json_object_get(c, "top_logprobs"), 2)), 1);
	assert_int_equal(json_integer_value(json_array_get(json_object_get(c, "text_offset"), 2)), 2);
	c = json_object_get(v, "usage");
	assert_int_equal(json_integer_value(json_object_get(c, "prompt_tokens")), 20);
	assert_int_equal(json_integer_value(json_object_get(c, "completion_tokens")), 9);
	assert_int_equal(json_integer_value(json_object_get(c, "total_tokens")), 29);
	t = json_object_get(json_object_get(c, "prompt_tokens_details"), "cached_tokens");
	assert_int_equal(json_integer_value(t), 8);
	assert_string_equal(json_string_value(json_object_get(json_object_get(c, "kvd"), "miss")), "differs");
	assert_string_equal(json_string_value(json_object_get(json_object_get(c, "kvd"), "miss_text")), "\"");
	json_decref(v);
	http_logprobs_deinit(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_places),
		cmocka_unit_test(test_chat),
		cmocka_unit_test(test_completion),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
