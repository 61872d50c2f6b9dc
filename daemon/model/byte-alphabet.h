/* SPDX-License-Identifier: Apache-2.0 */
/*
 * byte-alphabet.h - the alphabet in which byte-level BPE vocabularies write
 * bytes: one printable character for each of the 256 bytes (GPT-2's encoder.py,
 * bytes_to_unicode()).  Printable Latin-1 bytes stand for themselves, the other
 * 68 become U+0100 and on, in order.
 */
#ifndef KVD_BYTE_ALPHABET_H
#define KVD_BYTE_ALPHABET_H

#include <stddef.h>
#include <stdint.h>

/* The character of a byte, U+0021..U+0143. */
uint32_t byte_alphabet_char(uint8_t byte);
/* The byte of a character, -1 if it is none of the alphabet. */
int byte_alphabet_byte(uint32_t cp);

/* Writes the bytes as UTF-8 text of the alphabet; out has room for 2 n bytes.  Returns the length. */
size_t byte_alphabet_encode(const uint8_t *bytes, size_t n, uint8_t *out);
/*
 * The bytes that a text of the alphabet stands for; out has room for n bytes.
 * A text with any character that is none of the alphabet stands for itself, as
 * for `tokenizers`' ByteLevel decoder.  Returns the length.
 */
size_t byte_alphabet_decode(const uint8_t *text, size_t n, uint8_t *out);

#endif
