/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * Placing: which slot does a job get, and is something put back for it first?
 *
 *     prompt ─► prompt index ─► place in the block tree ─► stored tokens ─┐
 *     slots ──► what each holds, by text ─────────────────────────────────┴─► plan_choose
 */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "route/plan.h"

#define SLOT_RESERVE 8    /* tokens of a slot's context that a restore leaves free */
#define TEMPLATE_TOKENS 8 /* of a prompt around its text, for estimates */
#define MAX_TOKENS (1u << 30)

/* ---- what slots hold --------------------------------------------------------------- */

void lesson_free(struct lesson *ls)
{
    if (!ls)
        return;
    free(ls->v);
    free(ls);
}

/* Whose a slot is that this job runs on. */
struct hash128 llama_whose(const struct job *job)
{
    return hash128_none(job->whose) ? LLAMA_EVERYBODY : job->whose;
}

/* Root of the chain of its blocks: the model, whose it is, and what of the request
 * changes the KV. */
struct hash128 llama_kv_root(const struct llama *l, const struct job *job)
{
    return cache_root(l->r->cache, l->fingerprint, job->tenant, job->kv_root);
}

/* What a job's prompt and answer are by text; counts are added when they are known. */
struct lesson *lesson_new(struct llama *l, const struct job *job)
{
    struct lesson *ls = mem_zalloc(sizeof(*ls));
    ls->n = job->pieces->n;
    ls->n_prompt = job->n_prompt_pieces;
    ls->v = mem_array(ls->n + 1, sizeof(*ls->v));
    memcpy(ls->v, job->pieces->v, ls->n * sizeof(*ls->v));
    ls->kv_root = llama_kv_root(l, job);
    ls->tenant = job->tenant;
    ls->number = ++l->n_lessons;
    return ls;
}

void llama_holds(struct llama *l, struct llama_slot *s, struct lesson *what,
                 uint32_t tokens)
{
    (void)l;
    if (s->holds != what)
        lesson_free(s->holds);
    s->holds = what;
    s->tokens = tokens;
    s->unsaved = false;
}

void llama_forget(struct llama *l, struct llama_slot *s)
{
    llama_holds(l, s, NULL, 0);
}

/* Tokens of the stored start of a prompt that is known by text. */
uint32_t llama_stored_tokens(struct llama *l, const struct lesson *ls)
{
    struct index_hit hit = {0};
    if (l->whole) {
        size_t n_pieces;
        const uint32_t whole = llama_whole_find(l, ls, &hit.at, &n_pieces);
        tree_mark_clear(cache_tree(l->r->cache), &hit.at);
        return whole;
    }
    index_find(cache_index(l->r->cache), ls->v, ls->n, &hit);
    const uint32_t tokens = cache_restorable(l->r->cache, &hit.at, hit.high);
    tree_mark_clear(cache_tree(l->r->cache), &hit.at);
    return tokens < hit.high ? tokens : hit.high;
}

/* ---- choosing ---------------------------------------------------------------------- */

/* What the index and the store know of a job's prompt. */
struct prospect {
    struct index_hit hit;
    uint32_t prompt_tokens; /* estimate */
    uint32_t known;         /* middle of the estimate of the known start */
    uint32_t restorable;    /* stored tokens that a restore would put back */
    uint32_t useful;        /* of these, probably common */
    size_t n_pieces;        /* of the prompt, that they cover */
    size_t n_public;        /* of these, in a public start that is put back; 0: is none */
    uint32_t public_low;    /* tokens that are certain to be in it */
};

static uint32_t estimate_tokens(const struct llama *l, const struct job *job)
{
    if (job->prompt && job->prompt->n_ids)
        return (uint32_t)job->prompt->n_ids;
    const double tokens = (double)job->text_bytes / l->r->bytes_per_token;
    return (uint32_t)(tokens < MAX_TOKENS ? tokens : MAX_TOKENS) + TEMPLATE_TOKENS;
}

bool llama_is_current(const struct llama *l, const struct job *job)
{
    return job->cacheable && hash128_eq(job->seed, l->r->seed);
}

/* Tokens of the full blocks of a prompt of ids that the tree has; sets `m` (clear). */
static uint32_t match_blocks(struct llama *l, const struct job *job, const uint32_t *ids,
                             size_t n_ids, struct tree_mark *m)
{
    struct cache *c = l->r->cache;
    const uint32_t bt = cache_block_tokens(c);
    struct hash128 *chain = mem_array(n_ids / bt + 1, sizeof(*chain));
    const size_t n =
        chain_blocks(cache_key(c), llama_kv_root(l, job), ids, n_ids, bt, chain);
    const size_t known = tree_match(cache_tree(c), chain, n, ids, m);
    free(chain);
    return (uint32_t)known * bt;
}

