/* SPDX-License-Identifier: Apache-2.0 */
/* stream-show.h - the forms in which stream.c shows events: a table, or JSON Lines. */
#ifndef KVD_CTL_STREAM_SHOW_H
#define KVD_CTL_STREAM_SHOW_H

#include "client/ctl/json.h"
#include "client/ctl/output.h"
#include "client/ctl/stream.h"

/* A token waits for its alternatives, which are an event of their own. */
struct show {
	struct output out;
	enum stream_mode mode;
	bool want_alternatives;
	bool pending;		/* token_* hold one that is not shown yet */
	int32_t id;
	float logprob;
	bool is_control;
	struct text_buffer bytes;
	bool header_shown;
};

void show_init(struct show *s, enum stream_mode mode, bool want_alternatives);
void show_deinit(struct show *s);

/* Each returns 0, -EPIPE, -EINTR (Ctrl-C) or -errno. */
int show_event(struct show *s, const struct kvd_event *event);
/* The last line of JSON. */
int show_summary(struct show *s, const struct reply *reply);
int show_error(struct show *s, const char *text, uint32_t code, const char *field);

const char *finish_name(uint32_t finish);
const char *refusal_name(uint32_t code);
/* enum kvd_cache_miss: one word, and an explanation. */
const char *miss_name(uint32_t miss);
const char *miss_words(uint32_t miss);
/* What a reply says of the cache, as members of an object. */
void show_miss(json_t *v, const struct reply *reply);

#endif
