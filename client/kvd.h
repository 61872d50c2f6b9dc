/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvd.h - libkvd: attach to kvd, submit prompts, read tokens out of shared
 * memory.
 *
 * Errors.  Functions return 0 or a positive count on success, a negative errno
 * for system failures, and the documented KVD_E_* (positive) for conditions;
 * kvd_client_error() has a sentence.  Outputs are untouched on failure.  The library
 * never aborts, prints, installs signal handlers (it sends with MSG_NOSIGNAL) or
 * keeps global state.  What the daemon sends is checked before it is used; a daemon
 * that breaks the rules is KVD_E_PROTOCOL from then on.
 *
 * Threads.  Different clients are independent.  One client may be used by
 * several threads: calls are serialised inside, and a thread blocked in
 * kvd_next() does not keep others from kvd_submit() and kvd_cancel(); only one
 * thread at a time may be in kvd_next().
 *
 * Event loops.  None is imposed: kvd_fd() polls readable when kvd_next() with
 * timeout 0 should be called.
 */
#ifndef KVD_H
#define KVD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVD_E_REFUSED 1		/* the daemon said no: kvd_client_code() says why */
#define KVD_E_CLOSED 2		/* the daemon is gone */
#define KVD_E_TIMEOUT 3		/* nothing within the time asked for, or no answer in 30 s */
#define KVD_E_PROTOCOL 4	/* the other side does not speak our protocol, or another version of it */

/* Why the daemon refused; numbers of the protocol. */
enum kvd_client_code {
	KVD_REFUSED_BAD_MESSAGE = 1, KVD_REFUSED_BAD_FIELD = 2, KVD_REFUSED_VERSION = 3,
	KVD_REFUSED_QUOTA = 4, KVD_REFUSED_PERMISSION = 5, KVD_REFUSED_BUSY = 6,
	KVD_REFUSED_CONTEXT_LENGTH = 7, KVD_REFUSED_NO_MODEL = 8, KVD_REFUSED_TEMPLATE = 9,
	KVD_REFUSED_NO_MEMORY = 10, KVD_REFUSED_SHUTDOWN = 11, KVD_REFUSED_INTERNAL = 12,
	KVD_REFUSED_LOADING = 13, KVD_REFUSED_UNLOADED = 14, KVD_REFUSED_CANCELLED = 15,
	KVD_REFUSED_BAD_MODEL = 16, KVD_REFUSED_EXISTS = 17, KVD_REFUSED_NO_ENTRY = 18,
	KVD_REFUSED_FILE = 19, KVD_REFUSED_DEADLINE = 20,
};

struct kvd_client;

struct kvd_connect_options {
	const char *socket;	/* NULL: the places of kvd_default_socket(), until one answers */
	const char *name;	/* shown by `kvctl ps`; NULL: the program's name */
	uint32_t ring_bytes;	/* 0: default */
	uint32_t arena_bytes;	/* 0: default; holds the prompts of unanswered requests */
	int timeout_ms;		/* for the greeting; 0: 5000 */
};

/*
 * $KVD_SOCKET, else the first socket that exists of $XDG_RUNTIME_DIR/kvd/kvd.sock,
 * /run/kvd/kvd.sock, and kvd.sock in /tmp/kvd-UID if that is a directory of mode 0700 which
 * belongs to this user; else /run/kvd/kvd.sock.  0 and at most n bytes; -ENAMETOOLONG.
 */
int kvd_default_socket(char *buf, size_t n);

/*
 * 0; -ENOENT or -ECONNREFUSED: no daemon there; -EACCES; -ENAMETOOLONG; KVD_E_REFUSED: the daemon
 * does not want this client; KVD_E_PROTOCOL; KVD_E_CLOSED; KVD_E_TIMEOUT; other -errno.  On failure *out
 * is NULL, and if diag is not NULL a sentence is written there.  options may be NULL.
 */
int kvd_connect(struct kvd_client **out, const struct kvd_connect_options *options, char *diag,
		size_t n_diag);
void kvd_close(struct kvd_client *c);	/* cancels what still runs; NULL is fine */

/* The last failure on this client, "" if none; valid until the next call. */
const char *kvd_client_error(const struct kvd_client *c);
int kvd_client_code(const struct kvd_client *c);
/* The message field that was refused, "" if none. */
const char *kvd_client_field(const struct kvd_client *c);

/* A stretch of the prompt or a chat message; text or ids, copied by kvd_submit(). */
struct kvd_part {
	const char *role;	/* NULL: raw prompt; "system", "user", "assistant": chat */
	const char *text;	/* n bytes; or */
	const int32_t *ids;	/* n ids, e.g. a reply as it was generated */
	size_t n;
};

