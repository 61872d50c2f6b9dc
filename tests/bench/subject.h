/* SPDX-License-Identifier: Apache-2.0 */
/*
 * subject.h - the model that is measured, and the backend that computes it.
 *
 * Thread: one.
 */
#ifndef KVD_BENCH_SUBJECT_H
#define KVD_BENCH_SUBJECT_H

#include <stdint.h>

#include "daemon/model/model.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/error.h"
#include "kernels/backend.h"

struct subject_options {
	const char *file;	/* GGUF, NULL: synthetic */
	const char *synthetic;	/* NAME:TYPE */
	const char *level;	/* NULL: the best */
	uint32_t n_threads;	/* 0: all that may be used */
	uint32_t n_ctx;		/* longest sequence; a model of less has its own */
};

struct subject {
	struct kb_backend *be;
	struct model *model;
	uint32_t n_threads;
};

/* 0, or -errno with a sentence in diag. */
int subject_open(struct subject **out, const struct subject_options *options, struct diag *diag);
void subject_close(struct subject *s);	/* its lanes are gone */
CLEANUP_DEFINE(struct subject, subject_close)

/* Multiplications that one token needs in products with weights; without attention, and without the output
 * head. */
uint64_t subject_products(const struct subject *s);
/* The same of the output head. */
uint64_t subject_head_products(const struct subject *s);

#endif
