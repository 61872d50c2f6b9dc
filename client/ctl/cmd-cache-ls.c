/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl cache ls: what is in the cache, as a tree; where stdout is no terminal, fields between tabs. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/cache-entry.h"
#include "client/ctl/cmd-cache.h"
#include "client/ctl/connect.h"
#include "client/ctl/table.h"
#include "client/ctl/text.h"

#define DEPTH_MAX 12	/* branches below each other that are drawn */

/* One model's, or all models'. */
struct listing {
	struct ctl *ctl;
	struct kvd_client *c;
	const char *model, *ns;
	bool many;		/* models: each is named */
	json_t *json;
	unsigned n_shown;
};

/* --- on a terminal --- */

/* The branches that lead to a row: "|  |- ". */
static void draw(const struct cache_rows *r, size_t i, char *out, size_t size)
{
	unsigned depth = r->rows[i].depth < DEPTH_MAX ? r->rows[i].depth : DEPTH_MAX;
	const char *parts[DEPTH_MAX];
	size_t row = i, at = 0;

	for (unsigned d = depth; d; d--, row = r->rows[row].up) {
		bool more = r->rows[row].next != CACHE_ROW_NONE;

		parts[d - 1] = row == i ? (more ? "├ " : "└ ") : (more ? "│ " : "  ");
	}
	out[0] = '\0';
	for (unsigned d = 0; d < depth; d++)
		at += (size_t)snprintf(out + at, size - at, "%s", parts[d]);
}

static void add_row(struct table *t, const struct cache_rows *r, size_t i)
{
	const struct cache_row *row = &r->rows[i];
	char branches[DEPTH_MAX * 4 + 1], buf[FORMAT_MAX], quoted[64];

	draw(r, i, branches, sizeof(branches));
	text_quote(row->first->words, strlen(row->first->words), quoted, sizeof(quoted));
	table_cell(t, "%" PRIu64, row->last->entry);
	table_cell(t, "%" PRIu64, row->n_tokens);
	table_cell(t, "%s", format_bytes(buf, row->bytes));
	table_cell(t, "%s", row->tier);
	table_cell(t, "%s", format_duration(buf, row->first->age_ns));
	table_cell(t, "%s", format_duration(buf, row->idle_ns));
	table_cell(t, "%" PRIu32, row->hits);
	table_cell(t, "%" PRIu32 "%s", row->last->n_pins, row->last->pinned ? "*" : "");
	table_cell(t, "%s", row->ttl_ns ? format_duration(buf, row->ttl_ns) : "-");
	table_cell(t, "%" PRIu32, row->first->uid);
	table_cell(t, "%s", row->first->ns);
	table_cell(t, "%s%s", branches, quoted);
}

static int print_table(const struct ctl *ctl, const struct cache_rows *r)
{
	static const struct table_column columns[] = {
		{ "ID", true }, { "TOKENS", true }, { "SIZE", true }, { "TIER", false }, { "AGE", true },
		{ "USED", true }, { "HITS", true }, { "PINS", true }, { "EXPIRES", true }, { "UID", true },
		{ "NAMESPACE", false }, { "TEXT", false },
	};
	struct table t;

	table_init(&t, columns, sizeof(columns) / sizeof(columns[0]));
	for (size_t i = r->first; i != CACHE_ROW_NONE; i = cache_rows_next(r, i))
		add_row(&t, r, i);
	return table_finish(ctl, &t);
}

/* What each tier has of it. */
static void print_totals(const struct kvd_cache_entry *entries, size_t n)
{
	for (unsigned i = 0; i < CACHE_TIERS; i++) {
		uint64_t n_entries = 0, n_tokens = 0, bytes = 0;
		char buf[FORMAT_MAX];

		for (size_t k = 0; k < n; k++) {
			if (!(cache_entry_tiers(&entries[k]) & 1u << i))
				continue;
			n_entries++;
			n_tokens += entries[k].n_tokens;
			bytes += entries[k].bytes;
		}
		if (n_entries)
			printf("%s: %" PRIu64 " entr%s, %" PRIu64 " tokens, %s\n", cache_tiers[i], n_entries,
			       n_entries == 1 ? "y" : "ies", n_tokens, format_bytes(buf, bytes));
	}
}

/* --- elsewhere --- */

