/* SPDX-License-Identifier: MIT */

/*
 * All invariants of the tree, computed anew from its parts: sums from the runs, pins and
 * holders from the marks, order from the queues. Every node is in a queue, so nothing
 * here recurses.
 */

#include <stdio.h>

#include "tree_internal.h"

/* What the nodes add up to. */
struct sums {
    struct tree_load all, pinned, kept;
    uint64_t nodes, children, tokens, run_bytes, token_id_bytes;
};

#define REQUIRE(cond, text)                                                              \
    do {                                                                                 \
        if (!(cond))                                                                     \
            return text;                                                                 \
    } while (0)

/* Each of these returns what is wrong, or NULL. */

static const char *check_block(const struct tree *t, const struct tree_node *n,
                               uint32_t i)
{
    const struct tree_block *b = &n->run[i];
    bool last_of_leaf = i + 1 == n->len && list_empty(&n->children);
    REQUIRE(b->n_tokens > 0 && b->n_tokens <= t->o.block_tokens,
            "a block has too many tokens");
    REQUIRE(b->n_tokens == t->o.block_tokens || last_of_leaf,
            "something follows a short block");
    REQUIRE(t->o.keep_tokens || !b->tokens, "token ids are kept against the options");
    return NULL;
}

static const char *check_run(const struct tree *t, const struct tree_node *n,
                             struct sums *s)
{
    uint64_t bytes = 0;
    REQUIRE(n->len > 0, "a node is empty");
    REQUIRE(n->len <= n->cap && n->cap <= TREE_RUN_MAX, "a run is longer than its array");
    REQUIRE(n->depth == n->parent->depth + n->parent->len, "a node has the wrong depth");
    for (uint32_t i = 0; i < n->len; i++) {
        const struct tree_block *b = &n->run[i];
        const char *wrong = check_block(t, n, i);
        REQUIRE(!wrong, wrong);
        bytes += b->size_bytes;
        s->tokens += b->n_tokens;
        s->token_id_bytes += b->tokens ? tree_chunk(b->n_tokens * sizeof(*b->tokens)) : 0;
    }
    REQUIRE(bytes == n->bytes, "the bytes of a node do not add up");
    s->nodes++;
    s->run_bytes += tree_chunk(n->cap * sizeof(*n->run));
    s->all.blocks += n->len;
    s->all.bytes += bytes;
    s->pinned.blocks += n->pins ? n->len : 0;
    s->pinned.bytes += n->pins ? bytes : 0;
    s->kept.blocks += n->hit && !n->pins ? n->len : 0;
    s->kept.bytes += n->hit && !n->pins ? bytes : 0;
    return NULL;
}

static const char *check_children(const struct tree_node *n, struct sums *s,
                                  uint32_t *pinned_children)
{
    const struct tree_node *before = NULL;
    LIST_EACH (it, &n->children) {
        const struct tree_node *child = TREE_LINK(it, sibling);
        REQUIRE(child->parent == n, "a child has another parent");
        REQUIRE(tree_is_root(n) || child->stamp <= n->stamp,
                "a parent is older than its child");
        REQUIRE(!before || child->stamp < before->stamp,
                "children are not in order of use");
        REQUIRE(tree_is_root(n) || n->hit || !child->hit, "a hit node was not reached");
        REQUIRE(tree_is_root(n) || (child->order == n->order && child->owner == n->owner),
                "a child has another order or owner");
        before = child;
        *pinned_children += child->pins > 0;
        s->children++;
    }
    return NULL;
}

static const char *check_marks(const struct tree_node *n, uint32_t *pinned_marks)
{
    LIST_EACH (it, &n->marks) {
        const struct tree_mark *m = LIST_ENTRY(it, struct tree_mark, link);
        REQUIRE(m->node == n, "a mark hangs at a node that is not its own");
        REQUIRE(m->off > 0, "a mark is before its run");
        REQUIRE(m->off <= n->len || n->loose, "a mark is behind its run");
        REQUIRE(!m->pinned || m->off >= n->len, "a pin is in the middle of a run");
        *pinned_marks += m->pinned;
    }
    return NULL;
}

static bool below(const struct tree_node *n, const struct tree_node *ancestor)
{
    while (n && n != ancestor)
        n = n->parent;
    return n != NULL;
}

