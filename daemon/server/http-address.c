/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/http-address.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int parse_port(const char *text, in_port_t *out)
{
	unsigned long v;
	char *end;

	if (*text < '0' || *text > '9' || strlen(text) > 5)
		return -EINVAL;
	v = strtoul(text, &end, 10);
	if (*end || v > 65535)
		return -EINVAL;
	*out = htons((in_port_t)v);
	return 0;
}

static bool parse_ip(struct http_address *a, const char *host, in_port_t port)
{
	size_t n = strlen(host);
	char inner[INET6_ADDRSTRLEN];

	if (!strcasecmp(host, "localhost"))
		host = "127.0.0.1";
	if (inet_pton(AF_INET, host, &a->in.sin_addr) == 1) {
		a->in.sin_family = AF_INET;
		a->in.sin_port = port;
		a->n = sizeof(a->in);
		return true;
	}
	if (n < 4 || n - 2 >= sizeof(inner) || host[0] != '[' || host[n - 1] != ']')
		return false;
	memcpy(inner, host + 1, n - 2);
	inner[n - 2] = '\0';
	/* One of IPv4's in disguise would be loopback, or not, by other rules. */
	if (inet_pton(AF_INET6, inner, &a->in6.sin6_addr) != 1 || IN6_IS_ADDR_V4MAPPED(&a->in6.sin6_addr))
		return false;
	a->in6.sin6_family = AF_INET6;
	a->in6.sin6_port = port;
	a->n = sizeof(a->in6);
	return true;
}

int http_address_parse(struct http_address *out, const char *text, struct diag *diag)
{
	const char *colon = strrchr(text, ':');
	struct http_address a = { 0 };
	char host[HTTP_ADDRESS_TEXT_MAX];
	in_port_t port;

	if (!strncmp(text, "unix:", 5)) {
		if (!text[5])
			return diag_set(diag, -EINVAL, "http: the path behind unix: is empty");
		a.path = text + 5;
		*out = a;
		return 0;
	}
	if (!colon || colon == text || (size_t)(colon - text) >= sizeof(host) || parse_port(colon + 1, &port))
		return diag_set(diag, -EINVAL, "http: \"%s\" is not ADDRESS:PORT, unix:PATH or off", text);
	memcpy(host, text, (size_t)(colon - text));
	host[colon - text] = '\0';
	if (!parse_ip(&a, host, port))
		return diag_set(diag, -EINVAL, "http: \"%s\" is not an IPv4 address, [IPv6 address] or localhost",
				host);
	*out = a;
	return 0;
}

bool http_address_is_local(const struct http_address *a)
{
	if (a->path)
		return true;
	if (a->sa.sa_family == AF_INET)
		return ntohl(a->in.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
	return IN6_IS_ADDR_LOOPBACK(&a->in6.sin6_addr);
}

unsigned http_address_port(const struct http_address *a)
{
	return ntohs(a->sa.sa_family == AF_INET ? a->in.sin_port : a->in6.sin6_port);
}

void http_address_print(const struct http_address *a, char out[HTTP_ADDRESS_TEXT_MAX])
{
	bool is_v4 = a->sa.sa_family == AF_INET;
	char host[INET6_ADDRSTRLEN] = "?";

	inet_ntop(a->sa.sa_family, is_v4 ? (const void *)&a->in.sin_addr : &a->in6.sin6_addr, host, sizeof(host));
	snprintf(out, HTTP_ADDRESS_TEXT_MAX, is_v4 ? "%s:%u" : "[%s]:%u", host, http_address_port(a));
}
