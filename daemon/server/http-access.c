/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/http-access.h"

#include <stdio.h>

#include "daemon/server/http-server.h"
#include "daemon/server/server-internal.h"
#include "ipc/base/account.h"
#include "ipc/fdpass.h"

#define WEIGHT 100	/* one user's */

static bool unix_peer(const struct server *server, int fd, struct http_peer *out)
{
	struct fdpass_peer who;

	if (fdpass_peer(fd, &who) < 0 || who.uid == server->overflow_uid || who.uid >= ACCOUNT_ID_NOBODY)
		return false;
	*out = (struct http_peer){
		.kind = HTTP_PEER_UID,
		.account = who.uid,
		.is_admin = server_is_admin(server, who.uid),
		.groups = namespaces_groups_of(&server->namespaces, fd, who.gid),
		.weight = WEIGHT,
	};
	namespace_own(who.uid, out->own);
	return true;
}

bool http_access_peer(const struct http_listener *l, int fd, struct http_peer *out)
{
	if (l->address.path)
		return unix_peer(l->http->server, fd, out);
	*out = (struct http_peer){ .kind = HTTP_PEER_NOBODY, .account = ACCOUNT_ID_NOBODY, .weight = WEIGHT };
	return true;
}

bool http_access_check(struct http_exchange *x, const struct http_parser *head)
{
	return false;
}
