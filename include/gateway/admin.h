/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_GATEWAY_ADMIN_H
#define INCIPIT_GATEWAY_ADMIN_H

/*
 * The admin listener: its own socket, loopback by default, never behind the queue.
 *
 *   GET /healthz   200 while the process runs
 *   GET /readyz    200 when a replica takes requests and no stop is under way, else 503
 *   GET /metrics   Prometheus text (docs/metrics.md)
 *   GET /stats     figures per replica and in total, JSON
 *   GET /cache     block tree, prompt index and store, JSON
 *
 * Nothing of these changes state, and nothing holds prompt text. What does is POST only:
 * gateway/admin_cache.h.
 */

#include "wire/front.h"
#include "gateway/request.h"

struct admin_world {
    struct request_world *requests;
    const struct front *front;
    uint64_t start_us;
    bool draining;
};

/* Answers one request of the admin listener. */
void admin_answer(const struct admin_world *w, struct front_request *rq);

/* The metrics text alone. */
void metrics_write(const struct admin_world *w, struct buf *out);

#endif
