/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/connect.h"
#include "client/ctl/private.h"
#include "client/ctl/progress.h"

#define ARENA_MIN (4u << 20)	/* the library's default, and the protocol's limit */
#define ARENA_MAX (64u << 20)

/* A text needs room for itself and, to tokenize, for its ids and their pieces. */
static uint32_t arena_for(size_t n_text)
{
	uint64_t want = (uint64_t)n_text * 6 + (1u << 20);

	want = want < ARENA_MIN ? ARENA_MIN : want > ARENA_MAX ? ARENA_MAX : want;
	return (uint32_t)(want + 4095) & ~4095u;
}

/* Daemons that are not there, as opposed to those that do not want us. */
static bool is_absent(int r)
{
	return r == -ENOENT || r == -ECONNREFUSED || r == -ENOTDIR;
}

static int connect_failed(const struct ctl *ctl, int r, const char *diag)
{
	if (is_absent(r)) {
		ctl_error(ctl, "%s; start one with \"kvd --model FILE\", or name a GGUF file with -m", diag);
		return CTL_NO_DAEMON;
	}
	ctl_error(ctl, "%s", *diag ? diag : r < 0 ? strerror(-r) : "cannot attach to the daemon");
	if (r == -EACCES || r == -EPERM || r == KVD_E_REFUSED)
		return CTL_REFUSED;
	return r == KVD_E_CLOSED ? CTL_NO_DAEMON : CTL_FAILED;
}

int connect_running(const struct ctl *ctl, struct kvd_client **out)
{
	struct kvd_connect_options options = { .socket = ctl->socket, .name = "kvctl" };
	char diag[256] = "";
	int r = kvd_connect(out, &options, diag, sizeof(diag));

	return r ? connect_failed(ctl, r, diag) : 0;
}

static bool is_readable_file(const char *path)
{
	struct stat st;

	return path && !stat(path, &st) && S_ISREG(st.st_mode) && !access(path, R_OK);
}

/* With no daemon there, a model that is written as a file must be one. */
static bool is_meant_as_file(const char *model)
{
	size_t n = model ? strlen(model) : 0;

	return n && (strchr(model, '/') || (n > 5 && !strcmp(model + n - 5, ".gguf")));
}

static int file_failed(const struct ctl *ctl, const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	ctl_error(ctl, "cannot read the model %s: %s", path, fd < 0 ? strerror(errno) : "not a regular file");
	if (fd >= 0)
		close(fd);
	return CTL_FAILED;
}

/* A name, or a path whose base name without ".gguf" is the name. */
static void model_name(const char *model, char *buf, size_t n)
{
	const char *base = strrchr(model, '/');

	snprintf(buf, n, "%s", base ? base + 1 : model);
	size_t len = strlen(buf);
	if (len > 5 && !strcmp(buf + len - 5, ".gguf"))
		buf[len - 5] = '\0';
}

static void list_names(const struct kvd_model *models, size_t n_models, char *buf, size_t n)
{
	size_t o = 0;

	snprintf(buf, n, "none");
	for (size_t i = 0; i < n_models && o < n; i++)
		o += (size_t)snprintf(buf + o, n - o, "%s%s", i ? ", " : "", models[i].name);
}

/* The one that is asked for, among those that are there; NULL after a message. */
static const struct kvd_model *find_model(const struct ctl *ctl, const struct kvd_model *models, size_t n,
					  const char *model)
{
	char names[512], want[256] = "";

	if (model)
		model_name(model, want, sizeof(want));
	for (size_t i = 0; i < n; i++) {
		if (model ? !strcmp(models[i].name, model) || !strcmp(models[i].name, want) :
		    models[i].is_default)
			return &models[i];
	}
	list_names(models, n, names, sizeof(names));
	if (model)
		ctl_error(ctl, "the daemon has no model \"%s\"; it has: %s", want, names);
	else
		ctl_error(ctl, "no model is loaded; \"kvctl load FILE\" loads one");
	return NULL;
}

struct loading {
	struct progress progress;
	const char *file;
};

