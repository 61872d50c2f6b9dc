/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.h - what a device must be able to do for a transformer.
 *
 * Purpose.  A backend owns the arithmetic: it holds the weights in the layout
 * it likes best, reads and writes the paged KV pool, and runs a model's step as
 * a dozen fused operations on a ragged batch.  Model code composes these
 * operations and knows no device; the cache knows blocks by number and a
 * geometry.  This directory includes nothing else of the project, so that it
 * can be lifted into another program.
 *
 * Errors.  Functions return 0 or a negative errno; on failure outputs are
 * untouched.  -EINVAL: shapes that do not fit each other; -ENOTSUP: a type or
 * option that this backend lacks; -ENOMEM.
 *
 * Threads.  Steps and pools belong to one thread (the engine).  Tensors,
 * rotations, workspaces and open blocks that no step uses yet, or any more, may
 * be made, filled and freed on other threads meanwhile, so that models come and
 * go, and stored blocks are computed again, while others run; tensor_fill() also
 * on several for disjoint rows of one tensor.  A CPU backend has threads of its
 * own inside, and is opened by any.
 *
 * Asynchrony.  Between step_begin() and step_submit() the operations are only
 * recorded or enqueued; their operands must stay alive and unchanged until
 * step_wait() has returned for that workspace.  A CUDA backend enqueues them on a stream and
 * captures the step as a graph; the CPU backend runs the recorded list on its
 * pool.  Errors of recorded operations surface at the call where possible, at
 * step_wait() otherwise.
 *
 * Numerics.  See NUMERICS.md: each output row depends on its own input row
 * and the stored KV alone, never on the other rows, the number of threads or
 * how work was cut.  `numerics_version` changes when any stored or computed
 * bit may change.
 *
 * Matrices are row-major as in GGUF: [rows][cols], y[r] = sum over c of
 * W[r][c] * x[c].
 */
#ifndef KB_BACKEND_H
#define KB_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KB_ABI_VERSION 5

/*
 * Element and block types; numbers and layouts are GGUF's (ggml.h, enum
 * ggml_type; ggml-common.h, struct block_*).  A block's weights are w; d and m
 * are F16; s and t are small integers, one per 16 or 32 weights.
 */
enum kb_type {
	KB_F32 = 0,
	KB_F16 = 1,
	KB_Q4_0 = 2,	/* 32 weights: w = d*(q-8) */
	KB_Q4_1 = 3,	/* 32: w = d*q + m */
	KB_Q5_0 = 6,	/* 32: w = d*(q-16) */
	KB_Q5_1 = 7,	/* 32: w = d*q + m */
	KB_Q8_0 = 8,	/* 32: w = d*q */
	KB_Q2_K = 10,	/* 256 weights: w = d*s*q - m*t, per 16 */
	KB_Q3_K = 11,	/* 256: w = d*s*(q-4), per 16 */
	KB_Q4_K = 12,	/* 256: w = d*s*q - m*t, per 32 */
	KB_Q5_K = 13,	/* 256: w = d*s*q - m*t, per 32 */
	KB_Q6_K = 14,	/* 256: w = d*s*(q-32), per 16 */
	KB_IQ4_NL = 20,	/* 32: w = d*table[q] */
	KB_IQ4_XS = 23,	/* 256: w = d*s*table[q], s per 32 */
	KB_BF16 = 30,
};

/* How keys and values are stored; in all of them a token's numbers depend on its own K and V, but for Q4's keys. */
enum kb_kv_type {
	KB_KV_F16 = 0,
	KB_KV_Q8 = 1,	/* int8, an F16 scale per token and KB_KV_GROUP channels */
	/*
	 * 4 bits, w = d*q + m with F16 d and m: keys per channel over a whole block, values per token and
	 * KB_KV_GROUP channels.  A block is open, in F16 outside of the pool, until it is full.
	 */
	KB_KV_Q4 = 2,
};

#define KB_KV_GROUP 32u
#define KB_Q4_BLOCK_TOKENS 32u

