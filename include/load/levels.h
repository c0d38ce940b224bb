/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_LEVELS_H
#define INCIPIT_LOAD_LEVELS_H

/*
 * The levels of a load that is raised step by step, as people write them:
 *
 *   1,2,4,8        these, in this order
 *   1..16x2        from 1, each twice the one before, up to 16
 *   2..10+2        from 2, each 2 more, up to 10
 *
 * and lists of both. Numbers are decimal, with a fraction where one is asked for.
 */

#include <stddef.h>

#include "base/err.h"

/* Fills `out` (room for `most`) and sets *n, at least 1. All are from `low` to `high`. */
int levels_parse(const char *text, double low, double high, double *out, size_t most,
                 size_t *n, struct err *e);

#endif
