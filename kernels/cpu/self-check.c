/* SPDX-License-Identifier: Apache-2.0 */
/* Trials of one level's operations beside plain C's. */
#include "self-check.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cpu.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define MAX_ROWS 17u		/* 16 fill a tile of AMX */
#define MAX_COLS 256u
#define BLOCK_32_COLS 96u	/* of weights in blocks of 32, and of floats */
#define HEAD_DIM 48u		/* a group of channels, and half of one */
#define N_HEADS 3u
#define LENGTH 77u		/* more than KC_ATTEND_TILE, and it ends within a block and a tile */
#define BLOCK_TOKENS 32u	/* as Q4 has them */
#define N_BLOCKS 3u
#define MAX_QUERIES (3u * N_HEADS)	/* they share tiles of floats, where one row's read blocks themselves */

enum verdict { UNFINISHED, RIGHT, WRONG };

/* A row's quantised forms. */
struct quantized {
	int8_t q[MAX_ROWS * MAX_COLS];
	int16_t q16[MAX_ROWS * MAX_COLS];
	float d[MAX_ROWS * MAX_COLS / 16], h[MAX_ROWS * MAX_COLS / 16];
	float s[MAX_ROWS * MAX_COLS / 32], d16[MAX_ROWS * MAX_COLS / 32];
};

struct partial {
	float m[MAX_QUERIES], l[MAX_QUERIES], o[MAX_QUERIES * HEAD_DIM], mass[MAX_QUERIES * KC_GRANULES];
};

/* All memory of a check, shared with the child that fills it in. */
struct trial {
	const struct kc_level *level;
	enum verdict verdict;
	char what[64];			/* is being tried */
	uint64_t rng;
	float *scratch;			/* of attention */
	float x[MAX_ROWS * MAX_COLS], y[MAX_COLS];
	float a[MAX_ROWS * MAX_COLS], b[MAX_ROWS * MAX_COLS];	/* results: plain C's, the level's */
	uint16_t halves_a[MAX_COLS], halves_b[MAX_COLS];
	struct quantized quantized_a, quantized_b;
	uint8_t weights[MAX_COLS * KC_LANES * sizeof(float)] __attribute__((aligned(64)));
	uint8_t pool[N_BLOCKS * 4 * BLOCK_TOKENS * HEAD_DIM] __attribute__((aligned(64)));
	uint8_t open[4 * BLOCK_TOKENS * HEAD_DIM] __attribute__((aligned(64)));
	float q[MAX_QUERIES * HEAD_DIM];
	struct partial partial_a, partial_b;
};

/* Knuth's 64-bit linear congruential generator (The Art of Computer Programming, volume 2, 3.3.4). */
static uint32_t next_number(struct trial *t)
{
	t->rng = t->rng * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(t->rng >> 32);
}

/* Of several magnitudes, -2 to 2. */
static void fill_floats(struct trial *t, float *x, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t r = next_number(t);

		x[i] = ((float)(r >> 8) * 0x1p-22f - 2.0f) / (float)(1u << r % 8);
	}
}

__attribute__((format(printf, 2, 3)))
static void trying(struct trial *t, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(t->what, sizeof(t->what), format, args);
	va_end(args);
}

static bool same(const void *a, const void *b, size_t n)
{
	return !memcmp(a, b, n);
}

static bool same_floats(const float *a, const float *b, size_t n)
{
	return same(a, b, n * sizeof(*a));
}

/* --- one row ------------------------------------------------------------------- */

static bool try_quantize(struct trial *t)
{
	struct quantized *a = &t->quantized_a, *b = &t->quantized_b;
	const uint32_t n = MAX_ROWS * MAX_COLS;

	trying(t, "quantisation to 8 bits");
	kc_level_c.quantize(t->x, n, a->q, a->d, a->h, a->s);
	t->level->quantize(t->x, n, b->q, b->d, b->h, b->s);
	if (!same(a, b, sizeof(*a)))
		return false;
	trying(t, "quantisation to 16 bits");
	kc_level_c.quantize16(t->x, n, a->q16, a->d16);
	t->level->quantize16(t->x, n, b->q16, b->d16);
	return same(a, b, sizeof(*a));
}

