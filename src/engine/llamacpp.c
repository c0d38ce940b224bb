/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * Jobs: admitted in order, placed on an idle slot when there is one, ended.
 *
 *     admit ─► queue ─► place ─┬─► (restore) ─► ready ─► … done ─► slot idle ─► save?
 *                              ├─► unpinned: ready, then bind it to the slot it got
 *                              └─► exclusive (n > 1): all slots
 *
 * An engine that is down gets its jobs at once, so that the client sees what the engine
 * (or its absence) has to say; while it is being looked at, they wait.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

#define LEARN_RATE 0.2        /* weight of a new measurement */
#define MAX_MS_PER_TOKEN 60e3 /* what is not between these bounds is no measurement */
#define MIN_BYTES_PER_TOKEN 0.05
#define MAX_BYTES_PER_TOKEN 1e4

/* ---- admitting --------------------------------------------------------------------- */

static void fail_job(struct llama *l, struct job *job, int status, const char *why)
{
    llama_dequeue(l, job);
    l->r->in_flight--;
    job->on_failed(job, status, why);
}

static void on_queue_deadline(void *arg)
{
    struct job *job = arg;
    struct llama *l = job->engine;
    job->engine = NULL;
    fail_job(l, job, 503, "the request waited too long for a free slot");
    llama_pump(l); /* it may have stood before others */
}

static void pass_through(struct job *job)
{
    job->engine = NULL;
    job->plan.miss = "not-held-here";
    job->sent = true;
    job->on_phase(job, JOB_READY);
}

static void wish_slot(const struct llama *l, struct job *job)
{
    job->wants_slot = -1;
    if (job->prompt->has_id_slot && llama_can_pin(job) && l->n_slots)
        job->wants_slot = (int)((uint64_t)job->prompt->id_slot % l->n_slots);
}

static void enqueue_behind(struct llama *l, struct list *before, struct job *job)
{
    list_insert_after(before, &job->link);
    job->engine = l; /* while it waits; its slot afterwards */
    job->since_us = loop_now_us(l->r->loop);
    timer_init(&job->deadline, l->r->loop, on_queue_deadline, job);
    if (job->background)
        return;
    l->r->queued++;
    timer_start(&job->deadline, l->r->o.queue_ms);
}

/* Clients first, each kind in the order of its coming. */
static void enqueue(struct llama *l, struct job *job)
{
    struct list *last = l->queue.prev;
    while (!job->background && last != &l->queue &&
           LIST_ENTRY(last, struct job, link)->background)
        last = last->prev;
    enqueue_behind(l, last, job);
}

void llama_requeue(struct llama *l, struct job *job)
{
    job->sent = false;
    job->plan = (struct plan){.slot = -1, .behind_others = true};
    enqueue_behind(l, &l->queue, job);
}

void llama_dequeue(struct llama *l, struct job *job)
{
    llama_discover_left(l, job);
    list_del(&job->link);
    timer_fini(&job->deadline);
    l->r->queued -= !job->background;
}

/* While others are asked about it, it does not wait for a slot: whether there is room in
 * the queue is seen afterwards. */
static bool may_wait(struct llama *l, struct job *job)
{
    job->provisional = job->discovery != NULL;
    if (!job->provisional && !job->background &&
        l->r->queued - l->discovering > l->r->o.queue_max) {
        fail_job(l, job, 503, "too many requests wait for this engine");
        return false;
    }
    job->plan.behind_others = !job->provisional && !llama_only_save_ahead(l, job);
    return true;
}

void llama_discovered(struct llama *l, struct job *job)
{
    const bool provisional = job->provisional;
    llama_pump(l);
    if (provisional && !job->sent && !list_empty(&job->link))
        may_wait(l, job);
}

static void admit(void *state, struct job *job)
{
    struct llama *l = state;
    job->wants_all = job->generates && (job->prompt->n > 1 || job->prompt->n_prompts > 1);
    if (!job->generates || l->phase == LLAMA_DOWN) {
        pass_through(job);
        return;
    }
    wish_slot(l, job);
    if (!job->background)
        llama_learn_arrival(l);
    enqueue(l, job);
    llama_pump(l);
    if (!job->sent && !list_empty(&job->link) && may_wait(l, job))
        job->on_phase(job, JOB_QUEUED);
}

/* Everything that waits goes to the engine as it is: it is down, or of another kind. */
void llama_release_queue(struct llama *l)
{
    while (!list_empty(&l->queue)) {
        struct job *job = LIST_ENTRY(l->queue.next, struct job, link);
        llama_dequeue(l, job);
        pass_through(job);
    }
}

