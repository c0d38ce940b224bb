/* SPDX-License-Identifier: MIT */
#include "store/cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "store/prompt_log.h"

/*
 * The `state` of a tree block: which fingerprint it belongs to (so that an evicted block
 * can be dropped from the store by name) and how far it is.
 *
 *      31                8 7          0
 *     | fingerprint number | cache_state |       number 0: not ours yet
 */
#define STATE(fp, s) ((uint32_t)(fp) << 8 | (uint32_t)(s))
#define STATE_OF(b) ((enum cache_state)((b)->state & 0xff))
#define FINGERPRINT_OF(b) ((b)->state >> 8)

struct model {
    struct hash128 fingerprint;
    uint64_t token_bytes;
};

struct cache {
    struct cache_options o;
    struct chain_key key;
    struct tree *tree;
    struct index *index;
    struct store *store;
    struct workers *workers;
    struct prompt_log *log;
    struct model *models; /* number n is models[n - 1] */
    size_t n_models;
};

static void on_evict(void *arg, const struct tree_block *b, bool evicted)
{
    struct cache *c = arg;
    const uint32_t fp = FINGERPRINT_OF(b);
    (void)evicted;
    if (fp && STATE_OF(b) == CACHE_STORED)
        store_drop(c->store, c->models[fp - 1].fingerprint, b->hash);
}

struct cache *cache_open(const struct cache_options *o, struct workers *w, struct err *e)
{
    struct cache *c = mem_zalloc(sizeof(*c));
    c->o = *o;
    c->workers = w;
    c->store = store_open(&o->store, w, e);
    if (!c->store) {
        free(c);
        return NULL;
    }
    chain_key_init(&c->key, store_key(c->store));
    const struct tree_options to = {.block_tokens = o->block_tokens,
                                    .max_bytes = o->max_bytes,
                                    .max_blocks = o->max_blocks,
                                    .keep_tokens = true,
                                    .on_evict = on_evict,
                                    .arg = c};
    c->tree = tree_new(&to);
    c->index = index_new(o->index_bytes, c->tree);
    if (o->store.dir)
        c->log = prompt_log_open(o->store.dir, o->index_bytes, w);
    return c;
}

void cache_close(struct cache *c)
{
    if (!c)
        return;
    prompt_log_close(c->log);
    index_free(c->index);
    tree_free(c->tree);
    store_close(c->store);
    free(c->models);
    free(c);
}

const struct chain_key *cache_key(const struct cache *c)
{
    return &c->key;
}

struct tree *cache_tree(struct cache *c)
{
    return c->tree;
}

struct index *cache_index(struct cache *c)
{
    return c->index;
}

struct store *cache_store(struct cache *c)
{
    return c->store;
}

uint32_t cache_block_tokens(const struct cache *c)
{
    return c->o.block_tokens;
}

/* Number of a fingerprint, 0 where it is new. */
static uint32_t model_number(const struct cache *c, struct hash128 fingerprint)
{
    for (size_t i = 0; i < c->n_models; i++)
        if (hash128_eq(c->models[i].fingerprint, fingerprint))
            return (uint32_t)i + 1;
    return 0;
}

static uint32_t add_model(struct cache *c, struct hash128 fingerprint,
                          uint64_t token_bytes)
{
    c->models = mem_rearray(c->models, c->n_models + 1, sizeof(*c->models));
    c->models[c->n_models++] = (struct model){fingerprint, token_bytes};
    return (uint32_t)c->n_models;
}

