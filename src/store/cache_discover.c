/* SPDX-License-Identifier: MIT */
#include "cache_share.h"

/*
 *     places of up to KEYS boundaries, evenly spread ─► the deepest that is known
 *       (again between it and the next one that was asked for; three rounds see all)
 *     its sequence ─► blocks that the prompt has in common with it
 *     which of those that are not here are there? ─► into the tree, the index
 *
 * It has one deadline for all. What is not found by then is not there.
 */

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cache_sequence.h"

#define KEYS 64
#define ROUNDS 3                                /* KEYS³ boundaries: PIECES_MAX */
#define MAX_BLOCKS 8192                         /* that are asked for, of one prompt */
#define MAX_SEQUENCE_BYTES ((uint64_t)16 << 20) /* four million tokens */

struct cache_discovery {
    struct cache *c;
    struct cache_question q;
    void (*done)(void *arg);
    void *arg;
    struct loop_timer deadline;
    unsigned pending; /* answers under way */
    bool over;        /* told or cancelled: it goes with the last answer */

    size_t low, high; /* boundaries before low are there or not of interest, behind
                         high they are not there */
    unsigned rounds;
    size_t asked[KEYS], n_asked;
    bool found;
    struct hash128 place; /* of the boundary, */
    struct hash128 name;  /* of the sequence that it leads to */

    struct cache_sequence sequence;
    size_t common;         /* boundaries that the prompt shares with it */
    struct hash128 *chain; /* of its blocks */
    size_t n_blocks;       /* that are of interest, */
    size_t n_here;         /* leading ones that the tree has */
    bool *there;           /* the others */
};

static void free_discovery(struct cache_discovery *d)
{
    timer_fini(&d->deadline);
    cache_sequence_free(&d->sequence);
    free(d->chain);
    free(d->there);
    free(d);
}

static void end(struct cache_discovery *d)
{
    const bool told = d->over;
    d->over = true;
    timer_stop(&d->deadline);
    if (!told)
        d->done(d->arg);
    if (!d->pending)
        free_discovery(d);
}

static void on_deadline(void *arg)
{
    struct cache_discovery *d = arg;
    d->c->shared.late++;
    end(d);
}

void cache_discover_cancel(struct cache_discovery *d)
{
    if (!d)
        return;
    d->over = true;
    timer_stop(&d->deadline);
}

/* True where the answer is still of use. */
static bool is_answer(struct cache_discovery *d, const struct redisReply *answer)
{
    d->pending--;
    return answer && !d->over;
}

static bool ask(struct cache_discovery *d, struct store_command *c, int type,
                uint64_t max_bytes, store_link_cb cb)
{
    struct store_redis *redis = d->c->store->redis;
    if (!redis || !store_redis_ask(redis, c, type, max_bytes, cb, d))
        return false;
    d->pending++;
    return true;
}

static void add_key(const struct cache_discovery *d, char kind, struct hash128 hash,
                    struct store_command *c)
{
    struct buf key = {0};
    store_redis_key(d->c->store->redis, kind,
                    &(struct store_name){d->q.fingerprint, hash}, &key);
    store_command_word(c, buf_slice(&key));
    buf_free(&key);
}

/* ---- fourth: into the tree and the index ------------------------------------------- */

static void import_boundaries(struct cache_discovery *d, const struct tree_mark *end_mark)
{
    struct cache *c = d->c;
    const size_t depth = tree_mark_blocks(end_mark);
    for (size_t i = 0; i < d->common; i++) {
        const struct index_record *r = &d->sequence.records[i];
        const size_t n_blocks = cache_blocks_of(c, r->high);
        struct tree_mark at = {0};
        tree_mark_copy(c->tree, &at, end_mark);
        if (n_blocks && n_blocks < depth)
            tree_mark_up(c->tree, &at, n_blocks);
        index_import(c->index, r, &at);
        tree_mark_clear(c->tree, &at);
    }
}

static void import(struct cache_discovery *d, size_t n_blocks)
{
    struct cache *c = d->c;
    const uint32_t bt = c->o.block_tokens;
    uint32_t model = cache_model_number(c, d->q.fingerprint);
    const bool tail = n_blocks * bt > d->sequence.n_tokens;
    struct tree_mark m = {0};
    const struct tree_sequence s = {
        .chain = d->chain,
        .n = tail ? n_blocks - 1 : n_blocks,
        .tokens = d->sequence.tokens,
        .tail_tokens = tail ? (uint32_t)(d->sequence.n_tokens % bt) : 0,
        .token_bytes = d->sequence.token_bytes,
        .owner = cache_root_tenant(d->q.root),
        .order = cache_order_of(c, cache_root_tenant(d->q.root), model)};
    c->shared.blocks += tree_insert(c->tree, &s, &m);
    tree_walk(c->tree, &m, cache_mark_stored, &model);
    if (m.node)
        import_boundaries(d, &m);
    c->shared.found += m.node != NULL;
    tree_mark_clear(c->tree, &m);
}

