/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/input.h"

static int read_file(const struct ctl *ctl, const char *path, struct text_buffer *out)
{
	bool is_stdin = !strcmp(path, "-");
	int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0) {
		ctl_error(ctl, "%s: %s", path, strerror(errno));
		return CTL_FAILED;
	}
	int r = text_read_all(fd, INPUT_MAX, out);
	if (!is_stdin)
		close(fd);
	if (r == -EFBIG)
		ctl_error(ctl, "%s: longer than %u MiB", is_stdin ? "standard input" : path, INPUT_MAX >> 20);
	else if (r)
		ctl_error(ctl, "%s: %s", is_stdin ? "standard input" : path, strerror(-r));
	return r ? CTL_FAILED : 0;
}

int input_text(const struct ctl_options *o, const char *file, const char *what, struct text_buffer *out)
{
	const char *argument = optind < o->argc ? o->argv[optind] : NULL;

	if (optind + 1 < o->argc)
		return ctl_usage(o->ctl, "one %s only, quote it if it has spaces: %s", what,
				 o->argv[optind + 1]);
	if (file && argument)
		return ctl_usage(o->ctl, "-f: a %s is given as an argument too: %s", what, argument);
	if (file)
		return read_file(o->ctl, file, out);
	if (argument && strcmp(argument, "-")) {
		if (text_append(out, argument, strlen(argument))) {
			ctl_error(o->ctl, "out of memory");
			return CTL_FAILED;
		}
		return 0;
	}
	if (!argument && isatty(STDIN_FILENO))
		return ctl_usage(o->ctl, "no %s given", what);
	return read_file(o->ctl, "-", out);
}
