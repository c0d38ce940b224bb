/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_WIRE_UPSTREAM_H
#define INCIPIT_WIRE_UPSTREAM_H

/*
 * HTTP calls to one engine address over a pool of kept-alive connections.
 *
 * A call borrows its request body until it ends. Happy path: on_head, on_body…, on_end.
 * Any failure, before or in the middle: on_fail once and nothing after it. The end
 * callbacks (on_end, on_fail) are the last; the call is gone when they return. Callbacks
 * come from the loop, never from inside call_start().
 *
 * llama-server closes idle connections after 5 s or 100 requests, so the pool lets go of
 * them a little earlier and looks at each before it is used again. It also closes them
 * behind every event stream, so those are not pooled, unless `keep_streams` asks for it:
 * then they are until an engine is seen to do so. Where a pooled
 * connection dies before a single byte of an answer, the call is repeated once on a
 * fresh one (it had been closed under way); never otherwise, and never where it says so:
 * what is meant for one process of the engine must not reach the next.
 *
 * An answer that has neither length nor chunks is whole where the engine has closed the
 * connection in order (of TLS: said so, close_notify); a reset is no end.
 *
 * An answer that arrives while the request is still being sent is handed on at once;
 * the rest is not sent and the connection is closed afterwards.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/slice.h"
#include "io/addr.h"
#include "io/loop.h"
#include "io/tls.h"
#include "io/workers.h"
#include "proto/http.h"

struct upstream;
struct call;

struct upstream_options {
    const char *url; /* "http://HOST:PORT[/prefix][/]", https:// the same, "unix:/path" */
    struct tls_options tls; /* for https; `name` NULL: HOST */
    struct workers *names;  /* where names are looked up: wire/lookup.h; or NULL */
    uint64_t connect_ms, first_byte_ms, stall_ms;
    uint64_t pool_idle_ms;
    unsigned pool_max_requests, pool_max_idle;
    bool keep_streams;
};

/* Reads the files of `tls`, and resolves the URL: without `names` at once (blocking) and
 * for good. With them calls wait for the first lookup, and fail where the name is not
 * known. NULL with `e` set where something is wrong. */
struct upstream *upstream_new(struct loop *l, const struct upstream_options *o,
                              struct err *e);
/* Other times and pool limits from now on; its address stays. */
void upstream_set_options(struct upstream *u, const struct upstream_options *o);

void upstream_free(struct upstream *u); /* no calls may be left */

/* "HOST:PORT" for the Host header ("localhost" for a UNIX socket), and the path prefix
 * ("" or "/x", no slash behind). */
const char *upstream_host(const struct upstream *u);
const char *upstream_prefix(const struct upstream *u);
const struct addr *upstream_addr(const struct upstream *u); /* `len` 0: not known yet */

/*
 * Tells when the engine closed a connection that it should have kept, or could not be
 * reached: it may have been restarted. `lost` may start calls.
 */
void upstream_on_lost(struct upstream *u, loop_cb lost, void *arg);

/* Closes all idle connections (the engine was restarted). */
void upstream_flush(struct upstream *u);

struct call_facts {
    uint64_t sent_us; /* when the request was handed to the system, whole, at first */
    uint8_t connects; /* connections opened for the call, 0: one was there */
    uint8_t retries;  /* of it on another connection */
};

struct call_request {
    struct slice head;        /* complete head with the empty line; copied */
    struct slice body[3];     /* sent one after the other; borrowed until the call ends */
    bool is_head;             /* HEAD: the answer has no body */
    bool once;                /* never repeated on another connection */
    bool hold;                /* an answer of 2xx waits for call_release() */
    struct call_facts *facts; /* filled in as it happens; NULL is allowed */
};

struct call_events {
    void (*on_head)(void *arg, const struct http_head *h); /* final answers only */
    void (*on_body)(void *arg, struct slice bytes);
    void (*on_end)(void *arg);
    void (*on_fail)(void *arg, const struct err *why);
    void (*on_sent)(void *arg); /* request fully handed to the socket; may be NULL; on
                                   the next turn: call_facts has the moment */
};

struct call *call_start(struct upstream *u, const struct call_request *rq,
                        const struct call_events *events, void *arg);

/* Stops and resumes reading the answer: back-pressure. */
void call_pause(struct call *c);
void call_resume(struct call *c);

/* Hands on what was held, and holds nothing any more. Until then no time is counted. */
void call_release(struct call *c);

/* Its body is not borrowed any longer, and it is never repeated. False where it is still
 * being sent: then nothing changes. */
bool call_release_body(struct call *c);

/* Closes the connection at once; no callback follows. */
void call_cancel(struct call *c);

struct upstream_stats {
    uint64_t calls, connects, retries, failures;
    unsigned active, idle;
};
void upstream_stats(const struct upstream *u, struct upstream_stats *out);

#endif
