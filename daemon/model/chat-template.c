/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rendering: the strings of the format and the contents go one behind the other;
 * markers and BOS and EOS of the format are pushed as ids, and what lies between two
 * of them is tokenised as one text without control tokens, since a word may reach
 * from the format into a content.
 */
#include "daemon/model/chat-template.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/model/chat-shape.h"
#include "daemon/model/jinja-eval.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/utf8.h"

struct chat_template {
	struct chat_shape shape;
	int32_t markers[CHAT_MAX_MARKERS];	/* ids of the format's, -1: it is text here */
};

int chat_template_new(struct chat_template **out, const struct tokenizer *t, const char *text, size_t n)
{
	struct chat_template *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return -ENOMEM;
	r = chat_shape_init(&c->shape, t, text, n);
	if (r < 0) {
		chat_template_free(c);
		return r;
	}
	for (size_t i = 0; i < CHAT_MAX_MARKERS; i++) {
		const char *name = c->shape.format ? c->shape.format->markers[i] : NULL;

		c->markers[i] = name ? tokenizer_control_id(t, name) : -1;
	}
	*out = c;
	return 0;
}

void chat_template_free(struct chat_template *c)
{
	if (!c)
		return;
	chat_shape_deinit(&c->shape);
	free(c);
}

const char *chat_template_name(const struct chat_template *c)
{
	return c->shape.format ? c->shape.format->name : NULL;
}

/* One call of chat_template_render(). */
struct prompt {
	const struct chat_template *c;
	const struct tokenizer *t;
	char *text;		/* what was not tokenised yet */
	size_t n, capacity;
	bool after_marker;	/* it comes behind a marker */
	struct token_list *out;
};

static int put_text(struct prompt *p, const char *text, size_t n)
{
	if (n > p->capacity - p->n) {
		size_t capacity = p->capacity ? p->capacity : 256;
		char *grown;

		while (capacity - p->n < n) {
			if (capacity > TOKENIZER_MAX_TEXT)
				return -EINVAL;
			capacity *= 2;
		}
		grown = realloc(p->text, capacity);
		if (!grown)
			return -ENOMEM;
		p->text = grown;
		p->capacity = capacity;
	}
	if (n)
		memcpy(p->text + p->n, text, n);
	p->n += n;
	return 0;
}

