/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/gguf.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "daemon/model/gguf-private.h"
#include "ipc/base/checked.h"
#include "ipc/base/fd.h"

#define FIRST_READ (1u << 20)

/* The most bytes of a file that its header may have. */
static size_t header_limit(uint64_t file_size)
{
	return (size_t)MIN(file_size, (uint64_t)GGUF_MAX_HEADER);
}

void gguf_free(struct gguf *g)
{
	if (!g)
		return;
	free(g->bytes);
	gguf_deinit_indexes(g);
	free(g);
}

int gguf_parse(struct gguf **out, const void *buf, size_t n, uint64_t file_size, struct diag *diag)
{
	_cleanup_(freep) struct gguf *g = NULL;
	_cleanup_(freep) uint8_t *bytes = NULL;
	size_t need;
	int r;

	n = MIN(n, header_limit(file_size));
	g = calloc(1, sizeof(*g));
	bytes = malloc(MAX(n, (size_t)1));
	if (!g || !bytes)
		return -ENOMEM;
	if (n)
		memcpy(bytes, buf, n);
	r = gguf_parse_header(g, bytes, n, file_size, &need, diag);
	if (r == GGUF_E_MORE)
		return diag_set(diag, -EINVAL, "header: it does not end within %zu bytes", n);
	if (r)
		return r;
	steal_ptr(bytes);
	*out = steal_ptr(g);
	return 0;
}

/* The size of a regular file. */
static int file_size_of(int fd, uint64_t *out, struct diag *diag)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return diag_set(diag, -errno, "model file: cannot be examined");
	if (!S_ISREG(st.st_mode))
		return diag_set(diag, -EINVAL, "model file: not a regular file");
	*out = (uint64_t)st.st_size;
	return 0;
}

int gguf_read(struct gguf **out, int fd, struct diag *diag)
{
	_cleanup_(freep) struct gguf *g = NULL;
	_cleanup_(freep) uint8_t *bytes = NULL;
	uint64_t file_size = 0;
	size_t n = 0, want;
	int r;

	r = file_size_of(fd, &file_size, diag);
	if (r)
		return r;
	g = calloc(1, sizeof(*g));
	if (!g)
		return -ENOMEM;
	want = MIN(header_limit(file_size), (size_t)FIRST_READ);
	for (;;) {
		size_t need = 0;
		uint8_t *larger = realloc(bytes, MAX(want, (size_t)1));

		if (!larger)
			return -ENOMEM;
		bytes = larger;
		r = fd_pread_full(fd, bytes + n, want - n, n);
		if (r)
			return diag_set(diag, r, "header: %zu bytes at %zu cannot be read", want - n, n);
		n = want;
		r = gguf_parse_header(g, bytes, n, file_size, &need, diag);
		if (r != GGUF_E_MORE)
			break;
		want = MAX(need, n * 2);
		want = MIN(want, header_limit(file_size));
	}
	if (r)
		return r;
	steal_ptr(bytes);
	*out = steal_ptr(g);
	return 0;
}

uint32_t gguf_version(const struct gguf *g)
{
	return g->version;
}

uint64_t gguf_file_size(const struct gguf *g)
{
	return g->file_size;
}

const uint8_t *gguf_header(const struct gguf *g, size_t *n)
{
	*n = g->n_bytes;
	return g->bytes;
}

/* The value of a key: its type, and where the value's bytes begin; NULL if absent. */
static const uint8_t *find(const struct gguf *g, const char *key, uint32_t *type, const struct gguf_kv **kv)
{
	struct gguf_string k = { .data = key, .n = strlen(key) };
	uint32_t lo = 0, hi = g->n_kv;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		struct gguf_string s = gguf_kv_key(g, mid);
		int r = gguf_string_compare(k, s);

		if (r < 0) {
			hi = mid;
		} else if (r > 0) {
			lo = mid + 1;
		} else {
			const uint8_t *p = (const uint8_t *)s.data + s.n;

			if (kv)
				*kv = &g->kv[mid];
			*type = gguf_load_u32(p);
			return p + 4;
		}
	}
	return NULL;
}

bool gguf_has(const struct gguf *g, const char *key)
{
	uint32_t type;

	return find(g, key, &type, NULL) != NULL;
}

static int wrong_type(struct diag *diag, const char *key, uint32_t type, const char *wanted)
{
	return diag_set(diag, -EINVAL, "metadata key \"%s\": is of type %s, not %s", key,
			gguf_type_name(type), wanted);
}

enum integer { INTEGER_OK, INTEGER_NEGATIVE, INTEGER_NOT };

static enum integer load_integer(const uint8_t *p, uint32_t type, uint64_t *out)
{
	uint16_t u16;
	int64_t v;

	switch (type) {
	case GGUF_U8:
		v = p[0];
		break;
	case GGUF_I8:
		v = (int8_t)p[0];
		break;
	case GGUF_U16:
	case GGUF_I16:
		memcpy(&u16, p, sizeof(u16));
		u16 = le16toh(u16);
		v = type == GGUF_U16 ? u16 : (int16_t)u16;
		break;
	case GGUF_U32:
		v = gguf_load_u32(p);
		break;
	case GGUF_I32:
		v = (int32_t)gguf_load_u32(p);
		break;
	case GGUF_U64:
		*out = gguf_load_u64(p);
		return INTEGER_OK;
	case GGUF_I64:
		v = (int64_t)gguf_load_u64(p);
		break;
	default:
		return INTEGER_NOT;
	}
	if (v < 0)
		return INTEGER_NEGATIVE;
	*out = (uint64_t)v;
	return INTEGER_OK;
}

