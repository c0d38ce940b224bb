/* SPDX-License-Identifier: MIT */
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "wire/ask.h"

/*
 * Any server that speaks the OpenAI API: nothing can be put back, so jobs pass straight
 * through. Prompts and the engine's own cached-token counts are observed: what was
 * shared, and how much of it the engine reused by itself.
 */

#define HEARTBEAT_MS 2000
#define ASK_MS 10000

struct observer {
    struct replica *r;
    struct loop_timer timer;
    struct ask *asking;
    uint64_t admitted;
};

/* The same text under another model name is another prompt; the replica is part of it. */
static struct hash128 seed_of(const struct replica *r)
{
    return chain_hash(cache_key(r->cache), slice_of(r->name));
}

/* Lists of llama-server's router and of llama-swap say of each model whether it is
 * loaded; older ones of the latter say whose they are. */
static bool come_and_go(json_t *models)
{
    json_t *one = json_array_get(json_object_get(models, "data"), 0);
    const char *owner = json_string_value(json_object_get(one, "owned_by"));
    return json_is_object(json_object_get(one, "status")) ||
           (owner && strcmp(owner, "llama-swap") == 0);
}

static const char *why_observed(const struct replica *r, json_t *models)
{
    if (r->o.observe)
        return "asked to observe only";
    return come_and_go(models) ? ENGINE_SEVERAL_MODELS
                               : "this engine cannot take stored KV from outside";
}

static void on_models(void *arg, int status, json_t *doc, const struct err *err)
{
    struct observer *o = arg;
    o->asking = NULL;
    if (status == 0)
        replica_set_mode(o->r, REPLICA_DOWN, "%s", err->text);
    else if (status >= 500)
        replica_set_mode(o->r, REPLICA_STARTING, "the engine answers %d", status);
    else
        replica_set_mode(o->r, REPLICA_OBSERVE, "%s", why_observed(o->r, doc));
    timer_start(&o->timer, HEARTBEAT_MS);
}

static void on_heartbeat(void *arg)
{
    struct observer *o = arg;
    o->asking = ask_json(o->r->up, "/v1/models", NULL, o->r->authorization, ASK_MS,
                         o->r->loop, on_models, o);
}

static void *open_observer(struct replica *r)
{
    struct observer *o = mem_zalloc(sizeof(*o));
    o->r = r;
    r->seed = seed_of(r);
    timer_init(&o->timer, r->loop, on_heartbeat, o);
    timer_start(&o->timer, 0);
    return o;
}

static void close_observer(void *state)
{
    struct observer *o = state;
    ask_cancel(o->asking);
    timer_fini(&o->timer);
    free(o);
}

static void admit(void *state, struct job *job)
{
    struct observer *o = state;
    struct index_hit hit = {0};
    if (job->cacheable && job->pieces->n) {
        index_find(cache_index(o->r->cache), job->pieces->v, job->pieces->n, &hit);
        job->plan.available = hit.low;
        job->plan.known_pieces = hit.n_pieces;
        job->plan.known_bytes =
            hit.n_pieces ? job->pieces->v[hit.n_pieces - 1].end_bytes : 0;
        job->plan.miss = hit.n_pieces ? NULL : "first-sight";
        tree_mark_clear(cache_tree(o->r->cache), &hit.at);
    }
    job->plan.overlap = o->r->in_flight - 1;
    job->since_us = ++o->admitted; /* its number */
    job->sent = true;
    job->on_phase(job, JOB_READY);
}

/* What came between is in its way as well. */
static void first_content(void *state, struct job *job)
{
    struct observer *o = state;
    job->plan.overlap += (uint32_t)(o->admitted - job->since_us);
}

static void leave(void *state, struct job *job)
{
    (void)state;
    (void)job;
}

static void done(void *state, struct job *job)
{
    struct observer *o = state;
    if (job->outcome != JOB_COMPLETE || !job->cacheable || !job->pieces->n)
        return;
    const struct answer_facts *f = job->facts;
    const bool counted = f && f->prompt_tokens > 0;
    if (counted && job->text_bytes > 256 && !job->prompt->n_ids)
        o->r->bytes_per_token = (double)job->text_bytes / (double)f->prompt_tokens;
    const struct index_lesson lesson = {.v = job->pieces->v,
                                        .n = job->pieces->n,
                                        .n_prompt = job->n_prompt_pieces,
                                        .prompt_tokens =
                                            counted ? (uint32_t)f->prompt_tokens : 0};
    cache_learn(o->r->cache, o->r->seed, &lesson);
}

static void describe(void *state, json_t *into)
{
    (void)state;
    (void)into;
}

const struct engine_driver engine_openai = {.name = "openai",
                                            .open = open_observer,
                                            .close = close_observer,
                                            .admit = admit,
                                            .leave = leave,
                                            .done = done,
                                            .first_content = first_content,
                                            .describe = describe};
