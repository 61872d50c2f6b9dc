/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/dispatch.h"

#include <stdio.h>

#include "daemon/server/server-internal.h"
#include "daemon/server/session.h"
#include "ipc/base/checked.h"
#include "ipc/fdpass.h"

enum permission { PERMIT_ALL, PERMIT_ADMIN };

struct dispatch_row {
	enum kvd_message id;
	enum session_state state;
	enum permission permission;
	void (*handler)(struct session *s, struct msg **msg);
	bool wants_fd;		/* comes with exactly one descriptor; all others come with none */
};

static const struct dispatch_row rows[] = {
	{ KVD_MSG_HELLO, SESSION_GREET, PERMIT_ALL, handle_hello },
	{ KVD_MSG_GENERATE, SESSION_OPEN, PERMIT_ALL, handle_generate },
	{ KVD_MSG_CANCEL, SESSION_OPEN, PERMIT_ALL, handle_cancel },
	{ KVD_MSG_ROOM, SESSION_OPEN, PERMIT_ALL, handle_room },
	{ KVD_MSG_WAIT, SESSION_OPEN, PERMIT_ALL, handle_wait },
	{ KVD_MSG_TOKENIZE, SESSION_OPEN, PERMIT_ALL, handle_tokenize },
	{ KVD_MSG_STATUS, SESSION_OPEN, PERMIT_ALL, handle_status },
	{ KVD_MSG_MODELS, SESSION_OPEN, PERMIT_ALL, handle_models },
	{ KVD_MSG_PS, SESSION_OPEN, PERMIT_ALL, handle_ps },
	/* Who may load and unload what is the handlers' to say. */
	{ KVD_MSG_LOAD, SESSION_OPEN, PERMIT_ALL, handle_load, .wants_fd = true },
	{ KVD_MSG_UNLOAD, SESSION_OPEN, PERMIT_ALL, handle_unload },
	/* And who may see and do what with the cache; see cache-control.h. */
	{ KVD_MSG_CACHE_LS, SESSION_OPEN, PERMIT_ALL, handle_cache_ls },
	{ KVD_MSG_CACHE_SHOW, SESSION_OPEN, PERMIT_ALL, handle_cache_show },
	{ KVD_MSG_CACHE_PIN, SESSION_OPEN, PERMIT_ALL, handle_cache_pin },
	{ KVD_MSG_CACHE_UNPIN, SESSION_OPEN, PERMIT_ALL, handle_cache_unpin },
	{ KVD_MSG_CACHE_DROP, SESSION_OPEN, PERMIT_ALL, handle_cache_drop },
	{ KVD_MSG_CACHE_WIPE, SESSION_OPEN, PERMIT_ALL, handle_cache_wipe },
	{ KVD_MSG_CACHE_EXPORT, SESSION_OPEN, PERMIT_ALL, handle_cache_export, .wants_fd = true },
	{ KVD_MSG_CACHE_IMPORT, SESSION_OPEN, PERMIT_ALL, handle_cache_import, .wants_fd = true },
	{ KVD_MSG_CACHE_VERIFY, SESSION_OPEN, PERMIT_ALL, handle_cache_verify },
};

static const struct dispatch_row *find_row(enum kvd_message id)
{
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		if (rows[i].id == id)
			return &rows[i];
	}
	return NULL;
}

/* A message that got no handler: before hello that is the end. */
static void reject(struct session *s, uint64_t id, enum kvd_code code, const char *field, const char *text)
{
	char sentence[KVD_ERROR_TEXT_MAX + 1];

	if (s->state == SESSION_GREET) {
		snprintf(sentence, sizeof(sentence), "%s%s%s", field, field[0] ? ": " : "", text);
		session_refuse(s, code, sentence);
		return;
	}
	session_error(s, id, code, field, text, 0);
	if (code == KVD_CODE_BAD_MESSAGE)
		session_violation(s);
}

void dispatch_message(struct session *s, const void *data, size_t n, int received)
{
	_cleanup_(msg_freep) struct msg *msg = NULL;
	_cleanup_(fdpass_close_receivedp) int fd = received;
	const struct dispatch_row *row;
	struct codec_error error;
	char sentence[128];
	int r;

	if (!s->charge.account) {
		session_refuse(s, KVD_CODE_QUOTA, "too many sessions of this user");
		return;
	}
	r = codec_decode(&msg, data, n, &error);
	if (r == CODEC_E_INVALID) {
		reject(s, error.id, error.code, error.field, error.text);
		return;
	}
	if (r) {
		reject(s, error.id, KVD_CODE_NO_MEMORY, "", "out of memory");
		return;
	}
	row = find_row(msg->id);
	if (!row || row->state != s->state) {
		snprintf(sentence, sizeof(sentence),
			 row ? "%s may not come now" : "%s is not a message to the daemon",
			 codec_name(msg->id));
		reject(s, 0, KVD_CODE_BAD_MESSAGE, "", sentence);
		return;
	}
	if (row->permission == PERMIT_ADMIN && !server_is_admin(s->server, s->uid)) {
		reject(s, 0, KVD_CODE_PERMISSION, "", "only root and the daemon's own user may ask for this");
		return;
	}
	if (row->wants_fd != (fd >= 0)) {
		snprintf(sentence, sizeof(sentence), "%s comes with %s descriptor", codec_name(msg->id),
			 row->wants_fd ? "one" : "no");
		reject(s, row->wants_fd ? msg->load.id : 0, KVD_CODE_BAD_MESSAGE, "", sentence);
		return;
	}
	s->received_fd = &fd;
	row->handler(s, &msg);
	s->received_fd = NULL;
}

void dispatch_discarded(struct session *s, int why)
{
	reject(s, 0, KVD_CODE_BAD_MESSAGE, "", why == FDPASS_E_FDS ?
	       "more descriptors than any message has; it was thrown away" :
	       "the message is longer than 65536 bytes");
}
