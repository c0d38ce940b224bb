/* SPDX-License-Identifier: MIT */
#include "lab_oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct weights {
    size_t width, layers, heads;
    uint64_t state;
    double *token, *position;
    struct block {
        double *norm1, *norm2; /* gains, then biases */
        double *qkv, *qkv_bias, *out, *out_bias;
        double *wide, *wide_bias, *narrow, *narrow_bias;
    } * block;
    double *last;
};

static double draw(struct weights *w)
{
    uint64_t z = w->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (double)(int64_t)(z >> 40) / 8388608.0 - 1.0;
}

static double *doubles(size_t n)
{
    return mem_array(n, sizeof(double));
}

static double *draws(struct weights *w, size_t n, double centre, double reach)
{
    double *v = doubles(n);
    for (size_t i = 0; i < n; i++)
        v[i] = centre + reach * draw(w);
    return v;
}

static double *draw_norm(struct weights *w)
{
    double *v = doubles(2 * w->width);
    for (size_t i = 0; i < 2 * w->width; i++)
        v[i] = (i < w->width ? 1.0 : 0.0) + 0.1 * draw(w);
    return v;
}

static void draw_block(struct weights *w, struct block *b)
{
    const size_t d = w->width;
    b->norm1 = draw_norm(w);
    b->norm2 = draw_norm(w);
    /* q and k of each row, then their biases; then v. */
    b->qkv = doubles(d * 3 * d);
    b->qkv_bias = doubles(3 * d);
    for (size_t r = 0; r < d; r++)
        for (size_t c = 0; c < 2 * d; c++)
            b->qkv[r * 3 * d + c] = 0.5 * draw(w);
    for (size_t c = 0; c < 2 * d; c++)
        b->qkv_bias[c] = 0.1 * draw(w);
    for (size_t r = 0; r < d; r++)
        for (size_t c = 2 * d; c < 3 * d; c++)
            b->qkv[r * 3 * d + c] = 0.3 * draw(w);
    for (size_t c = 2 * d; c < 3 * d; c++)
        b->qkv_bias[c] = 0.1 * draw(w);
    b->out = draws(w, d * d, 0, 0.3);
    b->out_bias = draws(w, d, 0, 0.1);
    b->wide = draws(w, d * 4 * d, 0, 0.2);
    b->wide_bias = draws(w, 4 * d, 0, 0.1);
    b->narrow = draws(w, 4 * d * d, 0, 0.15);
    b->narrow_bias = draws(w, d, 0, 0.1);
}

static double token_size(size_t t)
{
    if (t == LAB_EOS)
        return 1.3;
    return (t >= 32 && t < 127) || t == '\n' ? 1.0 : 0.25;
}

static void draw_weights(struct weights *w, struct lab_shape shape, uint64_t seed)
{
    w->width = shape.width;
    w->layers = shape.layers;
    w->heads = shape.heads;
    w->state = seed;
    w->token = draws(w, LAB_VOCAB * w->width, 0, 1);
    for (size_t i = 0; i < LAB_VOCAB * w->width; i++)
        w->token[i] *= token_size(i / w->width);
    w->position = draws(w, (size_t)shape.context * w->width, 0, 0.5);
    w->block = mem_array(w->layers, sizeof(*w->block));
    for (size_t l = 0; l < w->layers; l++)
        draw_block(w, &w->block[l]);
    w->last = draw_norm(w);
}

static void free_weights(struct weights *w)
{
    for (size_t l = 0; l < w->layers; l++) {
        struct block *b = &w->block[l];
        double *all[] = {b->norm1,  b->norm2,      b->qkv,  b->qkv_bias,
                         b->out,    b->out_bias,   b->wide, b->wide_bias,
                         b->narrow, b->narrow_bias};
        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
            free(all[i]);
    }
    free(w->block);
    free(w->token);
    free(w->position);
    free(w->last);
}

static void norm(const double *x, const double *gain_bias, size_t d, double *y)
{
    double mean = 0, var = 0;
    for (size_t i = 0; i < d; i++)
        mean += x[i] / (double)d;
    for (size_t i = 0; i < d; i++)
        var += (x[i] - mean) * (x[i] - mean) / (double)d;
    for (size_t i = 0; i < d; i++)
        y[i] = (x[i] - mean) / sqrt(var + 1e-5) * gain_bias[i] + gain_bias[d + i];
}

static void product(const double *x, const double *m, const double *bias, size_t rows,
                    size_t columns, double *y)
{
    for (size_t c = 0; c < columns; c++) {
        y[c] = bias[c];
        for (size_t r = 0; r < rows; r++)
            y[c] += x[r] * m[r * columns + c];
    }
}

/* One head of position t; qkv has a row for each position. */
static void attend(const double *qkv, size_t d, size_t head, size_t dim, size_t t,
                   double *out)
{
    double *p = doubles(t + 1), most = -HUGE_VAL, sum = 0;
    const double *q = qkv + t * 3 * d + head * dim;
    for (size_t s = 0; s <= t; s++) {
        const double *k = qkv + s * 3 * d + d + head * dim;
        p[s] = 0;
        for (size_t i = 0; i < dim; i++)
            p[s] += q[i] * k[i] / sqrt((double)dim);
        most = fmax(most, p[s]);
    }
    for (size_t s = 0; s <= t; s++)
        sum += p[s] = exp(p[s] - most);
    for (size_t i = 0; i < dim; i++) {
        out[head * dim + i] = 0;
        for (size_t s = 0; s <= t; s++)
            out[head * dim + i] += p[s] / sum * qkv[s * 3 * d + 2 * d + head * dim + i];
    }
    free(p);
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static void run_block(const struct weights *w, const struct block *b, double *x, size_t n)
{
    const size_t d = w->width;
    double *y = doubles(4 * d), *z = doubles(4 * d), *qkv = doubles(n * 3 * d);
    for (size_t t = 0; t < n; t++) {
        norm(x + t * d, b->norm1, d, y);
        product(y, b->qkv, b->qkv_bias, d, 3 * d, qkv + t * 3 * d);
    }
    for (size_t t = 0; t < n; t++) {
        for (size_t h = 0; h < w->heads; h++)
            attend(qkv, d, h, d / w->heads, t, y);
        product(y, b->out, b->out_bias, d, d, z);
        for (size_t i = 0; i < d; i++)
            x[t * d + i] += z[i];
        norm(x + t * d, b->norm2, d, z);
        product(z, b->wide, b->wide_bias, d, 4 * d, y);
        for (size_t i = 0; i < 4 * d; i++)
            y[i] = gelu(y[i]);
        product(y, b->narrow, b->narrow_bias, 4 * d, d, z);
        for (size_t i = 0; i < d; i++)
            x[t * d + i] += z[i];
    }
    free(y);
    free(z);
    free(qkv);
}

void lab_oracle_logits(struct lab_shape shape, uint64_t seed, const uint32_t *tokens,
                       size_t n, double logits[LAB_VOCAB])
{
    struct weights w;
    const size_t d = shape.width;
    draw_weights(&w, shape, seed);
    double *x = doubles(n * d), *y = doubles(d);
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < d; i++)
            x[t * d + i] = w.token[tokens[t] * d + i] + w.position[t * d + i];
    for (size_t l = 0; l < w.layers; l++)
        run_block(&w, &w.block[l], x, n);
    norm(x + (n - 1) * d, w.last, d, y);
    for (size_t t = 0; t < LAB_VOCAB; t++) {
        logits[t] = 0;
        for (size_t i = 0; i < d; i++)
            logits[t] += y[i] * w.token[t * d + i];
    }
    free(x);
    free(y);
    free_weights(&w);
}
