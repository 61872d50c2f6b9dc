/* SPDX-License-Identifier: Apache-2.0 */
/* What is on disk of a model, but of another identity, is told when the model's root is opened, once, and counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/unit/cache/store-fixture.h"

/* KV types have words here, nothing else has. */
static void describe(const struct store_field *f, char *out, size_t size)
{
	if (f->tag == STORE_TAG_KV_TYPE)
		snprintf(out, size, "%.*s", (int)f->n, (const char *)f->data);
}

static struct store_root *open_as(struct fixture *f, const char *model, const char *type, const char *level)
{
	struct store_identity id = { 0 };
	struct store_root *root;

	store_identity_add(&id, STORE_TAG_MODEL, model, (uint32_t)strlen(model));
	store_identity_add(&id, STORE_TAG_KV_TYPE, type, (uint32_t)strlen(type));
	if (level)
		store_identity_add(&id, STORE_TAG_CPU_LEVEL, level, (uint32_t)strlen(level));
	assert_int_equal(store_root_new(&root, f->store, &id, "tiny", BT, BLOCK), 0);
	settle(f);
	return root;
}

/* Opens it, stores something there and puts it away. */
static void leave(struct fixture *f, const char *model, const char *type, const char *level)
{
	struct store_root *root = open_as(f, model, type, level);
	int32_t t[8];
	uint64_t ids[8];

	make_tokens(t, 8, 1);
	assert_int_equal(put_path(f, root, "n", t, 8, ids), 2);
	store_root_free(root);
	settle(f);
}

static void restart(struct fixture *f)
{
	fixture_close(f);
	fixture_open(f);
	f->n_notes = 0;
	f->last_note[0] = '\0';
}

static void init(struct fixture *f)
{
	fixture_init(f);
	f->model = "unrelated";
	f->config.describe = describe;
	fixture_open(f);
}

static void check_note(const struct fixture *f, const char *words)
{
	static const char begin[] = "tiny: 1 MiB of the cache on disk are of no use to it now, "
				    "and go first when room is needed: ";
	char want[512];

	snprintf(want, sizeof(want), "%s%s", begin, words);
	assert_string_equal(f->last_note, want);
}

/* By the process that left it and by the next one. */
static void test_told_once(void **state)
{
	struct store_root *root;
	struct fixture f;
	uint64_t before;

	init(&f);
	leave(&f, "m", "f16", NULL);
	assert_int_equal(f.n_notes, 0);
	for (int again = 0; again < 2; again++) {
		assert_int_equal(stats_of(&f).useless_bytes, 0);
		before = stats_of(&f).bytes;
		root = open_as(&f, "m", "q8", NULL);
		assert_int_equal(f.n_notes, 1);
		check_note(&f, "the type of keys and values was f16, is q8");
		assert_true(stats_of(&f).useless_bytes > 2 * BLOCK && stats_of(&f).useless_bytes < before);
		store_root_free(root);
		settle(&f);
		restart(&f);
	}
	/* Whoever comes back finds all, and then the other one is of no use. */
	root = open_as(&f, "m", "f16", NULL);
	assert_int_equal(f.n_notes, 1);
	check_note(&f, "the type of keys and values was q8, is f16");
	assert_int_equal(f.n_events, 0);
	assert_string_equal(stats_of(&f).trouble, "");
	store_root_free(root);
	fixture_deinit(&f);
}

static void test_several(void **state)
{
	static const char *const types[] = { "a", "b", "c", "d" };
	struct store_root *root;
	struct fixture f;

	init(&f);
	for (int i = 0; i < 4; i++)
		leave(&f, "m", types[i], NULL);
	restart(&f);
	root = open_as(&f, "m", "x", NULL);
	assert_int_equal(f.n_notes, 1);
	assert_non_null(strstr(f.last_note, " is x; "));
	assert_non_null(strstr(f.last_note, "; and others"));
	store_root_free(root);
	fixture_deinit(&f);
}

/* No words: that it differs.  A field that only one has. */
static void test_other_fields(void **state)
{
	struct store_root *root;
	struct fixture f;

	init(&f);
	leave(&f, "m", "f16", "avx2");
	root = open_as(&f, "m", "f16", "c");
	check_note(&f, "the CPU level differs");
	store_root_free(root);
	leave(&f, "n", "f16", NULL);
	root = open_as(&f, "n", "f16", "c");
	check_note(&f, "the CPU level differs");
	store_root_free(root);
	/* It has one more than ours. */
	leave(&f, "o", "f16", "c");
	root = open_as(&f, "o", "f16", NULL);
	check_note(&f, "what it depends on differs");
	store_root_free(root);
	fixture_deinit(&f);
}

/* Of other models, of those that are in use, of damaged ones, and where nobody asks. */
static void test_not_told(void **state)
{
	struct store_root *root, *other;
	char path[PATH_MAX + 16], name[PATH_MAX];
	struct store_identity id;
	struct fixture f;

	init(&f);
	leave(&f, "m", "f16", NULL);
	root = open_as(&f, "mm", "q8", NULL);
	assert_int_equal(f.n_notes, 0);
	store_root_free(root);
	settle(&f);

	root = open_as(&f, "m", "f16", NULL);
	other = open_as(&f, "m", "q8", NULL);
	assert_int_equal(f.n_notes, 0);
	assert_int_equal(stats_of(&f).useless_bytes, 0);
	store_root_free(other);
	store_root_free(root);
	settle(&f);
	fixture_deinit(&f);

	fixture_init(&f);
	f.model = "m";
	fixture_open(&f);
	root_dir(&f, name, sizeof(name));
	fixture_close(&f);
	snprintf(path, sizeof(path), "%s/identity", name);
	assert_int_equal(truncate(path, 20), 0);
	f.model = "unrelated";
	fixture_open(&f);
	root = open_as(&f, "m", "q8", NULL);
	assert_int_equal(f.n_notes, 0);
	store_root_free(root);
	settle(&f);

	identity_of(&id, "m");
	assert_int_equal(store_root_new(&root, f.store, &id, NULL, BT, BLOCK), 0);
	settle(&f);
	assert_int_equal(f.n_notes, 0);
	store_root_free(root);
	fixture_deinit(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_told_once),
		cmocka_unit_test(test_several),
		cmocka_unit_test(test_other_fields),
		cmocka_unit_test(test_not_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
