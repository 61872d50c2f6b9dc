/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl: the table of commands and the global options. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "client/ctl/help.h"

static const struct ctl_command commands[] = {
	{ "generate", "[-m MODEL] [OPTION]... [PROMPT|-]", "continue a prompt, or answer it",
	  help_generate, cmd_generate },
	{ "chat", "[-m MODEL] [OPTION]...", "a conversation in the terminal", help_chat, cmd_chat },
	{ "tokenize", "[-m MODEL] [--ids] [--bos] [--special] [TEXT|-]", "the token ids of a text",
	  help_tokenize, cmd_tokenize },
	{ "ps", "", "who is running what", "", cmd_ps },
	{ "status", "", "the daemon, its device and its figures", "", cmd_status },
	{ "models", "", "the models that are loaded", "", cmd_models },
	{ "load", "[--name NAME] [--ctx N] FILE", "have the daemon load a model", help_load, cmd_load },
	{ "unload", "[--now] MODEL", "have the daemon unload a model", help_unload, cmd_unload },
	{ "cache", "ls|show|pin|unpin|drop|wipe|warm [ARGUMENT]...", "what is kept of prompts, and for whom",
	  help_cache, cmd_cache },
	{ "perplexity", "[-m MODEL] [--ctx N] FILE|-", "how well a model predicts a text", help_perplexity,
	  cmd_perplexity },
	{ "bench", "[OPTION]... [TABLE]...", "what this machine makes of a model, in tables", help_bench, cmd_bench },
	{ "version", "", "versions of kvctl and of the daemon", "", cmd_version },
	{ "help", "[COMMAND]", "this text, or that of a command", "", cmd_help },
};

const struct ctl_command *ctl_find_command(const char *name)
{
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (!strcmp(commands[i].name, name))
			return &commands[i];
	return NULL;
}

static void print_general_help(void)
{
	printf("usage: kvctl [--socket PATH] [--json] COMMAND [ARGUMENT]...\n\ncommands:\n");
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		printf("  %-10s %s\n", commands[i].name, commands[i].summary);
	printf("\n%s  -V, --version        the version of kvctl (before a command)\n\n"
	       "\"kvctl COMMAND --help\" has the options of a command; kvctl(1) has everything.\n",
	       help_global);
}

void ctl_print_help(const struct ctl_command *command)
{
	if (!command) {
		print_general_help();
		return;
	}
	printf("usage: kvctl [--socket PATH] [--json] %s%s%s\n\n%s.\n\n%s%s", command->name,
	       *command->synopsis ? " " : "", command->synopsis, command->summary, command->help,
	       help_global);
}

int cmd_help(struct ctl *ctl, int argc, char **argv)
{
	static const struct option longs[] = { CTL_GLOBAL_OPTIONS, { 0 } };
	struct ctl_options o = { .ctl = ctl, .argc = argc, .argv = argv, .shorts = ":h", .longs = longs };
	const struct ctl_command *command = NULL;

	if (ctl_options_next(&o) != CTL_OPTIONS_END)
		return o.status;
	if (optind + 1 < argc)
		return ctl_usage(ctl, "one command at most: %s", argv[optind + 1]);
	if (optind < argc) {
		command = ctl_find_command(argv[optind]);
		if (!command)
			return ctl_usage(ctl, "unknown command: %s", argv[optind]);
	}
	ctl_print_help(command);
	return CTL_OK;
}

/* Stdout is checked at the end, since a full disk shows up no earlier. */
static int finish(const struct ctl *ctl, int status)
{
	if ((fflush(stdout) || ferror(stdout)) && status == CTL_OK) {
		ctl_error(ctl, "cannot write the output");
		return CTL_FAILED;
	}
	return status;
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "version", no_argument, NULL, 'V' },
		CTL_GLOBAL_OPTIONS,
		{ 0 },
	};
	struct ctl ctl = { 0 };
	/* '+': what follows the command is the command's */
	struct ctl_options o = { .ctl = &ctl, .argc = argc, .argv = argv, .shorts = "+:hV", .longs = longs };

	/* a closed pipe is an error of write(), so that the request can be cancelled */
	signal(SIGPIPE, SIG_IGN);
	for (;;) {
		int c = ctl_options_next(&o);
		if (c == CTL_OPTIONS_EXIT)
			return finish(&ctl, o.status);
		if (c == CTL_OPTIONS_END)
			break;
		printf("kvctl %s\n", kvd_version());
		return finish(&ctl, CTL_OK);
	}
	if (optind == argc)
		return ctl_usage(&ctl, "no command given");
	ctl.command = ctl_find_command(argv[optind]);
	if (!ctl.command)
		return ctl_usage(&ctl, "unknown command: %s", argv[optind]);
	argv += optind;
	argc -= optind;
	optind = 0;	/* getopt starts anew */
	return finish(&ctl, ctl.command->run(&ctl, argc, argv));
}
