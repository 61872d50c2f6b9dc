/* SPDX-License-Identifier: Apache-2.0 */
/* Attaching: where the daemon may be, and every way in which a greeting can go wrong. */
#include "tests/unit/client/fake-daemon.h"

#include <sys/mman.h>
#include <sys/stat.h>

static int try_connect(const char *path, char *diag, int timeout_ms)
{
	struct kvd_connect_options o = { .socket = path, .name = "test", .timeout_ms = timeout_ms };
	struct kvd_client *c = (struct kvd_client *)&o;
	int r;

	diag[0] = '\0';
	r = kvd_connect(&c, &o, diag, 256);
	if (r) {
		assert_null(c);
		assert_true(diag[0]);
	}
	kvd_close(c);
	return r;
}

static void nobody_there(void **state)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	char diag[256], path[300];
	struct fake f;

	fake_path(&f);
	assert_int_equal(try_connect(f.path, diag, 0), -ENOENT);
	assert_non_null(strstr(diag, f.path));
	/* a stale socket: bound once, nobody listens */
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	memcpy(addr.sun_path, f.path, sizeof(addr.sun_path));
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	close(fd);
	assert_int_equal(try_connect(f.path, diag, 0), -ECONNREFUSED);
	memset(path, 'x', sizeof(path));
	path[108] = '\0';
	assert_int_equal(try_connect(path, diag, 0), -ENAMETOOLONG);
	assert_int_equal(try_connect("", diag, 0), -ECONNREFUSED);
	fake_remove(&f);
}

static void default_socket(void **state)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	char buf[128], dir[80];
	struct fake f;

	fake_path(&f);
	setenv("KVD_SOCKET", "/some/where", 1);
	setenv("XDG_RUNTIME_DIR", f.dir, 1);
	assert_int_equal(kvd_default_socket(buf, sizeof(buf)), 0);
	assert_string_equal(buf, "/some/where");
	memset(buf, 'z', sizeof(buf));
	assert_int_equal(kvd_default_socket(buf, 11), -ENAMETOOLONG);
	assert_int_equal(buf[0], 'z');
	assert_int_equal(kvd_default_socket(buf, 12), 0);
	unsetenv("KVD_SOCKET");
	/* the runtime directory counts if the socket is there */
	assert_int_equal(kvd_default_socket(buf, sizeof(buf)), 0);
	assert_null(strstr(buf, f.dir));
	snprintf(dir, sizeof(dir), "%s/kvd", f.dir);
	assert_int_equal(mkdir(dir, 0700), 0);
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/kvd.sock", dir);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(kvd_default_socket(buf, sizeof(buf)), 0);
	assert_string_equal(buf, addr.sun_path);
	close(fd);
	unlink(addr.sun_path);
	rmdir(dir);
	unsetenv("XDG_RUNTIME_DIR");
	fake_remove(&f);
}

/* --- greetings --- */

static void refuse_version(struct fake *f)
{
	fake_expect(f, KVD_MSG_HELLO);
	fake_send(f, KVD_MSG_REFUSED, &(struct msg_refused){ KVD_CODE_VERSION, "I speak version 9" });
}

static void refuse_quota(struct fake *f)
{
	fake_expect(f, KVD_MSG_HELLO);
	fake_send(f, KVD_MSG_REFUSED, &(struct msg_refused){ KVD_CODE_QUOTA, "too many connections" });
}

static void refuse_unread(struct fake *f)
{
	/* refused and closed before the client's hello is looked at */
	fake_send(f, KVD_MSG_REFUSED, &(struct msg_refused){ KVD_CODE_QUOTA, "too many connections" });
}

static void say_nothing(struct fake *f)
{
	fake_expect(f, KVD_MSG_HELLO);
	fake_receive(f);
}

static void hang_up(struct fake *f)
{
	fake_expect(f, KVD_MSG_HELLO);
}

static void garbage(struct fake *f)
{
	fake_expect(f, KVD_MSG_HELLO);
	fake_send_raw(f, "\xc1garbage", 8);
	fake_receive(f);
}

