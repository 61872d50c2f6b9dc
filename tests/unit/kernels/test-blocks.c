/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every block type against the numbers that an independent reader finds in the
 * same bytes (tests/data/README.md): equal, whatever group, lane and block.
 */
#include "fixture.h"
#include "kernels/cpu/cpu.h"

#define ORACLE "tests/data/blocks-oracle.bin"
#define MAX_BYTES (1u << 20)

struct oracle {
	uint8_t *data;
	size_t used, n;
};

struct record {
	enum kb_type type;
	uint32_t weights, bytes, n;	/* weights and bytes of a block, number of blocks */
	const uint8_t *blocks;
	const uint8_t *values;		/* float [n][weights] */
};

static void oracle_init(struct oracle *o)
{
	FILE *f = must(fopen(ORACLE, "rb"));

	o->data = must(malloc(MAX_BYTES));
	o->n = fread(o->data, 1, MAX_BYTES, f);
	o->used = 0;
	assert_true(feof(f));
	fclose(f);
}

static bool oracle_next(struct oracle *o, struct record *r)
{
	uint32_t head[4];

	if (o->used == o->n)
		return false;
	assert_true(o->n - o->used >= sizeof(head));
	memcpy(head, o->data + o->used, sizeof(head));
	*r = (struct record){ (enum kb_type)head[0], head[1], head[2], head[3], NULL, NULL };
	r->blocks = o->data + o->used + sizeof(head);
	r->values = r->blocks + (size_t)r->bytes * r->n;
	o->used += sizeof(head) + (size_t)r->n * (r->bytes + sizeof(float) * r->weights);
	assert_true(o->used <= o->n);
	return true;
}

static float value_at(const struct record *r, uint32_t block, uint32_t k)
{
	float f;

	memcpy(&f, r->values + ((size_t)block * r->weights + k) * sizeof(f), sizeof(f));
	return f;
}

/* Row i holds the blocks in turn from block i on, so that each one comes to every lane and place. */
static void check_record(struct kb_backend *be, const struct record *r, uint32_t rows)
{
	uint32_t cols = r->n * r->weights;
	size_t row = (size_t)r->n * r->bytes;
	uint8_t *data = must(malloc(rows * row));
	float *y = must(malloc(cols * sizeof(*y)));
	struct kb_tensor *t;

	for (uint32_t i = 0; i < rows; i++) {
		for (uint32_t b = 0; b < r->n; b++)
			memcpy(data + i * row + (size_t)b * r->bytes, r->blocks + (size_t)((i + b) % r->n) * r->bytes,
			       r->bytes);
	}
	t = make_matrix(be, r->type, rows, cols, data);
	for (uint32_t i = 0; i < rows; i++) {
		kc_tensor_row(t, i, y);
		for (uint32_t k = 0; k < cols; k++) {
			float expected = value_at(r, (i + k / r->weights) % r->n, k % r->weights);

			if (y[k] != expected)
				fail_msg("%s, row %u, column %u: %a, not %a", test_type(r->type)->name, i, k,
					 (double)y[k], (double)expected);
		}
	}
	be->ops->tensor_free(be, t);
	free(data);
	free(y);
}

static void test_dequantised(void **state)
{
	struct kb_backend *be = open_level("c", 1);
	bool seen[N_TEST_TYPES] = { false };
	struct record r;
	struct oracle o;

	oracle_init(&o);
	while (oracle_next(&o, &r)) {
		const struct test_type *t = test_type(r.type);

		assert_int_equal((uint64_t)r.bytes * t->weights, (uint64_t)r.weights * t->bytes);
		check_record(be, &r, 37);
		seen[t - test_types] = true;
	}
	for (size_t i = 0; i < N_TEST_TYPES; i++)
		assert_true(seen[i]);
	free(o.data);
	be->ops->close(be);
}

/* The memory that a matrix takes is near the file's. */
static void test_memory(void **state)
{
	struct kb_backend *be = open_level("c", 1);

	for (size_t i = 0; i < N_TEST_TYPES; i++) {
		struct kb_tensor_desc desc = { test_types[i].type, KB_USE_MATRIX, 64, 512 };
		uint64_t file = 64 * row_bytes(desc.type, desc.cols), bytes;
		struct kb_tensor *t = NULL;

		assert_int_equal(be->ops->tensor_new(be, &desc, &t), 0);
		bytes = be->ops->tensor_bytes(t);
		assert_true(bytes >= file && bytes * 25 <= file * 26);
		be->ops->tensor_free(be, t);
	}
	be->ops->close(be);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_dequantised),
		cmocka_unit_test(test_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
