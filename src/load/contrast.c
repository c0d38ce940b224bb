/* SPDX-License-Identifier: MIT */
#include "load/contrast.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/draw.h"

#define LEAST_RESAMPLES 200
#define MOST_DRAWS 40000000 /* of values, in all resamples together: some 100 ms */

enum { A, B, SETS };

struct set {
    double *v;
    uint32_t *rank; /* place of v[i] among the sorted */
    double *sorted;
    uint32_t *times; /* how often the one of each rank was drawn */
    size_t n;
};

struct figures {
    double mean[SETS], median[SETS];
    double variance; /* of the difference of means */
};

/* ---- sets -------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    const double x = **(const double *const *)a, y = **(const double *const *)b;
    return (x > y) - (x < y);
}

static void init_set(struct set *s, size_t room)
{
    s->n = 0;
    s->v = mem_array(room + 1, sizeof(*s->v));
    s->sorted = mem_array(room + 1, sizeof(*s->sorted));
    s->rank = mem_array(room + 1, sizeof(*s->rank));
    s->times = mem_array(room + 1, sizeof(*s->times));
}

static void free_set(struct set *s)
{
    free(s->v);
    free(s->sorted);
    free(s->rank);
    free(s->times);
}

static void sort_set(struct set *s)
{
    const double **at = mem_array(s->n + 1, sizeof(*at));
    for (size_t i = 0; i < s->n; i++)
        at[i] = &s->v[i];
    qsort(at, s->n, sizeof(*at), by_value);
    for (size_t i = 0; i < s->n; i++) {
        s->sorted[i] = *at[i];
        s->rank[at[i] - s->v] = (uint32_t)i;
        s->times[i] = 1; /* as it is: each value once */
    }
    free(at);
}

static void load(struct set set[SETS], const double *a, size_t n_a, const double *b,
                 size_t n_b, bool paired)
{
    for (size_t i = 0; i < n_a; i++)
        if (!isnan(a[i]) && !(paired && isnan(b[i])))
            set[A].v[set[A].n++] = a[i];
    for (size_t i = 0; i < n_b; i++)
        if (!isnan(b[i]) && !(paired && isnan(a[i])))
            set[B].v[set[B].n++] = b[i];
    sort_set(&set[A]);
    sort_set(&set[B]);
}

/* ---- figures of what was drawn ----------------------------------------------------- */

static double mean_of(const struct set *s)
{
    double sum = 0;
    for (size_t i = 0; i < s->n; i++)
        sum += s->times[i] * s->sorted[i];
    return sum / (double)s->n;
}

static double median_of(const struct set *s)
{
    const size_t low = (s->n + 1) / 2, high = s->n / 2 + 1;
    double at_low = 0;
    size_t seen = 0;
    for (size_t i = 0; i < s->n; i++) {
        const size_t before = seen;
        seen += s->times[i];
        if (before < low && seen >= low)
            at_low = s->sorted[i];
        if (seen >= high)
            return (at_low + s->sorted[i]) / 2;
    }
    return at_low;
}

static double variance_of_mean(const struct set *s, double mean)
{
    double squares = 0;
    for (size_t i = 0; i < s->n; i++)
        squares += s->times[i] * (s->sorted[i] - mean) * (s->sorted[i] - mean);
    return squares / ((double)s->n * (double)(s->n - 1));
}

/* Of pairs that were drawn: times of a pair are those of its value in A. */
static double variance_of_pairs(const struct set set[SETS], double difference)
{
    double squares = 0;
    for (size_t i = 0; i < set[A].n; i++) {
        const double d = set[B].v[i] - set[A].v[i] - difference;
        squares += set[A].times[set[A].rank[i]] * d * d;
    }
    return squares / ((double)set[A].n * (double)(set[A].n - 1));
}

static struct figures figures_of(const struct set set[SETS], bool paired)
{
    struct figures f;
    for (int k = 0; k < SETS; k++) {
        f.mean[k] = mean_of(&set[k]);
        f.median[k] = median_of(&set[k]);
    }
    f.variance = paired ? variance_of_pairs(set, f.mean[B] - f.mean[A])
                        : variance_of_mean(&set[A], f.mean[A]) +
                              variance_of_mean(&set[B], f.mean[B]);
    return f;
}

/* ---- bootstrap --------------------------------------------------------------------- */

static void resample(struct set set[SETS], bool paired, uint64_t *state)
{
    for (int k = 0; k < SETS; k++)
        memset(set[k].times, 0, set[k].n * sizeof(*set[k].times));
    for (int k = 0; k < (paired ? 1 : SETS); k++)
        for (size_t i = 0; i < set[k].n; i++) {
            const uint32_t j = draw_below(state, (uint32_t)set[k].n);
            set[k].times[set[k].rank[j]]++;
            if (paired)
                set[B].times[set[B].rank[j]]++;
        }
}

static int by_number(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void bounds(double *v, size_t n, double *low, double *high)
{
    qsort(v, n, sizeof(*v), by_number);
    *low = v[(size_t)(0.025 * (double)(n - 1))];
    *high = v[(size_t)(0.975 * (double)(n - 1) + 0.5)];
}

static size_t resamples_for(size_t values)
{
    const size_t n = MOST_DRAWS / (values + 1);
    return n < LEAST_RESAMPLES      ? LEAST_RESAMPLES
           : n > CONTRAST_RESAMPLES ? CONTRAST_RESAMPLES
                                    : n;
}

static void fill(struct contrast *c, double a, double b)
{
    c->a = a;
    c->b = b;
    c->difference = c->low = c->high = b - a;
}

static void work_out(struct set set[SETS], bool paired, struct contrast_result *out)
{
    double t[CONTRAST_RESAMPLES], m[CONTRAST_RESAMPLES], low, high;
    const struct figures all = figures_of(set, paired);
    const size_t resamples = resamples_for(set[A].n + set[B].n);
    size_t n = 0;
    uint64_t state = 1;
    fill(&out->mean, all.mean[A], all.mean[B]);
    fill(&out->median, all.median[A], all.median[B]);
    for (size_t i = 0; i < resamples; i++) {
        resample(set, paired, &state);
        const struct figures f = figures_of(set, paired);
        m[i] = f.median[B] - f.median[A];
        if (f.variance > 0)
            t[n++] = (f.mean[B] - f.mean[A] - out->mean.difference) / sqrt(f.variance);
    }
    bounds(m, resamples, &out->median.low, &out->median.high);
    if (n > resamples / 2) { /* else nearly all values are equal */
        bounds(t, n, &low, &high);
        out->mean.low = out->mean.difference - high * sqrt(all.variance);
        out->mean.high = out->mean.difference - low * sqrt(all.variance);
    }
    out->mean.seen = out->mean.low > 0 || out->mean.high < 0;
    out->median.seen = out->median.low > 0 || out->median.high < 0;
}

void contrast_of(const double *a, size_t n_a, const double *b, size_t n_b, bool paired,
                 struct contrast_result *out)
{
    struct set set[SETS];
    *out = (struct contrast_result){0};
    init_set(&set[A], n_a);
    init_set(&set[B], n_b);
    load(set, a, n_a, b, n_b, paired);
    out->n_a = set[A].n;
    out->n_b = set[B].n;
    out->known = out->n_a >= CONTRAST_MIN && out->n_b >= CONTRAST_MIN;
    if (out->known)
        work_out(set, paired, out);
    free_set(&set[A]);
    free_set(&set[B]);
}
