/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/report.h"

/* Text of others, such as a model's name, need not be UTF-8. */
static json_t *text(const char *s)
{
	json_t *j = json_string(s);

	return j ? j : json_string("?");
}

static json_t *series(const struct series *s)
{
	json_t *samples = json_array();
	double least, most;

	series_range(s, &least, &most);
	for (uint32_t i = 0; i < s->n; i++)
		json_array_append_new(samples, json_real(s->rate[i]));
	return json_pack("{s:f, s:f, s:f, s:o}", "median", series_median(s), "min", least, "max", most,
			 "samples", samples);
}

static json_t *row(const struct table *t, const struct row *row)
{
	json_t *j = json_pack("{s:o, s:f}", "name", text(row->name), "x", row->x);
	json_t *cells = json_object();

	if (row->group[0])
		json_object_set_new(j, "group", text(row->group));
	if (row->missing[0])
		json_object_set_new(j, "not_available", text(row->missing));
	for (uint32_t c = 0; c < t->n_columns && !row->missing[0]; c++)
		if (row->cells[c].n)
			json_object_set_new(cells, t->columns[c].name, series(&row->cells[c]));
	json_object_set_new(j, "cells", cells);
	return j;
}

static json_t *table(const struct table *t)
{
	json_t *columns = json_array(), *rows = json_array(), *notes = json_array();

	for (uint32_t c = 0; c < t->n_columns; c++)
		json_array_append_new(columns, json_pack("{s:s, s:s}", "name", t->columns[c].name, "head",
							 t->columns[c].head));
	for (uint32_t i = 0; i < t->n_rows; i++)
		json_array_append_new(rows, row(t, &t->rows[i]));
	for (uint32_t i = 0; i < t->n_notes; i++)
		json_array_append_new(notes, text(t->notes[i]));
	return json_pack("{s:s, s:o, s:o, s:o, s:o, s:b}", "name", t->name, "title", text(t->title), "columns",
			 columns, "rows", rows, "notes", notes, "whole", t->is_whole);
}

static json_t *ratio(const struct ratio *x)
{
	json_t *j = series(&x->values);

	if (!j)
		return NULL;
	json_object_set_new(j, "name", text(x->spec.name));
	json_object_set_new(j, "unit", json_string(x->spec.is_saved ? "%" : ""));
	json_object_set_new(j, "asked", x->spec.asked > 0 ? json_real(x->spec.asked) : json_null());
	json_object_set_new(j, "at_most", json_boolean(x->spec.at_most));
	return j;
}

static json_t *document(const struct results *r)
{
	json_t *tables = json_array(), *ratios = json_array();
	json_t *machine =
		json_pack("{s:o, s:i, s:I, s:o}", "cpu", text(r->machine.cpu), "cpus", (int)r->machine.n_cpus,
			  "memory_bytes", (json_int_t)r->machine.memory, "kernel", text(r->machine.kernel));
	json_t *model = r->model[0] ? json_pack("{s:o, s:o, s:I, s:I}", "name", text(r->model), "arch",
						text(r->arch), "parameters", (json_int_t)r->n_params,
						"weight_bytes", (json_int_t)r->weight_bytes)
				    : json_null();

	for (uint32_t i = 0; i < r->n_tables; i++)
		json_array_append_new(tables, table(r->tables[i]));
	for (uint32_t i = 0; i < r->n_ratios; i++)
		json_array_append_new(ratios, ratio(&r->ratios[i]));
	return json_pack("{s:s, s:i, s:s, s:s, s:o, s:o, s:s, s:s, s:i, s:i, s:i, s:i, s:b, s:o, s:o}",
			 "program", "kvd-bench", "schema", REPORT_SCHEMA, "version", r->version, "date",
			 r->date, "machine", machine, "model", model, "backend", r->backend, "level",
			 r->level, "threads", (int)r->n_threads, "rounds", (int)r->rounds, "block_tokens",
			 (int)r->block_tokens, "chunk", (int)r->chunk, "interrupted", r->interrupted,
			 "tables", tables, "ratios", ratios);
}

char *report_json(const struct results *r)
{
	json_t *j = document(r);
	char *out = j ? json_dumps(j, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) : NULL;

	json_decref(j);
	return out;
}
