/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf.h - the header of a GGUF file, validated whole.
 *
 * Format: GGUF versions 2 and 3, little-endian (ggml's docs/gguf.md):
 *     "GGUF", u32 version, u64 n_tensors, u64 n_kv,
 *     n_kv x { string key, u32 type, value }
 *     n_tensors x { string name, u32 n_dims, u64 dims[n_dims], u32 type, u64 offset }
 *     padding to general.alignment (default 32), then the tensors' data
 * A string is { u64 length, bytes }, an array { u32 type, u64 n, elements }.
 *
 * Everything is checked before anything is handed out: counts, keys (length,
 * UTF-8, uniqueness), types, arrays, dimensions, offsets, overlap and that all data lies
 * inside the file.  Work and memory are bounded by the bytes that are really
 * there: no allocation is larger than the file, whatever its counts say.
 *
 * The header's bytes are our own copy; views (strings, arrays) point into it and
 * live as long as the struct gguf.  Immutable after parsing; any thread.
 *
 * Errors: -EINVAL with a sentence in diag that names the field, -ENOMEM, -EIO.
 */
#ifndef KVD_GGUF_H
#define KVD_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/error.h"

/* Metadata value types, numbers of the format. */
enum gguf_type {
	GGUF_U8 = 0,
	GGUF_I8 = 1,
	GGUF_U16 = 2,
	GGUF_I16 = 3,
	GGUF_U32 = 4,
	GGUF_I32 = 5,
	GGUF_F32 = 6,
	GGUF_BOOL = 7,
	GGUF_STRING = 8,
	GGUF_ARRAY = 9,
	GGUF_U64 = 10,
	GGUF_I64 = 11,
	GGUF_F64 = 12,
};

#define GGUF_MAX_HEADER (128u << 20)	/* bytes before the data section */
#define GGUF_MAX_KEY 65535u		/* bytes, of the format */
#define GGUF_MAX_TENSOR_NAME 64u	/* bytes, of the format */
#define GGUF_MAX_DIMS 4u
#define GGUF_MAX_ALIGNMENT (1u << 20)

#define GGUF_E_ABSENT 1		/* there is no such key, or no such tensor */

struct gguf;

/* n bytes, not NUL-terminated; may contain any byte. */
struct gguf_string {
	const char *data;
	size_t n;
};

/* A view of an array; elements through the gguf_array_*() below. */
struct gguf_array {
	enum gguf_type type;		/* of the elements; never GGUF_ARRAY */
	uint64_t n;
	const uint8_t *data;		/* unaligned, little-endian */
	const uint32_t *offsets;	/* strings: [n] where each one's bytes begin, from data */
};

struct gguf_tensor {
	struct gguf_string name;
	uint32_t type;			/* ggml's number; the size of its blocks is known */
	uint32_t n_dims;		/* 1..4 */
	uint64_t dims[GGUF_MAX_DIMS];	/* dims[0] runs fastest; 1 beyond n_dims */
	uint64_t n_elements;
	uint64_t offset;		/* from the start of the file */
	uint64_t n_bytes;
};

/*
 * Parses a header that lies in buf[0..n); the file it begins has file_size
 * bytes.  The bytes are copied.
 */
int gguf_parse(struct gguf **out, const void *buf, size_t n, uint64_t file_size, struct diag *diag);

/* Reads the header of a regular file by pread(), as much as is needed. */
int gguf_read(struct gguf **out, int fd, struct diag *diag);

void gguf_free(struct gguf *g);
CLEANUP_DEFINE(struct gguf, gguf_free)

uint32_t gguf_version(const struct gguf *g);
uint64_t gguf_file_size(const struct gguf *g);
/* The file's first bytes up to the end of the last tensor's description. */
const uint8_t *gguf_header(const struct gguf *g, size_t *n);

/*
 * Metadata.  0; GGUF_E_ABSENT; -EINVAL with diag where the key is there but its
 * type or value is not what is asked for.  Outputs stay untouched but on 0, so
 * that they may be set to a default before.
 */
/* Any integer type; the value lies in min..max. */
int gguf_get_uint(const struct gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t *out,
		  struct diag *diag);
/* As gguf_get_uint(), into a u32. */
int gguf_get_u32(const struct gguf *g, const char *key, uint32_t min, uint32_t max, uint32_t *out,
		 struct diag *diag);
/* F32 or F64; finite. */
int gguf_get_f32(const struct gguf *g, const char *key, float *out, struct diag *diag);
int gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct diag *diag);
int gguf_get_string(const struct gguf *g, const char *key, struct gguf_string *out, struct diag *diag);
/* An array of exactly this element type. */
int gguf_get_array(const struct gguf *g, const char *key, enum gguf_type type, struct gguf_array *out,
		   struct diag *diag);
/* An array of any element type. */
int gguf_get_any_array(const struct gguf *g, const char *key, struct gguf_array *out, struct diag *diag);

/* Whether the key is there, with any type. */
bool gguf_has(const struct gguf *g, const char *key);

/* Elements; i < a->n, and the array is of that type. */
struct gguf_string gguf_array_string(const struct gguf_array *a, uint64_t i);
float gguf_array_f32(const struct gguf_array *a, uint64_t i);
int32_t gguf_array_i32(const struct gguf_array *a, uint64_t i);
uint32_t gguf_array_u32(const struct gguf_array *a, uint64_t i);
/* Any integer element type; false if it is negative or the type is no integer. */
bool gguf_array_uint(const struct gguf_array *a, uint64_t i, uint64_t *out);

/* Tensors.  Index i counts in the order of offsets in the file. */
uint64_t gguf_n_tensors(const struct gguf *g);
void gguf_tensor_at(const struct gguf *g, uint64_t i, struct gguf_tensor *out);
/* Index by name; 0 or GGUF_E_ABSENT. */
int gguf_tensor_find(const struct gguf *g, const char *name, uint64_t *index);

/* "u32", "string", ...; "unknown". */
const char *gguf_type_name(uint32_t type);
/* "Q4_K", ...; NULL for a number that is not known. */
const char *gguf_tensor_type_name(uint32_t type);
/* Elements and bytes of one block of a tensor type; false if it is not known. */
bool gguf_tensor_type_block(uint32_t type, uint32_t *n_elements, uint32_t *n_bytes);

static inline bool gguf_string_eq(struct gguf_string s, const char *c)
{
	size_t n = __builtin_strlen(c);
	return s.n == n && __builtin_memcmp(s.data, c, n) == 0;
}

#endif
