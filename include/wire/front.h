/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_WIRE_FRONT_H
#define INCIPIT_WIRE_FRONT_H

/*
 * The side that faces clients: accepts connections, reads requests strictly, hands each
 * whole request to its owner and sends the answers in order. One request of a connection
 * is with the owner at a time; pipelined ones wait in the connection.
 *
 * Bodies are collected before the owner is told (limits and deadlines apply), so what
 * goes upstream has one exact length. Refusals (400, 408, 413, 429, 431, 501, 503, 505,
 * and what `check` says) are made here, in the error shape of the API, stay readable, and
 * close the connection. What has not arrived takes no memory.
 *
 * Who is slow is cut: a body that brings less than `upload_rate` over `pace_ms`, and a
 * client that takes less than `download_rate` over `pace_ms` in which something was
 * waiting for it all the time. The first of these spans is the time of grace.
 *
 * A client that closes while its request is with the owner is reported by on_gone, in
 * every state, within one turn of the loop; the request is dead when on_gone returns.
 * Callbacks come from the loop, never from inside a front_ call.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/budget.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/slice.h"
#include "io/addr.h"
#include "io/listener.h"
#include "io/loop.h"
#include "proto/http.h"

struct front;
struct front_request;

struct front_refusal {
    int status;
    const char *type, *message; /* of the error */
    const char *headers;        /* complete lines, or "" */
};

/* Looks at a head before its body is read. False, with `why`, refuses the request. */
typedef bool (*front_check_cb)(void *arg, const struct http_head *h,
                               struct front_refusal *why);

/* Adds lines to the headers of a refusal. `h` is NULL where no head could be read. */
typedef void (*front_refusing_cb)(void *arg, const struct http_head *h,
                                  struct buf *headers);

struct front_options {
    const struct listener_file *file; /* of a UNIX socket; NULL: as umask has it */
    struct http_limits head;
    uint64_t body_bytes;   /* of one request; 413 beyond */
    struct budget *memory; /* of all request bodies together, as they are allocated; 503
                              beyond, 413 where one alone is larger. The owner's, who may
                              have shares of his own in it */
    unsigned connections;  /* 503 beyond */
    unsigned per_client; /* of these, of one client (wire/peers.h); 429 beyond; 0: any */
    uint64_t upload_rate, download_rate; /* bytes per second; 0: any */
    uint64_t head_ms, body_ms, idle_ms, write_ms, pace_ms;
    front_check_cb check;       /* NULL: all are welcome; `arg` is that of on_request */
    front_refusing_cb refusing; /* NULL: nothing is added; the same `arg` */
};

#define FRONT_REFUSALS(X) X(400) X(401) X(403) X(408) X(413) X(429) X(431) X(503)

struct front_stats {
    uint64_t accepted, requests;
#define X(status) uint64_t refused_##status;
    FRONT_REFUSALS(X) /* others count as 400 */
#undef X
    uint64_t slow_readers; /* cut because they took too little, or nothing */
    unsigned connections;
    uint64_t buffered_bytes; /* used of the memory for bodies */
};

typedef void (*front_request_cb)(void *arg, struct front_request *rq);

/* Starts listening; NULL with `e` set where it cannot. */
struct front *front_open(struct loop *l, const struct addr *at,
                         const struct front_options *o, front_request_cb on_request,
                         void *arg, struct err *e);

const struct addr *front_addr(const struct front *f);
void front_stats(const struct front *f, struct front_stats *out);

/* Other limits from now on. Connections that are there keep the limits of heads with
 * which they began, and are not closed where they have become too many. `memory` stays
 * the one that it is. */
void front_set_options(struct front *f, const struct front_options *o);

/*
 * Graceful stop: accepts nothing more, closes idle connections, lets running requests
 * finish with "Connection: close", then calls `done` once.
 */
void front_drain(struct front *f, loop_cb done, void *arg);

/* Closes everything at once; on_gone is called for requests that are with the owner. */
void front_close(struct front *f);

/* What the client sent; alive until the request is ended, aborted or gone. */
const struct http_head *front_head(const struct front_request *rq);
struct slice front_body(const struct front_request *rq);
const char *front_peer(const struct front_request *rq);
uint64_t front_received_us(const struct front_request *rq); /* when it was whole */

struct front_events {
    void (*on_gone)(void *arg);    /* the client has left; the request is dead */
    void (*on_drained)(void *arg); /* after front_congested(): go on */
};
void front_set_events(struct front_request *rq, const struct front_events *ev, void *arg);

/*
 * Starts an answer. `headers` are complete lines "Name: value\r\n"; the front adds
 * framing, Date where missing, and Connection. length < 0: unknown, sent in chunks (to
 * HTTP/1.0 clients until close). bodiless: the head says `length` and no body follows
 * (HEAD, 304).
 */
struct front_answer {
    int status;
    struct slice reason; /* empty: the standard phrase */
    struct slice headers;
    int64_t length;
    bool bodiless;
};
void front_start(struct front_request *rq, const struct front_answer *a);
void front_data(struct front_request *rq, struct slice bytes);
void front_end(struct front_request *rq); /* the request is dead */

/* The answer cannot be completed: closes without the end that a whole answer would have,
 * so that the client can tell. The request is dead. */
void front_abort(struct front_request *rq);

/* The connection ends with a reset, whatever was sent: the built-in engine's way to
 * misbehave. The request is dead. */
void front_reset(struct front_request *rq);

/* A whole answer in one call; content type JSON unless `headers` has one. The request is
 * dead. */
void front_reply(struct front_request *rq, int status, struct slice headers,
                 struct slice body);

/* An error in the shape of the APIs: {"error":{"message","type","code"},"type":"error"},
 * of which OpenAI's clients read the first part, and Anthropic's both. */
void front_error(struct front_request *rq, int status, const char *type,
                 const char *message, struct slice headers);

/* More is queued for the client than it reads: hold back until on_drained. */
bool front_congested(const struct front_request *rq);

uint64_t front_sent_bytes(const struct front_request *rq); /* of the body so far */

#endif
