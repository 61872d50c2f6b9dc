/* SPDX-License-Identifier: Apache-2.0 */
/* kvd-bench: opens the model, says how long it will take, fills the tables, and writes them. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "tests/bench/interrupt.h"
#include "tests/bench/options.h"
#include "tests/bench/peer.h"
#include "tests/bench/report.h"

#define CONTEXT_DEFAULT 8000u

struct program {
	struct options options;
	struct run run;
	uint32_t n_printed;	/* tables, as text */
	bool head_printed;
};

/* Text of what is whole and was not printed yet; all: also of what is not whole. */
static void print_text(struct program *p, bool all)
{
	const struct results *r = p->run.results;

	if (p->options.json)
		return;
	results_lock();
	if (!p->head_printed)
		report_head(stdout, r);
	p->head_printed = true;
	while (p->n_printed < r->n_tables && (all || r->tables[p->n_printed]->is_whole))
		report_table(stdout, r->tables[p->n_printed++]);
	fflush(stdout);
	results_unlock();
}

static int write_html(const struct program *p)
{
	FILE *f = fopen(p->options.html, "we");
	int r = f ? report_html(f, p->run.results) : -errno;

	if (f && fclose(f) && !r)
		r = -errno;
	if (r)
		complain("%s: %s", p->options.html, strerror(-r));
	return r;
}

/* All that there is, at the end or where it was interrupted.  0 or -errno, said. */
static int write_results(struct program *p)
{
	struct results *results = p->run.results;
	int r = 0;

	results_lock();
	ratios_fill(results);
	results_unlock();
	print_text(p, true);
	results_lock();
	if (p->options.json) {
		_cleanup_(freep) char *json = report_json(results);

		if (json)
			puts(json);
		r = json ? 0 : -ENOMEM;
	} else {
		report_ratios(stdout, results);
		if (results->interrupted)
			fputs("\ninterrupted: what was measured until then\n", stdout);
	}
	if (p->options.html)
		r = write_html(p) < 0 ? -EIO : r;
	if (fflush(stdout) || ferror(stdout)) {
		complain("can't write the output");
		r = -EIO;
	}
	results_unlock();
	return r;
}

static void interrupted(void *arg)
{
	struct program *p = arg;

	results_lock();
	p->run.results->interrupted = true;
	results_unlock();
	write_results(p);
}

/* Roughly how fast it is, from a prompt of one step and a few tokens. */
static int calibrate(struct run *run)
{
	uint32_t room = MIN(run->o.chunk, run->n_ctx / 2), n = MIN(128u, room);
	struct lane_options options = lane_options_of(run, KB_KV_F16, n + 8, 1);
	_cleanup_(lane_closep) struct lane *lane = NULL;
	uint64_t start, middle;
	int r = lane_open(&lane, run->subject, &options);

	start = clock_ns();
	if (!r)
		r = lane_prefill(lane, 0, n);
	middle = clock_ns();
	if (!r)
		r = lane_decode(lane, 0, 1, 4, NULL);
	run->prefill_rate = n * 1e9 / (double)(middle - start);
	run->decode_rate = 4e9 / (double)(clock_ns() - middle);
	if (r)
		complain("the model does not compute: %s", strerror(-r));
	return r;
}

static void fill_head(struct run *run)
{
	const struct model_info *m = model_info(run->subject->model);
	struct kb_backend *be = run->subject->be;
	struct results *r = run->results;

	results_lock();
	snprintf(r->model, sizeof(r->model), "%s", m->name);
	snprintf(r->arch, sizeof(r->arch), "%s", m->arch);
	snprintf(r->backend, sizeof(r->backend), "%s", be->ops->name);
	snprintf(r->level, sizeof(r->level), "%s", be->ops->level(be));
	r->n_params = m->n_params;
	r->weight_bytes = m->weight_bytes;
	r->n_threads = run->subject->n_threads;
	r->rounds = run->o.rounds;
	r->block_tokens = run->o.block_tokens;
	r->chunk = run->o.chunk;
	results_unlock();
}

