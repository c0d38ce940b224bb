/* SPDX-License-Identifier: MIT */
#ifndef LAB_MATH_H
#define LAB_MATH_H

/*
 * The arithmetic of the built-in model, in f32 and in one fixed order: every element of a
 * result is what a plain loop over the inner index would give, to the last bit, whatever
 * is computed beside it. Vectors only ever hold elements side by side; no sum is split
 * over lanes in a way that depends on how much there is to do.
 *
 * exp() is made here as well, since those of C libraries differ in the last bit.
 */

#include <stddef.h>
#include <stdint.h>

#define LAB_LANES 4

/* Four numbers side by side; any float array may be read as such. (A vector type can be
 * named in no other way than by a typedef.) */
typedef float lab_lanes __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t lab_masks __attribute__((vector_size(16), aligned(4), may_alias));

static inline lab_lanes lab_lanes_at(const float *p)
{
    return *(const lab_lanes *)p;
}

static inline void lab_lanes_put(float *p, lab_lanes v)
{
    *(lab_lanes *)p = v;
}

static inline lab_lanes lab_lanes_max(lab_lanes x, lab_lanes y)
{
    const lab_masks more = y > x;
    return (lab_lanes)(((lab_masks)y & more) | ((lab_masks)x & ~more));
}

/* A matrix of `inner` rows and `outer` columns, stored in panels of LAB_LANES columns so
 * that a panel is read front to back. Columns are padded with zeros. */
struct lab_matrix {
    uint32_t inner, outer, panels;
    float *data; /* panels × inner × LAB_LANES */
    float *bias; /* panels × LAB_LANES */
};

void lab_matrix_init(struct lab_matrix *m, uint32_t inner, uint32_t outer);
void lab_matrix_fini(struct lab_matrix *m);
float *lab_matrix_at(struct lab_matrix *m, uint32_t row, uint32_t column);

/* n rows of x (inner each) to n rows of y: bias + x·m. Rows of y lie `stride` apart, at
 * least panels × LAB_LANES. */
void lab_matrix_apply(const struct lab_matrix *m, const float *x, size_t n, float *y,
                      size_t stride);

/* e^x of n times LAB_LANES numbers; 0 for x < -87, and never infinite. */
void lab_math_exp(lab_lanes *x, size_t n);

/* For a length that is a multiple of LAB_LANES. */
void lab_math_add(float *x, const float *y, size_t n); /* x += y */
void lab_math_gelu(float *x, size_t n);                /* GPT-2's form, with tanh */
void lab_math_norm(const float *x, const float *gain, const float *bias, size_t n,
                   float *y);

/* Causal attention of n new positions; their own keys and values are in k and v. */
struct lab_attention {
    const float *q; /* rows of the new positions, `q_stride` apart */
    size_t q_stride;
    const float *k, *v;  /* rows of all positions from 0 on, `width` apart */
    size_t heads, width; /* of all heads together */
    size_t first, n;     /* position of the first new one, and how many */
    float *out;          /* rows, `width` apart */
    float *scratch;      /* (first + n + LAB_LANES) × LAB_LANES */
};
void lab_attention(const struct lab_attention *a);

#endif
