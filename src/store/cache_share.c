/* SPDX-License-Identifier: MIT */
#include "cache_share.h"

/*
 * A prompt that was saved: its sequence, then a place for each of its boundaries. They
 * wait behind its blocks (store_redis.c), so who finds a place finds the blocks.
 *
 * A prompt that was not, since its blocks are known: whether its deepest boundary and its
 * last block are still there is asked, and all is told again if not, blocks as well. So
 * what one gateway goes on using comes back after the server has lost it, and lives on
 * where values have a time to live.
 */

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cache_sequence.h"

/* What is to be told, until it is known whether it must be. */
struct share {
    struct cache *c;
    struct hash128 fingerprint;
    struct piece *v;
    size_t n; /* boundaries that the blocks up to `end` cover */
    struct tree_mark end;
    unsigned checks; /* under way */
    bool stale;      /* one of them said so */
};

static void free_share(struct share *s)
{
    tree_mark_clear(s->c->tree, &s->end);
    free(s->v);
    free(s);
}

/* ---- telling ----------------------------------------------------------------------- */

struct collect {
    struct cache_sequence *sequence;
    struct hash128 name;
};

static bool collect_block(void *arg, struct tree_block *b, size_t depth)
{
    struct collect *k = arg;
    (void)depth;
    memcpy(k->sequence->tokens + k->sequence->n_tokens, b->tokens,
           b->n_tokens * sizeof(*b->tokens));
    k->sequence->n_tokens += b->n_tokens;
    k->name = b->hash;
    return true;
}

static void tell_places(const struct share *s, const struct cache_sequence *sequence,
                        struct hash128 name)
{
    struct store_redis *redis = s->c->store->redis;
    for (size_t i = 0; i < sequence->n_records; i++) {
        const struct index_record *r = &sequence->records[i];
        unsigned char place[CACHE_PLACE_BYTES];
        cache_place_write(name, r->check, place);
        store_redis_set(redis, STORE_REDIS_PLACE,
                        &(struct store_name){s->fingerprint, r->hash},
                        slice_make((const char *)place, sizeof(place)));
    }
}

static void tell(const struct share *s)
{
    struct cache *c = s->c;
    const uint32_t model = cache_model_number(c, s->fingerprint);
    const size_t n_tokens = tree_mark_tokens(&s->end);
    struct cache_sequence sequence = {.block_tokens = c->o.block_tokens,
                                      .token_bytes = c->models[model - 1].token_bytes};
    struct collect k = {.sequence = &sequence};
    struct buf value = {0};
    if (!n_tokens)
        return;
    sequence.tokens = mem_array(n_tokens, sizeof(*sequence.tokens));
    sequence.records = mem_array(s->n, sizeof(*sequence.records));
    tree_walk(c->tree, &s->end, collect_block, &k);
    while (sequence.n_records < s->n &&
           index_export(c->index, s->v, sequence.n_records,
                        &sequence.records[sequence.n_records]))
        sequence.n_records++;
    cache_sequence_write(&sequence, &value);
    store_redis_set(c->store->redis, STORE_REDIS_SEQUENCE,
                    &(struct store_name){s->fingerprint, k.name}, buf_slice(&value));
    tell_places(s, &sequence, k.name);
    buf_free(&value);
    cache_sequence_free(&sequence);
}

static bool share_block(void *arg, struct tree_block *b, size_t depth)
{
    const struct share *s = arg;
    (void)depth;
    if (CACHE_STATE_OF(b) == CACHE_STORED)
        store_share(s->c->store, s->fingerprint, b->hash);
    return true;
}

static void on_checked(void *arg, bool stale)
{
    struct share *s = arg;
    s->stale |= stale;
    if (--s->checks)
        return;
    if (s->stale) {
        tree_walk(s->c->tree, &s->end, share_block, s);
        tell(s);
    }
    free_share(s);
}

static bool last_block(void *arg, struct tree_block *b, size_t depth)
{
    struct hash128 *hash = arg;
    (void)depth;
    *hash = b->hash;
    return true;
}

/* Asks whether it is still known there. */
static void check(struct share *s)
{
    struct store_redis *redis = s->c->store->redis;
    struct store_name place = {s->fingerprint, s->v[s->n - 1].hash};
    struct store_name block = {s->fingerprint, {0, 0}};
    tree_walk(s->c->tree, &s->end, last_block, &block.hash);
    s->checks = 1; /* until both are asked */
    s->checks += store_redis_check(redis, STORE_REDIS_PLACE, &place, on_checked, s);
    s->checks += store_redis_check(redis, STORE_REDIS_BLOCK, &block, on_checked, s);
    on_checked(s, false);
}

/* ---- what there is to tell --------------------------------------------------------- */

/* Leading boundaries of a lesson whose tokens the blocks up to its end cover. */
static size_t covered(struct cache *c, const struct index_lesson *lesson)
{
    const size_t n_blocks = tree_mark_blocks(lesson->end);
    const size_t most =
        lesson->n < CACHE_MAX_BOUNDARIES ? lesson->n : CACHE_MAX_BOUNDARIES;
    struct index_record r;
    size_t n = 0;
    while (n < most && index_export(c->index, lesson->v, n, &r) &&
           cache_blocks_of(c, r.high) <= n_blocks)
        n++;
    return n;
}

void cache_share_lesson(struct cache *c, struct hash128 fingerprint,
                        const struct index_lesson *lesson)
{
    struct store_redis *redis = c->store->redis;
    const uint32_t model = cache_model_number(c, fingerprint);
    const bool shared = redis && lesson->end && model && !cache_is_whole(c, model);
    const size_t n = shared ? covered(c, lesson) : 0;
    if (!n)
        return;
    struct share *s = mem_zalloc(sizeof(*s));
    s->c = c;
    s->fingerprint = fingerprint;
    s->n = n;
    s->v = mem_array(n, sizeof(*s->v));
    memcpy(s->v, lesson->v, n * sizeof(*s->v));
    tree_mark_copy(c->tree, &s->end, lesson->end);
    if (lesson->total_tokens) {
        tell(s);
        free_share(s);
    } else {
        check(s);
    }
}

void cache_share_stats(const struct cache *c, struct cache_share_stats *out)
{
    *out = c->shared;
}
