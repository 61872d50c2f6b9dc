/* SPDX-License-Identifier: Apache-2.0 */
/*
 * life.h - how the daemon's last life ended, told to the next one by a page of memory that
 * outlives it in the service manager's store (fdstore.h).
 *
 * What a process leaves behind must not kill the next one.  Two ends count against it:
 *
 * - The kernel killed it since memory ran out.  It counts such kills: `oom_kill` in memory.events of a
 *   control group (those of its processes) and in /proc/vmstat (all of the machine's).  Both are noted now and
 *   then, and looked at again by the next life, if this one did not end in order.  The
 *   group's own count decides where it is the same group as before; a service manager may have made
 *   a new one.  A note that is old can only make a kill count that was another's, never hide one.
 *
 * - It crashed three times in a row (a signal of its own, as SIGSEGV, or the manager's watchdog), each time
 *   within a minute.  A SIGKILL is none: that is what people do.
 *
 * Kills by programs (systemd-oomd) are not counted by the kernel; kvd.8 says what to do about those.
 *
 * The page is a memfd of one page, sealed against any change of its size:
 *
 *	0	uint32_t magic, version
 *	8	uint64_t ended		1: in order
 *	16	uint64_t crashed	1: a signal of its own
 *	24	uint64_t n_crashes	in a row, before this life
 *	32	uint64_t machine	kills noted; UINT64_MAX: unknown
 *	40	uint64_t group		the same of the control group ...
 *	48	uint64_t group_id	... which is the inode of its folder
 *
 * Any bytes in it are harmless: at worst a pool is dropped that was good, or one is kept after such an end.
 *
 * Thread: the loop thread.
 */
#ifndef KVD_SERVER_LIFE_H
#define KVD_SERVER_LIFE_H

#include "ipc/base/cleanup.h"

#define LIFE_CRASHES_MAX 3	/* in a row */
#define LIFE_CRASH_NS 60000000000u	/* one that comes later begins a new row */

struct life;

enum life_end {
	LIFE_NONE,		/* there was none, or what it left makes no sense */
	LIFE_ENDED,		/* in order */
	LIFE_BROKEN,		/* killed, or crashed */
	LIFE_OUT_OF_MEMORY,
	LIFE_CRASHES,		/* LIFE_CRASHES_MAX in a row */
};

/*
 * fd: the page of the last life, taken over; -1, or what is none: a new one is made.  proc and cgroup stand for
 * /proc and /sys/fs/cgroup; they outlive it.  0, -ENOMEM, -EMFILE.
 */
int life_new(struct life **out, int fd, const char *proc, const char *cgroup);
void life_free(struct life *l);
CLEANUP_DEFINE(struct life, life_free)

enum life_end life_last(const struct life *l);
/* For the store; valid until life_free(). */
int life_fd(const struct life *l);

/* Crashes are marked from now on, by handlers of signals that nobody handles yet.  One life at a time. */
void life_watch_crashes(struct life *l);
/* Every few seconds: notes the kernel's counts. */
void life_note(struct life *l);
/* It has ended in order. */
void life_end(struct life *l);

#endif
