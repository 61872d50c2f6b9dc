/* SPDX-License-Identifier: Apache-2.0 */
/* A tokenizer from the tokenizer.ggml.* fields of a GGUF file. */
#include <stdlib.h>

#include "daemon/model/bpe.h"
#include "daemon/model/gguf.h"
#include "daemon/model/tokenizer-source.h"
#include "daemon/model/vocab.h"
#include "ipc/base/checked.h"
#include "ipc/base/cleanup.h"

#define FIELD(name) "tokenizer.ggml." name

/* The elements of an array of strings; they stay the file's. */
static int load_strings(const struct gguf *g, const char *key, size_t max, struct gguf_string **out,
			size_t *n, struct diag *diag)
{
	struct gguf_array a;
	struct gguf_string *strings;
	int r;

	r = gguf_get_array(g, key, GGUF_STRING, &a, diag);
	if (r == GGUF_E_ABSENT)
		return diag_set(diag, -EINVAL, "%s: missing", key);
	if (r < 0)
		return r;
	if (a.n > max)
		return diag_set(diag, -EINVAL, "%s: %llu entries, expected at most %zu", key,
				(unsigned long long)a.n, max);
	strings = calloc((size_t)a.n + 1, sizeof(*strings));
	if (!strings)
		return -ENOMEM;
	for (size_t i = 0; i < a.n; i++)
		strings[i] = gguf_array_string(&a, i);
	*out = strings;
	*n = (size_t)a.n;
	return 0;
}

static int wrong_length(struct diag *diag, const char *key, uint64_t n, size_t expected)
{
	return diag_set(diag, -EINVAL, "%s: %llu entries for %zu tokens", key, (unsigned long long)n,
			expected);
}

/* *out stays NULL where the file has none. */
static int load_types(const struct gguf *g, size_t n_tokens, int32_t **out, struct diag *diag)
{
	_cleanup_(freep) int32_t *types = NULL;
	struct gguf_array a;
	int r;

	r = gguf_get_any_array(g, FIELD("token_type"), &a, diag);
	if (r == GGUF_E_ABSENT)
		return 0;
	if (r < 0)
		return r;
	if (a.n != n_tokens)
		return wrong_length(diag, FIELD("token_type"), a.n, n_tokens);
	types = calloc(n_tokens + 1, sizeof(*types));
	if (!types)
		return -ENOMEM;
	for (size_t i = 0; i < n_tokens; i++) {
		uint64_t type;

		if (!gguf_array_uint(&a, i, &type) || type > TOKEN_BYTE)
			return diag_set(diag, -EINVAL, FIELD("token_type") ": token %zu has an unknown type",
					i);
		types[i] = (int32_t)type;
	}
	*out = steal_ptr(types);
	return 0;
}

/* *out stays NULL where the file has none.  What they have to be depends on the model. */
static int load_scores(const struct gguf *g, size_t n_tokens, float **out, struct diag *diag)
{
	struct gguf_array a;
	float *scores;
	int r = gguf_get_array(g, FIELD("scores"), GGUF_F32, &a, diag);

	if (r != 0)
		return r == GGUF_E_ABSENT ? 0 : r;
	if (a.n != n_tokens)
		return wrong_length(diag, FIELD("scores"), a.n, n_tokens);
	scores = malloc((n_tokens + 1) * sizeof(*scores));
	if (!scores)
		return -ENOMEM;
	for (size_t i = 0; i < n_tokens; i++)
		scores[i] = gguf_array_f32(&a, i);
	*out = scores;
	return 0;
}

/* *out stays what it is where the file has none. */
static int load_id(const struct gguf *g, const char *key, size_t n_tokens, int32_t *out, struct diag *diag)
{
	uint32_t id;
	int r = gguf_get_u32(g, key, 0, (uint32_t)n_tokens - 1, &id, diag);

	if (r == 0)
		*out = (int32_t)id;
	return r < 0 ? r : 0;
}

/* A presumed id may be no token of a small vocabulary. */
static int32_t presumed_id(int32_t id, size_t n_tokens)
{
	return id < (int64_t)n_tokens ? id : -1;
}

