/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_BASE_LIST_H
#define INCIPIT_BASE_LIST_H

/*
 * Intrusive circular doubly linked list. A head and a link are the same struct; an
 * unlinked link points to itself, so list_del() may be called twice.
 */

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *next, *prev;
};

#define LIST_ENTRY(ptr, type, member)                                                    \
    ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

#define LIST_EACH(it, head)                                                              \
    for (struct list *it = (head)->next; it != (head); it = it->next)

/* As LIST_EACH, and `it` may be removed in the body. */
#define LIST_EACH_SAFE(it, tmp, head)                                                    \
    for (struct list *it = (head)->next, *tmp = it->next; it != (head);                  \
         it = tmp, tmp = it->next)

static inline void list_init(struct list *l)
{
    l->next = l->prev = l;
}

static inline bool list_empty(const struct list *head)
{
    return head->next == head;
}

static inline void list_insert_after(struct list *at, struct list *l)
{
    l->prev = at;
    l->next = at->next;
    at->next->prev = l;
    at->next = l;
}

static inline void list_push_front(struct list *head, struct list *l)
{
    list_insert_after(head, l);
}

static inline void list_push_back(struct list *head, struct list *l)
{
    list_insert_after(head->prev, l);
}

static inline void list_del(struct list *l)
{
    l->prev->next = l->next;
    l->next->prev = l->prev;
    list_init(l);
}

#endif
