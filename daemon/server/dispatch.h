/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dispatch.h - from a datagram to its handler, by one table: message id, the
 * state it may come in, who may send it, handler.  A handler sees only decoded
 * messages that passed all of these.
 */
#ifndef KVD_SERVER_DISPATCH_H
#define KVD_SERVER_DISPATCH_H

#include <stddef.h>

#include "ipc/codec.h"

struct session;

/* fd: the descriptor that came with it, closed unless its handler takes it; -1: none. */
void dispatch_message(struct session *s, const void *data, size_t n, int fd);
/* why: FDPASS_E_TRUNCATED or FDPASS_E_FDS. */
void dispatch_discarded(struct session *s, int why);

/* The handlers.  One that keeps the message sets *msg to NULL. */
void handle_hello(struct session *s, struct msg **msg);		/* handle-hello.c */
void handle_generate(struct session *s, struct msg **msg);	/* handle-generate.c */
void handle_cancel(struct session *s, struct msg **msg);
void handle_room(struct session *s, struct msg **msg);
void handle_wait(struct session *s, struct msg **msg);
void handle_tokenize(struct session *s, struct msg **msg);	/* handle-tokenize.c */
void handle_status(struct session *s, struct msg **msg);	/* handle-info.c */
void handle_models(struct session *s, struct msg **msg);
void handle_ps(struct session *s, struct msg **msg);
void handle_load(struct session *s, struct msg **msg);		/* handle-load.c; takes s->received_fd */
void handle_unload(struct session *s, struct msg **msg);
void handle_cache_ls(struct session *s, struct msg **msg);	/* handle-cache.c */
void handle_cache_show(struct session *s, struct msg **msg);
void handle_cache_pin(struct session *s, struct msg **msg);
void handle_cache_unpin(struct session *s, struct msg **msg);
void handle_cache_drop(struct session *s, struct msg **msg);
void handle_cache_wipe(struct session *s, struct msg **msg);
void handle_cache_export(struct session *s, struct msg **msg);	/* handle-share.c; takes s->received_fd */
void handle_cache_import(struct session *s, struct msg **msg);	/* the same */
void handle_cache_verify(struct session *s, struct msg **msg);

#endif
