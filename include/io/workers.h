/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_IO_WORKERS_H
#define INCIPIT_IO_WORKERS_H

/*
 * Threads for pure byte work and for files: cut and compose slot files, read and write
 * blocks. A job owns its data while it runs; the loop takes it back in `done`.
 */

#include "io/loop.h"

struct workers;

/* At least one thread; fewer than asked for where the system has no more. NULL, and a
 * line in the log, where it has none. */
struct workers *workers_new(struct loop *l, unsigned n_threads);

/* Finishes what is queued and running, and what a `done` submits meanwhile: waits for the
 * threads and calls each `done` before it returns. Not from inside a `done`. NULL is
 * allowed. */
void workers_free(struct workers *w);

/* run(arg) on some thread, later done(arg) on the loop. Jobs start in the order given;
 * with several threads they may end in another. */
void workers_submit(struct workers *w, void (*run)(void *arg), void (*done)(void *arg),
                    void *arg);

unsigned workers_threads(const struct workers *w);

/* Jobs submitted and not yet done. */
unsigned workers_pending(const struct workers *w);

#endif
