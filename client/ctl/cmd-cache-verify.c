/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl cache verify: a sample of the cache is computed again, and compared. */
#include <inttypes.h>
#include <stdio.h>

#include "client/ctl/cmd-cache.h"
#include "client/ctl/json.h"
#include "client/ctl/share.h"

static int print_result(const struct ctl *ctl, const struct kvd_share_result *r)
{
	int status = CTL_OK;

	if (ctl->json)
		status = json_print_line(ctl, json_pack("{s:o,s:o,s:o,s:o,s:o}", "n_entries", json_u64(r->n_entries),
							"n_tokens", json_u64(r->n_tokens), "bytes", json_u64(r->bytes),
							"n_differ", json_u64(r->n_differ),
							"compute_ns", json_u64(r->compute_ns)));
	else
		printf("verified: %" PRIu64 " entr%s, %" PRIu64 " tokens in %.2f s; %" PRIu64 " differ%s\n",
		       r->n_entries, r->n_entries == 1 ? "y" : "ies", r->n_tokens, (double)r->compute_ns / 1e9,
		       r->n_differ, r->n_differ == 1 ? "s" : "");
	if (!r->n_differ)
		return status;
	ctl_error(ctl, "what differed from what is computed was dropped; %s", r->message);
	return CTL_FAILED;
}

int cmd_cache_verify(struct ctl *ctl, int argc, char **argv)
{
	static const struct option longs[] = {
		SHARE_LONGS,
		{ "namespace", required_argument, NULL, CTL_OPT_NAMESPACE },
		{ "count", required_argument, NULL, 'n' },
		{ "all", no_argument, NULL, CTL_OPT_ALL },
		CTL_GLOBAL_OPTIONS,
		{ 0 },
	};
	struct ctl_options o = { .ctl = ctl, .argc = argc, .argv = argv, .shorts = ":hm:n:q", .longs = longs };
	struct kvd_share_result result;
	struct kvd_client *c = NULL;
	struct share s;
	int status;

	share_init(&s, "verifying");
	if (share_parse(&s, &o, false))
		return o.status;
	status = share_connect(ctl, &c);
	if (!status)
		status = share_failed(ctl, &s, c, kvd_cache_verify(c, &s.options, &result), "cannot verify the cache");
	if (!status)
		status = print_result(ctl, &result);
	kvd_close(c);
	return status;
}
