/* SPDX-License-Identifier: MIT */
#include "lab/model.h"

/*
 *     token, position ─► x ─┬─► norm ─► q k v ─► attention ─► output ─┬─ + ─► x
 *                           └─────────────────────────────────────────┘
 *                         x ─┬─► norm ─► 4 × width ─► GELU ─► width ───┬─ + ─► x
 *                            └─────────────────────────────────────────┘
 *     after the last layer: norm ─► one logit a token of the vocabulary
 *
 * Weights are drawn evenly around zero by a generator of our own. How far they reach is
 * chosen so that answers look alive: attention is sharp enough to depend on single
 * tokens far back, the layers outweigh the token that was just read (it would be repeated
 * forever), and bytes that seldom stand in a text have short vectors, as training would
 * make them, so that answers are printable and end now and then.
 */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/draw.h"
#include "base/mem.h"
#include "lab_math.h"
#include "lab_parts.h"

/* How far the weights of a kind reach to either side. */
#define REACH_TOKEN 1.0f
#define REACH_RARE 0.25f
#define REACH_END 1.3f
#define REACH_POSITION 0.5f
#define REACH_QK 0.5f
#define REACH_V 0.3f
#define REACH_OUT 0.3f
#define REACH_WIDE 0.2f
#define REACH_NARROW 0.15f
#define REACH_NORM 0.1f
#define REACH_BIAS 0.1f

struct norm {
    float *gain, *bias;
};

struct layer {
    struct norm before_attention, before_wide;
    struct lab_matrix qkv, out, wide, narrow;
};

struct lab_model {
    struct lab_shape shape;
    float *tokens, *positions; /* rows of `width` */
    struct layer *layers;
    struct norm last;
    struct lab_matrix logits; /* `tokens` as a matrix */
};

/* ---- weights ----------------------------------------------------------------------- */

/* Evenly between -reach and reach, in steps that f32 holds exactly. */
static float draw_weight(uint64_t *state, float reach)
{
    const int32_t steps = (int32_t)(draw_next(state) >> 40) - (1 << 23);
    return (float)steps * 0x1p-23f * reach;
}

static float *draw_row(uint64_t *state, size_t n, float centre, float reach)
{
    float *row = mem_array(n, sizeof(*row));
    for (size_t i = 0; i < n; i++)
        row[i] = centre + draw_weight(state, reach);
    return row;
}

static void draw_columns(struct lab_matrix *m, uint32_t first, uint32_t n,
                         uint64_t *state, float reach)
{
    for (uint32_t row = 0; row < m->inner; row++)
        for (uint32_t i = 0; i < n; i++)
            *lab_matrix_at(m, row, first + i) = draw_weight(state, reach);
    for (uint32_t i = 0; i < n; i++)
        m->bias[first + i] = draw_weight(state, REACH_BIAS);
}

static void draw_norm(struct norm *n, size_t width, uint64_t *state)
{
    n->gain = draw_row(state, width, 1.0f, REACH_NORM);
    n->bias = draw_row(state, width, 0.0f, REACH_NORM);
}

static void draw_layer(struct layer *l, uint32_t width, uint64_t *state)
{
    draw_norm(&l->before_attention, width, state);
    draw_norm(&l->before_wide, width, state);
    lab_matrix_init(&l->qkv, width, 3 * width);
    lab_matrix_init(&l->out, width, width);
    lab_matrix_init(&l->wide, width, 4 * width);
    lab_matrix_init(&l->narrow, 4 * width, width);
    draw_columns(&l->qkv, 0, 2 * width, state, REACH_QK);
    draw_columns(&l->qkv, 2 * width, width, state, REACH_V);
    draw_columns(&l->out, 0, width, state, REACH_OUT);
    draw_columns(&l->wide, 0, 4 * width, state, REACH_WIDE);
    draw_columns(&l->narrow, 0, width, state, REACH_NARROW);
}

static float token_reach(uint32_t token)
{
    if (token == LAB_EOS)
        return REACH_END;
    return (token >= ' ' && token <= '~') || token == '\n' ? REACH_TOKEN : REACH_RARE;
}

static void draw_tokens(struct lab_model *m, uint64_t *state)
{
    const uint32_t width = m->shape.width;
    m->tokens = draw_row(state, (size_t)LAB_VOCAB * width, 0.0f, 1.0f);
    lab_matrix_init(&m->logits, width, LAB_VOCAB);
    for (uint32_t t = 0; t < LAB_VOCAB; t++) {
        const float reach = token_reach(t);
        for (uint32_t i = 0; i < width; i++) {
            float *weight = &m->tokens[t * width + i];
            *weight *= reach;
            *lab_matrix_at(&m->logits, i, t) = *weight;
        }
    }
}

struct lab_model *lab_model_new(struct lab_shape shape, uint64_t seed)
{
    struct lab_model *m = mem_zalloc(sizeof(*m));
    uint64_t state = seed;
    assert(shape.layers && shape.heads && shape.width && shape.context);
    assert(shape.width % (shape.heads * LAB_LANES) == 0);
    m->shape = shape;
    draw_tokens(m, &state);
    m->positions =
        draw_row(&state, (size_t)shape.context * shape.width, 0.0f, REACH_POSITION);
    m->layers = mem_zalloc(shape.layers * sizeof(*m->layers));
    for (uint32_t i = 0; i < shape.layers; i++)
        draw_layer(&m->layers[i], shape.width, &state);
    draw_norm(&m->last, shape.width, &state);
    return m;
}

