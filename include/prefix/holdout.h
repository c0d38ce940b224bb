/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PREFIX_HOLDOUT_H
#define INCIPIT_PREFIX_HOLDOUT_H

/*
 * Measured savings: a randomised experiment on real traffic. Of the requests that the
 * cache could help, a small share is run cold all the same (the hold-out), and the times
 * to first token of the two arms are compared. Nothing is modelled, so it also holds
 * where prefills overlap, and it finds a cache that does harm.
 *
 * Draws are balanced within groups of prompts that start alike: of each
 * 1 / share requests of a group, exactly one is held out, at a random place. So the arms
 * see the same prompts and the same times of day.
 *
 * The difference is that of the group's means, each adjusted to the same prompt length
 * (slope of time over length within each arm), averaged over groups by their requests.
 * Interval: studentised bootstrap (bootstrap-t) within group and arm, HOLDOUT_RESAMPLES
 * resamples, fewer (200 at least) of more than 2,000 samples. Groups with fewer than
 * HOLDOUT_MIN samples in an arm are counted in `waiting`.
 *
 * Bounded: HOLDOUT_GROUPS groups, the one that was least recently drawn makes room; of
 * each the last HOLDOUT_KEEP samples of either arm. For one thread.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/hash128.h"

#define HOLDOUT_GROUPS 64
#define HOLDOUT_KEEP 128
#define HOLDOUT_MIN 3
#define HOLDOUT_RESAMPLES 1000

struct holdout;

/* share: of requests that are held out, 0 (never) to 0.5. seed: any number. */
struct holdout *holdout_new(double share, uint64_t seed);
void holdout_free(struct holdout *h); /* NULL is allowed */

/* True where this request is to run cold. Ask once for each request that the cache could
 * help, before anything else is decided. */
bool holdout_draw(struct holdout *h, struct hash128 group);

/* The time to first token of a request that was drawn for; `cold` is what the draw said.
 * Requests whose time is not known are not told, whichever arm they were in. */
void holdout_add(struct holdout *h, struct hash128 group, bool cold, double prompt_tokens,
                 double ttft_ms);

struct holdout_result {
    uint64_t n_cold, n_cached; /* samples that are compared */
    uint64_t waiting;          /* samples of groups with too few in an arm */
    uint32_t groups;
    double cold_ms, cached_ms;  /* means, adjusted alike */
    double saved_ms, low, high; /* per request: cold − cached, 95 %; NAN while unknown */
};

/* Computes for up to 20 ms where many samples came since the last call: for admin pages.
 * The same samples give the same result. */
void holdout_result(struct holdout *h, struct holdout_result *out);

#endif
