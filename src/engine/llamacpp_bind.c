/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * A job whose slot the engine chooses: which one did it get? The task numbers of GET
 * /slots tell. Nothing else is placed, and nothing saved, until that is known.
 *
 *     sent ─► looks ─┬─► its slot was idle then ─────────────► bound
 *                    ├─► its tenant's other job's, just ended ─► bound, that one is not
 *                    └─► never seen ─────────────────────────► every idle slot is unknown
 *
 * Where tenants are kept apart, and the body can say neither slot nor cache_prompt, the
 * engine may choose a slot that another tenant's request leaves in that very moment, and
 * reuse what is in it. Nothing can keep it from that; so such a job is guarded. Its
 * answer does not go on before its slot is known, and where that one held somebody else's
 * text it is dropped, the slot erased, and the job sent again. No client sees more of it
 * than the time. After LLAMA_MAX_AGAIN of these it waits until no such slot is in use.
 *
 * For this to be sure each task that is not its own has to be known when it is sent: it
 * waits for a look at those placed just before (llama_may_bind). That is also what keeps
 * the engine from giving it the slot that such a one was told to take, under its feet.
 */

#include "base/log.h"

#define BIND_POLLS 200 /* until a running job is taken for one that uses no slot */
#define BIND_POLLS_ENDED 3
#define BIND_POLLS_BROKEN 20 /* the engine may not have looked at it yet */

/* Nothing can be told of it, and others' text may be where it comes. */
static bool needs_guard(const struct llama *l, const struct job *job)
{
    return l->mixed && !llama_pins(l, job) && !llama_can_pin(job);
}

static bool all_seen(const struct llama *l)
{
    for (size_t i = 0; i < l->n_slots; i++)
        if (l->slots[i].unseen)
            return false;
    return true;
}

bool llama_may_bind(struct llama *l, const struct job *job)
{
    if (!l->mixed || llama_pins(l, job))
        return true;
    const bool seen = all_seen(l);
    if (!seen && !l->looking && !l->asking)
        llama_ask_slots(l, NULL, NULL); /* at once, and then as often as for a binding */
    l->looking = !seen;
    return seen;
}

/* The engine takes the slot of a job that it has not begun with for an idle one. */
static void note_contest(struct llama *l)
{
    for (size_t i = 0; i < l->n_slots; i++) {
        const struct llama_slot *s = &l->slots[i];
        if (s->job && s->unseen && !s->begun)
            s->job->plan.contested = true;
    }
}

void llama_bind(struct llama *l, struct job *job, const struct binding *how)
{
    note_contest(l);
    l->binding = *how;
    l->binding.active = l->binding.sent = true;
    l->binding.job = job;
    l->binding.guarded = job->plan.guarded = needs_guard(l, job);
    l->binding.sent_us = loop_now_us(l->r->loop);
    for (size_t i = 0; l->binding.guarded && i < l->n_slots; i++) {
        struct llama_slot *s = &l->slots[i];
        s->stranger = false;
        if (s->state == SLOT_IDLE && hash128_none(s->whose))
            s->whose = LLAMA_NOBODY; /* never used, or it would have been erased */
    }
}

/* Its answer may go on. */
static void let_go(struct job *job)
{
    if (!job || !job->plan.guarded)
        return;
    job->plan.guarded = false;
    job->on_phase(job, JOB_BOUND);
}

void llama_unbind(struct llama *l)
{
    struct job *job = l->binding.job;
    lesson_free(l->binding.lesson);
    l->binding = (struct binding){0};
    let_go(job);
}

static bool took_foreign(const struct binding *b, const struct llama_slot *s)
{
    return !b->cold && !hash128_eq(s->whose, LLAMA_NOBODY) &&
           !hash128_eq(s->whose, b->whose);
}

static void note_foreign(struct llama *l, const struct llama_slot *s)
{
    l->r->n.binds_foreign++;
    log_event(LOG_INFO, "foreign-slot", "replica", "%s", l->r->name, "slot", "%d", s->id,
              NULL);
}

/* Somebody else's rows and this job's: nobody may have them. What still runs there ends
 * when its call is dropped, and the slot is looked at until it does. */
