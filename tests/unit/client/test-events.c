/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon writes is what kvd_next() gives out, and what a submission says is what arrives. */
#include "tests/unit/client/fake-daemon.h"

#include <math.h>

static const struct kvd_event *next(struct kvd_client *c)
{
	const struct kvd_event *e = NULL;

	assert_int_equal(kvd_next(c, 20000, &e), 0);
	return e;
}

static void assert_bytes(const struct kvd_event *e, const char *text)
{
	assert_int_equal(e->n_bytes, strlen(text));
	assert_memory_equal(e->bytes, text, e->n_bytes);
}

/* --- the message --- */

static void check_submission(struct fake *f)
{
	static const int32_t ids[] = { 7, 8, 2147483647 };
	const struct msg_generate *m;
	char text[16] = "";
	int32_t got[3];

	FAKE_EXPECT(f, fake_greet(f));
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_GENERATE));
	m = &f->msg->generate;
	FAKE_EXPECT(f, m->n_prompt == 2 && m->n_messages == 0);
	FAKE_EXPECT(f, m->prompt[0].kind == KVD_PART_TEXT && m->prompt[0].length == 5);
	FAKE_EXPECT(f, !segment_read(&f->client, m->prompt[0].offset, text, 5) && !strcmp(text, "Hello"));
	FAKE_EXPECT(f, m->prompt[1].kind == KVD_PART_IDS && m->prompt[1].length == 12);
	FAKE_EXPECT(f, !segment_read(&f->client, m->prompt[1].offset, got, 12) && !memcmp(got, ids, 12));
	FAKE_EXPECT(f, !strcmp(m->model, "tiny") && m->special && !m->bos && m->n == 9);
	FAKE_EXPECT(f, m->temperature == 0.25f && m->top_k == 3 && m->top_p == 0.5f && m->min_p == 0.125f);
	FAKE_EXPECT(f, m->repeat_penalty == 1.5f && m->repeat_last_n == 11 && m->has_seed &&
		    m->seed == 1ull << 63);
	FAKE_EXPECT(f, m->n_stop == 2 && !strcmp(m->stop[0], "a") && !strcmp(m->stop[1], "bc"));
	FAKE_EXPECT(f, m->n_logit_bias == 1 && m->logit_bias[0].id == 4 && m->logit_bias[0].bias == -2);
	FAKE_EXPECT(f, m->has_logprobs && m->logprobs == 5 && m->ignore_eos && m->progress);

	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_GENERATE));
	m = &f->msg->generate;
	FAKE_EXPECT(f, m->n_messages == 2 && m->n_prompt == 0 && !m->model);
	FAKE_EXPECT(f, !strcmp(m->messages[0].role, "system") && m->messages[0].length == 0);
	FAKE_EXPECT(f, !strcmp(m->messages[1].role, "user") && m->messages[1].length == 2);
	/* the documented defaults */
	FAKE_EXPECT(f, m->n == 512 && m->temperature == 0.8f && m->top_k == 0 && m->top_p == 0.95f);
	FAKE_EXPECT(f, m->min_p == 0.05f && m->repeat_penalty == 1 && m->repeat_last_n == 64);
	FAKE_EXPECT(f, m->bos && !m->special && !m->has_logprobs && !m->ignore_eos && !m->progress);
	FAKE_EXPECT(f, m->n_stop == 0 && m->n_logit_bias == 0 && m->has_seed);
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_CANCEL));
	FAKE_EXPECT(f, f->msg->cancel.id == 2);
}

