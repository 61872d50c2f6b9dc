/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake-model.h - a model and a backend in one, for tests of the engine.  The
 * test program links these definitions in place of the model's.
 *
 * The "KV" of a token is its id, its position and a hash of the whole history
 * up to it, written into its place in the pool; logits are a function of the
 * hash that is read back through the block table.  In every step the whole
 * history of every sequence is read and its chain of hashes verified, so a
 * wrong block table, a wrong position, a block given to two sequences or one
 * reused too early is found, and shows in the tokens as well.  Models differ in
 * the hash that a history begins with, so that the KV of another model is found too.
 *
 * Of type Q8 blocks have another size.  Of type Q4 a block is in the sequence's open block until it is full, and
 * then in the pool in a form that is of no use in part.
 *
 * Steps can be held at a gate, to have the engine in a known phase.
 */
#ifndef KVD_TESTS_FAKE_MODEL_H
#define KVD_TESTS_FAKE_MODEL_H

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/model/model.h"
#include "daemon/model/tokenizer.h"
#include "ipc/base/checked.h"

#define FAKE_CHUNK (UINT64_C(2) << 20)
#define FAKE_BLOCKS_PER_CHUNK 4u
#define FAKE_BOS 0
#define FAKE_EOS 1
#define FAKE_POISON 2	/* after this token every logit is NaN */

/* Pieces that split code points and overlap each other. */
static const char *const fake_pieces[] = {
	"<s>",      "</s>",     "<poison>",     "a",    "b",        "c",
	"ab",       "ba",       "aab",          "d",    "e",        "f",
	" ",        "\n",       "\xc3",         "\xa4", "\xe2\x82", "\xac",
	"\xf0\x9f", "\x91\xa9", "\xe2\x80\x8d", "\xff", "hello",    "\xf0\x9f\x98\x80",
};
#define FAKE_N_VOCAB ((uint32_t)ARRAY_SIZE(fake_pieces))
#define FAKE_N_EMBD 3u

struct fake_kv {
	uint64_t hash;
	int32_t token;
	uint32_t position;
};

struct model {
	struct model_info info;
	uint32_t n_ctx;
	uint64_t block_bytes;		/* 0: FAKE_BLOCKS_PER_CHUNK to a FAKE_CHUNK */
	uint64_t first_hash;
	uint64_t n_steps;
};

struct kb_pool {
	uint8_t *base;
	uint64_t bytes;
};

struct kb_open {
	struct fake_kv kv[KB_Q4_BLOCK_TOKENS];
};

struct kb_workspace {
	struct kb_workspace_desc desc;
	struct model *model;
	const struct kb_batch *batch;
	float *logits, *hidden;
};

/* What the tests set and look at. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t n_entered, n_allowed;	/* steps; n_allowed UINT64_MAX: no gate */
	uint64_t fail_step;		/* this step (from 1) fails with -EIO; 0: none */
	uint32_t quantum;
	/* found */
	uint32_t n_violations;
	const char *violation;		/* the first */
	uint32_t max_seqs_seen, max_prefill_rows_seen;
	uint64_t n_rows_seen, n_logits_seen, n_hidden_seen, n_mass_seen;
	bool no_room;			/* for attention mass */
	uint32_t n_open, max_open_seen;	/* open blocks */
	uint32_t n_open_fails;		/* so many can't be made */
	void (*ran)(const struct kb_batch *b);	/* at the end of each step; NULL: nothing */
} fake = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static void fake_reset(uint32_t quantum)
{
	fake.n_entered = 0;
	fake.n_allowed = UINT64_MAX;
	fake.fail_step = 0;
	fake.quantum = quantum;
	fake.n_violations = 0;
	fake.violation = NULL;
	fake.max_seqs_seen = fake.max_prefill_rows_seen = 0;
	fake.n_rows_seen = fake.n_logits_seen = fake.n_hidden_seen = fake.n_mass_seen = 0;
	fake.no_room = false;
	fake.n_open = fake.max_open_seen = fake.n_open_fails = 0;
	fake.ran = NULL;
}

