/* SPDX-License-Identifier: MIT */
#include "store_internal.h"

/*
 * Chained, intrusive, doubling when it is full. Chain hashes are uniform already, so a
 * few bits of them are the bucket.
 */

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"

#define FIRST_SLOTS 64 /* a power of two */

static bool same_name(const struct store_name *a, const struct store_name *b)
{
    return hash128_eq(a->hash, b->hash) && hash128_eq(a->fingerprint, b->fingerprint);
}

static struct store_map_node **slot_of(const struct store_map *m,
                                       const struct store_name *name)
{
    return &m->slots[(name->hash.lo ^ name->fingerprint.lo) & (m->n_slots - 1)];
}

static void push(struct store_map *m, struct store_map_node *node)
{
    struct store_map_node **slot = slot_of(m, &node->name);
    node->next = *slot;
    *slot = node;
}

static void grow(struct store_map *m)
{
    const struct store_map old = *m;
    m->n_slots = old.n_slots ? old.n_slots * 2 : FIRST_SLOTS;
    m->slots = mem_zalloc(m->n_slots * sizeof *m->slots);
    for (size_t i = 0; i < old.n_slots; i++) {
        for (struct store_map_node *node = old.slots[i], *next; node; node = next) {
            next = node->next;
            push(m, node);
        }
    }
    free(old.slots);
}

struct store_map_node *store_map_find(const struct store_map *m,
                                      const struct store_name *name)
{
    struct store_map_node *node = m->n_slots ? *slot_of(m, name) : NULL;
    while (node && !same_name(&node->name, name))
        node = node->next;
    return node;
}

void store_map_add(struct store_map *m, struct store_map_node *node)
{
    assert(!store_map_find(m, &node->name));
    if (m->n == m->n_slots)
        grow(m);
    push(m, node);
    m->n++;
}

void store_map_remove(struct store_map *m, struct store_map_node *node)
{
    struct store_map_node **at = slot_of(m, &node->name);
    while (*at != node) {
        assert(*at);
        at = &(*at)->next;
    }
    *at = node->next;
    m->n--;
}

void store_map_free(struct store_map *m)
{
    free(m->slots);
    *m = (struct store_map){0};
}