static int open_model(struct run *run)
{
	struct diag diag = DIAG_NULL;
	uint32_t context = run->o.max_context ? run->o.max_context : CONTEXT_DEFAULT;
	int r;

	run->n_ctx = MAX(context + run->o.tokens, run->o.input + run->o.output);
	progress(run, "loading %s", run->o.synthetic ? run->o.synthetic : run->o.model);
	r = open_subject(run, NULL, &run->subject, &diag);
	if (r < 0) {
		complain("%s", diag.text[0] ? diag.text : strerror(-r));
		return r;
	}
	run->n_ctx = model_n_ctx(run->subject->model);
	if (run->n_ctx < 16) {
		complain("the model's context of %u tokens is too short", run->n_ctx);
		return -EINVAL;
	}
	run->o.tokens = MIN(run->o.tokens, run->n_ctx - 8);
	fill_head(run);
	return calibrate(run);
}

static bool is_wanted(const struct program *p, uint32_t i)
{
	return p->options.tables & 1u << i;
}

static void say_how_long(struct program *p)
{
	char text[512] = "";
	double sum = 0;
	size_t n = 0;

	for (uint32_t i = 0; i < n_table_defs; i++) {
		double seconds = is_wanted(p, i) ? table_defs[i].seconds(&p->run) : 0;

		sum += seconds;
		if (is_wanted(p, i) && n < sizeof(text))
			n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s %.0f s", n ? ", " : "",
					      table_defs[i].name, seconds);
	}
	progress(&p->run, "this takes about %.0f s (%s); --max-time ends it after %u s, Ctrl-C at once", sum,
		 text, p->run.o.seconds);
}

static int run_tables(struct program *p, bool by_daemon)
{
	int r = 0;

	for (uint32_t i = 0; i < n_table_defs && !r; i++) {
		if (!is_wanted(p, i) || table_defs[i].by_daemon != by_daemon)
			continue;
		r = table_defs[i].run(&p->run);
		print_text(p, false);
	}
	return r;
}

static int measure_all(struct program *p)
{
	int r = open_model(&p->run);

	if (r)
		return r;
	p->run.deadline = clock_ns() + p->run.o.seconds * UINT64_C(1000000000);
	say_how_long(p);
	print_text(p, false);
	r = run_tables(p, false);
	/* A daemon has a copy of its own. */
	subject_close(p->run.subject);
	p->run.subject = NULL;
	return r ? r : run_tables(p, true);
}

/* Better now than when all has been measured. */
static int check_html(const struct program *p)
{
	FILE *f = p->options.html ? fopen(p->options.html, "ae") : stdout;

	if (f && f != stdout)
		fclose(f);
	if (!f)
		complain("%s: %s", p->options.html, strerror(errno));
	return f ? 0 : -EIO;
}

static int run_program(struct program *p)
{
	int r = check_html(p), written = 0;

	if (r)
		return 1;
	p->run.o = p->options.bench;
	r = results_new(&p->run.results);
	if (!r)
		r = interrupt_init(interrupted, p);
	if (!r)
		r = measure_all(p);
	/* Who was interrupted has its results written elsewhere, and ends there. */
	while (!interrupt_claim())
		pause();
	if (p->run.results && p->run.results->n_tables)
		written = write_results(p);
	subject_close(p->run.subject);
	results_free(p->run.results);
	if (r == -ENOMEM)
		complain("not enough memory");
	return r || written;
}

int main(int argc, char **argv)
{
	struct program p = { 0 };
	int r = options_read(&p.options, argc, argv);

	if (r)
		return r == OPTIONS_HELP ? 0 : r;
	if (p.options.products || p.options.mass) {
		const struct bench_options *o = &p.options.bench;

		r = p.options.products ? products_run(stdout, o->level, o->rounds) :
					 mass_run(stdout, o->level, o->block_tokens, o->rounds);
		if (r < 0)
			complain("%s", strerror(-r));
		return r < 0;
	}
	signal(SIGPIPE, SIG_IGN);
	if (p.options.peer_worker)
		return peer_run(&p.options.bench) != 0;
	return run_program(&p);
}
