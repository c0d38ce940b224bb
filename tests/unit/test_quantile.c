/* SPDX-License-Identifier: MIT */
#include "base/quantile.h"

#include <math.h>
#include <string.h>

#include "cmocka_all.h"

static struct quantile q;

static int clear(void **state)
{
    (void)state;
    memset(&q, 0, sizeof(q));
    return 0;
}

/* cmocka 1.1.5 compares floats with an epsilon only; these values are exact. */
static void assert_quantile(double p, double want)
{
    const double got = quantile_get(&q, p);
    if (!(got >= want && got <= want))
        fail_msg("the %g-quantile is %g, not %g", p, got, want);
}

static void test_quantile_of_nothing_is_nan(void **state)
{
    (void)state;
    assert_true(isnan(quantile_get(&q, 0.5)));
}

static void test_quantile_is_the_nearest_rank(void **state)
{
    (void)state;
    for (int i = 100; i >= 1; i--)
        quantile_add(&q, i);
    assert_quantile(0, 1);
    assert_quantile(0.01, 1);
    assert_quantile(0.07, 7);
    assert_quantile(0.5, 50);
    assert_quantile(0.505, 51);
    assert_quantile(0.95, 95);
    assert_quantile(0.99, 99);
    assert_quantile(1, 100);
}

static void test_quantile_of_one_sample_is_that_sample(void **state)
{
    (void)state;
    quantile_add(&q, 42);
    assert_quantile(0, 42);
    assert_quantile(0.5, 42);
    assert_quantile(1, 42);
}

static void test_quantile_forgets_all_but_the_last_samples(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++)
        quantile_add(&q, 1e9);
    for (int i = 1; i <= QUANTILE_KEEP; i++)
        quantile_add(&q, i);
    assert_quantile(1, QUANTILE_KEEP);
    assert_int_equal(q.n, QUANTILE_KEEP + 10);
    assert_true(q.sum > 1e10); /* the sum is of all that ever was */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_quantile_of_nothing_is_nan, clear),
        cmocka_unit_test_setup(test_quantile_is_the_nearest_rank, clear),
        cmocka_unit_test_setup(test_quantile_of_one_sample_is_that_sample, clear),
        cmocka_unit_test_setup(test_quantile_forgets_all_but_the_last_samples, clear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
