/* SPDX-License-Identifier: Apache-2.0 */
/* Perplexity as `kvctl perplexity` defines it: windows of 512 tokens, of each the second half. */
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
	uint32_t n = (uint32_t)MIN(ids->n / window, (size_t)WINDOWS_MAX), count = 0;
	double sum = 0;

	for (uint32_t i = 0; i < n; i++) {
		int32_t *at = ids->ids + (size_t)i * window;
		int r;

		if (tokenizer_add_bos(t))
			at[0] = tokenizer_bos(t);
		r = lane_score(v->lane, at, window, window / 2, &sum, &count);
		if (r)
			return r;
	}
	if (!count)
		return 0;
	v->n_windows = n;
	cell_add(v->row, COMPARE_PERPLEXITY, exp(-sum / count));
	return 0;
}

int variant_perplexity(struct variant *v)
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
	if (r)
		complain("%s: %s", v->run->o.text, strerror(-r));
	return r;
}
