/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/fdstore.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>

#include "daemon/server/log.h"
#include "ipc/base/fd.h"
#include "ipc/fdpass.h"

struct slot {
	int fd;		/* came, and was not taken */
	bool seen;	/* something of that name came */
	bool stored;	/* the manager has something of that name: this, if it came in order */
	dev_t dev;
	ino_t ino;
};

struct fdstore {
	struct slot slots[FDSTORE_N_SLOTS];
};

static const char *const slot_names[FDSTORE_N_SLOTS] = {
	[FDSTORE_POOL] = "kvd-pool", [FDSTORE_INDEX] = "kvd-index", [FDSTORE_LIFE] = "kvd-life",
};

static bool slot_of_name(const char *name, enum fdstore_slot *out)
{
	for (unsigned i = 0; i < FDSTORE_N_SLOTS; i++) {
		if (strcmp(name, slot_names[i]) == 0) {
			*out = i;
			return true;
		}
	}
	return false;
}

/* --- to the manager ------------------------------------------------------------------- */

static void tell(const char *what, const char *name, const int *fd)
{
	char state[320];
	int r;

	snprintf(state, sizeof(state), "%s=1\nFDNAME=%s", what, name);
	r = fd ? sd_pid_notify_with_fds(0, 0, state, fd, 1) : sd_notify(0, state);
	if (r < 0)
		log_warning("cannot tell the service manager %s of %s: %s", what, name, strerror(-r));
}

bool fdstore_offered(const struct fdstore *s)
{
	return getenv("NOTIFY_SOCKET") != NULL;
}

static void forget(struct slot *slot, const char *name)
{
	if (slot->stored)
		tell("FDSTOREREMOVE", name, NULL);
	slot->stored = false;
}

int fdstore_take(struct fdstore *s, enum fdstore_slot slot)
{
	return fd_steal(&s->slots[slot].fd);
}

void fdstore_drop(struct fdstore *s, enum fdstore_slot slot)
{
	fdpass_close_receivedp(&s->slots[slot].fd);
	forget(&s->slots[slot], slot_names[slot]);
}

void fdstore_put(struct fdstore *s, enum fdstore_slot slot, int fd)
{
	struct slot *p = &s->slots[slot];
	struct stat st = { 0 };
	bool given = fd >= 0 && fstat(fd, &st) == 0;

	if (given && p->stored && st.st_dev == p->dev && st.st_ino == p->ino)
		return;
	forget(p, slot_names[slot]);
	if (!given || !fdstore_offered(s))
		return;
	tell("FDSTORE", slot_names[slot], &fd);
	p->stored = true;
	p->dev = st.st_dev;
	p->ino = st.st_ino;
}

/* --- from the manager ------------------------------------------------------------------- */

/* NULL, or why it is not a memfd that we may have stored. */
static const char *check(int fd, struct stat *st)
{
	int flags = fcntl(fd, F_GETFL), seals;

	if (flags < 0 || fstat(fd, st) < 0)
		return "it cannot be looked at";
	if (!S_ISREG(st->st_mode))
		return "it is not a file in memory";
	if ((flags & O_ACCMODE) != O_RDWR || flags & O_PATH)
		return "it is not open for reading and writing";
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0)
		return "it is not a file in memory";
	if (!(seals & F_SEAL_SHRINK))
		return "it could be made shorter";
	return NULL;
}

static void drop_because(struct fdstore *s, enum fdstore_slot slot, const char *why)
{
	log_warning("not taken from the service manager: %s: %s", slot_names[slot], why);
	fdstore_drop(s, slot);
}

/* Something that bears one of our names. */
static void receive_stored(struct fdstore *s, enum fdstore_slot i, int fd)
{
	struct slot *slot = &s->slots[i];
	const char *why;
	struct stat st;

	if (slot->seen) {
		fdpass_close_received(fd);
		if (slot->stored)
			drop_because(s, i, "it came twice");
		return;
	}
	slot->seen = slot->stored = true;
	slot->fd = fd;
	why = check(fd, &st);
	if (why) {
		drop_because(s, i, why);
		return;
	}
	slot->dev = st.st_dev;
	slot->ino = st.st_ino;
}

static void refuse_unknown(const char *name, int fd)
{
	log_warning("not taken from the service manager: %s: nothing has this name", name);
	fdpass_close_received(fd);
	if (!strchr(name, '\n'))
		tell("FDSTOREREMOVE", name, NULL);
}

static bool is_socket(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode);
}

/* Sorts what came; the sockets among it are counted, and the last one is *sock. */
static unsigned receive(struct fdstore *s, int n, char *const *names, int *sock)
{
	unsigned n_sockets = 0;
	enum fdstore_slot slot;

	for (int i = 0; i < n; i++) {
		int fd = SD_LISTEN_FDS_START + i;

		if (slot_of_name(names[i], &slot)) {
			receive_stored(s, slot, fd);
		} else if (is_socket(fd)) {
			fd_closep(sock);
			*sock = fd;
			n_sockets++;
		} else {
			refuse_unknown(names[i], fd);
		}
	}
	if ((s->slots[FDSTORE_POOL].fd < 0) != (s->slots[FDSTORE_INDEX].fd < 0)) {
		bool pool = s->slots[FDSTORE_POOL].fd >= 0;

		drop_because(s, pool ? FDSTORE_POOL : FDSTORE_INDEX, pool ? "it came without index" :
			     "it came without pool");
	}
	return n_sockets;
}

static void free_names(char ***names)
{
	for (char **p = *names; p && *p; p++)
		free(*p);
	free(*names);
}

int fdstore_new(struct fdstore **out, int *sock, struct diag *diag)
{
	_cleanup_(fdstore_freep) struct fdstore *s = calloc(1, sizeof(*s));
	_cleanup_(fd_closep) int listening = -1;
	_cleanup_(free_names) char **names = NULL;
	unsigned n_sockets;
	int n;

	if (!s)
		return -ENOMEM;
	for (unsigned i = 0; i < FDSTORE_N_SLOTS; i++)
		s->slots[i].fd = -1;
	n = sd_listen_fds_with_names(1, &names);
	if (n < 0)
		return diag_set(diag, n, "socket: cannot take over what the service manager passed: %s",
				strerror(-n));
	n_sockets = receive(s, n, names, &listening);
	if (n_sockets > 1)
		return diag_set(diag, -EINVAL, "socket: the service manager passed %u sockets, one is wanted",
				n_sockets);
	*out = steal_ptr(s);
	*sock = fd_steal(&listening);
	return 0;
}

void fdstore_free(struct fdstore *s)
{
	if (!s)
		return;
	for (unsigned i = 0; i < FDSTORE_N_SLOTS; i++)
		fdpass_close_receivedp(&s->slots[i].fd);
	free(s);
}
