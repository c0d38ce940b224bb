/* SPDX-License-Identifier: MIT */
#include "lab_engine.h"

/*
 *     submit ─► a slot now?  no ─► deferred ─┐ (asked again whenever a slot is released)
 *                   │ yes ◄──────────────────┘
 *                   ▼
 *     keep the common start ─► prompt, batch by batch ─► first token ─► … ─► release
 *
 * A batch has LAB_BATCH tokens: first the tokens that were just sampled, one a slot, then
 * prompts in the order of the slots as far as there is room. So a prompt in a low slot
 * holds up those in higher ones, as in the real engine.
 *
 * A sampled token enters its slot with the next batch: after N tokens of an answer the
 * slot holds the prompt and N − 1 of them.
 */

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define SIMILAR 0.10 /* of a prompt: less in common does not choose a slot */

static void schedule(struct lab_engine *e);
static void release(struct lab_engine *e, struct lab_slot *s);

/* ---- choosing a slot --------------------------------------------------------------- */

bool lab_slot_busy(const struct lab_slot *s)
{
    return s->task || s->stuck;
}

struct lab_slot *lab_engine_slot(struct lab_engine *e, int64_t id)
{
    const int64_t n = (int64_t)e->n_slots;
    return &e->slots[((id % n) + n) % n];
}

static uint32_t common_start(const struct lab_slot *s, const struct lab_task *t)
{
    const uint32_t held = lab_cache_len(s->cache);
    uint32_t n = 0;
    while (n < held && n < t->n_tokens && s->tokens[n] == t->tokens[n])
        n++;
    return n;
}

/* The idle slot that has most in common with the prompt, else the one that has been idle
 * longest, else NULL. */
static struct lab_slot *choose(struct lab_engine *e, const struct lab_task *t)
{
    struct lab_slot *alike = NULL, *oldest = NULL;
    uint32_t most = 0;
    if (t->wants_slot != -1) {
        struct lab_slot *s = lab_engine_slot(e, t->wants_slot);
        return lab_slot_busy(s) ? NULL : s;
    }
    for (uint32_t i = 0; i < e->n_slots; i++) {
        struct lab_slot *s = &e->slots[i];
        if (lab_slot_busy(s))
            continue;
        const uint32_t n = common_start(s, t);
        if (n > most) {
            most = n;
            alike = s;
        }
        if (!oldest || s->last_used_us < oldest->last_used_us)
            oldest = s;
    }
    return most > SIMILAR * t->n_tokens ? alike : oldest;
}

static void begin(struct lab_engine *e, struct lab_task *t, struct lab_slot *s)
{
    uint32_t keep = t->cache_prompt && !s->spoilt ? common_start(s, t) : 0;
    if (keep == t->n_tokens) /* the last one is needed for its logits */
        keep--;
    if (e->recurrent && keep < lab_cache_len(s->cache))
        keep = 0;
    s->spoilt = false;
    lab_cache_cut(s->cache, keep);
    s->task = t;
    s->id_task = t->id;
    s->stream = t->stream;
    s->cached = keep;
    s->processed = 0;
    t->slot = s;
    t->slot_id = s->id;
    t->cached = t->done = keep;
    t->start_us = loop_now_us(e->loop);
    e->totals.cached_tokens += keep;
    schedule(e);
}

static void start_deferred(struct lab_engine *e)
{
    LIST_EACH_SAFE (it, next, &e->deferred) {
        struct lab_task *t = LIST_ENTRY(it, struct lab_task, link);
        struct lab_slot *s = choose(e, t);
        if (s) {
            list_del(&t->link);
            begin(e, t, s);
        }
    }
}

void lab_engine_submit(struct lab_engine *e, struct lab_task *t)
{
    assert(t->n_tokens > 0 && t->n_tokens < e->context);
    t->id = e->next_task++;
    t->slot = NULL;
    list_push_back(&e->deferred, &t->link);
    start_deferred(e);
}

/* ---- slot actions ------------------------------------------------------------------ */

