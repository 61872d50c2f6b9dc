/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay.c - gives files to a fuzz target, one after another, without libFuzzer.
 *
 *     replay-NAME FILE-OR-FOLDER...
 *
 * Without arguments: the target's seeds and the inputs that once broke it,
 * tests/fuzz/seeds/NAME and tests/fuzz/regress/NAME.  Speaks TAP.  Each file is
 * given a process of its own, so that one failure does not hide the others.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

#define INPUT_MAX (4u << 20)
#define FILES_MAX 4096
#define SECONDS 60	/* for one input, sanitizers included */

struct files {
	char *paths[FILES_MAX];
	size_t n;
};

static void add(struct files *files, const char *folder, const char *name)
{
	if (files->n == FILES_MAX || asprintf(&files->paths[files->n], "%s%s%s", folder, name ? "/" : "",
					      name ? name : "") < 0) {
		fprintf(stderr, "replay: too many files\n");
		exit(2);
	}
	files->n++;
}

static int not_hidden(const struct dirent *d)
{
	return d->d_name[0] != '.';
}

/* The files of a folder in order, or the file itself. */
static void add_path(struct files *files, const char *path)
{
	struct dirent **names;
	struct stat st;
	int n;

	if (stat(path, &st) < 0) {
		fprintf(stderr, "replay: %s: %s\n", path, strerror(errno));
		exit(2);
	}
	if (!S_ISDIR(st.st_mode)) {
		add(files, path, NULL);
		return;
	}
	n = scandir(path, &names, not_hidden, alphasort);
	for (int i = 0; i < n; i++) {
		add(files, path, names[i]->d_name);
		free(names[i]);
	}
	if (n >= 0)
		free(names);
}

static size_t read_file(const char *path, uint8_t *buf)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t n = 0;
	ssize_t got;

	if (fd < 0) {
		fprintf(stderr, "replay: %s: %s\n", path, strerror(errno));
		exit(2);
	}
	while ((got = read(fd, buf + n, INPUT_MAX - n)) > 0)
		n += (size_t)got;
	close(fd);
	return n;
}

static bool run(const char *path, uint8_t *buf)
{
	size_t n = read_file(path, buf);
	int status = 0;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		uint8_t *copy = fuzz_copy(buf, n);

		alarm(SECONDS);
		LLVMFuzzerTestOneInput(copy, n);
		free(copy);
		exit(0);	/* leaks are looked for here */
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0) {
		fprintf(stderr, "replay: %s\n", strerror(errno));
		exit(2);
	}
	if (WIFSIGNALED(status))
		printf("# signal %d\n", WTERMSIG(status));
	return status == 0;
}

/* seeds/NAME and regress/NAME of replay-NAME. */
static void add_own(struct files *files, const char *program)
{
	const char *name = strrchr(program, '/');
	char path[256];
	struct stat st;

	name = name ? name + 1 : program;
	if (strncmp(name, "replay-", 7) == 0)
		name += 7;
	snprintf(path, sizeof(path), "tests/fuzz/seeds/%s", name);
	add_path(files, path);
	snprintf(path, sizeof(path), "tests/fuzz/regress/%s", name);
	if (stat(path, &st) == 0)
		add_path(files, path);
}

int main(int argc, char **argv)
{
	static struct files files;
	uint8_t *buf = malloc(INPUT_MAX);
	bool all = true;

	if (!buf)
		return 2;
	if (argc < 2)
		add_own(&files, argv[0]);
	for (int i = 1; i < argc; i++)
		add_path(&files, argv[i]);
	printf("1..%zu\n", files.n);
	for (size_t i = 0; i < files.n; i++) {
		bool ok = run(files.paths[i], buf);

		printf("%sok %zu %s\n", ok ? "" : "not ", i + 1, files.paths[i]);
		all = all && ok;
	}
	for (size_t i = 0; i < files.n; i++)
		free(files.paths[i]);
	free(buf);
	return all ? 0 : 1;
}
