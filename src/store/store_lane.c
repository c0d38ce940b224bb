/* SPDX-License-Identifier: MIT */
#include "store_internal.h"

/*
 * Workers run jobs side by side, so writing a block and deleting it could overtake each
 * other. A lane exists for each name that something is under way for, and lets one job
 * after the other through:
 *
 *     name → lane:  running op ← waiting ← waiting      (no op left: no lane)
 */

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"

struct store_lane {
    struct store_map_node node;
    struct list waiting;
    size_t drops_waiting;
};

static void run(void *arg)
{
    struct store_op *op = arg;
    op->run(op);
}

static void on_done(void *arg);

static void set_off(struct store_op *op)
{
    if (op->start)
        op->start(op);
    workers_submit(op->lanes->workers, run, on_done, op);
}

static void let_next_through(struct store_lanes *l, struct store_lane *lane)
{
    if (list_empty(&lane->waiting)) {
        store_map_remove(&l->map, &lane->node);
        free(lane);
        return;
    }
    struct store_op *next = LIST_ENTRY(lane->waiting.next, struct store_op, link);
    list_del(&next->link);
    lane->drops_waiting -= next->drops;
    set_off(next);
}

static void on_done(void *arg)
{
    struct store_op *op = arg;
    struct store_lanes *l = op->lanes;
    struct store_lane *lane = op->lane;
    if (op->done(op) && lane)
        let_next_through(l, lane);
}

void store_lane_enter(struct store_lanes *l, struct store_op *op)
{
    struct store_map_node *node = store_map_find(&l->map, &op->name);
    list_init(&op->link);
    op->lanes = l;
    if (node) {
        op->lane = LIST_ENTRY(node, struct store_lane, node);
        op->lane->drops_waiting += op->drops;
        list_push_back(&op->lane->waiting, &op->link);
        return;
    }
    op->lane = mem_zalloc(sizeof *op->lane);
    op->lane->node.name = op->name;
    list_init(&op->lane->waiting);
    store_map_add(&l->map, &op->lane->node);
    set_off(op);
}

void store_lane_pass(struct store_lanes *l, struct store_op *op)
{
    op->lanes = l;
    op->lane = NULL;
    set_off(op);
}

void store_lane_again(struct store_op *op)
{
    workers_submit(op->lanes->workers, run, on_done, op);
}

bool store_lane_drop_follows(const struct store_op *op)
{
    assert(op->lane);
    return op->lane->drops_waiting > 0;
}