struct kvd_bias {
	int32_t id;
	float bias;
};

/* Initialise with kvd_params_init(): fields may be added at the end. */
struct kvd_params {
	size_t struct_size;
	const char *model;		/* NULL: the default one */
	const struct kvd_part *parts;	/* all with a role, or none */
	size_t n_parts;
	int special;			/* control tokens written in raw text count */
	int no_bos;			/* do not begin with BOS even if the model asks for it */
	uint32_t max_tokens;		/* default 512 */
	float temperature;		/* default 0.8; 0 = greedy */
	uint32_t top_k;			/* default 0 = off */
	float top_p, min_p;		/* defaults 0.95, 0.05 */
	float repeat_penalty;		/* default 1 = off */
	uint32_t repeat_last_n;		/* default 64 */
	uint64_t seed;			/* default random */
	const char *const *stop;
	size_t n_stop;
	const struct kvd_bias *bias;
	size_t n_bias;
	int logprobs;			/* -1 none (default), 0 the token's own, n with n alternatives */
	int ignore_eos;
	int progress;			/* KVD_EVENT_PROGRESS during prefill */
	/* KVD_EVENT_PROMPT for the prompt's tokens from this position on; -1 none (default) */
	int32_t prompt_logprobs;
	/*
	 * Whose cache it reads and fills: NULL or "own", this user's; "group:NAME" or "public", where the daemon
	 * permits that; "none": it has no part in it.
	 */
	const char *ns;
	const char *cache_key;		/* a part of the namespace by itself: 1 to 64 bytes without '/'; NULL: none */
	uint32_t ttl_s;			/* what it leaves there expires so long after its last use; 0: never */
	uint32_t priority;		/* enum kvd_cache_priority; default: normal */
	int pin;			/* what the prompt filled stays until it is unpinned */
};

enum kvd_cache_priority { KVD_CACHE_LOW = 0, KVD_CACHE_NORMAL = 1, KVD_CACHE_HIGH = 2 };

/* Why not all of a prompt was taken from the cache; numbers of the protocol. */
enum kvd_cache_miss {
	KVD_CACHE_MISS_NONE = 0,	/* but its last token, which is always computed */
	KVD_CACHE_MISS_NO_CACHE = 1,	/* the request has no part in it */
	KVD_CACHE_MISS_EMPTY = 2,	/* nothing is stored from there on */
	KVD_CACHE_MISS_DIFFERS = 3,	/* another token is stored there */
	KVD_CACHE_MISS_EXPIRED = 4,
	KVD_CACHE_MISS_EVICTED = 5,
	KVD_CACHE_MISS_NAMESPACE = 6,	/* another namespace that this user may use has it */
	KVD_CACHE_MISS_LOGPROBS = 7,	/* log-probabilities of the prompt were asked for */
	KVD_CACHE_MISS_KEY = 8,		/* another cache key has it */
	KVD_CACHE_MISS_BLOCK = 9,	/* less than a block is missing, and this KV type keeps whole ones */
};
void kvd_params_init(struct kvd_params *p);

/*
 * Copies the parts into the arena that is shared with the daemon.  They take room there until
 * the daemon has copied them, which shows by the request's first event: -ENOSPC when there is none, so
 * take events and try again, or ask kvd_connect() for a larger arena.
 * 0 and *request; KVD_E_CLOSED; KVD_E_PROTOCOL; KVD_E_TIMEOUT: the daemon does not read its socket;
 * -ENOSPC; -EINVAL: kvd_client_field() says which member; -EMSGSIZE; -ENOMEM.  Refusals arrive as
 * KVD_EVENT_ERROR of that request.
 */
int kvd_submit(struct kvd_client *c, const struct kvd_params *p, uint64_t *request);
/* Ends the request; its last event still comes (done: cancelled, or what came first).  One that
 * has ended already is no error. */
int kvd_cancel(struct kvd_client *c, uint64_t request);

enum kvd_event_type {
	KVD_EVENT_TOKEN = 1, KVD_EVENT_TEXT = 2, KVD_EVENT_ALTERNATIVES = 3, KVD_EVENT_PROMPT = 4,
	KVD_EVENT_PROGRESS = 5, KVD_EVENT_USAGE = 6,
	KVD_EVENT_DONE = 7,	/* the last of a request */
	KVD_EVENT_ERROR = 8,	/* or this */
};

enum kvd_event_finish {
	KVD_DONE_STOP = 1, KVD_DONE_STOP_STRING = 2, KVD_DONE_LENGTH = 3, KVD_DONE_CANCELLED = 4,
};

