/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PREFIX_TREE_H
#define INCIPIT_PREFIX_TREE_H

/*
 * The block tree: which token prefixes exist, who holds them, what they cost, and which
 * may go first.
 *
 * A radix tree over blocks of token ids, path-compressed: a node is a run of up to
 * TREE_RUN_MAX blocks without a branch; children are found through one hash table keyed
 * by the chain hash of their first block (a chain hash names its whole prefix, so fan-out
 * of thousands costs nothing).
 *
 *     root ──[b0 b1 b2]──┬──[b3 b4]              node = run of blocks
 *                        ├──[b3' b4' b5' b6' t]  one LRU entry a node
 *                        └──[t']                 t: short tail block, ends a leaf
 *
 * LRU is leaf-first and exact per block although it is kept per node: all blocks of a
 * node were last used by the same request (a partial use splits the node), and a parent
 * is never older than its child. Touching costs O(1) a block at most, evicting O(1).
 * Nodes that are used together and have no branch between them are merged again, so the
 * number of nodes follows the live tree.
 *
 * With protect_percent a block that was used again after it had come in is "hit". While
 * hit blocks take no more than that share of the budgets, those that were never hit go
 * first, and a new sequence gets no more room than the others leave it: prompts that come
 * once cannot wash out what is asked for again. Beyond that share it is plain LRU. A
 * small share is best: old hits must not keep out the chats that have just begun.
 *
 * A short tail block (fewer than block_tokens tokens) ends a sequence; nothing can follow
 * it.
 *
 * Pure and single-threaded; no clock: order of calls is the order of use. What is to go
 * after some time is stamped with the time that the owner told last (tree_now).
 *
 * Hash equality is confirmed with token ids wherever both sides have them. Where they
 * differ (a collision) the match ends, and nothing of that sequence can be inserted from
 * there on.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash128.h"
#include "base/list.h"

#define TREE_RUN_MAX 256
#define TREE_HOLDERS 64 /* slots or replicas that can be told apart */
#define TREE_ORDERS 32  /* orders of use for tree_expire() */
#define TREE_ANY_OWNER UINT32_MAX

struct tree;
struct tree_node;

/* One block, alive until the next change of the tree. */
struct tree_block {
    struct hash128 hash; /* chained */
    uint32_t *tokens;    /* n_tokens ids, NULL where unknown (mirrors, traces) */
    uint32_t n_tokens;
    uint32_t state;      /* the owner's: 0 when inserted (see store) */
    uint64_t size_bytes; /* counted against max_bytes */
};

/*
 * Which block goes; called before it is gone, for each evicted or dropped block, the last
 * of a sequence first. It must not call back into the tree.
 */
typedef void (*tree_evict_cb)(void *arg, const struct tree_block *b, bool evicted);

struct tree_options {
    uint32_t block_tokens;
    uint64_t max_bytes;       /* Σ size_bytes; 0: no limit */
    uint64_t max_blocks;      /* 0: no limit */
    bool keep_tokens;         /* false: token ids are not stored (traces, mirrors) */
    unsigned protect_percent; /* for blocks that were hit; 0: plain LRU */
    tree_evict_cb on_evict;
    void *arg;
};

struct tree *tree_new(const struct tree_options *o);
void tree_free(struct tree *t); /* no on_evict calls; marks become "nowhere" */

/*
 * A place: `off` blocks into the run of `node`, i.e. the prefix that ends there. Marks
 * follow their block when nodes are split or merged; when their block goes they fall back
 * to the deepest ancestor that is left (node NULL: nothing is left). Read them with the
 * functions: an `off` behind the end of a run that was trimmed means its end.
 *
 * Owner's memory, which must not move; {0} is "nowhere". A mark that was set must be
 * cleared before it dies.
 */
struct tree_mark {
    struct tree_node *node;
    uint32_t off;
    bool pinned;
    struct list link;
};

/* Clears `to` and sets it to the same place, without the pin. */
void tree_mark_copy(struct tree *t, struct tree_mark *to, const struct tree_mark *from);
/* Also takes its pin away. */
void tree_mark_clear(struct tree *t, struct tree_mark *m);

/* Blocks, and tokens, from the root to the mark. 0 for nowhere. */
size_t tree_mark_blocks(const struct tree_mark *m);
size_t tree_mark_tokens(const struct tree_mark *m);

/* Moves the mark up to the ancestor that ends at `n_blocks` (≤ its depth; 0: nowhere).
 * A pin moves with it, also below. */
void tree_mark_up(struct tree *t, struct tree_mark *m, size_t n_blocks);

/*
 * Moves the mark down along the most recently used continuation until it covers
 * `n_tokens` tokens or a leaf is reached. Returns the tokens covered. Nowhere stays
 * nowhere: roots have nothing to do with each other.
 */
