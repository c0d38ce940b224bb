/* SPDX-License-Identifier: MIT */

/*
 * Simulated days of a replica in virtual time: what the ledger says is compared with what
 * the cold runs, which the simulation can make and a real gateway cannot, would have cost.
 */

#include "prefix/savings.h"

#include <math.h>
#include <string.h>

#include "base/draw.h"
#include "cmocka_all.h"

#define DAYS 2000
#define LONGEST 8000.0 /* tokens of a prompt */

static struct savings ledger;
static uint64_t rng;

static int clear(void **state)
{
    (void)state;
    memset(&ledger, 0, sizeof(ledger));
    rng = 20261201;
    return 0;
}

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

/* An engine whose speed drifts, with noise of both kinds. */
struct day {
    double a, b, c;            /* cost of a prefill, as in ttft.h */
    double relative, absolute; /* sigma of its noise: a part of the time; ms */
    double drift;              /* it is slower by this part at the end */
    double hits;               /* share of prompts whose start is in the cache */
    double detour;  /* what that start costs all the same: 1, as much as cold */
    double overlap; /* share of requests beside other prefills */
    int n;
};

static double run(const struct day *d, double at, double reused, double fresh)
{
    const double all = reused + fresh;
    const double ms = (d->a + d->b * fresh + d->c * (all * all - reused * reused)) *
                      (1 + d->drift * at);
    return fmax(ms * 0.05, ms * (1 + d->relative * normal()) + d->absolute * normal());
}

/* Returns what was really saved by the requests that the ledger was told of: the cold run
 * of each is made, too, which a gateway cannot. One prompt in forty is the longest and
 * cold, so that all others can be judged. */
static double live_through(const struct day *d)
{
    double saved = 0;
    for (int i = 0; i < d->n; i++) {
        const bool longest = i % 40 == 5;
        const double at = (double)i / d->n;
        const double all = longest ? LONGEST : floor(between(100, LONGEST));
        const bool hit = !longest && uniform() < d->hits;
        const double reused = hit ? floor(all * between(0.3, 0.98)) : 0;
        if (!longest && uniform() < d->overlap)
            continue; /* nobody tells the ledger of these */
        const double cold = run(d, at, 0, all), took = run(d, at, reused, all - reused);
        const double more = hit && d->detour > 0 ? d->detour * run(d, at, 0, reused) : 0;
        const enum savings_source source = !hit    ? SAVINGS_COLD
                                           : i % 2 ? SAVINGS_RESIDENT
                                                   : SAVINGS_RESTORED;
        savings_add(&ledger, source, reused, all - reused, took, more);
        saved += hit ? cold - took - more : 0;
    }
    return saved;
}

static struct day some_day(void)
{
    struct day d = {.a = between(5, 100),
                    .b = between(0.05, 3),
                    .c = between(0, 2e-5),
                    .drift = between(-0.1, 0.1),
                    .hits = between(0.2, 0.9),
                    .overlap = between(0, 0.5),
                    .n = (int)between(60, 1500)};
    const double kind = uniform();
    if (kind < 0.6)
        d.relative = between(0.01, 0.15);
    if (kind > 0.4)
        d.absolute = between(5, 200);
    return d;
}

static struct savings_total all_of_it(void)
{
    struct savings_total t;
    savings_total(&ledger, SAVINGS_COLD, &t);
    return t;
}

static void test_savings_of_2000_days_are_unbiased_and_their_intervals_hold(void **state)
{
    double error = 0;
    int judged = 0, inside = 0;
    (void)state;
    for (int i = 0; i < DAYS; i++) {
        const struct day d = some_day();
        memset(&ledger, 0, sizeof(ledger));
        const double saved = live_through(&d);
        const struct savings_total t = all_of_it();
        if (t.unjudged)
            continue; /* then less was judged than was saved */
        judged++;
        inside += t.low <= saved && saved <= t.high;
        error += (t.ms - saved) / fabs(saved);
    }
    print_message("%d days: bias %+.2f %%, %.2f %% of the intervals hold\n", judged,
                  100 * error / judged, 100.0 * inside / judged);
    assert_true(judged >= DAYS * 99 / 100);
    assert_true(fabs(error / judged) < 0.03);
    assert_true(inside >= judged * 0.94 && inside <= judged * 0.96);
}

/* A cache that does not help is no difference, in all but one of forty days each way. The
 * constant part is paid once by a cold run, and twice by this detour. */
static void test_savings_of_a_cache_without_gain_are_none(void **state)
{
    int gains = 0, losses = 0;
    (void)state;
    for (int i = 0; i < DAYS; i++) {
        struct day d = some_day();
        d.a = 0;
        d.absolute /= 20; /* times below 0 are none: much noise makes short ones longer */
        d.detour = 1;
        memset(&ledger, 0, sizeof(ledger));
        live_through(&d);
        const struct savings_total t = all_of_it();
        gains += t.low > 0;
        losses += t.high < 0;
    }
    print_message("%d gains, %d losses in %d days\n", gains, losses, DAYS);
    assert_true(gains <= DAYS * 3 / 100 && losses <= DAYS * 3 / 100);
}

