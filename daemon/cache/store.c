/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/cache/store.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/cache/store-dir.h"
#include "daemon/cache/store-root.h"
#include "ipc/base/checked.h"
#include "ipc/base/fd.h"

#define RETRY_NS UINT64_C(1000000000)
#define IDS_LOW (DISK_IDS / 2)

struct store {
	pthread_t thread;
	bool running;
	uint32_t max_queue;
	int lock_fd;

	/* The store's thread. */
	struct disk disk;
	struct disk_root *batch_root;	/* of the writes that wait to be committed */
	struct list batch;
	uint32_t n_batch;

	pthread_mutex_t lock;		/* of all below */
	pthread_cond_t work;
	struct list urgent, writes, done;
	uint32_t n_writes;
	void (*wake)(void *arg);
	void *wake_arg;
	bool stop;
	struct store_stats stats;	/* the disk's as last seen, and dropped_full */
	uint64_t dropped_full, dropped_wiped;
};

struct store_root {
	struct store *store;
	char name[33];
	uint8_t id[16];
	uint8_t *identity;		/* until it is opened */
	uint32_t n_identity;
	char *model;			/* its name; NULL: nobody wants to know of others */
	uint64_t block_bytes;
	struct store_request open, close;
	struct disk_root *disk;		/* the store's thread */

	/* Under the store's lock. */
	int64_t ids_next, ids_end;	/* reserved for it */
	bool asked;			/* for ids: `open` is queued */
};

/* --- the caller's side --- */

/* Under the lock. */
static void put(struct store *s, struct list *queue, struct store_request *r, struct store_root *root,
		enum store_kind kind)
{
	r->root = root;
	r->kind = kind;
	list_push_back(queue, &r->link);
	pthread_cond_signal(&s->work);
}

static void put_urgent(struct store *s, struct store_request *r, struct store_root *root, enum store_kind kind)
{
	pthread_mutex_lock(&s->lock);
	put(s, &s->urgent, r, root, kind);
	pthread_mutex_unlock(&s->lock);
}

/* What it is about may still be to be written. */
static void put_behind(struct store *s, struct store_request *r, struct store_root *root, enum store_kind kind)
{
	pthread_mutex_lock(&s->lock);
	put(s, &s->writes, r, root, kind);
	pthread_mutex_unlock(&s->lock);
}

int store_write(struct store_root *root, struct store_write *w)
{
	struct store *s = root->store;
	int r = STORE_E_FULL;

	pthread_mutex_lock(&s->lock);
	/* The first ones are there when the root is open. */
	if (root->ids_end - root->ids_next < IDS_LOW && !root->asked) {
		root->asked = true;
		put(s, &s->urgent, &root->open, root, STORE_OPEN);
	}
	if (s->n_writes < s->max_queue && root->ids_next < root->ids_end) {
		w->id = (uint64_t)root->ids_next++;
		s->n_writes++;
		put(s, &s->writes, &w->request, root, STORE_WRITE);
		r = 0;
	} else {
		s->dropped_full++;
	}
	pthread_mutex_unlock(&s->lock);
	return r;
}

void store_lookup(struct store_root *root, struct store_lookup *l)
{
	put_urgent(root->store, &l->request, root, STORE_LOOKUP);
}

void store_read(struct store_root *root, struct store_read *r)
{
	put_urgent(root->store, &r->request, root, STORE_READ);
}

void store_touch(struct store_root *root, struct store_touch *t)
{
	put_behind(root->store, &t->request, root, STORE_TOUCH);
}

void store_drop(struct store_root *root, struct store_drop *d)
{
	put_urgent(root->store, &d->request, root, STORE_DROP);
}

void store_wipe(struct store *s, struct store_root *root, struct store_wipe *w)
{
	put_urgent(s, &w->request, root, STORE_WIPE);
}

void store_expire(struct store *s, struct store_expire *e)
{
	put_behind(s, &e->request, NULL, STORE_EXPIRE);
}

