/* SPDX-License-Identifier: MIT */

/*
 * Order of use. A use moves the nodes of its path to the front of their queue, deepest
 * first, so a parent is always in front of its children and the last node without a pin
 * is a leaf:
 *
 *     newest                                                    oldest
 *     root run ── middle ── leaf ── …older uses… ── x ── P ── y ── P ── P
 *                                                        ▲
 *                                                       hand: P P are behind it
 *
 * A node is ordered by (stamp, −depth): stamps count uses, and the nodes of one use are
 * one path.
 *
 * Queues. Each order of use has two: of nodes that were hit, and of those that were not.
 * The path to a node that was hit was hit as well, and is no older. So the oldest of all
 * is at the end of some queue and is a leaf; and so is the oldest that was not hit, and
 * the oldest that was where nothing else is left, or nothing else is older.
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

struct tree_queue *tree_queue_of(struct tree *t, const struct tree_node *n)
{
    return &t->queues[n->order][n->hit];
}

/* A node without a pin has appeared in its queue. */
static void take_back(struct tree *t, struct tree_node *n)
{
    struct tree_queue *q = tree_queue_of(t, n);
    if (q->hand == &q->lru || older(n, TREE_LINK(q->hand, lru)))
        q->hand = &n->lru;
}

/* Times in a queue never descend towards its new end. */
static void stamp(struct tree *t, const struct tree_queue *q, struct tree_node *n)
{
    n->stamp = t->clock;
    n->used_s = t->now_s;
    if (!list_empty(&q->lru) && TREE_LINK(q->lru.next, lru)->used_s > n->used_s)
        n->used_s = TREE_LINK(q->lru.next, lru)->used_s;
}

static void count_kept(struct tree *t, const struct tree_node *n, int sign)
{
    const uint64_t s = (uint64_t)(int64_t)sign;
    if (n->hit) {
        t->kept.blocks += s * n->len;
        t->kept.bytes += s * n->bytes;
    }
}

void tree_lru_add(struct tree *t, struct tree_node *n)
{
    struct tree_queue *q = tree_queue_of(t, n);
    const bool first = tree_is_root(n->parent) || tree_queue_of(t, n->parent) != q;
    stamp(t, q, n);
    list_insert_after(first ? &q->lru : &n->parent->lru, &n->lru);
    list_push_front(&n->parent->children, &n->sibling);
    take_back(t, n);
}

void tree_lru_add_above(struct tree_node *upper, struct tree_node *n)
{
    list_insert_after(n->lru.prev, &upper->lru);
}

void tree_lru_remove(struct tree *t, struct tree_node *n)
{
    struct tree_queue *q = tree_queue_of(t, n);
    if (q->hand == &n->lru)
        q->hand = n->lru.prev;
    list_del(&n->lru);
    list_del(&n->sibling);
}

void tree_lru_touch(struct tree *t, struct tree_node *n)
{
    tree_lru_remove(t, n);
    if (t->o.protect_percent && !n->hit) {
        n->hit = true;
        if (n->pins == 0)
            count_kept(t, n, 1);
    }
    struct tree_queue *q = tree_queue_of(t, n);
    stamp(t, q, n);
    list_push_front(&q->lru, &n->lru);
    list_push_front(&n->parent->children, &n->sibling);
    if (q->hand == &q->lru)
        q->hand = &n->lru;
}

static struct tree_node *end_of(struct tree_queue *q)
{
    while (q->hand != &q->lru && TREE_LINK(q->hand, lru)->pins > 0)
        q->hand = q->hand->prev;
    return q->hand == &q->lru ? NULL : TREE_LINK(q->hand, lru);
}

static struct tree_node *oldest_of_all(struct tree *t, bool hit)
{
    struct tree_node *best = NULL;
    for (unsigned i = 0; i < t->n_orders; i++) {
        struct tree_node *n = end_of(&t->queues[i][hit]);
        if (n && (!best || older(n, best)))
            best = n;
    }
    return best;
}

static bool within_share(uint64_t part, uint64_t max, unsigned percent)
{
    return !max || part <= max / 100 * percent + max % 100 * percent / 100;
}

bool tree_lru_protects(const struct tree *t)
{
    const unsigned percent = t->o.protect_percent;
    return percent && within_share(t->kept.bytes, t->o.max_bytes, percent) &&
           within_share(t->kept.blocks, t->o.max_blocks, percent);
}

struct tree_node *tree_lru_oldest(struct tree *t)
{
    struct tree_node *n = oldest_of_all(t, false), *hit = oldest_of_all(t, true);
    if (!n || !hit)
        return n ? n : hit;
    return !tree_lru_protects(t) && older(hit, n) ? hit : n;
}

struct tree_node *tree_lru_oldest_of(struct tree *t, unsigned order)
{
    struct tree_node *n = end_of(&t->queues[order][false]);
    struct tree_node *hit = end_of(&t->queues[order][true]);
    return n && (!hit || older(n, hit)) ? n : hit;
}

void tree_lru_pin(struct tree *t, struct tree_node *n)
{
    for (; !tree_is_root(n) && n->pins++ == 0; n = n->parent) {
        t->pinned.blocks += n->len;
        t->pinned.bytes += n->bytes;
        count_kept(t, n, -1);
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
        count_kept(t, n, 1);
        take_back(t, n);
    }
}
