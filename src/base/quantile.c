/* SPDX-License-Identifier: MIT */
#include "base/quantile.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void quantile_add(struct quantile *q, double value)
{
    assert(!isnan(value));
    q->last[q->n % QUANTILE_KEEP] = value;
    q->n++;
    q->sum += value;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double quantile_get(const struct quantile *q, double p)
{
    assert(p >= 0 && p <= 1);
    const size_t n = q->n < QUANTILE_KEEP ? (size_t)q->n : QUANTILE_KEEP;
    if (n == 0)
        return NAN;
    double sorted[QUANTILE_KEEP];
    memcpy(sorted, q->last, n * sizeof(sorted[0]));
    qsort(sorted, n, sizeof(sorted[0]), by_value);
    /* 0.07 × 100 is a little more than 7 in binary: the slack keeps the rank. */
    const size_t rank = (size_t)ceil(p * (double)n - 1e-9);
    return sorted[rank ? rank - 1 : 0];
}
