/* SPDX-License-Identifier: Apache-2.0 */
/* The client as an object: errors, descriptors, the end. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/lib/client.h"

void client_say(struct kvd_client *c, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(c->error, sizeof(c->error), fmt, ap);
	va_end(ap);
}

void client_say_broken(struct kvd_client *c, int r, const char *fmt, ...)
{
	va_list ap;

	if (!c->broken) {
		va_start(ap, fmt);
		vsnprintf(c->broken_why, sizeof(c->broken_why), fmt, ap);
		va_end(ap);
		c->broken = r;
	}
	client_say(c, "%s", c->broken_why);
}

static void client_clear_error(struct kvd_client *c)
{
	c->error[0] = '\0';
	c->field[0] = '\0';
	c->code = 0;
}

void client_enter(struct kvd_client *c)
{
	pthread_mutex_lock(&c->lock);
	client_clear_error(c);
}

int client_leave(struct kvd_client *c, int r)
{
	pthread_mutex_unlock(&c->lock);
	return r;
}

KVD_API const char *kvd_client_error(const struct kvd_client *c)
{
	return c->error;
}

KVD_API int kvd_client_code(const struct kvd_client *c)
{
	return c->code;
}

KVD_API const char *kvd_client_field(const struct kvd_client *c)
{
	return c->field;
}

KVD_API int kvd_fd(const struct kvd_client *c)
{
	return c->epoll;
}

KVD_API const char *kvd_version(void)
{
	return KVD_VERSION;
}

KVD_API unsigned kvd_protocol_version(void)
{
	return KVD_PROTOCOL_VERSION;
}

static void close_if(int fd)
{
	if (fd >= 0)
		close(fd);
}

/* The daemon sees the end of the connection and cancels what still runs. */
KVD_API void kvd_close(struct kvd_client *c)
{
	if (!c)
		return;
	close_if(c->sock);
	close_if(c->epoll);
	close_if(c->poke);
	list_for_each_safe(l, next, &c->requests)
		request_free(list_entry(l, struct request, link));
	list_for_each_safe(l, next, &c->refused)
		request_free(list_entry(l, struct request, link));
	list_for_each_safe(l, next, &c->calls)
		call_free(list_entry(l, struct call, link));
	request_free(c->ended);
	segment_deinit(&c->ring);
	segment_deinit(&c->segment);
	pthread_cond_destroy(&c->cond);
	pthread_mutex_destroy(&c->lock);
	free(c->datagram);
	free(c);
}
