/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_IO_CONN_H
#define INCIPIT_IO_CONN_H

/*
 * A non-blocking TCP (or UNIX) connection, plain or with TLS, with an input buffer, an
 * output queue and back-pressure. TCP_NODELAY is always set: each write leaves at once.
 *
 * Reading: bytes collect in the input buffer up to `input_max`, then reading pauses until
 * the owner consumes. While reading is paused (by the limit or by conn_pause()) the
 * connection still notices that the peer has closed (EPOLLRDHUP) or reset, so a client
 * that leaves is seen in every state, without writing.
 *
 * Happy path:  connected → data… → (conn_write, drained)… → conn_close().
 * Failures:    failed (connect refused or late) · closed (FIN or reset by the peer), then
 *              ended. After a FIN writing goes on: the peer may still be reading. After a
 *              reset what is queued is dropped and writes go nowhere.
 *
 * Callbacks come from the loop, never from inside a conn_ call. conn_close() silences the
 * connection at once (no callback after it) and frees it on a later turn of the loop, so
 * closing inside a callback is safe.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/slice.h"
#include "io/addr.h"
#include "io/loop.h"
#include "io/tls.h"

struct conn;

enum conn_event {
    CONN_CONNECTED, /* outgoing connections only, once */
    CONN_DATA,      /* more input than before: conn_input() */
    CONN_DRAINED,   /* output fell to half of CONN_OUTPUT_HIGH after it was above */
    CONN_FLUSHED,   /* the output queue became empty: after bytes had to wait in it, and
                       after conn_write_borrowed() in any case (once for several) */
    CONN_CLOSED,    /* the peer sent FIN (input may still hold bytes) or reset; once.
                       Unread bytes in the kernel were read into the input before it as
                       far as input_max allows; data comes first */
    CONN_ENDED, /* every byte that the peer sent has been read into the input and there
                       will be no more CONN_DATA; once, after CONN_CLOSED. Where reading
                       was paused it comes after conn_resume() and the last data */
    CONN_FAILED /* connect failed: conn_error(). Or, after CONN_ENDED without an error,
                       the peer that was still reading has gone too */
};

typedef void (*conn_cb)(void *arg, struct conn *c, enum conn_event event);

#define CONN_OUTPUT_HIGH ((size_t)256 << 10) /* bytes queued above which to hold back */
#define CONN_INPUT_MAX ((size_t)64 << 10)    /* default limit of the input buffer */
#define CONN_LINGER_MAX ((size_t)64 << 20)   /* bytes dropped by conn_close_gently() */
#define CONN_LINGERING 1024                  /* of a loop, closing gently at once */

/* Takes the accepted descriptor over and starts reading. */
struct conn *conn_accepted(struct loop *l, int fd, conn_cb cb, void *arg);

/* Starts connecting; CONN_CONNECTED or CONN_FAILED follows within timeout_ms. */
struct conn *conn_connect(struct loop *l, const struct addr *to, uint64_t timeout_ms,
                          conn_cb cb, void *arg);

/* The same with TLS, unless `tls` is NULL: connected is after the handshake, for which
 * timeout_ms counts as well. A FIN that TLS has not announced is an error like a reset,
 * and comes behind the data before it. `tls` must outlive the connection. */
struct conn *conn_connect_tls(struct loop *l, const struct addr *to, struct tls *tls,
                              uint64_t timeout_ms, conn_cb cb, void *arg);

/* Changes who is told; used where a connection goes to or comes from a pool. Input that
 * is there already is not told again: look at conn_input(). */
void conn_set_cb(struct conn *c, conn_cb cb, void *arg);

/* Silences and closes; what is still queued is lost. `c` is dead for the caller. NULL is
 * allowed. */
void conn_close(struct conn *c);

/*
 * Sends what is queued (borrowed bytes are copied for it), half-closes, then closes when
 * the peer has closed too, after `linger_ms` or after CONN_LINGER_MAX bytes: what the
 * peer still sends is read and dropped, so that a refusal stays readable (a close with
 * unread input would reset it). Sending may take longer than linger_ms as long as the
 * peer takes something in each such span. `c` is dead for the caller. Of more than
 * CONN_LINGERING such connections the oldest are cut.
 */
void conn_close_gently(struct conn *c, uint64_t linger_ms);

/* Closes with a reset where the peer must see that the answer is not whole. */
void conn_abort(struct conn *c);

/* Unread input; valid until the next conn_ call on `c`. */
struct slice conn_input(const struct conn *c);
void conn_consume(struct conn *c, size_t n);
void conn_set_input_max(struct conn *c, size_t bytes);

void conn_pause(struct conn *c);
void conn_resume(struct conn *c);

/* Queues a copy of the bytes and writes what the socket takes at once. While connecting
 * they wait. A failed write is told by CONN_CLOSED. */
void conn_write(struct conn *c, struct slice bytes);

/* Queues bytes without a copy; they must stay alive and unchanged until CONN_FLUSHED or
 * until the connection is closed here (after a mere FIN it still writes). For request
 * bodies. */
void conn_write_borrowed(struct conn *c, struct slice bytes);

/* Between the two writes are only queued; conn_uncork() sends them together, in one
 * system call and without a packet for each. For a head and the body behind it. */
void conn_cork(struct conn *c);
void conn_uncork(struct conn *c);

size_t conn_output_len(const struct conn *c);
bool conn_output_high(const struct conn *c); /* above CONN_OUTPUT_HIGH: hold back */

/* True where the peer has closed or sent something unexpected: not fit for reuse. Looks
 * at the socket without blocking. */
bool conn_stale(const struct conn *c);

int conn_error(const struct conn *c);        /* errno of the failure, 0 for a FIN */
const char *conn_why(const struct conn *c);  /* the same for people; "" for a FIN */
const char *conn_peer(const struct conn *c); /* "127.0.0.1:4711" */
const struct addr *conn_peer_addr(const struct conn *c);
uint64_t conn_bytes_in(const struct conn *c);
uint64_t conn_bytes_out(const struct conn *c);

/* Of bytes_out those that have left the kernel's queue here: the peer has acknowledged
 * them. The kernel takes more in large steps of its own; this tells how fast the peer is.
 * Not for TLS. */
uint64_t conn_bytes_taken(const struct conn *c);

#endif
