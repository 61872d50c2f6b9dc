/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keyed-hash.h - hashing for tables whose keys come from a file: with a random
 * key, so that no file can be made whose entries all collide.
 *
 * Folded 64x64 -> 128 bit multiplication, as in wyhash.  Values are good inside
 * one process only and never leave it.
 */
#ifndef KVD_KEYED_HASH_H
#define KVD_KEYED_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>

struct hash_key {
	uint64_t k[2];
};

/* A fresh key.  Where the kernel has no random bytes yet, an address has to do. */
static inline void hash_key_init(struct hash_key *key)
{
	if (getrandom(key->k, sizeof(key->k), GRND_NONBLOCK) != (ssize_t)sizeof(key->k)) {
		key->k[0] = (uintptr_t)key * 0x9e3779b97f4a7c15u;
		key->k[1] = ~key->k[0];
	}
}

static inline uint64_t hash_fold(uint64_t a, uint64_t b)
{
	unsigned __int128 p = (unsigned __int128)a * b;
	return (uint64_t)p ^ (uint64_t)(p >> 64);
}

static inline uint64_t hash_u64(const struct hash_key *key, uint64_t v)
{
	return hash_fold(hash_fold(v ^ key->k[0], 0xd6e8feb86659fd93u) ^ key->k[1], 0xa0761d6478bd642fu);
}

static inline uint64_t hash_bytes(const struct hash_key *key, const void *data, size_t n)
{
	const uint8_t *p = data;
	uint64_t h = n, word;

	for (; n >= sizeof(word); p += sizeof(word), n -= sizeof(word)) {
		memcpy(&word, p, sizeof(word));
		h = hash_u64(key, h ^ word);
	}
	word = 0;
	memcpy(&word, p, n);
	return hash_u64(key, h ^ word);
}

#endif
