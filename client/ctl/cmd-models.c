/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl models: what is loaded, loading or going. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/connect.h"
#include "client/ctl/json.h"
#include "client/ctl/simple.h"
#include "client/ctl/table.h"

static json_t *model_json(const struct kvd_model *m)
{
	return json_pack("{s:s,s:s,s:s,s:s,s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:s,s:o,s:o,s:b,s:o,s:o,s:s}",
			 "name", m->name, "arch", m->arch, "title", m->title, "state", m->state,
			 "chat_template", m->chat_template,
			 "n_ctx", json_u64(m->n_ctx), "n_ctx_train", json_u64(m->n_ctx_train),
			 "n_vocab", json_u64(m->n_vocab), "n_layers", json_u64(m->n_layers),
			 "n_embd", json_u64(m->n_embd), "n_params", json_u64(m->n_params),
			 "file_bytes", json_u64(m->file_bytes), "weight_bytes", json_u64(m->weight_bytes),
			 "hash", m->hash, "percent", json_u64(m->percent), "uid", json_u64(m->uid),
			 "is_default", m->is_default,
			 "block_tokens", json_u64(m->block_tokens), "block_bytes", json_u64(m->block_bytes),
			 "block_tokens_by", m->block_tokens_by);
}

static int print_json(const struct ctl *ctl, const struct kvd_model *list, size_t n)
{
	json_t *v = json_array();

	for (size_t i = 0; v && i < n; i++)
		json_array_append_new(v, model_json(&list[i]));
	return json_print(ctl, v);
}

static int print_table(const struct ctl *ctl, const struct kvd_model *list, size_t n)
{
	static const struct table_column columns[] = {
		{ "NAME", false }, { "ARCH", false }, { "STATE", false }, { "UID", true }, { "CONTEXT", true },
		{ "PARAMETERS", true },
		{ "FILE", true }, { "MEMORY", true }, { "TEMPLATE", false }, { "TITLE", false },
	};
	char buf[FORMAT_MAX];
	struct table t;

	table_init(&t, columns, sizeof(columns) / sizeof(columns[0]));
	for (const struct kvd_model *m = list; m < list + n; m++) {
		table_cell(&t, "%s", m->name);
		table_cell(&t, "%s", m->arch);
		if (!strcmp(m->state, "loading"))
			table_cell(&t, "loading %" PRIu32 " %%", m->percent);
		else
			table_cell(&t, "%s%s", m->state, m->is_default ? ", default" : "");
		table_cell(&t, "%" PRIu32, m->uid);
		table_cell(&t, "%" PRIu32, m->n_ctx);
		table_cell(&t, "%s", format_count(buf, m->n_params));
		table_cell(&t, "%s", format_bytes(buf, m->file_bytes));
		table_cell(&t, "%s", format_bytes(buf, m->weight_bytes));
		table_cell(&t, "%s", *m->chat_template ? m->chat_template : "-");
		table_cell(&t, "%s", m->title);
	}
	return table_finish(ctl, &t);
}

int cmd_models(struct ctl *ctl, int argc, char **argv)
{
	struct kvd_client *c = NULL;
	struct kvd_model *list = NULL;
	size_t n = 0;
	int status = CTL_OK;

	if (simple_options(ctl, argc, argv, &status))
		return status;
	status = connect_running(ctl, &c);
	if (status)
		return status;
	int r = kvd_models(c, &list, &n);
	if (r)
		status = ctl_client_failed(ctl, c, r, "cannot list the models");
	else
		status = ctl->json ? print_json(ctl, list, n) : print_table(ctl, list, n);
	free(list);
	kvd_close(c);
	return status;
}
