/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.h - one attached client: who it is, its shared memory, its requests.
 *
 *	GREET --hello--> OPEN --closed, cursor broken, daemon stops--> gone
 *
 * At the end every request of the session is cancelled; its ring sink lives on
 * until the engine has let go.
 *
 * Thread: the loop thread.
 */
#ifndef KVD_SERVER_SESSION_H
#define KVD_SERVER_SESSION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/server/connection.h"
#include "daemon/server/ring-sink.h"
#include "ipc/base/account.h"
#include "ipc/codec.h"

#define SESSION_GREET_S 10		/* hello must come within */
#define SESSION_VIOLATIONS_MAX 32	/* messages that break the protocol, then it ends */
#define SESSION_QUERIES_MAX 16		/* unanswered ps and status */
#define SESSION_REFUSED_MAX 16		/* refused peers that are waited for, in all */

struct served_model;
struct server;

enum session_state { SESSION_GREET, SESSION_OPEN };

struct session {
	struct connection connection;	/* first */
	struct server *server;
	struct list link;		/* in server.sessions */
	uint64_t key;			/* unique for the daemon's life */
	uid_t uid;
	pid_t pid;
	uint32_t groups;		/* bit per group that it is in, of server.namespaces */
	char name[KVD_CLIENT_NAME_MAX + 1];
	enum session_state state;
	struct charge charge;		/* NULL: over quota, to be refused */
	struct event *greet_timer;
	struct ring_sink *sink;		/* OPEN */
	struct stats_page *page;	/* OPEN */
	struct list submissions;	/* struct submission.link: what the workers have */
	unsigned n_violations, n_queries;
	int *received_fd;		/* during a handler: what came with its message, to be fd_steal()ed */
};

/* A connection was accepted; fd is taken over whatever happens. */
void session_new(struct server *server, int fd);
/* Ends it now; not from inside a message's handler. */
void session_free(struct session *s);

/* Encodes and sends; a reply that can't be made or sent ends the session. */
void session_send(struct session *s, enum kvd_message id, const void *msg);
void session_error(struct session *s, uint64_t id, enum kvd_code code, const char *field, const char *message,
		   uint64_t count);
/* The workers did not take what the message asks for. */
void session_no_place(struct session *s, uint64_t id);
/* Instead of welcome; then the end. */
void session_refuse(struct session *s, enum kvd_code code, const char *message);
/* The model that a message asks for (name NULL: the default one); NULL: there is none, which was said. */
struct served_model *session_model(struct session *s, uint64_t id, const char *name);
/* Counts a message that breaks the protocol; too many end the session. */
void session_violation(struct session *s);

#endif
