/* SPDX-License-Identifier: Apache-2.0 */
/* Streams through shared memory, by libkvd. */
#include <string.h>

#include "client/kvd.h"
#include "tests/load/load.h"

static bool ring_open(struct stream *s)
{
	struct kvd_connect_options options = { .socket = s->load->address, .name = "stream-load" };
	struct kvd_client *c = NULL;
	char why[256] = "";
	int r = kvd_connect(&c, &options, why, sizeof(why));

	if (r)
		return load_fail(s, "can't connect: %s", why);
	s->data = c;
	s->fd = kvd_fd(c);
	return true;
}

static bool ring_take(struct stream *s);

static bool ring_submit(struct stream *s)
{
	const char *text = s->load->prompt;
	struct kvd_part part = { .text = text, .n = strlen(text) };
	struct kvd_params p;
	uint64_t id;

	kvd_params_init(&p);
	p.parts = &part;
	p.n_parts = 1;
	p.max_tokens = s->load->n_tokens;
	p.temperature = 0;
	p.seed = s->seed;
	p.ignore_eos = 1;
	if (kvd_submit(s->data, &p, &id))
		return load_fail(s, "can't submit: %s", kvd_client_error(s->data));
	/* Also announces that we sleep. */
	return ring_take(s);
}

/* What a record takes in the ring: see PROTOCOL.md. */
static size_t record_bytes(const struct kvd_event *e)
{
	size_t n = 16;

	switch (e->type) {
	case KVD_EVENT_TOKEN:
		n += 16 + e->n_bytes;
		break;
	case KVD_EVENT_TEXT:
		n += 8 + e->n_bytes;
		break;
	case KVD_EVENT_USAGE:
		n += 48 + e->n_bytes;
		break;
	default:
		n += 8;
		break;
	}
	return (n + 7) & ~(size_t)7;
}

static bool ring_take(struct stream *s)
{
	const struct kvd_event *e;
	uint32_t n_tokens = 0;
	int r;

	while (!(r = kvd_next(s->data, 0, &e))) {
		s->load->bytes += record_bytes(e);
		switch (e->type) {
		case KVD_EVENT_TOKEN:
			load_token(s, load_now());
			break;
		case KVD_EVENT_USAGE:
			n_tokens = e->generated_tokens;
			s->prompt_tokens = e->prompt_tokens;
			s->cached_tokens = e->cached_tokens;
			break;
		case KVD_EVENT_DONE:
			/* The next request takes what comes, too. */
			return load_done(s, n_tokens);
		case KVD_EVENT_ERROR:
			return load_fail(s, "%.*s", (int)e->n_bytes, (const char *)e->bytes);
		default:
			break;
		}
	}
	return r == KVD_E_TIMEOUT || load_fail(s, "%s", kvd_client_error(s->data));
}

static void ring_close(struct stream *s)
{
	kvd_close(s->data);
}

const struct load_transport load_ring = {
	.open = ring_open, .submit = ring_submit, .take = ring_take, .close = ring_close,
};
