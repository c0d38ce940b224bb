/* SPDX-License-Identifier: MIT */
#include "store_internal.h"

/*
 * Going through the directory: what is there when we open it, what a recovery can use,
 * what may go because nobody here knows its fingerprint.
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

struct walk {
    struct hash128 fingerprint;
    store_scan_fn fn;
    void *arg;
    char shard[4];
    bool unseen; /* a part could not be looked at */
};

/* "<32 hex>.kv", in the folder that belongs to it; other names are not ours. */
static bool parse_file_name(const char *file, struct hash128 *hash)
{
    char hex[HASH128_HEX], again[HASH128_HEX];
    if (strlen(file) != STORE_FILE_HASH - 1 || strcmp(file + HASH128_HEX - 1, ".kv") != 0)
        return false;
    memcpy(hex, file, HASH128_HEX - 1);
    hex[HASH128_HEX - 1] = '\0';
    return hash128_parse(hex, hash) && strcmp(hash128_hex(*hash, again), hex) == 0;
}

static void on_file(void *arg, int shard, const char *file)
{
    struct walk *w = arg;
    struct store_name name = {.fingerprint = w->fingerprint};
    struct stat st;
    if (!parse_file_name(file, &name.hash) || strncmp(file, w->shard, 2) != 0)
        return;
    if (fstatat(shard, file, &st, AT_SYMLINK_NOFOLLOW) == 0)
        w->fn(w->arg, shard, &name, &st);
    else if (errno != ENOENT)
        w->unseen = true;
}

/* Nothing of ours is there, or a link or a file in its place. */
static bool is_no_folder(int why)
{
    return why == ENOENT || why == ENOTDIR || why == ELOOP;
}

static void on_shard(void *arg, int folder, const char *name)
{
    struct walk *w = arg;
    if (strlen(name) != 2)
        return;
    const int shard = store_file_folder(folder, name, false);
    if (shard < 0) {
        w->unseen |= !is_no_folder(errno);
        return;
    }
    memcpy(w->shard, name, 3);
    w->unseen |= !store_file_each(shard, on_file, arg);
    close(shard);
}

bool store_scan_files(int blocks, struct hash128 fingerprint, store_scan_fn fn, void *arg)
{
    struct walk w = {.fingerprint = fingerprint, .fn = fn, .arg = arg};
    char hex[HASH128_HEX];
    const int folder = store_file_folder(blocks, hash128_hex(fingerprint, hex), false);
    if (folder < 0)
        return is_no_folder(errno);
    w.unseen |= !store_file_each(folder, on_shard, &w);
    close(folder);
    return !w.unseen;
}

/* ---- what is there when we open ---------------------------------------------------- */

struct usage {
    uint64_t blocks, bytes;
};

static void count_file(void *arg, int shard, const struct store_name *name,
                       const struct stat *st)
{
    struct usage *u = arg;
    (void)shard;
    (void)name;
    u->blocks++;
    u->bytes += S_ISREG(st->st_mode) ? (uint64_t)st->st_size : 0;
}

static void on_folder(void *arg, int blocks, const char *name)
{
    struct store_dir *d = arg;
    struct usage u = {0};
    struct hash128 fingerprint;
    if (!hash128_parse(name, &fingerprint))
        return;
    store_scan_files(blocks, fingerprint, count_file, &u);
    d->folders = mem_rearray(d->folders, d->n_folders + 1, sizeof *d->folders);
    d->folders[d->n_folders++] =
        (struct store_folder){.fingerprint = fingerprint, .bytes = u.bytes};
    d->tier.blocks += u.blocks;
    d->tier.bytes += u.bytes;
}

void store_scan_folders(struct store_dir *d)
{
    store_file_each(d->blocks, on_folder, d);
}

/* ---- recovery: reading ------------------------------------------------------------- */

struct recovery {
    struct store_dir *d;
    struct store_scan_list *list;
    bool unseen; /* there is more that could not be read */
    unsigned char bytes[STORE_SCAN_BYTES];
};

static int read_start(int fd, const struct stat *st, unsigned char *bytes,
                      struct store_head *h, struct err *e)
{
    if (!S_ISREG(st->st_mode))
        return err_set(e, ERR_FORMAT, "not a file");
    if (!store_file_read(fd, bytes, STORE_BLOCK_HEAD))
        return store_file_read_failed(e);
    const int rc = store_block_read_head(bytes, (uint64_t)st->st_size, h, e);
    if (rc)
        return rc;
    if (!store_file_read(fd, bytes + STORE_BLOCK_HEAD, 4 * (size_t)h->n_tokens))
        return store_file_read_failed(e);
    return store_block_head_ok(bytes, h)
               ? 0
               : err_set(e, ERR_CHECKSUM, "checksum of the head is wrong");
}

int store_scan_head(int shard, const struct store_name *name, const struct stat *st,
                    unsigned char bytes[STORE_SCAN_BYTES], struct store_head *h,
                    struct err *e)
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
    int rc = read_start(fd, st, bytes, h, e);
    if (!rc && (!hash128_eq(h->fingerprint, name->fingerprint) ||
                !hash128_eq(h->hash, name->hash)))
        rc = err_set(e, ERR_MISMATCH, "holds another block");
    close(fd);
    return rc;
}

static void keep_found(struct recovery *r, const struct store_head *h,
                       const struct stat *st)
{
    struct store_scan_list *l = r->list;
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 1024;
        l->items = mem_rearray(l->items, l->cap, sizeof *l->items);
    }
    l->items[l->n++] = (struct store_found){
        .head = *h,
        .tokens = (uint32_t *)(void *)mem_dup(r->bytes + STORE_BLOCK_HEAD,
                                              4 * (size_t)h->n_tokens),
        .used_ns = ns_of(st->st_mtim),
        .fresh = ns_of(st->st_ctim) >= r->d->opened_ns,
    };
}

static void recover_file(void *arg, int shard, const struct store_name *name,
                         const struct stat *st)
{
    struct recovery *r = arg;
    struct store_head h;
    struct err e = {0};
    const int rc = store_scan_head(shard, name, st, r->bytes, &h, &e);
    if (rc == 0)
        keep_found(r, &h, st);
    else if (rc == ERR_IO)
        r->unseen = true;
    else if (rc != ERR_NOT_FOUND)
        store_dir_set_aside(r->d, shard, name, e.text);
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

void store_scan_read(struct store_dir *d, struct hash128 fingerprint,
                     struct store_scan_list *out)
{
    struct recovery *r = mem_zalloc(sizeof *r);
    *out = (struct store_scan_list){0};
    r->d = d;
    r->list = out;
    const bool all = store_scan_files(d->blocks, fingerprint, recover_file, r);
    const bool unseen = r->unseen || !all;
    free(r);
    if (unseen)
        log_event(LOG_WARN, "store-not-read-whole", "dir", "%s", d->path, NULL);
    out->order = mem_array(out->n + 1, sizeof(struct store_found *));
    for (size_t i = 0; i < out->n; i++)
        out->order[i] = &out->items[i];
    link_found(out);
    part_orphans(d, out, unseen);
    qsort(out->order, out->n_order, sizeof *out->order, by_age);
}

void store_scan_free(struct store_scan_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->items[i].tokens);
    free(l->items);
    free(l->order);
    *l = (struct store_scan_list){0};
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
    for (size_t i = 0; i < l.n; i++) {
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
