/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/jinja-lexer.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"

static const char *const tag_names[JINJA_N_TAGS] = { "if", "elif", "else", "endif", "for", "endfor", "set" };

/* Longer ones first. */
static const char *const operators[] = { "//", "**", "==", "!=", "<=", ">=", "+", "-", "*",
					 "/",  "%",  "~",  "<",  ">",  "=",  ".", ":", "|",
					 ",",  ";",  "(",  ")",  "[",  "]",  "{", "}" };

struct lexer {
	struct jinja_source *out;
	const char *p, *end;
	char *strings;		/* where the next unescaped string goes */
	bool line_starting;	/* the tag before ended with a line's end */
};

static int push(struct lexer *l, struct jinja_token token)
{
	struct jinja_source *s = l->out;

	if (s->n == s->capacity) {
		size_t capacity = s->capacity ? 2 * s->capacity : 256;
		struct jinja_token *tokens = realloc(s->tokens, capacity * sizeof(*tokens));

		if (!tokens)
			return -ENOMEM;
		s->tokens = tokens;
		s->capacity = capacity;
	}
	s->tokens[s->n++] = token;
	return 0;
}

static bool is_space(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_name(char c, bool first)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
	       (!first && c >= '0' && c <= '9');
}

static bool starts_with(const struct lexer *l, const char *s)
{
	size_t n = strlen(s);

	return (size_t)(l->end - l->p) >= n && memcmp(l->p, s, n) == 0;
}

static void skip_space(struct lexer *l)
{
	while (l->p < l->end && is_space(*l->p))
		l->p++;
}

/* The text before a tag that opens with "{%", "{{" or "{#" and this sign. */
static size_t strip_before(const struct lexer *l, const char *text, size_t n, bool output, char sign)
{
	size_t line = n;

	if (sign == '-') {
		while (n > 0 && is_space(text[n - 1]))
			n--;
		return n;
	}
	if (sign == '+' || output)
		return n;
	while (line > 0 && text[line - 1] != '\n')
		line--;
	if (line == 0 && !l->line_starting)
		return n;
	for (size_t i = line; i < n; i++)
		if (!is_space(text[i]))
			return n;
	return line;
}

/* Takes the end of a tag, sign included, if it is here; true if so. */
static bool take_close(struct lexer *l, const char *close, bool output)
{
	char sign = l->p < l->end && (*l->p == '-' || (*l->p == '+' && !output)) ? *l->p : 0;
	struct lexer at = *l;

	if (sign)
		at.p++;
	if (!starts_with(&at, close))
		return false;
	at.p += 2;
	if (sign == '-')
		skip_space(&at);
	else if (!sign && !output && at.p < at.end && *at.p == '\n')
		at.p++;
	l->line_starting = at.p[-1] == '\n';
	l->p = at.p;
	return true;
}

static int skip_comment(struct lexer *l)
{
	while (l->p < l->end) {
		if (take_close(l, "#}", false))
			return 0;
		l->p++;
	}
	return JINJA_E_UNSUPPORTED;
}

/* l->p is behind the backslash. */
static bool take_escape(struct lexer *l)
{
	static const char from[] = "nrt\\'\"", to[] = "\n\r\t\\'\"";
	const char *found = l->p < l->end && *l->p ? strchr(from, *l->p) : NULL;

	if (!found)
		return false;
	*l->strings++ = to[found - from];
	return true;
}

static int take_string(struct lexer *l)
{
	struct jinja_token token = { .kind = JINJA_STRING, .text = l->strings };
	char quote = *l->p++;

	while (l->p < l->end && *l->p != quote) {
		if (*l->p == '\\') {
			l->p++;
			if (!take_escape(l))
				token.kind = JINJA_STRANGE;
			if (l->p == l->end)
				break;
		} else {
			*l->strings++ = *l->p;
		}
		l->p++;
	}
	if (l->p == l->end)
		return JINJA_E_UNSUPPORTED;
	l->p++;
	token.n = (size_t)(l->strings - token.text);
	return push(l, token);
}

static int take_word(struct lexer *l)
{
	struct jinja_token token = { .kind = JINJA_NAME, .text = l->p };

	if (*l->p >= '0' && *l->p <= '9')
		token.kind = JINJA_NUMBER;
	while (l->p < l->end && is_name(*l->p, false))
		l->p++;
	token.n = (size_t)(l->p - token.text);
	for (size_t i = 0; token.kind == JINJA_NUMBER && i < token.n; i++)
		if (token.text[i] < '0' || token.text[i] > '9')
			token.kind = JINJA_STRANGE;
	return push(l, token);
}

/* depth counts open brackets, in which "}}" does not end the tag. */
static int take_operator(struct lexer *l, int *depth)
{
	for (size_t i = 0; i < ARRAY_SIZE(operators); i++) {
		struct jinja_token token = { .kind = JINJA_OPERATOR,
					     .text = operators[i],
					     .n = strlen(operators[i]) };

		if (!starts_with(l, operators[i]))
			continue;
		if (strchr("([{", *l->p))
			++*depth;
		else if (strchr(")]}", *l->p) && --*depth < 0)
			return JINJA_E_UNSUPPORTED;
		l->p += token.n;
		return push(l, token);
	}
	return JINJA_E_UNSUPPORTED;
}