struct kvd_alternative {
	int32_t id;
	float logprob;
	const uint8_t *bytes;
	size_t n_bytes;
};

/* bytes point into the ring: valid until the next kvd_next(). */
struct kvd_event {
	enum kvd_event_type type;
	uint64_t request;
	const uint8_t *bytes;	/* token: its bytes; text: whole code points; error: a sentence; usage: of the id */
	size_t n_bytes;
	int32_t id;		/* token, prompt; usage: the prompt's first token that was not cached, -1: none */
	float logprob;		/* token, prompt; NaN if not asked for */
	int is_control;		/* token */
	uint32_t position;	/* prompt */
	const struct kvd_alternative *alternatives;
	size_t n_alternatives;
	uint32_t done, total;	/* progress */
	uint32_t prompt_tokens, cached_tokens, generated_tokens;	/* usage */
	uint32_t miss;		/* usage: enum kvd_cache_miss */
	uint64_t queue_ns, prefill_ns, decode_ns;			/* usage */
	uint32_t finish;	/* done: enum kvd_event_finish */
	uint32_t stop_index;	/* done */
	uint32_t code;		/* error: enum kvd_client_code */
	const char *field;	/* error: the refused field, "" if none */
};

/*
 * The next event of any request.  timeout_ms: 0 do not wait, -1 for ever.
 * When the daemon goes, what it had written is still given out, then KVD_E_CLOSED.
 * 0 and *event; KVD_E_TIMEOUT; KVD_E_CLOSED; KVD_E_PROTOCOL; -EINTR: a signal handler ran while it
 * waited; -EBUSY: another thread is in kvd_next().
 */
int kvd_next(struct kvd_client *c, int timeout_ms, const struct kvd_event **event);
/* Readable (POLLIN) when kvd_next(c, 0, ...) may have something.  Call kvd_next() until KVD_E_TIMEOUT
 * before polling: that announces the sleep.  Only for poll() and the like. */
int kvd_fd(const struct kvd_client *c);

/* Ids of a text.  *ids is malloc'd.  Waits for the answer.  As kvd_status(), and -ENOSPC: the arena has no
 * room for the text and its ids. */
#define KVD_TOKENIZE_SPECIAL 1
#define KVD_TOKENIZE_BOS 2
int kvd_tokenize(struct kvd_client *c, const char *model, const char *text, size_t n, unsigned flags,
		 int32_t **ids, size_t *n_ids);

/* The same with what each token stands for (of a control token: its name).  *tokens is malloc'd, the
 * bytes live in the same allocation. */
struct kvd_token {
	int32_t id;
	uint32_t n_bytes;
	const uint8_t *bytes;
};
int kvd_tokenize_pieces(struct kvd_client *c, const char *model, const char *text, size_t n, unsigned flags,
			struct kvd_token **tokens, size_t *n_tokens);

/* Status, models and processes: 0; KVD_E_REFUSED; KVD_E_CLOSED; KVD_E_TIMEOUT; KVD_E_PROTOCOL; -errno. */
struct kvd_status {
	char version[32], device[32], level[32], state[32];	/* state: "loading", "ready" */
	uint32_t pid, n_threads, n_models, n_sessions, n_running, n_queued, n_parked;
	uint64_t uptime_ns, kv_bytes, kv_bytes_used, weight_bytes;
	uint64_t prompt_tokens, generated_tokens, requests_done, requests_cancelled, preemptions;
	uint32_t loading_percent;
	uint32_t no_cache;
	/*
	 * Of all: blocks in use by requests or kept by pins, those of the cache that could be let go, and free ones.
	 * Of one's own: those of one's requests, those of the cache that one is charged for, and 0.
	 */
	uint64_t blocks_used, blocks_cached, blocks_free;
	/* Requests that looked into the cache, those that found something; tokens found; entries let go (own: 0). */
	uint64_t cache_lookups, cache_hits, cached_tokens, cache_evicted;
	/* The tier behind the KV memory, of all (own: 0): budget, what it takes; blocks there, that went, that came. */
	uint64_t host_bytes, host_bytes_used, host_blocks, host_stored, host_restored;
	/*
	 * The cache on disk, of all (own: 0): budget and what its files take; blocks there of models that are loaded;
	 * prompts that were looked for there, those of which something was found; blocks written, read, let go
	 * and found damaged; errors of the medium, and what was last wrong ("": nothing now).
	 */
	uint64_t disk_bytes, disk_bytes_used, disk_blocks, disk_lookups, disk_hits;
	uint64_t disk_written, disk_read, disk_evicted, disk_damaged, disk_errors;
	char disk_trouble[128];
	char kv_type[32];	/* of keys and values: "f16", "q8", "q4" */
	uint64_t open_bytes;	/* beside the KV memory: blocks that are not full, where the type has such (own: 0) */
};
int kvd_status(struct kvd_client *c, struct kvd_status *out);