static int on_progress(void *arg, unsigned percent)
{
	struct loading *l = arg;

	progress_show(&l->progress, "loading %s: %u %%", l->file, percent);
	return 0;
}

static bool has_model(const struct kvd_model *models, size_t n, const char *file)
{
	char name[256];

	model_name(file, name, sizeof(name));
	for (size_t i = 0; i < n; i++) {
		if (!strcmp(models[i].name, name))
			return true;
	}
	return false;
}

/*
 * A daemon that runs already, with other models, is made to load the file.  Where it does not let
 * this user, the look at its models that comes next says what it has.
 */
static int load_if_missing(const struct ctl *ctl, struct kvd_client *c, const char *file, bool quiet)
{
	struct loading loading = { .file = file };
	struct kvd_load_options options;
	struct kvd_model *models = NULL;
	size_t n = 0;
	bool there;
	int r = kvd_models(c, &models, &n);

	if (r)
		return ctl_client_failed(ctl, c, r, "cannot list the models");
	there = has_model(models, n, file);
	free(models);
	if (there)
		return 0;
	kvd_load_options_init(&options);
	options.progress = on_progress;
	options.progress_arg = &loading;
	progress_init(&loading.progress, quiet);
	r = kvd_load(c, file, &options);
	progress_clear(&loading.progress);
	if (!r || (r == KVD_E_REFUSED && kvd_client_code(c) == KVD_REFUSED_PERMISSION))
		return 0;
	return ctl_client_failed(ctl, c, r, "cannot load the model");
}

/* One look at the models: 0 and *chosen, or an exit status after a message. */
static int look_up_model(const struct ctl *ctl, struct kvd_client *c, const char *model, bool is_private,
			 struct kvd_model *chosen)
{
	struct kvd_model *models = NULL;
	const struct kvd_model *found = NULL;
	size_t n = 0;
	int r = kvd_models(c, &models, &n);

	if (r) {
		int status = ctl_client_failed(ctl, c, r, "cannot list the models");
		if (is_private && r == KVD_E_CLOSED)
			private_show_log(ctl);
		return status;
	}
	found = find_model(ctl, models, n, model);
	if (found)
		*chosen = *found;
	free(models);
	return found ? 0 : CTL_FAILED;
}

static int await_model(const struct ctl *ctl, struct kvd_client *c, const char *model, bool is_private, bool quiet,
		       struct kvd_model *chosen)
{
	struct progress progress;
	int r;

	progress_init(&progress, quiet);
	for (;;) {
		r = look_up_model(ctl, c, model, is_private, chosen);
		if (r || strcmp(chosen->state, "loading"))
			break;
		progress_show(&progress, "loading %s: %u %%", chosen->name, chosen->percent);
		nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
	}
	progress_clear(&progress);
	return r;
}

enum template_state connect_template(const struct kvd_model *model)
{
	if (!*model->chat_template || !strcmp(model->chat_template, "none"))
		return TEMPLATE_NONE;
	return strcmp(model->chat_template, "unknown") ? TEMPLATE_KNOWN : TEMPLATE_UNKNOWN;
}

int connect_for_model(const struct ctl *ctl, const char *model, bool quiet, size_t n_text,
		      struct kvd_client **out, struct kvd_model *chosen)
{
	struct kvd_connect_options options = { .socket = ctl->socket, .name = "kvctl",
					       .arena_bytes = arena_for(n_text) };
	struct kvd_client *c = NULL;
	char diag[256] = "";
	int r = kvd_connect(&c, &options, diag, sizeof(diag));
	bool is_private = is_absent(r) && is_readable_file(model);

	if (is_private)
		r = private_start(ctl, model, quiet, &options, &c);
	else if (is_absent(r) && is_meant_as_file(model))
		r = file_failed(ctl, model);
	else if (r)
		r = connect_failed(ctl, r, diag);
	if (r)
		return r;
	if (!is_private && is_meant_as_file(model) && is_readable_file(model))
		r = load_if_missing(ctl, c, model, quiet);
	if (!r)
		r = await_model(ctl, c, model, is_private, quiet, chosen);
	if (r) {
		kvd_close(c);
		return r;
	}
	*out = c;
	return 0;
}
