/* SPDX-License-Identifier: MIT */
#include "prefix/tree.h"

/*
 * Sequences in the tree. What the tree looks like after four requests, S being a system
 * prompt of 300 blocks and each letter some more blocks:
 *
 *     1. S a b   2. S a c   3. S d   4. S a b e        (stamps in brackets)
 *
 *     root ─ S[0…255] ─ S[256…299] ─┬─ a ─┬─ b e      (S, a, b, e: 4)
 *              (4)         (4)      │ (4) │   (4)
 *                                   │     └─ c         (2)
 *                                   └─ d               (3)
 *     order of use:  S S a be | d | c                  c goes first, last block first
 *
 * S is two nodes for its length alone. b and e were touched together with nothing
 * between them and are one run; a and b are not, for c hangs at the end of a.
 *
 * A match looks up the first hash of each run in one table and compares the last one: a
 * chain hash names its whole prefix, so equal last hashes mean equal runs, and within a
 * run a binary search finds where two prompts part. A prompt of 2,000 blocks costs eight
 * look-ups, whatever the fan-out.
 *
 * Because a parent is never used before its child in the order of use, the tree may be
 * trimmed from the end of that order one block at a time and stays closed: whatever is
 * there can be reached. This equals an LRU over blocks in which each use touches its
 * blocks from last to first.
 */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tree_internal.h"

/* ---- life cycle -------------------------------------------------------------------- */

struct tree *tree_new(const struct tree_options *o)
{
    assert(o->block_tokens > 0);
    struct tree *t = mem_zalloc(sizeof(*t));
    t->o = *o;
    for (unsigned i = 0; i < TREE_ORDERS; i++)
        for (int hit = 0; hit < 2; hit++) {
            struct tree_queue *q = &t->queues[i][hit];
            list_init(&q->lru);
            q->hand = &q->lru;
        }
    list_init(&t->root.lru);
    list_init(&t->root.sibling);
    list_init(&t->root.children);
    list_init(&t->root.marks);
    return t;
}

static void free_queue(struct tree *t, struct tree_queue *q)
{
    while (!list_empty(&q->lru)) {
        struct tree_node *n = TREE_LINK(q->lru.prev, lru);
        tree_mark_fall(t, n, &t->root);
        tree_lru_remove(t, n);
        tree_node_free(t, n);
    }
}

void tree_free(struct tree *t)
{
    if (!t)
        return;
    for (unsigned id = 0; id < TREE_HOLDERS; id++)
        tree_release(t, id);
    for (unsigned i = 0; i < t->n_orders; i++)
        for (int hit = 0; hit < 2; hit++)
            free_queue(t, &t->queues[i][hit]);
    free(t->table.slots);
    free(t);
}

/* ---- finding ----------------------------------------------------------------------- */

/* Where a sequence leaves the tree: `off` blocks into node, `depth` from the root. */
struct place {
    struct tree_node *node;
    uint32_t off;
    size_t depth;
    bool collided; /* a hash agreed there and the tokens did not */
};

static size_t seq_blocks(const struct tree_sequence *s)
{
    return s->n + (s->tail_tokens > 0);
}

static uint32_t seq_tokens_of(const struct tree *t, const struct tree_sequence *s,
                              size_t i)
{
    return i < s->n ? t->o.block_tokens : s->tail_tokens;
}