void llama_taint(struct llama *l, struct llama_slot *s)
{
    if (s->state == SLOT_IDLE)
        llama_make_zombie(l, s);
    else if (s->state == SLOT_OWNED)
        s->doubtful = true; /* … once its own job is over */
    s->stranger = false;
    s->whose = (struct hash128){0, 0};
}

static void send_again(struct llama *l, struct llama_slot *s)
{
    struct job *job = l->binding.job;
    note_foreign(l, s);
    llama_taint(l, s);
    l->binding.job = NULL;
    llama_unbind(l);
    job->n_again++;
    llama_requeue(l, job);
    job->on_phase(job, JOB_AGAIN);
}

static void bind_to(struct llama *l, struct llama_slot *s)
{
    struct binding *b = &l->binding;
    struct job *job = b->job;
    if (s->job) /* its own tenant's; it has ended in the engine, and will be told */
        s->job->engine = NULL;
    s->job = NULL;
    s->state = SLOT_IDLE;
    s->stranger = false;
    s->unseen = 0;
    s->adapters = b->adapters;
    s->whose = b->whose;
    llama_emptied(l, s);
    if (!b->ended) {
        s->state = SLOT_OWNED;
        s->job = job;
        s->begun = false;
        s->prefill = b->prefill;
        s->prefill_us = b->sent_us;
        s->stalled_ms = 0;
        s->last_used_us = loop_now_us(l->r->loop);
        job->engine = s;
        job->plan.slot = s->id;
        job->plan.held = s->tokens;
        llama_forget(l, s);
    } else if (b->lesson) {
        llama_settle(l, s, b->lesson);
        b->lesson = NULL;
    } else if (b->broken && s->processing) {
        llama_make_zombie(l, s);
    } else {
        llama_forget(l, s);
    }
    llama_unbind(l);
}

/* An idle slot with a task that no placed job explains; of a guarded job, whose tasks
 * beside it are all known, any slot with a new one. */
static bool may_be_its(const struct llama *l, const struct llama_slot *s)
{
    if (l->binding.guarded)
        return s->stranger;
    return s->state == SLOT_IDLE && (s->processing || s->stranger);
}

/* The newest. What cannot be read may ask for several answers, and take as many slots:
 * then one with somebody else's text, if there is any. */
static struct llama_slot *find_bound(struct llama *l)
{
    struct llama_slot *found = NULL;
    for (size_t i = 0; i < l->n_slots; i++) {
        struct llama_slot *s = &l->slots[i];
        if (!may_be_its(l, s))
            continue;
        if (l->binding.guarded && took_foreign(&l->binding, s))
            return s;
        if (!found || s->task > found->task)
            found = s;
    }
    return found;
}

/* It was never seen. Unless it was turned away it may have been in any of them. */
static void give_up(struct llama *l)
{
    if (!l->binding.refused) {
        l->r->n.binds_lost++;
        for (size_t i = 0; i < l->n_slots; i++)
            if (l->slots[i].state == SLOT_IDLE)
                llama_forget_stranger(l, &l->slots[i]);
    }
    llama_unbind(l);
}

static void count_look(struct llama *l)
{
    struct binding *b = &l->binding;
    const unsigned most = b->broken  ? BIND_POLLS_BROKEN
                          : b->ended ? BIND_POLLS_ENDED
                                     : BIND_POLLS;
    if (!b->ended &&
        llama_prefill_ms(l, NULL) > 0) /* nothing is begun in the middle of a batch */
        return;
    if (++b->polls >= most)
        give_up(l);
}

void llama_bind_look(struct llama *l)
{
    struct binding *b = &l->binding;
    struct llama_slot *s = find_bound(l);
    if (!s) {
        count_look(l);
        return;
    }
    const bool foreign = took_foreign(b, s);
    if (foreign && b->guarded && b->job) {
        send_again(l, s);
    } else if (foreign && b->guarded) { /* its client has left */
        llama_taint(l, s);
        llama_unbind(l);
    } else {
        bind_to(l, s);
    }
}
