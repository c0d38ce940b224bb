/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_IO_TLS_STREAM_H
#define INCIPIT_IO_TLS_STREAM_H

/*
 * TLS over one connected, non-blocking socket, with the manners of system calls: -1 and
 * errno, EAGAIN where the socket has to be waited for. Other errors: the socket's own, or
 * EPROTO with the reason in tls_why(). They do not go away.
 */

#include <stdbool.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "io/tls.h"

struct tls_stream;

/* `fd` stays the caller's; `t` must live longer. */
struct tls_stream *tls_begin(struct tls *t, int fd);

/* Until 0. */
int tls_handshake(struct tls_stream *s);

/* As recv(). 0 is the peer's word that nothing follows (close_notify); a FIN without it
 * is an error, since anybody on the way could have sent it. */
ssize_t tls_recv(struct tls_stream *s, void *bytes, size_t n);

/* As writev(). What was not taken must be offered again, at the same place of the stream
 * and no less of it. */
ssize_t tls_send(struct tls_stream *s, const struct iovec *iov, int n);

/* Bytes that have left the socket and would be had without waiting. */
bool tls_pending(const struct tls_stream *s);

/* The last EAGAIN of tls_handshake() or tls_recv() waits for room to write. */
bool tls_wants_write(const struct tls_stream *s);

/* Nothing to be read now, and no end: reads records that are no data (tickets). */
bool tls_is_quiet(struct tls_stream *s);

/* What went wrong, for a person; "" where nothing did or errno says it all. */
const char *tls_why(const struct tls_stream *s);

/* Says that nothing follows, as far as the socket takes it at once. */
void tls_say_end(struct tls_stream *s);

void tls_end(struct tls_stream *s); /* NULL is allowed */

#endif