static void print_plain(const struct listing *l, const char *model, const struct cache_rows *r)
{
	if (!l->n_shown)
		printf("MODEL\tID\tAFTER\tTOKENS\tFIRST\tBYTES\tTIER\tAGE_S\tUSED_S\tHITS\tPINS\tEXPIRES_S\tUID\t"
		       "NAMESPACE\tTEXT\n");
	for (size_t i = r->first; i != CACHE_ROW_NONE; i = cache_rows_next(r, i)) {
		const struct cache_row *row = &r->rows[i];
		char quoted[256], expires[32] = "-";

		text_quote(row->first->words, strlen(row->first->words), quoted, sizeof(quoted));
		if (row->ttl_ns)
			snprintf(expires, sizeof(expires), "%" PRIu64, row->ttl_ns / 1000000000u);
		printf("%s\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu32 "\t%" PRIu64 "\t%s\t%" PRIu64 "\t%" PRIu64
		       "\t%" PRIu32 "\t%" PRIu32 "\t%s\t%" PRIu32 "\t%s\t%s\n",
		       model, row->last->entry, row->first->parent, row->n_tokens, row->first->first, row->bytes,
		       row->tier, row->first->age_ns / 1000000000u, row->idle_ns / 1000000000u, row->hits,
		       row->last->n_pins, expires, row->first->uid, row->first->ns, quoted);
	}
}

static int add_json(const struct listing *l, const char *model, const struct kvd_cache_entry *entries, size_t n)
{
	json_t *list = json_array();

	for (size_t i = 0; list && i < n; i++)
		json_array_append_new(list, cache_entry_json(&entries[i]));
	return json_array_append_new(l->json, json_pack("{s:s,s:o}", "model", model, "entries", list)) ? CTL_FAILED
												      : CTL_OK;
}

/* --- the command --- */

static int show(struct listing *l, const char *model, const struct kvd_cache_entry *entries, size_t n)
{
	struct cache_rows rows;
	int status = CTL_OK;

	if (l->ctl->json)
		return add_json(l, model, entries, n);
	if (cache_rows_init(&rows, entries, n)) {
		ctl_error(l->ctl, "out of memory");
		return CTL_FAILED;
	}
	if (!isatty(STDOUT_FILENO)) {
		print_plain(l, model, &rows);
	} else {
		if (l->many)
			printf("%s%s:\n", l->n_shown ? "\n" : "", model);
		status = print_table(l->ctl, &rows);
		if (!status)
			print_totals(entries, n);
	}
	l->n_shown++;
	cache_rows_deinit(&rows);
	return status;
}

static int list_model(struct listing *l, const char *model)
{
	struct kvd_cache_entry *entries = NULL;
	size_t n = 0;
	int r = kvd_cache_ls(l->c, model, l->ns, &entries, &n), status;

	if (r)
		return ctl_client_failed(l->ctl, l->c, r, "cannot list the cache");
	status = show(l, model, entries, n);
	free(entries);
	return status;
}

/* Those that are there; one that goes meanwhile is no failure of the others. */
static int list_models(struct listing *l)
{
	struct kvd_model *models = NULL;
	size_t n = 0, n_ready = 0;
	int status = CTL_OK, r = kvd_models(l->c, &models, &n);

	if (r)
		return ctl_client_failed(l->ctl, l->c, r, "cannot list the models");
	for (size_t i = 0; i < n; i++)
		n_ready += !strcmp(models[i].state, "ready");
	l->many = n_ready > 1;
	for (size_t i = 0; i < n && !status; i++)
		if (!strcmp(models[i].state, "ready"))
			status = list_model(l, models[i].name);
	free(models);
	return status;
}

int cmd_cache_ls(struct ctl *ctl, int argc, char **argv)
{
	static const struct option longs[] = {
		{ "model", required_argument, NULL, 'm' },
		{ "namespace", required_argument, NULL, CTL_OPT_NAMESPACE },
		CTL_GLOBAL_OPTIONS,
		{ 0 },
	};
	struct ctl_options o = { .ctl = ctl, .argc = argc, .argv = argv, .shorts = ":hm:", .longs = longs };
	struct listing l = { .ctl = ctl };
	int status, r;

	while ((r = ctl_options_next(&o)) != CTL_OPTIONS_END) {
		if (r == CTL_OPTIONS_EXIT)
			return o.status;
		if (!*optarg)
			return ctl_usage(ctl, "%s: must not be empty", o.name);
		*(r == 'm' ? &l.model : &l.ns) = optarg;
	}
	if (ctl_options_no_arguments(&o))
		return o.status;
	status = connect_running(ctl, &l.c);
	if (status)
		return status;
	l.json = ctl->json ? json_array() : NULL;
	status = l.model ? list_model(&l, l.model) : list_models(&l);
	if (ctl->json && !status)
		status = json_print(ctl, l.json);
	else
		json_decref(l.json);
	kvd_close(l.c);
	return status;
}