/* A batch is not restored (it takes a slot for each prompt), but what its prompts share
 * with earlier ones is known: one look-up each. */
static uint32_t batch_available(struct llama *l, const struct job *job)
{
    const struct prompt *p = job->prompt;
    uint32_t tokens = 0;
    for (size_t i = 0, start = 0; p->id_ends && i < p->n_prompts;
         start = p->id_ends[i++]) {
        struct tree_mark m = {0};
        tokens += match_blocks(l, job, p->ids + start, p->id_ends[i] - start, &m);
        tree_mark_clear(cache_tree(l->r->cache), &m);
    }
    return tokens;
}

/* Token ids need no estimate: they match blocks directly. */
static void match_ids(struct llama *l, const struct job *job, struct index_hit *hit)
{
    struct cache *c = l->r->cache;
    const struct prompt *p = job->prompt;
    struct tree_mark m = {0};
    const uint32_t tokens = match_blocks(l, job, p->ids, p->n_ids, &m);
    if (tokens >= hit->low) {
        tree_mark_copy(cache_tree(c), &hit->at, &m);
        hit->low = hit->high = tokens;
        hit->reach = (uint32_t)tree_mark_down(cache_tree(c), &hit->at,
                                              tokens + cache_block_tokens(c));
    }
    tree_mark_clear(cache_tree(c), &m);
}

/* Tokens of a slot that a restore may fill. */
static uint32_t room(const struct llama *l)
{
    return l->n_ctx > SLOT_RESERVE ? l->n_ctx - SLOT_RESERVE : 0;
}

/* Where states cannot be cut, only what the prompt goes on behind is of use. */
static void look_for_whole(struct llama *l, const struct job *job, struct prospect *p)
{
    struct tree_mark at = {0};
    const struct lesson text = {
        .v = job->pieces->v, .n = p->hit.n_pieces, .kv_root = llama_kv_root(l, job)};
    uint32_t tokens = llama_whole_find(l, &text, &at, &p->n_pieces);
    if (tokens > room(l))
        tokens = 0;
    if (p->prompt_tokens <= tokens)
        p->prompt_tokens = tokens + TEMPLATE_TOKENS;
    p->restorable = p->useful = tokens;
    tree_mark_copy(cache_tree(l->r->cache), &p->hit.at, &at);
    tree_mark_clear(cache_tree(l->r->cache), &at);
}

/* At most so many tokens are put back: whole blocks, or the last one might not fit. */
static uint32_t room_for_blocks(const struct llama *l)
{
    const uint32_t bt = cache_block_tokens(l->r->cache);
    return room(l) / bt * bt;
}

/* One block further than known: it costs a millisecond, and what a template puts behind a
 * boundary is often common as well. */
static void look_for_own(struct llama *l, struct prospect *p)
{
    const uint32_t bt = cache_block_tokens(l->r->cache), all = room_for_blocks(l);
    uint32_t most = p->hit.reach < MAX_TOKENS ? p->hit.reach + bt : MAX_TOKENS;
    if (tree_mark_tokens(&p->hit.at) >= p->hit.reach)
        tree_mark_down(cache_tree(l->r->cache), &p->hit.at, most);
    most = most < all ? most : all;
    p->n_pieces = p->hit.n_pieces;
    p->restorable = cache_restorable(l->r->cache, &p->hit.at, most);
    p->useful = p->restorable < p->known ? p->restorable : p->known;
}

/* What is pinned for all tenants, where that is more. */
static void look_for_public(struct llama *l, const struct job *job, struct prospect *p)
{
    struct cache *c = l->r->cache;
    struct tree_mark at = {0};
    uint32_t low = 0;
    const size_t n =
        cache_public_find(c, job->seed, job->public->v, job->public->n, &at, &low);
    const uint32_t tokens = n ? cache_restorable(c, &at, room_for_blocks(l)) : 0;
    if (tokens > p->restorable && low > p->known) {
        tree_mark_copy(cache_tree(c), &p->hit.at, &at);
        p->n_pieces = p->n_public = n;
        p->restorable = tokens;
        p->useful = p->public_low = low < tokens ? low : tokens;
        if (p->prompt_tokens < low)
            p->prompt_tokens = low + TEMPLATE_TOKENS;
    }
    tree_mark_clear(cache_tree(c), &at);
}