static void free_norm(struct norm *n)
{
    free(n->gain);
    free(n->bias);
}

void lab_model_free(struct lab_model *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; i < m->shape.layers; i++) {
        struct layer *l = &m->layers[i];
        free_norm(&l->before_attention);
        free_norm(&l->before_wide);
        lab_matrix_fini(&l->qkv);
        lab_matrix_fini(&l->out);
        lab_matrix_fini(&l->wide);
        lab_matrix_fini(&l->narrow);
    }
    free(m->layers);
    free_norm(&m->last);
    lab_matrix_fini(&m->logits);
    free(m->tokens);
    free(m->positions);
    free(m);
}

struct lab_shape lab_model_shape(const struct lab_model *m)
{
    return m->shape;
}

/* ---- a step ------------------------------------------------------------------------ */

static void normalise(const struct norm *norm, const float *x, size_t n, size_t width,
                      float *y)
{
    for (size_t t = 0; t < n; t++)
        lab_math_norm(x + t * width, norm->gain, norm->bias, width, y + t * width);
}

/* x of n tokens that go to positions c->len and on. */
static void embed(const struct lab_model *m, struct lab_cache *c, const uint32_t *tokens,
                  size_t n)
{
    const size_t width = m->shape.width;
    for (size_t t = 0; t < n; t++) {
        assert(tokens[t] < LAB_VOCAB);
        float *x = c->x + t * width;
        memcpy(x, m->tokens + tokens[t] * width, width * sizeof(float));
        lab_math_add(x, m->positions + (c->len + t) * width, width);
    }
}

/* Puts the new keys and values into their rows. */
static void keep(struct lab_cache *c, uint32_t layer, size_t n)
{
    const size_t width = c->shape.width;
    for (size_t t = 0; t < n; t++) {
        const float *qkv = c->qkv + t * 3 * width;
        const uint32_t at = c->len + (uint32_t)t;
        memcpy(lab_cache_k(c, layer, at), qkv + width, width * sizeof(float));
        memcpy(lab_cache_v(c, layer, at), qkv + 2 * width, width * sizeof(float));
    }
}

static void run_layer(const struct lab_model *m, struct lab_cache *c, uint32_t layer,
                      size_t n)
{
    const struct layer *l = &m->layers[layer];
    const size_t width = m->shape.width;
    normalise(&l->before_attention, c->x, n, width, c->normed);
    lab_matrix_apply(&l->qkv, c->normed, n, c->qkv, 3 * width);
    keep(c, layer, n);
    const struct lab_attention a = {.q = c->qkv,
                                    .q_stride = 3 * width,
                                    .k = lab_cache_k(c, layer, 0),
                                    .v = lab_cache_v(c, layer, 0),
                                    .heads = m->shape.heads,
                                    .width = width,
                                    .first = c->len,
                                    .n = n,
                                    .out = c->normed,
                                    .scratch = c->scratch};
    lab_attention(&a);
    lab_matrix_apply(&l->out, c->normed, n, c->qkv, width);
    lab_math_add(c->x, c->qkv, n * width);
    normalise(&l->before_wide, c->x, n, width, c->normed);
    lab_matrix_apply(&l->wide, c->normed, n, c->wide, 4 * width);
    lab_math_gelu(c->wide, n * 4 * width);
    lab_matrix_apply(&l->narrow, c->wide, n, c->qkv, width);
    lab_math_add(c->x, c->qkv, n * width);
}

/* Logits of the rows [from, n) of x. */
static void give_logits(const struct lab_model *m, struct lab_cache *c, size_t from,
                        size_t n, float *out)
{
    const size_t stride = m->logits.panels * LAB_LANES;
    float *row = mem_array(stride, sizeof(*row));
    for (size_t t = from; t < n; t++, out += LAB_VOCAB) {
        normalise(&m->last, c->x + t * m->shape.width, 1, m->shape.width, c->normed);
        lab_matrix_apply(&m->logits, c->normed, 1, row, stride);
        memcpy(out, row, LAB_VOCAB * sizeof(*out));
    }
    free(row);
}

static void count(struct lab_work *w, size_t first, size_t n)
{
    if (!w)
        return;
    w->projections += n;
    w->attended += n * first + n * (n + 1) / 2;
}

bool lab_forward(const struct lab_model *m, struct lab_cache *c, const struct lab_step *s)
{
    assert(memcmp(&m->shape, &c->shape, sizeof(m->shape)) == 0);
    if (s->n > c->capacity - c->len)
        return false;
    for (size_t done = 0, n; done < s->n; done += n) {
        n = s->n - done < LAB_CHUNK ? s->n - done : LAB_CHUNK;
        embed(m, c, s->tokens + done, n);
        for (uint32_t layer = 0; layer < m->shape.layers; layer++)
            run_layer(m, c, layer, n);
        if (s->logits && s->all_logits)
            give_logits(m, c, 0, n, s->logits + done * LAB_VOCAB);
        else if (s->logits && done + n == s->n)
            give_logits(m, c, n - 1, n, s->logits);
        count(s->work, c->len, n);
        c->len += (uint32_t)n;
    }
    return true;
}

uint32_t lab_argmax(const float *logits)
{
    uint32_t best = 0;
    for (uint32_t t = 1; t < LAB_VOCAB; t++)
        if (logits[t] > logits[best])
            best = t;
    return best;
}
