/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/codec-spec.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <msgpack.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What a message's strings and arrays are taken from grows by this. */
#define STORAGE_CHUNK 1024

/* Where in the message we are, for the field's name. */
struct path {
	const struct path *up;
	const char *name;	/* n bytes, or NULL: an element */
	size_t n;
	size_t index;
};

struct decoder {
	msgpack_zone *storage;
	struct codec_error *error;
};

static int invalid(struct codec_error *error, enum kvd_code code, const char *text)
{
	error->code = code;
	snprintf(error->text, sizeof(error->text), "%s", text);
	return CODEC_E_INVALID;
}

/* Appends one step; what is not printable ASCII becomes '?'. */
static size_t write_step(char *out, size_t at, size_t size, const struct path *path)
{
	if (!path->name) {
		int k = snprintf(out + at, size - at, "[%zu]", path->index);
		return at + ((size_t)k < size - at ? (size_t)k : size - at - 1);
	}
	if (at > 0 && at + 1 < size)
		out[at++] = '.';
	for (size_t i = 0; i < path->n && at + 1 < size; i++)
		out[at++] = path->name[i] >= 0x20 && path->name[i] < 0x7f ? path->name[i] : '?';
	return at;
}

static size_t write_path(char *out, size_t size, const struct path *path)
{
	size_t at = path->up ? write_path(out, size, path->up) : 0;

	at = write_step(out, at, size, path);
	out[at] = '\0';
	return at;
}

__attribute__((format(printf, 3, 4)))
static int bad_field(struct decoder *d, const struct path *path, const char *fmt, ...)
{
	struct codec_error *e = d->error;
	va_list ap;
	int n;

	e->code = KVD_CODE_BAD_FIELD;
	write_path(e->field, sizeof(e->field), path);
	n = snprintf(e->text, sizeof(e->text), "%s: ", e->field);
	va_start(ap, fmt);
	vsnprintf(e->text + n, sizeof(e->text) - (size_t)n, fmt, ap);
	va_end(ap);
	return CODEC_E_INVALID;
}

static int decode_integer(struct decoder *d, const struct path *path, const struct codec_field *f,
			  const msgpack_object *v, void *member)
{
	uint64_t max = f->max;

	if (v->type != MSGPACK_OBJECT_POSITIVE_INTEGER || v->via.u64 < f->min || v->via.u64 > max)
		return bad_field(d, path, "must be a whole number from %llu to %llu",
				 (unsigned long long)f->min, (unsigned long long)max);
	if (f->type == CODEC_U32)
		*(uint32_t *)member = (uint32_t)v->via.u64;
	else
		*(uint64_t *)member = v->via.u64;
	return 0;
}

static int decode_float(struct decoder *d, const struct path *path, const struct codec_field *f,
			const msgpack_object *v, float *member)
{
	double x = NAN;

	if (v->type == MSGPACK_OBJECT_FLOAT32 || v->type == MSGPACK_OBJECT_FLOAT64)
		x = v->via.f64;
	else if (v->type == MSGPACK_OBJECT_POSITIVE_INTEGER)
		x = (double)v->via.u64;
	else if (v->type == MSGPACK_OBJECT_NEGATIVE_INTEGER)
		x = (double)v->via.i64;
	/* As float, since a limit like 0.01 is one; also false for NaN. */
	if (!(fabs(x) <= (double)FLT_MAX && (float)x >= f->fmin && (float)x <= f->fmax)) {
		if (f->fmax == FLT_MAX)
			return bad_field(d, path, "must be a finite number");
		return bad_field(d, path, "must be a number from %g to %g", (double)f->fmin, (double)f->fmax);
	}
	*member = (float)x;
	return 0;
}

static const char *what_text(enum codec_text text)
{
	switch (text) {
	case CODEC_NAME:
		return "UTF-8 without control characters";
	case CODEC_ROLE:
		return "a-z, 0-9, _ and -";
	case CODEC_FILE:
		return "UTF-8 without control characters and '/'";
	default:
		return "UTF-8 without NUL";
	}
}

static int decode_string(struct decoder *d, const struct path *path, const struct codec_field *f,
			 const msgpack_object *v, const char **member)
{
	size_t n = v->via.str.size;
	char *s;

	if (v->type != MSGPACK_OBJECT_STR || n < f->min || n > f->max)
		return bad_field(d, path, "must be a string of %llu to %llu bytes",
				 (unsigned long long)f->min, (unsigned long long)f->max);
	if (!codec_text_valid(f->text, v->via.str.ptr, n))
		return bad_field(d, path, "must be %s", what_text(f->text));
	s = msgpack_zone_malloc(d->storage, n + 1);
	if (!s)
		return -ENOMEM;
	if (n > 0)
		memcpy(s, v->via.str.ptr, n);
	s[n] = '\0';
	*member = s;
	return 0;
}

static int decode_object(struct decoder *d, const struct path *path, const struct codec_spec *spec,
			 const msgpack_object *v, void *object);