static void other_message(struct fake *f)
{
	fake_expect(f, KVD_MSG_HELLO);
	fake_send(f, KVD_MSG_WAKE, &(struct msg_wake){ 0 });
	fake_receive(f);
}

static void other_version(struct fake *f)
{
	/* [0x81, {"version": 3}] */
	static const uint8_t welcome[] = "\x92\xcc\x81\x81\xa7version\x03";

	fake_expect(f, KVD_MSG_HELLO);
	fake_send_raw(f, welcome, sizeof(welcome) - 1);
	fake_receive(f);
}

enum bad_segment { TWO_FDS, FOUR_FDS, UNSEALED_RING, WRONG_RING_SIZE, WRONG_ARENA_SIZE, SWAPPED, NOT_MEMORY,
		   HUGE,
		   N_BAD_SEGMENTS };

static void bad_segments(struct fake *f)
{
	enum bad_segment kind = *(enum bad_segment *)f->arg;

	if (!fake_expect(f, KVD_MSG_HELLO))
		return;
	uint32_t ring = f->msg->hello.ring, arena = f->msg->hello.arena;
	fake_make_segments(f, ring, arena);
	int fds[4] = { f->ring.fd, f->client.fd, f->stats.fd, f->stats.fd };
	size_t n = 3;
	int extra = -1;
	switch (kind) {
	case TWO_FDS:
		n = 2;
		break;
	case FOUR_FDS:
		n = 4;
		break;
	case UNSEALED_RING:
		extra = fds[0] = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		FAKE_EXPECT(f, !ftruncate(extra, KVD_SEGMENT_DATA + ring));
		FAKE_EXPECT(f, pwrite(extra, f->ring.map, KVD_SEGMENT_DATA, 0) == KVD_SEGMENT_DATA);
		break;
	case WRONG_RING_SIZE:
		ring *= 2;
		break;
	case WRONG_ARENA_SIZE:
		arena *= 2;
		break;
	case SWAPPED:
		fds[0] = f->client.fd;
		fds[1] = f->ring.fd;
		break;
	case NOT_MEMORY:
		fds[0] = fds[1] = f->sock;
		break;
	case HUGE:
		ring = KVD_RING_MAX;
		arena = KVD_ARENA_MAX;
		break;
	default:
		break;
	}
	fake_welcome(f, fds, n, ring, arena);
	fake_receive(f);
	if (extra >= 0)
		close(extra);
}

static void greetings_that_fail(void **state)
{
	static const struct {
		void (*serve)(struct fake *);
		int result;
		const char *says;
	} cases[] = {
		{ refuse_version, KVD_E_PROTOCOL, "version 9" },
		{ refuse_quota, KVD_E_REFUSED, "too many connections" },
		{ refuse_unread, KVD_E_REFUSED, "too many connections" },
		{ say_nothing, KVD_E_TIMEOUT, "" },
		{ hang_up, KVD_E_CLOSED, "" },
		{ garbage, KVD_E_PROTOCOL, "" },
		{ other_message, KVD_E_PROTOCOL, "" },
		{ other_version, KVD_E_PROTOCOL, "" },
	};
	size_t before = count_fds();
	char diag[256];
	struct fake f;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		fake_start(&f, cases[i].serve, NULL);
		assert_int_equal(try_connect(f.path, diag, cases[i].serve == say_nothing ? 50 : 0),
				 cases[i].result);
		assert_non_null(strstr(diag, cases[i].says));
		fake_stop(&f);
		assert_int_equal(count_fds(), before);
	}
}

static void shared_memory_that_is_not_as_announced(void **state)
{
	size_t before = count_fds();
	char diag[256];
	struct fake f;

	for (enum bad_segment kind = 0; kind < N_BAD_SEGMENTS; kind++) {
		fake_start(&f, bad_segments, &kind);
		assert_int_equal(try_connect(f.path, diag, 0), KVD_E_PROTOCOL);
		fake_stop(&f);
		assert_int_equal(count_fds(), before);
	}
}

