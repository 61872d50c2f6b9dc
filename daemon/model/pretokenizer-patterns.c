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
 *  - `\s+$` is looked for at the beginning of a run only.
 *  - Words that may begin with upper-case and end with lower-case letters:
 *    CASED_WORD.
 *
 * \s is spelled out: the White_Space property, which PCRE2's \s differs from by
 * U+180E.
 */
#include "daemon/model/pretokenizer-patterns.h"

#include <stdio.h>
#include <string.h>

#include "ipc/base/checked.h"

#define SPACE_EXCEPT_CR_LF \
	"\\t\\x0b\\x0c \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SPACE SPACE_EXCEPT_CR_LF "\\r\\n"

/*
 * Letters, numbers, marks and so on as of Unicode 16, which `tokenizers` knows:
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
#define UPPER \
	"\\p{Lu}\\p{Lt}\\x{1c89}\\x{a7cb}-\\x{a7cc}\\x{a7da}\\x{a7dc}\\x{10d50}-\\x{10d65}"
#define LOWER \
	"\\p{Ll}\\x{1c8a}\\x{a7cd}\\x{a7db}\\x{10d70}-\\x{10d85}\\x{1df25}-\\x{1df2a}"
/* Letters that are neither. */
#define UNCASED \
	"\\p{Lm}\\p{Lo}\\x{105c0}-\\x{105f3}\\x{10d4a}-\\x{10d4f}\\x{10d6f}" \
	"\\x{10ec2}-\\x{10ec4}\\x{1123f}-\\x{11240}\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}" \
	"\\x{11390}-\\x{113b5}\\x{113b7}\\x{113d1}\\x{113d3}\\x{11bc0}-\\x{11be0}\\x{11f02}" \
	"\\x{11f04}-\\x{11f10}\\x{11f12}-\\x{11f33}\\x{1342f}\\x{13441}-\\x{13446}" \
	"\\x{13460}-\\x{143fa}\\x{16100}-\\x{1611d}\\x{16d40}-\\x{16d6c}\\x{18cff}\\x{1b132}" \
	"\\x{1b155}\\x{1e030}-\\x{1e06d}\\x{1e4d0}-\\x{1e4eb}\\x{1e5d0}-\\x{1e5ed}\\x{1e5f0}" \
	"\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"
#define MARK \
	"\\p{M}\\x{897}\\x{cf3}\\x{ece}\\x{10d69}-\\x{10d6d}\\x{10efc}-\\x{10eff}\\x{11241}" \
	"\\x{113b8}-\\x{113c0}\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}\\x{113cc}-\\x{113d0}" \
	"\\x{113d2}\\x{113e1}-\\x{113e2}\\x{11f00}-\\x{11f01}\\x{11f03}\\x{11f34}-\\x{11f3a}" \
	"\\x{11f3e}-\\x{11f42}\\x{11f5a}\\x{13440}\\x{13447}-\\x{13455}\\x{1611e}-\\x{1612f}" \
	"\\x{1e08f}\\x{1e4ec}-\\x{1e4ef}\\x{1e5ee}-\\x{1e5ef}"
#define SYMBOL \
	"\\p{S}\\x{2427}-\\x{2429}\\x{2ffc}-\\x{2fff}\\x{31e4}-\\x{31e5}\\x{31ef}" \
	"\\x{10d8e}-\\x{10d8f}\\x{1cc00}-\\x{1ccef}\\x{1cd00}-\\x{1ceb3}\\x{1f6dc}" \
	"\\x{1f774}-\\x{1f776}\\x{1f77b}-\\x{1f77f}\\x{1f7d9}\\x{1f8b2}-\\x{1f8bb}" \
	"\\x{1f8c0}-\\x{1f8c1}\\x{1fa75}-\\x{1fa77}\\x{1fa87}-\\x{1fa89}\\x{1fa8f}" \
	"\\x{1faad}-\\x{1faaf}\\x{1fabb}-\\x{1fabf}\\x{1fac6}\\x{1face}-\\x{1facf}" \
	"\\x{1fada}-\\x{1fadc}\\x{1fadf}\\x{1fae8}-\\x{1fae9}\\x{1faf7}-\\x{1faf8}" \
	"\\x{1fbcb}-\\x{1fbef}"
