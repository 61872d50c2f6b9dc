/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all kinds of tokenizers share: special tokens are cut out of the text
 * (special-tokens.h), ill-formed bytes are set apart (ipc/base/utf8.h), and the
 * rest is encoded by the kind (tokenizer-kind.h).
 */
#include "daemon/model/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/model/tokenizer-kind.h"
#include "ipc/base/checked.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/utf8.h"

/* Control tokens that end a generation in the models that have them. */
static const char *const eog_names[] = {
	"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<|return|>",
	"<|call|>", "<end_of_turn>", "<end_of_utterance>", "<EOT>", "</s>", "<|eos|>",
	"<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>",
};

_Static_assert(ARRAY_SIZE(eog_names) + 3 <= TOKENIZER_MAX_EOG, "each may be there");

static const struct tokenizer_kind *const kinds[] = {
	[TOKENIZER_BPE] = &tokenizer_kind_bpe,
	[TOKENIZER_SENTENCEPIECE] = &tokenizer_kind_sentencepiece,
};

static void add_eog(struct tokenizer *t, int32_t id)
{
	if (id >= 0 && !tokenizer_is_eog(t, id))
		t->eog[t->n_eog++] = id;
}

/* Tokens that the file gives a role are control tokens, whatever their type says. */
static int take_role(struct tokenizer *t, const char *field, int32_t id, struct diag *diag)
{
	if (id < -1 || id >= (int64_t)t->vocab.n)
		return diag_set(diag, -EINVAL, "%s: %d is no token, there are %u", field, id, t->vocab.n);
	if (id >= 0)
		vocab_set_control(&t->vocab, id);
	return 0;
}

static int take_roles(struct tokenizer *t, const struct tokenizer_source *source, struct diag *diag)
{
	int r;

	r = take_role(t, "tokenizer.ggml.bos_token_id", source->bos, diag);
	if (r == 0)
		r = take_role(t, "tokenizer.ggml.eos_token_id", source->eos, diag);
	if (r == 0)
		r = take_role(t, "tokenizer.ggml.eot_token_id", source->eot, diag);
	if (r == 0)
		r = take_role(t, "tokenizer.ggml.eom_token_id", source->eom, diag);
	if (r == 0 && source->model == TOKENIZER_SENTENCEPIECE)
		r = take_role(t, "tokenizer.ggml.unknown_token_id", source->unknown, diag);
	if (r < 0)
		return r;
	t->bos = source->bos;
	t->eos = source->eos;
	add_eog(t, source->eos);
	add_eog(t, source->eot);
	add_eog(t, source->eom);
	for (size_t i = 0; i < ARRAY_SIZE(eog_names); i++)
		add_eog(t, tokenizer_control_id(t, eog_names[i]));
	return 0;
}

CLEANUP_DEFINE(struct tokenizer, tokenizer_free)

int tokenizer_new_from(struct tokenizer **out, const struct tokenizer_source *source, struct diag *diag)
{
	_cleanup_(tokenizer_freep) struct tokenizer *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return -ENOMEM;
	t->kind = kinds[source->model];
	r = vocab_init(&t->vocab, t->kind->alphabet, source->tokens, source->types, source->n_tokens, diag);
	if (r < 0)
		return r;
	r = take_roles(t, source, diag);
	if (r < 0)
		return r;
	r = t->kind->init(t, source, diag);
	if (r < 0)
		return r;
	if (source->add_bos >= 0)
		t->add_bos = source->add_bos != 0;
	t->add_eos = source->add_eos > 0;
	r = special_tokens_init(&t->special, &t->vocab, diag);
	if (r < 0)
		return r;
	*out = steal_ptr(t);
	return 0;
}

void tokenizer_free(struct tokenizer *t)
{
	if (!t)
		return;
	pretokenizer_free(t->pre);
	special_tokens_deinit(&t->special);
	bpe_deinit(&t->bpe);
	sentencepiece_deinit(&t->sentencepiece);
	vocab_deinit(&t->vocab);
	free(t);
}

/* One call of tokenizer_encode(). */
struct encoding {
	const struct tokenizer *t;
	struct tokenizer_work work;
	struct token_list *out;
};

static void encoding_deinit(struct encoding *e)
{
	bpe_work_deinit(&e->work.bpe);
	sentencepiece_work_deinit(&e->work.sentencepiece);
	free(e->work.text);
}

/* The length of the well-formed beginning, and of the ill-formed bytes behind it. */
static size_t well_formed(const uint8_t *text, size_t n, size_t *n_ill)
{
	size_t i = 0;
	int len = 0;

	while (i < n && (len = utf8_scan(text + i, n - i)) > 0)
		i += (size_t)len;
	if (i == n)
		*n_ill = 0;
	else
		*n_ill = len == 0 ? n - i : (size_t)-len;
	return i;
}

/* Text without special tokens. */
static int encode_plain(struct encoding *e, const uint8_t *text, size_t n)
{
	const struct tokenizer_kind *kind = e->t->kind;

	while (n > 0) {
		size_t n_ill, n_well = well_formed(text, n, &n_ill);
		int r = 0;

		if (n_well)
			r = kind->encode(e->t, &e->work, text, n_well, e->out);
		if (r == 0)
			r = kind->encode_bytes(e->t, &e->work, text + n_well, n_ill, e->out);
		if (r < 0)
			return r;
		text += n_well + n_ill;
		n -= n_well + n_ill;
	}
	return 0;
}

