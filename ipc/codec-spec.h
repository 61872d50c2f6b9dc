/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec-spec.h - the messages as tables, for the codec's own files: the decoder and
 * the encoder walk the same table, so that what one writes the other takes.
 */
#ifndef KVD_CODEC_SPEC_H
#define KVD_CODEC_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/codec.h"

enum codec_type {
	CODEC_U32,
	CODEC_U64,
	CODEC_F32,
	CODEC_BOOL,
	CODEC_STRING,
	CODEC_ARRAY,	/* of elements */
};

enum codec_text {
	CODEC_TEXT,	/* UTF-8 without NUL */
	CODEC_NAME,	/* and without control characters */
	CODEC_ROLE,	/* [a-z0-9_-] */
	CODEC_FILE,	/* CODEC_NAME without '/' */
};

/* How the encoder knows that an optional field is absent. */
enum codec_presence {
	CODEC_REQUIRED,
	CODEC_DEFAULT,		/* optional; always written */
	CODEC_NOT_ZERO,		/* absent if 0, NULL or an array of none */
	CODEC_HAS,		/* absent if the bool at aux is false */
};

struct codec_spec;

struct codec_field {
	const char *name;
	enum codec_type type;
	enum codec_presence presence;
	enum codec_text text;
	size_t offset;		/* of the member */
	size_t aux;		/* of the has_ member, or of an array's n_ member (size_t) */
	uint64_t min, max;	/* of a number, a string's bytes or an array's elements */
	float fmin, fmax;
	const struct codec_spec *element;
};

enum codec_shape {
	CODEC_MAP,	/* { name: value } */
	CODEC_TUPLE,	/* [ value, ... ], in the order of the fields */
	CODEC_SCALAR,	/* the value of its one field */
};

/* Checks what concerns several fields.  0, or the field's name in *field and what is wrong. */
typedef int (*codec_check_fn)(const void *object, const char **field, const char **text);

struct codec_spec {
	enum kvd_message id;	/* of a message */
	const char *name;
	bool from_client;
	enum codec_shape shape;
	size_t size;		/* of the struct */
	const struct codec_field *fields;
	size_t n_fields;	/* at most 64 */
	const void *defaults;	/* a struct; NULL: all zero */
	codec_check_fn check;	/* or NULL */
	bool versioned;		/* has a field "version" that is looked at first */
};

/* NULL if there is no such message. */
const struct codec_spec *codec_spec_of(uint64_t id);

/* Whether a string may stand in a field; n bytes, NUL not counted. */
bool codec_text_valid(enum codec_text text, const char *s, size_t n);

/*
 * Walks n bytes of msgpack without allocating: NULL if they are exactly one
 * value within the limits of protocol.h, else what is wrong.
 */
const char *codec_scan(const uint8_t *p, size_t n);
/* The message's "id" without unpacking it; 0 if there is none. */
uint64_t codec_scan_id(const uint8_t *p, size_t n);

#endif
