/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/http-parse.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ipc/base/checked.h"

#define TEXT_FIRST 2048u
#define BODY_FIRST 16384u

enum state {
	STATE_HEAD,
	STATE_BODY,		/* of Content-Length: `left` are missing */
	STATE_CHUNK_SIZE,	/* a line with a chunk's size */
	STATE_CHUNK,
	STATE_CHUNK_END,	/* the CR LF behind it */
	STATE_TRAILER,
	STATE_DONE,
	STATE_BAD,
};

/* --- characters (RFC 9110, 5.6.2; RFC 3986) ----------------------------------------------- */

static bool is_token_char(unsigned char c)
{
	return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
	       (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool is_token(const char *s)
{
	const char *p = s;

	while (is_token_char((unsigned char)*p))
		p++;
	return p != s && !*p;
}

static int hex_digit(unsigned char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool http_list_has(const char *value, const char *word)
{
	size_t n = strlen(word);

	while (value && *value) {
		size_t length;

		value += strspn(value, " \t,");
		length = strcspn(value, " \t,");
		if (length && length == n && !strncasecmp(value, word, n))
			return true;
		value += length;
	}
	return false;
}

/* --- life ------------------------------------------------------------------------------------ */

static enum http_parse bad(struct http_parser *p, unsigned status, const char *why)
{
	p->state = STATE_BAD;
	p->status = status;
	p->why = why;
	return HTTP_PARSE_BAD;
}

void http_parser_init(struct http_parser *p, uint64_t max_body)
{
	*p = (struct http_parser){ .max_body = max_body };
}

void http_parser_deinit(struct http_parser *p)
{
	free(p->head.data);
	free(p->line.data);
	free(p->body);
	p->head = p->line = (struct http_text){ 0 };
	p->body = NULL;
}

void http_parser_next(struct http_parser *p)
{
	struct http_parser fresh = { .max_body = p->max_body, .grow = p->grow, .arg = p->arg };

	http_parser_deinit(p);
	*p = fresh;
}

bool http_parser_begun(const struct http_parser *p)
{
	return p->state != STATE_HEAD || p->head.n;
}

const char *http_parser_field(const struct http_parser *p, const char *name)
{
	for (size_t i = 0; i < p->n_fields; i++) {
		if (!strcasecmp(p->fields[i].name, name))
			return p->fields[i].value;
	}
	return NULL;
}

/* --- the head ---------------------------------------------------------------------------------- */

/* Decodes %XX in place.  False: it is not valid, or has a NUL. */
static bool decode_path(char *path)
{
	char *to = path;

	for (const char *s = path; *s; s++) {
		int high, low;

		if (*s != '%') {
			*to++ = *s;
			continue;
		}
		high = hex_digit((unsigned char)s[1]);
		low = high < 0 ? -1 : hex_digit((unsigned char)s[2]);
		if (low < 0 || !(high << 4 | low))
			return false;
		*to++ = (char)(high << 4 | low);
		s += 2;
	}
	*to = '\0';
	return true;
}

/* An absolute target's host; the target's path is moved to the front, so that it lies where it did. */
static bool take_authority(struct http_parser *p, char *target)
{
	char *authority, *end;

	if (!strncasecmp(target, "http://", 7))
		authority = target + 7;
	else if (!strncasecmp(target, "https://", 8))
		authority = target + 8;
	else
		return false;
	end = authority + strcspn(authority, "/?");
	if (end == authority || memchr(authority, '@', (size_t)(end - authority)))
		return false;
	/* The authority moves to the front, so that a NUL fits between it and the path. */
	memmove(target, authority, (size_t)(end - authority));
	target[end - authority] = '\0';
	p->host = target;
	p->path = end;
	return true;
}

static enum http_parse parse_target(struct http_parser *p, char *target)
{
	static char root[] = "/";
	char *query;

	if (strlen(target) > HTTP_TARGET_MAX)
		return bad(p, 414, "the request's target is too long");
	for (const char *s = target; *s; s++) {
		if (*s <= 0x20 || *s >= 0x7f || *s == '#')
			return bad(p, 400, "the request's target has a character that none may have");
	}
	p->path = target;
	if (target[0] != '/' && strcmp(target, "*") != 0 && !take_authority(p, target))
		return bad(p, 400, "the request's target is neither a path nor an http address");
	query = strchr(p->path, '?');
	if (query) {
		*query = '\0';
		p->query = query + 1;
	}
	if (!*p->path)
		p->path = root;
	else if (!decode_path(p->path))
		return bad(p, 400, "the path has a '%' that does not stand for a character");
	return HTTP_PARSE_HEAD;
}

static enum http_parse parse_request_line(struct http_parser *p, char *line)
{
	char *target = strchr(line, ' '), *version = target ? strchr(target + 1, ' ') : NULL;

	if (!version)
		return bad(p, 400, "the first line is not \"METHOD TARGET HTTP/1.1\"");
	*target++ = '\0';
	*version++ = '\0';
	if (strlen(line) > HTTP_METHOD_MAX || !is_token(line))
		return bad(p, 400, "the method is not a word");
	if (strncmp(version, "HTTP/", 5) != 0 || version[5] < '0' || version[5] > '9' || version[6] != '.' ||
	    version[7] < '0' || version[7] > '9' || version[8])
		return bad(p, 400, "the first line does not end in an HTTP version");
	if (version[5] != '1')
		return bad(p, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
	p->method = line;
	p->minor = version[7] > '0';
	return parse_target(p, target);
}

static enum http_parse parse_field(struct http_parser *p, char *line)
{
	char *colon = strchr(line, ':'), *value, *end;

	if (!colon || colon == line)
		return bad(p, 400, "a header is not \"Name: value\"");
	*colon = '\0';
	if (!is_token(line))
		return bad(p, 400, "a header's name is not a word");
	value = colon + 1;
	value += strspn(value, " \t");
	end = value + strlen(value);
	while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
		end--;
	*end = '\0';
	for (const unsigned char *s = (const unsigned char *)value; *s; s++) {
		if ((*s < 0x20 && *s != '\t') || *s == 0x7f)
			return bad(p, 400, "a header has a control character");
	}
	if (p->n_fields == HTTP_FIELDS_MAX)
		return bad(p, 431, "too many headers");
	p->fields[p->n_fields++] = (struct http_field){ line, value };
	return HTTP_PARSE_HEAD;
}

/* The one header of this name; NULL: none, or, with *twice set, several. */
static const char *sole_field(const struct http_parser *p, const char *name, bool *twice)
{
	const char *value = NULL;

	for (size_t i = 0; i < p->n_fields; i++) {
		if (strcasecmp(p->fields[i].name, name) != 0)
			continue;
		if (value) {
			*twice = true;
			return NULL;
		}
		value = p->fields[i].value;
	}
	return value;
}

static bool parse_length(const char *text, uint64_t *out)
{
	uint64_t v = 0;

	if (!*text)
		return false;
	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			return false;
		/* What does not fit is too large in any case. */
		if (!checked_mul_u64(v, 10, &v) || !checked_add_u64(v, (uint64_t)(*text - '0'), &v))
			v = UINT64_MAX / 10;
	}
	*out = v;
	return true;
}

/* How long the body is (RFC 9112, 6). */
static enum http_parse parse_framing(struct http_parser *p)
{
	bool twice = false;
	const char *length = sole_field(p, "Content-Length", &twice);
	const char *coding = sole_field(p, "Transfer-Encoding", &twice);

	if (twice)
		return bad(p, 400, "Content-Length or Transfer-Encoding is there twice");
	if (length && coding)
		return bad(p, 400, "Content-Length and Transfer-Encoding exclude each other");
	if (coding) {
		if (!p->minor)
			return bad(p, 400, "HTTP/1.0 has no Transfer-Encoding");
		if (strcasecmp(coding, "chunked") != 0)
			return bad(p, 501, "Transfer-Encoding may only be chunked");
		p->chunked = p->has_body = true;
	} else if (length) {
		if (!parse_length(length, &p->content_length))
			return bad(p, 400, "Content-Length is not a number");
		if (p->content_length > p->max_body)
			return bad(p, 413, "the body is larger than allowed");
		p->has_body = p->content_length > 0;
	}
	coding = sole_field(p, "Content-Encoding", &twice);
	if (twice || (coding && strcasecmp(coding, "identity") != 0))
		return bad(p, 415, "bodies are taken as they are, without a Content-Encoding");
	return HTTP_PARSE_HEAD;
}

static enum http_parse parse_meaning(struct http_parser *p)
{
	bool twice = false;
	const char *host = sole_field(p, "Host", &twice), *expect = http_parser_field(p, "Expect");

	if (twice || (!host && p->minor))
		return bad(p, 400, "a request has exactly one Host");
	if (!p->host)
		p->host = host;
	if (expect && strcasecmp(expect, "100-continue") != 0)
		return bad(p, 417, "only 100-continue may be expected");
	p->expects_continue = expect && p->minor;
	p->keep_alive = p->minor > 0;
	for (size_t i = 0; i < p->n_fields; i++) {
		if (strcasecmp(p->fields[i].name, "Connection") != 0)
			continue;
		if (http_list_has(p->fields[i].value, "keep-alive"))
			p->keep_alive = true;
		if (http_list_has(p->fields[i].value, "close")) {
			p->keep_alive = false;
			break;
		}
	}
	return parse_framing(p);
}

/* The lines of a whole head, each ended by a NUL and one byte more, in place of CR LF. */
static enum http_parse parse_head(struct http_parser *p)
{
	char *line = p->head.data, *next = line + strlen(line) + 2;
	enum http_parse r = parse_request_line(p, line);

	while (r == HTTP_PARSE_HEAD && *(line = next)) {
		next = line + strlen(line) + 2;
		if (*line == ' ' || *line == '\t')
			return bad(p, 400, "a header goes on in the next line");
		r = parse_field(p, line);
	}
	return r == HTTP_PARSE_HEAD ? parse_meaning(p) : r;
}

/* One more byte of a line; HTTP_PARSE_HEAD: it was the line's last, which now ends in NUL NUL. */
static enum http_parse add_to_line(struct http_parser *p, struct http_text *text, char c, size_t max)
{
	if (text->n == max)
		return bad(p, 431, "the headers are larger than allowed");
	if (text->n == text->capacity) {
		size_t capacity = text->capacity ? 2 * text->capacity : TEXT_FIRST;
		char *data = realloc(text->data, capacity);

		if (!data)
			return bad(p, 503, "out of memory");
		text->data = data;
		text->capacity = capacity;
	}
	if (!c || text->last_cr != (c == '\n'))
		return bad(p, 400, "a line does not end in CR LF, or holds a NUL");
	text->last_cr = c == '\r';
	text->data[text->n++] = c;
	if (c != '\n')
		return HTTP_PARSE_MORE;
	text->data[text->n - 2] = text->data[text->n - 1] = '\0';
	return HTTP_PARSE_HEAD;
}

static enum http_parse feed_head(struct http_parser *p, char c)
{
	enum http_parse r = add_to_line(p, &p->head, c, HTTP_HEAD_MAX);
	bool is_empty = p->head.n - p->head_line == 2;

	if (r != HTTP_PARSE_HEAD)
		return r;
	if (!is_empty || !p->head_line) {
		/* Empty lines before a request are skipped: RFC 9112, 2.2. */
		if (is_empty)
			p->head.n = 0;
		p->head_line = p->head.n;
		return HTTP_PARSE_MORE;
	}
	r = parse_head(p);
	if (r != HTTP_PARSE_HEAD)
		return r;
	p->left = p->content_length;
	p->state = p->chunked ? STATE_CHUNK_SIZE : p->has_body ? STATE_BODY : STATE_DONE;
	return HTTP_PARSE_HEAD;
}

/* --- the body ---------------------------------------------------------------------------------- */

/* Makes room for n more bytes. */
static enum http_parse reserve(struct http_parser *p, size_t n)
{
	size_t needed = p->n_body + n, capacity = p->body_capacity ? p->body_capacity : BODY_FIRST;
	unsigned status;
	uint8_t *body;

	if (needed <= p->body_capacity)
		return HTTP_PARSE_MORE;
	while (capacity < needed)
		capacity *= 2;
	/* Growth stops where the body is known to. */
	capacity = MIN(capacity, (size_t)(p->chunked ? p->max_body : p->content_length));
	status = p->grow ? p->grow(p->arg, capacity) : 0;
	if (status)
		return bad(p, status, "there is no room for the body now");
	body = realloc(p->body, capacity);
	if (!body)
		return bad(p, 503, "out of memory");
	p->body = body;
	p->body_capacity = capacity;
	return HTTP_PARSE_MORE;
}

/* Takes what there is of `left`. */
static enum http_parse feed_bytes(struct http_parser *p, const uint8_t *data, size_t n, size_t *used)
{
	enum http_parse r = HTTP_PARSE_MORE;

	n = (size_t)MIN((uint64_t)n, p->left);
	if (!p->discard) {
		r = reserve(p, n);
		if (r == HTTP_PARSE_BAD)
			return r;
		memcpy(p->body + p->n_body, data, n);
		p->n_body += n;
	}
	p->n_seen += n;
	p->left -= n;
	*used = n;
	if (!p->left)
		p->state = p->chunked ? STATE_CHUNK_END : STATE_DONE;
	return r;
}

/* "1a2b" or "1a2b;name=value": RFC 9112, 7.1. */
static enum http_parse parse_chunk_size(struct http_parser *p)
{
	const char *s = p->line.data;
	uint64_t size = 0;
	int digits;

	for (digits = 0; hex_digit((unsigned char)*s) >= 0; digits++, s++) {
		if (digits == 15)
			return bad(p, 413, "the body is larger than allowed");
		size = size << 4 | (unsigned)hex_digit((unsigned char)*s);
	}
	s += strspn(s, " \t");
	if (!digits || (*s && *s != ';'))
		return bad(p, 400, "a chunk does not begin with its size");
	if (size > p->max_body - p->n_seen)
		return bad(p, 413, "the body is larger than allowed");
	p->left = size;
	p->state = size ? STATE_CHUNK : STATE_TRAILER;
	return HTTP_PARSE_MORE;
}

/* A byte of a line that is not kept: a chunk's size, or of the trailer. */
static enum http_parse feed_line(struct http_parser *p, char c)
{
	struct http_text *line = &p->line;
	enum http_parse r = add_to_line(p, line, c, HTTP_TRAILER_MAX);

	if (r != HTTP_PARSE_HEAD)
		return r;
	r = HTTP_PARSE_MORE;
	if (p->state == STATE_CHUNK_SIZE) {
		r = parse_chunk_size(p);
	} else if (line->n == 2) {
		p->state = STATE_DONE;
	} else {
		p->n_trailer += line->n;
		if (p->n_trailer > HTTP_TRAILER_MAX)
			r = bad(p, 431, "the trailer is larger than allowed");
		else if (!strchr(line->data, ':'))
			r = bad(p, 400, "the trailer is not made of headers");
	}
	line->n = 0;
	return r;
}

static enum http_parse feed_chunk_end(struct http_parser *p, char c)
{
	if (c != (p->line.last_cr ? '\n' : '\r'))
		return bad(p, 400, "a chunk does not end where its size says");
	if (p->line.last_cr)
		p->state = STATE_CHUNK_SIZE;
	p->line.last_cr = !p->line.last_cr;
	return HTTP_PARSE_MORE;
}

enum http_parse http_parser_feed(struct http_parser *p, const uint8_t *data, size_t n, size_t *used)
{
	enum http_parse r = HTTP_PARSE_MORE;
	size_t at = 0;

	while (r == HTTP_PARSE_MORE && p->state != STATE_DONE && at < n) {
		size_t taken = 1;

		switch (p->state) {
		case STATE_HEAD:
			r = feed_head(p, (char)data[at]);
			break;
		case STATE_BODY:
		case STATE_CHUNK:
			r = feed_bytes(p, data + at, n - at, &taken);
			break;
		case STATE_CHUNK_SIZE:
		case STATE_TRAILER:
			r = feed_line(p, (char)data[at]);
			break;
		case STATE_CHUNK_END:
			r = feed_chunk_end(p, (char)data[at]);
			break;
		default:
			r = HTTP_PARSE_BAD;
		}
		at += taken;
	}
	*used = at;
	return r == HTTP_PARSE_MORE && p->state == STATE_DONE ? HTTP_PARSE_DONE : r;
}
