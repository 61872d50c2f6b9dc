/* SPDX-License-Identifier: Apache-2.0 */
/*
 * interrupt.h - Ctrl-C.
 *
 * The first SIGINT makes interrupt_fd() readable and ends blocking calls with
 * EINTR, so that a request can be cancelled in good order; the second one ends
 * the program at once with status 130, whatever it waits for.  With
 * interrupt_set_final(false) no number of them ends it (a prompt is waiting).
 */
#ifndef KVD_CTL_INTERRUPT_H
#define KVD_CTL_INTERRUPT_H

#include <stdbool.h>

int interrupt_init(void);	/* 0 or -errno */
int interrupt_fd(void);
bool interrupt_pending(void);
void interrupt_reset(void);	/* forgets the ones so far */
void interrupt_set_final(bool final);

#endif
