/* SPDX-License-Identifier: MIT */
#include "load/tally.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

void tally_free(struct tally *t)
{
    free(t->samples);
    for (int k = 0; k < KINDS; k++)
        free(t->kind_gaps[k]);
    *t = (struct tally){0};
}

void tally_add(struct tally *t, const struct sample *s)
{
    if (t->n == t->room) {
        t->room = t->room ? 2 * t->room : 64;
        t->samples = mem_rearray(t->samples, t->room, sizeof(*t->samples));
    }
    t->samples[t->n++] = *s;
}

struct spread *tally_gaps(struct tally *t, enum kind k)
{
    if (k != KIND_NONE && !t->kind_gaps[k])
        t->kind_gaps[k] = mem_zalloc(sizeof(*t->kind_gaps[k]));
    return t->kind_gaps[k];
}

struct tally tally_of_kind(const struct tally *t, enum kind k)
{
    struct tally out = {.begun_us = t->begun_us, .ended_us = t->ended_us};
    for (size_t i = 0; i < t->n; i++)
        if (t->samples[i].kind == k)
            tally_add(&out, &t->samples[i]);
    if (t->kind_gaps[k])
        out.gaps = *t->kind_gaps[k];
    return out;
}

static int by_index(const void *a, const void *b)
{
    const struct sample *x = a, *y = b;
    return (x->index > y->index) - (x->index < y->index);
}

void tally_sort(struct tally *t)
{
    if (t->n)
        qsort(t->samples, t->n, sizeof(*t->samples), by_index);
}

uint64_t tally_count(const struct tally *t, enum sample_outcome o)
{
    uint64_t n = 0;
    for (size_t i = 0; i < t->n; i++)
        n += t->samples[i].outcome == o;
    return n;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double *tally_values(const struct tally *t, double (*of)(const struct sample *),
                     size_t *n)
{
    double *values = mem_array(t->n + 1, sizeof(*values));
    *n = 0;
    for (size_t i = 0; i < t->n; i++) {
        const double v = of(&t->samples[i]);
        if (!isnan(v))
            values[(*n)++] = v;
    }
    qsort(values, *n, sizeof(*values), by_value);
    return values;
}

double tally_quantile(const double *sorted, size_t n, double p)
{
    if (n == 0)
        return (double)NAN;
    const size_t rank = (size_t)ceil(p * (double)n - 1e-9);
    return sorted[rank ? rank - 1 : 0];
}
