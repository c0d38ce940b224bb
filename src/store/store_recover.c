/* SPDX-License-Identifier: MIT */
#include "store_internal.h"

/*
 * What was in the directory before we came. Three things go through its files, all in the
 * background:
 *
 *     counting   once, from opening on: how much there is of each fingerprint
 *     scans      of a fingerprint: heads in order, for the block tree
 *     pruning    of fingerprints that nobody here uses; only when all is counted
 */

#include <stdlib.h>

#include "base/mem.h"

#define SCAN_BATCH 256 /* blocks told in one turn of the loop */

/* ---- who waits for it -------------------------------------------------------------- */

struct waiter {
    struct list link;
    void (*cb)(void *arg);
    void *arg;
};

bool store_recovers(const struct store *s)
{
    return s->walks > 0;
}

void store_when_recovered(struct store *s, void (*cb)(void *arg), void *arg)
{
    if (!s->walks) {
        store_defer(s, cb, arg);
        return;
    }
    struct waiter *w = mem_zalloc(sizeof *w);
    w->cb = cb;
    w->arg = arg;
    list_push_back(&s->when_done, &w->link);
}

static void end_walk(struct store *s)
{
    if (--s->walks > 0)
        return;
    while (!list_empty(&s->when_done)) {
        struct waiter *w = LIST_ENTRY(s->when_done.next, struct waiter, link);
        list_del(&w->link);
        store_defer(s, w->cb, w->arg);
        free(w);
    }
}

/* ---- foreign blocks ---------------------------------------------------------------- */

static struct store_folder *find_folder(const struct store *s, struct hash128 fingerprint)
{
    for (size_t i = 0; s->dir && i < s->dir->n_folders; i++)
        if (hash128_eq(s->dir->folders[i].fingerprint, fingerprint))
            return &s->dir->folders[i];
    return NULL;
}

void store_claim(struct store *s, struct hash128 fingerprint)
{
    struct store_folder *f = find_folder(s, fingerprint);
    if (f)
        f->claimed = true;
}

uint64_t store_foreign_bytes(const struct store *s)
{
    uint64_t bytes = 0;
    for (size_t i = 0; s->dir && i < s->dir->n_folders; i++)
        bytes += s->dir->folders[i].claimed ? 0 : s->dir->folders[i].bytes;
    return bytes;
}

uint64_t store_found_bytes(const struct store *s, struct hash128 fingerprint)
{
    const struct store_folder *f = find_folder(s, fingerprint);
    return f ? f->bytes : 0;
}

bool store_counted(const struct store *s)
{
    return !s->dir || s->dir->counted;
}

struct prune {
    struct store *s;
    struct store_folder *folders;
    size_t n;
    uint64_t keep_bytes;
};

static void run_prune(void *arg)
{
    struct prune *p = arg;
    store_scan_prune(p->s->dir, p->folders, p->n, p->keep_bytes);
}

static void on_pruned(void *arg)
{
    struct prune *p = arg;
    struct store *s = p->s;
    for (size_t i = 0; i < p->n; i++)
        find_folder(s, p->folders[i].fingerprint)->bytes = p->folders[i].bytes;
    free(p->folders);
    free(p);
    end_walk(s);
}

static void start_prune(struct store *s)
{
    s->prune = false;
    if (store_foreign_bytes(s) <= s->prune_keep)
        return;
    struct prune *p = mem_zalloc(sizeof *p);
    p->s = s;
    p->keep_bytes = s->prune_keep;
    p->folders = mem_array(s->dir->n_folders, sizeof *p->folders);
    for (size_t i = 0; i < s->dir->n_folders; i++)
        if (!s->dir->folders[i].claimed)
            p->folders[p->n++] = s->dir->folders[i];
    s->walks++;
    workers_submit(s->workers, run_prune, on_pruned, p);
}

void store_prune_foreign(struct store *s, struct hash128 fingerprint, uint64_t keep_bytes)
{
    if (!s->dir)
        return;
    store_claim(s, fingerprint);
    if (!s->prune || keep_bytes < s->prune_keep)
        s->prune_keep = keep_bytes;
    s->prune = true;
    if (s->dir->counted)
        start_prune(s);
}

/* ---- counting ---------------------------------------------------------------------- */

static void on_counted(void *arg)
{
    struct store *s = arg;
    if (s->prune)
        start_prune(s);
    end_walk(s);
}

static void run_tidy(void *arg)
{
    struct store *s = arg;
    store_file_clear(s->dir->tmp, s->dir->life);
}

static void on_tidy(void *arg)
{
    end_walk(arg);
}

void store_recover_start(struct store *s)
{
    s->walks = 2;
    workers_submit(s->workers, run_tidy, on_tidy, s);
    store_count_start(s->dir, s->workers, on_counted, s);
}

/* ---- scans ------------------------------------------------------------------------- */

struct telling {
    struct store *s;
    struct store_scan_list list;
    size_t told;
    store_scan_cb cb;
    void *arg;
};

static void run_free(void *arg)
{
    struct telling *t = arg;
    store_scan_free(&t->list);
}

static void on_freed(void *arg)
{
    struct telling *t = arg;
    end_walk(t->s);
    free(t);
}

static void tell_some(void *arg)
{
    struct telling *t = arg;
    for (int i = 0; i < SCAN_BATCH && t->told < t->list.n_order; i++) {
        struct store_found *f = t->list.order[t->told++];
        const struct store_block b = {
            .head = f->head, .tokens = f->tokens, .used_s = f->used_ns / 1000000000};
        t->cb(t->arg, &b);
        free(f->tokens); /* now: there may be a million of them */
        f->tokens = NULL;
    }
    if (t->told < t->list.n_order) {
        store_defer(t->s, tell_some, t);
        return;
    }
    t->cb(t->arg, NULL);
    workers_submit(t->s->workers, run_free, on_freed, t);
}

static void on_scanned(void *arg, struct store_scan_list *l)
{
    struct telling *t = arg;
    t->list = *l;
    tell_some(t);
}

static void tell_nothing(void *arg)
{
    on_scanned(arg, &(struct store_scan_list){.n = 0});
}

void store_scan(struct store *s, struct hash128 fingerprint, store_scan_cb cb, void *arg)
{
    struct telling *t = mem_zalloc(sizeof *t);
    *t = (struct telling){.s = s, .cb = cb, .arg = arg};
    store_claim(s, fingerprint);
    s->walks++;
    if (s->dir)
        store_scan_start(s->dir, s->workers, fingerprint, on_scanned, t);
    else
        store_defer(s, tell_nothing, t);
}
