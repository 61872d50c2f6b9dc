/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.h - the token ring: one per session, written by the daemon, read by the
 * client.  Layout and rules are in protocol.h and PROTOCOL.md.
 *
 *	0 ......... read_index ########## write_index ......... read_index + size
 *	              (client)    unread     (daemon)   free,  of which a reserve for
 *	                                                the last records of requests
 *
 * Sleep and wake.  Both sides use seq_cst operations on two pairs of words, so
 * that of "I publish, then look at your flag" and "I set my flag, then look at
 * what you published" at least one sees the other:
 *
 *	reader: reader_waiting = 1 (seq_cst); look at write_index again; sleep
 *	writer: write_index = w (seq_cst); exchange(reader_waiting, 0): wake
 *
 *	writer: writer_waiting = g (seq_cst); look at read_index again; park
 *	reader: read_index = r (seq_cst); look at writer_waiting: send room
 */
#ifndef KVD_RING_H
#define KVD_RING_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/protocol.h"
#include "ipc/segment.h"

/* --- the daemon's side --------------------------------------------------------- */

#define RING_E_FULL 1	/* nothing was written; the client will send `room` */
#define RING_E_GONE 2	/* the client broke the rules of its cursor: end the session */

/*
 * What shared memory says is never read back, but for the client's cursor and
 * flag.  A read index that is behind the last one seen or ahead of what was
 * written is a broken client: from then on every operation is RING_E_GONE.
 *
 * Threads: ring_begin() ... ring_commit() and ring_needs_wake() belong to one
 * thread at a time (the engine's); the others may be called by any.  The lock is
 * held from ring_begin() to ring_commit(): nothing slow in between.
 */
struct ring_writer {
	struct kvd_ring_header *header;
	uint8_t *data;
	struct kvd_client_header *client;
	uint64_t size;			/* of the data part, a power of two */

	pthread_mutex_t lock;		/* guards what follows */
	uint64_t write_index;		/* published */
	uint64_t read_index;		/* the last believed one */
	uint32_t n_reserved, max_reserved;
	uint32_t n_parked;		/* values given to writer_waiting */
	bool gone, closed;

	/* The open batch. */
	uint64_t staged;		/* write index behind what is staged */
	uint64_t staged_bytes;		/* of records, without pads */
	bool final;
	int error;			/* of the batch so far */

	_Atomic uint32_t wait_message;	/* a `wait` that was not answered yet */
};

/*
 * ring and client must outlive w and were made by segment_new_*().  start: the
 * first index, 0 but in tests.  0 or -errno.
 */
int ring_writer_init(struct ring_writer *w, const struct segment *ring, const struct segment *client,
		     uint64_t start);
void ring_writer_deinit(struct ring_writer *w);	/* after a failed or no init only if w is all zero */

/*
 * Reserves space for a request's last batch, before the request is submitted.
 * 0; RING_E_FULL: KVD_RING_REQUESTS() have theirs, or unread records are in the
 * way (refuse with KVD_CODE_BUSY); RING_E_GONE.
 */
int ring_reserve(struct ring_writer *w);
/* Exactly once for each ring_reserve(): the request is over, its last batch written or not. */
void ring_unreserve(struct ring_writer *w);

/*
 * A batch: all of it or nothing.  Records are put one after another; a put that
 * fails makes the whole batch fail, so that only ring_commit() needs a look.
 *
 * final: the last batch of a request that has a reservation: usage, at most
 * KVD_RING_FINAL_TEXT bytes of text, done or error.  It always fits.
 */
void ring_begin(struct ring_writer *w, bool final);

void ring_put_token(struct ring_writer *w, uint64_t request, int32_t id, float logprob, bool is_control,
		    const uint8_t *bytes, size_t n);
void ring_put_text(struct ring_writer *w, uint64_t request, const uint8_t *bytes, size_t n);
struct ring_alternative {
	int32_t id;
	float logprob;
	const uint8_t *bytes;
	size_t n_bytes;
};
/* n <= KVD_LOGPROBS_MAX + 1 */
void ring_put_alternatives(struct ring_writer *w, uint64_t request, const struct ring_alternative *items,
			   size_t n);
void ring_put_prompt(struct ring_writer *w, uint64_t request, int32_t id, float logprob, uint32_t position,
		     const uint8_t *bytes, size_t n);
