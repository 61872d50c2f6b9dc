/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/weights-read.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/gguf-private.h"
#include "ipc/base/checked.h"
#include "ipc/base/hash.h"

/* Of a unit: a read costs a microsecond or two, and buffer and what becomes of it should fit a core's second cache. */
#define UNIT_BYTES (192u << 10)
#define ROW_GROUP 16u		/* rows that a backend is given together, of backend.h */
#define MAX_THREADS 64u
#define UNITS_PER_THREAD 8u	/* fewer are not worth a thread */

struct unit {
	uint64_t index;
	uint64_t at;			/* in the file */
	size_t n_bytes;
	uint64_t tensor;		/* of the header; for messages */
	const struct weights_part *part;	/* NULL: bytes between tensors */
	uint32_t row, n_rows;		/* of the part */
};

struct reader {
	const struct weights_read *what;
	struct diag *diag;
	uint64_t size;
	size_t buffer_bytes;

	pthread_mutex_t lock;
	pthread_cond_t turned;
	/* What follows is under the lock. */
	uint64_t pos;			/* where the next unit begins */
	uint64_t n_units;		/* taken */
	size_t item, part;		/* of the plan, that it lies in or before */
	uint32_t row;
	struct gguf_tensor tensor;	/* of the item */
	uint64_t n_hashed;		/* units: whose turn it is */
	int result;			/* the first failure in the file's order of those that were seen */
	struct hasher *hasher;		/* of whose turn it is */
};

/* --- cutting ------------------------------------------------------------------ */

static size_t row_bytes(const struct gguf_tensor *t, const struct weights_part *part)
{
	return (size_t)(t->n_bytes / (t->n_elements / part->desc.cols));
}

/* Whole groups of rows, as many as a unit has room for, at least one; a list of the host is one row. */
static uint32_t rows_per_unit(size_t bytes)
{
	return MAX((uint32_t)(UNIT_BYTES / bytes) / ROW_GROUP * ROW_GROUP, ROW_GROUP);
}

/* The largest unit that there will be. */
static size_t buffer_bytes(const struct weights_read *what, uint64_t size)
{
	size_t most = (size_t)MIN(size, (uint64_t)UNIT_BYTES);

	for (size_t i = 0; i < what->plan->n; i++) {
		struct gguf_tensor t;

		gguf_tensor_at(what->header, i, &t);
		for (size_t k = 0; k < what->plan->items[i].n_parts; k++) {
			const struct weights_part *part = &what->plan->items[i].parts[k];
			size_t bytes = row_bytes(&t, part);

			most = MAX(most, bytes * MIN(rows_per_unit(bytes), part->desc.rows));
		}
	}
	return most;
}

static void enter_item(struct reader *r)
{
	if (r->item < r->what->plan->n)
		gguf_tensor_at(r->what->header, r->item, &r->tensor);
}

/* Bytes before the next tensor, or behind the last one. */
static bool cut_gap(struct reader *r, struct unit *u)
{
	uint64_t end = r->item < r->what->plan->n ? r->tensor.offset : r->size;

	if (r->pos >= end)
		return false;
	u->n_bytes = (size_t)MIN(end - r->pos, (uint64_t)UNIT_BYTES);
	return true;
}

static void cut_rows(struct reader *r, struct unit *u)
{
	const struct weights_item *item = &r->what->plan->items[r->item];
	const struct weights_part *part = &item->parts[r->part];
	size_t bytes = row_bytes(&r->tensor, part);

	u->tensor = r->item;
	u->part = part;
	u->row = r->row;
	u->n_rows = MIN(rows_per_unit(bytes), part->desc.rows - r->row);
	u->n_bytes = bytes * u->n_rows;
	r->row += u->n_rows;
	if (r->row < part->desc.rows)
		return;
	r->row = 0;
	if (++r->part < item->n_parts)
		return;
	r->part = 0;
	r->item++;
	enter_item(r);
}

/* The next unit; false: there is none, or somebody has failed. */
static bool take_unit(struct reader *r, struct unit *u)
{
	bool there;

	pthread_mutex_lock(&r->lock);
	there = !r->result && r->pos < r->size;
	if (there) {
		*u = (struct unit){ .index = r->n_units++, .at = r->pos };
		if (!cut_gap(r, u))
			cut_rows(r, u);
		r->pos += u->n_bytes;
	}
	pthread_mutex_unlock(&r->lock);
	return there;
}

/* --- one unit ------------------------------------------------------------------ */

/* A list of divisors of frequencies. */
static int fill_host(const struct reader *r, const struct unit *u, const uint8_t *bytes, struct diag *diag)
{
	_cleanup_(freep) float *v = NULL;
	size_t n = u->part->desc.cols;
	struct gguf_tensor t;

	v = malloc(n * sizeof(*v));
	if (!v)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		uint32_t bits = gguf_load_u32(bytes + i * 4);

		memcpy(&v[i], &bits, sizeof(bits));
		if (v[i] > 0 && isfinite(v[i]))
			continue;
		gguf_tensor_at(r->what->header, u->tensor, &t);
		return diag_set(diag, -EINVAL, "tensor \"%s\": element %zu is not above 0", gguf_quote(t.name).text,
				i);
	}
	*u->part->host = steal_ptr(v);
	return 0;
}

