/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/model.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/arch.h"
#include "daemon/model/chat-template.h"
#include "daemon/model/gguf.h"
#include "daemon/model/hparams.h"
#include "daemon/model/synthetic.h"
#include "daemon/model/tokenizer.h"
#include "daemon/model/weights.h"
#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "ipc/base/utf8.h"

#define MAX_TITLE 255u

struct model {
	struct kb_backend *be;
	const struct arch *arch;
	struct hparams hp;
	struct weights weights;
	struct kb_hidden hidden;
	struct kb_rope *rope;
	struct kb_rope *local_rope;	/* of layers with a window; NULL: the same */
	struct tokenizer *tokenizer;
	struct chat_template *chat_template;
	uint32_t n_ctx;
	char *name, *title;
	struct model_info info;
};

void model_free(struct model *m)
{
	if (!m)
		return;
	if (m->rope)
		m->be->ops->rope_free(m->be, m->rope);
	if (m->local_rope)
		m->be->ops->rope_free(m->be, m->local_rope);
	weights_deinit(&m->weights);
	chat_template_free(m->chat_template);
	tokenizer_free(m->tokenizer);
	free(m->name);
	free(m->title);
	free(m);
}

/* The file's name less its folders and ".gguf". */
static char *name_of_path(const char *path)
{
	const char *base = strrchr(path, '/');
	size_t n;

	base = base ? base + 1 : path;
	n = strlen(base);
	if (n > 5 && !strcmp(base + n - 5, ".gguf"))
		n -= 5;
	return strndup(base, n);
}

/* general.name where it is text of a sane length, else "". */
static char *title_of(const struct gguf *g)
{
	struct gguf_string s = { "", 0 };

	if (gguf_get_string(g, "general.name", &s, NULL) || s.n > MAX_TITLE || memchr(s.data, 0, s.n) ||
	    !utf8_valid((const uint8_t *)s.data, s.n))
		return strdup("");
	return strndup(s.data, s.n);
}

static int load_tokenizer(struct model *m, const struct gguf *g, struct diag *diag)
{
	struct gguf_string text;
	int r;

	r = tokenizer_new(&m->tokenizer, g, diag);
	if (r)
		return r;
	if (tokenizer_n_vocab(m->tokenizer) != m->hp.n_vocab)
		return diag_set(diag, -EINVAL,
				"metadata key \"tokenizer.ggml.tokens\": %u tokens of %u are usable",
				tokenizer_n_vocab(m->tokenizer), m->hp.n_vocab);
	r = gguf_get_string(g, "tokenizer.chat_template", &text, diag);
	if (r)
		return r == GGUF_E_ABSENT ? 0 : r;
	return chat_template_new(&m->chat_template, m->tokenizer, text.data, text.n);
}

static int make_rope(struct model *m, const struct rope_params *rope, const float *divisors,
		     struct kb_rope **out, struct diag *diag)
{
	_cleanup_(freep) float *inv_freq = NULL;
	struct kb_rope_desc desc = {
		.style = m->arch->rope_style,
		.n_dims = rope->n_dims,
		.n_positions = m->n_ctx,
		.scale = rope_scale(rope),
	};
	int r;

	inv_freq = malloc(rope->n_dims / 2 * sizeof(*inv_freq));
	if (!inv_freq)
		return -ENOMEM;
	rope_inv_freq(rope, divisors, inv_freq);
	desc.inv_freq = inv_freq;
	r = m->be->ops->rope_new(m->be, &desc, out);
	if (r)
		return diag_set(diag, r, "rope: the backend refused its table for %u positions", m->n_ctx);
	return 0;
}

static int make_ropes(struct model *m, struct diag *diag)
{
	const struct rope_params *rope = &m->hp.rope;
	const struct weights_divisors *d = &m->weights.divisors;
	struct rope_params local;
	const float *divisors = d->freqs;
	int r;

	if (rope->scaling == ROPE_LONG)
		divisors = rope_is_long(rope, m->n_ctx) ? d->longs : d->shorts;
	r = make_rope(m, rope, divisors, &m->rope, diag);
	if (r || !m->hp.local_rope_base)
		return r;
	local = (struct rope_params){ .n_dims = rope->n_dims, .base = m->hp.local_rope_base, .factor = 1,
				      .attn_factor = 1 };
	return make_rope(m, &local, NULL, &m->local_rope, diag);
}

