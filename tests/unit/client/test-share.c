/* SPDX-License-Identifier: Apache-2.0 */
/* Export, import, verification by libkvd: descriptors and members arrive, progress is told, giving up is answered. */
#include "tests/unit/client/fake-daemon.h"

#include <fcntl.h>

/* The next message and its descriptor; -1: there was none. */
static int receive_with_fd(struct fake *f)
{
	struct codec_error error;
	size_t n = 0, n_fds = 0;
	int fd = -1;

	msg_free(f->msg);
	f->msg = NULL;
	if (fdpass_recv(f->sock, f->buf, sizeof(f->buf), &n, &fd, 1, &n_fds, 0) ||
	    codec_decode(&f->msg, f->buf, n, &error) || n_fds != 1)
		return -1;
	return fd;
}

static void answer_all(struct fake *f)
{
	int fd;

	FAKE_EXPECT(f, fake_greet(f));
	fd = receive_with_fd(f);
	FAKE_EXPECT(f, fd >= 0 && write(fd, "bytes", 5) == 5 && f->msg->id == KVD_MSG_CACHE_EXPORT);
	close(fd);
	FAKE_EXPECT(f, !strcmp(f->msg->cache_export.model, "m") && !strcmp(f->msg->cache_export.namespace, "own/k"));
	FAKE_EXPECT(f, f->msg->cache_export.progress);
	/* Of nothing that is known. */
	fake_send(f, KVD_MSG_CACHE_PROGRESS, &(struct msg_cache_progress){ .id = 999, .done = 5, .total = 6 });
	fake_send(f, KVD_MSG_CACHE_SHARED, &(struct msg_cache_shared){
		.id = f->msg->cache_export.id, .n_entries = 1, .n_tokens = 2, .bytes = UINT64_MAX, .message = "",
	});
	fd = receive_with_fd(f);
	FAKE_EXPECT(f, fd >= 0 && f->msg->id == KVD_MSG_CACHE_IMPORT && !f->msg->cache_import.model);
	close(fd);
	FAKE_EXPECT(f, !strcmp(f->msg->cache_import.cache_key, "key"));
	fake_send(f, KVD_MSG_CACHE_SHARED, &(struct msg_cache_shared){
		.id = f->msg->cache_import.id, .n_entries = 3, .n_tokens = 4, .bytes = 5, .n_there = 6, .n_left = 7,
		.code = KVD_CODE_FILE, .message = "cut",
	});
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_CACHE_VERIFY) && f->msg->cache_verify.count == UINT32_MAX);
	fake_send(f, KVD_MSG_CACHE_VERIFIED, &(struct msg_cache_verified){
		.id = f->msg->cache_verify.id, .n_entries = 1, .n_tokens = 2, .bytes = 3, .n_differ = 4,
		.compute_ns = 5, .message = "the first",
	});
	fd = receive_with_fd(f);
	FAKE_EXPECT(f, fd >= 0);
	close(fd);
	fake_send(f, KVD_MSG_ERROR, &(struct msg_error){
		.id = f->msg->cache_import.id, .code = KVD_CODE_FILE, .field = "", .message = "not one",
	});
	fake_receive(f);
}