void store_list(struct store_root *root, struct store_list *l)
{
	put_urgent(root->store, &l->request, root, STORE_LIST);
}

void store_show(struct store_root *root, struct store_show *s)
{
	put_urgent(root->store, &s->request, root, STORE_SHOW);
}

void store_pin(struct store_root *root, struct store_pin *p)
{
	put_behind(root->store, &p->request, root, STORE_PIN);
}

uint32_t store_poll(struct store *s)
{
	struct list done = LIST_INIT(done);
	uint32_t n = 0;

	pthread_mutex_lock(&s->lock);
	if (!list_empty(&s->done)) {
		done = s->done;
		done.next->prev = done.prev->next = &done;
		list_init(&s->done);
	}
	pthread_mutex_unlock(&s->lock);
	while (!list_empty(&done)) {
		struct store_request *r = list_entry(done.next, struct store_request, link);

		list_unlink(&r->link);
		r->done(r);
		n++;
	}
	return n;
}

void store_stats(struct store *s, struct store_stats *out)
{
	pthread_mutex_lock(&s->lock);
	*out = s->stats;
	out->queued = s->n_writes;
	out->dropped_full = s->dropped_full;
	out->dropped_wiped = s->dropped_wiped;
	pthread_mutex_unlock(&s->lock);
}

void store_set_wake(struct store *s, void (*wake)(void *arg), void *arg)
{
	pthread_mutex_lock(&s->lock);
	s->wake = wake;
	s->wake_arg = arg;
	pthread_mutex_unlock(&s->lock);
}

static void root_free(struct store_root *root)
{
	if (!root)
		return;
	free(root->identity);
	free(root->model);
	free(root);
}
CLEANUP_DEFINE(struct store_root, root_free)

int store_root_new(struct store_root **out, struct store *s, const struct store_identity *identity, const char *name,
		   uint32_t block_tokens, uint64_t block_bytes)
{
	_cleanup_(root_freep) struct store_root *root = NULL;
	int r;

	if (identity->overflow || !identity->n || !block_tokens || block_tokens > STORE_TOKENS_MAX || !block_bytes ||
	    block_bytes > SLOT_BLOCK_MAX)
		return -EINVAL;
	root = calloc(1, sizeof(*root));
	if (!root)
		return -ENOMEM;
	root->model = name ? strdup(name) : NULL;
	if (name && !root->model)
		return -ENOMEM;
	r = disk_identity_make(identity, block_tokens, block_bytes, &root->identity, &root->n_identity, root->id,
			       root->name);
	if (r)
		return r;
	root->store = s;
	root->block_bytes = block_bytes;
	root->asked = true;
	put_urgent(s, &root->open, root, STORE_OPEN);
	*out = steal_ptr(root);
	return 0;
}

void store_root_free(struct store_root *root)
{
	struct store *s;

	if (!root)
		return;
	s = root->store;
	pthread_mutex_lock(&s->lock);
	if (s->running)
		put(s, &s->writes, &root->close, root, STORE_CLOSE);
	pthread_mutex_unlock(&s->lock);
	if (!s->running)
		root_free(root);
}

/* --- the store's thread --- */

static void publish(struct store *s)	/* under the lock */
{
	struct store_stats *stats = &s->disk.stats;

	stats->bytes = disk_bytes(&s->disk);
	stats->max_bytes = s->disk.max_bytes;
	stats->n_roots = stats->n_open = stats->n_slots = stats->n_free = 0;
	stats->useless_bytes = disk_useless_bytes(&s->disk);
	list_for_each(l, &s->disk.roots) {
		struct disk_root *r = list_entry(l, struct disk_root, link);

		stats->n_roots++;
		if (!r->open)
			continue;
		stats->n_open++;
		stats->n_slots += (uint64_t)r->state.n_slots;
		stats->n_free += (uint64_t)r->state.n_free;
	}
	s->stats = *stats;
}

