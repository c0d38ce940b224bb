/* SPDX-License-Identifier: MIT */
#include "store_internal.h"

/*
 * Tier RAM: references to blocks, by name and in order of use.
 *
 *     lru: most recent ⇄ entry ⇄ entry ⇄ least recent     map: name → entry
 *
 * Bytes are counted while the entry is here. A block that somebody else still holds
 * lives on after that, and is no longer ours to count.
 */

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"

struct entry {
    struct store_map_node node;
    struct list lru;
    struct store_block *block;
};

struct ram {
    struct store_tier tier;
    struct store_map map;
    struct list lru;
    uint64_t budget;
};

static struct ram *ram_of(struct store_tier *t)
{
    return LIST_ENTRY(t, struct ram, tier);
}

static struct entry *find(const struct ram *r, const struct store_name *name)
{
    struct store_map_node *node = store_map_find(&r->map, name);
    return node ? LIST_ENTRY(node, struct entry, node) : NULL;
}

static void use(struct ram *r, struct entry *entry)
{
    list_del(&entry->lru);
    list_push_front(&r->lru, &entry->lru);
}

static void let_go(struct ram *r, struct entry *entry)
{
    r->tier.bytes -= store_block_bytes(&entry->block->head);
    r->tier.blocks--;
    store_map_remove(&r->map, &entry->node);
    list_del(&entry->lru);
    store_block_put(entry->block);
    free(entry);
}

static int ram_put(struct store_tier *t, struct store_block *b, struct err *e)
{
    struct ram *r = ram_of(t);
    const struct store_name name = {b->head.fingerprint, b->head.hash};
    const uint64_t size = store_block_bytes(&b->head);
    struct entry *entry = find(r, &name);
    if (entry) {
        use(r, entry);
        return 0;
    }
    if (size > r->budget)
        return err_set(e, ERR_LIMIT, "block is larger than the RAM budget");
    while (r->tier.bytes > r->budget - size)
        let_go(r, LIST_ENTRY(r->lru.prev, struct entry, lru));
    entry = mem_zalloc(sizeof *entry);
    entry->node.name = name;
    entry->block = store_block_get(b);
    list_push_front(&r->lru, &entry->lru);
    store_map_add(&r->map, &entry->node);
    r->tier.bytes += size;
    r->tier.blocks++;
    return 0;
}

static int ram_get(struct store_tier *t, const struct store_name *name,
                   struct store_block **b, struct err *e)
{
    struct ram *r = ram_of(t);
    struct entry *entry = find(r, name);
    if (!entry)
        return err_set(e, ERR_NOT_FOUND, "not in RAM");
    use(r, entry);
    *b = store_block_get(entry->block);
    return 0;
}

static void ram_drop(struct store_tier *t, const struct store_name *name)
{
    struct ram *r = ram_of(t);
    struct entry *entry = find(r, name);
    if (entry)
        let_go(r, entry);
}

static void ram_close(struct store_tier *t)
{
    struct ram *r = ram_of(t);
    while (!list_empty(&r->lru))
        let_go(r, LIST_ENTRY(r->lru.next, struct entry, lru));
    assert(r->tier.bytes == 0 && r->tier.blocks == 0);
    store_map_free(&r->map);
    free(r);
}

struct store_tier *store_ram_open(uint64_t budget)
{
    static const struct store_tier_ops ops = {
        .put = ram_put,
        .get = ram_get,
        .drop = ram_drop,
        .close = ram_close,
    };
    struct ram *r = mem_zalloc(sizeof *r);
    r->tier.ops = &ops;
    r->budget = budget;
    list_init(&r->lru);
    return &r->tier;
}
