/* SPDX-License-Identifier: Apache-2.0 */
/* cmd-cache.h - the commands below `kvctl cache`. */
#ifndef KVD_CTL_CMD_CACHE_H
#define KVD_CTL_CMD_CACHE_H

#include "client/ctl/ctl.h"

int cmd_cache_ls(struct ctl *ctl, int argc, char **argv);	/* cmd-cache-ls.c */
int cmd_cache_show(struct ctl *ctl, int argc, char **argv);	/* cmd-cache-show.c */
int cmd_cache_export(struct ctl *ctl, int argc, char **argv);
int cmd_cache_import(struct ctl *ctl, int argc, char **argv);
int cmd_cache_verify(struct ctl *ctl, int argc, char **argv);
int cmd_cache_warm(struct ctl *ctl, int argc, char **argv);	/* cmd-cache-warm.c */

/* An argument that is an entry's number: 0, or an exit status after a message. */
int cache_entry_number(const struct ctl *ctl, const char *text, uint64_t *out);

#endif
