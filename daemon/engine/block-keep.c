/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes of blocks that were measured, in files. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/engine/block-size.h"
#include "daemon/model/kv-type.h"
#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "ipc/base/hash.h"

#define FOLDER "block-tokens"
#define TEXT_MAX 128

/* A file's name says everything that the size was measured for. */
struct name {
	char text[160];
};

static struct name name_of(const struct kb_backend *be, const struct model *m, enum kb_kv_type type)
{
	const uint8_t *hash = model_info(m)->content_hash;
	struct name name;
	int n = 0;

	for (size_t i = 0; i < sizeof(model_info(m)->content_hash); i++)
		n += snprintf(name.text + n, sizeof(name.text) - (size_t)n, "%02x", hash[i]);
	snprintf(name.text + n, sizeof(name.text) - (size_t)n, "-%s-%s-%s-%u", kv_type_name(type), be->ops->name,
		 be->ops->level ? be->ops->level(be) : "", be->ops->numerics_version);
	return name;
}

/* What a file with this name says; its length. */
static int text_of(const struct name *name, uint32_t block_tokens, char out[TEXT_MAX])
{
	int n = snprintf(out, TEXT_MAX, "kvd block-tokens 1\n%u\n", block_tokens);
	uint64_t seed = hash_u64(name->text, strlen(name->text), 0);

	return n + snprintf(out + n, (size_t)(TEXT_MAX - n), "%016llx\n",
			    (unsigned long long)hash_u64(out, (size_t)n, seed));
}

static int open_folder(const char *state_dir, bool make, int *out)
{
	char path[PATH_MAX];

	if ((size_t)snprintf(path, sizeof(path), "%s/" FOLDER, state_dir) >= sizeof(path))
		return -ENAMETOOLONG;
	if (make && ((mkdir(state_dir, 0700) && errno != EEXIST) || (mkdir(path, 0700) && errno != EEXIST)))
		return -errno;
	*out = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	return *out < 0 ? -errno : 0;
}

int block_size_read(const char *state_dir, const struct kb_backend *be, const struct model *m, enum kb_kv_type type,
		    uint32_t *out)
{
	static const uint32_t sizes[] = { 16, 32, 64 };
	_cleanup_(fd_closep) int folder = -1, fd = -1;
	struct name name = name_of(be, m, type);
	char text[TEXT_MAX], want[TEXT_MAX];
	ssize_t n;

	if (open_folder(state_dir, false, &folder))
		return BLOCK_SIZE_E_ABSENT;
	fd = openat(folder, name.text, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return errno == ENOENT ? BLOCK_SIZE_E_ABSENT : BLOCK_SIZE_E_DAMAGED;
	n = read(fd, text, sizeof(text));
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		int n_want = text_of(&name, sizes[i], want);

		if (n == n_want && memcmp(text, want, (size_t)n) == 0) {
			*out = sizes[i];
			return 0;
		}
	}
	return BLOCK_SIZE_E_DAMAGED;
}

int block_size_write(const char *state_dir, const struct kb_backend *be, const struct model *m, enum kb_kv_type type,
		     uint32_t block_tokens)
{
	_cleanup_(fd_closep) int folder = -1, fd = -1;
	struct name name = name_of(be, m, type);
	char text[TEXT_MAX], beside[sizeof(name.text) + 8];
	int n = text_of(&name, block_tokens, text), r;

	r = open_folder(state_dir, true, &folder);
	if (r)
		return r;
	snprintf(beside, sizeof(beside), "%s.new", name.text);
	fd = openat(folder, beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return -errno;
	r = fd_write_full(fd, text, (size_t)n);
	if (!r && (fsync(fd) || renameat(folder, beside, folder, name.text)))
		r = -errno;
	if (r)
		unlinkat(folder, beside, 0);
	return r;
}
