/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model file from any bytes: header, hyper-parameters, tokenizer, chat template,
 * tensors.  Whatever is refused is refused with a sentence; whatever is taken keeps
 * what gguf.h promises.
 *
 * The file goes on behind the input with zeros, so that inputs need not carry weights.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/model/gguf.h"
#include "daemon/model/model.h"
#include "daemon/model/tokenizer.h"
#include "kernels/backend.h"
#include "tests/fuzz/fuzz.h"

#define MORE (256u << 10)	/* bytes behind the input */

static int file_of(const uint8_t *data, size_t n)
{
	int fd = memfd_create("fuzz-gguf", MFD_CLOEXEC);

	FUZZ_CHECK(fd >= 0);
	FUZZ_CHECK(write(fd, data, n) == (ssize_t)n);
	FUZZ_CHECK(ftruncate(fd, (off_t)(n + MORE)) == 0);
	return fd;
}

static void check_refusal(int r, const struct diag *diag)
{
	FUZZ_CHECK(r == -EINVAL);
	FUZZ_CHECK(diag->text[0]);
}

/* Inside the file, in order, apart from each other, found by their names. */
static void check_tensors(const struct gguf *g)
{
	uint64_t end = 0;

	for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
		struct gguf_tensor t;
		char name[GGUF_MAX_TENSOR_NAME + 1];
		uint64_t index, n_elements = 1;

		gguf_tensor_at(g, i, &t);
		FUZZ_CHECK(t.offset >= end && t.offset <= gguf_file_size(g));
		FUZZ_CHECK(t.n_bytes && t.n_bytes <= gguf_file_size(g) - t.offset);
		end = t.offset + t.n_bytes;
		for (size_t d = 0; d < GGUF_MAX_DIMS; d++)
			FUZZ_CHECK(t.dims[d] && !__builtin_mul_overflow(n_elements, t.dims[d], &n_elements));
		FUZZ_CHECK(n_elements == t.n_elements && gguf_tensor_type_name(t.type));
		FUZZ_CHECK(t.name.n <= GGUF_MAX_TENSOR_NAME);
		memcpy(name, t.name.data, t.name.n);
		name[t.name.n] = '\0';
		FUZZ_CHECK(gguf_tensor_find(g, name, &index) == 0 && index == i);
	}
}

static void check_array(const struct gguf *g, const char *key)
{
	struct gguf_array a;
	uint64_t v;

	if (gguf_get_any_array(g, key, &a, NULL))
		return;
	for (uint64_t i = 0; i < a.n; i++) {
		if (a.type == GGUF_STRING) {
			struct gguf_string s = gguf_array_string(&a, i);

			fuzz_touch(s.data, s.n);
		} else {
			(void)gguf_array_uint(&a, i, &v);
		}
	}
}

static void check_header(const struct gguf *g)
{
	static const char *const arrays[] = { "tokenizer.ggml.tokens", "tokenizer.ggml.scores",
					      "tokenizer.ggml.token_type", "tokenizer.ggml.merges", "a" };

	check_tensors(g);
	for (size_t i = 0; i < sizeof(arrays) / sizeof(*arrays); i++)
		check_array(g, arrays[i]);
}

static void check_tokenizer(const struct gguf *g)
{
	static const char text[] = "the <|im_end|> \303\251\377 abab\n\n  12345 \342\226\201";
	struct tokenizer *t = NULL;
	struct token_list ids = { 0 };
	struct diag diag = DIAG_NULL;
	int r = tokenizer_new(&t, g, &diag);

	if (r) {
		check_refusal(r, &diag);
		return;
	}
	FUZZ_CHECK(tokenizer_encode(t, text, sizeof(text) - 1, TOKENIZE_BOS, &ids) == 0);
	for (size_t i = 0; i < ids.n; i++) {
		size_t n;
		const uint8_t *bytes = tokenizer_bytes(t, ids.ids[i], &n);

		FUZZ_CHECK(ids.ids[i] >= 0 && (uint32_t)ids.ids[i] < tokenizer_n_vocab(t));
		fuzz_touch(bytes, n);
	}
	free(ids.ids);
	tokenizer_free(t);
}

static void check_model(int fd)
{
	static struct kb_backend *be;
	struct model_options options = { .name = "fuzz", .n_ctx = 64 };
	struct kb_cpu_options cpu = { .n_threads = 1, .level = "c" };
	struct model *m = NULL;
	struct diag diag = DIAG_NULL;
	int r;

	if (!be)
		FUZZ_CHECK(kb_cpu_open(&cpu, &be) == 0);
	r = model_load(&m, be, fd, "fuzz.gguf", &options, &diag);
	if (r)
		check_refusal(r, &diag);
	else
		FUZZ_CHECK(model_n_ctx(m) && model_info(m)->n_vocab == tokenizer_n_vocab(model_tokenizer(m)));
	model_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct gguf *g = NULL, *read = NULL;
	struct diag diag = DIAG_NULL;
	uint8_t *copy = fuzz_copy(data, n);
	int fd, r = gguf_parse(&g, copy, n, n + MORE, &diag);

	free(copy);	/* the header is a copy of its own */
	if (r) {
		check_refusal(r, &diag);
		return 0;
	}
	check_header(g);
	check_tokenizer(g);
	fd = file_of(data, n);
	FUZZ_CHECK(gguf_read(&read, fd, &diag) == 0);
	FUZZ_CHECK(gguf_n_tensors(read) == gguf_n_tensors(g));
	check_model(fd);
	gguf_free(read);
	gguf_free(g);
	close(fd);
	return 0;
}