static void welcome(struct fake *f)
{
	if (!fake_expect(f, KVD_MSG_HELLO))
		return;
	snprintf(f->arg, 64, "%s", f->msg->hello.client);
	fake_make_segments(f, KVD_RING_MIN, KVD_ARENA_MIN);
	fake_welcome(f, (int[]){ f->ring.fd, f->client.fd, f->stats.fd }, 3, KVD_RING_MIN, KVD_ARENA_MIN);
	fake_receive(f);
}

/* A daemon may grant less; names are made to fit. */
static void success_and_names(void **state)
{
	static const struct { const char *name, *sent; } names[] = {
		{ "app", "app" },
		{ "a\nb\x80", "a?b?" },
		{ "0123456789012345678901234567890123456789012345678901234567890123456789",
		  "012345678901234567890123456789012345678901234567890123456789012" },
		{ NULL, NULL },
	};
	size_t before = count_fds();
	struct kvd_client *c;
	char got[64];
	struct fake f;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		fake_start(&f, welcome, got);
		struct kvd_connect_options o = { .socket = f.path, .name = names[i].name };
		assert_int_equal(kvd_connect(&c, &o, NULL, 0), 0);
		assert_string_equal(got, names[i].sent ? names[i].sent : program_invocation_short_name);
		assert_string_equal(kvd_client_error(c), "");
		assert_true(kvd_fd(c) >= 0);
		kvd_close(c);
		fake_stop(&f);
		assert_int_equal(count_fds(), before);
	}
}

static void sizes_that_are_refused(void **state)
{
	struct kvd_client *c;
	char diag[256];
	struct fake f;

	/* whoever serves sees the connection end at once */
	fake_start(&f, (void (*)(struct fake *))fake_forget, NULL);
	struct kvd_connect_options o = { .socket = f.path, .ring_bytes = 100000 };
	assert_int_equal(kvd_connect(&c, &o, diag, sizeof(diag)), -EINVAL);
	assert_non_null(strstr(diag, "power of two"));
	fake_stop(&f);
}

/* Without a path, a place whose daemon is gone does not hide the next one. */
static void next_place_is_tried(void **state)
{
	struct fake f;
	char got[64], stale[108], dir[64], stale_dir[80];
	struct kvd_client *c;

	if (access("/run/kvd/kvd.sock", F_OK) == 0)
		skip();
	snprintf(dir, sizeof(dir), "/tmp/kvd-%u", (unsigned)geteuid());
	if (access(dir, F_OK) == 0)
		skip();
	fake_start(&f, welcome, got);
	snprintf(stale_dir, sizeof(stale_dir), "%s/kvd", f.dir);
	snprintf(stale, sizeof(stale), "%s/kvd.sock", stale_dir);
	assert_int_equal(mkdir(stale_dir, 0700), 0);
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	memcpy(addr.sun_path, stale, sizeof(stale));
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	close(fd);
	setenv("XDG_RUNTIME_DIR", f.dir, 1);
	assert_int_equal(kvd_connect(&c, NULL, NULL, 0), -ECONNREFUSED);

	/* a directory that others could have made does not count */
	assert_int_equal(mkdir(dir, 0755), 0);
	char path[128];
	snprintf(path, sizeof(path), "%s/kvd.sock", dir);
	assert_int_equal(rename(f.path, path), 0);
	assert_int_equal(kvd_connect(&c, NULL, NULL, 0), -ECONNREFUSED);
	assert_int_equal(chmod(dir, 0700), 0);
	assert_int_equal(kvd_connect(&c, NULL, NULL, 0), 0);
	kvd_close(c);
	unsetenv("XDG_RUNTIME_DIR");
	unlink(path);
	rmdir(dir);
	unlink(stale);
	rmdir(stale_dir);
	fake_stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nobody_there),
		cmocka_unit_test(default_socket),
		cmocka_unit_test(greetings_that_fail),
		cmocka_unit_test(shared_memory_that_is_not_as_announced),
		cmocka_unit_test(success_and_names),
		cmocka_unit_test(sizes_that_are_refused),
		cmocka_unit_test(next_place_is_tried),
	};

	unsetenv("KVD_SOCKET");
	unsetenv("XDG_RUNTIME_DIR");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
