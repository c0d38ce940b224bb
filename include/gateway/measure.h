/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_GATEWAY_MEASURE_H
#define INCIPIT_GATEWAY_MEASURE_H

/*
 * What a hit is worth, per replica, in two figures that are never mixed
 * (docs/measuring.md):
 *
 *   confirmed   cold model less measured time, over the requests that nothing else
 *               overlapped (prefix/savings.h)
 *   measured    hold-out less the others (prefix/holdout.h); only where a share of
 *               requests runs cold (measure.holdout)
 *
 * Only streams have a time to first token; all others are unknown, not zero.
 */

#include <jansson.h>

#include "base/hash128.h"
#include "prefix/holdout.h"
#include "prefix/savings.h"

struct measure {
    struct savings confirmed;
    uint64_t unknown;    /* hits without a time to first token */
    uint64_t overlapped; /* hits beside other prefills: the hold-out's business */
};

/* A whole answer with the engine's own counts. */
struct measure_request {
    double ttft_ms;   /* < 0 unknown */
    double before_ms; /* of it, until it was sent: waiting for a save, restoring */
    double prompt_tokens, cached_tokens;
    bool overlapped;      /* other prefills, or a wait for others, were in its way */
    bool restored;        /* stored blocks were put back for it */
    bool drawn, held_out; /* took part in the experiment; ran cold for it */
    struct hash128 group;
    uint32_t block_tokens; /* less than a block reused is no hit */
};

/*
 * Returns what the same prompt would have cost cold by `model`, less what it took; NAN
 * where that is not known: other requests were in its way, nothing was reused, or the
 * model has not seen such lengths. Waiting for a save and restoring are part of what a
 * hit took, but not of what the models are fed with: without the gateway there would be
 * neither. `model` learns from it as well; it is what live figures of the replica are
 * made of, totals have models of their own.
 */
double measure_add(struct measure *m, struct ttft_model *model, struct holdout *h,
                   const struct measure_request *rq);

/* "savings" of the admin pages: of one replica, with its hold-out … */
json_t *measure_json(struct measure *m, struct holdout *h, double share);

/* … or confirmed savings alone, of several replicas. */
struct measure_sum {
    struct savings_total by[SAVINGS_SOURCES]; /* SAVINGS_COLD: all together */
    uint64_t unknown, overlapped;
};
void measure_sum_add(struct measure_sum *sum, struct measure *m);
json_t *measure_sum_json(const struct measure_sum *sum);

#endif