static int decode_array(struct decoder *d, const struct path *path, const struct codec_field *f,
			const msgpack_object *v, void *object)
{
	size_t n = v->via.array.size, size = f->element->size;
	uint8_t *items = NULL;

	if (v->type != MSGPACK_OBJECT_ARRAY || n < f->min || n > f->max)
		return bad_field(d, path, "must be an array of %llu to %llu elements",
				 (unsigned long long)f->min, (unsigned long long)f->max);
	if (n > 0) {
		items = msgpack_zone_malloc(d->storage, n * size);
		if (!items)
			return -ENOMEM;
		memset(items, 0, n * size);
	}
	for (size_t i = 0; i < n; i++) {
		struct path element = { .up = path, .index = i };
		int r = decode_object(d, &element, f->element, &v->via.array.ptr[i], items + i * size);
		if (r)
			return r;
	}
	*(const void **)((uint8_t *)object + f->offset) = items;
	*(size_t *)((uint8_t *)object + f->aux) = n;
	return 0;
}

static int decode_field(struct decoder *d, const struct path *path, const struct codec_field *f,
			const msgpack_object *v, void *object)
{
	void *member = (uint8_t *)object + f->offset;
	int r;

	switch (f->type) {
	case CODEC_U32:
	case CODEC_U64:
		r = decode_integer(d, path, f, v, member);
		break;
	case CODEC_F32:
		r = decode_float(d, path, f, v, member);
		break;
	case CODEC_BOOL:
		if (v->type != MSGPACK_OBJECT_BOOLEAN)
			return bad_field(d, path, "must be true or false");
		*(bool *)member = v->via.boolean;
		return 0;
	case CODEC_STRING:
		r = decode_string(d, path, f, v, member);
		break;
	default:
		r = decode_array(d, path, f, v, object);
		break;
	}
	if (!r && f->presence == CODEC_HAS)
		*(bool *)((uint8_t *)object + f->aux) = true;
	return r;
}

static struct path step(const struct path *up, const char *name)
{
	return (struct path){ .up = up, .name = name, .n = strlen(name) };
}

static bool key_is(const msgpack_object *key, const char *name)
{
	return key->type == MSGPACK_OBJECT_STR && key->via.str.size == strlen(name) &&
	       memcmp(key->via.str.ptr, name, key->via.str.size) == 0;
}

static const struct codec_field *find_field(const struct codec_spec *spec, const msgpack_object *key)
{
	for (size_t i = 0; i < spec->n_fields; i++)
		if (key_is(key, spec->fields[i].name))
			return &spec->fields[i];
	return NULL;
}

static int decode_entry(struct decoder *d, const struct path *path, const struct codec_spec *spec,
			const msgpack_object_kv *kv, void *object, uint64_t *seen)
{
	const struct codec_field *f;
	struct path here = { .up = path, .name = "", .n = 0 };
	uint64_t bit;

	if (kv->key.type != MSGPACK_OBJECT_STR) {
		if (path)
			return bad_field(d, path, "has a key that is no string");
		return invalid(d->error, KVD_CODE_BAD_MESSAGE, "a field's name is no string");
	}
	here.name = kv->key.via.str.ptr;
	here.n = kv->key.via.str.size;
	f = find_field(spec, &kv->key);
	if (!f)
		return bad_field(d, &here, "there is no such field");
	bit = UINT64_C(1) << (f - spec->fields);
	if (*seen & bit)
		return bad_field(d, &here, "is there twice");
	*seen |= bit;
	return decode_field(d, &here, f, &kv->val, object);
}

static int decode_map(struct decoder *d, const struct path *path, const struct codec_spec *spec,
		      const msgpack_object *v, void *object)
{
	uint64_t seen = 0;

	if (v->type != MSGPACK_OBJECT_MAP)
		return bad_field(d, path, "must be a map");
	for (size_t i = 0; i < v->via.map.size; i++) {
		int r = decode_entry(d, path, spec, &v->via.map.ptr[i], object, &seen);
		if (r)
			return r;
	}
	for (size_t i = 0; i < spec->n_fields; i++) {
		struct path here = step(path, spec->fields[i].name);
		if (spec->fields[i].presence == CODEC_REQUIRED && !(seen & UINT64_C(1) << i))
			return bad_field(d, &here, "is missing");
	}
	return 0;
}

static int decode_tuple(struct decoder *d, const struct path *path, const struct codec_spec *spec,
			const msgpack_object *v, void *object)
{
	if (v->type != MSGPACK_OBJECT_ARRAY || v->via.array.size != spec->n_fields)
		return bad_field(d, path, "must be an array of %zu", spec->n_fields);
	for (size_t i = 0; i < spec->n_fields; i++) {
		struct path here = step(path, spec->fields[i].name);
		int r = decode_field(d, &here, &spec->fields[i], &v->via.array.ptr[i], object);
		if (r)
			return r;
	}
	return 0;
}

