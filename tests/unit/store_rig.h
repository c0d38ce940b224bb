/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_TESTS_STORE_RIG_H
#define INCIPIT_TESTS_STORE_RIG_H

/* What the tests of what lies above the store share: a loop, workers, a folder. */

#include <time.h>

#include "io/workers.h"
#include "store/store.h"

struct store_rig {
    struct loop *loop;
    struct workers *workers;
    char *root; /* a folder of its own, removed in the end */
};

void store_rig_up(struct store_rig *r, unsigned n_workers);
void store_rig_down(struct store_rig *r); /* flushes the workers first */

void store_rig_remove(const char *path); /* and all in it */

/* Runs the loop until the workers have nothing left to do. */
void store_rig_settle(struct store_rig *r);

/* The only file below `dir` whose name begins so, as a new string; NULL: none. */
char *store_rig_find(const char *dir, const char *name);

/* Puts the file of a block into the directory of a store, for its next start, last used
 * then. Not synced: thousands take a moment. */
void store_rig_plant(const char *dir, const struct store_block *b, time_t used);

/* Where a block's file belongs, as a new string. */
char *store_rig_block_path(const char *dir, struct hash128 fingerprint, const char *hash);

void store_rig_flip(const char *path, long at); /* one byte of a file */

#endif
