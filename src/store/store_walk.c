/* SPDX-License-Identifier: MIT */
#include "store_internal.h"

/*
 *     walk ──► walker ──► slice ──► slice ──► … ──► over ─┐
 *       ├────► walker ──► slice ──► …                     ├──► end
 *       └────► walker …                                   ┘
 *
 * A slice is a job for the workers. Between two of them the walker goes through the loop
 * and to the end of the queue, so whatever was asked for meanwhile comes first. The
 * walkers take one shard after the other from a common counter.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

#define SLICE_US 2000
#define SLICE_FILES 16 /* at least: so it goes on on the slowest disk */

bool store_walk_parse(const char *file, unsigned shard, struct hash128 *hash)
{
    char hex[HASH128_HEX], again[HASH128_HEX];
    if (strlen(file) != STORE_FILE_HASH - 1 || strcmp(file + HASH128_HEX - 1, ".kv") != 0)
        return false;
    memcpy(hex, file, HASH128_HEX - 1);
    hex[HASH128_HEX - 1] = '\0';
    return hash128_parse(hex, hash) && strcmp(hash128_hex(*hash, again), hex) == 0 &&
           store_shard_of(*hash) == shard;
}

/* ---- shards ------------------------------------------------------------------------ */

struct finding {
    struct store_walk *walk;
    struct hash128 fingerprint;
};

static void add_shard(void *arg, int folder, const char *name)
{
    const struct finding *f = arg;
    struct store_walk *walk = f->walk;
    char own[3];
    const unsigned shard = (unsigned)strtoul(name, NULL, 16) % STORE_SHARDS;
    (void)folder;
    snprintf(own, sizeof own, "%02x", shard);
    if (strcmp(own, name) != 0)
        return;
    walk->units = mem_rearray(walk->units, walk->n_units + 1, sizeof *walk->units);
    walk->units[walk->n_units++] = (struct store_walk_unit){f->fingerprint, shard};
}

void store_walk_find(struct store_walk *walk)
{
    for (size_t i = 0; i < walk->n_fingerprints; i++) {
        struct finding f = {walk, walk->fingerprints[i]};
        char hex[HASH128_HEX];
        const int folder =
            store_file_folder(walk->dir->blocks, hash128_hex(f.fingerprint, hex), false);
        if (folder < 0 ? !store_file_is_no_folder(errno)
                       : !store_file_each(folder, add_shard, &f))
            walk->unseen = true;
        if (folder >= 0)
            close(folder);
    }
}

/* ---- listing ----------------------------------------------------------------------- */

static void add_name(void *arg, int folder, const char *file)
{
    struct store_walker *w = arg;
    struct hash128 hash;
    (void)folder;
    if (!store_walk_parse(file, w->shard, &hash))
        return;
    if (w->n == w->cap) {
        w->cap = w->cap ? 2 * w->cap : 64;
        w->names = mem_rearray(w->names, w->cap, sizeof *w->names);
    }
    w->names[w->n++] = hash;
}

/* -1 where there is none. */
static int open_shard(const struct store_walker *w)
{
    char hex[HASH128_HEX];
    const int folder = store_file_folder(w->walk->dir->blocks,
                                         hash128_hex(w->name.fingerprint, hex), false);
    if (folder < 0)
        return -1;
    snprintf(hex, sizeof hex, "%02x", w->shard);
    const int shard = store_file_folder(folder, hex, false);
    const int why = errno;
    close(folder);
    errno = why;
    return shard;
}

void store_walk_list(struct store_walker *w)
{
    w->folder = open_shard(w);
    if (w->folder < 0 && !store_file_is_no_folder(errno))
        w->walk->unseen = true;
    if (w->folder >= 0 && !store_file_each(w->folder, add_name, w))
        w->walk->unseen = true;
}

/* ---- walkers ----------------------------------------------------------------------- */

static bool enter_next(struct store_walker *w)
{
    struct store_walk *walk = w->walk;
    const size_t i = atomic_fetch_add(&walk->next, 1);
    if (i >= walk->n_units)
        return false;
    w->name.fingerprint = walk->units[i].fingerprint;
    w->shard = walk->units[i].shard;
    w->n = w->at = 0;
    walk->ops->enter(w);
    return true;
}

static void leave(struct store_walker *w)
{
    w->walk->ops->leave(w);
    if (w->folder >= 0)
        close(w->folder);
    w->folder = -1;
    w->n = w->at = 0;
}

static void look_at_some(struct store_walker *w)
{
    for (int i = 0; i < SLICE_FILES && w->at < w->n; i++) {
        w->name.hash = w->names[w->at];
        w->walk->ops->file(w);
        w->at++;
    }
}

static void run_slice(void *arg)
{
    struct store_walker *w = arg;
    const uint64_t until = clock_mono_us() + SLICE_US;
    do {
        if (w->at == w->n && !enter_next(w)) {
            w->over = true;
            return;
        }
        look_at_some(w);
        const bool stopped = w->walk->dir->stopped;
        if (stopped)
            w->walk->next = SIZE_MAX / 2; /* and the others find no more */
        if (w->at == w->n || stopped)
            leave(w);
    } while (clock_mono_us() < until);
}

static void on_slice(void *arg)
{
    struct store_walker *w = arg;
    struct store_walk *walk = w->walk;
    if (!w->over) {
        workers_submit(walk->workers, run_slice, on_slice, w);
        return;
    }
    walk->ops->take(w);
    free(w->names);
    free(w);
    if (--walk->running > 0)
        return;
    free(walk->fingerprints);
    free(walk->units);
    walk->ops->end(walk);
}

static void run_begin(void *arg)
{
    struct store_walk *walk = arg;
    walk->ops->begin(walk);
}

static void start_walkers(void *arg)
{
    struct store_walk *walk = arg;
    walk->running = workers_threads(walk->workers);
    for (unsigned i = walk->running; i > 0; i--) {
        struct store_walker *w = mem_zalloc(walk->ops->walker_size);
        w->walk = walk;
        w->folder = -1;
        workers_submit(walk->workers, run_slice, on_slice, w);
    }
}

void store_walk_start(struct store_walk *walk)
{
    workers_submit(walk->workers, run_begin, start_walkers, walk);
}