static void members(void **state)
{
	struct kvd_share_options o;
	struct kvd_share_result r;
	struct fake f;
	char text[8] = "";
	int fds[2];

	fake_start(&f, answer_all, NULL);
	struct kvd_client *c = fake_connect(&f, 0, 0);
	assert_int_equal(pipe(fds), 0);
	kvd_share_options_init(&o);
	o.model = "m";
	o.ns = "own/k";
	assert_int_equal(kvd_cache_export(c, fds[1], &o, &r), 0);
	assert_true(r.n_entries == 1 && r.n_tokens == 2 && r.bytes == UINT64_MAX && !r.code && !r.message[0]);
	assert_int_equal(read(fds[0], text, sizeof(text)), 5);
	kvd_share_options_init(&o);
	o.cache_key = "key";
	assert_int_equal(kvd_cache_import(c, fds[0], &o, &r), 0);
	assert_true(r.n_entries == 3 && r.n_tokens == 4 && r.bytes == 5 && r.n_there == 6 && r.n_left == 7);
	assert_int_equal(r.code, KVD_REFUSED_FILE);
	assert_string_equal(r.message, "cut");
	kvd_share_options_init(&o);
	o.count = UINT32_MAX;
	assert_int_equal(kvd_cache_verify(c, &o, &r), 0);
	assert_true(r.n_entries == 1 && r.n_tokens == 2 && r.bytes == 3 && r.n_differ == 4 && r.compute_ns == 5);
	assert_string_equal(r.message, "the first");
	assert_int_equal(kvd_cache_import(c, fds[0], &o, &r), KVD_E_REFUSED);
	assert_int_equal(kvd_client_code(c), KVD_REFUSED_FILE);
	assert_string_equal(kvd_client_error(c), "not one");
	assert_int_equal(r.n_differ, 4);	/* untouched */
	close(fds[0]);
	close(fds[1]);
	kvd_close(c);
	fake_stop(&f);
}

static void receive_nothing(struct fake *f)
{
	FAKE_EXPECT(f, fake_greet(f));
	FAKE_EXPECT(f, !fake_receive(f));
}

static void refused_here(void **state)
{
	struct kvd_share_options o;
	struct kvd_share_result r;
	struct fake f;

	fake_start(&f, receive_nothing, NULL);
	struct kvd_client *c = fake_connect(&f, 0, 0);
	kvd_share_options_init(&o);
	assert_int_equal(kvd_cache_export(c, -1, &o, &r), -EBADF);
	assert_int_equal(kvd_cache_import(c, -1, &o, &r), -EBADF);
	o.cache_key = "a/b";
	assert_int_equal(kvd_cache_import(c, 0, &o, &r), -EINVAL);
	o.cache_key = NULL;
	o.ns = "";
	assert_int_equal(kvd_cache_verify(c, &o, &r), -EINVAL);
	o.struct_size = 1;
	assert_int_equal(kvd_cache_verify(c, &o, &r), -EINVAL);
	assert_string_equal(kvd_client_field(c), "struct_size");
	kvd_close(c);
	fake_stop(&f);
}

/* Tells of progress until it is told to stop. */
static void go_on(struct fake *f)
{
	FAKE_EXPECT(f, fake_greet(f));
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_CACHE_VERIFY));
	uint64_t id = f->msg->cache_verify.id;

	fake_send(f, KVD_MSG_CACHE_PROGRESS, &(struct msg_cache_progress){ .id = id, .done = 1, .total = 3 });
	fake_send(f, KVD_MSG_CACHE_PROGRESS, &(struct msg_cache_progress){ .id = id, .done = 2, .total = 3 });
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_CANCEL) && f->msg->cancel.id == id);
	fake_send(f, KVD_MSG_ERROR, &(struct msg_error){
		.id = id, .code = KVD_CODE_CANCELLED, .field = "", .message = "given up",
	});
	fake_receive(f);
}

static int stop_at_two(void *arg, uint64_t done, uint64_t total)
{
	uint64_t *seen = arg;

	assert_true(done >= *seen && (total == 3 || !total));
	*seen = done;
	return done == 2;
}

static void progress_and_giving_up(void **state)
{
	struct kvd_share_options o;
	struct kvd_share_result r;
	uint64_t seen = 0;
	struct fake f;

	fake_start(&f, go_on, NULL);
	struct kvd_client *c = fake_connect(&f, 0, 0);
	kvd_share_options_init(&o);
	o.progress = stop_at_two;
	o.progress_arg = &seen;
	assert_int_equal(kvd_cache_verify(c, &o, &r), -ECANCELED);
	assert_int_equal(seen, 2);
	kvd_close(c);
	fake_stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(members),
		cmocka_unit_test(refused_here),
		cmocka_unit_test(progress_and_giving_up),
	};

	return cmocka_run_group_tests_name("share", tests, NULL, NULL);
}