/*
 * Block geometry: how the KV of one root lies in the pool.  Plain data, shared
 * by model, cache and backend.
 *
 * The pool is cut into chunks of chunk_bytes; a chunk holds blocks_per_chunk
 * blocks of one geometry.  Block b of a root lies at
 *     (b / blocks_per_chunk) * chunk_bytes + (b % blocks_per_chunk) * block_bytes
 * so a block number names a chunk of the pool and a place in it, and numbers
 * of different roots never overlap in use.
 *
 * One block is one contiguous range and holds K and V of block_tokens tokens
 * of every layer of one layer group: [layer][kv_head] { K, V }, so that moving,
 * saving or sending a block is one copy.  What is inside of K and V is the
 * backend's own affair, named by its numerics_version; the sizes are
 *     F16: 2 bytes per element
 *     Q8:  1 byte, and 2 per token and group of channels
 *     Q4:  half a byte; keys: 4 bytes per channel, values: 4 per token and group
 */
struct kb_geometry {
	uint32_t n_layers;	/* in this layer group */
	uint32_t n_kv_heads;
	uint32_t head_dim;	/* elements; a multiple of 16 */
	uint32_t block_tokens;	/* 16, 32 or 64; Q4: 32 */
	enum kb_kv_type kv_type;
	uint32_t blocks_per_chunk;
	uint64_t block_bytes;
	uint64_t chunk_bytes;	/* a multiple of 2 MiB */
};

/* Scales that one token's channels of a head have; the last group may be smaller. */
static inline uint32_t kb_kv_groups(uint32_t head_dim)
{
	return head_dim / KB_KV_GROUP + (head_dim % KB_KV_GROUP != 0);
}

/* Bytes of K and V of one layer and head of a block, 0 if the geometry is not valid or overflows. */
static inline uint64_t kb_head_bytes(const struct kb_geometry *g)
{
	uint64_t tokens = g->block_tokens, dim = g->head_dim, groups = kb_kv_groups(g->head_dim);

	if (!dim || !tokens || tokens > UINT16_MAX)
		return 0;
	switch (g->kv_type) {
	case KB_KV_F16:
		return 4 * tokens * dim;
	case KB_KV_Q8:
		return 2 * tokens * (dim + 2 * groups);
	case KB_KV_Q4:
		return tokens == KB_Q4_BLOCK_TOKENS ? tokens * dim + 4 * dim + 4 * tokens * groups : 0;
	}
	return 0;
}

/* Bytes of one block, 0 if the geometry is not valid or overflows. */
static inline uint64_t kb_block_bytes(const struct kb_geometry *g)
{
	uint64_t n = kb_head_bytes(g);

	if (!n || !g->n_layers || !g->n_kv_heads)
		return 0;
	if (__builtin_mul_overflow(n, g->n_layers, &n) || __builtin_mul_overflow(n, g->n_kv_heads, &n))
		return 0;
	return n;
}

/* Whether the first tokens of a block are of use without the others; where not, reuse is to the block. */
static inline bool kb_has_partial_blocks(const struct kb_geometry *g)
{
	return g->kv_type != KB_KV_Q4;
}

/* Bytes of n_tokens <= block_tokens tokens of a block, 0 if the geometry is not valid or has no such parts. */
static inline uint64_t kb_tokens_bytes(const struct kb_geometry *g, uint32_t n_tokens)
{
	if (!g->block_tokens || (n_tokens != g->block_tokens && !kb_has_partial_blocks(g)))
		return 0;
	return kb_block_bytes(g) / g->block_tokens * n_tokens;
}

/* Memory of a sequence's open block (struct kb_open), 0: the type has none. */
static inline uint64_t kb_open_bytes(const struct kb_geometry *g)
{
	struct kb_geometry open = *g;

	if (kb_has_partial_blocks(g))
		return 0;
	open.kv_type = KB_KV_F16;
	return kb_block_bytes(&open);
}

static inline uint64_t kb_block_offset(const struct kb_geometry *g, uint32_t block)
{
	return (uint64_t)(block / g->blocks_per_chunk) * g->chunk_bytes +
	       (uint64_t)(block % g->blocks_per_chunk) * g->block_bytes;
}

struct kb_backend;	/* begins with `const struct kb_ops *ops` */
struct kb_tensor;	/* weights in the backend's own layout */
struct kb_rope;		/* a table of rotations */
struct kb_pool;		/* the memory that holds KV blocks */
struct kb_open;		/* the last, not yet full block of a sequence, in F16 */
struct kb_workspace;	/* activations of one step in flight */

