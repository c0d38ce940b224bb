/* SPDX-License-Identifier: MIT */
#include "wire/peers.h"

#include <assert.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct peers {
    void *root; /* of tsearch(3), which balances it */
};

struct peers_client {
    unsigned char group[ADDR_GROUP];
    unsigned connections;
};

static int compare(const void *a, const void *b)
{
    const struct peers_client *x = a, *y = b;
    return memcmp(x->group, y->group, ADDR_GROUP);
}

struct peers *peers_new(void)
{
    return mem_zalloc(sizeof(struct peers));
}

void peers_free(struct peers *p)
{
    if (!p)
        return;
    assert(!p->root);
    free(p);
}

static struct peers_client *find_or_add(struct peers *p, const struct peers_client *key)
{
    struct peers_client **at = tfind(key, &p->root, compare);
    if (at)
        return *at;
    struct peers_client *c = mem_zalloc(sizeof(*c));
    memcpy(c->group, key->group, ADDR_GROUP);
    if (!tsearch(c, &p->root, compare))
        abort(); /* out of memory, as base/mem.h says it */
    return c;
}

struct peers_client *peers_enter(struct peers *p, const struct addr *a, unsigned max,
                                 bool *full)
{
    struct peers_client key = {.connections = 0};
    *full = false;
    if (!addr_group(a, key.group))
        return NULL;
    struct peers_client *c = find_or_add(p, &key);
    if (c->connections >= max) {
        *full = true;
        return NULL;
    }
    c->connections++;
    return c;
}

void peers_leave(struct peers *p, struct peers_client *c)
{
    if (!c || --c->connections)
        return;
    tdelete(c, &p->root, compare);
    free(c);
}
