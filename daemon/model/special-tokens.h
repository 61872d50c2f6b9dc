/* SPDX-License-Identifier: Apache-2.0 */
/*
 * special-tokens.h - finds tokens that are matched in the text before it is cut
 * into words: control tokens (where the caller asks for them) and user-defined
 * tokens (always).  Leftmost, then longest, as `tokenizers` matches its added
 * tokens.
 *
 * A trie over the tokens' texts, walked from each place where one could begin:
 * at most SPECIAL_MAX_LENGTH steps per byte of text, whatever the text.
 */
#ifndef KVD_SPECIAL_TOKENS_H
#define KVD_SPECIAL_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/model/vocab.h"
#include "ipc/base/error.h"

#define SPECIAL_MAX_LENGTH 256u		/* bytes of one token's text */

/*
 * Nodes in breadth-first order, so that a node's children are neighbours,
 * sorted by byte:
 *
 *     root -> '<' -> '|' -> 'e' ... '>' (token 0)
 *                        -> 'i' -> 'm' ...
 */
struct special_node {
	uint32_t children;	/* index of the first */
	uint16_t n_children;
	uint8_t byte;		/* that leads here */
	bool control;		/* of the token */
	int32_t id;		/* the token that ends here, -1: none */
};

struct special_tokens {
	struct special_node *nodes;	/* [0] is the root */
	uint32_t n_nodes;
	uint32_t first[256];		/* the root's child by byte, 0: none */
};

#define SPECIAL_TOKENS_NULL ((struct special_tokens){ 0 })

/* Takes the control and user-defined tokens of v.  0, -ENOMEM, -EINVAL with diag. */
int special_tokens_init(struct special_tokens *s, const struct vocab *v, struct diag *diag);
void special_tokens_deinit(struct special_tokens *s);

/*
 * Finds the first token in text[from..n).  Returns its id and sets *at and *len,
 * or -1.  Control tokens count only with control.
 */
int32_t special_tokens_find(const struct special_tokens *s, const uint8_t *text, size_t n, size_t from,
			    bool control, size_t *at, size_t *len);

/* The longest token that text[0..n) begins with, n > 0: its length and *id; 0 if there is none. */
size_t special_tokens_match(const struct special_tokens *s, const uint8_t *text, size_t n, bool control,
			    int32_t *id);

#endif