enum kb_use {
	KB_USE_MATRIX,	/* left side of a product; any kb_type, cols a multiple of 32 and of its block */
	KB_USE_VECTOR,	/* norm weights, biases: F32, F16 or BF16 in; rows = 1 */
};

struct kb_tensor_desc {
	enum kb_type type;
	enum kb_use use;
	uint32_t rows, cols;	/* outputs, inputs */
};

/* Pairs that a rotation turns. */
enum kb_rope_style {
	KB_ROPE_INTERLEAVED,	/* (2i, 2i+1): GGUF `llama` */
	KB_ROPE_HALVES,		/* (i, i + n_dims/2): GPT-NeoX; qwen2, gemma3, phi3 */
};

/*
 * Rotary embedding (Su et al. 2021, arXiv:2104.09864): dimension pair i of a
 * head at position p turns by p * inv_freq[i]; both parts are multiplied by
 * `scale` (1 but for YaRN and LongRoPE).  Every kind of rope scaling is
 * expressed in inv_freq by the model.
 */
struct kb_rope_desc {
	enum kb_rope_style style;
	uint32_t n_dims;		/* rotated dimensions, <= head_dim, even */
	uint32_t n_positions;		/* positions 0..n_positions-1 will be asked for */
	float scale;
	const float *inv_freq;		/* [n_dims / 2], copied */
};

/* Dimensions that bound a workspace. */
struct kb_workspace_desc {
	uint32_t max_rows;	/* tokens in one step */
	uint32_t max_logits;	/* rows with logits in one step */
	uint32_t n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab;
	uint32_t max_positions;	/* longest sequence, tokens */
};

/* One sequence's part of a ragged batch: n_rows consecutive tokens. */
struct kb_seq {
	uint32_t first_row;		/* its rows are first_row .. first_row + n_rows - 1 */
	uint32_t n_rows;
	uint32_t first_pos;		/* position of the first row */
	uint32_t n_blocks;		/* covers positions 0 .. first_pos + n_rows - 1 */
	const uint32_t *block_table;	/* [n_blocks] block numbers, by position / block_tokens */
	/*
	 * Where kb_open_bytes() is not 0: the block that first_pos is in, as the steps before left it
	 * (anything where first_pos begins a block), and after the step the block of the next position.  One
	 * sequence's own, not NULL.  A query sees its own block open and those before it sealed, however the
	 * prompt was cut; a block that gets full is sealed into its place in the pool within the step.
	 */
	struct kb_open *open;
	/*
	 * Attention mass, where kb_ops.measures_mass: [n_blocks] or NULL; an output, there after step_wait().
	 * mass[i] is the share of softmax weight that block i drew from the row, averaged over all heads of
	 * the geometry's layers; with all layers in the step the sum is 1.  Layers with a window give blocks
	 * outside of it nothing.  Untouched where n_rows is not 1 or the backend had no room to measure.
	 * Logits and stored KV have the same bits with it and without.
	 */
	float *mass;
};

/*
 * A ragged batch: rows are tokens, grouped by sequence.  All arrays are the
 * caller's and live until step_wait().
 */
struct kb_batch {
	uint32_t n_rows;
	const int32_t *tokens;		/* [n_rows], each < n_vocab */
	uint32_t n_seqs;
	const struct kb_seq *seqs;	/* [n_seqs], ascending first_row, no gaps */
	uint32_t n_logits;
	const uint32_t *logit_rows;	/* [n_logits] rows whose logits are wanted, ascending */
	struct kb_pool *pool;
	const struct kb_geometry *geometry;
	uint32_t n_hidden;
	const uint32_t *hidden_rows;	/* [n_hidden] rows whose final hidden states are wanted, ascending */
};

enum kb_activation { KB_SILU, KB_GELU_TANH };

/* Operands of the fused operations; an optional tensor is NULL when absent. */

