/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ChatML:
 *
 *     [BOS] [<|im_start|>system\nDEFAULT<|im_end|>\n]
 *     ( <|im_start|>ROLE\nCONTENT<|im_end|>\n )*
 *     <|im_start|>assistant\n
 *
 * where the default system message stands only before conversations that do not
 * begin with one.
 *
 * A template is recognised by what it does, not by how it is written: it is
 * evaluated on every sequence of roles up to MAX_SHAPE messages with unknown
 * contents (jinja-eval.h), and has to print exactly this.  What is printed can
 * depend on roles and on being first or last only, and five messages hold every
 * combination of these (first, last, and three roles between), so a template
 * that passes prints the same for every conversation.
 */
#include "daemon/model/chat-template.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/model/jinja-eval.h"
#include "daemon/model/jinja-lexer.h"
#include "ipc/base/checked.h"
#include "ipc/base/cleanup.h"

#define IM_START "<|im_start|>"
#define IM_END "<|im_end|>"

#define MAX_SHAPE 5
#define BUFFER_SIZE (4 * (size_t)JINJA_MAX_SOURCE)
_Static_assert(MAX_SHAPE <= JINJA_MAX_MESSAGES, "a shape is a conversation");

static const char *const roles[] = { "system", "user", "assistant" };

#define N_ROLES ARRAY_SIZE(roles)

struct chat_template {
	bool known;
	bool bos;		/* the prompt begins with BOS */
	int32_t im_start, im_end;
	char *system;		/* the default system message, NULL: none */
	size_t n_system;
};

/* What recognition works on. */
struct recognition {
	struct jinja_source source;
	struct jinja_buffer out, heap, expected;
	char *bos, *eos;
	size_t n_steps;		/* of all evaluations */
	const char *prefix;	/* text before the first turn; one of "" and bos */
	char *head;		/* text before the first turn where the first role is not system */
	size_t n_head;
};

static void recognition_deinit(struct recognition *c)
{
	jinja_source_deinit(&c->source);
	free(c->out.data);
	free(c->heap.data);
	free(c->expected.data);
	free(c->bos);
	free(c->eos);
	free(c->head);
}

static bool put(struct jinja_buffer *b, const char *text, size_t n)
{
	if (n > b->size - b->n)
		return false;
	memcpy(b->data + b->n, text, n);
	b->n += n;
	return true;
}

static bool put_string(struct jinja_buffer *b, const char *text)
{
	return put(b, text, strlen(text));
}

/* The turns of a conversation as ChatML has them. */
static bool put_turns(struct jinja_buffer *b, const char *const *conversation, size_t n)
{
	bool ok = true;

	for (size_t i = 0; i < n; i++)
		ok = ok && put_string(b, IM_START) && put_string(b, conversation[i]) && put_string(b, "\n") &&
		     put(b, JINJA_CONTENT(i), 3) && put_string(b, IM_END "\n");
	return ok && put_string(b, IM_START "assistant\n");
}

static int evaluate(struct recognition *c, const char *const *conversation, size_t n, bool none_given)
{
	struct jinja_input input = { .roles = conversation, .n_messages = n, .bos = c->bos, .eos = c->eos,
				     .n_steps = &c->n_steps, .none_given = none_given };

	return jinja_eval(&c->source, &input, &c->out, &c->heap);
}

/* Evaluates a conversation of one message and cuts the turn off; the rest is its head. */
static int evaluate_head(struct recognition *c, const char *role)
{
	int r = evaluate(c, &role, 1, false);

	if (r)
		return r;
	c->expected.n = 0;
	if (!put_turns(&c->expected, &role, 1) || c->out.n < c->expected.n)
		return JINJA_E_UNSUPPORTED;
	c->out.n -= c->expected.n;
	return memcmp(c->out.data + c->out.n, c->expected.data, c->expected.n) ? JINJA_E_UNSUPPORTED : 0;
}

static bool equals(const struct jinja_buffer *b, const char *text)
{
	return b->n == strlen(text) && memcmp(b->data, text, b->n) == 0;
}

/* Learns what stands before the first turn. */
static int learn_heads(struct recognition *c)
{
	int r = evaluate_head(c, "system");

	if (r)
		return r;
	if (equals(&c->out, ""))
		c->prefix = "";
	else if (c->bos && equals(&c->out, c->bos))
		c->prefix = c->bos;
	else
		return JINJA_E_UNSUPPORTED;
	r = evaluate_head(c, "user");
	if (r)
		return r;
	c->n_head = c->out.n;
	c->head = malloc(c->n_head + 1);
	if (!c->head)
		return -ENOMEM;
	memcpy(c->head, c->out.data, c->n_head);
	return 0;
}

