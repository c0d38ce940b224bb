/* SPDX-License-Identifier: MIT */
#include "store/archive.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "archive_internal.h"
#include "base/clock.h"
#include "base/mem.h"
#include "store/inventory.h"

/* ---- out --------------------------------------------------------------------------- */

struct export
{
    struct archive_writer w;
    struct inventory v;
    bool *written; /* of each block */
    int blocks;    /* blocks/ */
    uint64_t left_out;
};

static int open_shard(int blocks, const struct store_head *h)
{
    char hex[HASH128_HEX];
    const int folder = store_file_folder(blocks, hash128_hex(h->fingerprint, hex), false);
    if (folder < 0)
        return -1;
    hash128_hex(h->hash, hex)[2] = '\0';
    const int shard = store_file_folder(folder, hex, false);
    close(folder);
    return shard;
}

static void export_block(struct export *x, size_t i)
{
    const struct inventory_block *b = &x->v.blocks[i];
    const struct store_name name = {b->head.fingerprint, b->head.hash};
    struct store_block *block = NULL;
    int rc = ERR_NOT_FOUND;
    if (b->cut_off || (b->parent != INVENTORY_NONE && !x->written[b->parent])) {
        x->left_out++;
        return;
    }
    const int shard = open_shard(x->blocks, &b->head);
    if (shard >= 0) {
        rc = store_dir_read(shard, &name, &block, NULL);
        close(shard);
    }
    if (rc == 0) {
        archive_format_block(&x->w, block, b->used_ns);
        x->written[i] = true;
    } else if (rc != ERR_NOT_FOUND) {
        x->left_out++;
    }
    store_block_put(block);
}

/* What a prompt record needs: a block by its hash alone. */
struct written {
    struct hash128 hash;
    uint32_t index;
};

static int by_hash(const void *x, const void *y)
{
    const struct written *a = x, *b = y;
    if (a->hash.hi != b->hash.hi)
        return a->hash.hi < b->hash.hi ? -1 : 1;
    return a->hash.lo == b->hash.lo ? 0 : a->hash.lo < b->hash.lo ? -1 : 1;
}

static void export_prompts(struct export *x, const char *dir)
{
    struct prompt_record *records;
    const size_t n_records = prompt_log_load(dir, &records);
    struct written *index = mem_array(x->v.n_blocks + 1, sizeof *index);
    size_t n = 0;
    for (size_t i = 0; i < x->v.n_blocks; i++)
        if (x->written[i])
            index[n++] =
                (struct written){x->v.blocks[i].head.hash, x->v.blocks[i].head.index};
    qsort(index, n, sizeof *index, by_hash);
    for (size_t i = 0; i < n_records; i++) {
        const struct written wanted = {.hash = records[i].block};
        const struct written *at = bsearch(&wanted, index, n, sizeof *index, by_hash);
        if (at && at->index + 1 == records[i].n_blocks)
            archive_format_prompt(&x->w, &records[i]);
    }
    free(index);
    free(records);
}

static int make_header(int root, const char *dir, const char *key_file, bool with_key,
                       struct archive_header *h, struct err *e)
{
    unsigned char key[CHAIN_KEY_BYTES];
    const int rc = key_file ? store_key_read(key_file, key, e)
                            : store_dir_read_key(root, dir, key, e);
    if (rc)
        return rc;
    *h = (struct archive_header){.key_id = archive_key_id(key), .with_key = with_key};
    if (with_key)
        memcpy(h->key, key, sizeof h->key);
    return 0;
}

int archive_export(const char *dir, const char *key_file, const struct hash128 *only,
                   bool with_key, FILE *out, struct archive_count *n, struct err *e)
{
    struct export x = {.blocks = -1};
    struct archive_header h;
    *n = (struct archive_count){0};
    const int root = store_dir_peek(dir, e);
    if (root < 0)
        return ERR_IO;
    int rc = make_header(root, dir, key_file, with_key, &h, e);
    if (!rc)
        rc = inventory_read(&x.v, dir, true, only, e);
    if (!rc) {
        x.blocks = store_file_folder(root, "blocks", false);
        x.written = mem_zalloc(x.v.n_blocks + 1);
        archive_format_start(&x.w, out, &h);
        for (size_t i = 0; i < x.v.n_blocks; i++)
            export_block(&x, i);
        export_prompts(&x, dir);
        rc = archive_format_end(&x.w, e);
    }
    *n = x.w.n;
    n->left_out = x.left_out + x.v.bad_heads;
    if (x.blocks >= 0)
        close(x.blocks);
    close(root);
    free(x.written);
    inventory_free(&x.v);
    return rc;
}

