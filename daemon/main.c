/* SPDX-License-Identifier: Apache-2.0 */
/* kvd: options, log, server; see kvd.8 and server.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config.h"
#include "daemon/server/log.h"
#include "daemon/server/server.h"

static int serve(const struct config *config)
{
	struct diag diag = DIAG_NULL;
	struct server *server;
	int r, status;

	r = server_new(&server, &config->server, &diag);
	if (r) {
		log_error("cannot start: %s", diag.text[0] ? diag.text : strerror(-r));
		return EXIT_FAILURE;
	}
	status = server_run(server);
	server_free(server);
	return status;
}

int main(int argc, char **argv)
{
	struct diag diag = DIAG_NULL;
	struct config config;
	int r, status = EXIT_SUCCESS;

	log_init();
	r = config_init(&config, argc, argv, &diag);
	if (r) {
		log_error("%s", diag.text[0] ? diag.text : strerror(-r));
		config_deinit(&config);
		return r == -ENOMEM ? EXIT_FAILURE : 2;
	}
	switch (config.action) {
	case CONFIG_RUN:
		status = serve(&config);
		break;
	case CONFIG_CHECK:
		break;
	case CONFIG_PRINT:
		config_print(&config, stdout);
		break;
	case CONFIG_VERSION:
		config_version(stdout);
		break;
	case CONFIG_HELP:
		config_help(stdout);
		break;
	}
	config_deinit(&config);
	return fflush(stdout) ? EXIT_FAILURE : status;
}
