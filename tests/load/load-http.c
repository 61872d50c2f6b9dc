/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams through HTTP: /v1/completions with "stream", one connection for all requests of a stream. Reads
 * chunks and events as they come, and of their JSON only what it counts.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/load/load.h"

#define LINE_MAX_BYTES 16384u

struct http {
	enum { HEAD, SIZE, DATA, DATA_END, TRAILER } state;
	char line[LINE_MAX_BYTES];	/* [n] of a header, a chunk's size, or an event */
	size_t n;
	size_t left;			/* of the chunk */
	bool is_first;			/* of the lines of the head */
	bool chunked;
	uint32_t n_tokens;		/* that the daemon says it made */
	char event[LINE_MAX_BYTES];	/* [n_event] of a line of the body */
	size_t n_event;
};

/* ADDR:PORT or unix:PATH. */
static int dial(const char *address)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	struct sockaddr_in in = { .sin_family = AF_INET };
	const char *colon = strrchr(address, ':');
	char host[64] = "";
	int fd, one = 1;

	if (strncmp(address, "unix:", 5) == 0) {
		if (strlen(address + 5) >= sizeof(un.sun_path))
			return -1;
		strcpy(un.sun_path, address + 5);
		fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		return fd >= 0 && connect(fd, (struct sockaddr *)&un, sizeof(un)) == 0 ? fd : -1;
	}
	if (!colon || (size_t)(colon - address) >= sizeof(host))
		return -1;
	memcpy(host, address, (size_t)(colon - address));
	in.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
	if (inet_pton(AF_INET, host, &in.sin_addr) != 1)
		return -1;
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd >= 0 && connect(fd, (struct sockaddr *)&in, sizeof(in)) == 0 ? fd : -1;
}

static bool http_open(struct stream *s)
{
	s->data = calloc(1, sizeof(struct http));
	s->fd = dial(s->load->address);
	if (!s->data || s->fd < 0)
		return load_fail(s, "can't connect: %s", strerror(errno));
	return true;
}

static bool http_submit(struct stream *s)
{
	struct http *h = s->data;
	char body[4096], head[512];
	int n, n_head;
	size_t all;
	char message[sizeof(body) + sizeof(head)];

	n = snprintf(body, sizeof(body),
		     "{\"prompt\": \"%s\", \"max_tokens\": %u, \"temperature\": 0, \"seed\": %llu, "
		     "\"ignore_eos\": true, \"stream\": true, \"stream_options\": {\"include_usage\": true}}",
		     s->load->prompt, s->load->n_tokens, (unsigned long long)s->seed);
	n_head = snprintf(head, sizeof(head),
			  "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
			  "Content-Length: %d\r\n\r\n", n);
	if (n < 0 || (size_t)n >= sizeof(body))
		return load_fail(s, "the prompt is too long");
	all = (size_t)n_head + (size_t)n;
	memcpy(message, head, (size_t)n_head);
	memcpy(message + n_head, body, (size_t)n);
	h->state = HEAD;
	h->n = h->n_event = 0;
	h->is_first = true;
	h->chunked = false;
	h->n_tokens = 0;
	if (send(s->fd, message, all, MSG_NOSIGNAL) != (ssize_t)all)
		return load_fail(s, "can't send: %s", strerror(errno));
	return true;
}

/* The number behind a member's name, where it is in the text. */
static bool member(const char *text, const char *name, uint32_t *out)
{
	const char *at = strstr(text, name);

	if (!at)
		return false;
	at += strlen(name);
	at += *at == ' ';
	*out = (uint32_t)strtoul(at, NULL, 10);
	return true;
}

static bool take_event(struct stream *s, const char *line, uint64_t now)
{
	struct http *h = s->data;
	const char *text;

	if (strncmp(line, "data: {", 7) != 0)
		return true;		/* a comment, the end, or nothing */
	if (strncmp(line + 6, "{\"error\"", 8) == 0)
		return load_fail(s, "%s", line);
	text = strstr(line, "\"text\":");
	if (text) {
		text += 7;
		text += *text == ' ';
		if (strncmp(text, "\"\"", 2) != 0)
			load_token(s, now);
	}
	if (member(line, "\"completion_tokens\":", &h->n_tokens)) {
		member(line, "\"prompt_tokens\":", &s->prompt_tokens);
		member(line, "\"cached_tokens\":", &s->cached_tokens);
	}
	return true;
}

/* Bytes of the body. */
static bool take_body(struct stream *s, const char *data, size_t n, uint64_t now)
{
	struct http *h = s->data;

	for (const char *end = data + n; data < end;) {
		const char *stop = memchr(data, '\n', (size_t)(end - data));
		size_t part = (size_t)((stop ? stop : end) - data);

		if (h->n_event + part >= sizeof(h->event))
			return load_fail(s, "an event is too long");
		memcpy(h->event + h->n_event, data, part);
		h->n_event += part;
		data += part;
		if (!stop)
			break;
		data++;
		h->event[h->n_event] = '\0';
		h->n_event = 0;
		if (!take_event(s, h->event, now))
			return false;
	}
	return true;
}

/* A line of the head, of a chunk's, or behind the last one; without its end. */
static bool take_line(struct stream *s, bool *ended)
{
	struct http *h = s->data;

	switch (h->state) {
	case HEAD:
		if (h->is_first && strncmp(h->line, "HTTP/1.1 200", 12) != 0)
			return load_fail(s, "%s", h->line);
		h->is_first = false;
		h->chunked |= strcasecmp(h->line, "transfer-encoding: chunked") == 0;
		if (!h->n)
			h->state = SIZE;
		return h->n || h->chunked || load_fail(s, "no chunks");
	case SIZE:
		h->left = strtoul(h->line, NULL, 16);
		h->state = h->left ? DATA : TRAILER;
		return true;
	case DATA_END:
		h->state = SIZE;
		return true;
	case TRAILER:
		*ended = !h->n;
		return true;
	case DATA:
		break;
	}
	return false;
}

static bool take_bytes(struct stream *s, const char *data, size_t n, uint64_t now)
{
	struct http *h = s->data;
	bool ended = false;

	for (size_t i = 0; i < n;) {
		if (h->state == DATA) {
			size_t part = h->left < n - i ? h->left : n - i;

			if (!take_body(s, data + i, part, now))
				return false;
			i += part;
			h->left -= part;
			if (!h->left)
				h->state = DATA_END;
			continue;
		}
		if (data[i] != '\n') {
			if (data[i] != '\r') {
				if (h->n + 1 >= sizeof(h->line))
					return load_fail(s, "a line is too long");
				h->line[h->n++] = data[i];
			}
			i++;
			continue;
		}
		i++;
		h->line[h->n] = '\0';
		if (!take_line(s, &ended))
			return false;
		h->n = 0;
		/* Nothing follows: the next request is sent when this one has ended. */
		if (ended)
			return i == n ? load_done(s, h->n_tokens) : load_fail(s, "more than one reply");
	}
	return true;
}

static bool http_take(struct stream *s)
{
	char buffer[65536];
	ssize_t n = recv(s->fd, buffer, sizeof(buffer), MSG_DONTWAIT);

	if (n < 0)
		return errno == EAGAIN || load_fail(s, "can't receive: %s", strerror(errno));
	if (!n)
		return load_fail(s, "the connection was closed");
	s->load->bytes += (uint64_t)n;
	return take_bytes(s, buffer, (size_t)n, load_now());
}

static void http_close(struct stream *s)
{
	close(s->fd);
	free(s->data);
}

const struct load_transport load_http = {
	.open = http_open, .submit = http_submit, .take = http_take, .close = http_close,
};