void llama_lost(struct llama *l)
{
    l->store_on = false;
    l->suspect = false;
    l->overwrites = false;
    llama_probe_lost(l);
    llama_unbind(l);
    for (size_t i = 0; i < LLAMA_MAX_SLOTS; i++) {
        llama_forget(l, &l->slots[i]);
        l->slots[i].whose = (struct hash128){0, 0};
    }
    upstream_flush(l->r->up);
}

void llama_down(struct llama *l, const char *why)
{
    if (l->phase != LLAMA_DOWN)
        log_event(LOG_WARN, "engine-down", "replica", "%s", l->r->name, "why", "%s", why,
                  NULL);
    l->r->n.restarts += l->phase == LLAMA_READY; /* what comes back is another process */
    l->phase = LLAMA_DOWN;
    llama_lost(l);
    replica_set_mode(l->r, REPLICA_DOWN, "%s", why);
    llama_release_queue(l);
    llama_poll(l);
}

static bool is_quiet(const struct llama *l)
{
    bool quiet = l->phase == LLAMA_READY && !l->probe && !l->ops && !l->exclusive &&
                 list_empty(&l->queue) && !l->binding.active;
    for (size_t i = 0; i < l->n_slots; i++)
        quiet &= l->slots[i].state == SLOT_IDLE;
    return quiet;
}

/* What failed may work by now: a full slot directory, an engine under another switch. */
static void on_retry(void *arg)
{
    struct llama *l = arg;
    if (l->r->mode != REPLICA_OBSERVE || l->store_on)
        return;
    if (is_quiet(l))
        llama_probe_again(l);
    else
        timer_start(&l->retry, LLAMA_RETRY_MS);
}

void llama_retry_later(struct llama *l)
{
    timer_start(&l->retry, l->r->o.retry_ms << l->retries);
    l->retries += l->retries < LLAMA_MAX_RETRIES;
}

void llama_probed(struct llama *l)
{
    l->phase = LLAMA_READY;
    LIST_EACH (it, &l->queue)
        wish_slot(l, LIST_ENTRY(it, struct job, link));
    llama_poll(l);
    llama_pump(l);
}

/* ---- ending ------------------------------------------------------------------------ */

/* The engine may still be at it: nothing goes to this slot until it says idle. */
void llama_make_zombie(struct llama *l, struct llama_slot *s)
{
    s->state = SLOT_ZOMBIE;
    s->job = NULL;
    s->doubtful = false;
    s->asked = false;
    s->n_looks = 0;
    llama_forget(l, s);
    llama_poll(l);
}

/* The number of slots may have changed meanwhile. */
static void end_exclusive(struct llama *l, bool whole)
{
    for (size_t i = 0; i < LLAMA_MAX_SLOTS; i++) {
        struct llama_slot *s = &l->slots[i];
        if (s->state != SLOT_OWNED || s->job != l->exclusive)
            continue;
        s->state = SLOT_IDLE;
        s->job = NULL;
        s->asked = false;
        if (!whole)
            llama_make_zombie(l, s);
    }
    l->exclusive = NULL;
}

/* The whole of it is over for a job that was sent but whose answer is not whole. */
static void end_broken(struct llama *l, struct job *job)
{
    if (l->exclusive == job) {
        end_exclusive(l, false);
    } else if (l->binding.active && l->binding.job == job) {
        l->binding.job = NULL;
        l->binding.ended = l->binding.broken = true;
        llama_poll(l);
    } else if (job->engine) {
        llama_make_zombie(l, job->engine);
    }
    llama_poll(l);
}

static void leave(void *state, struct job *job)
{
    struct llama *l = state;
    l->active_us = loop_now_us(l->r->loop);
    if (job->sent) {
        end_broken(l, job);
    } else if (!list_empty(&job->link)) {
        llama_dequeue(l, job);
    } else {
        llama_restore_left(l, job);
        if (l->binding.job == job)
            llama_unbind(l);
    }
    llama_pump(l);
}

