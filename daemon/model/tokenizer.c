/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoding goes through four steps, each its own file: special tokens are cut
 * out of the text (special-tokens.h), ill-formed bytes are set apart
 * (ipc/base/utf8.h), the rest is cut into words (pretokenizer.h), and each word
 * is merged (bpe.h).
 */
#include "daemon/model/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/model/bpe.h"
#include "daemon/model/pretokenizer.h"
#include "daemon/model/special-tokens.h"
#include "daemon/model/tokenizer-source.h"
#include "daemon/model/vocab.h"
#include "ipc/base/checked.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/utf8.h"

/* Control tokens that end a generation in the models that have them. */
static const char *const eog_names[] = {
	"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<|return|>",
	"<|call|>", "<end_of_turn>", "<end_of_utterance>", "<EOT>", "</s>", "<|eos|>",
	"<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>",
};

#define MAX_EOG (ARRAY_SIZE(eog_names) + 3)

struct tokenizer {
	struct vocab vocab;
	struct bpe bpe;
	struct special_tokens special;
	struct pretokenizer *pre;
	int32_t bos, eos;
	bool add_bos;
	int32_t eog[MAX_EOG];
	size_t n_eog;
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
	if (r < 0)
		return r;
	t->bos = source->bos;
	t->eos = source->eos;
	t->add_bos = source->add_bos < 0 ? pretokenizer_add_bos(t->pre) : source->add_bos != 0;
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
	r = pretokenizer_new(&t->pre, source->pre.data, source->pre.n, diag);
	if (r < 0)
		return r;
	r = vocab_init(&t->vocab, source->tokens, source->types, source->n_tokens, diag);
	if (r < 0)
		return r;
	r = take_roles(t, source, diag);
	if (r < 0)
		return r;
	r = bpe_init(&t->bpe, &t->vocab, source->merges, source->n_merges, pretokenizer_whole_words(t->pre),
		     diag);
	if (r < 0)
		return r;
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
	vocab_deinit(&t->vocab);
	free(t);
}

/* One call of tokenizer_encode(). */
struct encoding {
	const struct tokenizer *t;
	struct bpe_work work;
	struct token_list *out;
};

static int encode_word(void *arg, const uint8_t *word, size_t n)
{
	struct encoding *e = arg;

	return bpe_encode(&e->t->bpe, &e->t->vocab, word, n, &e->work, e->out);
}

static int encode_bytes(struct encoding *e, const uint8_t *bytes, size_t n)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < n; i++)
		if (e->t->vocab.byte_ids[bytes[i]] >= 0)
			r = token_list_push(e->out, e->t->vocab.byte_ids[bytes[i]]);
	return r;
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
	while (n > 0) {
		size_t n_ill, n_well = well_formed(text, n, &n_ill);
		int r = 0;

		if (n_well)
			r = pretokenizer_split(e->t->pre, text, n_well, encode_word, e);
		if (r == 0)
			r = encode_bytes(e, text + n_well, n_ill);
		if (r < 0)
			return r;
		text += n_well + n_ill;
		n -= n_well + n_ill;
	}
	return 0;
}

static int encode_text(struct encoding *e, const uint8_t *text, size_t n, bool control)
{
	size_t done = 0, at, len;
	int32_t id;
	int r;

	while ((id = special_tokens_find(&e->t->special, text, n, done, control, &at, &len)) >= 0) {
		r = encode_plain(e, text + done, at - done);
		if (r == 0)
			r = token_list_push(e->out, id);
		if (r < 0)
			return r;
		done = at + len;
	}
	return encode_plain(e, text + done, n - done);
}

/* A BOS was put at ids[at]; takes it back if the text brings its own. */
static void remove_double_bos(const struct tokenizer *t, struct token_list *out, size_t at)
{
	if (out->n < at + 2 || out->ids[at + 1] != t->bos)
		return;
	memmove(out->ids + at, out->ids + at + 1, (out->n - at - 1) * sizeof(*out->ids));
	out->n--;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
		     struct token_list *out)
{
	struct encoding e = { .t = t, .out = out };
	bool bos = (flags & TOKENIZE_BOS) && t->add_bos && t->bos >= 0;
	size_t before = out->n;
	int r = 0;

	if (n > TOKENIZER_MAX_TEXT)
		return -EINVAL;
	if (bos)
		r = token_list_push(out, t->bos);
	if (r == 0)
		r = encode_text(&e, (const uint8_t *)text, n, flags & TOKENIZE_SPECIAL);
	bpe_work_deinit(&e.work);
	if (r < 0) {
		out->n = before;
		return r;
	}
	if (bos)
		remove_double_bos(t, out, before);
	return 0;
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

int32_t tokenizer_control_id(const struct tokenizer *t, const char *name)
{
	int32_t id = vocab_find(&t->vocab, name, strlen(name));

	return tokenizer_is_control(t, id) ? id : -1;
}
