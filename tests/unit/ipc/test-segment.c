/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel refuses to the one who gets a segment, and what a client refuses to take. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/segment.h"
#include "ipc/stats.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* As another process that was handed the descriptor. */
static int reopened(int fd)
{
	char path[64];
	int r;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	r = open(path, O_RDWR | O_CLOEXEC);
	assert_true(r >= 0);
	return r;
}

static void assert_size_is_fixed(int fd, off_t size)
{
	assert_int_equal(ftruncate(fd, size - 4096), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(fd, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(fd, size + 4096), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(fallocate(fd, 0, 0, size + 4096), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	assert_int_equal(errno, EPERM);
}

static void assert_readonly(int fd, size_t size)
{
	void *p;

	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_equal(p, MAP_FAILED);
	assert_int_equal(errno, EPERM);
	assert_int_equal(pwrite(fd, "x", 1, 4096), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
	assert_int_equal(errno, EPERM);
	p = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	assert_int_equal(mprotect(p, size, PROT_READ | PROT_WRITE), -1);
	munmap(p, size);
}

static void test_ring_is_sealed(void **state)
{
	struct segment s;
	int other;

	assert_int_equal(segment_new_ring(&s, KVD_RING_MIN), 0);
	other = reopened(s.fd);
	assert_size_is_fixed(s.fd, KVD_SEGMENT_DATA + KVD_RING_MIN);
	assert_size_is_fixed(other, KVD_SEGMENT_DATA + KVD_RING_MIN);
	assert_readonly(s.fd, s.size);
	assert_readonly(other, s.size);
	/* The daemon's own mapping still is writable. */
	memset(segment_data(&s), 7, segment_data_size(&s));
	close(other);
	segment_deinit(&s);
}

static void test_client_segment_is_sealed(void **state)
{
	struct segment s, t;
	int other;

	assert_int_equal(segment_new_client(&s, KVD_ARENA_MIN), 0);
	other = reopened(s.fd);
	assert_size_is_fixed(s.fd, KVD_SEGMENT_DATA + KVD_ARENA_MIN);
	assert_size_is_fixed(other, KVD_SEGMENT_DATA + KVD_ARENA_MIN);
	assert_int_equal(segment_map_client(&t, other, KVD_ARENA_MIN, NULL), 0);
	assert_int_equal(segment_write(&t, 5, "hello", 5), 0);
	assert_memory_equal(segment_data(&s) + 5, "hello", 5);
	segment_deinit(&t);
	segment_deinit(&s);
}

static void test_statistics_page_is_sealed(void **state)
{
	struct segment s;

	assert_int_equal(stats_new(&s, KVD_STATS_UID, 5), 0);
	assert_size_is_fixed(s.fd, 4096);
	assert_readonly(s.fd, s.size);
	segment_deinit(&s);
}

static void test_limits_of_sizes(void **state)
{
	static const uint32_t bad_rings[] = {
		0, 4096, KVD_RING_MIN / 2, KVD_RING_MIN + 4096, KVD_RING_MAX * 2, UINT32_MAX,
	};
	static const uint32_t bad_arenas[] = { 0, 4096, KVD_ARENA_MIN + 1, KVD_ARENA_MAX + 4096, UINT32_MAX };
	struct segment s = SEGMENT_NULL;

	for (size_t i = 0; i < ARRAY_SIZE(bad_rings); i++)
		assert_int_equal(segment_new_ring(&s, bad_rings[i]), -EINVAL);
	for (size_t i = 0; i < ARRAY_SIZE(bad_arenas); i++)
		assert_int_equal(segment_new_client(&s, bad_arenas[i]), -EINVAL);
	assert_null(s.map);
	assert_int_equal(segment_new_ring(&s, KVD_RING_MAX), 0);
	segment_deinit(&s);
	assert_int_equal(segment_new_client(&s, KVD_ARENA_MAX), 0);
	segment_deinit(&s);
	segment_deinit(&s);
}

static void test_copies_stay_within_the_arena(void **state)
{
	const uint64_t n = KVD_ARENA_MIN;
	struct segment s;
	uint8_t buf[16] = "0123456789abcde";

	assert_int_equal(segment_new_client(&s, KVD_ARENA_MIN), 0);
	assert_int_equal(segment_write(&s, n - 16, buf, 16), 0);
	assert_int_equal(segment_read(&s, n - 16, buf, 16), 0);
	assert_string_equal(buf, "0123456789abcde");
	assert_int_equal(segment_read(&s, n, buf, 0), 0);
	assert_int_equal(segment_read(&s, n - 15, buf, 16), -ERANGE);
	assert_int_equal(segment_write(&s, n - 15, buf, 16), -ERANGE);
	assert_int_equal(segment_read(&s, n + 1, buf, 0), -ERANGE);
	assert_int_equal(segment_read(&s, UINT64_MAX, buf, 2), -ERANGE);
	assert_int_equal(segment_read(&s, UINT64_MAX - 7, buf, 16), -ERANGE);
	assert_false(segment_has(&s, 8, UINT64_MAX));
	assert_true(segment_has(&s, 0, n));
	segment_deinit(&s);
}

/* --- what a client refuses ------------------------------------------------------------- */

#define RING_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

static int make_ring(size_t size, const struct kvd_ring_header *header, int seals)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	assert_int_equal(pwrite(fd, header, sizeof(*header), 0), sizeof(*header));
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static void assert_ring_refused(int fd, uint32_t announced, const char *says)
{
	struct segment s = SEGMENT_NULL;
	struct diag diag = DIAG_NULL;

	assert_int_equal(segment_map_ring(&s, fd, announced, &diag), -EPROTO);
	if (!strstr(diag.text, says))
		fail_msg("'%s' does not say '%s'", diag.text, says);
	assert_null(s.map);
	assert_true(fcntl(fd, F_GETFD) >= 0);	/* still the caller's */
	close(fd);
}

static void test_client_checks_the_ring(void **state)
{
	const size_t size = KVD_SEGMENT_DATA + KVD_RING_MIN;
	const struct kvd_ring_header good = {
		.magic = KVD_RING_MAGIC, .version = KVD_PROTOCOL_VERSION,
		.data_offset = KVD_SEGMENT_DATA, .data_size = KVD_RING_MIN,
	};
	struct kvd_ring_header h;
	struct segment s;
	FILE *file;

	assert_int_equal(segment_map_ring(&s, make_ring(size, &good, RING_SEALS), KVD_RING_MIN, NULL), 0);
	segment_deinit(&s);

	assert_ring_refused(make_ring(size, &good, RING_SEALS & ~F_SEAL_SHRINK), KVD_RING_MIN, "seals");
	assert_ring_refused(make_ring(size, &good, RING_SEALS & ~F_SEAL_GROW), KVD_RING_MIN, "seals");
	assert_ring_refused(make_ring(size, &good, RING_SEALS & ~F_SEAL_FUTURE_WRITE), KVD_RING_MIN, "seals");
	assert_ring_refused(make_ring(size, &good, RING_SEALS & ~F_SEAL_SEAL), KVD_RING_MIN, "seals");
	assert_ring_refused(make_ring(size, &good, RING_SEALS), KVD_RING_MIN * 2, "bytes");
	assert_ring_refused(make_ring(4096, &good, RING_SEALS), KVD_RING_MIN, "bytes");
	assert_ring_refused(make_ring(size, &good, RING_SEALS), 0, "no size");
	assert_ring_refused(make_ring(size, &good, RING_SEALS), UINT32_MAX, "no size");
	h = good;
	h.magic++;
	assert_ring_refused(make_ring(size, &h, RING_SEALS), KVD_RING_MIN, "magic");
	h = good;
	h.version++;
	assert_ring_refused(make_ring(size, &h, RING_SEALS), KVD_RING_MIN, "version");
	h = good;
	h.data_offset = 8192;
	assert_ring_refused(make_ring(size, &h, RING_SEALS), KVD_RING_MIN, "layout");
	h = good;
	h.data_size *= 2;
	assert_ring_refused(make_ring(size, &h, RING_SEALS), KVD_RING_MIN, "layout");
	/* A file that can be cut under us. */
	file = tmpfile();
	assert_non_null(file);
	assert_ring_refused(dup(fileno(file)), KVD_RING_MIN, "");
	fclose(file);
}

static void test_client_checks_the_others(void **state)
{
	struct segment ring, client, stats, s = SEGMENT_NULL;
	struct diag diag = DIAG_NULL;

	assert_int_equal(segment_new_ring(&ring, KVD_RING_MIN), 0);
	assert_int_equal(segment_new_client(&client, KVD_ARENA_MIN), 0);
	assert_int_equal(stats_new(&stats, KVD_STATS_UID, 3), 0);
	/* One for the other: a client segment in place of the ring could be written by anyone. */
	assert_int_equal(segment_map_ring(&s, client.fd, KVD_RING_MIN, NULL), -EPROTO);
	assert_int_equal(segment_map_client(&s, client.fd, KVD_ARENA_MIN + 4096, &diag), -EPROTO);
	assert_non_null(strstr(diag.text, "client segment"));
	assert_int_equal(segment_map_client(&s, ring.fd, KVD_ARENA_MIN, NULL), -EPERM);
	assert_int_equal(stats_map(&s, ring.fd, NULL), -EPROTO);
	assert_int_equal(segment_map_ring(&s, stats.fd, KVD_RING_MIN, NULL), -EPROTO);
	assert_null(s.map);
	segment_deinit(&ring);
	segment_deinit(&client);
	segment_deinit(&stats);
}

static void test_descriptor_may_go(void **state)
{
	struct segment s;
	int fd;

	assert_int_equal(segment_new_ring(&s, KVD_RING_MIN), 0);
	fd = s.fd;
	assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
	segment_close_fd(&s);
	assert_int_equal(s.fd, -1);
	assert_int_equal(fcntl(fd, F_GETFD), -1);
	assert_int_equal(segment_write(&s, 5, "x", 1), 0);
	segment_deinit(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ring_is_sealed),
		cmocka_unit_test(test_client_segment_is_sealed),
		cmocka_unit_test(test_statistics_page_is_sealed),
		cmocka_unit_test(test_limits_of_sizes),
		cmocka_unit_test(test_copies_stay_within_the_arena),
		cmocka_unit_test(test_client_checks_the_ring),
		cmocka_unit_test(test_client_checks_the_others),
		cmocka_unit_test(test_descriptor_may_go),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
