/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A template is recognised by what it does, not by how it is written: for each
 * format of the table it is evaluated on a few conversations, which tell what
 * differs between templates of that format, and then on every sequence of roles up
 * to MAX_SHAPE messages with unknown contents (jinja-eval.h).  For each that is
 * taken it has to print exactly what the format says.  What is printed can depend
 * on roles, parity and the first and last few places only, and five messages hold
 * every combination of these, so a template that passes prints the same for
 * every conversation.
 */
#include "daemon/model/chat-shape.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/model/jinja-eval.h"
#include "daemon/model/jinja-lexer.h"
#include "ipc/base/checked.h"

#define MAX_SHAPE 5
#define BUFFER_SIZE (4 * (size_t)JINJA_MAX_SOURCE)
_Static_assert(MAX_SHAPE <= JINJA_MAX_MESSAGES, "a shape is a conversation");

struct recognition {
	const struct tokenizer *t;
	struct jinja_source source;
	struct jinja_buffer out, heap, expected;
	size_t n_steps;
	char *bos, *eos;
	struct chat_shape shape;	/* as far as it is known */
};

static void recognition_deinit(struct recognition *c)
{
	jinja_source_deinit(&c->source);
	free(c->out.data);
	free(c->heap.data);
	free(c->expected.data);
	free(c->bos);
	free(c->eos);
	chat_shape_deinit(&c->shape);
}

/* --- what is expected --------------------------------------------------------- */

static bool put(struct jinja_buffer *b, const char *text, size_t n)
{
	if (n > b->size - b->n)
		return false;
	memcpy(b->data + b->n, text, n);
	b->n += n;
	return true;
}

/* A string of the table.  False where it needs a token that there is not. */
static bool put_string(struct recognition *c, const char *text)
{
	for (; *text; text++) {
		const char *token = *text == CHAT_BOS[0] ? c->bos : c->eos;

		if (*text != CHAT_BOS[0] && *text != CHAT_EOS[0]) {
			if (!put(&c->expected, text, 1))
				return false;
		} else if (!token || !put(&c->expected, token, strlen(token))) {
			return false;
		}
	}
	return true;
}

static bool put_content(struct recognition *c, unsigned stripped, size_t i)
{
	return put(&c->expected, JINJA_CONTENT(i, stripped), JINJA_CONTENT_BYTES);
}

static bool put_message(struct recognition *c, const enum chat_role *roles, size_t n, size_t i)
{
	const struct chat_turn *turn = &c->shape.format->turns[roles[i]], *system = c->shape.format->turns;
	unsigned stripped = c->shape.stripped[roles[i]];
	size_t into;
	bool ok = true, folds = chat_shape_folds(&c->shape, roles, n, &into);

	if (folds && i == 0)
		return true;
	ok = put_string(c, turn->open);
	if (folds && i == into) {
		ok = ok && put_string(c, system->open) && put_content(c, c->shape.stripped[CHAT_SYSTEM], 0) &&
		     put_string(c, system->close);
		stripped = c->shape.stripped_folded;
	}
	if (i == 0 && roles[0] == CHAT_SYSTEM)
		ok = ok && put_string(c, c->shape.lead);
	return ok && put_content(c, stripped, i) && put_string(c, turn->close);
}

/* Makes c->expected what the format has for the conversation. */
static bool expect(struct recognition *c, const enum chat_role *roles, size_t n)
{
	const struct chat_format *f = c->shape.format;
	bool ok = true;

	c->expected.n = 0;
	if (c->shape.bos)
		ok = put_string(c, CHAT_BOS);
	if (c->shape.system && roles[0] != CHAT_SYSTEM)
		ok = ok && put_string(c, f->turns[CHAT_SYSTEM].open) && put_string(c, c->shape.system) &&
		     put_string(c, f->turns[CHAT_SYSTEM].close);
	for (size_t i = 0; i < n; i++)
		ok = ok && put_message(c, roles, n, i);
	return ok && put_string(c, f->reply);
}

/* --- what is printed ------------------------------------------------------------ */

static int evaluate(struct recognition *c, const enum chat_role *roles, size_t n, bool none_given)
{
	const char *names[MAX_SHAPE];
	struct jinja_input input = { .roles = names, .n_messages = n, .bos = c->bos, .eos = c->eos,
				     .n_steps = &c->n_steps, .none_given = none_given };

	for (size_t i = 0; i < n; i++)
		names[i] = chat_role_names[roles[i]];
	return jinja_eval(&c->source, &input, &c->out, &c->heap);
}