static void look_for_blocks(struct llama *l, const struct job *job, struct prospect *p)
{
    if (p->hit.at.node)
        look_for_own(l, p);
    if (job->public)
        look_for_public(l, job, p);
}

static void look_up(struct llama *l, struct job *job, struct prospect *p)
{
    memset(p, 0, sizeof(*p));
    p->prompt_tokens = estimate_tokens(l, job);
    if (!llama_is_current(l, job) || !job->pieces->n)
        return;
    index_find(cache_index(l->r->cache), job->pieces->v, job->pieces->n, &p->hit);
    if (job->prompt->n_ids)
        match_ids(l, job, &p->hit);
    p->known = (p->hit.low + p->hit.high) / 2;
    if (p->prompt_tokens < p->hit.low)
        p->prompt_tokens = p->hit.high;
    if (l->store_on && l->whole)
        look_for_whole(l, job, p);
    else if (l->store_on)
        look_for_blocks(l, job, p);
}

/* How much of the prompt a slot has already, by comparing text. */
static uint32_t resident_tokens(const struct llama *l, const struct llama_slot *s,
                                const struct job *job, const struct prospect *p)
{
    if (!s->holds || !job->cacheable)
        return 0;
    const struct lesson *h = s->holds;
    const size_t common = pieces_common(h->v, h->n, job->pieces->v, job->pieces->n);
    if (!common)
        return 0;
    if (l->whole)
        return common == h->n ? s->tokens : 0;
    const double share =
        (double)h->v[common - 1].end_bytes / (double)(h->v[h->n - 1].end_bytes + 1);
    uint32_t tokens = (uint32_t)(share * s->tokens);
    /* The index knows its own boundary better. */
    if (common == p->hit.n_pieces || (common > p->hit.n_pieces && tokens < p->known))
        tokens = p->known;
    return tokens < s->tokens ? tokens : s->tokens;
}

/* The slot has more of the prompt than the index knows: it was not saved yet. Then the
 * engine's count says nothing about the last boundary that the index does know. */
static bool knows_more(const struct llama_slot *s, const struct job *job,
                       const struct prospect *p)
{
    return s->holds && pieces_common(s->holds->v, s->holds->n, job->pieces->v,
                                     job->pieces->n) > p->hit.n_pieces;
}

/* Does the engine's count tell where the last boundary is that the index knows? */
static bool counts_for(const struct prospect *p, bool restore, const struct llama_slot *s,
                       const struct job *job)
{
    return restore ? !p->n_public : !knows_more(s, job, p);
}

/* Where the prompt parts from all that is known, in the index or in the slot. */
static uint64_t known_bytes(const struct llama_slot *s, const struct job *job,
                            const struct prospect *p)
{
    const struct piece *v = job->pieces->v;
    size_t n = p->hit.n_pieces;
    if (knows_more(s, job, p))
        n = pieces_common(s->holds->v, s->holds->n, v, job->pieces->n);
    n = n > p->n_public ? n : p->n_public;
    return n ? v[n - 1].end_bytes : 0;
}

static size_t snapshot(const struct llama *l, const struct job *job,
                       const struct prospect *p, struct plan_slot *out)
{
    for (size_t i = 0; i < l->n_slots; i++) {
        const struct llama_slot *s = &l->slots[i];
        const uint32_t resident = resident_tokens(l, s, job, p);
        const uint32_t rest = s->tokens - resident;
        const uint32_t stored = s->holds ? s->holds->known_tokens : 0;
        out[i] = (struct plan_slot){.idle = s->state == SLOT_IDLE,
                                    .resident_tokens = resident,
                                    .held_tokens = s->tokens,
                                    .prefill_tokens = llama_prefill_left(l, s),
                                    .last_used_us = s->last_used_us};
        if (s->unsaved && s->tokens > stored)
            out[i].unsaved_tokens = rest < s->tokens - stored ? rest : s->tokens - stored;
    }
    return l->n_slots;
}

static const char *miss_reason(const struct llama *l, const struct job *job,
                               const struct prospect *p, uint32_t resident)
{
    if (!job->cacheable)
        return "uncacheable";
    if (resident || p->restorable)
        return NULL;
    if (p->prompt_tokens < cache_block_tokens(l->r->cache))
        return "too-short";
    if (!p->hit.n_pieces)
        return "first-sight";
    return l->store_on ? "evicted" : "not-held-here";
}

