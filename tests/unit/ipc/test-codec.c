/* SPDX-License-Identifier: Apache-2.0 */
/* Every message there and back, and bytes that another implementation wrote. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/codec.h"

/* Written with Python's msgpack 1.0.3: msgpack.packb([1, {"version": 2, ...}]). */
static const char hello_bytes[] =
	"\x92\x01\x84\xa7\x76\x65\x72\x73\x69\x6f\x6e\x05\xa6\x63\x6c\x69\x65\x6e\x74\xa7"
	"\x70\x79\x74\xc3\xa9\x73\x74\xa4\x72\x69\x6e\x67\xce\x00\x10\x00\x00\xa5\x61\x72"
	"\x65\x6e\x61\xce\x00\x40\x00\x00";
static const char generate_bytes[] =
	"\x92\x10\x89\xa2\x69\x64\x07\xa6\x70\x72\x6f\x6d\x70\x74\x92\x93\x00\x08\x05\x93"
	"\x01\x10\x04\xa1\x6e\x03\xab\x74\x65\x6d\x70\x65\x72\x61\x74\x75\x72\x65\xcb\x3f"
	"\xe0\x00\x00\x00\x00\x00\x00\xa4\x73\x74\x6f\x70\x92\xa1\x61\xa1\x0a\xa4\x73\x65"
	"\x65\x64\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xaa\x6c\x6f\x67\x69\x74\x5f\x62\x69"
	"\x61\x73\x91\x92\x05\xcb\xbf\xf8\x00\x00\x00\x00\x00\x00\xa8\x6c\x6f\x67\x70\x72"
	"\x6f\x62\x73\x02\xa3\x62\x6f\x73\xc2";
static const char error_bytes[] =
	"\x92\xcc\x90\x84\xa2\x69\x64\x09\xa4\x63\x6f\x64\x65\x02\xa5\x66\x69\x65\x6c\x64"
	"\xa1\x6e\xa7\x6d\x65\x73\x73\x61\x67\x65\xa2\x6e\x6f";
static const char wake_bytes[] = "\x92\xcc\x92\x80";

static struct msg *decode(const void *data, size_t n)
{
	struct codec_error error;
	struct msg *m = NULL;
	int r = codec_decode(&m, data, n, &error);

	if (r == CODEC_E_INVALID)
		fail_msg("refused: %s", error.text);
	assert_int_equal(r, 0);
	return m;
}

/* Encodes and decodes; the bytes of a second encoding must be the same. */
static struct msg *there_and_back(enum kvd_message id, const void *msg)
{
	struct codec_buf buf = CODEC_BUF_NULL, again = CODEC_BUF_NULL;
	struct msg *m;

	assert_int_equal(codec_encode(&buf, id, msg), 0);
	m = decode(buf.data, buf.n);
	assert_int_equal(m->id, id);
	assert_int_equal(codec_encode(&again, id, &m->hello), 0);
	assert_int_equal(again.n, buf.n);
	assert_memory_equal(again.data, buf.data, buf.n);
	codec_buf_deinit(&buf);
	codec_buf_deinit(&again);
	return m;
}

#define SAME(A, B, M) assert_true((A).M == (B).M)
#define SAME_STR(A, B, M) assert_string_equal((A).M, (B).M)

static void test_hello(void **state)
{
	struct msg_hello a = { .version = KVD_PROTOCOL_VERSION, .client = "kvctl", .ring = 1u << 16,
			       .arena = 65536 + 4096 };
	_cleanup_(msg_freep) struct msg *m = there_and_back(KVD_MSG_HELLO, &a);

	SAME(m->hello, a, version);
	SAME_STR(m->hello, a, client);
	SAME(m->hello, a, ring);
	SAME(m->hello, a, arena);
}

static void test_hello_defaults(void **state)
{
	struct msg_hello a = { .version = KVD_PROTOCOL_VERSION, .client = "x" };
	struct codec_buf buf = CODEC_BUF_NULL;
	struct msg *m;

	assert_int_equal(codec_encode_hello(&buf, &a), 0);
	m = decode(buf.data, buf.n);
	assert_int_equal(m->hello.ring, KVD_RING_DEFAULT);
	assert_int_equal(m->hello.arena, KVD_ARENA_DEFAULT);
	msg_free(m);
	codec_buf_deinit(&buf);
}

