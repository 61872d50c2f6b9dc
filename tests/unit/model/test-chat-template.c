/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chat templates against jinja2 (recorded), on a vocabulary of bytes, and with
 * KVD_TEST_MODEL set also on the real one.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/model/chat-template.h"
#include "daemon/model/gguf.h"
#include "ipc/base/checked.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "tests/unit/model/oracle-file.h"
#include "tests/unit/model/tiny-vocab.h"

#define ORACLE "tests/data/chat-oracle.txt"
#define MAX_MESSAGES 16
#define MAX_CONVERSATIONS 64
#define MAX_TEMPLATES 128

static const char PLAIN[] =
	"{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
	"{% endfor %}"
	"{{ '<|im_start|>assistant\\n' }}";

struct conversation {
	char *name;
	struct chat_message messages[MAX_MESSAGES];
	size_t n;
};

struct template_case {
	char *name, *group, *text;
	size_t n;
	struct chat_template *c;
};

/* What the file says, and the tokenizer of bytes. */
static struct {
	struct template_case templates[MAX_TEMPLATES];
	size_t n_templates;
	struct conversation conversations[MAX_CONVERSATIONS];
	size_t n_conversations;
	struct tokenizer *t;
	int32_t bos, im_start, im_end;
} fixture;

static void read_template(struct oracle_file *o)
{
	struct template_case *c = &fixture.templates[fixture.n_templates++];

	assert_true(fixture.n_templates <= MAX_TEMPLATES);
	c->name = strdup(oracle_word(o));
	c->group = strdup(oracle_word(o));
	c->text = strdup(oracle_word(o));
	c->n = oracle_decode(c->text);
}

static void read_conversation(struct oracle_file *o)
{
	struct conversation *c = &fixture.conversations[fixture.n_conversations++];
	char *role;

	assert_true(fixture.n_conversations <= MAX_CONVERSATIONS);
	c->name = strdup(oracle_word(o));
	while ((role = oracle_word(o))) {
		struct chat_message *m = &c->messages[c->n++];
		char *text = strdup(oracle_word(o) + 1);	/* less the "=" */

		assert_true(c->n <= MAX_MESSAGES);
		m->role = strdup(role);
		m->n = oracle_decode(text);
		m->text = text;
	}
}

static struct conversation *find_conversation(const char *name)
{
	for (size_t i = 0; i < fixture.n_conversations; i++)
		if (strcmp(fixture.conversations[i].name, name) == 0)
			return &fixture.conversations[i];
	fail_msg("no conversation %s", name);
	return NULL;
}

/* The markers of other families than ChatML. */
static const char *const markers[] = {
	"<start_of_turn>", "<end_of_turn>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
	"<|header_start|>", "<|header_end|>", "<|eot|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>",
	"<|im_sep|>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
};

static int setup(void **state)
{
	static struct tiny_vocab v;
	struct tokenizer_source source;
	struct oracle_file o;
	char *kind;

	tiny_init(&v);
	fixture.bos = tiny_add(&v, "<s>", TOKEN_CONTROL);
	fixture.im_start = tiny_add(&v, "<|im_start|>", TOKEN_CONTROL);
	fixture.im_end = tiny_add(&v, "<|im_end|>", TOKEN_CONTROL);
	tiny_add(&v, "<|endoftext|>", TOKEN_CONTROL);
	for (size_t i = 0; i < ARRAY_SIZE(markers); i++)
		tiny_add(&v, markers[i], TOKEN_CONTROL);
	source = tiny_source(&v, "gpt-2");
	source.bos = fixture.bos;
	source.eos = fixture.im_end;
	fixture.t = tiny_tokenizer(&source);
	oracle_open(&o, ORACLE);
	while ((kind = oracle_next(&o))) {
		if (strcmp(kind, "template") == 0)
			read_template(&o);
		else if (strcmp(kind, "conversation") == 0)
			read_conversation(&o);
	}
	oracle_close(&o);
	for (size_t i = 0; i < fixture.n_templates; i++) {
		struct template_case *c = &fixture.templates[i];
		if (chat_template_new(&c->c, fixture.t, c->text, c->n))
			return -1;
	}
	return 0;
}

