/* SPDX-License-Identifier: MIT */

/*
 * What may go, in the order of the gateway: the least recently used first, and a block
 * after all that stand behind it. A parent is used whenever a child is, so in the order
 * of (last use of the block or of anything behind it, deepest first) any first part may
 * go and the rest can still be reached.
 */

#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "store/inventory.h"
#include "store_internal.h"

static const struct inventory_block *block_at(const void *p)
{
    return *(const struct inventory_block *const *)p;
}

static int by_use(const void *x, const void *y)
{
    const struct inventory_block *a = block_at(x), *b = block_at(y);
    if (a->used_ns != b->used_ns)
        return a->used_ns < b->used_ns ? -1 : 1;
    if (a->head.index != b->head.index)
        return a->head.index > b->head.index ? -1 : 1;
    return 0;
}

/* Sorts the blocks by use and returns how many of them go. */
static size_t choose(const struct inventory *v, const struct inventory_rules *r,
                     const struct inventory_block **order)
{
    uint64_t left = 0;
    size_t n = 0;
    for (size_t i = 0; i < v->n_blocks; i++) {
        order[i] = &v->blocks[i];
        left += v->blocks[i].bytes;
    }
    if (v->n_blocks)
        qsort(order, v->n_blocks, sizeof *order, by_use);
    for (; n < v->n_blocks; n++) {
        if (left <= r->keep_bytes && order[n]->used_ns >= r->before_ns)
            break;
        left -= order[n]->bytes;
    }
    return n;
}

static void tell(const struct inventory *v, const struct inventory_rules *r,
                 const struct inventory_block **order, size_t n,
                 inventory_pruned_cb pruned, void *arg)
{
    for (size_t i = 0; i < v->n_models; i++) {
        const struct inventory_model *m = &v->models[i];
        uint64_t blocks = 0, bytes = 0;
        if (r->model && !hash128_eq(*r->model, m->fingerprint))
            continue;
        for (size_t k = 0; k < n; k++)
            if (hash128_eq(order[k]->head.fingerprint, m->fingerprint)) {
                blocks++;
                bytes += order[k]->bytes;
            }
        pruned(arg, m, blocks, bytes);
    }
}

int inventory_prune(const char *dir, const struct inventory_rules *r,
                    inventory_pruned_cb pruned, void *arg, struct err *e)
{
    struct inventory v = {0};
    struct store_dir *d = NULL;
    const int root = store_dir_peek(dir, e); /* a mistyped name makes no store */
    if (root < 0)
        return ERR_IO;
    close(root);
    if (!r->dry_run && !(d = store_dir_open(dir, e)))
        return e->code;
    const int rc = inventory_read(&v, dir, true, r->model, e);
    const struct inventory_block **order =
        mem_array(v.n_blocks + 1, sizeof(struct inventory_block *));
    const size_t n = rc ? 0 : choose(&v, r, order);
    for (size_t i = 0; d && i < n; i++)
        d->tier.ops->drop(&d->tier, &(struct store_name){order[i]->head.fingerprint,
                                                         order[i]->head.hash});
    if (!rc)
        tell(&v, r, order, n, pruned, arg);
    free(order);
    inventory_free(&v);
    if (d)
        d->tier.ops->close(&d->tier);
    return rc;
}
