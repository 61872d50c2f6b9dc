/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The message codec.  What it takes must come out of the encoder again with
 * every value that was in it, as a reader of msgpack finds that is written here and knows nothing of the
 * codec's tables; and encoding what was decoded from that gives the same bytes.
 */
#include <stdbool.h>

#include "ipc/base/utf8.h"
#include "ipc/codec.h"
#include "tests/fuzz/fuzz.h"

/* --- msgpack ------------------------------------------------------------------ */

enum kind { NOTHING, BOOLEAN, WHOLE, FRACTION, STRING, ARRAY, MAP };

struct value {
	enum kind kind;
	bool negative;
	uint64_t whole;		/* also the elements of arrays and maps, a string's bytes */
	double fraction;
	const uint8_t *bytes;	/* a string's */
};

struct reader {
	const uint8_t *p;
	size_t n;
};

static uint64_t take(struct reader *r, size_t n)
{
	uint64_t v = 0;

	FUZZ_CHECK(n <= r->n);
	for (size_t i = 0; i < n; i++)
		v = v << 8 | r->p[i];
	r->p += n;
	r->n -= n;
	return v;
}

static void take_number(struct reader *r, uint8_t head, struct value *v)
{
	size_t n = (size_t)1 << (head & 3);
	uint64_t sign;

	v->kind = WHOLE;
	if (head >= 0xd0)
		n = (size_t)1 << (head - 0xd0);
	else if (head >= 0xcc)
		n = (size_t)1 << (head - 0xcc);
	v->whole = take(r, n);
	sign = UINT64_C(1) << (8 * n - 1);
	if (head >= 0xd0 && (v->whole & sign)) {
		v->negative = true;
		v->whole |= n < 8 ? ~((sign << 1) - 1) : 0;
	}
}

static void take_float(struct reader *r, uint8_t head, struct value *v)
{
	uint64_t bits = take(r, head == 0xca ? 4 : 8);
	uint32_t low = (uint32_t)bits;
	float f;

	v->kind = FRACTION;
	memcpy(&f, &low, sizeof(f));
	memcpy(&v->fraction, &bits, sizeof(bits));
	if (head == 0xca)
		v->fraction = (double)f;
}

static void take_string(struct reader *r, size_t n, struct value *v)
{
	*v = (struct value){ .kind = STRING, .whole = n, .bytes = r->p };
	FUZZ_CHECK(n <= r->n);
	r->p += n;
	r->n -= n;
}

/* The next value's head; elements follow. */
static struct value next(struct reader *r)
{
	uint8_t head = (uint8_t)take(r, 1);
	struct value v = { 0 };

	if (head < 0x80)
		v = (struct value){ .kind = WHOLE, .whole = head };
	else if (head >= 0xe0)
		v = (struct value){ .kind = WHOLE, .whole = (uint64_t)(int8_t)head, .negative = true };
	else if (head < 0xa0)
		v = (struct value){ .kind = head < 0x90 ? MAP : ARRAY, .whole = head & 15u };
	else if (head < 0xc0)
		take_string(r, head & 31u, &v);
	else if (head == 0xc2 || head == 0xc3)
		v = (struct value){ .kind = BOOLEAN, .whole = head & 1u };
	else if (head >= 0xc4 && head <= 0xc6)
		take_string(r, (size_t)take(r, (size_t)1 << (head - 0xc4)), &v);
	else if (head == 0xca || head == 0xcb)
		take_float(r, head, &v);
	else if (head >= 0xcc && head <= 0xd3)
		take_number(r, head, &v);
	else if (head >= 0xd9 && head <= 0xdb)
		take_string(r, (size_t)take(r, (size_t)1 << (head - 0xd9)), &v);
	else if (head >= 0xdc)
		v = (struct value){ .kind = head < 0xde ? ARRAY : MAP, .whole = take(r, head & 1 ? 4 : 2) };
	return v;
}

static void skip(struct reader *r)
{
	struct value v = next(r);

	if (v.kind == ARRAY || v.kind == MAP)
		for (uint64_t i = 0; i < v.whole * (v.kind == MAP ? 2 : 1); i++)
			skip(r);
}

/* In the daemon's messages the encoder replaces control characters, which the decoder lets pass. */
static bool repairs;

static bool is_repaired(const struct value *v)
{
	for (uint64_t i = 0; i < v->whole; i++) {
		uint8_t b = v->bytes[i];

		if (b < 0x20 || b == 0x7f || (b >= 0x80 && b < 0xa0 && i && v->bytes[i - 1] == 0xc2))
			return repairs;
	}
	return false;
}

