/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-keys.h - the file of keys: who may come over TCP, whose cache it uses, and how much it may take.
 *
 *	# NAME	KEY				OPTIONS
 *	alice	sk-2f6c1b0a9d8e7f605142		weight=200 requests=8 kv-memory=512M
 *	robots	sk-77b0e9c4a1d2f3e4b5c6		namespace=public sessions=4
 *
 * One key a line; blanks between words; '#' begins a comment where a word could begin.  kvd-http(7) says what the
 * options are.  The file is read once, at the start.
 *
 * A key has an account of its own, whose id is made from its name (account.h), so that it is the same in
 * the next life.
 *
 * Thread: any; it is not changed once it is there.
 */
#ifndef KVD_SERVER_HTTP_KEYS_H
#define KVD_SERVER_HTTP_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/base/account.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/error.h"
#include "ipc/protocol.h"

#define HTTP_KEYS_MAX 256
#define HTTP_KEY_MIN 16		/* bytes of a key: shorter ones can be guessed */
#define HTTP_KEY_MAX 128
#define HTTP_KEY_NAME_MAX 32
#define HTTP_KEYS_FILE_MAX (HTTP_KEYS_MAX * 1024)

struct http_key {
	char name[HTTP_KEY_NAME_MAX + 1];
	uid_t account;
	uint32_t weight;			/* 100: one user's */
	char own[KVD_NAMESPACE_MAX + 1];	/* its namespace; "": none */
	bool all_metrics;			/* is told of others as well */
	struct account_limits limits;		/* UINT64_MAX where the file doesn't say */
	size_t n_secret;
	char secret[HTTP_KEY_MAX];		/* zeros behind n_secret */
};

struct http_keys {
	size_t n;
	struct http_key keys[];
};

/*
 * Reads the file.  0, -ENOMEM; -EACCES: it is not a regular file of ours or root's that others can neither read nor
 * write; -EINVAL: a line of it is wrong; -errno.  diag says what, and never a key.
 */
int http_keys_load(struct http_keys **out, const char *path, struct diag *diag);
/* The same from text; where: its name. */
int http_keys_parse(struct http_keys **out, const char *text, size_t n, const char *where, struct diag *diag);
void http_keys_free(struct http_keys *keys);
CLEANUP_DEFINE(struct http_keys, http_keys_free)

/* The key that is this, or NULL.  Takes as long whichever it is, and if it is none. */
const struct http_key *http_keys_find(const struct http_keys *keys, const char *secret);
/* The one that this account stands for; NULL: none.  keys may be NULL. */
const struct http_key *http_keys_of(const struct http_keys *keys, uid_t account);

#endif
