/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/server/memory-left.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "tests/bench/tables.h"

/* In the order in which they are measured: what needs a daemon comes last, since it loads the model once
 * more. */
const struct table_def table_defs[] = {
	{ "limits", "prefill and decoding beside what memory and arithmetic can do", false, limits_run,
	  limits_seconds },
	{ "compare", "no cache against keys and values in F16, Q8 and Q4", false, compare_run,
	  compare_seconds },
	{ "batch", "1 to 32 sequences at once", false, batch_run, batch_seconds },
	{ "context", "decoding at contexts of 0 to 8,000 tokens", false, context_run, context_seconds },
	{ "layout", "sizes of blocks of keys and values", false, layout_run,
	  layout_seconds },
	{ "arrangement", "how keys and values lie beside each other in memory", false, arrangement_run,
	  arrangement_seconds },
	{ "clients", "programs that share a prefix", true, clients_run, clients_seconds },
	{ "first-token", "the first token: cold, cached, after a restart", true, first_run, first_seconds },
	{ "http", "shared memory against HTTP", true, http_run, http_seconds },
};
const uint32_t n_table_defs = ARRAY_SIZE(table_defs);

const char *kv_type_name(enum kb_kv_type type)
{
	static const char *const names[KV_TYPES] = { "F16", "Q8", "Q4" };

	return names[type];
}

bool kv_type_wanted(const struct run *run, enum kb_kv_type type)
{
	return run->o.kv_types & 1u << type;
}

void complain(const char *fmt, ...)
{
	va_list args;

	fputs("kvd-bench: ", stderr);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
}

void progress(const struct run *run, const char *fmt, ...)
{
	va_list args;

	if (run->o.quiet)
		return;
	fputs("kvd-bench: ", stderr);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
}

bool round_begins(struct run *run, struct table *t, uint32_t i, uint32_t n)
{
	uint64_t now = clock_ns(), took = now - run->round_start;

	if (i >= n)
		return false;
	/* One round there is always, so that a table that is asked for has values. */
	if (i && now + took > run->deadline) {
		table_note(t, "There was time for %u of %u rounds.", i, n);
		return false;
	}
	run->round_start = now;
	progress(run, "%s: round %u of %u", t->name, i + 1, n);
	return true;
}

struct lane_options lane_options_of(const struct run *run, enum kb_kv_type type, uint32_t n_ctx,
				    uint32_t n_seqs)
{
	return (struct lane_options){
		.kv_type = type,
		.block_tokens = run->o.block_tokens,
		.n_ctx = n_ctx,
		.n_seqs = n_seqs,
		.chunk = run->o.chunk,
	};
}

int open_lane_for(struct run *run, struct subject *s, const struct lane_options *options, struct row *row,
		  struct lane **out)
{
	uint64_t left, need = lane_bytes_for(s, options);
	int r;

	*out = NULL;
	/* A quarter stays free: workspaces, and other programs. */
	if (!memory_left(&left) && need > left / 4 * 3) {
		row_missing(row, "needs %.1f GB of memory, %.1f GB are free", (double)need / 1e9,
			    (double)left / 1e9);
		return 0;
	}
	r = lane_open(out, s, options);
	if (!r)
		return 0;
	progress(run, "keys and values in %s: %s", kv_type_name(options->kv_type), strerror(-r));
	/* F16 every backend has. */
	if (r == -ENOMEM)
		row_missing(row, "not enough memory");
	else if (options->kv_type != KB_KV_F16)
		row_missing(row, "this backend, at this level, does not take such keys and values");
	else
		return r;
	return 0;
}

int open_subject(const struct run *run, const char *synthetic, struct subject **out, struct diag *diag)
{
	const struct subject_options options = {
		.file = synthetic ? NULL : run->o.model,
		.synthetic = synthetic ? synthetic : run->o.synthetic,
		.level = run->o.level,
		.n_threads = run->o.n_threads,
		.n_ctx = run->n_ctx,
	};

	return subject_open(out, &options, diag);
}

double prefill_seconds(const struct run *run, double n)
{
	return n / run->prefill_rate;
}

double decode_seconds(const struct run *run, double n)
{
	return n / run->decode_rate;
}