static bool try_rmsnorm(struct trial *t)
{
	trying(t, "norm");
	kc_level_c.rmsnorm(t->a, t->x, t->y, MAX_COLS, 1e-5f);
	t->level->rmsnorm(t->b, t->x, t->y, MAX_COLS, 1e-5f);
	return same_floats(t->a, t->b, MAX_COLS);
}

/* What changes its operand begins with the same. */
static void begin_in_place(struct trial *t)
{
	memcpy(t->a, t->x, MAX_COLS * sizeof(float));
	memcpy(t->b, t->x, MAX_COLS * sizeof(float));
}

/* 42 dimensions end within a vector. */
static bool try_rotate(struct trial *t, enum kb_rope_style style)
{
	trying(t, "rotation of %s", style == KB_ROPE_HALVES ? "halves" : "pairs");
	for (uint32_t n = 42; n <= 64; n += 22) {
		begin_in_place(t);
		kc_level_c.rotate(t->a, t->y, n, style);
		t->level->rotate(t->b, t->y, n, style);
		if (!same_floats(t->a, t->b, MAX_COLS))
			return false;
	}
	return true;
}

/* A matrix of 16 channels is a vector's, or two; of 256, several. */
static bool try_hadamard(struct trial *t)
{
	trying(t, "mixture of channels");
	for (uint32_t n = HEAD_DIM; n <= MAX_COLS; n += MAX_COLS - HEAD_DIM) {
		begin_in_place(t);
		kc_level_c.hadamard(t->a, n);
		t->level->hadamard(t->b, n);
		if (!same_floats(t->a, t->b, MAX_COLS))
			return false;
	}
	return true;
}

static bool try_gated(struct trial *t, enum kb_activation activation)
{
	trying(t, "%s", activation == KB_SILU ? "SiLU" : "GELU");
	begin_in_place(t);
	kc_level_c.gated(t->a, t->y, MAX_COLS, activation);
	t->level->gated(t->b, t->y, MAX_COLS, activation);
	return same_floats(t->a, t->b, MAX_COLS);
}

static bool try_softcap(struct trial *t)
{
	trying(t, "soft cap");
	begin_in_place(t);
	kc_level_c.softcap(t->a, MAX_COLS, 1.5f);
	t->level->softcap(t->b, MAX_COLS, 1.5f);
	return same_floats(t->a, t->b, MAX_COLS);
}

static bool try_store_f16(struct trial *t)
{
	trying(t, "conversion to F16");
	kc_level_c.store_f16(t->halves_a, t->x, MAX_COLS);
	t->level->store_f16(t->halves_b, t->x, MAX_COLS);
	return same(t->halves_a, t->halves_b, sizeof(t->halves_a));
}

static bool try_rows(struct trial *t)
{
	return try_quantize(t) && try_rmsnorm(t) && try_rotate(t, KB_ROPE_INTERLEAVED) &&
	       try_rotate(t, KB_ROPE_HALVES) && try_hadamard(t) && try_gated(t, KB_SILU) &&
	       try_gated(t, KB_GELU_TANH) && try_softcap(t) && try_store_f16(t);
}

/* --- products -------------------------------------------------------------------- */

/* Any quants and integer scales; F16 and BF16 between a half and two, as an infinity would hide what is wrong. */
static void fill_weights(struct trial *t, enum kb_type type, uint32_t cols)
{
	const struct kc_layout *l = &kc_layouts[type];
	uint16_t *halves = (uint16_t *)(void *)t->weights;

	if (type == KB_F32) {
		fill_floats(t, (float *)(void *)t->weights, (size_t)cols * KC_LANES);
		return;
	}
	for (size_t i = 0; i < (size_t)cols * KC_LANES; i++) {
		uint16_t r = (uint16_t)(next_number(t) >> 16);

		if (type == KB_BF16)
			r = (r & 0x80ff) | 0x3f00;
		else if (type == KB_F16)
			r = (r & 0x87ff) | 0x3800;
		halves[i] = r;
	}
	for (uint32_t k = 0; l->weights > 1 && k < cols; k += l->weights) {
		uint16_t *d = (uint16_t *)(void *)(t->weights + k / l->weights * kc_block_bytes(l));

		for (uint32_t i = 0; i < (l->min ? 2 : 1) * KC_LANES; i++)
			d[i] = (d[i] & 0x87ff) | 0x3800;
	}
}

