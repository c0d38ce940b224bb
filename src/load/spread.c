/* SPDX-License-Identifier: MIT */
#include "load/spread.h"

#include <math.h>

#define GROWTH 1.01

void spread_add(struct spread *s, double ms)
{
    const double us = ms * 1000;
    uint32_t i = 0;
    if (us >= 1) {
        const double at = log(us) / log(GROWTH) + 1;
        i = at < SPREAD_BUCKETS - 1 ? (uint32_t)at : SPREAD_BUCKETS - 1;
    }
    s->count[i]++;
    s->n++;
}

double spread_value(uint32_t i)
{
    return i == 0 ? 0 : pow(GROWTH, i - 0.5) / 1000;
}

double spread_get(const struct spread *s, double p)
{
    const double rank = fmax(ceil(p * (double)s->n - 1e-9), 1);
    uint64_t seen = 0;
    if (s->n == 0)
        return (double)NAN;
    for (uint32_t i = 0; i < SPREAD_BUCKETS; i++) {
        seen += s->count[i];
        if ((double)seen >= rank)
            return spread_value(i);
    }
    return spread_value(SPREAD_BUCKETS - 1);
}