static int teardown(void **state)
{
	for (size_t i = 0; i < fixture.n_templates; i++) {
		struct template_case *c = &fixture.templates[i];

		chat_template_free(c->c);
		free(c->name);
		free(c->group);
		free(c->text);
	}
	for (size_t i = 0; i < fixture.n_conversations; i++) {
		struct conversation *c = &fixture.conversations[i];

		for (size_t k = 0; k < c->n; k++) {
			free((char *)c->messages[k].role);
			free((char *)c->messages[k].text);
		}
		free(c->name);
	}
	tokenizer_free(fixture.t);
	return 0;
}

/* A group is FAMILY:VARIANT, or the name of a variant of ChatML. */
static bool is_family(const char *group, const char *name)
{
	size_t n = strcspn(group, ":");

	return group[n] ? strlen(name) == n && memcmp(group, name, n) == 0 : strcmp(name, "chatml") == 0;
}

static void recognition(void **state)
{
	size_t n_known = 0;

	for (size_t i = 0; i < fixture.n_templates; i++) {
		struct template_case *c = &fixture.templates[i];
		const char *name = chat_template_name(c->c);
		bool want = strcmp(c->group, "-") != 0;

		if (want != (name != NULL))
			fail_msg("template %s is %srecognised", c->name, name ? "" : "not ");
		if (name && !is_family(c->group, name))
			fail_msg("template %s is taken for %s", c->name, name);
		n_known += want;
	}
	assert_true(n_known >= 15 && fixture.n_templates - n_known >= 15);
}

static struct token_list render(const struct chat_template *c, const struct chat_message *messages, size_t n)
{
	struct token_list l = { 0 };
	struct diag diag = DIAG_NULL;
	int r = chat_template_render(c, fixture.t, messages, n, &l, &diag);

	if (r)
		fail_msg("%d %s", r, diag.text);
	return l;
}

/* The text of the ids, control tokens by name. */
static char *text_of(const struct tokenizer *t, const struct token_list *l, size_t *n)
{
	char *text = NULL;
	FILE *f = open_memstream(&text, n);

	assert_non_null(f);
	for (size_t i = 0; i < l->n; i++) {
		size_t k;
		const uint8_t *bytes = tokenizer_bytes(t, l->ids[i], &k);

		fwrite(bytes, 1, k, f);
	}
	fclose(f);
	return text;
}

/* The usual conversation: perhaps a system message, then user and assistant in turn, the user first and last. */
static bool is_regular(const struct conversation *c)
{
	size_t first = strcmp(c->messages[0].role, "system") == 0;

	for (size_t i = first; i < c->n; i++)
		if (strcmp(c->messages[i].role, (i - first) % 2 ? "assistant" : "user") != 0)
			return false;
	return (c->n - first) % 2 == 1;
}

/* Templates whose last message is not the assistant's, or whose roles have an order, may refuse others. */
static bool may_refuse(const char *group)
{
	return strchr(group, ':') || strcmp(group, "qwen3") == 0 || strcmp(group, "qwen1.5") == 0;
}

/* Control tokens of ChatML: two for each turn, one for the reply, and BOS; none from contents. */
static void check_n_control(const struct template_case *c, const struct conversation *conversation,
			    const struct token_list *l)
{
	bool own_system = strcmp(conversation->messages[0].role, "system") == 0;
	bool with_default = strstr(c->group, "default") || strcmp(c->group, "qwen2") == 0 ||
			    strcmp(c->group, "qwen2.5") == 0 || strstr(c->group, "smollm");
	bool bos = strncmp(c->group, "bos", 3) == 0;
	size_t n_turns = conversation->n + (with_default && !own_system), n_control = 0;

	for (size_t i = 0; i < l->n; i++)
		n_control += tokenizer_is_control(fixture.t, l->ids[i]);
	assert_int_equal(n_control, 2 * n_turns + 1 + bos);
}

