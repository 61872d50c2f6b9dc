/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes out of one engine and into another is found there, to the token; what verification computes again is what
 * is stored, unless somebody has changed it.  The fake model finds a block that is wrong.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <unistd.h>

#include "daemon/engine/share.h"
#include "tests/unit/engine/fake-model.h"
#include "tests/unit/engine/fake-client.h"
#include "tests/unit/engine/fixture.h"

#define N_REQUESTS 4u
#define N_PROMPT 70u				/* four blocks and a tail, */
#define N_SHARED 32u				/* of which two blocks are in every prompt */
#define N_ENTRIES (2 + N_REQUESTS * 3)
#define N_TOKENS (N_SHARED + N_REQUESTS * (N_PROMPT - N_SHARED))
#define BLOCK_BYTES 1024u			/* of the geometry that the fake model says */

/* A file in memory. */
struct file {
	uint8_t *data;
	size_t n, at;
	uint32_t n_progress, cancel_after;	/* 0: never */
};

static int file_write(void *arg, const void *data, size_t n)
{
	struct file *f = arg;

	f->data = realloc(f->data, f->n + n);
	assert_non_null(f->data);
	memcpy(f->data + f->n, data, n);
	f->n += n;
	return 0;
}

static int file_read(void *arg, void *data, size_t n, size_t *got)
{
	struct file *f = arg;

	*got = MIN(n, f->n - f->at);
	memcpy(data, f->data + f->at, *got);
	f->at += *got;
	return 0;
}

static bool file_is_cancelled(void *arg)
{
	struct file *f = arg;

	return f->cancel_after && f->n_progress >= f->cancel_after;
}

static void file_progress(void *arg, uint64_t done, uint64_t total)
{
	struct file *f = arg;

	f->n_progress++;
}

static struct share_ops ops_of(struct file *f)
{
	return (struct share_ops){
		.write = file_write, .read = file_read, .is_cancelled = file_is_cancelled, .progress = file_progress,
		.arg = f,
	};
}

/* --- a backend whose blocks can be copied ------------------------------------------------------------- */

static int read_block(struct kb_pool *pool, const struct kb_geometry *g, uint32_t block, uint32_t n_tokens, void *dst)
{
	memcpy(dst, pool->base + kb_block_offset(g, block), kb_tokens_bytes(g, n_tokens));
	return 0;
}

static int write_block(struct kb_pool *pool, const struct kb_geometry *g, uint32_t block, uint32_t n_tokens,
		       const void *src)
{
	memcpy(pool->base + kb_block_offset(g, block), src, kb_tokens_bytes(g, n_tokens));
	return 0;
}

static struct kb_ops ops;
static struct kb_backend backend = { .ops = &ops };

static struct fixture start_copying(void)
{
	struct engine_config config = config_default;

	ops = fake_ops;
	ops.block_read = read_block;
	ops.block_write = write_block;
	config.backend = &backend;
	fake_model.block_bytes = BLOCK_BYTES;
	return start(&config);
}

static struct fake_request request(uint64_t id, uint64_t i, uid_t uid, const char *ns)
{
	struct fake_request r = make_request(id, uid, N_PROMPT, 0);

	for (size_t k = 0; k < N_PROMPT; k++)
		r.prompt[k] = (int32_t)(3 + (k < N_SHARED ? k : k * k + 5 * i) % (FAKE_N_VOCAB - 3));
	r.params.ns = ns;
	return r;
}

/* Runs it alone; returns the rows that it took. */
static uint64_t run(struct fixture *f, const struct fake_request *r)
{
	uint64_t before = fake.n_rows_seen;

	submit(f, r);
	fake_client_wait_released(f->client, (uint32_t)r->id + 1);
	check_whole(f, r);
	return fake.n_rows_seen - before;
}

/* Ids from 0 on; returns the next. */
static uint64_t fill(struct fixture *f, const char *ns)
{
	for (uint64_t i = 0; i < N_REQUESTS; i++) {
		struct fake_request r = request(i, i, 1, ns);

		assert_int_equal(run(f, &r), i ? N_PROMPT - N_SHARED : N_PROMPT);
	}
	return N_REQUESTS;
}

