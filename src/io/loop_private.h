/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_IO_LOOP_PRIVATE_H
#define INCIPIT_IO_LOOP_PRIVATE_H

/* What the other modules of io need of the loop and nobody else may see. */

#include "base/buf.h"
#include "base/list.h"
#include "io/loop.h"

struct event_base;

struct event_base *loop_base(struct loop *l);

/* Room to read into that nobody has at the moment, or {0}: connections whose input is
 * empty share it. */
struct buf *loop_spare(struct loop *l);

/*
 * Something that lives on although its owner has let it go. The loop drops what is still
 * in its list when it is freed, and the oldest where there are more than `max`; drop()
 * calls loop_disown(), and so does who ends earlier.
 */
struct loop_orphan {
    struct list link;
    void (*drop)(struct loop_orphan *o);
};

void loop_adopt(struct loop *l, struct loop_orphan *o, size_t max);
void loop_disown(struct loop *l, struct loop_orphan *o); /* no orphan: nothing */

#endif
