/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec.h - messages of PROTOCOL.md as C structs, to and from bytes.  No I/O.
 *
 * One datagram holds one message, [ id, { "field": value, ... } ].  The structs
 * below have one member per field, under the field's name; units and meaning
 * are those of PROTOCOL.md.  "Optional" fields may be missing; the decoder then
 * leaves the default that is noted, and the encoder leaves out strings that are
 * NULL, arrays that are empty and numbers whose has_ or sentinel says absent.
 *
 * Decoding is strict: a message is taken whole or refused with the name of the
 * first field that is wrong.  Before anything is allocated, nesting and the
 * number of objects are checked, so that a datagram costs at most a few hundred
 * kilobytes while it is decoded.
 *
 * Thread: any; nothing is shared.
 */
#ifndef KVD_CODEC_H
#define KVD_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/cleanup.h"
#include "ipc/protocol.h"

/* --- client to daemon ------------------------------------------------------- */

struct msg_hello {
	uint32_t version;	/* KVD_PROTOCOL_VERSION */
	const char *client;	/* 1..KVD_CLIENT_NAME_MAX bytes, no control characters */
	uint32_t ring;		/* bytes of data, a power of two; optional: KVD_RING_DEFAULT */
	uint32_t arena;		/* bytes, a multiple of 4096; optional: KVD_ARENA_DEFAULT */
};

/* A stretch of the arena.  offset and length are bytes within it; multiples of 4 for ids. */
struct msg_part {
	uint32_t kind;		/* enum kvd_part_kind */
	uint32_t offset, length;
};

struct msg_chat {
	const char *role;	/* 1..KVD_ROLE_MAX of [a-z0-9_-] */
	uint32_t kind;
	uint32_t offset, length;
};

struct msg_bias {
	int32_t id;		/* >= 0; the codec does not know the vocabulary */
	float bias;		/* finite */
};

/*
 * Exactly one of prompt and messages is there.  The decoder makes sure that the
 * lengths together are at most KVD_ARENA_MAX, and that a prompt is not empty;
 * whether a part lies within the session's arena is the server's to check.
 */
struct msg_generate {
	uint64_t id;			/* not 0 */
	const char *model;		/* optional: NULL, the default one */
	const struct msg_part *prompt;	/* [n_prompt] */
	size_t n_prompt;
	const struct msg_chat *messages;	/* [n_messages] */
	size_t n_messages;
	bool special;			/* optional: false */
	bool bos;			/* optional: true */
	uint32_t n;			/* optional: 512; UINT32_MAX: until the context is full */
	float temperature;		/* 0..100; optional: 0.8 */
	uint32_t top_k;			/* optional: 0 */
	float top_p, min_p;		/* 0..1; optional: 0.95, 0.05 */
	float repeat_penalty;		/* 0.01..100; optional: 1 */
	uint32_t repeat_last_n;		/* optional: 64 */
	bool has_seed;			/* optional: false, the daemon draws one */
	uint64_t seed;
	const struct msg_bias *logit_bias;	/* [n_logit_bias], at most KVD_LOGIT_BIAS_MAX */
	size_t n_logit_bias;
	const char *const *stop;	/* [n_stop], each 1..KVD_STOP_BYTES_MAX bytes */
	size_t n_stop;
	bool has_logprobs;		/* optional: false, none */
	uint32_t logprobs;		/* alternatives, at most KVD_LOGPROBS_MAX */
	bool ignore_eos;		/* optional: false */
	bool progress;			/* optional: false */
	bool has_prompt_logprobs;	/* optional: false, none */
	uint32_t prompt_logprobs;	/* from this position of the prompt on */
	const char *namespace;		/* optional: NULL, the peer's own */
	const char *cache_key;		/* optional: NULL; 1..KVD_CACHE_KEY_MAX bytes, no '/' */
	uint32_t ttl_s;			/* optional: 0, never */
	uint32_t priority;		/* enum kvd_priority; optional: normal */
	bool pin;			/* optional: false */
};

