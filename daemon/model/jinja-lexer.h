/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jinja-lexer.h - a chat template's source to tokens, and the nesting of its
 * tags.
 *
 * White space is treated as transformers' apply_chat_template() has it:
 * trim_blocks and lstrip_blocks are on, keep_trailing_newline is off
 * (jinja.palletsprojects.com, "Whitespace Control").  Known tags are if, elif,
 * else, endif, for, endfor and set; with any other the template is refused.
 */
#ifndef KVD_JINJA_LEXER_H
#define KVD_JINJA_LEXER_H

#include <stddef.h>
#include <stdint.h>

#define JINJA_MAX_SOURCE (64u << 10)
#define JINJA_MAX_DEPTH 32	/* of nested tags, and of nested expressions */

#define JINJA_E_UNSUPPORTED 1	/* the template is beyond what is known here */
#define JINJA_E_RAISED 2	/* the template refuses the conversation: raise_exception() */

enum jinja_token_kind {
	JINJA_TEXT,		/* between tags, stripped */
	JINJA_OUTPUT,		/* {{ */
	JINJA_OUTPUT_END,
	JINJA_TAG,		/* {% with its keyword */
	JINJA_TAG_END,
	JINJA_NAME,
	JINJA_STRING,		/* unescaped */
	JINJA_NUMBER,		/* digits */
	JINJA_OPERATOR,
	JINJA_STRANGE,		/* a literal of a form that is not known here */
	JINJA_END,
};

enum jinja_tag {
	JINJA_IF,
	JINJA_ELIF,
	JINJA_ELSE,
	JINJA_ENDIF,
	JINJA_FOR,
	JINJA_ENDFOR,
	JINJA_SET,
	JINJA_N_TAGS,
};

struct jinja_token {
	enum jinja_token_kind kind;
	enum jinja_tag tag;	/* of JINJA_TAG */
	uint32_t next;		/* of if, elif, else: the tag where its body ends; of for: its endfor */
	const char *text;	/* of the kinds that have text */
	size_t n;
};

struct jinja_source {
	struct jinja_token *tokens;	/* ends with JINJA_END */
	size_t n, capacity;
	char *strings;			/* what the tokens' texts point into */
};

/*
 * 0; JINJA_E_UNSUPPORTED, also for what Jinja itself would refuse; -ENOMEM.
 * The source is copied.
 */
int jinja_source_init(struct jinja_source *s, const char *source, size_t n);
void jinja_source_deinit(struct jinja_source *s);

#endif