/* Lets the engine finish n more steps. */
static inline void fake_allow(uint64_t n)
{
	pthread_mutex_lock(&fake.lock);
	fake.n_allowed = n == UINT64_MAX ? n : fake.n_allowed + n;
	pthread_cond_broadcast(&fake.changed);
	pthread_mutex_unlock(&fake.lock);
}

/* Until the engine is inside its nth step. */
static inline void fake_wait_step(uint64_t n)
{
	pthread_mutex_lock(&fake.lock);
	while (fake.n_entered < n)
		pthread_cond_wait(&fake.changed, &fake.lock);
	pthread_mutex_unlock(&fake.lock);
}

static void fake_violation(const char *what)
{
	if (!fake.n_violations++)
		fake.violation = what;
}

static uint64_t fake_mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

static uint64_t fake_hash(uint64_t previous, int32_t token)
{
	return fake_mix(previous * 31 + (uint64_t)token + 1);
}

static void fake_logits(uint64_t hash, int32_t last, float *out)
{
	for (uint32_t v = 0; v < FAKE_N_VOCAB; v++)
		out[v] = (float)(fake_mix(hash ^ (v + 1) * UINT64_C(0x9e3779b97f4a7c15)) >> 40) * 0x1p-21f;
	out[FAKE_BOS] -= 4;
	out[FAKE_EOS] -= 2;
	out[FAKE_POISON] = -INFINITY;
	for (uint32_t v = 0; last == FAKE_POISON && v < FAKE_N_VOCAB; v++)
		out[v] = NAN;
}

/* The final state of a history. */
static void fake_hidden(uint64_t hash, float *out)
{
	for (uint32_t i = 0; i < FAKE_N_EMBD; i++)
		out[i] = (float)(int32_t)(fake_mix(hash + i * UINT64_C(0x9e3779b97f4a7c15)) >> 33) * 0x1.3p-29f - 2;
}

/* --- the backend --- */

static int fake_pool_import(struct kb_backend *be, int fd, uint64_t bytes, struct kb_pool **out)
{
	struct kb_pool *pool = calloc(1, sizeof(*pool));

	(void)be;
	if (!pool)
		return -ENOMEM;
	pool->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	pool->bytes = bytes;
	if (pool->base == MAP_FAILED) {
		free(pool);
		return -ENOMEM;
	}
	*out = pool;
	return 0;
}

static void fake_pool_free(struct kb_backend *be, struct kb_pool *pool)
{
	(void)be;
	munmap(pool->base, pool->bytes);
	free(pool);
}

static int fake_workspace_new(struct kb_backend *be, const struct kb_workspace_desc *desc,
			      struct kb_workspace **out)
{
	struct kb_workspace *ws = calloc(1, sizeof(*ws));

	(void)be;
	if (!ws)
		return -ENOMEM;
	ws->desc = *desc;
	ws->logits = calloc((size_t)desc->max_logits * FAKE_N_VOCAB, sizeof(float));
	ws->hidden = calloc((size_t)desc->max_rows * FAKE_N_EMBD, sizeof(float));
	if (!ws->logits || !ws->hidden) {
		free(ws->logits);
		free(ws->hidden);
		free(ws);
		return -ENOMEM;
	}
	*out = ws;
	return 0;
}

static void fake_workspace_free(struct kb_backend *be, struct kb_workspace *ws)
{
	(void)be;
	free(ws->logits);
	free(ws->hidden);
	free(ws);
}

static struct fake_kv *fake_kv_at(const struct kb_batch *b, const struct kb_seq *seq, uint32_t position)
{
	const struct kb_geometry *g = b->geometry;
	uint64_t offset = kb_block_offset(g, seq->block_table[position / g->block_tokens]);

	offset += position % g->block_tokens * (g->block_bytes / g->block_tokens);
	return (struct fake_kv *)(b->pool->base + offset);
}

static bool fake_is_open(const struct kb_batch *b, const struct kb_seq *seq, uint32_t position)
{
	uint32_t block_tokens = b->geometry->block_tokens;

	return !kb_has_partial_blocks(b->geometry) && position / block_tokens == seq->first_pos / block_tokens;
}

