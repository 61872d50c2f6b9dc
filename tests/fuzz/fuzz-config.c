/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration file from any bytes.  What is refused is refused with a
 * sentence that names the file; what is taken is printed as a file that means
 * the same.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/config.h"
#include "ipc/base/checked.h"
#include "tests/fuzz/fuzz.h"

struct file {
	int fd;
	char path[32];
};

static struct file file_of(const void *data, size_t n)
{
	struct file f = { .fd = memfd_create("fuzz-config", MFD_CLOEXEC) };

	FUZZ_CHECK(f.fd >= 0);
	FUZZ_CHECK(write(f.fd, data, n) == (ssize_t)n);
	snprintf(f.path, sizeof(f.path), "/proc/self/fd/%d", f.fd);
	return f;
}

/* With --print-config, since that asks for no model. */
static int parse(struct config *c, const struct file *f, struct diag *diag)
{
	char program[] = "kvd", option[] = "--config", print[] = "--print-config", path[sizeof(f->path)];
	char *argv[] = { program, option, path, print, NULL };

	memcpy(path, f->path, sizeof(path));
	return config_init(c, ARRAY_SIZE(argv) - 1, argv, diag);
}

/* free() it. */
static char *print(const struct config *c, size_t *n)
{
	char *text;
	FILE *f = open_memstream(&text, n);

	FUZZ_CHECK(f);
	config_print(c, f);
	fclose(f);
	return text;
}

static void check_taken(const struct config *c)
{
	struct config again;
	struct diag diag = DIAG_NULL;
	size_t n, n_again;
	char *text = print(c, &n), *text_again;
	struct file f = file_of(text, n);
	int r = parse(&again, &f, &diag);

	if (r)
		fprintf(stderr, "%s\n%s\n", diag.text, text);
	FUZZ_CHECK(r == 0);
	text_again = print(&again, &n_again);
	FUZZ_CHECK(n == n_again && memcmp(text, text_again, n) == 0);
	config_deinit(&again);
	free(text);
	free(text_again);
	close(f.fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct config config;
	struct diag diag = DIAG_NULL;
	struct file f = file_of(data, n);
	int r;

	unsetenv("KVD_SOCKET");
	unsetenv("KVD_TEST_STEP_DELAY_MS");
	r = parse(&config, &f, &diag);
	if (r == 0)
		check_taken(&config);
	else
		FUZZ_CHECK(r == -EINVAL && strstr(diag.text, f.path));
	config_deinit(&config);
	close(f.fd);
	return 0;
}
