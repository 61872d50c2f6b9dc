/* SPDX-License-Identifier: Apache-2.0 */
/*
 * self-check.h - a level against plain C on the machine at hand, to the bit, before anything is computed with it.
 *
 * The tests compare every level on the machines that they run on.  This is for all others: a CPU, hypervisor or
 * compiler that does something else is found when the backend is opened, and costs speed instead of wrong answers.
 * Every operation and every type of weights and KV is tried, at sizes of a few hundred numbers.
 */
#ifndef KC_SELF_CHECK_H
#define KC_SELF_CHECK_H

#include <stdbool.h>
#include <stddef.h>

struct kc_level;

/*
 * Whether the level gives plain C's bits; where not, `fault` (of `size` bytes) says what differed.  It is tried in a
 * child process, so that an instruction that faults is an answer too; in this one where there can be no child.
 * -ENOMEM: not tried.
 */
int kc_self_check(const struct kc_level *level, bool *right, char *fault, size_t size);

#endif
