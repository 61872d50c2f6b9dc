/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exported blocks: what was written is read, to the bit; no byte that is flipped, cut, left out or moved is taken for
 * what it was not; and the bytes are those that EXPORT.md says.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/cache/export-format.h"
#include "ipc/base/checked.h"
#include "ipc/base/hash.h"

#define BLOCK_TOKENS 16u
#define BLOCK_BYTES 64u
#define N_VOCAB 100u

struct bytes {
	uint8_t data[1 << 16];
	size_t n, at;
};

static int read_bytes(void *arg, void *data, size_t n)
{
	struct bytes *b = arg;

	if (n > b->n - b->at)
		return EXPORT_E_CUT;
	memcpy(data, b->data + b->at, n);
	b->at += n;
	return 0;
}

static struct export_shape shape_of(const char *model)
{
	struct export_shape s = { .block_tokens = BLOCK_TOKENS, .block_bytes = BLOCK_BYTES, .n_vocab = N_VOCAB };

	store_identity_add(&s.identity, STORE_TAG_MODEL, model, (uint32_t)strlen(model));
	store_identity_add(&s.identity, STORE_TAG_KV_TYPE, "\0\0\0", 4);
	store_identity_add(&s.identity, STORE_TAG_CPU_LEVEL, "avx2", 4);
	return s;
}

struct item {
	struct export_record r;
	uint8_t kv[BLOCK_BYTES];
};

static struct item item_of(uint32_t n_tokens, uint32_t first, const char *key, unsigned seed)
{
	struct item i = { .r = { .n_tokens = n_tokens, .first = first, .n_key = (uint32_t)strlen(key) } };

	memcpy(i.r.key, key, i.r.n_key);
	for (uint32_t k = 0; k < n_tokens; k++)
		i.r.tokens[k] = (int32_t)((seed * 7 + k) % N_VOCAB);
	for (uint32_t k = 0; k < n_tokens * (BLOCK_BYTES / BLOCK_TOKENS); k++)
		i.kv[k] = (uint8_t)(seed * 31 + k * 5);
	i.r.ttl_ns = seed % 3 ? 0 : seed * 1000u;
	return i;
}

/* A branch, a tail, another key. */
static size_t make_items(struct item *out)
{
	size_t n = 0;

	out[n++] = item_of(16, 0, "", 1);
	out[n++] = item_of(16, 16, "", 2);
	out[n++] = item_of(5, 32, "", 3);
	out[n++] = item_of(7, 32, "", 4);
	out[n++] = item_of(16, 16, "", 5);
	out[n++] = item_of(3, 0, "", 6);
	out[n++] = item_of(16, 0, "k \xc3\xa9", 7);
	out[n++] = item_of(16, 16, "k \xc3\xa9", 8);
	return n;
}

static void put(struct bytes *b, struct export_stream *s, const struct export_shape *shape, const struct item *i)
{
	uint64_t n = export_kv_bytes(shape, i->r.n_tokens);

	export_put_record(s, shape, &i->r, i->kv, b->data + b->n);
	b->n += export_head_bytes(&i->r);
	memcpy(b->data + b->n, i->kv, n);
	b->n += n;
}

static void write_all(struct bytes *b, const struct item *items, size_t n)
{
	struct export_shape shape = shape_of("model");
	struct export_stream s = { 0 };

	b->n = export_put_header(&s, &shape, b->data);
	b->at = 0;
	for (size_t i = 0; i < n; i++)
		put(b, &s, &shape, &items[i]);
	export_put_end(&s, b->data + b->n);
	b->n += EXPORT_RECORD_HEAD;
}

/* Reads all; what is taken has to be the items, in order.  Returns how many, *end: what ended it. */
static size_t read_all(struct bytes *b, const struct item *items, size_t n, int *end)
{
	struct export_shape shape = shape_of("model");
	struct export_stream s;
	struct diag diag = DIAG_NULL;
	struct item got;
	size_t i = 0;

	b->at = 0;
	*end = export_read_header(&s, &shape, read_bytes, b, &diag);
	for (; !*end; i++) {
		memset(&got, 0, sizeof(got));
		*end = export_read_record(&s, &shape, read_bytes, b, &got.r, got.kv, &diag);
		if (*end)
			break;
		assert_true(i < n);
		assert_memory_equal(&got.r, &items[i].r, sizeof(got.r));
		assert_memory_equal(got.kv, items[i].kv, export_kv_bytes(&shape, got.r.n_tokens));
	}
	if ((*end == EXPORT_E_BAD || *end == EXPORT_E_OTHER) && !diag.text[0])
		fail_msg("it does not say what is wrong");
	return i;
}

