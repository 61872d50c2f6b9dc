/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/life.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/server/kernel-text.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"

#define PAGE_MAGIC 0x4546494cu
#define PAGE_VERSION 1u
#define PAGE_BYTES 4096
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define UNKNOWN UINT64_MAX

struct page {
	uint32_t magic, version;
	_Atomic uint64_t ended, crashed, n_crashes;
	_Atomic uint64_t machine, group, group_id;
};

struct counts {
	uint64_t machine, group, group_id;
};

struct life {
	int fd;
	struct page *page;
	enum life_end last;
	uint64_t began_ns;
	const char *proc, *cgroup;
	char buf[KERNEL_TEXT_MAX];
};

/* --- what the kernel counts --------------------------------------------------------- */

static void read_counts(struct life *l, struct counts *out)
{
	char folder[PATH_MAX];
	struct stat st;
	uint64_t n;

	*out = (struct counts){ UNKNOWN, UNKNOWN, UNKNOWN };
	if (!kernel_text_read(l->proc, "vmstat", l->buf) && kernel_text_number(l->buf, "oom_kill ", &n))
		out->machine = n;
	if (kernel_text_own_group(l->proc, l->cgroup, l->buf, folder, sizeof(folder)) || stat(folder, &st) < 0)
		return;
	if (!kernel_text_read(folder, "memory.events", l->buf) && kernel_text_number(l->buf, "oom_kill ", &n)) {
		out->group = n;
		out->group_id = st.st_ino;
	}
}

/* Whether the kernel has killed since then: in the group, if it is the same one, else anywhere. */
static bool killed_since(const struct counts *then, const struct counts *now)
{
	if (now->group != UNKNOWN && then->group != UNKNOWN && now->group_id == then->group_id &&
	    now->group >= then->group)
		return now->group > then->group;
	return now->machine != UNKNOWN && then->machine != UNKNOWN && now->machine > then->machine;
}

static void note(struct page *p, const struct counts *counts)
{
	/* So that a count is never taken for that of another group. */
	atomic_store(&p->group, UNKNOWN);
	atomic_store(&p->group_id, counts->group_id);
	atomic_store(&p->group, counts->group);
	atomic_store(&p->machine, counts->machine);
}

/* --- the page ------------------------------------------------------------------------- */

static bool is_page(int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	return seals >= 0 && (seals & SEALS) == SEALS && !(seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) &&
		fstat(fd, &st) == 0 && st.st_size == PAGE_BYTES;
}

static int make_page(void)
{
	_cleanup_(fd_closep) int fd = memfd_create("kvd-life", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, PAGE_BYTES) < 0 || fcntl(fd, F_ADD_SEALS, SEALS) < 0)
		return -errno;
	return fd_steal(&fd);
}

static int map_page(struct life *l)
{
	void *at = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, l->fd, 0);

	if (at == MAP_FAILED)
		return -errno;
	l->page = at;
	return 0;
}

/* The page that came, or a new one. */
static int open_page(struct life *l, int fd)
{
	l->fd = fd;
	if (fd >= 0 && is_page(fd) && !map_page(l))
		return 0;
	fd_closep(&l->fd);
	l->fd = make_page();
	return l->fd < 0 ? l->fd : map_page(l);
}

static enum life_end judge(const struct page *p, const struct counts *now)
{
	const struct counts then = { atomic_load(&p->machine), atomic_load(&p->group), atomic_load(&p->group_id) };

	if (p->magic != PAGE_MAGIC || p->version != PAGE_VERSION)
		return LIFE_NONE;
	if (atomic_load(&p->ended) == 1)
		return LIFE_ENDED;
	if (killed_since(&then, now))
		return LIFE_OUT_OF_MEMORY;
	if (atomic_load(&p->crashed) == 1 && atomic_load(&p->n_crashes) + 1 >= LIFE_CRASHES_MAX)
		return LIFE_CRASHES;
	return LIFE_BROKEN;
}

/* What the last life has left becomes the beginning of this one. */
static void begin(struct page *p, enum life_end last, const struct counts *now)
{
	uint64_t n_crashes = 0;

	if (last == LIFE_BROKEN)
		n_crashes = atomic_load(&p->n_crashes) + (atomic_load(&p->crashed) == 1);
	atomic_store(&p->ended, 0);
	atomic_store(&p->n_crashes, n_crashes);
	atomic_store(&p->crashed, 0);
	note(p, now);
	p->version = PAGE_VERSION;
	p->magic = PAGE_MAGIC;
}

/* --- crashes ---------------------------------------------------------------------------- */

static _Atomic(struct page *) watched;
static const int crash_signals[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGTRAP };

/* SA_RESETHAND has put the default back: raised again, the signal ends the process when this returns. */
static void on_crash(int number)
{
	struct page *p = atomic_load(&watched);

	if (p)
		atomic_store(&p->crashed, 1);
	raise(number);
}

void life_watch_crashes(struct life *l)
{
	struct sigaction old, action = { .sa_handler = on_crash, .sa_flags = SA_RESETHAND | SA_ONSTACK };

	atomic_store(&watched, l->page);
	for (size_t i = 0; i < sizeof(crash_signals) / sizeof(crash_signals[0]); i++) {
		/* A sanitizer has something to say first. */
		if (sigaction(crash_signals[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL)
			sigaction(crash_signals[i], &action, NULL);
	}
}

/* --- life --------------------------------------------------------------------------------- */

int life_new(struct life **out, int fd, const char *proc, const char *cgroup)
{
	_cleanup_(fd_closep) int given = fd;
	_cleanup_(life_freep) struct life *l = calloc(1, sizeof(*l));
	struct counts now;
	int r;

	if (!l)
		return -ENOMEM;
	l->began_ns = clock_ns();
	l->proc = proc;
	l->cgroup = cgroup;
	r = open_page(l, fd_steal(&given));
	if (r)
		return r;
	read_counts(l, &now);
	l->last = judge(l->page, &now);
	begin(l->page, l->last, &now);
	*out = steal_ptr(l);
	return 0;
}

void life_free(struct life *l)
{
	if (!l)
		return;
	if (l->page) {
		struct page *p = l->page;

		atomic_compare_exchange_strong(&watched, &p, NULL);
		munmap(l->page, PAGE_BYTES);
	}
	fd_closep(&l->fd);
	free(l);
}

enum life_end life_last(const struct life *l)
{
	return l->last;
}

int life_fd(const struct life *l)
{
	return l->fd;
}

void life_note(struct life *l)
{
	struct counts now;

	read_counts(l, &now);
	note(l->page, &now);
	if (clock_ns() - l->began_ns > LIFE_CRASH_NS)
		atomic_store(&l->page->n_crashes, 0);
}

void life_end(struct life *l)
{
	atomic_store(&l->page->ended, 1);
}
