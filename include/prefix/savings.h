/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PREFIX_SAVINGS_H
#define INCIPIT_PREFIX_SAVINGS_H

/*
 * Confirmed savings: what the requests of one replica would have cost cold, by the model
 * of prefix/ttft.h, less what they took. Only requests that no other prefill overlapped
 * are told to it; of the others nobody knows what they would have cost.
 *
 * Requests are taken in blocks of SAVINGS_BLOCK. Each block is judged by a model of its
 * own samples, so that an engine that gets faster or slower over the day is not judged by
 * yesterday's speed, and errors of blocks are independent of each other. A block with
 * fewer than SAVINGS_LONG long prefills of its own, because nearly all is reused, takes
 * those of blocks before as well; no other does. The block under way is judged by what it
 * has so far.
 *
 * total = Σ over requests (cold prediction − measured time); its interval (95 %) is where
 * the total of as many real cold runs would lie: noise of each of them and uncertainty of
 * the model. A request that is longer than anything measured is counted in `unjudged` and
 * left out.
 *
 * A plain value; {0} knows nothing. For one thread.
 */

#include <stdbool.h>
#include <stdint.h>

#include "prefix/ttft.h"

#define SAVINGS_BLOCK 512
#define SAVINGS_LONG 8 /* prefills of at least half the longest prompt */

enum savings_source {
    SAVINGS_COLD,     /* nothing of note was reused: a sample for the model, no saving */
    SAVINGS_RESIDENT, /* the engine had it in the slot */
    SAVINGS_RESTORED, /* stored blocks were put back for it */
    SAVINGS_SOURCES
};

struct savings_tally {
    uint64_t n;        /* requests that were judged */
    uint64_t unjudged; /* no model yet, or longer than what it knows */
    double ms;         /* saved */
    double square;     /* of half the interval */
};

struct savings_entry {
    double reused, fresh, ms; /* of its prefill */
    double more_ms;           /* that it took besides: its restore */
    enum savings_source source;
};

struct savings {
    struct savings_entry v[SAVINGS_BLOCK]; /* the block under way */
    uint32_t n;
    struct savings_entry earlier[SAVINGS_LONG]; /* the last long prefills before it */
    uint32_t n_earlier;
    struct ttft_model model; /* of the block under way, unless it is stale */
    bool stale;
    struct savings_tally closed[SAVINGS_SOURCES]; /* blocks before */
};

/*
 * Adds a request that no other prefill overlapped: `fresh` tokens behind `reused` ones
 * took `ms` from having a slot to the first content, and `more_ms` before that, to put
 * stored blocks back. Impossible figures are ignored, as by ttft_add().
 */
void savings_add(struct savings *s, enum savings_source source, double reused,
                 double fresh, double ms, double more_ms);

struct savings_total {
    uint64_t n, unjudged;
    double ms, low, high; /* NAN while n is 0 */
};

/* What one kind of source has saved. SAVINGS_COLD: that of all together. */
void savings_total(struct savings *s, enum savings_source source,
                   struct savings_total *out);

/* Adds the total of another replica, whose errors are its own. {0} is the sum of none. */
void savings_total_add(struct savings_total *sum, const struct savings_total *more);

#endif
