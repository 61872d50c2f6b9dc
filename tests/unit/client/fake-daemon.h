/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake-daemon.h - the daemon's side of one connection, as a test wants it.
 *
 * A thread listens on a socket of its own, accepts once and calls the test's
 * `serve`; what it asserts there is reported through fake.failed, since cmocka's
 * own assertions belong to the main thread.
 */
#ifndef KVD_TEST_FAKE_DAEMON_H
#define KVD_TEST_FAKE_DAEMON_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above */
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/kvd.h"
#include "ipc/codec.h"
#include "ipc/fdpass.h"
#include "ipc/ring.h"
#include "ipc/segment.h"
#include "ipc/stats.h"

struct fake {
	char dir[64], path[108];
	int listener, sock;
	pthread_t thread;
	void (*serve)(struct fake *f);
	void *arg;
	_Atomic int step;	/* the test and serve() wait for each other with it */
	const char *failed;	/* an expectation of serve() */

	struct segment ring, client, stats;
	struct ring_writer writer;
	bool greeted;
	struct msg *msg;	/* the last one received */
	uint8_t buf[KVD_MESSAGE_MAX];
};

#define FAKE_EXPECT(F, COND) \
	do { \
		if (!(COND)) { \
			(F)->failed = #COND; \
			return; \
		} \
	} while (0)

/* --- messages --- */

static inline void fake_send(struct fake *f, enum kvd_message id, const void *msg)
{
	struct codec_buf buf = CODEC_BUF_NULL;

	if (codec_encode(&buf, id, msg) || fdpass_send(f->sock, buf.data, buf.n, NULL, 0, 0))
		f->failed = "fake_send";
	codec_buf_deinit(&buf);
}

static inline void fake_send_raw(struct fake *f, const void *p, size_t n)
{
	fdpass_send(f->sock, p, n, NULL, 0, 0);
}

/* The next message; false at the end of the connection. */
static inline bool fake_receive(struct fake *f)
{
	struct codec_error error;
	size_t n;

	msg_free(f->msg);
	f->msg = NULL;
	return !fdpass_recv(f->sock, f->buf, sizeof(f->buf), &n, NULL, 0, NULL, 0) &&
		!codec_decode(&f->msg, f->buf, n, &error);
}

/* The next message of that kind; others are dropped. */
static inline bool fake_expect(struct fake *f, enum kvd_message id)
{
	while (fake_receive(f))
		if (f->msg->id == id)
			return true;
	f->failed = codec_name(id);
	return false;
}

static inline void fake_make_segments(struct fake *f, uint32_t ring, uint32_t arena)
{
	if (segment_new_ring(&f->ring, ring) || segment_new_client(&f->client, arena) ||
	    stats_new(&f->stats, KVD_STATS_UID, 0))
		f->failed = "segments";
}

static inline void fake_welcome(struct fake *f, const int *fds, size_t n_fds, uint32_t ring, uint32_t arena)
{
	struct msg_welcome w = { .version = KVD_PROTOCOL_VERSION, .session = 1, .ring = ring, .arena = arena,
				 .server = "fake", .state = "ready" };
	struct codec_buf buf = CODEC_BUF_NULL;

	if (codec_encode_welcome(&buf, &w) || fdpass_send(f->sock, buf.data, buf.n, fds, n_fds, 0))
		f->failed = "welcome";
	codec_buf_deinit(&buf);
}

/* The whole greeting, as the client asked for it. */
static inline bool fake_greet(struct fake *f)
{
	if (!fake_expect(f, KVD_MSG_HELLO))
		return false;
	uint32_t ring = f->msg->hello.ring, arena = f->msg->hello.arena;
	fake_make_segments(f, ring, arena);
	if (f->failed || ring_writer_init(&f->writer, &f->ring, &f->client, 0))
		return false;
	f->greeted = true;
	fake_welcome(f, (int[]){ f->ring.fd, f->client.fd, f->stats.fd }, 3, ring, arena);
	return true;
}

/* Publishes the open batch and wakes the client if it sleeps. */
static inline int fake_commit(struct fake *f)
{
	int r = ring_commit(&f->writer);

	if (ring_needs_wake(&f->writer))
		fake_send(f, KVD_MSG_WAKE, &(struct msg_wake){ 0 });
	return r;
}