/* The script, not its extensions, which PCRE2 takes for it as well. */
#define HAN \
	"\\x{2e80}-\\x{2e99}\\x{2e9b}-\\x{2ef3}\\x{2f00}-\\x{2fd5}\\x{3005}\\x{3007}" \
	"\\x{3021}-\\x{3029}\\x{3038}-\\x{303b}\\x{3400}-\\x{4dbf}\\x{4e00}-\\x{9fff}" \
	"\\x{f900}-\\x{fa6d}\\x{fa70}-\\x{fad9}\\x{16fe2}-\\x{16fe3}\\x{16ff0}-\\x{16ff1}" \
	"\\x{20000}-\\x{2a6df}\\x{2a700}-\\x{2b739}\\x{2b740}-\\x{2b81d}\\x{2b820}-\\x{2cea1}" \
	"\\x{2ceb0}-\\x{2ebe0}\\x{2ebf0}-\\x{2ee5d}\\x{2f800}-\\x{2fa1d}\\x{30000}-\\x{3134a}" \
	"\\x{31350}-\\x{323af}"
/* Those of DeepSeek LLM. */
#define DEEPSEEK_LETTER \
	"A-Za-z\\x{00b5}\\x{00c0}-\\x{00d6}\\x{00d8}-\\x{00f6}\\x{00f8}-\\x{01ba}" \
	"\\x{01bc}-\\x{01bf}\\x{01c4}-\\x{0293}\\x{0295}-\\x{02af}\\x{0370}-\\x{0373}" \
	"\\x{0376}-\\x{0377}\\x{037b}-\\x{037d}\\x{037f}\\x{0386}\\x{0388}-\\x{038a}\\x{038c}" \
	"\\x{038e}-\\x{03a1}\\x{03a3}-\\x{03f5}\\x{03f7}-\\x{0481}\\x{048a}-\\x{052f}" \
	"\\x{0531}-\\x{0556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}" \
	"\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}" \
	"\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}" \
	"\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}" \
	"\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}" \
	"\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}" \
	"\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}" \
	"\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}" \
	"\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}-\\x{2184}" \
	"\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}-\\x{2cf3}" \
	"\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}" \
	"\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}" \
	"\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}" \
	"\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}" \
	"\\x{1e900}-\\x{1e943}"
#define DEEPSEEK_CJK "\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}"
#define ASCII_PUNCTUATION "!-/:-@\\[-`{-~"

/* Spaces up to the last one before a word, or all at the end; then what is left. */
#define TRAILING_SPACE "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]++"
/* Spaces up to the last line's end. */
#define LINE_ENDS "(?:[" SPACE_EXCEPT_CR_LF "]*+[\\r\\n]++)++"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
/* What may stand before a word. */
#define PREFIX "[^\\r\\n" LETTER NUMBER "]?"

#define GPT2 \
	"'s|'t|'re|'ve|'m|'ll|'d| ?[" LETTER "]++| ?[" NUMBER "]++" \
	"| ?[^" SPACE LETTER NUMBER "]++|" TRAILING_SPACE

#define LLAMA3(NUMBERS) \
	CONTRACTION "|" PREFIX "[" LETTER "]++|[" NUMBER "]" NUMBERS \
	"| ?[^" SPACE LETTER NUMBER "]++[\\r\\n]*+|" LINE_ENDS "|" TRAILING_SPACE

/*
 * `PREFIX U*W+` or `PREFIX U+W*` with what may follow a word, where U is upper
 * case, W is lower case, and uncased letters and marks, B, are both.  The first
 * one gives back from U* until W+ has one.  So it takes: up to a lower-case
 * letter behind the Us and what follows it; else up to the last B among the Us;
 * the second one is left those without.  A, B and C: upper, both, lower.
 */
