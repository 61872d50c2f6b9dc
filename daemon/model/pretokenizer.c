/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The patterns, and why each match takes time linear in what it consumes:
 *
 *  - A run that ends an alternative is possessive (L++); there is nothing to
 *    gain from giving back.
 *  - `\s+(?!\S)` gives back one character at most: before the last space of a
 *    run stands a space again.
 *  - `\s*[\r\n]+` would look for the last line end of a run of white space from
 *    the run's end; written as ([^\S\r\n]*[\r\n]+)+ it is found going forward.
 *    Where the run has none, it was walked once in vain, and the next
 *    alternative takes all of it but one character.
 *
 * \s is spelled out: the White_Space property, which PCRE2's \s differs from by
 * U+180E.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/model/pretokenizer.h"
#include "ipc/base/checked.h"

#define MAX_STAGES 4

#define SPACE_EXCEPT_CR_LF \
	"\\t\\x0b\\x0c \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SPACE SPACE_EXCEPT_CR_LF "\\r\\n"

/*
 * Letters, numbers and punctuation as of Unicode 16, which `tokenizers` knows:
 * what is newer than Unicode 14 is named, so that the words do not depend on the
 * age of the PCRE2 library.
 */
#define LETTER \
	"\\p{L}\\x{1c89}-\\x{1c8a}\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{105c0}-\\x{105f3}" \
	"\\x{10d4a}-\\x{10d65}\\x{10d6f}-\\x{10d85}\\x{10ec2}-\\x{10ec4}\\x{1123f}-\\x{11240}" \
	"\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}\\x{11390}-\\x{113b5}\\x{113b7}\\x{113d1}\\x{113d3}" \
	"\\x{11bc0}-\\x{11be0}\\x{11f02}\\x{11f04}-\\x{11f10}\\x{11f12}-\\x{11f33}\\x{1342f}" \
	"\\x{13441}-\\x{13446}\\x{13460}-\\x{143fa}\\x{16100}-\\x{1611d}\\x{16d40}-\\x{16d6c}" \
	"\\x{18cff}\\x{1b132}\\x{1b155}\\x{1df25}-\\x{1df2a}\\x{1e030}-\\x{1e06d}" \
	"\\x{1e4d0}-\\x{1e4eb}\\x{1e5d0}-\\x{1e5ed}\\x{1e5f0}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}" \
	"\\x{31350}-\\x{323af}"
#define NUMBER \
	"\\p{N}\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}\\x{11f50}-\\x{11f59}" \
	"\\x{16130}-\\x{16139}\\x{16d70}-\\x{16d79}\\x{1ccf0}-\\x{1ccf9}\\x{1d2c0}-\\x{1d2d3}" \
	"\\x{1e4f0}-\\x{1e4f9}\\x{1e5f1}-\\x{1e5fa}"
/* tokenizers' Digits, which follows Unicode 17. */
#define DIGIT NUMBER "\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}"
#define PUNCTUATION \
	"\\p{P}\\x{1b4e}-\\x{1b4f}\\x{1b7f}\\x{10d6e}\\x{113d4}-\\x{113d5}\\x{113d7}-\\x{113d8}" \
	"\\x{11b00}-\\x{11b09}\\x{11be1}\\x{11f43}-\\x{11f4f}\\x{16d6d}-\\x{16d6f}\\x{1e5ff}"

/* Spaces up to the last one before a word, or all at the end; then what is left. */
#define TRAILING_SPACE "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]++"

#define GPT2 \
	"'s|'t|'re|'ve|'m|'ll|'d| ?[" LETTER "]++| ?[" NUMBER "]++" \
	"| ?[^" SPACE LETTER NUMBER "]++|" TRAILING_SPACE

#define LLAMA3(NUMBERS) \
	"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n" LETTER NUMBER "]?[" LETTER "]++|[" NUMBER "]" NUMBERS \
	"| ?[^" SPACE LETTER NUMBER "]++[\\r\\n]*+|(?:[" SPACE_EXCEPT_CR_LF "]*+[\\r\\n]++)++|" TRAILING_SPACE

static const struct kind {
	const char *name;
	bool add_bos, whole_words;
	const char *stages[MAX_STAGES];	/* NULL: no more */
} kinds[] = {
	{ "smollm", false, false, { "[" DIGIT "]", GPT2 } },
	{ "gpt-2", false, false, { GPT2 } },
	{ "llama-bpe", true, true, { LLAMA3("{1,3}+") } },
	{ "qwen2", false, false, { LLAMA3("") } },
	{ "default", false, false,
	  { "[" PUNCTUATION "$+<=>^~|]++", GPT2, "[" NUMBER "]++", "[0-9][0-9][0-9]" } },
};

struct pretokenizer {
	const struct kind *kind;
	pcre2_code *stages[MAX_STAGES];
	size_t n_stages;
};

static const struct kind *find_kind(const char *name, size_t n)
{
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
		if (strlen(kinds[i].name) == n && memcmp(kinds[i].name, name, n) == 0)
			return &kinds[i];
	return NULL;
}

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
	const struct kind *kind = find_kind(name, n_name);
	_cleanup_(pretokenizer_freep) struct pretokenizer *p = NULL;
	int r;

	if (!kind)
		return diag_set(
			diag, -EINVAL,
			"tokenizer.ggml.pre: unknown pre-tokenizer \"%.*s\"; known are smollm, gpt-2, "
			"llama-bpe, qwen2 and default",
			(int)(n_name < 64 ? n_name : 64), name);
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->kind = kind;
	while (p->n_stages < MAX_STAGES && kind->stages[p->n_stages]) {
		r = compile(&p->stages[p->n_stages], kind->stages[p->n_stages], diag);
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
	return p->kind->add_bos;
}

bool pretokenizer_whole_words(const struct pretokenizer *p)
{
	return p->kind->whole_words;
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

/* Stages are at most MAX_STAGES deep, whatever the text. */
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
