/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/codec-spec.h"

#include <errno.h>
#include <msgpack.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/utf8.h"

struct encoder {
	msgpack_packer packer;
	bool clean;	/* strings are made to fit */
};

void codec_buf_deinit(struct codec_buf *buf)
{
	free(buf->data);
	*buf = CODEC_BUF_NULL;
}

/* A nonzero result comes back from the msgpack_pack_*() call. */
static int append(void *arg, const char *data, size_t n)
{
	struct codec_buf *buf = arg;

	if (n > KVD_MESSAGE_MAX - buf->n)
		return -EMSGSIZE;
	if (n > buf->capacity - buf->n) {
		size_t capacity = MAX(buf->capacity * 2, (size_t)1024);
		uint8_t *p;

		while (capacity < buf->n + n)
			capacity *= 2;
		p = realloc(buf->data, capacity);
		if (!p)
			return -ENOMEM;
		buf->data = p;
		buf->capacity = capacity;
	}
	memcpy(buf->data + buf->n, data, n);
	buf->n += n;
	return 0;
}

static int pack_string(struct encoder *e, const char *s, size_t n)
{
	int r = msgpack_pack_str(&e->packer, n);

	return r ? r : msgpack_pack_str_body(&e->packer, s, n);
}

/* One unit of the input, to be copied or replaced. */
static size_t next_unit(const uint8_t *p, size_t n, bool *good)
{
	uint32_t cp = 0;
	int k = utf8_decode(p, n, &cp);

	*good = k > 0 && cp >= 0x20 && !(cp >= 0x7f && cp < 0xa0);
	if (k > 0)
		return (size_t)k;
	return k < 0 ? (size_t)-k : n;	/* a sequence cut off at the end */
}

static int encode_cleaned(struct encoder *e, const struct codec_field *f, const char *s)
{
	uint8_t out[KVD_CACHE_TEXT_MAX];	/* the longest of a daemon's strings */
	size_t max = MIN((size_t)f->max, sizeof(out)), at = 0, n = s ? strlen(s) : 0;

	for (size_t i = 0; i < n;) {
		static const uint8_t replacement[] = { 0xef, 0xbf, 0xbd };
		const uint8_t *p = (const uint8_t *)s + i;
		bool good;
		size_t in = next_unit(p, n - i, &good);
		const uint8_t *from = good ? p : replacement;
		size_t k = good ? in : sizeof(replacement);

		if (at + k > max)
			break;
		memcpy(out + at, from, k);
		at += k;
		i += in;
	}
	return pack_string(e, (const char *)out, at);
}

static int encode_string(struct encoder *e, const struct codec_field *f, const char *s)
{
	size_t n;

	if (e->clean)
		return encode_cleaned(e, f, s);
	if (!s)
		return -EINVAL;
	n = strlen(s);
	if (n < f->min || n > f->max || !codec_text_valid(f->text, s, n))
		return -EINVAL;
	return pack_string(e, s, n);
}

static int encode_integer(struct encoder *e, const struct codec_field *f, uint64_t v)
{
	if (v < f->min || v > f->max)
		return -EINVAL;
	return msgpack_pack_uint64(&e->packer, v);
}

static int encode_float(struct encoder *e, const struct codec_field *f, float v)
{
	if (!(v >= f->fmin && v <= f->fmax))
		return -EINVAL;
	return msgpack_pack_float(&e->packer, v);
}

static int encode_object(struct encoder *e, const struct codec_spec *spec, const void *object);

static int encode_array(struct encoder *e, const struct codec_field *f, const void *object)
{
	const uint8_t *items = *(void *const *)((const uint8_t *)object + f->offset);
	size_t n = *(const size_t *)((const uint8_t *)object + f->aux);
	int r;

	if (n < f->min || n > f->max)
		return -EINVAL;
	r = msgpack_pack_array(&e->packer, n);
	for (size_t i = 0; i < n && !r; i++)
		r = encode_object(e, f->element, items + i * f->element->size);
	return r;
}

static int encode_field(struct encoder *e, const struct codec_field *f, const void *object)
{
	const void *member = (const uint8_t *)object + f->offset;

	switch (f->type) {
	case CODEC_U32:
		return encode_integer(e, f, *(const uint32_t *)member);
	case CODEC_U64:
		return encode_integer(e, f, *(const uint64_t *)member);
	case CODEC_F32:
		return encode_float(e, f, *(const float *)member);
	case CODEC_BOOL:
		return *(const bool *)member ? msgpack_pack_true(&e->packer) : msgpack_pack_false(&e->packer);
	case CODEC_STRING:
		return encode_string(e, f, *(const char *const *)member);
	default:
		return encode_array(e, f, object);
	}
}

static bool is_zero(const struct codec_field *f, const void *object)
{
	const uint8_t *base = object;

	switch (f->type) {
	case CODEC_U32:
		return *(const uint32_t *)(base + f->offset) == 0;
	case CODEC_U64:
		return *(const uint64_t *)(base + f->offset) == 0;
	case CODEC_STRING:
		return !*(const char *const *)(base + f->offset);
	case CODEC_ARRAY:
		return *(const size_t *)(base + f->aux) == 0;
	default:
		return false;
	}
}

static bool present(const struct codec_field *f, const void *object)
{
	if (f->presence == CODEC_NOT_ZERO)
		return !is_zero(f, object);
	if (f->presence == CODEC_HAS)
		return *(const bool *)((const uint8_t *)object + f->aux);
	return true;
}

static int encode_map(struct encoder *e, const struct codec_spec *spec, const void *object)
{
	size_t n = 0;
	int r;

	for (size_t i = 0; i < spec->n_fields; i++)
		n += present(&spec->fields[i], object);
	r = msgpack_pack_map(&e->packer, n);
	for (size_t i = 0; i < spec->n_fields && !r; i++) {
		const struct codec_field *f = &spec->fields[i];

		if (!present(f, object))
			continue;
		r = pack_string(e, f->name, strlen(f->name));
		if (!r)
			r = encode_field(e, f, object);
	}
	return r;
}

static int encode_object(struct encoder *e, const struct codec_spec *spec, const void *object)
{
	int r = 0;

	if (spec->shape == CODEC_MAP)
		return encode_map(e, spec, object);
	if (spec->shape == CODEC_TUPLE)
		r = msgpack_pack_array(&e->packer, spec->n_fields);
	for (size_t i = 0; i < spec->n_fields && !r; i++)
		r = encode_field(e, &spec->fields[i], object);
	return r;
}

int codec_encode(struct codec_buf *buf, enum kvd_message id, const void *msg)
{
	const struct codec_spec *spec = codec_spec_of(id);
	const char *field, *text;
	struct encoder e;
	int r;

	buf->n = 0;
	if (!spec)
		return -EINVAL;
	if (spec->check && spec->check(msg, &field, &text))
		return -EINVAL;
	e.clean = !spec->from_client;
	msgpack_packer_init(&e.packer, buf, append);
	r = msgpack_pack_array(&e.packer, 2);
	if (!r)
		r = msgpack_pack_uint64(&e.packer, id);
	if (!r)
		r = encode_map(&e, spec, msg);
	if (r)
		buf->n = 0;
	return r;
}
