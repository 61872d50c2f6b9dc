/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header reader against files that are right, wrong in one place, cut at
 * every byte, and damaged at random.
 */
#include <fcntl.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/model/gguf.h"
#include "ipc/base/fd.h"

/* A file in the making. */
struct maker {
	uint8_t bytes[1 << 16];
	size_t n;
};

static void put(struct maker *m, const void *p, size_t n)
{
	assert_true(n <= sizeof(m->bytes) - m->n);
	memcpy(m->bytes + m->n, p, n);
	m->n += n;
}

static void put_u8(struct maker *m, uint8_t v)
{
	put(m, &v, sizeof(v));
}

static void put_u32(struct maker *m, uint32_t v)
{
	put(m, &v, sizeof(v));
}

static void put_u64(struct maker *m, uint64_t v)
{
	put(m, &v, sizeof(v));
}

static void put_f32(struct maker *m, float v)
{
	put(m, &v, sizeof(v));
}

static void put_string(struct maker *m, const char *s)
{
	put_u64(m, strlen(s));
	put(m, s, strlen(s));
}

static void put_key(struct maker *m, const char *key, uint32_t type)
{
	put_string(m, key);
	put_u32(m, type);
}

static void put_start(struct maker *m, uint64_t n_tensors, uint64_t n_kv)
{
	m->n = 0;
	put(m, "GGUF", 4);
	put_u32(m, 3);
	put_u64(m, n_tensors);
	put_u64(m, n_kv);
}

static void put_tensor(struct maker *m, const char *name, uint32_t type, uint64_t cols, uint64_t rows,
		       uint64_t offset)
{
	put_string(m, name);
	put_u32(m, 2);
	put_u64(m, cols);
	put_u64(m, rows);
	put_u32(m, type);
	put_u64(m, offset);
}

static void put_data(struct maker *m, size_t n)
{
	while (m->n % 32)
		put_u8(m, 0);
	for (size_t i = 0; i < n; i++)
		put_u8(m, (uint8_t)i);
}

/* One of everything. */
static void make_good(struct maker *m)
{
	put_start(m, 2, 9);
	put_key(m, "a.u32", GGUF_U32);
	put_u32(m, 7);
	put_key(m, "a.i8", GGUF_I8);
	put_u8(m, 0xff);
	put_key(m, "a.u64", GGUF_U64);
	put_u64(m, UINT64_MAX);
	put_key(m, "a.f32", GGUF_F32);
	put_f32(m, 0.5f);
	put_key(m, "a.bool", GGUF_BOOL);
	put_u8(m, 1);
	put_key(m, "a.string", GGUF_STRING);
	put_string(m, "text");
	put_key(m, "b.strings", GGUF_ARRAY);
	put_u32(m, GGUF_STRING);
	put_u64(m, 3);
	put_string(m, "one");
	put_string(m, "");
	put_string(m, "three");
	put_key(m, "a.ints", GGUF_ARRAY);
	put_u32(m, GGUF_I32);
	put_u64(m, 2);
	put_u32(m, 5);
	put_u32(m, (uint32_t)-6);
	put_key(m, "a.strings", GGUF_ARRAY);
	put_u32(m, GGUF_STRING);
	put_u64(m, 1);
	put_string(m, "alone");
	put_tensor(m, "second", 0, 4, 2, 64);
	put_tensor(m, "first", 8, 32, 1, 0);
	put_data(m, 96);
}

static int parse(struct gguf **g, const struct maker *m, struct diag *diag)
{
	return gguf_parse(g, m->bytes, m->n, m->n, diag);
}