/* Whether the template prints what is expected for one conversation. */
static int check_shape(struct recognition *c, const char *const *conversation, size_t n, bool none_given)
{
	bool own_system = strcmp(conversation[0], "system") == 0;
	int r = evaluate(c, conversation, n, none_given);

	if (r)
		return r;
	c->expected.n = 0;
	if (!(own_system ? put_string(&c->expected, c->prefix) : put(&c->expected, c->head, c->n_head)) ||
	    !put_turns(&c->expected, conversation, n))
		return JINJA_E_UNSUPPORTED;
	if (c->out.n != c->expected.n || memcmp(c->out.data, c->expected.data, c->out.n))
		return JINJA_E_UNSUPPORTED;
	return 0;
}

static int check_all_shapes(struct recognition *c)
{
	for (size_t n = 1, count = N_ROLES; n <= MAX_SHAPE; n++, count *= N_ROLES)
		for (size_t k = 0; k < 2 * count; k++) {
			const char *conversation[MAX_SHAPE];
			int r;

			for (size_t i = 0, rest = k / 2; i < n; i++, rest /= N_ROLES)
				conversation[i] = roles[rest % N_ROLES];
			r = check_shape(c, conversation, n, k % 2);
			if (r)
				return r;
		}
	return 0;
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

	if (!buffer_init(&c->out) || !buffer_init(&c->heap) || !buffer_init(&c->expected))
		return -ENOMEM;
	r = token_text(t, tokenizer_bos(t), &c->bos);
	if (r == 0)
		r = token_text(t, tokenizer_eos(t), &c->eos);
	return r ? r : jinja_source_init(&c->source, text, n);
}

static bool has_control(const struct tokenizer *t, const struct token_list *l)
{
	for (size_t i = 0; i < l->n; i++)
		if (tokenizer_is_control(t, l->ids[i]))
			return true;
	return false;
}

/* Takes the default system message out of the head: "PREFIX<|im_start|>system\nTEXT<|im_end|>\n". */
static int take_system(struct chat_template *c, const struct recognition *from, const struct tokenizer *t)
{
	static const char open[] = IM_START "system\n", close[] = IM_END "\n";
	size_t n_prefix = strlen(from->prefix), n_open = sizeof(open) - 1, n_close = sizeof(close) - 1;
	struct token_list ids = { 0 };
	const char *text;
	size_t n;
	int r;

	if (from->n_head < n_prefix || memcmp(from->head, from->prefix, n_prefix))
		return JINJA_E_UNSUPPORTED;
	text = from->head + n_prefix;
	n = from->n_head - n_prefix;
	if (n == 0)
		return 0;
	if (n < n_open + n_close || memcmp(text, open, n_open) || memcmp(text + n - n_close, close, n_close))
		return JINJA_E_UNSUPPORTED;
	text += n_open;
	n -= n_open + n_close;
	/* No content of ours, and no control token either: it is rendered as content. */
	if (memchr(text, JINJA_CONTENT(0)[0], n))
		return JINJA_E_UNSUPPORTED;
	r = tokenizer_encode(t, text, n, TOKENIZE_SPECIAL, &ids);
	if (r == 0 && has_control(t, &ids))
		r = JINJA_E_UNSUPPORTED;
	free(ids.ids);
	if (r)
		return r;
	c->system = strndup(text, n);
	c->n_system = n;
	return c->system ? 0 : -ENOMEM;
}

static int recognise(struct chat_template *c, const struct tokenizer *t, const char *text, size_t n)
{
	struct recognition work = { 0 };
	int r;

	c->im_start = tokenizer_control_id(t, IM_START);
	c->im_end = tokenizer_control_id(t, IM_END);
	if (c->im_start < 0 || c->im_end < 0 || n == 0)
		return JINJA_E_UNSUPPORTED;
	r = recognition_init(&work, t, text, n);
	if (r == 0)
		r = learn_heads(&work);
	if (r == 0)
		r = check_all_shapes(&work);
	if (r == 0)
		r = take_system(c, &work, t);
	if (r == 0)
		c->bos = *work.prefix;
	recognition_deinit(&work);
	return r;
}