static bool is_control_at(const struct encoding *e, const uint8_t *text, size_t n)
{
	int32_t id;

	return special_tokens_match(&e->t->special, text, n, true, &id) && e->t->vocab.tokens[id].control;
}

/* text[at..n), of which the kind may rewrite what lies before at. */
static int encode_text(struct encoding *e, const uint8_t *text, size_t at, size_t n, bool control)
{
	bool begins = e->t->kind->begin;
	int r = 0;

	while (r == 0 && at < n) {
		size_t found, len;
		int32_t id;

		if (begins && !(control && is_control_at(e, text + at, n - at)))
			at = e->t->kind->begin(e->t, &e->work, at);
		id = special_tokens_find(&e->t->special, text, n, at, control, &found, &len);
		if (id < 0)
			return encode_plain(e, text + at, n - at);
		r = encode_plain(e, text + at, found - at);
		if (r == 0)
			r = token_list_push(e->out, id);
		begins = e->t->kind->begin && e->t->vocab.tokens[id].control;
		at = found + len;
	}
	return r;
}

/* A BOS was put at ids[at]; takes it back if the text brings its own. */
static void remove_double_bos(const struct tokenizer *t, struct token_list *out, size_t at)
{
	if (out->n < at + 2 || out->ids[at + 1] != t->bos)
		return;
	memmove(out->ids + at, out->ids + at + 1, (out->n - at - 1) * sizeof(*out->ids));
	out->n--;
}

static int encode_whole(struct encoding *e, const uint8_t *text, size_t n, unsigned flags)
{
	const struct tokenizer *t = e->t;
	bool bos = (flags & TOKENIZE_BOS) && t->add_bos && t->bos >= 0;
	bool eos = (flags & TOKENIZE_EOS) && t->add_eos && t->eos >= 0;
	size_t before = e->out->n, from = 0;
	int r = 0;

	if (t->kind->rewrite) {
		r = t->kind->rewrite(t, &e->work, text, &from, &n);
		text = e->work.text;
	}
	if (r == 0 && bos)
		r = token_list_push(e->out, t->bos);
	if (r == 0)
		r = encode_text(e, text, from, n, flags & TOKENIZE_SPECIAL);
	if (r < 0)
		return r;
	if (bos)
		remove_double_bos(t, e->out, before);
	if (eos && (e->out->n == before || e->out->ids[e->out->n - 1] != t->eos))
		r = token_list_push(e->out, t->eos);
	return r;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
		     struct token_list *out)
{
	struct encoding e = { .t = t, .out = out };
	size_t before = out->n;
	int r;

	if (n > TOKENIZER_MAX_TEXT)
		return -EINVAL;
	r = encode_whole(&e, (const uint8_t *)text, n, flags);
	encoding_deinit(&e);
	if (r < 0)
		out->n = before;
	return r;
}

uint32_t tokenizer_n_vocab(const struct tokenizer *t)
{
	return t->vocab.n;
}

static bool is_token(const struct tokenizer *t, int32_t id)
{
	return id >= 0 && id < (int64_t)t->vocab.n;
}

const uint8_t *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *n)
{
	if (!is_token(t, id)) {
		*n = 0;
		return (const uint8_t *)"";
	}
	*n = t->vocab.tokens[id].n_bytes;
	return vocab_bytes(&t->vocab, id);
}

const uint8_t *tokenizer_bytes_after(const struct tokenizer *t, int32_t previous, int32_t id, size_t *n)
{
	const uint8_t *bytes = tokenizer_bytes(t, id, n);
	bool begins = previous < 0 || tokenizer_is_control(t, previous);

	if (!t->add_space || !begins || *n == 0 || bytes[0] != ' ' || t->vocab.tokens[id].type == TOKEN_BYTE)
		return bytes;
	--*n;
	return bytes + 1;
}

size_t tokenizer_join(const struct tokenizer *t, const int32_t *ids, size_t n_ids, uint8_t *out)
{
	size_t total = 0;

	for (size_t i = 0; i < n_ids; i++) {
		size_t n;
		const uint8_t *bytes = tokenizer_bytes_after(t, i ? ids[i - 1] : -1, ids[i], &n);

		if (out && n)
			memcpy(out + total, bytes, n);
		total += n;
	}
	return total;
}

bool tokenizer_is_control(const struct tokenizer *t, int32_t id)
{
	return is_token(t, id) && t->vocab.tokens[id].control;
}

bool tokenizer_is_eog(const struct tokenizer *t, int32_t id)
{
	for (size_t i = 0; i < t->n_eog; i++)
		if (t->eog[i] == id)
			return true;
	return false;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
	return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
	return t->eos;
}

bool tokenizer_add_bos(const struct tokenizer *t)
{
	return t->add_bos;
}

bool tokenizer_adds_space(const struct tokenizer *t)
{
	return t->add_space;
}

int32_t tokenizer_control_id(const struct tokenizer *t, const char *name)
{
	int32_t id = vocab_find(&t->vocab, name, strlen(name));

	return tokenizer_is_control(t, id) ? id : -1;
}
