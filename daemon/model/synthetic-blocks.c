/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of synthetic models: random bits, in blocks of each type. */
#include <math.h>
#include <string.h>

#include "daemon/model/synthetic-private.h"
#include "ipc/base/checked.h"

#define CHUNK_BLOCKS 4u		/* made together: a multiple of 8 bytes of every type */
#define CHUNK_BYTES_MAX (CHUNK_BLOCKS * 256u)
#define ELEMENTS 32u		/* of a "block" of a type without blocks */

/* Deviations of q, s*q and so on, with all numbers of their bits equally likely: e.g. sqrt((16^2 - 1) / 12). */
static const struct synthetic_type types[] = {
	{ "f32", KB_F32, KB_F32, -1, -1, 0, 0 },
	{ "f16", KB_F16, KB_F16, -1, -1, 0, 0 },
	{ "bf16", KB_BF16, KB_BF16, -1, -1, 0, 0 },
	{ "q4_0", KB_Q4_0, KB_Q4_0, 0, -1, 4.61f, 0 },
	{ "q4_1", KB_Q4_1, KB_Q4_1, 0, 2, 4.61f, -7.5f },
	{ "q5_0", KB_Q5_0, KB_Q5_0, 0, -1, 9.23f, 0 },
	{ "q5_1", KB_Q5_1, KB_Q5_1, 0, 2, 9.23f, -15.5f },
	{ "q8_0", KB_Q8_0, KB_Q8_0, 0, -1, 73.9f, 0 },
	{ "q4_k", KB_Q4_K, KB_Q5_0, 0, 2, 258.0f, 7.5f },
	{ "q5_k", KB_Q5_K, KB_Q5_1, 0, 2, 527.0f, 15.5f },
	{ "q6_k", KB_Q6_K, KB_Q8_0, 208, -1, 1366.0f, 0 },
};

const struct synthetic_type *synthetic_type_of(enum kb_type type)
{
	for (size_t i = 0; i < ARRAY_SIZE(types); i++)
		if (types[i].type == type)
			return &types[i];
	return NULL;
}

const struct synthetic_type *synthetic_type_named(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(types); i++)
		if (strcmp(types[i].name, name) == 0)
			return &types[i];
	return NULL;
}

void synthetic_type_list(char *out, size_t size)
{
	size_t n = 0;

	out[0] = '\0';
	for (size_t i = 0; i < ARRAY_SIZE(types) && n < size; i++)
		n += (size_t)snprintf(out + n, size - n, "%s%s", i ? ", " : "", types[i].name);
}

/* Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators": SplitMix64, by number. */
static uint64_t random_word(uint64_t seed, uint64_t i)
{
	uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* IEEE half precision, to the nearest; v is finite and far below its largest. */
static uint16_t to_f16(float v)
{
	uint16_t sign = v < 0 ? 0x8000 : 0;
	int exponent;
	float m = frexpf(fabsf(v), &exponent);	/* 0.5 .. 1 */

	if (m == 0 || exponent < -24)
		return sign;
	if (exponent < -13)	/* subnormal: so many times 2^-24; a carry makes the least normal one */
		return (uint16_t)(sign | (uint16_t)lrintf(ldexpf(m, exponent + 24)));
	return (uint16_t)(sign | (((exponent + 14) << 10) + (int)lrintf((m - 0.5f) * 2048.0f)));
}

/*
 * Elements of n_mantissa bits below a sign and an exponent: of random bits the sign, two of the exponent and the
 * mantissa are kept, so that there are magnitudes from 2^(top-3) to 2^(top+1), of a deviation of 0.88 * 2^top.
 */
static uint16_t element_16(uint16_t bits, unsigned n_mantissa, int biased_top)
{
	unsigned exponent = (unsigned)biased_top - (bits >> n_mantissa & 3);

	return (uint16_t)((bits & 0x8000) | exponent << n_mantissa | (bits & ((1u << n_mantissa) - 1)));
}

static int top_exponent(float deviation)
{
	return (int)lrintf(log2f(deviation / 0.88f));
}

static void make_f32(const struct synthetic_numbers *numbers, uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++, p += 4) {
		uint32_t bits;
		float v;

		memcpy(&bits, p, 4);
		v = (float)(int32_t)bits * 0x1p-31f;	/* -1 .. 1, a deviation of 1 / sqrt(3) */
		v = numbers->is_vector ? 1.0f + v / 4 : v * 1.732f * numbers->deviation;
		memcpy(p, &v, 4);
	}
}

static void make_16(const struct synthetic_numbers *numbers, uint8_t *p, size_t n)
{
	unsigned n_mantissa = numbers->type == KB_F16 ? 10 : 7;
	int top = top_exponent(numbers->deviation) + (numbers->type == KB_F16 ? 15 : 127);

	for (size_t i = 0; i < n; i++, p += 2) {
		uint16_t bits;

		memcpy(&bits, p, 2);
		bits = element_16(bits, n_mantissa, top);
		memcpy(p, &bits, 2);
	}
}

static void set_f16(uint8_t *block, int at, uint16_t v)
{
	if (at >= 0)
		memcpy(block + at, &v, sizeof(v));
}

/* What all chunks of a tensor have in common. */
struct chunk {
	const struct synthetic_numbers *numbers;
	const struct synthetic_type *type;
	uint32_t block_bytes, n_elements;
	uint16_t scale, minimum;
};

static void chunk_init(struct chunk *c, const struct synthetic_numbers *numbers)
{
	float scale;

	*c = (struct chunk){ .numbers = numbers, .type = synthetic_type_of(numbers->type) };
	gguf_tensor_type_block(numbers->type, &c->n_elements, &c->block_bytes);
	if (c->n_elements == 1) {
		c->n_elements = ELEMENTS;
		c->block_bytes *= ELEMENTS;
		return;
	}
	scale = numbers->deviation / c->type->unit;
	c->scale = to_f16(scale);
	c->minimum = to_f16(scale * c->type->mean);
}

static void make_chunk(const struct chunk *c, uint64_t index, uint8_t *out)
{
	size_t n_words = c->block_bytes * CHUNK_BLOCKS / 8;

	for (size_t i = 0; i < n_words; i++) {
		uint64_t word = random_word(c->numbers->seed, index * n_words + i);

		memcpy(out + i * 8, &word, 8);
	}
	if (c->numbers->type == KB_F32) {
		make_f32(c->numbers, out, (size_t)ELEMENTS * CHUNK_BLOCKS);
		return;
	}
	if (c->numbers->type == KB_F16 || c->numbers->type == KB_BF16) {
		make_16(c->numbers, out, (size_t)ELEMENTS * CHUNK_BLOCKS);
		return;
	}
	for (uint32_t i = 0; i < CHUNK_BLOCKS; i++) {
		set_f16(out + (size_t)i * c->block_bytes, c->type->scale, c->scale);
		set_f16(out + (size_t)i * c->block_bytes, c->type->minimum, c->minimum);
	}
}

void synthetic_fill(const struct synthetic_numbers *numbers, uint64_t from, uint8_t *out, size_t n)
{
	uint8_t whole[CHUNK_BYTES_MAX];
	struct chunk c;
	size_t bytes;

	chunk_init(&c, numbers);
	bytes = (size_t)c.block_bytes * CHUNK_BLOCKS;
	while (n) {
		size_t begin = (size_t)(from % bytes), some = MIN(bytes - begin, n);

		if (some == bytes) {
			make_chunk(&c, from / bytes, out);
		} else {
			make_chunk(&c, from / bytes, whole);
			memcpy(out, whole + begin, some);
		}
		from += some;
		out += some;
		n -= some;
	}
}