static void submission(void **state)
{
	static const int32_t ids[] = { 7, 8, 2147483647 };
	static const char *const stop[] = { "a", "bc" };
	const struct kvd_bias bias = { 4, -2 };
	const struct kvd_part raw[] = { { .text = "Hello!", .n = 5 }, { .ids = ids, .n = 3 } };
	const struct kvd_part chat[] = { { .role = "system" }, { .role = "user", .text = "Hi", .n = 2 } };
	struct kvd_params p;
	struct fake f;
	uint64_t id;

	fake_start(&f, check_submission, NULL);
	struct kvd_client *c = fake_connect(&f, 0, 0);
	kvd_params_init(&p);
	p.model = "tiny";
	p.parts = raw;
	p.n_parts = 2;
	p.special = p.no_bos = p.ignore_eos = p.progress = 1;
	p.max_tokens = 9;
	p.temperature = 0.25f;
	p.top_k = 3;
	p.top_p = 0.5f;
	p.min_p = 0.125f;
	p.repeat_penalty = 1.5f;
	p.repeat_last_n = 11;
	p.seed = 1ull << 63;
	p.stop = stop;
	p.n_stop = 2;
	p.bias = &bias;
	p.n_bias = 1;
	p.logprobs = 5;
	assert_int_equal(kvd_submit(c, &p, &id), 0);
	kvd_params_init(&p);
	p.parts = chat;
	p.n_parts = 2;
	assert_int_equal(kvd_submit(c, &p, &id), 0);
	assert_int_equal(id, 2);
	assert_int_equal(kvd_cancel(c, 77), 0);		/* not one of ours: nothing is sent */
	assert_int_equal(kvd_cancel(c, id), 0);
	kvd_close(c);
	fake_stop(&f);
}

static void serve_until_closed(struct fake *f)
{
	FAKE_EXPECT(f, fake_greet(f));
	while (fake_receive(f))
		f->step += f->msg->id == KVD_MSG_GENERATE;
}

static void parameters_that_are_refused(void **state)
{
	const struct kvd_part good = { .text = "x", .n = 1 };
	const struct kvd_part empty = { .text = "", .n = 0 };
	const struct kvd_part mixed[] = { { .text = "x", .n = 1 }, { .role = "user", .text = "x", .n = 1 } };
	const struct kvd_part nowhere = { .n = 3 };
	const struct kvd_part huge = { .text = "x", .n = SIZE_MAX / 2 };
	static const char *const bad_stop[] = { "" };
	char long_stop[300];
	const char *const long_stops[] = { long_stop };
	const struct kvd_bias bad_bias = { -1, 0 }, nan_bias = { 1, NAN };
	struct kvd_params p;
	struct fake f;
	uint64_t id = 42;

	memset(long_stop, 's', sizeof(long_stop));
	long_stop[257] = '\0';
	fake_start(&f, serve_until_closed, NULL);
	struct kvd_client *c = fake_connect(&f, 0, 0);
#define REFUSED(FIELD, ...) \
	do { \
		kvd_params_init(&p); \
		p.parts = &good; \
		p.n_parts = 1; \
		__VA_ARGS__; \
		assert_int_equal(kvd_submit(c, &p, &id), -EINVAL); \
		assert_string_equal(kvd_client_field(c), FIELD); \
		assert_true(kvd_client_error(c)[0]); \
	} while (0)
	REFUSED("struct_size", p.struct_size = 8);
	REFUSED("parts", p.n_parts = 0);
	REFUSED("parts", p.parts = NULL);
	REFUSED("parts", p.n_parts = 1025);
	REFUSED("parts", p.parts = &empty);
	REFUSED("parts", p.parts = mixed; p.n_parts = 2);
	REFUSED("parts", p.parts = &nowhere);
	REFUSED("parts", p.parts = &huge);
	REFUSED("temperature", p.temperature = NAN);
	REFUSED("temperature", p.temperature = -1);
	REFUSED("temperature", p.temperature = INFINITY);
	REFUSED("top_p", p.top_p = 1.5f);
	REFUSED("min_p", p.min_p = -0.5f);
	REFUSED("repeat_penalty", p.repeat_penalty = 0);
	REFUSED("logprobs", p.logprobs = 33);
	REFUSED("logprobs", p.logprobs = -2);
	REFUSED("stop", p.stop = bad_stop; p.n_stop = 1);
	REFUSED("stop", p.stop = long_stops; p.n_stop = 1);
	REFUSED("stop", p.n_stop = 17);
	REFUSED("bias", p.bias = &bad_bias; p.n_bias = 1);
	REFUSED("bias", p.bias = &nan_bias; p.n_bias = 1);
	REFUSED("bias", p.n_bias = 1025);
	REFUSED("", p.model = "");
	REFUSED("", p.model = "\n");
	const struct kvd_part bad_role = { .role = "Ä", .text = "x", .n = 1 };
	REFUSED("", p.parts = &bad_role);
#undef REFUSED
	assert_int_equal(id, 42);
	kvd_close(c);
	fake_stop(&f);
	assert_int_equal(f.step, 0);
}

