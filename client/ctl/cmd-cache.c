/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl cache: the table of its commands, and those that change something. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/cmd-cache.h"
#include "client/ctl/connect.h"
#include "client/ctl/help.h"
#include "client/ctl/json.h"
#include "client/ctl/table.h"

#define MODEL_LONG { "model", required_argument, NULL, 'm' }

struct change {
	const char *model, *ns;
	unsigned flags;
	bool yes;
};

int cache_entry_number(const struct ctl *ctl, const char *text, uint64_t *out)
{
	size_t n = strlen(text);

	errno = 0;
	uint64_t v = strtoull(text, NULL, 10);
	if (!n || strspn(text, "0123456789") != n || errno || !v)
		return ctl_usage(ctl, "not the number of an entry: %s", text);
	*out = v;
	return 0;
}

static int parse(struct change *ch, struct ctl_options *o)
{
	for (;;) {
		switch (ctl_options_next(o)) {
		case CTL_OPTIONS_END:
			return 0;
		case CTL_OPTIONS_EXIT:
			return CTL_OPTIONS_EXIT;
		case 'm':
			ch->model = optarg;
			break;
		case CTL_OPT_NAMESPACE:
			if (!*optarg)
				return ctl_options_bad(o, "must not be empty");
			ch->ns = optarg;
			break;
		case CTL_OPT_ALL:
			ch->flags |= KVD_CACHE_ALL;
			break;
		default:
			ch->yes = true;
		}
	}
}

static int print_change(const struct ctl *ctl, const char *what, uint64_t entry, const struct kvd_cache_change *d)
{
	char bytes[FORMAT_MAX];

	if (ctl->json) {
		json_t *v = json_pack("{s:o,s:o,s:o,s:o,s:o}", "n_entries", json_u64(d->n_entries),
				      "n_tokens", json_u64(d->n_tokens), "bytes", json_u64(d->bytes),
				      "disk_entries", json_u64(d->disk_entries), "disk_bytes", json_u64(d->disk_bytes));

		if (v && entry)
			json_object_set_new(v, "entry", json_u64(entry));
		return json_print_line(ctl, v);
	}
	printf("%s", what);
	if (entry)
		printf(" %" PRIu64, entry);
	printf(": %" PRIu64 " entr%s, %" PRIu64 " tokens, %s", d->n_entries, d->n_entries == 1 ? "y" : "ies",
	       d->n_tokens, format_bytes(bytes, d->bytes));
	if (d->disk_entries)
		printf("; on disk %" PRIu64 ", %s", d->disk_entries, format_bytes(bytes, d->disk_bytes));
	putchar('\n');
	return CTL_OK;
}

/* --- pin, unpin, drop: what names entries --- */

static int pin(struct kvd_client *c, const struct change *ch, uint64_t entry, struct kvd_cache_change *out)
{
	return kvd_cache_pin(c, ch->model, entry, out);
}

static int unpin(struct kvd_client *c, const struct change *ch, uint64_t entry, struct kvd_cache_change *out)
{
	return kvd_cache_unpin(c, ch->model, entry, ch->flags, out);
}

/* What `ls` shows as one line goes as one. */
static int drop(struct kvd_client *c, const struct change *ch, uint64_t entry, struct kvd_cache_change *out)
{
	return kvd_cache_drop(c, ch->model, entry, KVD_CACHE_CHAIN, out);
}

typedef int (*change_fn)(struct kvd_client *c, const struct change *ch, uint64_t entry, struct kvd_cache_change *out);

/* Each entry by itself; the status is that of the last that failed. */
static int change_entries(struct ctl *ctl, struct ctl_options *o, const struct change *ch, const char *done,
			  change_fn fn)
{
	struct kvd_client *c = NULL;
	uint64_t entry = 0;
	int status = CTL_OK, failed;

	if (optind == o->argc)
		return ctl_usage(ctl, "no entry given");
	for (int i = optind; i < o->argc && !status; i++)
		status = cache_entry_number(ctl, o->argv[i], &entry);
	if (!status)
		status = connect_running(ctl, &c);
	if (status)
		return status;
	for (int i = optind; i < o->argc; i++) {
		struct kvd_cache_change d;
		char what[64];

		(void)cache_entry_number(ctl, o->argv[i], &entry);
		snprintf(what, sizeof(what), "entry %" PRIu64, entry);
		int r = fn(c, ch, entry, &d);
		failed = r ? ctl_client_failed(ctl, c, r, what) : print_change(ctl, done, entry, &d);
		status = failed ? failed : status;
	}
	kvd_close(c);
	return status;
}

static int cmd_pin(struct ctl *ctl, int argc, char **argv)
{
	static const struct option longs[] = { MODEL_LONG, CTL_GLOBAL_OPTIONS, { 0 } };
	struct ctl_options o = { .ctl = ctl, .argc = argc, .argv = argv, .shorts = ":hm:", .longs = longs };
	struct change ch = { 0 };

	return parse(&ch, &o) ? o.status : change_entries(ctl, &o, &ch, "pinned", pin);
}

