/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store-slot.h - the slots of one root: headers and blocks in a file (FORMAT.md,
 * "slots"). It knows bytes and checksums and nothing of an index.
 *
 * Thread: the store's.  Errors: -errno of the system call.
 */
#ifndef KVD_STORE_SLOT_H
#define KVD_STORE_SLOT_H

#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define STORE_TOKENS_MAX 64u		/* of a block */
#define STORE_NAME_MAX 255u		/* bytes of a namespace's name */
#define SLOT_HEADER_BYTES 4096u
#define SLOT_BLOCK_MAX (UINT64_C(1) << 30)

#define SLOT_E_BAD 1			/* it is not the slot that it should be */

/* The system calls that touch slots; tests let them fail. */
struct store_io {
	ssize_t (*preadv)(int fd, const struct iovec *iov, int n, off_t offset);
	ssize_t (*pwritev)(int fd, const struct iovec *iov, int n, off_t offset);
	int (*fdatasync)(int fd);
	int (*ftruncate)(int fd, off_t bytes);
};
extern const struct store_io store_io_system;

/* What a header says. */
struct slot_meta {
	uint64_t id, parent;
	uint64_t created;
	uint32_t uid;
	uint32_t first;			/* position of its first token */
	uint32_t n_tokens;
	int32_t tokens[STORE_TOKENS_MAX];
	uint32_t n_name;
	uint8_t name[STORE_NAME_MAX];
};

struct slot_file {
	const struct store_io *io;
	int fd;
	uint8_t root[16];
	uint32_t block_tokens;
	uint64_t block_bytes;
	uint64_t stride;
};

uint64_t slot_stride(uint64_t block_bytes);

/* The file does not become the struct's: closing fd is the caller's. */
void slot_file_init(struct slot_file *f, const struct store_io *io, int fd, const uint8_t root[16],
		    uint32_t block_tokens, uint64_t block_bytes);
/* Not synced.  block: [block_bytes]. */
int slot_write(struct slot_file *f, uint64_t slot, const struct slot_meta *meta, const void *block);
/*
 * Reads and verifies a slot.  block: [block_bytes], written to also where the slot turns out bad; meta
 * only if 0 is returned.  0, SLOT_E_BAD, -errno.
 */
int slot_read(struct slot_file *f, uint64_t slot, struct slot_meta *meta, void *block);
/* Copies a slot as it is.  scratch: [stride].  0, SLOT_E_BAD: the file ends before, -errno. */
int slot_copy(struct slot_file *f, uint64_t from, uint64_t to, void *scratch);
int slot_sync(struct slot_file *f);
int slot_truncate(struct slot_file *f, uint64_t n_slots);
/* Gives back a slot's place on the medium; of no effect where the file system can't. */
void slot_punch(struct slot_file *f, uint64_t slot);

#endif
