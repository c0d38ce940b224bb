/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_WIRE_PEERS_H
#define INCIPIT_WIRE_PEERS_H

/*
 * How many connections does each client have? A client is an IPv4 address or an IPv6 /64
 * (io/addr.h). Looking one up takes logarithmic time, whatever addresses come.
 */

#include <stdbool.h>

#include "io/addr.h"

struct peers;
struct peers_client;

struct peers *peers_new(void);
void peers_free(struct peers *p); /* all have left; NULL is allowed */

/*
 * One more connection of that client. NULL where it has `max` already (*full is set), or
 * where the address tells no client apart (a UNIX socket): then it is not counted.
 */
struct peers_client *peers_enter(struct peers *p, const struct addr *a, unsigned max,
                                 bool *full);
void peers_leave(struct peers *p, struct peers_client *c); /* NULL is allowed */

#endif
