/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/server.h"

#include <event2/event.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "daemon/server/fdstore.h"
#include "daemon/server/http-server.h"
#include "daemon/server/life.h"
#include "daemon/server/log.h"
#include "daemon/server/server-internal.h"
#include "daemon/server/session.h"
#include "daemon/server/submission.h"
#include "daemon/server/watch.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"

#define N_WORKERS 2
#define WORKER_QUEUE_MAX 1024
#define SHARE_QUEUE_MAX 16
#define STATS_INTERVAL_US 250000
#define LIFE_INTERVAL_S 10
#define DESCRIPTORS_WANTED 8192		/* two for each session, and those on their way to clients */

/* --- for the other files of the server -------------------------------------------- */

bool server_is_admin(const struct server *s, uid_t uid)
{
	return uid == 0 || uid == geteuid();
}

bool server_uid_is_known(const struct server *s, uid_t uid)
{
	return uid != s->overflow_uid && uid < ACCOUNT_ID_NOBODY;
}

struct session *server_session(const struct server *s, uint64_t key)
{
	list_for_each(e, &s->sessions) {
		struct session *session = list_entry(e, struct session, link);

		if (session->key == key)
			return session;
	}
	return NULL;
}

uint32_t server_n_waiting(const struct server *s, bool all, uid_t uid)
{
	uint32_t n = 0;

	list_for_each(k, &s->http_submissions) {
		const struct submission *submission = list_entry(k, struct submission, link);

		n += (all || submission->uid == uid) && !atomic_load(&submission->submitted);
	}
	list_for_each(e, &s->sessions) {
		struct session *session = list_entry(e, struct session, link);

		if (!all && session->uid != uid)
			continue;
		list_for_each(k, &session->submissions)
			n += !atomic_load(&list_entry(k, struct submission, link)->submitted);
	}
	return n;
}

void server_log_refusal(struct server *s, uid_t uid, const char *why)
{
	uint64_t now = clock_ns();

	if (now - s->refusal_logged_ns < 1000000000u) {
		s->n_refusals_unlogged++;
		return;
	}
	if (s->n_refusals_unlogged)
		log_warning("session of uid %u refused: %s (and %u more before)", (unsigned)uid, why,
			    s->n_refusals_unlogged);
	else
		log_warning("session of uid %u refused: %s", (unsigned)uid, why);
	s->refusal_logged_ns = now;
	s->n_refusals_unlogged = 0;
}

void server_stop(struct server *s, int status)
{
	if (s->stopping)
		return;
	s->stopping = true;
	s->status = status;
	event_base_loopbreak(s->base);
}

/* --- statistics ---------------------------------------------------------------------- */

static uint32_t n_waiting_of(void *arg, uid_t uid)
{
	return server_n_waiting(arg, false, uid);
}

static void write_stats(struct views_query *q)
{
	struct server *s = q->server;
	struct engine *engine = models_engine(s->models);
	struct engine_stats stats = { 0 };
	struct disk_store_stats disk;
	struct stats_health health = {
		.disk = &disk,
		.state = s->stopping ? KVD_STATS_STOPPING : s->ready ? KVD_STATS_READY : KVD_STATS_LOADING,
		.loading_percent = models_percent(s->models),
		.n_models = models_count(s->models),
		.n_sessions = s->n_sessions,
		.weight_bytes = models_weight_bytes(s->models),
		.n_waiting = server_n_waiting(s, true, 0),
		.n_waiting_of = n_waiting_of,
		.arg = s,
		.views = q->views,
		.n_views = q->n,
	};

	if (engine) {
		engine_stats(engine, &stats);
		health.engine = &stats;
	}
	disk_store_stats(model_host_store(models_host(s->models)), &disk);
	stats_pages_write(s->pages, &health);
	s->stats_asked = false;
}

void server_update_stats(struct server *s)
{
	if (s->stats_asked)
		return;
	s->stats_asked = true;
	if (views_ask(&s->views, 0, 0, write_stats))
		s->stats_asked = false;
}

static void on_stats_timer(evutil_socket_t fd, short what, void *arg)
{
	struct server *s = arg;

	server_update_stats(s);
	server_tell_progress(s);
	server_tell_share_progress(s);
	if (!s->ready)
		sd_notifyf(0, "STATUS=Loading models, %u %%.", models_percent(s->models));
	server_sessions_changed(s);
}

