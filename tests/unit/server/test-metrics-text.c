/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics: read back by a strict parser of the text format; what is told to whom; what the pages count. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/server/metrics-text.h"
#include "ipc/base/account.h"
#include "ipc/base/checked.h"

/* --- the parser ------------------------------------------------------------------- */

#define SAMPLES_MAX 512

struct text {
	char *data;
	struct sample {
		char name[96], labels[256], type[16];
		double value;
	} samples[SAMPLES_MAX];
	size_t n;
};

static bool is_name(char c, bool first)
{
	return (c >= 'a' && c <= 'z') || c == '_' || (!first && c >= '0' && c <= '9');
}

static const char *take_name(const char *at, char *out, size_t max)
{
	size_t n = 0;

	assert_true(is_name(*at, true));
	while (is_name(at[n], n == 0))
		n++;
	assert_true(n < max);
	memcpy(out, at, n);
	out[n] = '\0';
	return at + n;
}

/* name="value",...: every escape is one of three, and nothing else is escaped. */
static const char *take_labels(const char *at, char *out, size_t max)
{
	const char *begin = at;
	char name[64];

	for (;;) {
		at = take_name(at, name, sizeof(name));
		assert_int_equal(*at++, '=');
		assert_int_equal(*at++, '"');
		while (*at != '"') {
			assert_true(*at && *at != '\n');
			if (*at == '\\') {
				at++;
				assert_true(*at == '\\' || *at == '"' || *at == 'n');
			}
			at++;
		}
		at++;
		if (*at == '}')
			break;
		assert_int_equal(*at++, ',');
	}
	assert_true((size_t)(at - begin) < max);
	memcpy(out, begin, (size_t)(at - begin));
	out[at - begin] = '\0';
	return at + 1;
}

/* Whether name is the family itself, or one of what a histogram has. */
static bool belongs(const char *name, const char *family, const char *type)
{
	size_t n = strlen(family);

	if (strcmp(type, "histogram") != 0)
		return strcmp(name, family) == 0;
	return strncmp(name, family, n) == 0 && (strcmp(name + n, "_bucket") == 0 || strcmp(name + n, "_sum") == 0 ||
						 strcmp(name + n, "_count") == 0);
}

static void check_family(const struct text *t, const char *family, const char *type)
{
	size_t n = strlen(family);

	assert_memory_equal(family, "kvd_", 4);
	assert_int_equal(n > 6 && strcmp(family + n - 6, "_total") == 0, strcmp(type, "counter") == 0);
	assert_true(strcmp(type, "counter") == 0 || strcmp(type, "gauge") == 0 || strcmp(type, "histogram") == 0);
	/* Each family once. */
	for (size_t i = 0; i < t->n; i++)
		assert_false(belongs(t->samples[i].name, family, t->samples[i].type));
}

static void parse(struct text *t)
{
	char family[96] = "", type[16] = "", word[96];
	const char *at = t->data;

	t->n = 0;
	assert_true(strlen(at) > 0 && at[strlen(at) - 1] == '\n');
	while (*at) {
		if (*at == '#') {
			assert_memory_equal(at, "# HELP ", 7);
			at = take_name(at + 7, family, sizeof(family));
			assert_int_equal(*at, ' ');
			at = strchr(at, '\n') + 1;
			assert_memory_equal(at, "# TYPE ", 7);
			at = take_name(at + 7, word, sizeof(word));
			assert_string_equal(word, family);
			assert_int_equal(*at, ' ');
			at = take_name(at + 1, type, sizeof(type));
			assert_int_equal(*at++, '\n');
			check_family(t, family, type);
		} else {
			struct sample *s = &t->samples[t->n];
			char *end;

			assert_true(t->n < SAMPLES_MAX);
			at = take_name(at, s->name, sizeof(s->name));
			assert_true(belongs(s->name, family, type));
			s->labels[0] = '\0';
			if (*at == '{')
				at = take_labels(at + 1, s->labels, sizeof(s->labels));
			for (size_t i = 0; i < t->n; i++)
				assert_false(strcmp(t->samples[i].name, s->name) == 0 &&
					     strcmp(t->samples[i].labels, s->labels) == 0);
			assert_int_equal(*at++, ' ');
			s->value = strtod(at, &end);
			assert_true(end > at);
			at = end;
			assert_int_equal(*at++, '\n');
			strcpy(s->type, type);
			t->n++;
		}
	}
}

