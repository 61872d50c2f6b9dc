/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fair-weights.h - which share of the device users get where several have work: their weights, as configured.
 *
 * Thread: any, after fair_weights_init().
 */
#ifndef KVD_SERVER_FAIR_WEIGHTS_H
#define KVD_SERVER_FAIR_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/base/error.h"

#define FAIR_WEIGHTS_MAX 64
#define FAIR_WEIGHT 100u	/* of who is not named */
#define FAIR_WEIGHT_MAX 10000u

struct fair_weights {
	struct {
		uid_t uid;
		uint32_t weight;
	} users[FAIR_WEIGHTS_MAX];
	size_t n_users;
};

/*
 * text: "1000:200,alice:50", users by number or name; NULL: nobody is named.
 * 0; -ENOMEM; -EINVAL with a sentence.  Before other threads exist.
 */
int fair_weights_init(struct fair_weights *s, const char *text, struct diag *diag);
uint32_t fair_weight(const struct fair_weights *s, uid_t uid);

#endif
