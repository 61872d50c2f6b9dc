/* SPDX-License-Identifier: Apache-2.0 */
/*
 * synthetic.h - models without a file, for measurements: the shapes of known ones with random weights.
 *
 * "NAME:TYPE", e.g. "llama-2-7b:q4_0", is a GGUF file that exists nowhere: its header is made here and read
 * by the same code as any other, and the bytes of its tensors are made where they are asked for. All matrices are
 * of that type; where a row is no whole number of its blocks, of the one that quantisation programs fall back to
 * (Q5_0 for Q4_K, Q5_1 for Q5_K, Q8_0 for Q6_K). Numbers are as large as is usual, so that activations stay finite.
 * The tokenizer has a token for each byte and merges nothing; its other tokens are made-up words. No token ends a
 * generation.
 *
 * The bytes follow from the name and SYNTHETIC_VERSION alone, and so does the content hash, which is theirs.
 *
 * Thread: any; immutable once made.
 */
#ifndef KVD_SYNTHETIC_H
#define KVD_SYNTHETIC_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/model/gguf.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/error.h"

#define SYNTHETIC_VERSION 1u	/* changes with the bytes */

struct synthetic;

/* 0; -EINVAL: no such name or type, diag says which there are. */
int synthetic_check(const char *what, struct diag *diag);

/* As synthetic_check(), and -ENOMEM. */
int synthetic_new(struct synthetic **out, const char *what, struct diag *diag);
void synthetic_free(struct synthetic *s);
CLEANUP_DEFINE(struct synthetic, synthetic_free)

/* Its file's header, which lives as long as s. */
const struct gguf *synthetic_header(const struct synthetic *s);
/* Bytes of the file behind the header; for struct weights_source, arg is s. */
int synthetic_read(void *arg, void *buf, size_t n, uint64_t at);

/* Bytes of the file, about what the weights need.  As synthetic_new(). */
int synthetic_file_bytes(const char *what, uint64_t *out, struct diag *diag);

#endif
