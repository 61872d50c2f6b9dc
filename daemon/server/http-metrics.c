/* SPDX-License-Identifier: Apache-2.0 */
/* GET /metrics: what is gathered for whom; metrics-text.h writes it. */
#include <stdlib.h>
#include <unistd.h>

#include "daemon/server/http-exchange.h"
#include "daemon/server/http-keys.h"
#include "daemon/server/http-server.h"
#include "daemon/server/metrics-text.h"
#include "daemon/server/server-internal.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"

#define ACCOUNTS_MAX 256	/* more than there are pages */

struct gathered {
	struct metrics metrics;
	struct metrics_model models[KVD_MODELS_MAX];
	struct engine_model_stats model_stats[KVD_MODELS_MAX];
	struct engine_stats engine;
	struct disk_store_stats disk;
	struct stats_figures figures;
	struct metrics_holdings holdings;
	struct metrics_account accounts[ACCOUNTS_MAX];
};

static void hold(const uint64_t used[ACCOUNT_N_KINDS], struct metrics_holdings *out)
{
	*out = (struct metrics_holdings){
		.requests = used[ACCOUNT_REQUESTS], .sessions = used[ACCOUNT_SESSIONS],
		.kv_bytes = used[ACCOUNT_KV], .memory_bytes = used[ACCOUNT_MEMORY],
	};
}

static void hold_of(struct accounts *accounts, uid_t account, struct metrics_holdings *out)
{
	uint64_t used[ACCOUNT_N_KINDS];

	for (int kind = 0; kind < ACCOUNT_N_KINDS; kind++)
		used[kind] = account_used(accounts, account, (enum account_kind)kind);
	hold(used, out);
}

static void gather_daemon(struct server *s, struct gathered *g)
{
	const struct model_host *host = models_host(s->models);
	struct engine *engine = models_engine(s->models);
	struct metrics *m = &g->metrics;

	*m = (struct metrics){
		.version = KVD_VERSION, .device = model_host_device(host), .level = model_host_level(host),
		.kv_type = kv_type_name(s->config.kv_type),
		.ready = s->ready, .uptime_ns = clock_ns() - s->started_ns,
		.n_threads = model_host_n_threads(host), .weight_bytes = models_weight_bytes(s->models),
		.models = g->models,
	};
	if (engine)
		engine_stats(engine, &g->engine);
	m->kv_bytes = g->engine.kv_bytes;
}

/* is_admin: with what goes on in each. */
static void gather_models(struct server *s, struct gathered *g, bool is_admin)
{
	struct engine *engine = models_engine(s->models);
	size_t n = 0;

	for (const struct served_model *m = models_next(s->models, NULL); m && n < KVD_MODELS_MAX;
	     m = models_next(s->models, m)) {
		if (m->state != SERVED_READY)
			continue;
		g->models[n] = (struct metrics_model){
			.name = m->name, .n_ctx = engine_model_n_ctx(m->hosted.engine_model),
			.weight_bytes = model_info(m->hosted.model)->weight_bytes,
			.block_tokens = engine_model_block_tokens(m->hosted.engine_model),
			.block_bytes = engine_model_block_bytes(m->hosted.engine_model),
		};
		if (is_admin) {
			engine_model_stats(engine, m->hosted.engine_model, &g->model_stats[n]);
			g->models[n].stats = &g->model_stats[n];
		}
		n++;
	}
	g->metrics.n_models = n;
}

static void gather_own(struct server *s, struct gathered *g, uid_t account)
{
	stats_pages_figures_of(s->pages, account, &g->figures);
	hold_of(s->accounts, account, &g->holdings);
	g->metrics.figures = &g->figures;
	g->metrics.holdings = &g->holdings;
}

static void name_account(const struct http_keys *keys, uid_t account, char *out, size_t n)
{
	const struct http_key *key = http_keys_of(keys, account);

	if (key)
		snprintf(out, n, "key:%s", key->name);
	else if (account < ACCOUNT_ID_NOBODY)
		snprintf(out, n, "uid:%u", (unsigned)account);
	else
		snprintf(out, n, "nobody");
}

static void gather_accounts(struct server *s, struct gathered *g)
{
	uid_t ids[ACCOUNTS_MAX];
	size_t n = stats_pages_uids(s->pages, ids, ARRAY_SIZE(ids));

	for (size_t i = 0; i < n; i++) {
		name_account(s->http->keys, ids[i], g->accounts[i].name, sizeof(g->accounts[i].name));
		stats_pages_figures_of(s->pages, ids[i], &g->accounts[i].figures);
		hold_of(s->accounts, ids[i], &g->accounts[i].holdings);
	}
	g->metrics.accounts = g->accounts;
	g->metrics.n_accounts = n;
}

static void gather_all(struct server *s, struct gathered *g)
{
	uint64_t used[ACCOUNT_N_KINDS];

	stats_pages_figures(s->pages, &g->figures);
	accounts_used(s->accounts, used);
	hold(used, &g->holdings);
	g->metrics.figures = &g->figures;
	g->metrics.holdings = &g->holdings;
	if (models_engine(s->models))
		g->metrics.engine = &g->engine;
	disk_store_stats(model_host_store(models_host(s->models)), &g->disk);
	if (g->disk.max_bytes)
		g->metrics.disk = &g->disk;
	g->metrics.http = &s->http->counts;
	g->metrics.http_connections = s->http->n_connections;
	gather_accounts(s, g);
}

void http_get_metrics(struct http_exchange *x)
{
	struct server *s = x->server;
	struct gathered *g = calloc(1, sizeof(*g));
	char *text = NULL;
	size_t n = 0;
	FILE *f = g ? open_memstream(&text, &n) : NULL;
	bool good = f != NULL;

	if (good) {
		gather_daemon(s, g);
		gather_models(s, g, x->peer.is_admin);
		/* Those who are nobody in particular are told apart by nothing: what one does is not the other's. */
		if (x->peer.is_admin)
			gather_all(s, g);
		else if (x->peer.kind != HTTP_PEER_NOBODY)
			gather_own(s, g, x->peer.account);
		metrics_write(f, &g->metrics);
		good = !ferror(f);
		good &= fclose(f) == 0;
	}
	free(g);
	if (good)
		http_reply(x, 200, METRICS_CONTENT_TYPE, text, n);
	else
		http_reply_error(x, &(struct http_error){ .status = 503, .retry_after_s = 1 }, "out of memory");
	free(text);
}
