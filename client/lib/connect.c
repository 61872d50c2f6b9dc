/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the daemon, the greeting, and the shared memory that comes with it. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/lib/client.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/fdpass.h"

#define GREETING_TIMEOUT_MS 5000
#define BACKLOG_POLL_MS 10
#define SYSTEM_SOCKET "/run/kvd/kvd.sock"

CLEANUP_DEFINE(struct kvd_client, kvd_close)

/* --- where it may be --- */

static bool is_socket(const char *path)
{
	struct stat st;

	return !stat(path, &st) && S_ISSOCK(st.st_mode);
}

/* Anybody can make a directory in /tmp: only ours counts. */
static bool is_own_directory(const char *path)
{
	struct stat st;

	return !lstat(path, &st) && S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077);
}

/*
 * The i-th place to look at.  0; -ENAMETOOLONG; -ENOENT: nothing there;
 * -ERANGE: there are no more.
 */
static int socket_candidate(unsigned i, char *buf, size_t n)
{
	const char *env = getenv("KVD_SOCKET"), *runtime = getenv("XDG_RUNTIME_DIR");
	char dir[64];
	int len = 0;

	if (env && *env) {
		if (i)
			return -ERANGE;
		return (size_t)snprintf(buf, n, "%s", env) < n ? 0 : -ENAMETOOLONG;
	}
	switch (i) {
	case 0:
		if (!runtime || runtime[0] != '/')	/* a relative one is to be ignored, says the specification */
			return -ENOENT;
		len = snprintf(buf, n, "%s/kvd/kvd.sock", runtime);
		break;
	case 1:
		len = snprintf(buf, n, "%s", SYSTEM_SOCKET);
		break;
	case 2:
		snprintf(dir, sizeof(dir), "/tmp/kvd-%u", (unsigned)geteuid());
		if (!is_own_directory(dir))
			return -ENOENT;
		len = snprintf(buf, n, "%s/kvd.sock", dir);
		break;
	default:
		return -ERANGE;
	}
	if ((size_t)len >= n)
		return -ENAMETOOLONG;
	return is_socket(buf) ? 0 : -ENOENT;
}

KVD_API int kvd_default_socket(char *buf, size_t n)
{
	char path[sizeof(((struct sockaddr_un *)NULL)->sun_path) + 1];
	int r = -ENOENT;

	for (unsigned i = 0; r == -ENOENT; i++)
		r = socket_candidate(i, path, sizeof(path));
	if (r == -ENAMETOOLONG)
		return r;
	if (r)
		snprintf(path, sizeof(path), "%s", SYSTEM_SOCKET);
	if (strlen(path) >= n)
		return -ENAMETOOLONG;
	memcpy(buf, path, strlen(path) + 1);
	return 0;
}

/* --- connecting --- */

/* A socket whose backlog is full says EAGAIN; there is nothing to poll for. */
static int connect_socket(int *out, const char *path, uint64_t deadline_ns, struct diag *diag)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	_cleanup_(fd_closep) int fd = -1;

	if (strlen(path) >= sizeof(addr.sun_path))
		return diag_set(diag, -ENAMETOOLONG, "the socket path is longer than %zu bytes: %s",
				sizeof(addr.sun_path) - 1, path);
	memcpy(addr.sun_path, path, strlen(path) + 1);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return diag_set(diag, -errno, "cannot create a socket: %s", strerror(errno));
	while (connect(fd, (struct sockaddr *)&addr, sizeof(addr))) {
		int err = errno;
		if (err == EINTR)
			continue;
		if (err != EAGAIN)
			return diag_set(diag, -err, "%s %s: %s", err == ENOENT || err == ECONNREFUSED ?
					"no daemon at" : "cannot connect to", path, strerror(err));
		if (clock_ns() >= deadline_ns)
			return diag_set(diag, KVD_E_TIMEOUT, "the daemon at %s accepts no connections", path);
		poll(NULL, 0, BACKLOG_POLL_MS);
	}
	*out = fd_steal(&fd);
	return 0;
}

