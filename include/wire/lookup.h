/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_WIRE_LOOKUP_H
#define INCIPIT_WIRE_LOOKUP_H

/*
 * Where a service is. A number or a path says it for good. A name is looked up on a
 * thread, and again when nobody answers there, or a connection was lost: what was started
 * anew in a container has another address, and its old one may be somebody else's.
 *
 * The address stays while the name still has it and it can be reached. Where it cannot,
 * the next one of the name is taken. A name that is not known any more changes nothing.
 *
 * For the loop's thread.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "io/addr.h"
#include "io/loop.h"
#include "io/workers.h"

#define LOOKUP_MAX 16        /* addresses of one name that are looked at */
#define LOOKUP_AGAIN_MS 1000 /* from the end of one to the next, at least */

struct lookup_work;

struct lookup {
    struct loop *loop;
    struct workers *workers;
    char *where;      /* "NAME:PORT" */
    struct addr addr; /* `len` 0: not known yet */
    bool unreachable; /* the owner's: nobody answers at `addr` */
    struct err why;   /* why the last one failed; `code` 0: it did not */
    uint64_t ended_us;
    struct lookup_work *work; /* under way */
    void (*done)(void *arg, bool moved);
    void *arg;
};

/*
 * Takes a place as addr_resolve() does. Where it is a name and there are `workers`, its
 * lookup begins; else it is done here (blocking), once and for all. `done` is told from
 * the loop when a lookup has ended; `moved`: addr is another one than before.
 * ERR_INVALID, or ERR_NOT_FOUND where that was done here.
 */
int lookup_open(struct lookup *k, struct loop *l, struct workers *workers,
                const char *where, void (*done)(void *arg, bool moved), void *arg,
                struct err *e);
void lookup_close(struct lookup *k); /* one that is under way ends by itself */

static inline bool lookup_known(const struct lookup *k)
{
    return k->addr.len > 0;
}

/* Looks it up again, where it is a name and none is under way. False where the last one
 * has ended less than LOOKUP_AGAIN_MS ago: then nothing is done. */
bool lookup_again(struct lookup *k);

#endif
