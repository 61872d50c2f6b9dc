/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-code.h - what the daemon's reasons (enum kvd_code) are in HTTP: status and `code`, by one table.
 *
 * Thread: any; the hint asks the engine, which may be asked by any.
 */
#ifndef KVD_SERVER_HTTP_CODE_H
#define KVD_SERVER_HTTP_CODE_H

#include "daemon/server/http-fields.h"
#include "ipc/protocol.h"

struct http_exchange;
struct models;
struct served_model;

/* Fills in a refusal.  param: NULL for none.  code is not KVD_CODE_OK. */
void http_code_refusal(struct http_refusal *why, enum kvd_code code, const char *param, const char *message);
/* Where it is one that goes away by waiting: when to come again, for this account. */
void http_code_hint(struct http_refusal *why, const struct models *models, uid_t account);
/* The model that a request asks for, by name or (NULL, "") the default one.  NULL: the refusal is filled in. */
struct served_model *http_choose_model(const struct models *models, const char *name, struct http_refusal *why);

#endif
