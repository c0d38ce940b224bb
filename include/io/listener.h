/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_IO_LISTENER_H
#define INCIPIT_IO_LISTENER_H

/*
 * A listening socket. Running out of descriptors pauses accepting for a moment and is
 * logged once; it never spins. The file of a UNIX socket that nobody listens on any more
 * is replaced, and removed again by listener_close().
 */

#include "base/err.h"
#include "io/addr.h"
#include "io/loop.h"

struct listener;

/* `fd` is non-blocking, close-on-exec, and belongs to the callback. */
typedef void (*listener_cb)(void *arg, int fd);

/* NULL with `e` set where the address cannot be had. Callbacks come from the loop;
 * closing the listener inside one is safe. */
struct listener *listener_open(struct loop *l, const struct addr *at, listener_cb cb,
                               void *arg, struct err *e);
void listener_close(struct listener *ln); /* NULL is allowed */

/* Where it listens really (the port that 0 became). */
const struct addr *listener_addr(const struct listener *ln);

#endif
