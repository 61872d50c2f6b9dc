/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment.h - sealed shared memory.
 *
 * The daemon creates, maps and seals; the client maps what it received.  A
 * segment can't change its size once it is handed out, so that neither side can
 * make the other fault by truncating it.
 *
 *	           size    seals                              daemon  client
 *	ring       4096+n  SHRINK GROW FUTURE_WRITE SEAL      rw      r
 *	client     4096+n  SHRINK GROW SEAL                   rw      rw
 *	statistics 4096    SHRINK GROW FUTURE_WRITE SEAL      rw      r
 *
 * FUTURE_WRITE (Linux 5.1) leaves the daemon's mapping writable and refuses
 * every later one, and write() and hole punching too.
 */
#ifndef KVD_SEGMENT_H
#define KVD_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/error.h"
#include "ipc/protocol.h"

struct segment {
	int fd;			/* close-on-exec; -1 once segment_close_fd() */
	void *map;
	size_t size;		/* of the mapping: header page and data */
};

#define SEGMENT_NULL ((struct segment){ .fd = -1 })

/*
 * The daemon's side: created, mapped writable, header filled in, sealed.
 * data_size: bytes of the data part, within the limits of protocol.h.
 * 0; -EINVAL: a size out of limits; -ENOMEM, -EMFILE and other -errno.
 */
int segment_new_ring(struct segment *out, uint32_t data_size);
int segment_new_client(struct segment *out, uint32_t arena_size);
/* One read-only page that begins with n bytes of header (stats.h). */
int segment_new_page(struct segment *out, const char *name, const void *header, size_t n);

/*
 * The client's side: fd is taken over on success.  Refuses what is not sealed
 * as above, has another size than the one announced in `welcome`, or another
 * magic or version.  0; -EPROTO with a sentence in diag (may be NULL); -errno.
 */
int segment_map_ring(struct segment *out, int fd, uint32_t data_size, struct diag *diag);
int segment_map_client(struct segment *out, int fd, uint32_t arena_size, struct diag *diag);
/* A page whose first two uint32_t are magic and version. */
int segment_map_page(struct segment *out, int fd, const char *what, uint32_t magic, uint32_t version,
		     struct diag *diag);

/* Closes the descriptor and keeps the mapping. */
void segment_close_fd(struct segment *s);
/* Unmaps and closes; s becomes SEGMENT_NULL; twice is harmless. */
void segment_deinit(struct segment *s);

static inline struct kvd_ring_header *segment_ring(const struct segment *s)
{
	return s->map;
}

static inline struct kvd_client_header *segment_client(const struct segment *s)
{
	return s->map;
}

/* Bytes of the ring's data part or of the arena. */
static inline uint32_t segment_data_size(const struct segment *s)
{
	return (uint32_t)(s->size - KVD_SEGMENT_DATA);
}

static inline uint8_t *segment_data(const struct segment *s)
{
	return (uint8_t *)s->map + KVD_SEGMENT_DATA;
}

/* Whether the range lies within the data part. */
static inline bool segment_has(const struct segment *s, uint64_t offset, uint64_t n)
{
	uint64_t size = segment_data_size(s);

	return offset <= size && n <= size - offset;
}

/*
 * Copies out of or into the arena.  The peer may be writing there: a copy is
 * made once and only the copy is looked at.  0, or -ERANGE: not within the arena.
 */
int segment_read(const struct segment *s, uint64_t offset, void *dst, size_t n);
int segment_write(const struct segment *s, uint64_t offset, const void *src, size_t n);

#endif