static void complete(struct store *s, struct store_request *r, enum store_result result)
{
	bool first;

	r->result = result;
	if (r->at_once) {
		pthread_mutex_lock(&s->lock);
		publish(s);
		pthread_mutex_unlock(&s->lock);
		r->done(r);
		return;
	}
	pthread_mutex_lock(&s->lock);
	first = list_empty(&s->done);
	list_push_back(&s->done, &r->link);
	publish(s);
	/* Under the lock: who is woken may be about to go. */
	if (first && s->wake)
		s->wake(s->wake_arg);
	pthread_mutex_unlock(&s->lock);
}

/* Commits what was written and tells its writers. */
static void finish_batch(struct store *s)
{
	struct disk_root *r = s->batch_root;
	bool kept;

	if (!r)
		return;
	kept = !disk_commit(r) && !r->lost;
	s->batch_root = NULL;
	s->n_batch = 0;
	while (!list_empty(&s->batch)) {
		struct store_request *w = list_entry(s->batch.next, struct store_request, link);

		list_unlink(&w->link);
		if (kept)
			s->disk.stats.written += w->result == STORE_OK;
		else
			s->disk.stats.failed++;
		complete(s, w, kept ? w->result : STORE_FAILED);
	}
}

static void batch_begin(struct store *s, struct disk_root *r)
{
	if (s->batch_root == r)
		return;
	finish_batch(s);
	s->batch_root = r;
	r->lost = false;
}

static void handle_write(struct store *s, struct store_write *w)
{
	struct disk_root *r = w->request.root->disk;
	enum store_result result;
	int64_t now = (int64_t)MIN(w->now, (uint64_t)INT64_MAX);

	if (!r || !disk_root_open(r)) {
		s->disk.stats.dropped_paused++;
		complete(s, &w->request, STORE_DROPPED);
		return;
	}
	batch_begin(s, r);
	if (!r->state.n_free && !disk_may_grow(r, 1) && disk_root_writable(r)) {
		finish_batch(s);
		/* For some more at once, but no large part of what is there. */
		disk_make_room(r, (uint32_t)MAX(MIN(r->state.n_slots / 16, DISK_BATCH), 1), now);
		batch_begin(s, r);
	}
	result = disk_write(r, w);
	if (result == STORE_OK || result == STORE_EXISTS) {
		w->request.result = result;
		list_push_back(&s->batch, &w->request.link);
	} else {
		s->disk.stats.failed += result == STORE_FAILED;
		complete(s, &w->request, result);
	}
	/* Another one's failure took these with it. */
	if (++s->n_batch >= DISK_BATCH || r->lost)
		finish_batch(s);
}

static void open_root(struct store *s, struct store_root *root)
{
	struct disk_root *r = NULL;

	list_for_each(l, &s->disk.roots)
		if (!strcmp(list_entry(l, struct disk_root, link)->name, root->name))
			r = list_entry(l, struct disk_root, link);
	if (!r && disk_root_new(&r, &s->disk, root->name))
		return;
	if (s->batch_root == r)
		finish_batch(s);
	r->n_users++;
	disk_root_expect(r, steal_ptr(root->identity), root->n_identity, root->id);
	root->disk = r;
}

/* Opens it, the first time, and gets ids for it. */
static void handle_open(struct store *s, struct store_root *root)
{
	int64_t first = 0;
	bool got = false;

	if (root->identity) {
		open_root(s, root);
		if (root->disk && root->model)
			disk_note_others(root->disk, root->model);
	}
	if (root->disk && disk_root_open(root->disk) && disk_root_writable(root->disk)) {
		finish_batch(s);
		/* The first change may be what finds an index damaged, which then begins cold. */
		got = !disk_reserve_ids(root->disk, &first) ||
		      (disk_root_writable(root->disk) && !disk_reserve_ids(root->disk, &first));
	}
	pthread_mutex_lock(&s->lock);
	root->asked = false;
	if (got) {
		root->ids_next = first;
		root->ids_end = first + DISK_IDS;
	}
	publish(s);
	pthread_mutex_unlock(&s->lock);
}

