/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keys.h - reads a model's hyper-parameters from its metadata, and knows what was read.
 *
 * All keys are below the architecture's name: "block_count" is "llama.block_count".
 * A key of the file that nobody asked for could change the model's results and is
 * refused by keys_check_rest(), unless it is known to describe and not to compute.
 *
 * Errors: 0; -EINVAL with diag, naming the key.  Outputs are untouched on failure.
 */
#ifndef KVD_MODEL_KEYS_H
#define KVD_MODEL_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/model/gguf.h"
#include "ipc/base/error.h"

#define KEYS_MAX_ASKED 64u

struct keys {
	const struct gguf *g;
	const char *arch;
	struct diag *diag;
	const char *asked[KEYS_MAX_ASKED];	/* static strings */
	size_t n_asked;
};

struct keys_name {
	char text[96];
};

/* The whole name, for messages. */
struct keys_name keys_name(const struct keys *k, const char *suffix);

/* A number that must be there. */
int keys_u32(struct keys *k, const char *suffix, uint32_t min, uint32_t max, uint32_t *out);
/* One that may be absent; *out is its default. */
int keys_u32_or(struct keys *k, const char *suffix, uint32_t min, uint32_t max, uint32_t *out);
/* Above 0 and at most max; *out is its default, 0 meaning that it must be there. */
int keys_positive(struct keys *k, const char *suffix, float max, float *out);
/* The same by either of two names; both may be there if they agree. */
int keys_positive_alias(struct keys *k, const char *suffix, const char *alias, float max, float *out);
/* From 0 to max; *out is its default. */
int keys_not_negative(struct keys *k, const char *suffix, float max, float *out);
int keys_bool_or(struct keys *k, const char *suffix, bool *out);
/* GGUF_E_ABSENT as gguf_get_string(). */
int keys_string(struct keys *k, const char *suffix, struct gguf_string *out);
/* GGUF_E_ABSENT where there is none, or no array but one value. */
int keys_array(struct keys *k, const char *suffix, struct gguf_array *out);

/* -EINVAL: the file has a key of this architecture that nobody asked for. */
int keys_check_rest(const struct keys *k);

#endif
