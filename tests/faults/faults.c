/* SPDX-License-Identifier: Apache-2.0 */
/*
 * faults.c - makes system calls and allocations of kvd fail, for tests.
 *
 * Linked into tests/kvd-faults, which is kvd's own objects with the functions
 * below wrapped by the linker (-Wl,--wrap=NAME, see the Makefile).  What libraries allocate
 * inside is reached through their constructors, and libevent and jansson through the hooks
 * they offer.
 *
 * KVD_TEST_FAULTS names a file of struct fault_control, mapped shared: the test
 * arms faults there while the daemon runs, and reads what happened.  Without
 * it nothing fails.  A kind fails
 *
 *     by count: the call whose number is `at` (numbers count from 1), once;
 *     at random: one call in `one_in`, by a generator seeded with `seed`.
 *
 * Each injected fault leaves the address of its caller, relative to the
 * program's start, in `trace`: addr2line names the line.
 */
#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum fault_kind { FAULT_ALLOC, FAULT_READ, FAULT_MAP, FAULT_THREAD, FAULT_FILE, FAULT_DISK, FAULT_N_KINDS };

#define FAULT_TRACE 256u

/* The layout is known to tests/daemon/faults.py. */
struct fault_control {
	_Atomic uint64_t armed;		/* 0: calls are counted, none fails */
	_Atomic uint64_t seed;
	_Atomic uint64_t n_trace;
	struct {
		_Atomic uint64_t calls, injected, at, one_in;
	} kinds[FAULT_N_KINDS];
	struct {
		_Atomic uint64_t kind, caller;
	} trace[FAULT_TRACE];
	_Atomic int64_t clock_ns;	/* CLOCK_REALTIME is so far ahead */
};

extern const char __executable_start;

static struct fault_control *control;

