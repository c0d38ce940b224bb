/* SPDX-License-Identifier: MIT */
#include "store_redis.h"

/*
 * Blocks in: into RAM at once, to the slow tier through their lanes, and to the shared
 * tier whenever it has time.
 */

#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#define MAX_UNWRITTEN_BYTES ((uint64_t)2 << 30) /* more waits for no disk: RAM only */

struct store_batch {
    struct store *s;
    size_t left, stored;
    store_put_cb done;
    void *arg;
};

struct write_op {
    struct store_op op;
    struct store *s;
    struct store_batch *batch;
    struct store_block *block;
    int rc;
    struct err err;
};

static void finish_batch(void *arg)
{
    struct store_batch *p = arg;
    if (p->done)
        p->done(p->arg, p->stored);
    free(p);
}

static void run_write(struct store_op *op)
{
    struct write_op *w = LIST_ENTRY(op, struct write_op, op);
    w->rc = w->s->slow->ops->put(w->s->slow, w->block, &w->err);
}

/* A full disk says so once, and once more when it works again. */
static void note_write(struct store *s, int rc, const struct err *e)
{
    s->count.write_errors += rc != 0;
    if (rc && trouble_begins(&s->writing, clock_mono_us()))
        log_event(LOG_WARN, "store-write-failed", "error", "%s", e->text, NULL);
    if (!rc && trouble_ends(&s->writing, clock_mono_us()))
        log_event(LOG_INFO, "store-write-works", "failures", "%llu",
                  (unsigned long long)s->writing.n, NULL);
}

static bool on_written(struct store_op *op)
{
    struct write_op *w = LIST_ENTRY(op, struct write_op, op);
    struct store_batch *p = w->batch;
    note_write(w->s, w->rc, &w->err);
    w->s->unwritten_bytes -= store_block_bytes(&w->block->head);
    if (p)
        p->stored += w->rc == 0;
    store_block_put(w->block);
    free(w);
    if (p && --p->left == 0)
        finish_batch(p);
    return true;
}

bool store_put_slow(struct store *s, struct store_block *b, struct store_batch *batch)
{
    const uint64_t bytes = store_block_bytes(&b->head);
    if (s->unwritten_bytes + bytes > MAX_UNWRITTEN_BYTES) {
        s->count.write_errors++;
        return false;
    }
    struct write_op *w = mem_zalloc(sizeof *w);
    w->op.name = store_name_of(b);
    w->op.run = run_write;
    w->op.done = on_written;
    w->s = s;
    w->batch = batch;
    w->block = store_block_get(b);
    s->unwritten_bytes += bytes;
    store_lane_enter(&s->lanes, &w->op);
    return true;
}

void store_put(struct store *s, struct store_block *const *blocks, size_t n,
               store_put_cb done, void *arg)
{
    struct store_batch *p = mem_zalloc(sizeof *p);
    *p = (struct store_batch){.s = s, .done = done, .arg = arg};
    s->count.puts += n;
    for (size_t i = 0; i < n; i++) {
        const int rc = s->ram->ops->put(s->ram, blocks[i], NULL);
        store_claim(s, blocks[i]->head.fingerprint);
        if (!s->slow)
            p->stored += rc == 0;
        else if (store_put_slow(s, blocks[i], p))
            p->left++;
        if (s->redis)
            store_redis_put(s->redis, blocks[i]);
    }
    if (p->left == 0)
        store_defer(s, finish_batch, p);
}
