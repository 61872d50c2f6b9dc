/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams beside a long prompt, on a device of which the test says how long a step takes: time stands still but for
 * that.  So what is measured is exact, and the same each time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/engine/fake-model.h"
#include "tests/unit/engine/fake-client.h"
#include "tests/unit/engine/fixture.h"

#define N_STREAMS 4
#define N_TOKENS 400
#define N_PROMPT 6000
#define QUANTUM_BESIDE 256

static _Atomic uint64_t now_ns = 1000000000;

/* In place of the C library's, for this program. */
int clock_gettime(clockid_t id, struct timespec *ts)
{
	uint64_t ns = atomic_load(&now_ns);

	if (id != CLOCK_MONOTONIC)
		return (int)syscall(SYS_clock_gettime, id, ts);
	ts->tv_sec = (time_t)(ns / 1000000000u);
	ts->tv_nsec = (long)(ns % 1000000000u);
	return 0;
}

static struct device {
	double weights, row, attention;	/* ns of a step, of a row, of a row for each position before it */
	double noise;
	uint32_t max_beside;		/* prompt rows of a step that had decoding as well */
	uint32_t n_beside;		/* such steps */
} device;

static void advance_clock(const struct kb_batch *b)
{
	uint32_t n_decode = 0, n_prefill = 0;
	double ns = device.weights;

	for (uint32_t i = 0; i < b->n_seqs; i++) {
		const struct kb_seq *seq = &b->seqs[i];

		*(seq->n_rows > 1 ? &n_prefill : &n_decode) += seq->n_rows;
		ns += seq->n_rows * (device.row + device.attention * (seq->first_pos + seq->n_rows / 2.0));
	}
	if (n_prefill && n_decode)
		device.max_beside = MAX(device.max_beside, n_prefill);
	device.n_beside += n_prefill && n_decode;
	ns *= 1 + device.noise * ((double)rand() / RAND_MAX - 0.5);
	atomic_fetch_add(&now_ns, (uint64_t)ns);
}

/* Notes when each token comes. */
struct clock_sink {
	struct sink sink;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t ns[N_STREAMS + 1][N_TOKENS];
	uint32_t n[N_STREAMS + 1];
	uint32_t n_released;
};

static int note_emit(struct sink *sink, uint64_t request, const struct sink_event *events, size_t n)
{
	struct clock_sink *c = (struct clock_sink *)sink;

	pthread_mutex_lock(&c->lock);
	for (size_t i = 0; i < n; i++)
		if (events[i].type == SINK_TOKEN && c->n[request] < N_TOKENS)
			c->ns[request][c->n[request]++] = atomic_load(&now_ns);
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
	return 0;
}

static void note_flush(struct sink *sink)
{
}

static void note_release(struct sink *sink, uint64_t request)
{
	struct clock_sink *c = (struct clock_sink *)sink;

	pthread_mutex_lock(&c->lock);
	c->n_released++;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
}

static const struct sink_ops note_ops = { .emit = note_emit, .flush = note_flush, .release = note_release };

static struct model long_model = {
	.info = { .name = "long", .n_vocab = FAKE_N_VOCAB }, .n_ctx = 8192, .block_bytes = 4096, .first_hash = 7,
};

static void ask(struct engine *e, struct engine_model *em, struct clock_sink *c, uint64_t id, size_t n_prompt,
		uint32_t max_tokens)
{
	const struct engine_request_params params = {
		.max_tokens = max_tokens, .ignore_eos = true,
		.sampling = { .temperature = 1, .top_p = 0.95f, .repeat_penalty = 1, .seed = id },
	};
	int32_t *prompt = malloc(n_prompt * sizeof(*prompt));
	struct engine_request *r = NULL;

	assert_non_null(prompt);
	for (size_t i = 0; i < n_prompt; i++)
		prompt[i] = (int32_t)(3 + i * 7 % (FAKE_N_VOCAB - 3));
	assert_int_equal(engine_request_new(&r, em, 1, id, id == N_STREAMS, prompt, n_prompt, &params, &c->sink), 0);
	assert_int_equal(engine_submit(e, r, NULL), 0);
}

