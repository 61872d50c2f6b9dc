/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/metrics-text.h"

#include <inttypes.h>

#define NS_PER_S UINT64_C(1000000000)

/* The head of a metric; its samples follow. */
static void family(FILE *out, const char *name, const char *type, const char *help)
{
	fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* A label's value: backslash, quote and line feed are escaped; names are UTF-8 already. */
static void label(FILE *out, const char *name, const char *value)
{
	fprintf(out, "%s=\"", name);
	for (const char *c = value; *c; c++) {
		if (*c == '\n')
			fputs("\\n", out);
		else if (*c == '\\' || *c == '"')
			fprintf(out, "\\%c", *c);
		else
			fputc(*c, out);
	}
	fputc('"', out);
}

/* A sample without labels (of NULL), or with one. */
static void sample(FILE *out, const char *name, const char *of, const char *value, uint64_t n)
{
	fputs(name, out);
	if (of) {
		fputc('{', out);
		label(out, of, value);
		fputc('}', out);
	}
	fprintf(out, " %" PRIu64 "\n", n);
}

static void seconds(FILE *out, uint64_t ns)
{
	fprintf(out, "%" PRIu64 ".%09" PRIu64, ns / NS_PER_S, ns % NS_PER_S);
}

static void gauge(FILE *out, const char *name, const char *help, uint64_t n)
{
	family(out, name, "gauge", help);
	sample(out, name, NULL, NULL, n);
}

static void counter(FILE *out, const char *name, const char *help, uint64_t n)
{
	family(out, name, "counter", help);
	sample(out, name, NULL, NULL, n);
}

static void seconds_counter(FILE *out, const char *name, const char *help, uint64_t ns)
{
	family(out, name, "counter", help);
	fprintf(out, "%s ", name);
	seconds(out, ns);
	fputc('\n', out);
}

/* Its samples count up to a bound, the smaller ones included. */
static void histogram(FILE *out, const char *name, const char *help, const struct latency_figures *l)
{
	uint64_t n = 0;

	family(out, name, "histogram", help);
	for (size_t i = 0; i < LATENCY_N_BOUNDS; i++) {
		n += l->counts[i];
		fprintf(out, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, (double)latency_bounds[i] / NS_PER_S, n);
	}
	n += l->counts[LATENCY_N_BOUNDS];
	fprintf(out, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n%s_sum ", name, n, name);
	seconds(out, l->sum_ns);
	fprintf(out, "\n%s_count %" PRIu64 "\n", name, n);
}

/* --- for everyone ----------------------------------------------------------------- */

static void write_daemon(FILE *out, const struct metrics *m)
{
	family(out, "kvd_info", "gauge", "What runs: always 1.");
	fputs("kvd_info{", out);
	label(out, "version", m->version);
	fputc(',', out);
	label(out, "device", m->device);
	fputc(',', out);
	label(out, "level", m->level);
	fputc(',', out);
	label(out, "kv_type", m->kv_type);
	fputs("} 1\n", out);
	gauge(out, "kvd_ready", "Whether the models of the configuration are loaded.", m->ready);
	family(out, "kvd_uptime_seconds", "gauge", "Since the daemon started.");
	fputs("kvd_uptime_seconds ", out);
	seconds(out, m->uptime_ns);
	fputc('\n', out);
	gauge(out, "kvd_threads", "Threads that compute.", m->n_threads);
	gauge(out, "kvd_kv_bytes", "Memory for keys and values, used or not.", m->kv_bytes);
	gauge(out, "kvd_weight_bytes", "Memory that weights take.", m->weight_bytes);
	gauge(out, "kvd_models", "Models that are loaded.", m->n_models);
}

static void write_models(FILE *out, const struct metrics *m)
{
	family(out, "kvd_model_context_tokens", "gauge", "The longest sequence, by model.");
	for (size_t i = 0; i < m->n_models; i++)
		sample(out, "kvd_model_context_tokens", "model", m->models[i].name, m->models[i].n_ctx);
	family(out, "kvd_model_weight_bytes", "gauge", "Memory that weights take, by model.");
	for (size_t i = 0; i < m->n_models; i++)
		sample(out, "kvd_model_weight_bytes", "model", m->models[i].name, m->models[i].weight_bytes);
	family(out, "kvd_model_block_tokens", "gauge", "Tokens in a block of keys and values, by model.");
	for (size_t i = 0; i < m->n_models; i++)
		sample(out, "kvd_model_block_tokens", "model", m->models[i].name, m->models[i].block_tokens);
	family(out, "kvd_model_block_bytes", "gauge", "Bytes of such a block, by model.");
	for (size_t i = 0; i < m->n_models; i++)
		sample(out, "kvd_model_block_bytes", "model", m->models[i].name, m->models[i].block_bytes);
}

/* --- of one, or of all -------------------------------------------------------------- */

static void write_figures(FILE *out, const struct stats_figures *f)
{
	family(out, "kvd_requests_total", "counter", "Requests that have ended.");
	sample(out, "kvd_requests_total", "outcome", "done", f->requests_done);
	sample(out, "kvd_requests_total", "outcome", "cancelled", f->requests_cancelled);
	sample(out, "kvd_requests_total", "outcome", "failed", f->requests_failed);
	counter(out, "kvd_prompt_tokens_total", "Tokens of prompts, cached ones included.", f->prompt_tokens);
	counter(out, "kvd_generated_tokens_total", "Tokens that were generated.", f->generated_tokens);
	counter(out, "kvd_cache_lookups_total", "Requests that looked into the cache.", f->cache_lookups);
	counter(out, "kvd_cache_hits_total", "Requests that found something there.", f->cache_hits);
	counter(out, "kvd_cache_tokens_total", "Tokens of prompts that were found there.", f->cached_tokens);
	histogram(out, "kvd_queue_seconds", "From a request to the beginning of its work.", &f->queue);
	histogram(out, "kvd_first_token_seconds", "From a request to its first token.", &f->first_token);
	histogram(out, "kvd_token_gap_seconds", "Between two tokens of a request.", &f->gap);
}

static void write_holdings(FILE *out, const struct metrics_holdings *h)
{
	gauge(out, "kvd_requests", "Requests that wait or run.", h->requests);
	gauge(out, "kvd_sessions", "Clients that are connected.", h->sessions);
	gauge(out, "kvd_kv_charged_bytes", "Keys and values of sequences and cache that are charged.", h->kv_bytes);
	gauge(out, "kvd_memory_charged_bytes", "Buffers, segments and prompts that are charged.", h->memory_bytes);
}

/* --- for administrators ---------------------------------------------------------------- */

static void write_engine(FILE *out, const struct engine_stats *e)
{
	family(out, "kvd_engine_requests", "gauge", "Requests in the engine.");
	sample(out, "kvd_engine_requests", "state", "running", e->n_running);
	sample(out, "kvd_engine_requests", "state", "queued", e->n_queued);
	sample(out, "kvd_engine_requests", "state", "parked", e->n_parked);
	counter(out, "kvd_engine_steps_total", "Passes over the weights.", e->steps);
	seconds_counter(out, "kvd_engine_busy_seconds_total", "Time in them.", e->busy_ns);
	counter(out, "kvd_engine_prompt_tokens_total", "Tokens of prompts that were computed.", e->prompt_tokens);
	counter(out, "kvd_engine_preemptions_total", "Times that a sequence gave its blocks to others.",
		e->preemptions);
	gauge(out, "kvd_kv_used_bytes", "Keys and values of sequences, and pinned ones.", e->kv_bytes_used);
	gauge(out, "kvd_kv_open_bytes", "Beside them, blocks that are not full, where the type keeps them apart.",
	      e->open_bytes);
	family(out, "kvd_kv_blocks", "gauge", "Blocks of keys and values.");
	sample(out, "kvd_kv_blocks", "state", "used", e->blocks_used);
	sample(out, "kvd_kv_blocks", "state", "cached", e->blocks_cached);
	sample(out, "kvd_kv_blocks", "state", "free", e->blocks_free);
	counter(out, "kvd_cache_evicted_total", "Entries of the cache that made room for others.", e->cache_evicted);
}

static void write_host(FILE *out, const struct engine_stats *e)
{
	gauge(out, "kvd_host_bytes", "The tier behind the pool: what it may take.", e->host_bytes);
	gauge(out, "kvd_host_used_bytes", "What it takes.", e->host_bytes_used);
	gauge(out, "kvd_host_blocks", "Blocks there.", e->host_blocks);
	counter(out, "kvd_host_stored_total", "Blocks that went there.", e->host_stored);
	counter(out, "kvd_host_restored_total", "Blocks that came back.", e->host_restored);
	counter(out, "kvd_host_damaged_total", "Blocks that could not.", e->host_damaged);
}

static void write_kept(FILE *out, const struct engine_stats *e)
{
	gauge(out, "kvd_kept_blocks", "Blocks that the next process would find.", e->blocks_kept);
	gauge(out, "kvd_kept_dormant_bytes", "Of models that are not loaded.", e->kv_bytes_dormant);
	counter(out, "kvd_kept_adopted_total", "Blocks that were found of an earlier process or load.",
		e->kept_adopted);
	counter(out, "kvd_kept_verified_total", "Those that were used.", e->kept_verified);
	counter(out, "kvd_kept_damaged_total", "Those that were damaged.", e->kept_damaged);
}

static void write_disk(FILE *out, const struct disk_store_stats *d)
{
	gauge(out, "kvd_disk_bytes", "The cache on disk: what its files may take.", d->max_bytes);
	gauge(out, "kvd_disk_used_bytes", "What they take.", d->bytes);
	gauge(out, "kvd_disk_useless_bytes", "Of them, of loaded models, but of another type, size of blocks or level.",
	      d->useless_bytes);
	gauge(out, "kvd_disk_blocks", "Blocks there, of models that are loaded.", d->n_blocks);
	counter(out, "kvd_disk_lookups_total", "Prompts that were looked for there.", d->lookups);
	counter(out, "kvd_disk_hits_total", "Those of which something was found.", d->hits);
	counter(out, "kvd_disk_written_total", "Blocks written.", d->written);
	counter(out, "kvd_disk_read_total", "Blocks read.", d->read);
	counter(out, "kvd_disk_evicted_total", "Blocks that made room for others.", d->evicted);
	counter(out, "kvd_disk_damaged_total", "Blocks found damaged.", d->damaged);
	counter(out, "kvd_disk_errors_total", "Errors of the medium.", d->errors);
}

/* By model: a family has its samples together, so each goes over all models. */
static const struct {
	const char *name, *type, *help;
	size_t offset;
	enum { U32, U64, NS } kind;
} model_rows[] = {
#define ROW(name, type, help, member, kind) { name, type, help, offsetof(struct engine_model_stats, member), kind }
	ROW("kvd_model_requests_running", "gauge", "Running requests, by model.", n_running, U32),
	ROW("kvd_model_requests_queued", "gauge", "Waiting requests, by model.", n_queued, U32),
	ROW("kvd_model_requests_parked", "gauge", "Requests whose reader is slow, by model.", n_parked, U32),
	ROW("kvd_model_steps_total", "counter", "Passes over the weights, by model.", steps, U64),
	ROW("kvd_model_busy_seconds_total", "counter", "Time in them, by model.", busy_ns, NS),
	ROW("kvd_model_prompt_tokens_total", "counter", "Tokens of prompts that were computed, by model.",
	    prompt_tokens, U64),
	ROW("kvd_model_generated_tokens_total", "counter", "Tokens that were generated, by model.",
	    generated_tokens, U64),
	ROW("kvd_model_kv_used_bytes", "gauge", "Keys and values of sequences, by model.", kv_bytes_used, U64),
	ROW("kvd_model_blocks_used", "gauge", "Blocks in use, by model.", blocks_used, U32),
	ROW("kvd_model_blocks_cached", "gauge", "Blocks of the cache in memory, by model.", blocks_cached, U32),
	ROW("kvd_model_blocks_host", "gauge", "Blocks in the tier behind it, by model.", host_blocks, U32),
#undef ROW
};

static void write_model_stats(FILE *out, const struct metrics *m)
{
	for (size_t row = 0; row < sizeof(model_rows) / sizeof(*model_rows); row++) {
		family(out, model_rows[row].name, model_rows[row].type, model_rows[row].help);
		for (size_t i = 0; i < m->n_models; i++) {
			const char *at = (const char *)m->models[i].stats + model_rows[row].offset;
			uint64_t n = model_rows[row].kind == U32 ? *(const uint32_t *)(const void *)at
								 : *(const uint64_t *)(const void *)at;

			if (model_rows[row].kind != NS) {
				sample(out, model_rows[row].name, "model", m->models[i].name, n);
				continue;
			}
			fprintf(out, "%s{", model_rows[row].name);
			label(out, "model", m->models[i].name);
			fputs("} ", out);
			seconds(out, n);
			fputc('\n', out);
		}
	}
}

/* By account. */
static const struct {
	const char *name, *type, *help;
	size_t offset;
} account_rows[] = {
#define ROW(name, type, help, member) { name, type, help, offsetof(struct metrics_account, member) }
	ROW("kvd_account_requests", "gauge", "Requests that wait or run, by account.", holdings.requests),
	ROW("kvd_account_sessions", "gauge", "Clients that are connected, by account.", holdings.sessions),
	ROW("kvd_account_kv_bytes", "gauge", "Keys and values that are charged, by account.", holdings.kv_bytes),
	ROW("kvd_account_memory_bytes", "gauge", "Buffers that are charged, by account.", holdings.memory_bytes),
	ROW("kvd_account_prompt_tokens_total", "counter", "Tokens of prompts, by account.", figures.prompt_tokens),
	ROW("kvd_account_generated_tokens_total", "counter", "Tokens that were generated, by account.",
	    figures.generated_tokens),
	ROW("kvd_account_cached_tokens_total", "counter", "Tokens of prompts that were cached, by account.",
	    figures.cached_tokens),
#undef ROW
};

static void write_accounts(FILE *out, const struct metrics *m)
{
	for (size_t row = 0; row < sizeof(account_rows) / sizeof(*account_rows); row++) {
		family(out, account_rows[row].name, account_rows[row].type, account_rows[row].help);
		for (size_t i = 0; i < m->n_accounts; i++) {
			const char *at = (const char *)&m->accounts[i] + account_rows[row].offset;

			sample(out, account_rows[row].name, "account", m->accounts[i].name,
			       *(const uint64_t *)(const void *)at);
		}
	}
}

static void write_http(FILE *out, const struct http_counts *h, uint64_t n_open)
{
	static const char *const classes[HTTP_COUNTS_CLASSES] = { "gone", "1xx", "2xx", "3xx", "4xx", "5xx" };

	gauge(out, "kvd_http_connections", "Open connections.", n_open);
	counter(out, "kvd_http_connections_total", "Connections that were accepted.", h->connections);
	counter(out, "kvd_http_connections_refused_total", "Connections that were one too many.",
		h->connections_refused);
	gauge(out, "kvd_http_streams", "Replies under way that come piece by piece.", h->streams_open);
	counter(out, "kvd_http_streams_total", "Such replies.", h->streams);
	counter(out, "kvd_http_received_bytes_total", "Bodies of requests.", h->bytes_received);
	counter(out, "kvd_http_sent_bytes_total", "Bodies of replies.", h->bytes_sent);
	family(out, "kvd_http_requests_total", "counter", "Requests by route and status; gone: nobody waited for it.");
	for (size_t i = 0; i < HTTP_COUNTS_ROUTES_MAX && h->routes[i].name; i++) {
		for (size_t class = 0; class < HTTP_COUNTS_CLASSES; class++) {
			if (!h->routes[i].replies[class])
				continue;
			fputs("kvd_http_requests_total{", out);
			label(out, "route", h->routes[i].name);
			fputc(',', out);
			label(out, "status", classes[class]);
			fprintf(out, "} %" PRIu64 "\n", h->routes[i].replies[class]);
		}
	}
}

void metrics_write(FILE *out, const struct metrics *m)
{
	write_daemon(out, m);
	write_models(out, m);
	if (m->figures)
		write_figures(out, m->figures);
	if (m->holdings)
		write_holdings(out, m->holdings);
	if (m->engine) {
		write_engine(out, m->engine);
		write_host(out, m->engine);
		write_kept(out, m->engine);
	}
	if (m->disk)
		write_disk(out, m->disk);
	if (m->n_models && m->models[0].stats)
		write_model_stats(out, m);
	if (m->n_accounts)
		write_accounts(out, m);
	if (m->http)
		write_http(out, m->http, m->http_connections);
}
