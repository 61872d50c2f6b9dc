/* SPDX-License-Identifier: Apache-2.0 */
/* One client, several threads; signals; no wake-up is lost. */
#include "tests/unit/client/fake-daemon.h"

static void answer_status(struct fake *f)
{
	fake_send(f, KVD_MSG_STATUS_REPLY, &(struct msg_status_reply){
		.id = f->msg->status.id, .version = "v", .device = "d", .level = "l", .state = "ready",
		.n_running = (uint32_t)f->msg->status.id });
}

/* --- a thread in kvd_next() does not keep others from anything --- */

static void serve_while_waiting(struct fake *f)
{
	FAKE_EXPECT(f, fake_greet(f));
	uint64_t first = 0;
	while (fake_receive(f)) {
		if (f->msg->id == KVD_MSG_STATUS)
			answer_status(f);
		else if (f->msg->id == KVD_MSG_GENERATE)
			first = f->msg->generate.id;
		else if (f->msg->id == KVD_MSG_CANCEL && f->msg->cancel.id == first)
			fake_done(f, first, KVD_FINISH_CANCELLED);
	}
}

static void *wait_for_end(void *arg)
{
	const struct kvd_event *e = NULL;
	int r = kvd_next(arg, 20000, &e);

	return r ? (void *)(intptr_t)(1000 + r) : (void *)(intptr_t)e->finish;
}

static void others_go_on(void **state)
{
	const struct kvd_event *e;
	struct kvd_status s;
	struct fake f;
	pthread_t t;
	void *result;

	for (int round = 0; round < 20; round++) {
		fake_start(&f, serve_while_waiting, NULL);
		struct kvd_client *c = fake_connect(&f, 0, 0);
		assert_int_equal(pthread_create(&t, NULL, wait_for_end, c), 0);
		if (round % 2) {
			/* it is in there: a second one is refused */
			while (kvd_next(c, 0, &e) != -EBUSY)
				poll(NULL, 0, 1);
		}
		assert_int_equal(kvd_status(c, &s), 0);
		uint64_t id = fake_submit(c, "x");
		assert_int_equal(kvd_status(c, &s), 0);
		assert_int_equal(kvd_cancel(c, id), 0);
		pthread_join(t, &result);
		assert_int_equal((intptr_t)result, KVD_DONE_CANCELLED);
		kvd_close(c);
		fake_stop(&f);
	}
}

/* --- many threads ask, submit and read --- */

#define ASKERS 3
#define QUESTIONS 200
#define REQUESTS 200

struct load {
	struct kvd_client *c;
	_Atomic int bad;
};

static void serve_load(struct fake *f)
{
	FAKE_EXPECT(f, fake_greet(f));
	while (fake_receive(f)) {
		if (f->msg->id == KVD_MSG_STATUS) {
			answer_status(f);
		} else if (f->msg->id == KVD_MSG_GENERATE) {
			uint64_t id = f->msg->generate.id;
			if (id % 5 == 0) {
				fake_send(f, KVD_MSG_ERROR, &(struct msg_error){ .id = id,
										 .code = KVD_CODE_BUSY,
					  .field = "", .message = "busy" });
				continue;
			}
			fake_token(f, id, 1, "t");
			fake_done(f, id, KVD_FINISH_LENGTH);
		} else if (f->msg->id == KVD_MSG_ROOM) {
			ring_room(&f->writer);
		}
	}
}

static void *ask(void *arg)
{
	struct load *l = arg;
	struct kvd_status s;

	for (int i = 0; i < QUESTIONS; i++)
		if (kvd_status(l->c, &s) || strcmp(s.state, "ready"))
			l->bad++;
	return NULL;
}

static void *submit(void *arg)
{
	struct kvd_part part = { .text = "x", .n = 1 };
	struct load *l = arg;
	struct kvd_params p;
	uint64_t id;

	kvd_params_init(&p);
	p.parts = &part;
	p.n_parts = 1;
	for (int i = 0; i < REQUESTS; i++)
		if (kvd_submit(l->c, &p, &id))
			l->bad++;
	return NULL;
}

static void load(void **state)
{
	pthread_t askers[ASKERS], submitter;
	const struct kvd_event *e;
	struct load l = { 0 };
	struct fake f;
	int ended = 0;

	fake_start(&f, serve_load, NULL);
	l.c = fake_connect(&f, 0, 0);
	for (int i = 0; i < ASKERS; i++)
		assert_int_equal(pthread_create(&askers[i], NULL, ask, &l), 0);
	assert_int_equal(pthread_create(&submitter, NULL, submit, &l), 0);
	while (ended < REQUESTS) {
		int r = kvd_next(l.c, ended % 3 ? 20000 : 1, &e);
		if (r == KVD_E_TIMEOUT && ended % 3 == 0)
			continue;
		assert_int_equal(r, 0);
		ended += e->type == KVD_EVENT_DONE || e->type == KVD_EVENT_ERROR;
	}
	for (int i = 0; i < ASKERS; i++)
		pthread_join(askers[i], NULL);
	pthread_join(submitter, NULL);
	assert_int_equal(l.bad, 0);
	kvd_close(l.c);
	fake_stop(&f);
}

/* --- the writer's pace against the reader's sleep --- */

