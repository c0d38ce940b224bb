/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PREFIX_TREE_INTERNAL_H
#define INCIPIT_PREFIX_TREE_INTERNAL_H

/*
 * What the files of the block tree share; the drawing is in tree.c. Each file looks
 * after one thing:
 *
 *     tree_table  which child of a node starts with this chain hash?
 *     tree_lru    which node goes next?  (order of use, and pins)
 *     tree_mark   where has a place gone when blocks moved?  (marks, holders)
 *     tree_node   runs of blocks: grow, trim, split, merge
 *     tree        sequences: match, insert, touch, drop
 *     tree_check  is all of this consistent?
 */

#include "prefix/tree.h"

struct tree_node {
    struct tree_node *parent;
    struct tree_block *run; /* `len` blocks, room for `cap` */
    struct list lru;
    struct list sibling;  /* in the parent's children */
    struct list children; /* most recently used first */
    struct list marks;
    uint64_t holders; /* bit of each holder whose tip is in this node or below it */
    uint64_t stamp;   /* the use that touched all of the run last */
    uint64_t bytes;   /* Σ size_bytes of the run */
    uint32_t depth;   /* blocks before the run */
    uint32_t pins; /* pinned marks here, all at the end of the run, and pinned children */
    uint32_t owner;
    uint32_t used_s; /* when that use was */
    uint16_t len, cap;
    uint8_t order;
    bool hit;   /* used again since it came in */
    bool loose; /* was trimmed: marks may stand behind the end, which means at the end */
};

/* The nodes of one order that were hit, or those that were not. */
struct tree_queue {
    struct list lru;   /* most recently used first */
    struct list *hand; /* every node older than this one is pinned */
};

struct tree_slot {
    uint64_t key;
    struct tree_node *node; /* NULL: empty */
};

struct tree_table {
    struct tree_slot *slots;
    size_t cap, n; /* cap: 0 or a power of two */
};

/* A number of blocks and what they weigh. */
struct tree_load {
    uint64_t blocks, bytes;
};

struct tree {
    struct tree_options o;
    struct tree_node root; /* no blocks, never pinned out, in no list */
    struct tree_table table;
    struct tree_queue queues[TREE_ORDERS][2]; /* all other nodes; [1]: hit */
    unsigned n_orders;                        /* ever used */
    uint64_t clock;                           /* number of the current use */
    uint32_t now_s;
    struct tree_load all, pinned;
    struct tree_load kept; /* hit and not pinned */
    uint64_t run_bytes;    /* memory of the runs, with the allocator's part */
    struct tree_mark tips[TREE_HOLDERS];
    struct tree_stats stats; /* counters; what is derived is filled in when asked for */
};

#define TREE_LINK(l, member) LIST_ENTRY(l, struct tree_node, member)

static inline bool tree_is_root(const struct tree_node *n)
{
    return !n->parent;
}

static inline struct tree_node *tree_first_child(const struct tree_node *n)
{
    return list_empty(&n->children) ? NULL : TREE_LINK(n->children.next, sibling);
}

static inline bool tree_only_child(const struct tree_node *n)
{
    return n->sibling.next == n->sibling.prev;
}

/* Offset of a mark in its node's run, see `loose`. */
static inline uint32_t tree_mark_at(const struct tree_mark *m)
{
    return m->off < m->node->len ? m->off : m->node->len;
}

/* What malloc() takes for `size` bytes: a word of its own, steps of 16. */
static inline uint64_t tree_chunk(uint64_t size)
{
    uint64_t chunk = (size + 8 + 15) & ~(uint64_t)15;
    return size == 0 ? 0 : chunk < 32 ? 32 : chunk;
}

/* ---- tree_table.c: (parent, first chain hash) → node; of nodes that have a run ----- */

struct tree_node *tree_table_find(const struct tree_table *tt,
                                  const struct tree_node *parent, struct hash128 first);
void tree_table_add(struct tree_table *tt, struct tree_node *n);
void tree_table_remove(struct tree_table *tt, const struct tree_node *n);
/* Puts `now` in the place of `was`: both have the same first block at this moment. */
void tree_table_replace(struct tree_table *tt, const struct tree_node *was,
                        struct tree_node *now);

/* ---- tree_lru.c -------------------------------------------------------------------- */

/* Behind its parent, which was just used, or newest of all below the root. */
void tree_lru_add(struct tree *t, struct tree_node *n);
struct tree_queue *tree_queue_of(struct tree *t, const struct tree_node *n);
/* Just newer than `n`: the upper part of a split. */
void tree_lru_add_above(struct tree_node *upper, struct tree_node *n);
void tree_lru_remove(struct tree *t, struct tree_node *n);
/* The node becomes the newest, and the first child of its parent. It was hit. */
void tree_lru_touch(struct tree *t, struct tree_node *n);
/* The node that goes next, always a leaf; NULL where all is pinned. */
struct tree_node *tree_lru_oldest(struct tree *t);
/* The same within one order, whatever is protected. */
struct tree_node *tree_lru_oldest_of(struct tree *t, unsigned order);
/* What was hit is within its share of the budgets. */
bool tree_lru_protects(const struct tree *t);

/* One pin more, or less, at the end of the node's run. */
void tree_lru_pin(struct tree *t, struct tree_node *n);
void tree_lru_unpin(struct tree *t, struct tree_node *n);

/* ---- tree_mark.c ------------------------------------------------------------------- */

/* Puts a clear mark at `off` blocks into the run; nowhere for the root. */
void tree_mark_set(struct tree_mark *m, struct tree_node *n, uint32_t off);
/* Puts marks that stand behind the end at the end: before something follows there. */
void tree_mark_settle(struct tree_node *n);
/* The node goes: its marks fall to the end of `to`. */
void tree_mark_fall(struct tree *t, struct tree_node *n, struct tree_node *to);
/* The first upper->len blocks of `n` have moved to `upper`: so do their marks. */
void tree_mark_split(struct tree *t, struct tree_node *upper, struct tree_node *n);
/* All blocks of `upper` have moved in front of the run of `n`. */
void tree_mark_merge(struct tree_node *upper, struct tree_node *n);

/* ---- tree_node.c ------------------------------------------------------------------- */

/* A node without blocks and without place; tree_node_link() puts it under its parent
 * when its first blocks are in. */
struct tree_node *tree_node_new(struct tree *t, struct tree_node *parent);
void tree_node_link(struct tree *t, struct tree_node *n);
/* Frees a node that is in no list and no table; also what its run still holds. */
void tree_node_free(struct tree *t, struct tree_node *n);

/* Room in the run for exactly `cap` blocks. */
void tree_node_resize(struct tree *t, struct tree_node *n, uint32_t cap);
/* Appends a block; there must be room. The tree owns b->tokens from here on. */
void tree_node_push(struct tree *t, struct tree_node *n, const struct tree_block *b);
/* Takes the last block of a leaf away; the node goes with its first block. */
void tree_node_pop(struct tree *t, struct tree_node *n, bool evicted);
/* Drops the whole run of a leaf; its marks fall to `to`, an ancestor. */
void tree_node_drop(struct tree *t, struct tree_node *n, struct tree_node *to);

/* Cuts the run before block `off` (0 < off < len). Returns the new upper node. */
struct tree_node *tree_node_split(struct tree *t, struct tree_node *n, uint32_t off);
/* Joins the run of the parent, which was touched together with this one, in front of it
 * where no branch, pin or length keeps them apart. Returns whether it did. */
bool tree_node_merge(struct tree *t, struct tree_node *n);

#endif
