/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/cache/store-slot.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/hash.h"

#define SLOT_VERSION 1u
#define SLOT_ALIGN 4096u

/* On disk, little-endian: FORMAT.md. */
struct slot_header {
	char magic[8];
	uint32_t version;
	uint32_t n_tokens;
	uint8_t root[16];
	uint64_t id, parent;
	uint64_t created;
	uint64_t block_bytes;
	uint32_t uid;
	uint32_t first;
	uint32_t n_name;
	uint32_t type;
	uint64_t sum;
	uint64_t zero;
	uint8_t name[256];
	uint32_t tokens[STORE_TOKENS_MAX];
	uint8_t rest[SLOT_HEADER_BYTES - 608];
};
_Static_assert(sizeof(struct slot_header) == SLOT_HEADER_BYTES, "as FORMAT.md says");
_Static_assert(offsetof(struct slot_header, sum) == 80 && offsetof(struct slot_header, tokens) == 352,
	       "as FORMAT.md says");

static const char slot_magic[8] = "KVDSLOT\n";

const struct store_io store_io_system = {
	.preadv = preadv,
	.pwritev = pwritev,
	.fdatasync = fdatasync,
	.ftruncate = ftruncate,
};

uint64_t slot_stride(uint64_t block_bytes)
{
	return SLOT_HEADER_BYTES + ((block_bytes + SLOT_ALIGN - 1) & ~(uint64_t)(SLOT_ALIGN - 1));
}

void slot_file_init(struct slot_file *f, const struct store_io *io, int fd, const uint8_t root[16],
		    uint32_t block_tokens, uint64_t block_bytes)
{
	*f = (struct slot_file){
		.io = io ? io : &store_io_system,
		.fd = fd,
		.block_tokens = block_tokens,
		.block_bytes = block_bytes,
		.stride = slot_stride(block_bytes),
	};
	memcpy(f->root, root, sizeof(f->root));
}

/* Skips n bytes that were done; returns how many vectors are left. */
static int iov_advance(struct iovec **iov, int n_iov, size_t n)
{
	while (n_iov > 0 && n >= (*iov)->iov_len) {
		n -= (*iov)->iov_len;
		(*iov)++;
		n_iov--;
	}
	if (n_iov > 0) {
		(*iov)->iov_base = (char *)(*iov)->iov_base + n;
		(*iov)->iov_len -= n;
	}
	return n_iov;
}

/* All of iov, which is used up.  SLOT_E_BAD: the file ends before. */
static int transfer(ssize_t (*fn)(int, const struct iovec *, int, off_t), int fd, struct iovec *iov, int n_iov,
		    uint64_t offset)
{
	n_iov = iov_advance(&iov, n_iov, 0);
	while (n_iov > 0) {
		ssize_t n = fn(fd, iov, n_iov, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return SLOT_E_BAD;
		offset += (uint64_t)n;
		n_iov = iov_advance(&iov, n_iov, (size_t)n);
	}
	return 0;
}

static uint64_t checksum(const struct slot_header *h, const void *block, uint64_t block_bytes)
{
	return hash_u64(block, block_bytes, hash_u64(h, sizeof(*h), 0));
}

static void encode(const struct slot_file *f, struct slot_header *h, const struct slot_meta *meta)
{
	*h = (struct slot_header){
		.version = htole32(SLOT_VERSION),
		.n_tokens = htole32(meta->n_tokens),
		.id = htole64(meta->id),
		.parent = htole64(meta->parent),
		.created = htole64(meta->created),
		.block_bytes = htole64(f->block_bytes),
		.uid = htole32(meta->uid),
		.first = htole32(meta->first),
		.n_name = htole32(meta->n_name),
		.type = htole32(meta->n_tokens < f->block_tokens),
	};
	memcpy(h->magic, slot_magic, sizeof(h->magic));
	memcpy(h->root, f->root, sizeof(h->root));
	memcpy(h->name, meta->name, meta->n_name);
	for (uint32_t i = 0; i < meta->n_tokens; i++)
		h->tokens[i] = htole32((uint32_t)meta->tokens[i]);
}

/* The rest of what makes a header valid is in the checksum and in decoding to what it was encoded from. */
static bool decode(const struct slot_file *f, const struct slot_header *h, struct slot_meta *meta)
{
	struct slot_meta m = {
		.id = le64toh(h->id),
		.parent = le64toh(h->parent),
		.created = le64toh(h->created),
		.uid = le32toh(h->uid),
		.first = le32toh(h->first),
		.n_tokens = le32toh(h->n_tokens),
		.n_name = le32toh(h->n_name),
	};

	if (memcmp(h->magic, slot_magic, sizeof(h->magic)) || le32toh(h->version) != SLOT_VERSION ||
	    memcmp(h->root, f->root, sizeof(h->root)) || le64toh(h->block_bytes) != f->block_bytes ||
	    !m.n_tokens || m.n_tokens > f->block_tokens || m.n_name > STORE_NAME_MAX ||
	    le32toh(h->type) != (m.n_tokens < f->block_tokens))
		return false;
	memcpy(m.name, h->name, m.n_name);
	for (uint32_t i = 0; i < m.n_tokens; i++)
		m.tokens[i] = (int32_t)le32toh(h->tokens[i]);
	*meta = m;
	return true;
}

int slot_write(struct slot_file *f, uint64_t slot, const struct slot_meta *meta, const void *block)
{
	static const uint8_t zeros[SLOT_ALIGN];
	struct slot_header h;
	struct iovec iov[] = {
		{ &h, sizeof(h) },
		{ (void *)(uintptr_t)block, f->block_bytes },
		{ (void *)(uintptr_t)zeros, f->stride - sizeof(h) - f->block_bytes },
	};
	int r;

	encode(f, &h, meta);
	h.sum = htole64(checksum(&h, block, f->block_bytes));
	r = transfer(f->io->pwritev, f->fd, iov, ARRAY_SIZE(iov), slot * f->stride);
	return r == SLOT_E_BAD ? -EIO : r;
}

int slot_read(struct slot_file *f, uint64_t slot, struct slot_meta *meta, void *block)
{
	struct slot_header h;
	struct iovec iov[] = { { &h, sizeof(h) }, { block, f->block_bytes } };
	struct slot_meta m;
	uint64_t sum;
	int r = transfer(f->io->preadv, f->fd, iov, ARRAY_SIZE(iov), slot * f->stride);

	if (r)
		return r;
	if (!decode(f, &h, &m))
		return SLOT_E_BAD;
	sum = le64toh(h.sum);
	h.sum = 0;
	if (sum != checksum(&h, block, f->block_bytes))
		return SLOT_E_BAD;
	*meta = m;
	return 0;
}

int slot_copy(struct slot_file *f, uint64_t from, uint64_t to, void *scratch)
{
	struct iovec in = { scratch, f->stride }, out = { scratch, f->stride };
	int r = transfer(f->io->preadv, f->fd, &in, 1, from * f->stride);

	if (!r)
		r = transfer(f->io->pwritev, f->fd, &out, 1, to * f->stride);
	return r;
}

int slot_sync(struct slot_file *f)
{
	return f->io->fdatasync(f->fd) ? -errno : 0;
}

int slot_truncate(struct slot_file *f, uint64_t n_slots)
{
	return f->io->ftruncate(f->fd, (off_t)(n_slots * f->stride)) ? -errno : 0;
}

void slot_punch(struct slot_file *f, uint64_t slot)
{
	(void)!fallocate(f->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(slot * f->stride),
			 (off_t)f->stride);
}