static void test_generate_prompt(void **state)
{
	static const struct msg_part parts[] = { { KVD_PART_TEXT, 3, 10 }, { KVD_PART_IDS, 16, 8 } };
	static const struct msg_bias bias[] = { { 0, -FLT_MAX }, { INT32_MAX, 1.5f } };
	static const char *const stop[] = { "\n\n", "ä", "\x01" };
	struct msg_generate a = {
		.id = UINT64_MAX, .model = "small", .prompt = parts, .n_prompt = 2, .special = true,
		.bos = false,
		.n = 7, .temperature = 0.7f, .top_k = 40, .top_p = 0.9f, .min_p = 0.1f,
		.repeat_penalty = 1.1f,
		.repeat_last_n = 99, .has_seed = true, .seed = UINT64_MAX - 1, .logit_bias = bias,
		.n_logit_bias = 2, .stop = stop, .n_stop = 3, .has_logprobs = true, .logprobs = 5,
		.ignore_eos = true, .progress = true, .has_prompt_logprobs = true, .prompt_logprobs = 256,
		.namespace = "group:staff", .cache_key = "k \xc3\xa9", .ttl_s = UINT32_MAX,
		.priority = KVD_PRIORITY_HIGH, .pin = true,
	};
	_cleanup_(msg_freep) struct msg *m = there_and_back(KVD_MSG_GENERATE, &a);
	const struct msg_generate *g = &m->generate;

	SAME(*g, a, id);
	SAME_STR(*g, a, model);
	SAME(*g, a, n_prompt);
	assert_memory_equal(g->prompt, parts, sizeof(parts));
	assert_int_equal(g->n_messages, 0);
	SAME(*g, a, special);
	SAME(*g, a, bos);
	SAME(*g, a, n);
	SAME(*g, a, temperature);
	SAME(*g, a, top_k);
	SAME(*g, a, top_p);
	SAME(*g, a, min_p);
	SAME(*g, a, repeat_penalty);
	SAME(*g, a, repeat_last_n);
	SAME(*g, a, has_seed);
	SAME(*g, a, seed);
	SAME(*g, a, n_logit_bias);
	assert_memory_equal(g->logit_bias, bias, sizeof(bias));
	SAME(*g, a, n_stop);
	for (int i = 0; i < 3; i++)
		assert_string_equal(g->stop[i], stop[i]);
	SAME(*g, a, has_logprobs);
	SAME(*g, a, logprobs);
	SAME(*g, a, ignore_eos);
	SAME(*g, a, progress);
	SAME(*g, a, has_prompt_logprobs);
	SAME(*g, a, prompt_logprobs);
	SAME_STR(*g, a, namespace);
	SAME_STR(*g, a, cache_key);
	SAME(*g, a, ttl_s);
	SAME(*g, a, priority);
	SAME(*g, a, pin);
}

static void test_generate_messages(void **state)
{
	static const struct msg_chat chat[] = {
		{ "system", KVD_PART_TEXT, 0, 0 }, { "user", KVD_PART_TEXT, 0, 5 },
		{ "assistant", KVD_PART_IDS, 8, 4 },
	};
	struct msg_generate a;
	struct msg *m;

	msg_generate_init(&a);
	a.id = 1;
	a.messages = chat;
	a.n_messages = 3;
	m = there_and_back(KVD_MSG_GENERATE, &a);
	assert_int_equal(m->generate.n_prompt, 0);
	assert_int_equal(m->generate.n_messages, 3);
	for (int i = 0; i < 3; i++) {
		SAME_STR(m->generate.messages[i], chat[i], role);
		SAME(m->generate.messages[i], chat[i], kind);
		SAME(m->generate.messages[i], chat[i], offset);
		SAME(m->generate.messages[i], chat[i], length);
	}
	msg_free(m);
}

/* What is left out is what client/kvd.h and PROTOCOL.md say. */
static void test_generate_defaults(void **state)
{
	static const uint8_t least[] = "\x92\x10\x82\xa2id\x01\xa6prompt\x91\x93\x00\x00\x01";
	struct msg *m = decode(least, sizeof(least) - 1);
	const struct msg_generate *g = &m->generate;

	assert_null(g->model);
	assert_false(g->special);
	assert_true(g->bos);
	assert_int_equal(g->n, 512);
	assert_true(g->temperature == 0.8f && g->top_p == 0.95f && g->min_p == 0.05f);
	assert_true(g->repeat_penalty == 1);
	assert_int_equal(g->top_k, 0);
	assert_int_equal(g->repeat_last_n, 64);
	assert_false(g->has_seed || g->has_logprobs || g->ignore_eos || g->progress);
	assert_int_equal(g->n_stop + g->n_logit_bias + g->n_messages, 0);
	assert_true(!g->namespace && !g->cache_key && !g->ttl_s && !g->pin);
	assert_int_equal(g->priority, KVD_PRIORITY_NORMAL);
	msg_free(m);
}

/* The largest message that the limits allow fits into one datagram. */
static void test_generate_largest(void **state)
{
	static struct msg_chat chat[KVD_PARTS_MAX];
	static struct msg_bias bias[KVD_LOGIT_BIAS_MAX];
	static char text[KVD_STOP_BYTES_MAX + 1], name[KVD_MODEL_NAME_MAX + 1], key[KVD_CACHE_KEY_MAX + 1];
	const char *stop[KVD_STOP_MAX];
	struct msg_generate a;

	memset(text, 's', KVD_STOP_BYTES_MAX);
	memset(name, 'm', KVD_MODEL_NAME_MAX);
	for (size_t i = 0; i < ARRAY_SIZE(chat); i++)
		chat[i] = (struct msg_chat){ "abcdefghijklmnopqrstuvwxyz_-0123", 1, KVD_ARENA_MAX - 4,
					     65536 };
	for (size_t i = 0; i < ARRAY_SIZE(bias); i++)
		bias[i] = (struct msg_bias){ INT32_MAX, 1e9f };
	for (size_t i = 0; i < ARRAY_SIZE(stop); i++)
		stop[i] = text;
	msg_generate_init(&a);
	a = (struct msg_generate){
		.id = UINT64_MAX, .model = name, .messages = chat, .n_messages = KVD_PARTS_MAX,
		.n = UINT32_MAX,
		.top_k = UINT32_MAX, .repeat_penalty = 1, .repeat_last_n = UINT32_MAX, .has_seed = true,
		.seed = UINT64_MAX, .logit_bias = bias, .n_logit_bias = KVD_LOGIT_BIAS_MAX, .stop = stop,
		.n_stop = KVD_STOP_MAX, .has_logprobs = true, .logprobs = KVD_LOGPROBS_MAX,
		.namespace = name, .cache_key = key, .ttl_s = UINT32_MAX, .priority = 2, .pin = true,
	};
	memset(key, 'k', KVD_CACHE_KEY_MAX);
	msg_free(there_and_back(KVD_MSG_GENERATE, &a));
}

