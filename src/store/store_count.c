/* SPDX-License-Identifier: MIT */
#include "store_internal.h"

/*
 * How many files there are and how large they are, found out after opening while blocks
 * are written and deleted. A shard is listed in one go; then one file after the other is
 * looked at:
 *
 *     names     a  c  f │ k  p  t           │: where counting is
 *               counted │ to be counted
 *
 * What happens to k, p or t does not count: it is looked at later, and is there then or
 * is not. What happens to any other name of the shard (also to h, which is new) counts at
 * once. Of a shard that was not listed yet nothing counts. A lock for each shard keeps
 * looking and changing apart.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static int compare(const void *x, const void *y)
{
    const struct hash128 *a = x, *b = y;
    if (a->hi != b->hi)
        return a->hi < b->hi ? -1 : 1;
    return a->lo == b->lo ? 0 : a->lo < b->lo ? -1 : 1;
}

static struct store_shard *find_shard(const struct store_dir *d, struct hash128 model,
                                      unsigned shard)
{
    for (size_t i = 0; i < d->n_folders; i++)
        if (hash128_eq(d->folders[i].fingerprint, model))
            return &d->folders[i].shards[shard];
    return NULL;
}

/* ---- what changes meanwhile -------------------------------------------------------- */

static bool counts_now(const struct store_dir *d, const struct store_name *name)
{
    const struct store_shard *s =
        find_shard(d, name->fingerprint, store_shard_of(name->hash));
    if (!s || s->state == STORE_COUNTED)
        return true;
    if (s->state == STORE_UNSEEN)
        return false;
    const struct hash128 *at =
        s->n ? bsearch(&name->hash, s->names, s->n, sizeof *at, compare) : NULL;
    return !at || (size_t)(at - s->names) < s->at;
}

struct store_hold store_count_hold(struct store_dir *d, const struct store_name *name)
{
    if (d->counted)
        return (struct store_hold){.counts = true};
    struct store_hold h = {.dir = d,
                           .shard = &d->shard_locks[store_shard_of(name->hash)]};
    pthread_rwlock_rdlock(&d->shards_lock);
    pthread_mutex_lock(h.shard);
    h.counts = counts_now(d, name);
    return h;
}

void store_count_release(const struct store_hold *h)
{
    if (!h->dir)
        return;
    pthread_mutex_unlock(h->shard);
    pthread_rwlock_unlock(&h->dir->shards_lock);
}

void store_count_add(struct store_dir *d, uint64_t bytes)
{
    d->tier.blocks++;
    d->tier.bytes += bytes;
}

/* What could not be looked at was not counted, and may be deleted all the same. */
static void subtract(atomic_uint_fast64_t *from, uint64_t n)
{
    uint_fast64_t was = atomic_load(from);
    while (!atomic_compare_exchange_weak(from, &was, was > n ? was - n : 0))
        ;
}

void store_count_remove(struct store_dir *d, uint64_t bytes)
{
    subtract(&d->tier.blocks, 1);
    subtract(&d->tier.bytes, bytes);
}

/* ---- counting ---------------------------------------------------------------------- */

struct counter {
    struct store_walker w;
    uint64_t *bytes; /* found, for each fingerprint of the walk */
};

struct counting {
    struct store_walk walk;
    void (*done)(void *arg);
    void *arg;
};

static size_t folder_number(const struct store_walker *w)
{
    size_t i = 0;
    while (!hash128_eq(w->walk->dir->folders[i].fingerprint, w->name.fingerprint))
        i++;
    return i;
}

static struct store_shard *shard_at(const struct store_walker *w)
{
    return &w->walk->dir->folders[folder_number(w)].shards[w->shard];
}

/* Nothing gets its name meanwhile: in a folder that is not there no file is, and what
 * comes into it later counts at once. */
static void begin(struct store_walk *walk)
{
    struct store_dir *d = walk->dir;
    pthread_rwlock_wrlock(&d->shards_lock);
    store_walk_find(walk);
    for (size_t i = 0; i < d->n_folders; i++)
        for (size_t k = 0; k < STORE_SHARDS; k++)
            d->folders[i].shards[k].state = STORE_COUNTED;
    for (size_t i = 0; i < walk->n_units; i++)
        find_shard(d, walk->units[i].fingerprint, walk->units[i].shard)->state =
            STORE_UNSEEN;
    pthread_rwlock_unlock(&d->shards_lock);
}