/* --- records --- */

static void write_all_kinds(struct fake *f)
{
	const struct ring_alternative items[] = {
		{ 5, -0.25f, (const uint8_t *)"\xff\x00z", 3 }, { 6, -1.5f, NULL, 0 },
	};
	const struct ring_usage usage = { 1, 2, 3, KVD_MISS_EVICTED, 1ull << 40, 5, 6, 77, (const uint8_t *)"ab", 2 };

	FAKE_EXPECT(f, fake_greet(f));
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_GENERATE));
	uint64_t id = f->msg->generate.id;
	ring_begin(&f->writer, false);
	ring_put_progress(&f->writer, id, 3, 9);
	ring_put_prompt(&f->writer, id, 11, -3, 1, (const uint8_t *)"pq", 2);
	ring_put_token(&f->writer, id, 5, NAN, true, (const uint8_t *)"\xe2\x82", 2);
	ring_put_alternatives(&f->writer, id, items, 2);
	ring_put_text(&f->writer, id, (const uint8_t *)"text", 4);
	/* of nobody that the client knows: skipped */
	ring_put_text(&f->writer, 999, (const uint8_t *)"foreign", 7);
	ring_put_usage(&f->writer, id, &usage);
	ring_put_done(&f->writer, id, KVD_FINISH_STOP_STRING, 3);
	FAKE_EXPECT(f, !fake_commit(f));
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_GENERATE));
	ring_begin(&f->writer, false);
	ring_put_error(&f->writer, f->msg->generate.id, KVD_CODE_SHUTDOWN, "going");
	FAKE_EXPECT(f, !fake_commit(f));
	fake_receive(f);
}

static void every_record(void **state)
{
	struct fake f;
	const struct kvd_event *e;

	fake_start(&f, write_all_kinds, NULL);
	struct kvd_client *c = fake_connect(&f, 0, 0);
	uint64_t id = fake_submit(c, "x");
	e = next(c);
	assert_int_equal(e->type, KVD_EVENT_PROGRESS);
	assert_int_equal(e->request, id);
	assert_int_equal(e->done, 3);
	assert_int_equal(e->total, 9);
	e = next(c);
	assert_int_equal(e->type, KVD_EVENT_PROMPT);
	assert_int_equal(e->id, 11);
	assert_int_equal(e->position, 1);
	assert_true(e->logprob == -3);
	assert_bytes(e, "pq");
	e = next(c);
	assert_int_equal(e->type, KVD_EVENT_TOKEN);
	assert_true(isnan(e->logprob) && e->is_control && e->id == 5);
	assert_bytes(e, "\xe2\x82");
	e = next(c);
	assert_int_equal(e->type, KVD_EVENT_ALTERNATIVES);
	assert_int_equal(e->n_alternatives, 2);
	assert_int_equal(e->alternatives[0].id, 5);
	assert_int_equal(e->alternatives[0].n_bytes, 3);
	assert_memory_equal(e->alternatives[0].bytes, "\xff\x00z", 3);
	assert_true(e->alternatives[1].logprob == -1.5f && e->alternatives[1].n_bytes == 0);
	e = next(c);
	assert_int_equal(e->type, KVD_EVENT_TEXT);
	assert_bytes(e, "text");
	e = next(c);
	assert_int_equal(e->type, KVD_EVENT_USAGE);
	assert_true(e->prompt_tokens == 1 && e->cached_tokens == 2 && e->generated_tokens == 3 &&
		    e->miss == KVD_CACHE_MISS_EVICTED && e->id == 77);
	assert_bytes(e, "ab");
	assert_true(e->queue_ns == 1ull << 40 && e->prefill_ns == 5 && e->decode_ns == 6);
	e = next(c);
	assert_int_equal(e->type, KVD_EVENT_DONE);
	assert_int_equal(e->finish, KVD_DONE_STOP_STRING);
	assert_int_equal(e->stop_index, 3);
	id = fake_submit(c, "y");
	e = next(c);
	assert_int_equal(e->type, KVD_EVENT_ERROR);
	assert_int_equal(e->request, id);
	assert_int_equal(e->code, KVD_REFUSED_SHUTDOWN);
	assert_bytes(e, "going");
	assert_string_equal(e->field, "");
	assert_int_equal(kvd_next(c, 0, &e), KVD_E_TIMEOUT);
	kvd_close(c);
	fake_stop(&f);
}