static int decode_object(struct decoder *d, const struct path *path, const struct codec_spec *spec,
			 const msgpack_object *v, void *object)
{
	switch (spec->shape) {
	case CODEC_MAP:
		return decode_map(d, path, spec, v, object);
	case CODEC_TUPLE:
		return decode_tuple(d, path, spec, v, object);
	default:
		return decode_field(d, path, &spec->fields[0], v, object);
	}
}

/* The value of the first such field of a message, whatever else is wrong with it. */
static const msgpack_object *peek(const msgpack_object *map, const char *name)
{
	for (size_t i = 0; i < map->via.map.size; i++)
		if (key_is(&map->via.map.ptr[i].key, name))
			return &map->via.map.ptr[i].val;
	return NULL;
}

/* Another version is said to be one before its other fields are looked at. */
static int check_version(const msgpack_object *map, struct codec_error *error)
{
	const msgpack_object *v = peek(map, "version");

	if (!v || v->type != MSGPACK_OBJECT_POSITIVE_INTEGER || v->via.u64 == KVD_PROTOCOL_VERSION)
		return 0;
	error->code = KVD_CODE_VERSION;
	snprintf(error->field, sizeof(error->field), "version");
	snprintf(error->text, sizeof(error->text),
		 "version: protocol version %llu is not spoken here, but %u",
		 (unsigned long long)v->via.u64, (unsigned)KVD_PROTOCOL_VERSION);
	return CODEC_E_INVALID;
}

static int decode_fields(struct msg *m, const struct codec_spec *spec, const msgpack_object *map,
			 struct codec_error *error)
{
	struct decoder d = { .storage = m->storage, .error = error };
	/* All members of the union begin where the first does. */
	void *object = &m->hello;
	const char *field, *text;
	int r = spec->versioned ? check_version(map, error) : 0;

	if (r)
		return r;
	if (spec->defaults)
		memcpy(object, spec->defaults, spec->size);
	r = decode_map(&d, NULL, spec, map, object);
	if (r)
		return r;
	if (spec->check && spec->check(object, &field, &text)) {
		struct path here = step(NULL, field);
		return bad_field(&d, &here, "%s", text);
	}
	return 0;
}

/* The outer array. */
static int decode_message(struct msg *m, const msgpack_object *o, struct codec_error *error)
{
	const struct codec_spec *spec;
	const msgpack_object *id, *map;

	if (o->type != MSGPACK_OBJECT_ARRAY || o->via.array.size != 2 ||
	    o->via.array.ptr[0].type != MSGPACK_OBJECT_POSITIVE_INTEGER ||
	    o->via.array.ptr[1].type != MSGPACK_OBJECT_MAP)
		return invalid(error, KVD_CODE_BAD_MESSAGE, "a message is an array of a number and a map");
	map = &o->via.array.ptr[1];
	id = peek(map, "id");
	if (id && id->type == MSGPACK_OBJECT_POSITIVE_INTEGER)
		error->id = id->via.u64;
	spec = codec_spec_of(o->via.array.ptr[0].via.u64);
	if (!spec)
		return invalid(error, KVD_CODE_BAD_MESSAGE, "there is no message with this number");
	m->id = spec->id;
	return decode_fields(m, spec, map, error);
}

int codec_decode(struct msg **out, const void *data, size_t n, struct codec_error *error)
{
	_cleanup_(msg_freep) struct msg *m = NULL;
	struct codec_error e = { 0 };
	msgpack_unpacked unpacked;
	const char *wrong;
	size_t offset = 0;
	int r;

	if (n > KVD_MESSAGE_MAX)
		wrong = "the message is too long";
	else
		wrong = codec_scan(data, n);
	if (wrong) {
		r = invalid(&e, KVD_CODE_BAD_MESSAGE, wrong);
		*error = e;
		return r;
	}

	/* Where memory is short, the answer still has an address. */
	*error = (struct codec_error){ .id = codec_scan_id(data, n) };
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->storage = msgpack_zone_new(STORAGE_CHUNK);
	if (!m->storage)
		return -ENOMEM;
	msgpack_unpacked_init(&unpacked);
	switch (msgpack_unpack_next(&unpacked, data, n, &offset)) {
	case MSGPACK_UNPACK_SUCCESS:
		r = decode_message(m, &unpacked.data, &e);
		break;
	case MSGPACK_UNPACK_NOMEM_ERROR:
		r = -ENOMEM;
		break;
	default:
		r = invalid(&e, KVD_CODE_BAD_MESSAGE, "not msgpack");
		break;
	}
	msgpack_unpacked_destroy(&unpacked);
	if (r == CODEC_E_INVALID)
		*error = e;
	if (r == 0)
		*out = steal_ptr(m);
	return r;
}

void msg_free(struct msg *m)
{
	if (!m)
		return;
	if (m->storage)
		msgpack_zone_free(m->storage);
	free(m);
}
