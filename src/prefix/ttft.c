/* SPDX-License-Identifier: MIT */

/*
 * Least squares with a, b, c ≥ 0. The optimum of such a problem is the plain solution
 * over those coefficients that are not zero; with three of them there are seven sets to
 * try, so they are all tried: the best one whose coefficients are all positive wins.
 *
 * Where the samples cannot tell the coefficients apart (all prompts of one length), the
 * sets fit equally well. The first of equals in `supports` wins: the cost is put on b,
 * which is what most of it is.
 *
 * Columns are scaled to a maximum of 1 before anything is multiplied: with 100 000 tokens
 * the raw ones differ by ten orders of magnitude.
 */

#include "prefix/ttft.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 8 /* of refitting; the set of outliers settles in two or three */
#define CUT 3.0  /* median deviations */
#define NORMAL_MEDIAN 0.6745 /* median deviation of a normal distribution of sigma 1 */
#define SINGULAR 1e-9        /* what is left of a scaled column beside the ones before */
#define BETTER 1e-6          /* a larger set must leave this part of the error less */
#define LIMIT 1e9            /* tokens, or ms */
#define LEAST 1e-3           /* of the longest predicted time */
#define PRIOR 1.0            /* samples' worth, see noise_of() */
#define NOISE_ROUNDS 4
#define EXACT 1e-18 /* variance of samples without noise, of their square */

enum { A = 1, B = 2, C = 4 }; /* bit i stands for coefficient i */

static const unsigned supports[] = {B, A | B, B | C, A | B | C, A, C, A | C};

struct system { /* of equations: the samples that take part, scaled */
    size_t n;
    double x[TTFT_KEEP][3], y[TTFT_KEEP];
    double w[TTFT_KEEP]; /* weight: one by the variance of its noise */
    bool in[TTFT_KEEP];
    double scale[3];
    double gram[3][3], moment[3];
    double rounding; /* an error below this is none */
};

struct solution {
    double beta[3];
    double inverse[3][3]; /* of the gram matrix over the support, zeros elsewhere */
    double error;         /* sum of squares */
    int params;
};

static void row_of(double reused, double fresh, double x[3])
{
    const double all = reused + fresh;
    x[0] = 1;
    x[1] = fresh;
    x[2] = all * all - reused * reused;
}

static double dot(const double a[3], const double b[3])
{
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

static void system_load(struct system *s, const struct ttft_model *m)
{
    memset(s, 0, sizeof(*s));
    s->n = m->n < TTFT_KEEP ? (size_t)m->n : TTFT_KEEP;
    for (size_t i = 0; i < s->n; i++) {
        row_of(m->v[i].reused, m->v[i].fresh, s->x[i]);
        s->y[i] = m->v[i].ms;
        s->in[i] = true;
        s->w[i] = 1;
        for (int j = 0; j < 3; j++)
            s->scale[j] = fmax(s->scale[j], s->x[i][j]);
    }
    for (size_t i = 0; i < s->n; i++)
        for (int j = 0; j < 3; j++)
            s->x[i][j] /= s->scale[j];
}

static void system_sum(struct system *s)
{
    memset(s->gram, 0, sizeof(s->gram));
    memset(s->moment, 0, sizeof(s->moment));
    s->rounding = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (!s->in[i])
            continue;
        s->rounding += 1e-24 * s->w[i] * s->y[i] * s->y[i];
        for (int j = 0; j < 3; j++) {
            s->moment[j] += s->w[i] * s->x[i][j] * s->y[i];
            for (int k = 0; k < 3; k++)
                s->gram[j][k] += s->w[i] * s->x[i][j] * s->x[i][k];
        }
    }
}

/* Inverse of the gram matrix over `support` (Gauss-Jordan; it is symmetric and positive,
 * so the pivots are on the diagonal). False where the columns are not independent. */
