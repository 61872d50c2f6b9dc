/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's side of the ring.  The daemon is not trusted either: what lies in
 * the ring is read once, checked, and then only the copy is used.
 */
#include "ipc/ring.h"

#include <string.h>

#include "ipc/base/checked.h"

void ring_reader_init(struct ring_reader *r, const struct segment *ring, const struct segment *client)
{
	*r = (struct ring_reader){
		.header = segment_ring(ring),
		.data = segment_data(ring),
		.client = segment_client(client),
		.size = segment_data_size(ring),
	};
	r->read_index = r->consumed = r->write_index = atomic_load(&r->client->read_index);
}

static uint32_t get_u32(const uint8_t *p)
{
	return __atomic_load_n((const uint32_t *)p, __ATOMIC_RELAXED);
}

static int32_t get_i32(const uint8_t *p)
{
	return (int32_t)get_u32(p);
}

static float get_f32(const uint8_t *p)
{
	uint32_t u = get_u32(p);
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

static uint64_t get_u64(const uint8_t *p)
{
	return __atomic_load_n((const uint64_t *)p, __ATOMIC_RELAXED);
}

/* The bytes behind a record's fixed part. */
static bool get_bytes(struct ring_record *out, const uint8_t *p, uint32_t size, size_t fixed, uint32_t n)
{
	if (n > size - fixed)
		return false;
	out->bytes = p + fixed;
	out->n_bytes = n;
	return true;
}

/* The smallest size of each type's record, 0 for types that are not known. */
static const uint32_t min_sizes[] = {
	[KVD_REC_TOKEN] = offsetof(struct kvd_record_token, bytes),
	[KVD_REC_TEXT] = offsetof(struct kvd_record_text, bytes),
	[KVD_REC_ALTERNATIVES] = offsetof(struct kvd_record_alternatives, items),
	[KVD_REC_PROMPT] = offsetof(struct kvd_record_prompt, bytes),
	[KVD_REC_PROGRESS] = sizeof(struct kvd_record_progress),
	[KVD_REC_USAGE] = offsetof(struct kvd_record_usage, bytes),
	[KVD_REC_DONE] = sizeof(struct kvd_record_done),
	[KVD_REC_ERROR] = offsetof(struct kvd_record_error, bytes),
};

/* Fills in what is the type's own; the record has at least the smallest size. */
static bool parse(struct ring_record *out, const uint8_t *p, uint32_t size, uint32_t fixed)
{
	switch (out->type) {
	case KVD_REC_TOKEN:
		out->token.id = get_i32(p + 16);
		out->token.logprob = get_f32(p + 20);
		out->token.is_control = get_u32(p + 28) != 0;
		return get_bytes(out, p, size, fixed, get_u32(p + 24));
	case KVD_REC_TEXT:
		return get_bytes(out, p, size, fixed, get_u32(p + 16));
	case KVD_REC_ALTERNATIVES:
		out->alternatives.n = get_u32(p + 16);
		out->alternatives.size = size;
		out->alternatives.record = p;
		return out->alternatives.n <= (size - fixed) / sizeof(struct kvd_record_alternative);
	case KVD_REC_PROMPT:
		out->prompt.id = get_i32(p + 16);
		out->prompt.logprob = get_f32(p + 20);
		out->prompt.position = get_u32(p + 24);
		return get_bytes(out, p, size, fixed, get_u32(p + 28));
	case KVD_REC_PROGRESS:
		out->progress.done = get_u32(p + 16);
		out->progress.total = get_u32(p + 20);
		return true;
	case KVD_REC_USAGE:
		out->usage = (struct ring_usage){
			.prompt_tokens = get_u32(p + 16), .cached_tokens = get_u32(p + 20),
			.generated_tokens = get_u32(p + 24), .miss = get_u32(p + 28),
			.queue_ns = get_u64(p + 32), .prefill_ns = get_u64(p + 40),
			.decode_ns = get_u64(p + 48), .miss_token = get_i32(p + 56),
		};
		if (!get_bytes(out, p, size, fixed, get_u32(p + 60)))
			return false;
		out->usage.miss_bytes = out->bytes;
		out->usage.n_miss_bytes = out->n_bytes;
		return true;
	case KVD_REC_DONE:
		out->done.reason = (enum kvd_finish)get_u32(p + 16);
		out->done.stop_index = get_u32(p + 20);
		return true;
	case KVD_REC_ERROR:
		out->error.code = (enum kvd_code)get_u32(p + 16);
		return get_bytes(out, p, size, fixed, get_u32(p + 20));
	default:
		return false;
	}
}

static int corrupt(struct ring_reader *r)
{
	r->corrupt = true;
	return RING_E_CORRUPT;
}

/* Sets write_index anew.  0 if there is something to read. */
static int look(struct ring_reader *r)
{
	/* In this order: what was written before closing is seen. */
	uint32_t closed = atomic_load(&r->header->closed);
	uint64_t w = atomic_load(&r->header->write_index);

	if (w - r->consumed > r->size || w - r->consumed < r->read_index - r->consumed)
		return corrupt(r);
	r->write_index = w;
	if (w != r->read_index)
		return 0;
	return closed ? RING_E_CLOSED : RING_E_EMPTY;
}

int ring_next(struct ring_reader *r, struct ring_record *out)
{
	if (r->corrupt)
		return RING_E_CORRUPT;
	for (;;) {
		uint64_t at = r->read_index & (r->size - 1), most;
		struct ring_record record = { 0 };
		const uint8_t *p = r->data + at;
		uint32_t size, type;
		uint64_t head;

		if (r->read_index == r->write_index) {
			int e = look(r);
			if (e)
				return e;
		}
		most = MIN(r->write_index - r->read_index, r->size - at);
		if (most < sizeof(struct kvd_record))
			return corrupt(r);
		head = get_u64(p);
		size = (uint32_t)head;
		type = (uint16_t)(head >> 32);
		if (size < sizeof(struct kvd_record) || size % 8 || size > most)
			return corrupt(r);
		if (type == KVD_REC_PAD && size != r->size - at)
			return corrupt(r);
		if (type != KVD_REC_PAD && type < ARRAY_SIZE(min_sizes)) {
			record.type = (enum kvd_record_type)type;
			record.request = get_u64(p + 8);
			if (size < min_sizes[type] || !parse(&record, p, size, min_sizes[type]))
				return corrupt(r);
			r->read_index += size;
			*out = record;
			return 0;
		}
		r->read_index += size;
	}
}

int ring_record_alternative(const struct ring_record *record, uint32_t i, struct ring_alternative *out)
{
	const uint8_t *p = record->alternatives.record + offsetof(struct kvd_record_alternatives, items) +
			   i * sizeof(struct kvd_record_alternative);
	uint32_t n_bytes = get_u32(p + 8), offset = get_u32(p + 12);

	if (offset > record->alternatives.size || n_bytes > record->alternatives.size - offset)
		return RING_E_CORRUPT;
	*out = (struct ring_alternative){
		.id = get_i32(p), .logprob = get_f32(p + 4),
		.bytes = record->alternatives.record + offset, .n_bytes = n_bytes,
	};
	return 0;
}

bool ring_consume(struct ring_reader *r)
{
	uint32_t waiting;

	if (r->corrupt || r->consumed == r->read_index)
		return false;
	r->consumed = r->read_index;
	atomic_store(&r->client->read_index, r->consumed);
	waiting = atomic_load(&r->header->writer_waiting);
	if (waiting == 0 || waiting == r->room_sent || r->write_index - r->consumed > r->size / 2)
		return false;
	r->room_sent = waiting;
	return true;
}

bool ring_sleep(struct ring_reader *r)
{
	int e;

	if (r->corrupt)
		return false;
	atomic_store(&r->client->reader_waiting, 1);
	e = look(r);
	if (e == RING_E_EMPTY)
		return true;
	atomic_store(&r->client->reader_waiting, 0);
	return false;
}

void ring_awake(struct ring_reader *r)
{
	atomic_store(&r->client->reader_waiting, 0);
}
