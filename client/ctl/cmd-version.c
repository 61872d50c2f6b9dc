/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl version: of this program, and of the daemon if one is there. */
#include <stdio.h>

#include "client/ctl/connect.h"
#include "client/ctl/json.h"
#include "client/ctl/simple.h"

int cmd_version(struct ctl *ctl, int argc, char **argv)
{
	struct kvd_connect_options options = { .name = "kvctl" };
	struct kvd_client *c = NULL;
	struct kvd_status s;
	char diag[256] = "";
	int status = CTL_OK;

	if (simple_options(ctl, argc, argv, &status))
		return status;
	options.socket = ctl->socket;
	int r = kvd_connect(&c, &options, diag, sizeof(diag));
	if (!r) {
		r = kvd_status(c, &s);
		if (r)
			snprintf(diag, sizeof(diag), "%s", kvd_client_error(c));
		kvd_close(c);
	}
	if (ctl->json)
		return json_print(ctl, json_pack("{s:s,s:i,s:o}", "client", kvd_version(),
						 "protocol", (int)kvd_protocol_version(),
						 "daemon", r ? json_null() : json_string(s.version)));
	printf("kvctl %s, protocol %u\n", kvd_version(), kvd_protocol_version());
	if (r)
		printf("kvd: not reached (%s)\n", diag);
	else
		printf("kvd %s\n", s.version);
	return CTL_OK;
}