/* Rows don't know of each other: plain C's are the same however many there are. */
static bool try_product(struct trial *t, enum kb_type type)
{
	static const uint32_t counts[] = { 1, 2, 3, 4, 9, MAX_ROWS };
	const uint32_t cols = kc_layouts[type].weights > 32 ? MAX_COLS : BLOCK_32_COLS;
	struct quantized *x = &t->quantized_a;
	const struct kc_rows rows = { cols, t->x, x->q, x->d, x->h, x->s, x->q16, x->d16 };
	struct kb_tensor w = { .type = type, .use = KB_USE_MATRIX, .rows = KC_LANES, .cols = cols, .n_groups = 1,
			       .data = t->weights };

	w.group_bytes = cols / kc_layouts[type].weights * kc_block_bytes(&kc_layouts[type]);
	w.bytes = w.group_bytes;
	fill_weights(t, type, cols);
	kc_level_c.product(&w, 0, 1, &rows, 0, MAX_ROWS, t->a, KC_LANES);
	for (size_t i = 0; i < COUNT(counts); i++) {
		trying(t, "product of %u rows and GGUF type %u", counts[i], (unsigned)type);
		t->level->product(&w, 0, 1, &rows, 0, counts[i], t->b, KC_LANES);
		if (!same_floats(t->a, t->b, (size_t)counts[i] * KC_LANES))
			return false;
	}
	return true;
}

static bool try_products(struct trial *t)
{
	for (size_t type = 0; type < KC_N_LAYOUTS; type++) {
		if (kc_type_known((enum kb_type)type) && !try_product(t, (enum kb_type)type))
			return false;
	}
	return true;
}

/* --- attention --------------------------------------------------------------------- */

static const char *const kv_names[] = { [KB_KV_F16] = "F16", [KB_KV_Q8] = "Q8", [KB_KV_Q4] = "Q4" };
static const uint32_t block_table[N_BLOCKS] = { 1, 2, 0 };

/* Q4: blocks are open in turn, and the last one stays so. */
static void fill_kv(struct trial *t, struct kc_queries *queries)
{
	float x[HEAD_DIM];

	for (uint32_t i = 0; i < LENGTH; i++) {
		struct kc_kv tile;

		if (queries->open)
			queries->open_pos = i / BLOCK_TOKENS * BLOCK_TOKENS;
		tile = kc_kv_at(queries, i);
		for (int value = 0; value < 2; value++) {
			fill_floats(t, x, HEAD_DIM);
			kc_kv_store(&kc_level_c, &tile, i % KC_KV_TILE, value, x);
		}
		if (queries->open && i % BLOCK_TOKENS == BLOCK_TOKENS - 1)
			kc_kv_seal(t->pool + kb_block_offset(queries->geometry, block_table[i / BLOCK_TOKENS]), t->open,
				   HEAD_DIM);
	}
}

static struct kc_partial partial_of(struct partial *p)
{
	return (struct kc_partial){ p->m, p->l, p->o, p->mass };
}

/* The last n_rows rows. */
static bool try_attend(struct trial *t, struct kc_queries *queries, uint32_t n_rows)
{
	struct kc_partial a = partial_of(&t->partial_a), b = partial_of(&t->partial_b);
	uint32_t n = n_rows * N_HEADS;

	trying(t, "attention of %u queries, KV %s", n, kv_names[queries->geometry->kv_type]);
	queries->n_rows = n_rows;
	queries->first_pos = LENGTH - n_rows;
	kc_level_c.attend(queries, 0, &a, t->scratch);
	t->level->attend(queries, 0, &b, t->scratch);
	return same_floats(a.m, b.m, n) && same_floats(a.l, b.l, n) &&
	       same_floats(a.o, b.o, (size_t)n * HEAD_DIM) && same_floats(a.mass, b.mass, (size_t)n * KC_GRANULES);
}

