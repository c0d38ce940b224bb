/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * What is measured, for the plans of route/plan.h: how fast slots are saved and restored,
 * how long the engine lets such a call wait beside a prefill, how often requests come,
 * and how much of what they ask was asked before. The latest counts most, and a large
 * slot more than a small one.
 */

#define KEEP 0.8         /* of what was measured before */
#define WEIGHT 0.2       /* of one more, where amounts do not matter */
#define MAX_GAP_MS 60e3  /* a night without requests says nothing about the day */
#define MAX_BATCH 8192.0 /* tokens; the engine's own default is 2048 */
#define SHARE_WEIGHT 0.05
#define DOUBT 0.05  /* of the usual speed, where a slow one kept from measuring */
#define OUTLIER 5.0 /* times what was expected: more is the machine's, not the call's */
#define MIN_SHARE 0.02 /* or nothing would be saved that could prove it wrong */

/* Of the tokens that are new when they come, 0.27 and 0.44 come again in two public
 * traces whose requests shared 0.37 and 0.64 of theirs with earlier ones. */
#define NEW_OF_SHARED 0.7

static void add(struct rate *r, double bytes, double ms)
{
    const double most = OUTLIER * bytes * r->ms / r->bytes;
    r->bytes = KEEP * r->bytes + bytes;
    r->ms = KEEP * r->ms + (ms < most ? ms : most);
}

/* Measured on llama-server with slots of 184 MB (docs/llama-server.md). */
static const struct rate usual_save = {.bytes = 75e6, .ms = 100};
static const struct rate usual_restore = {.bytes = 11.5e6, .ms = 10};

static void doubt(struct rate *r, const struct rate *usual)
{
    const double usual_ms = usual->ms * r->bytes / usual->bytes;
    if (r->ms > usual_ms)
        r->ms += DOUBT * (usual_ms - r->ms);
}

void llama_rates_init(struct llama *l)
{
    l->save_rate = usual_save;
    l->restore_rate = usual_restore;
    l->batch_tokens = 2048;
    l->gap_ms = 1000;
    l->shared = 0.4;
}

double llama_restore_ms_per_token(const struct llama *l, uint32_t tokens)
{
    double bytes = (double)l->frame->token_bytes;
    if (l->whole)
        bytes = (double)llama_state_bytes(l, tokens) / (tokens ? tokens : 1);
    return bytes * l->restore_rate.ms / l->restore_rate.bytes;
}

double llama_reuse(const struct llama *l)
{
    return NEW_OF_SHARED * l->shared;
}

/* A call that waited beside a prefill came in somewhere in the middle of a batch. */
static void learn_batch(struct llama *l, double waited_ms)
{
    double tokens = 2 * waited_ms / l->r->ms_per_token;
    tokens = tokens < MAX_BATCH ? tokens : MAX_BATCH;
    l->batch_tokens += WEIGHT * (tokens - l->batch_tokens);
}

void llama_learn_call(struct llama *l, struct rate *r, const struct call_times *t)
{
    const bool told = t->own_ms > 0 && t->own_ms <= t->call_ms;
    if (t->beside && told)
        learn_batch(l, t->call_ms - t->own_ms);
    if (!t->beside && t->all_ms > 0)
        add(r, (double)t->bytes, t->all_ms);
}

void llama_doubt_restores(struct llama *l)
{
    doubt(&l->restore_rate, &usual_restore);
}

void llama_doubt_saves(struct llama *l)
{
    doubt(&l->save_rate, &usual_save);
    doubt(&l->restore_rate, &usual_restore);
}

void llama_learn_arrival(struct llama *l)
{
    const uint64_t now = loop_now_us(l->r->loop);
    double ms = l->arrived_us ? (double)(now - l->arrived_us) / 1e3 : l->gap_ms;
    ms = ms < MAX_GAP_MS ? ms : MAX_GAP_MS;
    l->gap_ms += WEIGHT * (ms - l->gap_ms);
    l->arrived_us = l->active_us = now;
}

void llama_learn_shared(struct llama *l, uint32_t available, uint32_t prompt_tokens)
{
    const double share =
        available < prompt_tokens ? (double)available / prompt_tokens : 1;
    l->shared += SHARE_WEIGHT * (share - l->shared);
    if (l->shared < MIN_SHARE)
        l->shared = MIN_SHARE;
}

/* Its job's prompt is worked off at the usual rate. Answers without stream do not show
 * when that is done: after twice the time it is taken for granted. */
uint32_t llama_prefill_left(const struct llama *l, const struct llama_slot *s)
{
    const double ms = (double)(loop_now_us(l->r->loop) - s->prefill_us) / 1e3;
    const double done = ms / l->r->ms_per_token;
    if (!s->prefill || done > 2.0 * s->prefill)
        return 0;
    return done < s->prefill - 1 ? s->prefill - (uint32_t)done : 1;
}

/* Of all slots but this one. */
double llama_prefill_ms(const struct llama *l, const struct llama_slot *but)
{
    double tokens = 0;
    for (size_t i = 0; i < l->n_slots; i++)
        if (&l->slots[i] != but)
            tokens += llama_prefill_left(l, &l->slots[i]);
    return tokens * l->r->ms_per_token;
}
