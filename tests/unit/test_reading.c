/* SPDX-License-Identifier: MIT */
#include "load/reading.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "cmocka_all.h"
#include "load/tally.h"

#define DELTA(json) "data: {\"choices\":[{\"index\":0,\"delta\":" json "}]}\n\n"
#define TEXT(s) DELTA("{\"content\":\"" s "\"}")
#define ROLE DELTA("{\"role\":\"assistant\",\"content\":null}")
#define STOP                                                                             \
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
#define USAGE                                                                            \
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":7,"    \
    "\"prompt_tokens_details\":{\"cached_tokens\":60}}}\n\n"
#define DONE "data: [DONE]\n\n"

static struct spread gaps;

static struct reading begin(void)
{
    struct reading r = {.sample = {.planned_us = 1000, .started_us = 3000}};
    memset(&gaps, 0, sizeof(gaps));
    reading_init(&r, PROMPT_CHAT, &gaps);
    return r;
}

static void feed(struct reading *r, const char *text, uint64_t now_us)
{
    reading_body(r, slice_of(text), now_us);
}

static void near(double value, double expected)
{
    if (!(fabs(value - expected) < 1e-9))
        fail_msg("%g, expected %g", value, expected);
}

/* A gap belongs to the kind that it ended in; the one behind it to the next. */
static void test_gaps_go_to_a_kind_that_may_change(void **state)
{
    static struct spread alone, met;
    struct reading r = begin();
    (void)state;
    reading_head(&r, 200, true);
    r.kind_gaps = &alone;
    feed(&r, TEXT("a"), 10000);
    feed(&r, TEXT("b"), 20000);
    r.kind_gaps = &met;
    feed(&r, TEXT("c"), 50000);
    r.then_gaps = &alone; /* what is under way is of the present one */
    feed(&r, TEXT("d"), 80000);
    feed(&r, TEXT("e"), 90000);
    reading_fini(&r);
    assert_int_equal(gaps.n, 4);
    assert_int_equal(alone.n, 2);
    assert_int_equal(met.n, 2);
    assert_true(spread_get(&alone, 1) < 11 && spread_get(&met, 0) > 29);
}

static void test_the_four_clocks(void **state)
{
    struct reading r = begin();
    (void)state;
    reading_sent(&r, 5000);
    reading_head(&r, 200, true);
    feed(&r, ROLE ": ping\n\n", 6000);
    feed(&r, TEXT("a"), 15000);
    feed(&r, TEXT("b"), 25000);
    feed(&r, ": ping\n\n", 30000);
    feed(&r, TEXT("c") TEXT("d"), 35000);
    feed(&r, STOP USAGE DONE, 41000);
    reading_end(&r, 42000);
    assert_int_equal(r.sample.outcome, SAMPLE_COMPLETED);
    near(reading_ttft_ms(&r.sample), 10);
    near(reading_first_ms(&r.sample), 14);
    near(reading_total_ms(&r.sample), 41);
    near(reading_gap_ms(&r.sample), 20.0 / 3);
    near(reading_longest_ms(&r.sample), 10);
    assert_int_equal(r.sample.answer, SAMPLE_ANSWER_GIVEN);
    near(reading_lag_ms(&r.sample), 2);
    assert_int_equal(gaps.n, 3); /* 10, 10, and 0: both came at once */
    near(spread_get(&gaps, 0.1), 0);
    assert_true(fabs(spread_get(&gaps, 0.5) - 10) < 0.05);
    assert_int_equal(r.sample.prompt_tokens, 100);
    assert_int_equal(r.sample.cached_tokens, 60);
    assert_int_equal(r.sample.output_tokens, 7);
    reading_fini(&r);
}

static void test_reasoning_and_tool_calls_are_content(void **state)
{
    static const char *const events[] = {
        DELTA("{\"reasoning_content\":\"hm\"}"),
        DELTA("{\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"function\":{\"name\":\"f\","
              "\"arguments\":\"\"}}]}")};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct reading r = begin();
        reading_sent(&r, 5000);
        reading_head(&r, 200, true);
        feed(&r, ROLE, 6000);
        feed(&r, events[i], 9000);
        feed(&r, DONE, 9500);
        reading_end(&r, 10000);
        near(reading_ttft_ms(&r.sample), 4);
        reading_fini(&r);
    }
}

