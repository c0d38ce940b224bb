/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_GATEWAY_STATS_H
#define INCIPIT_GATEWAY_STATS_H

/*
 * What the gateway counts, per replica and in total. One finished request adds to both
 * through stats_add(), once, whatever happened to it. Predicted and engine-confirmed
 * figures are never mixed:
 *
 *   available   some earlier prompt shared them (estimate by text)
 *   captured    the plan promised them
 *   delivered   the engine confirmed them  =  resident (it had them) + restored (by us,
 *               at least a block)
 *
 * TTFT: request fully received to the first event with generated content; only streams
 * have one. A request is "cached" when the engine reused at least half of its prompt.
 * Unknown figures are left out, never counted as zero.
 */

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/quantile.h"

enum stats_outcome {
    STATS_COMPLETED,   /* answered with 2xx, whole */
    STATS_REFUSED,     /* the engine answered with another status */
    STATS_CLIENT_GONE, /* the client left before the end */
    STATS_UPSTREAM,    /* the engine failed: 502, 504, or cut in the middle */
    STATS_REJECTED,    /* we said no: queue full, admin path */
    STATS_OUTCOMES
};

#define STATS_MISSES(X)                                                                  \
    X("first-sight")                                                                     \
    X("too-short")                                                                       \
    X("evicted")                                                                         \
    X("not-held-here")                                                                   \
    X("restore-failed")                                                                  \
    X("uncacheable")                                                                     \
    X("engine-refused")                                                                  \
    X("control")
#define STATS_MISS_KINDS 8

struct figures {
    uint64_t requests;
    uint64_t outcome[STATS_OUTCOMES];
    uint64_t generations; /* requests that generate */
    uint64_t uninspected; /* of these, with a body that was not read */
    uint64_t ineligible;  /* read, but barred from caching (echo, batch, …) */
    uint64_t counted;     /* completed, with the engine's own token counts, of those that
                             may use the cache */
    uint64_t hits;        /* of these, at least a block reused */
    uint64_t short_hits;  /* of these, something, and less than a block */
    uint64_t prompt_tokens, available_tokens, captured_tokens, delivered_tokens;
    uint64_t resident_tokens, restored_tokens;
    uint64_t generated_tokens;
    uint64_t implausible;  /* answers with impossible counts */
    uint64_t unterminated; /* whole answers without a terminal event */
    uint64_t misses[STATS_MISS_KINDS];
    struct quantile ttft_cold_ms, ttft_cached_ms;
    struct quantile saved_ms; /* of single requests; totals are gateway/measure.h's */
};

/* One finished request. Counts are -1 where unknown. */
struct stats_sample {
    enum stats_outcome outcome;
    bool generates, uninspected, ineligible;
    bool without_cache; /* as its client wants, or what it asks for: in no rate */
    bool restored;      /* stored blocks had been put back for it */
    bool implausible, unterminated;
    int64_t prompt_tokens, cached_tokens, generated_tokens;
    int64_t available, captured;
    double ttft_ms;  /* < 0 unknown */
    double saved_ms; /* NAN unknown */
    const char *miss;
    uint32_t block_tokens;
};

void stats_add(struct figures *f, const struct stats_sample *s);

/* Names of the miss kinds, in order of figures.misses. */
const char *stats_miss_name(size_t i);

/* Everything as JSON; rates are null while nothing was counted. */
json_t *stats_json(const struct figures *f);

/* null where there is none. */
json_t *stats_real(double v);

double stats_hit_rate_tokens(const struct figures *f);   /* NAN while unknown */
double stats_hit_rate_requests(const struct figures *f); /* NAN while unknown */

#endif
