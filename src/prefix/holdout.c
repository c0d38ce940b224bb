/* SPDX-License-Identifier: MIT */
#include "prefix/holdout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/draw.h"
#include "base/mem.h"

#define LEAST_RESAMPLES 200
#define MOST_DRAWS 2000000 /* of samples, in all resamples together: some milliseconds */

enum arm { CACHED, COLD, ARMS };

struct sample {
    double x, y; /* prompt tokens, ms */
};

struct group {
    struct hash128 key;
    bool used;
    uint64_t drawn_at;       /* order of draws */
    uint32_t at, block, hit; /* place in a block of draws, its size, the one held out */
    uint64_t n[ARMS];        /* ever added; the last HOLDOUT_KEEP are in v */
    struct sample v[ARMS][HOLDOUT_KEEP];
};

struct holdout {
    double share;
    uint64_t rng, draws;
    struct group groups[HOLDOUT_GROUPS];
    struct holdout_result last;
    bool stale; /* samples came since `last` */
};

struct holdout *holdout_new(double share, uint64_t seed)
{
    struct holdout *h = mem_zalloc(sizeof(*h));
    h->share = fmin(fmax(share, 0), 0.5);
    h->rng = seed;
    h->stale = true;
    return h;
}

void holdout_free(struct holdout *h)
{
    free(h);
}

/* ---- drawing ----------------------------------------------------------------------- */

static struct group *find(struct holdout *h, struct hash128 key)
{
    for (size_t i = 0; i < HOLDOUT_GROUPS; i++)
        if (h->groups[i].used && hash128_eq(h->groups[i].key, key))
            return &h->groups[i];
    return NULL;
}

static struct group *find_or_make(struct holdout *h, struct hash128 key)
{
    struct group *g = find(h, key), *oldest = &h->groups[0];
    if (g)
        return g;
    for (size_t i = 1; i < HOLDOUT_GROUPS; i++)
        if (h->groups[i].drawn_at < oldest->drawn_at)
            oldest = &h->groups[i];
    memset(oldest, 0, sizeof(*oldest));
    oldest->used = true;
    oldest->key = key;
    return oldest;
}

/* 1 / share is seldom whole: blocks of both neighbours, so that the share is right. */
static void begin_block(struct holdout *h, struct group *g)
{
    const double size = 1 / h->share,
                 part = (double)draw_below(&h->rng, 1u << 30) / (1u << 30);
    g->block = (uint32_t)(floor(size) + (part < size - floor(size)));
    g->hit = draw_below(&h->rng, g->block);
    g->at = 0;
}

bool holdout_draw(struct holdout *h, struct hash128 key)
{
    if (h->share < 1e-6)
        return false;
    struct group *g = find_or_make(h, key);
    g->drawn_at = ++h->draws;
    if (g->at == g->block)
        begin_block(h, g);
    return g->at++ == g->hit;
}

void holdout_add(struct holdout *h, struct hash128 key, bool cold, double prompt_tokens,
                 double ttft_ms)
{
    struct group *g = find(h, key);
    if (!g || !(ttft_ms > 0 && isfinite(ttft_ms)) || !(prompt_tokens > 0))
        return;
    const enum arm arm = cold ? COLD : CACHED;
    g->v[arm][g->n[arm]++ % HOLDOUT_KEEP] = (struct sample){prompt_tokens, ttft_ms};
    h->stale = true;
}

/* ---- comparing --------------------------------------------------------------------- */

/* One group and arm as it takes part: all samples, or a resample of them. */
struct cell {
    struct sample v[HOLDOUT_KEEP];
    uint32_t n;
    double x, y; /* means */
};

struct table {
    struct cell cells[HOLDOUT_GROUPS][ARMS];
    double weight[HOLDOUT_GROUPS]; /* share of the requests; they add up to 1 */
    double x[HOLDOUT_GROUPS];      /* length to which both arms are adjusted */
    uint32_t n_groups;
};

struct contrast {
    double mean[ARMS], difference, variance;
};

static void sum_up(struct cell *c)
{
    c->x = c->y = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        c->x += c->v[i].x / c->n;
        c->y += c->v[i].y / c->n;
    }
}

/* Slope of time over length within the groups of one arm, 0 where all are equal. */
static double slope_of(const struct table *t, enum arm arm)
{
    double xx = 0, xy = 0;
    for (uint32_t i = 0; i < t->n_groups; i++) {
        const struct cell *c = &t->cells[i][arm];
        for (uint32_t j = 0; j < c->n; j++) {
            const double dx = c->v[j].x - c->x;
            xx += dx * dx;
            xy += dx * (c->v[j].y - c->y);
        }
    }
    return xx > 0 ? xy / xx : 0;
}

/* The variance of an arm's mean in a group, of what its length does not explain. */
static double variance_of(const struct cell *c, double slope)
{
    double squares = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        const double r = c->v[i].y - c->y - slope * (c->v[i].x - c->x);
        squares += r * r;
    }
    return c->n > 1 ? squares / ((double)c->n * (c->n - 1)) : 0;
}

