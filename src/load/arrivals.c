/* SPDX-License-Identifier: MIT */
#include "load/arrivals.h"

#include <math.h>

#include "base/draw.h"

#define WHAT_ARRIVALS 100

void arrivals_init(struct arrivals *a, double rate, bool poisson, uint64_t seed)
{
    *a = (struct arrivals){
        .rate = rate, .poisson = poisson, .state = draw_key(seed, WHAT_ARRIVALS, 0, 0)};
}

uint64_t arrivals_next(struct arrivals *a)
{
    if (!a->poisson)
        a->at_us = (double)a->n / a->rate * 1e6; /* no sum of rounded gaps */
    else if (a->n > 0)
        a->at_us += -log(draw_unit(&a->state)) / a->rate * 1e6;
    a->n++;
    return (uint64_t)a->at_us;
}
