/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages written as text, turned into msgpack by code that knows nothing of the
 * codec: numbers (with '.', 'e' or as nan, inf: 64-bit floats), true, false, nil,
 * 'str' (with \xNN), b'bin', ext (a fixext 1), [arrays], {maps}; 'x'*300 is a string
 * repeated, and inside an array @300 v is v repeated.
 */
#ifndef KVD_TEST_NOTATION_H
#define KVD_TEST_NOTATION_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NOTATION_MAX (256u << 10)

struct notation {
	const char *at;
	uint8_t *out;
	size_t n;
};

static void notation_byte(struct notation *s, uint8_t b)
{
	if (s->n < NOTATION_MAX)
		s->out[s->n++] = b;
}

static void notation_be(struct notation *s, uint8_t head, uint64_t v, int n)
{
	notation_byte(s, head);
	while (n-- > 0)
		notation_byte(s, (uint8_t)(v >> 8 * n));
}

static void notation_space(struct notation *s)
{
	while (*s->at == ' ' || *s->at == ',' || *s->at == ':')
		s->at++;
}

static void notation_string(struct notation *s, int bin)
{
	static uint8_t body[NOTATION_MAX];
	size_t n = 0, unit;
	long times = 1;

	for (s->at++; *s->at != '\''; s->at++) {
		char hex[3] = "";

		if (*s->at != '\\') {
			body[n++] = (uint8_t)*s->at;
			continue;
		}
		memcpy(hex, s->at + 2, 2);
		body[n++] = (uint8_t)strtoul(hex, NULL, 16);
		s->at += 3;
	}
	s->at++;
	unit = n;
	if (*s->at == '*')
		times = strtol(s->at + 1, (char **)&s->at, 10);
	for (long i = 1; i < times; i++, n += unit)
		memcpy(body + n, body, unit);
	notation_be(s, bin ? 0xc6 : 0xdb, n, 4);
	for (size_t i = 0; i < n; i++)
		notation_byte(s, body[i]);
}

static void notation_number(struct notation *s)
{
	char *end, *int_end;
	double x = strtod(s->at, &end);
	uint64_t bits;

	errno = 0;
	if (*s->at == '-') {
		bits = (uint64_t)strtoll(s->at, &int_end, 10);
		if (int_end == end)
			notation_be(s, 0xd3, bits, 8);
	} else {
		bits = strtoull(s->at, &int_end, 10);
		if (int_end == end)
			notation_be(s, 0xcf, bits, 8);
	}
	if (int_end != end) {
		memcpy(&bits, &x, 8);
		notation_be(s, 0xcb, bits, 8);
	}
	s->at = end;
}

static void notation_value(struct notation *s);

static void notation_container(struct notation *s, char close)
{
	size_t head = s->n;
	uint32_t n = 0;

	notation_be(s, close == ']' ? 0xdd : 0xdf, 0, 4);
	for (s->at++, notation_space(s); *s->at != close; notation_space(s)) {
		long times = 1;
		const char *start;

		if (*s->at == '@')
			times = strtol(s->at + 1, (char **)&s->at, 10);
		start = s->at;
		for (long i = 0; i < times; i++, n++) {
			s->at = start;
			notation_value(s);
		}
	}
	s->at++;
	if (close == '}')
		n /= 2;
	for (int i = 0; i < 4; i++)
		s->out[head + 1 + (size_t)i] = (uint8_t)(n >> 8 * (3 - i));
}

static int notation_word(struct notation *s, const char *word, uint8_t b)
{
	if (strncmp(s->at, word, strlen(word)))
		return 0;
	s->at += strlen(word);
	notation_byte(s, b);
	return 1;
}

static void notation_value(struct notation *s)
{
	notation_space(s);
	if (*s->at == '[') {
		notation_container(s, ']');
	} else if (*s->at == '{') {
		notation_container(s, '}');
	} else if (*s->at == '\'') {
		notation_string(s, 0);
	} else if (s->at[0] == 'b' && s->at[1] == '\'') {
		s->at++;
		notation_string(s, 1);
	} else if (notation_word(s, "ext", 0xd4)) {
		notation_byte(s, 1);
		notation_byte(s, 2);
	} else if (!notation_word(s, "true", 0xc3) && !notation_word(s, "false", 0xc2) &&
		   !notation_word(s, "nil", 0xc0)) {
		notation_number(s);
	}
}

/* Returns how many bytes; out has NOTATION_MAX. */
static size_t notation_pack(const char *text, uint8_t *out)
{
	struct notation s = { .at = text, .out = out };

	notation_value(&s);
	return s.n;
}

#endif
