/* SPDX-License-Identifier: Apache-2.0 */
/* Questions: every member arrives, and an answer that can't be true is an error. */
#include "tests/unit/client/fake-daemon.h"

static void answer_all(struct fake *f)
{
	const struct msg_model models[2] = {
		{ "tiny", "llama", "A tiny model", "ready", "chatml", 1, 2, 3, 4, 5, 6, 7, 8, "00ff", 100, 9, true },
		{ "b", "", "", "loading", "none", 0, 0, 0, 0, 0, 0, 0, 0, "", 10, 0, false },
	};
	const struct msg_process processes[1] = {
		{ 1ull << 40, 2, 3, 4, "editor", "decode", "tiny", 5, 6, 7, 8, 1ull << 50 },
	};

	FAKE_EXPECT(f, fake_greet(f));
	while (fake_receive(f)) {
		uint64_t id = f->msg->status.id;
		switch (f->msg->id) {
		case KVD_MSG_STATUS:
			fake_send(f, KVD_MSG_STATUS_REPLY, &(struct msg_status_reply){
				id, "0.1.0", "cpu", "avx2", "ready", 1, 2, 3, 4, 5, 6, 7, 8, 1ull << 41, 10,
				11, 12,
				13, 14, 15, 16, 17, true, .kv_type = "q8", .open_bytes = 18 });
			break;
		case KVD_MSG_MODELS:
			fake_send(f, KVD_MSG_MODELS_REPLY, &(struct msg_models_reply){ id, models, 2 });
			break;
		case KVD_MSG_PS:
			fake_send(f, KVD_MSG_PS_REPLY, &(struct msg_ps_reply){ id, processes, 1, false });
			break;
		default:
			f->failed = "another question";
		}
	}
}

static void every_member(void **state)
{
	struct kvd_process *processes;
	struct kvd_model *models;
	struct kvd_status s;
	struct fake f;
	size_t n;

	fake_start(&f, answer_all, NULL);
	struct kvd_client *c = fake_connect(&f, 0, 0);
	assert_int_equal(kvd_status(c, &s), 0);
	assert_string_equal(s.version, "0.1.0");
	assert_string_equal(s.device, "cpu");
	assert_string_equal(s.level, "avx2");
	assert_string_equal(s.state, "ready");
	assert_true(s.pid == 1 && s.n_threads == 2 && s.n_models == 3 && s.n_sessions == 4 &&
		    s.n_running == 5);
	assert_true(s.n_queued == 6 && s.n_parked == 7 && s.uptime_ns == 8 && s.kv_bytes == 1ull << 41);
	assert_true(s.kv_bytes_used == 10 && s.weight_bytes == 11 && s.prompt_tokens == 12);
	assert_true(s.generated_tokens == 13 && s.requests_done == 14 && s.requests_cancelled == 15);
	assert_string_equal(s.kv_type, "q8");
	assert_true(s.open_bytes == 18);
	assert_true(s.preemptions == 16 && s.loading_percent == 17 && s.no_cache == 1);

	assert_int_equal(kvd_models(c, &models, &n), 0);
	assert_int_equal(n, 2);
	assert_string_equal(models[0].name, "tiny");
	assert_string_equal(models[0].arch, "llama");
	assert_string_equal(models[0].title, "A tiny model");
	assert_string_equal(models[0].state, "ready");
	assert_string_equal(models[0].chat_template, "chatml");
	assert_string_equal(models[0].hash, "00ff");
	assert_true(models[0].n_ctx == 1 && models[0].n_ctx_train == 2 && models[0].n_vocab == 3);
	assert_true(models[0].n_layers == 4 && models[0].n_embd == 5 && models[0].n_params == 6);
	assert_true(models[0].file_bytes == 7 && models[0].weight_bytes == 8);
	assert_true(models[0].percent == 100 && models[0].uid == 9 && models[0].is_default == 1);
	assert_string_equal(models[1].state, "loading");
	assert_true(models[1].percent == 10 && models[1].uid == 0 && models[1].is_default == 0);
	free(models);

	assert_int_equal(kvd_ps(c, &processes, &n), 0);
	assert_int_equal(n, 1);
	assert_true(processes->session == 1ull << 40 && processes->request == 2 && processes->uid == 3);
	assert_true(processes->pid == 4 && processes->prompt_tokens == 5 && processes->computed_tokens == 6);
	assert_true(processes->generated_tokens == 7 && processes->blocks == 8 &&
		    processes->age_ns == 1ull << 50);
	assert_string_equal(processes->client, "editor");
	assert_string_equal(processes->phase, "decode");
	assert_string_equal(processes->model, "tiny");
	free(processes);
	kvd_close(c);
	fake_stop(&f);
}