static void refuse(struct fake *f)
{
	FAKE_EXPECT(f, fake_greet(f));
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_GENERATE));
	fake_send(f, KVD_MSG_ERROR, &(struct msg_error){ .id = f->msg->generate.id,
							 .code = KVD_CODE_CONTEXT_LENGTH,
		  .field = "prompt", .message = "9000 tokens do not fit 8192" });
	/* of nothing that is known: passed over */
	fake_send(f, KVD_MSG_ERROR, &(struct msg_error){ .id = 0, .code = KVD_CODE_BAD_MESSAGE, .field = "",
		  .message = "" });
	fake_receive(f);
}

static void refusal(void **state)
{
	const struct kvd_event *e;
	struct fake f;

	fake_start(&f, refuse, NULL);
	struct kvd_client *c = fake_connect(&f, 0, 0);
	uint64_t id = fake_submit(c, "x");
	e = next(c);
	assert_int_equal(e->type, KVD_EVENT_ERROR);
	assert_int_equal(e->request, id);
	assert_int_equal(e->code, KVD_REFUSED_CONTEXT_LENGTH);
	assert_string_equal(e->field, "prompt");
	assert_bytes(e, "9000 tokens do not fit 8192");
	assert_int_equal(kvd_next(c, 30, &e), KVD_E_TIMEOUT);
	kvd_close(c);
	fake_stop(&f);
}

/* A refusal is seen although the ring is never empty. */
static void refuse_among_records(struct fake *f)
{
	FAKE_EXPECT(f, fake_greet(f));
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_GENERATE));
	uint64_t busy = f->msg->generate.id;
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_GENERATE));
	for (int i = 0; i < 1000; i++)
		fake_token(f, busy, i, "t");
	fake_send(f, KVD_MSG_ERROR, &(struct msg_error){ .id = f->msg->generate.id, .code = KVD_CODE_BUSY,
		  .field = "", .message = "later" });
	fake_reached(f, 1);
	fake_receive(f);
}

static void refusal_does_not_starve(void **state)
{
	const struct kvd_event *e;
	struct fake f;
	int before = 0;

	fake_start(&f, refuse_among_records, NULL);
	struct kvd_client *c = fake_connect(&f, 0, 0);
	fake_submit(c, "busy");
	uint64_t refused = fake_submit(c, "refused");
	assert_true(fake_wait(&f, 1));
	while ((e = next(c))->request != refused)
		before++;
	assert_int_equal(e->code, KVD_REFUSED_BUSY);
	assert_true(before < 200);
	kvd_close(c);
	fake_stop(&f);
}

/* --- the end --- */

static void write_and_die(struct fake *f)
{
	FAKE_EXPECT(f, fake_greet(f));
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_GENERATE));
	for (int i = 0; i < 5; i++)
		fake_token(f, f->msg->generate.id, i, "x");
	if (f->arg)
		ring_close(&f->writer);
}