static void test_small_requests(void **state)
{
	static const enum kvd_message ids[] = { KVD_MSG_CANCEL, KVD_MSG_STATUS, KVD_MSG_MODELS, KVD_MSG_PS };
	static const enum kvd_message empty[] = { KVD_MSG_ROOM, KVD_MSG_WAIT, KVD_MSG_WAKE };
	struct msg_cancel a = { .id = 0x123456789abcdef0u };

	for (size_t i = 0; i < ARRAY_SIZE(ids); i++) {
		struct msg *m = there_and_back(ids[i], &a);
		assert_true(m->cancel.id == a.id);
		msg_free(m);
	}
	for (size_t i = 0; i < ARRAY_SIZE(empty); i++)
		msg_free(there_and_back(empty[i], &(struct msg_room){ 0 }));
}

static void test_tokenize(void **state)
{
	struct msg_tokenize a = {
		.id = 3, .model = "m", .offset = 1, .length = 2, .special = true, .bos = true,
		.pieces = true, .out_offset = 4, .out_length = 400,
	};
	_cleanup_(msg_freep) struct msg *m = there_and_back(KVD_MSG_TOKENIZE, &a);

	SAME(m->tokenize, a, id);
	SAME_STR(m->tokenize, a, model);
	SAME(m->tokenize, a, offset);
	SAME(m->tokenize, a, length);
	SAME(m->tokenize, a, special);
	SAME(m->tokenize, a, bos);
	SAME(m->tokenize, a, pieces);
	SAME(m->tokenize, a, out_offset);
	SAME(m->tokenize, a, out_length);
}

static void test_load(void **state)
{
	struct msg_load l = { .id = 4, .name = "tiny-\xc3\xa9", .n_ctx = 77, .progress = true };
	struct msg_unload u = { .id = 5, .model = "tiny", .now = true };
	struct msg_loaded d = { .id = 6, .name = "tiny", .n_ctx = 64, .weight_bytes = UINT64_MAX };
	struct msg_loading p = { .id = 7, .percent = 100 };
	struct msg *m = there_and_back(KVD_MSG_LOAD, &l);

	SAME(m->load, l, id); SAME_STR(m->load, l, name); SAME(m->load, l, n_ctx); SAME(m->load, l, progress);
	msg_free(m);
	l.n_ctx = 0;
	m = there_and_back(KVD_MSG_LOAD, &l);
	assert_int_equal(m->load.n_ctx, 0);
	msg_free(m);
	m = there_and_back(KVD_MSG_UNLOAD, &u);
	SAME(m->unload, u, id); SAME_STR(m->unload, u, model); SAME(m->unload, u, now);
	msg_free(m);
	m = there_and_back(KVD_MSG_LOADED, &d);
	SAME(m->loaded, d, id); SAME_STR(m->loaded, d, name); SAME(m->loaded, d, n_ctx);
	SAME(m->loaded, d, weight_bytes);
	msg_free(m);
	m = there_and_back(KVD_MSG_LOADING, &p);
	SAME(m->loading, p, id); SAME(m->loading, p, percent);
	msg_free(m);
	m = there_and_back(KVD_MSG_UNLOADED, &(struct msg_unloaded){ .id = 8 });
	assert_int_equal(m->unloaded.id, 8);
	msg_free(m);
}

static void test_model_names(void **state)
{
	char name[KVD_MODEL_NAME_MAX + 2];

	assert_true(codec_model_name_valid("a"));
	assert_true(codec_model_name_valid("SmolLM2 135M \xc3\xa9.v2"));
	assert_false(codec_model_name_valid(""));
	assert_false(codec_model_name_valid("a/b"));
	assert_false(codec_model_name_valid("a\nb"));
	assert_false(codec_model_name_valid("\xc2\x9b"));
	assert_false(codec_model_name_valid("\xff"));
	memset(name, 'x', sizeof(name));
	name[KVD_MODEL_NAME_MAX + 1] = '\0';
	assert_false(codec_model_name_valid(name));
	name[KVD_MODEL_NAME_MAX] = '\0';
	assert_true(codec_model_name_valid(name));
}

