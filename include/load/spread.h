/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_SPREAD_H
#define INCIPIT_LOAD_SPREAD_H

/*
 * How values spread, every one counted, in fixed memory: buckets of 1 % width from 1 µs
 * to 20 minutes. Quantiles are right to 0.5 %. Below 1 µs counts as 0, above 20 minutes
 * as 20 minutes.
 */

#include <stdint.h>

#define SPREAD_BUCKETS 2104

struct spread {
    uint64_t n;
    uint64_t count[SPREAD_BUCKETS];
};

void spread_add(struct spread *s, double ms);

/* Milliseconds that stand for bucket `i`: its middle, 0 for the first. */
double spread_value(uint32_t i);

/* The p-quantile (0 ≤ p ≤ 1, nearest rank) in ms; NAN where nothing was added. */
double spread_get(const struct spread *s, double p);

#endif
