/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sink.h - where the engine puts what a request produces.
 *
 * One token path serves every kind of client: the ring of a shared-memory
 * client and the stream of an HTTP client are two implementations of this
 * table.  All functions are called on the engine thread, must not block and must
 * not call back into the engine.
 */
#ifndef KVD_SINK_H
#define KVD_SINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sink_event_type {
	SINK_TOKEN,
	SINK_TEXT,
	SINK_ALTERNATIVES,
	SINK_PROMPT,
	SINK_PROGRESS,
	SINK_USAGE,
	SINK_DONE,
	SINK_ERROR,
	SINK_EMBEDDING,
};

enum sink_finish {	/* numbers of enum kvd_finish */
	SINK_FINISH_STOP = 1,
	SINK_FINISH_STOP_STRING = 2,
	SINK_FINISH_LENGTH = 3,
	SINK_FINISH_CANCELLED = 4,
};

enum sink_error {	/* numbers of enum kvd_code */
	SINK_ERROR_QUOTA = 4,
	SINK_ERROR_BUSY = 6,
	SINK_ERROR_CONTEXT_LENGTH = 7,
	SINK_ERROR_NO_MEMORY = 10,
	SINK_ERROR_SHUTDOWN = 11,
	SINK_ERROR_INTERNAL = 12,
	SINK_ERROR_UNLOADED = 14,
	SINK_ERROR_DEADLINE = 20,
};

enum sink_miss {	/* why not all of a prompt came from the cache; numbers of enum kvd_miss */
	SINK_MISS_NONE = 0,
	SINK_MISS_NO_CACHE = 1,
	SINK_MISS_EMPTY = 2,
	SINK_MISS_DIFFERS = 3,
	SINK_MISS_EXPIRED = 4,
	SINK_MISS_EVICTED = 5,
	SINK_MISS_NAMESPACE = 6,
	SINK_MISS_LOGPROBS = 7,	/* numbers of the prompt's tokens are wanted that are not kept */
	SINK_MISS_KEY = 8,
	SINK_MISS_BLOCK = 9,	/* less than a block is missing, where blocks are of use as a whole */
};

struct sink_alternative {
	int32_t id;
	float logprob;
	const uint8_t *bytes;
	size_t n_bytes;
};

/* Pointers are valid during emit() only. */
struct sink_event {
	enum sink_event_type type;
	union {
		struct {
			int32_t id;
			float logprob;		/* NaN if not asked for */
			bool is_control;
			const uint8_t *bytes;
			size_t n_bytes;
			uint64_t gap_ns;	/* since the token before it was drawn; 0: it is the first */
		} token;
		struct {
			const uint8_t *bytes;	/* whole code points */
			size_t n_bytes;
		} text;
		struct {
			const struct sink_alternative *items;
			size_t n;
		} alternatives;
		struct {
			int32_t id;
			float logprob;		/* of the token after those before it; NaN at position 0 */
			uint32_t position;	/* ascending, each once */
			const uint8_t *bytes;
			size_t n_bytes;
		} prompt;
		struct {
			uint32_t done, total;
		} progress;
		struct {
			const float *values;	/* [n] not normalised */
			uint32_t n;
		} embedding;
		struct {
			uint32_t prompt_tokens, cached_tokens, generated_tokens, miss;
			uint64_t queue_ns, prefill_ns, decode_ns;
			int32_t miss_token;	/* the prompt's at position cached_tokens; -1: none */
			const uint8_t *miss_bytes;
			size_t n_miss_bytes;
		} usage;
		struct {
			enum sink_finish reason;
			uint32_t stop_index;
		} done;
		struct {
			enum sink_error code;
			const char *text;
		} error;
	};
};

#define SINK_E_FULL 1	/* nothing was taken; the reader must make room first */
#define SINK_E_GONE 2	/* the reader is gone; the request should be cancelled */

struct sink;

struct sink_ops {
	/*
	 * Takes all n events, or none: a token's with what belongs to it, or one
	 * SINK_PROMPT, with its SINK_ALTERNATIVES if those are asked for; or
	 * SINK_EMBEDDING.
	 * 0; SINK_E_FULL (never for a batch that ends with SINK_DONE or
	 * SINK_ERROR together with nothing but SINK_USAGE and at most 4 KiB of
	 * SINK_TEXT before it: a sink keeps that much in reserve for each
	 * request); SINK_E_GONE.
	 * SINK_PROGRESS alone may be dropped by a full sink (returns 0).
	 */
	int (*emit)(struct sink *sink, uint64_t request, const struct sink_event *events, size_t n);
	/* End of an engine step in which something was emitted: wake the reader. */
	void (*flush)(struct sink *sink);
	/* The engine lets go of one request: the last call for it.  The sink
	 * may be freed when the last request is released. */
	void (*release)(struct sink *sink, uint64_t request);
};

/* Embedded first in an implementation; all but ops begins as zero. */
struct sink {
	const struct sink_ops *ops;
	struct sink *next_dirty;	/* the engine's: sinks that a flush is due to */
	bool dirty;
};

#endif