static void check_good(const struct gguf *g)
{
	struct gguf_string s;
	struct gguf_array a;
	struct gguf_tensor t;
	struct diag diag = DIAG_NULL;
	uint64_t v = 0, i = 0;
	uint32_t u32 = 0;
	float f = 0;
	bool b = false;

	assert_int_equal(gguf_version(g), 3);
	assert_int_equal(gguf_get_u32(g, "a.u32", 7, 7, &u32, &diag), 0);
	assert_int_equal(u32, 7);
	assert_int_equal(gguf_get_uint(g, "a.u64", 0, UINT64_MAX, &v, &diag), 0);
	assert_true(v == UINT64_MAX);
	assert_int_equal(gguf_get_f32(g, "a.f32", &f, &diag), 0);
	assert_true(f == 0.5f);
	assert_int_equal(gguf_get_bool(g, "a.bool", &b, &diag), 0);
	assert_true(b);
	assert_int_equal(gguf_get_string(g, "a.string", &s, &diag), 0);
	assert_true(gguf_string_eq(s, "text"));
	assert_int_equal(gguf_get_array(g, "b.strings", GGUF_STRING, &a, &diag), 0);
	assert_int_equal(a.n, 3);
	assert_true(gguf_string_eq(gguf_array_string(&a, 0), "one"));
	assert_true(gguf_string_eq(gguf_array_string(&a, 1), ""));
	assert_true(gguf_string_eq(gguf_array_string(&a, 2), "three"));
	assert_int_equal(gguf_get_array(g, "a.strings", GGUF_STRING, &a, &diag), 0);
	assert_true(gguf_string_eq(gguf_array_string(&a, 0), "alone"));
	assert_int_equal(gguf_get_array(g, "a.ints", GGUF_I32, &a, &diag), 0);
	assert_int_equal(gguf_array_i32(&a, 1), -6);
	assert_true(gguf_array_uint(&a, 0, &v) && v == 5);
	assert_false(gguf_array_uint(&a, 1, &v));
	assert_true(gguf_has(g, "a.i8"));
	assert_false(gguf_has(g, "a.i"));
	assert_string_equal(diag.text, "");

	assert_int_equal(gguf_n_tensors(g), 2);
	gguf_tensor_at(g, 0, &t);
	assert_true(gguf_string_eq(t.name, "first"));
	assert_int_equal(t.n_bytes, 34);
	assert_int_equal(t.offset % 32, 0);
	assert_int_equal(gguf_tensor_find(g, "second", &i), 0);
	assert_int_equal(i, 1);
	gguf_tensor_at(g, i, &t);
	assert_int_equal(t.dims[0], 4);
	assert_int_equal(t.dims[1], 2);
	assert_int_equal(t.dims[2], 1);
	assert_int_equal(t.offset + t.n_bytes, gguf_file_size(g));
	assert_int_equal(gguf_tensor_find(g, "third", &i), GGUF_E_ABSENT);
}

static void test_good(void **state)
{
	_cleanup_(gguf_freep) struct gguf *g = NULL;
	static struct maker m;
	struct diag diag = DIAG_NULL;

	make_good(&m);
	assert_int_equal(parse(&g, &m, &diag), 0);
	check_good(g);
}

static void test_version_2(void **state)
{
	_cleanup_(gguf_freep) struct gguf *g = NULL;
	static struct maker m;

	make_good(&m);
	m.bytes[4] = 2;
	assert_int_equal(parse(&g, &m, NULL), 0);
	assert_int_equal(gguf_version(g), 2);
}

/* What is there, asked for as something else. */
static void test_getters_refuse(void **state)
{
	_cleanup_(gguf_freep) struct gguf *g = NULL;
	static struct maker m;
	struct diag diag = DIAG_NULL;
	struct gguf_string s = { "untouched", 9 };
	struct gguf_array a;
	uint32_t u32 = 42;
	float f = 42;
	bool b;

	make_good(&m);
	assert_int_equal(parse(&g, &m, NULL), 0);
	assert_int_equal(gguf_get_u32(g, "absent", 0, 9, &u32, &diag), GGUF_E_ABSENT);
	assert_string_equal(diag.text, "");
	assert_int_equal(gguf_get_u32(g, "a.i8", 0, 9, &u32, &diag), -EINVAL);
	assert_string_equal(diag.text, "metadata key \"a.i8\": is negative");
	diag = DIAG_NULL;
	assert_int_equal(gguf_get_u32(g, "a.u32", 0, 6, &u32, &diag), -EINVAL);
	assert_string_equal(diag.text, "metadata key \"a.u32\": 7 is out of range (0 to 6)");
	assert_int_equal(gguf_get_u32(g, "a.u64", 0, UINT32_MAX, &u32, NULL), -EINVAL);
	assert_int_equal(gguf_get_u32(g, "a.f32", 0, 9, &u32, NULL), -EINVAL);
	assert_int_equal(gguf_get_u32(g, "a.bool", 0, 9, &u32, NULL), -EINVAL);
	assert_int_equal(u32, 42);
	assert_int_equal(gguf_get_f32(g, "a.u32", &f, NULL), -EINVAL);
	assert_true(f == 42);
	assert_int_equal(gguf_get_bool(g, "a.u32", &b, NULL), -EINVAL);
	diag = DIAG_NULL;
	assert_int_equal(gguf_get_string(g, "a.strings", &s, &diag), -EINVAL);
	assert_string_equal(diag.text, "metadata key \"a.strings\": is of type array, not string");
	assert_true(gguf_string_eq(s, "untouched"));
	assert_int_equal(gguf_get_array(g, "a.string", GGUF_STRING, &a, NULL), -EINVAL);
	diag = DIAG_NULL;
	assert_int_equal(gguf_get_array(g, "a.ints", GGUF_F32, &a, &diag), -EINVAL);
	assert_string_equal(diag.text, "metadata key \"a.ints\": is an array of i32, not of f32");
}

