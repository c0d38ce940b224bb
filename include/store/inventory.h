/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_STORE_INVENTORY_H
#define INCIPIT_STORE_INVENTORY_H

/*
 * What is in a store's directory, for tools (`incipit store`). Reading takes no lock and
 * changes nothing, so it works beside a running gateway; files that come and go meanwhile
 * are not there. What changes the directory takes its lock: ERR_REFUSED while a gateway
 * works in it.
 *
 * Synchronous, for one thread; times are nanoseconds since 1970.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash128.h"
#include "store/store.h"

#define INVENTORY_NONE SIZE_MAX

struct inventory_model {
    struct hash128 fingerprint;
    uint64_t blocks, bytes;
    int64_t oldest_ns, newest_ns; /* of last uses */
};

struct inventory_block {
    struct store_head head;
    uint64_t bytes;  /* of its file */
    int64_t used_ns; /* of the block, or of what was used last behind it */
    size_t parent;   /* INVENTORY_NONE at the start of a sequence */
    bool cut_off;    /* its parent is missing: it can never be reached */
};

struct inventory {
    struct inventory_model *models; /* most recently used first */
    size_t n_models;
    struct inventory_block *blocks; /* of one model after the other, parents first */
    size_t n_blocks;
    uint64_t bad_heads; /* blocks whose head does not check out: not in `blocks` */
    uint64_t damaged_files, damaged_bytes, notes;
    uint64_t prompt_bytes, prompt_records; /* of prompts.log, both generations */
    bool has_key;
};

/* Reads names and sizes; with `heads` the heads of blocks as well (of one model where
 * `only` is not NULL). Ends with inventory_free(), also after an error. */
int inventory_read(struct inventory *v, const char *dir, bool heads,
                   const struct hash128 *only, struct err *e);
void inventory_free(struct inventory *v);

/*
 * Reads every block whole: checksums, names, parents, and that its chain hash is that of
 * its token ids under the key (of `key_file`, or of the directory where that is NULL).
 * Calls `fault` for each that is wrong. `fix` (takes the lock) moves damaged files to
 * damaged/ and deletes what is cut off.
 */
struct inventory_checked {
    uint64_t blocks, bytes, faults, fixed;
};
typedef void (*inventory_fault_cb)(void *arg, const char *file, const char *what,
                                   const char *todo);
int inventory_verify(const char *dir, const char *key_file, bool fix,
                     inventory_fault_cb fault, void *arg, struct inventory_checked *n,
                     struct err *e);

/*
 * Deletes blocks, the least recently used first and never one that another needs: until
 * at most keep_bytes remain (UINT64_MAX: no matter how many), and those last used before
 * `before_ns`. Of one model where it is not NULL, which then has all limits to itself.
 * Tells for each model what goes; with dry_run nothing does, and no lock is taken.
 */
struct inventory_rules {
    const struct hash128 *model;
    uint64_t keep_bytes;
    int64_t before_ns;
    bool dry_run;
};
typedef void (*inventory_pruned_cb)(void *arg, const struct inventory_model *was,
                                    uint64_t blocks, uint64_t bytes);
int inventory_prune(const char *dir, const struct inventory_rules *r,
                    inventory_pruned_cb pruned, void *arg, struct err *e);

#endif