/* The operands that are no tensors. */
static void fill_operands(struct model *m)
{
	for (uint32_t i = 0; i < m->hp.n_layers; i++) {
		struct model_layer *l = &m->weights.layers[i];

		l->attn_in.rope = m->hp.local[i] && m->local_rope ? m->local_rope : m->rope;
		l->attn_in.norm_eps = m->hp.norm_eps;
		l->attention.scale = m->hp.attention_scale;
		l->attention.softcap = m->hp.attention_softcap;
		l->attention.window = m->hp.local[i] ? m->hp.window : 0;
		l->attn_out.norm_eps = m->hp.norm_eps;
		l->ffn.activation = m->arch->activation;
		l->ffn.norm_eps = m->hp.norm_eps;
	}
	m->weights.ends.logits.norm_eps = m->hp.norm_eps;
	m->weights.ends.logits.softcap = m->hp.logit_softcap;
	m->hidden = (struct kb_hidden){ .norm = m->weights.ends.logits.norm, .norm_eps = m->hp.norm_eps };
}

static void fill_info(struct model *m, const struct gguf *g)
{
	m->info = (struct model_info){
		.name = m->name,
		.arch = m->arch->name,
		.title = m->title,
		.n_vocab = m->hp.n_vocab,
		.n_ctx_train = m->hp.n_ctx_train,
		.n_embd = m->hp.n_embd,
		.n_layers = m->hp.n_layers,
		.n_heads = m->hp.n_heads,
		.n_kv_heads = m->hp.n_kv_heads,
		.head_dim = m->hp.head_dim,
		.n_ff = m->hp.n_ff,
		.n_params = m->weights.n_params,
		.file_bytes = gguf_file_size(g),
		.weight_bytes = m->weights.n_bytes,
	};
	memcpy(m->info.content_hash, m->weights.hash, sizeof(m->info.content_hash));
}

/* The tokenizer is there before the weights are read: a file that is wrong is refused early. */
static int load(struct model *m, const struct gguf *g, const struct weights_source *source,
		const struct model_options *options, struct diag *diag)
{
	int r;

	m->title = title_of(g);
	if (!m->title)
		return -ENOMEM;
	r = arch_find(&m->arch, g, diag);
	if (r)
		return r;
	r = hparams_read(&m->hp, m->arch, g, diag);
	if (r)
		return r;
	m->n_ctx = options->n_ctx ? MIN(options->n_ctx, m->hp.n_ctx_train) : m->hp.n_ctx_train;
	r = load_tokenizer(m, g, diag);
	if (r)
		return r;
	r = weights_init(&m->weights, m->be, m->arch, &m->hp, g, source, options, diag);
	if (r)
		return r;
	r = make_ropes(m, diag);
	if (r)
		return r;
	fill_operands(m);
	fill_info(m, g);
	return 0;
}

static int read_file(void *arg, void *buf, size_t n, uint64_t at)
{
	return fd_pread_full(*(const int *)arg, buf, n, at);
}

static int load_file(struct model *m, int fd, const char *path, const struct model_options *options,
		     struct diag *diag)
{
	const struct weights_source source = { .read = read_file, .arg = &fd };
	_cleanup_(gguf_freep) struct gguf *g = NULL;
	int r;

	m->name = options->name ? strdup(options->name) : name_of_path(path);
	if (!m->name)
		return -ENOMEM;
	r = gguf_read(&g, fd, diag);
	if (r)
		return r;
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	return load(m, g, &source, options, diag);
}

static int load_synthetic(struct model *m, const char *what, const struct model_options *options, struct diag *diag)
{
	_cleanup_(synthetic_freep) struct synthetic *s = NULL;
	int r;

	m->name = strdup(options->name ? options->name : what);
	if (!m->name)
		return -ENOMEM;
	r = synthetic_new(&s, what, diag);
	if (r)
		return r;
	r = load(m, synthetic_header(s), &(struct weights_source){ .read = synthetic_read, .arg = s }, options, diag);
	m->info.synthetic = true;
	return r;
}

/* A model with nothing in it. */
static int make(struct model **out, struct kb_backend *be)
{
	struct model *m = calloc(1, sizeof(*m));

	if (!m)
		return -ENOMEM;
	m->be = be;
	*out = m;
	return 0;
}

static const struct model_options defaults = { 0 };

int model_load(struct model **out, struct kb_backend *be, int fd, const char *path,
	       const struct model_options *options, struct diag *diag)
{
	_cleanup_(model_freep) struct model *m = NULL;
	int r = make(&m, be);

	if (!r)
		r = load_file(m, fd, path, options ? options : &defaults, diag);
	if (r == -ENOMEM)
		return diag_set(diag, r, "model file: no memory to load it");
	if (r)
		return r;
	*out = steal_ptr(m);
	return 0;
}