#define TOKENS 20000

static void write_in_bursts(struct fake *f)
{
	uint32_t rng = 1;

	FAKE_EXPECT(f, fake_greet(f));
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_GENERATE));
	uint64_t id = f->msg->generate.id;
	for (int i = 0; i < TOKENS;) {
		ring_begin(&f->writer, false);
		ring_put_token(&f->writer, id, i, 0, false, (const uint8_t *)"t", 1);
		int r = fake_commit(f);
		if (r == RING_E_FULL) {
			FAKE_EXPECT(f, fake_expect(f, KVD_MSG_ROOM));
			ring_room(&f->writer);
			continue;
		}
		FAKE_EXPECT(f, !r);
		i++;
		rng = rng * 1664525u + 1013904223u;
		for (volatile uint32_t spin = (rng >> 8) % 2000; spin; spin--)
			;
	}
	fake_done(f, id, KVD_FINISH_LENGTH);
	fake_receive(f);
}

/* Without a time-out, so that a lost wake-up is a test that hangs (and its runner ends). */
static void no_wake_is_lost(void **state)
{
	const struct kvd_event *e;
	struct fake f;
	int n = 0;

	for (int polls = 0; polls < 2; polls++) {
		fake_start(&f, write_in_bursts, NULL);
		struct kvd_client *c = fake_connect(&f, KVD_RING_MIN, 0);
		fake_submit(c, "x");
		for (n = 0;; n++) {
			int r;
			while ((r = kvd_next(c, polls ? 0 : -1, &e)) == KVD_E_TIMEOUT) {
				struct pollfd p = { .fd = kvd_fd(c), .events = POLLIN };
				assert_int_equal(poll(&p, 1, -1), 1);
			}
			assert_int_equal(r, 0);
			if (e->type == KVD_EVENT_DONE)
				break;
			assert_int_equal(e->id, n);
		}
		assert_int_equal(n, TOKENS);
		kvd_close(c);
		fake_stop(&f);
	}
}

/* --- signals --- */

static _Atomic int n_signals;

static void on_signal(int signo)
{
	n_signals++;
}

static void serve_quietly(struct fake *f)
{
	FAKE_EXPECT(f, fake_greet(f));
	fake_expect(f, KVD_MSG_GENERATE);	/* and goes */
}

struct interrupted {
	struct kvd_client *c;
	_Atomic int result;
};

static void *wait_interrupted(void *arg)
{
	struct interrupted *i = arg;
	const struct kvd_event *e;

	i->result = kvd_next(i->c, 20000, &e);
	return NULL;
}

static void *ask_one(void *arg)
{
	struct kvd_status s;

	return (void *)(intptr_t)kvd_status(arg, &s);
}

/* Also while another thread reads the socket. */
static void signals(void **state)
{
	struct sigaction action = { .sa_handler = on_signal };
	pthread_t t, asker;
	struct fake f;
	void *result;

	sigaction(SIGUSR1, &action, NULL);
	for (int with_asker = 0; with_asker < 2; with_asker++) {
		struct interrupted i = { .result = 12345 };
		fake_start(&f, serve_quietly, NULL);
		i.c = fake_connect(&f, 0, 0);
		if (with_asker) {
			assert_int_equal(pthread_create(&asker, NULL, ask_one, i.c), 0);
			poll(NULL, 0, 20);
		}
		assert_int_equal(pthread_create(&t, NULL, wait_interrupted, &i), 0);
		while (i.result == 12345) {
			pthread_kill(t, SIGUSR1);
			poll(NULL, 0, 2);
		}
		pthread_join(t, NULL);
		assert_int_equal(i.result, -EINTR);
		fake_submit(i.c, "go");
		if (with_asker) {
			pthread_join(asker, &result);
			assert_int_equal((intptr_t)result, KVD_E_CLOSED);
		}
		kvd_close(i.c);
		fake_stop(&f);
	}
	assert_true(n_signals > 0);
}

/* An asker waits on while kvd_next() comes and goes with time-outs: somebody must read for it. */
static void answer_late(struct fake *f)
{
	FAKE_EXPECT(f, fake_greet(f));
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_STATUS));
	FAKE_EXPECT(f, fake_wait(f, 1));
	answer_status(f);
	fake_receive(f);
}

static void reader_leaves(void **state)
{
	const struct kvd_event *e;
	pthread_t asker;
	struct fake f;
	void *result;

	for (int round = 0; round < 10; round++) {
		fake_start(&f, answer_late, NULL);
		struct kvd_client *c = fake_connect(&f, 0, 0);
		assert_int_equal(pthread_create(&asker, NULL, ask_one, c), 0);
		for (int i = 0; i < 5; i++)
			assert_int_equal(kvd_next(c, i, &e), KVD_E_TIMEOUT);
		fake_reached(&f, 1);
		pthread_join(asker, &result);
		assert_int_equal((intptr_t)result, 0);
		kvd_close(c);
		fake_stop(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(others_go_on),
		cmocka_unit_test(load),
		cmocka_unit_test(no_wake_is_lost),
		cmocka_unit_test(signals),
		cmocka_unit_test(reader_leaves),
	};
	alarm(120);	/* a lost wake-up hangs */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