int gguf_get_uint(const struct gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t *out,
		  struct diag *diag)
{
	uint32_t type;
	uint64_t v = 0;
	const uint8_t *p = find(g, key, &type, NULL);

	if (!p)
		return GGUF_E_ABSENT;
	switch (load_integer(p, type, &v)) {
	case INTEGER_NOT:
		return wrong_type(diag, key, type, "an integer");
	case INTEGER_NEGATIVE:
		return diag_set(diag, -EINVAL, "metadata key \"%s\": is negative", key);
	case INTEGER_OK:
		break;
	}
	if (v < min || v > max)
		return diag_set(diag, -EINVAL, "metadata key \"%s\": %llu is out of range (%llu to %llu)",
				key, (unsigned long long)v, (unsigned long long)min, (unsigned long long)max);
	*out = v;
	return 0;
}

int gguf_get_u32(const struct gguf *g, const char *key, uint32_t min, uint32_t max, uint32_t *out,
		 struct diag *diag)
{
	uint64_t v;
	int r = gguf_get_uint(g, key, min, max, &v, diag);

	if (!r)
		*out = (uint32_t)v;
	return r;
}

static float load_f32(const uint8_t *p)
{
	uint32_t bits = gguf_load_u32(p);
	float v;

	memcpy(&v, &bits, sizeof(v));
	return v;
}

int gguf_get_f32(const struct gguf *g, const char *key, float *out, struct diag *diag)
{
	uint32_t type;
	uint64_t bits;
	double d;
	float v;
	const uint8_t *p = find(g, key, &type, NULL);

	if (!p)
		return GGUF_E_ABSENT;
	if (type == GGUF_F32) {
		v = load_f32(p);
	} else if (type == GGUF_F64) {
		bits = gguf_load_u64(p);
		memcpy(&d, &bits, sizeof(d));
		v = (float)d;
	} else {
		return wrong_type(diag, key, type, "f32");
	}
	if (!isfinite(v))
		return diag_set(diag, -EINVAL, "metadata key \"%s\": is not finite", key);
	*out = v;
	return 0;
}

int gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct diag *diag)
{
	uint32_t type;
	const uint8_t *p = find(g, key, &type, NULL);

	if (!p)
		return GGUF_E_ABSENT;
	if (type != GGUF_BOOL)
		return wrong_type(diag, key, type, "bool");
	*out = p[0] == 1;
	return 0;
}

int gguf_get_string(const struct gguf *g, const char *key, struct gguf_string *out, struct diag *diag)
{
	uint32_t type;
	const uint8_t *p = find(g, key, &type, NULL);

	if (!p)
		return GGUF_E_ABSENT;
	if (type != GGUF_STRING)
		return wrong_type(diag, key, type, "string");
	*out = gguf_load_string(p);
	return 0;
}

int gguf_get_any_array(const struct gguf *g, const char *key, struct gguf_array *out, struct diag *diag)
{
	const struct gguf_kv *kv = NULL;
	uint32_t type;
	const uint8_t *p = find(g, key, &type, &kv);

	if (!p)
		return GGUF_E_ABSENT;
	if (type != GGUF_ARRAY)
		return wrong_type(diag, key, type, "array");
	*out = (struct gguf_array){
		.type = (enum gguf_type)gguf_load_u32(p),
		.n = gguf_load_u64(p + 4),
		.data = p + 12,
	};
	if (out->type == GGUF_STRING && out->n)
		out->offsets = g->string_offsets + kv->strings;
	return 0;
}

int gguf_get_array(const struct gguf *g, const char *key, enum gguf_type type, struct gguf_array *out,
		   struct diag *diag)
{
	struct gguf_array a;
	int r = gguf_get_any_array(g, key, &a, diag);

	if (r)
		return r;
	if (a.type != type)
		return diag_set(diag, -EINVAL, "metadata key \"%s\": is an array of %s, not of %s", key,
				gguf_type_name(a.type), gguf_type_name(type));
	*out = a;
	return 0;
}

struct gguf_string gguf_array_string(const struct gguf_array *a, uint64_t i)
{
	return gguf_load_string(a->data + a->offsets[i] - 8);
}

float gguf_array_f32(const struct gguf_array *a, uint64_t i)
{
	return load_f32(a->data + i * 4);
}

int32_t gguf_array_i32(const struct gguf_array *a, uint64_t i)
{
	return (int32_t)gguf_load_u32(a->data + i * 4);
}

uint32_t gguf_array_u32(const struct gguf_array *a, uint64_t i)
{
	return gguf_load_u32(a->data + i * 4);
}

bool gguf_array_uint(const struct gguf_array *a, uint64_t i, uint64_t *out)
{
	return load_integer(a->data + i * gguf_type_bytes(a->type), a->type, out) == INTEGER_OK;
}

uint64_t gguf_n_tensors(const struct gguf *g)
{
	return g->n_tensors;
}

void gguf_tensor_at(const struct gguf *g, uint64_t i, struct gguf_tensor *out)
{
	gguf_decode_tensor(g->bytes + g->tensors[i], out);
	out->offset += g->data_offset;
}

int gguf_tensor_find(const struct gguf *g, const char *name, uint64_t *index)
{
	struct gguf_string k = { .data = name, .n = strlen(name) };
	uint32_t lo = 0, hi = g->n_tensors;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		uint32_t i = g->tensors_by_name[mid];
		int r = gguf_string_compare(k, gguf_load_string(g->bytes + g->tensors[i]));

		if (!r) {
			*index = i;
			return 0;
		}
		if (r < 0)
			hi = mid;
		else
			lo = mid + 1;
	}
	return GGUF_E_ABSENT;
}