static void test_unknown_is_not_zero(void **state)
{
    struct reading r = begin();
    (void)state;
    reading_sent(&r, 5000);
    reading_head(&r, 200, false);
    feed(&r, "{\"choices\":[{\"message\":{\"content\":\"x\"}}]}", 9000);
    reading_end(&r, 10000);
    assert_int_equal(r.sample.outcome, SAMPLE_COMPLETED);
    assert_true(isnan(reading_ttft_ms(&r.sample)));
    assert_true(isnan(reading_first_ms(&r.sample)));
    assert_true(isnan(reading_gap_ms(&r.sample)));
    near(reading_total_ms(&r.sample), 9);
    assert_int_equal(r.sample.prompt_tokens, -1);
    assert_int_equal(r.sample.cached_tokens, -1);
    assert_int_equal(r.sample.output_tokens, -1);
    reading_fini(&r);
}

static void test_an_answer_before_the_request_was_sent_took_no_time(void **state)
{
    struct reading r = begin();
    (void)state;
    reading_head(&r, 200, true);
    feed(&r, TEXT("a"), 8000);
    reading_sent(&r, 9000);
    feed(&r, DONE, 9500);
    reading_end(&r, 10000);
    near(reading_ttft_ms(&r.sample), 0);
    reading_fini(&r);
}

static void test_outcomes(void **state)
{
    static const struct {
        int status; /* 0: no head */
        bool stream;
        const char *body;
        int error; /* 0: the framing ended */
        enum sample_outcome outcome;
    } cases[] = {
        {200, true, TEXT("a") DONE, 0, SAMPLE_COMPLETED},
        {200, true, TEXT("a") STOP, 0, SAMPLE_COMPLETED},
        {200, true, TEXT("a"), 0, SAMPLE_INTERRUPTED},
        {200, true, "", 0, SAMPLE_INTERRUPTED},
        {200, true, TEXT("a"), ERR_CLOSED, SAMPLE_INTERRUPTED},
        {200, true, TEXT("a") "data: {\"error\":{\"message\":\"x\"}}\n\n", 0,
         SAMPLE_INTERRUPTED},
        {200, true, TEXT("a") "data: {\"error\":{\"message\":\"x\"}}\n\n" DONE, 0,
         SAMPLE_INTERRUPTED},
        {200, false, "{\"choices\":[{\"mess", 0, SAMPLE_INTERRUPTED},
        {429, false, "{\"error\":{}}", 0, SAMPLE_REFUSED},
        {503, false, "", ERR_CLOSED, SAMPLE_REFUSED},
        {0, false, "", ERR_REFUSED, SAMPLE_FAILED},
        {0, false, "", ERR_TIMEOUT, SAMPLE_FAILED},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct reading r = begin();
        assert_int_equal(r.sample.outcome, SAMPLE_PENDING);
        reading_sent(&r, 5000);
        if (cases[i].status)
            reading_head(&r, cases[i].status, cases[i].stream);
        feed(&r, cases[i].body, 6000);
        if (cases[i].error)
            reading_fail(&r, cases[i].error, 7000);
        else
            reading_end(&r, 7000);
        if (r.sample.outcome != cases[i].outcome)
            fail_msg("case %zu: %s", i, reading_outcome(r.sample.outcome));
        assert_int_equal(r.sample.status, cases[i].status);
        assert_int_equal(r.sample.error, cases[i].error);
        assert_int_equal(isnan(reading_total_ms(&r.sample)),
                         r.sample.outcome != SAMPLE_COMPLETED);
        reading_fini(&r);
    }
}

#define MESSAGE(json) "{\"choices\":[{\"index\":0,\"message\":" json "}]}"

