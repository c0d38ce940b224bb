/* SPDX-License-Identifier: MIT */
#include "load/contrast.h"

#include <math.h>

#include "cmocka_all.h"
#include "base/draw.h"

#define N 40

/* Skewed, as times are: 20 ms and an exponential tail of mean 10 ms. */
static double draw_time(uint64_t *state)
{
    return 20 - 10 * log(draw_unit(state));
}

static void near(double value, double expected)
{
    if (!(fabs(value - expected) < 1e-9))
        fail_msg("%g, expected %g", value, expected);
}

static void test_figures_are_means_and_medians(void **state)
{
    const double a[] = {1, 2, 3, 4, 100}, b[] = {7, 5, 6, 8, 10, 12};
    struct contrast_result r;
    (void)state;
    contrast_of(a, 5, b, 6, false, &r);
    assert_true(r.known && r.n_a == 5 && r.n_b == 6);
    near(r.mean.a, 22);
    near(r.mean.b, 8);
    near(r.mean.difference, -14);
    near(r.median.a, 3);
    near(r.median.b, 7.5);
    assert_true(r.median.low <= 4.5 && r.median.high >= 4.5);
}

static void test_too_few_values_say_nothing(void **state)
{
    const double a[] = {1, 2, 3, 4, NAN}, b[] = {1, 2, 3, 4, 5};
    struct contrast_result r;
    (void)state;
    contrast_of(a, 5, b, 5, false, &r);
    assert_false(r.known);
    assert_int_equal(r.n_a, 4);
    assert_int_equal(r.n_b, 5);
    contrast_of(a, 5, b, 5, true, &r);
    assert_int_equal(r.n_b, 4);
    contrast_of(b, 5, b, 5, true, &r);
    assert_true(r.known);
}

static void test_equal_values_have_no_difference(void **state)
{
    const double a[] = {3, 3, 3, 3, 3, 3};
    struct contrast_result r;
    (void)state;
    contrast_of(a, 6, a, 6, false, &r);
    assert_false(r.mean.seen || r.median.seen);
    near(r.mean.low, 0);
    near(r.mean.high, 0);
}

/* Of 200 comparisons of the same with the same, 95 % of intervals contain 0. */
static void test_noise_is_called_noise(void **state)
{
    double a[N], b[N];
    struct contrast_result r;
    uint64_t rng = 7;
    int means = 0, medians = 0;
    (void)state;
    for (int k = 0; k < 200; k++) {
        for (int i = 0; i < N; i++) {
            a[i] = draw_time(&rng);
            b[i] = draw_time(&rng);
        }
        contrast_of(a, N, b, N, k & 1, &r);
        means += r.mean.seen;
        medians += r.median.seen;
    }
    assert_in_range(means, 2, 22);
    assert_in_range(medians, 1, 22);
}

/* Requests differ by much more than the sides do: only pairs show it. */
static void test_pairs_show_what_is_lost_between_requests(void **state)
{
    double a[N], b[N];
    struct contrast_result paired, apart;
    uint64_t rng = 3;
    (void)state;
    for (int i = 0; i < N; i++) {
        a[i] = 10 * draw_time(&rng);
        b[i] = a[i] - 5 + draw_unit(&rng);
    }
    contrast_of(a, N, b, N, true, &paired);
    contrast_of(a, N, b, N, false, &apart);
    assert_true(paired.mean.seen);
    assert_true(paired.mean.low > -5 && paired.mean.high < -4);
    assert_false(apart.mean.seen);
    near(paired.mean.difference, apart.mean.difference);
}

static void test_a_difference_is_seen_and_covered(void **state)
{
    double a[N], b[N];
    struct contrast_result r;
    uint64_t rng = 9;
    int seen = 0, covered = 0;
    (void)state;
    for (int k = 0; k < 100; k++) {
        for (int i = 0; i < N; i++) {
            a[i] = draw_time(&rng);
            b[i] = draw_time(&rng) + 12;
        }
        contrast_of(a, N, b, N, false, &r);
        seen += r.mean.seen && r.mean.difference > 0;
        covered += r.mean.low <= 12 && 12 <= r.mean.high;
    }
    assert_in_range(seen, 98, 100);
    assert_in_range(covered, 88, 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_figures_are_means_and_medians),
        cmocka_unit_test(test_too_few_values_say_nothing),
        cmocka_unit_test(test_equal_values_have_no_difference),
        cmocka_unit_test(test_noise_is_called_noise),
        cmocka_unit_test(test_pairs_show_what_is_lost_between_requests),
        cmocka_unit_test(test_a_difference_is_seen_and_covered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