static void handle_close(struct store *s, struct store_root *root)
{
	struct disk_root *r = root->disk;

	finish_batch(s);
	pthread_mutex_lock(&s->lock);
	if (root->asked)
		list_unlink(&root->open.link);
	pthread_mutex_unlock(&s->lock);
	if (r && --r->n_users == 0)
		disk_root_close(r);
	root_free(root);
}

/* Takes out of the queue the writes that were put before and that a wipe or drop concerns. */
static void cancel_writes(struct store *s, bool (*concerns)(const void *what, const struct store_write *w),
			  const void *what)
{
	struct list cancelled = LIST_INIT(cancelled);

	pthread_mutex_lock(&s->lock);
	list_for_each_safe(l, next, &s->writes) {
		struct store_request *r = list_entry(l, struct store_request, link);

		if (r->kind != STORE_WRITE || !concerns(what, list_entry(r, struct store_write, request)))
			continue;
		list_unlink(l);
		list_push_back(&cancelled, l);
		s->n_writes--;
		s->dropped_wiped++;
	}
	pthread_mutex_unlock(&s->lock);
	while (!list_empty(&cancelled)) {
		struct store_request *r = list_entry(cancelled.next, struct store_request, link);

		list_unlink(&r->link);
		complete(s, r, STORE_DROPPED);
	}
}

static bool is_wiped(const void *what, const struct store_write *w)
{
	const struct store_wipe *wipe = what;
	const struct store_root *only = wipe->request.root;

	if (only && w->request.root->disk != only->disk)
		return false;
	return wipe->all || (w->name.n == wipe->name.n && disk_name_within(w->name.bytes, w->name.n, &wipe->name)) ||
	       (wipe->below && disk_name_within(w->name.bytes, w->name.n, &wipe->name));
}

static enum store_result wipe_root(struct disk_root *r, struct store_wipe *w)
{
	enum store_result result = disk_wipe(r, w, &w->removed);

	if (r->n_users)
		return result;
	/* Nothing is left in it, or nobody can tell what. */
	if (w->all || r->useless) {
		if (disk_root_remove(r))
			return STORE_FAILED;
		disk_root_free(r);
		return STORE_OK;
	}
	disk_root_close(r);
	return result;
}

static void handle_wipe(struct store *s, struct store_wipe *w)
{
	const struct store_root *only = w->request.root;
	enum store_result result = only && !only->disk ? STORE_FAILED : STORE_OK;

	finish_batch(s);
	cancel_writes(s, is_wiped, w);
	w->removed = (struct store_removed){ 0 };
	list_for_each_safe(l, next, &s->disk.roots) {
		struct disk_root *r = list_entry(l, struct disk_root, link);

		if ((!only || only->disk == r) && wipe_root(r, w) != STORE_OK)
			result = STORE_FAILED;
	}
	s->disk.stats.removed += w->removed.entries;
	complete(s, &w->request, result);
}

static void handle_expire(struct store *s, struct store_expire *e)
{
	finish_batch(s);
	e->next = STORE_NEVER;
	list_for_each(l, &s->disk.roots) {
		struct disk_root *r = list_entry(l, struct disk_root, link);

		if (r->open && disk_root_writable(r))
			e->next = MIN(e->next, disk_expire(r, e->now));
	}
	complete(s, &e->request, STORE_OK);
}

static bool is_dropped(const void *what, const struct store_write *w)
{
	const struct store_drop *d = what;

	return d->id && w->request.root == d->request.root && w->id == d->id;
}

static void handle_drop(struct store *s, struct store_drop *d)
{
	struct disk_root *r = d->request.root->disk;
	enum store_result result;

	finish_batch(s);
	cancel_writes(s, is_dropped, d);
	d->removed = (struct store_removed){ 0 };
	result = r ? disk_drop(r, d, &d->removed) : STORE_FAILED;
	s->disk.stats.removed += d->removed.entries;
	complete(s, &d->request, result);
}