static void wait_for_end(struct clock_sink *c)
{
	pthread_mutex_lock(&c->lock);
	while (c->n_released < N_STREAMS + 1)
		pthread_cond_wait(&c->changed, &c->lock);
	pthread_mutex_unlock(&c->lock);
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* The longest gap of any stream in those at the median. */
static double longest_gap(const struct clock_sink *c)
{
	static uint64_t gaps[N_STREAMS * N_TOKENS];
	double longest;
	size_t n = 0;

	for (uint32_t s = 0; s < N_STREAMS; s++)
		for (uint32_t i = 1; i < c->n[s]; i++)
			gaps[n++] = c->ns[s][i] - c->ns[s][i - 1];
	qsort(gaps, n, sizeof(*gaps), by_size);
	longest = (double)gaps[n - 1];
	n /= 2;
	return longest / (double)gaps[n];
}

/* Streams run, a prompt comes in the middle; or it comes first. */
static double run(const struct device *d, uint32_t gap_percent, bool prompt_first)
{
	struct clock_sink c = {
		.sink.ops = &note_ops, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER,
	};
	struct engine_config config = {
		.backend = &fake_backend, .kv_memory = 16 * MIB, .max_seqs = 8, .prefill_quantum = QUANTUM_BESIDE,
		.gap_percent = gap_percent, .accounts = fake_accounts(UINT64_MAX, UINT64_MAX, UINT64_MAX),
	};
	struct engine_model *em = NULL;
	struct engine *e = NULL;

	srand(1);
	device = *d;
	fake_reset(QUANTUM_BESIDE);
	fake.ran = advance_clock;
	assert_int_equal(engine_new(&e, &config, NULL), 0);
	assert_int_equal(engine_add_model(e, &long_model, &em, NULL), 0);
	fake.n_allowed = prompt_first ? 0 : 60;
	/* Of an account of its own: inside one, prompts come one after the other. */
	if (prompt_first) {
		ask(e, em, &c, N_STREAMS, N_PROMPT, 1);
		fake_wait_step(1);
	}
	for (uint64_t s = 0; s < N_STREAMS; s++)
		ask(e, em, &c, s, 20 + s, N_TOKENS);
	if (!prompt_first) {
		fake_wait_step(61);
		ask(e, em, &c, N_STREAMS, N_PROMPT, 1);
	}
	fake_allow(UINT64_MAX);
	wait_for_end(&c);
	engine_free(e);
	engine_model_free(em);
	fake_check_nothing_charged(config.accounts, 8);
	accounts_free(config.accounts);
	if (fake.n_violations)
		fail_msg("%s (%u in all)", fake.violation, fake.n_violations);
	return longest_gap(&c);
}

/* The bound, and what it is without. */
static void test_longest_gap(void **state)
{
	static const struct device devices[] = {
		{ .weights = 6e6, .row = 4e5, .attention = 100 },
		{ .weights = 6e6, .row = 4e5, .attention = 100, .noise = 0.2 },
		{ .weights = 4e7, .row = 4e6, .attention = 1000, .noise = 0.1 },
		{ .weights = 1e7, .row = 1e5, .attention = 10, .noise = 0.1 },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(devices); i++) {
		double without = run(&devices[i], 0, false), with = run(&devices[i], 300, false);

		if (with > 4)
			fail_msg("device %zu: the longest gap is %.2f times the median", i, with);
		/* Most of the prompt was computed beside the streams, in as large pieces as may be. */
		assert_true(device.n_beside > 20 && device.max_beside > 10);
		if (device.weights < 8 * device.row * QUANTUM_BESIDE / 10)
			assert_true(without > 4.5);
	}
}

/* Nothing is known of either when both begin: it is found out, and prompts get on. */
static void test_nothing_known(void **state)
{
	const struct device d = { .weights = 6e6, .row = 4e5, .attention = 100, .noise = 0.1 };
	double longest = run(&d, 300, true);

	(void)state;
	if (longest > 4)
		fail_msg("the longest gap is %.2f times the median", longest);
	assert_true(device.n_beside > 20 && device.max_beside > 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_longest_gap),
		cmocka_unit_test(test_nothing_known),
	};

	alarm(120);	/* a hang is a failure */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
