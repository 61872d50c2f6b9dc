/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/cache/export-format.h"

#include <endian.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/hash.h"
#include "ipc/base/utf8.h"

#define EXPORT_VERSION 1u

enum { TYPE_BLOCK = 1, TYPE_END = 2 };

/* As EXPORT.md says, little-endian. */
struct file_header {
	char magic[8];
	uint32_t version;
	uint32_t block_tokens;
	uint64_t block_bytes;
	uint32_t n_fields;
	uint32_t zero;
};
_Static_assert(sizeof(struct file_header) + STORE_IDENTITY_MAX + 8 == EXPORT_HEADER_MAX, "as EXPORT.md says");

struct record_head {
	uint32_t type;
	uint32_t n_tokens;
	uint32_t first;
	uint32_t n_key;
	uint64_t ttl_ns;	/* end: number of records */
	uint64_t n_bytes;	/* end: of all */
	uint64_t zero;
	uint64_t sum;
};
_Static_assert(sizeof(struct record_head) == EXPORT_RECORD_HEAD, "as EXPORT.md says");

static const char file_magic[8] = "KVDEXPT\n";

uint64_t export_kv_bytes(const struct export_shape *shape, uint32_t n_tokens)
{
	return shape->block_bytes / shape->block_tokens * n_tokens;
}

size_t export_head_bytes(const struct export_record *r)
{
	return EXPORT_RECORD_HEAD + r->n_key + r->n_tokens * sizeof(uint32_t);
}

/* head->sum is the checksum of the record before. */
static uint64_t checksum(const struct record_head *head, const void *names, size_t n_names, const void *kv, size_t n)
{
	return hash_u64(kv, n, hash_u64(names, n_names, hash_u64(head, sizeof(*head), 0)));
}

/* --- writing --- */

size_t export_put_header(struct export_stream *s, const struct export_shape *shape, void *out)
{
	struct file_header h = {
		.version = htole32(EXPORT_VERSION),
		.block_tokens = htole32(shape->block_tokens),
		.block_bytes = htole64(shape->block_bytes),
		.n_fields = htole32(shape->identity.n),
	};
	size_t n = sizeof(h) + shape->identity.n;
	uint8_t *p = out;
	uint64_t sum;

	memcpy(h.magic, file_magic, sizeof(h.magic));
	memcpy(p, &h, sizeof(h));
	memcpy(p + sizeof(h), shape->identity.bytes, shape->identity.n);
	s->sum = hash_u64(p, n, 0);
	sum = htole64(s->sum);
	memcpy(p + n, &sum, sizeof(sum));
	return n + sizeof(sum);
}

void export_put_record(struct export_stream *s, const struct export_shape *shape, const struct export_record *r,
		       const void *kv, void *out)
{
	uint64_t n_kv = export_kv_bytes(shape, r->n_tokens);
	struct record_head head = {
		.type = htole32(TYPE_BLOCK),
		.n_tokens = htole32(r->n_tokens),
		.first = htole32(r->first),
		.n_key = htole32(r->n_key),
		.ttl_ns = htole64(r->ttl_ns),
		.n_bytes = htole64(n_kv),
		.sum = htole64(s->sum),
	};
	uint8_t *p = (uint8_t *)out + sizeof(head);

	memcpy(p, r->key, r->n_key);
	for (uint32_t i = 0; i < r->n_tokens; i++) {
		uint32_t id = htole32((uint32_t)r->tokens[i]);

		memcpy(p + r->n_key + i * sizeof(id), &id, sizeof(id));
	}
	s->sum = checksum(&head, p, export_head_bytes(r) - sizeof(head), kv, n_kv);
	s->n_records++;
	s->bytes += n_kv;
	head.sum = htole64(s->sum);
	memcpy(out, &head, sizeof(head));
}

static struct record_head end_head(const struct export_stream *s)
{
	return (struct record_head){
		.type = htole32(TYPE_END),
		.ttl_ns = htole64(s->n_records),
		.n_bytes = htole64(s->bytes),
		.sum = htole64(s->sum),
	};
}

void export_put_end(struct export_stream *s, void *out)
{
	struct record_head head = end_head(s);

	head.sum = htole64(hash_u64(&head, sizeof(head), 0));
	memcpy(out, &head, sizeof(head));
}

/* --- reading the header --- */

static uint32_t u32_at(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return le32toh(v);
}

static int compare(const struct export_shape *shape, const struct file_header *h, const uint8_t *fields,
		   struct diag *diag)
{
	uint32_t n = le32toh(h->n_fields), block_tokens = le32toh(h->block_tokens);
	struct store_field f = { 0 };

	if (n != shape->identity.n || memcmp(fields, shape->identity.bytes, n)) {
		store_identity_differing(shape->identity.bytes, shape->identity.n, fields, n, &f);
		return diag_set(diag, EXPORT_E_OTHER, "%s is not the one that the file's blocks are of",
				store_tag_name(f.tag));
	}
	if (block_tokens != shape->block_tokens || le64toh(h->block_bytes) != shape->block_bytes)
		return diag_set(diag, EXPORT_E_OTHER, "the file's blocks have %u tokens, those here %u", block_tokens,
				shape->block_tokens);
	return 0;
}

int export_read_header(struct export_stream *s, const struct export_shape *shape, export_read_fn fn, void *arg,
		       struct diag *diag)
{
	uint8_t bytes[EXPORT_HEADER_MAX];
	struct file_header h;
	uint64_t sum, want;
	uint32_t n;
	int r = fn(arg, bytes, sizeof(h));