struct msg_cancel {
	uint64_t id;
};

struct msg_room {
	char nothing;		/* the message has no fields */
};

struct msg_wait {
	char nothing;
};

struct msg_tokenize {
	uint64_t id;
	const char *model;	/* optional: NULL */
	uint32_t offset, length;	/* the text */
	bool special, bos;	/* optional: false */
	bool pieces;		/* optional: false; behind the ids, their sizes and their bytes */
	uint32_t out_offset, out_length;	/* where int32 ids go, bytes, multiples of 4 */
};

struct msg_status {
	uint64_t id;
};

struct msg_models {
	uint64_t id;
};

struct msg_ps {
	uint64_t id;
};

/* With one descriptor: the file, open for reading. */
struct msg_load {
	uint64_t id;
	const char *name;	/* 1..KVD_MODEL_NAME_MAX bytes, no control characters, no '/' */
	uint32_t n_ctx;		/* optional: 0, as the daemon is configured */
	bool progress;		/* optional: false; `loading` now and then */
};

struct msg_unload {
	uint64_t id;
	const char *model;
	bool now;		/* optional: false, requests that have begun end first */
};

struct msg_cache_ls {
	uint64_t id;
	const char *model;	/* optional: NULL, the default one */
	const char *namespace;	/* optional: NULL, all that the peer may see; with those below it */
	uint64_t after;		/* `next` of the page before; optional: 0, the first page */
};

/* An entry of the cache, by number. */
struct msg_cache_show {
	uint64_t id;
	const char *model;	/* optional: NULL, the default one */
	uint64_t entry;		/* not 0 */
};

struct msg_cache_pin {
	uint64_t id;
	const char *model;
	uint64_t entry;
};

struct msg_cache_unpin {
	uint64_t id;
	const char *model;
	uint64_t entry;
	bool all;		/* optional: false; everybody's pins */
};

struct msg_cache_drop {
	uint64_t id;
	const char *model;
	uint64_t entry;
	bool chain;		/* optional: false; from the first entry of its chain on */
};

struct msg_cache_wipe {
	uint64_t id;
	const char *model;	/* optional: NULL, of all models */
	const char *namespace;	/* optional: NULL, the peer's own; with those below it */
	bool all;		/* optional: false; all namespaces */
};

/* With one descriptor: the file or pipe, open for writing. */
struct msg_cache_export {
	uint64_t id;
	const char *model;	/* optional: NULL, the default one */
	const char *namespace;	/* optional: NULL, the peer's own; with those below it */
	bool progress;		/* optional: false; `cache_progress` now and then */
};

/* The same, open for reading. */
struct msg_cache_import {
	uint64_t id;
	const char *model;
	const char *cache_key;	/* optional: NULL, as in the file */
	bool progress;
};

struct msg_cache_verify {
	uint64_t id;
	const char *model;
	const char *namespace;	/* optional: NULL, all that the peer may see */
	uint32_t count;		/* optional: 0, KVD_CACHE_VERIFY_DEFAULT; UINT32_MAX: all */
	bool progress;
};

/* --- daemon to client ------------------------------------------------------- */

struct msg_welcome {
	uint32_t version;
	uint64_t session;
	uint32_t ring, arena;	/* as granted */
	const char *server;	/* name and version of the daemon */
	const char *state;	/* "loading" or "ready" */
};

struct msg_refused {
	uint32_t code;		/* enum kvd_code, not KVD_CODE_OK */
	const char *message;
};

struct msg_error {
	uint64_t id;		/* of the refused message, 0 if it has none */
	uint32_t code;		/* enum kvd_code, not KVD_CODE_OK */
	const char *field;	/* "" if none */
	const char *message;
	uint64_t count;		/* what would have been needed; optional: 0 */
};

struct msg_wake {
	char nothing;
};

struct msg_tokenized {
	uint64_t id;
	uint32_t count;		/* ids written */
};

