/* SPDX-License-Identifier: MIT */
#include "store_internal.h"

/*
 * Going through the directory: what a recovery can use, what may go because nobody here
 * knows its fingerprint.
 *
 * A recovery tells parents before children and otherwise the least recently used first.
 * These two pull in different directions (a parent is used whenever a child is, so it is
 * the younger one). What counts is the order of the leaves, since leaves are what is
 * evicted, so a parent takes the age of its oldest descendant:
 *
 *     file times   A 90 ─┬─ B 20          told as   A 20, B 20, C 90
 *                        └─ C 90
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

static int64_t ns_of(struct timespec t)
{
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* ---- all files of a fingerprint ---------------------------------------------------- */

struct pass {
    struct hash128 fingerprint;
    store_scan_fn fn;
    void *arg;
    unsigned shard;
    bool unseen; /* a part could not be looked at */
};

static void on_file(void *arg, int shard, const char *file)
{
    struct pass *p = arg;
    struct store_name name = {.fingerprint = p->fingerprint};
    struct stat st;
    if (!store_walk_parse(file, p->shard, &name.hash))
        return;
    if (fstatat(shard, file, &st, AT_SYMLINK_NOFOLLOW) == 0)
        p->fn(p->arg, shard, &name, &st);
    else if (errno != ENOENT)
        p->unseen = true;
}

static void on_shard(void *arg, int folder, const char *name)
{
    struct pass *p = arg;
    char own[3];
    p->shard = (unsigned)strtoul(name, NULL, 16);
    snprintf(own, sizeof own, "%02x", p->shard & 0xff);
    if (strcmp(own, name) != 0)
        return;
    const int shard = store_file_folder(folder, name, false);
    if (shard < 0) {
        p->unseen |= !store_file_is_no_folder(errno);
        return;
    }
    p->unseen |= !store_file_each(shard, on_file, arg);
    close(shard);
}

bool store_scan_files(int blocks, struct hash128 fingerprint, store_scan_fn fn, void *arg)
{
    struct pass p = {.fingerprint = fingerprint, .fn = fn, .arg = arg};
    char hex[HASH128_HEX];
    const int folder = store_file_folder(blocks, hash128_hex(fingerprint, hex), false);
    if (folder < 0)
        return store_file_is_no_folder(errno);
    p.unseen |= !store_file_each(folder, on_shard, &p);
    close(folder);
    return !p.unseen;
}

/* ---- recovery: reading ------------------------------------------------------------- */

#define FIRST_READ 512 /* head and ids of a block of 64 tokens, and a little more */

static int read_start(int fd, const struct stat *st, unsigned char *bytes,
                      struct store_head *h, struct err *e)
{
    if (!S_ISREG(st->st_mode))
        return err_set(e, ERR_FORMAT, "not a file");
    const size_t have = store_file_read_some(fd, bytes, STORE_BLOCK_HEAD, FIRST_READ);
    if (!have)
        return store_file_read_failed(e);
    const int rc = store_block_read_head(bytes, (uint64_t)st->st_size, h, e);
    if (rc)
        return rc;
    const size_t wanted = STORE_BLOCK_HEAD + 4 * (size_t)h->n_tokens;
    if (have < wanted && !store_file_read(fd, bytes + have, wanted - have))
        return store_file_read_failed(e);
    return store_block_head_ok(bytes, h)
               ? 0
               : err_set(e, ERR_CHECKSUM, "checksum of the head is wrong");
}

int store_scan_head(int shard, const struct store_name *name,
                    unsigned char bytes[STORE_SCAN_BYTES], struct store_head *h,
                    struct stat *st, struct err *e)
{
    char file[STORE_FILE_HASH], hex[HASH128_HEX];
    snprintf(file, sizeof file, "%s.kv", hash128_hex(name->hash, hex));
    const int fd = openat(shard, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return err_set(e, ERR_NOT_FOUND, "has gone");
    if (fd < 0 && errno == ELOOP)
        return err_set(e, ERR_FORMAT, "is a symbolic link");
    if (fd < 0)
        return err_errno(e, "opening it");
    int rc = fstat(fd, st) == 0 ? read_start(fd, st, bytes, h, e) : err_errno(e, "fstat");
    if (!rc && (!hash128_eq(h->fingerprint, name->fingerprint) ||
                !hash128_eq(h->hash, name->hash)))
        rc = err_set(e, ERR_MISMATCH, "holds another block");
    close(fd);
    return rc;
}

struct reader {
    struct store_walker w;
    struct store_scan_list found;
    unsigned char bytes[STORE_SCAN_BYTES];
};

static void keep_found(struct reader *r, const struct store_head *h,
                       const struct stat *st)
{
    struct store_scan_list *l = &r->found;
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 1024;
        l->items = mem_rearray(l->items, l->cap, sizeof *l->items);
    }
    l->items[l->n++] = (struct store_found){
        .head = *h,
        .tokens = (uint32_t *)(void *)mem_dup(r->bytes + STORE_BLOCK_HEAD,
                                              4 * (size_t)h->n_tokens),
        .used_ns = ns_of(st->st_mtim),
        .fresh = ns_of(st->st_ctim) >= r->w.walk->dir->opened_ns,
    };
}

