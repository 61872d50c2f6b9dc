/* SPDX-License-Identifier: Apache-2.0 */
/* Loading and unloading: the descriptor arrives, progress is told, giving up is answered. */
#include "tests/unit/client/fake-daemon.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>

/* The next load and its descriptor; -1: there was none. */
static int receive_load(struct fake *f)
{
	struct codec_error error;
	size_t n = 0, n_fds = 0;
	int fd = -1;

	msg_free(f->msg);
	f->msg = NULL;
	if (fdpass_recv(f->sock, f->buf, sizeof(f->buf), &n, &fd, 1, &n_fds, 0) ||
	    codec_decode(&f->msg, f->buf, n, &error) || f->msg->id != KVD_MSG_LOAD || n_fds != 1)
		return -1;
	return fd;
}

/* A file with a known text, and its path. */
static char *make_file(const struct fake *f, const char *name, char *path, size_t n)
{
	int fd;

	snprintf(path, n, "%s/%s", f->dir, name);
	fd = open(path, O_CREAT | O_WRONLY, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, "content", 7), 7);
	close(fd);
	return path;
}

static bool has_content(int fd)
{
	char text[8] = "";

	return pread(fd, text, 7, 0) == 7 && !strcmp(text, "content");
}

static void answer_loads(struct fake *f)
{
	static const char *const names[] = { "model", "given", "given" };
	static const uint32_t contexts[] = { 0, 77, 77 };

	FAKE_EXPECT(f, fake_greet(f));
	for (int i = 0; i < 3; i++) {
		int fd = receive_load(f);
		FAKE_EXPECT(f, fd >= 0 && has_content(fd));
		close(fd);
		FAKE_EXPECT(f, !strcmp(f->msg->load.name, names[i]) && f->msg->load.n_ctx == contexts[i]);
		FAKE_EXPECT(f, f->msg->load.progress);
		/* of nothing that is known: passed over */
		fake_send(f, KVD_MSG_LOADING, &(struct msg_loading){ .id = 999, .percent = 5 });
		fake_send(f, KVD_MSG_LOADING, &(struct msg_loading){ .id = f->msg->load.id, .percent = 5 });
		fake_send(f, KVD_MSG_LOADED, &(struct msg_loaded){ .id = f->msg->load.id, .name = "x" });
	}
	fake_receive(f);
}

static void loads(void **state)
{
	struct kvd_load_options o;
	char path[128];
	struct fake f;
	size_t before;

	fake_start(&f, answer_loads, NULL);
	struct kvd_client *c = fake_connect(&f, 0, 0);
	make_file(&f, "model.gguf", path, sizeof(path));
	before = count_fds();
	assert_int_equal(kvd_load(c, path, NULL), 0);
	kvd_load_options_init(&o);
	o.name = "given";
	o.n_ctx = 77;
	assert_int_equal(kvd_load(c, path, &o), 0);
	int fd = open(path, O_RDONLY);
	assert_int_equal(kvd_load_fd(c, fd, &o), 0);
	assert_int_equal(fcntl(fd, F_GETFD), 0);	/* it stays ours */
	close(fd);
	assert_int_equal(count_fds(), before);
	unlink(path);
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
	struct kvd_load_options o;
	char path[128];
	struct fake f;

	fake_start(&f, receive_nothing, NULL);
	struct kvd_client *c = fake_connect(&f, 0, 0);
	make_file(&f, "bad\nname.gguf", path, sizeof(path));
	assert_int_equal(kvd_load(c, path, NULL), -EINVAL);
	assert_string_equal(kvd_client_field(c), "name");
	kvd_load_options_init(&o);
	o.name = "a/b";
	assert_int_equal(kvd_load(c, path, &o), -EINVAL);
	o.name = "";
	assert_int_equal(kvd_load(c, path, &o), -EINVAL);
	o.struct_size = 0;
	assert_int_equal(kvd_load(c, path, &o), -EINVAL);
	assert_string_equal(kvd_client_field(c), "struct_size");
	assert_int_equal(kvd_load(c, f.dir, NULL), -EINVAL);
	assert_non_null(strstr(kvd_client_error(c), "regular"));
	assert_int_equal(kvd_load(c, "/nonexistent/x.gguf", NULL), -ENOENT);
	kvd_load_options_init(&o);
	assert_int_equal(kvd_load_fd(c, 0, &o), -EINVAL);
	o.name = "x";
	assert_int_equal(kvd_load_fd(c, -1, &o), -EBADF);
	assert_int_equal(kvd_load_fd(c, 0, NULL), -EINVAL);
	assert_int_equal(kvd_unload(c, "", 0), -EINVAL);
	assert_string_equal(kvd_client_field(c), "model");
	unlink(path);
	kvd_close(c);
	fake_stop(&f);
}

