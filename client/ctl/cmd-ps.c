/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl ps: who is running what. */
#include <inttypes.h>
#include <stdlib.h>

#include "client/ctl/connect.h"
#include "client/ctl/json.h"
#include "client/ctl/simple.h"
#include "client/ctl/table.h"

static json_t *process_json(const struct kvd_process *p)
{
	return json_pack("{s:o,s:o,s:i,s:i,s:s,s:s,s:s,s:o,s:o,s:o,s:o,s:o}",
			 "session", json_u64(p->session), "request", json_u64(p->request),
			 "uid", (int)p->uid, "pid", (int)p->pid, "client", p->client, "phase", p->phase,
			 "model", p->model,
			 "prompt_tokens", json_u64(p->prompt_tokens),
			 "computed_tokens", json_u64(p->computed_tokens),
			 "generated_tokens", json_u64(p->generated_tokens), "blocks", json_u64(p->blocks),
			 "age_ns", json_u64(p->age_ns));
}

static int print_json(const struct ctl *ctl, const struct kvd_process *list, size_t n)
{
	json_t *v = json_array();

	for (size_t i = 0; v && i < n; i++)
		json_array_append_new(v, process_json(&list[i]));
	return json_print(ctl, v);
}

static int print_table(const struct ctl *ctl, const struct kvd_process *list, size_t n)
{
	static const struct table_column columns[] = {
		{ "SESSION", true }, { "REQUEST", true }, { "UID", true }, { "PID", true },
		{ "CLIENT", false }, { "MODEL", false },
		{ "PHASE", false }, { "PROMPT", true }, { "COMPUTED", true }, { "GENERATED", true },
		{ "BLOCKS", true }, { "AGE", true },
	};
	char buf[FORMAT_MAX];
	struct table t;

	table_init(&t, columns, sizeof(columns) / sizeof(columns[0]));
	for (const struct kvd_process *p = list; p < list + n; p++) {
		table_cell(&t, "%" PRIu64, p->session);
		table_cell(&t, "%" PRIu64, p->request);
		table_cell(&t, "%" PRIu32, p->uid);
		table_cell(&t, "%" PRIu32, p->pid);
		table_cell(&t, "%s", p->client);
		table_cell(&t, "%s", p->model);
		table_cell(&t, "%s", p->phase);
		table_cell(&t, "%" PRIu32, p->prompt_tokens);
		table_cell(&t, "%" PRIu32, p->computed_tokens);
		table_cell(&t, "%" PRIu32, p->generated_tokens);
		table_cell(&t, "%" PRIu32, p->blocks);
		table_cell(&t, "%s", format_duration(buf, p->age_ns));
	}
	return table_finish(ctl, &t);
}

int cmd_ps(struct ctl *ctl, int argc, char **argv)
{
	struct kvd_client *c = NULL;
	struct kvd_process *list = NULL;
	size_t n = 0;
	int status = CTL_OK;

	if (simple_options(ctl, argc, argv, &status))
		return status;
	status = connect_running(ctl, &c);
	if (status)
		return status;
	int r = kvd_ps(c, &list, &n);
	if (r)
		status = ctl_client_failed(ctl, c, r, "cannot list the requests");
	else
		status = ctl->json ? print_json(ctl, list, n) : print_table(ctl, list, n);
	free(list);
	kvd_close(c);
	return status;
}
