/* SPDX-License-Identifier: MIT */
#include "lab/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "../lib/lab_oracle.h"

#define SMALL ((struct lab_shape){2, 2, 32, 512})
#define SEED 7
#define PINNED 0x233a1875ee03cf7eu
#define N 300

static uint32_t tokens[N];

static uint64_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static int fill_tokens(void **state)
{
    uint64_t seed = 11;
    (void)state;
    for (size_t i = 0; i < N; i++)
        tokens[i] = (uint32_t)(next(&seed) % LAB_VOCAB);
    return 0;
}

/* Appends tokens [from, to), whose logits all go to their rows of `out`. */
static void feed(const struct lab_model *m, struct lab_cache *c, size_t from, size_t to,
                 float *out)
{
    const struct lab_step s = {.tokens = tokens + from,
                               .n = to - from,
                               .logits = out + from * LAB_VOCAB,
                               .all_logits = true};
    assert_int_equal(lab_cache_len(c), from);
    assert_true(lab_forward(m, c, &s));
    assert_int_equal(lab_cache_len(c), to);
}

/* Logits behind each of the N tokens, computed at once. */
static float *all_at_once(const struct lab_model *m)
{
    float *out = calloc((size_t)N * LAB_VOCAB, sizeof(*out));
    struct lab_cache *c = lab_cache_new(m, N);
    feed(m, c, 0, N, out);
    lab_cache_free(c);
    return out;
}

static void assert_same_bits(const float *a, const float *b, size_t from, size_t to)
{
    for (size_t t = from; t < to; t++)
        if (memcmp(a + t * LAB_VOCAB, b + t * LAB_VOCAB, LAB_VOCAB * sizeof(*a)) != 0)
            fail_msg("other logits behind token %zu", t);
}

static void copy_rows(struct lab_cache *from, struct lab_cache *to, uint32_t n,
                      struct lab_shape shape)
{
    for (uint32_t layer = 0; layer < shape.layers; layer++)
        for (uint32_t i = 0; i < n; i++) {
            memcpy(lab_cache_k(to, layer, i), lab_cache_k(from, layer, i),
                   shape.width * sizeof(float));
            memcpy(lab_cache_v(to, layer, i), lab_cache_v(from, layer, i),
                   shape.width * sizeof(float));
        }
    lab_cache_set_len(to, n);
}

/* ---- what it computes -------------------------------------------------------------- */

static void assert_near_oracle(struct lab_shape shape, size_t n)
{
    double want[LAB_VOCAB];
    float got[LAB_VOCAB];
    struct lab_model *m = lab_model_new(shape, SEED);
    struct lab_cache *c = lab_cache_new(m, shape.context);
    const struct lab_step s = {.tokens = tokens, .n = n, .logits = got};
    assert_true(lab_forward(m, c, &s));
    lab_oracle_logits(shape, SEED, tokens, n, want);
    for (size_t i = 0; i < LAB_VOCAB; i++)
        if (!(fabs((double)got[i] - want[i]) < 1e-3))
            fail_msg("logit %zu behind %zu tokens is %g, not %g", i, n, (double)got[i],
                     want[i]);
    lab_cache_free(c);
    lab_model_free(m);
}

static void test_lab_forward_agrees_with_plain_formulas(void **state)
{
    (void)state;
    assert_near_oracle(SMALL, 1);
    assert_near_oracle(SMALL, 2);
    assert_near_oracle(SMALL, 7);
    assert_near_oracle(SMALL, 150);
    assert_near_oracle((struct lab_shape){1, 3, 24, 100}, 33);
    assert_near_oracle(LAB_SHAPE_DEFAULT, 70);
}