static bool same_string(const struct value *a, const struct value *b)
{
	return a->kind == STRING && b->kind == STRING && a->whole == b->whole &&
	       memcmp(a->bytes, b->bytes, (size_t)a->whole) == 0;
}

/* What a sender may leave out instead: 0, false, "", []. */
static bool is_nothing(const struct value *v)
{
	return v->kind == FRACTION ? v->fraction == 0 : v->whole == 0;
}

static double number_of(const struct value *v)
{
	if (v->kind == FRACTION)
		return v->fraction;
	return v->negative ? (double)(int64_t)v->whole : (double)v->whole;
}

/* Numbers may change their form, and fractions lose what a float has no room for. */
static bool same_number(const struct value *a, const struct value *b)
{
	if (a->kind == WHOLE && b->kind == WHOLE)
		return a->negative == b->negative && a->whole == b->whole;
	return (float)number_of(a) == (float)number_of(b);
}

static void check_same(struct reader *a, struct reader *b);

/* Every field of a is in b, or says nothing. */
static void check_map(struct reader *a, uint64_t n_a, const struct reader *b, uint64_t n_b)
{
	for (uint64_t i = 0; i < n_a; i++) {
		struct value key = next(a);
		struct reader rest = *b;
		uint64_t k;

		for (k = 0; k < n_b; k++) {
			struct value other = next(&rest);

			if (same_string(&key, &other))
				break;
			skip(&rest);
		}
		if (k < n_b) {
			check_same(a, &rest);
		} else {
			struct reader look = *a;
			struct value v = next(&look);

			FUZZ_CHECK(is_nothing(&v));
			skip(a);
		}
	}
}

static void check_same(struct reader *a, struct reader *b)
{
	struct value x = next(a), y = next(b);

	switch (x.kind) {
	case MAP:
		FUZZ_CHECK(y.kind == MAP);
		check_map(a, x.whole, b, y.whole);
		for (uint64_t i = 0; i < 2 * y.whole; i++)
			skip(b);
		break;
	case ARRAY:
		FUZZ_CHECK(y.kind == ARRAY && x.whole == y.whole);
		for (uint64_t i = 0; i < x.whole; i++)
			check_same(a, b);
		break;
	case STRING:
		FUZZ_CHECK(same_string(&x, &y) || (y.kind == STRING && is_repaired(&x)));
		break;
	case BOOLEAN:
		FUZZ_CHECK(y.kind == BOOLEAN && x.whole == y.whole);
		break;
	default:
		FUZZ_CHECK(y.kind == WHOLE || y.kind == FRACTION);
		FUZZ_CHECK(same_number(&x, &y));
		break;
	}
}

/* --- the codec ------------------------------------------------------------------ */

static void check_error(const struct codec_error *e)
{
	FUZZ_CHECK(e->code == KVD_CODE_BAD_MESSAGE || e->code == KVD_CODE_BAD_FIELD || e->code == KVD_CODE_VERSION);
	FUZZ_CHECK(memchr(e->field, 0, sizeof(e->field)) && memchr(e->text, 0, sizeof(e->text)));
	FUZZ_CHECK(e->text[0]);
	for (const char *p = e->text; *p; p++)
		FUZZ_CHECK(*p >= 0x20 && *p < 0x7f);
}

static struct msg *decode(const uint8_t *data, size_t n)
{
	struct codec_error error = { 0 };
	struct msg *m = NULL;
	uint8_t *copy = fuzz_copy(data, n);
	int r = codec_decode(&m, copy, n, &error);

	free(copy);	/* what was decoded owns all that it points to */
	if (r == 0)
		return m;
	FUZZ_CHECK(r == CODEC_E_INVALID && !m);
	check_error(&error);
	return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	_cleanup_(msg_freep) struct msg *m = decode(data, n);
	_cleanup_(msg_freep) struct msg *again = NULL;
	struct codec_buf first = CODEC_BUF_NULL, second = CODEC_BUF_NULL;
	struct reader in = { data, n }, out;

	if (!m)
		return 0;
	FUZZ_CHECK(strcmp(codec_name(m->id), "unknown") != 0);
	repairs = !codec_from_client(m->id);
	FUZZ_CHECK(codec_encode(&first, m->id, &m->hello) == 0);
	FUZZ_CHECK(first.n <= KVD_MESSAGE_MAX);
	out = (struct reader){ first.data, first.n };
	check_same(&in, &out);
	again = decode(first.data, first.n);
	FUZZ_CHECK(again && again->id == m->id);
	FUZZ_CHECK(codec_encode(&second, again->id, &again->hello) == 0);
	FUZZ_CHECK(first.n == second.n && memcmp(first.data, second.data, first.n) == 0);
	codec_buf_deinit(&first);
	codec_buf_deinit(&second);
	return 0;
}