static int load_ids(const struct gguf *g, struct tokenizer_source *s, struct diag *diag)
{
	int r;

	s->bos = presumed_id(s->bos, s->n_tokens);
	s->eos = presumed_id(s->eos, s->n_tokens);
	r = load_id(g, FIELD("bos_token_id"), s->n_tokens, &s->bos, diag);
	if (r == 0)
		r = load_id(g, FIELD("eos_token_id"), s->n_tokens, &s->eos, diag);
	if (r == 0)
		r = load_id(g, FIELD("eot_token_id"), s->n_tokens, &s->eot, diag);
	if (r == 0)
		r = load_id(g, FIELD("eom_token_id"), s->n_tokens, &s->eom, diag);
	if (r == 0)
		r = load_id(g, FIELD("unknown_token_id"), s->n_tokens, &s->unknown, diag);
	return r;
}

/* The kind of tokenizer, and the ids of which its files may be silent. */
static const struct model {
	const char *name;	/* tokenizer.ggml.model */
	enum tokenizer_model model;
	int32_t bos, eos, unknown;
} models[] = {
	{ "gpt2", TOKENIZER_BPE, -1, -1, -1 },
	{ "llama", TOKENIZER_SENTENCEPIECE, 1, 2, 0 },
};

static int load_model(const struct gguf *g, struct tokenizer_source *s, struct diag *diag)
{
	struct gguf_string name;
	int r = gguf_get_string(g, FIELD("model"), &name, diag);

	if (r == GGUF_E_ABSENT)
		return diag_set(diag, -EINVAL, FIELD("model") ": missing");
	if (r < 0)
		return r;
	for (size_t i = 0; i < ARRAY_SIZE(models); i++)
		if (gguf_string_eq(name, models[i].name)) {
			s->model = models[i].model;
			s->bos = models[i].bos;
			s->eos = models[i].eos;
			s->unknown = models[i].unknown;
			return 0;
		}
	return diag_set(diag, -EINVAL,
			FIELD("model") ": unknown tokenizer \"%.*s\"; known are gpt2 (byte-level BPE) and llama "
			"(SentencePiece)",
			(int)(name.n < 64 ? name.n : 64), name.data);
}

/* *out stays what it is where the file has none. */
static int load_flag(const struct gguf *g, const char *key, int *out, struct diag *diag)
{
	bool flag;
	int r = gguf_get_bool(g, key, &flag, diag);

	if (r == 0)
		*out = flag;
	return r < 0 ? r : 0;
}

static int load_flags(const struct gguf *g, struct tokenizer_source *s, struct diag *diag)
{
	int r = gguf_get_string(g, FIELD("pre"), &s->pre, diag);

	if (r >= 0)
		r = load_flag(g, FIELD("add_bos_token"), &s->add_bos, diag);
	if (r == 0)
		r = load_flag(g, FIELD("add_eos_token"), &s->add_eos, diag);
	if (r == 0)
		r = load_flag(g, FIELD("add_space_prefix"), &s->add_space_prefix, diag);
	if (r == 0)
		r = load_flag(g, FIELD("remove_extra_whitespaces"), &s->remove_extra_whitespaces, diag);
	return r;
}

int tokenizer_new(struct tokenizer **out, const struct gguf *g, struct diag *diag)
{
	_cleanup_(freep) struct gguf_string *tokens = NULL, *merges = NULL;
	_cleanup_(freep) int32_t *types = NULL;
	_cleanup_(freep) float *scores = NULL;
	struct tokenizer_source s = {
		.pre = { "default", 7 }, .bos = -1, .eos = -1, .eot = -1, .eom = -1, .unknown = -1,
		.add_bos = -1, .add_eos = -1, .add_space_prefix = -1, .remove_extra_whitespaces = -1,
	};
	int r;

	r = load_model(g, &s, diag);
	if (r == 0)
		r = load_flags(g, &s, diag);
	if (r == 0)
		r = load_strings(g, FIELD("tokens"), VOCAB_MAX_TOKENS, &tokens, &s.n_tokens, diag);
	if (r == 0 && s.n_tokens == 0)
		r = diag_set(diag, -EINVAL, FIELD("tokens") ": empty");
	if (r == 0)
		r = load_types(g, s.n_tokens, &types, diag);
	if (r == 0)
		r = load_scores(g, s.n_tokens, &scores, diag);
	if (r == 0 && s.model == TOKENIZER_BPE)
		r = load_strings(g, FIELD("merges"), BPE_MAX_MERGES, &merges, &s.n_merges, diag);
	if (r == 0)
		r = load_ids(g, &s, diag);
	if (r < 0)
		return r;
	s.tokens = tokens;
	s.types = types;
	s.scores = scores;
	s.merges = merges;
	return tokenizer_new_from(out, &s, diag);
}