size_t tree_mark_down(struct tree *t, struct tree_mark *m, size_t n_tokens);

/*
 * Deepest known prefix of `chain` (full blocks). With `tokens` (block_tokens each) ids
 * are compared as well where known, and a difference ends the match and is counted as a
 * collision. Returns the number of blocks; sets *m (must be clear) when it is not NULL.
 */
size_t tree_match(struct tree *t, const struct hash128 *chain, size_t n,
                  const uint32_t *tokens, struct tree_mark *m);

/*
 * Inserts what is missing of a sequence and makes all of it the most recently used, last
 * block first. `tail_tokens` > 0 adds a short block after the n full ones (chain[n] is
 * its hash). New blocks get size `token_bytes` × their tokens and state 0; others keep
 * theirs. May evict, never a block of this sequence, and nothing for a block that would
 * not fit even so. Returns the number of new blocks, which are the last ones that are
 * there; fewer than wanted where budgets (all else pinned or in use) or a collision
 * forbid more. Sets *m (clear) to the end of what is there, unless it is NULL.
 */
struct tree_sequence {
    const struct hash128 *chain;
    size_t n;               /* full blocks */
    const uint32_t *tokens; /* n × block_tokens + tail_tokens ids, or NULL */
    uint32_t tail_tokens;
    uint64_t token_bytes;
    /* Where it begins at the root; otherwise as the blocks before it have them: */
    uint32_t owner; /* for tree_drop_owner() */
    unsigned order; /* for tree_expire(), below TREE_ORDERS */
};
size_t tree_insert(struct tree *t, const struct tree_sequence *s, struct tree_mark *m);

/* Makes the prefix that ends at the mark the most recently used, last block first. */
void tree_touch(struct tree *t, const struct tree_mark *m);

/* Pins: the block of a pinned mark and all before it stay. A mark is pinned or not;
 * marks at one place count each. Nowhere cannot be pinned. */
void tree_pin(struct tree *t, struct tree_mark *m);
void tree_unpin(struct tree *t, struct tree_mark *m);

/* Calls fn for each block from the root to the mark, in that order, until it returns
 * false. fn may change `state` and nothing else; `depth` counts the blocks before it. */
typedef bool (*tree_block_fn)(void *arg, struct tree_block *b, size_t depth);
void tree_walk(struct tree *t, const struct tree_mark *m, tree_block_fn fn, void *arg);

/* Drops the block at the mark and everything behind it (damaged, lost); on_evict is told
 * with evicted=false. Pinned places fall back like other marks. */
void tree_drop(struct tree *t, struct tree_mark *m);

/* Evicts least recently used leaves until at most these remain (0 means none), pinned
 * ones excepted. Returns blocks evicted. */
size_t tree_shrink(struct tree *t, uint64_t max_bytes, uint64_t max_blocks);

/*
 * The time from now on, in seconds of any clock. A use is never stamped earlier than the
 * one before it in the same order: a clock that goes back makes blocks younger.
 */
void tree_now(struct tree *t, uint32_t seconds);

/* Evicts blocks of one order that were last used at `until` or before, leaves first,
 * pinned ones excepted, at most `max`. Returns how many; each costs O(1). */
size_t tree_expire(struct tree *t, unsigned order, uint32_t until, size_t max);

/* Drops at most `max` blocks of an owner, or of all, leaves first; pins do not keep them.
 * Returns how many. */
size_t tree_drop_owner(struct tree *t, uint32_t owner, size_t max);

/* As tree_drop(), but at most `max` blocks, leaves first. The mark ends on what is left
 * before them. Returns how many. */
size_t tree_drop_some(struct tree *t, struct tree_mark *m, size_t max);

/* Holders: holder `id` has the prefix up to the mark (and nothing else it had before). */
void tree_hold(struct tree *t, unsigned id, const struct tree_mark *m);
void tree_release(struct tree *t, unsigned id);
/* Blocks of the prefix up to the mark that holder `id` has. */
size_t tree_held(const struct tree *t, unsigned id, const struct tree_mark *m);

struct tree_stats {
    uint64_t blocks, nodes, bytes, tokens;
    uint64_t inserted, evicted, dropped, collisions, splits, merges;
    uint64_t expired;        /* of the evicted ones */
    uint64_t hit_blocks;     /* that are protected, pinned ones not counted */
    uint64_t index_bytes;    /* memory of the tree itself, without token ids; both with */
    uint64_t token_id_bytes; /* what the allocator adds */
};
void tree_stats(const struct tree *t, struct tree_stats *out);

/* Verifies every invariant; false with a sentence in `why` (size n). For tests. */
bool tree_check(const struct tree *t, char *why, size_t n);

#endif