/* 0 if the template prints what is expected, else JINJA_E_UNSUPPORTED or JINJA_E_RAISED. */
static int check(struct recognition *c, const enum chat_role *roles, size_t n, bool none_given)
{
	int r = evaluate(c, roles, n, none_given);

	if (r)
		return r;
	if (!expect(c, roles, n) || c->out.n != c->expected.n ||
	    memcmp(c->out.data, c->expected.data, c->out.n) != 0)
		return JINJA_E_UNSUPPORTED;
	return 0;
}

static int check_all(struct recognition *c)
{
	for (size_t n = 1, count = CHAT_N_ROLES; n <= MAX_SHAPE; n++, count *= CHAT_N_ROLES)
		for (size_t k = 0; k < 2 * count; k++) {
			enum chat_role roles[MAX_SHAPE];
			size_t rest = k / 2, at;
			int r;

			for (size_t i = 0; i < n; i++, rest /= CHAT_N_ROLES)
				roles[i] = (enum chat_role)(rest % CHAT_N_ROLES);
			if (chat_shape_refuses(&c->shape, roles, n, &at))
				continue;
			r = check(c, roles, n, k % 2);
			if (r)
				return r;
		}
	return 0;
}

/* --- what differs between templates ----------------------------------------------- */

/* Where the content of message i was printed, NULL if it was not. */
static const char *find_content(const struct recognition *c, size_t i)
{
	return memmem(c->out.data, c->out.n, JINJA_CONTENT(i, 0), JINJA_CONTENT_BYTES - 1);
}

static bool ends_with(const char *text, size_t n, const struct jinja_buffer *end)
{
	return n >= end->n && memcmp(text + n - end->n, end->data, end->n) == 0;
}

/* Sets *n to the length of text less its end, a string of the table; false if it has another end. */
static bool cut_end(struct recognition *c, const char *text, size_t *n, const char *end)
{
	c->expected.n = 0;
	if (!put_string(c, end) || !ends_with(text, *n, &c->expected))
		return false;
	*n -= c->expected.n;
	return true;
}

static bool cut_start(struct recognition *c, const char **text, size_t *n, const char *start)
{
	c->expected.n = 0;
	if (!put_string(c, start) || *n < c->expected.n || memcmp(*text, c->expected.data, c->expected.n) != 0)
		return false;
	*text += c->expected.n;
	*n -= c->expected.n;
	return true;
}

static bool has_control(const struct tokenizer *t, const struct token_list *l)
{
	for (size_t i = 0; i < l->n; i++)
		if (tokenizer_is_control(t, l->ids[i]))
			return true;
	return false;
}

/* Text of the template's own that is rendered as content: no content of ours, and no control token. */
static int take_text(const struct recognition *c, const char *text, size_t n, char **out)
{
	struct token_list ids = { 0 };
	bool control;
	int r;

	for (size_t i = 0; i < n; i++)
		if ((unsigned char)text[i] < ' ' && text[i] != '\n' && text[i] != '\t')
			return JINJA_E_UNSUPPORTED;
	r = tokenizer_encode(c->t, text, n, TOKENIZE_SPECIAL, &ids);
	control = has_control(c->t, &ids);
	free(ids.ids);
	if (r || control)
		return r ? r : JINJA_E_UNSUPPORTED;
	free(*out);
	*out = strndup(text, n);
	return *out ? 0 : -ENOMEM;
}

static unsigned stripped_at(const char *content)
{
	return (unsigned)content[2] - 2;
}

/* One message of the user: BOS, a default system message, and how content is stripped. */
static int learn_user(struct recognition *c)
{
	const struct chat_format *f = c->shape.format;
	const char *text = c->out.data, *content;
	size_t n;
	bool system;
	int r = evaluate(c, (enum chat_role[]){ CHAT_USER }, 1, false);

	if (r)
		return r;
	content = find_content(c, 0);
	if (!content)
		return JINJA_E_UNSUPPORTED;
	c->shape.stripped[CHAT_USER] = stripped_at(content);
	n = (size_t)(content - text);
	if (!cut_end(c, text, &n, f->turns[CHAT_USER].open))
		return JINJA_E_UNSUPPORTED;
	/* BOS may also be the marker that turns begin with. */
	system = n > 0 && f->system == CHAT_SYSTEM_TURN && cut_start(c, &text, &n, f->turns[CHAT_SYSTEM].open);
	c->shape.bos = !system && n > 0 && c->bos && cut_start(c, &text, &n, CHAT_BOS);
	if (!system && n == 0)
		return 0;
	if (!system && (f->system != CHAT_SYSTEM_TURN || !cut_start(c, &text, &n, f->turns[CHAT_SYSTEM].open)))
		return JINJA_E_UNSUPPORTED;
	if (!cut_end(c, text, &n, f->turns[CHAT_SYSTEM].close))
		return JINJA_E_UNSUPPORTED;
	return take_text(c, text, n, &c->shape.system);
}