/* Returns what the uid was charged for it. */
static uint64_t export(struct file *out, const char *filter, uint64_t n_entries)
{
	struct fixture f = start_copying();
	struct cache_scope scope = { .uid = 1, .own = "a" };
	struct share_ops share = ops_of(out);
	struct share_figures figures;
	struct diag diag = DIAG_NULL;
	uint64_t charged;

	fill(&f, "a");
	charged = account_used(f.accounts, 1, ACCOUNT_KV);
	snprintf(scope.filter, sizeof(scope.filter), "%s", filter);
	assert_int_equal(engine_export(f.engine, f.em, &scope, &share, &figures, &diag), 0);
	assert_int_equal(figures.n_entries, n_entries);
	assert_int_equal(figures.n_tokens, n_entries ? N_TOKENS : 0);
	stop(&f);
	return charged;
}

static int import(struct fixture *f, struct file *in, const char *ns, struct share_figures *figures)
{
	const struct import_place place = { .uid = 2, .ns = ns };
	struct share_ops share = ops_of(in);
	struct diag diag = DIAG_NULL;
	int r;

	in->at = 0;
	r = engine_import(f->engine, f->em, &place, &share, figures, &diag);
	assert_int_equal(r == SHARE_E_FILE, diag.text[0] != 0);
	return r;
}

/* --- out and in ------------------------------------------------------------------------------------------ */

static void test_there_and_back(void **state)
{
	struct file file = { 0 };
	struct share_figures figures;
	struct fixture f;
	uint64_t id = 0, charged = export(&file, "a", N_ENTRIES);

	(void)state;
	f = start_copying();
	assert_int_equal(import(&f, &file, "b", &figures), 0);
	assert_int_equal(figures.n_entries, N_ENTRIES);
	assert_int_equal(figures.n_tokens, N_TOKENS);
	assert_int_equal(figures.n_left + figures.n_there, 0);
	assert_int_equal(account_used(f.accounts, 2, ACCOUNT_KV), charged);
	for (uint64_t i = 0; i < N_REQUESTS; i++) {
		struct fake_request r = request(id++, i, 2, "b");

		assert_int_equal(run(&f, &r), 1);
		assert_int_equal(f.client->results[r.id].n_cached, N_PROMPT - 1);
	}
	/* Nobody else finds it. */
	assert_int_equal(run(&f, &(struct fake_request[]){ request(id++, 0, 2, "c") }[0]), N_PROMPT);
	assert_int_equal(import(&f, &file, "b", &figures), 0);
	assert_int_equal(figures.n_entries, 0);
	assert_int_equal(figures.n_there, N_ENTRIES);
	stop(&f);
	free(file.data);
}

static void test_filter(void **state)
{
	struct file file = { 0 };

	(void)state;
	export(&file, "elsewhere", 0);
	free(file.data);
}

/* A beginning of the file, or one with a wrong byte: what came before it is good and stays, the rest is refused. */
static void test_damaged(void **state)
{
	struct file file = { 0 };
	struct share_figures figures;
	uint64_t most = 0;
	size_t whole;

	(void)state;
	export(&file, "a", N_ENTRIES);
	whole = file.n;
	for (size_t at = 0; at < whole; at += whole / 23) {
		for (int cut = 0; cut < 2; cut++) {
			struct fixture f = start_copying();
			struct fake_request r = request(0, 0, 2, "b");

			file.n = cut ? at : whole;
			file.data[at] ^= cut ? 0 : 0x40;
			assert_int_not_equal(import(&f, &file, "b", &figures), 0);
			/* All of them only where nothing but the end is wrong. */
			assert_true(figures.n_entries < N_ENTRIES || at > whole - whole / 12);
			most = MAX(most, figures.n_entries);
			assert_in_range(run(&f, &r), 1, N_PROMPT);
			file.data[at] ^= cut ? 0 : 0x40;
			stop(&f);
		}
	}
	assert_true(most > N_ENTRIES / 2);
	free(file.data);
}

/* --- verification ------------------------------------------------------------------------------------------ */

