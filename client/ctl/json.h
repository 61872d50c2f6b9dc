/* SPDX-License-Identifier: Apache-2.0 */
/* json.h - values for --json. */
#ifndef KVD_CTL_JSON_H
#define KVD_CTL_JSON_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "client/ctl/ctl.h"

/* Text as a string, ill-formed UTF-8 replaced by U+FFFD; the exact bytes as numbers. */
json_t *json_text(const void *p, size_t n);
json_t *json_bytes(const void *p, size_t n);
/* NaN and infinities, which JSON has not, are null. */
json_t *json_number(double v);
/* Any count; jansson's integers are signed. */
json_t *json_u64(uint64_t v);

/*
 * Prints v to stdout, indented or on one line, and releases it.  v may be NULL
 * (no memory).  An exit status.
 */
int json_print(const struct ctl *ctl, json_t *v);
int json_print_line(const struct ctl *ctl, json_t *v);

#endif
