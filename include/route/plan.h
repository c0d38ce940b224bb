/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_ROUTE_PLAN_H
#define INCIPIT_ROUTE_PLAN_H

/*
 * Which slot, and whether to restore first: the least estimated time to first token over
 * all idle slots. Pure: a snapshot in, a choice out.
 *
 *   cost(slot, as it is) = fresh(resident) · rate            + neighbours + loss(slot)
 *   cost(slot, restored) = fresh(restorable) · rate + restore + neighbours + loss(slot)
 *
 * fresh(x) = prompt tokens − x. neighbours: llama-server fills a batch in slot order, so
 * prefills that run in lower slots come first and those in higher slots partly share the
 * batch. loss: what overwriting the slot costs whoever wants its old content back, a
 * prefill of what is stored nowhere else and a restore of the rest. Equal costs: a long
 * cold prefill takes the highest slot (it then stands behind the short ones), all others
 * the lowest; then the least recently used.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLAN_LONG_TOKENS 512     /* a prefill from here on is long */
#define PLAN_ARRIVAL 0.5         /* requests that arrive during a save, on average */
#define PLAN_NEIGHBOUR_ABOVE 0.3 /* share of a higher slot's prefill that is waited for */

struct plan_slot {
    bool idle;
    uint32_t resident_tokens; /* of this prompt, already in the slot */
    uint32_t held_tokens;     /* in the slot altogether */
    uint32_t unsaved_tokens; /* held, not resident for this prompt, stored nowhere else */
    uint32_t prefill_tokens; /* still to prefill for the request that runs here */
    uint64_t last_used_us;
};

struct plan_question {
    const struct plan_slot *slots;
    size_t n_slots;
    int pinned;                 /* only this slot; -1: any */
    uint32_t prompt_tokens;     /* estimated */
    uint32_t restorable_tokens; /* that the store could put back; 0: none */
    double restore_ms_per_token;
    double ms_per_token; /* of prefill */
};

struct plan_choice {
    int slot; /* -1: none is idle */
    bool restore;
    double cost_ms;
};

struct plan_choice plan_choose(const struct plan_question *q);

/*
 * Is a slot worth saving now? The engine writes the whole slot and all slots stand still
 * meanwhile, so `busy_slots` other requests, and whoever arrives then, lose bytes / rate
 * each. Worth it when recomputing the new tokens would cost more.
 */
struct plan_save {
    uint32_t new_tokens; /* that the store lacks */
    uint32_t all_tokens; /* in the slot: what is written */
    uint32_t block_tokens;
    uint64_t token_bytes;
    unsigned busy_slots;
    double ms_per_token;
    double save_bytes_per_ms;
};
bool plan_worth_saving(const struct plan_save *s);

#endif