static inline void fake_token(struct fake *f, uint64_t request, int32_t id, const char *bytes)
{
	ring_begin(&f->writer, false);
	ring_put_token(&f->writer, request, id, -0.5f, false, (const uint8_t *)bytes, strlen(bytes));
	ring_put_text(&f->writer, request, (const uint8_t *)bytes, strlen(bytes));
	fake_commit(f);
}

static inline void fake_done(struct fake *f, uint64_t request, enum kvd_finish reason)
{
	ring_begin(&f->writer, false);
	ring_put_done(&f->writer, request, reason, 0);
	fake_commit(f);
}

/* --- steps --- */

static inline void fake_reached(struct fake *f, int step)
{
	atomic_store(&f->step, step);
}

/* Waits for the other thread; bounded, so that a broken test ends. */
static inline bool fake_wait(struct fake *f, int step)
{
	for (int i = 0; i < 20000; i++) {
		if (atomic_load(&f->step) >= step)
			return true;
		poll(NULL, 0, 1);
	}
	f->failed = "fake_wait";
	return false;
}

/* --- life --- */

static inline void fake_forget(struct fake *f)
{
	if (f->greeted)
		ring_writer_deinit(&f->writer);
	f->greeted = false;
	segment_deinit(&f->ring);
	segment_deinit(&f->client);
	segment_deinit(&f->stats);
	if (f->sock >= 0)
		close(f->sock);
	f->sock = -1;
	msg_free(f->msg);
	f->msg = NULL;
}

static inline void *fake_thread(void *arg)
{
	struct fake *f = arg;

	f->sock = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);
	if (f->sock >= 0)
		f->serve(f);
	fake_forget(f);
	return NULL;
}

static inline void fake_path(struct fake *f)
{
	*f = (struct fake){ .listener = -1, .sock = -1, .ring = SEGMENT_NULL, .client = SEGMENT_NULL,
			    .stats = SEGMENT_NULL };
	snprintf(f->dir, sizeof(f->dir), "/tmp/kvd-unit-XXXXXX");
	assert_non_null(mkdtemp(f->dir));
	snprintf(f->path, sizeof(f->path), "%s/kvd.sock", f->dir);
}

static inline void fake_start(struct fake *f, void (*serve)(struct fake *), void *arg)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };

	fake_path(f);
	f->serve = serve;
	f->arg = arg;
	memcpy(addr.sun_path, f->path, sizeof(addr.sun_path));
	f->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_return_code(f->listener, errno);
	assert_return_code(bind(f->listener, (struct sockaddr *)&addr, sizeof(addr)), errno);
	assert_return_code(listen(f->listener, 4), errno);
	assert_int_equal(pthread_create(&f->thread, NULL, fake_thread, f), 0);
}

static inline void fake_remove(struct fake *f)
{
	unlink(f->path);
	rmdir(f->dir);
}

/* Ends the thread (the client has closed, or nobody came) and checks what it saw. */
static inline void fake_stop(struct fake *f)
{
	shutdown(f->listener, SHUT_RDWR);
	pthread_join(f->thread, NULL);
	close(f->listener);
	fake_remove(f);
	if (f->failed)
		fail_msg("the fake daemon: %s", f->failed);
}

static inline struct kvd_client *fake_connect(struct fake *f, uint32_t ring, uint32_t arena)
{
	struct kvd_connect_options o = { .socket = f->path, .name = "test", .ring_bytes = ring,
					 .arena_bytes = arena };
	struct kvd_client *c = NULL;
	char diag[256] = "";
	int r = kvd_connect(&c, &o, diag, sizeof(diag));

	if (r)
		fail_msg("kvd_connect: %d %s", r, diag);
	return c;
}

static inline uint64_t fake_submit(struct kvd_client *c, const char *text)
{
	struct kvd_part part = { .text = text, .n = strlen(text) };
	struct kvd_params p;
	uint64_t id = 0;

	kvd_params_init(&p);
	p.parts = &part;
	p.n_parts = 1;
	assert_int_equal(kvd_submit(c, &p, &id), 0);
	assert_true(id != 0);
	return id;
}

static inline size_t count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	size_t n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

#endif