static unsigned running_prefills(const struct llama *l)
{
    unsigned n = 0;
    for (size_t i = 0; i < l->n_slots; i++)
        n += l->slots[i].prefill > 0;
    return n;
}

static size_t slots_that_are(const struct llama *l, enum slot_state state)
{
    size_t n = 0;
    for (size_t i = 0; i < l->n_slots; i++)
        n += l->slots[i].state == state;
    return n;
}

static size_t slots_at_work(const struct llama *l)
{
    return slots_that_are(l, SLOT_SAVING) + slots_that_are(l, SLOT_ERASING);
}

/* Nothing stands in its way but a save: it will have a slot as soon as that is done. */
bool llama_only_save_ahead(const struct llama *l, const struct job *job)
{
    const size_t saving = slots_that_are(l, SLOT_SAVING);
    return saving && job->wants_slot < 0 && !job->wants_all && !l->exclusive &&
           l->r->queued <= saving + slots_that_are(l, SLOT_IDLE);
}

/* /v1/messages drops id_slot, what cannot be read, or is packed, cannot be changed, and
 * where a client says id_slot -1 a second one would not help: the later of two wins. */
bool llama_can_pin(const struct job *job)
{
    const struct prompt *p = job->prompt;
    return p->bar != PROMPT_BAR_UNREADABLE && !job->packed &&
           (p->api == PROMPT_CHAT || p->api == PROMPT_COMPLETIONS ||
            p->api == PROMPT_NATIVE) &&
           (!p->has_id_slot || (p->id_slot >= 0 && p->id_slot <= INT32_MAX));
}

/* The engine gives idle slots that it emptied their content back only where it chooses
 * the slot itself. */
bool llama_pins(const struct llama *l, const struct job *job)
{
    return llama_can_pin(job) && (!l->empties_idle || job->prompt->has_id_slot);
}

static struct hash128 adapters_of(const struct llama *l, const struct job *job)
{
    return job->prompt->has_lora ? llama_kv_root(l, job) : (struct hash128){0, 0};
}

/*
 * The engine compares tokens and knows no tenants: what the slot holds must not be reused
 * for this job, or its time and its counts would tell what another one has asked. Of a
 * slot that was used by we do not know whom, only what nobody keeps apart may be.
 */
bool llama_is_foreign(const struct llama *l, const struct llama_slot *s,
                      const struct job *job)
{
    if (hash128_none(s->whose))
        return (l->mixed || !hash128_none(job->whose)) && s->task >= 0;
    return !hash128_eq(s->whose, LLAMA_NOBODY) && !hash128_eq(s->whose, llama_whose(job));
}

static void note_whose(struct llama *l, const struct job *job)
{
    if (hash128_none(l->seen_whose))
        l->seen_whose = llama_whose(job);
    l->mixed |= !hash128_eq(l->seen_whose, llama_whose(job));
}

/* The engine chooses its slot, out of what others have left as well; but the body can say
 * that nothing is to be reused. (Where it can say nothing: llamacpp_erase.c.) */
static bool must_be_cold(const struct llama *l, const struct job *job)
{
    bool foreign = l->mixed;
    if (llama_pins(l, job) || !llama_can_pin(job))
        return false;
    for (size_t i = 0; i < l->n_slots; i++)
        foreign |= llama_is_foreign(l, &l->slots[i], job);
    return foreign;
}

/* Somewhere stored blocks are being put back: the engine takes that slot for an idle
 * one. */
static bool is_restoring(const struct llama *l)
{
    for (size_t i = 0; i < l->n_slots; i++) {
        const struct llama_slot *s = &l->slots[i];
        if (s->state == SLOT_OWNED && (!s->job || !s->job->sent))
            return true;
    }
    return false;
}

/* What a job has to prefill. */
static uint32_t fresh_tokens(const struct llama *l, const struct job *job)
{
    const uint32_t tokens = estimate_tokens(l, job);
    return tokens > job->plan.promised ? tokens - job->plan.promised : 0;
}

/* The slot that was prepared is idle again; the engine will choose it, or another. */
static void let_engine_choose(struct llama *l, struct job *job)
{
    struct llama_slot *s = job->engine;
    if (s) {
        s->state = SLOT_IDLE;
        s->job = NULL;
        job->engine = NULL;
    }
    job->plan.slot = -1;
    job->plan.fresh = must_be_cold(l, job);
    if (l->phase == LLAMA_READY) /* or nobody looks any more */
        llama_bind(l, job,
                   &(struct binding){.cold = job->plan.fresh,
                                     .adapters = adapters_of(l, job),
                                     .whose = llama_whose(job),
                                     .prefill = fresh_tokens(l, job)});
    llama_poll(l);
}

