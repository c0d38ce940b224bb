/* SPDX-License-Identifier: MIT */
#include "load/scale.h"

#include <math.h>

#include "base/draw.h"
#include "cmocka_all.h"

static void assert_near(double got, double wanted)
{
    if (fabs(got - wanted) > 1e-9 * fabs(wanted) + 1e-12)
        fail_msg("%.12g is not %.12g", got, wanted);
}

static struct scale fit(const double *v, size_t n, bool may_be_log)
{
    struct scale_extent e = {0};
    scale_see(&e, v, n);
    return scale_fit(&e, may_be_log);
}

static void expect_range(struct scale s, double low, double high, bool log)
{
    assert_near(s.low, low);
    assert_near(s.high, high);
    assert_int_equal(s.log, log);
}

static void expect_ticks(struct scale s, unsigned wanted, const double *ticks, size_t n)
{
    double at[SCALE_TICKS];
    assert_int_equal(scale_ticks(&s, wanted, at), n);
    for (size_t i = 0; i < n; i++)
        assert_near(at[i], ticks[i]);
}

/* ---- ranges ------------------------------------------------------------------------ */

static void test_ranges_end_on_round_numbers(void **state)
{
    (void)state;
    expect_range(fit((double[]){3, 47}, 2, false), 0, 50, false);
    expect_range(fit((double[]){0.3}, 1, false), 0, 0.3, false);
    expect_range(fit((double[]){-3, 12}, 2, false), -5, 15, false);
    expect_range(fit((double[]){-7}, 1, true), -8, 0, false);
    expect_range(fit((double[]){1e12}, 1, true), 0, 1e12, false);
}

static void test_a_wide_span_is_log(void **state)
{
    (void)state;
    expect_range(fit((double[]){1, 29.9}, 2, true), 0, 30, false);
    expect_range(fit((double[]){1, 30}, 2, true), 1, 50, true);
    expect_range(fit((double[]){1, 30}, 2, false), 0, 30, false);
    expect_range(fit((double[]){0, 0.03, 700}, 3, true), 0.02, 1000, true);
    expect_range(fit((double[]){-1, 0.03, 700}, 3, true), -200, 800, false);
}

static void test_of_nothing_there_is_a_range(void **state)
{
    (void)state;
    expect_range(fit(NULL, 0, true), 0, 1, false);
    expect_range(fit((double[]){0, 0}, 2, true), 0, 1, false);
    expect_range(fit((double[]){(double)NAN, (double)INFINITY}, 2, true), 0, 1, false);
    expect_range(scale_exact(4, 4), 4, 5, false);
    expect_range(fit((double[]){1e-15, 1e300}, 2, true), 1e-15, 1e15, true);
    expect_range(fit((double[]){0.99e-15, 1}, 2, true), 0, 1, false);
}

static void test_places(void **state)
{
    (void)state;
    const struct scale line = scale_exact(-10, 30), logs = {1, 100, true};
    assert_near(scale_at(&line, 0), 0.25);
    assert_near(scale_at(&line, -11), 0);
    assert_near(scale_at(&line, 31), 1);
    assert_near(scale_at(&logs, 10), 0.5);
    assert_near(scale_at(&logs, 0), 0);
    assert_near(scale_at(&logs, -1), 0);
    assert_true(isnan(scale_at(&logs, (double)NAN)));
}

/* ---- ticks ------------------------------------------------------------------------- */

static void test_ticks_are_round(void **state)
{
    (void)state;
    expect_ticks(scale_exact(0, 50), 5, (double[]){0, 10, 20, 30, 40, 50}, 6);
    expect_ticks(scale_exact(0, 1), 5, (double[]){0, 0.2, 0.4, 0.6, 0.8, 1}, 6);
    expect_ticks(scale_exact(-5, 15), 5, (double[]){-5, 0, 5, 10, 15}, 5);
    expect_ticks(scale_exact(0, 0.3), 3, (double[]){0, 0.1, 0.2, 0.3}, 4);
    expect_ticks(scale_exact(3.2, 9.9), 5, (double[]){4, 6, 8}, 3);
}