/* Members as those of struct kvd_status, kvd_model and kvd_process in client/kvd.h. */
struct msg_status_reply {
	uint64_t id;
	const char *version, *device, *level, *state;
	uint32_t pid, n_threads, n_models, n_sessions, n_running, n_queued, n_parked;
	uint64_t uptime_ns, kv_bytes, kv_bytes_used, weight_bytes;
	uint64_t prompt_tokens, generated_tokens, requests_done, requests_cancelled, preemptions;
	uint32_t loading_percent;
	bool no_cache;
	uint64_t blocks_used, blocks_cached, blocks_free;
	uint64_t cache_lookups, cache_hits, cached_tokens, cache_evicted;
	uint64_t host_bytes, host_bytes_used, host_blocks, host_stored, host_restored;
	uint64_t disk_bytes, disk_bytes_used, disk_blocks, disk_lookups, disk_hits;
	uint64_t disk_written, disk_read, disk_evicted, disk_damaged, disk_errors;
	const char *disk_trouble;	/* NULL: none */
	const char *kv_type;
	uint64_t open_bytes;
};

struct msg_model {
	const char *name, *arch, *title, *state, *chat_template;
	uint32_t n_ctx, n_ctx_train, n_vocab, n_layers, n_embd;
	uint64_t n_params, file_bytes, weight_bytes;
	const char *hash;
	uint32_t percent;	/* loaded, 0..100 */
	uint32_t uid;		/* who had it loaded */
	bool is_default;	/* for requests that name none */
	uint32_t block_tokens;	/* of keys and values; 0: not known yet */
	uint64_t block_bytes;
	const char *block_tokens_by;	/* how it came to be so many; NULL: not known yet */
};

struct msg_models_reply {
	uint64_t id;
	const struct msg_model *models;	/* [n_models], at most KVD_MODELS_MAX */
	size_t n_models;
};

struct msg_process {
	uint64_t session, request;
	uint32_t uid, pid;
	const char *client, *phase, *model;
	uint32_t prompt_tokens, computed_tokens, generated_tokens, blocks;
	uint64_t age_ns;
};

struct msg_ps_reply {
	uint64_t id;
	const struct msg_process *processes;	/* [n_processes], at most KVD_PS_MAX */
	size_t n_processes;
	bool truncated;		/* there are more than fit */
};

struct msg_loaded {
	uint64_t id;
	const char *name;
	uint32_t n_ctx;
	uint64_t weight_bytes;
};

struct msg_unloaded {
	uint64_t id;
};

struct msg_loading {
	uint64_t id;
	uint32_t percent;
};

/* Members as those of struct kvd_cache_entry in client/kvd.h. */
struct msg_cache_entry {
	uint64_t entry, parent;
	const char *namespace;
	uint32_t uid, n_tokens, first;
	bool joined;
	uint64_t bytes;
	const char *tier;
	uint64_t age_ns, idle_ns, ttl_ns;
	uint32_t hits, n_users, n_pins, priority;
	bool pinned;
	const char *words;
};

struct msg_cache_ls_reply {
	uint64_t id;
	const char *model;
	uint32_t block_tokens;
	const struct msg_cache_entry *entries;	/* [n_entries], at most KVD_CACHE_LS_MAX, parents first */
	size_t n_entries;
	uint64_t next;		/* optional: 0, there are no more */
};

struct msg_cache_show_reply {
	uint64_t id;
	const char *model;
	const struct msg_cache_entry *entries;	/* the one */
	size_t n_entries;
	uint64_t chain;		/* the first entry of its chain */
	uint32_t n_path, n_below;	/* entries from the root to it, and below it */
	const uint32_t *pinned_by;	/* [n_pinned_by] uids, at most KVD_CACHE_PINS_MAX */
	size_t n_pinned_by;
	const char *text;	/* what the prompt begins with */
	const char *own;	/* the text of its own tokens */
};

struct msg_cache_done {
	uint64_t id;
	uint64_t n_entries, n_tokens, bytes;	/* concerned */
	uint64_t disk_entries, disk_bytes;	/* of what was removed, on disk */
};

