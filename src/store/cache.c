/* SPDX-License-Identifier: MIT */
#include "store/cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "cache_share.h"

static void on_evict(void *arg, const struct tree_block *b, bool evicted)
{
    struct cache *c = arg;
    const uint32_t fp = CACHE_MODEL_OF(b);
    (void)evicted;
    if (!fp || CACHE_STATE_OF(b) != CACHE_STORED)
        return;
    if (c->forgetting)
        store_forget(c->store, c->models[fp - 1].fingerprint, b->hash);
    else
        store_drop(c->store, c->models[fp - 1].fingerprint, b->hash);
    if (c->models[fp - 1].recovery)
        cache_recovery_evicted(c->models[fp - 1].recovery, b->hash);
}

struct cache *cache_open(const struct cache_options *o, struct workers *w, struct err *e)
{
    struct cache *c = mem_zalloc(sizeof(*c));
    c->o = *o;
    c->workers = w;
    list_init(&c->waiting);
    struct store_options so = o->store;
    if (!so.dir) /* what goes is for the tree to say, which knows what is pinned */
        so.ram_bytes = UINT64_MAX;
    c->store = store_open(&so, w, e);
    if (!c->store) {
        free(c);
        return NULL;
    }
    chain_key_init(&c->key, store_key(c->store));
    const struct tree_options to = {.block_tokens = o->block_tokens,
                                    .max_bytes = o->max_bytes,
                                    .max_blocks = o->max_blocks,
                                    .keep_tokens = true,
                                    .protect_percent = o->protect_percent,
                                    .on_evict = on_evict,
                                    .arg = c};
    c->tree = tree_new(&to);
    c->index = index_new(o->index_bytes, c->tree);
    if (o->store.dir)
        c->log = prompt_log_open(o->store.dir, o->index_bytes, w);
    cache_pins_open(c);
    return c;
}

void cache_close(struct cache *c)
{
    if (!c)
        return;
    cache_part(c);
    prompt_log_close(c->log);
    cache_pins_close(c);
    index_free(c->index);
    tree_free(c->tree);
    store_close(c->store);
    free(c->models);
    free(c->lifetimes);
    free(c);
}

