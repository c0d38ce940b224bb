/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_ARRIVALS_H
#define INCIPIT_LOAD_ARRIVALS_H

/*
 * When requests of an open loop are meant to be sent: by the seed alone, whatever the
 * service does. Poisson arrivals have gaps that are exponentially distributed, constant
 * ones gaps of 1 / rate. The first request is due at 0.
 */

#include <stdbool.h>
#include <stdint.h>

struct arrivals {
    double rate; /* a second, above 0 */
    bool poisson;
    uint64_t state;
    uint64_t n; /* drawn so far */
    double at_us;
};

void arrivals_init(struct arrivals *a, double rate, bool poisson, uint64_t seed);

/* Microseconds from the start of the run; never less than the one before. */
uint64_t arrivals_next(struct arrivals *a);

#endif