/* Malformed files: one change each, and a piece of the sentence that must name it. */
struct bad {
	const char *says;
	void (*make)(struct maker *m);
};

#define BAD(name, says_, ...) \
	static void bad_##name(struct maker *m) { __VA_ARGS__ }

#define ONE_KEY put_start(m, 0, 1);
#define ONE_TENSOR put_start(m, 1, 0);
/* name, what it says, how it is made */
#define ALL_BAD(X) \
	X(empty, "magic", m->n = 0;) \
	X(four_bytes, "version", m->n = 0; put(m, "GGUF", 4);) \
	X(three_bytes, "magic", m->n = 0; put(m, "GGU", 3);) \
	X(magic, "magic: not a GGUF file", put_start(m, 0, 0); m->bytes[0] = 'g';) \
	X(version_0, "version: 0", put_start(m, 0, 0); m->bytes[4] = 0;) \
	X(version_1, "version: 1", put_start(m, 0, 0); m->bytes[4] = 1;) \
	X(version_4, "version: 4", put_start(m, 0, 0); m->bytes[4] = 4;) \
	X(version_big_endian, "big-endian", put_start(m, 0, 0); memcpy(m->bytes + 4, "\0\0\0\3", 4);) \
	X(tensors_2_32, "number of tensors: 4294967296", put_start(m, UINT64_C(1) << 32, 0);) \
	X(tensors_2_63, "number of tensors", put_start(m, UINT64_C(1) << 63, 0);) \
	X(tensors_max, "number of tensors", put_start(m, UINT64_MAX, 0);) \
	X(tensors_one_too_many, "number of tensors: 1 do not fit", put_start(m, 1, 0);) \
	X(keys_2_32, "number of metadata keys: 4294967295", put_start(m, 0, UINT32_MAX);) \
	X(keys_2_63, "number of metadata keys", put_start(m, 0, UINT64_C(1) << 63);) \
	X(keys_max, "number of metadata keys", put_start(m, 0, UINT64_MAX);) \
	X(key_empty, "metadata key 0: its name has 0 bytes", \
	  ONE_KEY put_key(m, "", GGUF_U8); put_u64(m, 0);) \
	X(key_length_2_32, "metadata key 0", ONE_KEY put_u64(m, UINT64_C(1) << 32); put_data(m, 64);) \
	X(key_length_2_63, "metadata key 0", ONE_KEY put_u64(m, UINT64_C(1) << 63); put_data(m, 64);) \
	X(key_length_max, "metadata key 0", ONE_KEY put_u64(m, UINT64_MAX); put_data(m, 64);) \
	X(key_not_utf8, "metadata key 0: its name \"a?b\" is not UTF-8", \
	  ONE_KEY put_key(m, "a\xff" "b", GGUF_U8); put_u64(m, 0);) \
	X(key_control, "metadata key 0: its name \"a?b\" has a control character", \
	  ONE_KEY put_key(m, "a\nb", GGUF_U8); put_u64(m, 0);) \
	X(key_twice, "metadata key \"same\": appears twice", put_start(m, 0, 2); \
	  put_key(m, "same", GGUF_U8); put_u8(m, 1); put_key(m, "same", GGUF_U8); put_u64(m, 1);) \
	X(value_type, "metadata key \"k\": value type 13", ONE_KEY put_key(m, "k", 13); put_u64(m, 0);) \
	X(value_type_max, "metadata key \"k\": value type 4294967295", \
	  ONE_KEY put_key(m, "k", UINT32_MAX); put_u64(m, 0);) \
	X(value_cut, "metadata key \"key\": 8 bytes", ONE_KEY put_key(m, "key", GGUF_U64); put_u32(m, 0);) \
	X(bool_2, "metadata key \"k\": 2 is not a bool", ONE_KEY put_key(m, "k", GGUF_BOOL); put_u8(m, 2);) \
	X(string_2_32, "metadata key \"k\": 4294967296 bytes", \
	  ONE_KEY put_key(m, "k", GGUF_STRING); put_u64(m, UINT64_C(1) << 32);) \
	X(string_max, "metadata key \"k\"", ONE_KEY put_key(m, "k", GGUF_STRING); put_u64(m, UINT64_MAX);) \
	X(array_of_arrays, "metadata key \"k\": arrays of arrays", \
	  ONE_KEY put_key(m, "k", GGUF_ARRAY); put_u32(m, GGUF_ARRAY); put_u64(m, 0);) \
	X(array_type, "metadata key \"k\": element type 99", \
	  ONE_KEY put_key(m, "k", GGUF_ARRAY); put_u32(m, 99); put_u64(m, 0);) \
	X(array_2_32, "metadata key \"k\": 4294967296 elements", \
	  ONE_KEY put_key(m, "k", GGUF_ARRAY); put_u32(m, GGUF_F32); put_u64(m, UINT64_C(1) << 32);) \
	X(array_wraps, "metadata key \"k\": 4611686018427387905 elements", \
	  ONE_KEY put_key(m, "k", GGUF_ARRAY); put_u32(m, GGUF_F32); put_u64(m, (UINT64_C(1) << 62) + 1); \
	  put_u64(m, 0);) \
	X(array_max, "metadata key \"k\"", \
	  ONE_KEY put_key(m, "k", GGUF_ARRAY); put_u32(m, GGUF_U8); put_u64(m, UINT64_MAX);) \
	X(array_bool, "metadata key \"k\": 3 is not a bool", \
	  ONE_KEY put_key(m, "k", GGUF_ARRAY); put_u32(m, GGUF_BOOL); put_u64(m, 2); put_u8(m, 1); \
	  put_u8(m, 3);) \
	X(strings_2_32, "metadata key \"k\": 4294967296 strings", \
	  ONE_KEY put_key(m, "k", GGUF_ARRAY); put_u32(m, GGUF_STRING); put_u64(m, UINT64_C(1) << 32);) \
	X(strings_wrap, "metadata key \"k\": 2305843009213693953 strings", \
	  ONE_KEY put_key(m, "k", GGUF_ARRAY); put_u32(m, GGUF_STRING); \
	  put_u64(m, (UINT64_C(1) << 61) + 1); put_u64(m, 0);) \
	X(strings_element, "metadata key \"k\": 1000 bytes", \
	  ONE_KEY put_key(m, "k", GGUF_ARRAY); put_u32(m, GGUF_STRING); put_u64(m, 1); put_u64(m, 1000);) \
	X(alignment_0, "general.alignment\": 0", \
	  ONE_KEY put_key(m, "general.alignment", GGUF_U32); put_u32(m, 0);) \
	X(alignment_24, "general.alignment\": 24 is no power of two", \
	  ONE_KEY put_key(m, "general.alignment", GGUF_U32); put_u32(m, 24);) \
	X(alignment_2_31, "general.alignment\": 2147483648", \
	  ONE_KEY put_key(m, "general.alignment", GGUF_U32); put_u32(m, 1u << 31);) \
	X(alignment_type, "general.alignment\": is of type string", \
	  ONE_KEY put_key(m, "general.alignment", GGUF_STRING); put_string(m, "32");) \
	X(tensor_name_empty, "tensor 0: its name has 0 bytes", \
	  ONE_TENSOR put_tensor(m, "", 0, 4, 4, 0); put_data(m, 64);) \
	X(tensor_name_long, "tensor 0: its name has 65 bytes", ONE_TENSOR put_tensor(m, \
	  "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklm", 0, 4, 4, 0); \
	  put_data(m, 64);) \
	X(tensor_name_max, "tensor 0", ONE_TENSOR put_u64(m, UINT64_MAX); put_data(m, 64);) \
	X(tensor_not_utf8, "tensor 0: its name \"?\" is not UTF-8", \
	  ONE_TENSOR put_tensor(m, "\xc0", 0, 4, 4, 0); put_data(m, 64);) \
	X(tensor_twice, "tensor \"t\": appears twice", put_start(m, 2, 0); put_tensor(m, "t", 0, 4, 4, 0); \
	  put_tensor(m, "t", 0, 4, 4, 64); put_data(m, 128);) \
	X(dims_0, "tensor \"t\": has 0 dimensions", \
	  ONE_TENSOR put_string(m, "t"); put_u32(m, 0); put_data(m, 64);) \
	X(dims_5, "tensor \"t\": has 5 dimensions", \
	  ONE_TENSOR put_string(m, "t"); put_u32(m, 5); put_data(m, 64);) \
	X(dims_max, "tensor \"t\": has 4294967295 dimensions", \
	  ONE_TENSOR put_string(m, "t"); put_u32(m, UINT32_MAX); put_data(m, 64);) \
	X(dim_zero, "tensor \"t\": dimension 1 is 0", \
	  ONE_TENSOR put_tensor(m, "t", 0, 4, 0, 0); put_data(m, 64);) \
	X(dims_wrap, "tensor \"t\": the product of its dimensions overflows", \
	  ONE_TENSOR put_tensor(m, "t", 0, UINT64_C(1) << 32, UINT64_C(1) << 32, 0); put_data(m, 64);) \
	X(dims_wrap_to_16, "tensor \"t\": the product of its dimensions overflows", \
	  ONE_TENSOR put_tensor(m, "t", 0, UINT64_C(1) << 63, 2, 0); put_data(m, 64);) \
	X(bytes_wrap, "tensor \"t\": its size overflows", \
	  ONE_TENSOR put_tensor(m, "t", 0, UINT64_C(1) << 31, UINT64_C(1) << 32, 0); put_data(m, 64);) \
	X(type_unknown, "tensor \"t\": type 999 is not known", \
	  ONE_TENSOR put_tensor(m, "t", 999, 4, 4, 0); put_data(m, 64);) \
	X(type_removed, "tensor \"t\": type 4 is not known", \
	  ONE_TENSOR put_tensor(m, "t", 4, 4, 4, 0); put_data(m, 64);) \
	X(block_division, "tensor \"t\": dimension 0 is 33, no multiple of Q4_0's blocks of 32", \
	  ONE_TENSOR put_tensor(m, "t", 2, 33, 32, 0); put_data(m, 4096);) \
	X(offset_unaligned, "tensor \"t\": offset 16", \
	  ONE_TENSOR put_tensor(m, "t", 0, 4, 4, 16); put_data(m, 256);) \
	X(offset_beyond, "tensor \"t\": 64 bytes at offset 1024", \
	  ONE_TENSOR put_tensor(m, "t", 0, 4, 4, 1024); put_data(m, 64);) \
	X(offset_wraps, "tensor \"t\": 64 bytes at offset 18446744073709551584", \
	  ONE_TENSOR put_tensor(m, "t", 0, 4, 4, UINT64_MAX - 31); put_data(m, 64);) \
	X(data_short, "tensor \"t\": 64 bytes at offset 0", \
	  ONE_TENSOR put_tensor(m, "t", 0, 4, 4, 0); put_data(m, 63);) \
	X(data_absent, "tensor data: begins at", ONE_TENSOR put_tensor(m, "t", 0, 4, 4, 0);) \
	X(overlap, "tensor \"b\": overlaps tensor \"a\"", \
	  put_start(m, 2, 0); put_tensor(m, "b", 0, 4, 4, 32); \
	  put_tensor(m, "a", 0, 4, 4, 0); put_data(m, 128);) \
	X(overlap_same, "tensor \"b\": overlaps tensor \"a\"", \
	  put_start(m, 2, 0); put_tensor(m, "a", 0, 4, 4, 0); \
	  put_tensor(m, "b", 0, 4, 4, 0); put_data(m, 128);)

