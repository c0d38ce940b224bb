/* SPDX-License-Identifier: MIT */
#include "cache_internal.h"

/*
 * How long blocks stay. Blocks of one model and one lifetime share an order of use of the
 * tree: within it the old end is what expires first, also right after a restart, when the
 * blocks of a model come in by age while others are used already.
 */

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

#define EXPIRE_AT_ONCE 256 /* blocks, in one turn of the loop */
#define TENANT_SHIFT 32    /* of the upper half of a root */

struct hash128 cache_root(const struct cache *c, struct hash128 fingerprint,
                          uint32_t tenant, struct slice what)
{
    struct buf b = {0};
    buf_append_str(&b, "kv");
    buf_append(&b, &fingerprint, sizeof(fingerprint));
    buf_append_slice(&b, what);
    struct hash128 root = chain_hash(&c->key, buf_slice(&b));
    buf_free(&b);
    root.hi = (uint64_t)tenant << TENANT_SHIFT | (root.hi & UINT32_MAX);
    return root;
}

uint32_t cache_root_tenant(struct hash128 root)
{
    return (uint32_t)(root.hi >> TENANT_SHIFT);
}

static uint32_t longer(uint32_t a, uint32_t b)
{
    return !a || !b ? 0 : a > b ? a : b;
}

static uint32_t ttl_in(const struct cache_lifetime *v, size_t n, uint32_t other,
                       uint32_t tenant)
{
    for (size_t i = 0; i < n; i++)
        if (v[i].tenant == tenant)
            return v[i].ttl_s;
    return other;
}

static uint32_t ttl_of(const struct cache *c, uint32_t tenant)
{
    return ttl_in(c->lifetimes, c->n_lifetimes, c->ttl_s, tenant);
}

/* Of all who had `before` until now, the longest. */
static uint32_t new_ttl(const struct cache *c, uint32_t before, uint32_t ttl_s,
                        const struct cache_lifetime *v, size_t n)
{
    const bool unlisted = c->ttl_s == before;
    bool any = unlisted;
    uint32_t longest = unlisted ? ttl_s : 1;
    for (size_t i = 0; i < c->n_lifetimes; i++) {
        if (c->lifetimes[i].ttl_s != before)
            continue;
        longest = longer(longest, ttl_in(v, n, ttl_s, c->lifetimes[i].tenant));
        any = true;
    }
    for (size_t i = 0; unlisted && i < n; i++)
        if (ttl_of(c, v[i].tenant) == before)
            longest = longer(longest, v[i].ttl_s);
    return any ? longest : before;
}

void cache_lifetimes(struct cache *c, uint32_t ttl_s, const struct cache_lifetime *v,
                     size_t n)
{
    for (unsigned i = 0; i < c->n_orders; i++)
        c->orders[i].ttl_s = new_ttl(c, c->orders[i].ttl_s, ttl_s, v, n);
    c->ttl_s = ttl_s;
    free(c->lifetimes);
    c->lifetimes = mem_array(n + 1, sizeof(*c->lifetimes));
    if (n)
        memcpy(c->lifetimes, v, n * sizeof(*v));
    c->n_lifetimes = n;
}

/* 0: nothing ever expires. */
static uint32_t shortest_ttl(const struct cache *c)
{
    uint32_t least = c->ttl_s;
    for (size_t i = 0; i < c->n_lifetimes; i++)
        if (c->lifetimes[i].ttl_s && (!least || c->lifetimes[i].ttl_s < least))
            least = c->lifetimes[i].ttl_s;
    return least;
}

/* Where there are more than the tree has orders, the last one takes what is left, and its
 * blocks stay as long as the longest of them may. */
unsigned cache_order_of(struct cache *c, uint32_t tenant, uint32_t model)
{
    const uint32_t ttl = ttl_of(c, tenant);
    unsigned i = 0;
    while (i < c->n_orders && (c->orders[i].model != model || c->orders[i].ttl_s != ttl))
        i++;
    if (i < c->n_orders)
        return i;
    if (i < TREE_ORDERS) {
        c->orders[c->n_orders++] = (struct cache_order){model, ttl};
        return i;
    }
    struct cache_order *last = &c->orders[TREE_ORDERS - 1];
    if (!ttl || (last->ttl_s && last->ttl_s < ttl))
        last->ttl_s = ttl;
    return TREE_ORDERS - 1;
}

bool cache_tick(struct cache *c, uint64_t mono_s, int64_t wall_s)
{
    const uint32_t shortest = shortest_ttl(c);
    size_t left = EXPIRE_AT_ONCE;
    if (!shortest)
        return false;
    if (c->clock.runs)
        cache_clock_tick(&c->clock, c->store, shortest, mono_s, wall_s);
    else
        cache_clock_start(&c->clock, c->store, shortest, mono_s, wall_s);
    tree_now(c->tree, c->clock.now_s);
    for (unsigned i = 0; i < c->n_orders; i++) {
        const uint32_t ttl = c->orders[i].ttl_s;
        if (ttl && c->clock.now_s > ttl)
            left -= tree_expire(c->tree, i, c->clock.now_s - ttl, left);
    }
    return left == 0;
}