static int fill(const struct reader *r, const struct unit *u, const uint8_t *bytes, struct diag *diag)
{
	struct kb_backend *be = r->what->be;
	struct gguf_tensor t;
	int err;

	if (!u->part)
		return 0;
	if (u->part->host)
		return fill_host(r, u, bytes, diag);
	/* The planner's operand is read only for those that compute; it is ours until they do. */
	err = be->ops->tensor_fill(be, (struct kb_tensor *)(uintptr_t)*u->part->operand, u->row, u->n_rows, bytes);
	if (!err)
		return 0;
	gguf_tensor_at(r->what->header, u->tensor, &t);
	return diag_set(diag, err, "tensor \"%s\": the backend refused it", gguf_quote(t.name).text);
}

/* Under the lock: the first one counts. */
static void fail(struct reader *r, int err, const struct diag *why)
{
	if (r->result)
		return;
	r->result = err;
	if (why->text[0])
		diag_write(r->diag, "%s", why->text);
	pthread_cond_broadcast(&r->turned);
}

static void fail_locked(struct reader *r, int err, const struct diag *why)
{
	pthread_mutex_lock(&r->lock);
	fail(r, err, why);
	pthread_mutex_unlock(&r->lock);
}

static bool wait_for_turn(struct reader *r, const struct unit *u)
{
	bool go_on;

	pthread_mutex_lock(&r->lock);
	while (!r->result && r->n_hashed != u->index)
		pthread_cond_wait(&r->turned, &r->lock);
	go_on = !r->result;
	pthread_mutex_unlock(&r->lock);
	return go_on;
}

/* In turn, so that the hash, the progress and who fails first are in the file's order. */
static bool pass(struct reader *r, const struct unit *u, const uint8_t *bytes, int err)
{
	const struct model_options *options = r->what->options;
	struct diag why = DIAG_NULL;

	if (!wait_for_turn(r, u))
		return false;
	if (err) {
		diag_write(&why, "model file: %zu of its %llu bytes at %llu cannot be read", u->n_bytes,
			   (unsigned long long)r->size, (unsigned long long)u->at);
	} else {
		hasher_update(r->hasher, bytes, u->n_bytes);
		if (options->progress && !options->progress(options->progress_arg, u->at + u->n_bytes, r->size))
			err = -ECANCELED;
	}
	pthread_mutex_lock(&r->lock);
	if (err)
		fail(r, err, &why);
	r->n_hashed++;
	pthread_cond_broadcast(&r->turned);
	pthread_mutex_unlock(&r->lock);
	return !err;
}

/* --- threads ------------------------------------------------------------------- */

static void *reader_main(void *arg)
{
	struct reader *r = arg;
	_cleanup_(freep) uint8_t *buffer = malloc(MAX(r->buffer_bytes, (size_t)1));
	struct diag why = DIAG_NULL;
	struct unit u;
	int err;

	if (!buffer) {
		fail_locked(r, -ENOMEM, &why);
		return NULL;
	}
	while (take_unit(r, &u)) {
		err = r->what->source->read(r->what->source->arg, buffer, u.n_bytes, u.at);
		if (!pass(r, &u, buffer, err))
			break;
		err = fill(r, &u, buffer, &why);
		if (err) {
			fail_locked(r, err, &why);
			break;
		}
	}
	return NULL;
}

static uint32_t n_threads(const struct reader *r)
{
	const struct weights_read *what = r->what;
	uint64_t worth = r->size / (UNIT_BYTES * UNITS_PER_THREAD) + 1;
	uint64_t n = what->options->n_threads;

	if (!n && what->be->ops->n_threads)
		n = what->be->ops->n_threads(what->be);
	n = MIN(n, worth);
	n = MIN(n, (uint64_t)MAX_THREADS);
	return (uint32_t)MAX(n, (uint64_t)1);
}

/* Those that can't be started are done without: the caller's thread reads, too. */
static void read_on_threads(struct reader *r)
{
	pthread_t threads[MAX_THREADS];
	uint32_t n = n_threads(r) - 1, n_started = 0;
	sigset_t all, old;

	/* Signals are for the program's own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	while (n_started < n && !pthread_create(&threads[n_started], NULL, reader_main, r))
		pthread_setname_np(threads[n_started++], "kvd-loader");
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	reader_main(r);
	for (uint32_t i = 0; i < n_started; i++)
		pthread_join(threads[i], NULL);
}

int weights_read(const struct weights_read *what, uint8_t hash[16], struct diag *diag)
{
	_cleanup_(hasher_freep) struct hasher *hasher = NULL;
	struct reader r = {
		.what = what, .diag = diag, .size = gguf_file_size(what->header),
		.lock = PTHREAD_MUTEX_INITIALIZER, .turned = PTHREAD_COND_INITIALIZER,
	};
	const uint8_t *head;
	size_t n_head;
	int err = hasher_new(&hasher);

	if (err)
		return err;
	r.hasher = hasher;
	r.buffer_bytes = buffer_bytes(what, r.size);
	head = gguf_header(what->header, &n_head);
	hasher_update(hasher, head, n_head);
	r.pos = n_head;
	enter_item(&r);
	read_on_threads(&r);
	pthread_cond_destroy(&r.turned);
	pthread_mutex_destroy(&r.lock);
	if (r.result)
		return r.result;
	hasher_digest(hasher, hash);
	return 0;
}
