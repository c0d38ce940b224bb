/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_ROUTE_PLAN_H
#define INCIPIT_ROUTE_PLAN_H

/*
 * Which slot, whether to restore first, and when to save. Pure: a snapshot in, a choice
 * out.
 *
 * Placing: the least estimated time to first token over all idle slots.
 *
 *   cost(slot, as it is) = fresh(resident) · rate            + neighbours + loss(slot)
 *   cost(slot, restored) = fresh(restorable) · rate + restore + neighbours + loss(slot)
 *
 * fresh(x) = prompt tokens − x. neighbours: llama-server fills a batch in slot order, so
 * prefills that run in lower slots come first and those in higher slots partly share the
 * batch. restore: what it takes by itself, and the batch that is missed meanwhile where
 * others prefill, since the engine answers it between two batches. loss: what overwriting
 * the slot costs whoever wants its old content back, a prefill of what is stored nowhere
 * else and a restore of the rest. Equal costs: a long cold prefill takes the highest slot
 * (it then stands behind the short ones), all others the lowest; then the least recently
 * used.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLAN_LONG_TOKENS 512     /* a prefill from here on is long */
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
    double batch_tokens; /* of prefill in one batch */
};

struct plan_choice {
    int slot; /* -1: none is idle */
    bool restore;
    double cost_ms;
};

struct plan_choice plan_choose(const struct plan_question *q);

/*
 * Is a restore faster than to compute what it brings beyond `resident`? prefill_ms: of
 * others, still to come, of which it waits for a batch.
 */
bool plan_restore_pays(uint32_t restorable, uint32_t resident, double prefill_ms,
                       const struct plan_question *q);

/*
 * Saving: the engine writes the whole slot, however little of it is new, and all slots
 * stand still meanwhile.
 *
 *   stall = bytes / rate             and, where others prefill, the batch before it
 *   value = new tokens · reuse · (rate of prefill − rate of restore)
 *   harm  = stall · busy slots + stall² / (2 · gap)
 *
 * harm: those who run stand still for all of it, those who arrive wait for half of it on
 * average; requests come every `gap`, or it has been quiet for longer. A save is worth it
 * when the value is greater; where only the arrivals speak against it, it becomes so as
 * it stays quiet.
 *
 * max_stall caps it: saves make nobody wait longer than that for a first token, all of
 * them together. A save that is predicted to take longer happens only when nothing
 * runs and nothing has happened for as long as it will take, so that whoever arrives
 * during it waits no longer than there had been peace; and never when it would take
 * PLAN_LONGEST times as long.
 */
#define PLAN_LONGEST 20     /* times max_stall */
#define PLAN_PATIENCE 600e3 /* ms of quiet that are waited for at most */

struct plan_save {
    uint32_t new_tokens; /* that the store lacks */
    uint32_t all_tokens; /* in the slot: what is written */
    uint32_t block_tokens;
    uint64_t token_bytes;
    unsigned busy_slots;
    double prefill_ms; /* of others, still to come, one batch at most */
    double stalled_ms; /* that one of these has waited for saves already */
    double ms_per_token, restore_ms_per_token, save_bytes_per_ms;
    double reuse; /* share of tokens that are asked for again */
    double gap_ms, quiet_ms, max_stall_ms;
};

enum plan_when {
    PLAN_SAVE_NOW,
    PLAN_SAVE_LATER,    /* when those who run are done, or in later_ms */
    PLAN_SAVE_TOO_LONG, /* never */
    PLAN_SAVE_NOT_WORTH
};

struct plan_save_choice {
    enum plan_when when;
    double value_ms; /* the more, the sooner */
    double later_ms; /* where LATER; 0: not before others are done */
};

struct plan_save_choice plan_save(const struct plan_save *s);

/* How long the save itself takes. */
double plan_save_ms(const struct plan_save *s);

/* The same for a slot that the first of `waiting` requests is about to overwrite: all of
 * them wait for the save, so it is NOW or NOT_WORTH, and at most max_stall long. (For the
 * batch under way they would have to wait as well.) */
struct plan_save_choice plan_save_first(const struct plan_save *s, unsigned waiting);

#endif