static void test_small_replies(void **state)
{
	struct msg_welcome w = { KVD_PROTOCOL_VERSION, 77, KVD_RING_MIN, KVD_ARENA_MAX, "kvd 0.1.0", "loading" };
	struct msg_refused r = { KVD_CODE_QUOTA, "too many" };
	struct msg_error e = { 5, KVD_CODE_BAD_FIELD, "out_length", "ids do not fit", 1234 };
	struct msg_tokenized t = { 9, 12 };
	struct msg *m = there_and_back(KVD_MSG_WELCOME, &w);

	SAME(m->welcome, w, version);
	SAME(m->welcome, w, session);
	SAME(m->welcome, w, ring);
	SAME(m->welcome, w, arena);
	SAME_STR(m->welcome, w, server);
	SAME_STR(m->welcome, w, state);
	msg_free(m);
	m = there_and_back(KVD_MSG_REFUSED, &r);
	SAME(m->refused, r, code);
	SAME_STR(m->refused, r, message);
	msg_free(m);
	m = there_and_back(KVD_MSG_ERROR, &e);
	SAME(m->error, e, id);
	SAME(m->error, e, code);
	SAME_STR(m->error, e, field);
	SAME_STR(m->error, e, message);
	SAME(m->error, e, count);
	msg_free(m);
	e.id = e.count = 0;
	m = there_and_back(KVD_MSG_ERROR, &e);
	assert_true(m->error.id == 0 && m->error.count == 0);
	msg_free(m);
	m = there_and_back(KVD_MSG_TOKENIZED, &t);
	SAME(m->tokenized, t, id);
	SAME(m->tokenized, t, count);
	msg_free(m);
}

static void test_status_reply(void **state)
{
	struct msg_status_reply a = {
		.id = 1, .version = "0.1.0", .device = "cpu", .level = "avx2", .state = "ready", .pid = 2,
		.n_threads = 3, .n_models = 4, .n_sessions = 5, .n_running = 6, .n_queued = 7, .n_parked = 8,
		.uptime_ns = 9, .kv_bytes = 10, .kv_bytes_used = 11, .weight_bytes = 12, .prompt_tokens = 13,
		.generated_tokens = 14, .requests_done = 15, .requests_cancelled = 16,
		.preemptions = UINT64_MAX,
		.loading_percent = 100, .no_cache = true, .blocks_used = 17, .blocks_cached = 18, .blocks_free = 19,
		.cache_lookups = 20, .cache_hits = 21, .cached_tokens = UINT64_MAX, .cache_evicted = 22,
		.host_bytes = 23, .host_bytes_used = 24, .host_blocks = 25, .host_stored = 26, .host_restored = 27,
		.disk_bytes = 28, .disk_bytes_used = 29, .disk_blocks = 30, .disk_lookups = 31, .disk_hits = 32,
		.disk_written = 33, .disk_read = 34, .disk_evicted = 35, .disk_damaged = 36, .disk_errors = 37,
		.disk_trouble = "full", .kv_type = "q4", .open_bytes = 38,
	};
	_cleanup_(msg_freep) struct msg *m = there_and_back(KVD_MSG_STATUS_REPLY, &a);
	const struct msg_status_reply *s = &m->status_reply;

	SAME_STR(*s, a, version);
	SAME_STR(*s, a, device);
	SAME_STR(*s, a, level);
	SAME_STR(*s, a, state);
	SAME(*s, a, id); SAME(*s, a, pid); SAME(*s, a, n_threads); SAME(*s, a, n_models);
	SAME(*s, a, n_sessions); SAME(*s, a, n_running); SAME(*s, a, n_queued); SAME(*s, a, n_parked);
	SAME(*s, a, uptime_ns); SAME(*s, a, kv_bytes); SAME(*s, a, kv_bytes_used); SAME(*s, a, weight_bytes);
	SAME(*s, a, prompt_tokens); SAME(*s, a, generated_tokens); SAME(*s, a, requests_done);
	SAME(*s, a, requests_cancelled); SAME(*s, a, preemptions); SAME(*s, a, loading_percent);
	SAME(*s, a, blocks_used); SAME(*s, a, blocks_cached); SAME(*s, a, blocks_free);
	SAME(*s, a, cache_lookups); SAME(*s, a, cache_hits); SAME(*s, a, cached_tokens);
	SAME(*s, a, cache_evicted); SAME(*s, a, host_bytes); SAME(*s, a, host_bytes_used); SAME(*s, a, host_blocks);
	SAME(*s, a, host_stored); SAME(*s, a, host_restored);
	SAME(*s, a, disk_bytes); SAME(*s, a, disk_bytes_used); SAME(*s, a, disk_blocks); SAME(*s, a, disk_lookups);
	SAME(*s, a, disk_hits); SAME(*s, a, disk_written); SAME(*s, a, disk_read); SAME(*s, a, disk_evicted);
	SAME(*s, a, disk_damaged); SAME(*s, a, disk_errors);
	SAME_STR(*s, a, disk_trouble); SAME_STR(*s, a, kv_type); SAME(*s, a, open_bytes);
	SAME(*s, a, no_cache);
}

