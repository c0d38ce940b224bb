/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LAB_MODEL_H
#define INCIPIT_LAB_MODEL_H

/*
 * A small real transformer in the shape of GPT-2 (Radford et al., 2019): learned token
 * and position embeddings, pre-norm blocks of causal multi-head attention and a four
 * times wider GELU layer, final norm, logits through the token embedding. Weights are
 * drawn from a seed, everything is f32, decoding is greedy: its answers are deterministic
 * noise, and its KV cache is the real thing. It exists to show and to test prompt
 * caching, never to claim anything about real engines.
 *
 * Tokens are bytes 0 … 255 and a few specials behind them. Positions start at 0.
 *
 * Bit-exact: every output element is summed in one fixed order that does not depend on
 * how many tokens are computed together, nor on what was cached before. So the logits of
 * a prompt are equal to the last bit however it is cut into calls of lab_forward(), and
 * whether its start was computed or put back.
 *
 * One model may be used by several threads at once (it is read-only); a cache belongs to
 * one thread at a time.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LAB_BOS 256   /* start of a text */
#define LAB_EOS 257   /* end of an answer */
#define LAB_BEGIN 258 /* "<|im_start|>" */
#define LAB_END 259   /* "<|im_end|>" */
#define LAB_VOCAB 260

struct lab_shape {
    uint32_t layers, heads, width; /* width is a multiple of heads × 4 */
    uint32_t context;              /* positions */
};

/* 4 layers, 4 heads, width 128, context 8192: 4096 bytes of KV a token. */
#define LAB_SHAPE_DEFAULT ((struct lab_shape){4, 4, 128, 8192})

struct lab_model;

/* The same shape and seed give the same weights on every machine. */
struct lab_model *lab_model_new(struct lab_shape shape, uint64_t seed);
void lab_model_free(struct lab_model *m);
struct lab_shape lab_model_shape(const struct lab_model *m);

/* The KV cache of one sequence. Rows of a layer: width f32 each for K and for V. */
struct lab_cache;

struct lab_cache *lab_cache_new(const struct lab_model *m, uint32_t capacity);
void lab_cache_free(struct lab_cache *c);
uint32_t lab_cache_len(const struct lab_cache *c);
uint32_t lab_cache_capacity(const struct lab_cache *c);

/* Forgets all but the first n tokens (n ≤ length). */
void lab_cache_cut(struct lab_cache *c, uint32_t n);

/* Rows of token i in a layer (i < capacity): to be saved and restored. Those of the
 * tokens behind it follow directly. */
float *lab_cache_k(struct lab_cache *c, uint32_t layer, uint32_t i);
float *lab_cache_v(struct lab_cache *c, uint32_t layer, uint32_t i);

/* Declares that the rows of the first n tokens have been filled in from outside. */
void lab_cache_set_len(struct lab_cache *c, uint32_t n);

/* What was really computed, for the lesson: one unit is one token's Q, K and V in all
 * layers (a "position projection"). */
struct lab_work {
    uint64_t projections; /* tokens that were projected */
    uint64_t attended;    /* pairs of positions that attention looked at, one layer */
};

/*
 * Appends n tokens to the cache and computes them. `logits` gets LAB_VOCAB floats for the
 * last of them (NULL: not wanted), or with all_logits n × LAB_VOCAB. False where the
 * cache has no room (nothing was done).
 */
struct lab_step {
    const uint32_t *tokens;
    size_t n;
    float *logits;
    bool all_logits;
    struct lab_work *work; /* added up; may be NULL */
};
bool lab_forward(const struct lab_model *m, struct lab_cache *c,
                 const struct lab_step *s);

/* The greedy choice: the smallest of the tokens with the largest logit. */
uint32_t lab_argmax(const float *logits);

#endif
