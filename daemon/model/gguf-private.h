/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf-private.h - what gguf-parse.c builds and gguf.c reads.
 *
 * The header's bytes are kept as they are; beside them lie only indexes of
 * 32-bit offsets into them (a header is at most GGUF_MAX_HEADER long), each
 * smaller than the bytes that it indexes.
 */
#ifndef KVD_GGUF_PRIVATE_H
#define KVD_GGUF_PRIVATE_H

#include <endian.h>
#include <string.h>

#include "daemon/model/gguf.h"

#define GGUF_MAX_KV 65536u
#define GGUF_MAX_TENSORS 65536u

#define GGUF_E_MORE 2	/* gguf_parse_header(): the header does not end inside the buffer */

struct gguf_kv {
	uint32_t key;		/* where the key's string begins */
	uint32_t strings;	/* arrays of strings: its first entry in string_offsets */
};

struct gguf {
	uint8_t *bytes;		/* the file's first bytes */
	size_t n_bytes;		/* up to the end of the tensors' descriptions */
	uint64_t file_size;
	uint64_t data_offset;
	uint32_t version;
	uint32_t n_kv, n_tensors;
	struct gguf_kv *kv;		/* [n_kv], sorted by key */
	uint32_t *string_offsets;	/* of all arrays of strings, from their first element */
	uint32_t *tensors;		/* [n_tensors] where a description begins, by data offset */
	uint32_t *tensors_by_name;	/* [n_tensors] indexes into tensors */
};

static inline uint32_t gguf_load_u32(const uint8_t *p)
{
	uint32_t v;
	memcpy(&v, p, sizeof(v));
	return le32toh(v);
}

static inline uint64_t gguf_load_u64(const uint8_t *p)
{
	uint64_t v;
	memcpy(&v, p, sizeof(v));
	return le64toh(v);
}

/* The string that begins at p; it was validated. */
static inline struct gguf_string gguf_load_string(const uint8_t *p)
{
	return (struct gguf_string){ .data = (const char *)p + 8, .n = (size_t)gguf_load_u64(p) };
}

static inline struct gguf_string gguf_kv_key(const struct gguf *g, uint32_t i)
{
	return gguf_load_string(g->bytes + g->kv[i].key);
}

static inline int gguf_string_compare(struct gguf_string a, struct gguf_string b)
{
	int r = memcmp(a.data, b.data, a.n < b.n ? a.n : b.n);

	if (r)
		return r;
	return a.n < b.n ? -1 : a.n > b.n;
}

/* Bytes of a scalar of this type, 0 for strings, arrays and unknown types. */
uint32_t gguf_type_bytes(uint32_t type);

/* A name as it may be shown to a person: printable, at most 63 bytes. */
struct gguf_quoted {
	char text[68];
};
struct gguf_quoted gguf_quote(struct gguf_string s);

/* Decodes a validated description; offset is relative to the data section. Returns its length in bytes. */
size_t gguf_decode_tensor(const uint8_t *p, struct gguf_tensor *out);

/*
 * Parses the header in bytes[0..n) of a file of file_size bytes into *g, which
 * borrows bytes.  GGUF_E_MORE: at least *need bytes (n < *need <= file_size)
 * must be there.  On any failure *g holds nothing.
 */
int gguf_parse_header(struct gguf *g, uint8_t *bytes, size_t n, uint64_t file_size, size_t *need,
		      struct diag *diag);
/* Frees the indexes, not the bytes. */
void gguf_deinit_indexes(struct gguf *g);

#endif
