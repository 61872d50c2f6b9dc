/* SPDX-License-Identifier: Apache-2.0 */
/* text.h - bytes that a model made, on a terminal and in JSON. */
#ifndef KVD_CTL_TEXT_H
#define KVD_CTL_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/*
 * Writes a form of p[0..n) to out (room for TEXT_VISIBLE_MAX * n bytes) that
 * cannot control a terminal: C0 controls other than newline and tab become "^X",
 * C1 controls "<U+0080>", bytes that are not UTF-8 U+FFFD.  Returns its length.
 */
#define TEXT_VISIBLE_MAX 4
size_t text_visible(const void *p, size_t n, char *out);
void text_print_visible(FILE *f, const void *p, size_t n);

/* The same as UTF-8 that JSON can hold (ill-formed bytes become U+FFFD, controls stay):
 * room for 3 * n bytes. */
size_t text_utf8(const void *p, size_t n, char *out);

/* A quoted one-line form, as in C: "a\n\x1b".  Cut with "..." to fit; always terminated. */
void text_quote(const void *p, size_t n, char *out, size_t n_out);

/* Columns that p takes on a terminal, roughly: code points. */
size_t text_columns(const char *p);

/* A growing buffer; free(data). */
struct text_buffer {
	char *data;
	size_t n, capacity;
};
int text_append(struct text_buffer *b, const void *p, size_t n);	/* 0 or -ENOMEM */

/* All of a descriptor, at most max bytes: 0, -EFBIG, -errno. */
int text_read_all(int fd, size_t max, struct text_buffer *b);

#endif