/* ---- third: which blocks are there? ------------------------------------------------ */

struct block_question {
    struct cache_discovery *d;
    size_t i;
};

static uint64_t size_of_block(const struct cache_discovery *d, size_t i)
{
    const size_t bt = d->c->o.block_tokens, rest = d->sequence.n_tokens - i * bt;
    const struct store_head h = {.n_tokens = (uint32_t)(rest < bt ? rest : bt),
                                 .rows_bytes =
                                     (rest < bt ? rest : bt) * d->sequence.token_bytes};
    return store_block_bytes(&h);
}

static void import_leading(struct cache_discovery *d)
{
    size_t n = d->n_here;
    while (n < d->n_blocks && d->there[n])
        n++;
    if (n)
        import(d, n);
    end(d);
}

static void on_block(void *arg, struct redisReply *answer)
{
    struct block_question *q = arg;
    struct cache_discovery *d = q->d;
    const bool useful = is_answer(d, answer);
    if (useful)
        d->there[q->i] = (uint64_t)answer->integer == size_of_block(d, q->i);
    free(q);
    freeReplyObject(answer);
    if (d->pending)
        return;
    if (d->over)
        end(d);
    else
        import_leading(d);
}

static void ask_for_blocks(struct cache_discovery *d)
{
    d->there = mem_zalloc(d->n_blocks + 1);
    d->n_here =
        tree_match(d->c->tree, d->chain, d->sequence.n_tokens / d->c->o.block_tokens,
                   d->sequence.tokens, NULL);
    d->pending++; /* until all are asked for */
    for (size_t i = d->n_here; i < d->n_blocks; i++) {
        struct store_command c = {0};
        struct block_question *q = mem_alloc(sizeof(*q));
        *q = (struct block_question){d, i};
        store_command_start(&c, "STRLEN", 1);
        add_key(d, STORE_REDIS_BLOCK, d->chain[i], &c);
        if (store_redis_ask(d->c->store->redis, &c, REDIS_REPLY_INTEGER, 0, on_block, q))
            d->pending++;
        else
            free(q);
    }
    if (--d->pending == 0)
        import_leading(d);
}

/* ---- second: the sequence ---------------------------------------------------------- */

/* Hashes of its blocks; false where it is not the one that is named by them. */
static bool make_chain(struct cache_discovery *d)
{
    const struct cache *c = d->c;
    const struct cache_sequence *s = &d->sequence;
    const uint32_t bt = c->o.block_tokens;
    const size_t tail = s->n_tokens % bt;
    d->chain = mem_array(s->n_tokens / bt + 1, sizeof(*d->chain));
    size_t n = chain_blocks(&c->key, d->q.root, s->tokens, s->n_tokens, bt, d->chain);
    if (tail) {
        const struct hash128 before = n ? d->chain[n - 1] : d->q.root;
        d->chain[n] = chain_block(&c->key, before, s->tokens + n * bt, tail);
        n++;
    }
    d->n_blocks = n;
    return hash128_eq(d->chain[n - 1], d->name);
}

static size_t count_common(const struct cache_discovery *d)
{
    size_t n = 0;
    while (n < d->q.n && n < d->sequence.n_records &&
           hash128_eq(d->q.v[n].hash, d->sequence.records[n].hash) &&
           d->q.v[n].check == d->sequence.records[n].check)
        n++;
    return n;
}

/* What leads nowhere must not be found again. */
static void forget_place(struct cache_discovery *d)
{
    store_redis_delete(d->c->store->redis, STORE_REDIS_PLACE,
                       &(struct store_name){d->q.fingerprint, d->place});
}

static bool read_sequence(struct cache_discovery *d, const struct redisReply *answer)
{
    const uint32_t model = cache_model_number(d->c, d->q.fingerprint);
    struct err e = {0};
    if (cache_sequence_read(slice_make(answer->str, answer->len), &d->sequence, &e) !=
            0 ||
        d->sequence.block_tokens != d->c->o.block_tokens ||
        d->sequence.token_bytes != d->c->models[model - 1].token_bytes ||
        !make_chain(d)) {
        store_redis_damaged(d->c->store->redis, STORE_REDIS_SEQUENCE,
                            &(struct store_name){d->q.fingerprint, d->name});
        return false;
    }
    d->common = count_common(d);
    if (!d->common)
        return false;
    /* One block further than known, as when slots are filled. */
    const size_t reach = d->sequence.records[d->common - 1].reach;
    const size_t most = cache_blocks_of(d->c, reach) + 1;
    d->n_blocks = d->n_blocks < most ? d->n_blocks : most;
    d->n_blocks = d->n_blocks < MAX_BLOCKS ? d->n_blocks : MAX_BLOCKS;
    return true;
}

