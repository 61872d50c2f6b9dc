/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text.h - from a sequence's bytes to the text that may be shown.
 *
 * Two stages over one buffer.  The stop matcher holds back exactly the bytes
 * that could still become a stop string; what it lets go is released as whole
 * code points, ill-formed bytes replaced by U+FFFD, one per maximal subpart.
 * The result depends on the bytes alone, not on how they were cut into pushes.
 *
 * The rule for stop strings: among all occurrences in the whole text, the one
 * that starts earliest wins; of several that start there, the first to be
 * complete, then the first listed.  Text ends where the winner starts.  An
 * occurrence is decided only once no other that starts earlier can come.
 *
 * Each byte costs one step of a Knuth-Morris-Pratt automaton per stop string
 * (Knuth, Morris, Pratt 1977, SIAM J. Comput. 6:2).
 *
 * Thread: one at a time.
 */
#ifndef KVD_TEXT_H
#define KVD_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TEXT_STOP_MAX 16		/* stop strings */
#define TEXT_STOP_BYTES_MAX 256		/* each, 1..256 */

/* A growable byte buffer; zero-initialise, free(bytes). */
struct text_buffer {
	uint8_t *bytes;
	size_t n, capacity;
};

struct text_stop {
	const uint8_t *bytes;	/* [n] */
	uint16_t *border;	/* [n] longest proper border of bytes[0..i] */
	uint16_t n;
	uint16_t state;		/* longest prefix that the text ends with */
};

struct text_filter {
	struct text_stop *stops;
	size_t n_stops;
	struct text_buffer held;	/* bytes not released yet */
	uint64_t n_seen;		/* bytes of the text so far, held ones included */
	bool matched;			/* a stop string occurs ... */
	bool decided;			/* ... and no earlier one can come: the text is over */
	uint64_t match_start;		/* counted from the beginning of the text */
	size_t match_index;
};

/* -EINVAL: more or longer strings than the limits, or an empty one; -ENOMEM. */
int text_filter_init(struct text_filter *f, const char *const *stop, size_t n_stop);
void text_filter_deinit(struct text_filter *f);
/* Bytes that the filter and the buffer that is emptied before each push may hold. */
uint64_t text_filter_bound(const struct text_filter *f, uint32_t max_push);

/*
 * Takes n bytes, and appends what may be shown to out.  After f->decided bytes
 * are ignored.  0 or -ENOMEM, which leaves everything as it was.
 */
int text_filter_push(struct text_filter *f, const uint8_t *bytes, size_t n, struct text_buffer *out);

/* The end of the text: appends the rest to out (at most 1 KiB).  0 or -ENOMEM. */
int text_filter_finish(struct text_filter *f, struct text_buffer *out);

#endif
