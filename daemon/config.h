/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.h - command line, configuration file and environment.
 *
 * One table names every option; the file (section [kvd], inih) has the same names
 * without the dashes.  The command line wins over the file.  Unknown names,
 * bad values and repeated names are refused with the option or line named; only
 * `model`, `synthetic` and `http` may be repeated, and those of the command line replace those of the file.
 */
#ifndef KVD_CONFIG_H
#define KVD_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/server/server.h"
#include "ipc/base/error.h"

enum config_action {
	CONFIG_RUN,
	CONFIG_CHECK,	/* --check-config: options and file are fine */
	CONFIG_PRINT,	/* --print-config */
	CONFIG_VERSION,
	CONFIG_HELP,
};

struct config {
	enum config_action action;
	struct server_config server;	/* its strings point below */
	char *file;			/* --config */
	char **models;			/* [server.n_models] */
	char **synthetic;		/* [server.n_synthetic] */
	char **http;			/* [server.n_http] */
	char *socket, *cpu_level, *cache_groups, *fair_weights, *state_dir, *http_keys, *http_hosts, *http_origins;
	int socket_mode;		/* -1: by who runs the daemon */
	uint64_t given;			/* bit per row: set by the file, or by the command line */
};

/*
 * Reads the file that argv names, argv, and fills what is left with defaults.
 * 0; -EINVAL: diag says which option or line is wrong; -errno for a
 * file that can't be read (diag says so).  config_deinit() is needed either way.
 */
int config_init(struct config *c, int argc, char **argv, struct diag *diag);
void config_deinit(struct config *c);

/* The effective settings, as a configuration file. */
void config_print(const struct config *c, FILE *f);
/* The version, and the levels of the CPU backend that this machine can run. */
void config_version(FILE *f);
void config_help(FILE *f);

#endif