/* All of a block but the last one depend on that. */
static uint64_t fake_seal(const struct kb_batch *b, const struct kb_seq *seq, uint32_t position)
{
	uint32_t last = position | (b->geometry->block_tokens - 1);

	if (kb_has_partial_blocks(b->geometry) || position == last)
		return 0;
	return fake_mix(fake_kv_at(b, seq, last)->hash + 1);
}

/* What the steps before have stored. */
static struct fake_kv fake_kv_get(const struct kb_batch *b, const struct kb_seq *seq, uint32_t position)
{
	struct fake_kv kv;

	if (fake_is_open(b, seq, position))
		return seq->open->kv[position % b->geometry->block_tokens];
	kv = *fake_kv_at(b, seq, position);
	kv.hash ^= fake_seal(b, seq, position);
	return kv;
}

static void fake_kv_put(const struct kb_batch *b, const struct kb_seq *seq, const struct fake_kv *kv)
{
	uint32_t block_tokens = b->geometry->block_tokens, first = kv->position / block_tokens * block_tokens;

	if (kb_has_partial_blocks(b->geometry)) {
		*fake_kv_at(b, seq, kv->position) = *kv;
		return;
	}
	seq->open->kv[kv->position - first] = *kv;
	if (kv->position - first + 1 < block_tokens)
		return;
	for (uint32_t i = block_tokens; i--;) {
		struct fake_kv *sealed = fake_kv_at(b, seq, first + i);

		*sealed = seq->open->kv[i];
		sealed->hash ^= fake_seal(b, seq, first + i);
	}
	memset(seq->open, 0x5a, sizeof(*seq->open));
}

/* Sequences share full blocks alone: none that one of them writes. */
static void fake_check_pair(const struct kb_geometry *g, const struct kb_seq *a, const struct kb_seq *b)
{
	uint32_t a_written = a->first_pos / g->block_tokens, b_written = b->first_pos / g->block_tokens;

	for (uint32_t j = 0; j < a->n_blocks; j++)
		for (uint32_t k = 0; k < b->n_blocks; k++)
			if (a->block_table[j] == b->block_table[k] && (j >= a_written || k >= b_written))
				fake_violation("a block of two sequences is written");
	if (a->open && a->open == b->open)
		fake_violation("an open block of two sequences");
}

/* The batch keeps to backend.h, and to the sizes of the workspace. */
static void fake_check_batch(const struct kb_workspace *ws)
{
	const struct kb_batch *b = ws->batch;
	uint32_t row = 0, prefill_rows = 0;

	for (uint32_t s = 0; s < b->n_seqs; s++) {
		const struct kb_seq *seq = &b->seqs[s];
		uint32_t end = seq->first_pos + seq->n_rows;

		if (seq->first_row != row || !seq->n_rows)
			fake_violation("rows have gaps");
		row += seq->n_rows;
		if (seq->n_rows > 1)
			prefill_rows += seq->n_rows;
		if (end > ws->desc.max_positions)
			fake_violation("a position beyond the context");
		if (seq->n_blocks != (end + b->geometry->block_tokens - 1) / b->geometry->block_tokens)
			fake_violation("n_blocks does not cover the positions");
		if (!seq->open != kb_has_partial_blocks(b->geometry))
			fake_violation("an open block where there is none, or none where there is one");
		for (uint32_t i = 0; i < s; i++)
			fake_check_pair(b->geometry, &b->seqs[i], seq);
	}
	if (row != b->n_rows || row > ws->desc.max_rows || b->n_logits > ws->desc.max_logits)
		fake_violation("more rows than the workspace has");
	for (uint32_t i = 0; i < b->n_logits; i++)
		if (b->logit_rows[i] >= row || (i && b->logit_rows[i] <= b->logit_rows[i - 1]))
			fake_violation("logit rows out of order");
	for (uint32_t i = 0; i < b->n_hidden; i++)
		if (b->hidden_rows[i] >= row || (i && b->hidden_rows[i] <= b->hidden_rows[i - 1]))
			fake_violation("hidden rows out of order");
	if (prefill_rows > fake.quantum)
		fake_violation("more prompt tokens than the quantum");
	fake.max_seqs_seen = MAX(fake.max_seqs_seen, b->n_seqs);
	fake.max_prefill_rows_seen = MAX(fake.max_prefill_rows_seen, prefill_rows);
	fake.n_rows_seen += row;
	fake.n_logits_seen += b->n_logits;
	fake.n_hidden_seen += b->n_hidden;
}

