/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/http-route.h"

#include <stdio.h>
#include <string.h>

#include "ipc/base/checked.h"

#define METHODS_MAX 64

static const struct http_route routes[] = {
	{ "GET", "/health", http_get_health, true },
	{ "GET", "/openapi.json", http_get_openapi, true },
	{ "GET", "/v1/models", http_get_models, false },
	{ "GET", "/v1/models/", http_get_models, false },
	{ "GET", "/metrics", http_get_metrics, false },
	{ "POST", "/v1/completions", http_post_completions, false },
	{ "POST", "/v1/chat/completions", http_post_chat, false },
	{ "POST", "/v1/embeddings", http_post_embeddings, false },
	{ "POST", "/tokenize", http_post_tokenize, false },
	{ "POST", "/detokenize", http_post_detokenize, false },
};

static bool fits(const struct http_route *route, const char *path)
{
	size_t n = strlen(route->path);

	if (route->path[n - 1] == '/')
		return !strncmp(path, route->path, n) && path[n];
	return !strcmp(path, route->path);
}

bool http_route_is_open(const char *path)
{
	for (size_t i = 0; i < ARRAY_SIZE(routes); i++) {
		if (routes[i].is_open && fits(&routes[i], path))
			return true;
	}
	return false;
}

bool http_route_methods(const char *path, char *out, size_t n)
{
	bool found = false;
	size_t at = 0;

	for (size_t i = 0; i < ARRAY_SIZE(routes); i++) {
		const char *method = routes[i].method;
		int r;

		if (!fits(&routes[i], path))
			continue;
		r = snprintf(out + at, n - at, "%s%s%s", found ? ", " : "", method,
			     strcmp(method, "GET") ? "" : ", HEAD");
		at = MIN(at + (size_t)r, n - 1);
		found = true;
	}
	return found;
}

void http_route_find(struct http_exchange *x, const char *method)
{
	char methods[METHODS_MAX];

	if (!strcmp(method, "HEAD"))
		method = "GET";
	for (size_t i = 0; i < ARRAY_SIZE(routes); i++) {
		if (!strcmp(method, routes[i].method) && fits(&routes[i], x->path)) {
			x->route = &routes[i];
			return;
		}
	}
	if (!http_route_methods(x->path, methods, sizeof(methods))) {
		http_refuse(x, &(struct http_error){ .status = 404 }, "there is nothing at %s", x->path);
		return;
	}
	http_header(x, "Allow", methods);
	http_refuse(x, &(struct http_error){ .status = 405 }, "%s is not a method for %s", method, x->path);
}
