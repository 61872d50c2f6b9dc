/* SPDX-License-Identifier: Apache-2.0 */
/* Text to tokens: the text goes through the arena, and so does the answer. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/client.h"
#include "ipc/base/checked.h"

struct question {
	const char *model, *text;
	size_t n;
	unsigned flags;
	bool pieces;
};

/* What the daemon wrote, copied out of shared memory. */
struct answer {
	uint8_t *data;
	size_t size;
	uint32_t count;
};

/*
 * Room for a token per two bytes, which is generous for text; what needs more
 * says so and is asked again.
 */
static uint64_t guess_size(const struct question *q)
{
	uint64_t count = q->n / 2 + 64;

	return q->pieces ? 8 * count + q->n + 4096 : 4 * count;
}

static int encode_question(struct kvd_client *c, struct codec_buf *buf, const struct question *q,
			   const struct call *call, uint32_t text_bytes)
{
	struct msg_tokenize m = {
		.id = call->id, .model = q->model, .offset = call->memory.offset, .length = (uint32_t)q->n,
		.special = (q->flags & KVD_TOKENIZE_SPECIAL) != 0, .bos = (q->flags & KVD_TOKENIZE_BOS) != 0,
		.pieces = q->pieces, .out_offset = call->memory.offset + text_bytes,
		.out_length = call->memory.size - text_bytes,
	};

	if (q->n)
		segment_write(&c->segment, m.offset, q->text, q->n);
	int r = codec_encode_tokenize(buf, &m);
	return r == -EINVAL ? client_fail(c, r, "the model name is not valid") : r;
}

static int copy_answer(struct kvd_client *c, const struct call *call, uint32_t text_bytes, struct answer *out)
{
	size_t size = call->memory.size - text_bytes;
	uint32_t count = call->reply->tokenized.count;

	if (count > size / sizeof(int32_t))
		return client_break(c, KVD_E_PROTOCOL, "the daemon broke the protocol: more ids than fit");
	uint8_t *data = malloc(size);
	if (!data)
		return -ENOMEM;
	segment_read(&c->segment, call->memory.offset + text_bytes, data, size);
	*out = (struct answer){ data, size, count };
	return 0;
}

/*
 * One exchange with out_size bytes for the answer, or as many as there are but no
 * fewer than least.  0; -EAGAIN: *needed bytes would do; other failures.
 */
static int ask_once(struct kvd_client *c, const struct question *q, uint64_t out_size, uint64_t least,
		    struct answer *out, uint64_t *needed)
{
	_cleanup_(codec_buf_deinit) struct codec_buf buf = CODEC_BUF_NULL;
	uint32_t text_bytes = ((uint32_t)q->n + ARENA_ALIGN - 1) & ~(ARENA_ALIGN - 1);
	uint32_t most = arena_largest(&c->arena);

	if (most < text_bytes + least || least > UINT32_MAX)
		return client_fail(c, -ENOSPC,
				   "the arena of %u bytes has no room for the text and its tokens",
				   c->arena.size);
	struct call *call = call_new(c, KVD_MSG_TOKENIZED);
	if (!call)
		return -ENOMEM;
	int r = arena_alloc(&c->arena, &call->memory, MIN(text_bytes + out_size, (uint64_t)most));
	if (!r)
		r = encode_question(c, &buf, q, call, text_bytes);
	if (!r)
		r = call_exchange(c, call, &buf);
	if (!r && call->reply->id == KVD_MSG_ERROR) {
		const struct msg_error *e = &call->reply->error;
		bool too_small = e->count && !strcmp(e->field, "out_length");
		*needed = q->pieces ? e->count : e->count * sizeof(int32_t);
		r = too_small ? -EAGAIN : call_refused(c, e);
	} else if (!r) {
		r = copy_answer(c, call, text_bytes, out);
	}
	call_finish(c, call);
	return r;
}

static int tokenize(struct kvd_client *c, const struct question *q, struct answer *out)
{
	uint64_t size = guess_size(q), needed = 0;

	if (c->broken)
		return client_still_broken(c);
	if (q->n > KVD_ARENA_MAX)
		return client_fail(c, -ENOSPC, "the text is longer than 64 MiB");
	int r = ask_once(c, q, size, ARENA_ALIGN, out, &needed);
	if (r == -EAGAIN)
		r = ask_once(c, q, needed, needed, out, &needed);
	if (r == -EAGAIN)
		r = client_fail(c, -EIO, "the daemon does not say how much room the tokens take");
	return r;
}

KVD_API int kvd_tokenize(struct kvd_client *c, const char *model, const char *text, size_t n, unsigned flags,
			 int32_t **ids, size_t *n_ids)
{
	struct question q = { .model = model, .text = text, .n = n, .flags = flags };
	struct answer a = { 0 };

	client_enter(c);
	int r = tokenize(c, &q, &a);
	if (!r) {
		/* the copy is the caller's, with what lies behind the ids */
		*ids = (int32_t *)a.data;
		*n_ids = a.count;
	}
	return client_leave(c, r);
}

static uint32_t get_u32(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}

/* Whether count ids, their sizes and that many bytes lie within the answer; *total is of the bytes. */
static bool pieces_fit(const struct answer *a, uint64_t *total)
{
	uint64_t head = (uint64_t)a->count * 2 * sizeof(uint32_t), n = 0;

	if (head > a->size)
		return false;
	for (uint64_t i = a->count; i < 2 * (uint64_t)a->count; i++)
		n += get_u32(a->data + i * sizeof(uint32_t));
	*total = n;
	return n <= a->size - head;
}

/* The pieces of an answer in one allocation: the structs, then the bytes. */
static int split_pieces(struct kvd_client *c, const struct answer *a, struct kvd_token **out)
{
	uint64_t total = 0;

	if (!pieces_fit(a, &total))
		return client_break(c, KVD_E_PROTOCOL,
					       "the daemon broke the protocol: pieces that do not fit");
	struct kvd_token *tokens = malloc(a->count * sizeof(*tokens) + total + 1);
	if (!tokens)
		return -ENOMEM;
	const uint8_t *p = a->data;
	uint8_t *bytes = (uint8_t *)(tokens + a->count);
	if (total)
		memcpy(bytes, p + a->count * 2 * sizeof(uint32_t), total);
	for (uint32_t i = 0; i < a->count; i++) {
		tokens[i].id = (int32_t)get_u32(p + i * sizeof(uint32_t));
		tokens[i].n_bytes = get_u32(p + (a->count + (uint64_t)i) * sizeof(uint32_t));
		tokens[i].bytes = bytes;
		bytes += tokens[i].n_bytes;
	}
	*out = tokens;
	return 0;
}

KVD_API int kvd_tokenize_pieces(struct kvd_client *c, const char *model, const char *text, size_t n,
				unsigned flags,
				struct kvd_token **tokens, size_t *n_tokens)
{
	struct question q = { .model = model, .text = text, .n = n, .flags = flags, .pieces = true };
	struct answer a = { 0 };

	client_enter(c);
	int r = tokenize(c, &q, &a);
	if (!r)
		r = split_pieces(c, &a, tokens);
	if (!r)
		*n_tokens = a.count;
	free(a.data);
	return client_leave(c, r);
}
