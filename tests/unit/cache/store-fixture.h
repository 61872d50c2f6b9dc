/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store-fixture.h - a store in a directory of its own, driven one request at a
 * time.  A block's bytes follow from its namespace and all tokens up to its
 * end, so that a wrong one is known by looking at it.
 */
#ifndef KVD_TEST_STORE_FIXTURE_H
#define KVD_TEST_STORE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/cache/store.h"
#include "ipc/base/checked.h"
#include "ipc/base/hash.h"

#define BT 4u			/* tokens of a block */
#define BLOCK 5000u		/* bytes of a block: no multiple of a page */
#define STRIDE (4096u + 8192u)
#define PATH_TOKENS 64u

static inline uint64_t prng(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15u;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

struct fixture {
	char dir[128];
	struct store_config config;
	struct store *store;
	struct store_root *root;
	const char *model;		/* of the root's identity */
	pthread_mutex_t lock;
	pthread_cond_t cond;
	uint32_t n_woken, n_events, n_notes;
	char last_event[256], last_note[512];
};

static inline void on_event(void *arg, const char *text)
{
	struct fixture *f = arg;

	pthread_mutex_lock(&f->lock);
	f->n_events++;
	snprintf(f->last_event, sizeof(f->last_event), "%s", text);
	pthread_mutex_unlock(&f->lock);
}

static inline void on_note(void *arg, const char *text)
{
	struct fixture *f = arg;

	pthread_mutex_lock(&f->lock);
	f->n_notes++;
	snprintf(f->last_note, sizeof(f->last_note), "%s", text);
	pthread_mutex_unlock(&f->lock);
}

static inline void on_wake(void *arg)
{
	struct fixture *f = arg;

	pthread_mutex_lock(&f->lock);
	f->n_woken++;
	pthread_cond_signal(&f->cond);
	pthread_mutex_unlock(&f->lock);
}

static inline void identity_of(struct store_identity *id, const char *model)
{
	*id = (struct store_identity){ 0 };
	store_identity_add(id, STORE_TAG_MODEL, model, (uint32_t)strlen(model));
	store_identity_add(id, STORE_TAG_KV_TYPE, "f16", 3);
}

static inline void root_open(struct fixture *f, struct store_root **root, const char *model)
{
	struct store_identity id;

	identity_of(&id, model);
	assert_int_equal(store_root_new(root, f->store, &id, NULL, BT, BLOCK), 0);
}

static inline void settle(struct fixture *f);

static inline void fixture_open(struct fixture *f)
{
	struct diag diag = DIAG_NULL;

	if (store_new(&f->store, &f->config, &diag))
		fail_msg("%s", diag.text);
	root_open(f, &f->root, f->model);
	settle(f);
}

static inline void fixture_close(struct fixture *f)
{
	if (!f->store)
		return;
	store_root_free(f->root);
	f->root = NULL;
	store_stop(f->store);
	store_poll(f->store);
	store_free(f->store);
	f->store = NULL;
}

/* A directory below `parent`, or where files are in memory if there is such a place. */
static inline void fixture_init_in(struct fixture *f, const char *parent)
{
	*f = (struct fixture){ .model = "model" };
	snprintf(f->dir, sizeof(f->dir), "%s/kvd-store-XXXXXX", parent);
	assert_non_null(mkdtemp(f->dir));
	strcat(f->dir, "/cache");
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->cond, NULL);
	f->config = (struct store_config){
		.dir = f->dir,
		.max_bytes = 64u << 20,
		.retry_ns = 1,
		.event = on_event,
		.note = on_note,
		.wake = on_wake,
		.arg = f,
	};
}