static int cmd_unpin(struct ctl *ctl, int argc, char **argv)
{
	static const struct option longs[] = {
		MODEL_LONG, { "all", no_argument, NULL, CTL_OPT_ALL }, CTL_GLOBAL_OPTIONS, { 0 },
	};
	struct ctl_options o = { .ctl = ctl, .argc = argc, .argv = argv, .shorts = ":hm:", .longs = longs };
	struct change ch = { 0 };

	return parse(&ch, &o) ? o.status : change_entries(ctl, &o, &ch, "unpinned", unpin);
}

static int cmd_drop(struct ctl *ctl, int argc, char **argv)
{
	static const struct option longs[] = { MODEL_LONG, CTL_GLOBAL_OPTIONS, { 0 } };
	struct ctl_options o = { .ctl = ctl, .argc = argc, .argv = argv, .shorts = ":hm:", .longs = longs };
	struct change ch = { 0 };

	return parse(&ch, &o) ? o.status : change_entries(ctl, &o, &ch, "dropped", drop);
}

/* --- wipe --- */

/* Whoever types it is asked. */
static bool is_meant(const struct change *ch)
{
	char line[16] = "";

	if (ch->yes || !isatty(STDIN_FILENO))
		return true;
	if (ch->flags & KVD_CACHE_ALL)
		fputs("Remove everybody's entries from the cache? [y/N] ", stderr);
	else
		fprintf(stderr, "Remove all entries of %s from the cache? [y/N] ", ch->ns ? ch->ns : "this user");
	fflush(stderr);
	return fgets(line, sizeof(line), stdin) && (line[0] == 'y' || line[0] == 'Y');
}

static int cmd_wipe(struct ctl *ctl, int argc, char **argv)
{
	static const struct option longs[] = {
		MODEL_LONG,
		{ "namespace", required_argument, NULL, CTL_OPT_NAMESPACE },
		{ "all", no_argument, NULL, CTL_OPT_ALL },
		{ "yes", no_argument, NULL, CTL_OPT_YES },
		CTL_GLOBAL_OPTIONS,
		{ 0 },
	};
	struct ctl_options o = { .ctl = ctl, .argc = argc, .argv = argv, .shorts = ":hm:", .longs = longs };
	struct kvd_cache_change done;
	struct kvd_client *c = NULL;
	struct change ch = { 0 };

	if (parse(&ch, &o) || ctl_options_no_arguments(&o))
		return o.status;
	if (ch.ns && ch.flags)
		return ctl_usage(ctl, "--all and --namespace exclude each other");
	if (!is_meant(&ch)) {
		ctl_error(ctl, "nothing was removed");
		return CTL_FAILED;
	}
	int status = connect_running(ctl, &c);
	if (status)
		return status;
	int r = kvd_cache_wipe(c, ch.model, ch.ns, ch.flags, &done);
	status = r ? ctl_client_failed(ctl, c, r, "cannot wipe the cache") : print_change(ctl, "removed", 0, &done);
	kvd_close(c);
	return status;
}

/* --- the table --- */

static const struct ctl_command commands[] = {
	{ "cache ls", "[-m MODEL] [--namespace NAME]", "what is in the cache, as a tree", help_cache_ls, cmd_cache_ls },
	{ "cache show", "[-m MODEL] ID", "one entry of the cache", help_cache_show, cmd_cache_show },
	{ "cache pin", "[-m MODEL] ID...", "keep an entry and what is before it", help_cache_pin, cmd_pin },
	{ "cache unpin", "[-m MODEL] [--all] ID...", "keep it no longer", help_cache_unpin, cmd_unpin },
	{ "cache drop", "[-m MODEL] ID...", "remove an entry and what is after it", help_cache_drop, cmd_drop },
	{ "cache wipe", "[-m MODEL] [--namespace NAME | --all] [--yes]", "remove all of one's own", help_cache_wipe,
	  cmd_wipe },
	{ "cache warm", "[-m MODEL] [OPTION]... [PROMPT|-]", "compute a prompt ahead of its use", help_cache_warm,
	  cmd_cache_warm },
	{ "cache export", "[-m MODEL] [--namespace NAME] FILE|-", "write one's own into a file", help_cache_export,
	  cmd_cache_export },
	{ "cache import", "[-m MODEL] [--cache-key KEY] FILE|-", "take such a file into one's own", help_cache_import,
	  cmd_cache_import },
	{ "cache verify", "[-m MODEL] [--namespace NAME] [-n COUNT | --all]", "compute a sample again, and compare",
	  help_cache_verify, cmd_cache_verify },
};

static const struct ctl_command *find(const char *name)
{
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (!strcmp(commands[i].name + strlen("cache "), name))
			return &commands[i];
	return NULL;
}

int cmd_cache(struct ctl *ctl, int argc, char **argv)
{
	static const struct option longs[] = { CTL_GLOBAL_OPTIONS, { 0 } };
	/* '+': what follows the command is the command's */
	struct ctl_options o = { .ctl = ctl, .argc = argc, .argv = argv, .shorts = "+:h", .longs = longs };
	const struct ctl_command *command;

	if (ctl_options_next(&o) != CTL_OPTIONS_END)
		return o.status;
	if (optind == argc)
		return ctl_usage(ctl, "no command given");
	command = find(argv[optind]);
	if (!command)
		return ctl_usage(ctl, "unknown command: %s", argv[optind]);
	ctl->command = command;
	argv += optind;
	argc -= optind;
	optind = 0;	/* getopt starts anew */
	return command->run(ctl, argc, argv);
}