/* What stands in a tag, to its end. */
static int take_expression(struct lexer *l, bool output)
{
	const char *close = output ? "}}" : "%}";
	int depth = 0;

	for (;;) {
		int r;

		skip_space(l);
		if (l->p == l->end)
			return JINJA_E_UNSUPPORTED;
		if (depth == 0 && take_close(l, close, output))
			return push(
				l, (struct jinja_token){ .kind = output ? JINJA_OUTPUT_END : JINJA_TAG_END });
		if (*l->p == '\'' || *l->p == '"')
			r = take_string(l);
		else if (is_name(*l->p, false))
			r = take_word(l);
		else
			r = take_operator(l, &depth);
		if (r)
			return r;
	}
}

static int take_keyword(struct lexer *l)
{
	struct jinja_token token = { .kind = JINJA_TAG };
	const char *word;

	skip_space(l);
	word = l->p;
	while (l->p < l->end && is_name(*l->p, false))
		l->p++;
	for (int i = 0; i < JINJA_N_TAGS; i++)
		if (strlen(tag_names[i]) == (size_t)(l->p - word) &&
		    memcmp(tag_names[i], word, (size_t)(l->p - word)) == 0) {
			token.tag = (enum jinja_tag)i;
			return push(l, token);
		}
	return JINJA_E_UNSUPPORTED;
}

/* The next tag's opening, or the end. */
static const char *find_tag(const struct lexer *l)
{
	for (const char *p = l->p; p + 1 < l->end; p++)
		if (p[0] == '{' && (p[1] == '%' || p[1] == '{' || p[1] == '#'))
			return p;
	return l->end;
}

/* One stretch of text and the tag behind it. */
static int take_tag(struct lexer *l)
{
	const char *text = l->p, *tag = find_tag(l);
	size_t n = (size_t)(tag - text);
	char kind = 0, sign = 0;
	int r = 0;

	l->p = tag;
	if (tag < l->end) {
		kind = tag[1];
		l->p += 2;
		if (l->p < l->end && (*l->p == '-' || *l->p == '+'))
			sign = *l->p++;
		n = strip_before(l, text, n, kind == '{', sign);
	}
	if (n)
		r = push(l, (struct jinja_token){ .kind = JINJA_TEXT, .text = text, .n = n });
	if (r || !kind)
		return r;
	if (kind == '#')
		return skip_comment(l);
	if (kind == '{')
		r = push(l, (struct jinja_token){ .kind = JINJA_OUTPUT });
	else
		r = take_keyword(l);
	return r ? r : take_expression(l, kind == '{');
}

/*
 * Links each tag to the one that ends its body, and checks that they nest.
 * open[] holds the tags whose bodies have not ended.
 */
static int link_tags(struct jinja_source *s)
{
	uint32_t open[JINJA_MAX_DEPTH];
	size_t depth = 0;

	for (uint32_t i = 0; i < s->n; i++) {
		struct jinja_token *token = &s->tokens[i],
				   *before = depth ? &s->tokens[open[depth - 1]] : NULL;

		if (token->kind != JINJA_TAG || token->tag == JINJA_SET)
			continue;
		if (token->tag == JINJA_IF || token->tag == JINJA_FOR) {
			if (depth == JINJA_MAX_DEPTH)
				return JINJA_E_UNSUPPORTED;
			open[depth++] = i;
			continue;
		}
		if (token->tag != JINJA_ELIF && s->tokens[i + 1].kind != JINJA_TAG_END)
			return JINJA_E_UNSUPPORTED;
		if (!before || (token->tag == JINJA_ENDFOR) != (before->tag == JINJA_FOR))
			return JINJA_E_UNSUPPORTED;
		if (before->tag == JINJA_ELSE && token->tag != JINJA_ENDIF)
			return JINJA_E_UNSUPPORTED;
		before->next = i;
		if (token->tag == JINJA_ENDIF || token->tag == JINJA_ENDFOR)
			depth--;
		else
			open[depth - 1] = i;
	}
	return depth ? JINJA_E_UNSUPPORTED : 0;
}

int jinja_source_init(struct jinja_source *s, const char *source, size_t n)
{
	struct jinja_source made = { 0 };
	struct lexer l = { .out = &made, .line_starting = true };
	char *copy;
	int r = 0;

	/* Jinja turns every kind of line end into \n; templates have \n, and no other controls. */
	if (n > JINJA_MAX_SOURCE)
		return JINJA_E_UNSUPPORTED;
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)source[i] < ' ' && source[i] != '\n' && source[i] != '\t')
			return JINJA_E_UNSUPPORTED;
	if (n > 0 && source[n - 1] == '\n')
		n--;
	/* The source, and behind it the strings, which are no longer than it. */
	copy = malloc(2 * n + 1);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, source, n);
	made.strings = copy;
	l.p = copy;
	l.end = l.strings = copy + n;
	while (r == 0 && l.p < l.end)
		r = take_tag(&l);
	if (r == 0)
		r = push(&l, (struct jinja_token){ .kind = JINJA_END });
	if (r == 0)
		r = link_tags(&made);
	if (r) {
		jinja_source_deinit(&made);
		return r;
	}
	*s = made;
	return 0;
}

void jinja_source_deinit(struct jinja_source *s)
{
	free(s->tokens);
	free(s->strings);
	*s = (struct jinja_source){ 0 };
}
