/* SPDX-License-Identifier: MIT */
#include "lab_math.h"

/*
 * Products are made in tiles: four rows of x times one panel of columns, which lie side
 * by side in a vector register. A tile of one row does the same operations on each
 * element in the same order, so that one token alone gets the same bits. (The Makefile
 * forbids to fuse multiplication and addition, which a compiler might do in one of the
 * tiles only.)
 */

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

/* ---- matrices ---------------------------------------------------------------------- */

void lab_matrix_init(struct lab_matrix *m, uint32_t inner, uint32_t outer)
{
    m->inner = inner;
    m->outer = outer;
    m->panels = (outer + LAB_LANES - 1) / LAB_LANES;
    m->data = mem_zalloc((size_t)m->panels * inner * LAB_LANES * sizeof(float));
    m->bias = mem_zalloc((size_t)m->panels * LAB_LANES * sizeof(float));
}

void lab_matrix_fini(struct lab_matrix *m)
{
    free(m->data);
    free(m->bias);
}

float *lab_matrix_at(struct lab_matrix *m, uint32_t row, uint32_t column)
{
    assert(row < m->inner && column < m->outer);
    const size_t panel = column / LAB_LANES;
    return &m->data[(panel * m->inner + row) * LAB_LANES + column % LAB_LANES];
}

static void tile_of_four(const float *panel, const float *bias, const float *x,
                         size_t inner, float *y, size_t stride)
{
    const float *x0 = x, *x1 = x + inner, *x2 = x1 + inner, *x3 = x2 + inner;
    lab_lanes a = lab_lanes_at(bias), b = a, c = a, d = a;
    for (size_t i = 0; i < inner; i++) {
        const lab_lanes w = lab_lanes_at(panel + i * LAB_LANES);
        a += x0[i] * w;
        b += x1[i] * w;
        c += x2[i] * w;
        d += x3[i] * w;
    }
    lab_lanes_put(y, a);
    lab_lanes_put(y + stride, b);
    lab_lanes_put(y + 2 * stride, c);
    lab_lanes_put(y + 3 * stride, d);
}

static void tile_of_one(const float *panel, const float *bias, const float *x,
                        size_t inner, float *y)
{
    lab_lanes a = lab_lanes_at(bias);
    for (size_t i = 0; i < inner; i++)
        a += x[i] * lab_lanes_at(panel + i * LAB_LANES);
    lab_lanes_put(y, a);
}

void lab_matrix_apply(const struct lab_matrix *m, const float *x, size_t n, float *y,
                      size_t stride)
{
    assert(stride >= (size_t)m->panels * LAB_LANES);
    for (size_t p = 0; p < m->panels; p++) {
        const float *panel = m->data + p * m->inner * LAB_LANES;
        const float *bias = m->bias + p * LAB_LANES;
        float *out = y + p * LAB_LANES;
        size_t t = 0;
        for (; t + 4 <= n; t += 4)
            tile_of_four(panel, bias, x + t * m->inner, m->inner, out + t * stride,
                         stride);
        for (; t < n; t++)
            tile_of_one(panel, bias, x + t * m->inner, m->inner, out + t * stride);
    }
}

/* ---- functions --------------------------------------------------------------------- */

/* x = n ln 2 + r, a polynomial for e^r, and n goes into the exponent (after Cephes'
 * expf). */
static lab_lanes exponential(lab_lanes x)
{
    const float log2e = 1.44269504f, magic = 12582912.0f; /* 1.5 × 2²³: rounds */
    const float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    const lab_masks alive = x >= -87.0f, large = x > 88.0f;
    const lab_lanes most = (lab_lanes){0} + 88.0f;
    x = (lab_lanes)(((lab_masks)x & alive & ~large) | ((lab_masks)most & large));
    const lab_lanes n = (x * log2e + magic) - magic;
    const lab_lanes r = x - n * ln2_high - n * ln2_low;
    lab_lanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const lab_masks power = (__builtin_convertvector(n, lab_masks) + 127) << 23;
    return (lab_lanes)((lab_masks)(p * (lab_lanes)power) & alive);
}

void lab_math_exp(lab_lanes *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = exponential(x[i]);
}

void lab_math_add(float *x, const float *y, size_t n)
{
    for (size_t i = 0; i < n; i += LAB_LANES)
        lab_lanes_put(x + i, lab_lanes_at(x + i) + lab_lanes_at(y + i));
}

/* ½x(1 + tanh u) is x / (1 + e^-2u). */
void lab_math_gelu(float *x, size_t n)
{
    for (size_t i = 0; i < n; i += LAB_LANES) {
        const lab_lanes v = lab_lanes_at(x + i);
        const lab_lanes u = v * (v * v * 0.044715f + 1.0f) * 0.79788456f;
        lab_lanes_put(x + i, v / (exponential(u * -2.0f) + 1.0f));
    }
}

static float sum_of_lanes(lab_lanes v)
{
    return (v[0] + v[1]) + (v[2] + v[3]);
}

void lab_math_norm(const float *x, const float *gain, const float *bias, size_t n,
                   float *y)
{
    lab_lanes sum = {0}, squares = {0};
    for (size_t i = 0; i < n; i += LAB_LANES)
        sum += lab_lanes_at(x + i);
    const float mean = sum_of_lanes(sum) / (float)n;
    for (size_t i = 0; i < n; i += LAB_LANES) {
        const lab_lanes d = lab_lanes_at(x + i) - mean;
        squares += d * d;
    }
    const float scale = 1.0f / sqrtf(sum_of_lanes(squares) / (float)n + 1e-5f);
    for (size_t i = 0; i < n; i += LAB_LANES) {
        const lab_lanes even = (lab_lanes_at(x + i) - mean) * scale;
        lab_lanes_put(y + i, even * lab_lanes_at(gain + i) + lab_lanes_at(bias + i));
    }
}