static void learn_rates(struct llama *l, const struct job *job)
{
    const struct answer_facts *f = job->facts;
    const double bytes = (double)job->text_bytes / (double)f->prompt_tokens;
    const double ms = f->prompt_ms / (double)f->prompt_n;
    if (job->text_bytes > 512 && !job->prompt->n_ids && bytes > MIN_BYTES_PER_TOKEN &&
        bytes < MAX_BYTES_PER_TOKEN)
        l->r->bytes_per_token += LEARN_RATE * (bytes - l->r->bytes_per_token);
    if (f->prompt_n >= 32 && !job->plan.overlap && ms > 0 && ms < MAX_MS_PER_TOKEN)
        l->r->ms_per_token += LEARN_RATE * (ms - l->r->ms_per_token);
}

/* A slot of which nothing was reused, or no more than what every template begins with,
 * did not hold what we thought: the engine has dropped it, or is another process. That
 * says nothing about what prompts have in common. */
static bool tells_of_prefix(const struct llama *l, const struct job *job)
{
    const struct plan *p = &job->plan;
    const uint32_t bt = cache_block_tokens(l->r->cache);
    const int64_t least = p->available >= 2 * bt ? bt : 1;
    return job->facts->cached_tokens >= least && p->known_pieces &&
           p->known_pieces <= job->n_prompt_pieces;
}

/* Nothing came of a restore: at most the few tokens that every template begins with. Less
 * than promised is no proof, promises are estimates. */
static bool nothing_reused(const struct llama *l, const struct job *job)
{
    const uint32_t bt = cache_block_tokens(l->r->cache);
    const int64_t cached = job->facts->cached_tokens;
    if (l->whole)
        return cached + LLAMA_WHOLE_SLACK < (int64_t)job->plan.promised;
    return job->plan.promised >= 2 * bt ? cached < bt
                                        : cached == 0 && job->plan.promised >= bt;
}

/* The engine's own count corrects the index; a promise that came to nothing counts. */
static void confirm(struct llama *l, struct job *job)
{
    const struct answer_facts *f = job->facts;
    const struct plan *p = &job->plan;
    if (f->cached_tokens < 0 || f->prompt_tokens <= 0 || p->held_out)
        return;
    const bool exact = p->held && !l->whole && f->cached_tokens < (int64_t)p->held &&
                       f->cached_tokens < f->prompt_tokens - 1;
    if (tells_of_prefix(l, job))
        index_confirm(cache_index(l->r->cache), job->pieces->v, job->n_prompt_pieces,
                      p->known_pieces, (uint32_t)f->cached_tokens, exact);
    if (!p->restored)
        return;
    const bool there = llama_pins(l, job) && !l->empties_idle && !p->contested;
    if (there && l->whole && nothing_reused(l, job))
        llama_whole_drop(l, job);
    if (!nothing_reused(l, job))
        l->failures_in_row = 0;
    else if (there)
        llama_restore_failed(l, RESTORE_NOT_REUSED,
                             "the engine restored a prefix and reused nothing of it");
    else /* it took another slot, emptied this one, or gave it to another first */
        l->r->n.restore_failures[RESTORE_NOT_REUSED]++;
}

/* How much of a prompt may be stored: nothing of a short one; with second-sight what an
 * earlier prompt began with as well, so that what comes once never gets in. */
static uint32_t admitted(struct llama *l, const struct job *job)
{
    const struct replica_options *o = &l->r->o;
    struct index_hit hit = {0};
    if (job->keep)
        return UINT32_MAX;
    if (job->facts->prompt_tokens < (int64_t)o->min_tokens)
        return 0;
    if (!o->second_sight)
        return UINT32_MAX;
    index_find(cache_index(l->r->cache), job->pieces->v, job->plan.known_pieces, &hit);
    tree_mark_clear(cache_tree(l->r->cache), &hit.at);
    if (l->whole) /* all of it or nothing */
        return hit.low >= o->min_tokens && hit.low ? UINT32_MAX : 0;
    return hit.low;
}

/* Tokens of what a slot holds that the store would take. */
uint32_t llama_storable(const struct lesson *ls)
{
    return ls->total_tokens < ls->admitted ? ls->total_tokens : ls->admitted;
}

/* What the slot holds now, and what of it would be new in the store. */
static struct lesson *lesson_of(struct llama *l, const struct job *job)
{
    const struct answer_facts *f = job->facts;
    struct lesson *ls = lesson_new(l, job);
    ls->prompt_tokens = (uint32_t)f->prompt_tokens;
    ls->total_tokens = ls->prompt_tokens;
    if (f->predicted_n > 0)
        ls->total_tokens += (uint32_t)f->predicted_n - 1;
    ls->known_tokens = llama_stored_tokens(l, ls);
    ls->admitted = admitted(l, job);
    ls->saveable =
        !job->prompt->has_media &&
        (!l->whole || (llama_whole_ends(job) && llama_whole_long(l, ls->total_tokens)));
    ls->keep = job->keep;
    return ls;
}