/* ---- recovery ---------------------------------------------------------------------- */

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
        b->state = STATE(*model, CACHE_STORED);
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
    if (model_number(c, fingerprint)) {
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

/* ---- reading ----------------------------------------------------------------------- */

struct gather {
    struct hash128 *v; /* NULL: only counts */
    size_t n;
    uint32_t tokens, max_tokens;
};

static bool gather_block(void *arg, struct tree_block *b, size_t depth)
{
    struct gather *g = arg;
    (void)depth;
    if (g->tokens >= g->max_tokens || STATE_OF(b) != CACHE_STORED)
        return false;
    if (g->v)
        g->v[g->n] = b->hash;
    g->n++;
    g->tokens += b->n_tokens;
    return true;
}

uint32_t cache_restorable(struct cache *c, const struct tree_mark *m, uint32_t max_tokens)
{
    struct gather g = {.max_tokens = max_tokens};
    tree_walk(c->tree, m, gather_block, &g);
    return g.tokens;
}

struct fetch {
    struct cache *c;
    struct tree_mark path; /* pinned while the rows are read */
    size_t wanted;
    cache_fetch_cb done;
    void *arg;
};

static void on_fetched(void *arg, struct store_block **blocks, size_t good,
                       const struct err *err)
{
    struct fetch *f = arg;
    struct cache *c = f->c;
    tree_unpin(c->tree, &f->path);
    /* What cannot be read just now may be there the next time. */
    if (err && err->code != ERR_IO && good < f->wanted &&
        tree_mark_blocks(&f->path) > good) {
        log_event(LOG_WARN, "block-lost", "why", "%s", err->text, NULL);
        tree_mark_up(c->tree, &f->path, good + 1);
        tree_drop(c->tree, &f->path);
    }
    tree_mark_clear(c->tree, &f->path);
    f->done(f->arg, blocks, good, err);
    free(f);
}

void cache_fetch(struct cache *c, struct hash128 fingerprint, const struct tree_mark *m,
                 uint32_t max_tokens, cache_fetch_cb done, void *arg)
{
    struct gather g = {.max_tokens = max_tokens};
    g.v = mem_array(tree_mark_blocks(m) + 1, sizeof(*g.v));
    tree_walk(c->tree, m, gather_block, &g);
    struct fetch *f = mem_zalloc(sizeof(*f));
    f->c = c;
    f->wanted = g.n;
    f->done = done;
    f->arg = arg;
    tree_mark_copy(c->tree, &f->path, m);
    tree_touch(c->tree, &f->path);
    tree_pin(c->tree, &f->path);
    store_get(c->store, fingerprint, g.v, g.n, on_fetched, f);
    free(g.v);
}

/* ---- writing ----------------------------------------------------------------------- */

static bool claim_block(void *arg, struct tree_block *b, size_t depth)
{
    const uint32_t *model = arg;
    (void)depth;
    if (!b->state)
        b->state = STATE(*model, CACHE_NEW);
    return true;
}

size_t cache_insert(struct cache *c, struct hash128 fingerprint,
                    const struct tree_sequence *s, struct tree_mark *m)
{
    uint32_t model = model_number(c, fingerprint);
    assert(model); /* attached before */
    const size_t n_new = tree_insert(c->tree, s, m);
    tree_walk(c->tree, m, claim_block, &model);
    tree_pin(c->tree, m);
    return n_new;
}

struct confirm {
    struct store_block **blocks;
    size_t n, next;
};

static bool confirm_block(void *arg, struct tree_block *b, size_t depth)
{
    struct confirm *k = arg;
    (void)depth;
    if (k->next < k->n && hash128_eq(b->hash, k->blocks[k->next]->head.hash)) {
        b->state = STATE(FINGERPRINT_OF(b), CACHE_STORED);
        k->next++;
    }
    return true;
}

void cache_put(struct cache *c, struct tree_mark *m, struct store_block **blocks,
               size_t n)
{
    struct confirm k = {.blocks = blocks, .n = n};
    tree_walk(c->tree, m, confirm_block, &k); /* RAM has them from now on */
    store_put(c->store, blocks, k.next, NULL, NULL);
    for (size_t i = 0; i < n; i++)
        store_block_put(blocks[i]);
    tree_unpin(c->tree, m);
    tree_mark_clear(c->tree, m);
}

static bool collect_hash(void *arg, struct tree_block *b, size_t depth)
{
    struct hash128 *chain = arg;
    chain[depth] = b->hash;
    return true;
}

void cache_learn(struct cache *c, struct hash128 fingerprint,
                 const struct index_lesson *lesson)
{
    struct index_hit before = {0};
    (void)fingerprint;
    index_find(c->index, lesson->v, lesson->n, &before);
    tree_mark_clear(c->tree, &before.at);
    index_learn(c->index, lesson);
    if (!c->log || !lesson->end)
        return;
    const size_t depth = tree_mark_blocks(lesson->end);
    struct hash128 *chain = mem_array(depth + 1, sizeof(*chain));
    tree_walk(c->tree, lesson->end, collect_hash, chain);
    for (size_t i = before.n_pieces; i < lesson->n; i++) {
        struct index_record r;
        if (!index_export(c->index, lesson->v, i, &r))
            break;
        size_t n_blocks = (r.high + c->o.block_tokens - 1) / c->o.block_tokens;
        n_blocks = n_blocks < depth ? n_blocks : depth;
        prompt_log_add(c->log, &r,
                       n_blocks ? chain[n_blocks - 1] : (struct hash128){0, 0},
                       (uint32_t)n_blocks);
    }
    prompt_log_flush(c->log);
    free(chain);
}
