/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/subject.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "ipc/base/fd.h"

int subject_open(struct subject **out, const struct subject_options *options, struct diag *diag)
{
	const struct kb_cpu_options co = { .n_threads = options->n_threads, .level = options->level };
	const struct model_options mo = { .n_ctx = options->n_ctx };
	_cleanup_(subject_closep) struct subject *s = calloc(1, sizeof(*s));
	_cleanup_(fd_closep) int fd = -1;
	int r;

	if (!s)
		return -ENOMEM;
	r = kb_cpu_open(&co, &s->be);
	if (r < 0)
		return diag_set(diag, r, "the CPU backend at level %s: %s",
				options->level ? options->level : "best", strerror(-r));
	s->n_threads = s->be->ops->n_threads(s->be);
	if (options->synthetic) {
		r = model_load_synthetic(&s->model, s->be, options->synthetic, &mo, diag);
	} else {
		fd = open(options->file, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			return diag_set(diag, -errno, "%s: %s", options->file, strerror(errno));
		r = model_load(&s->model, s->be, fd, options->file, &mo, diag);
	}
	if (r < 0)
		return r;
	*out = steal_ptr(s);
	return 0;
}

void subject_close(struct subject *s)
{
	if (!s)
		return;
	model_freep(&s->model);
	if (s->be)
		s->be->ops->close(s->be);
	free(s);
}

uint64_t subject_head_products(const struct subject *s)
{
	const struct model_info *m = model_info(s->model);

	return (uint64_t)m->n_vocab * m->n_embd;
}

uint64_t subject_products(const struct subject *s)
{
	const struct model_info *m = model_info(s->model);
	uint64_t heads = (uint64_t)m->head_dim * (2 * m->n_heads + 2 * m->n_kv_heads);

	return (uint64_t)m->n_layers * m->n_embd * (heads + 3 * (uint64_t)m->n_ff);
}
