/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_IO_ADDR_H
#define INCIPIT_IO_ADDR_H

/*
 * Addresses of sockets: "HOST:PORT", "[V6]:PORT", ":PORT", "unix:/path". The port is a
 * decimal number from 0 to 65535 without sign or leading zeros. ":PORT" is every IPv4
 * address of the machine to listen on, and the machine itself to connect to.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/err.h"

struct addr {
    struct sockaddr_storage sa;
    socklen_t len;
    char text[128]; /* as it would be written, in numbers: "127.0.0.1:8080" */
};

/* Resolves a name (blocking: for start-up and worker threads). Port 0 is allowed. Of
 * several addresses the first of IPv4 is taken, since engines listen on 127.0.0.1 and
 * "localhost" is often ::1 first. ERR_INVALID, or ERR_NOT_FOUND for an unknown name. */
int addr_resolve(struct addr *a, const char *text, struct err *e);

/* All of its addresses, those of IPv4 first; `n`: room in v, then how many are there. */
int addr_resolve_all(struct addr *v, size_t *n, const char *text, struct err *e);

/* The same without looking anything up: ERR_NOT_FOUND for any name. */
int addr_parse(struct addr *a, const char *text, struct err *e);

/* The same address and port, or path. */
bool addr_eq(const struct addr *a, const struct addr *b);

/* From what accept(), getsockname() and getpeername() give. */
void addr_from_sockaddr(struct addr *a, const struct sockaddr *sa, socklen_t len);

/* Whom it tells apart: an IPv4 address (mapped ones as well), or the /64 of an IPv6
 * address, all of which one client may use. False for a UNIX socket: nobody. */
#define ADDR_GROUP 16
bool addr_group(const struct addr *a, unsigned char out[ADDR_GROUP]);

/* 127.0.0.0/8, ::1 and UNIX sockets. */
bool addr_is_loopback(const struct addr *a);

/* 0 for a UNIX socket. */
uint16_t addr_port(const struct addr *a);

#endif