/* q,k,v = W (rmsnorm(x)) + b, rotate q and k, store k and v in the pool. */
struct kb_attn_in {
	const struct kb_tensor *norm;		/* [n_embd] */
	const struct kb_tensor *wq, *wk, *wv;	/* [n_heads*head_dim], [n_kv_heads*head_dim] x n_embd */
	const struct kb_tensor *bq, *bk, *bv;	/* optional */
	const struct kb_tensor *q_norm, *k_norm;/* optional, [head_dim], before the rotation */
	const struct kb_rope *rope;
	float norm_eps;
};

/* Causal attention over the pool: scores = softcap(scale * q.k). */
struct kb_attention {
	float scale;
	float softcap;		/* 0: none */
	uint32_t window;	/* a query at p sees p-window+1..p; 0: all */
};

/* x += postnorm(W o + b) */
struct kb_attn_out {
	const struct kb_tensor *wo;		/* [n_embd] x n_heads*head_dim */
	const struct kb_tensor *bo, *post_norm;	/* optional */
	float norm_eps;
};

/* x += postnorm(W_down (act(W_gate n) * (W_up n))), n = rmsnorm(x) */
struct kb_ffn {
	const struct kb_tensor *norm;
	const struct kb_tensor *gate, *up;	/* [n_ff] x n_embd */
	const struct kb_tensor *down;		/* [n_embd] x n_ff */
	const struct kb_tensor *post_norm;	/* optional */
	enum kb_activation activation;
	float norm_eps;
};

/* logits = softcap(W rmsnorm(x)) for the rows asked for. */
struct kb_logits {
	const struct kb_tensor *norm;
	const struct kb_tensor *head;		/* [n_vocab] x n_embd */
	float norm_eps;
	float softcap;		/* 0: none */
};

/* rmsnorm(x) for the hidden rows: what the logits' product gets, before it is quantised. */
struct kb_hidden {
	const struct kb_tensor *norm;	/* [n_embd] */
	float norm_eps;
};

/*
 * The table of operations.  Entries below "optional" may be NULL; the comment
 * says what stands in for them.
 */
struct kb_ops {
	uint32_t abi_version;		/* KB_ABI_VERSION */
	uint32_t numerics_version;
	const char *name;		/* "cpu", "cuda" */

	void (*close)(struct kb_backend *be);	/* everything made from it is gone */
	/* The level chosen at run time, e.g. "avx2"; part of a cache key. */
	const char *(*level)(const struct kb_backend *be);
	uint32_t (*n_threads)(const struct kb_backend *be);
	/* Before the next step; 1 .. number given at open. */
	int (*set_threads)(struct kb_backend *be, uint32_t n);

	/* Weights.  new() allocates, fill() converts rows row0 .. row0+n_rows-1
	 * from GGUF's layout at src; row0 a multiple of 16, n_rows too unless it
	 * reaches the last row.  Every row is filled before first use. */
	int (*tensor_new)(struct kb_backend *be, const struct kb_tensor_desc *desc, struct kb_tensor **out);
	int (*tensor_fill)(struct kb_backend *be, struct kb_tensor *t, uint32_t row0, uint32_t n_rows, const void *src);
	void (*tensor_free)(struct kb_backend *be, struct kb_tensor *t);
	uint64_t (*tensor_bytes)(const struct kb_tensor *t);	/* memory it holds */

	int (*rope_new)(struct kb_backend *be, const struct kb_rope_desc *desc, struct kb_rope **out);
	void (*rope_free)(struct kb_backend *be, struct kb_rope *rope);

	/* The pool: fd is a memfd of at least `bytes` (a multiple of 2 MiB),
	 * mapped shared; the caller keeps the descriptor.  A device backend
	 * imports or mirrors it. */
	int (*pool_import)(struct kb_backend *be, int fd, uint64_t bytes, struct kb_pool **out);
	void (*pool_free)(struct kb_backend *be, struct kb_pool *pool);

	int (*workspace_new)(struct kb_backend *be, const struct kb_workspace_desc *desc, struct kb_workspace **out);
	void (*workspace_free)(struct kb_backend *be, struct kb_workspace *ws);
	uint64_t (*workspace_bytes)(const struct kb_workspace *ws);