/* The first candidate that answers; the first one's failure if none does. */
static int connect_any(int *out, const char *path, uint64_t deadline_ns, struct diag *diag)
{
	char candidate[sizeof(((struct sockaddr_un *)NULL)->sun_path) + 1];
	int result = 0;

	if (path)
		return connect_socket(out, path, deadline_ns, diag);
	for (unsigned i = 0;; i++) {
		int r = socket_candidate(i, candidate, sizeof(candidate));
		if (r == -ERANGE)
			break;
		if (r == -ENOENT)
			continue;
		if (r)
			return diag_set(diag, r, "the socket path is too long");
		r = connect_socket(out, candidate, deadline_ns, diag);
		if (!r || (r != -ENOENT && r != -ECONNREFUSED))
			return r;
		result = result ? result : r;
	}
	return result ? result : diag_set(diag, -ENOENT, "no daemon at %s", SYSTEM_SOCKET);
}

/* --- greeting --- */

/* A name that the daemon accepts: no controls, valid UTF-8, not empty. */
static void make_name(const char *name, char out[KVD_CLIENT_NAME_MAX + 1])
{
	size_t n = 0;

	if (!name || !*name)
		name = program_invocation_short_name;
	for (; *name && n < KVD_CLIENT_NAME_MAX; name++)
		out[n++] = *name >= 0x20 && *name < 0x7f ? *name : '?';
	if (!n)
		out[n++] = '?';
	out[n] = '\0';
}

static int send_hello(struct kvd_client *c, const struct kvd_connect_options *o, int timeout_ms,
		      struct diag *diag)
{
	_cleanup_(codec_buf_deinit) struct codec_buf buf = CODEC_BUF_NULL;
	char name[KVD_CLIENT_NAME_MAX + 1];
	struct msg_hello hello = {
		.version = KVD_PROTOCOL_VERSION, .client = name,
		.ring = o->ring_bytes ? o->ring_bytes : KVD_RING_DEFAULT,
		.arena = o->arena_bytes ? o->arena_bytes : KVD_ARENA_DEFAULT,
	};

	make_name(o->name, name);
	int r = codec_encode_hello(&buf, &hello);
	if (r)
		return diag_set(diag, r,
				"ring_bytes must be a power of two of %u to %u, arena_bytes a multiple of "
				"4096 of %u to %u", KVD_RING_MIN, KVD_RING_MAX, KVD_ARENA_MIN, KVD_ARENA_MAX);
	r = client_send(c, &buf, timeout_ms);
	/* what a daemon that closes at once has to say may still be there to read */
	if (r && r != KVD_E_CLOSED)
		return diag_set(diag, r, "cannot send the greeting");
	return 0;
}

/* One datagram within the time; 0, KVD_E_* or -errno. */
static int receive_greeting(struct kvd_client *c, uint64_t deadline_ns, size_t *n, int *fds, size_t *n_fds,
			    struct diag *diag)
{
	for (;;) {
		int r = client_recv_datagram(c, n, fds, KVD_WELCOME_FDS, n_fds);
		if (r == FDPASS_E_EOF)
			return diag_set(diag, KVD_E_CLOSED, "the daemon closed the connection");
		if (r == FDPASS_E_TRUNCATED || r == FDPASS_E_FDS)
			return diag_set(diag, KVD_E_PROTOCOL, "the greeting is not one of this protocol");
		if (r != -EAGAIN)
			return r ? diag_set(diag, r, "cannot receive: %s", strerror(-r)) : 0;
		uint64_t now = clock_ns();
		if (now >= deadline_ns)
			return diag_set(diag, KVD_E_TIMEOUT, "the daemon does not answer");
		struct pollfd p = { .fd = c->sock, .events = POLLIN };
		poll(&p, 1, (int)((deadline_ns - now) / 1000000) + 1);
	}
}

static int map_segments(struct kvd_client *c, const struct msg_welcome *w, int *fds, struct diag *diag)
{
	int r = segment_map_ring(&c->ring, fds[0], w->ring, diag);
	if (!r) {
		fd_steal(&fds[0]);
		r = segment_map_client(&c->segment, fds[1], w->arena, diag);
	}
	if (!r) {
		fd_steal(&fds[1]);
		segment_close_fd(&c->ring);
		segment_close_fd(&c->segment);
		return 0;
	}
	if (r == -EPROTO)
		return diag_set(diag, KVD_E_PROTOCOL, "the daemon's shared memory is not as announced");
	return diag_set(diag, r, "cannot map the daemon's shared memory: %s", strerror(-r));
}