/* Called after start_deferred(), so that requests overtake what waits here. */
static void run_actions(struct lab_engine *e)
{
    LIST_EACH_SAFE (it, next, &e->actions) {
        struct lab_action *a = LIST_ENTRY(it, struct lab_action, link);
        if (lab_slot_busy(a->slot))
            continue;
        list_del(&a->link);
        a->run(a->arg, a->slot);
    }
}

void lab_engine_act(struct lab_engine *e, struct lab_action *a)
{
    e->next_task++;
    list_push_back(&e->actions, &a->link);
    run_actions(e);
}

/* ---- computing --------------------------------------------------------------------- */

static bool is_computing(const struct lab_slot *s)
{
    return s->task && !s->task->held;
}

static bool is_decoding(const struct lab_slot *s)
{
    return is_computing(s) && s->task->done == s->task->n_tokens;
}

/* Appends tokens to the slot. `logits` of the last, or NULL. */
static void forward(struct lab_engine *e, struct lab_slot *s, const uint32_t *tokens,
                    uint32_t n, float *logits)
{
    const struct lab_step step = {.tokens = tokens, .n = n, .logits = logits};
    memcpy(s->tokens + lab_cache_len(s->cache), tokens, n * sizeof(*tokens));
    const bool fits = lab_forward(e->model, s->cache, &step);
    assert(fits);
}

static void finish(struct lab_engine *e, struct lab_task *t)
{
    struct lab_slot *s = t->slot;
    e->totals.predicted_tokens += t->n_answer;
    e->totals.predicted_us += t->last_us - t->first_us;
    release(e, s);
    t->on_end(t->arg);
}

/* Is this token the last? Then says why. */
static bool is_last(const struct lab_engine *e, struct lab_task *t, uint32_t token)
{
    t->ended_itself = token == LAB_EOS || token == LAB_END;
    t->truncated = !t->ended_itself && lab_cache_len(t->slot->cache) == e->context;
    const bool enough = t->limit >= 0 && (int64_t)t->n_answer >= t->limit;
    return t->ended_itself || t->truncated || enough;
}

static void sample(struct lab_engine *e, struct lab_slot *s, float *logits)
{
    struct lab_task *t = s->task;
    if (t->ignore_eos)
        logits[LAB_EOS] = logits[LAB_END] = -HUGE_VALF;
    const uint32_t token = lab_argmax(logits);
    if ((t->n_answer & (t->n_answer + 1)) == 0) /* 0, 1, 3, 7 …: full */
        t->answer = mem_rearray(t->answer, 2 * (size_t)t->n_answer + 1, sizeof(uint32_t));
    t->answer[t->n_answer++] = token;
    t->last_us = loop_now_us(e->loop);
    if (t->n_answer == 1) {
        t->first_us = t->last_us;
        e->totals.prompt_us += t->first_us - t->start_us;
    }
    t->on_token(t->arg, token);
    if (s->task == t && is_last(e, t, token)) /* else it was cancelled in there */
        finish(e, t);
}

static void decode(struct lab_engine *e, struct lab_slot *s)
{
    float logits[LAB_VOCAB];
    const struct lab_task *t = s->task;
    forward(e, s, &t->answer[t->n_answer - 1], 1, logits);
    sample(e, s, logits);
}

/* Goes on with a prompt, by at most `room` tokens; returns how many. */
static uint32_t prefill(struct lab_engine *e, struct lab_slot *s, uint32_t room)
{
    float logits[LAB_VOCAB];
    struct lab_task *t = s->task;
    const uint32_t left = t->n_tokens - t->done, n = left < room ? left : room;
    forward(e, s, t->tokens + t->done, n, n == left ? logits : NULL);
    t->done += n;
    s->processed += n;
    e->totals.prompt_tokens += n;
    if (n == left)
        sample(e, s, logits);
    return n;
}

static void run_batch(struct lab_engine *e)
{
    uint32_t room = LAB_BATCH;
    e->totals.batches++;
    for (uint32_t i = 0; i < e->n_slots; i++)
        if (is_decoding(&e->slots[i])) {
            decode(e, &e->slots[i]);
            room--;
        }
    for (uint32_t i = 0; i < e->n_slots && room; i++)
        if (is_computing(&e->slots[i]) && !is_decoding(&e->slots[i]))
            room -= prefill(e, &e->slots[i], room);
}

