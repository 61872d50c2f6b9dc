/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvd-tokenize - the token ids of files by a model file's tokenizer, without a
 * daemon: one line for each file.
 */
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/gguf.h"
#include "daemon/model/tokenizer.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

static const char usage[] =
	"usage: kvd-tokenize [options] MODEL FILE...\n"
	"  --special      control tokens written in the text become their ids\n"
	"  --bos  --eos   where the model asks for them\n"
	"  --count        how many ids, in place of the ids\n";

struct options {
	unsigned flags;
	bool count;
};

static struct tokenizer *load(const char *path)
{
	_cleanup_(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
	_cleanup_(gguf_freep) struct gguf *g = NULL;
	struct tokenizer *t = NULL;
	struct diag diag = DIAG_NULL;

	if (fd < 0)
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
	else if (gguf_read(&g, fd, &diag) || tokenizer_new(&t, g, &diag))
		fprintf(stderr, "%s: %s\n", path, diag.text);
	return t;
}

static char *read_all(const char *path, size_t *n)
{
	FILE *f = fopen(path, "re"), *out;
	char *text = NULL, part[4096];
	size_t k;

	if (!f) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		return NULL;
	}
	out = open_memstream(&text, n);
	while (out && (k = fread(part, 1, sizeof(part), f)) > 0)
		fwrite(part, 1, k, out);
	fclose(f);
	if (out)
		fclose(out);
	return text;
}

static int tokenize(const struct tokenizer *t, const struct options *o, const char *path)
{
	struct token_list ids = { 0 };
	size_t n = 0;
	char *text = read_all(path, &n);
	int r = text ? tokenizer_encode(t, text, n, o->flags, &ids) : -EIO;

	if (r < 0)
		fprintf(stderr, "%s: %s\n", path, strerror(-r));
	else if (o->count)
		printf("%zu\n", ids.n);
	for (size_t i = 0; r == 0 && !o->count && i < ids.n; i++)
		printf(i ? " %d" : "%d", ids.ids[i]);
	if (r == 0 && !o->count)
		putchar('\n');
	free(ids.ids);
	free(text);
	return r;
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "special", no_argument, NULL, 's' },
		{ "bos", no_argument, NULL, 'b' },
		{ "eos", no_argument, NULL, 'e' },
		{ "count", no_argument, NULL, 'c' },
		{ 0 },
	};
	struct options o = { 0 };
	struct tokenizer *t;
	int opt, r = 0;

	while ((opt = getopt_long(argc, argv, "", longs, NULL)) >= 0) {
		if (opt == 's')
			o.flags |= TOKENIZE_SPECIAL;
		else if (opt == 'b')
			o.flags |= TOKENIZE_BOS;
		else if (opt == 'e')
			o.flags |= TOKENIZE_EOS;
		else if (opt == 'c')
			o.count = true;
		else
			return fputs(usage, stderr), 2;
	}
	if (argc - optind < 1)
		return fputs(usage, stderr), 2;
	t = load(argv[optind]);
	if (!t)
		return 1;
	for (int i = optind + 1; r == 0 && i < argc; i++)
		r = tokenize(t, &o, argv[i]);
	tokenizer_free(t);
	return r ? 1 : 0;
}