static void get_text(struct text *t, const struct metrics *m)
{
	size_t n = 0;
	FILE *f;

	free(t->data);
	t->data = NULL;
	f = open_memstream(&t->data, &n);
	assert_non_null(f);
	metrics_write(f, m);
	assert_int_equal(ferror(f), 0);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(strlen(t->data), n);
	parse(t);
}

static const struct sample *find(const struct text *t, const char *name, const char *labels)
{
	for (size_t i = 0; i < t->n; i++) {
		if (strcmp(t->samples[i].name, name) == 0 && strcmp(t->samples[i].labels, labels) == 0)
			return &t->samples[i];
	}
	return NULL;
}

static void expect(const struct text *t, const char *name, const char *labels, double value)
{
	const struct sample *s = find(t, name, labels);

	if (!s)
		fail_msg("no %s{%s} in\n%s", name, labels, t->data);
	else if (s->value != value)
		fail_msg("%s{%s} is %g, not %g", name, labels, s->value, value);
}

/* --- figures ------------------------------------------------------------------------ */

static const struct engine_model_stats model_stats = { .steps = 11, .busy_ns = 1500000000, .n_running = 3 };
static const struct engine_stats engine = {
	.steps = 21, .busy_ns = 2000000001, .blocks_free = 77, .host_bytes = 1 << 20, .blocks_kept = 5,
	.prompt_tokens = UINT64_MAX,
};
static const struct disk_store_stats disk = { .max_bytes = 1000, .errors = 2 };
static const struct metrics_holdings holdings = { .requests = 4, .sessions = 2, .kv_bytes = 4096 };
static const struct metrics_model models[] = {
	{ .name = "a", .n_ctx = 2048, .weight_bytes = 100, .block_tokens = 32, .block_bytes = 5120 },
	{ .name = "odd \"name\" \\ \xc3\xa9\n", .n_ctx = 128 },
};
static struct stats_figures figures;

static const struct metrics everyone = {
	.version = "1.2", .device = "cpu", .level = "avx2", .kv_type = "q8", .ready = true, .uptime_ns = 3000000007,
	.n_threads = 2, .kv_bytes = 1 << 26, .weight_bytes = 100, .models = models, .n_models = 2,
};

static void test_everyone(void **state)
{
	struct text *t = *state;

	get_text(t, &everyone);
	expect(t, "kvd_info", "version=\"1.2\",device=\"cpu\",level=\"avx2\",kv_type=\"q8\"", 1);
	expect(t, "kvd_ready", "", 1);
	expect(t, "kvd_uptime_seconds", "", 3.000000007);
	expect(t, "kvd_model_context_tokens", "model=\"a\"", 2048);
	expect(t, "kvd_model_block_tokens", "model=\"a\"", 32);
	expect(t, "kvd_model_block_bytes", "model=\"a\"", 5120);
	expect(t, "kvd_model_context_tokens", "model=\"odd \\\"name\\\" \\\\ \xc3\xa9\\n\"", 128);
	/* Nothing that anyone does is in it. */
	for (size_t i = 0; i < t->n; i++) {
		static const char *const known[] = {
			"kvd_info", "kvd_ready", "kvd_uptime_seconds", "kvd_threads", "kvd_kv_bytes",
			"kvd_weight_bytes", "kvd_models", "kvd_model_context_tokens", "kvd_model_weight_bytes",
			"kvd_model_block_tokens", "kvd_model_block_bytes",
		};
		bool found = false;

		for (size_t k = 0; k < ARRAY_SIZE(known); k++)
			found |= strcmp(known[k], t->samples[i].name) == 0;
		if (!found)
			fail_msg("%s is for everyone", t->samples[i].name);
	}
}

