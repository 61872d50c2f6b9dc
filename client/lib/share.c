/* SPDX-License-Identifier: Apache-2.0 */
/* The cache as bytes: export, import, verification. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client/lib/client.h"

KVD_API void kvd_share_options_init(struct kvd_share_options *o)
{
	*o = (struct kvd_share_options){ .struct_size = sizeof(*o) };
}

static bool wants_stop(void *arg, const struct call *call)
{
	const struct kvd_share_options *o = arg;

	return o->progress && o->progress(o->progress_arg, call->done, call->total) != 0;
}

static void fill_shared(struct kvd_share_result *out, const struct msg_cache_shared *m)
{
	*out = (struct kvd_share_result){
		.n_entries = m->n_entries, .n_tokens = m->n_tokens, .bytes = m->bytes, .n_there = m->n_there,
		.n_left = m->n_left, .code = (int)m->code,
	};
	snprintf(out->message, sizeof(out->message), "%s", m->message);
}

static void fill_verified(struct kvd_share_result *out, const struct msg_cache_verified *m)
{
	*out = (struct kvd_share_result){
		.n_entries = m->n_entries, .n_tokens = m->n_tokens, .bytes = m->bytes, .n_differ = m->n_differ,
		.compute_ns = m->compute_ns,
	};
	snprintf(out->message, sizeof(out->message), "%s", m->message);
}

static int exchange(struct kvd_client *c, struct call *call, const struct codec_buf *buf, int fd,
		    const struct kvd_share_options *o, struct kvd_share_result *out)
{
	int r = call_begin(c, call, buf, fd);

	if (!r)
		r = call_await_long(c, call, wants_stop, (void *)o);
	if (!r)
		r = call_long_result(c, call);
	if (!r && call->expected == KVD_MSG_CACHE_SHARED)
		fill_shared(out, &call->reply->cache_shared);
	else if (!r)
		fill_verified(out, &call->reply->cache_verified);
	return r;
}

/* *message begins with its id, which is filled in. */
static int share(struct kvd_client *c, enum kvd_message question, enum kvd_message expected, void *message, int fd,
		 const struct kvd_share_options *o, struct kvd_share_result *out)
{
	_cleanup_(codec_buf_deinit) struct codec_buf buf = CODEC_BUF_NULL;
	struct call *call;
	int r;

	if (c->broken)
		return client_still_broken(c);
	if (o->struct_size != sizeof(*o)) {
		snprintf(c->field, sizeof(c->field), "struct_size");
		return client_fail(c, -EINVAL, "struct_size: kvd_share_options_init() was not called");
	}
	call = call_new(c, expected);
	if (!call)
		return -ENOMEM;
	memcpy(message, &call->id, sizeof(call->id));
	r = codec_encode(&buf, question, message);
	if (r == -EINVAL)
		client_fail(c, r, "the name of a model or namespace, or a cache key, is not valid");
	if (!r)
		r = exchange(c, call, &buf, fd, o, out);
	call_finish(c, call);
	return r;
}

static int share_fd(struct kvd_client *c, enum kvd_message question, void *message, int fd,
		    const struct kvd_share_options *o, struct kvd_share_result *out)
{
	client_enter(c);
	if (fd < 0)
		return client_leave(c, client_fail(c, -EBADF, "not a descriptor"));
	return client_leave(c, share(c, question, KVD_MSG_CACHE_SHARED, message, fd, o, out));
}

KVD_API int kvd_cache_export(struct kvd_client *c, int fd, const struct kvd_share_options *o,
			     struct kvd_share_result *out)
{
	return share_fd(c, KVD_MSG_CACHE_EXPORT, &(struct msg_cache_export){
		.model = o->model, .namespace = o->ns, .progress = true,
	}, fd, o, out);
}

KVD_API int kvd_cache_import(struct kvd_client *c, int fd, const struct kvd_share_options *o,
			     struct kvd_share_result *out)
{
	return share_fd(c, KVD_MSG_CACHE_IMPORT, &(struct msg_cache_import){
		.model = o->model, .cache_key = o->cache_key, .progress = true,
	}, fd, o, out);
}

KVD_API int kvd_cache_verify(struct kvd_client *c, const struct kvd_share_options *o, struct kvd_share_result *out)
{
	struct msg_cache_verify m = { .model = o->model, .namespace = o->ns, .count = o->count, .progress = true };

	client_enter(c);
	return client_leave(c, share(c, KVD_MSG_CACHE_VERIFY, KVD_MSG_CACHE_VERIFIED, &m, -1, o, out));
}