struct kvd_model {
	char name[128], arch[32], title[128];
	char state[32];		/* "loading", "ready", "unloading" */
	char chat_template[32];	/* "chatml"; "unknown": not one that kvd knows; "none": the model has none */
	uint32_t n_ctx, n_ctx_train, n_vocab, n_layers, n_embd;
	uint64_t n_params, file_bytes, weight_bytes;
	char hash[33];		/* hex */
	uint32_t percent;	/* how much is loaded */
	uint32_t uid;		/* who had it loaded */
	int is_default;		/* for requests that name none */
	uint32_t block_tokens;	/* in a block of keys and values; 0: not known yet */
	uint64_t block_bytes;	/* that it takes */
	/* Why so many: "given", "default", "kept" (as measured at an earlier start), "measured"; "": not known yet */
	char block_tokens_by[32];
};
/* *models is malloc'd. */
int kvd_models(struct kvd_client *c, struct kvd_model **models, size_t *n);

struct kvd_process {
	uint64_t session, request;
	uint32_t uid, pid;
	char client[64];
	char phase[16];		/* "queued", "prefill", "decode", "parked" */
	char model[128];
	uint32_t prompt_tokens, computed_tokens, generated_tokens, blocks;
	uint64_t age_ns;
};
/* Own requests; all of them for root and the daemon's user.  *list is malloc'd. */
int kvd_ps(struct kvd_client *c, struct kvd_process **list, size_t *n);

/* Initialise with kvd_load_options_init(): fields may be added at the end. */
struct kvd_load_options {
	size_t struct_size;
	const char *name;	/* NULL: the file's name without ".gguf" */
	uint32_t n_ctx;		/* longest sequence, in tokens; 0: as the daemon is configured */
	/*
	 * Called about ten times a second while kvd_load() waits, in its thread; percent: how much is
	 * loaded.  Not 0: gives the load up.  NULL: nobody wants to know.
	 */
	int (*progress)(void *arg, unsigned percent);
	void *progress_arg;
};
void kvd_load_options_init(struct kvd_load_options *o);

/*
 * Makes the daemon load a GGUF file, and waits until it has.  The file is opened here, with the caller's
 * rights, and its descriptor passed: the daemon needs no access to it.  fd must be open for reading; it stays
 * the caller's, and name must be given with it.  Loads wait for each other.  options may be NULL.
 * 0: it is ready; KVD_E_REFUSED: kvd_client_code() and kvd_client_error() say why; -ECANCELED: given up;
 * -EINVAL: kvd_client_field() says which option, or the file is no regular one; other failures as kvd_status(),
 * and those of open().
 */
int kvd_load(struct kvd_client *c, const char *path, const struct kvd_load_options *options);
int kvd_load_fd(struct kvd_client *c, int fd, const struct kvd_load_options *options);

/*
 * Waits until the model is gone, however long its requests take; with KVD_UNLOAD_NOW they are ended, with
 * KVD_REFUSED_UNLOADED.  As kvd_status().
 */
#define KVD_UNLOAD_NOW 1
int kvd_unload(struct kvd_client *c, const char *model, unsigned flags);

/*
 * The cache.  An entry is a block of tokens whose keys and values are kept, or fewer at the end of a sequence.
 * Namespaces and cache keys: see struct kvd_params; a namespace is called "uid:N", "group:NAME" or "public",
 * and with a key "uid:N/KEY" and so on.  One sees one's own namespaces, and of shared ones the entries that one is
 * charged for; root and the daemon's user see everything.  Fields tell as much as one may know.  Failures as
 * kvd_status(); what one may not know of is refused with KVD_REFUSED_NO_ENTRY.  model NULL: the default one.
 */
struct kvd_cache_entry {
	uint64_t entry;			/* its number in its model's cache */
	uint64_t parent;		/* 0: it begins a prompt */
	char ns[128];
	uint32_t uid;			/* who is charged for it */
	uint32_t n_tokens, first;	/* tokens in it, position of the first */
	int joined;			/* of the same chain as its parent: its only child, charged to the same uid */
	uint64_t bytes;
	char tier[32];			/* "memory", "host", "disk", "memory+disk", "host+disk" */
	uint64_t age_ns, idle_ns;	/* since it was made, since its last use */
	uint64_t ttl_ns;		/* until it expires; 0: it does not, or that is not told */
	uint32_t hits, n_users, n_pins;	/* later uses; requests that hold it, pins on it */
	uint32_t priority;		/* enum kvd_cache_priority */
	int pinned;			/* by this user */
	char words[49];			/* the beginning of its text */
};
/*
 * Of ns and those below it ("own" too), NULL: all that one may see.  Parents come before children.  *entries is
 * malloc'd.
 */
