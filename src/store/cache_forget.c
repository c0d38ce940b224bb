/* SPDX-License-Identifier: MIT */
#include "cache_internal.h"

/*
 * Forgetting, in bounded turns of the loop: first the text, so that nothing finds its way
 * to the blocks any more, then the blocks with their files, then the lines of
 * prompts.log. A recovery that is under way is waited for: what it has found is not in
 * the tree yet.
 */

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define AT_ONCE 1024 /* boundaries or blocks, in one turn of the loop */

struct forgetting {
    struct cache *c;
    uint32_t tenant; /* 0: those that begin with the pieces */
    struct piece *v; /* all the pieces of that start */
    size_t n, from;  /* from: the first one that nothing else shares */
    bool placed;     /* `at` is set: the first block to go */
    bool is_whole;   /* … or all of that owner go */
    uint32_t owner;
    struct tree_mark at;
    size_t prompts, blocks;
    cache_forget_cb done;
    void *arg;
};

static void nothing(void *arg)
{
    (void)arg;
}

static void finish(void *arg)
{
    struct forgetting *f = arg;
    tree_mark_clear(f->c->tree, &f->at);
    f->done(f->arg, f->prompts, f->blocks);
    free(f->v);
    free(f);
}

static void forget_lines(struct forgetting *f)
{
    struct prompt_log_forget what = {.owner = f->tenant};
    if (!f->c->log) {
        finish(f);
        return;
    }
    if (f->v) {
        what.n_gone = f->n - f->from;
        what.gone = mem_array(what.n_gone + 1, sizeof(*what.gone));
        for (size_t i = 0; i < what.n_gone; i++)
            what.gone[i] = f->v[f->from + i].hash;
    }
    prompt_log_forget(f->c->log, &what, finish, f);
}

/* Tokens before what nothing else shares, a low estimate. */
static uint32_t tokens_before(struct forgetting *f)
{
    struct index_hit hit = {0};
    if (!f->from)
        return 0;
    index_find(f->c->index, f->v, f->from, &hit);
    tree_mark_clear(f->c->tree, &hit.at);
    return hit.low;
}

static bool model_of_block(void *arg, struct tree_block *b, size_t depth)
{
    uint32_t *model = arg;
    (void)depth;
    *model = CACHE_MODEL_OF(b);
    return true;
}

/* Whole states stand side by side, and which of them begin with a text cannot be seen of
 * them: all of its owner go. */
static void find_whole(struct forgetting *f, const struct tree_mark *at)
{
    struct cache *c = f->c;
    struct index_record r;
    uint32_t model = 0;
    tree_walk(c->tree, at, model_of_block, &model);
    for (uint32_t i = 1; !model && i <= c->n_models; i++)
        f->is_whole |= cache_is_whole(c, i); /* the one that was known has gone */
    f->is_whole |= cache_is_whole(c, model);
    if (f->is_whole && index_export(c->index, f->v, f->n - 1, &r))
        f->owner = r.owner;
}

/* Where the texts that begin so part from all others, and their blocks with them. */
static void find_place(struct forgetting *f)
{
    struct cache *c = f->c;
    struct index_hit hit = {0};
    f->placed = true;
    f->from = f->n - 1;
    index_find(c->index, f->v, f->n, &hit);
    if (hit.n_pieces == f->n) {
        find_whole(f, &hit.at);
        f->from = index_branch(c->index, f->v, f->n);
        const size_t blocks = tokens_before(f) / c->o.block_tokens + 1;
        if (!f->is_whole && tree_mark_blocks(&hit.at) >= blocks) {
            tree_mark_copy(c->tree, &f->at, &hit.at);
            tree_mark_up(c->tree, &f->at, blocks);
        }
    }
    tree_mark_clear(c->tree, &hit.at);
}

static size_t forget_prompts(struct forgetting *f)
{
    struct index *ix = f->c->index;
    return f->v ? index_forget_some(ix, f->v, f->n, f->from, AT_ONCE)
                : index_drop_owner(ix, f->tenant, AT_ONCE);
}

/* The mark of a start goes with its first block, and is then done. */
static size_t forget_blocks(struct forgetting *f)
{
    struct tree *t = f->c->tree;
    if (!f->v || f->is_whole)
        return tree_drop_owner(t, f->v ? f->owner : f->tenant, AT_ONCE);
    const size_t depth = tree_mark_blocks(&f->at);
    const size_t n = tree_drop_some(t, &f->at, AT_ONCE);
    if (tree_mark_blocks(&f->at) < depth)
        tree_mark_clear(t, &f->at);
    return n;
}

static void turn(void *arg)
{
    struct forgetting *f = arg;
    size_t prompts = 0, blocks = 0;
    if (cache_recovers(f->c)) { /* another one has begun */
        cache_when_recovered(f->c, turn, f);
        return;
    }
    if (f->v && !f->placed)
        find_place(f);
    f->c->forgetting = true;
    if (!(prompts = forget_prompts(f)))
        blocks = forget_blocks(f);
    f->c->forgetting = false;
    f->prompts += prompts;
    f->blocks += blocks;
    if (prompts || blocks)
        workers_submit(f->c->workers, nothing, turn, f);
    else
        forget_lines(f);
}

void cache_forget(struct cache *c, const struct cache_forget *what, cache_forget_cb done,
                  void *arg)
{
    struct forgetting *f = mem_zalloc(sizeof(*f));
    f->c = c;
    f->done = done;
    f->arg = arg;
    if (what->v && what->n) {
        f->v = mem_array(what->n, sizeof(*f->v));
        memcpy(f->v, what->v, what->n * sizeof(*f->v));
        f->n = what->n;
    } else {
        f->tenant = what->tenant;
    }
    if (f->tenant == CACHE_EVERYBODY)
        store_prune_foreign(c->store, (struct hash128){0, 0}, 0);
    cache_when_recovered(c, turn, f);
}
