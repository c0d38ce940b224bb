/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_BASE_QUANTILE_H
#define INCIPIT_BASE_QUANTILE_H

/*
 * Quantiles over the last QUANTILE_KEEP samples, with the count of all samples ever.
 * Exact within the window; sorted on demand (an admin page asks, not the hot path).
 */

#include <stdint.h>

#define QUANTILE_KEEP 1024

struct quantile {
    uint64_t n; /* samples ever added */
    double sum; /* of all samples ever added */
    double last[QUANTILE_KEEP];
};

/* `value` is a number, never NAN: unknown is not added. */
void quantile_add(struct quantile *q, double value);

/* The p-quantile (0 ≤ p ≤ 1, nearest rank) of the window; NAN where it is empty. */
double quantile_get(const struct quantile *q, double p);

#endif
