/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PREFIX_INDEX_BOUNDS_H
#define INCIPIT_PREFIX_INDEX_BOUNDS_H

/*
 * How many tokens lie before each piece boundary, as far as that follows from a few known
 * counts. The arithmetic of the prompt index; it keeps nothing.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "prefix/pieces.h"

struct index_bounds {
    uint32_t low, high;
};

/* A known count: `tokens` ± `slack` lie before the boundary behind `at` pieces. */
struct index_anchor {
    size_t at;
    double tokens, slack;
    bool guess; /* nobody counted: it only gives a direction */
};

/* What a run of pieces weighs: tokens are thought to be proportional to this. */
double index_bounds_weight(const struct piece *v, size_t from, size_t to);

/*
 * Bounds of the boundaries 1 … n of a prompt into out[0] … out[n − 1], from anchors in
 * ascending order of place and tokens, the first at 0 and the last at n. `density` is the
 * usual number of tokens per weight: media are counted in tokens but not in weight.
 */
struct index_measure {
    const struct piece *v;
    const struct index_anchor *anchors;
    size_t n_anchors;
    double density;
};
void index_bounds_estimate(const struct index_measure *m, struct index_bounds *out);

/* What two bounds of one boundary have in common; where nothing, the narrower ones. */
struct index_bounds index_bounds_merge(struct index_bounds old, struct index_bounds new);

/* Makes bounds ascend, lowering highs before raising lows. */
void index_bounds_order(struct index_bounds *b, size_t n);

#endif
