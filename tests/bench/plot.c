/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SVG of a table: bars with the range over the rounds, or lines over x.  Nothing is told by colour alone:
 * bars have their names and values beside them, lines their dashes and markers.
 */
#include <math.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "tests/bench/report.h"

#define WIDTH 760
#define BAR 20			/* height of one, and */
#define BAR_STEP 30		/* of one with what is between them */
#define NAME_WIDTH 260
#define VALUE_WIDTH 90
#define LINES_HEIGHT 340
#define LEFT 88
#define RIGHT 150		/* room for names beside the lines */
#define TOP 20
#define BOTTOM 50
#define GROUPS_MAX 6u
#define TICKS 5

static const char *const colours[GROUPS_MAX] = { "#1f5fa8", "#b4520a", "#2d7a3a",
						 "#7a3f9d", "#8a6d00", "#555555" };
static const char *const dashes[GROUPS_MAX] = { "none", "7 4", "2 3", "10 3 2 3", "1 5", "12 6" };

static const struct series *values(const struct table *t, uint32_t i)
{
	const struct row *row = &t->rows[i];

	return row->missing[0] || !row->cells[t->plot_column].n ? NULL : &row->cells[t->plot_column];
}

static void range_over(const struct table *t, double *least, double *most)
{
	*least = INFINITY;
	*most = 0;
	for (uint32_t i = 0; i < t->n_rows; i++) {
		double low, high;

		if (!values(t, i))
			continue;
		series_range(values(t, i), &low, &high);
		*least = MIN(*least, low);
		*most = MAX(*most, high);
	}
}

/* A round number of at least v / TICKS: 1, 2 or 5 times a power of ten. */
static double tick_step(double v)
{
	double raw = v / TICKS, power = pow(10, floor(log10(raw)));

	return raw <= power ? power : raw <= 2 * power ? 2 * power : raw <= 5 * power ? 5 * power : 10 * power;
}

static void text_at(FILE *out, double x, double y, const char *anchor, const char *extra, const char *text)
{
	fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>", x, y, anchor, extra);
	report_escaped(out, text);
	fputs("</text>\n", out);
}

static void number_at(FILE *out, double x, double y, const char *anchor, double v)
{
	char text[32];

	snprintf(text, sizeof(text), "%.6g", v);
	text_at(out, x, y, anchor, " fill=\"#555\"", text);
}

static void begin(FILE *out, const struct table *t, int height)
{
	fprintf(out,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
		"role=\"img\" font-family=\"system-ui, sans-serif\" font-size=\"13\">\n<title>",
		WIDTH, height, WIDTH, height);
	report_escaped(out, t->name);
	fputs(": ", out);
	report_escaped(out, t->columns[t->plot_column].head);
	fputs("</title>\n", out);
}

/* --- bars --- */

struct scale {
	double low, high;	/* values */
	double from, to;	/* places */
	bool is_log;
};

static double place(const struct scale *s, double v)
{
	double share =
		s->is_log ? log10(v / s->low) / log10(s->high / s->low) : (v - s->low) / (s->high - s->low);

	return s->from + share * (s->to - s->from);
}

static void bar_axis(FILE *out, const struct table *t, const struct scale *s, double bottom)
{
	double step = s->is_log ? 10 : tick_step(s->high);

	for (double v = s->is_log ? s->low : 0; v <= s->high * 1.0001; v = s->is_log ? v * step : v + step) {
		double x = place(s, v);

		fprintf(out, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", x,
			TOP - 8, x, bottom);
		number_at(out, x, bottom + 16, "middle", v);
	}
	text_at(out, (s->from + s->to) / 2, bottom + 36, "middle", "", t->columns[t->plot_column].head);
}

