/* SPDX-License-Identifier: Apache-2.0 */
/* Perplexity as `kvctl perplexity` defines it: windows of 512 tokens, of each the second half; and at how many of the
 * same positions a type of keys and values finds the token the most likely that F16 does. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/tokenizer.h"
#include "ipc/base/checked.h"
#include "tests/bench/compare.h"

#define TEXT_MAX (16u << 20)
#define WINDOWS_MAX 16u

static int read_text(const char *path, char **out, size_t *n)
{
	_cleanup_(freep) char *text = malloc(TEXT_MAX);
	FILE *f = fopen(path, "re");
	int r = 0;

	if (!f)
		return -errno;
	if (!text)
		r = -ENOMEM;
	if (!r) {
		*n = fread(text, 1, TEXT_MAX, f);
		r = ferror(f) ? -EIO : 0;
	}
	fclose(f);
	if (!r)
		*out = steal_ptr(text);
	return r;
}

static int score(struct variant *v, const struct token_list *ids, uint32_t window)
{
	const struct tokenizer *t = model_tokenizer(v->subject->model);
	uint32_t n = (uint32_t)MIN(ids->n / window, (size_t)WINDOWS_MAX);
	int r = 0;

	v->scores.room = WINDOWS_MAX * (window - window / 2);
	v->scores.likeliest = calloc(v->scores.room, sizeof(*v->scores.likeliest));
	if (!v->scores.likeliest)
		return -ENOMEM;
	for (uint32_t i = 0; i < n && !r; i++) {
		int32_t *at = ids->ids + (size_t)i * window;

		if (tokenizer_add_bos(t))
			at[0] = tokenizer_bos(t);
		r = lane_score(v->lane, at, window, window / 2, &v->scores);
	}
	v->n_windows = n;
	return r;
}

static void add_values(struct variant *v, const struct variant *f16)
{
	const struct lane_scores *s = &v->scores;
	uint32_t same = 0;

	if (!s->n)
		return;
	cell_add(v->row, COMPARE_PERPLEXITY, exp(-s->sum / s->n));
	if (!f16 || f16->scores.n != s->n)
		return;
	for (uint32_t i = 0; i < s->n; i++)
		same += s->likeliest[i] == f16->scores.likeliest[i];
	cell_add(v->row, COMPARE_SAME, 100.0 * same / s->n);
}

int variant_perplexity(struct variant *v, const struct variant *f16)
{
	_cleanup_(freep) char *text = NULL;
	struct token_list ids = { 0 };
	size_t n = 0;
	int r = read_text(v->run->o.text, &text, &n);

	progress(v->run, "compare: %s: perplexity", v->row->name);
	if (!r)
		r = tokenizer_encode(model_tokenizer(v->subject->model), text, n, TOKENIZE_BOS, &ids);
	if (!r)
		r = score(v, &ids, MIN(COMPARE_WINDOW, model_n_ctx(v->subject->model)));
	free(ids.ids);
	if (!r)
		add_values(v, f16);
	if (r)
		complain("%s: %s", v->run->o.text, strerror(-r));
	return r;
}