int chat_template_new(struct chat_template **out, const struct tokenizer *t, const char *text, size_t n)
{
	struct chat_template *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return -ENOMEM;
	r = recognise(c, t, text, n);
	if (r < 0) {
		chat_template_free(c);
		return r;
	}
	c->known = r == 0;
	*out = c;
	return 0;
}

void chat_template_free(struct chat_template *c)
{
	if (!c)
		return;
	free(c->system);
	free(c);
}

const char *chat_template_name(const struct chat_template *c)
{
	return c->known ? "chatml" : NULL;
}

/* Role, line end and text go together: a word may reach across. */
static int render_text(const struct tokenizer *t, const char *role, const char *text, size_t n,
		       struct token_list *out)
{
	size_t n_role = strlen(role);
	_cleanup_(freep) char *joined = NULL;

	if (n > TOKENIZER_MAX_TEXT)
		return -EINVAL;
	joined = malloc(n_role + 1 + n);
	if (!joined)
		return -ENOMEM;
	memcpy(joined, role, n_role);
	joined[n_role] = '\n';
	if (n)
		memcpy(joined + n_role + 1, text, n);
	return tokenizer_encode(t, joined, n_role + 1 + n, 0, out);
}

/* The ids as they are; returns 0 and sets *ended if they bring the end of the turn. */
static int render_ids(const struct chat_template *c, const struct tokenizer *t, const struct chat_message *m,
		      struct token_list *out, bool *ended)
{
	int r = render_text(t, m->role, NULL, 0, out);

	for (size_t i = 0; r == 0 && i < m->n; i++)
		r = token_list_push(out, m->ids[i]);
	*ended = m->n > 0 && m->ids[m->n - 1] == c->im_end;
	return r;
}

static int render_message(const struct chat_template *c, const struct tokenizer *t,
			  const struct chat_message *m, struct token_list *out)
{
	bool ended = false;
	int r = token_list_push(out, c->im_start);

	if (r == 0)
		r = m->ids ? render_ids(c, t, m, out, &ended) : render_text(t, m->role, m->text, m->n, out);
	if (r == 0 && !ended)
		r = token_list_push(out, c->im_end);
	return r ? r : tokenizer_encode(t, "\n", 1, 0, out);
}

static int render_all(const struct chat_template *c, const struct tokenizer *t,
		      const struct chat_message *messages, size_t n, struct token_list *out)
{
	struct chat_message system = { .role = "system", .text = c->system, .n = c->n_system };
	int r = 0;

	if (c->bos)
		r = token_list_push(out, tokenizer_bos(t));
	if (r == 0 && c->system && strcmp(messages[0].role, "system"))
		r = render_message(c, t, &system, out);
	for (size_t i = 0; r == 0 && i < n; i++)
		r = render_message(c, t, &messages[i], out);
	if (r == 0)
		r = token_list_push(out, c->im_start);
	return r ? r : render_text(t, "assistant", NULL, 0, out);
}

static bool is_role(const char *role)
{
	for (size_t i = 0; i < N_ROLES; i++)
		if (strcmp(role, roles[i]) == 0)
			return true;
	return false;
}

static int check_messages(const struct tokenizer *t, const struct chat_message *messages, size_t n,
			  struct diag *diag)
{
	if (n == 0)
		return diag_set(diag, -EINVAL, "messages: empty");
	for (size_t i = 0; i < n; i++) {
		const struct chat_message *m = &messages[i];

		if (!is_role(m->role))
			return diag_set(diag, -EINVAL,
					"messages[%zu].role: unknown role \"%.64s\"; known are system, user "
					"and assistant",
					i, m->role);
		if (!m->ids && m->n > TOKENIZER_MAX_TEXT)
			return diag_set(diag, -EINVAL, "messages[%zu].content: too long", i);
		for (size_t k = 0; m->ids && k < m->n; k++)
			if (m->ids[k] < 0 || (uint32_t)m->ids[k] >= tokenizer_n_vocab(t))
				return diag_set(diag, -EINVAL, "messages[%zu]: %d is no token", i, m->ids[k]);
	}
	return 0;
}

int chat_template_render(const struct chat_template *c, const struct tokenizer *t,
			 const struct chat_message *messages, size_t n_messages,
			 struct token_list *out, struct diag *diag)
{
	size_t before = out->n;
	int r;

	if (!c->known)
		return CHAT_E_UNKNOWN;
	r = check_messages(t, messages, n_messages, diag);
	if (r == 0)
		r = render_all(c, t, messages, n_messages, out);
	if (r < 0)
		out->n = before;
	return r;
}
