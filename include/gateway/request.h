/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_GATEWAY_REQUEST_H
#define INCIPIT_GATEWAY_REQUEST_H

/*
 * The life of one client request, from its last byte to the last byte of its answer.
 * Start reading here: the table of states in request.c.
 */

#include "engine/engine.h"
#include "wire/front.h"
#include "gateway/keys.h"
#include "gateway/measure.h"
#include "prefix/outlook.h"
#include "gateway/stats.h"
#include "gateway/tenants.h"

struct request;

/* A replica and what was counted on it. */
struct request_target {
    struct replica *replica;
    char *url;       /* as configured */
    int credentials; /* enum options_credentials */
    struct figures figures;
    struct measure measure;
};

#define REQUEST_STATES(X)                                                                \
    X(REQUEST_SCAN, "scan")             /* look at the prompt */                         \
    X(REQUEST_PLAN, "plan")             /* which replica; ask it to admit */             \
    X(REQUEST_QUEUE, "queue")           /* wait for a slot */                            \
    X(REQUEST_RESTORE, "restore")       /* stored blocks are put back */                 \
    X(REQUEST_SEND, "send")             /* connect and send */                           \
    X(REQUEST_FIRST_BYTE, "first-byte") /* sent; the engine is at it */                  \
    X(REQUEST_RELAY, "relay")           /* the answer goes by */                         \
    X(REQUEST_FINISH, "finish")         /* counted, logged, learned from; once */

enum request_state {
#define X(state, name) state,
    REQUEST_STATES(X)
#undef X
        REQUEST_STATE_COUNT
};

/* What requests share: the gateway's parts, and the gauges. */
struct request_world {
    struct loop *loop;
    struct cache *cache;
    const struct tenants *tenants;
    const struct keys *keys;
    struct request_target **targets; /* their addresses stay */
    size_t n_targets;
    struct figures *total;
    struct outlook *outlook;  /* NULL unless it only observes */
    uint64_t unpack_bytes;    /* largest copy of a packed body, 0: none is looked into */
    struct budget memory;     /* of bodies, and of what was read from them */
    uint64_t total_ms;        /* for one of them */
    uint64_t ping_ms;         /* gateway/ping.h; 0: never */
    const char *allow_origin; /* gateway/cors.h */
    int hidden_line_ends, forwarded_for; /* gateway/headers.h */
    bool relay_admin_paths, cache_status, server_timing, access_log;
    bool drain_gone;     /* let the engine end what a client left behind */
    struct list orphans; /* requests without a client that the engine is at */
    unsigned in_state[REQUEST_STATE_COUNT]; /* requests that are there now */
    uint64_t next_id;
    uint64_t id_salt;
};

/* Before its body is read: may this client ask? False, with `why`, where it shows no key
 * and needs one. */
bool request_may(const struct request_world *w, const struct http_head *h,
                 struct front_refusal *why);

/* Headers of a refusal. */
void request_refusing(const struct request_world *w, const struct http_head *h,
                      struct buf *headers);

/* Takes a request over from the front; it frees itself when it is finished. */
void request_start(struct request_world *w, struct front_request *client);

/* Lets go of what the engine still does for clients that have left. */
void request_drop_orphans(struct request_world *w);

const char *request_state_name(enum request_state s);

#endif
