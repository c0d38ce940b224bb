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
 *   GET /cache     block tree, prompt index, store, pins and what is being warmed, JSON
 *   GET /observe   what a store would gain (gateway/observe.h), JSON; with --observe
 *
 *   POST /cache/…  changes the cache: the table in admin_cache.c, docs/warm.md
 *
 * A GET never changes state, and nothing here holds prompt text. Who may: admin_access.c.
 */

#include "wire/front.h"
#include "gateway/credential.h"
#include "gateway/request.h"
#include "gateway/warm.h"

/* How often the configuration was read again, and how that went. */
struct admin_reloads {
    uint64_t done, failed;
    uint64_t last_ms; /* wall clock; 0: never */
    bool failed_last;
    char why[320];     /* the last one failed */
    char restart[512]; /* keys that it changed and that need a restart */
};

struct admin_world {
    struct request_world *requests;
    const struct front *front;
    struct warm *warm; /* NULL when a stop is under way */
    const struct admin_reloads *reloads;
    const char *listen; /* where the admin listener is, as it was configured */
    struct credential_digest key;
    bool has_key; /* it has to be shown */
    uint64_t start_us;
    bool draining;
    uint64_t token_bytes; /* measure.token_bytes */
};

/* Answers one request of the admin listener. */
void admin_answer(const struct admin_world *w, struct front_request *rq);

/* Whether this client may ask for that; false after the request was refused. /healthz and
 * /readyz are for everybody. */
bool admin_may(const struct admin_world *w, struct slice path, struct front_request *rq);

/* One POST; `path` is its target without the query. */
void admin_post(const struct admin_world *w, struct slice path, struct front_request *rq);
bool admin_is_action(struct slice path);

/* POST /cache/forget. */
void admin_forget(const struct admin_world *w, struct front_request *rq);

/* Sends a document, which it takes over. */
void admin_reply(struct front_request *rq, int status, json_t *doc);

/* The metrics text alone. */
void metrics_write(const struct admin_world *w, struct buf *out);

#endif
