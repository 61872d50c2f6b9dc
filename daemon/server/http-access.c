/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/http-access.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "daemon/server/http-address.h"
#include "daemon/server/http-connection.h"
#include "daemon/server/http-host.h"
#include "daemon/server/http-route.h"
#include "daemon/server/http-server.h"
#include "daemon/server/server-internal.h"
#include "ipc/base/account.h"
#include "ipc/fdpass.h"


/* --- who has connected ------------------------------------------------------------------------- */

static bool set_uid(const struct server *server, uid_t uid, uint32_t groups, struct http_peer *out)
{
	if (!server_uid_is_known(server, uid))
		return false;
	*out = (struct http_peer){
		.kind = HTTP_PEER_UID, .account = uid, .is_admin = server_is_admin(server, uid), .groups = groups,
		.weight = fair_weight(&server->weights, uid),
	};
	namespace_own(uid, out->own);
	return true;
}

bool http_access_peer(const struct http_listener *l, int fd, struct http_peer *out)
{
	struct http *http = l->http;
	struct server *server = http->server;
	struct fdpass_peer who;
	uid_t uid;

	if (l->address.path)
		return fdpass_peer(fd, &who) == 0 &&
		       set_uid(server, who.uid, namespaces_groups_of(&server->namespaces, fd, who.gid), out);
	/* Which groups somebody is in, the kernel does not say of these. */
	if (!l->asks_key && http_peer_find(&http->finder, fd, &uid) == 0)
		return set_uid(server, uid, 0, out);
	*out = (struct http_peer){ .kind = HTTP_PEER_NOBODY, .account = ACCOUNT_ID_NOBODY, .weight = FAIR_WEIGHT };
	return true;
}

/* --- Host and Origin ------------------------------------------------------------------------------ */

static bool host_is_ours(const struct http_exchange *x, const char *host)
{
	const struct http_connection *c = x->connection;
	struct http_address local = { .n = sizeof(local.in6) };

	/* No page reaches a Unix socket; nothing but a program leaves the header out. */
	if (c->listener->address.path || !host)
		return true;
	return getsockname(c->fd, &local.sa, &local.n) == 0 &&
	       http_host_is_ours(host, &local.sa, x->server->config.http_hosts);
}

/* A page of another origin: it may read the reply if its origin is allowed. */
static bool check_origin(struct http_exchange *x, const char *origin)
{
	const char *allowed = x->server->config.http_origins;

	if (!allowed || !http_list_has(allowed, origin))
		return false;
	return !http_header(x, "Access-Control-Allow-Origin", origin) && !http_header(x, "Vary", "Origin");
}

/* A browser asks first whether the page may do that. */
static bool is_preflight(const struct http_parser *head)
{
	return !strcmp(head->method, "OPTIONS") && http_parser_field(head, "Access-Control-Request-Method");
}

static void answer_preflight(struct http_exchange *x, const struct http_parser *head)
{
	const char *wanted = http_parser_field(head, "Access-Control-Request-Headers");
	char methods[64];

	if (!http_route_methods(x->path, methods, sizeof(methods)))
		return;
	http_header(x, "Access-Control-Allow-Methods", methods);
	http_header(x, "Access-Control-Allow-Headers", wanted ? wanted : "Authorization, Content-Type");
	http_header(x, "Access-Control-Max-Age", "600");
	x->refusal.status = 204;
}

/* --- keys ----------------------------------------------------------------------------------------- */

static const struct http_key *find_key(const struct http_keys *keys, const struct http_parser *head)
{
	const char *value = http_parser_field(head, "Authorization");

	if (!value || strncasecmp(value, "Bearer ", 7) != 0)
		return NULL;
	value += 7;
	return http_keys_find(keys, value + strspn(value, " "));
}

/* Who it is by its key; the connection is charged to that account from now on. */
static bool check_key(struct http_exchange *x, const struct http_parser *head)
{
	const struct http_key *key = find_key(x->connection->http->keys, head);

	if (!key) {
		if (http_route_is_open(x->path))
			return true;
		http_header(x, "WWW-Authenticate", "Bearer realm=\"kvd\"");
		http_refuse(x, &(struct http_error){ .status = 401, .code = "invalid_api_key" },
			    "a key is needed, as \"Authorization: Bearer KEY\"");
		return false;
	}
	x->peer = (struct http_peer){
		.kind = HTTP_PEER_KEY, .account = key->account, .is_admin = key->all_metrics, .weight = key->weight,
		.key = key,
	};
	memcpy(x->peer.own, key->own, sizeof(key->own));
	if (!http_connection_charge(x->connection, key->account))
		return true;
	http_refuse(x, &(struct http_error){ .status = 429, .retry_after_s = 1 }, "too many connections with this key");
	return false;
}

bool http_access_check(struct http_exchange *x, const struct http_parser *head)
{
	const char *origin = http_parser_field(head, "Origin");

	if (!host_is_ours(x, head->host)) {
		http_refuse(x, &(struct http_error){ .status = 403 },
			    "the Host header is not one of this daemon's names (http-hosts)");
		return true;
	}
	if (origin && !check_origin(x, origin)) {
		http_refuse(x, &(struct http_error){ .status = 403 },
			    "web pages may not use this daemon (http-origins)");
		return true;
	}
	if (origin && is_preflight(head)) {
		answer_preflight(x, head);
		return x->refusal.status;
	}
	return x->connection->listener->asks_key && !check_key(x, head);
}