void server_sessions_changed(struct server *s)
{
	struct timeval idle = { .tv_sec = s->config.idle_exit_s }, tick = { .tv_usec = STATS_INTERVAL_US };
	bool ready = !models_loading(s->models);
	bool idle_now = ready && !s->n_sessions && (!s->http || !s->http->n_connections);

	/* Nobody looks at the pages, nothing loads: the daemon sleeps. */
	if (!s->n_sessions && ready)
		event_del(s->stats_timer);
	else if (!event_pending(s->stats_timer, EV_TIMEOUT, NULL))
		event_add(s->stats_timer, &tick);

	if (!s->config.idle_exit_s)
		return;
	if (!idle_now)
		event_del(s->idle_timer);
	else if (!event_pending(s->idle_timer, EV_TIMEOUT, NULL))
		event_add(s->idle_timer, &idle);
}

/* --- events ----------------------------------------------------------------------------- */

static void on_accepted(void *arg, int fd)
{
	session_new(arg, fd);
}

static void on_idle(evutil_socket_t fd, short what, void *arg)
{
	struct server *s = arg;

	/* Somebody came in the last moment. */
	if (acceptor_pending(&s->acceptor)) {
		server_sessions_changed(s);
		return;
	}
	log_info("stopping: nobody was attached for %u s", s->config.idle_exit_s);
	server_stop(s, EXIT_SUCCESS);
}

static void on_signal(evutil_socket_t fd, short what, void *arg)
{
	struct server *s = arg;
	struct signalfd_siginfo info;
	sigset_t set;

	if (read(s->signal_fd, &info, sizeof(info)) != (ssize_t)sizeof(info))
		return;
	log_info("stopping: SIG%s", sigabbrev_np((int)info.ssi_signo));
	/* The next one kills at once. */
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	server_stop(s, EXIT_SUCCESS);
}

static void become_ready(struct server *s)
{
	const struct model_host *host = models_host(s->models);
	struct engine *engine = models_engine(s->models);
	struct engine_stats stats = { 0 };

	s->ready = true;
	if (engine)
		engine_stats(engine, &stats);
	log_info("ready: %u model%s, %s/%s with %u threads, %llu MiB for keys and values",
		 models_count(s->models), models_count(s->models) == 1 ? "" : "s", model_host_device(host),
		 model_host_level(host), model_host_n_threads(host), (unsigned long long)stats.kv_bytes >> 20);
	sd_notify(0, "READY=1");
	server_tell_manager(s);
}

void server_tell_manager(struct server *s)
{
	if (s->ready && !s->stopping)
		sd_notifyf(0, "STATUS=Serving %u model%s.", models_count(s->models),
			   models_count(s->models) == 1 ? "" : "s");
}

void server_started(struct server *s, const struct served_model *m)
{
	/* One that somebody unloaded meanwhile is no failure. */
	if (m->code != KVD_CODE_OK && m->code != KVD_CODE_CANCELLED && !s->stopping) {
		log_error("cannot load %s: %s", m->path, m->why.text);
		server_stop(s, EXIT_FAILURE);
	} else if (!models_starting(s->models) && !s->stopping) {
		become_ready(s);
	}
}

/* --- start-up ------------------------------------------------------------------------------ */

static void raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= DESCRIPTORS_WANTED)
		return;
	limit.rlim_cur = limit.rlim_max < DESCRIPTORS_WANTED ? limit.rlim_max : DESCRIPTORS_WANTED;
	setrlimit(RLIMIT_NOFILE, &limit);
}

/* The uid that stands for all those that this user namespace has no number for. */
static uid_t overflow_uid(void)
{
	_cleanup_(fd_closep) int fd = open("/proc/sys/kernel/overflowuid", O_RDONLY | O_CLOEXEC);
	char text[32] = "";

	if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
		return 65534;
	return (uid_t)strtoul(text, NULL, 10);
}

static int open_listener(struct server *s, struct diag *diag)
{
	_cleanup_(fd_closep) int passed = -1;
	int r = fdstore_new(&s->fdstore, &passed, diag);

	if (r)
		return r;
	if (passed < 0)
		return listener_new(&s->listener, s->config.socket_path, SOCK_SEQPACKET, s->config.socket_mode, diag);
	r = listener_adopt(&s->listener, passed, diag);
	if (!r)
		fd_steal(&passed);
	return r;
}

static void on_life_timer(evutil_socket_t fd, short what, void *arg)
{
	struct server *s = arg;

	life_note(s->life);
}

/* What an earlier process has left is dropped where it may be what ended that one. */
static void judge_last_life(struct server *s)
{
	const char *why = NULL;

	switch (life_last(s->life)) {
	case LIFE_OUT_OF_MEMORY:
		why = "memory ran out, and the kernel killed";
		break;
	case LIFE_CRASHES:
		why = "it crashed again and again";
		break;
	case LIFE_NONE:
	case LIFE_ENDED:
	case LIFE_BROKEN:
		return;
	}
	log_warning("the cache in memory of the process before is dropped: %s", why);
	fdstore_drop(s->fdstore, FDSTORE_POOL);
	fdstore_drop(s->fdstore, FDSTORE_INDEX);
}

