/* SPDX-License-Identifier: MIT */
#ifndef LAB_ENGINE_H
#define LAB_ENGINE_H

/*
 * Slots, and what is computed in them: tasks take a slot, reuse what it holds of the
 * start of their prompt, and are computed in batches, one batch a turn of the loop. Knows
 * no HTTP and no text.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "io/loop.h"
#include "lab/model.h"

#define LAB_BATCH 64 /* tokens */

/* One generation. It belongs to its owner, who frees it in or after on_end, or after
 * cancelling it. */
struct lab_task {
    /* set by the owner */
    const uint32_t *tokens; /* of the prompt: at least one, fewer than the context */
    uint32_t n_tokens;
    int64_t wants_slot; /* modulo the slots; -1: any */
    bool cache_prompt, ignore_eos, stream;
    bool held;     /* has its slot and is not computed */
    int64_t limit; /* tokens of the answer; < 0: none. One is always made */
    void (*on_token)(void *arg, uint32_t token); /* the first ends the prompt */
    void (*on_end)(void *arg);                   /* the slot is free again */
    void *arg;

    /* what came of it */
    int slot_id;
    uint32_t cached;  /* tokens of the prompt that were reused */
    uint32_t *answer; /* the token that ended it included */
    uint32_t n_answer;
    bool ended_itself; /* by an end token; else by a limit */
    bool truncated;    /* the context was full */
    uint64_t start_us, first_us, last_us;

    /* the engine's own */
    struct list link;
    struct lab_slot *slot;
    uint32_t done; /* tokens of the prompt that are in the slot */
    int64_t id;
};

struct lab_slot {
    int id;
    struct lab_cache *cache;
    uint32_t *tokens;           /* of which the cache has rows */
    struct lab_task *task;      /* NULL: idle */
    bool stuck;                 /* misbehaves: busy without a task */
    bool spoilt;                /* misbehaves: what was restored is not reused */
    int64_t id_task;            /* of the last task, -1 in a fresh process */
    uint32_t processed, cached; /* of the running task's prompt */
    bool stream;
    uint64_t last_used_us;
};

/* Something to do with an idle slot (save, restore, erase). Lives with its owner. */
struct lab_action {
    struct list link;
    struct lab_slot *slot;
    void (*run)(void *arg, struct lab_slot *s);
    void *arg;
};

struct lab_totals {
    uint64_t prompt_tokens, cached_tokens, predicted_tokens, batches;
    uint64_t prompt_us, predicted_us;
};

struct lab_engine {
    struct loop *loop;
    struct lab_model *model;
    struct lab_slot *slots;
    uint32_t n_slots, context;
    struct list deferred, actions;
    int64_t next_task;
    struct lab_totals totals;
    bool keeps_left_slots; /* misbehaves: a cancelled task's slot stays busy */
    bool recurrent;        /* misbehaves: slots are reused whole or not at all */

    uint64_t token_cost_us, owed_us;
    struct loop_timer pay;
    bool scheduled, paid, stopped;
};

void lab_engine_init(struct lab_engine *e, struct loop *l, struct lab_model *m,
                     uint32_t slots);
void lab_engine_stop(struct lab_engine *e); /* computes no more; before loop_free() */
void lab_engine_fini(struct lab_engine *e); /* after it; no tasks are left */

void lab_engine_submit(struct lab_engine *e, struct lab_task *t);
void lab_engine_cancel(struct lab_engine *e, struct lab_task *t);

/* Runs it at once where the slot is idle, else later, behind tasks that want the slot. */
void lab_engine_act(struct lab_engine *e, struct lab_action *a);

/* A task that was held is computed from now on. */
void lab_engine_unhold(struct lab_engine *e, struct lab_task *t);

/* Frees the slots that were kept busy. */
void lab_engine_unstick(struct lab_engine *e);

bool lab_slot_busy(const struct lab_slot *s);
struct lab_slot *lab_engine_slot(struct lab_engine *e, int64_t id); /* modulo */
size_t lab_engine_running(const struct lab_engine *e);
size_t lab_engine_waiting(const struct lab_engine *e);

#endif
