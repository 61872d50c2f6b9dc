/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvctl chat: a conversation, one line per message.
 *
 * What the model said is kept as the ids that it generated, so that the next
 * turn's prompt begins with exactly the tokens that the daemon already knows.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/connect.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/sampling.h"
#include "client/ctl/stream.h"

#define MESSAGES_MAX 1024	/* of one prompt; a limit of the protocol */

struct message {
	char *text;	/* of the user, or */
	int32_t *ids;	/* of the model */
	size_t n;
};

struct chat {
	struct ctl *ctl;
	struct kvd_client *c;
	struct kvd_model model;
	struct sampling sampling;
	struct stream_options options;
	char *system;			/* or NULL */
	struct message *messages;	/* user and model in turn */
	size_t n, capacity;
	bool interactive;		/* somebody types */
	int status;			/* of the last turn that failed */
};

static const char chat_help[] =
	"  /system TEXT  another system message; forgets the conversation\n"
	"  /reset        forgets the conversation\n"
	"  /quit         ends (so does Ctrl-D)\n"
	"  Ctrl-C        stops a reply\n";

static void forget(struct chat *chat, size_t keep)
{
	while (chat->n > keep) {
		struct message *m = &chat->messages[--chat->n];
		free(m->text);
		free(m->ids);
	}
}

static void chat_deinit(struct chat *chat)
{
	forget(chat, 0);
	free(chat->messages);
	free(chat->system);
	kvd_close(chat->c);
}

/* Takes text and ids over, also on failure. */
static int remember(struct chat *chat, char *text, int32_t *ids, size_t n)
{
	if (chat->n == chat->capacity) {
		size_t capacity = chat->capacity ? 2 * chat->capacity : 32;
		struct message *messages = reallocarray(chat->messages, capacity, sizeof(*messages));
		if (!messages) {
			free(text);
			free(ids);
			return -ENOMEM;
		}
		chat->messages = messages;
		chat->capacity = capacity;
	}
	chat->messages[chat->n++] = (struct message){ text, ids, n };
	return 0;
}

static int set_system(struct chat *chat, const char *text)
{
	char *copy = text && *text ? strdup(text) : NULL;

	if (text && *text && !copy)
		return -ENOMEM;
	free(chat->system);
	chat->system = copy;
	forget(chat, 0);
	return 0;
}

static int submit_turn(struct chat *chat, struct reply *reply)
{
	struct kvd_params p = chat->sampling.params;
	struct kvd_part *parts = calloc(chat->n + 1, sizeof(*parts));

	if (!parts) {
		ctl_error(chat->ctl, "out of memory");
		return CTL_FAILED;
	}
	if (chat->system)
		parts[p.n_parts++] = (struct kvd_part){ .role = "system", .text = chat->system,
							.n = strlen(chat->system) };
	for (size_t i = 0; i < chat->n; i++) {
		const struct message *m = &chat->messages[i];
		parts[p.n_parts++] = (struct kvd_part){ .role = m->ids ? "assistant" : "user",
							.text = m->text,
							.ids = m->ids, .n = m->n };
	}
	p.parts = parts;
	int status = stream_run(chat->ctl, chat->c, &p, &chat->options, reply);
	free(parts);
	return status;
}

/*
 * One message and its reply.  A turn without a reply is forgotten, so that the
 * conversation goes on from before it.  Returns false if there is no going on.
 */
static bool turn(struct chat *chat, const char *line, size_t n)
{
	struct reply reply = { 0 };
	size_t before = chat->n;
	char *text = strndup(line, n);

	if (!text || remember(chat, text, NULL, n)) {
		ctl_error(chat->ctl, "out of memory");
		chat->status = CTL_FAILED;
		return false;
	}
	interrupt_reset();
	interrupt_set_final(true);
	int status = submit_turn(chat, &reply);
	interrupt_set_final(false);
	bool goes_on = status == CTL_OK || reply.error_code ||
		(status == CTL_INTERRUPTED && chat->interactive);
	if (status != CTL_OK && status != CTL_INTERRUPTED)
		chat->status = status;
	if (!goes_on)
		chat->status = status;
	if (reply.error_code == KVD_REFUSED_CONTEXT_LENGTH && chat->interactive)
		fputs("the conversation is too long: /reset begins a new one\n", stderr);
	if (!reply.error_code && reply.n_ids) {
		if (remember(chat, NULL, reply.ids, reply.n_ids))
			goes_on = false;
		reply.ids = NULL;
	} else {
		forget(chat, before);
	}
	reply_deinit(&reply);
	return goes_on;
}

