/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_BASE_TROUBLE_H
#define INCIPIT_BASE_TROUBLE_H

/*
 * Something that fails and may work again, such as a full disk: a person is told once
 * when it begins and once when it is over, not with every request. Over is what works and
 * has not failed for TROUBLE_CALM_US, so what fails now and then is one trouble.
 *
 * Zero is none. Times are clock_mono_us(). One thread.
 */

#include <stdbool.h>
#include <stdint.h>

#define TROUBLE_CALM_US ((uint64_t)10000000)

struct trouble {
    uint64_t last_us; /* of the last failure; 0: no trouble */
    uint64_t n;       /* failures since it began; kept when it is over */
};

/* It failed. True where the trouble begins with it. */
bool trouble_begins(struct trouble *t, uint64_t now_us);

/* It worked. True where a trouble is over now: t->n failures. */
bool trouble_ends(struct trouble *t, uint64_t now_us);

#endif