static void enter(struct store_walker *w)
{
    struct store_dir *d = w->walk->dir;
    struct counter *c = LIST_ENTRY(w, struct counter, w);
    if (!c->bytes)
        c->bytes = mem_zalloc((d->n_folders + 1) * sizeof *c->bytes);
    pthread_mutex_lock(&d->shard_locks[w->shard]);
    store_walk_list(w);
    if (w->n)
        qsort(w->names, w->n, sizeof *w->names, compare);
    *shard_at(w) =
        (struct store_shard){.state = STORE_LISTED, .names = w->names, .n = w->n};
    pthread_mutex_unlock(&d->shard_locks[w->shard]);
}

static void count_file(struct store_walker *w)
{
    struct store_dir *d = w->walk->dir;
    struct counter *c = LIST_ENTRY(w, struct counter, w);
    char hex[HASH128_HEX], file[STORE_FILE_HASH];
    struct stat st;
    snprintf(file, sizeof file, "%s.kv", hash128_hex(w->name.hash, hex));
    pthread_mutex_lock(&d->shard_locks[w->shard]);
    const bool there = fstatat(w->folder, file, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (!there && errno != ENOENT)
        w->walk->unseen = true;
    shard_at(w)->at = w->at + 1;
    if (there) {
        const uint64_t bytes = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
        store_count_add(d, bytes);
        c->bytes[folder_number(w)] += bytes;
    }
    pthread_mutex_unlock(&d->shard_locks[w->shard]);
}

static void leave(struct store_walker *w)
{
    struct store_dir *d = w->walk->dir;
    pthread_mutex_lock(&d->shard_locks[w->shard]);
    *shard_at(w) = (struct store_shard){.state = STORE_COUNTED};
    pthread_mutex_unlock(&d->shard_locks[w->shard]);
}

static void take(struct store_walker *w)
{
    struct store_dir *d = w->walk->dir;
    struct counter *c = LIST_ENTRY(w, struct counter, w);
    for (size_t i = 0; c->bytes && i < d->n_folders; i++)
        d->folders[i].bytes += c->bytes[i];
    free(c->bytes);
}

static void end(struct store_walk *walk)
{
    struct counting *c = LIST_ENTRY(walk, struct counting, walk);
    walk->dir->counted = true;
    c->done(c->arg);
    free(c);
}

void store_count_start(struct store_dir *d, struct workers *w, void (*done)(void *arg),
                       void *arg)
{
    static const struct store_walk_ops ops = {.walker_size = sizeof(struct counter),
                                              .begin = begin,
                                              .enter = enter,
                                              .file = count_file,
                                              .leave = leave,
                                              .take = take,
                                              .end = end};
    struct counting *c = mem_zalloc(sizeof *c);
    c->done = done;
    c->arg = arg;
    c->walk.ops = &ops;
    c->walk.dir = d;
    c->walk.workers = w;
    c->walk.n_fingerprints = d->n_folders;
    c->walk.fingerprints = mem_array(d->n_folders + 1, sizeof(struct hash128));
    for (size_t i = 0; i < d->n_folders; i++)
        c->walk.fingerprints[i] = d->folders[i].fingerprint;
    store_walk_start(&c->walk);
}

/* ---- the folders that there are ---------------------------------------------------- */

static void on_folder(void *arg, int blocks, const char *name)
{
    struct store_dir *d = arg;
    struct hash128 fingerprint;
    char hex[HASH128_HEX];
    (void)blocks;
    if (!hash128_parse(name, &fingerprint) ||
        strcmp(hash128_hex(fingerprint, hex), name) != 0)
        return;
    d->folders = mem_rearray(d->folders, d->n_folders + 1, sizeof *d->folders);
    d->folders[d->n_folders++] = (struct store_folder){
        .fingerprint = fingerprint,
        .shards = mem_zalloc(STORE_SHARDS * sizeof(struct store_shard))};
}

void store_count_folders(struct store_dir *d)
{
    store_file_each(d->blocks, on_folder, d);
}

void store_count_init(struct store_dir *d)
{
    pthread_rwlock_init(&d->shards_lock, NULL);
    for (size_t i = 0; i < STORE_SHARDS; i++)
        pthread_mutex_init(&d->shard_locks[i], NULL);
}

void store_count_free(struct store_dir *d)
{
    pthread_rwlock_destroy(&d->shards_lock);
    for (size_t i = 0; i < STORE_SHARDS; i++)
        pthread_mutex_destroy(&d->shard_locks[i]);
    for (size_t i = 0; i < d->n_folders; i++)
        free(d->folders[i].shards);
    free(d->folders);
}
