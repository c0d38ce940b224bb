/* SPDX-License-Identifier: MIT */

/*
 * Every byte of a directory. What looks wrong is looked at once more before it is told:
 * beside a running gateway a block may go, its parents behind it, between two looks.
 */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/inventory.h"
#include "store_internal.h"

#define YOUNG_MS 60000 /* blocks are not written in order */

struct verify {
    int blocks;                  /* blocks/ */
    struct store_dir *d;         /* NULL: only looks */
    const struct chain_key *key; /* NULL: there is none */
    inventory_fault_cb fault;
    void *arg;
    struct inventory_checked *n;
};

static void tell(struct verify *v, const struct store_name *name, const char *what,
                 const char *todo)
{
    char model[HASH128_HEX], hash[HASH128_HEX], file[128];
    hash128_hex(name->fingerprint, model);
    hash128_hex(name->hash, hash);
    snprintf(file, sizeof file, "blocks/%s/%.2s/%s.kv", model, hash, hash);
    v->n->faults++;
    v->fault(v->arg, file, what, todo);
}

static bool right_hash(const struct verify *v, const struct store_block *b)
{
    const struct hash128 is =
        chain_block(v->key, b->head.parent, b->tokens, b->head.n_tokens);
    return hash128_eq(is, b->head.hash);
}

/* Moves a damaged file away, if asked to. */
static void put_aside(struct verify *v, int shard, const struct store_name *name,
                      const char *why)
{
    tell(v, name, why, v->d ? "moved to damaged/" : "verify --fix moves it to damaged/");
    if (!v->d)
        return;
    store_dir_set_aside(v->d, shard, name, why);
    v->n->fixed++;
}

static void check_file(void *arg, int shard, const struct store_name *name,
                       const struct stat *st)
{
    struct verify *v = arg;
    struct store_block *b = NULL;
    struct err e = {0};
    const int rc = store_dir_read(shard, name, &b, &e);
    if (rc == ERR_NOT_FOUND)
        return;
    v->n->blocks++;
    v->n->bytes += S_ISREG(st->st_mode) ? (uint64_t)st->st_size : 0;
    if (rc == ERR_IO)
        tell(v, name, e.text, "check the disk, then verify again");
    else if (rc)
        put_aside(v, shard, name, e.text);
    else if (v->key && !right_hash(v, b)) /* whole: --fix leaves it alone */
        tell(v, name, "its name is not the hash of its tokens under this key",
             "put back the key it was written with, or prune it");
    store_block_put(b);
}

static void check_model(void *arg, int blocks, const char *name)
{
    struct hash128 fingerprint;
    if (hash128_parse(name, &fingerprint))
        store_scan_files(blocks, fingerprint, check_file, arg);
}

static bool still_there(const struct verify *v, const struct store_name *name)
{
    char model[HASH128_HEX], hash[HASH128_HEX], file[128];
    hash128_hex(name->fingerprint, model);
    hash128_hex(name->hash, hash);
    snprintf(file, sizeof file, "%s/%.2s/%s.kv", model, hash, hash);
    return faccessat(v->blocks, file, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void check_parents(struct verify *v, const struct inventory *i)
{
    const int64_t young = ((int64_t)clock_wall_ms() - YOUNG_MS) * 1000000;
    for (size_t k = 0; k < i->n_blocks; k++) {
        const struct inventory_block *b = &i->blocks[k];
        const struct store_name name = {b->head.fingerprint, b->head.hash};
        const struct store_name parent = {b->head.fingerprint, b->head.parent};
        if (!b->cut_off || !still_there(v, &name))
            continue;
        if (b->parent == INVENTORY_NONE && still_there(v, &parent))
            continue; /* it has come meanwhile, or was told as damaged */
        if (!v->d && b->used_ns > young)
            continue; /* a gateway may be about to write its parent */
        if (v->d) {
            v->d->tier.ops->drop(&v->d->tier, &name);
            v->n->fixed++;
        }
        tell(v, &name, "a block before it is missing, so it can never be used",
             v->d ? "deleted" : "the next start of the gateway deletes it");
    }
}

/* Without a key nothing is of use, but that is one fault and not one for each block. */
static void load_key(struct verify *v, int root, const char *dir, const char *key_file,
                     struct chain_key *key)
{
    unsigned char bytes[CHAIN_KEY_BYTES];
    struct err e = {0};
    if ((key_file ? store_key_read(key_file, bytes, &e)
                  : store_dir_read_key(root, dir, bytes, &e)) == 0) {
        chain_key_init(key, bytes);
        v->key = key;
        return;
    }
    v->n->faults++;
    v->fault(v->arg, "key", e.text,
             "put it back; without it a gateway makes a new one and finds nothing");
}

int inventory_verify(const char *dir, const char *key_file, bool fix,
                     inventory_fault_cb fault, void *arg, struct inventory_checked *n,
                     struct err *e)
{
    struct verify v = {.fault = fault, .arg = arg, .n = n};
    struct chain_key key;
    struct inventory i;
    *n = (struct inventory_checked){0};
    const int root = store_dir_peek(dir, e);
    if (root < 0)
        return ERR_IO;
    load_key(&v, root, dir, key_file, &key);
    v.blocks = store_file_folder(root, "blocks", false);
    close(root);
    if (fix && v.key && !(v.d = store_dir_open(dir, e))) {
        close(v.blocks);
        return e->code;
    }
    store_file_each(v.blocks, check_model, &v);
    int rc = inventory_read(&i, dir, true, NULL, e);
    if (!rc)
        check_parents(&v, &i);
    inventory_free(&i);
    close(v.blocks);
    if (v.d)
        v.d->tier.ops->close(&v.d->tier);
    return rc;
}