static enum store_result handle_pin(struct store *s, struct disk_root *r, const struct store_pin *p)
{
	finish_batch(s);
	return r ? disk_pin(r, p) : STORE_MISS;
}

static enum store_result list(struct store *s, struct disk_root *r, struct store_list *l)
{
	l->n = 0;
	finish_batch(s);
	return r ? disk_list(r, l) : STORE_MISS;
}

/* All but those that may be of no root. */
static void handle_of_root(struct store *s, struct store_request *r)
{
	struct disk_root *root = r->root->disk;

	switch (r->kind) {
	case STORE_OPEN:
		handle_open(s, r->root);
		break;
	case STORE_CLOSE:
		handle_close(s, r->root);
		break;
	case STORE_WRITE:
		handle_write(s, list_entry(r, struct store_write, request));
		break;
	case STORE_LOOKUP: {
		struct store_lookup *l = list_entry(r, struct store_lookup, request);

		l->n_found = 0;
		complete(s, r, root ? disk_lookup(root, l) : STORE_MISS);
		break;
	}
	case STORE_READ:
		complete(s, r, root ? disk_read(root, list_entry(r, struct store_read, request)) : STORE_MISS);
		break;
	case STORE_TOUCH: {
		const struct store_touch *t = list_entry(r, struct store_touch, request);

		complete(s, r, root ? disk_touch(root, t->id, t->expires) : STORE_MISS);
		break;
	}
	case STORE_DROP:
		handle_drop(s, list_entry(r, struct store_drop, request));
		break;
	case STORE_LIST:
		complete(s, r, list(s, root, list_entry(r, struct store_list, request)));
		break;
	case STORE_SHOW:
		finish_batch(s);
		complete(s, r, root ? disk_show(root, list_entry(r, struct store_show, request)) : STORE_MISS);
		break;
	case STORE_PIN:
		complete(s, r, handle_pin(s, root, list_entry(r, struct store_pin, request)));
		break;
	case STORE_WIPE:
	case STORE_EXPIRE:
		break;
	}
}

static void handle(struct store *s, struct store_request *r)
{
	if (r->kind == STORE_WIPE)
		handle_wipe(s, list_entry(r, struct store_wipe, request));
	else if (r->kind == STORE_EXPIRE)
		handle_expire(s, list_entry(r, struct store_expire, request));
	else
		handle_of_root(s, r);
}

/* Under the lock. */
static struct store_request *take(struct store *s)
{
	struct list *queue = list_empty(&s->urgent) ? &s->writes : &s->urgent;
	struct store_request *r;

	if (list_empty(queue))
		return NULL;
	r = list_entry(queue->next, struct store_request, link);
	list_unlink(&r->link);
	if (r->kind == STORE_WRITE)
		s->n_writes--;
	return r;
}

/* Nothing to do: what is in transactions is committed. */
static void settle(struct store *s)
{
	finish_batch(s);
	list_for_each(l, &s->disk.roots)
		disk_commit(list_entry(l, struct disk_root, link));
}

static bool unsettled(const struct store *s)
{
	if (s->batch_root)
		return true;
	list_for_each(l, &s->disk.roots) {
		const struct disk_root *r = list_entry(l, struct disk_root, link);

		if (r->open && index_in_transaction(r->index))
			return true;
	}
	return false;
}

