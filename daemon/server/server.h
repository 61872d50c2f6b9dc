/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.h - the daemon as a whole: listener, sessions, models, engine, and the
 * event loop that ties them together.
 *
 * Threads.  The loop thread (the caller of server_run()) runs libevent and
 * nothing slow.  A loader thread loads models; workers tokenise; the engine
 * has its own thread.  Everything reaches the loop by a mailbox (mailbox.h).
 *
 * Order.  The socket listens before the models are loaded: sessions are told
 * "loading", and what they ask for waits.  At the end: no more sessions, work
 * ended with "shutdown" records, threads joined, then memory.
 */
#ifndef KVD_SERVER_H
#define KVD_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/model/kv-type.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/error.h"

#define SERVER_DISK_AUTO UINT64_MAX	/* as much as seems right for the file system */

/* Strings are the caller's and outlive the server. */
struct server_config {
	const char *socket_path;
	mode_t socket_mode;
	const char *const *models;	/* [n_models] files to begin with, at most KVD_MODELS_MAX */
	size_t n_models;
	const char *const *synthetic;	/* [n_synthetic] "NAME:TYPE" (model/synthetic.h), behind those */
	size_t n_synthetic;
	const char *cpu_level;		/* NULL: the best that the CPU has */
	uint64_t kv_memory;		/* bytes; 0: chosen by the machine's memory */
	uint64_t host_memory;		/* bytes of the tier behind it; 0: none */
	const char *state_dir;		/* NULL: nobody knows one */
	bool state_dir_named;		/* by somebody: it is no default place */
	uint64_t disk;			/* bytes of the cache in state_dir; 0: none; SERVER_DISK_AUTO */
	enum kb_kv_type kv_type;
	uint32_t block_tokens;
	uint32_t n_ctx;			/* 0: the model's own */
	uint32_t max_seqs;
	uint32_t n_threads;		/* 0: the CPUs that the process may use */
	uint32_t prefill_quantum;
	uint32_t prefill_ratio;		/* see engine_config.gap_percent */
	uint32_t stuck_limit_s;		/* see watch.h */
	uint32_t idle_exit_s;		/* 0: never */
	bool attention_mass;		/* of blocks, measured for eviction */
	bool no_cache;
	bool no_fairness;		/* see engine_config */
	const char *fair_weights;	/* as in fair_weights_init(); NULL: all have the same */
	uint64_t block_times[3];	/* tests: what block_size_measure() is to find; 0: it measures */
	uint64_t step_delay_ns, load_delay_ns;	/* tests: before each step, after each read of a model */
	const char *proc_dir;		/* tests: in place of /proc, where the kernel's kills are counted; or NULL */
	uint32_t max_sessions, max_queue;	/* in all */
	uint32_t uid_sessions, uid_requests;	/* for each uid */
	uint64_t uid_memory, uid_kv_memory;	/* for each uid, bytes; uid_kv_memory 0: no limit */
	const char *cache_groups;	/* names between commas: whose namespaces may be used; NULL: none */
	const char *const *http;	/* [n_http] addresses of the HTTP endpoint (http-address.h) */
	size_t n_http;
	const char *http_keys;		/* the file of keys; NULL: none */
	const char *http_hosts;		/* names between commas that Host may have, too; NULL: none */
	const char *http_origins;	/* web origins between commas that may use it; NULL: none */
	uint64_t http_max_body;		/* bytes of a request's body */
	uint32_t http_request_s;	/* in which a request must have come */
	uint32_t http_idle_s;		/* of a connection without a request, or a client that takes nothing */
	bool cache_public;		/* the public namespace may be used */
	uint64_t uid_weights;	/* bytes of model files that other uids than root and ours may load; 0: none */
};

struct server;

/*
 * The name that a file's model gets: its own without ".gguf".  0; -EINVAL: it has no valid one
 * (1 to 127 bytes of UTF-8 without control characters).
 */
int server_model_name(const char *path, char *out, size_t n);

/*
 * Opens the socket (bound, or passed by the service manager) and starts to load
 * the models.  Before other threads exist.  0 or -errno; diag says what is wrong.
 */
int server_new(struct server **out, const struct server_config *config, struct diag *diag);

/*
 * Serves until SIGTERM, SIGINT, idle time-out or a model of the configuration that can't be loaded.  A second
 * signal kills the process at once.  Returns the process's exit status.
 */
int server_run(struct server *s);

void server_free(struct server *s);
CLEANUP_DEFINE(struct server, server_free)

#endif