/* A job is sent whose task will be seen there. */
static void await_task(struct llama_slot *s)
{
    s->unseen++;
    s->begun = s->asked = false;
}

/* Prefills that run now and this one are in each other's way. */
static void note_overlap(struct llama *l, struct job *job)
{
    job->plan.overlap = running_prefills(l);
    for (size_t i = 0; i < l->n_slots; i++)
        if (l->slots[i].prefill && l->slots[i].job)
            l->slots[i].job->plan.overlap++;
}

void llama_job_ready(struct llama *l, struct job *job)
{
    struct llama_slot *s = job->engine;
    note_overlap(l, job);
    if (!llama_pins(l, job) && !job->wants_all) {
        let_engine_choose(l, job);
    } else if (s) {
        s->adapters = adapters_of(l, job);
        job->plan.fresh = llama_is_foreign(l, s, job);
        job->plan.held = job->plan.fresh ? 0 : s->tokens;
        s->whose = llama_whose(job);
        llama_emptied(l, s);
        await_task(s);
        s->prefill_us = loop_now_us(l->r->loop);
        s->prefill = fresh_tokens(l, job);
    }
    job->sent = true;
    job->on_phase(job, JOB_READY);
}

static void take_slot(struct llama *l, struct llama_slot *s, struct job *job)
{
    assert(s->state == SLOT_IDLE);
    s->state = SLOT_OWNED;
    s->job = job;
    s->last_used_us = loop_now_us(l->r->loop);
    s->stalled_ms = 0;
    if (!job->plan.behind_others) /* what it waited was for a save */
        s->stalled_ms = (double)(s->last_used_us - job->since_us) / 1e3;
    job->engine = s;
    job->plan.slot = s->id;
    if (llama_pins(l, job)) {
        job->plan.splice_slot = !job->prompt->has_id_slot;
    } else {
        l->binding = (struct binding){.active = true, .job = job};
    }
}

static void place_exclusive(struct llama *l, struct job *job)
{
    for (size_t i = 0; i < l->n_slots; i++) {
        struct llama_slot *s = &l->slots[i];
        llama_forget(l, s);
        job->plan.fresh |= llama_is_foreign(l, s, job);
        s->whose = llama_whose(job);
        s->state = SLOT_OWNED;
        s->job = job;
        await_task(s);
    }
    note_whose(l, job);
    l->exclusive = job;
    job->engine = NULL;
    job->plan.slot = -1;
    job->plan.miss = "uncacheable";
    job->plan.available = batch_available(l, job);
    llama_job_ready(l, job);
}

static bool may_place(const struct llama *l, const struct job *job)
{
    if (job->wants_slot >= 0)
        return l->slots[job->wants_slot].state == SLOT_IDLE;
    return slots_that_are(l, SLOT_IDLE) && (llama_pins(l, job) || !is_restoring(l));
}

/* Is it run cold to measure what the others gain? Only where the cache would help, and
 * where the engine can be told so. */
static bool hold_out(struct llama *l, struct job *job, uint32_t reused)
{
    const struct prompt *p = job->prompt;
    if (reused < cache_block_tokens(l->r->cache) || !llama_can_pin(job) ||
        p->has_cache_prompt || job->background)
        return false;
    job->plan.drawn = true;
    job->plan.held_out = holdout_draw(l->r->holdout, job->pieces->v[0].hash);
    return job->plan.held_out;
}

/* Tokens that an earlier prompt is certain to have had as well. */
static uint32_t available(const struct prospect *p)
{
    return p->hit.low > p->public_low ? p->hit.low : p->public_low;
}

static uint32_t promise(const struct llama *l, const struct prospect *p, bool restore,
                        uint32_t resident)
{
    const uint32_t low = available(p);
    if (l->whole) /* all of it or nothing */
        return restore ? p->restorable : resident;
    if (restore)
        return low < p->restorable ? low : p->restorable;
    return resident == p->known ? p->hit.low : resident;
}

