/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_IO_LISTENER_H
#define INCIPIT_IO_LISTENER_H

/*
 * A listening socket. Running out of descriptors pauses accepting for a moment and is
 * logged once; it never spins. The file of a UNIX socket that nobody listens on any more
 * is replaced, and removed again by listener_close(); a socket that somebody listens on,
 * and a file of any other kind, is left alone and an error.
 */

#include <sys/types.h>

#include "base/err.h"
#include "io/addr.h"
#include "io/loop.h"

struct listener;

/* `fd` is non-blocking, close-on-exec, and belongs to the callback. */
typedef void (*listener_cb)(void *arg, int fd);

/* The file of a UNIX socket. Whoever may write to it may connect. */
struct listener_file {
    mode_t mode;
    uid_t uid; /* (uid_t)-1, (gid_t)-1: not changed */
    gid_t gid;
};

/* Looks up "USER", "USER:GROUP" or ":GROUP", by name or number; "": not changed. */
int listener_owner(struct listener_file *f, const char *owner, struct err *e);

/*
 * NULL with `e` set where the address cannot be had. `file` (NULL: as umask has it) is
 * for UNIX sockets: nobody can connect before it has its mode and its owner. Callbacks
 * come from the loop; closing the listener inside one is safe.
 */
struct listener *listener_open_file(struct loop *l, const struct addr *at,
                                    const struct listener_file *file, listener_cb cb,
                                    void *arg, struct err *e);
struct listener *listener_open(struct loop *l, const struct addr *at, listener_cb cb,
                               void *arg, struct err *e);
void listener_close(struct listener *ln); /* NULL is allowed */

/* Where it listens really (the port that 0 became). */
const struct addr *listener_addr(const struct listener *ln);

#endif
