/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sentencepiece-text.h - how SentencePiece vocabularies write text: a space is
 * U+2581 (lower one eighth block), a byte that no token has is "<0xXX>".
 */
#ifndef KVD_SENTENCEPIECE_TEXT_H
#define KVD_SENTENCEPIECE_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* U+2581 in UTF-8. */
#define SENTENCEPIECE_SPACE "\xe2\x96\x81"
#define SENTENCEPIECE_SPACE_BYTES 3u

/* Writes text with U+2581 for each space; out has room for 3 n bytes.  Returns the length. */
size_t sentencepiece_escape(const uint8_t *text, size_t n, uint8_t *out);
/* The way back; out has room for n bytes. */
size_t sentencepiece_unescape(const uint8_t *text, size_t n, uint8_t *out);
/* The byte that a token of the form "<0xXX>" stands for, -1 if it is none. */
int sentencepiece_byte(const uint8_t *text, size_t n);

#endif
