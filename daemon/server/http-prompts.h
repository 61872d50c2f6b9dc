/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http-prompts.h - a `prompt` or `input` field: text, texts, token ids, or lists of token ids.
 *
 * It is looked at whole first (http_prompts_init()); then each prompt's bytes are written where they are
 * to stay.  Whether ids are in the vocabulary is for who has the model (submission.h).
 *
 * Any thread.  Refers to the body.
 */
#ifndef KVD_SERVER_HTTP_PROMPTS_H
#define KVD_SERVER_HTTP_PROMPTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/server/http-fields.h"
#include "ipc/protocol.h"

struct http_prompts {
	struct http_json value;
	size_t n;		/* prompts, at least 1 */
	bool is_list;		/* of prompts: refusals of one name it, "prompt[2]" */
	enum kvd_part_kind kind;	/* of all of them */
	struct http_json_iter next;	/* http_prompts_next()'s */
	bool begun;
};

/* name: the field's; at most max prompts, none of them empty.  0, or -EINVAL with the refusal filled in. */
int http_prompts_init(struct http_prompts *p, const struct http_json *value, const char *name, size_t max,
		      struct http_refusal *why);

/* A list of token ids that is not empty.  0, or -EINVAL with the refusal filled in. */
int http_prompts_check_ids(const struct http_json *list, const char *name, struct http_refusal *why);
/* Room for them, and themselves as int32_t; how many bytes. */
size_t http_ids_room(const struct http_json *list);
size_t http_ids_write(const struct http_json *list, uint8_t *out);

/* In turn, from the first: the prompt as it stands in the body.  False: there are no more. */
bool http_prompts_next(struct http_prompts *p, struct http_json *prompt);
/* How much room its bytes need, at most. */
size_t http_prompt_room(const struct http_prompts *p, const struct http_json *prompt);
/* Its bytes (ids: int32_t, out is aligned for them) to out, which has that room; how many. */
size_t http_prompt_write(const struct http_prompts *p, const struct http_json *prompt, uint8_t *out);

#endif