static void test_ticks_of_a_log_scale(void **state)
{
    (void)state;
    expect_ticks((struct scale){1, 50, true}, 6, (double[]){1, 2, 5, 10, 20, 50}, 6);
    expect_ticks((struct scale){0.01, 1000, true}, 6,
                 (double[]){0.01, 0.1, 1, 10, 100, 1000}, 6);
    expect_ticks((struct scale){1e-6, 1e6, true}, 6,
                 (double[]){1e-6, 1e-4, 1e-2, 1, 1e2, 1e4, 1e6}, 7);
    expect_ticks((struct scale){2, 1000, true}, 3, (double[]){10, 100, 1000}, 3);
}

/* Whatever there is to show: all of it is within, and at least two ticks are. */
static void test_any_values_have_a_scale_with_ticks(void **state)
{
    (void)state;
    uint64_t draw = 7;
    for (int round = 0; round < 3000; round++) {
        double v[5], at[SCALE_TICKS];
        for (int i = 0; i < 5; i++) {
            const double size = pow(10, (double)draw_below(&draw, 25) - 12);
            v[i] =
                ((double)draw_below(&draw, 2000) - (round % 2 ? 1000 : 0)) * size / 2000;
        }
        const struct scale s = fit(v, 5, round % 3);
        for (int i = 0; i < 5; i++) {
            const double place = scale_at(&s, v[i]);
            assert_true(place >= 0 && place <= 1);
            const double forgiven = 1e-6 * (s.log ? fabs(v[i]) : s.high - s.low);
            assert_true((s.log && v[i] == 0) ||
                        (v[i] >= s.low - forgiven && v[i] <= s.high + forgiven));
        }
        const size_t n = scale_ticks(&s, 2 + (unsigned)round % 6, at);
        assert_in_range(n, 2, SCALE_TICKS);
        for (size_t i = 1; i < n; i++)
            assert_true(at[i] > at[i - 1]);
    }
}

/* ---- labels ------------------------------------------------------------------------ */

static void test_labels_have_their_unit(void **state)
{
    (void)state;
    static const struct {
        enum scale_unit unit;
        double value;
        const char *label;
    } labels[] = {
        {SCALE_MS, 0, "0"},
        {SCALE_MS, 0.05, "50 \xC2\xB5s"},
        {SCALE_MS, 1, "1 ms"},
        {SCALE_MS, 999, "999 ms"},
        {SCALE_MS, 1000, "1 s"},
        {SCALE_MS, 1250000, "1250 s"},
        {SCALE_MS, -250, "-250 ms"},
        {SCALE_COUNT, 0.1 * 3, "0.3"},
        {SCALE_COUNT, 999, "999"},
        {SCALE_COUNT, 1500, "1.5k"},
        {SCALE_COUNT, 2e6, "2M"},
        {SCALE_SHARE, 0.25, "25 %"},
        {SCALE_CHANGE, 0.25, "+25 %"},
        {SCALE_CHANGE, -0.5, "-50 %"},
        {SCALE_CHANGE, 0, "0 %"},
        {SCALE_CHANGE, 12.5, "+1250 %"},
        {SCALE_BYTES, 1536, "1.5 KiB"},
        {SCALE_BYTES, 0x1p30, "1 GiB"},
        {SCALE_COUNT, (double)NAN, "\xE2\x80\x93"},
        {SCALE_MS, (double)INFINITY, "\xE2\x80\x93"},
    };
    for (size_t i = 0; i < sizeof(labels) / sizeof(labels[0]); i++) {
        char got[SCALE_LABEL];
        scale_label(labels[i].unit, labels[i].value, got);
        assert_string_equal(got, labels[i].label);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges_end_on_round_numbers),
        cmocka_unit_test(test_a_wide_span_is_log),
        cmocka_unit_test(test_of_nothing_there_is_a_range),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_ticks_are_round),
        cmocka_unit_test(test_ticks_of_a_log_scale),
        cmocka_unit_test(test_any_values_have_a_scale_with_ticks),
        cmocka_unit_test(test_labels_have_their_unit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