struct msg_cache_shared {
	uint64_t id;
	uint64_t n_entries, n_tokens, bytes;	/* written, or taken */
	uint64_t n_there, n_left;	/* import: there already; left, since what they follow is not there */
	uint32_t code;		/* enum kvd_code: why it stopped before the end; OK: it did not */
	const char *message;
};

struct msg_cache_verified {
	uint64_t id;
	uint64_t n_entries, n_tokens, bytes;	/* that were the same */
	uint64_t n_differ;	/* entries that were not, and were dropped */
	uint64_t compute_ns;
	const char *message;	/* which the first was */
};

struct msg_cache_progress {
	uint64_t id;
	uint64_t done, total;	/* entries; total 0: nobody knows */
};

/* --- decoding ----------------------------------------------------------------- */

/* A decoded message.  Strings and arrays live as long as it does. */
struct msg {
	enum kvd_message id;
	union {
		struct msg_hello hello;
		struct msg_generate generate;
		struct msg_cancel cancel;
		struct msg_room room;
		struct msg_wait wait;
		struct msg_tokenize tokenize;
		struct msg_status status;
		struct msg_models models;
		struct msg_ps ps;
		struct msg_load load;
		struct msg_unload unload;
		struct msg_welcome welcome;
		struct msg_refused refused;
		struct msg_error error;
		struct msg_wake wake;
		struct msg_tokenized tokenized;
		struct msg_status_reply status_reply;
		struct msg_models_reply models_reply;
		struct msg_ps_reply ps_reply;
		struct msg_loaded loaded;
		struct msg_unloaded unloaded;
		struct msg_loading loading;
		struct msg_cache_ls cache_ls;
		struct msg_cache_show cache_show;
		struct msg_cache_pin cache_pin;
		struct msg_cache_unpin cache_unpin;
		struct msg_cache_drop cache_drop;
		struct msg_cache_wipe cache_wipe;
		struct msg_cache_export cache_export;
		struct msg_cache_import cache_import;
		struct msg_cache_verify cache_verify;
		struct msg_cache_ls_reply cache_ls_reply;
		struct msg_cache_show_reply cache_show_reply;
		struct msg_cache_done cache_done;
		struct msg_cache_shared cache_shared;
		struct msg_cache_verified cache_verified;
		struct msg_cache_progress cache_progress;
	};
	void *storage;		/* the codec's */
};

/* Why a message was refused; what an `error` reply needs. */
struct codec_error {
	enum kvd_code code;	/* BAD_MESSAGE, BAD_FIELD, VERSION */
	uint64_t id;		/* the field "id", 0 if it could not be read */
	char field[KVD_FIELD_MAX + 1];	/* "temperature", "prompt[3].length"; "" if none */
	char text[160];		/* a sentence, printable ASCII */
};

#define CODEC_E_INVALID 1	/* not a message; *error says why */

/*
 * Decodes one datagram of n bytes, from either side.  *out is one allocation's
 * owner, freed by msg_free().
 *
 * `hello` and `welcome` of another protocol version are refused with
 * KVD_CODE_VERSION whatever other fields they have.
 *
 * 0; CODEC_E_INVALID; -ENOMEM, then error->id is the message's.
 */
int codec_decode(struct msg **out, const void *data, size_t n, struct codec_error *error);
void msg_free(struct msg *m);
CLEANUP_DEFINE(struct msg, msg_free)

/* Whether this message goes from the client to the daemon. */
bool codec_from_client(enum kvd_message id);
/* "generate"; "unknown" for a number that is no id. */
const char *codec_name(enum kvd_message id);

/* --- encoding ----------------------------------------------------------------- */

/* A growing buffer, reused from message to message. */
struct codec_buf {
	uint8_t *data;
	size_t n;		/* bytes of the message */
	size_t capacity;
};

#define CODEC_BUF_NULL ((struct codec_buf){ 0 })
void codec_buf_deinit(struct codec_buf *buf);