static void read_file(struct store_walker *w)
{
    struct reader *r = LIST_ENTRY(w, struct reader, w);
    struct store_dir *d = w->walk->dir;
    struct store_head h;
    struct stat st;
    struct err e = {0};
    const int rc = store_scan_head(w->folder, &w->name, r->bytes, &h, &st, &e);
    d->n_heads++;
    if (rc == 0)
        keep_found(r, &h, &st);
    else if (rc == ERR_IO)
        w->walk->unseen = true;
    else if (rc != ERR_NOT_FOUND)
        store_dir_set_aside(d, w->folder, &w->name, e.text);
}

/* ---- recovery: order --------------------------------------------------------------- */

static int compare_hashes(struct hash128 a, struct hash128 b)
{
    if (a.hi != b.hi)
        return a.hi < b.hi ? -1 : 1;
    return a.lo == b.lo ? 0 : a.lo < b.lo ? -1 : 1;
}

static const struct store_found *found_at(const void *p)
{
    return *(const struct store_found *const *)p;
}

static int by_hash(const void *x, const void *y)
{
    return compare_hashes(found_at(x)->head.hash, found_at(y)->head.hash);
}

static int by_index(const void *x, const void *y)
{
    const struct store_found *a = found_at(x), *b = found_at(y);
    return a->head.index == b->head.index ? 0 : a->head.index < b->head.index ? -1 : 1;
}

static int by_age(const void *x, const void *y)
{
    const struct store_found *a = found_at(x), *b = found_at(y);
    if (a->used_ns != b->used_ns)
        return a->used_ns < b->used_ns ? -1 : 1;
    const int order = by_index(x, y);
    return order ? order : by_hash(x, y);
}

static void find_parents(struct store_scan_list *l)
{
    qsort(l->order, l->n, sizeof *l->order, by_hash);
    for (size_t i = 0; i < l->n; i++) {
        const struct store_found wanted = {.head.hash = l->items[i].head.parent};
        const struct store_found *key = &wanted;
        struct store_found **at =
            bsearch(&key, l->order, l->n, sizeof *l->order, by_hash);
        if (at && (*at)->head.index + 1 == l->items[i].head.index)
            l->items[i].parent = *at;
    }
}

/* Parents know first whether they are whole, children first how long they wait. */
static void link_found(struct store_scan_list *l)
{
    find_parents(l);
    qsort(l->order, l->n, sizeof *l->order, by_index);
    for (size_t i = 0; i < l->n; i++) {
        struct store_found *f = l->order[i];
        f->whole = f->head.index == 0 || (f->parent && f->parent->whole);
    }
    for (size_t i = l->n; i-- > 0;) {
        struct store_found *f = l->order[i];
        if (f->parent && f->used_ns < f->parent->used_ns)
            f->parent->used_ns = f->used_ns;
    }
}

/*
 * Without its parents a block can never be reached. Of blocks that were written since we
 * opened, the parent may just not have been seen: these stay. So do all where a part of
 * the directory could not be read.
 */
static void part_orphans(struct store_dir *d, struct store_scan_list *l, bool unseen)
{
    size_t kept = 0;
    for (size_t i = 0; i < l->n; i++) {
        struct store_found *f = l->order[i];
        if (f->whole) {
            l->order[kept++] = f;
        } else if (!f->fresh && !unseen) {
            const struct store_name name = {f->head.fingerprint, f->head.hash};
            d->tier.ops->drop(&d->tier, &name);
            d->n_orphans++;
        }
    }
    l->n_order = kept;
}

static void put_in_order(struct store_dir *d, struct store_scan_list *l, bool unseen)
{
    if (unseen)
        log_event(LOG_WARN, "store-not-read-whole", "dir", "%s", d->path, NULL);
    l->order = mem_array(l->n + 1, sizeof(struct store_found *));
    for (size_t i = 0; i < l->n; i++)
        l->order[i] = &l->items[i];
    link_found(l);
    part_orphans(d, l, unseen);
    qsort(l->order, l->n_order, sizeof *l->order, by_age);
}

void store_scan_free(struct store_scan_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->items[i].tokens);
    free(l->items);
    free(l->order);
    *l = (struct store_scan_list){0};
}

/* ---- recovery: in the background --------------------------------------------------- */

struct scan {
    struct store_walk walk;
    struct store_scan_list *parts; /* what each walker has found */
    size_t n_parts;
    struct store_scan_list all;
    void (*done)(void *arg, struct store_scan_list *l);
    void *arg;
};

static void leave_shard(struct store_walker *w)
{
    (void)w;
}

