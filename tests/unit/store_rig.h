/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_TESTS_STORE_RIG_H
#define INCIPIT_TESTS_STORE_RIG_H

/* What the tests of what lies above the store share: a loop, workers, a folder. */

#include "io/workers.h"

struct store_rig {
    struct loop *loop;
    struct workers *workers;
    char *root; /* a folder of its own, removed in the end */
};

void store_rig_up(struct store_rig *r, unsigned n_workers);
void store_rig_down(struct store_rig *r); /* flushes the workers first */

/* Runs the loop until the workers have nothing left to do. */
void store_rig_settle(struct store_rig *r);

/* The only file below `dir` whose name begins so, as a new string; NULL: none. */
char *store_rig_find(const char *dir, const char *name);

void store_rig_flip(const char *path, long at); /* one byte of a file */

#endif
