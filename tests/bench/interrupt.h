/* SPDX-License-Identifier: Apache-2.0 */
/*
 * interrupt.h - Ctrl-C ends a run at once with what is there.
 *
 * A step of a large model may take a minute, and nothing asks it to stop.  So a thread of its own waits for
 * SIGINT, SIGTERM and SIGHUP, ends our daemon, has the results written, and ends the process, whatever others
 * do.
 */
#ifndef KVD_BENCH_INTERRUPT_H
#define KVD_BENCH_INTERRUPT_H

#include <stdbool.h>

/*
 * Before any other thread is made, since those inherit what is blocked.  finish: writes what there is; it is
 * called once, in that thread, with no lock held.  0 or -errno.
 */
int interrupt_init(void (*finish)(void *arg), void *arg);
/* From now on nothing is written any more: the caller does it.  False: it is being done. */
bool interrupt_claim(void);

#endif