static void test_models_reply(void **state)
{
	static const struct msg_model models[] = {
		{ "a", "llama", "A", "ready", "chatml", 1, 2, 3, 4, 5, 6, 7, 8, "00ff", 100, 9, true, 32, 10, "kept" },
		{ "b", "", "", "loading", "", UINT32_MAX, 0, 0, 0, 0, UINT64_MAX, 0, 0, "", 0, UINT32_MAX, false,
		  UINT32_MAX, UINT64_MAX },
	};
	struct msg_models_reply a = { .id = 4, .models = models, .n_models = 2 };
	_cleanup_(msg_freep) struct msg *m = there_and_back(KVD_MSG_MODELS_REPLY, &a);

	SAME(m->models_reply, a, id);
	assert_int_equal(m->models_reply.n_models, 2);
	for (int i = 0; i < 2; i++) {
		const struct msg_model *x = &m->models_reply.models[i], *y = &models[i];

		SAME_STR(*x, *y, name); SAME_STR(*x, *y, arch); SAME_STR(*x, *y, title);
		SAME_STR(*x, *y, state); SAME_STR(*x, *y, chat_template); SAME_STR(*x, *y, hash);
		SAME(*x, *y, n_ctx); SAME(*x, *y, n_ctx_train); SAME(*x, *y, n_vocab); SAME(*x, *y, n_layers);
		SAME(*x, *y, n_embd); SAME(*x, *y, n_params); SAME(*x, *y, file_bytes);
		SAME(*x, *y, weight_bytes); SAME(*x, *y, percent); SAME(*x, *y, uid);
		SAME(*x, *y, is_default); SAME(*x, *y, block_tokens); SAME(*x, *y, block_bytes);
		assert_true(!x->block_tokens_by == !y->block_tokens_by);
		if (y->block_tokens_by)
			SAME_STR(*x, *y, block_tokens_by);
	}
}

static void test_ps_reply(void **state)
{
	static char client[KVD_CLIENT_NAME_MAX + 1], phase[KVD_PHASE_MAX + 1], model[KVD_MODEL_NAME_MAX + 1];
	static struct msg_process p[KVD_PS_MAX];
	struct msg_ps_reply a = { .id = UINT64_MAX, .processes = p, .n_processes = KVD_PS_MAX,
				  .truncated = true };
	struct codec_buf buf = CODEC_BUF_NULL;
	struct msg *m;

	memset(client, 'c', KVD_CLIENT_NAME_MAX);
	memset(phase, 'p', KVD_PHASE_MAX);
	memset(model, 'm', KVD_MODEL_NAME_MAX);
	for (uint32_t i = 0; i < KVD_PS_MAX; i++)
		p[i] = (struct msg_process){
			UINT64_MAX - i, UINT64_MAX - 1, UINT32_MAX, UINT32_MAX - i, client, phase, model,
			UINT32_MAX, UINT32_MAX - 2, UINT32_MAX - 3, UINT32_MAX - 4, UINT64_MAX - 5,
		};
	m = there_and_back(KVD_MSG_PS_REPLY, &a);
	assert_true(m->ps_reply.truncated);
	assert_int_equal(m->ps_reply.n_processes, KVD_PS_MAX);
	for (uint32_t i = 0; i < KVD_PS_MAX; i++) {
		const struct msg_process *x = &m->ps_reply.processes[i], *y = &p[i];

		SAME(*x, *y, session); SAME(*x, *y, request); SAME(*x, *y, uid); SAME(*x, *y, pid);
		SAME_STR(*x, *y, client); SAME_STR(*x, *y, phase); SAME_STR(*x, *y, model);
		SAME(*x, *y, prompt_tokens); SAME(*x, *y, computed_tokens); SAME(*x, *y, generated_tokens);
		SAME(*x, *y, blocks); SAME(*x, *y, age_ns);
	}
	msg_free(m);
	a.n_processes = 0;
	m = there_and_back(KVD_MSG_PS_REPLY, &a);
	assert_int_equal(m->ps_reply.n_processes, 0);
	msg_free(m);
	a.n_processes = KVD_PS_MAX + 1;
	assert_int_equal(codec_encode_ps_reply(&buf, &a), -EINVAL);
	codec_buf_deinit(&buf);
}

static void test_cache_questions(void **state)
{
	struct msg_cache_ls l = { .id = 3, .model = "m", .namespace = "uid:1/k", .after = UINT64_MAX };
	struct msg_cache_show s = { .id = 4, .model = "m", .entry = UINT64_MAX };
	struct msg_cache_unpin u = { .id = 5, .entry = 6, .all = true };
	struct msg_cache_drop d = { .id = 6, .entry = 7, .chain = true };
	struct msg_cache_wipe w = { .id = 7, .namespace = "public" };
	struct msg *m = there_and_back(KVD_MSG_CACHE_LS, &l);

	SAME(m->cache_ls, l, id); SAME_STR(m->cache_ls, l, model); SAME_STR(m->cache_ls, l, namespace);
	SAME(m->cache_ls, l, after);
	msg_free(m);
	m = there_and_back(KVD_MSG_CACHE_SHOW, &s);
	SAME(m->cache_show, s, id); SAME_STR(m->cache_show, s, model); SAME(m->cache_show, s, entry);
	msg_free(m);
	m = there_and_back(KVD_MSG_CACHE_PIN, &(struct msg_cache_pin){ .id = 8, .entry = 9 });
	assert_true(m->cache_pin.id == 8 && m->cache_pin.entry == 9 && !m->cache_pin.model);
	msg_free(m);
	m = there_and_back(KVD_MSG_CACHE_UNPIN, &u);
	SAME(m->cache_unpin, u, id); SAME(m->cache_unpin, u, entry); SAME(m->cache_unpin, u, all);
	msg_free(m);
	m = there_and_back(KVD_MSG_CACHE_DROP, &d);
	SAME(m->cache_drop, d, id); SAME(m->cache_drop, d, entry); SAME(m->cache_drop, d, chain);
	msg_free(m);
	m = there_and_back(KVD_MSG_CACHE_WIPE, &w);
	SAME(m->cache_wipe, w, id); SAME_STR(m->cache_wipe, w, namespace); SAME(m->cache_wipe, w, all);
	assert_null(m->cache_wipe.model);
	msg_free(m);
	w = (struct msg_cache_wipe){ .id = 7, .all = true };
	m = there_and_back(KVD_MSG_CACHE_WIPE, &w);
	assert_true(m->cache_wipe.all && !m->cache_wipe.namespace);
	msg_free(m);
}