static void refuse_all(struct fake *f)
{
	FAKE_EXPECT(f, fake_greet(f));
	while (fake_receive(f))
		fake_send(f, KVD_MSG_ERROR, &(struct msg_error){ .id = f->msg->status.id,
								 .code = KVD_CODE_PERMISSION,
			  .field = "uid", .message = "not yours" });
}

static void refusals(void **state)
{
	struct kvd_model *models = (struct kvd_model *)&models;
	struct kvd_process *list = (struct kvd_process *)&list;
	struct kvd_status s;
	int32_t *ids = NULL;
	struct fake f;
	size_t n = 99;

	fake_start(&f, refuse_all, NULL);
	struct kvd_client *c = fake_connect(&f, 0, 0);
	assert_int_equal(kvd_status(c, &s), KVD_E_REFUSED);
	assert_int_equal(kvd_client_code(c), KVD_REFUSED_PERMISSION);
	assert_string_equal(kvd_client_field(c), "uid");
	assert_string_equal(kvd_client_error(c), "not yours");
	assert_int_equal(kvd_models(c, &models, &n), KVD_E_REFUSED);
	assert_ptr_equal(models, &models);
	assert_int_equal(kvd_ps(c, &list, &n), KVD_E_REFUSED);
	assert_ptr_equal(list, &list);
	assert_int_equal(kvd_tokenize(c, NULL, "x", 1, 0, &ids, &n), KVD_E_REFUSED);
	assert_null(ids);
	assert_int_equal(n, 99);
	kvd_close(c);
	fake_stop(&f);
}

/* --- tokenize --- */

/*
 * A daemon with a token per byte, or as many per byte as arg says; writes as the
 * protocol asks, refuses what does not fit.
 */
static void tokenizer(struct fake *f)
{
	uint32_t per_byte = *(uint32_t *)f->arg;
	uint8_t *text = malloc(KVD_ARENA_MAX);

	FAKE_EXPECT(f, text && fake_greet(f));
	while (fake_receive(f)) {
		if (f->msg->id != KVD_MSG_TOKENIZE)
			break;
		const struct msg_tokenize m = f->msg->tokenize;
		FAKE_EXPECT(f, !segment_read(&f->client, m.offset, text, m.length));
		FAKE_EXPECT(f, segment_has(&f->client, m.out_offset, m.out_length));
		FAKE_EXPECT(f, m.out_offset >= m.offset + m.length ||
			    m.out_offset + m.out_length <= m.offset);
		uint32_t count = m.length * per_byte + (m.bos ? 1 : 0) + (m.special ? 2 : 0);
		uint64_t needed = m.pieces ? count * 9ull : count * 4ull;
		f->step++;
		if (needed > m.out_length) {
			fake_send(f, KVD_MSG_ERROR, &(struct msg_error){ .id = m.id,
									 .code = KVD_CODE_BAD_FIELD,
				  .field = "out_length", .message = "", .count = m.pieces ? needed : count });
			continue;
		}
		for (uint32_t i = 0; i < count; i++) {
			int32_t id = text[i % (m.length ? m.length : 1)];
			uint32_t one = 1;
			uint8_t byte = (uint8_t)id;
			segment_write(&f->client, m.out_offset + i * 4, &id, 4);
			if (m.pieces) {
				segment_write(&f->client, m.out_offset + (count + i) * 4, &one, 4);
				segment_write(&f->client, m.out_offset + count * 8 + i, &byte, 1);
			}
		}
		fake_send(f, KVD_MSG_TOKENIZED, &(struct msg_tokenized){ m.id, count });
	}
	free(text);
}