/* The control tokens of another family are as many for any contents. */
static void check_same_control(const struct template_case *c, const struct conversation *conversation,
			       const struct token_list *l)
{
	struct chat_message plain[MAX_MESSAGES];
	struct token_list other;
	size_t n = 0, n_other = 0;

	for (size_t i = 0; i < conversation->n; i++)
		plain[i] = (struct chat_message){ .role = conversation->messages[i].role, .text = "x", .n = 1 };
	other = render(c->c, plain, conversation->n);
	for (size_t i = 0; i < l->n; i++)
		n += tokenizer_is_control(fixture.t, l->ids[i]);
	for (size_t i = 0; i < other.n; i++)
		n_other += tokenizer_is_control(fixture.t, other.ids[i]);
	assert_int_equal(n, n_other);
	free(other.ids);
}

/* True if it was rendered, false if it was refused and may be. */
static bool check_rendered(const struct template_case *c, const struct conversation *conversation,
			   const char *want, size_t n_want)
{
	struct token_list l = { 0 };
	struct diag diag = DIAG_NULL;
	int r = chat_template_render(c->c, fixture.t, conversation->messages, conversation->n, &l, &diag);
	size_t n;
	char *text;

	if (r) {
		assert_int_equal(r, -EINVAL);
		if (!may_refuse(c->group) || is_regular(conversation))
			fail_msg("template %s, conversation %s: %s", c->name, conversation->name, diag.text);
		return false;
	}
	text = text_of(fixture.t, &l, &n);
	if (n != n_want || memcmp(text, want, n))
		fail_msg("template %s, conversation %s:\n%.*s\nnot\n%.*s", c->name, conversation->name,
			 (int)n, text, (int)n_want, want);
	if (strchr(c->group, ':'))
		check_same_control(c, conversation, &l);
	else
		check_n_control(c, conversation, &l);
	free(text);
	free(l.ids);
	return true;
}

static void check_refused(const struct template_case *c, const struct conversation *conversation)
{
	struct token_list l = { 0 };
	struct diag diag = DIAG_NULL;

	if (chat_template_render(c->c, fixture.t, conversation->messages, conversation->n, &l, &diag) != -EINVAL)
		fail_msg("template %s, conversation %s: rendered", c->name, conversation->name);
	assert_non_null(strstr(diag.text, "messages["));
	assert_int_equal(l.n, 0);
}

static void rendered_by_jinja(void **state)
{
	struct oracle_file o;
	char *kind;
	size_t n_checked = 0, n_refused = 0;

	oracle_open(&o, ORACLE);
	while ((kind = oracle_next(&o))) {
		bool refused = strcmp(kind, "refused") == 0;
		char *group, *text;
		struct conversation *conversation;
		size_t n;

		if (!refused && strcmp(kind, "rendered"))
			continue;
		group = oracle_word(&o);
		conversation = find_conversation(oracle_word(&o));
		text = refused ? NULL : oracle_word(&o);
		n = refused ? 0 : oracle_decode(text);
		for (size_t i = 0; i < fixture.n_templates; i++) {
			const struct template_case *c = &fixture.templates[i];

			if (strcmp(c->group, group) != 0)
				continue;
			n_checked++;
			if (refused)
				check_refused(c, conversation);
			else
				n_refused += !check_rendered(c, conversation, text, n);
		}
	}
	oracle_close(&o);
	assert_true(n_checked > 1500);
	assert_true(n_refused < n_checked / 20);
}

/* The default model's template on its tokenizer, against `tokenizers`. */
static void ids_of_the_model(void **state)
{
	const char *path = getenv("KVD_TEST_MODEL");
	_cleanup_(fd_closep) int fd = -1;
	_cleanup_(gguf_freep) struct gguf *g = NULL;
	struct tokenizer *t;
	struct chat_template *c;
	struct gguf_string text;
	struct oracle_file o;
	size_t n_checked = 0;
	char *kind;

	if (!path || !*path)
		skip();
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(gguf_read(&g, fd, NULL), 0);
	assert_int_equal(tokenizer_new(&t, g, NULL), 0);
	assert_int_equal(gguf_get_string(g, "tokenizer.chat_template", &text, NULL), 0);
	assert_int_equal(chat_template_new(&c, t, text.data, text.n), 0);
	assert_string_equal(chat_template_name(c), "chatml");
	oracle_open(&o, ORACLE);
	while ((kind = oracle_next(&o))) {
		struct conversation *conversation;
		struct token_list l = { 0 };
		int32_t *want;
		size_t n;

		if (strcmp(kind, "ids"))
			continue;
		conversation = find_conversation(oracle_word(&o));
		want = oracle_numbers(&o, &n);
		assert_int_equal(
			chat_template_render(c, t, conversation->messages, conversation->n, &l, NULL), 0);
		if (l.n != n || memcmp(l.ids, want, n * sizeof(*want)))
			fail_msg("conversation %s has other ids", conversation->name);
		free(l.ids);
		free(want);
		n_checked++;
	}
	oracle_close(&o);
	assert_int_equal(n_checked, fixture.n_conversations);
	chat_template_free(c);
	tokenizer_free(t);
}