static void test_cache_shared(void **state)
{
	struct msg_cache_export e = { .id = 3, .model = "m", .namespace = "own/k", .progress = true };
	struct msg_cache_import i = { .id = 4, .cache_key = "k", .progress = true };
	struct msg_cache_verify v = { .id = 5, .namespace = "public", .count = UINT32_MAX };
	struct msg_cache_shared s = { .id = 6, .n_entries = 1, .n_tokens = 2, .bytes = UINT64_MAX, .n_there = 3,
				      .n_left = 4, .code = KVD_CODE_LAST, .message = "cut" };
	struct msg_cache_verified d = { .id = 7, .n_entries = 1, .n_tokens = 2, .bytes = 3, .n_differ = 4,
					.compute_ns = UINT64_MAX, .message = "" };
	struct msg_cache_progress p = { .id = 8, .done = UINT64_MAX, .total = 9 };
	struct msg *m = there_and_back(KVD_MSG_CACHE_EXPORT, &e);

	SAME(m->cache_export, e, id); SAME_STR(m->cache_export, e, model); SAME_STR(m->cache_export, e, namespace);
	SAME(m->cache_export, e, progress);
	msg_free(m);
	m = there_and_back(KVD_MSG_CACHE_IMPORT, &i);
	SAME(m->cache_import, i, id); SAME_STR(m->cache_import, i, cache_key); SAME(m->cache_import, i, progress);
	assert_null(m->cache_import.model);
	msg_free(m);
	m = there_and_back(KVD_MSG_CACHE_VERIFY, &v);
	SAME(m->cache_verify, v, id); SAME_STR(m->cache_verify, v, namespace); SAME(m->cache_verify, v, count);
	msg_free(m);
	m = there_and_back(KVD_MSG_CACHE_SHARED, &s);
	SAME(m->cache_shared, s, id); SAME(m->cache_shared, s, n_entries); SAME(m->cache_shared, s, n_tokens);
	SAME(m->cache_shared, s, bytes); SAME(m->cache_shared, s, n_there); SAME(m->cache_shared, s, n_left);
	SAME(m->cache_shared, s, code); SAME_STR(m->cache_shared, s, message);
	msg_free(m);
	m = there_and_back(KVD_MSG_CACHE_VERIFIED, &d);
	SAME(m->cache_verified, d, id); SAME(m->cache_verified, d, n_entries); SAME(m->cache_verified, d, n_tokens);
	SAME(m->cache_verified, d, bytes); SAME(m->cache_verified, d, n_differ);
	SAME(m->cache_verified, d, compute_ns); SAME_STR(m->cache_verified, d, message);
	msg_free(m);
	m = there_and_back(KVD_MSG_CACHE_PROGRESS, &p);
	SAME(m->cache_progress, p, id); SAME(m->cache_progress, p, done); SAME(m->cache_progress, p, total);
	msg_free(m);
}

static void same_entry(const struct msg_cache_entry *x, const struct msg_cache_entry *y)
{
	SAME(*x, *y, entry); SAME(*x, *y, parent); SAME_STR(*x, *y, namespace); SAME(*x, *y, uid);
	SAME(*x, *y, n_tokens); SAME(*x, *y, first); SAME(*x, *y, joined); SAME(*x, *y, bytes);
	SAME_STR(*x, *y, tier); SAME(*x, *y, age_ns); SAME(*x, *y, idle_ns); SAME(*x, *y, ttl_ns);
	SAME(*x, *y, hits); SAME(*x, *y, n_users); SAME(*x, *y, n_pins); SAME(*x, *y, priority);
	SAME(*x, *y, pinned); SAME_STR(*x, *y, words);
}

