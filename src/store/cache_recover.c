/* SPDX-License-Identifier: MIT */
#include "cache_internal.h"

/*
 * After a restart: the blocks of a fingerprint go back into the tree, leaf by leaf, each
 * with all before it, and the prompts of `prompts.log` find their places again.
 */

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static uint32_t add_model(struct cache *c, struct hash128 fingerprint,
                          uint64_t token_bytes)
{
    c->models = mem_rearray(c->models, c->n_models + 1, sizeof(*c->models));
    c->models[c->n_models++] = (struct cache_model){fingerprint, token_bytes};
    return (uint32_t)c->n_models;
}

struct found {
    struct store_head head;
    uint32_t *tokens;
    size_t parent; /* index in the list, SIZE_MAX at a root */
    bool has_child;
};

struct attach {
    struct cache *c;
    uint32_t model;
    struct found *v;
    size_t n, cap;
    size_t *table; /* open addressing: chain hash → index + 1 */
    size_t table_size;
    void (*done)(void *arg, size_t n_blocks);
    void *arg;
};

/* Place of a hash in the table: its own, or the empty one where it would go. */
static size_t *found_slot(struct attach *a, struct hash128 hash)
{
    size_t i = (size_t)hash.lo & (a->table_size - 1);
    while (a->table[i] && !hash128_eq(a->v[a->table[i] - 1].head.hash, hash))
        i = (i + 1) & (a->table_size - 1);
    return &a->table[i];
}

static void link_found(struct attach *a)
{
    a->table_size = 16;
    while (a->table_size < a->n * 2)
        a->table_size *= 2;
    a->table = mem_zalloc(a->table_size * sizeof(*a->table));
    for (size_t i = 0; i < a->n; i++)
        *found_slot(a, a->v[i].head.hash) = i + 1;
    for (size_t i = 0; i < a->n; i++) {
        const size_t at = *found_slot(a, a->v[i].head.parent);
        a->v[i].parent = at ? at - 1 : SIZE_MAX;
        if (at)
            a->v[at - 1].has_child = true;
    }
}

static bool mark_stored(void *arg, struct tree_block *b, size_t depth)
{
    const uint32_t *model = arg;
    (void)depth;
    if (!b->state)
        b->state = CACHE_STATE(*model, CACHE_STORED);
    return true;
}

/* The blocks up to `leaf` are all there, each behind the one before. */
static bool is_whole(const struct attach *a, size_t leaf)
{
    const uint32_t bt = a->c->o.block_tokens;
    size_t i = a->v[leaf].head.index, at = leaf;
    if (i >= a->n)
        return false;
    for (;; i--, at = a->v[at].parent) {
        if (at == SIZE_MAX)
            return false;
        const struct store_head *h = &a->v[at].head;
        if (h->index != i || h->n_tokens > bt || (h->n_tokens < bt && at != leaf))
            return false;
        if (i == 0)
            return true;
    }
}

/* What the tree has no room for is of no use in the store. */
static void drop_rest(struct attach *a, const struct tree_mark *m,
                      const struct hash128 *chain, size_t n)
{
    const struct hash128 fingerprint = a->c->models[a->model - 1].fingerprint;
    for (size_t i = n; i-- > tree_mark_blocks(m);)
        store_drop(a->c->store, fingerprint, chain[i]);
}