static void test_own(void **state)
{
	struct text *t = *state;
	struct metrics m = everyone;

	figures = (struct stats_figures){ .prompt_tokens = 9, .requests_failed = 1 };
	figures.gap.counts[0] = 5;
	figures.gap.counts[3] = 2;
	figures.gap.counts[LATENCY_N_BOUNDS] = 1;
	figures.gap.sum_ns = 200000000000;
	m.figures = &figures;
	m.holdings = &holdings;
	get_text(t, &m);
	expect(t, "kvd_prompt_tokens_total", "", 9);
	expect(t, "kvd_requests_total", "outcome=\"failed\"", 1);
	expect(t, "kvd_requests", "", 4);
	expect(t, "kvd_kv_charged_bytes", "", 4096);
	expect(t, "kvd_token_gap_seconds_bucket", "le=\"0.001\"", 5);
	expect(t, "kvd_token_gap_seconds_bucket", "le=\"0.005\"", 5);
	expect(t, "kvd_token_gap_seconds_bucket", "le=\"0.01\"", 7);
	expect(t, "kvd_token_gap_seconds_bucket", "le=\"120\"", 7);
	expect(t, "kvd_token_gap_seconds_bucket", "le=\"+Inf\"", 8);
	expect(t, "kvd_token_gap_seconds_count", "", 8);
	expect(t, "kvd_token_gap_seconds_sum", "", 200);
	expect(t, "kvd_queue_seconds_bucket", "le=\"+Inf\"", 0);
	assert_null(find(t, "kvd_engine_steps_total", ""));
	assert_null(find(t, "kvd_http_connections", ""));
}

static void test_administrator(void **state)
{
	static struct metrics_model with_stats[ARRAY_SIZE(models)];
	static const struct metrics_account accounts[] = {
		{ .name = "uid:0", .figures.generated_tokens = 5 },
		{ .name = "key:a\"b", .holdings.kv_bytes = 8 },
	};
	struct http_counts http = { .connections = 3, .bytes_sent = 12 };
	static const char route[] = "/v1/models";
	struct text *t = *state;
	struct metrics m = everyone;

	for (size_t i = 0; i < ARRAY_SIZE(models); i++) {
		with_stats[i] = models[i];
		with_stats[i].stats = &model_stats;
	}
	for (unsigned i = 0; i < 5; i++)
		http_counts_reply(&http, route, 200);
	http_counts_reply(&http, HTTP_COUNTS_OTHER, 404);
	http_counts_reply(&http, HTTP_COUNTS_OTHER, 0);
	http_counts_reply(&http, route, 503);
	m.models = with_stats;
	m.figures = &figures;
	m.holdings = &holdings;
	m.engine = &engine;
	m.disk = &disk;
	m.http = &http;
	m.accounts = accounts;
	m.n_accounts = ARRAY_SIZE(accounts);
	get_text(t, &m);
	expect(t, "kvd_engine_busy_seconds_total", "", 2.000000001);
	assert_non_null(strstr(t->data, "\nkvd_engine_prompt_tokens_total 18446744073709551615\n"));
	expect(t, "kvd_kv_blocks", "state=\"free\"", 77);
	expect(t, "kvd_host_bytes", "", 1 << 20);
	expect(t, "kvd_kept_blocks", "", 5);
	expect(t, "kvd_disk_errors_total", "", 2);
	expect(t, "kvd_model_busy_seconds_total", "model=\"a\"", 1.5);
	expect(t, "kvd_model_requests_running", "model=\"a\"", 3);
	expect(t, "kvd_model_steps_total", "model=\"a\"", 11);
	expect(t, "kvd_account_generated_tokens_total", "account=\"uid:0\"", 5);
	expect(t, "kvd_account_kv_bytes", "account=\"key:a\\\"b\"", 8);
	expect(t, "kvd_http_requests_total", "route=\"/v1/models\",status=\"2xx\"", 5);
	expect(t, "kvd_http_requests_total", "route=\"/v1/models\",status=\"5xx\"", 1);
	expect(t, "kvd_http_requests_total", "route=\"other\",status=\"4xx\"", 1);
	expect(t, "kvd_http_requests_total", "route=\"other\",status=\"gone\"", 1);
	expect(t, "kvd_http_sent_bytes_total", "", 12);
}