/* The largest page fits into one datagram. */
static void test_cache_largest(void **state)
{
	static struct msg_cache_entry entries[KVD_CACHE_LS_MAX + 1];
	static char name[KVD_NAMESPACE_MAX + 1], words[KVD_CACHE_WORDS_MAX + 1], word[KVD_WORD_MAX + 1];
	static char text[KVD_CACHE_TEXT_MAX + 1];
	static uint32_t uids[KVD_CACHE_PINS_MAX];
	struct codec_buf buf = CODEC_BUF_NULL;
	struct msg_cache_ls_reply a = { .id = UINT64_MAX, .model = name, .block_tokens = 16, .entries = entries,
					.n_entries = KVD_CACHE_LS_MAX, .next = UINT64_MAX };
	struct msg_cache_show_reply s = { .id = 1, .model = name, .entries = entries, .n_entries = 1, .chain = 4,
					  .n_path = 5, .n_below = 6, .pinned_by = uids,
					  .n_pinned_by = KVD_CACHE_PINS_MAX, .text = text, .own = text };
	struct msg *m;

	memset(name, 'n', KVD_NAMESPACE_MAX);
	memset(words, 'w', KVD_CACHE_WORDS_MAX);
	memset(word, 't', KVD_WORD_MAX);
	memset(text, 'x', KVD_CACHE_TEXT_MAX);
	memset(uids, 0xff, sizeof(uids));
	for (size_t i = 0; i < ARRAY_SIZE(entries); i++)
		entries[i] = (struct msg_cache_entry){
			UINT64_MAX - i, UINT64_MAX, name, UINT32_MAX, UINT32_MAX, UINT32_MAX, true, UINT64_MAX, word,
			UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, 2, true, words,
		};
	m = there_and_back(KVD_MSG_CACHE_LS_REPLY, &a);
	SAME(m->cache_ls_reply, a, id); SAME_STR(m->cache_ls_reply, a, model); SAME(m->cache_ls_reply, a, next);
	SAME(m->cache_ls_reply, a, block_tokens); SAME(m->cache_ls_reply, a, n_entries);
	for (size_t i = 0; i < KVD_CACHE_LS_MAX; i++)
		same_entry(&m->cache_ls_reply.entries[i], &entries[i]);
	msg_free(m);
	a.n_entries = KVD_CACHE_LS_MAX + 1;
	assert_int_equal(codec_encode_cache_ls_reply(&buf, &a), -EINVAL);
	m = there_and_back(KVD_MSG_CACHE_SHOW_REPLY, &s);
	same_entry(&m->cache_show_reply.entries[0], &entries[0]);
	SAME(m->cache_show_reply, s, chain); SAME(m->cache_show_reply, s, n_path);
	SAME(m->cache_show_reply, s, n_below); SAME(m->cache_show_reply, s, n_pinned_by);
	SAME_STR(m->cache_show_reply, s, text); SAME_STR(m->cache_show_reply, s, own);
	assert_memory_equal(m->cache_show_reply.pinned_by, uids, sizeof(uids));
	msg_free(m);
	s.n_entries = 2;
	assert_int_equal(codec_encode_cache_show_reply(&buf, &s), -EINVAL);
	m = there_and_back(KVD_MSG_CACHE_DONE, &(struct msg_cache_done){ 1, 2, 3, UINT64_MAX });
	assert_true(m->cache_done.n_entries == 2 && m->cache_done.n_tokens == 3 && m->cache_done.bytes == UINT64_MAX);
	msg_free(m);
	codec_buf_deinit(&buf);
}

static void test_foreign_bytes(void **state)
{
	struct msg *m = decode(hello_bytes, sizeof(hello_bytes) - 1);

	assert_int_equal(m->id, KVD_MSG_HELLO);
	assert_string_equal(m->hello.client, "pyt\xc3\xa9st");
	assert_int_equal(m->hello.ring, 1 << 20);
	assert_int_equal(m->hello.arena, 4 << 20);
	msg_free(m);

	m = decode(generate_bytes, sizeof(generate_bytes) - 1);
	assert_int_equal(m->id, KVD_MSG_GENERATE);
	assert_int_equal(m->generate.id, 7);
	assert_int_equal(m->generate.n_prompt, 2);
	assert_memory_equal(m->generate.prompt, ((struct msg_part[]){ { 0, 8, 5 }, { 1, 16, 4 } }), 24);
	assert_int_equal(m->generate.n, 3);
	assert_true(m->generate.temperature == 0.5f);
	assert_int_equal(m->generate.n_stop, 2);
	assert_string_equal(m->generate.stop[1], "\n");
	assert_true(m->generate.has_seed && m->generate.seed == UINT64_MAX);
	assert_true(m->generate.logit_bias[0].id == 5 && m->generate.logit_bias[0].bias == -1.5f);
	assert_true(m->generate.has_logprobs && m->generate.logprobs == 2);
	assert_false(m->generate.bos);
	msg_free(m);

	m = decode(error_bytes, sizeof(error_bytes) - 1);
	assert_int_equal(m->id, KVD_MSG_ERROR);
	assert_int_equal(m->error.id, 9);
	assert_int_equal(m->error.code, 2);
	assert_string_equal(m->error.message, "no");
	msg_free(m);
}

/* Our own bytes for the same messages are the ones that it would write. */
static void test_own_bytes(void **state)
{
	struct codec_buf buf = CODEC_BUF_NULL;
	struct msg_error e = { 9, 2, "n", "no", 0 };
	struct msg_hello h = { KVD_PROTOCOL_VERSION, "pyt\xc3\xa9st", 1 << 20, 4 << 20 };

	assert_int_equal(codec_encode_wake(&buf, &(struct msg_wake){ 0 }), 0);
	assert_int_equal(buf.n, sizeof(wake_bytes) - 1);
	assert_memory_equal(buf.data, wake_bytes, buf.n);
	assert_int_equal(codec_encode_error(&buf, &e), 0);
	assert_int_equal(buf.n, sizeof(error_bytes) - 1);
	assert_memory_equal(buf.data, error_bytes, buf.n);
	assert_int_equal(codec_encode_hello(&buf, &h), 0);
	assert_int_equal(buf.n, sizeof(hello_bytes) - 1);
	assert_memory_equal(buf.data, hello_bytes, buf.n);
	codec_buf_deinit(&buf);
}

