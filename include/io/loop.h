/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_IO_LOOP_H
#define INCIPIT_IO_LOOP_H

/*
 * The event loop: one thread, owner of all state. Callbacks never fire inside the call
 * that asked for them. Everything here is for the loop's thread, except
 * loop_post(), which any thread may call.
 */

#include <stdbool.h>
#include <stdint.h>

struct loop;
typedef void (*loop_cb)(void *arg);

/* NULL, and a line in the log, where the system has no descriptors left for it. */
struct loop *loop_new(void);

/*
 * Makes the calls that were deferred or posted and not yet made, cuts what
 * conn_close_gently() left behind, then frees. Connections, listeners, timers and workers
 * must have been closed before; the loop must not be running. NULL is allowed.
 */
void loop_free(struct loop *l);

/* Runs until loop_stop(); at once back where that was called before. May run again. */
void loop_run(struct loop *l);
void loop_stop(struct loop *l);

/* Monotonic time in microseconds, read afresh. */
uint64_t loop_now_us(const struct loop *l);

/* Calls cb(arg) on the next turn of the loop, in the order asked. Sockets and timers get
 * their turn in between, so a call that defers itself again does not starve them. */
void loop_defer(struct loop *l, loop_cb cb, void *arg);

/* The same from any thread. */
void loop_post(struct loop *l, loop_cb cb, void *arg);

/* Calls cb(arg) on the loop whenever the signal arrives, until loop_free(). From then on
 * it is ignored: one more that comes while the process ends does not end it otherwise.
 * Where the system does not watch it the log says so, and it ends the process at once. */
void loop_on_signal(struct loop *l, int signo, loop_cb cb, void *arg);

/*
 * A one-shot timer in the caller's memory. {0} before timer_init() is a stopped one.
 * Never early; late by a few milliseconds at most. Starting it again for a later time,
 * and stopping it, cost next to nothing: there may be one for each step of a request.
 */
struct loop_timer {
    struct loop *loop;
    loop_cb cb;
    void *arg;
    bool armed;

    void *event; /* the rest is private: libevent's event, when it is to fire, and when */
    uint64_t due_us; /* the loop will look (0: it will not) */
    uint64_t wake_us;
};

void timer_init(struct loop_timer *t, struct loop *l, loop_cb cb, void *arg);

/* (Re)starts the timer: fires once in `ms` milliseconds. */
void timer_start(struct loop_timer *t, uint64_t ms);
void timer_stop(struct loop_timer *t);

/* Stops and frees what timer_init() took. Safe on {0} and safe to call twice. */
void timer_fini(struct loop_timer *t);

#endif