/* A prompt that is not going to be saved is known by text all the same, up to the blocks
 * that its start has in the tree. */
void llama_learn_text(struct llama *l, const struct lesson *ls)
{
    struct index_hit hit = {0};
    const uint32_t bt = cache_block_tokens(l->r->cache);
    index_find(cache_index(l->r->cache), ls->v, ls->n, &hit);
    const size_t common = (hit.high + bt - 1) / bt; /* behind it lies another prompt */
    if (common < tree_mark_blocks(&hit.at))
        tree_mark_up(cache_tree(l->r->cache), &hit.at, common);
    const struct index_lesson lesson = {.v = ls->v,
                                        .n = ls->n,
                                        .n_prompt = ls->n_prompt,
                                        .prompt_tokens = ls->prompt_tokens,
                                        .owner = ls->tenant,
                                        .end = hit.at.node ? &hit.at : NULL};
    cache_learn(l->r->cache, l->fingerprint, &lesson);
    tree_mark_clear(cache_tree(l->r->cache), &hit.at);
}

void llama_settle(struct llama *l, struct llama_slot *s, struct lesson *ls)
{
    const uint32_t least = ls->keep ? 1 : cache_block_tokens(l->r->cache);
    llama_holds(l, s, ls, ls->total_tokens);
    s->unsaved =
        ls->saveable && l->store_on && llama_storable(ls) >= ls->known_tokens + least;
    if (!s->unsaved)
        llama_learn_text(l, ls);
}

/* What a job leaves in its slot. Where a restore before it was not answered that may be
 * done after it as well. */
static void settle_or_forget(struct llama *l, struct llama_slot *s, struct lesson *ls)
{
    if (s->doubtful) {
        lesson_free(ls);
        llama_make_zombie(l, s);
    } else if (ls) {
        llama_settle(l, s, ls);
    } else {
        llama_forget(l, s);
    }
}

/* The engine told counts, and such that its slot can have. */
static bool has_counts(const struct llama *l, const struct answer_facts *f)
{
    return f && f->prompt_tokens > 0 && f->prompt_tokens <= l->n_ctx &&
           (f->predicted_n < 0 || f->prompt_tokens + f->predicted_n <= l->n_ctx + 1);
}

static void done(void *state, struct job *job)
{
    struct llama *l = state;
    struct llama_slot *s = job->engine;
    struct lesson *ls = NULL;
    l->active_us = loop_now_us(l->r->loop);
    if (job->outcome == JOB_BROKEN) {
        end_broken(l, job);
        llama_pump(l);
        return;
    }
    const bool known = job->outcome == JOB_COMPLETE && llama_is_current(l, job) &&
                       has_counts(l, job->facts) && job->pieces->n;
    if (known) {
        learn_rates(l, job);
        llama_learn_shared(l, job->plan.available, (uint32_t)job->facts->prompt_tokens);
        confirm(l, job);
        ls = lesson_of(l, job);
    }
    if (l->exclusive == job) {
        end_exclusive(l, true);
        lesson_free(ls);
    } else if (l->binding.active && l->binding.job == job) {
        l->binding.job = NULL;
        l->binding.ended = true;
        l->binding.refused = job->outcome == JOB_REFUSED;
        l->binding.lesson = ls;
        llama_poll(l);
    } else if (s) {
        s->state = SLOT_IDLE;
        s->job = NULL;
        s->asked = false;
        s->prefill = 0;
        s->last_used_us = loop_now_us(l->r->loop);
        settle_or_forget(l, s, ls);
    } else {
        lesson_free(ls);
    }
    llama_pump(l);
}

static void first_content(void *state, struct job *job)
{
    struct llama *l = state;
    struct llama_slot *s = job->engine;
    if (l->binding.active && l->binding.job == job)
        l->binding.prefill = 0;
    if (!s || l->exclusive == job)
        return;
    s->prefill = 0;
    s->begun = true;
    s->asked = false;
    llama_pump(l); /* a save may have waited for its prefill */
}

/* ---- the driver -------------------------------------------------------------------- */

/* The engine dropped a connection: look at its slots at once, it may be a new process. */
static void on_lost(void *arg)
{
    struct llama *l = arg;
    l->suspect = true;
    if (l->phase == LLAMA_READY)
        timer_start(&l->poll, 0);
}