/* Reads the history before the sequence's rows and verifies its chain. */
static uint64_t fake_read_history(const struct model *m, const struct kb_batch *b, const struct kb_seq *seq)
{
	uint64_t hash = m->first_hash;

	for (uint32_t p = 0; p < seq->first_pos; p++) {
		const struct fake_kv kv = fake_kv_get(b, seq, p);

		hash = fake_hash(hash, kv.token);
		if (kv.position != p || kv.hash != hash)
			fake_violation("the KV of another position or sequence");
	}
	return hash;
}

/* Block i draws i + 1 parts of n (n + 1) / 2. */
static float fake_share(uint32_t i, uint32_t n)
{
	return (float)(i + 1) / ((float)n * (float)(n + 1) / 2);
}

static void fake_measure(const struct kb_seq *seq)
{
	if (!seq->mass)
		return;
	if (seq->n_rows != 1)
		fake_violation("attention mass of a prefill is asked for");
	fake.n_mass_seen++;
	for (uint32_t i = 0; i < seq->n_blocks && !fake.no_room; i++)
		seq->mass[i] = fake_share(i, seq->n_blocks);
}

static void fake_run(struct kb_workspace *ws)
{
	const struct kb_batch *b = ws->batch;
	uint32_t next_logits = 0, next_hidden = 0;

	fake_check_batch(ws);
	for (uint32_t s = 0; s < b->n_seqs; s++) {
		const struct kb_seq *seq = &b->seqs[s];
		uint64_t hash = fake_read_history(ws->model, b, seq);

		fake_measure(seq);
		for (uint32_t i = 0; i < seq->n_rows; i++) {
			uint32_t row = seq->first_row + i;
			int32_t token = b->tokens[row];

			hash = fake_hash(hash, token);
			fake_kv_put(b, seq, &(struct fake_kv){
				.hash = hash, .token = token, .position = seq->first_pos + i
			});
			if (next_logits < b->n_logits && b->logit_rows[next_logits] == row)
				fake_logits(hash, token, ws->logits + FAKE_N_VOCAB * next_logits++);
			if (next_hidden < b->n_hidden && b->hidden_rows[next_hidden] == row)
				fake_hidden(hash, ws->hidden + FAKE_N_EMBD * next_hidden++);
		}
	}
	if (fake.ran)
		fake.ran(b);
}

static int fake_step_wait(struct kb_workspace *ws)
{
	bool fails;

	pthread_mutex_lock(&fake.lock);
	fails = ++fake.n_entered == fake.fail_step;
	pthread_cond_broadcast(&fake.changed);
	while (fake.n_allowed < fake.n_entered)
		pthread_cond_wait(&fake.changed, &fake.lock);
	fake_run(ws);
	pthread_mutex_unlock(&fake.lock);
	return fails ? -EIO : 0;
}

static const float *fake_step_logits(const struct kb_workspace *ws)
{
	return ws->logits;
}

/* The model's step is the fake's own: never called. */
static int fake_record_hidden(struct kb_workspace *ws, const struct kb_hidden *op)
{
	return -EINVAL;
}

static const float *fake_step_hidden(const struct kb_workspace *ws)
{
	return ws->hidden;
}

static int fake_copy_tokens(struct kb_pool *pool, const struct kb_geometry *g, uint32_t dst, uint32_t src,
			    uint32_t n_tokens)
{
	if (n_tokens < g->block_tokens && !kb_has_partial_blocks(g)) {
		fake_violation("a part of a sealed block is copied");
		return -EINVAL;
	}
	memcpy(pool->base + kb_block_offset(g, dst), pool->base + kb_block_offset(g, src),
	       n_tokens * (g->block_bytes / g->block_tokens));
	return 0;
}