/* Only a service manager keeps anything for the next process. */
static int begin_life(struct server *s)
{
	struct timeval tick = { .tv_sec = LIFE_INTERVAL_S };
	const char *proc = s->config.proc_dir ? s->config.proc_dir : "/proc";
	int r;

	if (!fdstore_offered(s->fdstore))
		return 0;
	r = life_new(&s->life, fdstore_take(s->fdstore, FDSTORE_LIFE), proc, "/sys/fs/cgroup");
	if (r)
		return r;
	judge_last_life(s);
	fdstore_put(s->fdstore, FDSTORE_LIFE, life_fd(s->life));
	life_watch_crashes(s->life);
	s->life_timer = event_new(s->base, -1, EV_PERSIST, on_life_timer, s);
	if (!s->life_timer || event_add(s->life_timer, &tick) < 0)
		return -ENOMEM;
	return 0;
}

static int set_up_signals(struct server *s)
{
	sigset_t set;

	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);	/* a client's file that may not grow is an error of its own */
	signal(SIGHUP, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	/* Inherited by every thread to come, so that they all arrive here. */
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (s->signal_fd < 0)
		return -errno;
	s->signal_event = event_new(s->base, s->signal_fd, EV_READ | EV_PERSIST, on_signal, s);
	if (!s->signal_event || event_add(s->signal_event, NULL) < 0)
		return -ENOMEM;
	return 0;
}

static int set_up_loop(struct server *s)
{
	int r;

	s->base = event_base_new();
	if (!s->base)
		return -ENOMEM;
	r = set_up_signals(s);
	if (r)
		return r;
	r = acceptor_init(&s->acceptor, s->base, listener_fd(s->listener), on_accepted, s);
	if (r)
		return r;
	s->stats_timer = event_new(s->base, -1, 0, on_stats_timer, s);
	s->idle_timer = event_new(s->base, -1, 0, on_idle, s);
	s->receive_buffer = malloc(KVD_MESSAGE_MAX);
	if (!s->stats_timer || !s->idle_timer || !s->receive_buffer)
		return -ENOMEM;
	return mailbox_new(&s->mailbox, s->base);
}

int server_model_name(const char *path, char *out, size_t n)
{
	const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
	size_t len = strlen(base);

	if (len > 5 && strcmp(base + len - 5, ".gguf") == 0)
		len -= 5;
	if (len >= n)
		return -EINVAL;
	memcpy(out, base, len);
	out[len] = '\0';
	return codec_model_name_valid(out) ? 0 : -EINVAL;
}

/* The models of the configuration, in its order. */
static int load_models(struct server *s, struct diag *diag)
{
	const struct models_config config = {
		.config = &s->config, .base = s->base, .mailbox = s->mailbox, .accounts = s->accounts,
		.fdstore = s->fdstore, .workers = s->workers, .loaded = server_loaded,
		.unloaded = server_unloaded, .arg = s,
	};
	char name[KVD_MODEL_NAME_MAX + 1];
	int r = models_new(&s->models, &config, diag);

	for (size_t i = 0; i < s->config.n_models + s->config.n_synthetic && !r; i++) {
		bool synthetic = i >= s->config.n_models;
		const char *path = synthetic ? s->config.synthetic[i - s->config.n_models] : s->config.models[i];

		if (server_model_name(path, name, sizeof(name)))
			return diag_set(diag, -EINVAL, "model: the file's name is not one for a model: %s", path);
		r = models_load(s->models, &(struct models_load){ .name = name, .path = path, .fd = -1,
								  .synthetic = synthetic, .uid = geteuid() });
		if (r == MODELS_E_EXISTS)
			return diag_set(diag, -EINVAL, "model: two files have the name \"%s\"", name);
		if (r == MODELS_E_FULL)
			return diag_set(diag, -EINVAL, "model: more than %u files", KVD_MODELS_MAX);
	}
	return r;
}

static uint64_t stuck_ns(void *arg)
{
	const struct server *s = arg;
	struct engine *engine = models_engine(s->models);

	return engine ? engine_stuck_ns(engine) : 0;
}