/* How many of the first `n` hashes agree; the first one is known to. */
static uint32_t equal_hashes(const struct tree_block *run, const struct hash128 *chain,
                             uint32_t n)
{
    if (hash128_eq(run[n - 1].hash, chain[n - 1]))
        return n;
    uint32_t low = 1, high = n - 1; /* low agree, not all of high + 1 do */
    while (low < high) {
        uint32_t mid = (low + high + 1) / 2;
        if (hash128_eq(run[mid - 1].hash, chain[mid - 1]))
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

static bool same_tokens(const struct tree *t, const struct tree_block *b,
                        const struct tree_sequence *s, size_t i)
{
    return b->n_tokens == seq_tokens_of(t, s, i) &&
           (!b->tokens || !s->tokens ||
            memcmp(b->tokens, s->tokens + i * t->o.block_tokens,
                   b->n_tokens * sizeof(*b->tokens)) == 0);
}

/* Blocks of the run that agree with the sequence from its block `at` on. */
static uint32_t common(const struct tree *t, const struct tree_node *n,
                       const struct tree_sequence *s, size_t at, bool *collided)
{
    size_t rest = seq_blocks(s) - at;
    uint32_t limit = rest < n->len ? (uint32_t)rest : n->len;
    uint32_t equal = equal_hashes(n->run, s->chain + at, limit);
    /* Only the last block of a run can be short: without tokens it alone is looked at. */
    uint32_t from = t->o.keep_tokens && s->tokens ? 0 : equal - 1;
    for (uint32_t i = from; i < equal; i++) {
        if (!same_tokens(t, &n->run[i], s, at + i)) {
            *collided = true;
            return i;
        }
    }
    return equal;
}

static struct place find(struct tree *t, const struct tree_sequence *s)
{
    struct place p = {.node = &t->root};
    size_t total = seq_blocks(s);
    while (p.depth < total && p.off == p.node->len) {
        struct tree_node *child = tree_table_find(&t->table, p.node, s->chain[p.depth]);
        uint32_t n = child ? common(t, child, s, p.depth, &p.collided) : 0;
        if (n > 0) {
            p.node = child;
            p.off = n;
            p.depth += n;
        }
        if (n == 0 || p.collided)
            break;
    }
    t->stats.collisions += p.collided;
    return p;
}

size_t tree_match(struct tree *t, const struct hash128 *chain, size_t n,
                  const uint32_t *tokens, struct tree_mark *m)
{
    struct tree_sequence s = {.chain = chain, .n = n, .tokens = tokens};
    struct place p = find(t, &s);
    if (m)
        tree_mark_set(m, p.node, p.off);
    return p.depth;
}

/* ---- touching ---------------------------------------------------------------------- */

/*
 * A new use of the path that ends with the whole run of `n`. Returns the load of the
 * path that no pin covers.
 */
static struct tree_load touch(struct tree *t, struct tree_node *n)
{
    struct tree_load loose = {0, 0};
    t->clock++;
    for (; !tree_is_root(n); n = n->parent) {
        tree_lru_touch(t, n);
        if (n->pins == 0) {
            loose.blocks += n->len;
            loose.bytes += n->bytes;
        }
    }
    return loose;
}

/* What was just touched together is joined where it can be. */
static void merge_up(struct tree *t, struct tree_node *n)
{
    while (!tree_is_root(n))
        if (!tree_node_merge(t, n))
            n = n->parent;
}

/* The node whose run ends there. */
static struct tree_node *cut_at(struct tree *t, struct tree_node *n, uint32_t off)
{
    return off < n->len ? tree_node_split(t, n, off) : n;
}

void tree_touch(struct tree *t, const struct tree_mark *m)
{
    if (!m->node)
        return;
    struct tree_node *n = cut_at(t, m->node, tree_mark_at(m));
    touch(t, n);
    merge_up(t, n);
}

/* ---- inserting --------------------------------------------------------------------- */

static uint64_t seq_size(const struct tree *t, const struct tree_sequence *s, size_t i)
{
    return s->token_bytes * seq_tokens_of(t, s, i);
}

static bool within(const struct tree_load *l, uint64_t max_bytes, uint64_t max_blocks)
{
    return l->bytes <= max_bytes && l->blocks <= max_blocks;
}

static uint64_t or_unlimited(uint64_t limit)
{
    return limit ? limit : UINT64_MAX;
}

/*
 * How many of the missing blocks fit beside what must stay: pinned blocks and the path
 * itself. *more is their load. Nothing is evicted for a block that cannot fit at all.
 */
static size_t how_many_fit(const struct tree *t, const struct tree_sequence *s,
                           size_t from, struct tree_load must_stay,
                           struct tree_load *more)
{
    uint64_t max_bytes = or_unlimited(t->o.max_bytes);
    uint64_t max_blocks = or_unlimited(t->o.max_blocks);
    size_t i = from;
    for (; i < seq_blocks(s); i++) {
        uint64_t size = seq_size(t, s, i);
        must_stay.blocks++;
        must_stay.bytes += size;
        if (!within(&must_stay, max_bytes, max_blocks))
            break;
        more->blocks++;
        more->bytes += size;
    }
    return i - from;
}

static void make_room(struct tree *t, struct tree_load more)
{
    uint64_t max_bytes = or_unlimited(t->o.max_bytes) - more.bytes;
    uint64_t max_blocks = or_unlimited(t->o.max_blocks) - more.blocks;
    while (!within(&t->all, max_bytes, max_blocks)) {
        struct tree_node *n = tree_lru_oldest(t);
        assert(n && n->stamp != t->clock);
        tree_node_pop(t, n, true);
    }
}

static struct tree_block new_block(const struct tree *t, const struct tree_sequence *s,
                                   size_t i)
{
    struct tree_block b = {.hash = s->chain[i],
                           .n_tokens = seq_tokens_of(t, s, i),
                           .size_bytes = seq_size(t, s, i)};
    if (t->o.keep_tokens && s->tokens) {
        b.tokens = mem_array(b.n_tokens, sizeof(*b.tokens));
        memcpy(b.tokens, s->tokens + i * t->o.block_tokens,
               b.n_tokens * sizeof(*b.tokens));
    }
    return b;
}

/* Appends blocks [i, end) behind the run of `n`; returns the node that holds the last. */
static struct tree_node *append(struct tree *t, struct tree_node *n,
                                const struct tree_sequence *s, size_t i, size_t end)
{
    while (i < end) {
        bool grows = !tree_is_root(n) && list_empty(&n->children) && n->pins == 0 &&
                     !n->hit && n->len < TREE_RUN_MAX;
        struct tree_node *at = grows ? n : tree_node_new(t, n);
        if (tree_is_root(n)) {
            at->owner = s->owner;
            at->order = (uint8_t)s->order;
        }
        size_t room = TREE_RUN_MAX - (size_t)at->len;
        size_t k = end - i < room ? end - i : room;
        tree_node_resize(t, at, (uint32_t)(at->len + k));
        for (size_t stop = i + k; i < stop; i++) {
            struct tree_block b = new_block(t, s, i);
            tree_node_push(t, at, &b);
        }
        if (!grows)
            tree_node_link(t, at);
        n = at;
    }
    return n;
}

size_t tree_insert(struct tree *t, const struct tree_sequence *s, struct tree_mark *m)
{
    assert(s->tail_tokens < t->o.block_tokens && s->order < TREE_ORDERS);
    if (s->order >= t->n_orders)
        t->n_orders = s->order + 1;
    struct place p = find(t, s);
    struct tree_node *end = cut_at(t, p.node, p.off);
    struct tree_load must_stay = touch(t, end), more = {0, 0};
    if (tree_lru_protects(t))
        must_stay = t->kept; /* the path is part of it */
    must_stay.blocks += t->pinned.blocks;
    must_stay.bytes += t->pinned.bytes;
    size_t n = p.collided ? 0 : how_many_fit(t, s, p.depth, must_stay, &more);
    make_room(t, more);
    end = append(t, end, s, p.depth, p.depth + n);
    merge_up(t, end);
    t->stats.inserted += n;
    if (m)
        tree_mark_set(m, end, end->len);
    return n;
}

/* ---- going away -------------------------------------------------------------------- */

void tree_now(struct tree *t, uint32_t seconds)
{
    t->now_s = seconds;
}

size_t tree_expire(struct tree *t, unsigned order, uint32_t until, size_t max)
{
    size_t gone = 0;
    struct tree_node *n;
    for (; gone < max && (n = tree_lru_oldest_of(t, order)) && n->used_s <= until; gone++)
        tree_node_pop(t, n, true);
    t->stats.expired += gone;
    return gone;
}

/* Takes blocks behind the first `keep` of a run away, and all that follows them, leaves
 * first and at most `max`. The node goes with its first block. */
static size_t trim(struct tree *t, struct tree_node *n, uint32_t keep, size_t max)
{
    for (size_t gone = 0; gone < max; gone++) {
        struct tree_node *leaf = n;
        while (!list_empty(&leaf->children))
            leaf = tree_first_child(leaf);
        const bool last = leaf == n && n->len == keep + 1;
        tree_node_pop(t, leaf, false);
        if (last)
            return gone + 1;
    }
    return max;
}

size_t tree_drop_some(struct tree *t, struct tree_mark *m, size_t max)
{
    return m->node ? trim(t, m->node, tree_mark_at(m) - 1, max) : 0;
}

size_t tree_drop_owner(struct tree *t, uint32_t owner, size_t max)
{
    size_t gone = 0;
    LIST_EACH_SAFE (it, next, &t->root.children) {
        struct tree_node *n = TREE_LINK(it, sibling);
        if (gone < max && (owner == TREE_ANY_OWNER || n->owner == owner))
            gone += trim(t, n, 0, max - gone);
    }
    return gone;
}

void tree_drop(struct tree *t, struct tree_mark *m)
{
    if (!m->node)
        return;
    struct tree_node *n = m->node;
    uint32_t keep = tree_mark_at(m) - 1;
    while (!list_empty(&n->children)) {
        struct tree_node *leaf = n;
        while (!list_empty(&leaf->children))
            leaf = tree_first_child(leaf);
        tree_node_drop(t, leaf, n);
    }
    if (keep == 0)
        tree_node_drop(t, n, n->parent);
    else
        while (n->len > keep)
            tree_node_pop(t, n, false);
}

size_t tree_shrink(struct tree *t, uint64_t max_bytes, uint64_t max_blocks)
{
    size_t gone = 0;
    struct tree_node *n;
    for (; !within(&t->all, max_bytes, max_blocks) && (n = tree_lru_oldest(t)); gone++)
        tree_node_pop(t, n, true);
    return gone;
}

/* ---- looking ----------------------------------------------------------------------- */

void tree_walk(struct tree *t, const struct tree_mark *m, tree_block_fn fn, void *arg)
{
    (void)t;
    size_t n_nodes = 0;
    if (!m->node)
        return;
    for (struct tree_node *n = m->node; !tree_is_root(n); n = n->parent)
        n_nodes++;
    struct tree_node **path = mem_array(n_nodes, sizeof(struct tree_node *));
    size_t i = n_nodes;
    for (struct tree_node *n = m->node; !tree_is_root(n); n = n->parent)
        path[--i] = n;
    bool more = true;
    for (; more && i < n_nodes; i++) {
        uint32_t len = i + 1 < n_nodes ? path[i]->len : tree_mark_at(m);
        for (uint32_t k = 0; more && k < len; k++)
            more = fn(arg, &path[i]->run[k], path[i]->depth + (size_t)k);
    }
    free(path);
}

void tree_stats(const struct tree *t, struct tree_stats *out)
{
    *out = t->stats;
    out->blocks = t->all.blocks;
    out->bytes = t->all.bytes;
    out->hit_blocks = t->kept.blocks;
    out->index_bytes = tree_chunk(sizeof(*t)) + t->run_bytes +
                       t->stats.nodes * tree_chunk(sizeof(struct tree_node)) +
                       tree_chunk(t->table.cap * sizeof(*t->table.slots));
}