#define CASED_WORD(B, W, SUFFIX) \
	PREFIX "(?:(?:[" UPPER "]*+" B "++)*+[" UPPER "]*+[" LOWER "]" W "*+|(?:[" UPPER "]*+" B "++)++)" SUFFIX \
	"|" PREFIX "[" UPPER "]++" SUFFIX

#define CASED(SUFFIX, NUMBERS) \
	CASED_WORD("[" UNCASED MARK "]", "[" LOWER UNCASED MARK "]", SUFFIX) "|[" NUMBER "]" NUMBERS \
	"| ?[^" SPACE LETTER NUMBER "]++[\\r\\n/]*+|" LINE_ENDS "|" TRAILING_SPACE

#define NOT_HAN(CLASS) "(?:(?![" HAN "])[" CLASS "])"

#define BLOOM " ?[^" SPACE "(|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]++"

static const struct pretokenizer_pattern patterns[] = {
	{ "gpt-2", { GPT2 } },
	{ "smollm", { "[" DIGIT "]", GPT2 } },
	{ "llama-bpe", { LLAMA3("{1,3}+") } },
	{ "qwen2", { LLAMA3("") } },
	{ "qwen35",
	  { CONTRACTION "|" PREFIX "[" LETTER MARK "]++|[" NUMBER "]"
			"| ?[^" SPACE LETTER MARK NUMBER "]++[\\r\\n]*+|" LINE_ENDS "|" TRAILING_SPACE } },
	{ "seed-coder",
	  { CONTRACTION "|" PREFIX "[" LETTER "]++|[" NUMBER "]| ?[^" SPACE LETTER NUMBER "]++|" LINE_ENDS
			"|" TRAILING_SPACE } },
	{ "tekken", { CASED("", "") } },
	{ "gpt-4o", { CASED(CONTRACTION "?", "{1,3}+") } },
	{ "kimi-k2",
	  { "[" HAN "]++|" CASED_WORD(NOT_HAN(UNCASED MARK), NOT_HAN(LOWER UNCASED MARK), CONTRACTION "?")
	    "|[" NUMBER "]{1,3}+| ?[^" SPACE LETTER NUMBER "]++[\\r\\n]*+|" LINE_ENDS "|" TRAILING_SPACE } },
	{ "deepseek-llm",
	  { "[\\r\\n]", "[" SPACE "]?[" DEEPSEEK_LETTER "]++",
	    "[" SPACE "]?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]++",
	    "(?<![" SPACE "])[" SPACE "]++\\z", "[" DEEPSEEK_CJK "]++", "[" NUMBER "]++" } },
	{ "deepseek-coder",
	  { "[\\r\\n]", "[" SPACE "]?[" LETTER "]++", "[" SPACE "]?[" PUNCTUATION "]++", "[" DEEPSEEK_CJK "]++",
	    "[" NUMBER "]" } },
	{ "deepseek-v3",
	  { "[" NUMBER "]{1,3}+", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]++",
	    "[" ASCII_PUNCTUATION "][A-Za-z]++|[^\\r\\n" LETTER PUNCTUATION SYMBOL "]?[" LETTER MARK "]++"
	    "| ?[" PUNCTUATION SYMBOL "]++[\\r\\n]*+|" LINE_ENDS "|" TRAILING_SPACE } },
	{ "falcon", { "[" PUNCTUATION "$+<=>^~|`]++", GPT2, "[0-9][0-9][0-9]" } },
	{ "bloom", { BLOOM } },
	{ "viking", { BLOOM, "[" NUMBER "]" } },
	{ "default", { "[" PUNCTUATION "$+<=>^~|]++", GPT2, "[" NUMBER "]++", "[0-9][0-9][0-9]" } },
};

