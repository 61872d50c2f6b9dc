/* SPDX-License-Identifier: Apache-2.0 */
/* One page that needs nothing else: no scripts, no style sheets, no pictures from outside; the JSON is
 * inside. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "tests/bench/report.h"

static const char style[] =
	"body { font: 16px/1.5 system-ui, sans-serif; color: #1b1b1b; background: #fff; max-width: 62rem;\n"
	"       margin: 2rem auto; padding: 0 1rem; }\n"
	"h1 { font-size: 1.6rem; margin-bottom: .3rem; } h2 { font-size: 1.2rem; margin: 2.6rem 0 .2rem; }\n"
	"h2 small { font-weight: normal; color: #555; }\n"
	"dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: 1rem 0; }\n"
	"dt { color: #555; } dd { margin: 0; }\n"
	".wide { overflow-x: auto; }\n"
	"table { border-collapse: collapse; font-variant-numeric: tabular-nums; }\n"
	"th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #ddd; white-space: "
	"nowrap; }\n"
	"th:first-child, td:first-child { text-align: left; }\n"
	"thead th { border-bottom: 2px solid #888; } tbody th { font-weight: normal; }\n"
	"td small { display: block; color: #666; font-size: .8em; }\n"
	"td.missing { text-align: left; white-space: normal; color: #555; font-style: italic; }\n"
	"p.note { color: #555; font-size: .9rem; margin: .4rem 0; max-width: 48rem; }\n"
	"svg { max-width: 100%; height: auto; margin: 1rem 0 .4rem; display: block; }\n"
	"details { margin-top: 3rem; } pre { overflow-x: auto; font-size: .75rem; background: #f6f6f6; "
	"padding: 1rem; }\n";

void report_escaped(FILE *out, const char *text)
{
	for (; *text; text++) {
		switch (*text) {
		case '<': fputs("&lt;", out); break;
		case '>': fputs("&gt;", out); break;
		case '&': fputs("&amp;", out); break;
		case '"': fputs("&quot;", out); break;
		default: fputc((unsigned char)*text < 0x20 && *text != '\n' ? ' ' : *text, out);
		}
	}
}

static void item(FILE *out, const char *name, const char *value)
{
	fprintf(out, "<dt>%s</dt><dd>", name);
	report_escaped(out, value);
	fputs("</dd>\n", out);
}

static void head(FILE *out, const struct results *r)
{
	char text[300];

	fprintf(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
		"<meta name=\"viewport\" content=\"width=device-width\">\n<title>kvd-bench: ");
	report_escaped(out, r->model[0] ? r->model : "no model");
	fprintf(out, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<h1>What this machine makes of ", style);
	report_escaped(out, r->model[0] ? r->model : "no model");
	fputs("</h1>\n<dl>\n", out);
	snprintf(text, sizeof(text), "%s, %u CPUs, %.1f GB of memory, %s", r->machine.cpu, r->machine.n_cpus,
		 (double)r->machine.memory / 1e9, r->machine.kernel);
	item(out, "machine", text);
	if (r->model[0]) {
		snprintf(text, sizeof(text), "%s, %.0f M parameters, %.1f MB of weights in memory", r->arch,
			 (double)r->n_params / 1e6, (double)r->weight_bytes / 1e6);
		item(out, "model", text);
		snprintf(text, sizeof(text),
			 "%s, level %s, %u threads; blocks of %u tokens, prompt chunks of %u", r->backend,
			 r->level, r->n_threads, r->block_tokens, r->chunk);
		item(out, "backend", text);
	}
	snprintf(text, sizeof(text), "kvd-bench %s, %s", r->version, r->date);
	item(out, "made by", text);
	fputs("</dl>\n", out);
	fprintf(out,
		"<p class=\"note\">Figures are medians of up to %u rounds in which everything of a table takes "
		"its turn; below them the least and the most.%s</p>\n",
		r->rounds, r->interrupted ? " The run was interrupted." : "");
}

static void cell(FILE *out, const struct series *s, int decimals, const char *unit)
{
	double least, most;

	if (!s->n) {
		fputs("<td>–</td>", out);
		return;
	}
	series_range(s, &least, &most);
	fprintf(out, "<td>%.*f%s", report_decimals(series_median(s), decimals), series_median(s), unit);
	decimals = report_decimals(most, decimals);
	if (least != most)
		fprintf(out, "<small>%.*f%s%.*f</small>", decimals, least, least < 0 ? " to " : "–", decimals, most);
	fputs("</td>", out);
}

static void table(FILE *out, const struct table *t)
{
	fprintf(out, "<h2 id=\"%s\">%s <small>", t->name, t->name);
	report_escaped(out, t->title);
	fprintf(out, "</small></h2>\n");
	report_plot(out, t);
	fputs("<div class=\"wide\"><table>\n<thead><tr><th></th>", out);
	for (uint32_t c = 0; c < t->n_columns; c++) {
		if (!report_has_column(t, c))
			continue;
		fputs("<th scope=\"col\">", out);
		report_escaped(out, t->columns[c].head);
		fputs("</th>", out);
	}
	fputs("</tr></thead>\n<tbody>\n", out);
	for (uint32_t i = 0; i < t->n_rows; i++) {
		const struct row *row = &t->rows[i];

		fputs("<tr><th scope=\"row\">", out);
		report_escaped(out, row->name);
		fputs("</th>", out);
		if (row->missing[0]) {
			fprintf(out, "<td class=\"missing\" colspan=\"%u\">not available: ", t->n_columns);
			report_escaped(out, row->missing);
			fputs("</td>", out);
		}
		for (uint32_t c = 0; c < t->n_columns && !row->missing[0]; c++)
			if (report_has_column(t, c))
				cell(out, &row->cells[c], t->columns[c].decimals, "");
		fputs("</tr>\n", out);
	}
	fputs("</tbody></table></div>\n", out);
	if (!t->is_whole)
		fputs("<p class=\"note\">Not finished.</p>\n", out);
	for (uint32_t i = 0; i < t->n_notes; i++) {
		fputs("<p class=\"note\">", out);
		report_escaped(out, t->notes[i]);
		fputs("</p>\n", out);
	}
}

static void ratios(FILE *out, const struct results *r)
{
	if (!r->n_ratios)
		return;
	fputs("<h2 id=\"ratios\">ratios <small>within a round</small></h2>\n<div "
	      "class=\"wide\"><table>\n<thead><tr><th></th><th scope=\"col\">median</th><th "
	      "scope=\"col\">asked for</th></tr></thead>\n<tbody>\n",
	      out);
	for (uint32_t i = 0; i < r->n_ratios; i++) {
		const struct ratio *x = &r->ratios[i];
		char asked[32];

		fputs("<tr><th scope=\"row\">", out);
		report_escaped(out, x->spec.name);
		fputs("</th>", out);
		cell(out, &x->values, x->spec.decimals, x->spec.is_saved ? " %" : "");
		report_asked(&x->spec, asked, sizeof(asked));
		fprintf(out, "<td>%s</td></tr>\n", asked);
	}
	fputs("</tbody></table></div>\n", out);
}

/* In an element that nothing runs; "</" must not end it. */
static void data(FILE *out, const char *json)
{
	fputs("<script type=\"application/json\" id=\"results\">\n", out);
	for (const char *at = json; *at; at++) {
		if (at[0] == '<')
			fputs("\\u003c", out);
		else
			fputc(*at, out);
	}
	fputs("\n</script>\n", out);
}

int report_html(FILE *out, const struct results *r)
{
	_cleanup_(freep) char *json = report_json(r);

	if (!json)
		return -ENOMEM;
	head(out, r);
	ratios(out, r);
	for (uint32_t i = 0; i < r->n_tables; i++)
		table(out, r->tables[i]);
	data(out, json);
	fputs("<p class=\"note\">The figures as JSON are in this page, in the element <code>results</code>; "
	      "kvctl(1) says what they are.</p>\n</body>\n</html>\n",
	      out);
	return 0;
}
