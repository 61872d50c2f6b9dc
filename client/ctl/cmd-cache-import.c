/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl cache import: a file that was exported, into one's own part of the cache. */
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

/* "-": stdin.  -1 after a message. */
static int open_source(const struct ctl *ctl, const char *file)
{
	int fd;

	if (!strcmp(file, "-")) {
		if (!isatty(STDIN_FILENO))
			return STDIN_FILENO;
		ctl_error(ctl, "an export does not come from a terminal");
		return -1;
	}
	fd = open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	if (fd < 0)
		ctl_error(ctl, "%s: %s", file, strerror(errno));
	return fd;
}

static int print_result(const struct ctl *ctl, const struct kvd_share_result *r)
{
	char bytes[FORMAT_MAX];

	if (ctl->json)
		return json_print_line(ctl, json_pack("{s:o,s:o,s:o,s:o,s:o,s:b}", "n_entries", json_u64(r->n_entries),
						      "n_tokens", json_u64(r->n_tokens), "bytes", json_u64(r->bytes),
						      "n_there", json_u64(r->n_there), "n_left", json_u64(r->n_left),
						      "whole", !r->code));
	printf("imported: %" PRIu64 " entr%s, %" PRIu64 " tokens, %s", r->n_entries,
	       r->n_entries == 1 ? "y" : "ies", r->n_tokens, format_bytes(bytes, r->bytes));
	if (r->n_there)
		printf("; %" PRIu64 " were there", r->n_there);
	if (r->n_left)
		printf("; %" PRIu64 " left, since what they follow is not there", r->n_left);
	putchar('\n');
	return CTL_OK;
}

/* What was taken stays, also where it ended early. */
static int finish(const struct ctl *ctl, const struct kvd_share_result *r)
{
	int status = print_result(ctl, r);

	if (!r->code)
		return status;
	if (r->code == KVD_REFUSED_CANCELLED)
		return CTL_INTERRUPTED;
	ctl_error(ctl, "not all was imported: %s", r->message);
	return ctl_refused_status(r->code);
}

static int import(struct ctl *ctl, struct share *s, struct kvd_client *c)
{
	struct kvd_share_result result;
	int fd = open_source(ctl, s->file), status;

	if (fd < 0)
		return CTL_FAILED;
	status = share_failed(ctl, s, c, kvd_cache_import(c, fd, &s->options, &result), "cannot import into the cache");
	if (fd != STDIN_FILENO)
		close(fd);
	return status ? status : finish(ctl, &result);
}

int cmd_cache_import(struct ctl *ctl, int argc, char **argv)
{
	static const struct option longs[] = {
		SHARE_LONGS,
		{ "cache-key", required_argument, NULL, CTL_OPT_CACHE_KEY },
		CTL_GLOBAL_OPTIONS,
		{ 0 },
	};
	struct ctl_options o = { .ctl = ctl, .argc = argc, .argv = argv, .shorts = ":hm:q", .longs = longs };
	struct kvd_client *c = NULL;
	struct share s;
	int status;

	share_init(&s, "importing");
	if (share_parse(&s, &o, true))
		return o.status;
	status = share_connect(ctl, &c);
	if (!status)
		status = import(ctl, &s, c);
	kvd_close(c);
	return status;
}
