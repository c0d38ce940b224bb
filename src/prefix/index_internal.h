/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PREFIX_INDEX_INTERNAL_H
#define INCIPIT_PREFIX_INDEX_INTERNAL_H

/*
 * What the files of the prompt index share; the drawing is in index.c.
 *
 *     index          which boundaries are known, and which go next?
 *     index_learn    what does a prompt that ran say about its boundaries?
 *     index_confirm  what does the engine's count say about them?
 *     index_record   out to a file and back
 *     index_bounds   arithmetic: from a few counts to bounds for all boundaries
 */

#include "index_bounds.h"
#include "prefix/index.h"

#define INDEX_START 0 /* number of the entry that all texts start at; also "none" */
#define INDEX_REACH_TOKENS 64 /* beyond what is known to follow */

struct index_entry {
    struct hash128 hash;
    uint64_t check;
    struct tree_mark mark;
    struct index_bounds bounds;
    uint32_t next_high; /* high of the boundary that followed in the last lesson */
    uint32_t held; /* tokens that the mark covered when it was set; if that was less than
                      high, UINT32_MAX */
    uint32_t parent, child;  /* the child that came last */
    uint32_t elder, younger; /* other children of the parent */
    uint32_t newer, older;   /* by use */
    uint32_t next;           /* in the bucket, or in the list of free entries */
    uint32_t file;           /* that it was written to last, 0 none */
    uint32_t owner;
};

struct index {
    struct tree *tree; /* may be NULL */
    struct index_entry *entries;
    uint32_t *buckets;
    uint32_t mask;
    uint32_t cap;  /* entries that the budget allows, the start not counted */
    uint32_t made; /* entries ever used: 1 … made */
    uint32_t n, free;
    uint32_t tip; /* the entry touched last: the path to it is the newest, in its order */
    double density; /* running mean of tokens per weight */
    uint64_t evicted, check_failures;
};

/* The entry of a piece, or INDEX_START. */
uint32_t index_lookup(struct index *ix, const struct piece *p);

/*
 * Makes n boundaries (at most `cap`) known and the most recently used, deepest first.
 * Their entries go into ids[]. Returns how many were known before; the others are zero
 * but for their names.
 */
size_t index_take(struct index *ix, const struct index_lesson *l, size_t n,
                  uint32_t *ids);

/* One more boundary behind `parent`, the most recently used with all before it; or
 * INDEX_START where the budget does not allow a path that long. */
uint32_t index_put_under(struct index *ix, const struct piece *p, uint32_t parent,
                         uint32_t owner);

/* By hash alone: only for what this program has written itself. */
uint32_t index_lookup_hash(struct index *ix, struct hash128 hash);

/* Sets the place of an entry whose bounds are known. */
void index_place(struct index *ix, struct index_entry *e, const struct tree_mark *at);

static inline uint32_t index_add_tokens(uint32_t tokens, double more)
{
    const double sum = tokens + more;
    return sum >= UINT32_MAX ? UINT32_MAX : (uint32_t)sum;
}

static inline uint32_t index_reach(const struct index_entry *e)
{
    return e->next_high > e->bounds.high ? e->next_high : e->bounds.high;
}

#endif
