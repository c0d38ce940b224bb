/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * When is which slot saved? Not while a request waits, but for what that one is about to
 * overwrite; one at a time, the most valuable first, weighed each time anew
 * (route/plan.h). Between two saves the queue is looked at: who came during one waits for
 * that one and for no other.
 *
 * All that is not saved yet is in the same danger: a new prompt is put where least is
 * lost, so what is worth most is overwritten last as well.
 */

#include <math.h>

#include "route/plan.h"

#define KEPT_REUSE 1e6 /* times that somebody will ask for it */

void llama_skip_save(struct llama *l, struct llama_slot *s, enum save_skip why)
{
    s->unsaved = false;
    l->r->n.saves_skipped[why]++;
    if (why == SAVE_OVERWRITTEN || why == SAVE_NOT_WORTH || why == SAVE_TOO_LONG)
        llama_doubt_saves(l);
    if (s->holds)
        llama_learn_text(l, s->holds);
}

/* A save has ended: whoever waits for a first token has waited for it. */
void llama_stalled(struct llama *l, double ms)
{
    for (size_t i = 0; i < l->n_slots; i++)
        l->slots[i].stalled_ms += ms;
}

/* Where idle slots are emptied when a request begins on another one. */
void llama_emptied(struct llama *l, const struct llama_slot *but)
{
    for (size_t i = 0; l->empties_idle && i < l->n_slots; i++) {
        struct llama_slot *s = &l->slots[i];
        if (s == but || s->state != SLOT_IDLE)
            continue;
        if (s->unsaved)
            llama_skip_save(l, s, SAVE_OVERWRITTEN);
        llama_forget(l, s);
        s->whose = LLAMA_NOBODY;
    }
}

static struct plan_save question(const struct llama *l, const struct llama_slot *s)
{
    const double quiet = (double)(loop_now_us(l->r->loop) - l->active_us) / 1e3;
    const uint64_t bytes = llama_state_bytes(l, s->tokens);
    struct plan_save q = {
        .new_tokens = llama_storable(s->holds) - s->holds->known_tokens,
        .all_tokens = s->tokens,
        .block_tokens = cache_block_tokens(l->r->cache),
        .token_bytes = l->whole ? bytes / s->tokens + 1 : l->frame->token_bytes,
        .ms_per_token = l->r->ms_per_token,
        .restore_ms_per_token = llama_restore_ms_per_token(l, s->tokens),
        .save_bytes_per_ms = l->save_rate.bytes / l->save_rate.ms,
        .reuse = llama_reuse(l),
        .gap_ms = l->gap_ms,
        .quiet_ms = l->draining ? PLAN_PATIENCE : quiet,
        .max_stall_ms = (double)l->r->o.max_stall_ms};
    if (s->holds->keep) { /* it was asked for: only the time that it takes counts */
        q.reuse = KEPT_REUSE;
        q.block_tokens = 1;
    }
    for (size_t i = 0; i < l->n_slots; i++) {
        const struct llama_slot *o = &l->slots[i];
        q.busy_slots += o->state == SLOT_OWNED || o->state == SLOT_ZOMBIE;
        if (llama_prefill_left(l, o))
            q.stalled_ms = fmax(q.stalled_ms, o->stalled_ms);
    }
    q.prefill_ms = fmin(llama_prefill_ms(l, s), l->batch_tokens * l->r->ms_per_token);
    return q;
}

static bool may_save_first(const struct llama *l)
{
    return l->store_on && l->r->o.save && l->r->o.save_first && !l->binding.active;
}

/* Is it to be saved now? Sets how long it is to wait where not. */
static bool weigh(struct llama *l, struct llama_slot *s, double *value_ms, double *later)
{
    if (!l->r->o.save) {
        llama_skip_save(l, s, SAVE_OFF);
        return false;
    }
    if (l->whole && llama_state_bytes(l, s->tokens) > STORE_MAX_BLOCK_BYTES) {
        llama_skip_save(l, s, SAVE_TOO_LONG); /* it would not be kept */
        return false;
    }
    const struct plan_save q = question(l, s);
    const struct plan_save_choice c = plan_save(&q);
    *value_ms = c.value_ms;
    switch (c.when) {
    case PLAN_SAVE_NOW:
        break;
    case PLAN_SAVE_LATER:
        if (c.later_ms > 0 && (*later <= 0 || c.later_ms < *later))
            *later = c.later_ms;
        return false;
    case PLAN_SAVE_TOO_LONG:
        llama_skip_save(l, s, SAVE_TOO_LONG);
        return false;
    case PLAN_SAVE_NOT_WORTH:
        llama_skip_save(l, s, SAVE_NOT_WORTH);
        return false;
    }
    if (llama_scratch_room(l, llama_state_bytes(l, s->tokens)))
        return true;
    llama_skip_save(l, s, SAVE_SCRATCH_FULL);
    return false;
}

/* What has to be kept does not wait for a quiet moment, the next job might overwrite it;
 * unless nobody should have to wait as long as it takes. */
void llama_save_kept(struct llama *l)
{
    for (size_t i = 0; i < l->n_slots; i++) {
        struct llama_slot *s = &l->slots[i];
        if (s->state != SLOT_IDLE || !s->unsaved || !s->holds->keep)
            continue;
        const struct plan_save q = question(l, s);
        if (plan_save_ms(&q) > q.max_stall_ms)
            continue;
        if (!l->r->o.save) {
            llama_skip_save(l, s, SAVE_OFF);
        } else if (!llama_scratch_room(l, llama_state_bytes(l, s->tokens))) {
            llama_skip_save(l, s, SAVE_SCRATCH_FULL);
        } else {
            llama_save(l, s);
            return;
        }
    }
}

/*
 * A job is about to overwrite what is not saved yet. It waits for that save where what
 * would be lost is worth more than the wait of all who are here, and never longer than
 * max_stall; once, since the save may fail. Without this a client that asks again as soon
 * as it is answered, with another prompt, would leave no time to save anything.
 */
bool llama_save_first(struct llama *l, struct llama_slot *s, struct job *job)
{
    if (job->saved_first || !s->unsaved || !may_save_first(l))
        return false;
    const struct plan_save q = question(l, s);
    const struct plan_save_choice c = plan_save_first(&q, l->r->queued);
    if (c.when != PLAN_SAVE_NOW ||
        !llama_scratch_room(l, llama_state_bytes(l, s->tokens)))
        return false;
    job->saved_first = true;
    llama_save(l, s);
    return true;
}

void llama_save_best(struct llama *l)
{
    struct llama_slot *best = NULL;
    double most_ms = 0, later_ms = 0;
    timer_stop(&l->save_later);
    for (size_t i = 0; i < l->n_slots; i++) {
        struct llama_slot *s = &l->slots[i];
        double value_ms;
        if (s->state != SLOT_IDLE || !s->unsaved || !weigh(l, s, &value_ms, &later_ms))
            continue;
        if (!best || value_ms > most_ms ||
            (value_ms == most_ms && s->last_used_us < best->last_used_us)) {
            best = s;
            most_ms = value_ms;
        }
    }
    if (best)
        llama_save(l, best);
    else if (later_ms > 0)
        timer_start(&l->save_later, (uint64_t)later_ms + 1);
}