/* ---- in ---------------------------------------------------------------------------- */

struct import {
    const char *path, *key_file;
    struct store_dir *d;
    int64_t now_ns;
    struct archive_count *n;
    struct prompt_record *prompts;
    size_t n_prompts, cap;
};

/* A directory without blocks takes the archive's key over; a key file stays as it is. */
static int take_key(struct import *m, const struct archive_header *h,
                    unsigned char key[CHAIN_KEY_BYTES], struct err *e)
{
    if (!h->with_key || m->key_file)
        return err_set(e, ERR_MISMATCH,
                       "the archive was made with another key than that of %s, so its "
                       "blocks are of no use there: %s",
                       m->key_file ? m->key_file : m->path,
                       m->key_file ? "give the key file of the store it came from"
                                   : "export it --with-key and import it into an empty "
                                     "directory");
    if (store_dir_has_blocks(m->d))
        return err_set(e, ERR_MISMATCH,
                       "%s has blocks and another key than the archive: import into an "
                       "empty directory",
                       m->path);
    memcpy(key, h->key, CHAIN_KEY_BYTES);
    return store_dir_adopt_key(m->d, h->key, e);
}

static int on_header(void *arg, const struct archive_header *h,
                     unsigned char key[CHAIN_KEY_BYTES], struct err *e)
{
    struct import *m = arg;
    if (m->key_file && store_key_read(m->key_file, key, e) != 0)
        return e->code;
    m->d = store_dir_open(m->path, e);
    if (!m->d)
        return e->code;
    if (!m->key_file)
        memcpy(key, m->d->key, CHAIN_KEY_BYTES);
    return hash128_eq(archive_key_id(key), h->key_id) ? 0 : take_key(m, h, key, e);
}

static int on_block(void *arg, struct store_block *b, int64_t used_ns, struct err *e)
{
    struct import *m = arg;
    const struct store_name name = {b->head.fingerprint, b->head.hash};
    if (store_dir_has(m->d, &name)) {
        m->n->known++;
        return 0;
    }
    const int rc = m->d->tier.ops->put(&m->d->tier, b, e);
    if (rc)
        return rc;
    if (used_ns >= 0)
        store_dir_set_used(m->d, &name, used_ns < m->now_ns ? used_ns : m->now_ns);
    m->n->blocks++;
    m->n->bytes += store_block_bytes(&b->head);
    return 0;
}

static int on_prompt(void *arg, const struct prompt_record *r, struct err *e)
{
    struct import *m = arg;
    (void)e;
    if (m->n_prompts == m->cap) {
        m->cap = m->cap ? 2 * m->cap : 256;
        m->prompts = mem_rearray(m->prompts, m->cap, sizeof *m->prompts);
    }
    m->prompts[m->n_prompts++] = *r;
    return 0;
}

static int by_boundary(const void *x, const void *y)
{
    const struct prompt_record *a = x, *b = y;
    return memcmp(&a->boundary.hash, &b->boundary.hash, sizeof a->boundary.hash);
}

/* Those that are not there yet. */
static void add_prompts(struct import *m)
{
    struct prompt_record *known;
    const size_t n_known = prompt_log_load(m->path, &known);
    struct prompt_log *log = prompt_log_open(m->path, UINT64_MAX, NULL);
    if (n_known)
        qsort(known, n_known, sizeof *known, by_boundary);
    for (size_t i = 0; i < m->n_prompts; i++)
        if (!n_known ||
            !bsearch(&m->prompts[i], known, n_known, sizeof *known, by_boundary)) {
            prompt_log_add(log, &m->prompts[i]);
            m->n->prompts++;
        }
    prompt_log_close(log);
    free(known);
}

int archive_import(const char *dir, const char *key_file, FILE *in,
                   struct archive_count *n, struct err *e)
{
    static const struct archive_sink sink = {on_header, on_block, on_prompt};
    struct err unused = {0};
    struct import m = {.path = dir,
                       .key_file = key_file,
                       .n = n,
                       .now_ns = (int64_t)clock_wall_ms() * 1000000};
    *n = (struct archive_count){0};
    const int rc = archive_format_read(in, &sink, &m, e ? e : &unused);
    if (!rc)
        add_prompts(&m);
    free(m.prompts);
    if (m.d)
        m.d->tier.ops->close(&m.d->tier);
    return rc;
}