static int take_greeting(struct kvd_client *c, const struct msg *m, int *fds, size_t n_fds, struct diag *diag)
{
	if (m->id == KVD_MSG_REFUSED)
		return diag_set(diag, m->refused.code == KVD_CODE_VERSION ? KVD_E_PROTOCOL : KVD_E_REFUSED,
				"the daemon refuses: %s", m->refused.message);
	if (m->id != KVD_MSG_WELCOME || n_fds != KVD_WELCOME_FDS)
		return diag_set(diag, KVD_E_PROTOCOL, "the greeting is not one of this protocol");
	return map_segments(c, &m->welcome, fds, diag);
}

static int greet(struct kvd_client *c, const struct kvd_connect_options *o, int timeout_ms, struct diag *diag)
{
	_cleanup_(msg_freep) struct msg *m = NULL;
	uint64_t deadline_ns = clock_ns() + (uint64_t)timeout_ms * 1000000;
	int fds[KVD_WELCOME_FDS] = { -1, -1, -1 };
	struct codec_error error;
	size_t n = 0, n_fds = 0;

	int r = send_hello(c, o, timeout_ms, diag);
	if (!r)
		r = receive_greeting(c, deadline_ns, &n, fds, &n_fds, diag);
	if (r)
		return r;
	r = codec_decode(&m, c->datagram, n, &error);
	if (r == CODEC_E_INVALID)
		r = diag_set(diag, KVD_E_PROTOCOL, "the daemon's greeting: %s", error.text);
	else if (!r)
		r = take_greeting(c, m, fds, n_fds, diag);
	/* the statistics page is for monitors; the mappings keep the other two */
	for (size_t i = 0; i < KVD_WELCOME_FDS; i++)
		fd_closep(&fds[i]);
	return r;
}

/* --- the client --- */

static int init_locks(struct kvd_client *c)
{
	pthread_condattr_t attr;
	int r = pthread_mutex_init(&c->lock, NULL);

	if (r)
		return -r;
	r = pthread_condattr_init(&attr);
	if (!r) {
		pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
		r = pthread_cond_init(&c->cond, &attr);
		pthread_condattr_destroy(&attr);
	}
	if (r)
		pthread_mutex_destroy(&c->lock);
	return -r;
}

static int client_new(struct kvd_client **out)
{
	struct kvd_client *c = calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	int r = init_locks(c);
	if (r) {
		free(c);
		return r;
	}
	c->sock = c->epoll = c->poke = -1;
	c->ring = c->segment = SEGMENT_NULL;
	list_init(&c->requests);
	list_init(&c->refused);
	list_init(&c->calls);
	*out = c;
	return 0;
}

static int init_descriptors(struct kvd_client *c)
{
	c->datagram = malloc(KVD_MESSAGE_MAX);
	if (!c->datagram)
		return -ENOMEM;
	c->poke = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	c->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (c->poke < 0 || c->epoll < 0)
		return -errno;
	return 0;
}

static int watch(struct kvd_client *c, int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

	return epoll_ctl(c->epoll, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

static int attach(struct kvd_client **out, const struct kvd_connect_options *o, struct diag *diag)
{
	_cleanup_(kvd_closep) struct kvd_client *c = NULL;
	int timeout_ms = o->timeout_ms > 0 ? o->timeout_ms : GREETING_TIMEOUT_MS;
	int r = client_new(&c);

	if (!r)
		r = init_descriptors(c);
	if (r)
		return diag_set(diag, r, "%s", strerror(-r));
	r = connect_any(&c->sock, o->socket, clock_ns() + (uint64_t)timeout_ms * 1000000, diag);
	if (!r)
		r = greet(c, o, timeout_ms, diag);
	if (r)
		return r;
	r = watch(c, c->sock);
	if (!r)
		r = watch(c, c->poke);
	if (r)
		return diag_set(diag, r, "%s", strerror(-r));
	arena_init(&c->arena, segment_data_size(&c->segment));
	ring_reader_init(&c->reader, &c->ring, &c->segment);
	*out = steal_ptr(c);
	return 0;
}

KVD_API int kvd_connect(struct kvd_client **out, const struct kvd_connect_options *options, char *diag,
			size_t n_diag)
{
	static const struct kvd_connect_options defaults;
	struct diag d = DIAG_NULL;

	*out = NULL;
	int r = attach(out, options ? options : &defaults, &d);
	if (r && diag && n_diag)
		snprintf(diag, n_diag, "%s", d.text);
	return r;
}