static void test_round_trip(void **state)
{
	static struct item items[16];
	static struct bytes b;
	size_t n = make_items(items);
	int end;

	write_all(&b, items, n);
	assert_int_equal(read_all(&b, items, n, &end), n);
	assert_int_equal(end, EXPORT_E_END);
	assert_int_equal(b.at, b.n);
	/* What follows is not looked at. */
	b.data[b.n++] = 1;
	assert_int_equal(read_all(&b, items, n, &end), n);
	assert_int_equal(end, EXPORT_E_END);
	write_all(&b, items, 0);
	assert_int_equal(read_all(&b, items, 0, &end), 0);
	assert_int_equal(end, EXPORT_E_END);
}

static uint64_t u64_at(const uint8_t *p)
{
	uint64_t v = 0;

	for (int i = 7; i >= 0; i--)
		v = v << 8 | p[i];
	return v;
}

/* By the document alone. */
static void test_bytes(void **state)
{
	static struct item items[16];
	static struct bytes b;
	size_t n = make_items(items), n_fields = 3 * 8 + 5 + 4 + 4;
	const uint8_t *p = b.data;
	uint8_t head[48];
	uint64_t sum;

	write_all(&b, items, n);
	assert_memory_equal(p, "KVDEXPT\n\1\0\0\0\x10\0\0\0\x40\0\0\0\0\0\0\0", 24);
	assert_int_equal(u64_at(p + 24), n_fields);
	assert_memory_equal(p + 32, "\1\0\0\0\5\0\0\0model\2\0\0\0\4\0\0\0\0\0\0\0\7\0\0\0\4\0\0\0avx2", n_fields);
	sum = hash_u64(p, 32 + n_fields, 0);
	assert_int_equal(u64_at(p + 32 + n_fields), sum);
	p += 32 + n_fields + 8;
	for (size_t i = 0; i < n; i++) {
		const struct export_record *r = &items[i].r;
		size_t n_names = r->n_key + 4 * r->n_tokens, n_kv = 4 * r->n_tokens;

		memcpy(head, p, sizeof(head));
		memcpy(head + 40, &sum, 8);	/* as it is on machines that this runs on */
		assert_int_equal(u64_at(p), UINT64_C(1) | (uint64_t)r->n_tokens << 32);
		assert_int_equal(u64_at(p + 8), r->first | (uint64_t)r->n_key << 32);
		assert_int_equal(u64_at(p + 16), r->ttl_ns);
		assert_int_equal(u64_at(p + 24), n_kv);
		assert_int_equal(u64_at(p + 32), 0);
		assert_memory_equal(p + 48, r->key, r->n_key);
		sum = hash_u64(p + 48 + n_names, n_kv, hash_u64(p + 48, n_names, hash_u64(head, 48, 0)));
		assert_int_equal(u64_at(p + 40), sum);
		p += 48 + n_names + n_kv;
	}
	assert_int_equal(u64_at(p), 2);
	assert_int_equal(u64_at(p + 16), n);
	assert_ptr_equal(p + 48, b.data + b.n);
}

static void test_every_flip_and_cut(void **state)
{
	static struct item items[16];
	static struct bytes good, b;
	size_t n = make_items(items);
	int end;

	write_all(&good, items, n);
	for (size_t at = 0; at < good.n; at++) {
		b = good;
		b.data[at] ^= (uint8_t)(1u << (at * 5 % 8));
		read_all(&b, items, n, &end);
		if (end != EXPORT_E_BAD && end != EXPORT_E_OTHER && end != EXPORT_E_CUT)
			fail_msg("a flip at %zu ended with %d", at, end);
		b = good;
		b.n = at;
		read_all(&b, items, n, &end);
		assert_int_equal(end, EXPORT_E_CUT);
	}
}

/* Whole records, with checksums that were right where they were. */
static void test_missing_and_moved(void **state)
{
	static struct item items[16];
	static struct bytes good, b;
	size_t n = make_items(items), starts[17], at = 32 + 3 * 8 + 5 + 4 + 4 + 8;
	int end;

	write_all(&good, items, n);
	for (size_t i = 0; i < n; i++) {
		starts[i] = at;
		at += export_head_bytes(&items[i].r) + 4 * items[i].r.n_tokens;
	}
	starts[n] = at;
	for (size_t i = 0; i < n; i++) {
		size_t size = starts[i + 1] - starts[i];

		b = good;
		memmove(b.data + starts[i], b.data + starts[i + 1], good.n - starts[i + 1]);
		b.n -= size;
		assert_int_equal(read_all(&b, items, n, &end), i);
		assert_int_equal(end, EXPORT_E_BAD);
		/* Twice. */
		b = good;
		memmove(b.data + starts[i + 1], b.data + starts[i], good.n - starts[i]);
		b.n += size;
		assert_int_equal(read_all(&b, items, n, &end), i + 1);
		assert_int_equal(end, EXPORT_E_BAD);
	}
}

