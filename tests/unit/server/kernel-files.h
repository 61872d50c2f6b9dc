/* SPDX-License-Identifier: Apache-2.0 */
/* A folder with files as the kernel has them below /proc and /sys/fs/cgroup, for a process in a.slice/b.service. */
#ifndef KVD_TEST_KERNEL_FILES_H
#define KVD_TEST_KERNEL_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static char root[64], proc[96], cgroup[96];

/* Writes a file below root; its folders are there. */
static inline void put(const char *name, const char *text)
{
	char path[256];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", root, name);
	f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static inline void make_folder(const char *name)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", root, name);
	assert_int_equal(mkdir(path, 0700), 0);
}

static inline void make_folders(void)
{
	snprintf(root, sizeof(root), "/tmp/kvd-unit-XXXXXX");
	assert_non_null(mkdtemp(root));
	snprintf(proc, sizeof(proc), "%s/proc", root);
	snprintf(cgroup, sizeof(cgroup), "%s/cgroup", root);
	make_folder("proc");
	make_folder("proc/self");
	make_folder("cgroup");
	make_folder("cgroup/a.slice");
	make_folder("cgroup/a.slice/b.service");
}

static inline int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

static inline int tear_down(void **state)
{
	return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

#endif
