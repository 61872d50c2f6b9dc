/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader of exported blocks.  The input is a stream behind a header that fits; its first byte says whether the
 * checksums of its records are made right, by what EXPORT.md says, so that what lies behind them is met at all.
 * What is taken has to be what a second reading of the document finds valid, up to the first record that is not,
 * and is the same bytes when it is written again.
 */
#include <stdbool.h>

#include "daemon/cache/export-format.h"
#include "ipc/base/hash.h"
#include "ipc/base/utf8.h"
#include "tests/fuzz/fuzz.h"

#define BLOCK_TOKENS 4u
#define TOKEN_BYTES 2u
#define N_VOCAB 50u
#define HEAD 48u

struct source {
	const uint8_t *p;
	size_t n, at;
};

static int read_bytes(void *arg, void *data, size_t n)
{
	struct source *s = arg;

	if (n > s->n - s->at)
		return EXPORT_E_CUT;
	memcpy(data, s->p + s->at, n);
	s->at += n;
	return 0;
}

static uint64_t number(const uint8_t *p, size_t n)
{
	uint64_t v = 0;

	while (n--)
		v = v << 8 | p[n];
	return v;
}

static void set_sum(uint8_t *head, uint64_t sum)
{
	for (size_t i = 0; i < 8; i++)
		head[40 + i] = (uint8_t)(sum >> 8 * i);
}

/* Of a record whose checksum field has that of the one before. */
static uint64_t sum_of(const uint8_t *p, size_t n_names, size_t n_kv)
{
	return hash_u64(p + HEAD + n_names, n_kv, hash_u64(p + HEAD, n_names, hash_u64(p, HEAD, 0)));
}

enum verdict { TAKEN, CUT, BAD, END };

/* Where the second reader is. */
struct place {
	uint64_t sum, n_records, bytes;
	uint64_t end;
	const uint8_t *key;
	size_t n_key;
};

static bool is_key(const uint8_t *p, size_t n)
{
	if (!utf8_valid(p, n) || memchr(p, '/', n))
		return false;
	for (size_t i = 0; i < n; i++)
		if (p[i] < 32 || p[i] == 127 || (p[i] == 0xc2 && p[i + 1] < 0xa0))
			return false;
	return true;
}

/* Judges the record at p, and with `mend` makes its checksum right before; *size: its bytes. */
static enum verdict judge(struct place *at, uint8_t *p, size_t n, bool mend, size_t *size)
{
	uint64_t n_tokens, first, n_key, sum, was;
	bool same;

	if (n < HEAD)
		return CUT;
	if (number(p, 4) == 2) {
		static const uint8_t zeros[12];
		uint64_t given = number(p + 40, 8);
		bool right;

		set_sum(p, at->sum);
		sum = hash_u64(p, HEAD, 0);
		set_sum(p, mend ? sum : given);
		right = !memcmp(p + 4, zeros, 12) && number(p + 16, 8) == at->n_records &&
			number(p + 24, 8) == at->bytes && !number(p + 32, 8);
		*size = HEAD;
		return right && (mend || given == sum) ? END : BAD;
	}
	n_tokens = number(p + 4, 4);
	first = number(p + 8, 4);
	n_key = number(p + 12, 4);
	if (number(p, 4) != 1 || !n_tokens || n_tokens > BLOCK_TOKENS || n_key > 64)
		return BAD;
	*size = HEAD + n_key + 4 * n_tokens + TOKEN_BYTES * n_tokens;
	if (*size > n)
		return CUT;
	was = number(p + 40, 8);
	set_sum(p, at->sum);
	sum = sum_of(p, n_key + 4 * n_tokens, TOKEN_BYTES * n_tokens);
	set_sum(p, mend ? sum : was);
	if (!mend && was != sum)
		return BAD;
	same = n_key == at->n_key && !memcmp(p + HEAD, at->key, n_key);
	if (number(p + 24, 8) != TOKEN_BYTES * n_tokens || number(p + 32, 8) || first % BLOCK_TOKENS ||
	    first > (same ? at->end : 0) || first > INT32_MAX - BLOCK_TOKENS || !is_key(p + HEAD, n_key))
		return BAD;
	for (uint64_t i = 0; i < n_tokens; i++)
		if (number(p + HEAD + n_key + 4 * i, 4) >= N_VOCAB)
			return BAD;
	*at = (struct place){
		.sum = sum, .n_records = at->n_records + 1, .bytes = at->bytes + TOKEN_BYTES * n_tokens,
		.end = first + (n_tokens == BLOCK_TOKENS ? BLOCK_TOKENS : 0), .key = p + HEAD, .n_key = n_key,
	};
	return TAKEN;
}

static void check_stream(uint8_t *p, size_t n, uint64_t sum, const struct export_shape *shape, bool mend)
{
	struct export_stream s = { .sum = sum }, again = { .sum = sum };
	struct place place = { .sum = sum, .key = p };
	struct source source = { .p = p };

	for (;;) {
		struct export_record r;
		uint8_t kv[BLOCK_TOKENS * TOKEN_BYTES], head[EXPORT_RECORD_MAX];
		struct diag diag = DIAG_NULL;
		size_t size = 0, before = source.at;
		enum verdict want = judge(&place, p + before, n - before, mend, &size);
		int got;

		source.n = n;
		got = export_read_record(&s, shape, read_bytes, &source, &r, kv, &diag);
		FUZZ_CHECK(want == TAKEN ? got == 0 : want == CUT ? got == EXPORT_E_CUT :
			   want == END ? got == EXPORT_E_END : got == EXPORT_E_BAD);
		FUZZ_CHECK((got == EXPORT_E_BAD) == (diag.text[0] != '\0'));
		if (got)
			return;
		FUZZ_CHECK(source.at == before + size);
		export_put_record(&again, shape, &r, kv, head);
		FUZZ_CHECK(export_head_bytes(&r) + export_kv_bytes(shape, r.n_tokens) == size);
		FUZZ_CHECK(!memcmp(head, p + before, export_head_bytes(&r)));
		FUZZ_CHECK(!memcmp(kv, p + before + export_head_bytes(&r), export_kv_bytes(shape, r.n_tokens)));
	}
}

/* Any header: taken where it is, byte for byte, the one that would be written. */
static void check_header(const uint8_t *data, size_t n, const struct export_shape *shape)
{
	uint8_t own[EXPORT_HEADER_MAX];
	struct export_stream s = { 0 }, read = { 0 };
	size_t n_own = export_put_header(&s, shape, own);
	struct source source = { .p = data, .n = n };
	struct diag diag = DIAG_NULL;
	int r = export_read_header(&read, shape, read_bytes, &source, &diag);

	FUZZ_CHECK((r == 0) == (n >= n_own && !memcmp(data, own, n_own)));
	FUZZ_CHECK(r == 0 || r == EXPORT_E_CUT || diag.text[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct export_shape shape = {
		.block_tokens = BLOCK_TOKENS, .block_bytes = BLOCK_TOKENS * TOKEN_BYTES, .n_vocab = N_VOCAB,
	};
	struct fuzz_input in = { data, n };
	uint8_t mode = fuzz_u8(&in), *copy;

	store_identity_add(&shape.identity, STORE_TAG_MODEL, "model", 5);
	copy = fuzz_copy(in.data, in.n);
	if (mode & 2)
		check_header(copy, in.n, &shape);
	else
		check_stream(copy, in.n, 7, &shape, mode & 1);
	free(copy);
	return 0;
}