/* Made up, with checksums that fit. */
static void test_lies(void **state)
{
	struct export_shape shape = shape_of("model");
	static const struct {
		uint32_t n_tokens, first;
		const char *key;
		int32_t token;
	} lies[] = {
		{ 16, 48, "", 3 }, { 16, 33, "", 3 }, { 5, 33, "", 3 }, { 16, 16, "k", 3 }, { 16, 0x80000000u, "", 3 },
		{ 16, 0xfffffff0u, "", 3 }, { 16, 0x7ffffff0u, "", 3 }, { 16, 0, "a/b", 3 }, { 16, 0, "a\nb", 3 },
		{ 16, 0, "\xff", 3 }, { 16, 0, "\xc2\x85", 3 }, { 16, 32, "", -1 }, { 16, 32, "", N_VOCAB },
		{ 3, 0, "\x7f", 3 },
	};
	static struct item items[16];
	static struct bytes b;
	int end;

	for (size_t i = 0; i < ARRAY_SIZE(lies); i++) {
		struct export_stream s = { 0 };

		items[0] = item_of(16, 0, "", 1);
		items[1] = item_of(16, 16, "", 2);
		items[2] = item_of(lies[i].n_tokens, lies[i].first, lies[i].key, 3);
		items[2].r.tokens[1] = lies[i].token;
		b.n = export_put_header(&s, &shape, b.data);
		for (size_t k = 0; k < 3; k++)
			put(&b, &s, &shape, &items[k]);
		if (read_all(&b, items, 3, &end) != 2 || end != EXPORT_E_BAD)
			fail_msg("lie %zu was taken", i);
	}
	/* After a tail nothing follows it. */
	items[1] = item_of(4, 16, "", 2);
	items[2] = item_of(16, 32, "", 3);
	write_all(&b, items, 3);
	assert_int_equal(read_all(&b, items, 3, &end), 2);
	assert_int_equal(end, EXPORT_E_BAD);
	/* Where blocks are of use as a whole there is no tail at all. */
	shape.whole_blocks = true;
	for (uint32_t n = 15; n <= 16; n++) {
		struct export_stream r = { 0 }, w = { 0 };
		struct diag diag = DIAG_NULL;
		static struct item got;

		items[0] = item_of(n, 0, "", 1);
		b.at = 0;
		b.n = export_put_header(&w, &shape, b.data);
		put(&b, &w, &shape, &items[0]);
		assert_int_equal(export_read_header(&r, &shape, read_bytes, &b, &diag), 0);
		assert_int_equal(export_read_record(&r, &shape, read_bytes, &b, &got.r, got.kv, &diag),
				 n < 16 ? EXPORT_E_BAD : 0);
	}
}

static void test_other_shapes(void **state)
{
	struct export_shape shape = shape_of("model"), other;
	struct export_stream s = { 0 };
	static struct bytes b;
	struct diag diag;

	b.n = export_put_header(&s, &shape, b.data);
#define REFUSES(WORD) do { \
		diag = DIAG_NULL; \
		b.at = 0; \
		assert_int_equal(export_read_header(&s, &other, read_bytes, &b, &diag), EXPORT_E_OTHER); \
		if (!strstr(diag.text, WORD)) \
			fail_msg("%s", diag.text); \
	} while (0)
	other = shape_of("other");
	REFUSES("model");
	other = shape_of("longer name");
	REFUSES("model");
	other = shape;
	other.identity.bytes[other.identity.n - 1] = '1';
	REFUSES("CPU level");
	other = shape;
	store_identity_add(&other.identity, STORE_TAG_NUMERICS, "\1\0\0", 4);
	REFUSES("numerics");
	other = (struct export_shape){ .block_tokens = BLOCK_TOKENS, .block_bytes = BLOCK_BYTES };
	REFUSES("not the one");
	other = shape;
	other.block_tokens = 32;
	other.block_bytes *= 2;
	REFUSES("tokens");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_every_flip_and_cut),
		cmocka_unit_test(test_missing_and_moved),
		cmocka_unit_test(test_lies),
		cmocka_unit_test(test_other_shapes),
	};

	return cmocka_run_group_tests_name("export-format", tests, NULL, NULL);
}
