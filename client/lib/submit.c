/* SPDX-License-Identifier: Apache-2.0 */
/* Requests: what is submitted, and its prompt in the arena. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "client/lib/client.h"
#include "ipc/base/checked.h"

struct request *client_find_request(struct kvd_client *c, uint64_t id)
{
	list_for_each(l, &c->requests) {
		struct request *r = list_entry(l, struct request, link);
		if (r->id == id)
			return r;
	}
	return NULL;
}

void request_free(struct request *r)
{
	if (!r)
		return;
	arena_free(&r->prompt);
	list_unlink(&r->link);
	free(r);
}

/* The same as the daemon's for fields that are left out (codec.h), but for the seed. */
KVD_API void kvd_params_init(struct kvd_params *p)
{
	*p = (struct kvd_params){
		.struct_size = sizeof(*p), .max_tokens = 512, .temperature = 0.8f, .top_p = 0.95f,
		.min_p = 0.05f,
		.repeat_penalty = 1, .repeat_last_n = 64, .logprobs = -1, .prompt_logprobs = -1,
		.priority = KVD_CACHE_NORMAL,
	};
	if (getrandom(&p->seed, sizeof(p->seed), GRND_NONBLOCK) != sizeof(p->seed)) {
		struct timespec ts;
		clock_gettime(CLOCK_REALTIME, &ts);
		p->seed = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
	}
}

/* --- checks that name the member --- */

static int invalid(struct kvd_client *c, const char *field, const char *why)
{
	snprintf(c->field, sizeof(c->field), "%s", field);
	return client_fail(c, -EINVAL, "%s: %s", field, why);
}

static int check_number(struct kvd_client *c, const char *field, float v, float min, float max)
{
	char why[64];

	if (v >= min && v <= max)	/* NaN is neither */
		return 0;
	snprintf(why, sizeof(why), "not between %g and %g", (double)min, (double)max);
	return invalid(c, field, why);
}

static int check_parts(struct kvd_client *c, const struct kvd_params *p, uint64_t *bytes)
{
	uint64_t n_bytes = 0, content = 0;

	if (!p->n_parts || p->n_parts > KVD_PARTS_MAX || !p->parts)
		return invalid(c, "parts", "not 1 to 1024 of them");
	for (size_t i = 0; i < p->n_parts; i++) {
		const struct kvd_part *part = &p->parts[i];
		uint64_t n = part->ids ? (uint64_t)part->n * sizeof(int32_t) : part->n;
		if (!part->role != !p->parts[0].role)
			return invalid(c, "parts", "some have a role and some have not");
		if (part->n && !part->text && !part->ids)
			return invalid(c, "parts", "one has neither text nor ids");
		if (part->n > KVD_ARENA_MAX || n_bytes + n > KVD_ARENA_MAX)
			return invalid(c, "parts", "longer than 64 MiB together");
		content += n;
		n_bytes += (n + ARENA_ALIGN - 1) & ~(uint64_t)(ARENA_ALIGN - 1);
	}
	if (!content && !p->parts[0].role)
		return invalid(c, "parts", "the prompt is empty");
	*bytes = n_bytes;
	return 0;
}

static int check_lists(struct kvd_client *c, const struct kvd_params *p)
{
	if (p->n_stop > KVD_STOP_MAX)
		return invalid(c, "stop", "more than 16");
	for (size_t i = 0; i < p->n_stop; i++) {
		size_t n = strnlen(p->stop[i], KVD_STOP_BYTES_MAX + 1);
		if (!n || n > KVD_STOP_BYTES_MAX)
			return invalid(c, "stop", "one is not 1 to 256 bytes long");
	}
	if (p->n_bias > KVD_LOGIT_BIAS_MAX)
		return invalid(c, "bias", "more than 1024");
	for (size_t i = 0; i < p->n_bias; i++)
		if (p->bias[i].id < 0 || !isfinite(p->bias[i].bias))
			return invalid(c, "bias", "an id below 0 or a bias that is not finite");
	if (p->logprobs < -1 || p->logprobs > KVD_LOGPROBS_MAX)
		return invalid(c, "logprobs", "not between -1 and 32");
	if (p->prompt_logprobs < -1)
		return invalid(c, "prompt_logprobs", "below -1");
	return 0;
}

