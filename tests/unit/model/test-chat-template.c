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
#define MAX_TEMPLATES 64

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

static void recognition(void **state)
{
	size_t n_known = 0;

	for (size_t i = 0; i < fixture.n_templates; i++) {
		struct template_case *c = &fixture.templates[i];
		const char *name = chat_template_name(c->c);
		bool want = strcmp(c->group, "-") != 0;

		if (want != (name != NULL))
			fail_msg("template %s is %srecognised", c->name, name ? "" : "not ");
		if (name)
			assert_string_equal(name, "chatml");
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

static void check_rendered(const struct template_case *c, const struct conversation *conversation,
			   const char *want, size_t n_want)
{
	struct token_list l = render(c->c, conversation->messages, conversation->n);
	bool own_system = strcmp(conversation->messages[0].role, "system") == 0;
	bool with_default =
		strstr(c->group, "default") || strstr(c->group, "qwen") || strstr(c->group, "smollm");
	bool bos = strncmp(c->group, "bos", 3) == 0;
	size_t n_turns = conversation->n + (with_default && !own_system), n, n_control = 0;
	char *text = text_of(fixture.t, &l, &n);

	if (n != n_want || memcmp(text, want, n))
		fail_msg("template %s, conversation %s:\n%.*s\nnot\n%.*s", c->name, conversation->name,
			 (int)n, text, (int)n_want, want);
	for (size_t i = 0; i < l.n; i++)
		n_control += tokenizer_is_control(fixture.t, l.ids[i]);
	assert_int_equal(n_control, 2 * n_turns + 1 + bos);
	free(text);
	free(l.ids);
}

static void rendered_by_jinja(void **state)
{
	struct oracle_file o;
	char *kind;
	size_t n_checked = 0;

	oracle_open(&o, ORACLE);
	while ((kind = oracle_next(&o))) {
		char *group, *text;
		struct conversation *conversation;
		size_t n;

		if (strcmp(kind, "rendered"))
			continue;
		group = oracle_word(&o);
		conversation = find_conversation(oracle_word(&o));
		text = oracle_word(&o);
		n = oracle_decode(text);
		for (size_t i = 0; i < fixture.n_templates; i++)
			if (strcmp(fixture.templates[i].group, group) == 0) {
				check_rendered(&fixture.templates[i], conversation, text, n);
				n_checked++;
			}
	}
	oracle_close(&o);
	assert_true(n_checked > 500);
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
		cmocka_unit_test(refusals),	     cmocka_unit_test(needs_control_tokens),
		cmocka_unit_test(hostile_templates), cmocka_unit_test(damaged_templates),
	};

	return cmocka_run_group_tests_name("chat-template", tests, setup, teardown);
}
