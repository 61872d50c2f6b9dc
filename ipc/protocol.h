/* SPDX-License-Identifier: Apache-2.0 */
/*
 * protocol.h - numbers of the wire and shared-memory protocol.  PROTOCOL.md is
 * the specification; this header has every id, limit and layout in it.
 *
 * Messages.  SOCK_SEQPACKET, one datagram = one message = one msgpack array
 * [ id, { "field": value, ... } ].  Unknown or ill-typed fields are refused by
 * name.  Ids are spaced and never reused.  `load`, `cache_export` and `cache_import` bring one descriptor: the file.
 *
 * Shared memory.  `welcome` carries three descriptors, in this order:
 *   0  the ring: struct kvd_ring_header, then data; the client can only read
 *   1  the client segment: struct kvd_client_header, then the arena; both
 *      write, so the daemon takes every word of it as hostile
 *   2  the statistics page (stats.h), read-only
 */
#ifndef KVD_PROTOCOL_H
#define KVD_PROTOCOL_H

#include <stdatomic.h>
#include <stdint.h>

#define KVD_PROTOCOL_VERSION 5

/* Limits.  Sizes in bytes; of strings without the NUL that C adds. */
#define KVD_MESSAGE_MAX 65536		/* one datagram, either way */
#define KVD_MESSAGE_DEPTH_MAX 4		/* arrays and maps inside each other, the outermost included */
#define KVD_MESSAGE_OBJECTS_MAX 16384	/* msgpack objects in one message */
#define KVD_CLIENT_NAME_MAX 63
#define KVD_MODEL_NAME_MAX 127
#define KVD_TITLE_MAX 127		/* a model's title */
#define KVD_WORD_MAX 31			/* version, device, state and the like */
#define KVD_PHASE_MAX 15
#define KVD_HASH_MAX 32			/* hex digits */
#define KVD_ROLE_MAX 32			/* of a chat message: [a-z0-9_-] */
#define KVD_FIELD_MAX 63
#define KVD_ERROR_TEXT_MAX 256
#define KVD_RING_MIN (64u << 10)	/* data part, a power of two */
#define KVD_RING_DEFAULT (1u << 20)
#define KVD_RING_MAX (16u << 20)
#define KVD_ARENA_MIN (64u << 10)	/* a multiple of 4096 */
#define KVD_ARENA_DEFAULT (4u << 20)
#define KVD_ARENA_MAX (64u << 20)
#define KVD_PARTS_MAX 1024		/* parts of a prompt, messages of a chat */
#define KVD_STOP_MAX 16			/* stop strings */
#define KVD_STOP_BYTES_MAX 256		/* each, 1..256 bytes */
#define KVD_LOGIT_BIAS_MAX 1024
#define KVD_LOGPROBS_MAX 32		/* alternatives per token */
#define KVD_SESSION_REQUESTS_MAX 64	/* queued and running in one session; see KVD_RING_REQUESTS */
#define KVD_MODELS_MAX 16		/* loaded, loading and unloading; all are in one models_reply */
#define KVD_PS_MAX 160			/* in one ps_reply */
#define KVD_NAMESPACE_MAX 127		/* a namespace's name, with its key */
#define KVD_CACHE_KEY_MAX 64
#define KVD_CACHE_LS_MAX 120		/* entries in one cache_ls_reply */
#define KVD_CACHE_WORDS_MAX 48		/* first words of an entry */
#define KVD_CACHE_TEXT_MAX 1024		/* in a cache_show_reply */
#define KVD_TROUBLE_MAX 127		/* what was last wrong with the disk */
#define KVD_CACHE_PINS_MAX 16		/* who pinned, in a cache_show_reply */
#define KVD_CACHE_VERIFY_DEFAULT 64	/* entries, where none are said */
#define KVD_MISS_BYTES_MAX 64		/* of the token in a usage record */
#define KVD_WELCOME_FDS 3
#define KVD_LOAD_FDS 1

/*
 * Space in the ring.  A batch is what one step of one request writes, all or
 * nothing, published at once: at most a quarter of the ring.  For each request
 * KVD_RING_FINAL_RESERVE stays free until its last batch: usage, at most
 * KVD_RING_FINAL_TEXT of text and the done or error record.  So the size of the
 * ring limits how many requests a session may have at once.
 */
#define KVD_RING_BATCH_MAX(data_size) ((data_size) / 4)
#define KVD_RING_FINAL_TEXT 4096u
#define KVD_RING_FINAL_RESERVE 4608u
#define KVD_RING_REQUESTS(data_size) \
	((data_size) / 2 / KVD_RING_FINAL_RESERVE < KVD_SESSION_REQUESTS_MAX ? \
	 (uint32_t)((data_size) / 2 / KVD_RING_FINAL_RESERVE) : (uint32_t)KVD_SESSION_REQUESTS_MAX)

