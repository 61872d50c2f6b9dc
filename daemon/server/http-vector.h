/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-vector.h - an embedding as it stands in a reply: of length 1, as an array of numbers or as base64.
 *
 * Any thread.
 */
#ifndef KVD_SERVER_HTTP_VECTOR_H
#define KVD_SERVER_HTTP_VECTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/server/http-writer.h"

bool http_vector_is_finite(const float *values, uint32_t n);
/*
 * The values, which are finite, divided by their Euclidean length; zeros stay zeros.
 * [0.25,-0.5]: each so that it can be read back.
 */
void http_put_vector(struct http_writer *w, const float *values, uint32_t n);
/* "AACAPgAAAL8=": the values as little-endian IEEE binary32, in base64 (RFC 4648, section 4). */
void http_put_vector_base64(struct http_writer *w, const float *values, uint32_t n);

#endif
