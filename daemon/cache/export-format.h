/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export-format.h - blocks as a stream of bytes: EXPORT.md.
 *
 * The writer puts header, records and the end into memory of the caller's, who writes it; the reader asks for
 * bytes with a function of the caller's and takes nothing that it has not verified.
 *
 * Thread: any, one at a time.
 */
#ifndef KVD_EXPORT_FORMAT_H
#define KVD_EXPORT_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/cache/store.h"
#include "ipc/base/error.h"

#define EXPORT_KEY_MAX 64u
#define EXPORT_HEADER_MAX (32u + STORE_IDENTITY_MAX + 8u)
#define EXPORT_RECORD_HEAD 48u
/* Of a record, without keys and values. */
#define EXPORT_RECORD_MAX (EXPORT_RECORD_HEAD + EXPORT_KEY_MAX + STORE_TOKENS_MAX * 4u)

/* What the blocks of a model are: equal in the file and where it is read. */
struct export_shape {
	struct store_identity identity;
	uint32_t block_tokens;
	uint64_t block_bytes;
	uint32_t n_vocab;		/* not in the file: what tokens have to be below */
	bool whole_blocks;		/* nor is this: there are no others */
};

/* One stream; zeroed before the header. */
struct export_stream {
	uint64_t sum;			/* the last checksum */
	uint64_t n_records, bytes;	/* so far; bytes of keys and values */
	/* The reader's: where the next record may begin at most, and the key of the last one. */
	uint32_t end, n_key;
	char key[EXPORT_KEY_MAX];
};

struct export_record {
	uint32_t n_tokens, first;
	uint64_t ttl_ns;		/* 0: it does not expire */
	uint32_t n_key;
	char key[EXPORT_KEY_MAX];
	int32_t tokens[STORE_TOKENS_MAX];
};

/* Of keys and values of a record. */
uint64_t export_kv_bytes(const struct export_shape *shape, uint32_t n_tokens);
/* Of a record before its keys and values. */
size_t export_head_bytes(const struct export_record *r);

/* out: [EXPORT_HEADER_MAX]; returns how many bytes there are to write. */
size_t export_put_header(struct export_stream *s, const struct export_shape *shape, void *out);
/* out: what comes before kv, export_head_bytes(). */
void export_put_record(struct export_stream *s, const struct export_shape *shape, const struct export_record *r,
		       const void *kv, void *out);
/* out: [EXPORT_RECORD_HEAD]. */
void export_put_end(struct export_stream *s, void *out);

#define EXPORT_E_BAD 1		/* not such a file, or damaged; diag says where */
#define EXPORT_E_OTHER 2	/* of something else; diag says which field differs */
#define EXPORT_E_CUT 3		/* it ended in the middle */
#define EXPORT_E_END 4		/* the end, in order */

/* Exactly n bytes.  0; EXPORT_E_CUT: there are fewer; -errno. */
typedef int (*export_read_fn)(void *arg, void *data, size_t n);

/* 0; EXPORT_E_BAD, _OTHER, _CUT; what fn says. */
int export_read_header(struct export_stream *s, const struct export_shape *shape, export_read_fn fn, void *arg,
		       struct diag *diag);
/* The next record, and its keys and values: [block_bytes].  0; EXPORT_E_END, _BAD, _CUT; what fn says. */
int export_read_record(struct export_stream *s, const struct export_shape *shape, export_read_fn fn, void *arg,
		       struct export_record *out, void *kv, struct diag *diag);

#endif