static inline void fixture_init(struct fixture *f)
{
	fixture_init_in(f, access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
}

static inline int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

static inline void remove_tree(const char *path)
{
	nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static inline void fixture_deinit(struct fixture *f)
{
	fixture_close(f);
	*strrchr(f->dir, '/') = '\0';
	remove_tree(f->dir);
	pthread_cond_destroy(&f->cond);
	pthread_mutex_destroy(&f->lock);
}

/* The folder of the root that is alone in the directory. */
static inline void root_dir(const struct fixture *f, char *out, size_t n)
{
	DIR *d = opendir(f->dir);
	struct dirent *e;

	assert_non_null(d);
	while ((e = readdir(d)))
		if (strlen(e->d_name) == 32)
			snprintf(out, n, "%s/%s", f->dir, e->d_name);
	closedir(d);
}

static uint64_t n_tree_bytes;

static inline int add_bytes(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	if (type == FTW_F)
		n_tree_bytes += (uint64_t)st->st_size;
	return 0;
}

/* Bytes of all files, as stat says. */
static inline uint64_t tree_bytes(const char *path)
{
	n_tree_bytes = 0;
	nftw(path, add_bytes, 8, FTW_PHYS);
	return n_tree_bytes;
}

/* --- requests, waited for --- */

static bool request_done;

static inline void on_done(struct store_request *r)
{
	request_done = true;
}

/* Of requests that run beside each other. */
static uint32_t n_done;

static inline void on_counted(struct store_request *r)
{
	n_done++;
}

static inline void poll_once(struct fixture *f)
{
	pthread_mutex_lock(&f->lock);
	while (!f->n_woken)
		pthread_cond_wait(&f->cond, &f->lock);
	f->n_woken = 0;
	pthread_mutex_unlock(&f->lock);
	store_poll(f->store);
}

static inline void await_counted(struct fixture *f, uint32_t n)
{
	while (n_done < n)
		poll_once(f);
	n_done = 0;
}

static inline enum store_result await(struct fixture *f, struct store_request *r)
{
	while (!request_done)
		poll_once(f);
	request_done = false;
	return r->result;
}

static inline struct store_name name_of(const char *name)
{
	return (struct store_name){ name, (uint32_t)strlen(name) };
}

/* The block of the last tokens of tokens [n]. */
static inline void block_of(uint8_t *block, const char *name, const int32_t *tokens, uint32_t n)
{
	uint64_t state = hash_u64(tokens, n * sizeof(*tokens), hash_u64(name, strlen(name), 1));

	for (uint32_t i = 0; i + 8 <= BLOCK; i += 8) {
		uint64_t x = prng(&state);

		memcpy(block + i, &x, 8);
	}
}

/* Whether opening is over; then writes have ids. */
static inline void settle(struct fixture *f)
{
	struct store_touch t = { .request.done = on_done };

	store_touch(f->root, &t);
	await(f, &t.request);
}

/* Writes the last block of tokens [n] after the entry parent; the id in *id. */
static inline enum store_result put(struct fixture *f, struct store_root *root, const char *name, uint64_t parent,
				    const int32_t *tokens, uint32_t n, uint64_t now, uint64_t expires, uint64_t *id)
{
	uint32_t first = (n - 1) / BT * BT;
	uint8_t block[BLOCK] = { 0 };
	struct store_write w = {
		.request.done = on_done,
		.name = name_of(name),
		.parent = parent,
		.tokens = tokens + first,
		.n_tokens = n - first,
		.first = first,
		.uid = 1000,
		.now = now,
		.expires = expires,
		.block = block,
	};
	enum store_result result;

	*id = 0;
	block_of(block, name, tokens, n);
	if (store_write(root, &w))
		return STORE_FAILED;
	result = await(f, &w.request);
	*id = w.stored_id;
	return result;
}

/* Writes all blocks of tokens [n]; returns how many are there afterwards. */
static inline uint32_t put_path(struct fixture *f, struct store_root *root, const char *name, const int32_t *tokens,
				uint32_t n, uint64_t *ids)
{
	uint64_t parent = 0;
	uint32_t done = 0;

	for (uint32_t at = 0; at < n; at += BT) {
		enum store_result r = put(f, root, name, parent, tokens, MIN(at + BT, n), 1, STORE_NEVER, &ids[done]);

		if (r != STORE_OK && r != STORE_EXISTS)
			break;
		parent = ids[done++];
	}
	return done;
}

static inline uint32_t find(struct fixture *f, struct store_root *root, const char *name, uint64_t parent,
			    const int32_t *tokens, uint32_t n, uint64_t now, struct store_found *found, uint32_t max)
{
	struct store_lookup l = {
		.request.done = on_done,
		.name = name_of(name),
		.parent = parent,
		.tokens = tokens,
		.n_tokens = n,
		.now = now,
		.found = found,
		.max_found = max,
	};

	store_lookup(root, &l);
	await(f, &l.request);
	return l.n_found;
}

/* Reads the entry id, of which tokens [n] are asked for up to the last, and checks its bytes. */
static inline enum store_result get(struct fixture *f, struct store_root *root, const char *name, uint64_t parent,
				    uint64_t id, const int32_t *tokens, uint32_t n)
{
	uint32_t first = (n - 1) / BT * BT;
	uint8_t block[BLOCK] = { 0 }, expected[BLOCK] = { 0 };
	int32_t whole[PATH_TOKENS];
	struct store_read r = {
		.request.done = on_done,
		.name = name_of(name),
		.id = id,
		.parent = parent,
		.tokens = tokens + first,
		.n_tokens = n - first,
		.first = first,
		.block = block,
	};
	enum store_result result;

	store_read(root, &r);
	result = await(f, &r.request);
	if (result == STORE_OK) {
		assert_int_equal(r.uid, 1000);
		memcpy(whole, tokens, first * sizeof(*tokens));
		memcpy(whole + first, r.stored, r.n_stored * sizeof(*tokens));
		assert_memory_equal(whole, tokens, n * sizeof(*tokens));
		block_of(expected, name, whole, first + r.n_stored);
		assert_memory_equal(block, expected, BLOCK);
	}
	return result;
}

/* How many tokens of tokens [n] can be had: found, read and right. */
static inline uint32_t restore(struct fixture *f, struct store_root *root, const char *name, const int32_t *tokens,
			       uint32_t n)
{
	struct store_found found[PATH_TOKENS];
	uint32_t n_found = find(f, root, name, 0, tokens, n, 1, found, ARRAY_SIZE(found)), at = 0;
	uint64_t parent = 0;

	for (uint32_t i = 0; i < n_found; i++) {
		if (get(f, root, name, parent, found[i].id, tokens, at + found[i].n_common) != STORE_OK)
			break;
		at += found[i].n_common;
		parent = found[i].id;
	}
	return at;
}

static inline uint64_t wipe(struct fixture *f, const char *name)
{
	struct store_wipe w = { .request.done = on_done, .all = !name };

	if (name)
		w.name = name_of(name);
	store_wipe(f->store, NULL, &w);
	assert_int_equal(await(f, &w.request), STORE_OK);
	return w.removed.entries;
}

static inline uint64_t drop(struct fixture *f, uint64_t id)
{
	struct store_drop d = { .request.done = on_done, .id = id };

	store_drop(f->root, &d);
	assert_int_equal(await(f, &d.request), STORE_OK);
	return d.removed.entries;
}

static inline struct store_stats stats_of(struct fixture *f)
{
	struct store_stats stats;

	store_stats(f->store, &stats);
	return stats;
}

/* tokens [n] that begin with the given ones. */
static inline void make_tokens(int32_t *tokens, uint32_t n, int32_t begin)
{
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = begin + (int32_t)i;
}

#endif
