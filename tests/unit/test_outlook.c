/* SPDX-License-Identifier: MIT */
#include "prefix/outlook.h"

#include <math.h>
#include <stdlib.h>

#include "cmocka_all.h"

/* A prompt of two parts: a start that others have too, and its own end. */
static size_t make(struct piece *v, uint64_t start, size_t n_start, uint64_t own,
                   size_t n_own)
{
    for (size_t i = 0; i < n_start + n_own; i++) {
        const uint64_t name = i < n_start ? start : own;
        v[i] = (struct piece){
            .hash = {.lo = (name * 1000 + i) * 0x9e3779b97f4a7c15u, .hi = name},
            .end_bytes = (i + 1) * PIECE_BYTES,
            .ends_part = i + 1 == n_start || i + 1 == n_start + n_own};
    }
    return n_start + n_own;
}

static struct outlook_figures figures;

static void add(struct outlook *o, uint64_t start, size_t n_start, uint64_t own,
                double cached, double ttft_ms)
{
    struct piece v[300];
    const size_t n = make(v, start, n_start, own, 10);
    const struct outlook_request rq = {.v = v,
                                       .n = n,
                                       .n_prompt = n,
                                       .prompt_tokens = 64.0 * (double)n,
                                       .cached_tokens = cached,
                                       .ttft_ms = ttft_ms};
    outlook_add(o, &rq);
    outlook_figures(o, &figures);
}

static double biggest(void)
{
    return figures.sizes[OUTLOOK_SIZES - 1].reused_tokens;
}

static void test_outlook_of_a_shared_start(void **state)
{
    struct outlook *o = outlook_new();
    (void)state;
    add(o, 1, 90, 100, 0, -1);
    assert_true(biggest() == 0);
    assert_true(figures.lost[OUTLOOK_FIRST_SIGHT] == 6400);
    add(o, 1, 90, 101, 0, -1);
    assert_true(biggest() == 90.5 * 64);
    assert_true(figures.lost[OUTLOOK_LATE] == 640);
    assert_true(figures.lost[OUTLOOK_DROPPED] == 90 * 64);
    assert_true(figures.distinct_tokens == 110 * 64);
    assert_true(figures.requests == 2 && figures.counted == 2 && figures.timed == 0);
    outlook_free(o);
}

/* Two documents of 200 pieces in turns, each prompt with 10 of its own: room for 256 holds
 * one prompt and the first 46 pieces of the other document, 512 holds both. */
static void test_outlook_tells_sizes_apart(void **state)
{
    struct outlook *o = outlook_new();
    (void)state;
    for (uint64_t i = 0; i < 10; i++)
        add(o, 1 + i % 2, 200, 100 + i, 0, -1);
    assert_true(figures.sizes[0].pieces == 256);
    assert_true(figures.sizes[0].reused_tokens == 8 * 46 * 64);
    assert_true(figures.sizes[1].reused_tokens == 8 * 200.5 * 64);
    outlook_free(o);
}

/* What the engine reused counts as well, where it is more. */
static void test_outlook_adds_to_what_the_engine_has(void **state)
{
    struct outlook *o = outlook_new();
    (void)state;
    add(o, 1, 90, 100, 0, -1);
    add(o, 1, 90, 101, 6000, -1); /* more than the common pieces say */
    assert_true(biggest() == 6000);
    assert_true(figures.engine_tokens == 6000 && figures.counted_tokens == 12800);
    assert_true(figures.lost[OUTLOOK_DROPPED] == 0);
    add(o, 1, 90, 102, -1, -1); /* unknown is not zero */
    assert_true(figures.counted_tokens == 12800 && figures.counted == 2);
    assert_true(biggest() == 6000 + 90.5 * 64);
    outlook_free(o);
}

static void test_outlook_sees_a_clock_at_the_front(void **state)
{
    struct piece v[100];
    struct outlook *o = outlook_new();
    (void)state;
    for (uint64_t i = 0; i < 2; i++) {
        struct outlook_request rq = {.v = v, .n = make(v, 1, 3, 100 + i, 97)};
        rq.n_prompt = rq.n;
        rq.prompt_tokens = 6400;
        rq.ttft_ms = -1;
        v[2].ends_part = false; /* the parts differ from within the first one on */
        outlook_add(o, &rq);
    }
    outlook_figures(o, &figures);
    assert_true(figures.lost[OUTLOOK_EARLY] == 97 * 64);
    outlook_free(o);
}

/* 1 ms a token, all cold: the common start is what would have been saved. */
static void test_outlook_tells_the_time_that_would_be_saved(void **state)
{
    struct outlook *o = outlook_new();
    double more = 0;
    (void)state;
    for (uint64_t i = 0; i < 40; i++) {
        const size_t n_start = 20 + i % 4 * 20;
        add(o, 1 + i % 4, n_start, 100 + i, 0, 10 + 64.0 * (double)(n_start + 10));
        more += i < 4 ? 0 : 64.0 * ((double)n_start + 0.5);
    }
    const struct outlook_size *s = &figures.sizes[OUTLOOK_SIZES - 1];
    assert_true(figures.timed == 40);
    assert_true(fabs(s->saved_ms - more) < 1 && s->half < 1);
    outlook_free(o);
}

static void test_outlook_ignores_impossible_counts(void **state)
{
    struct outlook *o = outlook_new();
    (void)state;
    add(o, 1, 90, 100, 1e9, -1);
    assert_true(figures.requests == 0 && isnan(figures.sizes[0].saved_ms));
    outlook_free(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test(test_outlook_##name)
        TEST(of_a_shared_start),
        TEST(tells_sizes_apart),
        TEST(adds_to_what_the_engine_has),
        TEST(sees_a_clock_at_the_front),
        TEST(tells_the_time_that_would_be_saved),
        TEST(ignores_impossible_counts),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