/* The same on every machine, with every compiler. */
static void test_lab_logits_are_what_they_always_were(void **state)
{
    uint64_t hash = 0xcbf29ce484222325u;
    (void)state;
    struct lab_model *m = lab_model_new(LAB_SHAPE_DEFAULT, 1);
    float *logits = all_at_once(m);
    const unsigned char *bytes = (const unsigned char *)logits;
    for (size_t i = 0; i < (size_t)N * LAB_VOCAB * sizeof(float); i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    if (hash != PINNED)
        fail_msg("the logits hash to %#llx", (unsigned long long)hash);
    free(logits);
    lab_model_free(m);
}

static void test_lab_seeds_make_different_models(void **state)
{
    float logits[2][LAB_VOCAB];
    (void)state;
    for (uint64_t seed = 0; seed < 2; seed++) {
        struct lab_model *m = lab_model_new(SMALL, seed);
        struct lab_cache *c = lab_cache_new(m, 8);
        const struct lab_step s = {.tokens = tokens, .n = 1, .logits = logits[seed]};
        assert_true(lab_forward(m, c, &s));
        lab_cache_free(c);
        lab_model_free(m);
    }
    assert_memory_not_equal(logits[0], logits[1], sizeof(logits[0]));
}

static void test_lab_logits_depend_on_every_token_before(void **state)
{
    (void)state;
    struct lab_model *m = lab_model_new(SMALL, SEED);
    float *whole = all_at_once(m);
    for (size_t i = 0; i < N; i += 37) {
        tokens[i] ^= 1;
        float *other = all_at_once(m);
        tokens[i] ^= 1;
        assert_same_bits(whole, other, 0, i);
        for (size_t t = i; t < N; t++)
            assert_memory_not_equal(whole + t * LAB_VOCAB, other + t * LAB_VOCAB,
                                    LAB_VOCAB * sizeof(*whole));
        free(other);
    }
    free(whole);
    lab_model_free(m);
}

/* ---- the cache --------------------------------------------------------------------- */

static void assert_cuts_agree(struct lab_shape shape, int rounds)
{
    uint64_t seed = 5;
    struct lab_model *m = lab_model_new(shape, SEED);
    float *whole = all_at_once(m), *cut = calloc((size_t)N * LAB_VOCAB, sizeof(*cut));
    for (int round = 0; round < rounds; round++) {
        struct lab_cache *c = lab_cache_new(m, N + (uint32_t)round);
        const size_t most = round ? 1 + next(&seed) % 130 : 1; /* first: one by one */
        for (size_t at = 0, to; at < N; at = to) {
            to = at + 1 + next(&seed) % most;
            to = to < N ? to : N;
            feed(m, c, at, to, cut);
        }
        assert_same_bits(whole, cut, 0, N);
        lab_cache_free(c);
    }
    free(whole);
    free(cut);
    lab_model_free(m);
}

static void test_lab_logits_are_bit_equal_however_the_prompt_is_cut(void **state)
{
    (void)state;
    assert_cuts_agree(SMALL, 12);
    assert_cuts_agree((struct lab_shape){1, 1, 8, 400}, 12);
    assert_cuts_agree(LAB_SHAPE_DEFAULT, 2);
}

/* The last call alone matters where only the last logits are asked for. */
static void test_lab_logits_of_the_last_token_are_those_of_all(void **state)
{
    float last[LAB_VOCAB];
    (void)state;
    struct lab_model *m = lab_model_new(SMALL, SEED);
    float *whole = all_at_once(m);
    struct lab_cache *c = lab_cache_new(m, N);
    const struct lab_step s = {.tokens = tokens, .n = N, .logits = last};
    assert_true(lab_forward(m, c, &s));
    assert_memory_equal(last, whole + (size_t)(N - 1) * LAB_VOCAB, sizeof(last));
    lab_cache_free(c);
    free(whole);
    lab_model_free(m);
}

static void test_lab_cache_goes_on_from_restored_rows_bit_by_bit(void **state)
{
    (void)state;
    struct lab_model *m = lab_model_new(SMALL, SEED);
    float *whole = all_at_once(m), *rest = calloc((size_t)N * LAB_VOCAB, sizeof(*rest));
    struct lab_cache *first = lab_cache_new(m, N), *second = lab_cache_new(m, 512);
    feed(m, first, 0, N, rest);
    for (uint32_t n = 1; n < N; n += 61) {
        memset(rest, 0, (size_t)N * LAB_VOCAB * sizeof(*rest));
        copy_rows(first, second, n, SMALL);
        feed(m, second, n, N, rest);
        assert_same_bits(whole, rest, n, N);
    }
    lab_cache_cut(second, 200);
    *lab_cache_v(second, 1, 199) += 1.0f; /* and wrong rows are used as well */
    feed(m, second, 200, N, rest);
    assert_memory_not_equal(whole + 200 * LAB_VOCAB, rest + 200 * LAB_VOCAB,
                            LAB_VOCAB * sizeof(*rest));
    lab_cache_free(first);
    lab_cache_free(second);
    free(whole);
    free(rest);
    lab_model_free(m);
}

static void test_lab_cache_cut_forgets_all_behind_it(void **state)
{
    (void)state;
    struct lab_model *m = lab_model_new(SMALL, SEED);
    float *whole = all_at_once(m), *again = calloc((size_t)N * LAB_VOCAB, sizeof(*again));
    struct lab_cache *c = lab_cache_new(m, N);
    const uint32_t other[] = {1, 2, 3, 4, 5};
    feed(m, c, 0, 100, again);
    const struct lab_step s = {.tokens = other, .n = 5};
    assert_true(lab_forward(m, c, &s));
    lab_cache_cut(c, 100);
    feed(m, c, 100, 180, again);
    lab_cache_cut(c, 0);
    feed(m, c, 0, N, again);
    assert_same_bits(whole, again, 0, N);
    lab_cache_free(c);
    free(whole);
    free(again);
    lab_model_free(m);
}

static void test_lab_forward_without_room_does_nothing(void **state)
{
    float logits[LAB_VOCAB] = {0};
    struct lab_work work = {0};
    (void)state;
    struct lab_model *m = lab_model_new(SMALL, SEED);
    struct lab_cache *c = lab_cache_new(m, 10);
    const struct lab_step fits = {.tokens = tokens, .n = 10},
                          one = {
                              .tokens = tokens, .n = 1, .logits = logits, .work = &work};
    assert_int_equal(lab_cache_capacity(c), 10);
    assert_true(lab_forward(m, c, &fits));
    assert_false(lab_forward(m, c, &one));
    assert_int_equal(lab_cache_len(c), 10);
    assert_int_equal(work.projections, 0);
    assert_true(logits[0] >= 0 && logits[0] <= 0);
    lab_cache_free(c);
    lab_model_free(m);
}

/* ---- the rest ---------------------------------------------------------------------- */

/* 13 tokens and 8 more, with and without a cache. */
static void test_lab_work_counts_projected_positions(void **state)
{
    struct lab_work with = {0}, without = {0};
    (void)state;
    struct lab_model *m = lab_model_new(SMALL, SEED);
    struct lab_cache *c = lab_cache_new(m, 32), *d = lab_cache_new(m, 32);
    for (size_t n = 13; n <= 21; n++) {
        const size_t old = lab_cache_len(c);
        const struct lab_step one = {.tokens = tokens + old, .n = n - old, .work = &with},
                              all = {.tokens = tokens, .n = n, .work = &without};
        lab_cache_cut(d, 0);
        assert_true(lab_forward(m, c, &one));
        assert_true(lab_forward(m, d, &all));
    }
    assert_int_equal(with.projections, 21);
    assert_int_equal(without.projections, 153);
    assert_int_equal(with.attended, 21 * 22 / 2);
    lab_cache_free(c);
    lab_cache_free(d);
    lab_model_free(m);
}

static void test_lab_argmax_takes_the_first_of_equals(void **state)
{
    float logits[LAB_VOCAB];
    (void)state;
    for (size_t i = 0; i < LAB_VOCAB; i++)
        logits[i] = -3;
    assert_int_equal(lab_argmax(logits), 0);
    logits[200] = logits[100] = -1;
    assert_int_equal(lab_argmax(logits), 100);
    logits[LAB_VOCAB - 1] = 0;
    assert_int_equal(lab_argmax(logits), LAB_VOCAB - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lab_forward_agrees_with_plain_formulas),
        cmocka_unit_test(test_lab_logits_are_what_they_always_were),
        cmocka_unit_test(test_lab_seeds_make_different_models),
        cmocka_unit_test(test_lab_logits_depend_on_every_token_before),
        cmocka_unit_test(test_lab_logits_are_bit_equal_however_the_prompt_is_cut),
        cmocka_unit_test(test_lab_logits_of_the_last_token_are_those_of_all),
        cmocka_unit_test(test_lab_cache_goes_on_from_restored_rows_bit_by_bit),
        cmocka_unit_test(test_lab_cache_cut_forgets_all_behind_it),
        cmocka_unit_test(test_lab_forward_without_room_does_nothing),
        cmocka_unit_test(test_lab_work_counts_projected_positions),
        cmocka_unit_test(test_lab_argmax_takes_the_first_of_equals),
    };
    return cmocka_run_group_tests(tests, fill_tokens, NULL);
}
