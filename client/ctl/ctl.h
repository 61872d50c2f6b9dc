/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl.h - what the commands of kvctl share: exit statuses, messages, options.
 *
 * kvctl knows the daemon through client/kvd.h only.  A command is one file,
 * cmd-NAME.c, with one function that takes its own argc and argv (argv[0] is
 * the command's name) and returns the exit status.
 * Tokens and answers go to stdout, everything else to stderr.
 */
#ifndef KVD_CTL_H
#define KVD_CTL_H

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvd.h"

enum ctl_status {
	CTL_OK = 0,
	CTL_FAILED = 1,
	CTL_USAGE = 2,
	CTL_NO_DAEMON = 3,
	CTL_REFUSED = 4,	/* quota, permission, busy */
	CTL_INTERRUPTED = 130,
};

struct ctl_command;

struct ctl {
	const char *socket;			/* --socket, or NULL */
	bool json;				/* --json */
	const struct ctl_command *command;	/* NULL before it is known */
};

struct ctl_command {
	const char *name;
	const char *synopsis;	/* after the name */
	const char *summary;	/* one line for `kvctl help` */
	const char *help;	/* the options, for `kvctl NAME --help` */
	int (*run)(struct ctl *ctl, int argc, char **argv);
};

int cmd_generate(struct ctl *ctl, int argc, char **argv);
int cmd_chat(struct ctl *ctl, int argc, char **argv);
int cmd_tokenize(struct ctl *ctl, int argc, char **argv);
int cmd_ps(struct ctl *ctl, int argc, char **argv);
int cmd_status(struct ctl *ctl, int argc, char **argv);
int cmd_models(struct ctl *ctl, int argc, char **argv);
int cmd_load(struct ctl *ctl, int argc, char **argv);
int cmd_unload(struct ctl *ctl, int argc, char **argv);
int cmd_cache(struct ctl *ctl, int argc, char **argv);
int cmd_perplexity(struct ctl *ctl, int argc, char **argv);
int cmd_bench(struct ctl *ctl, int argc, char **argv);
int cmd_version(struct ctl *ctl, int argc, char **argv);
int cmd_help(struct ctl *ctl, int argc, char **argv);

const struct ctl_command *ctl_find_command(const char *name);	/* NULL: there is none */
void ctl_print_help(const struct ctl_command *command);		/* NULL: of kvctl itself; to stdout */

/* "kvctl: COMMAND: text" to stderr. */
__attribute__((format(printf, 2, 3)))
void ctl_error(const struct ctl *ctl, const char *fmt, ...);
/* The same with the hint at --help; returns CTL_USAGE. */
__attribute__((format(printf, 2, 3)))
int ctl_usage(const struct ctl *ctl, const char *fmt, ...);

/*
 * Says why a call on c failed with r (negative errno or KVD_E_*), and returns
 * the exit status for it.  what: "cannot list the models".
 */
int ctl_client_failed(const struct ctl *ctl, const struct kvd_client *c, int r, const char *what);
/* The exit status for a refusal of the daemon. */
int ctl_refused_status(int code);

/*
 * Walks over a command's options, the global ones included: they are handled
 * inside.  An option's value is in optarg, its spelling in name.
 */
struct ctl_options {
	struct ctl *ctl;
	int argc;
	char **argv;
	const char *shorts;		/* as for getopt(), beginning with ':' */
	const struct option *longs;	/* ends with CTL_GLOBAL_OPTIONS and an empty one */
	char name[40];			/* "-t", "--top-k" */
	int status;			/* the exit status when ctl_options_next() gave CTL_OPTIONS_EXIT */
};

#define CTL_OPTIONS_END (-1)
#define CTL_OPTIONS_EXIT (-2)	/* wrong usage, or --help: return o->status */

enum ctl_option {	/* options without a letter */
	CTL_OPT_SOCKET = 0x100, CTL_OPT_JSON, CTL_OPT_TOP_K, CTL_OPT_TOP_P, CTL_OPT_MIN_P,
	CTL_OPT_REPEAT_PENALTY, CTL_OPT_SEED, CTL_OPT_STOP, CTL_OPT_RAW, CTL_OPT_CHAT,
	CTL_OPT_LOGPROBS, CTL_OPT_SYSTEM, CTL_OPT_IGNORE_EOS, CTL_OPT_QUIET, CTL_OPT_IDS,
	CTL_OPT_BOS, CTL_OPT_SPECIAL, CTL_OPT_NAME, CTL_OPT_CTX, CTL_OPT_NOW,
	CTL_OPT_NAMESPACE, CTL_OPT_CACHE_KEY, CTL_OPT_TTL, CTL_OPT_PRIORITY, CTL_OPT_PIN, CTL_OPT_NO_CACHE,
	CTL_OPT_ALL, CTL_OPT_YES,
};

#define CTL_GLOBAL_OPTIONS \
	{ "socket", required_argument, NULL, CTL_OPT_SOCKET }, \
	{ "json", no_argument, NULL, CTL_OPT_JSON }, \
	{ "help", no_argument, NULL, 'h' }

int ctl_options_next(struct ctl_options *o);
/* CTL_OPTIONS_EXIT after a message "OPTION: text: VALUE". */
int ctl_options_bad(struct ctl_options *o, const char *text);

/* The current option's value as a number, 0 or CTL_OPTIONS_EXIT after a message. */
int ctl_options_u64(struct ctl_options *o, uint64_t min, uint64_t max, uint64_t *out);
int ctl_options_float(struct ctl_options *o, double min, double max, float *out);

/* "30s", "10m", "1h", "7d" as seconds, not 0; the same. */
int ctl_options_duration(struct ctl_options *o, uint32_t *out);

/* For commands without arguments: 0, or CTL_OPTIONS_EXIT after a message. */
int ctl_options_no_arguments(struct ctl_options *o);

#endif