static struct contrast compare(const struct table *t)
{
    struct contrast k = {.variance = 0};
    for (int arm = 0; arm < ARMS; arm++) {
        const double slope = slope_of(t, (enum arm)arm);
        for (uint32_t i = 0; i < t->n_groups; i++) {
            const struct cell *c = &t->cells[i][arm];
            const double w = t->weight[i];
            k.mean[arm] += w * (c->y + slope * (t->x[i] - c->x));
            k.variance += w * w * variance_of(c, slope);
        }
    }
    k.difference = k.mean[COLD] - k.mean[CACHED];
    return k;
}

static void load(const struct holdout *h, struct table *t, struct holdout_result *out)
{
    uint64_t all = 0;
    for (size_t i = 0; i < HOLDOUT_GROUPS; i++) {
        const struct group *g = &h->groups[i];
        struct cell *cells = t->cells[t->n_groups];
        for (int arm = 0; arm < ARMS; arm++) {
            cells[arm].n =
                (uint32_t)(g->n[arm] < HOLDOUT_KEEP ? g->n[arm] : HOLDOUT_KEEP);
            memcpy(cells[arm].v, g->v[arm], cells[arm].n * sizeof(struct sample));
            sum_up(&cells[arm]);
        }
        const uint32_t n = cells[CACHED].n + cells[COLD].n;
        if (cells[CACHED].n < HOLDOUT_MIN || cells[COLD].n < HOLDOUT_MIN) {
            out->waiting += n;
            continue;
        }
        out->n_cached += cells[CACHED].n;
        out->n_cold += cells[COLD].n;
        t->x[t->n_groups] =
            (cells[CACHED].n * cells[CACHED].x + cells[COLD].n * cells[COLD].x) / n;
        t->weight[t->n_groups++] = (double)(g->n[CACHED] + g->n[COLD]);
        all += g->n[CACHED] + g->n[COLD];
    }
    for (uint32_t i = 0; i < t->n_groups; i++)
        t->weight[i] /= (double)all;
    out->groups = t->n_groups;
}

static void resample(const struct table *from, struct table *to, uint64_t *rng)
{
    for (uint32_t i = 0; i < from->n_groups; i++)
        for (int arm = 0; arm < ARMS; arm++) {
            const struct cell *a = &from->cells[i][arm];
            struct cell *b = &to->cells[i][arm];
            for (uint32_t j = 0; j < a->n; j++)
                b->v[j] = a->v[draw_below(rng, a->n)];
            sum_up(b);
        }
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Quantiles of (difference of a resample − difference) / its standard error. */
static bool bootstrap(const struct table *t, double difference, int resamples,
                      double *low, double *high)
{
    double q[HOLDOUT_RESAMPLES];
    size_t n = 0;
    uint64_t rng = 1;
    struct table *again = mem_alloc(sizeof(*again));
    memcpy(again, t, sizeof(*again));
    for (int i = 0; i < resamples; i++) {
        resample(t, again, &rng);
        const struct contrast k = compare(again);
        if (k.variance > 0)
            q[n++] = (k.difference - difference) / sqrt(k.variance);
    }
    free(again);
    qsort(q, n, sizeof(*q), by_value);
    if (n < (size_t)resamples / 2)
        return false; /* all times are equal */
    *low = q[(size_t)(0.025 * (double)(n - 1))];
    *high = q[(size_t)(0.975 * (double)(n - 1))];
    return true;
}

static int resamples_for(uint64_t samples)
{
    const uint64_t n = samples ? MOST_DRAWS / samples : HOLDOUT_RESAMPLES;
    return (int)(n < LEAST_RESAMPLES     ? LEAST_RESAMPLES
                 : n < HOLDOUT_RESAMPLES ? n
                                         : HOLDOUT_RESAMPLES);
}

static void work_out(const struct holdout *h, struct holdout_result *out)
{
    double low, high;
    struct table *t = mem_zalloc(sizeof(*t));
    *out = (struct holdout_result){0};
    out->cold_ms = out->cached_ms = out->saved_ms = out->low = out->high = (double)NAN;
    load(h, t, out);
    if (t->n_groups) {
        const struct contrast k = compare(t);
        const double error = sqrt(k.variance);
        const int resamples = resamples_for(out->n_cold + out->n_cached);
        out->cold_ms = k.mean[COLD];
        out->cached_ms = k.mean[CACHED];
        out->saved_ms = out->low = out->high = k.difference;
        if (bootstrap(t, k.difference, resamples, &low, &high)) {
            out->low = k.difference - high * error;
            out->high = k.difference - low * error;
        }
    }
    free(t);
}

void holdout_result(struct holdout *h, struct holdout_result *out)
{
    if (h->stale)
        work_out(h, &h->last);
    h->stale = false;
    *out = h->last;
}