static const char *check_holders(const struct tree *t, const struct tree_node *n)
{
    uint64_t want = 0;
    for (unsigned id = 0; id < TREE_HOLDERS; id++)
        if (below(t->tips[id].node, n))
            want |= UINT64_C(1) << id;
    REQUIRE(want == n->holders,
            "the holders of a node are not those whose tips are below");
    return NULL;
}

static const char *check_node(const struct tree *t, const struct tree_node *n,
                              struct sums *s)
{
    uint32_t pins = 0;
    const char *wrong = check_run(t, n, s);
    wrong = wrong ? wrong : check_children(n, s, &pins);
    wrong = wrong ? wrong : check_marks(n, &pins);
    wrong = wrong ? wrong : check_holders(t, n);
    REQUIRE(!wrong, wrong);
    REQUIRE(pins == n->pins, "the pins of a node do not add up");
    REQUIRE(tree_table_find(&t->table, n->parent, n->run[0].hash) == n,
            "a node is not found by its first block");
    return NULL;
}

/* A queue, old to new; pinned nodes only until the hand comes. */
static const char *check_queue(const struct tree *t, unsigned order, bool hit)
{
    const struct tree_queue *q = &t->queues[order][hit];
    const struct tree_node *before = NULL;
    bool behind_hand = true, hand_seen = q->hand == &q->lru;
    for (struct list *it = q->lru.prev; it != &q->lru; it = it->prev) {
        const struct tree_node *n = TREE_LINK(it, lru);
        REQUIRE(n->order == order && n->hit == hit, "a node is in another's queue");
        REQUIRE(!before || n->used_s >= before->used_s, "times descend");
        if (it == q->hand) {
            behind_hand = false;
            hand_seen = true;
        }
        REQUIRE(!behind_hand || n->pins > 0, "a node without a pin is behind the hand");
        REQUIRE(!before || n->stamp > before->stamp ||
                    (n->stamp == before->stamp && n->depth < before->depth),
                "nodes are not in order of use");
        before = n;
    }
    REQUIRE(hand_seen, "the hand is in no list");
    return NULL;
}

static const char *check_sums(const struct tree *t, const struct sums *s)
{
    uint64_t max_blocks = t->o.max_blocks ? t->o.max_blocks : UINT64_MAX;
    uint64_t max_bytes = t->o.max_bytes ? t->o.max_bytes : UINT64_MAX;
    REQUIRE(s->nodes == t->stats.nodes && s->nodes == s->children &&
                s->nodes == t->table.n,
            "nodes are lost or counted twice");
    REQUIRE(s->all.blocks == t->all.blocks && s->all.bytes == t->all.bytes,
            "blocks do not add up");
    REQUIRE(s->pinned.blocks == t->pinned.blocks && s->pinned.bytes == t->pinned.bytes,
            "pinned blocks do not add up");
    REQUIRE(s->all.blocks <= max_blocks && s->all.bytes <= max_bytes,
            "a budget is exceeded");
    REQUIRE(s->kept.blocks == t->kept.blocks && s->kept.bytes == t->kept.bytes,
            "blocks that were hit do not add up");
    REQUIRE(s->tokens == t->stats.tokens, "tokens do not add up");
    REQUIRE(s->run_bytes == t->run_bytes && s->token_id_bytes == t->stats.token_id_bytes,
            "memory does not add up");
    return NULL;
}

static const char *check(const struct tree *t)
{
    struct sums s = {0};
    uint32_t pinned = 0;
    const char *wrong = check_children(&t->root, &s, &pinned);
    for (unsigned i = 0; i < 2 * TREE_ORDERS; i++) {
        wrong = wrong ? wrong : check_queue(t, i / 2, i % 2);
        LIST_EACH (it, &t->queues[i / 2][i % 2].lru)
            wrong = wrong ? wrong : check_node(t, TREE_LINK(it, lru), &s);
    }
    REQUIRE(!wrong, wrong);
    REQUIRE(list_empty(&t->root.marks) && t->root.len == 0,
            "the root has something of its own");
    return check_sums(t, &s);
}

bool tree_check(const struct tree *t, char *why, size_t n)
{
    const char *wrong = check(t);
    if (wrong)
        snprintf(why, n, "%s", wrong);
    return !wrong;
}
