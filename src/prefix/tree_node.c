/* SPDX-License-Identifier: MIT */

/*
 * Runs of blocks. The array of a run is as long as the run, but for the one that is being
 * evicted block by block, which is shortened when half of it is gone.
 *
 * Splitting and merging keep the lower node, whose children may be thousands, and make
 * or free the upper one:
 *
 *     n [a b c d e]          upper [a b]
 *       └─ 7,000 children      └─ n [c d e]
 *                                   └─ 7,000 children
 */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tree_internal.h"

#define TRIM_MIN 4 /* shorter arrays are not worth a realloc */

struct tree_node *tree_node_new(struct tree *t, struct tree_node *parent)
{
    struct tree_node *n = mem_zalloc(sizeof(*n));
    n->parent = parent;
    n->depth = parent->depth + parent->len;
    n->stamp = t->clock;
    n->owner = parent->owner;
    n->order = parent->order;
    list_init(&n->lru);
    list_init(&n->sibling);
    list_init(&n->children);
    list_init(&n->marks);
    t->stats.nodes++;
    return n;
}

void tree_node_link(struct tree *t, struct tree_node *n)
{
    assert(n->len > 0);
    tree_table_add(&t->table, n);
    tree_lru_add(t, n);
}

void tree_node_free(struct tree *t, struct tree_node *n)
{
    for (uint32_t i = 0; i < n->len; i++)
        free(n->run[i].tokens);
    tree_node_resize(t, n, 0);
    t->stats.nodes--;
    free(n);
}

void tree_node_resize(struct tree *t, struct tree_node *n, uint32_t cap)
{
    assert(cap <= TREE_RUN_MAX);
    t->run_bytes -= tree_chunk(n->cap * sizeof(*n->run));
    t->run_bytes += tree_chunk(cap * sizeof(*n->run));
    if (cap == 0) {
        free(n->run);
        n->run = NULL;
    } else {
        n->run = mem_rearray(n->run, cap, sizeof(*n->run));
    }
    n->cap = (uint16_t)cap;
}

static void count(struct tree *t, const struct tree_node *n, const struct tree_block *b,
                  int sign)
{
    uint64_t s = (uint64_t)(int64_t)sign;
    t->all.blocks += s;
    t->all.bytes += s * b->size_bytes;
    t->stats.tokens += s * b->n_tokens;
    if (b->tokens)
        t->stats.token_id_bytes += s * tree_chunk(b->n_tokens * sizeof(*b->tokens));
    struct tree_load *part = n->pins > 0 ? &t->pinned : n->hit ? &t->kept : NULL;
    if (part) {
        part->blocks += s;
        part->bytes += s * b->size_bytes;
    }
}

void tree_node_push(struct tree *t, struct tree_node *n, const struct tree_block *b)
{
    assert(n->len < n->cap && n->pins == 0 && !n->hit && list_empty(&n->children));
    tree_mark_settle(n);
    n->run[n->len++] = *b;
    n->bytes += b->size_bytes;
    count(t, n, b, 1);
}

/* Tells the owner and takes the last block off the books. */
static void take_last(struct tree *t, struct tree_node *n, bool evicted)
{
    struct tree_block *b = &n->run[n->len - 1];
    if (t->o.on_evict)
        t->o.on_evict(t->o.arg, b, evicted);
    *(evicted ? &t->stats.evicted : &t->stats.dropped) += 1;
    count(t, n, b, -1);
    free(b->tokens);
    n->bytes -= b->size_bytes;
    n->len--;
    n->loose = true;
}

static void remove_empty(struct tree *t, struct tree_node *n, struct tree_node *to)
{
    assert(n->len == 0 && list_empty(&n->children));
    tree_mark_fall(t, n, to);
    tree_table_remove(&t->table, n);
    tree_lru_remove(t, n);
    tree_node_free(t, n);
}

void tree_node_pop(struct tree *t, struct tree_node *n, bool evicted)
{
    assert(n->len > 0 && list_empty(&n->children));
    take_last(t, n, evicted);
    if (n->len == 0)
        remove_empty(t, n, n->parent);
    else if (n->cap > TRIM_MIN && n->len * 2 <= n->cap)
        tree_node_resize(t, n, n->len);
}

void tree_node_drop(struct tree *t, struct tree_node *n, struct tree_node *to)
{
    while (n->len > 0)
        take_last(t, n, false);
    remove_empty(t, n, to);
}

static void move_bytes(struct tree_node *from, struct tree_node *to, uint32_t n_blocks)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n_blocks; i++)
        sum += from->run[i].size_bytes;
    from->bytes -= sum;
    to->bytes += sum;
}

struct tree_node *tree_node_split(struct tree *t, struct tree_node *n, uint32_t off)
{
    assert(off > 0 && off < n->len);
    struct tree_node *upper = tree_node_new(t, n->parent);
    tree_node_resize(t, upper, off);
    memcpy(upper->run, n->run, off * sizeof(*n->run));
    upper->len = (uint16_t)off;
    upper->stamp = n->stamp;
    upper->used_s = n->used_s;
    upper->owner = n->owner;
    upper->order = n->order;
    upper->hit = n->hit;
    upper->pins = n->pins > 0;
    move_bytes(n, upper, off);
    tree_table_replace(&t->table, n, upper);

    n->len = (uint16_t)(n->len - off);
    memmove(n->run, n->run + off, n->len * sizeof(*n->run));
    tree_node_resize(t, n, n->len);
    n->parent = upper;
    n->depth += off;
    tree_table_add(&t->table, n);

    tree_lru_add_above(upper, n);
    list_insert_after(&n->sibling, &upper->sibling);
    list_del(&n->sibling);
    list_push_front(&upper->children, &n->sibling);
    tree_mark_split(t, upper, n);
    t->stats.splits++;
    return upper;
}

static bool mergeable(const struct tree_node *upper, const struct tree_node *n)
{
    return !tree_is_root(upper) && tree_only_child(n) && upper->pins == 0 &&
           upper->hit == n->hit && upper->len + n->len <= TREE_RUN_MAX;
}

bool tree_node_merge(struct tree *t, struct tree_node *n)
{
    struct tree_node *upper = n->parent;
    if (!mergeable(upper, n))
        return false;
    assert(upper->stamp == n->stamp);
    tree_mark_settle(upper);
    tree_mark_merge(upper, n);
    tree_table_remove(&t->table, n);
    tree_table_replace(&t->table, upper, n);

    tree_node_resize(t, n, (uint32_t)upper->len + n->len);
    memmove(n->run + upper->len, n->run, n->len * sizeof(*n->run));
    memcpy(n->run, upper->run, upper->len * sizeof(*n->run));
    n->len = (uint16_t)(n->len + upper->len);
    n->bytes += upper->bytes;
    n->depth = upper->depth;
    n->parent = upper->parent;

    list_del(&n->sibling);
    list_insert_after(&upper->sibling, &n->sibling);
    tree_lru_remove(t, upper);
    upper->len = 0; /* the tokens are with n now */
    tree_node_free(t, upper);
    t->stats.merges++;
    return true;
}
