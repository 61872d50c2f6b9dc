/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Content hashes: XXH3-128 over bytes that come in pieces.  Not for secrets and
 * not against an adversary: it finds damage and tells files apart.
 */
#ifndef KVD_BASE_HASH_H
#define KVD_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "ipc/base/cleanup.h"

struct hasher;

int hasher_new(struct hasher **out);	/* 0 or -ENOMEM */
void hasher_free(struct hasher *h);
CLEANUP_DEFINE(struct hasher, hasher_free)

void hasher_update(struct hasher *h, const void *data, size_t n);
/* The hash of everything so far, in canonical (big-endian) form. */
void hasher_digest(const struct hasher *h, uint8_t out[16]);

/* XXH3-64 of n bytes, for tables in memory; another seed, another function. */
uint64_t hash_u64(const void *data, size_t n, uint64_t seed);

#endif
