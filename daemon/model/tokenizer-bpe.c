/* SPDX-License-Identifier: Apache-2.0 */
/* Byte-level BPE: text is cut into words (pretokenizer.h), and each word is merged (bpe.h). */
#include "daemon/model/tokenizer-kind.h"

static int init(struct tokenizer *t, const struct tokenizer_source *source, struct diag *diag)
{
	int r = pretokenizer_new(&t->pre, source->pre.data, source->pre.n, diag);

	if (r < 0)
		return r;
	t->add_bos = pretokenizer_add_bos(t->pre);
	return bpe_init(&t->bpe, &t->vocab, source->merges, source->n_merges, pretokenizer_whole_words(t->pre),
			diag);
}

/* One call of encode(). */
struct encoding {
	const struct tokenizer *t;
	struct bpe_work *work;
	struct token_list *out;
};

static int encode_word(void *arg, const uint8_t *word, size_t n)
{
	struct encoding *e = arg;

	return bpe_encode(&e->t->bpe, &e->t->vocab, word, n, e->work, e->out);
}

static int encode(const struct tokenizer *t, struct tokenizer_work *w, const uint8_t *text, size_t n,
		  struct token_list *out)
{
	struct encoding e = { t, &w->bpe, out };

	return pretokenizer_split(t->pre, text, n, encode_word, &e);
}

static int encode_bytes(const struct tokenizer *t, struct tokenizer_work *w, const uint8_t *bytes, size_t n,
			struct token_list *out)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < n; i++)
		if (t->vocab.byte_ids[bytes[i]] >= 0)
			r = token_list_push(out, t->vocab.byte_ids[bytes[i]]);
	return r;
}

const struct tokenizer_kind tokenizer_kind_bpe = {
	.alphabet = VOCAB_BYTE_LEVEL,
	.init = init,
	.encode = encode,
	.encode_bytes = encode_bytes,
};
