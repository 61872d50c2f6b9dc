/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load-bench - how long a model takes to load out of the page cache, and how much memory.
 *
 * Three things in turn, round by round, on the same file: to read it, to read and hash it (both in the pieces
 * of a load, by one thread), and to load it.  Printed are medians of the time that passed and of the processor's
 * time of all threads, which says more where others use the machine, too: in the program, and in the kernel, which
 * copies the file and clears fresh pages (where the machine is a virtual one, its host may have to find them first);
 * and the most memory that was there in a load beyond the weights.  A NAME:TYPE of kvd --synthetic is first made into
 * a file in memory.
 */
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/model/model.h"
#include "daemon/model/synthetic.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/base/hash.h"
#include "kernels/backend.h"

#define PIECE (192u << 10)
#define MAX_ROUNDS 64

static const char usage[] =
	"usage: load-bench [-r ROUNDS] [-t THREADS] [--level NAME] FILE|NAME:TYPE...\n";

static struct kb_backend *be;
static uint8_t piece[PIECE];

__attribute__((noreturn)) static void die(const char *what, const char *why)
{
	fprintf(stderr, "load-bench: %s: %s\n", what, why);
	exit(1);
}

static void check(int err, const char *what)
{
	if (err)
		die(what, strerror(-err));
}

struct times {
	double wall[MAX_ROUNDS], user[MAX_ROUNDS], kernel[MAX_ROUNDS];	/* seconds */
};

static double seconds(const struct timeval *t)
{
	return (double)t->tv_sec + 1e-6 * (double)t->tv_usec;
}

static int compare(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static double median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof(*v), compare);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static void print(const char *name, struct times *t, int n, uint64_t bytes)
{
	double wall = median(t->wall, n);

	printf("  %-14s %7.3f s  %6.2f GB/s   processor: program %7.3f s, kernel %7.3f s\n", name, wall,
	       (double)bytes / wall * 1e-9, median(t->user, n), median(t->kernel, n));
}

/* VmHWM or VmRSS of proc_pid_status(5), in bytes. */
static uint64_t memory(const char *field)
{
	FILE *f = fopen("/proc/self/status", "re");
	unsigned long long kib = 0;
	char line[256];

	while (f && fgets(line, sizeof(line), f))
		if (strncmp(line, field, strlen(field)) == 0)
			kib = strtoull(line + strlen(field) + 1, NULL, 10);
	if (f)
		fclose(f);
	return kib << 10;
}

static void forget_most(void)
{
	int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);

	if (fd < 0 || fd_write_full(fd, "5", 1))
		die("/proc/self/clear_refs", "the most memory that there was can't be reset");
	close(fd);
}

static int open_synthetic(const char *what)
{
	int fd = memfd_create(what, MFD_CLOEXEC);
	struct synthetic *s = NULL;
	struct diag diag = DIAG_NULL;
	const uint8_t *head;
	size_t n;

	if (fd < 0)
		die(what, strerror(errno));
	if (synthetic_new(&s, what, &diag))
		die(what, diag.text);
	head = gguf_header(synthetic_header(s), &n);
	check(fd_write_full(fd, head, n), what);
	for (uint64_t at = n, size = gguf_file_size(synthetic_header(s)); at < size; at += n) {
		n = (size_t)MIN(size - at, (uint64_t)PIECE);
		synthetic_read(s, piece, n, at);
		check(fd_write_full(fd, piece, n), what);
	}
	synthetic_free(s);
	return fd;
}

static void read_all(int fd, uint64_t size, struct hasher *hasher)
{
	for (uint64_t at = 0; at < size; at += PIECE) {
		size_t n = (size_t)MIN(size - at, (uint64_t)PIECE);

		check(fd_pread_full(fd, piece, n, at), "reading");
		if (hasher)
			hasher_update(hasher, piece, n);
	}
}

struct bench {
	const char *name;
	int fd;
	uint64_t size, weights, beyond;	/* bytes */
	struct times read, hash, load;
};

#define TIMED(times, i, work) do { \
		struct rusage before_, after_; \
		uint64_t wall_ = clock_ns(); \
		getrusage(RUSAGE_SELF, &before_); \
		work; \
		getrusage(RUSAGE_SELF, &after_); \
		(times).wall[i] = 1e-9 * (double)(clock_ns() - wall_); \
		(times).user[i] = seconds(&after_.ru_utime) - seconds(&before_.ru_utime); \
		(times).kernel[i] = seconds(&after_.ru_stime) - seconds(&before_.ru_stime); \
	} while (0)

static void load(struct bench *b, const struct model_options *options, int i)
{
	struct diag diag = DIAG_NULL;
	struct model *m = NULL;
	uint64_t before;

	forget_most();
	before = memory("VmRSS:");
	TIMED(b->load, i, if (model_load(&m, be, b->fd, b->name, options, &diag)) die(b->name, diag.text));
	b->weights = model_info(m)->weight_bytes;
	b->beyond = MAX(b->beyond, memory("VmHWM:") - before - MIN(b->weights, memory("VmHWM:") - before));
	model_free(m);
}

static void round_once(struct bench *b, const struct model_options *options, int i)
{
	struct hasher *hasher;

	check(hasher_new(&hasher), "memory");
	TIMED(b->read, i, read_all(b->fd, b->size, NULL));
	TIMED(b->hash, i, read_all(b->fd, b->size, hasher));
	hasher_free(hasher);
	load(b, options, i);
}

static void run(const char *name, const struct model_options *options, int n_rounds)
{
	struct bench b = { .name = name };
	struct stat st;

	b.fd = strchr(name, ':') ? open_synthetic(name) : open(name, O_RDONLY | O_CLOEXEC);
	if (b.fd < 0 || fstat(b.fd, &st))
		die(name, strerror(errno));
	b.size = (uint64_t)st.st_size;
	round_once(&b, options, 0);	/* not counted: the file gets into the page cache */
	b.beyond = 0;
	for (int i = 0; i < n_rounds; i++)
		round_once(&b, options, i);
	printf("%s: %.1f MB, weights %.1f MB, at most %.1f MB of memory beyond\n", name, (double)b.size * 1e-6,
	       (double)b.weights * 1e-6, (double)b.beyond * 1e-6);
	print("read", &b.read, n_rounds, b.size);
	print("read and hash", &b.hash, n_rounds, b.size);
	print("load", &b.load, n_rounds, b.size);
	close(b.fd);
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "level", required_argument, NULL, 'l' }, { "help", no_argument, NULL, 'h' }, { 0 },
	};
	struct kb_cpu_options cpu = { 0 };
	struct model_options options = { 0 };
	int c, n_rounds = 5;

	while ((c = getopt_long(argc, argv, "r:t:h", longs, NULL)) != -1) {
		switch (c) {
		case 'r': n_rounds = atoi(optarg); break;
		case 't': cpu.n_threads = options.n_threads = (uint32_t)strtoul(optarg, NULL, 10); break;
		case 'l': cpu.level = optarg; break;
		case 'h': fputs(usage, stdout); return 0;
		default: fputs(usage, stderr); return 2;
		}
	}
	if (optind == argc || n_rounds < 1 || n_rounds > MAX_ROUNDS) {
		fputs(usage, stderr);
		return 2;
	}
	check(kb_cpu_open(&cpu, &be), "the CPU backend");
	for (int i = optind; i < argc; i++)
		run(argv[i], &options, n_rounds);
	be->ops->close(be);
	return 0;
}