static int check_cache(struct kvd_client *c, const struct kvd_params *p)
{
	size_t n = p->ns ? strnlen(p->ns, KVD_NAMESPACE_MAX + 1) : 1;

	if (!n || n > KVD_NAMESPACE_MAX)
		return invalid(c, "ns", "not 1 to 127 bytes long");
	n = p->cache_key ? strnlen(p->cache_key, KVD_CACHE_KEY_MAX + 1) : 1;
	if (!n || n > KVD_CACHE_KEY_MAX || (p->cache_key && strchr(p->cache_key, '/')))
		return invalid(c, "cache_key", "not 1 to 64 bytes without '/'");
	if (p->priority > KVD_PRIORITY_HIGH)
		return invalid(c, "priority", "not low, normal or high");
	return 0;
}

static int check_params(struct kvd_client *c, const struct kvd_params *p, uint64_t *bytes)
{
	int r;

	if (p->struct_size != sizeof(*p))
		return invalid(c, "struct_size", "kvd_params_init() was not called");
	if ((r = check_number(c, "temperature", p->temperature, 0, 100)) ||
	    (r = check_number(c, "top_p", p->top_p, 0, 1)) ||
	    (r = check_number(c, "min_p", p->min_p, 0, 1)) ||
	    (r = check_number(c, "repeat_penalty", p->repeat_penalty, 0.01f, 100)) ||
	    (r = check_lists(c, p)) || (r = check_cache(c, p)))
		return r;
	return check_parts(c, p, bytes);
}

/* --- the message --- */

/* Arrays that a msg_generate points to, in one allocation. */
struct draft {
	struct msg_part *prompt;
	struct msg_chat *chat;
	struct msg_bias *bias;
};

static void draft_deinit(struct draft *d)
{
	free(d->prompt);
	free(d->chat);
	free(d->bias);
}

static int draft_init(struct draft *d, const struct kvd_params *p)
{
	if (p->parts[0].role)
		d->chat = calloc(p->n_parts, sizeof(*d->chat));
	else
		d->prompt = calloc(p->n_parts, sizeof(*d->prompt));
	d->bias = calloc(p->n_bias ? p->n_bias : 1, sizeof(*d->bias));
	return (d->chat || d->prompt) && d->bias ? 0 : -ENOMEM;
}

/* Copies the parts into the block, one behind the other, and says where they are. */
static void draft_parts(struct draft *d, struct kvd_client *c, const struct kvd_params *p,
			const struct arena_block *block)
{
	uint32_t offset = block->offset;

	for (size_t i = 0; i < p->n_parts; i++) {
		const struct kvd_part *part = &p->parts[i];
		uint32_t kind = part->ids ? KVD_PART_IDS : KVD_PART_TEXT;
		uint32_t n = (uint32_t)(part->ids ? part->n * sizeof(int32_t) : part->n);
		if (n)
			segment_write(&c->segment, offset, part->ids ? (const void *)part->ids : part->text,
				      n);
		if (d->chat)
			d->chat[i] = (struct msg_chat){ part->role, kind, offset, n };
		else
			d->prompt[i] = (struct msg_part){ kind, offset, n };
		offset += (n + ARENA_ALIGN - 1) & ~(ARENA_ALIGN - 1);
	}
}