/* ---- turns of the loop ------------------------------------------------------------- */

size_t lab_engine_running(const struct lab_engine *e)
{
    size_t n = 0;
    for (uint32_t i = 0; i < e->n_slots; i++)
        n += lab_slot_busy(&e->slots[i]);
    return n;
}

size_t lab_engine_waiting(const struct lab_engine *e)
{
    size_t n = 0;
    LIST_EACH (it, &e->deferred)
        n++;
    return n;
}

static bool has_work(const struct lab_engine *e)
{
    for (uint32_t i = 0; i < e->n_slots; i++)
        if (is_computing(&e->slots[i]))
            return true;
    return false;
}

/* Prompt tokens of the next batch. */
static uint64_t prompt_tokens_ahead(const struct lab_engine *e)
{
    uint64_t n = 0, room = LAB_BATCH;
    for (uint32_t i = 0; i < e->n_slots; i++) {
        const struct lab_slot *s = &e->slots[i];
        n += is_computing(s) ? s->task->n_tokens - s->task->done : 0;
        room -= is_decoding(s);
    }
    return n < room ? n : room;
}

/* Whole milliseconds that have to pass before the next batch; the rest stays owed. */
static uint64_t price_of_batch(struct lab_engine *e)
{
    e->owed_us += prompt_tokens_ahead(e) * e->token_cost_us;
    const uint64_t ms = e->owed_us / 1000;
    e->owed_us %= 1000;
    return ms;
}

static void on_turn(void *arg)
{
    struct lab_engine *e = arg;
    const bool paid = e->paid;
    e->scheduled = e->paid = false;
    if (e->stopped || !has_work(e))
        return;
    const uint64_t ms = paid ? 0 : price_of_batch(e);
    if (ms) {
        e->paid = true;
        e->scheduled = true;
        timer_start(&e->pay, ms);
        return;
    }
    run_batch(e);
    schedule(e);
}

static void schedule(struct lab_engine *e)
{
    if (e->scheduled || e->stopped || !has_work(e))
        return;
    e->scheduled = true;
    loop_defer(e->loop, on_turn, e);
}

/* ---- ends -------------------------------------------------------------------------- */

static void release(struct lab_engine *e, struct lab_slot *s)
{
    s->task->slot = NULL;
    s->task = NULL;
    s->processed = s->cached = 0;
    s->last_used_us = loop_now_us(e->loop);
    start_deferred(e);
    run_actions(e);
}

void lab_engine_cancel(struct lab_engine *e, struct lab_task *t)
{
    if (!t->slot) {
        list_del(&t->link);
        return;
    }
    t->slot->stuck = e->keeps_left_slots;
    release(e, t->slot);
}

void lab_engine_unhold(struct lab_engine *e, struct lab_task *t)
{
    t->held = false;
    schedule(e);
}

void lab_engine_unstick(struct lab_engine *e)
{
    for (uint32_t i = 0; i < e->n_slots; i++)
        e->slots[i].stuck = false;
    start_deferred(e);
    run_actions(e);
}

void lab_engine_init(struct lab_engine *e, struct loop *l, struct lab_model *m,
                     uint32_t slots)
{
    *e = (struct lab_engine){.loop = l, .model = m, .n_slots = slots};
    e->context = lab_model_shape(m).context;
    list_init(&e->deferred);
    list_init(&e->actions);
    timer_init(&e->pay, l, on_turn, e);
    e->slots = mem_zalloc(slots * sizeof(*e->slots));
    for (uint32_t i = 0; i < slots; i++) {
        struct lab_slot *s = &e->slots[i];
        s->id = (int)i;
        s->id_task = -1;
        s->cache = lab_cache_new(m, e->context);
        s->tokens = mem_array(e->context, sizeof(*s->tokens));
    }
}

void lab_engine_stop(struct lab_engine *e)
{
    e->stopped = true;
    timer_fini(&e->pay);
}

void lab_engine_fini(struct lab_engine *e)
{
    for (uint32_t i = 0; i < e->n_slots; i++) {
        lab_cache_free(e->slots[i].cache);
        free(e->slots[i].tokens);
    }
    free(e->slots);
}
