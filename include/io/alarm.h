/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_IO_ALARM_H
#define INCIPIT_IO_ALARM_H

/*
 * A one-shot timer for those who must not be late: it has a descriptor of its own and
 * fires as soon as the kernel wakes the loop, usually some 50 µs after its time. A struct
 * loop_timer is cheaper and late by up to some milliseconds.
 */

#include "io/loop.h"

struct alarm;

/* NULL, and a line in the log, where the system has no descriptor left for it, or no
 * memory to watch it. */
struct alarm *alarm_new(struct loop *l, loop_cb cb, void *arg);
void alarm_free(struct alarm *a); /* NULL is allowed; not from inside its callback */

/* (Re)starts it: fires once at `at_us` of loop_now_us(), at once where that is past. */
void alarm_set(struct alarm *a, uint64_t at_us);
void alarm_stop(struct alarm *a);

#endif