/* Puts a job on a slot; false where none that it may have is idle. */
static bool place(struct llama *l, struct job *job)
{
    struct plan_slot slots[LLAMA_MAX_SLOTS];
    struct prospect p;
    note_whose(l, job);
    if (!may_place(l, job) || !llama_may_bind(l, job) || llama_erase_foreign(l, job))
        return false;
    look_up(l, job, &p);
    const bool cold = must_be_cold(l, job);
    if (cold)
        p.restorable = p.useful = 0;
    const double ms_per_token = llama_restore_ms_per_token(l, p.restorable);
    const struct plan_question q = {.slots = slots,
                                    .n_slots = snapshot(l, job, &p, slots),
                                    .pinned = job->wants_slot,
                                    .prompt_tokens = p.prompt_tokens,
                                    .restorable_tokens = p.useful,
                                    .restore_ms_per_token = ms_per_token,
                                    .ms_per_token = l->r->ms_per_token,
                                    .batch_tokens = l->batch_tokens};
    for (size_t i = 0; cold && i < l->n_slots; i++)
        slots[i].resident_tokens = 0;
    const struct plan_choice c = plan_choose(&q);
    if (c.slot >= 0) {
        struct llama_slot *s = &l->slots[c.slot];
        const uint32_t resident = slots[c.slot].resident_tokens;
        if (resident < s->tokens / 2 && llama_save_first(l, s, job)) {
            tree_mark_clear(cache_tree(l->r->cache), &p.hit.at);
            return false;
        }
        /* With other adapters than before the engine drops what is in the slot. */
        const bool kept = hash128_eq(s->adapters, adapters_of(l, job));
        llama_dequeue(l, job);
        job->plan.available = available(&p);
        job->plan.known_pieces = counts_for(&p, c.restore, s, job) ? p.hit.n_pieces : 0;
        job->plan.known_bytes = job->cacheable ? known_bytes(s, job, &p) : 0;
        job->plan.miss = miss_reason(l, job, &p, resident);
        if (!c.restore && p.useful >= resident + cache_block_tokens(l->r->cache))
            llama_doubt_restores(l);
        if (hold_out(l, job, c.restore ? p.restorable : resident))
            job->plan.miss = "control";
        else if (!c.restore || kept)
            job->plan.promised = promise(l, &p, c.restore, resident);
        else
            job->plan.miss = "engine-refused";
        if (s->unsaved && resident < s->tokens / 2) /* not a next turn */
            llama_skip_save(l, s, SAVE_OVERWRITTEN);
        take_slot(l, s, job);
        if (c.restore && kept && !job->plan.held_out)
            llama_restore(
                l, s, job,
                &(struct restore_wish){&p.hit.at, p.n_pieces, p.restorable, resident});
        else
            llama_job_ready(l, job);
    }
    tree_mark_clear(cache_tree(l->r->cache), &p.hit.at);
    return c.slot >= 0;
}

/*
 * One pass over the queue, first in first out. A job that waits for one certain slot, or
 * for what other gateways know of it, lets others pass; one that needs all slots does
 * not, or it would wait for ever.
 *
 * Nothing is placed beside a save. The engine would not begin it sooner, all of its slots
 * stand still; but the slot that has its prefix would be out of the choice, and the next
 * turn of a chat, sent as soon as the last was read, would run cold on another one. Nor
 * beside a restore where the engine would empty that slot when another request begins.
 */
static bool pump_once(struct llama *l)
{
    if (l->binding.active || l->exclusive || slots_at_work(l) ||
        (l->empties_idle && is_restoring(l)))
        return false;
    LIST_EACH_SAFE (it, next, &l->queue) {
        struct job *job = LIST_ENTRY(it, struct job, link);
        if (llama_discovering(l, job))
            continue;
        if (job->wants_all) {
            if (slots_that_are(l, SLOT_IDLE) < l->n_slots)
                return false;
            llama_dequeue(l, job);
            place_exclusive(l, job);
            return true;
        }
        if (place(l, job))
            return true;
        if (job->wants_slot < 0 || slots_at_work(l)) /* saved or erased first */
            return false;
    }
    return false;
}

/* One at a time, and nothing is being placed. */
static bool may_save(const struct llama *l)
{
    return l->store_on && !l->binding.active && !slots_at_work(l);
}

void llama_pump(struct llama *l)
{
    if (l->pumping || l->phase != LLAMA_READY)
        return;
    l->pumping = true;
    if (may_save(l))
        llama_save_kept(l);
    while (pump_once(l))
        ;
    if (may_save(l) && list_empty(&l->queue))
        llama_save_best(l);
    l->pumping = false;
}
