/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/model-host.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/engine/block-size.h"
#include "daemon/engine/disk-store.h"
#include "daemon/model/synthetic.h"
#include "daemon/server/fdstore.h"
#include "daemon/server/log.h"
#include "daemon/server/memory-left.h"
#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "ipc/fdpass.h"

struct model_host {
	const struct server_config *config;
	struct accounts *accounts;
	struct fdstore *fdstore;
	struct kb_backend *backend;
	struct store *store;		/* NULL: no disk */
	_Atomic(struct engine *) engine;
};

/* --- the file --------------------------------------------------------------------- */

/* Without O_NONBLOCK a pipe would keep the loader waiting. */
static int open_path(const char *path, int *out, struct diag *diag)
{
	_cleanup_(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		return diag_set(diag, -errno, "%s", strerror(errno));
	*out = fd_steal(&fd);
	return 0;
}

/* What we were given must be a regular file, open for reading. */
static int check_file(int fd, uint64_t *size, struct diag *diag)
{
	int flags = fcntl(fd, F_GETFL);
	struct stat st;

	if (flags < 0 || fstat(fd, &st) < 0)
		return diag_set(diag, -errno, "%s", strerror(errno));
	if (!S_ISREG(st.st_mode))
		return diag_set(diag, -EINVAL, "not a regular file");
	if (flags & O_PATH || (flags & O_ACCMODE) == O_WRONLY)
		return diag_set(diag, -EINVAL, "the descriptor is not open for reading");
	*size = (uint64_t)st.st_size;
	return 0;
}

/* A budget that is checked before anything is allocated: the file's size is the measure. */
static enum kvd_code check_budget(struct model_host *h, const struct model_source *source, uint64_t size,
				  struct charge *weights, struct diag *diag)
{
	uint64_t left;
	int r = 0;

	if (memory_left(&left) == 0 && size > left) {
		diag_set(diag, 0, "the model has %llu MiB, more than the %llu MiB of memory that are left",
			 (unsigned long long)size >> 20, (unsigned long long)left >> 20);
		return KVD_CODE_NO_MEMORY;
	}
	if (source->charged)
		r = charge_init(weights, h->accounts, source->uid, ACCOUNT_WEIGHTS, size);
	if (r == ACCOUNT_E_QUOTA) {
		diag_set(diag, 0, "the file has %llu bytes; this user may have %llu loaded, and has %llu",
			 (unsigned long long)size, (unsigned long long)h->config->uid_weights,
			 (unsigned long long)account_used(h->accounts, source->uid, ACCOUNT_WEIGHTS));
		return KVD_CODE_QUOTA;
	}
	return r ? KVD_CODE_NO_MEMORY : KVD_CODE_OK;
}

/* --- the engine ------------------------------------------------------------------- */

/*
 * The budget where none is given: 1 GiB, at most a quarter of the memory that is left with
 * the weights in place; but one whole context should fit, up to half of it.
 */
static uint64_t default_kv_memory(const struct model *model, const struct kb_geometry *g, uint32_t block_tokens)
{
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t left, budget, one;

	if (memory_left(&left) == 0)
		memory = MIN(memory, left);
	budget = MIN((uint64_t)1 << 30, memory / 4);
	if (checked_mul_u64(g->block_bytes, model_n_ctx(model) / block_tokens + 2, &one) &&
	    checked_add_u64(one, one / 8 + (8 << 20), &one))
		budget = MAX(budget, MIN(one, memory / 2));
	return budget;
}

/* Also on the disk's thread and the engine's; a line is one write(2). */
static void log_event(void *arg, const char *text)
{
	log_warning("%s", text);
}

static void log_note(void *arg, const char *text)
{
	log_info("%s", text);
}

/* What the engine has found is told, and what it uses now is left to the next process. */
static void keep_memory(struct model_host *h, const struct engine *engine)
{
	struct engine_kept kept = { 0 };
	int pool, index;

	engine_kept(engine, &kept);
	if (kept.taken)
		log_info("the cache in memory of the process before: %llu blocks, %llu dropped%s%s",
			 (unsigned long long)kept.n_blocks, (unsigned long long)kept.n_dropped,
			 kept.why[0] ? ": " : "", kept.why);
	else if (kept.given)
		log_warning("the cache in memory of the process before is dropped: %s", kept.why);
	engine_kept_fds(engine, &pool, &index);
	fdstore_put(h->fdstore, FDSTORE_POOL, pool);
	fdstore_put(h->fdstore, FDSTORE_INDEX, index);
}

static int start_engine(struct model_host *h, const struct model *model, uint32_t block_tokens, struct diag *diag)
{
	struct kb_geometry geometry = { 0 };
	struct engine_config config = {
		.backend = h->backend,
		.accounts = h->accounts,
		.kv_memory = h->config->kv_memory,
		.host_memory = h->config->host_memory,
		.kv_type = h->config->kv_type,
		.block_tokens = block_tokens,
		.max_seqs = h->config->max_seqs,
		.prefill_quantum = h->config->prefill_quantum,
		.gap_percent = h->config->prefill_ratio,
		.max_queue = h->config->max_queue,
		.attention_mass = h->config->attention_mass,
		.store = h->store,
		.no_cache = h->config->no_cache,
		.no_fairness = h->config->no_fairness,
		.step_delay_ns = h->config->step_delay_ns,
		.kv_memory_auto = !h->config->kv_memory,
		.kept_event = log_event,
	};
	struct engine *engine;
	int r;

	if (model_host_engine(h))
		return 0;
	model_geometry(model, config.kv_type, config.block_tokens, &geometry);
	config.block_bytes = geometry.block_bytes;
	if (!config.kv_memory)
		config.kv_memory = default_kv_memory(model, &geometry, config.block_tokens);
	config.kept_pool = fdstore_take(h->fdstore, FDSTORE_POOL);
	config.kept_index = fdstore_take(h->fdstore, FDSTORE_INDEX);
	r = engine_new(&engine, &config, diag);
	if (r)
		return r;
	keep_memory(h, engine);
	atomic_store(&h->engine, engine);
	return 0;
}

/* --- the size of blocks -------------------------------------------------------------- */

/* By a backend of its own, since steps of the engine's are its thread's. */
static int measure_blocks(struct model_host *h, const struct model *model, struct block_size_times *times)
{
	const struct kb_cpu_options options = { .n_threads = 1, .level = h->config->cpu_level };
	struct kb_backend *be;
	int r;

	if (h->config->block_times[0]) {
		memcpy(times->ns[0], h->config->block_times, sizeof(times->ns[0]));
		times->n_rounds = 1;
		return 0;
	}
	r = kb_cpu_open(&options, &be);
	if (r)
		return r;
	r = block_size_measure(be, model, h->config->kv_type, times);
	be->ops->close(be);
	return r;
}

/* What was measured is for good, or the next start would throw the cache away. */
static bool keeps_block_size(const struct server_config *c)
{
	return !c->no_cache && c->state_dir && (c->state_dir_named || c->disk);
}

static int measure_and_keep(struct model_host *h, const struct model *model, uint32_t *out)
{
	const char *name = model_info(model)->name;
	struct block_size_times times = { 0 };
	int r = measure_blocks(h, model, &times);

	if (r)
		return r;
	*out = block_size_pick(&times);
	log_info("%s: blocks of %u tokens, measured in %u rounds: of 16 they take %u %% of the time of 32, of 64 %u %%",
		 name, *out, times.n_rounds, block_size_percent(&times, 0), block_size_percent(&times, 2));
	r = block_size_write(h->config->state_dir, h->backend, model, h->config->kv_type, *out);
	if (r)
		log_warning("%s: the size of its blocks can't be kept in %s: %s", name, h->config->state_dir,
			    strerror(-r));
	return 0;
}

static int choose_block_tokens(struct model_host *h, const struct model *model, uint32_t *out,
			       enum block_size_origin *origin)
{
	const struct server_config *c = h->config;
	int r;

	*out = c->block_tokens ? c->block_tokens : BLOCK_SIZE_DEFAULT;
	*origin = c->block_tokens ? BLOCK_SIZE_GIVEN : BLOCK_SIZE_PRESUMED;
	if (c->block_tokens || c->kv_type == KB_KV_Q4 || !keeps_block_size(c))
		return 0;
	r = block_size_read(c->state_dir, h->backend, model, c->kv_type, out);
	if (!r) {
		*origin = BLOCK_SIZE_KEPT;
		return 0;
	}
	if (r == BLOCK_SIZE_E_DAMAGED)
		log_warning("%s: the size of its blocks that was kept is damaged, and measured anew",
			    model_info(model)->name);
	if (r < 0)
		return r;
	*origin = BLOCK_SIZE_MEASURED;
	return measure_and_keep(h, model, out);
}

/* --- loading ----------------------------------------------------------------------- */

static enum kvd_code code_of(int err)
{
	switch (err) {
	case -ENOMEM:
		return KVD_CODE_NO_MEMORY;
	case -ECANCELED:
		return KVD_CODE_CANCELLED;
	case -ESHUTDOWN:
		return KVD_CODE_SHUTDOWN;
	default:
		return KVD_CODE_BAD_MODEL;
	}
}

static int load_file(struct model_host *h, struct hosted_model *out, const struct model_source *source, int fd,
		     struct diag *diag)
{
	_cleanup_(model_freep) struct model *model = NULL;
	struct model_options options = {
		.name = source->name,
		.n_ctx = source->n_ctx ? source->n_ctx : h->config->n_ctx,
		.progress = source->progress,
		.progress_arg = source->progress_arg,
	};
	uint32_t block_tokens = 0;
	int r;

	if (source->synthetic)
		r = model_load_synthetic(&model, h->backend, source->path, &options, diag);
	else
		r = model_load(&model, h->backend, fd, source->name, &options, diag);
	if (r)
		return r;
	r = choose_block_tokens(h, model, &block_tokens, &out->block_origin);
	if (!r)
		r = start_engine(h, model, block_tokens, diag);
	if (!r)
		r = engine_add_model_blocks(model_host_engine(h), model, block_tokens, &out->engine_model, diag);
	if (r)
		return r;
	/* A token is bytes of a text, or an id. */
	out->max_prompt = MAX((uint64_t)engine_model_max_piece(out->engine_model), (uint64_t)sizeof(int32_t)) *
			  model_n_ctx(model);
	out->model = steal_ptr(model);
	return 0;
}

enum kvd_code model_host_load(struct model_host *h, struct hosted_model *out, const struct model_source *source,
			      struct diag *diag)
{
	_cleanup_(fdpass_close_receivedp) int fd = source->path ? -1 : source->fd;
	struct hosted_model m = HOSTED_MODEL_NULL;
	enum kvd_code code = KVD_CODE_BAD_MODEL;
	uint64_t size = 0;
	int r = 0;

	if (source->synthetic)
		r = synthetic_file_bytes(source->path, &size, diag);
	else if (source->path)
		r = open_path(source->path, &fd, diag);
	if (!r && !source->synthetic)
		r = check_file(fd, &size, diag);
	if (!r) {
		code = check_budget(h, source, size, &m.weights, diag);
		if (code == KVD_CODE_OK) {
			r = load_file(h, &m, source, fd, diag);
			code = r ? code_of(r) : KVD_CODE_OK;
		}
	}
	if (code == KVD_CODE_OK) {
		*out = m;
		return code;
	}
	charge_deinit(&m.weights);
	diag_write(diag, "%s", r ? strerror(-r) : "out of memory");
	return code;
}

void model_host_unload(struct model_host *h, struct hosted_model *m)
{
	engine_model_free(m->engine_model);
	model_free(m->model);
	charge_deinit(&m->weights);
	*m = HOSTED_MODEL_NULL;
}

/* --- life --------------------------------------------------------------------------- */

static int open_store(struct model_host *h, struct diag *diag)
{
	const struct disk_store_config config = {
		.state_dir = h->config->state_dir,
		.named = h->config->state_dir_named,
		.max_bytes = h->config->disk == SERVER_DISK_AUTO ? DISK_STORE_AUTO : h->config->disk,
		.event = log_event,
		.note = log_note,
	};
	struct disk_store_stats stats;
	int r;

	if (!h->config->disk || h->config->no_cache)
		return 0;
	r = disk_store_open(&h->store, &config, diag);
	if (r || !h->store)
		return r;
	disk_store_stats(h->store, &stats);
	log_info("cache on disk: in %s, at most %llu MiB", h->config->state_dir,
		 (unsigned long long)stats.max_bytes >> 20);
	return 0;
}

/* A level that was passed over: the machine is slower than it could be, and something is wrong with it or with us. */
static void log_faults(const struct kb_backend *be)
{
	for (const char *const *level = kb_cpu_levels(); *level; level++) {
		const char *fault = kb_cpu_fault(*level);

		if (fault)
			log_warning("CPU level %s computes wrongly on this machine, %s is used: %s", *level,
				    be->ops->level(be), fault);
	}
}

static int open_backend(struct model_host *h, struct diag *diag)
{
	const char *level = h->config->cpu_level;
	const struct kb_cpu_options options = { .n_threads = h->config->n_threads, .level = level };
	int r = kb_cpu_open(&options, &h->backend);

	if (r == -ENOTSUP)
		return diag_set(diag, r, "cpu-level: this machine lacks %s", level);
	if (r == -EIO && level)
		return diag_set(diag, r, "cpu-level: %s computes wrongly on this machine: %s", level,
				kb_cpu_fault(level));
	if (r)
		return diag_set(diag, r, "cannot open the CPU backend: %s", strerror(-r));
	log_faults(h->backend);
	return 0;
}

int model_host_new(struct model_host **out, const struct server_config *config, struct accounts *accounts,
		   struct fdstore *fdstore, struct diag *diag)
{
	struct model_host *h = calloc(1, sizeof(*h));
	int r;

	if (!h)
		return -ENOMEM;
	h->config = config;
	h->accounts = accounts;
	h->fdstore = fdstore;
	r = open_store(h, diag);
	if (r) {
		free(h);
		return r;
	}
	r = open_backend(h, diag);
	if (r) {
		disk_store_close(h->store);
		free(h);
		return r;
	}
	*out = h;
	return 0;
}

void model_host_stop(struct model_host *h)
{
	engine_free(atomic_exchange(&h->engine, NULL));
	disk_store_close(h->store);
	h->store = NULL;
}

void model_host_free(struct model_host *h)
{
	if (!h)
		return;
	model_host_stop(h);
	h->backend->ops->close(h->backend);
	free(h);
}

struct engine *model_host_engine(const struct model_host *h)
{
	return atomic_load(&h->engine);
}

const char *model_host_device(const struct model_host *h)
{
	return h->backend->ops->name;
}

const char *model_host_level(const struct model_host *h)
{
	return h->backend->ops->level(h->backend);
}

uint32_t model_host_numerics(const struct model_host *h)
{
	return h->backend->ops->numerics_version;
}

uint32_t model_host_n_threads(const struct model_host *h)
{
	return h->backend->ops->n_threads(h->backend);
}

struct store *model_host_store(const struct model_host *h)
{
	return h->store;
}
