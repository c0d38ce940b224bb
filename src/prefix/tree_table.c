/* SPDX-License-Identifier: MIT */

/*
 * Open addressing with linear probing; a removal moves later entries back, so there are
 * no tombstones and an emptied table is an empty one. A slot carries the mixed key, so
 * that probing and rehashing stay away from the nodes.
 *
 * The parent is compared as well as the hash: a chain hash that turns up below another
 * parent, which only a collision can bring about, is simply another child.
 */

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "tree_internal.h"

#define TABLE_MIN 16

/* Hashes of engines and traces may be small numbers: spread them. */
static uint64_t key_of(struct hash128 h)
{
    return (h.lo ^ (h.hi << 32 | h.hi >> 32)) * UINT64_C(0x9e3779b97f4a7c15);
}

static size_t home(const struct tree_table *tt, uint64_t key)
{
    return (size_t)(key >> 32) & (tt->cap - 1);
}

static size_t after(const struct tree_table *tt, size_t i)
{
    return (i + 1) & (tt->cap - 1);
}

static void put(struct tree_table *tt, struct tree_slot s)
{
    size_t i = home(tt, s.key);
    while (tt->slots[i].node)
        i = after(tt, i);
    tt->slots[i] = s;
}

static void rehash(struct tree_table *tt, size_t cap)
{
    struct tree_table old = *tt;
    tt->cap = cap;
    tt->slots = cap ? mem_zalloc(cap * sizeof(*tt->slots)) : NULL;
    for (size_t i = 0; i < old.cap; i++)
        if (old.slots[i].node)
            put(tt, old.slots[i]);
    free(old.slots);
}

struct tree_node *tree_table_find(const struct tree_table *tt,
                                  const struct tree_node *parent, struct hash128 first)
{
    uint64_t key = key_of(first);
    if (tt->cap == 0)
        return NULL;
    for (size_t i = home(tt, key); tt->slots[i].node; i = after(tt, i)) {
        struct tree_node *n = tt->slots[i].node;
        if (tt->slots[i].key == key && n->parent == parent &&
            hash128_eq(n->run[0].hash, first))
            return n;
    }
    return NULL;
}

void tree_table_add(struct tree_table *tt, struct tree_node *n)
{
    if ((tt->n + 1) * 4 > tt->cap * 3)
        rehash(tt, tt->cap ? tt->cap * 2 : TABLE_MIN);
    put(tt, (struct tree_slot){key_of(n->run[0].hash), n});
    tt->n++;
}

static size_t slot_of(const struct tree_table *tt, const struct tree_node *n)
{
    size_t i = home(tt, key_of(n->run[0].hash));
    while (tt->slots[i].node != n) {
        assert(tt->slots[i].node);
        i = after(tt, i);
    }
    return i;
}

/* An entry may move back into the hole unless its home lies behind the hole. */
static void close_hole(struct tree_table *tt, size_t hole)
{
    for (size_t i = after(tt, hole); tt->slots[i].node; i = after(tt, i)) {
        size_t from_home = (i - home(tt, tt->slots[i].key)) & (tt->cap - 1);
        size_t from_hole = (i - hole) & (tt->cap - 1);
        if (from_home < from_hole)
            continue;
        tt->slots[hole] = tt->slots[i];
        hole = i;
    }
    tt->slots[hole] = (struct tree_slot){0, NULL};
}

void tree_table_remove(struct tree_table *tt, const struct tree_node *n)
{
    close_hole(tt, slot_of(tt, n));
    tt->n--;
    if (tt->n == 0)
        rehash(tt, 0);
    else if (tt->cap > TABLE_MIN && tt->n * 6 < tt->cap)
        rehash(tt, tt->cap / 2);
}

void tree_table_replace(struct tree_table *tt, const struct tree_node *was,
                        struct tree_node *now)
{
    tt->slots[slot_of(tt, was)].node = now;
}
