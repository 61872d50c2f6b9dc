/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parser of HTTP requests.  The first byte says how the rest is cut into pieces: whatever the pieces, the same
 * requests come out.  Where each of them begins and ends, and what its body is, is found a second time in the
 * bytes as a whole: a request must not end where another reader would see it end elsewhere.
 */
#include <stdbool.h>
#include <strings.h>

#include "daemon/server/http-parse.h"
#include "tests/fuzz/fuzz.h"

#define BODY_MAX 4096u
#define REQUESTS_MAX 64

/* What came out, in one sum. */
struct outcome {
	uint64_t sum;
	size_t n_requests, used;
	unsigned status;
};

static void add(struct outcome *o, const void *data, size_t n)
{
	const uint8_t *p = data;

	for (size_t i = 0; i < n; i++)
		o->sum = (o->sum ^ p[i]) * 1099511628211u;
	o->sum = (o->sum ^ 0xff) * 1099511628211u;
}

static void add_text(struct outcome *o, const char *s)
{
	add(o, s ? s : "", s ? strlen(s) : 0);
}

static void add_request(struct outcome *o, const struct http_parser *p)
{
	add_text(o, p->method);
	add_text(o, p->path);
	add_text(o, p->query);
	add_text(o, p->host);
	for (size_t i = 0; i < p->n_fields; i++) {
		add_text(o, p->fields[i].name);
		add_text(o, p->fields[i].value);
	}
	o->sum += p->keep_alive + 2u * p->expects_continue + 4u * p->minor;
	add(o, p->body, p->n_body);
	o->n_requests++;
}

/* --- the second reading ------------------------------------------------------------------- */

static const uint8_t *find(const uint8_t *data, size_t n, const char *what, size_t n_what)
{
	return memmem(data, n, what, n_what);
}

/* The value of the only line of this name in a head; how often it is there. */
static unsigned count_lines(const uint8_t *head, size_t n, const char *name, char value[32])
{
	size_t n_name = strlen(name);
	const uint8_t *line = head;
	unsigned found = 0;

	while ((line = find(line, n - (size_t)(line - head), "\r\n", 2))) {
		size_t left;

		line += 2;
		left = n - (size_t)(line - head);
		if (left <= n_name || strncasecmp((const char *)line, name, n_name) != 0 || line[n_name] != ':')
			continue;
		found++;
		snprintf(value, 32, "%.*s", (int)strcspn((const char *)line + n_name + 1, "\r"), line + n_name + 1);
	}
	return found;
}

/* Takes chunks out of data into body; how many bytes they and the trailer are. */
static size_t take_chunks(const uint8_t *data, size_t n, uint8_t *body, size_t *n_body)
{
	const uint8_t *at = data, *end;

	for (*n_body = 0;;) {
		size_t size = strtoull((const char *)at, NULL, 16);

		at = find(at, n - (size_t)(at - data), "\r\n", 2);
		FUZZ_CHECK(at);
		at += 2;
		if (!size)
			break;
		FUZZ_CHECK(size <= n - (size_t)(at - data) && *n_body + size <= BODY_MAX);
		memcpy(body + *n_body, at, size);
		*n_body += size;
		at += size + 2;
	}
	/* Behind the last size comes the trailer, which ends in an empty line. */
	end = find(at - 2, n - (size_t)(at - 2 - data), "\r\n\r\n", 4);
	FUZZ_CHECK(end);
	return (size_t)(end + 4 - data);
}

/* The bytes from `data` on are the request that p has just read, of `used` bytes. */
static void check_request(const struct http_parser *p, const uint8_t *data, size_t used)
{
	uint8_t *body = malloc(BODY_MAX);
	char length[32] = "", coding[32] = "";
	size_t skipped = 0, n_head, n_body = 0;
	const uint8_t *end;
	unsigned lengths, codings;

	FUZZ_CHECK(body);
	while (used - skipped >= 2 && !memcmp(data + skipped, "\r\n", 2))
		skipped += 2;
	end = find(data + skipped, used - skipped, "\r\n\r\n", 4);
	FUZZ_CHECK(end);
	n_head = (size_t)(end + 4 - data);
	FUZZ_CHECK(!memchr(data, '\0', n_head));
	lengths = count_lines(data + skipped, n_head - skipped, "Content-Length", length);
	codings = count_lines(data + skipped, n_head - skipped, "Transfer-Encoding", coding);
	FUZZ_CHECK(lengths + codings <= 1 && p->chunked == (codings == 1));
	if (codings) {
		FUZZ_CHECK(n_head + take_chunks(data + n_head, used - n_head, body, &n_body) == used);
	} else {
		n_body = lengths ? strtoull(length, NULL, 10) : 0;
		FUZZ_CHECK(n_body <= BODY_MAX && n_head + n_body == used);
		memcpy(body, data + n_head, n_body);
	}
	FUZZ_CHECK(p->n_body == n_body && !memcmp(p->n_body ? p->body : body, body, n_body));
	free(body);
}

static void check_fields(const struct http_parser *p)
{
	FUZZ_CHECK(p->n_fields <= HTTP_FIELDS_MAX && p->minor <= 1 && *p->method);
	FUZZ_CHECK(*p->path == '/' || !strcmp(p->path, "*"));
	FUZZ_CHECK(p->host || !p->minor);
	for (size_t i = 0; i < p->n_fields; i++) {
		FUZZ_CHECK(*p->fields[i].name && !strpbrk(p->fields[i].name, " \t\r\n:"));
		FUZZ_CHECK(!strpbrk(p->fields[i].value, "\r\n"));
		FUZZ_CHECK(http_parser_field(p, p->fields[i].name));
	}
}

/* --- reading ------------------------------------------------------------------------------------ */

/* Reads all in pieces of `piece` bytes at most. */
static struct outcome read_all(const uint8_t *data, size_t n, size_t piece)
{
	struct outcome o = { .sum = 14695981039346656037u };
	struct http_parser p;
	size_t begin = 0;

	http_parser_init(&p, BODY_MAX);
	while (o.n_requests < REQUESTS_MAX) {
		size_t now = n - o.used < piece ? n - o.used : piece, used;
		uint8_t *copy = fuzz_copy(data + o.used, now);
		enum http_parse r = http_parser_feed(&p, copy, now, &used);

		free(copy);
		FUZZ_CHECK(used <= now && (r != HTTP_PARSE_MORE || used == now));
		o.used += used;
		if (r == HTTP_PARSE_HEAD)
			check_fields(&p);
		if (r == HTTP_PARSE_DONE) {
			check_request(&p, data + begin, o.used - begin);
			add_request(&o, &p);
			http_parser_next(&p);
			begin = o.used;
		}
		if (r == HTTP_PARSE_BAD) {
			FUZZ_CHECK(p.status >= 400 && p.status < 600 && *p.why);
			FUZZ_CHECK(http_parser_feed(&p, data, n, &used) == HTTP_PARSE_BAD || !n);
			o.status = p.status;
			break;
		}
		if (r == HTTP_PARSE_MORE && o.used == n)
			break;
	}
	http_parser_deinit(&p);
	return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct fuzz_input in = { data, n };
	size_t piece = fuzz_u8(&in);
	struct outcome whole = read_all(in.data, in.n, SIZE_MAX), parts = read_all(in.data, in.n, piece ? piece : 1);

	FUZZ_CHECK(whole.sum == parts.sum && whole.n_requests == parts.n_requests);
	FUZZ_CHECK(whole.status == parts.status && whole.used == parts.used);
	return 0;
}