	if (r)
		return r;
	memcpy(&h, bytes, sizeof(h));
	if (memcmp(h.magic, file_magic, sizeof(h.magic)))
		return diag_set(diag, EXPORT_E_BAD, "it is not an export of a cache");
	if (le32toh(h.version) != EXPORT_VERSION)
		return diag_set(diag, EXPORT_E_BAD, "its format is version %u, not %u", le32toh(h.version),
				EXPORT_VERSION);
	n = le32toh(h.n_fields);
	if (n > STORE_IDENTITY_MAX || h.zero)
		return diag_set(diag, EXPORT_E_BAD, "its header is damaged");
	r = fn(arg, bytes + sizeof(h), n + sizeof(sum));
	if (r)
		return r;
	want = hash_u64(bytes, sizeof(h) + n, 0);
	memcpy(&sum, bytes + sizeof(h) + n, sizeof(sum));
	if (le64toh(sum) != want)
		return diag_set(diag, EXPORT_E_BAD, "its header is damaged");
	r = compare(shape, &h, bytes + sizeof(h), diag);
	if (!r)
		*s = (struct export_stream){ .sum = want };
	return r;
}

/* --- reading records --- */

static bool is_key(const char *key, size_t n)
{
	if (!utf8_valid((const uint8_t *)key, n))
		return false;
	for (size_t i = 0; i < n; i++) {
		uint8_t c = (uint8_t)key[i];

		if (c < 0x20 || c == 0x7f || c == '/' ||
		    (c == 0xc2 && i + 1 < n && (uint8_t)key[i + 1] < 0xa0))
			return false;
	}
	return true;
}

/* What is wrong with a record's numbers, beside the checksum; NULL: nothing. */
static const char *fault_of(const struct export_stream *s, const struct export_shape *shape,
			    const struct export_record *r, const struct record_head *head)
{
	bool same = r->n_key == s->n_key && !memcmp(r->key, s->key, r->n_key);

	if (le64toh(head->n_bytes) != export_kv_bytes(shape, r->n_tokens) || head->zero)
		return "its size is not that of its tokens";
	if (r->first % shape->block_tokens || r->first > (same ? s->end : 0))
		return "it follows nothing";
	if (r->first > INT32_MAX - shape->block_tokens)
		return "it is too far from the beginning";
	if (!is_key(r->key, r->n_key))
		return "its key is not a key";
	for (uint32_t i = 0; i < r->n_tokens; i++)
		if (r->tokens[i] < 0 || (uint32_t)r->tokens[i] >= shape->n_vocab)
			return "it has a token that is not in the vocabulary";
	return NULL;
}

static int damaged(const struct export_stream *s, const char *why, struct diag *diag)
{
	return diag_set(diag, EXPORT_E_BAD, "record %llu is damaged: %s", (unsigned long long)s->n_records + 1, why);
}

static int read_end(struct export_stream *s, const struct record_head *head, struct diag *diag)
{
	struct record_head want = end_head(s);

	want.sum = htole64(hash_u64(&want, sizeof(want), 0));
	return memcmp(&want, head, sizeof(want)) ? damaged(s, "not the end that it should be", diag) : EXPORT_E_END;
}

int export_read_record(struct export_stream *s, const struct export_shape *shape, export_read_fn fn, void *arg,
		       struct export_record *out, void *kv, struct diag *diag)
{
	uint8_t names[EXPORT_KEY_MAX + STORE_TOKENS_MAX * sizeof(uint32_t)];
	struct export_record rec = { 0 };
	struct record_head head;
	const char *fault;
	uint64_t sum;
	int r = fn(arg, &head, sizeof(head));

	if (r)
		return r;
	if (le32toh(head.type) == TYPE_END)
		return read_end(s, &head, diag);
	rec.n_tokens = le32toh(head.n_tokens);
	rec.first = le32toh(head.first);
	rec.n_key = le32toh(head.n_key);
	rec.ttl_ns = le64toh(head.ttl_ns);
	if (le32toh(head.type) != TYPE_BLOCK || !rec.n_tokens || rec.n_tokens > shape->block_tokens ||
	    (shape->whole_blocks && rec.n_tokens < shape->block_tokens) || rec.n_key > EXPORT_KEY_MAX)
		return damaged(s, "its first numbers are not those of a block", diag);
	r = fn(arg, names, export_head_bytes(&rec) - sizeof(head));
	if (!r)
		r = fn(arg, kv, export_kv_bytes(shape, rec.n_tokens));
	if (r)
		return r;
	memcpy(rec.key, names, rec.n_key);
	for (uint32_t i = 0; i < rec.n_tokens; i++)
		rec.tokens[i] = (int32_t)u32_at(names + rec.n_key + i * sizeof(uint32_t));
	sum = le64toh(head.sum);
	head.sum = htole64(s->sum);
	if (sum != checksum(&head, names, export_head_bytes(&rec) - sizeof(head), kv,
			    export_kv_bytes(shape, rec.n_tokens)))
		return damaged(s, "its checksum", diag);
	fault = fault_of(s, shape, &rec, &head);
	if (fault)
		return damaged(s, fault, diag);
	s->sum = sum;
	s->n_records++;
	s->bytes += export_kv_bytes(shape, rec.n_tokens);
	s->end = rec.first + (rec.n_tokens == shape->block_tokens ? rec.n_tokens : 0);
	s->n_key = rec.n_key;
	memcpy(s->key, rec.key, rec.n_key);
	*out = rec;
	return 0;
}