static void tokens(void **state)
{
	static const struct { size_t n; uint32_t per_byte; int result; int asked; } cases[] = {
		{ 0, 1, 0, 1 },
		{ 5, 1, 0, 1 },
		{ 100000, 1, 0, 2 },		/* more tokens than guessed: asked again */
		{ 100000, 8, -ENOSPC, 1 },	/* 3.2 MB of ids into an arena of 1 MiB */
		{ 2000000, 1, -ENOSPC, 0 },	/* the text alone does not fit */
	};
	char *text = malloc(2000000);
	struct fake f;

	assert_non_null(text);
	for (size_t i = 0; i < 2000000; i++)
		text[i] = (char)('a' + i % 26);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint32_t per_byte = cases[i].per_byte;
		int32_t *ids = NULL;
		size_t n = 77;
		fake_start(&f, tokenizer, &per_byte);
		struct kvd_client *c = fake_connect(&f, 0, 1 << 20);
		int r = kvd_tokenize(c, NULL, text, cases[i].n, KVD_TOKENIZE_BOS | KVD_TOKENIZE_SPECIAL, &ids,
				     &n);
		assert_int_equal(r, cases[i].result);
		if (!r) {
			assert_int_equal(n, cases[i].n * per_byte + 3);
			for (size_t k = 0; k < cases[i].n; k++)
				assert_int_equal(ids[k], text[k]);
			/* the arena is as free as before */
			int32_t *again = NULL;
			assert_int_equal(kvd_tokenize(c, NULL, text, cases[i].n, 0, &again, &n), 0);
			free(again);
		} else {
			assert_null(ids);
			assert_int_equal(n, 77);
			assert_true(kvd_client_error(c)[0]);
		}
		free(ids);
		kvd_close(c);
		fake_stop(&f);
		if (r)
			assert_int_equal(f.step, cases[i].asked);
		else
			assert_int_equal(f.step, 2 * cases[i].asked);
	}
	free(text);
}

static void pieces(void **state)
{
	struct kvd_token *list = NULL;
	uint32_t per_byte = 1;
	struct fake f;
	size_t n = 0;

	fake_start(&f, tokenizer, &per_byte);
	struct kvd_client *c = fake_connect(&f, 0, 0);
	assert_int_equal(kvd_tokenize_pieces(c, "m", "a\xff" "c", 3, 0, &list, &n), 0);
	assert_int_equal(n, 3);
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(list[i].id, (uint8_t)"a\xff" "c"[i]);
		assert_int_equal(list[i].n_bytes, 1);
		assert_int_equal(list[i].bytes[0], list[i].id);
	}
	free(list);
	assert_int_equal(kvd_tokenize_pieces(c, "m", NULL, 0, 0, &list, &n), 0);
	assert_int_equal(n, 0);
	free(list);
	kvd_close(c);
	fake_stop(&f);
}

/* Counts and sizes that lead out of the answer. */
static void lying_tokenizer(struct fake *f)
{
	int kind = *(int *)f->arg;

	FAKE_EXPECT(f, fake_greet(f));
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_TOKENIZE));
	const struct msg_tokenize m = f->msg->tokenize;
	const uint32_t counts[] = { m.out_length / 4 + 1, UINT32_MAX, m.out_length / 4, 2 };
	const uint32_t lies[4] = { 1, 2, UINT32_MAX, UINT32_MAX };
	segment_write(&f->client, m.out_offset, lies, sizeof(lies));
	fake_send(f, KVD_MSG_TOKENIZED, &(struct msg_tokenized){ m.id, counts[kind] });
	fake_receive(f);
}

static void lies_about_tokens(void **state)
{
	struct kvd_token *list = NULL;
	struct fake f;
	size_t n = 0;

	for (int kind = 0; kind < 4; kind++) {
		fake_start(&f, lying_tokenizer, &kind);
		struct kvd_client *c = fake_connect(&f, 0, 0);
		assert_int_equal(kvd_tokenize_pieces(c, NULL, "abc", 3, 0, &list, &n), KVD_E_PROTOCOL);
		assert_null(list);
		kvd_close(c);
		fake_stop(&f);
	}
}

/* A count that grows each time must not be followed for ever. */
static void insatiable(struct fake *f)
{
	FAKE_EXPECT(f, fake_greet(f));
	while (fake_receive(f)) {
		f->step++;
		fake_send(f, KVD_MSG_ERROR, &(struct msg_error){ .id = f->msg->tokenize.id,
								 .code = KVD_CODE_BAD_FIELD,
			  .field = "out_length", .message = "", .count = UINT64_MAX });
	}
}

static void insatiable_tokenizer(void **state)
{
	int32_t *ids = NULL;
	struct fake f;
	size_t n;

	fake_start(&f, insatiable, NULL);
	struct kvd_client *c = fake_connect(&f, 0, 0);
	assert_int_equal(kvd_tokenize(c, NULL, "abc", 3, 0, &ids, &n), -ENOSPC);
	assert_null(ids);
	kvd_close(c);
	fake_stop(&f);
	assert_true(f.step <= 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_member),
		cmocka_unit_test(refusals),
		cmocka_unit_test(tokens),
		cmocka_unit_test(pieces),
		cmocka_unit_test(lies_about_tokens),
		cmocka_unit_test(insatiable_tokenizer),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
