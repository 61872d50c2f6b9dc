/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-writer.h - JSON by hand, into a buffer that grows: a chunk of a stream is made for every token, and a
 * tree of values for each would cost more than the rest of its way.
 *
 * A writer that ran out of memory says so at the end (`failed`), and has written nothing
 * since.  Any thread, one at a time.
 */
#ifndef KVD_SERVER_HTTP_WRITER_H
#define KVD_SERVER_HTTP_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Zero-initialise; http_writer_deinit(). */
struct http_writer {
	char *data;
	size_t n, capacity;
	bool failed;
};

void http_writer_deinit(struct http_writer *w);

void http_put(struct http_writer *w, const void *data, size_t n);
static inline void http_put_text(struct http_writer *w, const char *text)
{
	http_put(w, text, strlen(text));
}
void http_put_writer(struct http_writer *w, const struct http_writer *from);	/* a failure is passed on */
__attribute__((format(printf, 2, 3)))
void http_put_format(struct http_writer *w, const char *fmt, ...);	/* at most 255 bytes */

/* Inside a string: bytes, escaped; a maximal ill-formed subpart becomes one U+FFFD, so give whole code points. */
void http_put_escaped(struct http_writer *w, const uint8_t *bytes, size_t n);
/* The same with quotes. */
void http_put_string(struct http_writer *w, const uint8_t *bytes, size_t n);
void http_put_cstring(struct http_writer *w, const char *text);
/*
 * A token's bytes in a string that tells tokens apart where they are no whole characters: then it is
 * bytes:\xe2\x82, as OpenAI's completions have it.
 */
void http_put_piece(struct http_writer *w, const uint8_t *bytes, size_t n);
/* [226,130] */
void http_put_bytes(struct http_writer *w, const uint8_t *bytes, size_t n);
/* A float so that it can be read back; NaN: null; infinite: -9999 or 9999, since JSON has none. */
void http_put_float(struct http_writer *w, float v);
void http_put_u64(struct http_writer *w, uint64_t v);

#endif