int kvd_cache_ls(struct kvd_client *c, const char *model, const char *ns, struct kvd_cache_entry **entries, size_t *n);

struct kvd_cache_details {
	struct kvd_cache_entry entry;
	uint64_t chain;			/* the first entry of its chain */
	uint32_t n_path, n_below;	/* entries from the beginning to it, and after it */
	uint32_t pinned_by[16], n_pinned_by;	/* uids */
	char text[1025];		/* what the prompt begins with */
	char own[1025];			/* the text of its own tokens */
};
int kvd_cache_show(struct kvd_client *c, const char *model, uint64_t entry, struct kvd_cache_details *out);

/* What was changed; each function takes NULL for it. */
struct kvd_cache_change {
	uint64_t n_entries, n_tokens, bytes;	/* in memory */
	uint64_t disk_entries, disk_bytes;	/* removed from disk, whether it was in memory or not */
};
/* Keeps it and all before it, and charges this user for them.  Pinned by him already: the same. */
int kvd_cache_pin(struct kvd_client *c, const char *model, uint64_t entry, struct kvd_cache_change *out);
#define KVD_CACHE_ALL 1		/* unpin: everybody's pins; wipe: all namespaces */
#define KVD_CACHE_CHAIN 2	/* drop: from the first entry of its chain on */
int kvd_cache_unpin(struct kvd_client *c, const char *model, uint64_t entry, unsigned flags,
		    struct kvd_cache_change *out);
/* Removes it and all after it. */
int kvd_cache_drop(struct kvd_client *c, const char *model, uint64_t entry, unsigned flags,
		   struct kvd_cache_change *out);
/* Removes all of ns and those below it (NULL: one's own).  model NULL: of all models. */
int kvd_cache_wipe(struct kvd_client *c, const char *model, const char *ns, unsigned flags,
		   struct kvd_cache_change *out);

/*
 * The cache as bytes.  Initialise with kvd_share_options_init(): fields may be added at the end.  What a namespace
 * shows and who owns it is as above.
 */
struct kvd_share_options {
	size_t struct_size;
	const char *model;	/* NULL: the default one */
	const char *ns;		/* of it and those below it; NULL: export: one's own, verify: all that one sees */
	const char *cache_key;	/* import: all into this part of one's own; NULL: as in the file */
	uint32_t count;		/* verify: entries, at least; 0: 64; UINT32_MAX: all */
	/*
	 * Called about ten times a second while the call waits, in its thread; entries done, of total (0: nobody
	 * knows).  Not 0: gives up.  NULL: nobody wants to know.
	 */
	int (*progress)(void *arg, uint64_t done, uint64_t total);
	void *progress_arg;
};
void kvd_share_options_init(struct kvd_share_options *o);

struct kvd_share_result {
	uint64_t n_entries, n_tokens, bytes;	/* written; taken; found to be the same */
	uint64_t n_there;	/* import: there already */
	uint64_t n_left;	/* import: left, since what they follow is not there */
	uint64_t n_differ;	/* verify: differed from what was computed, and were dropped */
	uint64_t compute_ns;	/* verify */
	int code;		/* import: why it ended before the file did, enum kvd_client_code; 0: it did not */
	char message[257];	/* in a sentence; verify: the first that differed */
};

/*
 * fd is of a regular file or a pipe, open for writing (reading), and stays the caller's.  Written is what
 * daemon/cache/EXPORT.md says.  An import goes into one's own namespace; what it takes is found by nobody else.
 * 0; KVD_E_REFUSED: kvd_client_code() and kvd_client_error() say why, KVD_REFUSED_FILE for what is wrong with the
 * file; -ECANCELED: given up; -EINVAL: kvd_client_field() says which option; others as kvd_status().
 */
int kvd_cache_export(struct kvd_client *c, int fd, const struct kvd_share_options *o, struct kvd_share_result *out);
int kvd_cache_import(struct kvd_client *c, int fd, const struct kvd_share_options *o, struct kvd_share_result *out);
/* Computes entries chosen at random again, and compares. */
int kvd_cache_verify(struct kvd_client *c, const struct kvd_share_options *o, struct kvd_share_result *out);

const char *kvd_version(void);		/* of the library */
unsigned kvd_protocol_version(void);	/* a daemon of another one is refused */

#ifdef __cplusplus
}
#endif

#endif
