/* SPDX-License-Identifier: MIT */
#include "prefix/ttft.h"

#include <math.h>
#include <string.h>

#include "cmocka_all.h"

static struct ttft_model model;
static uint64_t rng;

static int clear(void **state)
{
    (void)state;
    memset(&model, 0, sizeof(model));
    rng = 42;
    return 0;
}

/* In (0, 1). */
static double uniform(void)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return ((double)(rng >> 12) + 0.5) / 4503599627370496.0;
}

static double between(double low, double high)
{
    return low + (high - low) * uniform();
}

static double normal(double sigma)
{
    return sigma * sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

static const struct truth {
    double a, b, c;
} llama = {25, 0.4, 3e-6}; /* an 8k prompt: 25 + 3277 + 201 ms */

static double cost(const struct truth *t, double k, double m)
{
    return t->a + t->b * m + t->c * ((k + m) * (k + m) - k * k);
}

/* A third cold, the rest behind reused tokens, up to 16000 tokens in all. */
static void feed(const struct truth *t, int n, double sigma)
{
    for (int i = 0; i < n; i++) {
        const double k = i % 3 ? floor(between(0, 8000)) : 0;
        const double m = floor(between(10, 8000));
        ttft_add(&model, k, m, fmax(0.1, cost(t, k, m) + normal(sigma)));
    }
}

static void assert_near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%g is not %g within %g", got, want, tolerance);
}

static struct ttft_estimate predict(double k, double m)
{
    struct ttft_estimate e;
    assert_true(ttft_predict(&model, k, m, &e));
    assert_true(isfinite(e.ms) && isfinite(e.low) && isfinite(e.high));
    assert_true(0 <= e.low && e.low <= e.ms && e.ms <= e.high);
    return e;
}

/* Deviation of a measurement of so many ms. */
static double noise(double ms)
{
    return model.sigma * sqrt(model.noise.fixed + model.noise.relative * ms * ms);
}

/* ---- too little -------------------------------------------------------------------- */

static void test_ttft_predicts_nothing_from_few_samples(void **state)
{
    struct ttft_estimate e;
    (void)state;
    assert_false(ttft_predict(&model, 0, 100, &e));
    for (int i = 1; i < TTFT_MIN; i++) {
        feed(&llama, 1, 1);
        assert_false(ttft_predict(&model, 0, 100, &e));
    }
    feed(&llama, 1, 1);
    assert_true(ttft_predict(&model, 0, 100, &e));
}

static void test_ttft_ignores_what_is_no_measurement(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) {
        ttft_add(&model, 0, 100, 0);
        ttft_add(&model, 0, 100, -5);
        ttft_add(&model, 0, 100, (double)NAN);
        ttft_add(&model, 0, (double)INFINITY, 100);
        ttft_add(&model, 1e300, 100, 100);
        ttft_add(&model, -7680, 100, 100);
        ttft_add(&model, 100, 0, 100);
    }
    assert_int_equal(model.n, 0);
}

/* ---- known coefficients ------------------------------------------------------------ */

static void test_ttft_recovers_exact_coefficients(void **state)
{
    (void)state;
    feed(&llama, 50, 0);
    predict(0, 4000);
    assert_near(model.a, llama.a, 1e-3);
    assert_near(model.b, llama.b, 1e-6);
    assert_near(model.c, llama.c, 1e-10);
    assert_near(noise(4000), 0, 1e-4);
    assert_near(predict(2000, 1000).ms, cost(&llama, 2000, 1000), 1e-3);
}

static void test_ttft_recovers_coefficients_from_noise(void **state)
{
    (void)state;
    feed(&llama, 500, 20);
    predict(0, 4000);
    assert_near(model.a, llama.a, 8);
    assert_near(model.b, llama.b, 0.01);
    assert_near(model.c, llama.c, 4e-7);
    assert_near(noise(1000), 20, 2.5);
    assert_near(noise(4000), 20, 5);
    assert_near(predict(0, 8000).ms, cost(&llama, 0, 8000), 15);
}

static void test_ttft_leaves_outliers_out(void **state)
{
    (void)state;
    for (int i = 0; i < 400; i++) {
        feed(&llama, 1, 10);
        if (i % 10 == 0) /* something else was in the way for seconds */
            ttft_add(&model, 0, floor(between(10, 8000)), between(20000, 60000));
    }
    assert_near(predict(0, 8000).ms, cost(&llama, 0, 8000), 15);
    assert_near(predict(4000, 100).ms, cost(&llama, 4000, 100), 10);
    assert_near(noise(1000), 10, 2);
}

static void test_ttft_coefficients_are_never_negative(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        const struct truth t = {0, round % 2 ? 0.1 : 0, 0};
        memset(&model, 0, sizeof(model));
        feed(&t, 5 + round % 20, 50);
        predict(0, 4000);
        assert_true(model.a >= 0 && model.b >= 0 && model.c >= 0);
    }
}

/* Falling cost is impossible: the best of what is allowed is a constant. */
static void test_ttft_of_falling_times_is_constant(void **state)
{
    (void)state;
    for (int i = 1; i <= 20; i++)
        ttft_add(&model, 0, i * 100, 1000 - i * 10);
    assert_near(predict(0, 1000).ms, 895, 1e-6);
    assert_near(model.b, 0, 1e-12);
    assert_near(model.c, 0, 1e-12);
}