static void take_found(struct store_walker *w)
{
    struct reader *r = LIST_ENTRY(w, struct reader, w);
    struct scan *c = LIST_ENTRY(w->walk, struct scan, walk);
    c->parts = mem_rearray(c->parts, c->n_parts + 1, sizeof *c->parts);
    c->parts[c->n_parts++] = r->found;
}

static void join_parts(struct scan *c)
{
    struct store_scan_list *all = &c->all;
    for (size_t i = 0; i < c->n_parts; i++)
        all->cap += c->parts[i].n;
    all->items = mem_array(all->cap + 1, sizeof *all->items);
    for (size_t i = 0; i < c->n_parts; i++) {
        const struct store_scan_list *part = &c->parts[i];
        if (part->n)
            memcpy(all->items + all->n, part->items, part->n * sizeof *all->items);
        all->n += part->n;
        free(part->items);
    }
    free(c->parts);
}

/* Of a walk that was cut short nothing may be concluded. */
static void run_order(void *arg)
{
    struct scan *c = arg;
    join_parts(c);
    if (c->walk.dir->stopped)
        store_scan_free(&c->all);
    else
        put_in_order(c->walk.dir, &c->all, c->walk.unseen);
}

static void on_ordered(void *arg)
{
    struct scan *c = arg;
    c->done(c->arg, &c->all);
    free(c);
}

static void end_scan(struct store_walk *walk)
{
    struct scan *c = LIST_ENTRY(walk, struct scan, walk);
    workers_submit(walk->workers, run_order, on_ordered, c);
}

void store_scan_start(struct store_dir *d, struct workers *w, struct hash128 fingerprint,
                      void (*done)(void *arg, struct store_scan_list *l), void *arg)
{
    static const struct store_walk_ops ops = {.walker_size = sizeof(struct reader),
                                              .begin = store_walk_find,
                                              .enter = store_walk_list,
                                              .file = read_file,
                                              .leave = leave_shard,
                                              .take = take_found,
                                              .end = end_scan};
    struct scan *c = mem_zalloc(sizeof *c);
    c->done = done;
    c->arg = arg;
    c->walk.ops = &ops;
    c->walk.dir = d;
    c->walk.workers = w;
    c->walk.n_fingerprints = 1;
    c->walk.fingerprints = mem_array(1, sizeof(struct hash128));
    c->walk.fingerprints[0] = fingerprint;
    store_walk_start(&c->walk);
}

/* ---- pruning ----------------------------------------------------------------------- */

struct old_file {
    struct store_name name;
    int64_t used_ns;
    uint64_t bytes;
    size_t folder;
};

struct old_files {
    struct old_file *v;
    size_t n, cap, folder;
};

static void list_file(void *arg, int shard, const struct store_name *name,
                      const struct stat *st)
{
    struct old_files *l = arg;
    (void)shard;
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 1024;
        l->v = mem_rearray(l->v, l->cap, sizeof *l->v);
    }
    l->v[l->n++] = (struct old_file){
        .name = *name,
        .used_ns = ns_of(st->st_mtim),
        .bytes = S_ISREG(st->st_mode) ? (uint64_t)st->st_size : 0,
        .folder = l->folder,
    };
}

static int by_use(const void *x, const void *y)
{
    const struct old_file *a = x, *b = y;
    if (a->used_ns != b->used_ns)
        return a->used_ns < b->used_ns ? -1 : 1;
    return compare_hashes(a->name.hash, b->name.hash);
}

static void remove_folder(void *arg, int folder, const char *name)
{
    (void)arg;
    unlinkat(folder, name, AT_REMOVEDIR); /* stays where it is not empty */
}

static void remove_empty(struct store_dir *d, struct hash128 fingerprint)
{
    char hex[HASH128_HEX];
    const int folder = store_file_folder(d->blocks, hash128_hex(fingerprint, hex), false);
    if (folder < 0)
        return;
    store_file_each(folder, remove_folder, NULL);
    close(folder);
    unlinkat(d->blocks, hex, AT_REMOVEDIR);
}

void store_scan_prune(struct store_dir *d, struct store_folder *folders, size_t n,
                      uint64_t keep_bytes)
{
    struct old_files l = {0};
    uint64_t left = 0;
    for (l.folder = 0; l.folder < n; l.folder++)
        store_scan_files(d->blocks, folders[l.folder].fingerprint, list_file, &l);
    for (size_t i = 0; i < n; i++)
        folders[i].bytes = 0;
    for (size_t i = 0; i < l.n; i++)
        left += l.v[i].bytes;
    if (l.n)
        qsort(l.v, l.n, sizeof *l.v, by_use);
    for (size_t i = 0; i < l.n && !d->stopped; i++) {
        const struct old_file *f = &l.v[i];
        if (left > keep_bytes) {
            d->tier.ops->drop(&d->tier, &f->name);
            left -= f->bytes;
        } else {
            folders[f->folder].bytes += f->bytes;
        }
    }
    for (size_t i = 0; i < n; i++)
        if (folders[i].bytes == 0)
            remove_empty(d, folders[i].fingerprint);
    free(l.v);
}
