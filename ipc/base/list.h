/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Intrusive doubly linked list.  A head is a `struct list` initialised with
 * LIST_INIT; an entry embeds one.  An unlinked entry points to itself, so that
 * list_unlink() may be called twice.
 */
#ifndef KVD_BASE_LIST_H
#define KVD_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
	struct list *next, *prev;
};

#define LIST_INIT(var) { .next = &(var), .prev = &(var) }

static inline void list_init(struct list *l)
{
	l->next = l->prev = l;
}

static inline bool list_empty(const struct list *l)
{
	return l->next == l;
}

static inline void list_insert_before(struct list *where, struct list *e)
{
	e->next = where;
	e->prev = where->prev;
	where->prev->next = e;
	where->prev = e;
}

#define list_push_back(head, e) list_insert_before((head), (e))
#define list_push_front(head, e) list_insert_before((head)->next, (e))

static inline void list_unlink(struct list *e)
{
	e->prev->next = e->next;
	e->next->prev = e->prev;
	list_init(e);
}

#define list_entry(ptr, type, member) \
	((type *)((char *)(ptr) - offsetof(type, member)))

#define list_for_each(pos, head) \
	for (struct list *pos = (head)->next; pos != (head); pos = pos->next)

/* The current entry may be unlinked or freed in the body. */
#define list_for_each_safe(pos, tmp, head) \
	for (struct list *pos = (head)->next, *tmp = pos->next; pos != (head); \
	     pos = tmp, tmp = pos->next)

#endif