/* ---- the interval ------------------------------------------------------------------ */

static void test_ttft_interval_holds_95_of_100_new_measurements(void **state)
{
    static const int sizes[] = {6, 10, 30, 300};
    (void)state;
    for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
        int held = 0;
        const int rounds = 400;
        for (int i = 0; i < rounds; i++) {
            memset(&model, 0, sizeof(model));
            feed(&llama, sizes[s], 20);
            const double m = between(500, 7000), y = cost(&llama, 0, m) + normal(20);
            const struct ttft_estimate e = predict(0, m);
            held += e.low <= y && y <= e.high;
        }
        if (held < rounds * 90 / 100 || held > rounds * 995 / 1000)
            fail_msg("%d samples: %d of %d held", sizes[s], held, rounds);
    }
}

static void test_ttft_interval_is_wider_where_less_was_measured(void **state)
{
    (void)state;
    feed(&llama, 60, 20);
    const struct ttft_estimate in = predict(0, 4000), out = predict(0, 40000);
    assert_true(out.high - out.low > 2 * (in.high - in.low));
}

/* ---- extrapolation ----------------------------------------------------------------- */

static void test_ttft_marks_what_is_longer_than_anything_measured(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        ttft_add(&model, 0, 100 + i * 100, 50 + i * 10);
        ttft_add(&model, 3000, 100 + i, 70); /* long, but little of it fresh */
    }
    assert_false(predict(0, 2000).extrapolated);
    assert_false(predict(1000, 2000).extrapolated);
    assert_true(predict(0, 2001).extrapolated);    /* no cold prompt that long */
    assert_true(predict(2000, 1500).extrapolated); /* no context that long */
    assert_true(predict(0, 99).extrapolated);
}

static void test_ttft_of_one_length_only_is_sane_there_and_marked_elsewhere(void **state)
{
    (void)state;
    for (int i = 0; i < 40; i++)
        ttft_add(&model, 0, 2000, 800 + normal(5));
    const struct ttft_estimate same = predict(0, 2000), longer = predict(0, 4000);
    assert_near(same.ms, 800, 5);
    assert_false(same.extrapolated);
    assert_true(same.high - same.low < 60);
    assert_near(model.a, 0, 1e-12);
    assert_near(model.c, 0, 1e-15);
    assert_near(model.b, 0.4, 0.005);
    assert_near(longer.ms, 1600, 20);
    assert_true(longer.extrapolated);
    assert_true(predict(0, 1000).extrapolated);
}

static void test_ttft_outliers_do_not_widen_the_range(void **state)
{
    (void)state;
    feed(&llama, 100, 5);
    ttft_add(&model, 0, 30000, 50); /* what came at once was an error, not an answer */
    assert_true(predict(0, 20000).extrapolated);
    assert_near(predict(0, 8000).ms, cost(&llama, 0, 8000), 10);
}

/* ---- the window -------------------------------------------------------------------- */

static void test_ttft_forgets_all_but_the_last_samples(void **state)
{
    const struct truth slow = {100, 2, 0}, fast = {10, 0.2, 0};
    (void)state;
    feed(&slow, TTFT_KEEP, 1);
    assert_near(predict(0, 1000).ms, 2100, 5);
    feed(&fast, TTFT_KEEP, 1);
    assert_near(predict(0, 1000).ms, 210, 5);
    assert_int_equal(model.n, 2 * TTFT_KEEP);
}

static void test_ttft_fits_anew_only_where_samples_came(void **state)
{
    (void)state;
    feed(&llama, 20, 1);
    assert_true(model.stale);
    predict(0, 100);
    assert_true(model.fitted && !model.stale);
    model.b = 1; /* a refit would put it right */
    predict(0, 100);
    assert_near(model.b, 1, 0);
    feed(&llama, 1, 1);
    predict(0, 100);
    assert_near(model.b, 0.4, 0.05);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_ttft_predicts_nothing_from_few_samples, clear),
        cmocka_unit_test_setup(test_ttft_ignores_what_is_no_measurement, clear),
        cmocka_unit_test_setup(test_ttft_recovers_exact_coefficients, clear),
        cmocka_unit_test_setup(test_ttft_recovers_coefficients_from_noise, clear),
        cmocka_unit_test_setup(test_ttft_leaves_outliers_out, clear),
        cmocka_unit_test_setup(test_ttft_coefficients_are_never_negative, clear),
        cmocka_unit_test_setup(test_ttft_of_falling_times_is_constant, clear),
        cmocka_unit_test_setup(test_ttft_interval_holds_95_of_100_new_measurements,
                               clear),
        cmocka_unit_test_setup(test_ttft_interval_is_wider_where_less_was_measured,
                               clear),
        cmocka_unit_test_setup(test_ttft_marks_what_is_longer_than_anything_measured,
                               clear),
        cmocka_unit_test_setup(
            test_ttft_of_one_length_only_is_sane_there_and_marked_elsewhere, clear),
        cmocka_unit_test_setup(test_ttft_outliers_do_not_widen_the_range, clear),
        cmocka_unit_test_setup(test_ttft_forgets_all_but_the_last_samples, clear),
        cmocka_unit_test_setup(test_ttft_fits_anew_only_where_samples_came, clear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
