/* SPDX-License-Identifier: MIT */
#include "route/plan.h"

#include <assert.h>

static double least(double a, double b)
{
    return a < b ? a : b;
}

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

/* What the others have still to prefill. */
static double others_ms(const struct plan_question *q, size_t slot)
{
    double tokens = 0;
    for (size_t i = 0; i < q->n_slots; i++)
        if (i != slot)
            tokens += q->slots[i].prefill_tokens;
    return tokens * q->ms_per_token;
}

static double restore_ms(const struct plan_question *q, uint32_t tokens,
                         double prefill_ms)
{
    return tokens * q->restore_ms_per_token +
           least(prefill_ms, q->batch_tokens * q->ms_per_token);
}

bool plan_restore_pays(uint32_t restorable, uint32_t resident, double prefill_ms,
                       const struct plan_question *q)
{
    return restorable > resident && restore_ms(q, restorable, prefill_ms) <
                                        (restorable - resident) * q->ms_per_token;
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
                                restore_ms(q, q->restorable_tokens, others_ms(q, i));
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

/* How long it must have been quiet until a save is worth it: its harm is by arrivals
 * alone, stall² / (2 · quiet). */
static double quiet_needed_ms(const struct plan_save *s, double stall_ms, double value_ms)
{
    const double worth = stall_ms * stall_ms / (2 * value_ms);
    return stall_ms > s->max_stall_ms && stall_ms > worth ? stall_ms : worth;
}

static bool is_time(const struct plan_save *s, double stall_ms, double value_ms)
{
    const bool over = s->stalled_ms + stall_ms > s->max_stall_ms;
    const double gap_ms = s->gap_ms > s->quiet_ms ? s->gap_ms : s->quiet_ms;
    const double arrivals_ms = stall_ms > 0 ? stall_ms * stall_ms / (2 * gap_ms) : 0;
    if (over && (s->busy_slots || s->quiet_ms < stall_ms))
        return false;
    return stall_ms * s->busy_slots + arrivals_ms < value_ms;
}

double plan_save_ms(const struct plan_save *s)
{
    return (double)s->all_tokens * (double)s->token_bytes / s->save_bytes_per_ms;
}

static double value_ms(const struct plan_save *s)
{
    return s->new_tokens * s->reuse * (s->ms_per_token - s->restore_ms_per_token);
}

struct plan_save_choice plan_save(const struct plan_save *s)
{
    const double stall_ms = plan_save_ms(s);
    struct plan_save_choice c = {.when = PLAN_SAVE_NOT_WORTH, .value_ms = value_ms(s)};
    if (s->new_tokens < s->block_tokens || c.value_ms <= 0)
        return c;
    const double quiet_ms = quiet_needed_ms(s, stall_ms, c.value_ms);
    if (stall_ms > PLAN_LONGEST * s->max_stall_ms) {
        c.when = PLAN_SAVE_TOO_LONG;
    } else if (quiet_ms <= PLAN_PATIENCE) {
        const bool now = is_time(s, stall_ms + s->prefill_ms, c.value_ms);
        c.when = now ? PLAN_SAVE_NOW : PLAN_SAVE_LATER;
        if (s->prefill_ms > 0)
            c.later_ms = s->prefill_ms + 1;
        else if (!s->busy_slots && quiet_ms > s->quiet_ms)
            c.later_ms = quiet_ms - s->quiet_ms + 1;
    }
    return c;
}

struct plan_save_choice plan_save_first(const struct plan_save *s, unsigned waiting)
{
    const double stall_ms = plan_save_ms(s);
    struct plan_save_choice c = {.when = PLAN_SAVE_NOT_WORTH, .value_ms = value_ms(s)};
    if (s->new_tokens >= s->block_tokens && s->stalled_ms + stall_ms <= s->max_stall_ms &&
        stall_ms * (s->busy_slots + waiting) < c.value_ms)
        c.when = PLAN_SAVE_NOW;
    return c;
}