static struct chat_template *new_plain(void)
{
	struct chat_template *c;

	assert_int_equal(chat_template_new(&c, fixture.t, PLAIN, strlen(PLAIN)), 0);
	assert_string_equal(chat_template_name(c), "chatml");
	return c;
}

/* A reply given back as its ids stands in the prompt as it was generated. */
static void ids_are_spliced(void **state)
{
	/* "Hi" in an encoding that the tokenizer would not choose: with a stray byte. */
	int32_t ids[] = { 'H', 'i', 0xff, 0 };
	struct chat_template *c = new_plain();
	struct chat_message messages[] = {
		{ .role = "user", .text = "a", .n = 1 },
		{ .role = "assistant", .ids = ids, .n = 3 },
		{ .role = "user", .text = "b", .n = 1 },
	};
	struct token_list without, with, first, empty;
	size_t k = 0;

	first = render(c, messages, 1);
	without = render(c, messages, 3);
	ids[3] = fixture.im_end;
	messages[1].n = 4;
	with = render(c, messages, 3);
	assert_int_equal(with.n, without.n);
	assert_memory_equal(with.ids, without.ids, with.n * sizeof(*with.ids));
	/* The next prompt begins with the first one and what was generated. */
	assert_memory_equal(with.ids, first.ids, first.n * sizeof(*first.ids));
	assert_memory_equal(with.ids + first.n, ids, sizeof(ids));
	for (size_t i = 0; i < with.n; i++)
		k += with.ids[i] == fixture.im_end;
	assert_int_equal(k, 3);
	/* A reply of nothing but its end, and of nothing at all. */
	messages[1] = (struct chat_message){ .role = "assistant", .ids = &fixture.im_end, .n = 1 };
	empty = render(c, messages, 3);
	free(without.ids);
	messages[1].n = 0;
	without = render(c, messages, 3);
	assert_int_equal(empty.n, without.n);
	assert_memory_equal(empty.ids, without.ids, empty.n * sizeof(*empty.ids));
	free(first.ids);
	free(without.ids);
	free(with.ids);
	free(empty.ids);
	chat_template_free(c);
}

/* Of every family: the next prompt begins with the one before and the ids that were generated. */
static void replies_are_kept(void **state)
{
	int32_t ids[] = { 'H', 'i', 0xff, ' ' };
	struct chat_message messages[] = {
		{ .role = "user", .text = "a", .n = 1 },
		{ .role = "assistant", .ids = ids, .n = ARRAY_SIZE(ids) },
		{ .role = "user", .text = "b", .n = 1 },
	};

	for (size_t i = 0; i < fixture.n_templates; i++) {
		const struct template_case *c = &fixture.templates[i];
		struct token_list first, next;

		if (!chat_template_name(c->c))
			continue;
		first = render(c->c, messages, 1);
		next = render(c->c, messages, 3);
		assert_true(next.n > first.n + ARRAY_SIZE(ids));
		assert_memory_equal(next.ids, first.ids, first.n * sizeof(*first.ids));
		assert_memory_equal(next.ids + first.n, ids, sizeof(ids));
		free(first.ids);
		free(next.ids);
	}
}

