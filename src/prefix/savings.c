/* SPDX-License-Identifier: MIT */
#include "prefix/savings.h"

#include <math.h>
#include <string.h>

/*
 * A sum over requests and not a sum of intervals: the error of a model is common to all
 * requests that it judges, so it grows with their number, their noise with its root.
 */

static double longest_prompt(const struct savings *s)
{
    double longest = 0;
    for (uint32_t i = 0; i < s->n; i++)
        longest = fmax(longest, s->v[i].reused + s->v[i].fresh);
    return longest;
}

static void fit_block(struct savings *s)
{
    const double half = longest_prompt(s) / 2;
    uint32_t n_long = 0;
    if (!s->stale)
        return;
    s->stale = false;
    memset(&s->model, 0, sizeof(s->model));
    for (uint32_t i = 0; i < s->n; i++) {
        const struct savings_entry *e = &s->v[i];
        ttft_add(&s->model, e->reused, e->fresh, e->ms);
        n_long += e->fresh >= half;
    }
    for (uint32_t i = 0; i < s->n_earlier && n_long < SAVINGS_LONG; i++) {
        const struct savings_entry *e = &s->earlier[i];
        ttft_add(&s->model, e->reused, e->fresh, e->ms);
    }
}

/* True where the model knows cold prompts of this length. */
static bool is_known(struct ttft_model *m, double tokens)
{
    struct ttft_estimate e;
    return ttft_predict(m, 0, tokens, &e) && !e.extrapolated;
}

/* Judges the entries of the block under way that have this source. */
static struct savings_tally judge(struct savings *s, enum savings_source source)
{
    struct savings_tally t = {0};
    struct ttft_sum cold;
    double lengths[SAVINGS_BLOCK], took = 0;
    fit_block(s);
    for (uint32_t i = 0; i < s->n; i++) {
        const struct savings_entry *e = &s->v[i];
        const bool asked =
            source == SAVINGS_COLD ? e->source != SAVINGS_COLD : e->source == source;
        if (!asked)
            continue;
        if (!is_known(&s->model, e->reused + e->fresh)) {
            t.unjudged++;
            continue;
        }
        lengths[t.n++] = e->reused + e->fresh;
        took += e->ms + e->more_ms;
    }
    if (t.n && ttft_predict_sum(&s->model, lengths, (size_t)t.n, &cold)) {
        t.ms = cold.ms - took;
        t.square = cold.half * cold.half;
    }
    return t;
}

static void add_tally(struct savings_tally *to, const struct savings_tally *t)
{
    to->n += t->n;
    to->unjudged += t->unjudged;
    to->ms += t->ms;
    to->square += t->square;
}

/* The last long prefills of a block that ends, for those that have none. */
static void keep_long(struct savings *s)
{
    const double half = longest_prompt(s) / 2;
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->v[i].fresh < half)
            continue;
        if (s->n_earlier == SAVINGS_LONG)
            memmove(s->earlier, s->earlier + 1, --s->n_earlier * sizeof(*s->earlier));
        s->earlier[s->n_earlier++] = s->v[i];
    }
}

static void close_block(struct savings *s)
{
    for (int source = 0; source < SAVINGS_SOURCES; source++) {
        const struct savings_tally t = judge(s, (enum savings_source)source);
        add_tally(&s->closed[source], &t);
    }
    keep_long(s);
    s->n = 0;
}

void savings_add(struct savings *s, enum savings_source source, double reused,
                 double fresh, double ms, double more_ms)
{
    if (!ttft_is_sample(reused, fresh, ms) || !(more_ms >= 0 && isfinite(more_ms)))
        return;
    if (s->n == SAVINGS_BLOCK)
        close_block(s);
    s->v[s->n++] = (struct savings_entry){reused, fresh, ms, more_ms, source};
    s->stale = true;
}

static void set_interval(struct savings_total *t, double ms, double half)
{
    t->ms = t->n ? ms : (double)NAN;
    t->low = t->n ? ms - half : (double)NAN;
    t->high = t->n ? ms + half : (double)NAN;
}

void savings_total(struct savings *s, enum savings_source source,
                   struct savings_total *out)
{
    struct savings_tally t = judge(s, source);
    add_tally(&t, &s->closed[source]);
    *out = (struct savings_total){.n = t.n, .unjudged = t.unjudged};
    set_interval(out, t.ms, sqrt(t.square));
}

void savings_total_add(struct savings_total *sum, const struct savings_total *more)
{
    const double a = sum->n ? (sum->high - sum->low) / 2 : 0;
    const double b = more->n ? (more->high - more->low) / 2 : 0;
    const double ms = (sum->n ? sum->ms : 0) + (more->n ? more->ms : 0);
    sum->n += more->n;
    sum->unjudged += more->unjudged;
    set_interval(sum, ms, sqrt(a * a + b * b));
}
