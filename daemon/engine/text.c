/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/utf8.h"

#define BUFFER_LEAST 64u	/* bytes */
#define UTF8_MAX 4u		/* bytes of a code point */

/* Makes room for n more bytes. */
static int buffer_reserve(struct text_buffer *b, size_t n)
{
	size_t capacity = MAX(b->capacity, (size_t)BUFFER_LEAST);
	uint8_t *bytes;

	if (n <= b->capacity - b->n)
		return 0;
	while (capacity - b->n < n) {
		if (capacity > SIZE_MAX / 2)
			return -ENOMEM;
		capacity *= 2;
	}
	bytes = realloc(b->bytes, capacity);
	if (!bytes)
		return -ENOMEM;
	b->bytes = bytes;
	b->capacity = capacity;
	return 0;
}

static void buffer_append(struct text_buffer *b, const void *bytes, size_t n)
{
	if (n)
		memcpy(b->bytes + b->n, bytes, n);
	b->n += n;
}

static int stop_init(struct text_stop *s, const char *text)
{
	size_t n = strnlen(text, TEXT_STOP_BYTES_MAX + 1);
	uint8_t *bytes;

	if (!n || n > TEXT_STOP_BYTES_MAX)
		return -EINVAL;
	/* One piece of memory: the borders, then the bytes. */
	s->border = malloc(n * (sizeof(*s->border) + 1));
	if (!s->border)
		return -ENOMEM;
	bytes = (uint8_t *)(s->border + n);
	memcpy(bytes, text, n);
	s->bytes = bytes;
	s->n = (uint16_t)n;
	s->state = 0;
	s->border[0] = 0;
	for (size_t i = 1, k = 0; i < n; i++) {
		while (k && bytes[i] != bytes[k])
			k = s->border[k - 1];
		k += bytes[i] == bytes[k];
		s->border[i] = (uint16_t)k;
	}
	return 0;
}

/* Takes one byte; true when the string is complete. */
static bool stop_step(struct text_stop *s, uint8_t byte)
{
	uint16_t k = s->state;

	while (k && s->bytes[k] != byte)
		k = s->border[k - 1];
	k += s->bytes[k] == byte;
	s->state = k;
	if (k < s->n)
		return false;
	s->state = s->border[k - 1];
	return true;
}

int text_filter_init(struct text_filter *f, const char *const *stop, size_t n_stop)
{
	struct text_filter new = { 0 };

	if (n_stop > TEXT_STOP_MAX)
		return -EINVAL;
	if (n_stop) {
		new.stops = calloc(n_stop, sizeof(*new.stops));
		if (!new.stops)
			return -ENOMEM;
	}
	for (; new.n_stops < n_stop; new.n_stops++) {
		int r = stop_init(&new.stops[new.n_stops], stop[new.n_stops]);

		if (r) {
			text_filter_deinit(&new);
			return r;
		}
	}
	*f = new;
	return 0;
}

uint64_t text_filter_bound(const struct text_filter *f, uint32_t max_push)
{
	uint64_t strings = f->n_stops * sizeof(*f->stops), held = UTF8_MAX;

	for (size_t i = 0; i < f->n_stops; i++) {
		strings += f->stops[i].n * (sizeof(*f->stops[i].border) + 1u);
		held = MAX(held, (uint64_t)f->stops[i].n);
	}
	/* An ill-formed byte becomes three; a buffer is at most twice as large as what it held. */
	held += UTF8_MAX + max_push;
	return strings + 2 * (held + 3 * held) + 2 * BUFFER_LEAST;
}

void text_filter_deinit(struct text_filter *f)
{
	for (size_t i = 0; i < f->n_stops; i++)
		free(f->stops[i].border);
	free(f->stops);
	free(f->held.bytes);
	*f = (struct text_filter){ 0 };
}

/* The longest stop string's beginning that the text ends with. */
static size_t longest_state(const struct text_filter *f)
{
	size_t longest = 0;

	for (size_t i = 0; i < f->n_stops; i++)
		longest = MAX(longest, (size_t)f->stops[i].state);
	return longest;
}

/* Advances every automaton by one byte. */
static void step_stops(struct text_filter *f, uint8_t byte)
{
	f->n_seen++;
	for (size_t i = 0; i < f->n_stops; i++) {
		struct text_stop *s = &f->stops[i];
		uint64_t start;

		if (!stop_step(s, byte))
			continue;
		start = f->n_seen - s->n;
		if (f->matched && start >= f->match_start)
			continue;
		f->matched = true;
		f->match_start = start;
		f->match_index = i;
	}
	if (f->matched && f->n_seen - longest_state(f) >= f->match_start)
		f->decided = true;
}

/*
 * Moves the first n held bytes to out as whole code points; an incomplete one
 * at their end stays, unless it is the last chance.  Room is reserved.
 */
static void release(struct text_filter *f, size_t n, bool last, struct text_buffer *out)
{
	static const uint8_t replacement[] = { 0xef, 0xbf, 0xbd };
	const uint8_t *p = f->held.bytes;
	size_t i = 0;

	while (i < n) {
		int len = utf8_scan(p + i, n - i);

		if (len == 0 && !last)
			break;
		if (len > 0) {
			buffer_append(out, p + i, (size_t)len);
			i += (size_t)len;
		} else {
			buffer_append(out, replacement, sizeof(replacement));
			i += len ? (size_t)-len : n - i;
		}
	}
	f->held.n -= i;
	if (i && f->held.n)
		memmove(f->held.bytes, f->held.bytes + i, f->held.n);
}

/* How many held bytes no stop string can claim any more. */
static size_t n_free_bytes(const struct text_filter *f)
{
	uint64_t held_from = f->n_seen - f->held.n, end;

	end = f->decided ? f->match_start : f->n_seen - longest_state(f);
	if (f->matched)
		end = MIN(end, f->match_start);
	return (size_t)(end - held_from);
}

int text_filter_push(struct text_filter *f, const uint8_t *bytes, size_t n, struct text_buffer *out)
{
	size_t room;
	int r;

	if (f->decided || !n)
		return 0;
	/* At worst every byte becomes a U+FFFD. */
	if (n > SIZE_MAX / 8 || f->held.n > SIZE_MAX / 8)
		return -ENOMEM;
	room = 3 * (f->held.n + n);
	r = buffer_reserve(&f->held, n);
	if (!r)
		r = buffer_reserve(out, room);
	if (r)
		return r;
	for (size_t i = 0; i < n && !f->decided; i++) {
		f->held.bytes[f->held.n++] = bytes[i];
		step_stops(f, bytes[i]);
	}
	release(f, n_free_bytes(f), false, out);
	return 0;
}

int text_filter_finish(struct text_filter *f, struct text_buffer *out)
{
	size_t n = f->held.n;
	int r;

	r = buffer_reserve(out, 3 * n);
	if (r)
		return r;
	if (f->matched) {
		n = (size_t)(f->match_start - (f->n_seen - n));
		f->decided = true;
	}
	release(f, n, true, out);
	f->held.n = 0;
	return 0;
}
