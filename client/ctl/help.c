/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/help.h"

const char help_global[] =
	"global options, before or after the command:\n"
	"  --socket PATH        the daemon's socket (default: $KVD_SOCKET, then the user's\n"
	"                       runtime directory, then /run/kvd/kvd.sock)\n"
	"  --json               JSON instead of text\n"
	"  -h, --help           this text\n";

#define HELP_CACHE_OPTIONS \
	"  --namespace NAME     whose cache: own (default), group:NAME or public, where permitted\n" \
	"  --cache-key KEY      a part of it by itself\n" \
	"  --ttl TIME           what is left there expires so long after its last use: 30s, 10m, 1h, 7d\n" \
	"  --priority P         low, normal or high: what goes first when room is needed\n" \
	"  --pin                what the prompt filled stays until it is unpinned\n"

#define HELP_SAMPLING \
	"  -m, --model MODEL    a loaded model's name, or a GGUF file: with no daemon there, a\n" \
	"                       private one is started that exits when idle\n" \
	"  -n, --n-predict N    at most N tokens (default 512)\n" \
	"  -t, --temperature T  0 is greedy (default 0.8)\n" \
	"  --top-k K            only the K most likely tokens (default 0: off)\n" \
	"  --top-p P            only the most likely tokens that make up P (default 0.95)\n" \
	"  --min-p P            only tokens of at least P times the best one's probability\n" \
	"                       (default 0.05)\n" \
	"  --repeat-penalty R   divide the odds of recent tokens (default 1: off)\n" \
	"  --seed S             the same seed, the same answer (default: random)\n" \
	"  --stop STR           end before this text; may be given up to 16 times\n" \
	"  --system TEXT        a system message before the first one\n" \
	"  -q, --quiet          no progress and no figures on stderr\n" \
	HELP_CACHE_OPTIONS \
	"  --no-cache           no part in the cache\n"

const char help_generate[] =
	"The prompt is the argument, the file of -f, or standard input ('-', or no prompt and\n"
	"input that is not a terminal).\n\n"
	"options:\n"
	HELP_SAMPLING
	"  -f, --file FILE      read the prompt from FILE\n"
	"  --raw                the prompt as it is, without the model's chat template\n"
	"  --chat               through the chat template, or fail (default: where there is one)\n"
	"  --logprobs N         a table of tokens with log-probabilities and N alternatives (0..32)\n"
	"  --ignore-eos         go on after the end-of-text token\n\n";

const char help_chat[] =
	"One line is one message. /quit (or Ctrl-D) ends, /reset forgets the conversation,\n"
	"/system TEXT changes the system message and forgets, /help explains; Ctrl-C stops a reply.\n\n"
	"options:\n"
	HELP_SAMPLING "\n";

const char help_tokenize[] =
	"Prints one token per line: its id and its text.\n\n"
	"options:\n"
	"  -m, --model MODEL    as for generate\n"
	"  --ids                only the ids, on one line\n"
	"  --bos                begin with BOS where the model asks for it\n"
	"  --special            control tokens written in the text count as such\n"
	"  -f, --file FILE      read the text from FILE\n\n";

const char help_load[] =
	"Opens the GGUF file and passes it to the daemon, which needs no access to it.\n\n"
	"options:\n"
	"  --name NAME          what to call it (default: the file's name without .gguf)\n"
	"  --ctx N              the longest sequence, in tokens (default: as the daemon is set)\n"
	"  -q, --quiet          no progress on stderr\n\n";

const char help_unload[] =
	"New requests for the model are refused at once; it goes when those that it has have ended.\n\n"
	"options:\n"
	"  --now                end its requests\n\n";

const char help_perplexity[] =
	"Cuts the text into windows of N tokens and scores the second half of each.\n\n"
	"options:\n"
	"  -m, --model MODEL    as for generate\n"
	"  --ctx N              tokens in a window (default 512)\n"
	"  -q, --quiet          no progress on stderr\n\n";

const char help_bench[] =
	"Runs kvd-bench, with daemons of its own where a table needs one; \"kvctl bench --help\" has its tables and\n"
	"options.\n\n";

