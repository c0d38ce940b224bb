/* SPDX-License-Identifier: MIT */
#include "lab_math.h"

/*
 * Attention of four positions at a time: each lane is one of them, and all read the same
 * keys and values one after the other.
 *
 *     scratch, a row a key:  q0  q1  q2  q3
 *                  key 0      s   s   s   s
 *                  key 1      s   s   s   s
 *                    …        s   s   s   s
 *                  own keys   s   s   s   s      lane i sees its own key and those
 *                             -   s   s   s      before it; "-" becomes an exact zero
 *                             -   -   s   s
 *                             -   -   -   s
 *
 * A lane's sums run over its keys from the first to the last, and zeros behind that leave
 * a sum as it is to the last bit: so a position gets the same result alone as in any
 * group. Lanes without a position are computed along and thrown away.
 */

#include <assert.h>
#include <math.h>
#include <string.h>

#define MAX_DIM 256
#define NEVER (-1e30f) /* its exponential is 0 */

/* One head, up to LAB_LANES positions. */
struct group {
    const float *k, *v;
    size_t width, dim;
    size_t first, n;    /* position of lane 0; lanes in use */
    const lab_lanes *q; /* dim × lanes, scaled */
    lab_lanes *s, sum;  /* scores, then weights; their sum */
    float *out;         /* row of lane 0 */
};

static size_t keys(const struct group *g)
{
    return g->first + g->n;
}

/* Scores of four keys; those behind the last are of some key, and masked later. */
static void score_four(const struct group *g, size_t at)
{
    const float *k[4];
    lab_lanes a = {0}, b = {0}, c = {0}, d = {0};
    for (size_t i = 0; i < 4; i++)
        k[i] = g->k + (at + i < keys(g) ? at + i : at) * g->width;
    for (size_t i = 0; i < g->dim; i++) {
        const lab_lanes q = g->q[i];
        a += k[0][i] * q;
        b += k[1][i] * q;
        c += k[2][i] * q;
        d += k[3][i] * q;
    }
    g->s[at] = a;
    g->s[at + 1] = b;
    g->s[at + 2] = c;
    g->s[at + 3] = d;
}

static void hide_the_future(const struct group *g)
{
    for (size_t key = g->first + 1; key < keys(g); key++)
        for (size_t lane = 0; lane < key - g->first; lane++)
            g->s[key][lane] = NEVER;
}

/* Weights that do not yet add up to 1; `sum` is what they add up to. */
static void soften(struct group *g)
{
    const size_t n = keys(g);
    lab_lanes most = g->s[0];
    for (size_t key = 1; key < n; key++)
        most = lab_lanes_max(most, g->s[key]);
    for (size_t key = 0; key < n; key++)
        g->s[key] -= most;
    lab_math_exp(g->s, n);
    g->sum = (lab_lanes){0};
    for (size_t key = 0; key < n; key++)
        g->sum += g->s[key];
}

/* Four elements of the result, for all lanes. */
static void gather_four(const struct group *g, size_t at)
{
    lab_lanes a = {0}, b = {0}, c = {0}, d = {0};
    const float *v = g->v + at;
    for (size_t key = 0; key < keys(g); key++, v += g->width) {
        const lab_lanes p = g->s[key];
        a += v[0] * p;
        b += v[1] * p;
        c += v[2] * p;
        d += v[3] * p;
    }
    a /= g->sum;
    b /= g->sum;
    c /= g->sum;
    d /= g->sum;
    for (size_t lane = 0; lane < g->n; lane++) {
        float *out = g->out + lane * g->width + at;
        out[0] = a[lane];
        out[1] = b[lane];
        out[2] = c[lane];
        out[3] = d[lane];
    }
}

static void attend(struct group *g)
{
    for (size_t key = 0; key < keys(g); key += 4)
        score_four(g, key);
    hide_the_future(g);
    soften(g);
    for (size_t i = 0; i < g->dim; i += 4)
        gather_four(g, i);
}

void lab_attention(const struct lab_attention *a)
{
    const size_t dim = a->width / a->heads;
    const float scale = 1.0f / sqrtf((float)dim);
    lab_lanes q[MAX_DIM];
    assert(dim <= MAX_DIM && dim % 4 == 0);
    for (size_t at = 0; at < a->n; at += LAB_LANES)
        for (size_t head = 0; head < a->heads; head++) {
            const size_t left = a->n - at, offset = head * dim;
            struct group g = {.k = a->k + offset,
                              .v = a->v + offset,
                              .width = a->width,
                              .dim = dim,
                              .first = a->first + at,
                              .n = left < LAB_LANES ? left : LAB_LANES,
                              .q = q,
                              .s = (lab_lanes *)a->scratch,
                              .out = a->out + at * a->width + offset};
            memset(q, 0, dim * sizeof(*q));
            for (size_t lane = 0; lane < g.n; lane++)
                for (size_t i = 0; i < dim; i++)
                    q[i][lane] = scale * a->q[(at + lane) * a->q_stride + offset + i];
            attend(&g);
        }
}