static void test_whether_an_answer_says_anything(void **state)
{
    static const struct {
        bool stream;
        const char *body;
        enum sample_answer answer;
    } cases[] = {
        {true, ROLE STOP DONE, SAMPLE_ANSWER_EMPTY},
        {true, TEXT("a") STOP, SAMPLE_ANSWER_GIVEN},
        {true, TEXT("a"), SAMPLE_ANSWER_UNKNOWN}, /* not whole */
        {false, MESSAGE("{\"content\":\"\"}"), SAMPLE_ANSWER_EMPTY},
        {false, MESSAGE("{\"content\":\"a\"}"), SAMPLE_ANSWER_GIVEN},
        {false,
         MESSAGE("{\"content\":null,\"tool_calls\":[{\"function\":"
                 "{\"name\":\"f\",\"arguments\":\"{}\"}}]}"),
         SAMPLE_ANSWER_GIVEN},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct reading r = begin();
        reading_sent(&r, 5000);
        reading_head(&r, 200, cases[i].stream);
        feed(&r, cases[i].body, 6000);
        reading_end(&r, 7000);
        if (r.sample.answer != cases[i].answer)
            fail_msg("case %zu: %d", i, r.sample.answer);
        reading_fini(&r);
    }
}

static void test_paths_that_are_not_read_end_with_their_framing(void **state)
{
    struct reading r = {.sample = {.planned_us = 1000, .started_us = 1000}};
    (void)state;
    reading_init(&r, PROMPT_NONE, &gaps);
    reading_sent(&r, 2000);
    reading_head(&r, 200, false);
    feed(&r, "[0.5", 3000);
    reading_end(&r, 4000);
    assert_int_equal(r.sample.outcome, SAMPLE_COMPLETED);
    reading_fini(&r);
}

static void test_spread_is_right_to_half_a_percent(void **state)
{
    struct spread s = {0};
    (void)state;
    assert_true(isnan(spread_get(&s, 0.5)));
    for (double ms = 0.0011; ms < 1e6; ms *= 1.7) {
        memset(&s, 0, sizeof(s));
        spread_add(&s, ms);
        assert_true(fabs(spread_get(&s, 0.5) / ms - 1) < 0.0051);
    }
    memset(&s, 0, sizeof(s));
    spread_add(&s, 0);
    spread_add(&s, 0.0009);
    near(spread_get(&s, 1), 0);
    spread_add(&s, 1e9);
    assert_true(spread_get(&s, 1) > 1.1e6);
    for (int i = 1; i <= 1000; i++)
        spread_add(&s, i);
    assert_true(fabs(spread_get(&s, 0.9) / 902.7 - 1) < 0.01);
}

static void test_quantiles_are_nearest_rank(void **state)
{
    struct tally t = {0};
    size_t n;
    (void)state;
    for (uint64_t i = 100; i-- > 0;) {
        const struct sample s = {.index = i,
                                 .outcome = SAMPLE_COMPLETED,
                                 .planned_us = 1000,
                                 .end_us = 1000 + 1000 * (i + 1)};
        tally_add(&t, &s);
    }
    tally_add(&t, &(struct sample){.index = 100, .outcome = SAMPLE_FAILED});
    double *v = tally_values(&t, reading_total_ms, &n);
    assert_int_equal(n, 100);
    near(tally_quantile(v, n, 0.5), 50);
    near(tally_quantile(v, n, 0.9), 90);
    near(tally_quantile(v, n, 0.99), 99);
    near(tally_quantile(v, n, 0), 1);
    near(tally_quantile(v, 1, 0.99), 1);
    assert_true(isnan(tally_quantile(v, 0, 0.5)));
    tally_sort(&t);
    assert_int_equal(t.samples[0].index, 0);
    assert_int_equal(tally_count(&t, SAMPLE_FAILED), 1);
    free(v);
    tally_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_four_clocks),
        cmocka_unit_test(test_gaps_go_to_a_kind_that_may_change),
        cmocka_unit_test(test_reasoning_and_tool_calls_are_content),
        cmocka_unit_test(test_unknown_is_not_zero),
        cmocka_unit_test(test_an_answer_before_the_request_was_sent_took_no_time),
        cmocka_unit_test(test_outcomes),
        cmocka_unit_test(test_whether_an_answer_says_anything),
        cmocka_unit_test(test_paths_that_are_not_read_end_with_their_framing),
        cmocka_unit_test(test_spread_is_right_to_half_a_percent),
        cmocka_unit_test(test_quantiles_are_nearest_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
