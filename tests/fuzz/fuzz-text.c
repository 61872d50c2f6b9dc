/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a stream shows of a generated text: cut into any pieces it must add up to
 * the text as a whole, up to the earliest stop string, found by naive search.
 *
 * Input: number of stop strings, their lengths, a seed for the pieces; the stop
 * strings; the text.
 */
#include <stdbool.h>

#include "daemon/engine/text.h"
#include "ipc/base/utf8.h"
#include "tests/fuzz/fuzz.h"

#define MAX_STOPS 4
#define MAX_STOP 12	/* bytes */

struct stops {
	char text[MAX_STOPS][MAX_STOP + 1];
	const char *list[MAX_STOPS];
	size_t n;
};

static void take_stops(struct fuzz_input *in, struct stops *s)
{
	size_t n = fuzz_u8(in) % (MAX_STOPS + 1);

	for (size_t i = 0; i < n; i++) {
		size_t len = 1 + fuzz_u8(in) % MAX_STOP;

		for (size_t k = 0; k < len; k++) {
			char c = (char)fuzz_u8(in);

			s->text[i][k] = c ? c : 'x';
		}
		s->text[i][len] = '\0';
		s->list[i] = s->text[i];
	}
	s->n = n;
}

/* The earliest start wins, then the shortest, then the first listed; n if none occurs. */
static size_t find_stop(const uint8_t *text, size_t n, const struct stops *s, size_t *index)
{
	for (size_t i = 0; i < n; i++) {
		size_t best = SIZE_MAX;

		for (size_t j = 0; j < s->n; j++) {
			size_t len = strlen(s->list[j]);

			if (len <= n - i && len < best && memcmp(text + i, s->list[j], len) == 0) {
				best = len;
				*index = j;
			}
		}
		if (best != SIZE_MAX)
			return i;
	}
	return n;
}

/* The text with U+FFFD for what is ill-formed; returns its length. */
static size_t repair(const uint8_t *text, size_t n, uint8_t *out)
{
	size_t n_out = 0;

	for (size_t i = 0; i < n;) {
		int len = utf8_scan(text + i, n - i);
		size_t took = len > 0 ? (size_t)len : len < 0 ? (size_t)-len : n - i;

		if (len > 0)
			memcpy(out + n_out, text + i, took);
		else
			memcpy(out + n_out, "\xef\xbf\xbd", 3);
		n_out += len > 0 ? took : 3;
		i += took;
	}
	return n_out;
}

/* Pushes in pieces of 1 to 8 bytes; at every moment what is out is well-formed. */
static void stream(struct text_filter *f, const uint8_t *text, size_t n, uint64_t seed, struct text_buffer *out)
{
	for (size_t i = 0; i < n && !f->decided;) {
		size_t piece = 1 + (size_t)(seed % 8), before = out->n;

		seed = seed * 6364136223846793005u + 1442695040888963407u;
		seed ^= seed >> 29;
		piece = piece < n - i ? piece : n - i;
		FUZZ_CHECK(text_filter_push(f, text + i, piece, out) == 0);
		FUZZ_CHECK(utf8_valid(out->bytes + before, out->n - before));
		i += piece;
	}
	FUZZ_CHECK(text_filter_finish(f, out) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct fuzz_input in = { data, n };
	struct stops stops = { 0 };
	struct text_buffer out = { 0 };
	struct text_filter filter;
	size_t start, n_want, index = 0;
	uint8_t *text, *want;
	uint64_t seed;

	take_stops(&in, &stops);
	seed = fuzz_number(&in, 4);
	text = fuzz_copy(in.data, in.n);
	want = malloc(3 * in.n + 1);
	FUZZ_CHECK(want);
	start = find_stop(text, in.n, &stops, &index);
	n_want = repair(text, start, want);
	FUZZ_CHECK(text_filter_init(&filter, stops.list, stops.n) == 0);
	stream(&filter, text, in.n, seed, &out);
	FUZZ_CHECK(out.n == n_want && (!n_want || memcmp(out.bytes, want, n_want) == 0));
	FUZZ_CHECK(filter.decided == (start < in.n));
	FUZZ_CHECK(!filter.decided || filter.match_index == index);
	text_filter_deinit(&filter);
	free(out.bytes);
	free(want);
	free(text);
	return 0;
}
