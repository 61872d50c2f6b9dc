/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors.
 *
 * A function that can fail returns int:
 *   0         success
 *   < 0       negative errno: fatal for the operation, passed up unchanged
 *   > 0       MODULE_E_*: a condition documented at that one function and
 *             handled by its direct caller
 *
 * Output parameters are untouched on failure.  Library code never logs; where
 * a person needs to know what is wrong with their input, the function takes a
 * `struct diag` and writes one sentence there that names the field.
 */
#ifndef KVD_BASE_ERROR_H
#define KVD_BASE_ERROR_H

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

/* One sentence for a person; text is always NUL-terminated, "" when unset. */
struct diag {
	char text[256];
};

#define DIAG_NULL ((struct diag){ "" })

/*
 * The first sentence stays: it was written closest to the cause.  It is UTF-8
 * without control characters, whatever was quoted in it.
 */
__attribute__((format(printf, 2, 3)))
void diag_write(struct diag *diag, const char *fmt, ...);

static inline int diag_err(int err)
{
	return err;
}

/*
 * Writes the sentence (cut to fit) and returns err, so that a failing function
 * can end with `return diag_set(diag, -EINVAL, "...", ...)`.  diag may be NULL.
 * A macro, since analysers don't see what a variadic function returns.
 */
#define diag_set(diag, err, ...) (diag_write((diag), __VA_ARGS__), diag_err(err))

#endif
