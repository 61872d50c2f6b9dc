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

static int wait_until_loaded(const struct ctl *ctl, struct kvd_client *c, bool is_private, bool quiet)
{
	struct progress progress;
	struct kvd_status status;
	int r;

	progress_init(&progress, quiet);
	for (;;) {
		r = kvd_status(c, &status);
		if (r || strcmp(status.state, "loading"))
			break;
		progress_show(&progress, "loading the model: %u %%", status.loading_percent);
		nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
	}
	progress_clear(&progress);
	if (!r)
		return 0;
	int exit_status = ctl_client_failed(ctl, c, r, "while the model loads");
	if (is_private && r == KVD_E_CLOSED)
		private_show_log(ctl);
	return exit_status;
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

static int choose_model(const struct ctl *ctl, struct kvd_client *c, const char *model,
			struct kvd_model *chosen)
{
	struct kvd_model *models = NULL;
	size_t n = 0;
	char names[512], want[256];
	int r = kvd_models(c, &models, &n);

	if (r)
		return ctl_client_failed(ctl, c, r, "cannot list the models");
	list_names(models, n, names, sizeof(names));
	if (!model) {
		if (n == 1)
			*chosen = models[0];
		else
			ctl_error(ctl, "%s: %s", n ? "several models are loaded, name one with -m" :
				  "no model is loaded", names);
		free(models);
		return n == 1 ? 0 : CTL_FAILED;
	}
	model_name(model, want, sizeof(want));
	r = CTL_FAILED;
	for (size_t i = 0; i < n && r; i++) {
		if (!strcmp(models[i].name, model) || !strcmp(models[i].name, want)) {
			*chosen = models[i];
			r = 0;
		}
	}
	if (r)
		ctl_error(ctl, "the daemon has no model \"%s\"; it has: %s", want, names);
	free(models);
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
	r = wait_until_loaded(ctl, c, is_private, quiet);
	if (!r)
		r = choose_model(ctl, c, model, chosen);
	if (r) {
		kvd_close(c);
		return r;
	}
	*out = c;
	return 0;
}
