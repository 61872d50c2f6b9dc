/* SPDX-License-Identifier: Apache-2.0 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/model/pretokenizer-patterns.h"
#include "daemon/model/pretokenizer.h"

struct pretokenizer {
	struct pretokenizer_kind kind;
	pcre2_code *stages[PRETOKENIZER_MAX_STAGES];
	size_t n_stages;
};

static int compile(pcre2_code **out, const char *pattern, struct diag *diag)
{
	int error;
	size_t at;
	pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
					 &error, &at, NULL);

	if (!code) {
		if (error == PCRE2_ERROR_HEAP_FAILED)
			return -ENOMEM;
		return diag_set(diag, -EINVAL,
				"this PCRE2 does not know the pre-tokenizer's pattern (error %d at %zu)",
				error, at);
	}
	/* Without executable memory (a hardened service) the interpreter does. */
	(void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
	*out = code;
	return 0;
}

int pretokenizer_new(struct pretokenizer **out, const char *name, size_t n_name, struct diag *diag)
{
	struct pretokenizer_kind kind;
	_cleanup_(pretokenizer_freep) struct pretokenizer *p = NULL;
	int r;

	if (!pretokenizer_find(name, n_name, &kind)) {
		char known[160];

		pretokenizer_list(known, sizeof(known));
		return diag_set(diag, -EINVAL,
				"tokenizer.ggml.pre: unknown pre-tokenizer \"%.*s\"; known are those of %s",
				(int)(n_name < 24 ? n_name : 24), name, known);
	}
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->kind = kind;
	while (p->n_stages < PRETOKENIZER_MAX_STAGES && kind.pattern->stages[p->n_stages]) {
		r = compile(&p->stages[p->n_stages], kind.pattern->stages[p->n_stages], diag);
		if (r < 0)
			return r;
		p->n_stages++;
	}
	*out = steal_ptr(p);
	return 0;
}

void pretokenizer_free(struct pretokenizer *p)
{
	if (!p)
		return;
	for (size_t i = 0; i < p->n_stages; i++)
		pcre2_code_free(p->stages[i]);
	free(p);
}

bool pretokenizer_add_bos(const struct pretokenizer *p)
{
	return p->kind.add_bos;
}

bool pretokenizer_whole_words(const struct pretokenizer *p)
{
	return p->kind.whole_words;
}

/* One call of pretokenizer_split(). */
struct split {
	const struct pretokenizer *p;
	pcre2_match_context *limits;
	pcre2_match_data *match;	/* room for the whole match; read before the next stage runs */
	pretokenizer_word_fn fn;
	void *arg;
};

/*
 * The first match in text[from..n): 1 and its place, 0 if there is none, or
 * a negative errno.
 */
static int find_match(struct split *s, const pcre2_code *code, const uint8_t *text, size_t n, size_t from,
		      size_t *start, size_t *end)
{
	const size_t *place;
	int r = pcre2_match(code, text, n, from, PCRE2_NO_UTF_CHECK, s->match, s->limits);

	/* The compiled code has a fixed stack, the interpreter takes from the heap. */
	if (r == PCRE2_ERROR_JIT_STACKLIMIT || r == PCRE2_ERROR_MATCHLIMIT)
		r = pcre2_match(code, text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->match, s->limits);
	if (r == PCRE2_ERROR_NOMATCH)
		return 0;
	if (r < 0)
		return r == PCRE2_ERROR_NOMEMORY ? -ENOMEM : -EINVAL;
	place = pcre2_get_ovector_pointer(s->match);
	*start = place[0];
	*end = place[1];
	return 1;
}

/* Stages are at most PRETOKENIZER_MAX_STAGES deep, whatever the text. */
static int run_stage(struct split *s, size_t stage, const uint8_t *text, size_t n)
{
	size_t at = 0;

	if (stage == s->p->n_stages)
		return s->fn(s->arg, text, n);
	while (at < n) {
		size_t start, end;
		int r = find_match(s, s->p->stages[stage], text, n, at, &start, &end);

		if (r < 0)
			return r;
		if (r == 0)
			start = end = n;
		if (start > at) {
			r = run_stage(s, stage + 1, text + at, start - at);
			if (r < 0)
				return r;
		}
		if (end > start) {
			r = run_stage(s, stage + 1, text + start, end - start);
			if (r < 0)
				return r;
		}
		at = end;
	}
	return 0;
}

int pretokenizer_split(const struct pretokenizer *p, const uint8_t *text, size_t n, pretokenizer_word_fn fn,
		       void *arg)
{
	struct split s = { .p = p, .fn = fn, .arg = arg };
	uint64_t limit = 1000 + 8 * (uint64_t)n;
	int r;

	s.limits = pcre2_match_context_create(NULL);
	s.match = pcre2_match_data_create(1, NULL);
	if (s.limits && s.match) {
		pcre2_set_match_limit(s.limits, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
		/* In kiB; a match needs a few frames of some hundred bytes. */
		pcre2_set_heap_limit(s.limits, 1u << 16);
		r = run_stage(&s, 0, text, n);
	} else {
		r = -ENOMEM;
	}
	pcre2_match_data_free(s.match);
	pcre2_match_context_free(s.limits);
	return r;
}
