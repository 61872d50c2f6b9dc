/* SPDX-License-Identifier: Apache-2.0 */
/* synthetic-private.h - what the synthetic*.c have in common. */
#ifndef KVD_SYNTHETIC_PRIVATE_H
#define KVD_SYNTHETIC_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/model/arch.h"
#include "daemon/model/hparams.h"
#include "daemon/model/synthetic.h"
#include "kernels/backend.h"

/* A model's shape. */
struct synthetic_shape {
	const char *name;
	const struct arch *arch;
	uint32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab, n_ctx;
	uint32_t window;	/* 0: none */
	float rope_base, norm_eps;
	bool tied;		/* the output's matrix is the embedding's */
};

/*
 * A type of weights.  Blocks are random bits but for their scales: unit is the standard deviation of the weights
 * that these bits make with a scale of 1, and mean times the scale is the minimum that puts their mean to 0.
 */
struct synthetic_type {
	const char *name;
	enum kb_type type, fallback;	/* fallback: for rows that are no whole number of blocks */
	int scale, minimum;		/* where these F16 are in a block; -1: there is none */
	float unit, mean;
};

/* NULL: there is none. */
const struct synthetic_type *synthetic_type_of(enum kb_type type);
const struct synthetic_type *synthetic_type_named(const char *name);
/* The types' names, separated by commas. */
void synthetic_type_list(char *out, size_t size);

/* Numbers of one tensor. */
struct synthetic_numbers {
	enum kb_type type;
	uint64_t seed;
	float deviation;	/* of matrices; vectors are about 1 */
	bool is_vector;
};

/* Bytes from..from+n-1 of a tensor. */
void synthetic_fill(const struct synthetic_numbers *numbers, uint64_t from, uint8_t *out, size_t n);

/*
 * The header of a file with this shape, all matrices of the type or its fallback: *out is malloc'd.  file_size: with
 * the data, which begins at the first multiple of 32 behind the header.
 */
int synthetic_write_header(const struct synthetic_shape *shape, const struct synthetic_type *type, uint8_t **out,
			   size_t *n, uint64_t *file_size);

#endif
