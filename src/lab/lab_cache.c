/* SPDX-License-Identifier: MIT */
#include "lab_parts.h"

/*
 *     rows:  layer 0:  K of token 0, 1, 2 … capacity-1 | V of token 0, 1, 2 …
 *            layer 1:  …
 *
 * Memory that no token has reached is never touched, so a large capacity costs nothing
 * before it is used.
 */

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "lab_math.h"

static float *floats(size_t n)
{
    assert(n <= SIZE_MAX / sizeof(float));
    return mem_zalloc(n * sizeof(float));
}

struct lab_cache *lab_cache_new(const struct lab_model *m, uint32_t capacity)
{
    struct lab_cache *c = mem_zalloc(sizeof(*c));
    c->shape = lab_model_shape(m);
    assert(capacity <= c->shape.context);
    c->capacity = capacity;
    const size_t width = c->shape.width;
    c->rows = floats(2 * c->shape.layers * capacity * width);
    c->x = floats(LAB_CHUNK * width);
    c->normed = floats(LAB_CHUNK * width);
    c->qkv = floats(LAB_CHUNK * 3 * width);
    c->wide = floats(LAB_CHUNK * 4 * width);
    c->scratch = floats(((size_t)capacity + LAB_LANES) * LAB_LANES);
    return c;
}

void lab_cache_free(struct lab_cache *c)
{
    if (!c)
        return;
    free(c->rows);
    free(c->x);
    free(c->normed);
    free(c->qkv);
    free(c->wide);
    free(c->scratch);
    free(c);
}

uint32_t lab_cache_len(const struct lab_cache *c)
{
    return c->len;
}

uint32_t lab_cache_capacity(const struct lab_cache *c)
{
    return c->capacity;
}

void lab_cache_cut(struct lab_cache *c, uint32_t n)
{
    assert(n <= c->len);
    c->len = n;
}

void lab_cache_set_len(struct lab_cache *c, uint32_t n)
{
    assert(n <= c->capacity);
    c->len = n;
}

static float *row(const struct lab_cache *c, size_t kind, uint32_t layer, uint32_t i)
{
    assert(layer < c->shape.layers && i < c->capacity);
    return c->rows + ((2 * layer + kind) * c->capacity + i) * c->shape.width;
}

float *lab_cache_k(struct lab_cache *c, uint32_t layer, uint32_t i)
{
    return row(c, 0, layer, i);
}

float *lab_cache_v(struct lab_cache *c, uint32_t layer, uint32_t i)
{
    return row(c, 1, layer, i);
}
