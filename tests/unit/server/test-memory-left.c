/* SPDX-License-Identifier: Apache-2.0 */
/* What is left of the machine's memory and of control groups, from files as the kernel writes them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/server/memory-left.h"
#include "kernel-files.h"

#define MIB (1ull << 20)

static int set_up(void **state)
{
	make_folders();
	put("proc/meminfo", "MemTotal:       8388608 kB\nMemFree:        1048576 kB\nMemAvailable:   4194304 kB\n");
	put("proc/self/cgroup", "0::/a.slice/b.service\n");
	return 0;
}

static uint64_t left(void)
{
	uint64_t bytes = 0;

	assert_int_equal(memory_left_in(proc, cgroup, &bytes), 0);
	return bytes;
}

static void test_machine(void **state)
{
	assert_true(left() == 4096 * MIB);
	/* Groups without limits, or with files that make no sense, do not count. */
	put("cgroup/a.slice/memory.max", "max\n");
	put("cgroup/a.slice/b.service/memory.max", "\n");
	assert_true(left() == 4096 * MIB);
	put("proc/self/cgroup", "1:name=x:/old\n");
	assert_true(left() == 4096 * MIB);
	put("proc/self/cgroup", "");
	assert_true(left() == 4096 * MIB);
}

static void test_own_group(void **state)
{
	put("cgroup/a.slice/b.service/memory.max", "1073741824\n");
	put("cgroup/a.slice/b.service/memory.current", "268435456\n");
	assert_true(left() == 768 * MIB);
	/* Page cache would make room. */
	put("cgroup/a.slice/b.service/memory.stat", "anon 1\nfile 209715200\ninactive_file 104857600\n"
	    "active_file 52428800\nworkingset_refault_file 5\n");
	assert_true(left() == (768 + 150) * MIB);
	put("cgroup/a.slice/b.service/memory.current", "2147483648\n");
	assert_true(left() == 0);
}

static void test_group_above(void **state)
{
	put("cgroup/a.slice/b.service/memory.max", "1073741824\n");
	put("cgroup/a.slice/b.service/memory.current", "0\n");
	put("cgroup/a.slice/memory.max", "536870912\n");
	put("cgroup/a.slice/memory.current", "104857600\n");
	assert_true(left() == 412 * MIB);
	put("proc/self/cgroup", "5:cpu:/x\n0::/a.slice\n");
	assert_true(left() == 412 * MIB);
	put("proc/self/cgroup", "0::/\n");
	assert_true(left() == 4096 * MIB);
}

static void test_nothing_is_told(void **state)
{
	uint64_t bytes = 5;

	put("proc/meminfo", "MemTotal: 5 kB\n");
	assert_int_equal(memory_left_in(proc, cgroup, &bytes), -ENODATA);
	assert_int_equal(memory_left_in("/nonexistent", cgroup, &bytes), -ENOENT);
	assert_true(bytes == 5);
	put("proc/meminfo", "MemAvailable: 99999999999999999999999 kB\n");
	assert_int_equal(memory_left_in(proc, cgroup, &bytes), -ENODATA);
}

static void test_this_machine(void **state)
{
	uint64_t bytes = 0;

	assert_int_equal(memory_left(&bytes), 0);
	assert_true(bytes > 0 && bytes < 1ull << 50);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_machine, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_own_group, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_group_above, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_nothing_is_told, set_up, tear_down),
		cmocka_unit_test(test_this_machine),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
