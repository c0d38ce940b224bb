/* SPDX-License-Identifier: MIT */
#include "index_bounds.h"

/*
 * Between two anchors tokens grow with weight:
 *
 *     tokens
 *       tb ┤                          ╱ b       weight: text bytes, and PART_WEIGHT for
 *          │                  high ╱            each end of a part (templates put a few
 *          │               ╱  ╱  ╱              tokens there, also where texts are short)
 *          │           ╱  ╱ low
 *       ta ┤ a ╱  ╱                             margin: a share of the distance to the
 *          └───┴──────────────────┴── weight    nearer anchor, at least MARGIN_TOKENS
 *
 * A medium between them breaks the proportion: it may be worth any number of tokens. The
 * text on this side of it is then converted with the usual density and a wider margin.
 */

#include <assert.h>
#include <math.h>

#define PART_WEIGHT 16.0
#define MARGIN_TOKENS 24.0
#define MARGIN_SHARE 0.15
#define MARGIN_GUESS 0.35 /* where nothing was counted behind the boundary */
#define SPARSE 0.6        /* of the usual density, next to media */
#define DENSE 1.6

/* One boundary, seen from the anchors around it. */
struct spot {
    const struct index_anchor *a, *b;
    double before, after; /* weight since a, until b */
    size_t media_before, media_after;
};

static double weight_of(const struct piece *v, size_t i)
{
    const uint64_t start = i ? v[i - 1].end_bytes : 0;
    return (double)(v[i].end_bytes - start) + (v[i].ends_part ? PART_WEIGHT : 0);
}

double index_bounds_weight(const struct piece *v, size_t from, size_t to)
{
    double sum = 0;
    for (size_t i = from; i < to; i++)
        sum += weight_of(v, i);
    return sum;
}

static void by_proportion(const struct spot *s, double *low, double *high)
{
    const double grown = s->b->tokens - s->a->tokens;
    const double since = grown * s->before / (s->before + s->after);
    const double nearest = s->b->guess ? since : fmin(since, grown - since);
    const double slack = since < grown - since ? s->a->slack : s->b->slack;
    const double share = s->b->guess ? MARGIN_GUESS : MARGIN_SHARE;
    const double margin = fmax(MARGIN_TOKENS, share * nearest) + slack;
    *low = s->a->tokens + since - margin;
    *high = s->a->tokens + since + margin;
}

static void by_density(const struct spot *s, double density, double *low, double *high)
{
    const double before = s->before * density, after = s->after * density;
    const double start = s->a->tokens, end = s->b->tokens;
    *low = start + SPARSE * before;
    *high = end - SPARSE * after;
    if (!s->media_before)
        *high = fmin(*high, start + DENSE * before);
    if (!s->media_after)
        *low = fmax(*low, end - DENSE * after);
    *low -= MARGIN_TOKENS + s->a->slack;
    *high += MARGIN_TOKENS + s->b->slack;
}

static uint32_t whole(double tokens)
{
    return tokens <= 0 ? 0 : tokens >= UINT32_MAX ? UINT32_MAX : (uint32_t)tokens;
}

/* Never outside the two anchors, which bound everything between them. */
static struct index_bounds bounds_at(const struct spot *s, double density)
{
    double low, high;
    if (s->media_before + s->media_after)
        by_density(s, density, &low, &high);
    else
        by_proportion(s, &low, &high);
    const double least = s->a->tokens - s->a->slack;
    const double most = s->b->guess ? UINT32_MAX : s->b->tokens + s->b->slack;
    high = fmin(fmax(high, least), most);
    low = fmin(fmax(low, least), high);
    return (struct index_bounds){whole(floor(low)), whole(ceil(high))};
}

static size_t count_media(const struct piece *v, size_t from, size_t to)
{
    size_t n = 0;
    for (size_t i = from; i < to; i++)
        n += v[i].is_media;
    return n;
}

/* The boundary at an anchor belongs to the segment before it. Its own count is not exact
 * either, which the least margin sees to. */
static void estimate_segment(const struct index_measure *m, const struct index_anchor *a,
                             const struct index_anchor *b, struct index_bounds *out)
{
    struct spot s = {
        .a = a,
        .b = b,
        .after = index_bounds_weight(m->v, a->at, b->at),
        .media_after = count_media(m->v, a->at, b->at),
    };
    assert(a->at <= b->at && a->tokens <= b->tokens);
    for (size_t i = a->at; i < b->at; i++) {
        const double w = weight_of(m->v, i);
        s.before += w;
        s.after = fmax(0, s.after - w);
        s.media_before += m->v[i].is_media;
        s.media_after -= m->v[i].is_media;
        out[i] = bounds_at(&s, m->density);
    }
}

void index_bounds_estimate(const struct index_measure *m, struct index_bounds *out)
{
    assert(m->n_anchors >= 2 && m->anchors[0].at == 0);
    for (size_t i = 1; i < m->n_anchors; i++)
        estimate_segment(m, &m->anchors[i - 1], &m->anchors[i], out);
}

/* The narrower ones were estimated nearer to a count, or confirmed. */
struct index_bounds index_bounds_merge(struct index_bounds old, struct index_bounds new)
{
    const struct index_bounds both = {
        .low = old.low > new.low ? old.low : new.low,
        .high = old.high < new.high ? old.high : new.high,
    };
    if (both.low <= both.high)
        return both;
    return old.high - old.low < new.high - new.low ? old : new;
}

void index_bounds_order(struct index_bounds *b, size_t n)
{
    for (size_t i = n; i-- > 0;) {
        if (i + 1 < n && b[i].high > b[i + 1].high)
            b[i].high = b[i + 1].high;
        if (b[i].low > b[i].high)
            b[i].low = b[i].high;
    }
    for (size_t i = 1; i < n; i++)
        if (b[i].low < b[i - 1].low)
            b[i].low = b[i - 1].low;
}