/* A system message and one of the user. */
static int learn_system(struct recognition *c)
{
	const char *text = c->out.data, *content;
	size_t n;
	int r = evaluate(c, (enum chat_role[]){ CHAT_SYSTEM, CHAT_USER }, 2, false);

	c->shape.no_system = r == JINJA_E_RAISED;
	if (r)
		return c->shape.no_system ? 0 : r;
	content = find_content(c, 0);
	if (!content)
		return JINJA_E_UNSUPPORTED;
	c->shape.stripped[CHAT_SYSTEM] = stripped_at(content);
	n = (size_t)(content - text);
	if (c->shape.format->system != CHAT_SYSTEM_TURN) {
		content = find_content(c, 1);
		if (!content)
			return JINJA_E_UNSUPPORTED;
		c->shape.stripped_folded = stripped_at(content);
		return 0;
	}
	if ((c->shape.bos && !cut_start(c, &text, &n, CHAT_BOS)) ||
	    !cut_start(c, &text, &n, c->shape.format->turns[CHAT_SYSTEM].open))
		return JINJA_E_UNSUPPORTED;
	return take_text(c, text, n, &c->shape.lead);
}

/* Whether the template refuses a conversation. */
static int learn_refusal(struct recognition *c, const enum chat_role *roles, size_t n, bool *raised)
{
	int r = evaluate(c, roles, n, false);

	*raised = r == JINJA_E_RAISED;
	return *raised ? 0 : r;
}

static int learn_turns(struct recognition *c)
{
	static const enum chat_role both[] = { CHAT_USER, CHAT_ASSISTANT, CHAT_USER },
				    users[] = { CHAT_USER, CHAT_USER }, late[] = { CHAT_USER, CHAT_SYSTEM };
	const char *content;
	int r = evaluate(c, both, 3, false);

	if (r)
		return r;
	content = find_content(c, 1);
	if (!content)
		return JINJA_E_UNSUPPORTED;
	c->shape.stripped[CHAT_ASSISTANT] = stripped_at(content);
	r = learn_refusal(c, users, 2, &c->shape.alternates);
	if (r == 0)
		r = learn_refusal(c, late, 2, &c->shape.system_first);
	if (r)
		return r;
	/* Some templates open no reply behind one, or treat the last one as unfinished. */
	c->shape.user_last = check(c, both, 2, false) != 0;
	return 0;
}

static bool has_markers(const struct tokenizer *t, const struct chat_format *f)
{
	for (size_t i = 0; i < f->n_required; i++)
		if (tokenizer_control_id(t, f->markers[i]) < 0)
			return false;
	return true;
}

static int try_format(struct recognition *c, const struct chat_format *f)
{
	int r;

	chat_shape_deinit(&c->shape);
	c->shape.format = f;
	c->shape.lead = strdup("");
	if (!c->shape.lead)
		return -ENOMEM;
	r = learn_user(c);
	if (r == 0)
		r = learn_system(c);
	if (r == 0)
		r = learn_turns(c);
	return r ? r : check_all(c);
}

/* The text of a token for the template, NULL if there is none. */
static int token_text(const struct tokenizer *t, int32_t id, char **out)
{
	size_t n;
	const uint8_t *bytes = tokenizer_bytes(t, id, &n);

	if (n == 0 || memchr(bytes, '\0', n))
		return 0;
	*out = strndup((const char *)bytes, n);
	return *out ? 0 : -ENOMEM;
}

static bool buffer_init(struct jinja_buffer *b)
{
	b->data = malloc(BUFFER_SIZE);
	b->size = BUFFER_SIZE;
	return b->data;
}

static int recognition_init(struct recognition *c, const struct tokenizer *t, const char *text, size_t n)
{
	int r;

	c->t = t;
	if (!buffer_init(&c->out) || !buffer_init(&c->heap) || !buffer_init(&c->expected))
		return -ENOMEM;
	r = token_text(t, tokenizer_bos(t), &c->bos);
	if (r == 0)
		r = token_text(t, tokenizer_eos(t), &c->eos);
	return r ? r : jinja_source_init(&c->source, text, n);
}

int chat_shape_init(struct chat_shape *s, const struct tokenizer *t, const char *text, size_t n)
{
	struct recognition c = { 0 };
	int r = n ? recognition_init(&c, t, text, n) : JINJA_E_UNSUPPORTED;

	*s = CHAT_SHAPE_NULL;
	if (r == 0) {
		r = JINJA_E_UNSUPPORTED;
		for (size_t i = 0; r > 0 && i < chat_n_formats; i++)
			if (has_markers(t, &chat_formats[i]))
				r = try_format(&c, &chat_formats[i]);
	}
	if (r == 0) {
		*s = c.shape;
		c.shape = CHAT_SHAPE_NULL;
	}
	recognition_deinit(&c);
	return r < 0 ? r : 0;
}
