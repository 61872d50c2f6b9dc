/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/weights.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/gguf-private.h"
#include "daemon/model/weights-plan.h"
#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "ipc/base/hash.h"

#define PIECE (4u << 20)	/* bytes read at once: well above what a read costs, well below a model */
#define ROW_GROUP 16u		/* rows that a backend is given together, of backend.h */

/* The file as a stream: what was read is hashed and counted. */
struct stream {
	int fd;
	uint64_t pos, size;
	struct hasher *hasher;
	uint8_t *buf;
	size_t capacity;
	const struct model_options *options;
	struct diag *diag;
};

static int stream_progress(struct stream *s)
{
	if (s->options->progress && !s->options->progress(s->options->progress_arg, s->pos, s->size))
		return -ECANCELED;
	return 0;
}

/* Reads the next n bytes, n <= capacity, into buf. */
static int stream_read(struct stream *s, size_t n)
{
	int r = fd_pread_full(s->fd, s->buf, n, s->pos);

	if (r)
		return diag_set(s->diag, r, "model file: %zu of its %llu bytes at %llu cannot be read", n,
				(unsigned long long)s->size, (unsigned long long)s->pos);
	hasher_update(s->hasher, s->buf, n);
	s->pos += n;
	return stream_progress(s);
}

/* Padding, and whatever else lies between tensors. */
static int stream_skip_to(struct stream *s, uint64_t to)
{
	int r = 0;

	while (s->pos < to && !r)
		r = stream_read(s, (size_t)MIN(to - s->pos, (uint64_t)s->capacity));
	return r;
}

static int stream_reserve(struct stream *s, size_t n)
{
	uint8_t *buf;

	if (n <= s->capacity)
		return 0;
	buf = realloc(s->buf, n);
	if (!buf)
		return -ENOMEM;
	s->buf = buf;
	s->capacity = n;
	return 0;
}

/* The next rows of the file into a tensor of the backend. */
static int load_rows(struct stream *s, struct kb_backend *be, const struct gguf_tensor *t, size_t row_bytes,
		     uint32_t n_rows, struct kb_tensor *tensor)
{
	uint32_t step = (uint32_t)MIN(PIECE / row_bytes, (size_t)n_rows) / ROW_GROUP * ROW_GROUP;
	uint32_t n;
	int r;

	step = MIN(MAX(step, ROW_GROUP), n_rows);
	r = stream_reserve(s, step * row_bytes);
	if (r)
		return r;
	for (uint32_t row = 0; row < n_rows; row += n) {
		n = MIN(step, n_rows - row);
		r = stream_read(s, n * row_bytes);
		if (r)
			return r;
		r = be->ops->tensor_fill(be, tensor, row, n, s->buf);
		if (r)
			return diag_set(s->diag, r, "tensor \"%s\": the backend refused it",
					gguf_quote(t->name).text);
	}
	return 0;
}

/* A list of divisors of frequencies. */
static int load_host(struct stream *s, const struct gguf_tensor *t, float **out)
{
	_cleanup_(freep) float *v = NULL;
	size_t n = (size_t)t->n_elements;
	int r;

	r = stream_reserve(s, (size_t)t->n_bytes);
	if (r)
		return r;
	r = stream_read(s, (size_t)t->n_bytes);
	if (r)
		return r;
	v = malloc(n * sizeof(*v));
	if (!v)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		uint32_t bits = gguf_load_u32(s->buf + i * 4);

		memcpy(&v[i], &bits, sizeof(bits));
		if (!(v[i] > 0) || !isfinite(v[i]))
			return diag_set(s->diag, -EINVAL, "tensor \"%s\": element %zu is not above 0",
					gguf_quote(t->name).text, i);
	}
	*out = steal_ptr(v);
	return 0;
}