static bool is_space(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

/*
 * Where the tokenizer puts a space in front of a text by itself, the format's own
 * one behind a marker is that space.
 */
static size_t skipped_spaces(const struct prompt *p)
{
	size_t k = 0;

	if (!p->after_marker || !tokenizer_adds_space(p->t))
		return 0;
	if (!p->c->shape.format->spaces_skipped)
		return p->n > 0 && p->text[0] == ' ';
	while (k < p->n && is_space(p->text[k]))
		k++;
	return k;
}

/* Tokenises what is waiting. */
static int flush(struct prompt *p)
{
	size_t k = skipped_spaces(p);
	int r = p->n > k ? tokenizer_encode(p->t, p->text + k, p->n - k, 0, p->out) : 0;

	p->n = 0;
	return r;
}

static int put_id(struct prompt *p, int32_t id, bool marker)
{
	int r = flush(p);

	p->after_marker = marker;
	return r ? r : token_list_push(p->out, id);
}

/*
 * The control token that a string of the table begins with: its id, and how many
 * bytes it takes there.  -1: it begins with text.
 */
static int32_t token_at(const struct prompt *p, const char *text, size_t *n)
{
	*n = 1;
	if (*text == CHAT_BOS[0])
		return tokenizer_bos(p->t);
	if (*text == CHAT_EOS[0])
		return tokenizer_eos(p->t);
	for (size_t i = 0; i < CHAT_MAX_MARKERS; i++) {
		const char *name = p->c->shape.format->markers[i];

		if (p->c->markers[i] < 0 || strncmp(text, name, strlen(name)) != 0)
			continue;
		*n = strlen(name);
		return p->c->markers[i];
	}
	return -1;
}

static int put_string(struct prompt *p, const char *text)
{
	int r = 0;

	while (r == 0 && *text) {
		size_t n;
		int32_t id = token_at(p, text, &n);

		if (id < 0)
			r = put_text(p, text, n);
		else
			r = put_id(p, id, *text != CHAT_BOS[0] && *text != CHAT_EOS[0]);
		text += n;
	}
	return r;
}

/* The string behind its first control token. */
static const char *behind_first_token(const struct prompt *p, const char *text, int32_t *id)
{
	size_t n = 0;

	for (*id = -1; *text && *id < 0; text += n)
		*id = token_at(p, text, &n);
	return text;
}

/* What Python's str.strip() takes for white space. */
static bool is_stripped(uint32_t cp)
{
	return (cp >= 0x09 && cp <= 0x0d) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
	       (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f ||
	       cp == 0x3000;
}

/* The bytes of the white space character that text begins with, 0 if with none. */
static size_t leading_space(const char *text, size_t n)
{
	uint32_t cp;
	int len = n ? utf8_decode((const uint8_t *)text, n, &cp) : 0;

	return len > 0 && is_stripped(cp) ? (size_t)len : 0;
}

static size_t trailing_space(const char *text, size_t n)
{
	for (size_t k = 1; k <= 3 && k <= n; k++)
		if ((text[n - k] & 0xc0) != 0x80)
			return leading_space(text + n - k, k) == k ? k : 0;
	return 0;
}

static int put_content(struct prompt *p, const struct chat_message *m, unsigned stripped)
{
	const char *text = m->text;
	size_t n = m->n, k;

	while ((stripped & JINJA_LEFT) && (k = leading_space(text, n)) > 0) {
		text += k;
		n -= k;
	}
	while ((stripped & JINJA_RIGHT) && (k = trailing_space(text, n)) > 0)
		n -= k;
	return put_text(p, text, n);
}

/* The ids as they are; the end of the turn may be among them. */
static int put_ids(struct prompt *p, const struct chat_message *m, const char *close)
{
	int r = flush(p);
	int32_t end;
	const char *rest = behind_first_token(p, close, &end);

	p->after_marker = false;
	for (size_t i = 0; r == 0 && i < m->n; i++)
		r = token_list_push(p->out, m->ids[i]);
	if (r == 0 && end >= 0 && m->n > 0 && m->ids[m->n - 1] == end)
		close = rest;
	return r ? r : put_string(p, close);
}

static int put_message(struct prompt *p, const struct chat_message *messages, const enum chat_role *roles, size_t n,
		       size_t i)
{
	const struct chat_shape *s = &p->c->shape;
	const struct chat_turn *turn = &s->format->turns[roles[i]], *system = s->format->turns;
	unsigned stripped = s->stripped[roles[i]];
	size_t into;
	bool folds = chat_shape_folds(s, roles, n, &into);
	int r;

	if (folds && i == 0)
		return 0;
	/* A reply follows what the prompt for it ended with. */
	if (messages[i].ids && roles[i] == CHAT_ASSISTANT) {
		r = put_string(p, s->format->reply);
		return r ? r : put_ids(p, &messages[i], turn->close);
	}
	r = put_string(p, turn->open);
	if (folds && i == into) {
		r = r ? r : put_string(p, system->open);
		r = r ? r : put_content(p, &messages[0], s->stripped[CHAT_SYSTEM]);
		r = r ? r : put_string(p, system->close);
		stripped = s->stripped_folded;
	}
	if (i == 0 && roles[0] == CHAT_SYSTEM)
		r = r ? r : put_text(p, s->lead, strlen(s->lead));
	if (r)
		return r;
	if (messages[i].ids)
		return put_ids(p, &messages[i], turn->close);
	r = put_content(p, &messages[i], stripped);
	return r ? r : put_string(p, turn->close);
}

static int put_all(struct prompt *p, const struct chat_message *messages, const enum chat_role *roles, size_t n)
{
	const struct chat_shape *s = &p->c->shape;
	const struct chat_turn *system = &s->format->turns[CHAT_SYSTEM];
	int r = 0;

	if (s->bos)
		r = put_id(p, tokenizer_bos(p->t), false);
	if (s->system && roles[0] != CHAT_SYSTEM) {
		r = r ? r : put_string(p, system->open);
		r = r ? r : put_text(p, s->system, strlen(s->system));
		r = r ? r : put_string(p, system->close);
	}
	for (size_t i = 0; r == 0 && i < n; i++)
		r = put_message(p, messages, roles, n, i);
	r = r ? r : put_string(p, s->format->reply);
	return r ? r : flush(p);
}

static int check_message(const struct tokenizer *t, const struct chat_message *m, size_t i, struct diag *diag)
{
	if (!m->ids && m->n > TOKENIZER_MAX_TEXT)
		return diag_set(diag, -EINVAL, "messages[%zu].content: too long", i);
	for (size_t k = 0; m->ids && k < m->n; k++)
		if (m->ids[k] < 0 || (uint32_t)m->ids[k] >= tokenizer_n_vocab(t))
			return diag_set(diag, -EINVAL, "messages[%zu]: %d is no token", i, m->ids[k]);
	return 0;
}

/* Fills roles, and checks all that the caller gave. */
static int check_messages(const struct chat_template *c, const struct tokenizer *t,
			  const struct chat_message *messages, size_t n, enum chat_role *roles, struct diag *diag)
{
	const char *why;
	size_t at;

	for (size_t i = 0; i < n; i++) {
		int r = check_message(t, &messages[i], i, diag);

		if (r < 0)
			return r;
		if (!chat_role_find(messages[i].role, &roles[i]))
			return diag_set(diag, -EINVAL,
					"messages[%zu].role: unknown role \"%.64s\"; known are system, user "
					"and assistant",
					i, messages[i].role);
		if (messages[i].ids && roles[i] == CHAT_SYSTEM && c->shape.format->system != CHAT_SYSTEM_TURN)
			return diag_set(diag, -EINVAL, "messages[%zu]: the system message has to be text here", i);
	}
	why = chat_shape_refuses(&c->shape, roles, n, &at);
	return why ? diag_set(diag, -EINVAL, "messages[%zu].role: %s", at, why) : 0;
}

int chat_template_render(const struct chat_template *c, const struct tokenizer *t,
			 const struct chat_message *messages, size_t n_messages,
			 struct token_list *out, struct diag *diag)
{
	_cleanup_(freep) enum chat_role *roles = NULL;
	struct prompt p = { .c = c, .t = t, .out = out };
	size_t before = out->n;
	int r;

	if (!c->shape.format)
		return CHAT_E_UNKNOWN;
	if (n_messages == 0)
		return diag_set(diag, -EINVAL, "messages: empty");
	roles = calloc(n_messages, sizeof(*roles));
	if (!roles)
		return -ENOMEM;
	r = check_messages(c, t, messages, n_messages, roles, diag);
	if (r == 0)
		r = put_all(&p, messages, roles, n_messages);
	free(p.text);
	if (r < 0)
		out->n = before;
	return r;
}