static bool try_attention(struct trial *t, enum kb_kv_type type)
{
	struct kb_geometry g = { .n_layers = 1, .n_kv_heads = 1, .head_dim = HEAD_DIM, .block_tokens = BLOCK_TOKENS,
				 .kv_type = type, .blocks_per_chunk = N_BLOCKS };
	struct kc_queries queries = { .pool = t->pool, .geometry = &g, .block_table = block_table,
				      .open = type == KB_KV_Q4 ? t->open : NULL, .open_pos = UINT32_MAX,
				      .head_dim = HEAD_DIM, .n_heads = N_HEADS, .q = t->q,
				      .q_stride = (size_t)N_HEADS * HEAD_DIM, .scale = 0.4f };

	g.block_bytes = kb_block_bytes(&g);
	g.chunk_bytes = g.block_bytes * N_BLOCKS;
	if (g.chunk_bytes > sizeof(t->pool))
		return false;
	fill_kv(t, &queries);
	return try_attend(t, &queries, 1) && try_attend(t, &queries, MAX_QUERIES / N_HEADS);
}

/* What attention left, two queries as if they were two segments of one. */
static bool try_merge(struct trial *t)
{
	struct partial *a = &t->partial_a, *b = &t->partial_b;
	struct kc_partial part = partial_of(a);

	trying(t, "merge of segments");
	*b = *a;
	kc_level_c.merge(&a->m[0], &a->l[0], a->o, &part, 1, HEAD_DIM);
	t->level->merge(&b->m[0], &b->l[0], b->o, &part, 1, HEAD_DIM);
	return same(a, b, sizeof(*a));
}

/* --- all of them ------------------------------------------------------------------- */

static void try_all(struct trial *t)
{
	bool right;

	fill_floats(t, t->x, COUNT(t->x));
	fill_floats(t, t->y, COUNT(t->y));
	fill_floats(t, t->q, COUNT(t->q));
	right = try_rows(t) && try_products(t) && try_attention(t, KB_KV_F16) && try_attention(t, KB_KV_Q8) &&
		try_attention(t, KB_KV_Q4) && try_merge(t);
	t->verdict = right ? RIGHT : WRONG;
}

/* Without the parent's handlers for what an instruction can do, and without a core of all its memory. */
__attribute__((noreturn))
static void run_child(struct trial *t)
{
	static const int faults[] = { SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGTRAP };
	sigset_t set;

	sigemptyset(&set);
	for (size_t i = 0; i < COUNT(faults); i++) {
		signal(faults[i], SIG_DFL);
		sigaddset(&set, faults[i]);
	}
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	prctl(PR_SET_DUMPABLE, 0);
	try_all(t);
	_exit(0);
}

/* Status 0 where the parent ignores its children. */
static void run_apart(struct trial *t, int *status)
{
	pid_t child = fork();

	*status = 0;
	if (child < 0)
		try_all(t);
	else if (!child)
		run_child(t);
	else
		while (waitpid(child, status, 0) < 0 && errno == EINTR)
			;
}

int kc_self_check(const struct kc_level *level, bool *right, char *fault, size_t size)
{
	const size_t n = sizeof(struct trial) + kc_attend_scratch(HEAD_DIM) * sizeof(float);
	struct trial *t = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status;

	if (t == MAP_FAILED)
		return -ENOMEM;
	t->level = level;
	t->scratch = (float *)(void *)(t + 1);
	run_apart(t, &status);
	*right = t->verdict == RIGHT;
	if (t->verdict == WRONG)
		snprintf(fault, size, "%s: not the bits of plain C", t->what);
	else if (!*right && WIFSIGNALED(status))
		snprintf(fault, size, "%s: signal %d", t->what, WTERMSIG(status));
	else if (!*right)
		snprintf(fault, size, "%s: it did not end", t->what);
	munmap(t, n);
	return 0;
}
