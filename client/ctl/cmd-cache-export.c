/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl cache export: what the cache holds, into a file that is opened here. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/cmd-cache.h"
#include "client/ctl/json.h"
#include "client/ctl/share.h"
#include "client/ctl/table.h"

/* "-": stdout.  A new file, which nobody else may read: it has the prompts in it.  -1 after a message. */
static int open_target(const struct ctl *ctl, const char *file)
{
	int fd;

	if (!strcmp(file, "-")) {
		if (!isatty(STDOUT_FILENO))
			return STDOUT_FILENO;
		ctl_error(ctl, "the export is not for a terminal");
		return -1;
	}
	fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0600);
	if (fd < 0)
		ctl_error(ctl, "%s: %s", file, strerror(errno));
	return fd;
}

/* Where the file is stdout, the figures are none of it. */
static int print_result(const struct ctl *ctl, const struct share *s, const struct kvd_share_result *r)
{
	FILE *out = strcmp(s->file, "-") ? stdout : stderr;
	char bytes[FORMAT_MAX];

	if (ctl->json && out == stdout)
		return json_print_line(ctl, json_pack("{s:o,s:o,s:o}", "n_entries", json_u64(r->n_entries),
						      "n_tokens", json_u64(r->n_tokens), "bytes", json_u64(r->bytes)));
	if (out == stdout || !s->quiet)
		fprintf(out, "exported: %" PRIu64 " entr%s, %" PRIu64 " tokens, %s\n", r->n_entries,
			r->n_entries == 1 ? "y" : "ies", r->n_tokens, format_bytes(bytes, r->bytes));
	return CTL_OK;
}

/* A pipe has nothing to sync. */
static int sync_file(const struct ctl *ctl, const char *file, int fd)
{
	if (!fsync(fd) || errno == EINVAL || errno == EROFS)
		return CTL_OK;
	ctl_error(ctl, "%s: %s", file, strerror(errno));
	return CTL_FAILED;
}

static int export(struct ctl *ctl, struct share *s, struct kvd_client *c)
{
	struct kvd_share_result result;
	int fd = open_target(ctl, s->file), status;

	if (fd < 0)
		return CTL_FAILED;
	status = share_failed(ctl, s, c, kvd_cache_export(c, fd, &s->options, &result), "cannot export the cache");
	if (!status)
		status = sync_file(ctl, s->file, fd);
	if (fd != STDOUT_FILENO) {
		close(fd);
		/* It was made here, and is not whole. */
		if (status)
			unlink(s->file);
	}
	return status ? status : print_result(ctl, s, &result);
}

int cmd_cache_export(struct ctl *ctl, int argc, char **argv)
{
	static const struct option longs[] = {
		SHARE_LONGS,
		{ "namespace", required_argument, NULL, CTL_OPT_NAMESPACE },
		CTL_GLOBAL_OPTIONS,
		{ 0 },
	};
	struct ctl_options o = { .ctl = ctl, .argc = argc, .argv = argv, .shorts = ":hm:q", .longs = longs };
	struct kvd_client *c = NULL;
	struct share s;
	int status;

	share_init(&s, "exporting");
	if (share_parse(&s, &o, true))
		return o.status;
	status = share_connect(ctl, &c);
	if (!status)
		status = export(ctl, &s, c);
	kvd_close(c);
	return status;
}
