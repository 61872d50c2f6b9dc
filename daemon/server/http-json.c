/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/http-json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/utf8.h"

/* The longest number that is looked at closely; no value of a double needs more digits to be told apart. */
#define NUMBER_MAX 63

struct scanner {
	const uint8_t *begin, *p, *end;
	struct diag *diag;
};

static int wrong(const struct scanner *s, const char *what)
{
	return diag_set(s->diag, -EINVAL, "the body is not valid JSON: %s at byte %zu", what,
			(size_t)(s->p - s->begin));
}

static bool at(const struct scanner *s, char c)
{
	return s->p < s->end && *s->p == (uint8_t)c;
}

static void skip_space(struct scanner *s)
{
	while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\n' || *s->p == '\r'))
		s->p++;
}

static bool is_digit(const struct scanner *s)
{
	return s->p < s->end && *s->p >= '0' && *s->p <= '9';
}

static int scan_digits(struct scanner *s)
{
	if (!is_digit(s))
		return wrong(s, "a digit is missing");
	while (is_digit(s))
		s->p++;
	return 0;
}

static int scan_number(struct scanner *s)
{
	int r;

	if (at(s, '-'))
		s->p++;
	if (at(s, '0'))
		s->p++;
	else if ((r = scan_digits(s)) < 0)
		return r;
	if (at(s, '.')) {
		s->p++;
		r = scan_digits(s);
		if (r)
			return r;
	}
	if (at(s, 'e') || at(s, 'E')) {
		s->p++;
		if (at(s, '+') || at(s, '-'))
			s->p++;
		return scan_digits(s);
	}
	return 0;
}

/* The four digits at p, or -1. */
static int32_t hex4(const uint8_t *p)
{
	int32_t v = 0;

	for (int i = 0; i < 4; i++) {
		uint8_t c = p[i], low = c | 0x20;

		if (c >= '0' && c <= '9')
			v = v * 16 + (c - '0');
		else if (low >= 'a' && low <= 'f')
			v = v * 16 + (low - 'a' + 10);
		else
			return -1;
	}
	return v;
}

static bool is_high(int32_t unit)
{
	return unit >= 0xd800 && unit < 0xdc00;
}

static bool is_low(int32_t unit)
{
	return unit >= 0xdc00 && unit < 0xe000;
}

/* p is at the u of \uXXXX, and moves behind it, or behind the pair that it begins. */
static int scan_unicode(struct scanner *s)
{
	int32_t unit = s->end - s->p < 5 ? -1 : hex4(s->p + 1);

	if (unit < 0)
		return wrong(s, "four hex digits are missing");
	if (is_low(unit))
		return wrong(s, "a lone surrogate");
	if (is_high(unit)) {
		if (s->end - s->p < 11 || s->p[5] != '\\' || s->p[6] != 'u' || !is_low(hex4(s->p + 7)))
			return wrong(s, "a lone surrogate");
		s->p += 6;
	}
	s->p += 5;
	return 0;
}

static int scan_escape(struct scanner *s)
{
	s->p++;
	if (at(s, 'u'))
		return scan_unicode(s);
	if (s->p == s->end || !*s->p || !strchr("\"\\/bfnrt", *s->p))
		return wrong(s, "an unknown escape");
	s->p++;
	return 0;
}

/* Where eight bytes of which none is a quote, a backslash, a control character or above 127 have ended. */
static const uint8_t *skip_plain(const uint8_t *p, const uint8_t *end)
{
	const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones << 7;

	while (end - p >= 8) {
		uint64_t v, quote, slash;

		memcpy(&v, p, sizeof(v));
		quote = v ^ ones * '"';
		slash = v ^ ones * '\\';
		/* A byte below n borrows into its top bit (Mycroft 1987); one above 127 has its own. */
		if ((v | (v - ones * 0x20) | (quote - ones) | (slash - ones)) & tops)
			break;
		p += 8;
	}
	return p;
}

