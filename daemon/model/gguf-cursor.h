/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf-cursor.h - a cursor over the bytes of a header.
 *
 * A length that points beyond the file is an error there and then; one that
 * points beyond the buffer is GGUF_E_MORE, with what is needed in `need`.
 */
#ifndef KVD_GGUF_CURSOR_H
#define KVD_GGUF_CURSOR_H

#include "daemon/model/gguf-private.h"

struct gguf_cursor {
	const uint8_t *bytes;
	size_t n;		/* bytes in the buffer */
	size_t pos;
	uint64_t file_size;
	size_t need;		/* with GGUF_E_MORE */
	struct diag *diag;
	char field[96];		/* what is being read, for the sentence */
};

/* Names what is read next. */
__attribute__((format(printf, 2, 3)))
void gguf_cursor_field(struct gguf_cursor *c, const char *fmt, ...);
/* Makes sure that n bytes follow in the buffer. */
int gguf_cursor_need(struct gguf_cursor *c, uint64_t n);
int gguf_cursor_skip(struct gguf_cursor *c, uint64_t n);
int gguf_cursor_u32(struct gguf_cursor *c, uint32_t *out);
int gguf_cursor_u64(struct gguf_cursor *c, uint64_t *out);
int gguf_cursor_string(struct gguf_cursor *c, struct gguf_string *out);
/* A string that names thing `index` of this kind: 1 to max bytes of UTF-8 without control characters. */
int gguf_cursor_name(struct gguf_cursor *c, const char *kind, uint32_t index, size_t max,
		     struct gguf_string *out);

/* gguf-parse-tensors.c: reads g->n_tensors descriptions. */
int gguf_parse_tensors(struct gguf *g, struct gguf_cursor *c);
/* Where the data of the tensors begins, and whether each lies there, alone. */
int gguf_check_layout(struct gguf *g, uint64_t alignment, struct diag *diag);

#endif
