/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/http-host.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>

#include "daemon/server/http-parse.h"

#define HOST_MAX 253	/* bytes of a name in the domain name system */

/* "name", "name:80", "[::1]:80": the name, without its port and brackets. */
static bool cut_port(const char *host, char out[HOST_MAX + 1])
{
	bool in_brackets = host[0] == '[';
	const char *end = in_brackets ? strchr(host, ']') : host + strcspn(host, ":");
	const char *port = end && in_brackets ? end + 1 : end;
	size_t n;

	if (!end || (*port && (*port != ':' || port[1 + strspn(port + 1, "0123456789")])))
		return false;
	host += in_brackets;
	n = (size_t)(end - host);
	if (!n || n > HOST_MAX)
		return false;
	memcpy(out, host, n);
	out[n] = '\0';
	return true;
}

static bool is_loopback4(const struct in_addr *a)
{
	return ntohl(a->s_addr) >> 24 == IN_LOOPBACKNET;
}

static bool is_loopback(const struct sockaddr *local)
{
	if (local->sa_family == AF_INET)
		return is_loopback4(&((const struct sockaddr_in *)local)->sin_addr);
	return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)local)->sin6_addr);
}

static bool is_local_address(const char *name, const struct sockaddr *local)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)local;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)local;
	struct in6_addr v6;
	struct in_addr v4;

	if (inet_pton(AF_INET, name, &v4) == 1)
		return (local->sa_family == AF_INET && v4.s_addr == in->sin_addr.s_addr) ||
		       (is_loopback(local) && is_loopback4(&v4));
	if (inet_pton(AF_INET6, name, &v6) == 1)
		return (local->sa_family == AF_INET6 && IN6_ARE_ADDR_EQUAL(&v6, &in6->sin6_addr)) ||
		       (is_loopback(local) && IN6_IS_ADDR_LOOPBACK(&v6));
	return false;
}

static bool is_localhost(const char *name)
{
	static const char below[] = ".localhost";
	size_t n = strlen(name);

	return !strcasecmp(name, "localhost") ||
	       (n >= sizeof(below) && !strcasecmp(name + n - (sizeof(below) - 1), below));
}

bool http_host_is_ours(const char *host, const struct sockaddr *local, const char *more)
{
	char name[HOST_MAX + 2];
	size_t n;

	if (!cut_port(host, name))
		return false;
	n = strlen(name);
	/* A name may be written as a complete one. */
	if (n > 1 && name[n - 1] == '.')
		name[n - 1] = '\0';
	return is_localhost(name) || is_local_address(name, local) || (more && http_list_has(more, name));
}