static void *store_main(void *arg)
{
	struct store *s = arg;

	pthread_setname_np(pthread_self(), "kvd-store");
	disk_fit(&s->disk);
	pthread_mutex_lock(&s->lock);
	publish(s);
	while (true) {
		struct store_request *r = take(s);

		if (!r && !unsettled(s)) {
			if (s->stop)
				break;
			pthread_cond_wait(&s->work, &s->lock);
			continue;
		}
		pthread_mutex_unlock(&s->lock);
		if (r)
			handle(s, r);
		else
			settle(s);
		pthread_mutex_lock(&s->lock);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* --- life --- */

static int add_dormant(void *arg, const char *name)
{
	struct store *s = arg;
	_cleanup_(fd_closep) int fd = -1;
	struct disk_root *r;

	if (strlen(name) != 32 || strspn(name, "0123456789abcdef") != 32 || dir_open_sub(s->disk.fd, name, false, &fd))
		return 0;
	if (disk_root_new(&r, &s->disk, name))
		return -ENOMEM;
	r->other_bytes = dir_bytes(fd);
	return 0;
}

static int canonical_path(int fd, char **out)
{
	char link[64], path[PATH_MAX];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	if (n < 0)
		return -errno;
	path[n] = '\0';
	if (path[0] != '/')
		return -ENOENT;
	*out = strdup(path);
	return *out ? 0 : -ENOMEM;
}

static int start(struct store *s)
{
	sigset_t all, old;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = -pthread_create(&s->thread, NULL, store_main, s);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	s->running = !r;
	return r;
}

static int open_disk(struct store *s, const struct store_config *c, struct diag *diag)
{
	int r = dir_open(c->dir, &s->disk.fd);

	if (r)
		return diag_set(diag, r, "cache directory %s: %s", c->dir, strerror(-r));
	r = dir_lock(s->disk.fd, "lock", &s->lock_fd);
	if (r == -EBUSY)
		return diag_set(diag, r, "cache directory %s: another daemon uses it", c->dir);
	if (!r)
		r = canonical_path(s->disk.fd, &s->disk.path);
	if (!r)
		r = dir_each_sub(s->disk.fd, add_dormant, s);
	return r ? diag_set(diag, r, "cache directory %s: %s", c->dir, strerror(-r)) : 0;
}

int store_new(struct store **out, const struct store_config *c, struct diag *diag)
{
	_cleanup_(store_freep) struct store *s = NULL;
	int r;

	if (c->max_bytes < STORE_BYTES_MIN)
		return diag_set(diag, -EINVAL, "the cache on disk needs at least %llu bytes",
				(unsigned long long)STORE_BYTES_MIN);
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->lock_fd = s->disk.fd = -1;
	list_init(&s->disk.roots);
	list_init(&s->batch);
	list_init(&s->urgent);
	list_init(&s->writes);
	list_init(&s->done);
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->work, NULL);
	s->max_queue = c->max_queue ? c->max_queue : STORE_QUEUE_MAX;
	s->wake = c->wake;
	s->wake_arg = s->disk.arg = c->arg;
	s->disk.event = c->event;
	s->disk.note = c->note;
	s->disk.describe = c->describe;
	s->disk.io = c->io;
	s->disk.max_bytes = c->max_bytes;
	s->disk.retry_ns = c->retry_ns ? c->retry_ns : RETRY_NS;
	s->disk.hash_mask = c->hash_bits && c->hash_bits < 64 ? (UINT64_C(1) << c->hash_bits) - 1 : UINT64_MAX;
	r = open_disk(s, c, diag);
	if (r)
		return r;
	publish(s);
	r = start(s);
	if (r)
		return r;
	*out = steal_ptr(s);
	return 0;
}

void store_stop(struct store *s)
{
	if (!s->running)
		return;
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	pthread_cond_signal(&s->work);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->thread, NULL);
	s->running = false;
	list_for_each(l, &s->disk.roots)
		disk_root_close(list_entry(l, struct disk_root, link));
}

void store_free(struct store *s)
{
	if (!s)
		return;
	store_stop(s);
	list_for_each_safe(l, next, &s->disk.roots)
		disk_root_free(list_entry(l, struct disk_root, link));
	fd_closep(&s->disk.fd);
	fd_closep(&s->lock_fd);
	free(s->disk.path);
	pthread_cond_destroy(&s->work);
	pthread_mutex_destroy(&s->lock);
	free(s);
}
