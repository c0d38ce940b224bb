/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PREFIX_INDEX_H
#define INCIPIT_PREFIX_INDEX_H

/*
 * The prompt index: from text to tokens without a tokenizer. It maps each piece boundary
 * of known prompts (pieces.h) to a place in the block tree and to how many tokens lie
 * before it, as a low and a high bound: low is what may be promised, high is what may be
 * restored (too much is harmless: the engine compares the tokens).
 *
 * The bounds start from proportion (tokens to text bytes between two known counts) with
 * a wide margin, and close in when the engine confirms: a later prompt that parts from
 * the known one inside piece i+1 and reuses exactly c tokens says that boundary i lies at
 * most at c and boundary i+1 at least at c. They are estimates, not proofs: an engine
 * may cut text into tokens in surprising ways. What contradicts them replaces them.
 *
 * LRU over entries, deepest boundary of a prompt first (as in the tree), within a budget
 * of bytes. So known boundaries of a prompt are always a prefix, and lookup is a binary
 * search. A hit needs the 128-bit hash and the 64-bit check to agree.
 *
 * Entries outlive their blocks: their mark then falls back up the tree, and the
 * difference is "evicted" instead of "never seen".
 *
 * Pure and single-threaded, like the tree.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "prefix/pieces.h"
#include "prefix/tree.h"

struct index;

/*
 * `t` may be NULL (engines without a block tree): counts only. The index hangs marks into
 * the tree, so it is freed before the tree. The budget is reserved at once as address
 * space; memory is used as entries come. There is always room for one entry.
 */
struct index *index_new(uint64_t max_bytes, struct tree *t);
void index_free(struct index *ix);

struct index_hit {
    size_t n_pieces;     /* leading pieces of the prompt that are known; 0: none */
    uint32_t low, high;  /* tokens before the last known boundary */
    uint32_t reach;      /* tokens that may still be common behind it: high of the next
                            boundary of the prompt that was known there */
    uint64_t text_bytes; /* decoded bytes before that boundary */
    struct tree_mark at; /* place that covers `reach` as far as the tree still does; the
                            hit must not move until tree_mark_clear() */
};

/*
 * Deepest known boundary of the prompt. Does not touch. `hit` must be {0}. Where blocks
 * that `at` stood on were evicted, it is the place up to which they are left.
 */
void index_find(struct index *ix, const struct piece *v, size_t n, struct index_hit *hit);

/*
 * Learns a prompt that ran: n pieces, of which the first n_prompt are the prompt and the
 * rest its answer. prompt_tokens: the engine's count of the prompt (0: unknown, estimated
 * from bytes). total_tokens and `end`: what the tree holds of it, or 0 and NULL; where
 * total_tokens is below prompt_tokens it says nothing about where the answer ends; `end`
 * lies in the tokens of this prompt and not in those of one that parted from it. All
 * its boundaries become the most recently used, deepest first. Boundaries that were known
 * keep what old and new bounds have in common; where that is nothing, the narrower ones.
 */
struct index_lesson {
    const struct piece *v;
    size_t n, n_prompt;
    uint32_t prompt_tokens, total_tokens;
    const struct tree_mark *end;
    uint32_t owner; /* of its boundaries that are new, for index_drop_owner() */
};
void index_learn(struct index *ix, const struct index_lesson *lesson);

/*
 * The engine confirmed that a prompt, whose first n_common pieces were known and whose
 * next one parted (n_common = n: none did), reused `tokens`. exact: it is the common
 * start itself (below what the slot held and below prompt − 1); otherwise only a lower
 * bound. A few tokens of tolerance are kept on either side: the last common token may
 * span the boundary, and templates put tokens between parts.
 */
void index_confirm(struct index *ix, const struct piece *v, size_t n, size_t n_common,
                   uint32_t tokens, bool exact);

/* Makes the boundary that ends with `p`, and all before it, the most recently used. False
 * where it is not known. */
bool index_touch(struct index *ix, const struct piece *p);

/*
 * Forgets the boundaries of this prompt from piece `from` on, and those of all prompts
 * that continue it (the engine contradicted).
 */
void index_forget(struct index *ix, const struct piece *v, size_t n, size_t from);

/* The same for at most `max` boundaries, deepest first. Returns how many. */
size_t index_forget_some(struct index *ix, const struct piece *v, size_t n, size_t from,
                         size_t max);

/* The first piece of a known prompt from which on no other prompt parts from it. */
size_t index_branch(struct index *ix, const struct piece *v, size_t n);

/* Forgets at most `max` boundaries of an owner, or of all. Returns how many. */
#define INDEX_ANY_OWNER UINT32_MAX
size_t index_drop_owner(struct index *ix, uint32_t owner, size_t max);

/* One boundary as it is kept in a file, for recovery after a restart. */
struct index_record {
    struct hash128 hash, parent; /* parent: the boundary before it, none at the first */
    uint64_t check;
    uint32_t low, high, reach;
    uint32_t owner;
};

/* The boundary that ends with v[i]; false where it is not known. */
bool index_export(struct index *ix, const struct piece *v, size_t i,
                  struct index_record *out);

/* Notes that this (known) boundary is written to a file, a number that is not 0. True
 * where that was noted before. */
bool index_written(struct index *ix, const struct piece *v, size_t i, uint32_t file);

/*
 * Puts a boundary back as the most recently used, at the place that covers `high`. False
 * where the boundary before it is not known: records of a prompt come in the order of its
 * pieces. False as well where it is known already, which gets this place if that covers
 * more than the one it has; and where the boundaries before it fill the budget.
 */
bool index_import(struct index *ix, const struct index_record *r,
                  const struct tree_mark *at);

struct index_stats {
    uint64_t entries, bytes, evicted;
    uint64_t check_failures; /* hash agreed and check did not: treated as unknown */
};
void index_stats(const struct index *ix, struct index_stats *out);

#endif
