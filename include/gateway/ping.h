/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_GATEWAY_PING_H
#define INCIPIT_GATEWAY_PING_H

/*
 * Keeps an event stream from looking dead to what lies on its way to the client: tells
 * when nothing has gone by for a while and the stream rests between two events, where a
 * comment means nothing to whoever reads it. Before the engine's head has come there is
 * no stream, and no status that could be sent: nothing is ever due then.
 */

#include "base/slice.h"
#include "io/loop.h"

struct ping {
    struct loop_timer timer;
    uint64_t every_ms;
    char tail[3]; /* the last bytes that went by */
    size_t n_tail;
    loop_cb due;
    void *arg;
};

/* All 0 is one that never starts. `due` comes again and again while it is silent. */
void ping_start(struct ping *p, struct loop *l, uint64_t every_ms, loop_cb due,
                void *arg);

/* These bytes went by. Nothing happens where it was not started. */
void ping_note(struct ping *p, struct slice bytes);

void ping_stop(struct ping *p);

/* The comment. */
struct slice ping_text(void);

#endif
