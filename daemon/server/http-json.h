/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-json.h - reads a JSON text (RFC 8259) where it stands.
 *
 * http_json_parse() looks at all of it once: grammar, depth, UTF-8, lone surrogates.  After that a value is a
 * stretch of the text, and members and elements are found by walking; nothing is
 * allocated, so that a body costs no more memory than its bytes.  Numbers keep their digits, so that who reads
 * them can tell 2^63 from its neighbours and name the range that 1e999 is not in.
 *
 * Values refer to the text, which outlives them.  Any thread.
 */
#ifndef KVD_SERVER_HTTP_JSON_H
#define KVD_SERVER_HTTP_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/error.h"

#define HTTP_JSON_DEPTH_MAX 32	/* arrays and objects inside each other */

enum http_json_type {
	HTTP_JSON_NULL,
	HTTP_JSON_FALSE,
	HTTP_JSON_TRUE,
	HTTP_JSON_NUMBER,
	HTTP_JSON_STRING,
	HTTP_JSON_ARRAY,
	HTTP_JSON_OBJECT,
};

struct http_json {
	enum http_json_type type;
	const uint8_t *text;	/* [n]: all of the value, with its quotes or brackets */
	size_t n;
};

/* 0; -EINVAL: diag says what is wrong and where. */
int http_json_parse(const uint8_t *text, size_t n, struct http_json *out, struct diag *diag);

/* Elements of an array, or members of an object in their order. */
struct http_json_iter {
	const uint8_t *p, *end;
	bool is_object;
};

/* v is an array or an object. */
struct http_json_iter http_json_begin(const struct http_json *v);
/* False at the end.  key: NULL, or gets a member's, a string. */
bool http_json_next(struct http_json_iter *it, struct http_json *key, struct http_json *value);
size_t http_json_count(const struct http_json *v);

/* How many bytes a string has, at most its text's n - 2 (NULs possible); the first `capacity` of them go to out. */
size_t http_json_string(const struct http_json *v, uint8_t *out, size_t capacity);
/* Whether it is a string and says this. */
bool http_json_is(const struct http_json *v, const char *text);

/* A number.  False: it is none within what a double holds. */
bool http_json_double(const struct http_json *v, double *out);
/* A number of integral value that is not negative, also one written 1.0 or 1e3.  False: it is none. */
bool http_json_u64(const struct http_json *v, uint64_t *out);
/* The same of either sign. */
bool http_json_i64(const struct http_json *v, int64_t *out);

#endif