void ring_put_progress(struct ring_writer *w, uint64_t request, uint32_t done, uint32_t total);
struct ring_usage {
	uint32_t prompt_tokens, cached_tokens, generated_tokens, miss;
	uint64_t queue_ns, prefill_ns, decode_ns;
	int32_t miss_token;
	const uint8_t *miss_bytes;	/* of the token; at most KVD_MISS_BYTES_MAX are written */
	size_t n_miss_bytes;
};
void ring_put_usage(struct ring_writer *w, uint64_t request, const struct ring_usage *usage);
void ring_put_done(struct ring_writer *w, uint64_t request, enum kvd_finish reason, uint32_t stop_index);
/* The text is cut to KVD_ERROR_TEXT_MAX bytes, between code points. */
void ring_put_error(struct ring_writer *w, uint64_t request, enum kvd_code code, const char *text);

/* Bytes of records in the open batch, pads not counted. */
size_t ring_staged(const struct ring_writer *w);

/*
 * Publishes the batch, or drops it.  0; RING_E_FULL: writer_waiting is set, so that
 * `room` will come if the client reads; RING_E_GONE, also after ring_close();
 * -EMSGSIZE: larger than KVD_RING_BATCH_MAX or the reserve, it will never fit.
 */
int ring_commit(struct ring_writer *w);
/* Drops the open batch. */
void ring_abort(struct ring_writer *w);

/*
 * After one or more commits: whether one `wake` must be sent.  Send it with
 * FDPASS_DONTWAIT; -EAGAIN counts as sent.
 */
bool ring_needs_wake(struct ring_writer *w);

/* `wait` came: whether a `wake` must be sent now; if not, ring_needs_wake() will say so later. */
bool ring_wait(struct ring_writer *w);

/* `room` (or `wait`) came: call it before the requests that were RING_E_FULL try again. */
void ring_room(struct ring_writer *w);

/* Nothing more will be written; then ring_needs_wake(). */
void ring_close(struct ring_writer *w);

/* Whether the client broke the rules; looks at the cursor. */
bool ring_gone(struct ring_writer *w);

/* Bytes written that the client has not read. */
uint64_t ring_unread(struct ring_writer *w);

/* --- the client's side ------------------------------------------------------------ */

#define RING_E_EMPTY 3		/* nothing to read now */
#define RING_E_CLOSED 4		/* nothing to read, and never again */
#define RING_E_CORRUPT 5	/* the daemon broke the rules; the reader is of no use any more */

/* One thread at a time. */
struct ring_reader {
	const struct kvd_ring_header *header;
	const uint8_t *data;
	struct kvd_client_header *client;
	uint64_t size;
	uint64_t read_index;		/* of the record that ring_next() gives next */
	uint64_t consumed;		/* published in the client segment */
	uint64_t write_index;		/* the last one seen */
	uint32_t room_sent;		/* the writer_waiting that was answered */
	bool corrupt;
};

/*
 * A validated record, its numbers read once.  Pointers lead into the ring and
 * are within it; they are valid until ring_consume().
 */
struct ring_record {
	enum kvd_record_type type;
	uint64_t request;
	const uint8_t *bytes;		/* token, text, prompt, usage, error */
	uint32_t n_bytes;
	union {
		struct { int32_t id; float logprob; bool is_control; } token;
		struct { uint32_t n; uint32_t size; const uint8_t *record; } alternatives;
		struct { int32_t id; float logprob; uint32_t position; } prompt;
		struct { uint32_t done, total; } progress;
		struct ring_usage usage;
		struct { enum kvd_finish reason; uint32_t stop_index; } done;
		struct { enum kvd_code code; } error;
	};
};

/* ring and client were made by segment_map_*() and must outlive r. */
void ring_reader_init(struct ring_reader *r, const struct segment *ring, const struct segment *client);

/*
 * The next record; pads and unknown types are skipped.  Several may be taken
 * before ring_consume() gives their space back.  0; RING_E_EMPTY; RING_E_CLOSED;
 * RING_E_CORRUPT.
 */
int ring_next(struct ring_reader *r, struct ring_record *out);

/* Item i < record->alternatives.n.  0 or RING_E_CORRUPT. */
int ring_record_alternative(const struct ring_record *record, uint32_t i, struct ring_alternative *out);

/* Gives back the space of all records taken so far.  Returns whether `room` must be sent. */
bool ring_consume(struct ring_reader *r);

/*
 * About to sleep on the socket: call after ring_next() said RING_E_EMPTY and a
 * ring_consume() after that (records of unknown types may have been skipped).
 * True: sleep, a `wake` will come.  False: there is something by now; don't.
 */
bool ring_sleep(struct ring_reader *r);
/* Awake for another reason (a time-out, another message): no `wake` is needed. */
void ring_awake(struct ring_reader *r);

#endif
