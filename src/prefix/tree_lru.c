/* SPDX-License-Identifier: MIT */

/*
 * Order of use. One list holds all nodes; a use moves the nodes of its path to the
 * front, deepest first, so a parent is always in front of its children and the last
 * node without a pin is a leaf:
 *
 *     newest                                                    oldest
 *     root run ── middle ── leaf ── …older uses… ── x ── P ── y ── P ── P
 *                                                        ▲
 *                                                       hand: P P are behind it
 *
 * A node is ordered by (stamp, −depth): stamps count uses, and the nodes of one use are
 * one path.
 *
 * Pins. A pinned node (P) keeps its place in the list, so that it goes in its turn once
 * it is released. To look for the oldest node without a pin, a hand moves from the old
 * end over pinned nodes and remembers how far it came. A release behind the hand takes
 * it back. So an eviction costs O(1), and a release at most one more walk over what is
 * pinned at that time.
 */

#include <assert.h>

#include "tree_internal.h"

static bool older(const struct tree_node *a, const struct tree_node *b)
{
    return a->stamp != b->stamp ? a->stamp < b->stamp : a->depth > b->depth;
}

/* A node without a pin has appeared in the list. */
static void take_back(struct tree *t, struct tree_node *n)
{
    if (t->hand == &t->lru || older(n, TREE_LINK(t->hand, lru)))
        t->hand = &n->lru;
}

void tree_lru_add(struct tree *t, struct tree_node *n)
{
    struct list *newer = tree_is_root(n->parent) ? &t->lru : &n->parent->lru;
    list_insert_after(newer, &n->lru);
    list_push_front(&n->parent->children, &n->sibling);
    take_back(t, n);
}

void tree_lru_add_above(struct tree_node *upper, struct tree_node *n)
{
    list_insert_after(n->lru.prev, &upper->lru);
}

void tree_lru_remove(struct tree *t, struct tree_node *n)
{
    if (t->hand == &n->lru)
        t->hand = n->lru.prev;
    list_del(&n->lru);
    list_del(&n->sibling);
}

void tree_lru_touch(struct tree *t, struct tree_node *n)
{
    tree_lru_remove(t, n);
    n->stamp = t->clock;
    list_push_front(&t->lru, &n->lru);
    list_push_front(&n->parent->children, &n->sibling);
    if (t->hand == &t->lru)
        t->hand = &n->lru;
}

struct tree_node *tree_lru_oldest(struct tree *t)
{
    while (t->hand != &t->lru && TREE_LINK(t->hand, lru)->pins > 0)
        t->hand = t->hand->prev;
    return t->hand == &t->lru ? NULL : TREE_LINK(t->hand, lru);
}

void tree_lru_pin(struct tree *t, struct tree_node *n)
{
    for (; !tree_is_root(n) && n->pins++ == 0; n = n->parent) {
        t->pinned.blocks += n->len;
        t->pinned.bytes += n->bytes;
    }
}

/* From the leaf up: a child is free, and behind the hand, before its parent is. */
void tree_lru_unpin(struct tree *t, struct tree_node *n)
{
    for (; !tree_is_root(n); n = n->parent) {
        assert(n->pins > 0);
        if (--n->pins > 0)
            return;
        t->pinned.blocks -= n->len;
        t->pinned.bytes -= n->bytes;
        take_back(t, n);
    }
}
