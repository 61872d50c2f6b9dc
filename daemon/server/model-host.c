/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/model-host.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/model/tokenizer.h"
#include "ipc/base/checked.h"
#include "ipc/base/fd.h"

struct model_host {
	const struct server_config *config;
	struct accounts *accounts;
	struct mailbox *mailbox;
	model_host_settled_fn settled;
	void *arg;

	/* The loader's, until its mail is delivered. */
	struct kb_backend *backend;
	struct model *model;
	struct engine *engine;
	struct engine_model *engine_model;
	struct model_host_info info;
	struct diag diag;
	int result;
	struct mail mail;

	_Atomic unsigned percent;
	atomic_bool giving_up;

	/* The loop's. */
	pthread_t thread;
	bool thread_runs;
	enum model_host_state state;
};

static bool on_progress(void *arg, uint64_t done, uint64_t total)
{
	struct model_host *h = arg;

	/* 100 is kept for "ready". */
	atomic_store(&h->percent, total ? (unsigned)MIN(done / (total / 100 + 1), (uint64_t)99) : 0);
	return !atomic_load(&h->giving_up);
}

static int open_model(const char *path, int *out, struct diag *diag)
{
	_cleanup_(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;

	if (fd < 0)
		return diag_set(diag, -errno, "%s", strerror(errno));
	if (fstat(fd, &st) < 0)
		return diag_set(diag, -errno, "%s", strerror(errno));
	if (!S_ISREG(st.st_mode))
		return diag_set(diag, -EINVAL, "not a regular file");
	*out = fd_steal(&fd);
	return 0;
}

/*
 * The budget where none is given: 1 GiB, at most a quarter of the machine's
 * memory; but one whole context should fit, up to half of the memory.
 */
static uint64_t default_kv_memory(const struct model *model, uint32_t block_tokens)
{
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t budget = MIN((uint64_t)1 << 30, memory / 4), one;
	struct kb_geometry g = { 0 };

	model_geometry(model, KB_KV_F16, block_tokens, &g);
	if (checked_mul_u64(g.block_bytes, model_n_ctx(model) / block_tokens + 2, &one) &&
	    checked_add_u64(one, one / 8 + (8 << 20), &one))
		budget = MAX(budget, MIN(one, memory / 2));
	return budget;
}

/* Bytes that one token can stand for, in a text or as an id. */
static uint64_t longest_token(const struct tokenizer *t)
{
	uint64_t longest = sizeof(int32_t);

	for (uint32_t id = 0; id < tokenizer_n_vocab(t); id++) {
		size_t n;

		if (tokenizer_bytes(t, (int32_t)id, &n) && n > longest)
			longest = n;
	}
	return longest;
}

static int open_backend(struct model_host *h)
{
	struct kb_cpu_options options = { .n_threads = h->config->n_threads, .level = h->config->cpu_level };
	int r = kb_cpu_open(&options, &h->backend);

	if (r == -ENOTSUP)
		return diag_set(&h->diag, r, "cpu-level: this machine lacks %s", h->config->cpu_level);
	if (r)
		return diag_set(&h->diag, r, "cannot open the CPU backend: %s", strerror(-r));
	h->info.device = h->backend->ops->name;
	h->info.level = h->backend->ops->level(h->backend);
	h->info.n_threads = h->backend->ops->n_threads(h->backend);
	return 0;
}

static int start_engine(struct model_host *h)
{
	struct engine_config config = {
		.backend = h->backend,
		.accounts = h->accounts,
		.kv_memory = h->config->kv_memory,
		.block_tokens = h->config->block_tokens,
		.max_seqs = h->config->max_seqs,
		.prefill_quantum = h->config->prefill_quantum,
		.max_queue = h->config->max_queue,
		.no_cache = h->config->no_cache,
		.step_delay_ns = h->config->step_delay_ns,
	};
	struct kb_geometry geometry = { 0 };
	int r;

	model_geometry(h->model, KB_KV_F16, config.block_tokens, &geometry);
	config.block_bytes = geometry.block_bytes;
	if (!config.kv_memory)
		config.kv_memory = default_kv_memory(h->model, config.block_tokens);
	h->info.kv_memory = config.kv_memory;
	h->info.block_tokens = config.block_tokens;
	r = engine_new(&h->engine, &config, &h->diag);
	return r ? r : engine_add_model(h->engine, h->model, &h->engine_model, &h->diag);
}

static int load(struct model_host *h)
{
	struct model_options options = {
		.n_ctx = h->config->n_ctx,
		.progress = on_progress,
		.progress_arg = h,
	};
	_cleanup_(fd_closep) int fd = -1;
	int r;

	r = open_model(h->config->model_path, &fd, &h->diag);
	if (r)
		return r;
	r = open_backend(h);
	if (r)
		return r;
	r = model_load(&h->model, h->backend, fd, h->config->model_path, &options, &h->diag);
	if (r)
		return r;
	h->info.max_prompt = longest_token(model_tokenizer(h->model)) * model_n_ctx(h->model);
	return start_engine(h);
}

static void *loader_main(void *arg)
{
	struct model_host *h = arg;

	pthread_setname_np(pthread_self(), "kvd-loader");
	h->result = load(h);
	mailbox_post(h->mailbox, &h->mail);
	return NULL;
}

static void join(struct model_host *h)
{
	if (h->thread_runs)
		pthread_join(h->thread, NULL);
	h->thread_runs = false;
}

static void deliver_settled(struct mail *mail)
{
	struct model_host *h = list_entry(mail, struct model_host, mail);

	join(h);
	if (h->result) {
		diag_set(&h->diag, 0, "%s", strerror(-h->result));
		h->state = MODEL_HOST_FAILED;
	} else if (!atomic_load(&h->giving_up)) {
		atomic_store(&h->percent, 100);
		h->state = MODEL_HOST_READY;
	}
	if (!atomic_load(&h->giving_up))
		h->settled(h->arg);
}

int model_host_new(struct model_host **out, const struct server_config *config, struct accounts *accounts,
		   struct mailbox *mailbox, model_host_settled_fn settled, void *arg)
{
	struct model_host *h = calloc(1, sizeof(*h));
	int r;

	if (!h)
		return -ENOMEM;
	h->config = config;
	h->accounts = accounts;
	h->mailbox = mailbox;
	h->settled = settled;
	h->arg = arg;
	h->mail.deliver = deliver_settled;
	r = -pthread_create(&h->thread, NULL, loader_main, h);
	if (r) {
		free(h);
		return r;
	}
	h->thread_runs = true;
	*out = h;
	return 0;
}

void model_host_stop(struct model_host *h)
{
	if (!h)
		return;
	atomic_store(&h->giving_up, true);
	join(h);
	mailbox_deliver(h->mailbox);
	h->state = MODEL_HOST_FAILED;
	engine_free(h->engine);
	h->engine = NULL;
	engine_model_free(h->engine_model);
	h->engine_model = NULL;
}

void model_host_free(struct model_host *h)
{
	if (!h)
		return;
	model_host_stop(h);
	model_free(h->model);
	if (h->backend)
		h->backend->ops->close(h->backend);
	free(h);
}

enum model_host_state model_host_state(const struct model_host *h)
{
	return h->state;
}

unsigned model_host_percent(const struct model_host *h)
{
	return atomic_load(&h->percent);
}

const char *model_host_error(const struct model_host *h)
{
	return h->diag.text;
}

struct engine *model_host_engine(const struct model_host *h)
{
	return h->state == MODEL_HOST_READY ? h->engine : NULL;
}

struct engine_model *model_host_engine_model(const struct model_host *h)
{
	return h->state == MODEL_HOST_READY ? h->engine_model : NULL;
}

const struct model *model_host_model(const struct model_host *h)
{
	return h->state == MODEL_HOST_READY ? h->model : NULL;
}

const struct model_host_info *model_host_info(const struct model_host *h)
{
	return &h->info;
}
