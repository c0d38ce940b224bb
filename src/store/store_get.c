/* SPDX-License-Identifier: MIT */
#include "store_redis.h"

/*
 * Blocks out: from the first tier that has a good one, verified on a worker.
 *
 *     RAM? ─► worker: verify, else read the slow tier ─┬─ found ──────────────► done
 *                                                      └─► shared tier: GET
 *                                                           └─► worker: verify ─► done
 *
 * What came from the shared tier is put into the others like any new block.
 */

#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

struct get {
    struct store *s;
    size_t n, left;
    struct store_block **blocks;
    struct err *errs; /* of each block */
    store_get_cb done;
    void *arg;
};

struct read_op {
    struct store_op op;
    struct get *get;
    size_t i;
    struct store_block *block; /* out of RAM, to be verified; then the result */
    bool from_slow, from_redis;
    struct store_block *bad;
    bool asked;                /* the shared tier */
    struct redisReply *answer; /* what it said, until it has been looked at */
    bool bad_answer;           /* that was no block, or not this one */
    struct err err;
};

static void finish_get(void *arg)
{
    struct get *g = arg;
    struct err e = {0};
    size_t good = 0;
    while (good < g->n && g->blocks[good])
        good++;
    if (good < g->n) {
        e = g->errs[good];
        err_wrap(&e, "block %zu of %zu", good + 1, g->n);
    }
    for (size_t i = good; i < g->n; i++)
        store_block_put(g->blocks[i]);
    g->done(g->arg, g->blocks, good, e.code ? &e : NULL);
    free(g->blocks);
    free(g->errs);
    free(g);
}

/* Its turn in the lane: what came before may have brought the block into RAM. */
static void start_read(struct store_op *op)
{
    struct read_op *r = LIST_ENTRY(op, struct read_op, op);
    struct store_tier *ram = r->get->s->ram;
    if (!r->block)
        ram->ops->get(ram, &op->name, &r->block, NULL);
}

/* Nothing there: what the other tiers said stands. */
static void read_answer(struct read_op *r)
{
    if (!r->answer)
        return;
    r->err = (struct err){0};
    r->from_redis = store_redis_block(r->answer, &r->op.name, &r->block, &r->err) == 0;
    r->bad_answer = !r->from_redis;
    freeReplyObject(r->answer);
}

static void run_read(struct store_op *op)
{
    struct read_op *r = LIST_ENTRY(op, struct read_op, op);
    struct store_tier *slow = r->get->s->slow;
    if (r->asked) {
        read_answer(r);
        return;
    }
    if (r->block && store_block_verify(r->block)) {
        if (slow)
            slow->ops->touch(slow, &op->name);
        return;
    }
    r->bad = r->block;
    r->block = NULL;
    if (slow)
        r->from_slow = slow->ops->get(slow, &op->name, &r->block, &r->err) == 0;
    else
        err_set(&r->err, r->bad ? ERR_CHECKSUM : ERR_NOT_FOUND, "%s",
                r->bad ? "was damaged in RAM" : "is not there");
}

/* A block that went bad in RAM leaves it, unless another one has taken its place. */
static void drop_bad(struct store *s, struct read_op *r)
{
    struct store_block *now = NULL;
    s->count.damaged++;
    log_event(LOG_ERROR, "block-damaged-in-ram", "bytes", "%llu",
              (unsigned long long)store_block_bytes(&r->bad->head), NULL);
    if (s->ram->ops->get(s->ram, &r->op.name, &now, NULL) == 0 && now == r->bad)
        s->ram->ops->drop(s->ram, &r->op.name);
    store_block_put(now);
    store_block_put(r->bad);
}

static void count_read(struct store *s, const struct read_op *r)
{
    s->count.disk_hits += r->from_slow;
    s->count.redis_hits += r->from_redis;
    s->count.ram_hits += r->block && !r->from_slow && !r->from_redis;
    s->count.missing += r->err.code == ERR_NOT_FOUND;
    if (r->err.code == ERR_IO) {
        s->count.read_errors++;
        if (trouble_begins(&s->reading, clock_mono_us()))
            log_event(LOG_WARN, "store-read-failed", "error", "%s", r->err.text, NULL);
    } else if (r->from_slow && trouble_ends(&s->reading, clock_mono_us())) {
        log_event(LOG_INFO, "store-read-works", "failures", "%llu",
                  (unsigned long long)s->reading.n, NULL);
    }
}

static void on_answer(void *arg, struct redisReply *answer)
{
    struct read_op *r = arg;
    r->answer = answer;
    store_lane_again(&r->op);
}

/* False where there is nobody to ask. */
static bool ask_redis(struct read_op *r)
{
    struct store_redis *redis = r->get->s->redis;
    r->asked = true; /* before: an answer comes from the loop, not from here */
    return redis && store_redis_get(redis, &r->op.name, on_answer, r);
}

/* What the shared tier is to know of a block that was read. */
static void tell_redis(const struct store *s, const struct read_op *r)
{
    if (!s->redis)
        return;
    if (r->from_redis)
        store_redis_got(s->redis, r->block);
    else if (r->block)
        store_redis_touch(s->redis, r->block);
    else if (r->bad_answer)
        store_redis_damaged(s->redis, STORE_REDIS_BLOCK, &r->op.name);
}

/* Into the tiers that did not have it. Outside a lane nothing tells whether it was
 * dropped meanwhile. */
static void keep(struct store *s, const struct read_op *r)
{
    if (!(r->from_slow || r->from_redis) || !r->op.lane ||
        store_lane_drop_follows(&r->op))
        return;
    s->ram->ops->put(s->ram, r->block, NULL);
    if (r->from_redis && s->slow)
        store_put_slow(s, r->block, NULL);
}

static bool on_read(struct store_op *op)
{
    struct read_op *r = LIST_ENTRY(op, struct read_op, op);
    struct get *g = r->get;
    if (r->bad)
        drop_bad(g->s, r);
    r->bad = NULL;
    if (!r->block && !r->asked && ask_redis(r))
        return false;
    count_read(g->s, r);
    tell_redis(g->s, r);
    keep(g->s, r);
    g->blocks[r->i] = r->block;
    g->errs[r->i] = r->err;
    free(r);
    if (--g->left == 0)
        finish_get(g);
    return true;
}

static void start_get(struct get *g, size_t i, const struct store_name *name)
{
    struct store *s = g->s;
    struct read_op *r = mem_zalloc(sizeof *r);
    r->op.name = *name;
    r->op.start = start_read;
    r->op.run = run_read;
    r->op.done = on_read;
    r->get = g;
    r->i = i;
    g->left++;
    if (s->ram->ops->get(s->ram, name, &r->block, NULL) == 0)
        store_lane_pass(&s->lanes, &r->op);
    else
        store_lane_enter(&s->lanes, &r->op);
}

void store_get(struct store *s, struct hash128 fingerprint, const struct hash128 *hashes,
               size_t n, store_get_cb done, void *arg)
{
    struct get *g = mem_zalloc(sizeof *g);
    *g = (struct get){.s = s, .n = n, .done = done, .arg = arg};
    g->blocks = mem_zalloc((n + 1) * sizeof(struct store_block *));
    g->errs = mem_zalloc((n + 1) * sizeof *g->errs);
    s->count.gets += n;
    for (size_t i = 0; i < n; i++)
        start_get(g, i, &(struct store_name){fingerprint, hashes[i]});
    if (n == 0)
        store_defer(s, finish_get, g);
}