static void test_savings_of_a_slower_cache_are_a_loss(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        struct day d = some_day();
        d.detour = 1.5;
        d.n = 1000;
        memset(&ledger, 0, sizeof(ledger));
        live_through(&d);
        assert_true(all_of_it().high < 0);
    }
}

/* ---- accounts ---------------------------------------------------------------------- */

static const struct day quiet = {.a = 10, .b = 1, .hits = 0.5, .n = 400};

static void test_savings_are_told_apart_by_source(void **state)
{
    struct savings_total resident, restored;
    (void)state;
    const double saved = live_through(&quiet);
    savings_total(&ledger, SAVINGS_RESIDENT, &resident);
    savings_total(&ledger, SAVINGS_RESTORED, &restored);
    assert_int_equal(resident.n + restored.n, all_of_it().n);
    assert_true(resident.n > 0 && restored.n > 0);
    assert_true(fabs(resident.ms + restored.ms - saved) < 1e-6 * saved);
}

static void test_savings_are_unknown_before_anything_was_measured(void **state)
{
    (void)state;
    assert_int_equal(all_of_it().n, 0);
    assert_true(isnan(all_of_it().ms) && isnan(all_of_it().low) &&
                isnan(all_of_it().high));
    savings_add(&ledger, SAVINGS_RESIDENT, 900, 100, 50, 0);
    assert_int_equal(all_of_it().n, 0);
    assert_int_equal(all_of_it().unjudged, 1);
    assert_true(isnan(all_of_it().ms));
}

static void test_savings_of_longer_prompts_than_measured_are_left_out(void **state)
{
    (void)state;
    live_through(&quiet);
    const struct savings_total before = all_of_it();
    savings_add(&ledger, SAVINGS_RESIDENT, LONGEST, 100, 120, 0);
    assert_int_equal(all_of_it().n, before.n);
    assert_int_equal(all_of_it().unjudged, before.unjudged + 1);
}

static void test_savings_ignore_what_is_no_measurement(void **state)
{
    (void)state;
    savings_add(&ledger, SAVINGS_RESIDENT, 900, 100, -1, 0);
    savings_add(&ledger, SAVINGS_RESIDENT, 900, 0, 10, 0);
    savings_add(&ledger, SAVINGS_RESIDENT, 900, 100, (double)NAN, 0);
    savings_add(&ledger, SAVINGS_RESIDENT, 900, 100, 10, -1);
    savings_add(&ledger, SAVINGS_RESIDENT, 900, 100, 10, (double)NAN);
    assert_int_equal(all_of_it().unjudged, 0);
}

static void test_savings_of_replicas_add_up(void **state)
{
    struct savings_total sum = {0}, one = {.n = 2, .ms = 100, .low = 70, .high = 130};
    (void)state;
    savings_total_add(&sum, &(struct savings_total){.ms = (double)NAN,
                                                    .low = (double)NAN,
                                                    .high = (double)NAN});
    assert_int_equal(sum.n, 0);
    assert_true(isnan(sum.ms));
    savings_total_add(&sum, &one);
    assert_true(sum.ms == 100 && sum.low == 70 && sum.high == 130);
    one =
        (struct savings_total){.n = 1, .unjudged = 3, .ms = -10, .low = -50, .high = 30};
    savings_total_add(&sum, &one);
    assert_int_equal(sum.n, 3);
    assert_int_equal(sum.unjudged, 3);
    assert_true(sum.ms == 90 && sum.low == 40 && sum.high == 140); /* 30² + 40² = 50² */
}

/* After a block in which all ran cold, blocks in which nothing does. */
static void test_savings_remember_long_prefills(void **state)
{
    (void)state;
    for (int i = 0; i < SAVINGS_BLOCK; i++)
        savings_add(&ledger, SAVINGS_COLD, 0, 100 + 10 * (i % 100), 200 + 20 * (i % 100),
                    0);
    for (int i = 0; i < 3 * SAVINGS_BLOCK; i++)
        savings_add(&ledger, SAVINGS_RESTORED, 900, 1 + i % 50, 2.0 * (1 + i % 50), 3);
    const struct savings_total t = all_of_it();
    assert_int_equal(t.n, 3 * SAVINGS_BLOCK);
    assert_true(fabs(t.ms - 3.0 * SAVINGS_BLOCK * (2 * 900 - 3)) < 0.01 * t.ms);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup(test_savings_##name, clear)
        TEST(of_2000_days_are_unbiased_and_their_intervals_hold),
        TEST(of_a_cache_without_gain_are_none),
        TEST(of_a_slower_cache_are_a_loss),
        TEST(are_told_apart_by_source),
        TEST(are_unknown_before_anything_was_measured),
        TEST(of_longer_prompts_than_measured_are_left_out),
        TEST(ignore_what_is_no_measurement),
        TEST(of_replicas_add_up),
        TEST(remember_long_prefills),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