/* Strings of the daemon's messages are made to fit, whatever they hold. */
static void test_cleaning(void **state)
{
	static const struct { const char *in, *out; } cases[] = {
		{ "plain", "plain" },
		{ "\xff", "\xef\xbf\xbd" },
		{ "a\nb\x1b[2Jc\x7f", "a\xef\xbf\xbd""b\xef\xbf\xbd[2Jc\xef\xbf\xbd" },
		{ "\xc2\x9b", "\xef\xbf\xbd" },
		{ "x\xe2\x82", "x\xef\xbf\xbd" },
		{ "\xed\xa0\x80z", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz" },
		{ NULL, "" },
	};
	char text[KVD_ERROR_TEXT_MAX + 8];
	struct msg_refused a = { KVD_CODE_INTERNAL, NULL };
	struct msg *m;

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		a.message = cases[i].in;
		m = there_and_back(KVD_MSG_REFUSED, &a);
		assert_string_equal(m->refused.message, cases[i].out);
		msg_free(m);
	}
	/* Cut between code points: 255 bytes and one of two bytes. */
	memset(text, 'a', sizeof(text));
	memcpy(text + KVD_ERROR_TEXT_MAX - 1, "\xc3\xa9", 3);
	a.message = text;
	m = there_and_back(KVD_MSG_REFUSED, &a);
	assert_int_equal(strlen(m->refused.message), KVD_ERROR_TEXT_MAX - 1);
	msg_free(m);
}

static void test_encoder_refuses(void **state)
{
	static const struct msg_part part = { 0, 0, 1 };
	static const char *const stops[] = { "" };
	struct codec_buf buf = CODEC_BUF_NULL;
	struct msg_generate good, g;
	struct msg_hello h = { KVD_PROTOCOL_VERSION, "x", 65537, 0 };

	assert_int_equal(codec_encode(&buf, 0x7f, &h), -EINVAL);
	assert_int_equal(codec_encode_hello(&buf, &h), -EINVAL);
	h = (struct msg_hello){ KVD_PROTOCOL_VERSION, NULL, 0, 0 };
	assert_int_equal(codec_encode_hello(&buf, &h), -EINVAL);
	assert_int_equal(buf.n, 0);

	msg_generate_init(&good);
	good.id = 1;
	good.prompt = &part;
	good.n_prompt = 1;
	assert_int_equal(codec_encode_generate(&buf, &good), 0);
	assert_true(buf.n > 0);
#define REFUSED(CHANGE) do { \
		g = good; \
		g.CHANGE; \
		assert_int_equal(codec_encode_generate(&buf, &g), -EINVAL); \
		assert_int_equal(buf.n, 0); \
	} while (0)
	REFUSED(id = 0);
	REFUSED(n_prompt = 0);
	REFUSED(temperature = NAN);
	REFUSED(temperature = -1);
	REFUSED(top_p = INFINITY);
	REFUSED(repeat_penalty = 0);
	REFUSED(model = "");
	REFUSED(model = "a\nb");
	REFUSED(model = "\xff");
	g = good;
	g.stop = stops;
	g.n_stop = 1;
	assert_int_equal(codec_encode_generate(&buf, &g), -EINVAL);
	codec_buf_deinit(&buf);
	codec_buf_deinit(&buf);
}

static void test_names(void **state)
{
	assert_string_equal(codec_name(KVD_MSG_GENERATE), "generate");
	assert_string_equal(codec_name(KVD_MSG_PS_REPLY), "ps_reply");
	assert_string_equal(codec_name((enum kvd_message)0x7f), "unknown");
	assert_true(codec_from_client(KVD_MSG_WAIT));
	assert_false(codec_from_client(KVD_MSG_WAKE));
	assert_false(codec_from_client((enum kvd_message)0x7f));
	msg_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hello),
		cmocka_unit_test(test_hello_defaults),
		cmocka_unit_test(test_generate_prompt),
		cmocka_unit_test(test_generate_messages),
		cmocka_unit_test(test_generate_defaults),
		cmocka_unit_test(test_generate_largest),
		cmocka_unit_test(test_small_requests),
		cmocka_unit_test(test_tokenize),
		cmocka_unit_test(test_load),
		cmocka_unit_test(test_model_names),
		cmocka_unit_test(test_small_replies),
		cmocka_unit_test(test_status_reply),
		cmocka_unit_test(test_models_reply),
		cmocka_unit_test(test_ps_reply),
		cmocka_unit_test(test_cache_questions),
		cmocka_unit_test(test_cache_shared),
		cmocka_unit_test(test_cache_largest),
		cmocka_unit_test(test_foreign_bytes),
		cmocka_unit_test(test_own_bytes),
		cmocka_unit_test(test_cleaning),
		cmocka_unit_test(test_encoder_refuses),
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