static void on_sequence(void *arg, struct redisReply *answer)
{
    struct cache_discovery *d = arg;
    const bool asked =
        !d->over && d->c->store->redis && store_redis_up(d->c->store->redis);
    const bool good = is_answer(d, answer) && read_sequence(d, answer);
    freeReplyObject(answer);
    if (good) {
        ask_for_blocks(d);
        return;
    }
    if (asked)
        forget_place(d);
    end(d);
}

static void ask_for_sequence(struct cache_discovery *d)
{
    struct store_command c = {0};
    store_command_start(&c, "GET", 1);
    add_key(d, STORE_REDIS_SEQUENCE, d->name, &c);
    if (!ask(d, &c, REDIS_REPLY_STRING, MAX_SEQUENCE_BYTES, on_sequence))
        end(d);
}

/* ---- first: places ----------------------------------------------------------------- */

static bool read_place(struct cache_discovery *d, size_t i,
                       const struct redisReply *value)
{
    const struct piece *p = &d->q.v[d->asked[i]];
    if (value->type != REDIS_REPLY_STRING ||
        !cache_place_read(slice_make(value->str, value->len), p->check, &d->name))
        return false;
    d->found = true;
    d->place = p->hash;
    d->low = d->asked[i] + 1;
    return true;
}

static void ask_for_places(struct cache_discovery *d);

static void on_places(void *arg, struct redisReply *answer)
{
    struct cache_discovery *d = arg;
    if (!is_answer(d, answer)) {
        freeReplyObject(answer);
        end(d);
        return;
    }
    const bool odd = answer->elements != d->n_asked;
    size_t i = odd ? 0 : d->n_asked;
    while (i > 0 && !read_place(d, i - 1, answer->element[i - 1]))
        i--;
    freeReplyObject(answer);
    if (i < d->n_asked)
        d->high = d->asked[i];
    if (odd)
        store_redis_reject(d->c->store->redis, "it answers MGET with another number");
    if (!odd && d->low < d->high && d->rounds < ROUNDS)
        ask_for_places(d);
    else if (!odd && d->found)
        ask_for_sequence(d);
    else
        end(d);
}

/* Evenly spread over what is not known yet, the last one among them. */
static void ask_for_places(struct cache_discovery *d)
{
    const size_t n = d->high - d->low;
    struct store_command c = {0};
    d->rounds++;
    d->n_asked = n < KEYS ? n : KEYS;
    store_command_start(&c, "MGET", (unsigned)d->n_asked);
    for (size_t i = 0; i < d->n_asked; i++) {
        d->asked[i] = d->low + (i + 1) * n / d->n_asked - 1;
        add_key(d, STORE_REDIS_PLACE, d->q.v[d->asked[i]].hash, &c);
    }
    if (!ask(d, &c, REDIS_REPLY_ARRAY, KEYS * 2 * CACHE_PLACE_BYTES, on_places))
        end(d);
}

/* ---- is there anything to ask? ----------------------------------------------------- */

/* Where to begin: behind what is known and still stored. */
static size_t known_boundaries(struct cache *c, const struct cache_question *q)
{
    struct index_hit hit = {0};
    index_find(c->index, q->v, q->n, &hit);
    const uint32_t stored = cache_restorable(c, &hit.at, hit.high);
    tree_mark_clear(c->tree, &hit.at);
    return stored + c->o.block_tokens < hit.high ? 0 : hit.n_pieces;
}

struct cache_discovery *cache_discover(struct cache *c, const struct cache_question *q,
                                       void (*done)(void *arg), void *arg)
{
    struct store_redis *redis = c->store->redis;
    if (!redis || !store_redis_can(redis, q->fingerprint) ||
        !cache_model_number(c, q->fingerprint))
        return NULL;
    const size_t n = q->n < CACHE_MAX_BOUNDARIES ? q->n : CACHE_MAX_BOUNDARIES;
    const size_t known = known_boundaries(c, q);
    const uint64_t known_bytes = known ? q->v[known - 1].end_bytes : 0;
    /* A block has at least as many bytes as tokens. */
    if (known >= n || q->v[n - 1].end_bytes < known_bytes + c->o.block_tokens)
        return NULL;
    struct cache_discovery *d = mem_zalloc(sizeof(*d));
    d->c = c;
    d->q = *q;
    d->done = done;
    d->arg = arg;
    d->low = known;
    d->high = n;
    c->shared.asked++;
    timer_init(&d->deadline, c->o.store.redis.loop, on_deadline, d);
    timer_start(&d->deadline, c->o.store.redis.timeout_ms);
    ask_for_places(d);
    return d;
}