/* Names of tokenizer.ggml.pre beside those of the patterns, which stand for themselves. */
static const struct name {
	const char *name, *pattern;
	bool add_bos, whole_words;
} names[] = {
	{ "llama-bpe", "llama-bpe", true, true },
	{ "llama3", "llama-bpe", true, true },
	{ "llama-v3", "llama-bpe", true, true },
	{ "falcon3", "llama-bpe", true, true },
	{ "falcon-h1", "llama-bpe", true, true },
	{ "pixtral", "llama-bpe", true, true },
	{ "midm-2.0", "llama-bpe", true, true },
	{ "lfm2", "llama-bpe", true, true },
	{ "tekken", "tekken", true, true },
	{ "dbrx", "llama-bpe" },
	{ "smaug-bpe", "llama-bpe" },
	{ "chatglm-bpe", "llama-bpe" },
	{ "glm4", "llama-bpe" },
	{ "stablelm2", "qwen2" },
	{ "deepseek-r1-qwen", "qwen2" },
	{ "hunyuan", "qwen2" },
	{ "megrez", "qwen2" },
	{ "grok-2", "qwen2" },
	{ "solar-open", "qwen2" },
	/* Written otherwise, with the same words. */
	{ "bailingmoe", "qwen2" },
	{ "bailingmoe2", "qwen2" },
	{ "llada-moe", "qwen2" },
	{ "hunyuan-dense", "deepseek-v3" },
	{ "joyai-llm", "deepseek-v3" },
	{ "starcoder", "smollm" },
	{ "refact", "smollm" },
	{ "command-r", "smollm" },
	{ "codeshell", "smollm" },
	{ "exaone", "smollm" },
	{ "minerva-7b", "smollm" },
	{ "mpt", "gpt-2" },
	{ "olmo", "gpt-2" },
	{ "jais", "gpt-2" },
	{ "phi-2", "gpt-2" },
	{ "trillion", "gpt-2" },
	{ "gigachat", "gpt-2" },
	{ "a.x-4.0", "gpt-2" },
	{ "mellum", "gpt-2" },
	{ "exaone4", "gpt-2" },
	{ "modern-bert", "gpt-2" },
	{ "roberta-bpe", "gpt-2" },
	{ "granite-docling", "gpt-2" },
	{ "jina-es", "gpt-2" },
	{ "jina-de", "gpt-2" },
	{ "jina-v1-en", "gpt-2" },
	{ "jina-v2-es", "gpt-2" },
	{ "jina-v2-de", "gpt-2" },
	{ "jina-v2-code", "gpt-2" },
	{ "llama4", "gpt-4o" },
	{ "kanana2", "gpt-4o" },
	{ "minimax-m2", "gpt-4o" },
	{ "poro-chat", "bloom" },
	{ "gpt3-finnish", "bloom" },
};

static bool is(const char *name, const char *text, size_t n)
{
	return strlen(name) == n && memcmp(name, text, n) == 0;
}

static const struct pretokenizer_pattern *find_pattern(const char *name, size_t n)
{
	for (size_t i = 0; i < ARRAY_SIZE(patterns); i++)
		if (is(patterns[i].name, name, n))
			return &patterns[i];
	return NULL;
}

bool pretokenizer_find(const char *name, size_t n, struct pretokenizer_kind *kind)
{
	struct pretokenizer_kind found = { .pattern = find_pattern(name, n) };

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (is(names[i].name, name, n))
			found = (struct pretokenizer_kind){
				.pattern = find_pattern(names[i].pattern, strlen(names[i].pattern)),
				.add_bos = names[i].add_bos,
				.whole_words = names[i].whole_words,
			};
	if (!found.pattern)
		return false;
	*kind = found;
	return true;
}

void pretokenizer_list(char *out, size_t size)
{
	size_t n = 0;

	out[0] = 0;
	for (size_t i = 0; i < ARRAY_SIZE(patterns); i++) {
		const char *join = i == 0 ? "" : i + 1 == ARRAY_SIZE(patterns) ? " and " : ", ";
		int k = snprintf(out + n, size - n, "%s%s", join, patterns[i].name);

		if (k < 0 || (size_t)k >= size - n)
			return;
		n += (size_t)k;
	}
}