ALL_BAD(BAD)

#define BAD_ROW(name, says_, ...) { says_, bad_##name },
static const struct bad all_bad[] = { ALL_BAD(BAD_ROW) };
#define N_BAD (sizeof(all_bad) / sizeof(all_bad[0]))

static void test_malformed(void **state)
{
	static struct maker m;

	assert_true(N_BAD >= 40);
	for (size_t i = 0; i < N_BAD; i++) {
		struct diag diag = DIAG_NULL;
		struct gguf *g = NULL;

		all_bad[i].make(&m);
		assert_int_equal(parse(&g, &m, &diag), -EINVAL);
		assert_null(g);
		if (!strstr(diag.text, all_bad[i].says))
			fail_msg("expected \"%s\", got \"%s\"", all_bad[i].says, diag.text);
	}
}

/* Cut anywhere, the sentence is never empty, and nothing is read beyond the end (a sanitizer sees that). */
static void test_truncated(void **state)
{
	static struct maker m;

	make_good(&m);
	for (size_t n = 0; n < m.n; n++) {
		uint8_t *exact = malloc(n ? n : 1);
		struct diag diag = DIAG_NULL;
		struct gguf *g = NULL;

		memcpy(exact, m.bytes, n);
		assert_int_equal(gguf_parse(&g, exact, n, n, &diag), -EINVAL);
		assert_null(g);
		assert_string_not_equal(diag.text, "");
		free(exact);
	}
}

