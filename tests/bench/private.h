/* SPDX-License-Identifier: Apache-2.0 */
/*
 * private.h - a daemon of our own, on a socket and with a state directory that nobody else has.
 *
 * The program is $KVD_DAEMON, or `kvd` beside this one, or in ../sbin of its directory, or in PATH.  It is
 * asked to keep descriptors by us as its service manager (sd_notify(3), FDSTORE=1), so that a restart can
 * find what was in memory. It ends with this program, whatever ends that; private_abort() ends it at once and
 * removes its files.
 *
 * Thread: one, but for private_abort(), which may come from any at any time; then nothing else is started.
 */
#ifndef KVD_BENCH_PRIVATE_H
#define KVD_BENCH_PRIVATE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/kvd.h"
#include "ipc/base/error.h"
#include "tests/bench/tables.h"

#define PRIVATE_OPTIONS_MAX 16u

struct private {
	char directory[PATH_MAX - 64];	/* "": none */
	char socket[PATH_MAX], http[PATH_MAX];
	const char *model, *synthetic, *level;
	char threads[16], block_tokens[16];
	const char *options[PRIVATE_OPTIONS_MAX + 1];	/* more of them, ends with NULL */
	pid_t pid;			/* -1: it does not run */
	int notify;			/* what it tells its manager; -1: nothing is kept */
	int kept[8];			/* descriptors */
	char kept_names[8][64];
	uint32_t n_kept;
};

/* Makes the directory; options: NULL-terminated, of every start.  0, -errno with a sentence. */
int private_init(struct private *p, const struct run *run, const char *const *options, struct diag *diag);
void private_deinit(struct private *p);

/* Starts it and waits until it is ready.  0, -errno with a sentence. */
int private_start(struct private *p, struct diag *diag);
/* Ends it properly; takes what it gave its manager. */
void private_stop(struct private *p);
/* What the manager keeps is gone. */
void private_forget(struct private *p);
/* Waits until nothing of the state directory has changed for a moment, or a minute has gone. */
void private_settle(const struct private *p);
/* So that its files have to be read from the medium. */
void private_drop_pages(const struct private *p);
/* Processor time of all its threads, in seconds. */
double private_cpu_seconds(const struct private *p);

/* From a signal's thread: kills it, and removes the directory. */
void private_abort(void);

/* --- requests, private-client.c ---------------------------------------------------- */

/* One request of ids[0..n) on a connection of its own, and when what came. */
struct request {
	struct kvd_client *client;
	uint64_t submitted, first, last;	/* clock_ns(); 0: not yet */
	uint32_t n_tokens, prompt_tokens, cached_tokens;
	bool done;
};

/* Connects; 0 or -errno, said. */
int request_open(struct request *q, const struct private *p);
void request_close(struct request *q);
/* max_tokens of answer, greedy, whatever ends a text; own: no part in the cache of others. */
int request_submit(struct request *q, const int32_t *ids, uint32_t n, uint32_t max_tokens);
/* Waits for all of them to end. */
int requests_wait(struct request *q, uint32_t n);
/* Made-up ids, the same for the same seed. */
void made_up_ids(uint32_t seed, uint32_t n_vocab, int32_t *ids, uint32_t n);
/* The vocabulary's size and the longest sequence of the daemon's model. */
int private_model(const struct private *p, uint32_t *n_vocab, uint32_t *n_ctx);

#endif