enum kvd_message {
	/* client to daemon */
	KVD_MSG_HELLO = 0x01,
	KVD_MSG_GENERATE = 0x10,
	KVD_MSG_CANCEL = 0x11,
	KVD_MSG_ROOM = 0x12,		/* the client has read from a full ring */
	KVD_MSG_WAIT = 0x13,		/* a client without fences wants a wake */
	KVD_MSG_TOKENIZE = 0x18,
	KVD_MSG_STATUS = 0x20,
	KVD_MSG_MODELS = 0x21,
	KVD_MSG_PS = 0x22,
	KVD_MSG_LOAD = 0x28,		/* with the file's descriptor */
	KVD_MSG_UNLOAD = 0x29,
	KVD_MSG_CACHE_LS = 0x30,
	KVD_MSG_CACHE_SHOW = 0x31,
	KVD_MSG_CACHE_PIN = 0x32,
	KVD_MSG_CACHE_UNPIN = 0x33,
	KVD_MSG_CACHE_DROP = 0x34,
	KVD_MSG_CACHE_WIPE = 0x35,
	KVD_MSG_CACHE_EXPORT = 0x36,	/* with the file's descriptor */
	KVD_MSG_CACHE_IMPORT = 0x37,	/* the same */
	KVD_MSG_CACHE_VERIFY = 0x38,
	/* daemon to client */
	KVD_MSG_WELCOME = 0x81,
	KVD_MSG_REFUSED = 0x82,		/* instead of welcome; the daemon closes */
	KVD_MSG_ERROR = 0x90,		/* a message was refused */
	KVD_MSG_WAKE = 0x92,
	KVD_MSG_TOKENIZED = 0x98,
	KVD_MSG_STATUS_REPLY = 0xa0,
	KVD_MSG_MODELS_REPLY = 0xa1,
	KVD_MSG_PS_REPLY = 0xa2,
	KVD_MSG_LOADED = 0xa8,
	KVD_MSG_UNLOADED = 0xa9,
	KVD_MSG_LOADING = 0xaa,		/* how far a load has come */
	KVD_MSG_CACHE_LS_REPLY = 0xb0,
	KVD_MSG_CACHE_SHOW_REPLY = 0xb1,
	KVD_MSG_CACHE_DONE = 0xb2,	/* pinned, unpinned, dropped, wiped */
	KVD_MSG_CACHE_SHARED = 0xb3,	/* exported, imported */
	KVD_MSG_CACHE_VERIFIED = 0xb4,
	KVD_MSG_CACHE_PROGRESS = 0xb5,	/* how far one of these three has come */
};

/* Why something was refused or ended; in `error`, `refused` and the error record. */
enum kvd_code {
	KVD_CODE_OK = 0,
	KVD_CODE_BAD_MESSAGE = 1,	/* not a message of this protocol */
	KVD_CODE_BAD_FIELD = 2,		/* "field" says which */
	KVD_CODE_VERSION = 3,
	KVD_CODE_QUOTA = 4,
	KVD_CODE_PERMISSION = 5,
	KVD_CODE_BUSY = 6,		/* queue full; try again */
	KVD_CODE_CONTEXT_LENGTH = 7,	/* the prompt is longer than the context */
	KVD_CODE_NO_MODEL = 8,
	KVD_CODE_TEMPLATE = 9,		/* chat template missing or not recognised */
	KVD_CODE_NO_MEMORY = 10,
	KVD_CODE_SHUTDOWN = 11,
	KVD_CODE_INTERNAL = 12,
	KVD_CODE_LOADING = 13,
	KVD_CODE_UNLOADED = 14,		/* the model was unloaded before the request ended */
	KVD_CODE_CANCELLED = 15,	/* a load, export, import or verification was given up */
	KVD_CODE_BAD_MODEL = 16,	/* the file is none that can be served */
	KVD_CODE_EXISTS = 17,		/* a model of this name is there */
	KVD_CODE_NO_ENTRY = 18,		/* no such entry of the cache, or none that the peer may know of */
	KVD_CODE_FILE = 19,		/* a file can't be written or read, or is not what it should be */
	KVD_CODE_DEADLINE = 20,		/* the request's time was up before its end */
	KVD_CODE_LAST = KVD_CODE_DEADLINE,
};

/* What a prompt part holds. */
enum kvd_part_kind {
	KVD_PART_TEXT = 0,	/* bytes */
	KVD_PART_IDS = 1,	/* int32 token ids, native order, offset a multiple of 4 */
};

#define KVD_RING_MAGIC 0x474e5252u	/* "RRNG" */
#define KVD_SEGMENT_DATA 4096u		/* data and arena begin here */

/* Page 0 of the ring.  The daemon writes, the client reads. */
struct kvd_ring_header {
	uint32_t magic, version;
	uint64_t data_offset;		/* KVD_SEGMENT_DATA */
	uint64_t data_size;		/* a power of two */
	/* Bytes published since the beginning; free-running, release. */
	_Alignas(64) _Atomic uint64_t write_index;
	/* 0, or a number that changes each time a request is parked for want of
	 * room: the reader that makes room sends one `room` for each value. */
	_Alignas(64) _Atomic uint32_t writer_waiting;
	/* 1: nothing more will be written; the daemon is gone or going. */
	_Atomic uint32_t closed;
};