/* Where the tokenizer puts a space before texts: one, not two, and none where the model's own has none. */
static void spaces_of_sentencepiece(void **state)
{
	static const char phi[] = "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}"
				  "{% endfor %}{{ '<|assistant|>\n' }}";
	static const char mistral[] =
		"{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + '[/INST]' }}"
		"{% elif m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}{% else %}{{ raise_exception('x') }}"
		"{% endif %}{% endfor %}";
	enum { BOS, EOS, USER, ASSISTANT, END, SYSTEM, INST, INST_END, MARK_HI, HI, MARK, NEWLINE };
	static const char *const texts[] = {
		"<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>", "<|system|>", "[INST]", "[/INST]",
		"\xe2\x96\x81Hi", "Hi", "\xe2\x96\x81", "\n",
	};
	static const int32_t phi_ids[] = { USER, MARK_HI, END, ASSISTANT, MARK_HI, END, USER, MARK_HI, END, ASSISTANT },
			     mistral_ids[] = { BOS, INST, MARK_HI, INST_END, MARK_HI, EOS, INST, MARK_HI, INST_END };
	static const struct {
		const char *text, *name;
		const int32_t *ids;
		size_t n;
	} cases[] = {
		{ phi, "phi3", phi_ids, ARRAY_SIZE(phi_ids) },
		{ mistral, "mistral", mistral_ids, ARRAY_SIZE(mistral_ids) },
	};
	static struct tiny_vocab v;
	static float scores[ARRAY_SIZE(texts) + 2];
	struct chat_message messages[] = {
		{ .role = "user", .text = "Hi", .n = 2 },
		{ .role = "assistant", .text = "Hi", .n = 2 },
		{ .role = "user", .text = "Hi", .n = 2 },
	};
	struct tokenizer_source source;
	struct tokenizer *t;

	tiny_init(&v);
	v.n = 0;
	for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
		tiny_add(&v, texts[i], i < MARK_HI ? TOKEN_CONTROL : TOKEN_NORMAL);
	tiny_add(&v, "H", TOKEN_NORMAL);
	tiny_add(&v, "i", TOKEN_NORMAL);
	source = tiny_source(&v, "");
	source.model = TOKENIZER_SENTENCEPIECE;
	source.scores = scores;
	source.bos = BOS;
	source.eos = EOS;
	t = tiny_tokenizer(&source);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct chat_template *c;
		struct token_list l = { 0 };

		assert_int_equal(chat_template_new(&c, t, cases[i].text, strlen(cases[i].text)), 0);
		assert_non_null(chat_template_name(c));
		assert_string_equal(chat_template_name(c), cases[i].name);
		assert_int_equal(chat_template_render(c, t, messages, 3, &l, NULL), 0);
		assert_int_equal(l.n, cases[i].n);
		assert_memory_equal(l.ids, cases[i].ids, l.n * sizeof(*l.ids));
		free(l.ids);
		chat_template_free(c);
	}
	tokenizer_free(t);
}

static void refusals(void **state)
{
	struct chat_template *c = new_plain(), *unknown;
	struct chat_message m = { .role = "tool", .text = "x", .n = 1 };
	struct token_list l = { 0 };
	struct diag diag = DIAG_NULL;
	int32_t bad = (int32_t)tokenizer_n_vocab(fixture.t);

	assert_int_equal(token_list_push(&l, 7), 0);
	assert_int_equal(chat_template_render(c, fixture.t, &m, 1, &l, &diag), -EINVAL);
	assert_non_null(strstr(diag.text, "tool"));
	diag = DIAG_NULL;
	assert_int_equal(chat_template_render(c, fixture.t, &m, 0, &l, &diag), -EINVAL);
	assert_non_null(strstr(diag.text, "messages"));
	diag = DIAG_NULL;
	m = (struct chat_message){ .role = "assistant", .ids = &bad, .n = 1 };
	assert_int_equal(chat_template_render(c, fixture.t, &m, 1, &l, &diag), -EINVAL);
	assert_non_null(strstr(diag.text, "messages[0]"));
	bad = -1;
	assert_int_equal(chat_template_render(c, fixture.t, &m, 1, &l, NULL), -EINVAL);
	assert_int_equal(chat_template_new(&unknown, fixture.t, "x", 1), 0);
	assert_null(chat_template_name(unknown));
	bad = 1;
	assert_int_equal(chat_template_render(unknown, fixture.t, &m, 1, &l, NULL), CHAT_E_UNKNOWN);
	/* Nothing of it left a trace. */
	assert_int_equal(l.n, 1);
	assert_int_equal(l.ids[0], 7);
	assert_int_equal(chat_template_render(c, fixture.t, &m, 1, &l, NULL), 0);
	assert_int_equal(l.ids[0], 7);
	assert_int_equal(l.ids[1], fixture.im_start);
	free(l.ids);
	chat_template_free(c);
	chat_template_free(unknown);
	chat_template_free(NULL);
}