static int set_up(struct server *s, struct diag *diag)
{
	int r;

	s->uid_limits = (struct account_limits){ .max = {
		[ACCOUNT_SESSIONS] = s->config.uid_sessions,
		[ACCOUNT_MEMORY] = s->config.uid_memory,
		[ACCOUNT_REQUESTS] = s->config.uid_requests,
		[ACCOUNT_KV] = s->config.uid_kv_memory ? s->config.uid_kv_memory : UINT64_MAX,
		[ACCOUNT_WEIGHTS] = s->config.uid_weights,
	} };
	raise_descriptor_limit();
	r = namespaces_init(&s->namespaces, s->config.cache_groups, s->config.cache_public, diag);
	if (!r)
		r = fair_weights_init(&s->weights, s->config.fair_weights, diag);
	if (!r)
		r = open_listener(s, diag);
	if (!r && s->config.n_http)
		r = http_new(&s->http, s, diag);
	if (r)
		return r;
	r = set_up_loop(s);
	if (!r)
		r = begin_life(s);
	if (!r)
		r = accounts_new(&s->accounts, &s->uid_limits);
	if (!r)
		r = stats_pages_new(&s->pages, s->accounts, s->started_ns);
	if (!r)
		r = workers_new(&s->workers, s->mailbox, WORKER_QUEUE_MAX);
	if (!r)
		r = workers_start(s->workers, N_WORKERS, "kvd-worker");
	if (!r)
		r = workers_new(&s->share_workers, s->mailbox, SHARE_QUEUE_MAX);
	if (!r)
		r = load_models(s, diag);
	if (!r)
		r = watch_new(&s->watch, s->base, s->config.stuck_limit_s, stuck_ns, s);
	if (!r && s->http)
		r = http_start(s->http);
	return r;
}

int server_new(struct server **out, const struct server_config *config, struct diag *diag)
{
	_cleanup_(server_freep) struct server *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return -ENOMEM;
	s->config = *config;
	s->started_ns = clock_ns();
	s->overflow_uid = overflow_uid();
	s->signal_fd = -1;
	list_init(&s->sessions);
	list_init(&s->http_submissions);
	list_init(&s->cache_queries);
	list_init(&s->shares);
	list_init(&s->own_statuses);
	views_feed_init(&s->views, s);
	r = set_up(s, diag);
	if (r)
		return r;
	*out = steal_ptr(s);
	return 0;
}

/* --- running and ending ---------------------------------------------------------------------- */

static void close_listener(struct server *s)
{
	acceptor_deinit(&s->acceptor);
	listener_free(s->listener);
	s->listener = NULL;
	if (s->http)
		http_close_listeners(s->http);
}

/*
 * Ends everything that others wait for: first no more clients, then what the
 * workers have, then the engine's requests (each gets its last record), then the
 * sessions.  What an ending thread posts is delivered before the next step.
 */
static void wind_down(struct server *s)
{
	sd_notify(0, "STOPPING=1\nSTATUS=Stopping.");
	close_listener(s);
	models_close(s->models);
	workers_stop(s->workers);
	/* Those that are at work need the engine to end. */
	server_give_up_shares(s, 0, 0);
	workers_stop(s->share_workers);
	mailbox_deliver(s->mailbox);
	models_stop(s->models);
	list_for_each_safe(e, next, &s->sessions)
		session_free(list_entry(e, struct session, link));
	http_free(s->http);
	s->http = NULL;
	mailbox_deliver(s->mailbox);
	if (s->life)
		life_end(s->life);
}

int server_run(struct server *s)
{
	log_info("kvd " KVD_VERSION " listens on %s", listener_path(s->listener));
	if (!models_starting(s->models))
		become_ready(s);
	server_sessions_changed(s);
	if (event_base_dispatch(s->base) < 0) {
		log_error("the event loop failed");
		s->status = EXIT_FAILURE;
	}
	wind_down(s);
	return s->status;
}

static void free_event(struct event *event)
{
	if (event)
		event_free(event);
}

void server_free(struct server *s)
{
	if (!s)
		return;
	s->stopping = true;
	close_listener(s);
	if (s->workers)
		workers_stop(s->workers);
	if (s->mailbox)
		mailbox_deliver(s->mailbox);
	http_free(s->http);
	watch_free(s->watch);
	models_free(s->models);
	workers_free(s->workers);
	workers_free(s->share_workers);
	views_feed_deinit(&s->views);
	stats_pages_free(s->pages);
	accounts_free(s->accounts);
	mailbox_free(s->mailbox);
	free_event(s->signal_event);
	free_event(s->stats_timer);
	free_event(s->idle_timer);
	free_event(s->life_timer);
	if (s->base)
		event_base_free(s->base);
	fd_closep(&s->signal_fd);
	life_free(s->life);
	fdstore_free(s->fdstore);
	free(s->receive_buffer);
	codec_buf_deinit(&s->send_buffer);
	free(s);
}
