/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl tokenize: the token ids of a text, and what each stands for. */
#include <stdio.h>
#include <stdlib.h>

#include "client/ctl/connect.h"
#include "client/ctl/input.h"
#include "client/ctl/json.h"

static int print_json(const struct ctl *ctl, const struct kvd_token *tokens, size_t n)
{
	json_t *ids = json_array(), *pieces = json_array();

	for (size_t i = 0; i < n; i++) {
		json_array_append_new(ids, json_integer(tokens[i].id));
		json_array_append_new(pieces, json_pack("{s:i,s:o,s:o}", "id", tokens[i].id,
							"text", json_text(tokens[i].bytes, tokens[i].n_bytes),
							"bytes",
							json_bytes(tokens[i].bytes, tokens[i].n_bytes)));
	}
	return json_print_line(ctl, json_pack("{s:o,s:o}", "ids", ids, "tokens", pieces));
}

static int print_ids(const struct kvd_token *tokens, size_t n)
{
	for (size_t i = 0; i < n; i++)
		printf("%s%d", i ? " " : "", tokens[i].id);
	putchar('\n');
	return CTL_OK;
}

static int print_pieces(const struct ctl *ctl, const struct kvd_token *tokens, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		size_t size = (size_t)tokens[i].n_bytes * 4 + 8;
		char *quoted = malloc(size);
		if (!quoted) {
			ctl_error(ctl, "out of memory");
			return CTL_FAILED;
		}
		text_quote(tokens[i].bytes, tokens[i].n_bytes, quoted, size);
		printf("%8d  %s\n", tokens[i].id, quoted);
		free(quoted);
	}
	return CTL_OK;
}

static int tokenize(struct ctl *ctl, const char *model, const struct text_buffer *text, unsigned flags,
		    bool ids)
{
	struct kvd_client *c = NULL;
	struct kvd_model chosen;
	struct kvd_token *tokens = NULL;
	size_t n = 0;
	int status = connect_for_model(ctl, model, false, text->n, &c, &chosen);

	if (status)
		return status;
	int r = kvd_tokenize_pieces(c, chosen.name, text->data, text->n, flags, &tokens, &n);
	if (r)
		status = ctl_client_failed(ctl, c, r, "cannot tokenize");
	else if (ctl->json)
		status = print_json(ctl, tokens, n);
	else
		status = ids ? print_ids(tokens, n) : print_pieces(ctl, tokens, n);
	free(tokens);
	kvd_close(c);
	return status;
}

int cmd_tokenize(struct ctl *ctl, int argc, char **argv)
{
	static const struct option longs[] = {
		{ "model", required_argument, NULL, 'm' },
		{ "ids", no_argument, NULL, CTL_OPT_IDS },
		{ "bos", no_argument, NULL, CTL_OPT_BOS },
		{ "special", no_argument, NULL, CTL_OPT_SPECIAL },
		{ "file", required_argument, NULL, 'f' },
		CTL_GLOBAL_OPTIONS,
		{ 0 },
	};
	struct ctl_options o = { .ctl = ctl, .argc = argc, .argv = argv, .shorts = ":hm:f:", .longs = longs };
	const char *model = NULL, *file = NULL;
	struct text_buffer text = { 0 };
	unsigned flags = 0;
	bool ids = false;

	for (;;) {
		int c = ctl_options_next(&o);
		if (c == CTL_OPTIONS_EXIT)
			return o.status;
		if (c == CTL_OPTIONS_END)
			break;
		switch (c) {
		case 'm':
			model = optarg;
			break;
		case 'f':
			file = optarg;
			break;
		case CTL_OPT_IDS:
			ids = true;
			break;
		case CTL_OPT_BOS:
			flags |= KVD_TOKENIZE_BOS;
			break;
		case CTL_OPT_SPECIAL:
			flags |= KVD_TOKENIZE_SPECIAL;
			break;
		}
	}
	int status = input_text(&o, file, "text", &text);
	if (!status)
		status = tokenize(ctl, model, &text, flags, ids);
	free(text.data);
	return status;
}