void cache_part(struct cache *c)
{
    c->parted = true;
    store_part(c->store);
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

uint32_t cache_model_number(const struct cache *c, struct hash128 fingerprint)
{
    for (size_t i = 0; i < c->n_models; i++)
        if (hash128_eq(c->models[i].fingerprint, fingerprint))
            return (uint32_t)i + 1;
    return 0;
}

bool cache_is_whole(const struct cache *c, uint32_t model)
{
    return model && !c->models[model - 1].token_bytes;
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
    if (g->tokens >= g->max_tokens || CACHE_STATE_OF(b) != CACHE_STORED)
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

bool cache_mark_stored(void *arg, struct tree_block *b, size_t depth)
{
    const uint32_t *model = arg;
    (void)depth;
    if (!b->state)
        b->state = CACHE_STATE(*model, CACHE_STORED);
    return true;
}

static bool claim_block(void *arg, struct tree_block *b, size_t depth)
{
    const uint32_t *model = arg;
    (void)depth;
    if (!b->state)
        b->state = CACHE_STATE(*model, CACHE_NEW);
    return true;
}

/*
 * Bytes that are free for certain. While the directory is counted that is nothing; while
 * a model is read it is what all its files, what is in the tree and what is foreign leave
 * of the budget.
 */
static uint64_t free_for_certain(struct cache *c)
{
    struct tree_stats t;
    tree_stats(c->tree, &t);
    uint64_t taken = t.bytes + store_foreign_bytes(c->store);
    if (!c->o.max_bytes)
        return UINT64_MAX;
    if (!store_counted(c->store))
        return 0;
    for (size_t i = 0; i < c->n_models; i++)
        if (c->models[i].recovery)
            taken += store_found_bytes(c->store, c->models[i].fingerprint);
    return taken < c->o.max_bytes ? c->o.max_bytes - taken : 0;
}

/* What is new takes only such room until it is known what was used least recently: else
 * there would be too much, or the wrong blocks would go. */
static void take_free_room_only(struct cache *c, struct tree_sequence *s)
{
    const size_t known = tree_match(c->tree, s->chain, s->n, s->tokens, NULL);
    const uint64_t block_bytes = s->token_bytes * c->o.block_tokens;
    const uint64_t blocks = free_for_certain(c) / (block_bytes ? block_bytes : 1);
    const size_t wanted = s->n - known + (s->tail_tokens > 0);
    if (wanted <= blocks)
        return;
    s->tail_tokens = 0;
    if (s->n - known > blocks)
        s->n = known + (size_t)blocks;
}

size_t cache_insert(struct cache *c, struct hash128 fingerprint,
                    const struct tree_sequence *s, struct tree_mark *m)
{
    uint32_t model = cache_model_number(c, fingerprint);
    assert(model); /* attached before */
    struct tree_sequence own = *s;
    own.order = cache_order_of(c, s->owner, model);
    if (!store_counted(c->store) || cache_models_recover(c))
        take_free_room_only(c, &own);
    const size_t n_new = tree_insert(c->tree, &own, m);
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
        b->state = CACHE_STATE(CACHE_MODEL_OF(b), CACHE_STORED);
        k->next++;
    }
    return true;
}

/* What came while it was under way may need more room. */
static void on_pruned(void *arg)
{
    struct cache *c = arg;
    c->prune_awaited = false;
    cache_make_room(c, c->room_for);
}

void cache_prune(struct cache *c, struct hash128 fingerprint, uint64_t keep_bytes)
{
    c->foreign_kept = keep_bytes;
    c->room_for = fingerprint;
    store_prune_foreign(c->store, fingerprint, keep_bytes);
    if (!c->prune_awaited)
        store_when_recovered(c->store, on_pruned, c);
    c->prune_awaited = true;
}

void cache_make_room(struct cache *c, struct hash128 fingerprint)
{
    struct tree_stats t;
    const uint64_t foreign = store_foreign_bytes(c->store), most = c->o.max_bytes;
    tree_stats(c->tree, &t);
    if (!store_counted(c->store) && most) { /* then it is seen whether it is too much */
        cache_prune(c, fingerprint, t.bytes < most ? most - t.bytes : 0);
        return;
    }
    if (!foreign || t.bytes + foreign <= most || !most || foreign > c->foreign_kept)
        return; /* the last: that pruning is still under way */
    /* Some more than needed, since pruning goes through the directory. */
    const uint64_t ours = t.bytes + most / 8;
    cache_prune(c, fingerprint, ours < most ? most - ours : 0);
}

void cache_put(struct cache *c, struct tree_mark *m, struct store_block **blocks,
               size_t n)
{
    struct confirm k = {.blocks = blocks, .n = n};
    tree_walk(c->tree, m, confirm_block, &k); /* RAM has them from now on */
    store_put(c->store, blocks, k.next, NULL, NULL);
    if (n)
        cache_make_room(c, blocks[0]->head.fingerprint);
    for (size_t i = 0; i < n; i++)
        store_block_put(blocks[i]);
    tree_unpin(c->tree, m);
    tree_mark_clear(c->tree, m);
}

bool cache_record(struct cache *c, const struct piece *p, const struct hash128 *chain,
                  size_t n_chain, struct prompt_record *out)
{
    *out = (struct prompt_record){.n_blocks = 0};
    if (!index_export(c->index, p, 0, &out->boundary))
        return false;
    size_t n = (out->boundary.high + c->o.block_tokens - 1) / c->o.block_tokens;
    n = n < n_chain ? n : n_chain;
    out->n_blocks = (uint32_t)n;
    if (n)
        out->block = chain[n - 1];
    return true;
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
    index_learn(c->index, lesson);
    cache_pins_refresh(c);
    cache_share_lesson(c, fingerprint, lesson);
    if (!c->log || !lesson->end)
        return;
    const size_t depth = tree_mark_blocks(lesson->end);
    struct hash128 *chain = mem_array(depth + 1, sizeof(*chain));
    tree_walk(c->tree, lesson->end, collect_hash, chain);
    const bool whole = cache_is_whole(c, cache_model_number(c, fingerprint));
    const uint32_t file = prompt_log_file(c->log);
    for (size_t i = 0; i < lesson->n; i++) {
        struct prompt_record r;
        if (!cache_record(c, &lesson->v[i], chain, depth, &r) ||
            (!whole && tree_mark_tokens(lesson->end) < r.boundary.low))
            break; /* not known, or not its blocks */
        if (index_written(c->index, lesson->v, i, file))
            continue;
        prompt_log_add(c->log, &r);
    }
    prompt_log_flush(c->log);
    free(chain);
}