/* Of Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators". */
static uint64_t splitmix64(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

/* Whether this call is to fail. */
static bool fails(enum fault_kind kind, void *caller)
{
	uint64_t call, one_in, place;

	if (!control)
		return false;
	call = atomic_fetch_add(&control->kinds[kind].calls, 1) + 1;
	if (!atomic_load(&control->armed))
		return false;
	one_in = atomic_load(&control->kinds[kind].one_in);
	if (call != atomic_load(&control->kinds[kind].at) &&
	    (!one_in || splitmix64(atomic_load(&control->seed) ^ (call * FAULT_N_KINDS + kind)) % one_in))
		return false;
	atomic_fetch_add(&control->kinds[kind].injected, 1);
	place = atomic_fetch_add(&control->n_trace, 1) % FAULT_TRACE;
	atomic_store(&control->trace[place].kind, kind);
	atomic_store(&control->trace[place].caller,
		     (uint64_t)((uintptr_t)caller - (uintptr_t)&__executable_start));
	return true;
}

#define FAILS(kind) fails(kind, __builtin_return_address(0))

/* --- memory ---------------------------------------------------------------------- */

#define WRAP_ALLOC(name, parameters, arguments) \
	void *__real_##name parameters; \
	void *__wrap_##name parameters; \
	void *__wrap_##name parameters \
	{ \
		if (FAILS(FAULT_ALLOC)) { \
			errno = ENOMEM; \
			return NULL; \
		} \
		return __real_##name arguments; \
	}

WRAP_ALLOC(malloc, (size_t n), (n))
WRAP_ALLOC(calloc, (size_t n, size_t size), (n, size))
WRAP_ALLOC(realloc, (void *p, size_t n), (p, n))
WRAP_ALLOC(reallocarray, (void *p, size_t n, size_t size), (p, n, size))
WRAP_ALLOC(aligned_alloc, (size_t alignment, size_t n), (alignment, n))
WRAP_ALLOC(strdup, (const char *s), (s))
WRAP_ALLOC(strndup, (const char *s, size_t n), (s, n))
WRAP_ALLOC(msgpack_zone_new, (size_t n), (n))
WRAP_ALLOC(msgpack_zone_malloc_expand, (void *zone, size_t n), (zone, n))
WRAP_ALLOC(XXH3_createState, (void), ())
WRAP_ALLOC(pcre2_match_data_create_8, (uint32_t n, void *context), (n, context))
WRAP_ALLOC(pcre2_match_context_create_8, (void *context), (context))

int __wrap_asprintf(char **out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int __wrap_asprintf(char **out, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (FAILS(FAULT_ALLOC)) {
		errno = ENOMEM;
		return -1;
	}
	va_start(ap, fmt);
	n = vasprintf(out, fmt, ap);
	va_end(ap);
	return n;
}

pcre2_code *__real_pcre2_compile_8(PCRE2_SPTR pattern, PCRE2_SIZE n, uint32_t options, int *error,
				   PCRE2_SIZE *offset, pcre2_compile_context *context);
pcre2_code *__wrap_pcre2_compile_8(PCRE2_SPTR pattern, PCRE2_SIZE n, uint32_t options, int *error,
				   PCRE2_SIZE *offset, pcre2_compile_context *context);
pcre2_code *__wrap_pcre2_compile_8(PCRE2_SPTR pattern, PCRE2_SIZE n, uint32_t options, int *error,
				   PCRE2_SIZE *offset, pcre2_compile_context *context)
{
	if (FAILS(FAULT_ALLOC)) {
		*error = PCRE2_ERROR_HEAP_FAILED;
		*offset = 0;
		return NULL;
	}
	return __real_pcre2_compile_8(pattern, n, options, error, offset, context);
}

/* --- reading ---------------------------------------------------------------------- */

ssize_t __real_read(int fd, void *buf, size_t n);
ssize_t __wrap_read(int fd, void *buf, size_t n);
ssize_t __wrap_read(int fd, void *buf, size_t n)
{
	if (FAILS(FAULT_READ)) {
		errno = EIO;
		return -1;
	}
	return __real_read(fd, buf, n);
}

/* Fails in turn by an error, the end of the file, and a short read. */
ssize_t __real_pread(int fd, void *buf, size_t n, off_t offset);
ssize_t __wrap_pread(int fd, void *buf, size_t n, off_t offset);
ssize_t __wrap_pread(int fd, void *buf, size_t n, off_t offset)
{
	if (!FAILS(FAULT_READ))
		return __real_pread(fd, buf, n, offset);
	switch (atomic_load(&control->kinds[FAULT_READ].injected) % 3) {
	case 0: return 0;
	case 1: return __real_pread(fd, buf, n > 1 ? n / 2 : n, offset);
	}
	errno = EIO;
	return -1;
}

/* --- mappings, threads, files --------------------------------------------------------- */

void *__real_mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
	if (FAILS(FAULT_MAP)) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	return __real_mmap(at, n, protection, flags, fd, offset);
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
	if (FAILS(FAULT_THREAD))
		return EAGAIN;
	return __real_pthread_create(thread, attr, fn, arg);
}

#define WRAP_FAULT(kind, name, error, parameters, arguments) \
	int __real_##name parameters; \
	int __wrap_##name parameters; \
	int __wrap_##name parameters \
	{ \
		if (FAILS(kind)) { \
			errno = error; \
			return -1; \
		} \
		return __real_##name arguments; \
	}

WRAP_FAULT(FAULT_FILE, memfd_create, EMFILE, (const char *name, unsigned flags), (name, flags))
WRAP_FAULT(FAULT_FILE, ftruncate, ENOSPC, (int fd, off_t n), (fd, n))
WRAP_FAULT(FAULT_FILE, eventfd, EMFILE, (unsigned n, int flags), (n, flags))

/* --- the cache on disk, and the time of day ---------------------------------------------- */

ssize_t __real_preadv(int fd, const struct iovec *iov, int n, off_t offset);
ssize_t __wrap_preadv(int fd, const struct iovec *iov, int n, off_t offset);
ssize_t __wrap_preadv(int fd, const struct iovec *iov, int n, off_t offset)
{
	if (FAILS(FAULT_DISK)) {
		errno = EIO;
		return -1;
	}
	return __real_preadv(fd, iov, n, offset);
}

ssize_t __real_pwritev(int fd, const struct iovec *iov, int n, off_t offset);
ssize_t __wrap_pwritev(int fd, const struct iovec *iov, int n, off_t offset);
ssize_t __wrap_pwritev(int fd, const struct iovec *iov, int n, off_t offset)
{
	if (FAILS(FAULT_DISK)) {
		errno = EIO;
		return -1;
	}
	return __real_pwritev(fd, iov, n, offset);
}

WRAP_FAULT(FAULT_DISK, fdatasync, EIO, (int fd), (fd))

int __real_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
	int64_t ahead = control && id == CLOCK_REALTIME ? atomic_load(&control->clock_ns) : 0;
	int r = __real_clock_gettime(id, ts);

	ts->tv_sec += ahead / 1000000000;
	return r;
}

/* --- libevent, jansson, and the start ------------------------------------------------------ */

static void *event_malloc(size_t n)
{
	return __wrap_malloc(n);
}

static void *json_malloc(size_t n)
{
	return __wrap_malloc(n);
}

static void *event_realloc(void *p, size_t n)
{
	return __wrap_realloc(p, n);
}

__attribute__((constructor)) static void start(void)
{
	const char *path = getenv("KVD_TEST_FAULTS");
	void *at;
	int fd;

	if (!path)
		return;
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 || ftruncate(fd, sizeof(struct fault_control)) < 0) {
		perror(path);
		_exit(99);
	}
	at = __real_mmap(NULL, sizeof(struct fault_control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (at == MAP_FAILED) {
		perror(path);
		_exit(99);
	}
	event_set_mem_functions(event_malloc, event_realloc, free);
	json_set_alloc_funcs(json_malloc, free);
	control = at;
}