/* Only the first n bytes are at hand, of a file that is whole. */
static void test_buffer_short(void **state)
{
	static struct maker m;
	size_t n_header = 0;
	struct diag diag = DIAG_NULL;
	struct gguf *g = NULL;

	make_good(&m);
	assert_int_equal(parse(&g, &m, NULL), 0);
	gguf_header(g, &n_header);
	gguf_free(g);
	g = NULL;
	assert_int_equal(gguf_parse(&g, m.bytes, n_header - 1, m.n, &diag), -EINVAL);
	assert_non_null(strstr(diag.text, "header: it does not end within"));
	assert_int_equal(gguf_parse(&g, m.bytes, n_header, m.n, NULL), 0);
	gguf_free(g);
}

static uint64_t draw(uint64_t *s)
{
	uint64_t z = *s += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/* Reads all that a parsed file offers. */
static void visit(const struct gguf *g, uint64_t *sum)
{
	struct gguf_array a;
	struct gguf_tensor t;

	for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
		gguf_tensor_at(g, i, &t);
		assert_true(t.offset + t.n_bytes <= gguf_file_size(g));
		*sum += t.n_bytes;
	}
	if (gguf_get_array(g, "b.strings", GGUF_STRING, &a, NULL))
		return;
	for (uint64_t i = 0; i < a.n; i++) {
		struct gguf_string s = gguf_array_string(&a, i);

		for (size_t j = 0; j < s.n; j++)
			*sum += (uint8_t)s.data[j];
	}
}

