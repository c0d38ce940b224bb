/* SPDX-License-Identifier: MIT */
#include "route/plan.h"

#include <assert.h>

/* Prefill time of others that this slot would wait for. */
static double neighbours_ms(const struct plan_question *q, size_t slot)
{
    double tokens = 0;
    for (size_t i = 0; i < q->n_slots; i++)
        if (i != slot)
            tokens +=
                q->slots[i].prefill_tokens * (i < slot ? 1.0 : PLAN_NEIGHBOUR_ABOVE);
    return tokens * q->ms_per_token;
}

static double fresh_ms(const struct plan_question *q, uint32_t reused)
{
    return q->prompt_tokens > reused ? (q->prompt_tokens - reused) * q->ms_per_token : 0;
}

/* Overwriting costs whoever asks for the old content again, which half of it is assumed
 * to be: a prefill of what was not saved, a restore of the rest. */
static double loss_ms(const struct plan_question *q, const struct plan_slot *s)
{
    const uint32_t other = s->held_tokens > s->resident_tokens + s->unsaved_tokens
                               ? s->held_tokens - s->resident_tokens - s->unsaved_tokens
                               : 0;
    return 0.5 * (s->unsaved_tokens * q->ms_per_token + other * q->restore_ms_per_token);
}

static struct plan_choice best_of_slot(const struct plan_question *q, size_t i)
{
    const struct plan_slot *s = &q->slots[i];
    const double around = neighbours_ms(q, i) + loss_ms(q, s);
    const double as_is = fresh_ms(q, s->resident_tokens) + around;
    struct plan_choice c = {.slot = (int)i, .restore = false, .cost_ms = as_is};
    if (q->restorable_tokens > s->resident_tokens) {
        const double restored = fresh_ms(q, q->restorable_tokens) + around +
                                q->restorable_tokens * q->restore_ms_per_token;
        if (restored < as_is) {
            c.restore = true;
            c.cost_ms = restored;
        }
    }
    return c;
}

/* Among equals (within a tenth of a millisecond): placement, then least recent use. */
static bool better(const struct plan_question *q, const struct plan_choice *a,
                   const struct plan_choice *b)
{
    const double slack = 0.1;
    if (b->slot < 0 || a->cost_ms < b->cost_ms - slack)
        return true;
    if (a->cost_ms > b->cost_ms + slack)
        return false;
    const struct plan_slot *sa = &q->slots[a->slot], *sb = &q->slots[b->slot];
    if ((sa->held_tokens == 0) != (sb->held_tokens == 0))
        return sa->held_tokens == 0;
    const uint32_t reused = a->restore ? q->restorable_tokens : sa->resident_tokens;
    const bool is_long =
        q->prompt_tokens > reused && q->prompt_tokens - reused >= PLAN_LONG_TOKENS;
    if (sa->held_tokens == 0 || is_long)
        return is_long ? a->slot > b->slot : a->slot < b->slot;
    return sa->last_used_us < sb->last_used_us;
}

struct plan_choice plan_choose(const struct plan_question *q)
{
    struct plan_choice best = {.slot = -1};
    assert(q->pinned < (int)q->n_slots);
    for (size_t i = 0; i < q->n_slots; i++) {
        if (!q->slots[i].idle || (q->pinned >= 0 && (int)i != q->pinned))
            continue;
        const struct plan_choice c = best_of_slot(q, i);
        if (better(q, &c, &best))
            best = c;
    }
    return best;
}

bool plan_worth_saving(const struct plan_save *s)
{
    if (s->new_tokens < s->block_tokens)
        return false;
    const double stall_ms =
        (double)s->all_tokens * (double)s->token_bytes / s->save_bytes_per_ms;
    return s->new_tokens * s->ms_per_token > stall_ms * (s->busy_slots + PLAN_ARRIVAL);
}
