/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the line-based files of tests/data: words with blanks between, where
 * text is percent-encoded.  A file that can't be read fails the test.
 */
#ifndef KVD_TESTS_ORACLE_FILE_H
#define KVD_TESTS_ORACLE_FILE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct oracle_file {
	FILE *f;
	char *line;
	size_t allocated;
	char *rest;	/* of the line */
};

static inline void oracle_open(struct oracle_file *o, const char *path)
{
	*o = (struct oracle_file){ .f = fopen(path, "re") };
	if (!o->f)
		fail_msg("%s: %s (tests run in the top folder)", path, strerror(errno));
}

static inline void oracle_close(struct oracle_file *o)
{
	fclose(o->f);
	free(o->line);
}

/* The next line that begins with a word; returns that word, NULL at the end. */
static inline char *oracle_next(struct oracle_file *o)
{
	ssize_t n = getline(&o->line, &o->allocated, o->f);

	if (n < 0)
		return NULL;
	if (n > 0 && o->line[n - 1] == '\n')
		o->line[n - 1] = '\0';
	o->rest = o->line;
	return strsep(&o->rest, " ");
}

/* The next word of the line, NULL if there is none. */
static inline char *oracle_word(struct oracle_file *o)
{
	return o->rest ? strsep(&o->rest, " ") : NULL;
}

/* Decodes in place; returns the length. */
static inline size_t oracle_decode(char *text)
{
	size_t n = 0;

	for (char *p = text; *p; n++) {
		unsigned byte;

		if (*p == '%' && sscanf(p + 1, "%2x", &byte) == 1) {
			text[n] = (char)byte;
			p += 3;
		} else {
			text[n] = *p++;
		}
	}
	return n;
}

/* The numbers in the rest of the line; free() them. */
static inline int32_t *oracle_numbers(struct oracle_file *o, size_t *n)
{
	int32_t *numbers = malloc((o->rest ? strlen(o->rest) + 1 : 1) * sizeof(*numbers));
	char *word;

	assert_non_null(numbers);
	*n = 0;
	while ((word = oracle_word(o)))
		if (*word)
			numbers[(*n)++] = (int32_t)strtol(word, NULL, 10);
	return numbers;
}

#endif