static void bar(FILE *out, const struct table *t, const struct scale *s, uint32_t i, double y)
{
	const struct series *v = values(t, i);
	double least, most, end, middle = y + BAR / 2.0;
	char text[32];

	text_at(out, s->from - 8, middle + 4, "end", "", t->rows[i].name);
	series_range(v, &least, &most);
	end = place(s, series_median(v));
	fprintf(out,
		"<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" fill=\"%s\" "
		"fill-opacity=\"0.75\"/>\n",
		s->from, y, MAX(end - s->from, 1.0), BAR, colours[0]);
	if (v->n > 1)
		fprintf(out,
			"<path d=\"M%.1f %.1fH%.1fM%.1f %.1fv10M%.1f %.1fv10\" stroke=\"#111\" "
			"fill=\"none\"/>\n",
			place(s, least), middle, place(s, most), place(s, least), middle - 5, place(s, most),
			middle - 5);
	snprintf(text, sizeof(text), "%.*f", report_decimals(series_median(v), t->columns[t->plot_column].decimals),
		 series_median(v));
	text_at(out, MAX(end, place(s, most)) + 7, middle + 4, "start", "", text);
}

static void bars(FILE *out, const struct table *t)
{
	struct scale s = { .from = NAME_WIDTH, .to = WIDTH - VALUE_WIDTH };
	double least, most, y = TOP;
	uint32_t n = 0;

	for (uint32_t i = 0; i < t->n_rows; i++)
		n += values(t, i) != NULL;
	range_over(t, &least, &most);
	if (!n || most <= 0)
		return;
	/* Where values are apart by powers of ten a straight scale shows the largest one alone. */
	s.is_log = t->x_is_log && least > 0 && most / least > 20;
	s.low = s.is_log ? pow(10, floor(log10(least * 0.999))) : 0;
	s.high = s.is_log ? pow(10, ceil(log10(most))) : most;
	begin(out, t, TOP + (int)n * BAR_STEP + BOTTOM);
	bar_axis(out, t, &s, TOP + n * BAR_STEP - (BAR_STEP - BAR) / 2.0);
	for (uint32_t i = 0; i < t->n_rows; i++) {
		if (!values(t, i))
			continue;
		bar(out, t, &s, i, y);
		y += BAR_STEP;
	}
	fputs("</svg>\n", out);
}

/* --- lines --- */

static void marker(FILE *out, uint32_t group, double x, double y)
{
	const char *c = colours[group];

	switch (group % 3) {
	case 0:
		fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\" fill=\"%s\"/>\n", x, y, c);
		break;
	case 1:
		fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"9\" height=\"9\" fill=\"%s\"/>\n", x - 4.5,
			y - 4.5, c);
		break;
	default:
		fprintf(out, "<path d=\"M%.1f %.1fl5.5 9.5h-11z\" fill=\"%s\"/>\n", x, y - 6, c);
	}
}

static void line(FILE *out, const struct table *t, const char *group, uint32_t number, const struct scale *xs,
		 const struct scale *ys)
{
	double x = 0, y = 0;
	bool begun = false;

	fprintf(out, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\" stroke-dasharray=\"%s\" d=\"",
		colours[number], dashes[number]);
	for (uint32_t i = 0; i < t->n_rows; i++) {
		if (strcmp(t->rows[i].group, group) || !values(t, i))
			continue;
		x = place(xs, t->rows[i].x);
		y = place(ys, series_median(values(t, i)));
		fprintf(out, "%c%.1f %.1f", begun ? 'L' : 'M', x, y);
		begun = true;
	}
	fputs("\"/>\n", out);
	for (uint32_t i = 0; i < t->n_rows; i++) {
		double least, most;

		if (strcmp(t->rows[i].group, group) || !values(t, i))
			continue;
		series_range(values(t, i), &least, &most);
		x = place(xs, t->rows[i].x);
		y = place(ys, series_median(values(t, i)));
		if (values(t, i)->n > 1)
			fprintf(out, "<path d=\"M%.1f %.1fV%.1f\" stroke=\"%s\" fill=\"none\"/>\n", x,
				place(ys, least), place(ys, most), colours[number]);
		marker(out, number, x, y);
	}
}

