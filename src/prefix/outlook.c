/* SPDX-License-Identifier: MIT */
#include "prefix/outlook.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "prefix/curve.h"

#define SMALLEST 8 /* 2⁸ pieces */
#define MAX_PIECES ((size_t)1 << (SMALLEST + OUTLOOK_SIZES - 1))

/* What is kept of a request whose time counts. */
struct timed {
    struct ttft_sample took;
    double more[OUTLOOK_SIZES]; /* tokens that a store would have added */
};

struct outlook {
    struct curve *curve;
    struct ttft_model model;
    struct timed v[OUTLOOK_KEEP];
    uint64_t n_timed, requests, counted, pieces;
    double prompt_tokens, counted_tokens, engine_tokens;
    double reused[OUTLOOK_SIZES], lost[OUTLOOK_CAUSE_KINDS];
};

struct outlook *outlook_new(void)
{
    struct outlook *o = mem_zalloc(sizeof(*o));
    o->curve = curve_new(MAX_PIECES);
    return o;
}

void outlook_free(struct outlook *o)
{
    if (o)
        curve_free(o->curve);
    free(o);
}

const char *outlook_cause_name(enum outlook_cause c)
{
    static const char *const names[] = {
#define X(code, name) [code] = name,
        OUTLOOK_CAUSES(X)
#undef X
    };
    assert(c < OUTLOOK_CAUSE_KINDS);
    return names[c];
}

/* Tokens of each piece of the prompt, by its bytes; the answer's count nothing. */
static void spread(const struct outlook_request *rq, double *weights)
{
    const double bytes = (double)rq->v[rq->n_prompt - 1].end_bytes;
    uint64_t before = 0;
    for (size_t i = 0; i < rq->n; i++) {
        const double own = (double)(rq->v[i].end_bytes - before);
        weights[i] = i < rq->n_prompt && bytes > 0 ? own / bytes * rq->prompt_tokens : 0;
        before = rq->v[i].end_bytes;
    }
}

static void note_loss(struct outlook *o, const struct outlook_request *rq, size_t known,
                      double known_tokens)
{
    bool early = true;
    for (size_t i = 0; i < known; i++)
        early &= !rq->v[i].ends_part;
    const double cached = fmax(rq->cached_tokens, 0);
    const enum outlook_cause parts = !known  ? OUTLOOK_FIRST_SIGHT
                                     : early ? OUTLOOK_EARLY
                                             : OUTLOOK_LATE;
    o->lost[parts] += rq->prompt_tokens - fmax(known_tokens, cached);
    if (rq->cached_tokens >= 0)
        o->lost[OUTLOOK_DROPPED] += fmax(0, known_tokens - cached);
}

/* A prompt that parts from an earlier one does so within a piece, on average in its
 * middle; the tokens before that are reused as well. */
static double reused_by(size_t room, const struct outlook_request *rq,
                        const size_t *needs, const double *weights)
{
    double tokens = 0;
    size_t i = 0;
    while (i < rq->n_prompt && needs[i] <= room)
        tokens += weights[i++];
    if (i > 0 && i < rq->n_prompt && needs[i] == SIZE_MAX)
        tokens += weights[i] / 2;
    return tokens;
}

/* What each size would have had of it, and at most all but one token. */
static void note_sizes(struct outlook *o, const struct outlook_request *rq,
                       const size_t *needs, const double *weights)
{
    const double most = fmax(0, rq->prompt_tokens - 1),
                 cached = fmax(rq->cached_tokens, 0);
    struct timed t = {{cached, rq->prompt_tokens - cached, rq->ttft_ms}, {0}};
    for (int k = 0; k < OUTLOOK_SIZES; k++) {
        double tokens = reused_by((size_t)1 << (SMALLEST + k), rq, needs, weights);
        tokens = fmax(fmin(tokens, most), cached);
        o->reused[k] += tokens;
        t.more[k] = tokens - cached;
    }
    if (rq->cached_tokens >= 0 &&
        ttft_is_sample(t.took.reused, t.took.fresh, t.took.ms)) {
        ttft_add(&o->model, t.took.reused, t.took.fresh, t.took.ms);
        o->v[o->n_timed++ % OUTLOOK_KEEP] = t;
    }
}

void outlook_add(struct outlook *o, const struct outlook_request *rq)
{
    if (!rq->n_prompt || !(rq->prompt_tokens >= 1) ||
        rq->cached_tokens > rq->prompt_tokens)
        return;
    struct hash128 *items = mem_array(rq->n, sizeof(*items));
    double *weights = mem_array(rq->n, sizeof(*weights));
    size_t *needs = mem_array(rq->n, sizeof(*needs));
    size_t known = 0;
    for (size_t i = 0; i < rq->n; i++)
        items[i] = rq->v[i].hash;
    spread(rq, weights);
    const double known_tokens = curve_add_telling(o->curve, items, rq->n, weights, needs);
    while (known < rq->n_prompt && needs[known] != SIZE_MAX)
        known++;
    note_loss(o, rq, known, known_tokens);
    note_sizes(o, rq, needs, weights);
    o->requests++;
    o->counted += rq->cached_tokens >= 0;
    o->pieces += rq->n_prompt;
    o->prompt_tokens += rq->prompt_tokens;
    o->engine_tokens += fmax(rq->cached_tokens, 0);
    o->counted_tokens += rq->cached_tokens >= 0 ? rq->prompt_tokens : 0;
    free(items);
    free(weights);
    free(needs);
}

static void work_out_time(struct outlook *o, int k, struct outlook_size *out)
{
    const size_t n = o->n_timed < OUTLOOK_KEEP ? (size_t)o->n_timed : OUTLOOK_KEEP;
    struct ttft_sample took[OUTLOOK_KEEP];
    double more[OUTLOOK_KEEP];
    struct ttft_sum sum;
    for (size_t i = 0; i < n; i++) {
        took[i] = o->v[i].took;
        more[i] = fmin(o->v[i].more[k], took[i].fresh - 1);
        more[i] = fmax(more[i], 0);
    }
    out->saved_ms = out->half = (double)NAN;
    if (n && ttft_predict_gain(&o->model, took, more, n, &sum)) {
        out->saved_ms = sum.ms;
        out->half = sum.half;
    }
}

void outlook_figures(struct outlook *o, struct outlook_figures *out)
{
    *out = (struct outlook_figures){.requests = o->requests,
                                    .counted = o->counted,
                                    .timed = o->n_timed < OUTLOOK_KEEP ? o->n_timed
                                                                       : OUTLOOK_KEEP,
                                    .prompt_tokens = o->prompt_tokens,
                                    .counted_tokens = o->counted_tokens,
                                    .engine_tokens = o->engine_tokens};
    const double piece = o->pieces ? o->prompt_tokens / (double)o->pieces : 0;
    out->distinct_tokens = piece * (double)curve_items(o->curve);
    for (int c = 0; c < OUTLOOK_CAUSE_KINDS; c++)
        out->lost[c] = o->lost[c];
    for (int k = 0; k < OUTLOOK_SIZES; k++) {
        struct outlook_size *s = &out->sizes[k];
        s->pieces = (size_t)1 << (SMALLEST + k);
        s->tokens = piece * (double)s->pieces;
        s->reused_tokens = o->reused[k];
        work_out_time(o, k, s);
    }
}