	/* A step, in this order: begin; embed; per layer attn_in, attention,
	 * attn_out, ffn; logits, hidden where there are such rows; submit; wait.
	 * `layer` counts within the geometry's layer group. */
	int (*step_begin)(struct kb_workspace *ws, const struct kb_batch *batch);
	int (*embed)(struct kb_workspace *ws, const struct kb_tensor *table, float scale);
	int (*attn_in)(struct kb_workspace *ws, uint32_t layer, const struct kb_attn_in *op);
	int (*attention)(struct kb_workspace *ws, uint32_t layer, const struct kb_attention *op);
	int (*attn_out)(struct kb_workspace *ws, const struct kb_attn_out *op);
	int (*ffn)(struct kb_workspace *ws, const struct kb_ffn *op);
	int (*logits)(struct kb_workspace *ws, const struct kb_logits *op);
	int (*step_submit)(struct kb_workspace *ws);
	int (*step_wait)(struct kb_workspace *ws);	/* blocks; the caller's thread may compute */
	/* After step_wait(): [n_logits][n_vocab] floats, host memory, until the
	 * next step_begin(). */
	const float *(*step_logits)(const struct kb_workspace *ws);

	/* optional: copy the first n_tokens of block src to block dst, -EINVAL where the geometry has no
	 * partial blocks and these are not all; stand-in: memcpy through the pool's mapping where host memory. */
	int (*copy_tokens)(struct kb_pool *pool, const struct kb_geometry *g, uint32_t dst, uint32_t src,
			   uint32_t n_tokens);
	/* optional: the first n_tokens of a block to host memory, or from there, without gaps,
	 * kb_tokens_bytes() in all (all tokens where there are no partial blocks); absent: blocks are not kept
	 * outside the pool. */
	int (*block_read)(struct kb_pool *pool, const struct kb_geometry *g, uint32_t block, uint32_t n_tokens,
			  void *dst);
	int (*block_write)(struct kb_pool *pool, const struct kb_geometry *g, uint32_t block, uint32_t n_tokens,
			   const void *src);
	/* optional: where a block's block_bytes are, if the host can read and write them there; absent: blocks are not
	 * read from files or written to them. */
	void *(*block_memory)(struct kb_pool *pool, const struct kb_geometry *g, uint32_t block);
	/* optional: open blocks of a geometry with kb_open_bytes(), both or none; absent: kv_type Q4 is refused. */
	int (*open_new)(struct kb_backend *be, const struct kb_geometry *g, struct kb_open **out);
	void (*open_free)(struct kb_backend *be, struct kb_open *open);
	/* optional: kb_seq.mass is honoured; stand-in: recency and hits alone. */
	bool measures_mass;
	/* optional: sampling on the device; stand-in: step_logits() and the
	 * host's sampler. */
	int (*argmax)(struct kb_workspace *ws, int32_t *tokens);
	int (*topk)(struct kb_workspace *ws, uint32_t k, int32_t *tokens, float *logits);
	/* optional: final hidden states, both or none; absent: no embeddings, n_hidden is 0.
	 * After step_wait(): [n_hidden][n_embd] floats, host memory, until the
	 * next step_begin(). */
	int (*hidden)(struct kb_workspace *ws, const struct kb_hidden *op);
	const float *(*step_hidden)(const struct kb_workspace *ws);
};

struct kb_backend {
	const struct kb_ops *ops;
};

struct kb_cpu_options {
	uint32_t n_threads;	/* 0: as many as the CPUs this process may use */
	const char *level;	/* NULL: best by CPUID; "c", "avx2", "avx512", "avx512vnni", "amx" */
};

/*
 * Opens the CPU backend.  -ENOTSUP: this machine lacks the level asked for;
 * -EINVAL: no such level; -EIO: kb_cpu_fault().
 *
 * A level other than plain C is compared with it to the bit when a process first
 * opens it (some milliseconds, in a child process).  One that differs is passed over
 * for the next best, or is an error where it was asked for.
 */
int kb_cpu_open(const struct kb_cpu_options *options, struct kb_backend **out);

/* Levels that this machine has, best first, NULL-terminated. */
const char *const *kb_cpu_levels(void);
/* What was found wrong with a level when it was opened, for a log; NULL: nothing.  Lives as long as the process. */
const char *kb_cpu_fault(const char *level);

#ifdef __cplusplus
}
#endif

#endif
