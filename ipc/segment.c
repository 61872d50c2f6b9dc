/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/segment.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/cleanup.h"

#ifndef MFD_NOEXEC_SEAL		/* Linux 6.3 */
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_FUTURE_WRITE	/* Linux 5.1 */
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define SEALS_SHARED (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define SEALS_READONLY (SEALS_SHARED | F_SEAL_FUTURE_WRITE)

static bool ring_size_valid(uint32_t n)
{
	return n >= KVD_RING_MIN && n <= KVD_RING_MAX && (n & (n - 1)) == 0;
}

static bool arena_size_valid(uint32_t n)
{
	return n >= KVD_ARENA_MIN && n <= KVD_ARENA_MAX && n % 4096 == 0;
}

/* These helpers return false, or -1, with errno set. */

static int memfd(const char *name)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	return fd;
}

static bool map(struct segment *out, int fd, size_t size, int protection)
{
	void *p = mmap(NULL, size, protection, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		return false;
	*out = (struct segment){ .fd = fd, .map = p, .size = size };
	return true;
}

/* Created and mapped writable, not sealed yet. */
static bool create(struct segment *out, const char *name, size_t size)
{
	_cleanup_(fd_closep) int fd = memfd(name);

	if (fd < 0 || ftruncate(fd, (off_t)size) < 0 || !map(out, fd, size, PROT_READ | PROT_WRITE))
		return false;
	(void)fd_steal(&fd);
	return true;
}

/* Seals s and moves it to *out. */
static int finish(struct segment *s, int seals, struct segment *out)
{
	int err;

	if (fcntl(s->fd, F_ADD_SEALS, seals) == 0) {
		*out = *s;
		return 0;
	}
	err = -errno;
	segment_deinit(s);
	return err;
}

int segment_new_ring(struct segment *out, uint32_t data_size)
{
	struct segment s;

	if (!ring_size_valid(data_size))
		return -EINVAL;
	if (!create(&s, "kvd-ring", (size_t)KVD_SEGMENT_DATA + data_size))
		return -errno;
	*segment_ring(&s) = (struct kvd_ring_header){
		.magic = KVD_RING_MAGIC, .version = KVD_PROTOCOL_VERSION,
		.data_offset = KVD_SEGMENT_DATA, .data_size = data_size,
	};
	return finish(&s, SEALS_READONLY, out);
}

int segment_new_client(struct segment *out, uint32_t arena_size)
{
	struct segment s;

	if (!arena_size_valid(arena_size))
		return -EINVAL;
	if (!create(&s, "kvd-client", (size_t)KVD_SEGMENT_DATA + arena_size))
		return -errno;
	*segment_client(&s) = (struct kvd_client_header){
		.magic = KVD_SEGMENT_MAGIC, .version = KVD_PROTOCOL_VERSION,
		.arena_offset = KVD_SEGMENT_DATA, .arena_size = arena_size,
	};
	return finish(&s, SEALS_SHARED, out);
}

int segment_new_page(struct segment *out, const char *name, const void *header, size_t n)
{
	struct segment s;

	if (n > KVD_SEGMENT_DATA)
		return -EINVAL;
	if (!create(&s, name, KVD_SEGMENT_DATA))
		return -errno;
	memcpy(s.map, header, n);
	return finish(&s, SEALS_READONLY, out);
}

/* Checks what can be checked before mapping. */
static int check_fd(int fd, const char *what, int seals, uint64_t size, struct diag *diag)
{
	struct stat st;
	int have = fcntl(fd, F_GET_SEALS);

	if (have < 0)
		return diag_set(diag, -EPROTO, "%s: not a memory file", what);
	if ((have & seals) != seals)
		return diag_set(diag, -EPROTO, "%s: its seals are 0x%x, without 0x%x", what, have,
				seals & ~have);
	if (fstat(fd, &st) < 0)
		return -errno;
	if ((uint64_t)st.st_size != size)
		return diag_set(diag, -EPROTO, "%s: has %llu bytes instead of %llu", what,
				(unsigned long long)st.st_size, (unsigned long long)size);
	return 0;
}

static int check_header(uint32_t magic, uint32_t version, uint32_t want_magic, uint32_t want_version,
			const char *what, struct diag *diag)
{
	if (magic != want_magic)
		return diag_set(diag, -EPROTO, "%s: its magic number is wrong", what);
	if (version != want_version)
		return diag_set(diag, -EPROTO, "%s: has version %u instead of %u", what, version,
				want_version);
	return 0;
}

int segment_map_ring(struct segment *out, int fd, uint32_t data_size, struct diag *diag)
{
	struct kvd_ring_header *h;
	struct segment s;
	int r;

	if (!ring_size_valid(data_size))
		return diag_set(diag, -EPROTO, "ring: %u is no size for it", data_size);
	r = check_fd(fd, "ring", SEALS_READONLY, (uint64_t)KVD_SEGMENT_DATA + data_size, diag);
	if (r)
		return r;
	if (!map(&s, fd, (size_t)KVD_SEGMENT_DATA + data_size, PROT_READ))
		return -errno;
	h = segment_ring(&s);
	r = check_header(h->magic, h->version, KVD_RING_MAGIC, KVD_PROTOCOL_VERSION, "ring", diag);
	if (!r && (h->data_offset != KVD_SEGMENT_DATA || h->data_size != data_size))
		r = diag_set(diag, -EPROTO, "ring: its header has another layout than announced");
	if (r) {
		munmap(s.map, s.size);
		return r;
	}
	*out = s;
	return 0;
}

int segment_map_client(struct segment *out, int fd, uint32_t arena_size, struct diag *diag)
{
	struct kvd_client_header *h;
	struct segment s;
	int r;

	if (!arena_size_valid(arena_size))
		return diag_set(diag, -EPROTO, "client segment: %u is no size for it", arena_size);
	r = check_fd(fd, "client segment", SEALS_SHARED, (uint64_t)KVD_SEGMENT_DATA + arena_size, diag);
	if (r)
		return r;
	if (!map(&s, fd, (size_t)KVD_SEGMENT_DATA + arena_size, PROT_READ | PROT_WRITE))
		return -errno;
	h = segment_client(&s);
	r = check_header(h->magic, h->version, KVD_SEGMENT_MAGIC, KVD_PROTOCOL_VERSION, "client segment",
			 diag);
	if (!r && (h->arena_offset != KVD_SEGMENT_DATA || h->arena_size != arena_size))
		r = diag_set(diag, -EPROTO, "client segment: its header has another layout than announced");
	if (r) {
		munmap(s.map, s.size);
		return r;
	}
	*out = s;
	return 0;
}

int segment_map_page(struct segment *out, int fd, const char *what, uint32_t magic, uint32_t version,
		     struct diag *diag)
{
	const uint32_t *head;
	struct segment s;
	int r = check_fd(fd, what, SEALS_READONLY, KVD_SEGMENT_DATA, diag);

	if (r)
		return r;
	if (!map(&s, fd, KVD_SEGMENT_DATA, PROT_READ))
		return -errno;
	head = s.map;
	r = check_header(head[0], head[1], magic, version, what, diag);
	if (r) {
		munmap(s.map, s.size);
		return r;
	}
	*out = s;
	return 0;
}

void segment_close_fd(struct segment *s)
{
	fd_closep(&s->fd);
}

void segment_deinit(struct segment *s)
{
	if (s->map)
		munmap(s->map, s->size);
	fd_closep(&s->fd);
	*s = SEGMENT_NULL;
}

int segment_read(const struct segment *s, uint64_t offset, void *dst, size_t n)
{
	if (!segment_has(s, offset, n))
		return -ERANGE;
	if (n)	/* dst may be NULL then */
		memcpy(dst, segment_data(s) + offset, n);
	return 0;
}

int segment_write(const struct segment *s, uint64_t offset, const void *src, size_t n)
{
	if (!segment_has(s, offset, n))
		return -ERANGE;
	if (n)
		memcpy(segment_data(s) + offset, src, n);
	return 0;
}