static void test_bit_flips(void **state)
{
	static struct maker m, damaged;
	uint64_t rng = 1, sum = 0;
	unsigned n_accepted = 0, n = getenv("KVD_TEST_LONG") ? 1000000 : 20000;

	make_good(&m);
	for (unsigned i = 0; i < n; i++) {
		struct diag diag = DIAG_NULL;
		struct gguf *g = NULL;

		memcpy(&damaged, &m, sizeof(m.n) + offsetof(struct maker, n));
		for (uint64_t k = 1 + draw(&rng) % 3; k; k--)
			damaged.bytes[draw(&rng) % damaged.n] ^= (uint8_t)(1u << draw(&rng) % 8);
		if (parse(&g, &damaged, &diag)) {
			assert_string_not_equal(diag.text, "");
			continue;
		}
		visit(g, &sum);
		n_accepted++;
		gguf_free(g);
	}
	assert_true(n_accepted > 0 && n_accepted < n && sum > 0);
}

/* What a header claims costs nothing; only what is there does. */
static void test_counts_allocate_nothing(void **state)
{
	static struct maker m;
	struct mallinfo2 before, after;
	struct diag diag = DIAG_NULL;
	struct gguf *g = NULL;
	uint64_t terabyte = UINT64_C(1) << 40;

	before = mallinfo2();
	put_start(&m, 0, 65536);
	put_key(&m, "k", GGUF_ARRAY);
	put_u32(&m, GGUF_STRING);
	put_u64(&m, 15000000);	/* could be there in a file of a terabyte */
	assert_int_equal(gguf_parse(&g, m.bytes, m.n, terabyte, &diag), -EINVAL);
	after = mallinfo2();
	assert_true(after.hblkhd - before.hblkhd < 1 << 20);
	assert_true(after.arena - before.arena < 1 << 20);
}

