/* SPDX-License-Identifier: MIT */
#include "gateway/stats.h"

#include <math.h>
#include <string.h>

#include "cmocka_all.h"

static struct figures f;

static int set_up(void **state)
{
    (void)state;
    memset(&f, 0, sizeof(f));
    return 0;
}

/* A whole answer with all that is known of it. */
static struct stats_sample whole(int64_t prompt, int64_t cached)
{
    return (struct stats_sample){.outcome = STATS_COMPLETED,
                                 .generates = true,
                                 .prompt_tokens = prompt,
                                 .cached_tokens = cached,
                                 .generated_tokens = 5,
                                 .available = 0,
                                 .captured = 0,
                                 .ttft_ms = -1,
                                 .saved_ms = NAN,
                                 .block_tokens = 64};
}

static void add(struct stats_sample s)
{
    stats_add(&f, &s);
}

static void test_rates_are_unknown_before_anything_was_counted(void **state)
{
    (void)state;
    assert_true(isnan(stats_hit_rate_tokens(&f)));
    assert_true(isnan(stats_hit_rate_requests(&f)));
    json_t *o = stats_json(&f);
    assert_true(json_is_null(json_object_get(o, "hit_rate_tokens")));
    assert_true(json_is_null(json_object_get(o, "hit_rate_requests")));
    assert_true(json_is_null(json_object_get(json_object_get(o, "ttft_cold_ms"), "p50")));
    assert_int_equal(json_integer_value(json_object_get(o, "requests")), 0);
    json_decref(o);
}

static void test_rates_are_by_token_and_by_request(void **state)
{
    (void)state;
    add(whole(1000, 900));
    add(whole(100, 0));
    assert_true(fabs(stats_hit_rate_tokens(&f) - 900.0 / 1100) < 1e-12);
    assert_true(fabs(stats_hit_rate_requests(&f) - 0.5) < 1e-12);
    assert_int_equal(f.counted, 2);
    assert_int_equal(f.generated_tokens, 10);
}

static void test_less_than_a_block_is_no_hit(void **state)
{
    (void)state;
    add(whole(1000, 63));
    assert_int_equal(f.hits, 0);
    assert_int_equal(f.short_hits, 1);
    assert_int_equal(f.delivered_tokens, 63);
    add(whole(1000, 64));
    add(whole(1000, 0));
    assert_int_equal(f.hits, 1);
    assert_int_equal(f.short_hits, 1);
}

static void test_what_must_not_use_the_cache_is_in_no_rate(void **state)
{
    (void)state;
    struct stats_sample s = whole(1000, 0);
    add(whole(1000, 900));
    s.without_cache = s.ineligible = true;
    add(s);
    assert_int_equal(f.generations, 2);
    assert_int_equal(f.ineligible, 1);
    assert_int_equal(f.counted, 1);
    assert_true(fabs(stats_hit_rate_tokens(&f) - 0.9) < 1e-12);
}

static void test_unknown_counts_are_left_out(void **state)
{
    (void)state;
    add(whole(-1, 50));
    add(whole(100, -1));
    add(whole(0, 0));
    assert_int_equal(f.requests, 3);
    assert_int_equal(f.generations, 3);
    assert_int_equal(f.counted, 0);
    assert_int_equal(f.prompt_tokens, 0);
    assert_int_equal(f.delivered_tokens, 0);
    assert_int_equal(f.generated_tokens, 0);
    assert_true(isnan(stats_hit_rate_tokens(&f)));
}

static void test_only_whole_answers_are_counted(void **state)
{
    (void)state;
    for (int outcome = 0; outcome < STATS_OUTCOMES; outcome++) {
        struct stats_sample s = whole(100, 64);
        s.outcome = (enum stats_outcome)outcome;
        add(s);
        assert_int_equal(f.outcome[outcome], 1);
    }
    assert_int_equal(f.requests, STATS_OUTCOMES);
    assert_int_equal(f.counted, 1);
    assert_int_equal(f.prompt_tokens, 100);
}

static void test_what_does_not_generate_counts_as_a_request_only(void **state)
{
    (void)state;
    struct stats_sample s = whole(100, 64);
    s.generates = false;
    s.miss = "first-sight";
    add(s);
    assert_int_equal(f.requests, 1);
    assert_int_equal(f.generations, 0);
    assert_int_equal(f.counted, 0);
    assert_int_equal(f.misses[0], 0);
}