#define KVD_SEGMENT_MAGIC 0x474d4553u	/* "SEMG" */

/* Page 0 of the client segment.  Hostile for the daemon. */
struct kvd_client_header {
	/* Bytes consumed since the beginning; free-running, release. */
	_Alignas(64) _Atomic uint64_t read_index;
	/* Not 0: the reader is about to sleep; the daemon exchanges it with 0 and,
	 * if it was set, sends one `wake`. */
	_Alignas(64) _Atomic uint32_t reader_waiting;
	/* Set by the daemon for the client to check; the daemon never reads them. */
	_Alignas(64) uint32_t magic;
	uint32_t version;
	uint64_t arena_offset;		/* KVD_SEGMENT_DATA */
	uint64_t arena_size;
};

enum kvd_record_type {
	KVD_REC_PAD = 0,		/* nothing; reaches to the end of the ring */
	KVD_REC_TOKEN = 1,
	KVD_REC_TEXT = 2,
	KVD_REC_ALTERNATIVES = 3,	/* of the token record before it */
	KVD_REC_PROMPT = 4,
	KVD_REC_PROGRESS = 5,
	KVD_REC_USAGE = 6,
	KVD_REC_DONE = 7,		/* last record of a request */
	KVD_REC_ERROR = 8,		/* or this */
};

/*
 * Records begin at multiples of 8 and never wrap.  One that would leave 8 bytes
 * before the ring's end, too few for a pad, is 8 bytes larger.
 */
struct kvd_record {
	uint32_t size;		/* of all of it, padding included; a multiple of 8, >= 16 */
	uint16_t type;
	uint16_t flags;		/* 0 */
	uint64_t request;
};

struct kvd_record_token {
	struct kvd_record head;
	int32_t id;
	float logprob;		/* natural, of the unmodified distribution; NaN if not asked for */
	uint32_t n_bytes;
	uint32_t is_control;
	uint8_t bytes[];
};

struct kvd_record_text {
	struct kvd_record head;
	uint32_t n_bytes;	/* whole code points */
	uint32_t reserved;
	uint8_t bytes[];
};

struct kvd_record_alternative {
	int32_t id;
	float logprob;
	uint32_t n_bytes;
	uint32_t bytes_offset;	/* from the start of the record */
};

struct kvd_record_alternatives {
	struct kvd_record head;
	uint32_t n;
	uint32_t reserved;
	struct kvd_record_alternative items[];
};

struct kvd_record_prompt {
	struct kvd_record head;
	int32_t id;
	float logprob;		/* NaN for the first token */
	uint32_t position;
	uint32_t n_bytes;
	uint8_t bytes[];
};

struct kvd_record_progress {
	struct kvd_record head;
	uint32_t done, total;	/* prompt tokens */
};

struct kvd_record_usage {
	struct kvd_record head;
	uint32_t prompt_tokens, cached_tokens, generated_tokens;
	uint32_t miss;		/* enum kvd_miss */
	uint64_t queue_ns, prefill_ns, decode_ns;
	int32_t miss_token;	/* the prompt's own at position cached_tokens, or the first that differs; -1: none */
	uint32_t n_bytes;	/* of it, at most KVD_MISS_BYTES_MAX */
	uint8_t bytes[];
};

/* Why the rest of the prompt was not taken from the cache. */
enum kvd_miss {
	KVD_MISS_NONE = 0,	/* nothing is missing, but the last token, which is always computed */
	KVD_MISS_NO_CACHE = 1,	/* the request has no part in it, or there is none */
	KVD_MISS_EMPTY = 2,	/* nothing is stored from there on */
	KVD_MISS_DIFFERS = 3,	/* another token is stored there */
	KVD_MISS_EXPIRED = 4,
	KVD_MISS_EVICTED = 5,
	KVD_MISS_NAMESPACE = 6,	/* another namespace that the peer may use has it */
	KVD_MISS_LOGPROBS = 7,	/* log-probabilities of the prompt were asked for from there on */
	KVD_MISS_KEY = 8,	/* another cache key of the same namespace has it */
	KVD_MISS_BLOCK = 9,	/* what is missing is less than a block, and this KV type keeps whole ones */
};

/* What a request leaves in the cache: low goes first when room is needed, high last. */
enum kvd_priority {
	KVD_PRIORITY_LOW = 0,
	KVD_PRIORITY_NORMAL = 1,
	KVD_PRIORITY_HIGH = 2,
};

enum kvd_finish {
	KVD_FINISH_STOP = 1,		/* end-of-generation token */
	KVD_FINISH_STOP_STRING = 2,
	KVD_FINISH_LENGTH = 3,		/* token limit or context full */
	KVD_FINISH_CANCELLED = 4,
};

struct kvd_record_done {
	struct kvd_record head;
	uint32_t reason;	/* enum kvd_finish */
	uint32_t stop_index;	/* which stop string, for KVD_FINISH_STOP_STRING */
};

struct kvd_record_error {
	struct kvd_record head;
	uint32_t code;		/* enum kvd_code */
	uint32_t n_bytes;
	uint8_t bytes[];	/* a sentence, UTF-8 */
};

#endif