static int scan_string(struct scanner *s)
{
	s->p++;
	while (s->p < s->end) {
		uint8_t c = *s->p;
		int n, r;


		if (c == '"') {
			s->p++;
			return 0;
		}
		if (c < 0x20)
			return wrong(s, "a control character in a string");
		if (c == '\\') {
			r = scan_escape(s);
			if (r)
				return r;
			continue;
		}
		if (c < 0x80) {
			s->p = skip_plain(s->p + 1, s->end);
			continue;
		}
		n = utf8_scan(s->p, (size_t)(s->end - s->p));
		if (n <= 0)
			return wrong(s, "ill-formed UTF-8");
		s->p += n;
	}
	return wrong(s, "a string without an end");
}

static int scan_word(struct scanner *s, const char *word)
{
	size_t n = strlen(word);

	if ((size_t)(s->end - s->p) < n || memcmp(s->p, word, n) != 0)
		return wrong(s, "an unknown word");
	s->p += n;
	return 0;
}

/* Anything but an array or an object. */
static int scan_scalar(struct scanner *s)
{
	if (s->p == s->end)
		return wrong(s, "a value is missing");
	switch (*s->p) {
	case '"':
		return scan_string(s);
	case 'n':
		return scan_word(s, "null");
	case 't':
		return scan_word(s, "true");
	case 'f':
		return scan_word(s, "false");
	default:
		if (*s->p == '-' || is_digit(s))
			return scan_number(s);
		return wrong(s, "a value is missing");
	}
}

static int scan_key(struct scanner *s)
{
	int r;

	skip_space(s);
	if (!at(s, '"'))
		return wrong(s, "a name is missing");
	r = scan_string(s);
	if (r)
		return r;
	skip_space(s);
	if (!at(s, ':'))
		return wrong(s, "a colon is missing");
	s->p++;
	return 0;
}

/*
 * One value, containers by a stack of a bit each: depth is bounded and nothing recurses.
 * After each value: close what ends there, or go on behind a comma.
 */
static int scan_value(struct scanner *s)
{
	uint64_t objects = 0;	/* bit 0: the innermost one is an object */
	unsigned depth = 0;
	int r;

	for (;;) {
		bool opened = false;

		skip_space(s);
		if (at(s, '[') || at(s, '{')) {
			if (depth == HTTP_JSON_DEPTH_MAX)
				return wrong(s, "more than 32 arrays and objects inside each other");
			objects = objects << 1 | at(s, '{');
			depth++;
			s->p++;
			skip_space(s);
			opened = true;
			if (!at(s, objects & 1 ? '}' : ']')) {
				r = objects & 1 ? scan_key(s) : 0;
				if (r)
					return r;
				continue;
			}
		} else {
			r = scan_scalar(s);
			if (r)
				return r;
		}
		for (;;) {
			if (!depth)
				return 0;
			if (!opened)
				skip_space(s);
			if (!at(s, objects & 1 ? '}' : ']'))
				break;
			opened = false;
			s->p++;
			objects >>= 1;
			depth--;
		}
		if (!at(s, ','))
			return wrong(s, objects & 1 ? "a comma or } is missing" : "a comma or ] is missing");
		s->p++;
		r = objects & 1 ? scan_key(s) : 0;
		if (r)
			return r;
	}
}

static enum http_json_type type_of(uint8_t c)
{
	switch (c) {
	case 'n':
		return HTTP_JSON_NULL;
	case 'f':
		return HTTP_JSON_FALSE;
	case 't':
		return HTTP_JSON_TRUE;
	case '"':
		return HTTP_JSON_STRING;
	case '[':
		return HTTP_JSON_ARRAY;
	case '{':
		return HTTP_JSON_OBJECT;
	default:
		return HTTP_JSON_NUMBER;
	}
}