static void test_predictions_never_exceed_the_prompt(void **state)
{
    (void)state;
    struct stats_sample s = whole(100, 64);
    s.available = 5000;
    s.captured = 101;
    add(s);
    assert_int_equal(f.available_tokens, 100);
    assert_int_equal(f.captured_tokens, 100);
    s.available = s.captured = -1;
    add(s);
    assert_int_equal(f.available_tokens, 100);
    assert_int_equal(f.captured_tokens, 100);
}

static void test_delivered_is_resident_or_restored(void **state)
{
    (void)state;
    struct stats_sample s = whole(100, 64);
    add(s);
    s.restored = true;
    s.cached_tokens = 80;
    add(s);
    assert_int_equal(f.resident_tokens, 64);
    assert_int_equal(f.restored_tokens, 80);
    assert_int_equal(f.delivered_tokens, 144);
    s.cached_tokens = 63; /* nothing came of that restore */
    add(s);
    assert_int_equal(f.restored_tokens, 80);
    assert_int_equal(f.resident_tokens, 64 + 63);
}

static void test_ttft_is_apart_for_cold_and_cached(void **state)
{
    (void)state;
    struct stats_sample s = whole(100, 49);
    s.ttft_ms = 900;
    add(s);
    s.cached_tokens = 50;
    s.ttft_ms = 20;
    add(s);
    s.ttft_ms = -1; /* not a stream */
    add(s);
    assert_int_equal(f.ttft_cold_ms.n, 1);
    assert_int_equal(f.ttft_cached_ms.n, 1);
    assert_true(quantile_get(&f.ttft_cold_ms, 0.5) == 900);
    assert_true(quantile_get(&f.ttft_cached_ms, 0.5) == 20);
}

static void test_savings_are_summed_where_known_losses_included(void **state)
{
    (void)state;
    struct stats_sample s = whole(100, 64);
    add(s);
    s.saved_ms = 30;
    add(s);
    s.saved_ms = -10;
    add(s);
    assert_int_equal(f.saved_ms.n, 2);
    assert_true(f.saved_ms.sum == 20);
}

static void test_misses_are_counted_by_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < STATS_MISS_KINDS; i++) {
        struct stats_sample s = whole(100, 0);
        s.miss = stats_miss_name(i);
        assert_true(s.miss[0]);
        add(s);
        add(s);
    }
    for (size_t i = 0; i < STATS_MISS_KINDS; i++)
        assert_int_equal(f.misses[i], 2);
    assert_string_equal(stats_miss_name(STATS_MISS_KINDS), "");
}

static void test_marks_are_counted(void **state)
{
    (void)state;
    struct stats_sample s = whole(100, 0);
    s.uninspected = s.ineligible = s.implausible = s.unterminated = true;
    add(s);
    assert_int_equal(f.uninspected, 1);
    assert_int_equal(f.ineligible, 1);
    assert_int_equal(f.implausible, 1);
    assert_int_equal(f.unterminated, 1);
}

static void test_json_has_every_figure(void **state)
{
    (void)state;
    struct stats_sample s = whole(200, 100);
    s.ttft_ms = 12.5;
    s.miss = "evicted";
    add(s);
    json_t *o = stats_json(&f);
    assert_int_equal(json_integer_value(json_object_get(o, "prompt_tokens")), 200);
    assert_int_equal(json_integer_value(json_object_get(o, "completed")), 1);
    assert_int_equal(json_integer_value(json_object_get(o, "rejected")), 0);
    assert_true(json_real_value(json_object_get(o, "hit_rate_tokens")) == 0.5);
    json_t *q = json_object_get(o, "ttft_cached_ms");
    assert_true(json_real_value(json_object_get(q, "p95")) == 12.5);
    json_t *m = json_object_get(o, "misses");
    assert_int_equal(json_object_size(m), STATS_MISS_KINDS);
    assert_int_equal(json_integer_value(json_object_get(m, "evicted")), 1);
    json_decref(o);
}

#define TEST(name) cmocka_unit_test_setup(test_##name, set_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(rates_are_unknown_before_anything_was_counted),
        TEST(rates_are_by_token_and_by_request),
        TEST(less_than_a_block_is_no_hit),
        TEST(what_must_not_use_the_cache_is_in_no_rate),
        TEST(unknown_counts_are_left_out),
        TEST(only_whole_answers_are_counted),
        TEST(what_does_not_generate_counts_as_a_request_only),
        TEST(predictions_never_exceed_the_prompt),
        TEST(delivered_is_resident_or_restored),
        TEST(ttft_is_apart_for_cold_and_cached),
        TEST(savings_are_summed_where_known_losses_included),
        TEST(misses_are_counted_by_reason),
        TEST(marks_are_counted),
        TEST(json_has_every_figure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
