/* SPDX-License-Identifier: Apache-2.0 */
/* Loading and unloading: calls that take as long as they take. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "client/lib/client.h"
#include "ipc/base/fd.h"

KVD_API void kvd_load_options_init(struct kvd_load_options *o)
{
	*o = (struct kvd_load_options){ .struct_size = sizeof(*o) };
}

static int invalid(struct kvd_client *c, const char *field, const char *why)
{
	snprintf(c->field, sizeof(c->field), "%s", field);
	return client_fail(c, -EINVAL, "%s: %s", field, why);
}

static bool is_given_up(void *arg, const struct call *call)
{
	const struct kvd_load_options *o = arg;

	return o->progress && o->progress(o->progress_arg, call->percent) != 0;
}

static int load(struct kvd_client *c, int fd, const char *name, const struct kvd_load_options *o)
{
	_cleanup_(codec_buf_deinit) struct codec_buf buf = CODEC_BUF_NULL;
	struct call *call;
	int r;

	if (c->broken)
		return client_still_broken(c);
	if (o->struct_size != sizeof(*o))
		return invalid(c, "struct_size", "kvd_load_options_init() was not called");
	if (!codec_model_name_valid(name))
		return invalid(c, "name", "not 1 to 127 bytes of UTF-8 without control characters and '/'");
	call = call_new(c, KVD_MSG_LOADED);
	if (!call)
		return -ENOMEM;
	r = codec_encode_load(&buf, &(struct msg_load){ .id = call->id, .name = name, .n_ctx = o->n_ctx,
							.progress = true });
	if (!r)
		r = call_begin(c, call, &buf, fd);
	if (!r)
		r = call_await_long(c, call, is_given_up, (void *)o);
	if (!r)
		r = call_long_result(c, call);
	call_finish(c, call);
	return r;
}

/* The file's name less its folders and ".gguf". */
static void name_of_path(const char *path, char *out, size_t n)
{
	const char *slash = strrchr(path, '/');
	size_t len;

	snprintf(out, n, "%s", slash ? slash + 1 : path);
	len = strlen(out);
	if (len > 5 && !strcmp(out + len - 5, ".gguf"))
		out[len - 5] = '\0';
}

KVD_API int kvd_load_fd(struct kvd_client *c, int fd, const struct kvd_load_options *options)
{
	client_enter(c);
	if (!options || !options->name)
		return client_leave(c, invalid(c, "name", "is needed with a descriptor"));
	if (fd < 0)
		return client_leave(c, client_fail(c, -EBADF, "not a descriptor"));
	return client_leave(c, load(c, fd, options->name, options));
}

static int open_file(struct kvd_client *c, const char *path, int *out)
{
	/* a pipe must not keep us waiting */
	_cleanup_(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;

	if (fd < 0 || fstat(fd, &st))
		return client_fail(c, -errno, "%s: %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return client_fail(c, -EINVAL, "%s: not a regular file", path);
	*out = fd_steal(&fd);
	return 0;
}

KVD_API int kvd_load(struct kvd_client *c, const char *path, const struct kvd_load_options *options)
{
	_cleanup_(fd_closep) int fd = -1;
	struct kvd_load_options defaults;
	char name[256];

	kvd_load_options_init(&defaults);
	options = options ? options : &defaults;
	name_of_path(path, name, sizeof(name));
	client_enter(c);
	int r = open_file(c, path, &fd);
	if (!r)
		r = load(c, fd, options->name ? options->name : name, options);
	return client_leave(c, r);
}

static int unload(struct kvd_client *c, const char *model, unsigned flags)
{
	_cleanup_(codec_buf_deinit) struct codec_buf buf = CODEC_BUF_NULL;
	struct call *call;
	int r;

	if (c->broken)
		return client_still_broken(c);
	call = call_new(c, KVD_MSG_UNLOADED);
	if (!call)
		return -ENOMEM;
	r = codec_encode_unload(&buf, &(struct msg_unload){ .id = call->id, .model = model,
							    .now = (flags & KVD_UNLOAD_NOW) != 0 });
	if (r == -EINVAL)
		invalid(c, "model", "not a model's name");
	if (!r)
		r = call_begin(c, call, &buf, -1);
	if (!r)
		r = call_await(c, call, UINT64_MAX);
	if (!r && call->reply->id == KVD_MSG_ERROR)
		r = call_refused(c, &call->reply->error);
	call_finish(c, call);
	return r;
}

KVD_API int kvd_unload(struct kvd_client *c, const char *model, unsigned flags)
{
	client_enter(c);
	return client_leave(c, unload(c, model, flags));
}
