/* SPDX-License-Identifier: Apache-2.0 */
/* GET /health, /v1/models: what is there. */
#include <string.h>

#include "daemon/server/http-exchange.h"
#include "daemon/server/http-server.h"
#include "daemon/server/server-internal.h"
#include "daemon/server/watch.h"

void http_get_health(struct http_exchange *x)
{
	const struct models *models = x->server->models;

	if (models_starting(models)) {
		http_reply_error(x, &(struct http_error){ .status = 503, .code = "loading", .retry_after_s = 1 },
				 "models are loading, %u %%", models_percent(models));
	} else if (watch_is_stuck(x->server->watch)) {
		http_reply_error(x, &(struct http_error){ .status = 503, .code = "stuck", .retry_after_s = 10 },
				 "the engine does not get on");
	} else {
		http_reply_json(x, 200, json_pack("{s:s, s:i}", "status", "ok", "models", (int)models_count(models)));
	}
}

/* Models that requests may name: also those that still load, since requests wait for them. */
static json_t *describe(const struct http_exchange *x, const struct served_model *m)
{
	bool is_ready = m->state == SERVED_READY;
	json_t *json = json_pack("{s:s, s:s, s:I, s:s, s:s, s:b}", "id", m->name, "object", "model", "created",
				 (json_int_t)x->server->http->created, "owned_by", "kvd", "state",
				 is_ready ? "ready" : "loading", "synthetic", m->synthetic);

	if (json && is_ready && json_object_set_new(json, "context_length",
				json_integer(engine_model_n_ctx(m->hosted.engine_model)))) {
		json_decref(json);
		return NULL;
	}
	return json;
}

static bool is_listed(const struct served_model *m)
{
	return m->state == SERVED_READY || m->state == SERVED_LOADING;
}

static json_t *list(const struct http_exchange *x)
{
	const struct models *models = x->server->models;
	json_t *json = json_pack("{s:s, s:[]}", "object", "list", "data"), *data = json_object_get(json, "data");

	for (struct served_model *m = models_next(models, NULL); m && json; m = models_next(models, m)) {
		if (is_listed(m) && json_array_append_new(data, describe(x, m))) {
			json_decref(json);
			return NULL;
		}
	}
	return json;
}

void http_get_models(struct http_exchange *x)
{
	static const char below[] = "/v1/models/";
	const struct served_model *m;

	if (strncmp(x->path, below, sizeof(below) - 1) != 0) {
		http_reply_json(x, 200, list(x));
		return;
	}
	m = models_find(x->server->models, x->path + sizeof(below) - 1);
	if (m && is_listed(m))
		http_reply_json(x, 200, describe(x, m));
	else
		http_reply_error(x, &(struct http_error){ .status = 404, .param = "model",
							  .code = "model_not_found" },
				 "there is no model \"%s\"", x->path + sizeof(below) - 1);
}