/* Killed, or stopped in good order: what was written is given out first. */
static void the_daemon_goes(void **state)
{
	const struct kvd_event *e;
	size_t before = count_fds();
	struct fake f;

	for (int orderly = 0; orderly < 2; orderly++) {
		fake_start(&f, write_and_die, orderly ? &f : NULL);
		struct kvd_client *c = fake_connect(&f, 0, 0);
		uint64_t id = fake_submit(c, "x");
		for (int i = 0; i < 5; i++) {
			assert_int_equal(next(c)->id, i);
			assert_int_equal(next(c)->type, KVD_EVENT_TEXT);
			if (!i)
				fake_stop(&f);
		}
		assert_int_equal(kvd_next(c, -1, &e), KVD_E_CLOSED);
		assert_int_equal(kvd_next(c, 0, &e), KVD_E_CLOSED);
		assert_true(kvd_client_error(c)[0]);
		assert_int_equal(kvd_cancel(c, id), KVD_E_CLOSED);
		struct kvd_part part = { .text = "x", .n = 1 };
		struct kvd_params p;
		struct kvd_status status;
		kvd_params_init(&p);
		p.parts = &part;
		p.n_parts = 1;
		assert_int_equal(kvd_submit(c, &p, &id), KVD_E_CLOSED);
		assert_int_equal(kvd_status(c, &status), KVD_E_CLOSED);
		kvd_close(c);
		assert_int_equal(count_fds(), before);
	}
}

/* --- polling --- */

static void one_token_per_step(struct fake *f)
{
	FAKE_EXPECT(f, fake_greet(f));
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_GENERATE));
	uint64_t id = f->msg->generate.id;
	for (int i = 1; i <= 50; i++) {
		FAKE_EXPECT(f, fake_wait(f, 2 * i - 1));
		ring_begin(&f->writer, false);
		ring_put_text(&f->writer, id, (const uint8_t *)"t", 1);
		FAKE_EXPECT(f, !fake_commit(f));
		fake_reached(f, 2 * i);
	}
	fake_receive(f);
}

static int poll_fd(int fd, int timeout)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, timeout);
}

/* The rule of kvd_fd(): after KVD_E_TIMEOUT it is quiet until there is something. */
static void event_loop(void **state)
{
	const struct kvd_event *e;
	struct fake f;

	fake_start(&f, one_token_per_step, NULL);
	struct kvd_client *c = fake_connect(&f, 0, 0);
	fake_submit(c, "x");
	for (int i = 1; i <= 50; i++) {
		assert_int_equal(kvd_next(c, 0, &e), KVD_E_TIMEOUT);
		assert_int_equal(poll_fd(kvd_fd(c), 0), 0);
		fake_reached(&f, 2 * i - 1);
		assert_int_equal(poll_fd(kvd_fd(c), 20000), 1);
		assert_int_equal(kvd_next(c, 0, &e), 0);
		assert_int_equal(e->type, KVD_EVENT_TEXT);
		assert_true(fake_wait(&f, 2 * i));
	}
	kvd_close(c);
	fake_stop(&f);
}

static void wake_before_status(struct fake *f)
{
	FAKE_EXPECT(f, fake_greet(f));
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_GENERATE));
	uint64_t id = f->msg->generate.id;
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_STATUS));
	ring_begin(&f->writer, false);
	ring_put_text(&f->writer, id, (const uint8_t *)"t", 1);
	FAKE_EXPECT(f, !ring_commit(&f->writer));
	FAKE_EXPECT(f, ring_needs_wake(&f->writer));
	fake_send(f, KVD_MSG_WAKE, &(struct msg_wake){ 0 });
	fake_send(f, KVD_MSG_STATUS_REPLY, &(struct msg_status_reply){ .id = f->msg->status.id,
								       .version = "v",
		  .device = "d", .level = "l", .state = "ready" });
	fake_receive(f);
}

/* A question takes the wake from the socket; who polls must not sleep on. */
static void status_does_not_swallow_the_wake(void **state)
{
	const struct kvd_event *e;
	struct kvd_status status;
	struct fake f;

	fake_start(&f, wake_before_status, NULL);
	struct kvd_client *c = fake_connect(&f, 0, 0);
	fake_submit(c, "x");
	assert_int_equal(kvd_next(c, 0, &e), KVD_E_TIMEOUT);
	assert_int_equal(kvd_status(c, &status), 0);
	assert_int_equal(poll_fd(kvd_fd(c), 0), 1);
	assert_int_equal(kvd_next(c, 0, &e), 0);
	assert_int_equal(kvd_next(c, 0, &e), KVD_E_TIMEOUT);
	assert_int_equal(poll_fd(kvd_fd(c), 0), 0);
	kvd_close(c);
	fake_stop(&f);
}

/* --- back-pressure and the arena --- */

#define FLOOD 20000