/* Without the markers as control tokens a prompt could be forged. */
static void needs_control_tokens(void **state)
{
	static struct tiny_vocab v;

	for (int which = 0; which < 4; which++) {
		struct tokenizer_source source;
		struct tokenizer *t;
		struct chat_template *c;

		tiny_init(&v);
		tiny_add(&v, "<|im_start|>", which & 1 ? TOKEN_CONTROL : TOKEN_USER_DEFINED);
		tiny_add(&v, "<|im_end|>", which & 2 ? TOKEN_CONTROL : TOKEN_NORMAL);
		source = tiny_source(&v, "gpt-2");
		t = tiny_tokenizer(&source);
		assert_int_equal(chat_template_new(&c, t, PLAIN, strlen(PLAIN)), 0);
		assert_int_equal(chat_template_name(c) != NULL, which == 3);
		chat_template_free(c);
		tokenizer_free(t);
	}
}

static void check_unknown(const char *text, size_t n)
{
	struct chat_template *c;

	assert_int_equal(chat_template_new(&c, fixture.t, text, n), 0);
	if (chat_template_name(c))
		fail_msg("recognised: %.*s", (int)(n < 200 ? n : 200), text);
	chat_template_free(c);
}

static char *repeated(const char *open, const char *middle, const char *close, size_t times, size_t *n)
{
	char *text = NULL;
	FILE *f = open_memstream(&text, n);

	assert_non_null(f);
	for (size_t i = 0; i < times; i++)
		fputs(open, f);
	fputs(middle, f);
	for (size_t i = 0; i < times; i++)
		fputs(close, f);
	fputs(PLAIN, f);
	fclose(f);
	return text;
}

