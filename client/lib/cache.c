/* SPDX-License-Identifier: Apache-2.0 */
/* Questions about the cache, and what is to be done with it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/client.h"

#define ENTRIES_MAX (4u << 20)	/* of one listing */

/* A string of the daemon, which the codec has checked for length. */
#define COPY(dst, src) snprintf(dst, sizeof(dst), "%s", src)

static void fill_entry(struct kvd_cache_entry *out, const struct msg_cache_entry *m)
{
	*out = (struct kvd_cache_entry){
		.entry = m->entry, .parent = m->parent, .uid = m->uid, .n_tokens = m->n_tokens, .first = m->first,
		.joined = m->joined, .bytes = m->bytes, .age_ns = m->age_ns, .idle_ns = m->idle_ns,
		.ttl_ns = m->ttl_ns, .hits = m->hits, .n_users = m->n_users, .n_pins = m->n_pins,
		.priority = m->priority, .pinned = m->pinned,
	};
	COPY(out->ns, m->namespace);
	COPY(out->tier, m->tier);
	COPY(out->words, m->words);
}

/* --- listing --- */

struct listing {
	struct kvd_cache_entry *entries;
	size_t n, capacity;
};

/* A page that is not the last has entries, so that a listing ends somewhere. */
static int add_page(struct kvd_client *c, struct listing *l, const struct msg_cache_ls_reply *m)
{
	struct kvd_cache_entry *entries;

	if (m->next && (!m->n_entries || m->entries[m->n_entries - 1].entry != m->next))
		return client_break(c, KVD_E_PROTOCOL, "the daemon broke the protocol: a listing that does not end");
	if (l->n + m->n_entries > ENTRIES_MAX)
		return client_fail(c, -E2BIG, "more than %u entries", ENTRIES_MAX);
	if (l->n + m->n_entries > l->capacity) {
		l->capacity = 2 * (l->n + m->n_entries);
		entries = reallocarray(l->entries, l->capacity, sizeof(*entries));
		if (!entries)
			return -ENOMEM;
		l->entries = entries;
	}
	for (size_t i = 0; i < m->n_entries; i++)
		fill_entry(&l->entries[l->n++], &m->entries[i]);
	return 0;
}

static int list(struct kvd_client *c, const char *model, const char *ns, struct listing *l)
{
	struct msg_cache_ls m = { .model = model, .namespace = ns };

	do {
		struct call *call = NULL;
		int r = call_ask(c, KVD_MSG_CACHE_LS, KVD_MSG_CACHE_LS_REPLY, &m, &call);

		if (!r)
			r = add_page(c, l, &call->reply->cache_ls_reply);
		if (!r)
			m.after = call->reply->cache_ls_reply.next;
		call_free(call);
		if (r)
			return r;
	} while (m.after);
	return 0;
}

KVD_API int kvd_cache_ls(struct kvd_client *c, const char *model, const char *ns, struct kvd_cache_entry **entries,
			 size_t *n)
{
	struct listing l = { 0 };

	client_enter(c);
	int r = list(c, model, ns, &l);
	if (!r && !l.entries) {
		l.entries = calloc(1, sizeof(*l.entries));
		r = l.entries ? 0 : -ENOMEM;
	}
	if (r) {
		free(l.entries);
	} else {
		*entries = l.entries;
		*n = l.n;
	}
	return client_leave(c, r);
}

/* --- one entry --- */

KVD_API int kvd_cache_show(struct kvd_client *c, const char *model, uint64_t entry, struct kvd_cache_details *out)
{
	struct msg_cache_show m = { .model = model, .entry = entry };
	struct call *call = NULL;

	client_enter(c);
	int r = call_ask(c, KVD_MSG_CACHE_SHOW, KVD_MSG_CACHE_SHOW_REPLY, &m, &call);
	if (!r) {
		const struct msg_cache_show_reply *reply = &call->reply->cache_show_reply;

		*out = (struct kvd_cache_details){ .chain = reply->chain, .n_path = reply->n_path,
						   .n_below = reply->n_below,
						   .n_pinned_by = (uint32_t)reply->n_pinned_by };
		fill_entry(&out->entry, &reply->entries[0]);
		for (size_t i = 0; i < reply->n_pinned_by; i++)
			out->pinned_by[i] = reply->pinned_by[i];
		COPY(out->text, reply->text);
		COPY(out->own, reply->own);
	}
	call_free(call);
	return client_leave(c, r);
}

/* Those that are answered by what they changed. */
static int change(struct kvd_client *c, enum kvd_message question, void *message, struct kvd_cache_change *out)
{
	struct call *call = NULL;

	client_enter(c);
	int r = call_ask(c, question, KVD_MSG_CACHE_DONE, message, &call);
	if (!r && out) {
		const struct msg_cache_done *done = &call->reply->cache_done;

		*out = (struct kvd_cache_change){ done->n_entries, done->n_tokens, done->bytes, done->disk_entries,
						  done->disk_bytes };
	}
	call_free(call);
	return client_leave(c, r);
}

KVD_API int kvd_cache_pin(struct kvd_client *c, const char *model, uint64_t entry, struct kvd_cache_change *out)
{
	return change(c, KVD_MSG_CACHE_PIN, &(struct msg_cache_pin){ .model = model, .entry = entry }, out);
}

KVD_API int kvd_cache_unpin(struct kvd_client *c, const char *model, uint64_t entry, unsigned flags,
			    struct kvd_cache_change *out)
{
	return change(c, KVD_MSG_CACHE_UNPIN, &(struct msg_cache_unpin){
		.model = model, .entry = entry, .all = (flags & KVD_CACHE_ALL) != 0,
	}, out);
}

KVD_API int kvd_cache_drop(struct kvd_client *c, const char *model, uint64_t entry, unsigned flags,
			   struct kvd_cache_change *out)
{
	return change(c, KVD_MSG_CACHE_DROP, &(struct msg_cache_drop){
		.model = model, .entry = entry, .chain = (flags & KVD_CACHE_CHAIN) != 0,
	}, out);
}

KVD_API int kvd_cache_wipe(struct kvd_client *c, const char *model, const char *ns, unsigned flags,
			   struct kvd_cache_change *out)
{
	return change(c, KVD_MSG_CACHE_WIPE, &(struct msg_cache_wipe){
		.model = model, .namespace = ns, .all = (flags & KVD_CACHE_ALL) != 0,
	}, out);
}