static int load_part(struct weights *w, struct stream *s, const struct gguf_tensor *t,
		     const struct weights_part *part)
{
	struct kb_backend *be = w->be;
	struct kb_tensor *tensor = NULL;
	int r;

	if (part->host)
		return load_host(s, t, part->host);
	r = be->ops->tensor_new(be, &part->desc, &tensor);
	if (r)
		return diag_set(s->diag, r, "tensor \"%s\": %s", gguf_quote(t->name).text,
				r == -ENOMEM ? "no memory for it" : "the backend refused it");
	w->tensors[w->n_tensors++] = tensor;
	w->n_bytes += be->ops->tensor_bytes(tensor);
	*part->operand = tensor;
	return load_rows(s, be, t, (size_t)(t->n_bytes / (t->n_elements / part->desc.cols)), part->desc.rows,
			 tensor);
}

static int load_tensor(struct weights *w, struct stream *s, const struct gguf_tensor *t,
		       const struct weights_item *item)
{
	int r;

	r = stream_skip_to(s, t->offset);
	w->n_params += t->n_elements;
	for (size_t i = 0; i < item->n_parts && !r; i++)
		r = load_part(w, s, t, &item->parts[i]);
	return r;
}

static int load_all(struct weights *w, struct stream *s, const struct gguf *header,
		    const struct weights_plan *plan)
{
	struct gguf_tensor t;
	const uint8_t *head;
	size_t n_head;
	int r;

	head = gguf_header(header, &n_head);
	hasher_update(s->hasher, head, n_head);
	s->pos = n_head;
	r = stream_reserve(s, (size_t)MIN(s->size, (uint64_t)PIECE));
	if (r)
		return r;
	for (size_t i = 0; i < plan->n; i++) {
		gguf_tensor_at(header, i, &t);
		r = load_tensor(w, s, &t, &plan->items[i]);
		if (r)
			return r;
	}
	r = stream_skip_to(s, s->size);
	if (r)
		return r;
	hasher_digest(s->hasher, w->hash);
	return 0;
}

static int load(struct weights *w, const struct arch *arch, const struct hparams *hp,
		const struct gguf *header, int fd, const struct model_options *options, struct diag *diag)
{
	_cleanup_(weights_plan_deinit) struct weights_plan plan = { 0 };
	_cleanup_(hasher_freep) struct hasher *hasher = NULL;
	struct stream s = { .fd = fd, .size = gguf_file_size(header), .options = options, .diag = diag };
	struct weights_places places = { .ends = &w->ends, .divisors = &w->divisors };
	int r;

	w->layers = calloc(hp->n_layers, sizeof(*w->layers));
	w->tensors = calloc(ARCH_MAX_PARTS * (size_t)gguf_n_tensors(header) + 1, sizeof(*w->tensors));
	if (!w->layers || !w->tensors)
		return -ENOMEM;
	places.layers = w->layers;
	r = weights_plan_init(&plan, arch, hp, header, &places, diag);
	if (r)
		return r;
	r = hasher_new(&hasher);
	if (r)
		return r;
	s.hasher = hasher;
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	r = load_all(w, &s, header, &plan);
	free(s.buf);
	if (r)
		return r;
	if (!w->ends.logits.head) {
		if (!arch->tied_output)
			return diag_set(diag, -EINVAL, "tensor \"output.weight\": missing");
		w->ends.logits.head = w->ends.embed;
	}
	return 0;
}

int weights_init(struct weights *w, struct kb_backend *be, const struct arch *arch, const struct hparams *hp,
		 const struct gguf *header, int fd, const struct model_options *options, struct diag *diag)
{
	int r;

	*w = (struct weights){ .be = be };
	r = load(w, arch, hp, header, fd, options, diag);
	if (r)
		weights_deinit(w);
	return r;
}

void weights_deinit(struct weights *w)
{
	for (size_t i = 0; i < w->n_tensors; i++)
		w->be->ops->tensor_free(w->be, w->tensors[i]);
	free(w->tensors);
	free(w->layers);
	free(w->divisors.freqs);
	free(w->divisors.longs);
	free(w->divisors.shorts);
	*w = WEIGHTS_NULL;
}
