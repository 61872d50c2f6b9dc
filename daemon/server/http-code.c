/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/http-code.h"

#include "daemon/engine/engine.h"
#include "daemon/server/models.h"
#include "ipc/base/checked.h"

/* 429: the same request may be served later; 503: also, but it is not the sender's doing. */
static const struct {
	unsigned status;
	const char *code;
} rows[] = {
	[KVD_CODE_BAD_MESSAGE] = { 400, HTTP_CODE_VALUE },
	[KVD_CODE_BAD_FIELD] = { 400, HTTP_CODE_VALUE },
	[KVD_CODE_VERSION] = { 400, HTTP_CODE_VALUE },
	[KVD_CODE_QUOTA] = { 429, "rate_limit_exceeded" },
	[KVD_CODE_PERMISSION] = { 403, "permission_denied" },
	[KVD_CODE_BUSY] = { 429, "queue_full" },
	[KVD_CODE_CONTEXT_LENGTH] = { 400, "context_length_exceeded" },
	[KVD_CODE_NO_MODEL] = { 404, "model_not_found" },
	[KVD_CODE_TEMPLATE] = { 400, "no_chat_template" },
	[KVD_CODE_NO_MEMORY] = { 503, "out_of_memory" },
	[KVD_CODE_SHUTDOWN] = { 503, "shutting_down" },
	[KVD_CODE_INTERNAL] = { 500, NULL },
	[KVD_CODE_LOADING] = { 503, "loading" },
	[KVD_CODE_UNLOADED] = { 503, "model_unloaded" },
	[KVD_CODE_CANCELLED] = { 503, "cancelled" },
	[KVD_CODE_BAD_MODEL] = { 503, "model_not_loaded" },
	[KVD_CODE_EXISTS] = { 400, HTTP_CODE_VALUE },
	[KVD_CODE_NO_ENTRY] = { 404, "not_found" },
	[KVD_CODE_FILE] = { 500, NULL },
	[KVD_CODE_DEADLINE] = { 408, "deadline_exceeded" },
};

_Static_assert(ARRAY_SIZE(rows) == KVD_CODE_LAST + 1, "a row for each code");

void http_code_refusal(struct http_refusal *why, enum kvd_code code, const char *param, const char *message)
{
	bool known = code && (size_t)code < ARRAY_SIZE(rows);

	http_refusal_write(why, param, known ? rows[code].code : NULL, "%s", message);
	why->status = known ? rows[code].status : 500;
}

void http_code_hint(struct http_refusal *why, const struct models *models, uid_t account)
{
	struct engine *engine = models_engine(models);

	if (why->status == 429 || why->status == 503)
		why->retry_after_s = engine ? engine_wait_hint(engine, account) : ENGINE_WAIT_MIN;
}

struct served_model *http_choose_model(const struct models *models, const char *name, struct http_refusal *why)
{
	struct diag diag = DIAG_NULL;
	struct served_model *m;

	name = name && *name ? name : NULL;
	m = models_choose(models, name, &diag);
	if (m)
		return m;
	http_code_refusal(why, KVD_CODE_NO_MODEL, name ? "model" : NULL, diag.text);
	/* Nothing is wrong with a request that any model would do for. */
	if (!name || !models_next(models, NULL))
		why->status = 503;
	return NULL;
}
