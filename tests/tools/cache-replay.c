/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache-replay - how much of a trace's prompts the prefix tree finds, under each
 * order of eviction and with pools of several sizes.  No model runs: blocks are numbers.
 *
 *     cache-replay make system|chats|agents [SEED] > TRACE
 *     cache-replay run TRACE [BLOCKS]...
 *
 * A trace has a line for each request, in order of time:
 *
 *     MS UID N_GENERATED SEED:COUNT [SEED:COUNT]...
 *
 * The request's tokens are COUNT ones made from each SEED in turn; the last N_GENERATED of them are
 * generated.  Requests run one after another.
 */
#include <err.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cache/tree.h"
#include "ipc/base/checked.h"

#define BLOCK_TOKENS 16u
#define BLOCK_BYTES (UINT64_C(2) << 20)	/* a chunk for each, of which nothing is touched */
#define MAX_TOKENS 65536u
#define MAX_PARTS 4096u

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t prng(uint64_t *s)
{
	uint64_t z = *s += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

static uint32_t between(uint64_t *s, uint32_t from, uint32_t to)
{
	return from + (uint32_t)(prng(s) % (to - from + 1));
}

/* --- traces --- */

struct talk {
	uint64_t due;			/* ms; UINT64_MAX: over */
	uint32_t n_parts;
	char parts[MAX_PARTS][28];
};

static void add_part(struct talk *t, uint64_t seed, uint32_t count)
{
	if (t->n_parts < MAX_PARTS)
		snprintf(t->parts[t->n_parts++], sizeof(t->parts[0]), "%" PRIu64 ":%u", seed, count);
}

static void print_request(const struct talk *t, uint64_t ms, unsigned uid, uint32_t n_generated)
{
	printf("%" PRIu64 " %u %u", ms, uid, n_generated);
	for (uint32_t i = 0; i < t->n_parts; i++)
		printf(" %s", t->parts[i]);
	printf("\n");
}

/* The next turn: what the user says, and the answer. */
static void say(struct talk *t, uint64_t *s, uint64_t ms, unsigned uid, uint32_t n_user, uint32_t n_answer)
{
	add_part(t, prng(s), n_user);
	add_part(t, prng(s), n_answer);
	print_request(t, ms, uid, n_answer);
}

/*
 * One system prompt of 1,500 tokens, a new user every second; a fifth of them ask once or twice more. In
 * between documents of 3,000 tokens that are read once.
 */
static void make_system(uint64_t *s)
{
	static struct talk talks[256];
	uint64_t system = prng(s);

	for (uint32_t i = 0; i < 4000; i++) {
		struct talk *t = &talks[between(s, 0, ARRAY_SIZE(talks) - 1)];

		if (between(s, 0, 19) == 0) {
			t->n_parts = 0;
			say(t, s, i * 1000, 1, 3000, 200);
			t->n_parts = 0;
			continue;
		}
		if (!t->n_parts || t->n_parts >= 7 || between(s, 0, 4)) {
			t->n_parts = 0;
			add_part(t, system, 1500);
		}
		say(t, s, i * 1000, 1, between(s, 50, 400), between(s, 50, 250));
	}
}

/* 100 places for chats of four users, each of 1 to 30 turns, with pauses of seconds to an hour. */
static void make_chats(uint64_t *s)
{
	static struct talk talks[100];
	static uint32_t left[ARRAY_SIZE(talks)];

	for (uint32_t i = 0; i < 6000; i++) {
		uint32_t next = 0;

		for (uint32_t k = 0; k < ARRAY_SIZE(talks); k++)
			if (talks[k].due < talks[next].due)
				next = k;
		if (!left[next]) {
			talks[next].n_parts = 0;
			add_part(&talks[next], next % 4, 300);
			left[next] = between(s, 1, between(s, 0, 3) ? 6 : 30);
		}
		left[next]--;
		say(&talks[next], s, talks[next].due, 1 + next % 4, between(s, 20, 300), between(s, 50, 400));
		talks[next].due += between(s, 5000, between(s, 0, 9) ? 120000 : 3600000);
	}
}

/* 12 agents: at each step four branches from the trunk are tried, one becomes the trunk. */
static void make_agents(uint64_t *s)
{
	static struct talk trunks[12], branch;

	for (uint32_t i = 0; i < 1500; i++) {
		struct talk *t = &trunks[between(s, 0, ARRAY_SIZE(trunks) - 1)];
		uint32_t chosen = between(s, 0, 3);
		struct talk grown = { 0 };

		if (!t->n_parts || t->n_parts > 40) {
			t->n_parts = 0;
			add_part(t, prng(s), 2000);
		}
		for (uint32_t k = 0; k < 4; k++) {
			branch = *t;
			say(&branch, s, i * 5000 + k * 1000, 1 + i % 3, between(s, 30, 200), between(s, 100, 500));
			if (k == chosen)
				grown = branch;
		}
		*t = grown;
	}
}

static void make(const char *name, uint64_t seed)
{
	if (!strcmp(name, "system"))
		make_system(&seed);
	else if (!strcmp(name, "chats"))
		make_chats(&seed);
	else if (!strcmp(name, "agents"))
		make_agents(&seed);
	else
		errx(2, "no trace is called %s", name);
}

/* --- replay --- */

static int import(struct kb_backend *be, int fd, uint64_t bytes, struct kb_pool **out)
{
	*out = (struct kb_pool *)be;
	return 0;
}

static void unimport(struct kb_backend *be, struct kb_pool *pool)
{
}

static const struct kb_ops ops = { .pool_import = import, .pool_free = unimport };
static struct kb_backend backend = { .ops = &ops };

struct request {
	uint64_t ns;
	uid_t uid;
	uint32_t n, n_generated;
	int32_t tokens[MAX_TOKENS];
};

static bool parse(char *line, struct request *r)
{
	char *word = strtok(line, " \n"), *end;
	uint64_t fields[3];

	for (int i = 0; i < 3; i++, word = strtok(NULL, " \n")) {
		if (!word)
			return false;
		fields[i] = strtoull(word, &end, 10);
		if (*end)
			return false;
	}
	*r = (struct request){ .ns = fields[0] * 1000000, .uid = (uid_t)fields[1], .n_generated = (uint32_t)fields[2] };
	for (; word; word = strtok(NULL, " \n")) {
		uint64_t seed = strtoull(word, &end, 10), count = *end == ':' ? strtoull(end + 1, &end, 10) : 0;

		for (; count && r->n < MAX_TOKENS; count--)
			r->tokens[r->n++] = (int32_t)(prng(&seed) >> 33);
	}
	return r->n > r->n_generated;
}

struct replay {
	struct accounts *accounts;
	struct pool *pool;
	struct pool_root *root;
	struct tree *tree;
	uint32_t *blocks;		/* [capacity] of the request */
	double asked, saved;		/* work, in tokens at position 0 */
};

/* Prefill of n tokens from position 0 on, where a token at 4,096 takes twice the work of one at 0. */
static double work(uint32_t n)
{
	return n + (double)n * n / 8192;
}

struct result {
	double found, saved;		/* % of prompt tokens, % of the work */
};

static void replay_init(struct replay *p, uint32_t n_blocks, enum evict_policy policy)
{
	struct kb_geometry g = { .block_bytes = BLOCK_BYTES, .block_tokens = BLOCK_TOKENS };
	struct account_limits limits;
	int e;

	for (int i = 0; i < ACCOUNT_N_KINDS; i++)
		limits.max[i] = UINT64_MAX;
	e = accounts_new(&p->accounts, &limits);
	if (!e)
		e = pool_new(&p->pool, &backend, p->accounts, n_blocks * BLOCK_BYTES, BLOCK_BYTES);
	if (!e)
		e = pool_root_new(&p->root, p->pool, &g);
	if (!e)
		e = tree_new(&p->tree, &(struct tree_config){
			.accounts = p->accounts, .root = p->root, .policy = policy });
	p->blocks = calloc(n_blocks, sizeof(*p->blocks));
	if (e || !p->blocks)
		errx(1, "a pool of %u blocks can't be made", n_blocks);
}

static void replay_deinit(struct replay *p)
{
	free(p->blocks);
	tree_free(p->tree);
	pool_root_free(p->root);
	pool_free(p->pool);
	accounts_free(p->accounts);
}

/* A block of the request's own, with the place made for it. */
static bool get_block(struct replay *p, const struct request *r, uint32_t *block)
{
	int e;

	while ((e = pool_block_get(p->root, r->uid, block)) == POOL_E_FULL)
		if (!tree_evict(p->tree, NULL, r->ns))
			return false;
	return !e;
}

static void replay(struct replay *p, const struct request *r)
{
	uint32_t n_prompt = r->n - r->n_generated, n = 0, n_stored = r->n - 1;	/* the last has no KV */
	struct tree_path path;
	struct tree_match m;
	char name[32];

	snprintf(name, sizeof(name), "uid:%u", (unsigned)r->uid);
	if (tree_path_init(&path, p->tree, (struct tree_name){ name, strlen(name) }, r->uid,
			   &(struct evict_terms){ 0 }, r->ns))
		return;
	tree_lookup(&path, r->tokens, n_prompt, false, NULL, 0, r->ns, &m);
	tree_tail_done(&path);
	p->asked += work(n_prompt);
	p->saved += work(m.n_tokens);
	for (uint32_t done = tree_path_n_blocks(&path) * BLOCK_TOKENS; done < n_stored; done += BLOCK_TOKENS, n++) {
		if (!get_block(p, r, &p->blocks[n]))
			break;
		if (n_stored - done < BLOCK_TOKENS)
			tree_keep_tail(&path, r->tokens + done, n_stored - done, p->blocks[n], r->ns);
		else
			tree_enter(&path, r->tokens + done, r->ns, &p->blocks[n]);
	}
	tree_path_deinit(&path, r->ns);
	while (n)
		pool_block_unref(p->root, p->blocks[--n]);
}

static struct result run_one(FILE *f, uint32_t n_blocks, enum evict_policy policy)
{
	static struct request r;
	struct replay p = { 0 };
	struct tree_stats stats;
	struct result result;
	char *line = NULL;
	size_t size = 0;

	replay_init(&p, n_blocks, policy);
	rewind(f);
	for (unsigned i = 1; getline(&line, &size, f) > 0; i++) {
		if (!parse(line, &r))
			errx(1, "line %u is not a request", i);
		replay(&p, &r);
	}
	tree_stats(p.tree, &stats);
	free(line);
	replay_deinit(&p);
	result = (struct result){
		.found = 100.0 * (double)stats.hit_tokens / (double)MAX(stats.asked_tokens, UINT64_C(1)),
		.saved = 100.0 * p.saved / MAX(p.asked, 1.0),
	};
	return result;
}

static void run(const char *path, const char *const *sizes, int n_sizes)
{
	static const char *const usual[] = { "250", "500", "1000", "2000", "4000", "100000" };
	FILE *f = fopen(path, "r");

	if (!f)
		err(1, "%s", path);
	if (!n_sizes) {
		sizes = usual;
		n_sizes = ARRAY_SIZE(usual);
	}
	printf("%s\n%10s  tokens found, %%   prefill saved, %%\n%10s %8s %8s  %8s %8s\n", path, "", "blocks", "lru",
	       "score", "lru", "score");
	for (int i = 0; i < n_sizes; i++) {
		uint32_t n = (uint32_t)strtoul(sizes[i], NULL, 10);
		struct result lru = run_one(f, n, EVICT_LRU), score = run_one(f, n, EVICT_SCORE);

		printf("%10u %8.2f %8.2f  %8.2f %8.2f\n", n, lru.found, score.found, lru.saved, score.saved);
	}
	fclose(f);
}

int main(int argc, char **argv)
{
	if (argc >= 3 && !strcmp(argv[1], "make"))
		make(argv[2], argc > 3 ? strtoull(argv[3], NULL, 10) : 1);
	else if (argc >= 3 && !strcmp(argv[1], "run"))
		run(argv[2], (const char *const *)argv + 3, argc - 3);
	else
		errx(2, "usage: cache-replay make NAME [SEED] | run TRACE [BLOCKS]...");
	return 0;
}
