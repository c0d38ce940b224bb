/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_BASE_CLOCK_H
#define INCIPIT_BASE_CLOCK_H

/*
 * Time of this machine. Pure modules (`proto`, `prefix`, `route`) get `now_us` as a
 * parameter; what has a loop asks that.
 */

#include <stdint.h>

/* Microseconds of the monotonic clock: for differences and deadlines, never 0. */
uint64_t clock_mono_us(void);

/* Milliseconds since 1970 of the wall clock: for people. */
uint64_t clock_wall_ms(void);

#endif