static void flood(struct fake *f)
{
	FAKE_EXPECT(f, fake_greet(f));
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_GENERATE));
	uint64_t id = f->msg->generate.id;
	for (int i = 0; i <= FLOOD;) {
		ring_begin(&f->writer, false);
		if (i < FLOOD)
			ring_put_token(&f->writer, id, i, 0, false, (const uint8_t *)"0123456789",
				       (size_t)i % 11);
		else	/* the last one, too, finds a full ring now and then */
			ring_put_done(&f->writer, id, KVD_FINISH_LENGTH, 0);
		int r = fake_commit(f);
		FAKE_EXPECT(f, r == 0 || r == RING_E_FULL);
		if (!r) {
			i++;
			continue;
		}
		/* nothing goes on before the client has made room */
		f->step++;
		FAKE_EXPECT(f, fake_expect(f, KVD_MSG_ROOM));
		ring_room(&f->writer);
	}
	fake_receive(f);
}

static void full_ring(void **state)
{
	const struct kvd_event *e;
	struct fake f;
	int n = 0;

	fake_start(&f, flood, NULL);
	struct kvd_client *c = fake_connect(&f, KVD_RING_MIN, KVD_ARENA_MIN);
	fake_submit(c, "x");
	assert_true(fake_wait(&f, 1));	/* a reader that is always faster would see no full ring */
	while ((e = next(c))->type == KVD_EVENT_TOKEN) {
		assert_int_equal(e->id, n);
		assert_int_equal(e->n_bytes, n % 11);
		assert_memory_equal(e->bytes, "0123456789", e->n_bytes);
		n++;
	}
	assert_int_equal(n, FLOOD);
	kvd_close(c);
	fake_stop(&f);
	/* a message for a stretch of the ring, not one for each token */
	assert_true(f.step > 0 && f.step < FLOOD / 20);
}

static void answer_each_step(struct fake *f)
{
	FAKE_EXPECT(f, fake_greet(f));
	for (int i = 1; i <= 3; i++) {
		FAKE_EXPECT(f, fake_expect(f, KVD_MSG_GENERATE));
		FAKE_EXPECT(f, fake_wait(f, i));
		if (i == 2)
			fake_send(f, KVD_MSG_ERROR, &(struct msg_error){ .id = f->msg->generate.id,
				  .code = KVD_CODE_BUSY, .field = "", .message = "" });
		else
			fake_token(f, f->msg->generate.id, 1, "t");
	}
	fake_receive(f);
}

/* The arena is taken until the first record or the refusal, and no longer. */
static void arena_reuse(void **state)
{
	static char big[KVD_ARENA_MIN / 2 + 8];
	struct kvd_part part = { .text = big, .n = sizeof(big) };
	const struct kvd_event *e;
	struct kvd_params p;
	struct fake f;
	uint64_t id;

	fake_start(&f, answer_each_step, NULL);
	struct kvd_client *c = fake_connect(&f, 0, KVD_ARENA_MIN);
	kvd_params_init(&p);
	p.parts = &part;
	p.n_parts = 1;
	for (int i = 1; i <= 3; i++) {
		assert_int_equal(kvd_submit(c, &p, &id), 0);
		uint64_t other = 5;
		assert_int_equal(kvd_submit(c, &p, &other), -ENOSPC);
		assert_int_equal(other, 5);
		assert_true(kvd_client_error(c)[0]);
		fake_reached(&f, i);
		assert_int_equal(next(c)->request, id);
		kvd_next(c, 0, &e);	/* its other record, if any */
	}
	part.n = KVD_ARENA_MAX;
	assert_int_equal(kvd_submit(c, &p, &id), -ENOSPC);
	kvd_close(c);
	fake_stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(submission),
		cmocka_unit_test(parameters_that_are_refused),
		cmocka_unit_test(every_record),
		cmocka_unit_test(refusal),
		cmocka_unit_test(refusal_does_not_starve),
		cmocka_unit_test(the_daemon_goes),
		cmocka_unit_test(event_loop),
		cmocka_unit_test(status_does_not_swallow_the_wake),
		cmocka_unit_test(full_ring),
		cmocka_unit_test(arena_reuse),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