static void on_save_later(void *arg)
{
    llama_pump(arg);
}

static void *open_llama(struct replica *r)
{
    struct llama *l = mem_zalloc(sizeof(*l));
    l->r = r;
    l->phase = LLAMA_PROBING;
    llama_rates_init(l);
    l->frame = mem_zalloc(sizeof(*l->frame));
    for (int i = 0; i < LLAMA_MAX_SLOTS; i++)
        l->slots[i] = (struct llama_slot){.id = i, .task = -1};
    list_init(&l->queue);
    list_init(&l->watches);
    timer_init(&l->poll, r->loop, llama_on_poll, l);
    timer_init(&l->save_later, r->loop, on_save_later, l);
    timer_init(&l->retry, r->loop, on_retry, l);
    upstream_on_lost(r->up, on_lost, l);
    llama_probe_start(l);
    return l;
}

static void close_llama(void *state)
{
    struct llama *l = state;
    upstream_on_lost(l->r->up, NULL, NULL);
    llama_probe_stop(l);
    llama_probe_lost(l);
    llama_watch_stop(l);
    ask_cancel(l->asking);
    timer_fini(&l->poll);
    timer_fini(&l->save_later);
    timer_fini(&l->retry);
    llama_scratch_late_free(l);
    for (size_t i = 0; i < LLAMA_MAX_SLOTS; i++)
        llama_forget(l, &l->slots[i]);
    llama_unbind(l);
    free(l->frame);
    free(l);
}

static unsigned busy(void *state)
{
    const struct llama *l = state;
    return l->ops;
}

static void drain(void *state)
{
    struct llama *l = state;
    l->draining = true;
    llama_pump(l);
}

static bool is_forgotten(const struct lesson *ls, const struct cache_forget *what)
{
    if (what->v)
        return pieces_common(ls->v, ls->n, what->v, what->n) == what->n;
    return what->tenant == CACHE_EVERYBODY || what->tenant == ls->tenant;
}

/* What the slots of the engine hold stays there until it is overwritten, but nobody gets
 * it any more. */
static void forget(void *state, const struct cache_forget *what)
{
    struct llama *l = state;
    l->n_forgets++;
    for (size_t i = 0; i < l->n_slots; i++) {
        struct llama_slot *s = &l->slots[i];
        if (s->state != SLOT_OWNED && s->holds && is_forgotten(s->holds, what)) {
            llama_forget(l, s);
            s->whose = (struct hash128){0, 0};
        }
    }
}

static void describe(void *state, json_t *into)
{
    static const char *const states[] = {"idle", "owned", "zombie", "saving", "erasing"};
    const struct llama *l = state;
    json_t *slots = json_array();
    for (size_t i = 0; i < l->n_slots; i++) {
        const struct llama_slot *s = &l->slots[i];
        json_array_append_new(
            slots, json_pack("{s:i,s:s,s:I,s:b}", "id", s->id, "state", states[s->state],
                             "tokens", (json_int_t)s->tokens, "unsaved", s->unsaved));
    }
    json_object_set_new(into, "slots", slots);
    json_object_set_new(into, "kv_operations", json_integer(l->ops));
    json_object_set_new(into, "unbound", json_boolean(l->binding.active));
    json_object_set_new(into, "context", json_integer(l->n_ctx));
    json_object_set_new(into, "empties_idle_slots", json_boolean(l->empties_idle));
    json_object_set_new(into, "build", json_string(l->build));
    if (l->store_on) {
        char hex[HASH128_HEX];
        const struct slotfile_frame *f = l->frame;
        json_object_set_new(into, "fingerprint",
                            json_string(hash128_hex(l->fingerprint, hex)));
        json_object_set_new(into, "token_bytes",
                            json_integer((json_int_t)f->token_bytes));
        if (f->n_layers)
            json_object_set_new(into, "kv_type",
                                json_string(slotfile_type_name(f->layers[0].k_type)));
        json_object_set_new(into, "state_version", json_integer(f->version));
        json_object_set_new(into, "whole_states", json_boolean(l->whole));
        json_object_set_new(into, "layers", json_integer(f->n_layers));
    }
}

const struct engine_driver engine_llamacpp = {.name = "llamacpp",
                                              .open = open_llama,
                                              .close = close_llama,
                                              .admit = admit,
                                              .leave = leave,
                                              .done = done,
                                              .first_content = first_content,
                                              .busy = busy,
                                              .drain = drain,
                                              .forget = forget,
                                              .describe = describe};
