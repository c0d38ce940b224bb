/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PREFIX_CURVE_H
#define INCIPIT_PREFIX_CURVE_H

/*
 * How much would a cache of this size have reused? One pass over the requests answers for
 * all sizes at once: the reuse distances of an LRU stack (Mattson et al. 1970). An item
 * (a block of tokens, a piece of text) is named by its chained hash, so it stands for all
 * before it as well.
 *
 * A request uses its items last one first, as the block tree does: an item is never more
 * recent than the one before it, so the items that a cache of C still has of a request
 * are its first ones, and the distance of an item, the number of different items used
 * since and including itself, is the least C that still has it. Exact: the curve at C is
 * the hit rate of a block tree with room for C items.
 *
 * O(log n) an item. Remembers `max_items` items, about 56 bytes each; a larger cache than
 * that is told as one of that size. For one thread.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/hash128.h"

struct curve;

struct curve *curve_new(size_t max_items); /* at least 16 */
void curve_free(struct curve *c);          /* NULL is allowed */

/*
 * A request of n items, the first of the prompt first. `weights`: what each is worth
 * (tokens); NULL: 1 each. Returns the weight of the leading items that were known.
 */
double curve_add(struct curve *c, const struct hash128 *items, size_t n,
                 const double *weights);

/* The same, and tells for each item the least cache that still had it; SIZE_MAX from the
 * first one on that was not known. */
double curve_add_telling(struct curve *c, const struct hash128 *items, size_t n,
                         const double *weights, size_t *needs);

/* Weight that a cache with room for so many items would have reused. */
double curve_hits(const struct curve *c, size_t items);

/* Weight of all requests; number of different items that are remembered now. */
double curve_total(const struct curve *c);
size_t curve_items(const struct curve *c);

#endif