/* Inserts the sequence that ends with block `leaf`; false where a part is missing. */
static bool insert_found(struct attach *a, size_t leaf)
{
    struct cache *c = a->c;
    const uint32_t bt = c->o.block_tokens;
    const struct store_head *end = &a->v[leaf].head;
    if (!is_whole(a, leaf))
        return false;
    const size_t n = (size_t)end->index + 1;
    struct hash128 *chain = mem_array(n, sizeof(*chain));
    uint32_t *tokens = mem_array(n * bt, sizeof(*tokens));
    for (size_t i = n, at = leaf; i-- > 0; at = a->v[at].parent) {
        const struct found *f = &a->v[at];
        chain[i] = f->head.hash;
        memcpy(tokens + i * bt, f->tokens, f->head.n_tokens * sizeof(*tokens));
    }
    const bool tail = end->n_tokens < bt;
    struct tree_mark m = {0};
    const struct tree_sequence s = {.chain = chain,
                                    .n = tail ? n - 1 : n,
                                    .tokens = tokens,
                                    .tail_tokens = tail ? end->n_tokens : 0,
                                    .token_bytes = c->models[a->model - 1].token_bytes};
    tree_insert(c->tree, &s, &m);
    tree_walk(c->tree, &m, mark_stored, &a->model);
    drop_rest(a, &m, chain, n);
    tree_mark_clear(c->tree, &m);
    free(chain);
    free(tokens);
    return true;
}

/* From the last full block on to the short one behind it: matching knows full blocks
 * only. Where several follow it is the newest, which covers as much. */
static void step_to_tail(struct cache *c, struct tree_mark *m, uint32_t n_tokens)
{
    tree_mark_down(c->tree, m, tree_mark_tokens(m) + n_tokens);
}

/* Finds the place of a logged boundary: a path to its block, cut at its depth. */
static void find_place(void *arg, struct hash128 block, uint32_t n_blocks,
                       struct tree_mark *m)
{
    struct attach *a = arg;
    const size_t at = *found_slot(a, block);
    if (!at || a->v[at - 1].head.index + 1 != n_blocks || n_blocks > a->n)
        return;
    struct hash128 *chain = mem_array(n_blocks, sizeof(*chain));
    size_t i = at - 1;
    uint32_t left = n_blocks;
    for (; left > 0 && i != SIZE_MAX; i = a->v[i].parent)
        chain[--left] = a->v[i].head.hash;
    if (left == 0 && tree_match(a->c->tree, chain, n_blocks, NULL, m) + 1 == n_blocks)
        step_to_tail(a->c, m, a->v[at - 1].head.n_tokens);
    free(chain);
}

static void finish_attach(struct attach *a)
{
    size_t n_blocks = 0;
    link_found(a);
    for (size_t i = 0; i < a->n; i++) {
        const struct hash128 hash = a->v[i].head.hash;
        if (!a->v[i].has_child && !insert_found(a, i))
            store_drop(a->c->store, a->v[i].head.fingerprint, hash);
    }
    struct tree_stats ts;
    tree_stats(a->c->tree, &ts);
    n_blocks = (size_t)ts.blocks;
    if (a->c->log)
        prompt_log_replay(a->c->log, a->c->index, a->c->tree, find_place, a);
    a->done(a->arg, n_blocks);
    for (size_t i = 0; i < a->n; i++)
        free(a->v[i].tokens);
    free(a->v);
    free(a->table);
    free(a);
}

static void on_found(void *arg, const struct store_block *b)
{
    struct attach *a = arg;
    if (!b) {
        finish_attach(a);
        return;
    }
    if (a->n == a->cap) {
        a->cap = a->cap ? a->cap * 2 : 64;
        a->v = mem_rearray(a->v, a->cap, sizeof(*a->v));
    }
    a->v[a->n++] = (struct found){.head = b->head,
                                  .tokens = (uint32_t *)(void *)mem_dup(
                                      b->tokens, b->head.n_tokens * sizeof(uint32_t))};
}

void cache_attach(struct cache *c, struct hash128 fingerprint, uint64_t token_bytes,
                  void (*done)(void *arg, size_t n_blocks), void *arg)
{
    if (cache_model_number(c, fingerprint)) {
        done(arg, 0);
        return;
    }
    struct attach *a = mem_zalloc(sizeof(*a));
    a->c = c;
    a->done = done;
    a->arg = arg;
    a->model = add_model(c, fingerprint, token_bytes);
    store_prune_foreign(c->store, fingerprint, c->o.max_bytes / 2);
    store_scan(c->store, fingerprint, on_found, a);
}