/* Names beside, each with its line and marker. */
static void legend(FILE *out, const char *name, uint32_t number)
{
	double x = WIDTH - RIGHT + 20, y = TOP + 10 + 22.0 * number;

	fprintf(out, "<path d=\"M%.1f %.1fh36\" stroke=\"%s\" stroke-width=\"2\" stroke-dasharray=\"%s\"/>\n",
		x, y, colours[number], dashes[number]);
	marker(out, number, x + 18, y);
	text_at(out, x + 44, y + 4, "start", "", name);
}

static void x_ticks(FILE *out, const struct table *t, const struct scale *xs)
{
	double bottom = LINES_HEIGHT - BOTTOM, last = -100;

	for (uint32_t i = 0; i < t->n_rows; i++) {
		double x = place(xs, t->rows[i].x);
		bool seen = false;

		for (uint32_t k = 0; k < i; k++)
			seen |= t->rows[k].x == t->rows[i].x;
		if (seen)
			continue;
		fprintf(out, "<path d=\"M%.1f %.1fv5\" stroke=\"#555\"/>\n", x, bottom);
		/* Those that would overlap have a mark only. */
		if (x - last < 34)
			continue;
		number_at(out, x, bottom + 18, "middle", t->rows[i].x);
		last = x;
	}
	text_at(out, (xs->from + xs->to) / 2, bottom + 40, "middle", "", t->x_head);
}

static void y_ticks(FILE *out, const struct table *t, const struct scale *ys)
{
	double step = tick_step(ys->high);
	char turn[64];

	for (double v = 0; v <= ys->high * 1.0001; v += step) {
		double y = place(ys, v);

		fprintf(out, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", LEFT, y,
			WIDTH - RIGHT, y);
		number_at(out, LEFT - 8, y + 4, "end", v);
	}
	snprintf(turn, sizeof(turn), " transform=\"rotate(-90 18 %d)\"", (LINES_HEIGHT - BOTTOM + TOP) / 2);
	text_at(out, 18, (LINES_HEIGHT - BOTTOM + TOP) / 2.0, "middle", turn, t->columns[t->plot_column].head);
}

static void lines(FILE *out, const struct table *t)
{
	struct scale xs = {
		.low = INFINITY, .high = 0, .from = LEFT + 10, .to = WIDTH - RIGHT - 10, .is_log = t->x_is_log
	};
	struct scale ys = { .low = 0, .from = LINES_HEIGHT - BOTTOM, .to = TOP };
	const char *groups[GROUPS_MAX];
	uint32_t n = 0;
	double least;

	range_over(t, &least, &ys.high);
	for (uint32_t i = 0; i < t->n_rows; i++) {
		uint32_t k = 0;

		if (!values(t, i))
			continue;
		xs.low = MIN(xs.low, t->rows[i].x);
		xs.high = MAX(xs.high, t->rows[i].x);
		while (k < n && strcmp(groups[k], t->rows[i].group))
			k++;
		if (k == n && n < GROUPS_MAX)
			groups[n++] = t->rows[i].group;
	}
	if (!n || ys.high <= 0)
		return;
	/* One place alone is in the middle. */
	if (xs.low == xs.high) {
		xs.is_log = false;
		xs.low -= 1;
		xs.high += 1;
	}
	ys.high *= 1.05;
	begin(out, t, LINES_HEIGHT);
	y_ticks(out, t, &ys);
	x_ticks(out, t, &xs);
	for (uint32_t k = 0; k < n; k++) {
		line(out, t, groups[k], k, &xs, &ys);
		/* One line needs no name but the axis. */
		if (n > 1)
			legend(out, groups[k], k);
	}
	fputs("</svg>\n", out);
}

void report_plot(FILE *out, const struct table *t)
{
	if (t->plot == PLOT_BARS)
		bars(out, t);
	else if (t->plot == PLOT_LINES)
		lines(out, t);
}