/* A disk that is full, in place of memory that is not there. */
static void test_no_room(void **state)
{
	FILE *f = fopen("/dev/full", "w");

	if (!f)
		skip();
	metrics_write(f, &everyone);
	fflush(f);
	assert_true(ferror(f));
	fclose(f);
}

/* --- what the pages count -------------------------------------------------------------- */

static uint64_t total(const struct latency_figures *l)
{
	uint64_t n = 0;

	for (size_t i = 0; i <= LATENCY_N_BOUNDS; i++)
		n += l->counts[i];
	return n;
}

static void request(struct stats_page *page, unsigned n_tokens)
{
	struct sink_event token = { .type = SINK_TOKEN };
	struct sink_event usage = {
		.type = SINK_USAGE,
		.usage = { .prompt_tokens = 3, .generated_tokens = n_tokens, .queue_ns = 1000000, .prefill_ns = 1 },
	};
	struct sink_event done = { .type = SINK_DONE, .done.reason = SINK_FINISH_LENGTH };

	for (unsigned i = 0; i < n_tokens; i++) {
		token.token.gap_ns = i ? 7000000 : 0;
		stats_page_count(page, &token);
	}
	stats_page_count(page, &usage);
	stats_page_count(page, &done);
}

static void test_pages(void **state)
{
	struct account_limits limits;
	struct accounts *accounts = NULL;
	struct stats_pages *pages = NULL;
	struct stats_figures f;
	uid_t uids[2];
	enum { N = STATS_PAGES_IDLE_MAX + 20 };

	memset(&limits, 0xff, sizeof(limits));
	assert_int_equal(accounts_new(&accounts, &limits), 0);
	assert_int_equal(stats_pages_new(&pages, accounts, 0), 0);
	/* More than are kept: what the forgotten ones counted stays in the sum. */
	for (uid_t uid = 0; uid < N; uid++) {
		struct stats_page *page = NULL;

		assert_int_equal(stats_pages_get(pages, uid, &page), 0);
		request(page, 4);
		request(page, 0);
		stats_page_unref(page);
		stats_pages_figures(pages, &f);
		assert_int_equal(f.requests_done, 2 * (uid + 1));
	}
	assert_int_equal(f.generated_tokens, 4 * N);
	assert_int_equal(f.prompt_tokens, 6 * N);
	assert_int_equal(total(&f.queue), 2 * N);
	/* A bound belongs to what is below it. */
	assert_int_equal(f.queue.counts[0], 2 * N);
	assert_int_equal(f.first_token.counts[1], N);
	assert_int_equal(total(&f.first_token), N);
	assert_int_equal(f.gap.counts[3], 3 * N);
	assert_int_equal(total(&f.gap), 3 * N);
	assert_int_equal(f.gap.sum_ns, UINT64_C(3) * N * 7000000);
	stats_pages_figures_of(pages, N - 1, &f);
	assert_int_equal(f.generated_tokens, 4);
	assert_int_equal(total(&f.gap), 3);
	stats_pages_figures_of(pages, 100000, &f);
	assert_int_equal(f.requests_done, 0);
	assert_int_equal(stats_pages_uids(pages, uids, 2), 2);
	stats_pages_free(pages);
	accounts_free(accounts);
}

static int set_up(void **state)
{
	*state = calloc(1, sizeof(struct text));
	return *state ? 0 : -1;
}

static int tear_down(void **state)
{
	free(((struct text *)*state)->data);
	free(*state);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_everyone, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_own, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_administrator, set_up, tear_down),
		cmocka_unit_test(test_no_room),
		cmocka_unit_test(test_pages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