/* Returns false for /quit. */
static bool command(struct chat *chat, const char *line)
{
	if (!strcmp(line, "/quit") || !strcmp(line, "/exit"))
		return false;
	if (!strcmp(line, "/reset")) {
		forget(chat, 0);
	} else if (!strcmp(line, "/system") || !strncmp(line, "/system ", 8)) {
		if (set_system(chat, line[7] ? line + 8 : NULL))
			ctl_error(chat->ctl, "out of memory");
	} else if (!strcmp(line, "/help")) {
		fputs(chat_help, stderr);
	} else {
		fprintf(stderr, "no such command; /help has them\n");
	}
	return true;
}

/* One line without its newline; -1 at the end of input, 0 for Ctrl-C at the prompt. */
static ssize_t read_line(struct chat *chat, char **line, size_t *capacity)
{
	interrupt_reset();
	if (chat->interactive) {
		fputs("> ", stderr);
		fflush(stderr);
	}
	errno = 0;
	ssize_t n = getline(line, capacity, stdin);
	if (n < 0 && errno == EINTR && chat->interactive) {
		clearerr(stdin);
		fputc('\n', stderr);
		(*line)[0] = '\0';
		return 0;
	}
	if (n < 0) {
		if (interrupt_pending())
			chat->status = CTL_INTERRUPTED;
		else if (chat->interactive)
			fputc('\n', stderr);
		return -1;
	}
	while (n && ((*line)[n - 1] == '\n' || (*line)[n - 1] == '\r'))
		(*line)[--n] = '\0';
	return n;
}

static void converse(struct chat *chat)
{
	size_t capacity = 256;
	char *line = calloc(1, capacity);
	bool goes_on = line != NULL;

	while (goes_on) {
		ssize_t n = read_line(chat, &line, &capacity);
		if (n < 0)
			break;
		if (!n)
			continue;
		if (line[0] == '/')
			goes_on = command(chat, line);
		else if (chat->n + 2 > MESSAGES_MAX)
			fputs("the conversation has too many messages: /reset begins a new one\n", stderr);
		else
			goes_on = turn(chat, line, (size_t)n);
	}
	free(line);
}

static int begin(struct chat *chat)
{
	struct sampling *s = &chat->sampling;
	struct kvd_model *model = &chat->model;
	int status = connect_for_model(chat->ctl, s->params.model, s->quiet, 0, &chat->c, model);

	if (status)
		return status;
	enum template_state state = connect_template(model);
	if (state != TEMPLATE_KNOWN) {
		ctl_error(chat->ctl, "the model %s has %s; \"kvctl generate --raw\" works without one",
			  model->name,
			  state == TEMPLATE_NONE ? "no chat template" : "a chat template that is not known");
		return CTL_FAILED;
	}
	if (set_system(chat, s->system) || interrupt_init()) {
		ctl_error(chat->ctl, "cannot begin: %s", strerror(errno));
		return CTL_FAILED;
	}
	chat->interactive = isatty(STDIN_FILENO);
	chat->options = (struct stream_options){ .mode = chat->ctl->json ? STREAM_JSON : STREAM_TEXT,
						 .quiet = s->quiet, .end_line = true };
	if (chat->interactive && !s->quiet)
		fprintf(stderr, "%s. /help has the commands.\n", model->name);
	s->params.model = model->name;
	converse(chat);
	return chat->status;
}

int cmd_chat(struct ctl *ctl, int argc, char **argv)
{
	static const struct option longs[] = { SAMPLING_LONGS, CTL_GLOBAL_OPTIONS, { 0 } };
	struct ctl_options o = { .ctl = ctl, .argc = argc, .argv = argv, .shorts = ":h" SAMPLING_SHORTS,
				 .longs = longs };
	struct chat chat = { .ctl = ctl };
	int r = 0;

	sampling_init(&chat.sampling);
	while (!r) {
		int c = ctl_options_next(&o);
		if (c == CTL_OPTIONS_END)
			break;
		r = c == CTL_OPTIONS_EXIT ? c : sampling_option(&chat.sampling, &o, c);
	}
	if (!r)
		r = ctl_options_no_arguments(&o);
	if (r)
		return o.status;
	int status = begin(&chat);
	chat_deinit(&chat);
	return status;
}