/*
 * Each replaces what is in buf.  What the decoder would refuse is -EINVAL, but for
 * strings of the daemon's messages, which are made to fit: ill-formed UTF-8 and
 * control characters become U+FFFD, and what is too long is cut between code
 * points.  0; -EINVAL; -EMSGSIZE; -ENOMEM; buf->n is 0 on failure.
 */
int codec_encode(struct codec_buf *buf, enum kvd_message id, const void *msg);

#define CODEC_ENCODER(NAME, ID) \
	static inline int codec_encode_##NAME(struct codec_buf *buf, const struct msg_##NAME *m) \
	{ return codec_encode(buf, ID, m); }

CODEC_ENCODER(hello, KVD_MSG_HELLO)
CODEC_ENCODER(generate, KVD_MSG_GENERATE)
CODEC_ENCODER(cancel, KVD_MSG_CANCEL)
CODEC_ENCODER(room, KVD_MSG_ROOM)
CODEC_ENCODER(wait, KVD_MSG_WAIT)
CODEC_ENCODER(tokenize, KVD_MSG_TOKENIZE)
CODEC_ENCODER(status, KVD_MSG_STATUS)
CODEC_ENCODER(models, KVD_MSG_MODELS)
CODEC_ENCODER(ps, KVD_MSG_PS)
CODEC_ENCODER(load, KVD_MSG_LOAD)
CODEC_ENCODER(unload, KVD_MSG_UNLOAD)
CODEC_ENCODER(welcome, KVD_MSG_WELCOME)
CODEC_ENCODER(refused, KVD_MSG_REFUSED)
CODEC_ENCODER(error, KVD_MSG_ERROR)
CODEC_ENCODER(wake, KVD_MSG_WAKE)
CODEC_ENCODER(tokenized, KVD_MSG_TOKENIZED)
CODEC_ENCODER(status_reply, KVD_MSG_STATUS_REPLY)
CODEC_ENCODER(models_reply, KVD_MSG_MODELS_REPLY)
CODEC_ENCODER(ps_reply, KVD_MSG_PS_REPLY)
CODEC_ENCODER(loaded, KVD_MSG_LOADED)
CODEC_ENCODER(unloaded, KVD_MSG_UNLOADED)
CODEC_ENCODER(loading, KVD_MSG_LOADING)
CODEC_ENCODER(cache_ls, KVD_MSG_CACHE_LS)
CODEC_ENCODER(cache_show, KVD_MSG_CACHE_SHOW)
CODEC_ENCODER(cache_pin, KVD_MSG_CACHE_PIN)
CODEC_ENCODER(cache_unpin, KVD_MSG_CACHE_UNPIN)
CODEC_ENCODER(cache_drop, KVD_MSG_CACHE_DROP)
CODEC_ENCODER(cache_wipe, KVD_MSG_CACHE_WIPE)
CODEC_ENCODER(cache_export, KVD_MSG_CACHE_EXPORT)
CODEC_ENCODER(cache_import, KVD_MSG_CACHE_IMPORT)
CODEC_ENCODER(cache_verify, KVD_MSG_CACHE_VERIFY)
CODEC_ENCODER(cache_ls_reply, KVD_MSG_CACHE_LS_REPLY)
CODEC_ENCODER(cache_show_reply, KVD_MSG_CACHE_SHOW_REPLY)
CODEC_ENCODER(cache_done, KVD_MSG_CACHE_DONE)
CODEC_ENCODER(cache_shared, KVD_MSG_CACHE_SHARED)
CODEC_ENCODER(cache_verified, KVD_MSG_CACHE_VERIFIED)
CODEC_ENCODER(cache_progress, KVD_MSG_CACHE_PROGRESS)

#undef CODEC_ENCODER

/* Whether a model may be called so: as the field `name` of `load`. */
bool codec_model_name_valid(const char *name);

/* Fills in the defaults of optional fields (zero where there is none). */
void msg_generate_init(struct msg_generate *m);

#endif