/* Tells more and more, and ends only when it is given up. */
static void answer_cancelled(struct fake *f)
{
	FAKE_EXPECT(f, fake_greet(f));
	int fd = receive_load(f);
	FAKE_EXPECT(f, fd >= 0);
	close(fd);
	uint64_t id = f->msg->load.id;
	fake_send(f, KVD_MSG_LOADING, &(struct msg_loading){ .id = id, .percent = 42 });
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_CANCEL) && f->msg->cancel.id == id);
	if (f->arg)
		fake_send(f, KVD_MSG_LOADED, &(struct msg_loaded){ .id = id, .name = "x" });
	else
		fake_send(f, KVD_MSG_ERROR, &(struct msg_error){ .id = id, .code = KVD_CODE_CANCELLED, .field = "",
								  .message = "given up" });
	fake_receive(f);
}

struct told {
	struct kvd_client *c;
	unsigned calls, percent;
};

static int give_up_at_42(void *arg, unsigned percent)
{
	struct told *told = arg;

	/* the client may be used in here */
	assert_true(kvd_fd(told->c) >= 0);
	told->calls++;
	told->percent = percent;
	return percent == 42;
}

static void giving_up(void **state)
{
	for (int late = 0; late < 2; late++) {
		struct kvd_load_options o;
		struct told told = { 0 };
		char path[128];
		struct fake f;

		fake_start(&f, answer_cancelled, late ? &f : NULL);
		struct kvd_client *c = told.c = fake_connect(&f, 0, 0);
		make_file(&f, "model", path, sizeof(path));
		kvd_load_options_init(&o);
		o.progress = give_up_at_42;
		o.progress_arg = &told;
		/* late: it was there before the daemon heard of it */
		assert_int_equal(kvd_load(c, path, &o), late ? 0 : -ECANCELED);
		assert_true(told.calls >= 1 && told.percent == 42);
		unlink(path);
		kvd_close(c);
		fake_stop(&f);
	}
}

static void refuse_all(struct fake *f)
{
	FAKE_EXPECT(f, fake_greet(f));
	int fd = receive_load(f);
	FAKE_EXPECT(f, fd >= 0);
	close(fd);
	fake_send(f, KVD_MSG_ERROR, &(struct msg_error){ .id = f->msg->load.id, .code = KVD_CODE_BAD_MODEL,
							  .field = "", .message = "magic: not a GGUF file" });
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_UNLOAD));
	FAKE_EXPECT(f, !strcmp(f->msg->unload.model, "x") && !f->msg->unload.now);
	fake_send(f, KVD_MSG_ERROR, &(struct msg_error){ .id = f->msg->unload.id, .code = KVD_CODE_PERMISSION,
							  .field = "", .message = "not yours" });
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_UNLOAD));
	FAKE_EXPECT(f, f->msg->unload.now);
	fake_send(f, KVD_MSG_UNLOADED, &(struct msg_unloaded){ .id = f->msg->unload.id });
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_UNLOAD));
	/* an answer to another question */
	fake_send(f, KVD_MSG_LOADED, &(struct msg_loaded){ .id = f->msg->unload.id, .name = "x" });
	fake_receive(f);
}