static int verify(struct fixture *f, struct file *file, struct share_figures *figures, struct diag *diag)
{
	const struct cache_scope scope = { .uid = 1, .own = "a", .filter = "a" };
	struct share_ops share = ops_of(file);

	*diag = DIAG_NULL;
	return engine_verify(f->engine, f->em, &scope, 1000, &share, figures, diag);
}

/* Changes a bit of what is stored of the request's token at a position. */
static void spoil(struct fixture *f, const struct fake_request *r, uint32_t position)
{
	uint64_t hash = fake_model.first_hash, at;
	struct fake_kv kv;
	int pool, index;

	for (uint32_t i = 0; i <= position; i++)
		hash = fake_hash(hash, r->prompt[i]);
	engine_kept_fds(f->engine, &pool, &index);
	for (at = 0; pread(pool, &kv, sizeof(kv), (off_t)at) == sizeof(kv); at += BLOCK_BYTES / 16)
		if (kv.hash == hash && kv.position == position)
			break;
	assert_true(kv.hash == hash && kv.position == position);
	kv.hash ^= 1 << 7;
	assert_int_equal(pwrite(pool, &kv, sizeof(kv), (off_t)at), sizeof(kv));
}

static void test_verify(void **state)
{
	struct fixture f = start_copying();
	struct share_figures figures;
	struct file file = { 0 };
	struct fake_request r;
	struct diag diag;
	uint64_t id = fill(&f, "a");

	(void)state;
	assert_int_equal(verify(&f, &file, &figures, &diag), 0);
	assert_int_equal(figures.n_entries, N_ENTRIES);
	assert_int_equal(figures.n_differ, 0);
	assert_string_equal(diag.text, "");
	assert_true(file.n_progress > 0);

	/* The third block of one prompt: it goes, with what follows it, and is computed again when it is wanted. */
	r = request(0, 1, 1, "a");
	spoil(&f, &r, N_SHARED + 3);
	assert_int_equal(verify(&f, &file, &figures, &diag), 0);
	assert_int_equal(figures.n_differ, 1);
	assert_true(diag.text[0]);
	r.id = id++;
	assert_int_equal(run(&f, &r), N_PROMPT - N_SHARED);
	r = request(id++, 2, 1, "a");
	assert_int_equal(run(&f, &r), 1);
	assert_int_equal(verify(&f, &file, &figures, &diag), 0);
	assert_int_equal(figures.n_entries, N_ENTRIES);
	assert_int_equal(figures.n_differ, 0);
	stop(&f);
}

static void test_verify_cancelled(void **state)
{
	struct fixture f = start_copying();
	struct file file = { .cancel_after = 1 };
	struct share_figures figures;
	struct fake_request r;
	struct diag diag;
	uint64_t id = fill(&f, "a");

	(void)state;
	assert_int_equal(verify(&f, &file, &figures, &diag), -ECANCELED);
	assert_true(figures.n_entries < N_ENTRIES);
	r = request(id, 3, 1, "a");
	assert_int_equal(run(&f, &r), 1);
	stop(&f);
}

/* Without a way to copy blocks nothing goes out, comes in or is compared. */
static void test_unable(void **state)
{
	const struct cache_scope scope = { .uid = 1, .own = "a", .filter = "a" };
	struct fixture f = start(&config_default);
	struct share_figures figures;
	struct file file = { 0 };
	struct share_ops share = ops_of(&file);
	struct diag diag = DIAG_NULL;

	(void)state;
	assert_int_equal(engine_export(f.engine, f.em, &scope, &share, &figures, &diag), SHARE_E_UNABLE);
	assert_int_equal(import(&f, &file, "b", &figures), SHARE_E_UNABLE);
	assert_int_equal(verify(&f, &file, &figures, &diag), SHARE_E_UNABLE);
	stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_there_and_back), cmocka_unit_test(test_filter),
		cmocka_unit_test(test_damaged),	       cmocka_unit_test(test_verify),
		cmocka_unit_test(test_verify_cancelled), cmocka_unit_test(test_unable),
	};

	alarm(120);	/* a hang is a failure */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