int model_load_synthetic(struct model **out, struct kb_backend *be, const char *what,
			 const struct model_options *options, struct diag *diag)
{
	_cleanup_(model_freep) struct model *m = NULL;
	int r = make(&m, be);

	if (!r)
		r = load_synthetic(m, what, options ? options : &defaults, diag);
	if (r == -ENOMEM)
		return diag_set(diag, r, "synthetic model: no memory to make it");
	if (r)
		return r;
	*out = steal_ptr(m);
	return 0;
}

const struct model_info *model_info(const struct model *m)
{
	return &m->info;
}

const struct tokenizer *model_tokenizer(const struct model *m)
{
	return m->tokenizer;
}

const struct chat_template *model_chat_template(const struct model *m)
{
	return m->chat_template;
}

uint32_t model_n_ctx(const struct model *m)
{
	return m->n_ctx;
}

void model_geometry(const struct model *m, enum kb_kv_type kv_type, uint32_t block_tokens,
		    struct kb_geometry *out)
{
	*out = (struct kb_geometry){
		.n_layers = m->hp.n_layers,
		.n_kv_heads = m->hp.n_kv_heads,
		.head_dim = m->hp.head_dim,
		.block_tokens = block_tokens,
		.kv_type = kv_type,
	};
	out->block_bytes = kb_block_bytes(out);
}

void model_workspace_desc(const struct model *m, struct kb_workspace_desc *out)
{
	*out = (struct kb_workspace_desc){
		.n_embd = m->hp.n_embd,
		.n_heads = m->hp.n_heads,
		.n_kv_heads = m->hp.n_kv_heads,
		.head_dim = m->hp.head_dim,
		.n_ff = m->hp.n_ff,
		.n_vocab = m->hp.n_vocab,
		.max_positions = m->n_ctx,
	};
}

static int check_seqs(const struct model *m, const struct kb_batch *b)
{
	uint32_t row = 0;

	for (uint32_t i = 0; i < b->n_seqs; i++) {
		const struct kb_seq *s = &b->seqs[i];
		uint64_t end = (uint64_t)s->first_pos + s->n_rows;

		if (s->first_row != row || !s->n_rows || s->n_rows > b->n_rows - row)
			return -EINVAL;
		if (end > m->n_ctx || (uint64_t)s->n_blocks * b->geometry->block_tokens < end)
			return -EINVAL;
		row += s->n_rows;
	}
	return row == b->n_rows ? 0 : -EINVAL;
}

/* Some of the batch's rows, ascending. */
static bool check_rows(const struct kb_batch *b, const uint32_t *rows, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (rows[i] >= b->n_rows || (i && rows[i] <= rows[i - 1]))
			return false;
	return true;
}

/* What the backend relies on and a mistake above could break. */
static int check_batch(const struct model *m, const struct kb_batch *b)
{
	const struct kb_geometry *g = b->geometry;

	if (!b->n_rows || g->n_layers != m->hp.n_layers || g->n_kv_heads != m->hp.n_kv_heads ||
	    g->head_dim != m->hp.head_dim)
		return -EINVAL;
	for (uint32_t i = 0; i < b->n_rows; i++)
		if (b->tokens[i] < 0 || (uint32_t)b->tokens[i] >= m->hp.n_vocab)
			return -EINVAL;
	if (!check_rows(b, b->logit_rows, b->n_logits) || !check_rows(b, b->hidden_rows, b->n_hidden))
		return -EINVAL;
	return check_seqs(m, b);
}

static int step_layer(const struct kb_ops *ops, struct kb_workspace *ws, uint32_t i,
		      const struct model_layer *l)
{
	int r;

	r = ops->attn_in(ws, i, &l->attn_in);
	if (r)
		return r;
	r = ops->attention(ws, i, &l->attention);
	if (r)
		return r;
	r = ops->attn_out(ws, &l->attn_out);
	if (r)
		return r;
	return ops->ffn(ws, &l->ffn);
}

int model_step(struct model *m, struct kb_workspace *ws, const struct kb_batch *batch)
{
	const struct kb_ops *ops = m->be->ops;
	int r;

	r = check_batch(m, batch);
	if (r)
		return r;
	if (batch->n_hidden && !ops->hidden)
		return -ENOTSUP;
	r = ops->step_begin(ws, batch);
	if (r)
		return r;
	r = ops->embed(ws, m->weights.ends.embed, m->hp.embd_scale);
	if (r)
		return r;
	for (uint32_t i = 0; i < m->hp.n_layers; i++) {
		r = step_layer(ops, ws, i, &m->weights.layers[i]);
		if (r)
			return r;
	}
	r = ops->logits(ws, &m->weights.ends.logits);
	if (!r && batch->n_hidden)
		r = ops->hidden(ws, &m->hidden);
	if (r)
		return r;
	return ops->step_submit(ws);
}
