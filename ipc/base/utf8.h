/* SPDX-License-Identifier: Apache-2.0 */
/*
 * UTF-8 by the Unicode Standard 15.0, section 3.9, table 3-7 (well-formed
 * sequences: no surrogates, no overlong forms, at most U+10FFFF).
 */
#ifndef KVD_BASE_UTF8_H
#define KVD_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Classifies the sequence at p (n bytes readable, n > 0).  Returns its length
 * (1..4) if well formed; 0 if it is a prefix of a well-formed sequence that
 * needs more bytes; -k if the first k bytes are a maximal ill-formed subpart
 * (section 3.9, "Substitution of Maximal Subparts"), to be replaced by one
 * U+FFFD.
 */
int utf8_scan(const uint8_t *p, size_t n);

/* As utf8_scan(); on a positive return *cp is the code point. */
int utf8_decode(const uint8_t *p, size_t n, uint32_t *cp);

/* Writes 1..4 bytes, returns how many; cp must be a scalar value. */
size_t utf8_encode(uint32_t cp, uint8_t out[4]);

bool utf8_valid(const uint8_t *p, size_t n);

/*
 * How many of the n bytes may be released now so that a consumer sees only
 * whole code points: all of them, less a trailing incomplete sequence (at most
 * 3 bytes).  Ill-formed bytes in the middle count as releasable.
 */
size_t utf8_complete(const uint8_t *p, size_t n);

/* For people's eyes: each byte of control characters (C0, DEL, C1) and of ill-formed sequences becomes '?'. */
void utf8_make_readable(char *text, size_t n);

#endif
