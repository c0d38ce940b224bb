/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_STORE_ARCHIVE_H
#define INCIPIT_STORE_ARCHIVE_H

/*
 * Blocks and prompts of a store in one stream, to keep or to carry elsewhere
 * (docs/store.md has the format). Chain hashes are keyed, so only a store with the same
 * key takes an archive; one that was written with its key may be taken by an empty store,
 * which then has that key. Nothing in an archive is trusted: each block is checked as if
 * it came from the directory, its chain hash is computed again, its parent came before.
 *
 * The key is that of `key_file`, or of the directory where that is NULL; a key file is
 * read and never written. Synchronous, for one thread.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "base/hash128.h"

struct archive_count {
    uint64_t blocks, bytes, prompts; /* written, or taken over */
    uint64_t known;                  /* import: were there already */
    uint64_t left_out;               /* export: damaged, or behind such a block */
};

/* Writes the blocks of `only` (NULL: of all models) without a lock: beside a running
 * gateway too. `out` is flushed and stays open. */
int archive_export(const char *dir, const char *key_file, const struct hash128 *only,
                   bool with_key, FILE *out, struct archive_count *n, struct err *e);

/*
 * Takes an archive into a directory, which is made where it is missing, under its lock.
 * Blocks go in as they are read and found right; after an error `n` tells how many.
 * Prompts go in when the end mark was there and right.
 */
int archive_import(const char *dir, const char *key_file, FILE *in,
                   struct archive_count *n, struct err *e);

#endif