const char help_cache[] =
	"  ls [-m MODEL] [--namespace NAME]   what is there, as a tree\n"
	"  show [-m MODEL] ID                 one entry of it\n"
	"  pin [-m MODEL] ID...               keep it and what is before it\n"
	"  unpin [-m MODEL] [--all] ID...     keep it no longer\n"
	"  drop [-m MODEL] ID...              remove it and what is after it\n"
	"  wipe [-m MODEL] [--namespace NAME | --all] [--yes]   remove all of one's own\n"
	"  warm [OPTION]... [PROMPT|-]        compute a prompt ahead of its use\n"
	"  export [-m MODEL] [--namespace NAME] FILE|-          write one's own into a file\n"
	"  import [-m MODEL] [--cache-key KEY] FILE|-           take such a file into one's own\n"
	"  verify [-m MODEL] [--namespace NAME] [-n COUNT | --all]   compute a sample again, and compare\n\n"
	"\"kvctl cache COMMAND --help\" has the options of each.\n\n";

#define HELP_MODEL "  -m, --model MODEL    of this model (default: the daemon's default one)\n"

const char help_cache_ls[] =
	"A line for each stretch of tokens without branches: its number, tokens, size, where it lies, age, time since\n"
	"its last use, later uses, pins, who is charged, and how its text begins.\n\n"
	"options:\n"
	"  -m, --model MODEL    of this model (default: all)\n"
	"  --namespace NAME     only this one and those below it\n\n";

const char help_cache_show[] = "options:\n" HELP_MODEL "\n";

const char help_cache_pin[] =
	"What is pinned is not let go when room is needed, and does not expire; it is charged to\n"
	"who pinned it, too.\n\n"
	"options:\n" HELP_MODEL "\n";

const char help_cache_unpin[] = "options:\n" HELP_MODEL "  --all                everybody's pins (administrators)\n\n";

const char help_cache_drop[] = "options:\n" HELP_MODEL "\n";

const char help_cache_wipe[] =
	"options:\n"
	"  -m, --model MODEL    of this model (default: of all)\n"
	"  --namespace NAME     only this one and those below it, e.g. own/KEY\n"
	"  --all                everybody's (administrators)\n"
	"  --yes                do not ask\n\n";

const char help_cache_warm[] =
	"Computes a prompt, so that it is in the cache when a request begins with it; the prompt comes from where\n"
	"generate takes it.\n\n"
	"options:\n"
	"  -m, --model MODEL    as for generate\n"
	"  -f, --file FILE      read the prompt from FILE\n"
	"  --raw, --chat        as for generate\n"
	"  --system TEXT        a system message before it\n"
	HELP_CACHE_OPTIONS
	"  -q, --quiet          no progress on stderr\n\n";

const char help_cache_export[] =
	"Writes what one has in the cache into a new file, or to standard output: keys and values, and the\n"
	"tokens that they are of.  Whoever can read the file can read the prompts.\n\n"
	"options:\n" HELP_MODEL
	"  --namespace NAME     this one and those below it, e.g. own/KEY (default: own)\n"
	"  -q, --quiet          no progress on stderr\n\n";

const char help_cache_import[] =
	"Takes what was exported, from the same model on the same kind of machine, into one's own part of the\n"
	"cache.  The daemon can't know whether the numbers are right (\"kvctl cache verify\" can): take only what\n"
	"you trust.\n\n"
	"options:\n" HELP_MODEL
	"  --cache-key KEY      all into this part of it by itself (default: as it was exported)\n"
	"  -q, --quiet          no progress on stderr\n\n";

const char help_cache_verify[] =
	"Computes entries that are chosen at random again, each with all before it, and compares them to the\n"
	"bit with what is stored; what differs is dropped, and the exit status is 1.\n\n"
	"options:\n" HELP_MODEL
	"  --namespace NAME     only this one and those below it (default: all that one sees)\n"
	"  -n, --count COUNT    so many entries at least, if they are there (default 64)\n"
	"  --all                all of them\n"
	"  -q, --quiet          no progress on stderr\n\n";
