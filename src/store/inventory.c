/* SPDX-License-Identifier: MIT */
#include "store/inventory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "store/prompt_log.h"
#include "store_internal.h"

struct reader {
    struct inventory *v;
    bool heads;
    const struct hash128 *only;
    size_t cap;
    unsigned char bytes[STORE_SCAN_BYTES];
};

static int64_t ns_of(struct timespec t)
{
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* ---- files ------------------------------------------------------------------------- */

static void read_head(struct reader *r, int shard, const struct store_name *name,
                      const struct stat *st)
{
    struct inventory *v = r->v;
    struct store_head h;
    struct stat again;
    const int rc = store_scan_head(shard, name, r->bytes, &h, &again, NULL);
    if (rc == ERR_NOT_FOUND)
        return;
    if (rc) {
        v->bad_heads++;
        return;
    }
    if (v->n_blocks == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 1024;
        v->blocks = mem_rearray(v->blocks, r->cap, sizeof *v->blocks);
    }
    v->blocks[v->n_blocks++] = (struct inventory_block){.head = h,
                                                        .bytes = (uint64_t)st->st_size,
                                                        .used_ns = ns_of(st->st_mtim),
                                                        .parent = INVENTORY_NONE};
}

static void on_file(void *arg, int shard, const struct store_name *name,
                    const struct stat *st)
{
    struct reader *r = arg;
    struct inventory_model *m = &r->v->models[r->v->n_models - 1];
    const int64_t used = ns_of(st->st_mtim);
    m->oldest_ns = m->blocks && m->oldest_ns < used ? m->oldest_ns : used;
    m->newest_ns = m->blocks && m->newest_ns > used ? m->newest_ns : used;
    m->blocks++;
    m->bytes += S_ISREG(st->st_mode) ? (uint64_t)st->st_size : 0;
    if (r->heads && (!r->only || hash128_eq(*r->only, name->fingerprint)))
        read_head(r, shard, name, st);
}

static void on_folder(void *arg, int blocks, const char *name)
{
    struct reader *r = arg;
    struct inventory *v = r->v;
    struct hash128 fingerprint;
    if (!hash128_parse(name, &fingerprint))
        return;
    v->models = mem_rearray(v->models, v->n_models + 1, sizeof *v->models);
    v->models[v->n_models++] = (struct inventory_model){.fingerprint = fingerprint};
    store_scan_files(blocks, fingerprint, on_file, r);
    if (v->models[v->n_models - 1].blocks == 0)
        v->n_models--;
}

struct folder_size {
    uint64_t files, bytes;
};

static void add_file(void *arg, int folder, const char *name)
{
    struct folder_size *s = arg;
    struct stat st;
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    s->files++;
    s->bytes += S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
}

static struct folder_size size_of(int root, const char *name)
{
    struct folder_size s = {0};
    const int folder = store_file_folder(root, name, false);
    if (folder >= 0) {
        store_file_each(folder, add_file, &s);
        close(folder);
    }
    return s;
}

static void read_rest(struct inventory *v, int root, const char *dir)
{
    unsigned char key[CHAIN_KEY_BYTES];
    struct prompt_record *records = NULL;
    struct folder_size prompts = {0};
    const struct folder_size damaged = size_of(root, "damaged");
    add_file(&prompts, root, "prompts.log");
    add_file(&prompts, root, "prompts.log.1");
    v->damaged_files = damaged.files;
    v->damaged_bytes = damaged.bytes;
    v->notes = size_of(root, "notes").files;
    v->prompt_bytes = prompts.bytes;
    v->prompt_records = prompt_log_load(dir, &records);
    v->has_key = store_dir_read_key(root, dir, key, NULL) == 0;
    free(records);
}

/* ---- order ------------------------------------------------------------------------- */

static int compare_hashes(struct hash128 a, struct hash128 b)
{
    if (a.hi != b.hi)
        return a.hi < b.hi ? -1 : 1;
    return a.lo == b.lo ? 0 : a.lo < b.lo ? -1 : 1;
}

static int by_place(const void *x, const void *y)
{
    const struct inventory_block *a = x, *b = y;
    const int model = compare_hashes(a->head.fingerprint, b->head.fingerprint);
    if (model)
        return model;
    if (a->head.index != b->head.index)
        return a->head.index < b->head.index ? -1 : 1;
    return compare_hashes(a->head.hash, b->head.hash);
}

static int by_newest(const void *x, const void *y)
{
    const struct inventory_model *a = x, *b = y;
    if (a->newest_ns != b->newest_ns)
        return a->newest_ns > b->newest_ns ? -1 : 1;
    return compare_hashes(a->fingerprint, b->fingerprint);
}

static void find_parent(struct inventory *v, size_t i)
{
    struct inventory_block *b = &v->blocks[i];
    if (b->head.index == 0)
        return;
    const struct inventory_block wanted = {.head = {.fingerprint = b->head.fingerprint,
                                                    .index = b->head.index - 1,
                                                    .hash = b->head.parent}};
    const struct inventory_block *at =
        bsearch(&wanted, v->blocks, i, sizeof *v->blocks, by_place);
    b->parent = at ? (size_t)(at - v->blocks) : INVENTORY_NONE;
    b->cut_off = !at || at->cut_off;
}

static void link_blocks(struct inventory *v)
{
    if (v->n_models)
        qsort(v->models, v->n_models, sizeof *v->models, by_newest);
    if (v->n_blocks)
        qsort(v->blocks, v->n_blocks, sizeof *v->blocks, by_place);
    for (size_t i = 0; i < v->n_blocks; i++)
        find_parent(v, i);
    for (size_t i = v->n_blocks; i-- > 0;) {
        const struct inventory_block *b = &v->blocks[i];
        if (b->parent != INVENTORY_NONE && v->blocks[b->parent].used_ns < b->used_ns)
            v->blocks[b->parent].used_ns = b->used_ns;
    }
}

int inventory_read(struct inventory *v, const char *dir, bool heads,
                   const struct hash128 *only, struct err *e)
{
    *v = (struct inventory){0};
    const int root = store_dir_peek(dir, e);
    if (root < 0)
        return ERR_IO;
    struct reader *r = mem_zalloc(sizeof *r);
    const int blocks = store_file_folder(root, "blocks", false);
    r->v = v;
    r->heads = heads;
    r->only = only;
    if (blocks >= 0) {
        store_file_each(blocks, on_folder, r);
        close(blocks);
    }
    read_rest(v, root, dir);
    link_blocks(v);
    close(root);
    free(r);
    return 0;
}

void inventory_free(struct inventory *v)
{
    free(v->models);
    free(v->blocks);
    *v = (struct inventory){0};
}
