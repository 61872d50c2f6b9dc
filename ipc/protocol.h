/* SPDX-License-Identifier: Apache-2.0 */
/*
 * protocol.h - numbers of the wire and shared-memory protocol.  PROTOCOL.md is
 * the specification; this header has every id, limit and layout in it.
 *
 * Messages.  SOCK_SEQPACKET, one datagram = one message = one msgpack array
 * [ id, { "field": value, ... } ].  Unknown or ill-typed fields are refused by
 * name.  Ids are spaced and never reused.
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

#define KVD_PROTOCOL_VERSION 1

/* Limits.  Sizes in bytes. */
#define KVD_MESSAGE_MAX 65536		/* one datagram, either way */
#define KVD_CLIENT_NAME_MAX 64
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
#define KVD_SESSION_REQUESTS_MAX 64	/* queued and running in one session */
#define KVD_WELCOME_FDS 3

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
	/* daemon to client */
	KVD_MSG_WELCOME = 0x81,
	KVD_MSG_REFUSED = 0x82,		/* instead of welcome; the daemon closes */
	KVD_MSG_ERROR = 0x90,		/* a message was refused */
	KVD_MSG_WAKE = 0x92,
	KVD_MSG_TOKENIZED = 0x98,
	KVD_MSG_STATUS_REPLY = 0xa0,
	KVD_MSG_MODELS_REPLY = 0xa1,
	KVD_MSG_PS_REPLY = 0xa2,
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
	/* 1: a request is parked until there is room; the reader that makes
	 * room fences, sees it and sends `room`. */
	_Alignas(64) _Atomic uint32_t writer_waiting;
	/* 1: nothing more will be written; the daemon is gone or going. */
	_Atomic uint32_t closed;
};

/* Page 0 of the client segment.  Hostile for the daemon. */
struct kvd_client_header {
	/* Bytes consumed since the beginning; free-running, release. */
	_Alignas(64) _Atomic uint64_t read_index;
	/* 1: the reader is about to sleep; the daemon exchanges it with 0 and,
	 * if it was 1, sends one `wake`. */
	_Alignas(64) _Atomic uint32_t reader_waiting;
};

enum kvd_record_type {
	KVD_REC_PAD = 0,		/* skip to the ring's start */
	KVD_REC_TOKEN = 1,
	KVD_REC_TEXT = 2,
	KVD_REC_ALTERNATIVES = 3,	/* of the token record before it */
	KVD_REC_PROMPT = 4,
	KVD_REC_PROGRESS = 5,
	KVD_REC_USAGE = 6,
	KVD_REC_DONE = 7,		/* last record of a request */
	KVD_REC_ERROR = 8,		/* or this */
};

/* Records begin at multiples of 8 and never wrap. */
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
};

/* Why the rest of the prompt was not taken from the cache. */
enum kvd_miss {
	KVD_MISS_NONE = 0,
	KVD_MISS_NO_CACHE = 1,	/* no prefix cache in use */
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
