/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-fields.h - a JSON body to a plain struct, strictly and by a table.
 *
 * An endpoint has one table: a row is a name, what it may be, and where it goes.  What is wrong is refused by
 * the field's name: an unknown name, a wrong type, a number that is not within its range, a name that is
 * there twice.  null is as if the field were not there: the struct keeps what it had.  Integers may
 * be written 1.0 or 1e3, since JSON has one kind of number.
 *
 * What can't be done here is in the table too, as UNSUPPORTED: it is refused unless its value asks for nothing,
 * so that no request is answered as if it had been understood.
 *
 * Any thread; nothing is allocated.
 */
#ifndef KVD_SERVER_HTTP_FIELDS_H
#define KVD_SERVER_HTTP_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/server/http-exchange.h"
#include "daemon/server/http-json.h"
#include "ipc/base/error.h"

#define HTTP_PARAM_MAX 95

/* Why a request is refused: what http_reply_refusal() says. */
struct http_refusal {
	unsigned status;
	const char *code;			/* NULL: null; lives for ever */
	char param[HTTP_PARAM_MAX + 1];		/* "": null */
	unsigned retry_after_s;
	struct diag message;
};

#define HTTP_REFUSAL_NULL ((struct http_refusal){ 0 })

/* The values of `code` that come from here, all with status 400. */
#define HTTP_CODE_JSON "invalid_json"
#define HTTP_CODE_TYPE "invalid_type"
#define HTTP_CODE_VALUE "invalid_value"
#define HTTP_CODE_UNKNOWN "unknown_parameter"
#define HTTP_CODE_UNSUPPORTED "unsupported_parameter"
#define HTTP_CODE_MISSING "missing_required_parameter"

/* Fills in a refusal with status 400.  param: NULL for none. */
__attribute__((format(printf, 4, 5)))
void http_refusal_write(struct http_refusal *why, const char *param, const char *code, const char *fmt, ...);
/* The same, and is -EINVAL.  A macro, since analysers don't see what a variadic function returns. */
#define http_field_refuse(...) (http_refusal_write(__VA_ARGS__), diag_err(-EINVAL))
/* "prompt must be a string, it is a number": -EINVAL. */
int http_field_refuse_type(const struct http_json *v, const char *param, const char *wanted, struct http_refusal *why);
/* The reply; the exchange ends. */
void http_reply_refusal(struct http_exchange *x, const struct http_refusal *why);
/* As an event in a stream.  It refers to why. */
struct http_error http_refusal_error(const struct http_refusal *why);

enum http_field_kind {
	HTTP_FIELD_BOOL,	/* bool */
	HTTP_FIELD_U32,		/* uint32_t, min..max */
	HTTP_FIELD_I64,		/* int64_t, any */
	HTTP_FIELD_FLOAT,	/* float, min..max */
	HTTP_FIELD_DOUBLE,	/* double, min..max */
	HTTP_FIELD_STRING,	/* char [max + 1]: min..max bytes of UTF-8, no NUL among them */
	HTTP_FIELD_JSON,	/* struct http_json, of any type but null, for a reader of its own */
	HTTP_FIELD_IGNORED,	/* changes nothing here; it must be harmless(), so that mistakes are told */
	HTTP_FIELD_UNSUPPORTED,	/* refused, unless harmless() */
};

struct http_field {
	const char *name;
	enum http_field_kind kind;
	double min, max;
	size_t offset;				/* of the value in the struct */
	size_t has;				/* of a bool that becomes true where the field is there; 0: none */
	/* NULL: an IGNORED one may be anything, an UNSUPPORTED one nothing. */
	bool (*harmless)(const struct http_json *v);
};

#define HTTP_FIELDS_MAX 64	/* rows of a table */

/* The body, which must be an object.  0, or -EINVAL with the refusal filled in. */
int http_fields_parse(const uint8_t *body, size_t n, struct http_json *root, struct http_refusal *why);
/*
 * An object's members into the struct.  prefix: of its own name, "" or "stream_options.".  0, or -EINVAL with the
 * refusal filled in and the struct filled in part.
 */
int http_fields_read(const struct http_json *object, const struct http_field *table, size_t n_table,
		     const char *prefix, void *out, struct http_refusal *why);

/* What a value is, for a refusal: "a string". */
const char *http_type_name(const struct http_json *v);

/* For .harmless: an object; a string of at most 1024 characters; false; "none"; [] or {}; {"type": "text"}. */
bool http_is_object(const struct http_json *v);
bool http_is_label(const struct http_json *v);
bool http_is_false(const struct http_json *v);
bool http_is_none(const struct http_json *v);
bool http_is_empty(const struct http_json *v);
bool http_is_text_format(const struct http_json *v);

#endif