static void answers(void **state)
{
	char path[128];
	struct fake f;

	fake_start(&f, refuse_all, NULL);
	struct kvd_client *c = fake_connect(&f, 0, 0);
	make_file(&f, "model", path, sizeof(path));
	assert_int_equal(kvd_load(c, path, NULL), KVD_E_REFUSED);
	assert_int_equal(kvd_client_code(c), KVD_REFUSED_BAD_MODEL);
	assert_string_equal(kvd_client_error(c), "magic: not a GGUF file");
	assert_int_equal(kvd_unload(c, "x", 0), KVD_E_REFUSED);
	assert_int_equal(kvd_client_code(c), KVD_REFUSED_PERMISSION);
	assert_int_equal(kvd_unload(c, "x", KVD_UNLOAD_NOW), 0);
	assert_int_equal(kvd_unload(c, "x", 0), KVD_E_PROTOCOL);
	assert_int_equal(kvd_load(c, path, NULL), KVD_E_PROTOCOL);
	unlink(path);
	kvd_close(c);
	fake_stop(&f);
}

static void go_away(struct fake *f)
{
	FAKE_EXPECT(f, fake_greet(f));
	int fd = receive_load(f);
	FAKE_EXPECT(f, fd >= 0);
	close(fd);
}

static void the_daemon_goes(void **state)
{
	char path[128];
	struct fake f;

	fake_start(&f, go_away, NULL);
	struct kvd_client *c = fake_connect(&f, 0, 0);
	make_file(&f, "model", path, sizeof(path));
	assert_int_equal(kvd_load(c, path, NULL), KVD_E_CLOSED);
	assert_int_equal(kvd_unload(c, "x", 0), KVD_E_CLOSED);
	unlink(path);
	kvd_close(c);
	fake_stop(&f);
}

static void send_prompt_records(struct fake *f)
{
	FAKE_EXPECT(f, fake_greet(f));
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_GENERATE));
	FAKE_EXPECT(f, f->msg->generate.has_prompt_logprobs && f->msg->generate.prompt_logprobs == 3);
	uint64_t id = f->msg->generate.id;
	ring_begin(&f->writer, false);
	ring_put_prompt(&f->writer, id, 7, -1.5f, 3, (const uint8_t *)"ab", 2);
	fake_commit(f);
	fake_done(f, id, KVD_FINISH_LENGTH);
	FAKE_EXPECT(f, fake_expect(f, KVD_MSG_GENERATE));
	FAKE_EXPECT(f, !f->msg->generate.has_prompt_logprobs);
	fake_done(f, f->msg->generate.id, KVD_FINISH_LENGTH);
	fake_receive(f);
}

static void prompt_logprobs(void **state)
{
	struct kvd_part part = { .text = "x", .n = 1 };
	const struct kvd_event *e;
	struct kvd_params p;
	struct fake f;
	uint64_t id;

	fake_start(&f, send_prompt_records, NULL);
	struct kvd_client *c = fake_connect(&f, 0, 0);
	kvd_params_init(&p);
	assert_int_equal(p.prompt_logprobs, -1);
	p.parts = &part;
	p.n_parts = 1;
	p.prompt_logprobs = 3;
	assert_int_equal(kvd_submit(c, &p, &id), 0);
	assert_int_equal(kvd_next(c, 20000, &e), 0);
	assert_int_equal(e->type, KVD_EVENT_PROMPT);
	assert_true(e->request == id && e->id == 7 && e->logprob == -1.5f && e->position == 3);
	assert_true(e->n_bytes == 2 && !memcmp(e->bytes, "ab", 2));
	assert_int_equal(kvd_next(c, 20000, &e), 0);
	assert_int_equal(e->type, KVD_EVENT_DONE);
	p.prompt_logprobs = -2;
	assert_int_equal(kvd_submit(c, &p, &id), -EINVAL);
	assert_string_equal(kvd_client_field(c), "prompt_logprobs");
	p.prompt_logprobs = -1;
	assert_int_equal(kvd_submit(c, &p, &id), 0);
	assert_int_equal(kvd_next(c, 20000, &e), 0);
	assert_int_equal(e->type, KVD_EVENT_DONE);
	kvd_close(c);
	fake_stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(loads),
		cmocka_unit_test(refused_here),
		cmocka_unit_test(giving_up),
		cmocka_unit_test(answers),
		cmocka_unit_test(the_daemon_goes),
		cmocka_unit_test(prompt_logprobs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