static int fake_open_new(struct kb_backend *be, const struct kb_geometry *g, struct kb_open **out)
{
	struct kb_open *open;

	(void)be;
	if (kb_has_partial_blocks(g))
		return -EINVAL;
	if (fake.n_open_fails) {
		fake.n_open_fails--;
		return -ENOMEM;
	}
	open = malloc(sizeof(*open));
	if (!open)
		return -ENOMEM;
	memset(open, 0xa5, sizeof(*open));
	fake.n_open++;
	fake.max_open_seen = MAX(fake.max_open_seen, fake.n_open);
	*out = open;
	return 0;
}

static void fake_open_free(struct kb_backend *be, struct kb_open *open)
{
	(void)be;
	fake.n_open--;
	free(open);
}

static void *fake_block_memory(struct kb_pool *pool, const struct kb_geometry *g, uint32_t block)
{
	return pool->base + kb_block_offset(g, block);
}

static const struct kb_ops fake_ops = {
	.abi_version = KB_ABI_VERSION,
	.name = "fake",
	.pool_import = fake_pool_import,
	.pool_free = fake_pool_free,
	.workspace_new = fake_workspace_new,
	.workspace_free = fake_workspace_free,
	.step_wait = fake_step_wait,
	.step_logits = fake_step_logits,
	.copy_tokens = fake_copy_tokens,
	.block_memory = fake_block_memory,
	.open_new = fake_open_new,
	.open_free = fake_open_free,
	.measures_mass = true,
	.hidden = fake_record_hidden,
	.step_hidden = fake_step_hidden,
};
static struct kb_backend fake_backend = { .ops = &fake_ops };

/* --- the model --- */

static struct model fake_model = {
	.info = { .name = "fake", .n_vocab = FAKE_N_VOCAB, .n_embd = FAKE_N_EMBD }, .n_ctx = 96
};

const struct model_info *model_info(const struct model *m)
{
	return &m->info;
}

const struct tokenizer *model_tokenizer(const struct model *m)
{
	return (const struct tokenizer *)m;
}

uint32_t model_n_ctx(const struct model *m)
{
	return m->n_ctx;
}

/* Q8: 3/4 of F16; Q4: half. */
void model_geometry(const struct model *m, enum kb_kv_type kv_type, uint32_t block_tokens,
		    struct kb_geometry *out)
{
	static const uint64_t parts[] = { [KB_KV_F16] = 4, [KB_KV_Q8] = 3, [KB_KV_Q4] = 2 };

	*out = (struct kb_geometry){
		.n_layers = 1, .n_kv_heads = 1, .head_dim = 16,
		.block_tokens = block_tokens,
		.kv_type = kv_type,
		.block_bytes = (m->block_bytes ? m->block_bytes : FAKE_CHUNK / FAKE_BLOCKS_PER_CHUNK) / 4 *
			       parts[kv_type],
	};
}

void model_workspace_desc(const struct model *m, struct kb_workspace_desc *out)
{
	*out = (struct kb_workspace_desc){ .n_vocab = FAKE_N_VOCAB, .max_positions = m->n_ctx };
}

int model_step(struct model *m, struct kb_workspace *ws, const struct kb_batch *batch)
{
	if (ws->model && ws->model != m)
		fake_violation("the workspace of another model");
	ws->model = m;
	ws->batch = batch;
	m->n_steps++;
	return 0;
}

const uint8_t *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *n)
{
	(void)t;
	*n = strlen(fake_pieces[id]);
	return (const uint8_t *)fake_pieces[id];
}

const uint8_t *tokenizer_bytes_after(const struct tokenizer *t, int32_t previous, int32_t id, size_t *n)
{
	return tokenizer_bytes(t, id, n);
}

bool tokenizer_is_control(const struct tokenizer *t, int32_t id)
{
	(void)t;
	return id <= FAKE_POISON;
}

bool tokenizer_is_eog(const struct tokenizer *t, int32_t id)
{
	(void)t;
	return id == FAKE_EOS;
}

#endif