/* Deep, long and looping templates end soon and quietly. */
static void hostile_templates(void **state)
{
	static const struct {
		const char *open, *middle, *close;
		size_t times;
	} cases[] = {
		{ "{% for a in messages %}", "{% set x = 'x' %}", "{% endfor %}", 31 },
		{ "{% for a in messages %}", "x", "{% endfor %}", 1000 },
		/* Print nothing; each evaluation is short, all of them together are not. */
		{ "{% for a in messages %}", "{% set z = a %}{% set z = a %}{% set z = a %}{% set z = a %}",
		  "{% endfor %}", 5 },
		{ "{% for a in messages %}", "{% set z = a == 'x' ~ 'y' ~ 'z' ~ 'x' ~ 'y' ~ 'z' ~ 'x' ~ 'y' %}",
		  "{% endfor %}", 4 },
		{ "{% if true %}", "", "{% endif %}", 1000 },
		{ "{{ ", "(((((((((((((((((((((((((((((((((((((((((((((((((((1", "", 1 },
		{ "{% if ", "(((((((((((((((((((((((((((((((((((((((((((((((((((1", "%}", 1 },
		{ "{{ not not not not not not ", "x }}", "", 400 },
		{ "{% set x = 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' %}", "", "", 900 },
		{ "{% set x = 'a' %}{% for m in messages %}", "{% set x = x + x + x + x %}", "{% endfor %}",
		  20 },
		{ "{{ ''[", "0", "] }}", 200 },
		{ "{{ messages[0]", "", "[0] }}", 1 },
		{ "{{ loop.first }}", "", "", 1 },
		{ "{% set n = namespace(a='x') %}{% for a in messages %}{% for b in messages %}",
		  "{% set n.a = n.a + n.a %}", "{% endfor %}{% endfor %}", 8 },
		{ "{% for a in messages[::-1] %}{% for b in messages[1:] %}", "{% if 'x' in a.content %}{% endif %}",
		  "{% endfor %}{% endfor %}", 15 },
		{ "{% set x = messages[0].content", ".strip()", " %}", 9000 },
		{ "{{ 'a' if ", "", "x", 3000 },
		{ "{{ namespace(", "", "", 1 },
		{ "{{ namespace(a", "", "", 1 },
		{ "{{ namespace(a=1", "", "", 1 },
		{ "{{ raise_exception(", "", "", 1 },
		{ "{{ raise_exception('x') }}", "", "", 1 },
		{ "{{ x.y(", "", "", 1 },
		{ "{{ messages[1:", "", "", 1 },
		{ "{{ messages[::-1", "", "", 1 },
		{ "{{ 'x' in [", "", "", 1 },
		{ "{{ 'x' in ['a',", "", "", 1 },
		{ "{% set a.", "", "", 1 },
		{ "{% set a.b = 1 %}", "", "", 1 },
		{ "{{ x |", "", "", 1 },
		{ "{{ x | tojson }}", "", "", 1 },
		{ "{{ x is", "", "", 1 },
		{ "{{ 1 % 0 }}", "", "", 1 },
		{ "{{ messages[0].role not", "", "", 1 },
		{ "{{ 99999999999999999999 }}", "", "", 1 },
		{ "{{ messages[-2] }}", "", "", 1 },
		{ "{{ 'a' 'b' }}", "", "", 1 },
		{ "{{ 'a\\x41' }}", "", "", 1 },
		{ "{% raw %}", "", "{% endraw %}", 1 },
		{ "{% macro f() %}", "", "{% endmacro %}", 1 },
		{ "{% set ns.x = 1 %}", "", "", 1 },
		{ "{% set x %}", "", "{% endset %}", 1 },
		{ "{% if x %}", "{% else %}{% else %}", "{% endif %}", 1 },
		{ "{% for x in messages %}", "{% else %}", "{% endfor %}", 1 },
		{ "{% endif %}", "", "", 1 },
		{ "{% if true %}", "", "", 1 },
		{ "{#", "", "", 1 },
		{ "{{", "", "", 1 },
		{ "{% if '", "", "", 1 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		size_t n;
		char *text = repeated(cases[i].open, cases[i].middle, cases[i].close, cases[i].times, &n);

		check_unknown(text, n);
		free(text);
	}
	check_unknown(NULL, 0);
	check_unknown("\0", 1);
	for (size_t n = 0; n < strlen(PLAIN); n++)
		check_unknown(PLAIN, n);
}

/* Damaged templates: no crash, and no memory error under a sanitizer. */
static void damaged_templates(void **state)
{
	static const char bits[] = "{}%#-+'\"\\ \n()[].~=!<|\xc3\x01" "0aminelsfor";
	uint64_t seed = 1;

	for (int round = 0; round < 4000; round++) {
		struct template_case *from = &fixture.templates[(size_t)round % fixture.n_templates];
		char *text = malloc(from->n + 1);
		size_t n = from->n;
		struct chat_template *c;

		assert_non_null(text);
		memcpy(text, from->text, n);
		for (int k = 0; k < 3; k++) {
			size_t at, length;

			seed = seed * 6364136223846793005u + 1442695040888963407u;
			at = (seed >> 33) % n;
			if (seed >> 60 < 8) {
				text[at] = bits[(seed >> 20) % (sizeof(bits) - 1)];
				continue;
			}
			length = 1 + (seed >> 25) % 20;
			if (length >= n - at)
				length = n - at - 1;
			memmove(text + at, text + at + length, n - at - length);
			n -= length;
		}
		assert_int_equal(chat_template_new(&c, fixture.t, text, n), 0);
		chat_template_free(c);
		free(text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(recognition),	     cmocka_unit_test(rendered_by_jinja),
		cmocka_unit_test(ids_of_the_model),  cmocka_unit_test(ids_are_spliced),
		cmocka_unit_test(replies_are_kept),  cmocka_unit_test(spaces_of_sentencepiece),
		cmocka_unit_test(refusals),	     cmocka_unit_test(needs_control_tokens),
		cmocka_unit_test(hostile_templates), cmocka_unit_test(damaged_templates),
	};

	return cmocka_run_group_tests_name("chat-template", tests, setup, teardown);
}
