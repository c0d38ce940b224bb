/* SPDX-License-Identifier: MIT */
#include "prefix/holdout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/draw.h"
#include "cmocka_all.h"

static uint64_t rng;

/* In (0, 1). */
static double uniform(void)
{
    return ((double)(draw_next(&rng) >> 12) + 0.5) / 4503599627370496.0;
}

static double between(double low, double high)
{
    return low + (high - low) * uniform();
}

static double normal(void)
{
    return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

static struct hash128 group(uint64_t i)
{
    return (struct hash128){i + 1, 0};
}

/* ---- draws ------------------------------------------------------------------------- */

static void test_holdout_takes_its_share_of_each_group(void **state)
{
    (void)state;
    for (int percent = 1; percent <= 50; percent += 7) {
        struct holdout *h = holdout_new(percent / 100.0, 7);
        for (uint64_t g = 0; g < 4; g++) {
            int held = 0;
            for (int i = 0; i < 10000; i++)
                held += holdout_draw(h, group(g));
            assert_in_range(held, percent * 98, percent * 102);
        }
        holdout_free(h);
    }
}

/* One of each twenty, and its place cannot be told before. */
static void test_holdout_draws_are_balanced_and_random(void **state)
{
    struct holdout *h = holdout_new(0.05, 7);
    int seen[20] = {0};
    (void)state;
    for (int block = 0; block < 2000; block++) {
        int held = 0;
        for (int i = 0; i < 20; i++)
            if (holdout_draw(h, group(1))) {
                held++;
                seen[i]++;
            }
        assert_int_equal(held, 1);
    }
    for (int i = 0; i < 20; i++)
        assert_in_range(seen[i], 60, 140);
    holdout_free(h);
}

static void test_holdout_of_nothing_never_draws(void **state)
{
    struct holdout *h = holdout_new(0, 7);
    (void)state;
    for (int i = 0; i < 1000; i++)
        assert_false(holdout_draw(h, group(1)));
    holdout_free(h);
}

static void test_holdout_keeps_no_more_groups_than_it_may(void **state)
{
    struct holdout *h = holdout_new(0.5, 7);
    struct holdout_result r;
    (void)state;
    for (uint64_t g = 0; g <= HOLDOUT_GROUPS; g++)
        for (int i = 0; i < 20; i++)
            holdout_add(h, group(g), holdout_draw(h, group(g)), 100, 50);
    holdout_add(h, group(0), true, 100, 50); /* it made room for the last one */
    holdout_result(h, &r);
    assert_int_equal(r.groups, HOLDOUT_GROUPS);
    assert_int_equal(r.n_cold + r.n_cached, HOLDOUT_GROUPS * 20);
    holdout_free(h);
}

/* ---- comparisons ------------------------------------------------------------------- */

static void test_holdout_knows_nothing_from_few_samples(void **state)
{
    struct holdout *h = holdout_new(0.5, 7);
    struct holdout_result r;
    (void)state;
    holdout_draw(h, group(0));
    for (int i = 0; i < 10; i++)
        holdout_add(h, group(0), i < HOLDOUT_MIN - 1, 100, 50 + i);
    holdout_result(h, &r);
    assert_true(isnan(r.saved_ms) && isnan(r.low) && isnan(r.high));
    assert_int_equal(r.waiting, 10);
    holdout_add(h, group(0), true, 100, 50);
    holdout_result(h, &r);
    assert_false(isnan(r.saved_ms) || isnan(r.low) || isnan(r.high));
    assert_int_equal(r.waiting, 0);
    holdout_free(h);
}

static void test_holdout_ignores_what_is_no_measurement(void **state)
{
    struct holdout *h = holdout_new(0.5, 7);
    struct holdout_result r;
    (void)state;
    holdout_draw(h, group(0));
    holdout_add(h, group(0), true, 100, -1);
    holdout_add(h, group(0), true, 100, (double)NAN);
    holdout_add(h, group(0), true, 0, 10);
    holdout_add(h, group(1), true, 100, 10); /* nobody drew for it */
    holdout_result(h, &r);
    assert_int_equal(r.waiting, 0);
    holdout_free(h);
}

/* Equal times are told exactly; more cold prompts among the long ones are no saving. */
static void test_holdout_adjusts_for_length(void **state)
{
    struct holdout *h = holdout_new(0.5, 7);
    struct holdout_result r;
    (void)state;
    holdout_draw(h, group(0));
    for (int i = 0; i < 40; i++) {
        const bool cold = i % 2;
        const double tokens = 100 + 10 * i + (cold ? 500 : 0);
        holdout_add(h, group(0), cold, tokens, 20 + tokens);
    }
    holdout_result(h, &r);
    assert_true(fabs(r.saved_ms) < 1e-6);
    holdout_free(h);
}

/* ---- simulated traffic ------------------------------------------------------------- */

struct traffic {
    int n, groups;
    double share, gain; /* what a hit saves: a part of the prefill */
    double noise;       /* a part of the time, skewed to the right */
    double beside;      /* share of requests that wait for somebody's prefill as well */
};

static double skewed(double sigma)
{
    return exp(sigma * normal() - sigma * sigma / 2);
}

/* Returns the mean saving per request that the experiment should find: that of a hit on
 * the prompts of these groups, in proportion to their requests. */
static double send(struct holdout *h, const struct traffic *t)
{
    double lengths[HOLDOUT_GROUPS], saved = 0;
    for (int g = 0; g < t->groups; g++)
        lengths[g] = between(500, 6000);
    for (int i = 0; i < t->n; i++) {
        const int g = (int)(uniform() * t->groups);
        const double tokens = floor(lengths[g] + between(0, 400));
        const bool cold = holdout_draw(h, group((uint64_t)g));
        const double prefill = 0.5 * tokens, part = cold ? 1 : 1 - t->gain;
        double ms = (20 + prefill * part) * skewed(t->noise);
        if (uniform() < t->beside) /* as long, whatever this request has to do itself */
            ms += between(0, 1000);
        holdout_add(h, group((uint64_t)g), cold, tokens, ms);
        saved += prefill * t->gain / t->n;
    }
    return saved;
}

static struct traffic some_traffic(void)
{
    return (struct traffic){.n = (int)between(600, 2000),
                            .groups = (int)between(1, 9),
                            .share = between(0.05, 0.2),
                            .gain = between(0.3, 0.98),
                            .noise = between(0.02, 0.3),
                            .beside = between(0, 0.5)};
}

/* RUNS=2000 in the environment asks for more, and for the bounds that these allow. */
static int runs_wanted(void)
{
    return getenv("RUNS") ? (int)strtol(getenv("RUNS"), NULL, 10) : 200;
}

static void test_holdout_intervals_hold(void **state)
{
    const int runs = runs_wanted();
    int inside = 0, known = 0;
    double error = 0;
    (void)state;
    rng = 1;
    for (int i = 0; i < runs; i++) {
        const struct traffic t = some_traffic();
        struct holdout *h = holdout_new(t.share, (uint64_t)i);
        struct holdout_result r;
        const double saved = send(h, &t);
        holdout_result(h, &r);
        holdout_free(h);
        if (r.waiting || isnan(r.low))
            continue; /* a group is missing from the result */
        known++;
        inside += r.low <= saved && saved <= r.high;
        error += (r.saved_ms - saved) / saved;
    }
    print_message("%d runs: bias %+.2f %%, %.2f %% of the intervals hold\n", known,
                  100 * error / known, 100.0 * inside / known);
    assert_true(known >= runs * 9 / 10);
    assert_true(fabs(error / known) < 0.03);
    const double around = runs >= 2000 ? 0.01 : 0.04;
    assert_true(fabs((double)inside / known - 0.95) <= around);
}

static void test_holdout_finds_no_difference_where_there_is_none(void **state)
{
    int gains = 0, losses = 0;
    (void)state;
    rng = 2;
    for (int i = 0; i < 100; i++) {
        struct traffic t = some_traffic();
        struct holdout_result r;
        t.gain = 0;
        struct holdout *h = holdout_new(t.share, (uint64_t)i);
        send(h, &t);
        holdout_result(h, &r);
        holdout_free(h);
        gains += r.low > 0;
        losses += r.high < 0;
    }
    print_message("%d gains, %d losses in 100 runs\n", gains, losses);
    assert_true(gains <= 6 && losses <= 6);
}

static void test_holdout_finds_a_cache_that_does_harm(void **state)
{
    (void)state;
    rng = 3;
    for (int i = 0; i < 50; i++) {
        struct traffic t = some_traffic();
        struct holdout_result r;
        t.gain = -0.5;
        t.noise = 0.05;
        t.beside = 0;
        struct holdout *h = holdout_new(t.share, (uint64_t)i);
        send(h, &t);
        holdout_result(h, &r);
        holdout_free(h);
        assert_true(r.high < 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test(test_holdout_##name)
        TEST(takes_its_share_of_each_group),
        TEST(draws_are_balanced_and_random),
        TEST(of_nothing_never_draws),
        TEST(keeps_no_more_groups_than_it_may),
        TEST(knows_nothing_from_few_samples),
        TEST(ignores_what_is_no_measurement),
        TEST(adjusts_for_length),
        TEST(intervals_hold),
        TEST(finds_no_difference_where_there_is_none),
        TEST(finds_a_cache_that_does_harm),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
