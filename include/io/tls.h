/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_IO_TLS_H
#define INCIPIT_IO_TLS_H

/*
 * The client's side of TLS: what connections to one service have in common (trusted
 * authorities, our own certificate, the last session). conn_connect_tls() uses it.
 *
 * TLS 1.2 at least, no renegotiation, "http/1.1" by ALPN. The certificate must be valid
 * and for `name`; new connections resume the session of the one before where the service
 * offers that. For the loop's thread.
 */

#include <stdbool.h>

#include "base/err.h"

struct tls;

struct tls_options {
    const char *name; /* host name (sent as SNI) or address that the certificate is for */
    const char *ca_file; /* PEM, instead of the system's authorities; NULL or "": those */
    const char *cert_file, *key_file; /* ours, PEM; NULL or "": none */
    bool no_verify;                   /* takes any certificate */
};

/* Reads the files. NULL with `e` set where one is missing or wrong. */
struct tls *tls_new(const struct tls_options *o, struct err *e);

/* Its connections must have been closed. NULL is allowed. */
void tls_free(struct tls *t);

#endif
