/* SPDX-License-Identifier: MIT */

/*
 * Marks hang in a list at their node, so whoever moves blocks can move their marks.
 *
 * Trimming does not visit them: an offset behind the end of the run means its end, and
 * the node is `loose` until somebody who is about to let the run grow settles them. So
 * evicting a run of 256 blocks with thousands of marks costs one walk, when the node
 * itself goes and its marks fall to the parent.
 *
 * Pins count for whole nodes: the run is cut at a mark that is pinned, so that every
 * pinned mark stands at the end of a run, and nodes with pins are not merged.
 *
 * A holder is a tip mark and a bit in every node from the tip up to the root.
 */

#include <assert.h>

#include "tree_internal.h"

#define MARK(l) LIST_ENTRY(l, struct tree_mark, link)

void tree_mark_set(struct tree_mark *m, struct tree_node *n, uint32_t off)
{
    assert(!m->node && !m->pinned);
    if (tree_is_root(n))
        return;
    assert(off > 0 && off <= n->len);
    m->node = n;
    m->off = off;
    list_push_back(&n->marks, &m->link);
}

static void unset(struct tree_mark *m)
{
    list_del(&m->link);
    *m = (struct tree_mark){0};
}

void tree_mark_settle(struct tree_node *n)
{
    if (!n->loose)
        return;
    LIST_EACH (it, &n->marks)
        MARK(it)->off = tree_mark_at(MARK(it));
    n->loose = false;
}

void tree_mark_fall(struct tree *t, struct tree_node *n, struct tree_node *to)
{
    while (!list_empty(&n->marks)) {
        struct tree_mark *m = MARK(n->marks.next);
        bool pinned = m->pinned;
        tree_unpin(t, m);
        unset(m);
        tree_mark_set(m, to, to->len);
        if (pinned)
            tree_pin(t, m);
    }
}

void tree_mark_split(struct tree *t, struct tree_node *upper, struct tree_node *n)
{
    LIST_EACH_SAFE (it, tmp, &n->marks) {
        struct tree_mark *m = MARK(it);
        if (m->off > upper->len) {
            m->off -= upper->len;
            continue;
        }
        assert(!m->pinned);
        list_del(&m->link);
        m->node = upper;
        list_push_back(&upper->marks, &m->link);
    }
    upper->holders = n->holders;
    for (uint64_t rest = n->holders; rest; rest &= rest - 1) {
        unsigned id = (unsigned)__builtin_ctzll(rest);
        if (t->tips[id].node == upper)
            n->holders &= ~(UINT64_C(1) << id);
    }
}

void tree_mark_merge(struct tree_node *upper, struct tree_node *n)
{
    LIST_EACH (it, &n->marks)
        MARK(it)->off += upper->len;
    LIST_EACH_SAFE (it, tmp, &upper->marks) {
        list_del(it);
        MARK(it)->node = n;
        list_push_back(&n->marks, it);
    }
    n->holders = upper->holders;
}

/* ---- marks ------------------------------------------------------------------------- */

void tree_mark_copy(struct tree *t, struct tree_mark *to, const struct tree_mark *from)
{
    if (to == from)
        return;
    tree_mark_clear(t, to);
    if (from->node)
        tree_mark_set(to, from->node, tree_mark_at(from));
}

void tree_mark_clear(struct tree *t, struct tree_mark *m)
{
    tree_unpin(t, m);
    if (m->node)
        unset(m);
}

size_t tree_mark_blocks(const struct tree_mark *m)
{
    return m->node ? (size_t)m->node->depth + tree_mark_at(m) : 0;
}

/* Only the last block of a sequence may be short: all before are like the one before. */
size_t tree_mark_tokens(const struct tree_mark *m)
{
    if (!m->node)
        return 0;
    const struct tree_node *n = m->node, *up = n->parent;
    uint32_t at = tree_mark_at(m);
    size_t full = at > 1    ? n->run[at - 2].n_tokens
                  : up->len ? up->run[up->len - 1].n_tokens
                            : 0;
    return (n->depth + at - 1) * full + n->run[at - 1].n_tokens;
}

static void move(struct tree *t, struct tree_mark *m, struct tree_node *n, uint32_t off)
{
    bool pinned = m->pinned;
    tree_mark_clear(t, m);
    tree_mark_set(m, n, off);
    if (pinned)
        tree_pin(t, m);
}

void tree_mark_up(struct tree *t, struct tree_mark *m, size_t n_blocks)
{
    assert(n_blocks <= tree_mark_blocks(m));
    if (!m->node)
        return;
    struct tree_node *n = m->node;
    while (n->depth > 0 && n_blocks <= n->depth)
        n = n->parent;
    if (n_blocks > n->depth)
        move(t, m, n, (uint32_t)(n_blocks - n->depth));
    else
        tree_mark_clear(t, m);
}

size_t tree_mark_down(struct tree *t, struct tree_mark *m, size_t n_tokens)
{
    if (!m->node)
        return 0;
    size_t tokens = tree_mark_tokens(m);
    struct tree_node *n = m->node, *child;
    uint32_t off = tree_mark_at(m);
    while (tokens < n_tokens) {
        if (off == n->len) {
            if (!(child = tree_first_child(n)))
                break;
            n = child;
            off = 0;
        }
        tokens += n->run[off++].n_tokens;
    }
    move(t, m, n, off);
    return tokens;
}

/* ---- pins -------------------------------------------------------------------------- */

void tree_pin(struct tree *t, struct tree_mark *m)
{
    if (m->pinned || !m->node)
        return;
    uint32_t at = tree_mark_at(m);
    if (at < m->node->len)
        tree_node_split(t, m->node, at);
    assert(tree_mark_at(m) == m->node->len);
    m->pinned = true;
    tree_lru_pin(t, m->node);
}

void tree_unpin(struct tree *t, struct tree_mark *m)
{
    if (!m->pinned)
        return;
    m->pinned = false;
    tree_lru_unpin(t, m->node);
}

/* ---- holders ----------------------------------------------------------------------- */

void tree_hold(struct tree *t, unsigned id, const struct tree_mark *m)
{
    tree_release(t, id);
    if (!m->node)
        return;
    tree_mark_copy(t, &t->tips[id], m);
    for (struct tree_node *n = m->node; !tree_is_root(n); n = n->parent)
        n->holders |= UINT64_C(1) << id;
}

void tree_release(struct tree *t, unsigned id)
{
    assert(id < TREE_HOLDERS);
    if (!t->tips[id].node)
        return;
    for (struct tree_node *n = t->tips[id].node; !tree_is_root(n); n = n->parent)
        n->holders &= ~(UINT64_C(1) << id);
    tree_mark_clear(t, &t->tips[id]);
}

/* Up to the first node with the holder's bit; within it the shallower place counts. */
size_t tree_held(const struct tree *t, unsigned id, const struct tree_mark *m)
{
    assert(id < TREE_HOLDERS);
    if (!m->node)
        return 0;
    size_t blocks = tree_mark_blocks(m), tip = tree_mark_blocks(&t->tips[id]);
    const struct tree_node *n = m->node;
    while (!tree_is_root(n) && !(n->holders >> id & 1))
        n = n->parent;
    if (n->depth + (size_t)n->len < blocks)
        blocks = n->depth + (size_t)n->len;
    return blocks < tip ? blocks : tip;
}