int http_json_parse(const uint8_t *text, size_t n, struct http_json *out, struct diag *diag)
{
	struct scanner s = { .begin = text, .p = text, .end = text + n, .diag = diag };
	const uint8_t *first;
	size_t length;
	int r;

	skip_space(&s);
	first = s.p;
	r = scan_value(&s);
	if (r)
		return r;
	length = (size_t)(s.p - first);
	skip_space(&s);
	if (s.p != s.end)
		return wrong(&s, "something follows the value");
	*out = (struct http_json){ .type = type_of(*first), .text = first, .n = length };
	return 0;
}

/* --- in a text that was found right ------------------------------------------------ */

/* end: of the text, or somewhere behind the string. */
static const uint8_t *behind_string(const uint8_t *p, const uint8_t *end)
{
	for (p++; *p != '"';) {
		if (*p == '\\')
			p += 2;
		else if (*p < 0x80)
			p = skip_plain(p + 1, end);
		else
			p++;
	}
	return p + 1;
}

/* Brackets in strings don't count; the text is right, so either kind may stand for both. */
static const uint8_t *behind_container(const uint8_t *p, const uint8_t *end)
{
	unsigned depth = 0;

	do {
		switch (*p) {
		case '"':
			p = behind_string(p, end);
			continue;
		case '[':
		case '{':
			depth++;
			break;
		case ']':
		case '}':
			depth--;
			break;
		default:
			break;
		}
		p++;
	} while (depth);
	return p;
}

/* Numbers and words end before one of these: all of them are inside an array or object. */
static const uint8_t *behind_word(const uint8_t *p)
{
	while (*p != ',' && *p != ']' && *p != '}' && *p > ' ')
		p++;
	return p;
}

/* The value where the walk stands; it moves behind it. */
static void take(struct http_json_iter *it, struct http_json *out)
{
	const uint8_t *begin = it->p;
	enum http_json_type type = type_of(*begin);

	if (type == HTTP_JSON_STRING)
		it->p = behind_string(begin, it->end);
	else if (type == HTTP_JSON_ARRAY || type == HTTP_JSON_OBJECT)
		it->p = behind_container(begin, it->end);
	else
		it->p = behind_word(begin);
	if (out)
		*out = (struct http_json){ .type = type, .text = begin, .n = (size_t)(it->p - begin) };
}

/* Space, and what stands between values. */
static void skip_between(struct http_json_iter *it)
{
	while (*it->p <= ' ' || *it->p == ',' || *it->p == ':')
		it->p++;
}

struct http_json_iter http_json_begin(const struct http_json *v)
{
	return (struct http_json_iter){
		.p = v->text + 1, .end = v->text + v->n, .is_object = v->type == HTTP_JSON_OBJECT,
	};
}

bool http_json_next(struct http_json_iter *it, struct http_json *key, struct http_json *value)
{
	skip_between(it);
	if (*it->p == ']' || *it->p == '}')
		return false;
	if (it->is_object) {
		take(it, key);
		skip_between(it);
	}
	take(it, value);
	return true;
}

size_t http_json_count(const struct http_json *v)
{
	struct http_json_iter it = http_json_begin(v);
	struct http_json value;
	size_t n = 0;

	while (http_json_next(&it, NULL, &value))
		n++;
	return n;
}

static uint8_t escaped(uint8_t c)
{
	switch (c) {
	case 'b':
		return '\b';
	case 'f':
		return '\f';
	case 'n':
		return '\n';
	case 'r':
		return '\r';
	case 't':
		return '\t';
	default:
		return c;
	}
}

/* The bytes that p, behind a backslash, stands for; it moves behind them. */
static size_t unescape(const uint8_t **p, uint8_t out[4])
{
	uint32_t cp;

	if (**p != 'u') {
		out[0] = escaped(*(*p)++);
		return 1;
	}
	cp = (uint32_t)hex4(*p + 1);
	*p += 5;
	if (is_high((int32_t)cp)) {
		cp = 0x10000 + ((cp - 0xd800) << 10) + ((uint32_t)hex4(*p + 2) - 0xdc00);
		*p += 6;
	}
	return utf8_encode(cp, out);
}

