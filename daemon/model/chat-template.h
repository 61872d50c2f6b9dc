/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chat-template.h - messages to token ids.
 *
 * The model's template is recognised by what it prints (chat-recognise.c); the
 * families of chat-format.c are known.  Replies that hold reasoning are rendered
 * whole, also where a template would leave it out of earlier turns.
 * Control tokens come from the template alone: message content is tokenised
 * without TOKENIZE_SPECIAL, so content cannot forge a turn.  A reply that the
 * model generated may be given back as its ids, so that the next turn's prompt
 * begins with exactly the tokens that are already known.
 * Immutable; any thread.
 */
#ifndef KVD_CHAT_TEMPLATE_H
#define KVD_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/model/tokenizer.h"
#include "ipc/base/error.h"

struct chat_template;

#define CHAT_E_UNKNOWN 1	/* the model's template is not one we know: use raw */

/* A stretch of one message: text, or token ids where ids is not NULL. */
struct chat_message {
	const char *role;	/* "system", "user", "assistant" */
	const char *text;	/* n bytes */
	const int32_t *ids;	/* n ids as generated, the end-of-turn token included or not */
	size_t n;
};

/* text: the GGUF's tokenizer.chat_template.  Never fails for an unknown template. */
int chat_template_new(struct chat_template **out, const struct tokenizer *t, const char *text, size_t n);
void chat_template_free(struct chat_template *c);
/* "chatml", "gemma", "llama3", ..., or NULL when not recognised. */
const char *chat_template_name(const struct chat_template *c);

/*
 * Appends the prompt for the messages, ending where the assistant's reply
 * begins.  0; CHAT_E_UNKNOWN; -EINVAL with diag for an unknown role, an empty
 * list, or roles in an order that the template refuses; -ENOMEM.
 */
int chat_template_render(const struct chat_template *c, const struct tokenizer *t,
			 const struct chat_message *messages, size_t n_messages,
			 struct token_list *out, struct diag *diag);

#endif