static bool invert(const struct system *s, unsigned support, double inverse[3][3])
{
    double w[3][6] = {{0}};
    for (int j = 0; j < 3; j++) {
        for (int k = 0; k < 3; k++)
            if (support >> j & support >> k & 1)
                w[j][k] = s->gram[j][k];
        w[j][3 + j] = 1;
    }
    for (int p = 0; p < 3; p++) {
        if (!(support >> p & 1))
            continue;
        if (w[p][p] <= SINGULAR * s->gram[p][p])
            return false;
        const double pivot = w[p][p];
        for (int k = 0; k < 6; k++)
            w[p][k] /= pivot;
        for (int j = 0; j < 3; j++) {
            const double factor = w[j][p];
            for (int k = 0; j != p && k < 6; k++)
                w[j][k] -= factor * w[p][k];
        }
    }
    for (int j = 0; j < 3; j++)
        for (int k = 0; k < 3; k++)
            inverse[j][k] = support >> j & support >> k & 1 ? w[j][3 + k] : 0;
    return true;
}

/* The plain solution over one set of coefficients. False where the samples cannot tell
 * them apart, or, if they must be positive, where one is not. */
static bool solve(const struct system *s, unsigned support, bool positive,
                  struct solution *out)
{
    *out = (struct solution){.params = __builtin_popcount(support)};
    if (!invert(s, support, out->inverse))
        return false;
    for (int j = 0; j < 3; j++) {
        out->beta[j] = dot(out->inverse[j], s->moment);
        if (positive && support >> j & 1 && out->beta[j] <= 0)
            return false;
    }
    for (size_t i = 0; i < s->n; i++) {
        const double r = s->y[i] - dot(s->x[i], out->beta);
        out->error += s->in[i] ? s->w[i] * r * r : 0;
    }
    return true;
}