static int encode_request(struct kvd_client *c, struct codec_buf *buf, const struct kvd_params *p,
			  const struct request *request)
{
	_cleanup_(draft_deinit) struct draft d = { 0 };
	struct msg_generate m;

	if (draft_init(&d, p))
		return -ENOMEM;
	draft_parts(&d, c, p, &request->prompt);
	for (size_t i = 0; i < p->n_bias; i++)
		d.bias[i] = (struct msg_bias){ p->bias[i].id, p->bias[i].bias };
	msg_generate_init(&m);
	m.id = request->id;
	m.model = p->model;
	m.prompt = d.prompt;
	m.n_prompt = d.prompt ? p->n_parts : 0;
	m.messages = d.chat;
	m.n_messages = d.chat ? p->n_parts : 0;
	m.special = p->special;
	m.bos = !p->no_bos;
	m.n = p->max_tokens;
	m.temperature = p->temperature;
	m.top_k = p->top_k;
	m.top_p = p->top_p;
	m.min_p = p->min_p;
	m.repeat_penalty = p->repeat_penalty;
	m.repeat_last_n = p->repeat_last_n;
	m.has_seed = true;
	m.seed = p->seed;
	m.logit_bias = d.bias;
	m.n_logit_bias = p->n_bias;
	m.stop = p->stop;
	m.n_stop = p->n_stop;
	m.has_logprobs = p->logprobs >= 0;
	m.logprobs = p->logprobs > 0 ? (uint32_t)p->logprobs : 0;
	m.ignore_eos = p->ignore_eos;
	m.progress = p->progress;
	m.has_prompt_logprobs = p->prompt_logprobs >= 0;
	m.prompt_logprobs = m.has_prompt_logprobs ? (uint32_t)p->prompt_logprobs : 0;
	m.namespace = p->ns;
	m.cache_key = p->cache_key;
	m.ttl_s = p->ttl_s;
	m.priority = p->priority;
	m.pin = p->pin;
	int r = codec_encode_generate(buf, &m);
	if (r == -EINVAL)
		return client_fail(c, r, "a name, a role or a stop string is not valid");
	if (r == -EMSGSIZE)
		return client_fail(c, r, "too many parts, stop strings and biases for one message");
	return r;
}

/* With the lock held: the request is known before its first record can come. */
static int prepare_request(struct kvd_client *c, const struct kvd_params *p, struct codec_buf *buf,
			   struct request **out)
{
	uint64_t bytes = 0;

	if (c->broken)
		return client_still_broken(c);
	int r = check_params(c, p, &bytes);
	if (r)
		return r;
	struct request *request = calloc(1, sizeof(*request));
	if (!request)
		return -ENOMEM;
	list_init(&request->link);
	arena_block_init(&request->prompt);
	request->id = ++c->last_id;
	r = arena_alloc(&c->arena, &request->prompt, bytes);
	if (r)
		client_fail(c, r, "the arena of %u bytes has no room for a prompt of %llu", c->arena.size,
			    (unsigned long long)bytes);
	else
		r = encode_request(c, buf, p, request);
	if (r) {
		request_free(request);
		return r;
	}
	list_push_back(&c->requests, &request->link);
	*out = request;
	return 0;
}

/* client_send() with the lock given up meanwhile. */
static int send_unlocked(struct kvd_client *c, const struct codec_buf *buf)
{
	pthread_mutex_unlock(&c->lock);
	int r = client_send(c, buf, CALL_TIMEOUT_MS);
	pthread_mutex_lock(&c->lock);
	if (r)
		client_fail(c, r, "cannot send to the daemon: %s", r == KVD_E_CLOSED ? "it is gone" :
			    r == KVD_E_TIMEOUT ? "it does not read" : strerror(-r));
	return r;
}

KVD_API int kvd_submit(struct kvd_client *c, const struct kvd_params *p, uint64_t *request)
{
	_cleanup_(codec_buf_deinit) struct codec_buf buf = CODEC_BUF_NULL;
	struct request *r_new = NULL;

	client_enter(c);
	int r = prepare_request(c, p, &buf, &r_new);
	if (r)
		return client_leave(c, r);
	uint64_t id = r_new->id;
	r = send_unlocked(c, &buf);
	if (r)
		request_free(client_find_request(c, id));
	else
		*request = id;
	return client_leave(c, r);
}

KVD_API int kvd_cancel(struct kvd_client *c, uint64_t request)
{
	_cleanup_(codec_buf_deinit) struct codec_buf buf = CODEC_BUF_NULL;
	struct msg_cancel m = { .id = request };

	client_enter(c);
	if (c->broken)
		return client_leave(c, client_still_broken(c));
	if (!client_find_request(c, request))
		return client_leave(c, 0);	/* it has ended */
	int r = codec_encode_cancel(&buf, &m);
	if (!r)
		r = send_unlocked(c, &buf);
	return client_leave(c, r);
}