static int file_of(const void *bytes, size_t n, uint64_t size)
{
	int fd = memfd_create("gguf", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(fd_write_full(fd, bytes, n), 0);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	return fd;
}

static void test_read(void **state)
{
	_cleanup_(gguf_freep) struct gguf *g = NULL;
	_cleanup_(fd_closep) int fd = -1;
	static struct maker m;
	struct diag diag = DIAG_NULL;

	make_good(&m);
	fd = file_of(m.bytes, m.n, m.n);
	assert_int_equal(gguf_read(&g, fd, &diag), 0);
	check_good(g);
}

/* A header of several MiB, longer than the first read. */
static void test_read_long(void **state)
{
	_cleanup_(gguf_freep) struct gguf *g = NULL;
	_cleanup_(fd_closep) int fd = -1;
	_cleanup_(freep) uint8_t *bytes = NULL;
	static struct maker m;
	struct diag diag = DIAG_NULL;
	struct gguf_array a;
	uint64_t n = 700000;
	size_t size;

	put_start(&m, 0, 1);
	put_key(&m, "k", GGUF_ARRAY);
	put_u32(&m, GGUF_STRING);
	put_u64(&m, n);
	size = m.n + n * 12;
	bytes = malloc(size);
	assert_non_null(bytes);
	memcpy(bytes, m.bytes, m.n);
	for (uint64_t i = 0; i < n; i++) {
		uint64_t length = 4;
		uint32_t text = (uint32_t)i;

		memcpy(bytes + m.n + i * 12, &length, sizeof(length));
		memcpy(bytes + m.n + i * 12 + 8, &text, sizeof(text));
	}
	fd = file_of(bytes, size, size);
	assert_int_equal(gguf_read(&g, fd, &diag), 0);
	assert_int_equal(gguf_get_array(g, "k", GGUF_STRING, &a, &diag), 0);
	assert_int_equal(a.n, n);
	for (uint64_t i = 0; i < n; i += 997) {
		uint32_t text = 0;

		memcpy(&text, gguf_array_string(&a, i).data, sizeof(text));
		assert_int_equal(text, i);
	}
	assert_int_equal(ftruncate(fd, (off_t)(size - 1)), 0);
	gguf_free(steal_ptr(g));
	assert_int_equal(gguf_read(&g, fd, &diag), -EINVAL);
	assert_non_null(strstr(diag.text, "metadata key \"k\": 4 bytes at"));
}

/* A sparse file whose one string claims 200 MB: more than a header may have. */
static void test_read_header_too_long(void **state)
{
	_cleanup_(gguf_freep) struct gguf *g = NULL;
	_cleanup_(fd_closep) int fd = -1;
	static struct maker m;
	struct diag diag = DIAG_NULL;

	put_start(&m, 0, 1);
	put_key(&m, "k", GGUF_STRING);
	put_u64(&m, 200000000);
	fd = file_of(m.bytes, m.n, UINT64_C(1) << 32);
	assert_int_equal(gguf_read(&g, fd, &diag), -EINVAL);
	assert_string_equal(diag.text, "metadata key \"k\": the header is longer than 134217728 bytes");
}

static void test_read_not_a_file(void **state)
{
	struct gguf *g = NULL;
	struct diag diag = DIAG_NULL;
	int fds[2];

	assert_int_equal(pipe(fds), 0);
	assert_int_equal(gguf_read(&g, fds[0], &diag), -EINVAL);
	assert_string_equal(diag.text, "model file: not a regular file");
	close(fds[0]);
	close(fds[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good),
		cmocka_unit_test(test_version_2),
		cmocka_unit_test(test_getters_refuse),
		cmocka_unit_test(test_malformed),
		cmocka_unit_test(test_truncated),
		cmocka_unit_test(test_buffer_short),
		cmocka_unit_test(test_bit_flips),
		cmocka_unit_test(test_counts_allocate_nothing),
		cmocka_unit_test(test_read),
		cmocka_unit_test(test_read_long),
		cmocka_unit_test(test_read_header_too_long),
		cmocka_unit_test(test_read_not_a_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