static struct solution solve_best(struct system *s)
{
    struct solution best = {.params = 0};
    system_sum(s);
    for (size_t i = 0; i < sizeof(supports) / sizeof(*supports); i++) {
        struct solution next;
        if (solve(s, supports[i], true, &next) &&
            (!best.params || next.error < best.error * (1 - BETTER) - s->rounding))
            best = next;
    }
    assert(best.params); /* times are positive, so a alone always fits */
    return best;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Decides anew which samples take part. False where nothing changed, or where so many
 * would be left out that they are no outliers. */
static bool leave_out(struct system *s, const struct solution *fit)
{
    double r[TTFT_KEEP], sorted[TTFT_KEEP];
    bool in[TTFT_KEEP];
    size_t kept = 0;
    for (size_t i = 0; i < s->n; i++)
        sorted[i] = r[i] = sqrt(s->w[i]) * fabs(s->y[i] - dot(s->x[i], fit->beta));
    qsort(sorted, s->n, sizeof(*sorted), by_value);
    const double limit = CUT / NORMAL_MEDIAN * sorted[s->n / 2];
    for (size_t i = 0; i < s->n; i++) {
        /* exact samples differ by rounding */
        in[i] = r[i] <= limit + 1e-9 * sqrt(s->w[i]) * s->y[i];
        kept += in[i];
    }
    const bool changed = memcmp(in, s->in, s->n * sizeof(*in)) != 0;
    if (!changed || kept < TTFT_MIN || kept < s->n / 2)
        return false;
    memcpy(s->in, in, s->n * sizeof(*in));
    return true;
}

/* 97.5 % quantile of Student's t: an expansion around the normal quantile (Abramowitz and
 * Stegun 26.7.5), 3 % low with 2 degrees of freedom, 1 % with 3, exact with many. */
static double student95(double freedom)
{
    const double z = 1.959964, z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z;
    const double g1 = (z3 + z) / 4;
    const double g2 = (5 * z5 + 16 * z3 + 3 * z) / 96;
    const double g3 = (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / 384;
    return z + g1 / freedom + g2 / (freedom * freedom) +
           g3 / (freedom * freedom * freedom);
}

static void note_range(struct ttft_model *m, const struct system *s)
{
    m->max_tokens = m->max_fresh = 0;
    m->min_fresh = INFINITY;
    for (size_t i = 0; i < s->n; i++) {
        if (!s->in[i])
            continue;
        m->max_tokens = fmax(m->max_tokens, m->v[i].reused + m->v[i].fresh);
        m->max_fresh = fmax(m->max_fresh, m->v[i].fresh);
        m->min_fresh = fmin(m->min_fresh, m->v[i].fresh);
    }
}

/* A time that is predicted, but no less than `least`, which keeps weights finite. */
static double time_of(const double x[3], const double beta[3], double least)
{
    return fmax(dot(x, beta), least);
}

static struct solution solve_robust(struct system *s)
{
    struct solution best = solve_best(s);
    for (int i = 0; i < ROUNDS && leave_out(s, &best); i++)
        best = solve_best(s);
    return best;
}

/* The variance of a measurement of `ms`, for a sigma of 1. */
static double noise_at(const struct ttft_noise *v, double ms)
{
    return v->fixed + v->relative * ms * ms;
}

/* Weighs the samples by it. */
static void weigh(struct system *s, const struct solution *fit,
                  const struct ttft_noise *v, double least)
{
    for (size_t i = 0; i < s->n; i++)
        s->w[i] = 1 / noise_at(v, time_of(s->x[i], fit->beta, least));
}

/*
 * Noise from residuals: least squares of r² over 1 and t², weighted by what v says of
 * them (the variance of r² is in proportion to the square of its mean). Residuals beyond
 * three deviations count as three. Both terms are kept ≥ 0, and half of what a handful of
 * samples would say is put on each, or a few samples could say that there is no noise.
 */
static struct ttft_noise noise_of(const struct system *s, const struct solution *fit,
                                  const struct ttft_noise *v, double least)
{
    double g[2][2] = {{0}}, m[2] = {0};
    for (size_t i = 0; i < s->n; i++) {
        const double t = time_of(s->x[i], fit->beta, least), now = noise_at(v, t);
        const double off = s->y[i] - dot(s->x[i], fit->beta);
        const double x[2] = {v->fixed / now, v->relative * t * t / now};
        const double r = fmin(off * off / now, CUT * CUT);
        for (int j = 0; j < 2; j++) {
            m[j] += x[j] * r;
            for (int k = 0; k < 2; k++)
                g[j][k] += x[j] * x[k];
        }
    }
    for (int j = 0; j < 2; j++) {
        g[j][j] += PRIOR;
        m[j] += PRIOR;
    }
    const double det = g[0][0] * g[1][1] - g[0][1] * g[1][0];
    double fixed = (m[0] * g[1][1] - m[1] * g[0][1]) / det;
    double relative = (m[1] * g[0][0] - m[0] * g[1][0]) / det;
    if (fixed < 0) {
        fixed = 0;
        relative = m[1] / g[1][1];
    } else if (relative < 0) {
        relative = 0;
        fixed = m[0] / g[0][0];
    }
    return (struct ttft_noise){fixed * v->fixed + EXACT * least * least,
                               relative * v->relative};
}

/* Where the search begins: as much of one kind as of the other. */
static struct ttft_noise first_noise(const struct system *s, const struct solution *fit)
{
    double t2 = 0;
    for (size_t i = 0; i < s->n; i++)
        t2 += pow(dot(s->x[i], fit->beta), 2) / (double)s->n;
    const double r2 = fit->error / (double)s->n + EXACT * t2;
    return (struct ttft_noise){r2 / 2, r2 / 2 / t2};
}

static struct ttft_fit fit_of(const struct system *s, const struct solution *best)
{
    struct ttft_fit f = {.sigma = 0};
    size_t used = 0;
    for (size_t i = 0; i < s->n; i++)
        used += s->in[i];
    const double freedom = (double)used - best->params;
    assert(freedom >= 2); /* TTFT_MIN samples and three coefficients */
    f.sigma = sqrt(best->error / freedom);
    f.t95 = student95(freedom);
    for (int j = 0; j < 3; j++) {
        f.beta[j] = best->beta[j] / s->scale[j];
        for (int k = 0; k < 3; k++)
            f.spread[j][k] = best->inverse[j][k] / (s->scale[j] * s->scale[k]);
    }
    return f;
}

static void fit(struct ttft_model *m)
{
    struct system s;
    struct solution any;
    system_load(&s, m);
    struct solution best = solve_robust(&s);
    m->least = 0;
    for (size_t i = 0; i < s.n; i++)
        m->least = fmax(m->least, LEAST * dot(s.x[i], best.beta));
    m->noise = first_noise(&s, &best);
    for (int i = 0; i < NOISE_ROUNDS; i++) {
        m->noise = noise_of(&s, &best, &m->noise, m->least);
        weigh(&s, &best, &m->noise, m->least);
        best = solve_robust(&s);
    }
    m->kept = fit_of(&s, &best);
    m->free = solve(&s, A | B | C, false, &any) ? fit_of(&s, &any) : m->kept;
    m->a = m->kept.beta[0];
    m->b = m->kept.beta[1];
    m->c = m->kept.beta[2];
    m->sigma = m->kept.sigma;
    note_range(m, &s);
    m->fitted = true;
    m->stale = false;
}

bool ttft_is_sample(double reused, double fresh, double ms)
{
    /* comparisons with a NAN are false */
    return reused >= 0 && reused < LIMIT && fresh >= 1 && fresh < LIMIT && ms > 0 &&
           ms < LIMIT;
}

void ttft_add(struct ttft_model *m, double reused, double fresh, double ms)
{
    if (!ttft_is_sample(reused, fresh, ms))
        return;
    m->v[m->n++ % TTFT_KEEP] = (struct ttft_sample){reused, fresh, ms};
    m->stale = true;
}

/* Variance of a measurement, for a sigma of 1. */
static double variance_of(const struct ttft_model *m, const struct ttft_fit *f,
                          const double x[3])
{
    return noise_at(&m->noise, time_of(x, f->beta, m->least));
}

/* Variance that the coefficients add, for a sigma of 1. */
static double variance_of_fit(const struct ttft_fit *f, const double x[3])
{
    double variance = 0;
    for (int j = 0; j < 3; j++)
        variance += x[j] * dot(f->spread[j], x);
    return fmax(variance, 0);
}

static bool is_fitted(struct ttft_model *m)
{
    if (m->n < TTFT_MIN)
        return false;
    if (m->stale)
        fit(m);
    return true;
}

bool ttft_predict(struct ttft_model *m, double reused, double fresh,
                  struct ttft_estimate *out)
{
    double x[3];
    if (!is_fitted(m))
        return false;
    const struct ttft_fit *f = &m->kept;
    row_of(reused, fresh, x);
    const double half =
        f->t95 * f->sigma * sqrt(variance_of(m, f, x) + variance_of_fit(f, x));
    out->ms = dot(f->beta, x);
    out->low = fmax(0, out->ms - half);
    out->high = out->ms + half;
    out->extrapolated =
        reused + fresh > m->max_tokens || fresh > m->max_fresh || fresh < m->min_fresh;
    return true;
}

/*
 * Coefficients that are kept ≥ 0 are biased where the true ones are close to 0, and the
 * uncertainty of one that was left out is not known. For one prompt that is nothing
 * beside the noise, for a sum of thousands it is all there is: the free fit has neither.
 */
bool ttft_predict_sum(struct ttft_model *m, const double *lengths, size_t n,
                      struct ttft_sum *out)
{
    double x[3], sum[3] = {0}, variance = 0;
    if (!is_fitted(m))
        return false;
    const struct ttft_fit *f = &m->free;
    for (size_t i = 0; i < n; i++) {
        row_of(0, lengths[i], x);
        variance += variance_of(m, f, x);
        for (int j = 0; j < 3; j++)
            sum[j] += x[j];
    }
    out->ms = dot(f->beta, sum);
    out->half = f->t95 * f->sigma * sqrt(variance + variance_of_fit(f, sum));
    return true;
}

bool ttft_predict_gain(struct ttft_model *m, const struct ttft_sample *v,
                       const double *more, size_t n, struct ttft_sum *out)
{
    double now[3], then[3], sum[3] = {0}, variance = 0;
    if (!is_fitted(m))
        return false;
    const struct ttft_fit *f = &m->free;
    for (size_t i = 0; i < n; i++) {
        row_of(v[i].reused, v[i].fresh, now);
        row_of(v[i].reused + more[i], v[i].fresh - more[i], then);
        variance += more[i] > 0 ? variance_of(m, f, now) + variance_of(m, f, then) : 0;
        for (int j = 0; j < 3; j++)
            sum[j] += now[j] - then[j];
    }
    out->ms = dot(f->beta, sum);
    out->half = f->t95 * f->sigma * sqrt(variance + variance_of_fit(f, sum));
    return true;
}
