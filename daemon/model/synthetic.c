/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/synthetic.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/synthetic-private.h"
#include "ipc/base/checked.h"
#include "ipc/base/hash.h"

/* From the models' published configurations. */
static const struct synthetic_shape shapes[] = {
	{ "smollm2-135m", &arch_llama, 30, 576, 9, 3, 64, 1536, 49152, 8192, 0, 1e5f, 1e-5f, true },
	{ "smollm2-360m", &arch_llama, 32, 960, 15, 5, 64, 2560, 49152, 8192, 0, 1e5f, 1e-5f, true },
	{ "smollm2-1.7b", &arch_llama, 24, 2048, 32, 32, 64, 8192, 49152, 8192, 0, 1.3e5f, 1e-5f, true },
	{ "tinyllama-1.1b", &arch_llama, 22, 2048, 32, 4, 64, 5632, 32000, 2048, 0, 1e4f, 1e-5f, false },
	{ "llama-2-7b", &arch_llama, 32, 4096, 32, 32, 128, 11008, 32000, 4096, 0, 1e4f, 1e-5f, false },
	{ "llama-2-13b", &arch_llama, 40, 5120, 40, 40, 128, 13824, 32000, 4096, 0, 1e4f, 1e-5f, false },
	{ "llama-3-8b", &arch_llama, 32, 4096, 32, 8, 128, 14336, 128256, 8192, 0, 5e5f, 1e-5f, false },
	{ "llama-3.2-1b", &arch_llama, 16, 2048, 32, 8, 64, 8192, 128256, 131072, 0, 5e5f, 1e-5f, true },
	{ "mistral-7b", &arch_llama, 32, 4096, 32, 8, 128, 14336, 32000, 32768, 0, 1e6f, 1e-5f, false },
	{ "gemma-3-270m", &arch_gemma3, 18, 640, 4, 1, 256, 2048, 262144, 32768, 512, 1e6f, 1e-6f, true },
	{ "gemma-3-1b", &arch_gemma3, 26, 1152, 4, 1, 256, 6912, 262144, 32768, 512, 1e6f, 1e-6f, true },
	{ "qwen2.5-0.5b", &arch_qwen2, 24, 896, 14, 2, 64, 4864, 151936, 32768, 0, 1e6f, 1e-6f, true },
	{ "qwen3-0.6b", &arch_qwen3, 28, 1024, 16, 8, 128, 3072, 151936, 40960, 0, 1e6f, 1e-6f, true },
	/* For tests: some megabytes. */
	{ "tiny", &arch_llama, 2, 256, 4, 2, 64, 512, 1024, 2048, 0, 1e4f, 1e-5f, true },
};

struct synthetic {
	const struct synthetic_shape *shape;
	struct gguf *header;
};

static void list_shapes(char *out, size_t size)
{
	size_t n = 0;

	out[0] = '\0';
	for (size_t i = 0; i < ARRAY_SIZE(shapes) && n < size; i++)
		n += (size_t)snprintf(out + n, size - n, "%s%s", i ? ", " : "", shapes[i].name);
}

static int find(const char *what, const struct synthetic_shape **shape, const struct synthetic_type **type,
		struct diag *diag)
{
	size_t n = strcspn(what, ":");
	char names[240];

	*shape = NULL;
	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++)
		if (strlen(shapes[i].name) == n && strncmp(shapes[i].name, what, n) == 0)
			*shape = &shapes[i];
	if (!*shape) {
		list_shapes(names, sizeof(names));
		return diag_set(diag, -EINVAL, "synthetic: no \"%.24s\"; there are %s", what, names);
	}
	*type = what[n] ? synthetic_type_named(what + n + 1) : NULL;
	if (!*type) {
		synthetic_type_list(names, sizeof(names));
		return diag_set(diag, -EINVAL, "synthetic: \"%.40s\" is not NAME:TYPE with a type of %s", what, names);
	}
	return 0;
}

int synthetic_check(const char *what, struct diag *diag)
{
	const struct synthetic_shape *shape;
	const struct synthetic_type *type;

	return find(what, &shape, &type, diag);
}

void synthetic_free(struct synthetic *s)
{
	if (!s)
		return;
	gguf_free(s->header);
	free(s);
}

int synthetic_new(struct synthetic **out, const char *what, struct diag *diag)
{
	_cleanup_(synthetic_freep) struct synthetic *s = calloc(1, sizeof(*s));
	_cleanup_(freep) uint8_t *bytes = NULL;
	const struct synthetic_type *type;
	uint64_t file_size = 0;
	size_t n = 0;
	int r;

	if (!s)
		return -ENOMEM;
	r = find(what, &s->shape, &type, diag);
	if (!r)
		r = synthetic_write_header(s->shape, type, &bytes, &n, &file_size);
	if (!r)
		r = gguf_parse(&s->header, bytes, n, file_size, diag);
	if (r)
		return r;
	*out = steal_ptr(s);
	return 0;
}

const struct gguf *synthetic_header(const struct synthetic *s)
{
	return s->header;
}

/* What goes back into the residual stream is smaller, so that this stays of one size through all layers. */
static float deviation_of(const struct synthetic_shape *shape, const struct gguf_tensor *t)
{
	float d = 1.0f / sqrtf((float)t->dims[0]);
	static const char *const outs[] = { "attn_output.weight", "ffn_down.weight" };

	for (size_t i = 0; i < ARRAY_SIZE(outs); i++) {
		size_t n = strlen(outs[i]);

		if (t->name.n > n && memcmp(t->name.data + t->name.n - n, outs[i], n) == 0)
			return d / sqrtf(2.0f * (float)shape->n_layers);
	}
	return d;
}

/* Tensors that begin at an offset of at most `at`. */
static uint64_t n_before(const struct gguf *g, uint64_t at)
{
	uint64_t lo = 0, hi = gguf_n_tensors(g);

	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;
		struct gguf_tensor t;

		gguf_tensor_at(g, mid, &t);
		if (t.offset <= at)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Some bytes from `at` on, of one tensor or before one; how many. */
static size_t read_some(const struct synthetic *s, uint8_t *buf, size_t n, uint64_t at)
{
	uint64_t k = n_before(s->header, at), end = UINT64_MAX;
	struct gguf_tensor t;

	if (k) {
		gguf_tensor_at(s->header, k - 1, &t);
		if (at < t.offset + t.n_bytes) {
			const struct synthetic_numbers numbers = {
				.type = (enum kb_type)t.type,
				.seed = hash_u64(t.name.data, t.name.n, SYNTHETIC_VERSION),
				.deviation = deviation_of(s->shape, &t),
				.is_vector = t.n_dims == 1,
			};

			n = (size_t)MIN((uint64_t)n, t.offset + t.n_bytes - at);
			synthetic_fill(&numbers, at - t.offset, buf, n);
			return n;
		}
	}
	if (k < gguf_n_tensors(s->header)) {
		gguf_tensor_at(s->header, k, &t);
		end = t.offset;
	}
	n = (size_t)MIN((uint64_t)n, end - at);
	memset(buf, 0, n);
	return n;
}

int synthetic_read(void *arg, void *buf, size_t n, uint64_t at)
{
	const struct synthetic *s = arg;
	uint8_t *p = buf;

	while (n) {
		size_t got = read_some(s, p, n, at);

		p += got;
		at += got;
		n -= got;
	}
	return 0;
}

int synthetic_file_bytes(const char *what, uint64_t *out, struct diag *diag)
{
	_cleanup_(synthetic_freep) struct synthetic *s = NULL;
	int r = synthetic_new(&s, what, diag);

	if (!r)
		*out = gguf_file_size(s->header);
	return r;
}