/* As many of k more bytes as there is room for; how many it are with them. */
static size_t append(uint8_t *out, size_t n, size_t capacity, const uint8_t *bytes, size_t k)
{
	if (n < capacity && k)
		memcpy(out + n, bytes, MIN(k, capacity - n));
	return n + k;
}

size_t http_json_string(const struct http_json *v, uint8_t *out, size_t capacity)
{
	const uint8_t *p = v->text + 1, *end = v->text + v->n - 1;
	size_t n = 0;

	while (p < end) {
		const uint8_t *slash = memchr(p, '\\', (size_t)(end - p)), *stop = slash ? slash : end;
		uint8_t bytes[4];
		size_t n_bytes;

		n = append(out, n, capacity, p, (size_t)(stop - p));
		p = stop;
		if (slash) {
			p++;
			n_bytes = unescape(&p, bytes);
			n = append(out, n, capacity, bytes, n_bytes);
		}
	}
	return n;
}

bool http_json_is(const struct http_json *v, const char *text)
{
	uint8_t bytes[64];
	size_t n = strlen(text);

	return v->type == HTTP_JSON_STRING && n < sizeof(bytes) && http_json_string(v, bytes, n) == n &&
	       !memcmp(bytes, text, n);
}

/* Its digits as a C string.  False: too many. */
static bool number_text(const struct http_json *v, char out[NUMBER_MAX + 1])
{
	if (v->type != HTTP_JSON_NUMBER || v->n > NUMBER_MAX)
		return false;
	memcpy(out, v->text, v->n);
	out[v->n] = '\0';
	return true;
}

bool http_json_double(const struct http_json *v, double *out)
{
	char text[NUMBER_MAX + 1];
	double d;

	if (!number_text(v, text))
		return false;
	d = strtod(text, NULL);
	if (!isfinite(d))
		return false;
	*out = d;
	return true;
}

/* Digits alone are exact; anything else goes by way of a double, which is exact up to 2^53. */
static bool magnitude(const char *text, uint64_t *out)
{
	const double exact = 9007199254740992.0;
	unsigned long long whole;
	double d;

	if (text[strspn(text, "0123456789")]) {
		d = strtod(text, NULL);
		if (!(d >= 0 && d <= exact) || d != floor(d))
			return false;
		*out = (uint64_t)d;
		return true;
	}
	errno = 0;
	whole = strtoull(text, NULL, 10);
	if (errno)
		return false;
	*out = whole;
	return true;
}

/* Up to 18 digits and nothing else, as nearly all are. */
static bool short_digits(const struct http_json *v, uint64_t *out)
{
	uint64_t u = 0;

	if (v->type != HTTP_JSON_NUMBER || v->n > 18)
		return false;
	for (size_t i = 0; i < v->n; i++) {
		uint8_t digit = (uint8_t)(v->text[i] - '0');

		if (digit > 9)
			return false;
		u = u * 10 + digit;
	}
	*out = u;
	return true;
}

bool http_json_u64(const struct http_json *v, uint64_t *out)
{
	char text[NUMBER_MAX + 1];
	uint64_t size;

	if (short_digits(v, out))
		return true;
	if (!number_text(v, text) || !magnitude(text + (text[0] == '-'), &size) || (text[0] == '-' && size))
		return false;
	*out = size;
	return true;
}

bool http_json_i64(const struct http_json *v, int64_t *out)
{
	char text[NUMBER_MAX + 1];
	uint64_t size;

	if (!number_text(v, text) || !magnitude(text + (text[0] == '-'), &size) ||
	    size > (uint64_t)INT64_MAX + (text[0] == '-'))
		return false;
	*out = text[0] == '-' ? (int64_t)(0 - size) : (int64_t)size;
	return true;
}
