/* SPDX-License-Identifier: MIT */
#include "load/verdict.h"

#include <math.h>
#include <string.h>

#include "cmocka_all.h"

#define BIT(by) (1u << (by))

static struct verdict_limits limits(const char *text)
{
    struct verdict_limits l;
    struct err e = {0};
    if (verdict_parse(text, &l, &e))
        fail_msg("%s: %s", text, e.text);
    return l;
}

/* Planned at 0.5 ms, first token after 100 ms, gaps of 20 and 30 ms, whole at 160 ms. */
static struct sample usual(void)
{
    return (struct sample){.outcome = SAMPLE_COMPLETED,
                           .answer = SAMPLE_ANSWER_GIVEN,
                           .planned_us = 500,
                           .started_us = 40500,
                           .sent_us = 41000,
                           .first_us = 100500,
                           .last_us = 150500,
                           .end_us = 160500,
                           .content_events = 3,
                           .longest_us = 30000};
}

static void test_limits_are_read(void **state)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "no limit"},
        {"ttft", "wants a time"},
        {"ttft=", "wants a time"},
        {"ttft=5", "wants a time"},
        {"gap=0ms", "wants a time"},
        {"ttft=1s,ttft=2s", "twice"},
        {"outcome=1s", "no limit"},
        {"ttft=1s,", "no limit"},
    };
    const struct verdict_limits l = limits("gap=50ms,ttft=0.5s,total=1m");
    (void)state;
    assert_true(l.ms[VERDICT_TTFT] == 500 && l.ms[VERDICT_GAP] == 50 &&
                l.ms[VERDICT_TOTAL] == 60000);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct verdict_limits none;
        struct err e = {0};
        if (verdict_parse(bad[i].text, &none, &e) == 0 || !strstr(e.text, bad[i].says))
            fail_msg("\"%s\": %s", bad[i].text, e.text);
    }
}

static void test_each_limit_at_its_edge(void **state)
{
    static const struct {
        const char *kept, *broken;
        enum verdict_by by;
    } cases[] = {{"ttft=100ms", "ttft=99ms", VERDICT_TTFT},
                 {"gap=30ms", "gap=29ms", VERDICT_GAP},
                 {"total=160ms", "total=159ms", VERDICT_TOTAL}};
    const struct sample s = usual();
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct verdict_limits l = limits(cases[i].kept);
        assert_int_equal(verdict_of(&l, &s), 0);
        l = limits(cases[i].broken);
        assert_int_equal(verdict_of(&l, &s), BIT(cases[i].by));
    }
}

static void test_what_is_not_known_is_not_kept(void **state)
{
    struct verdict_limits l = limits("ttft=1s,gap=1s");
    struct sample s = usual();
    (void)state;
    s.first_us = s.last_us = s.content_events = 0; /* in one piece */
    assert_int_equal(verdict_of(&l, &s), BIT(VERDICT_TTFT) | BIT(VERDICT_GAP));
    s = usual();
    s.content_events = 1; /* no gap that could be long */
    assert_int_equal(verdict_of(&l, &s), 0);
}

static void test_whole_and_not_empty(void **state)
{
    const struct verdict_limits none = {{0}}, all = limits("ttft=1ms,gap=1ms,total=1ms");
    struct sample s = usual();
    (void)state;
    assert_int_equal(verdict_of(&none, &s), 0);
    s.answer = SAMPLE_ANSWER_EMPTY;
    assert_int_equal(verdict_of(&none, &s), BIT(VERDICT_ANSWER));
    assert_int_equal(verdict_of(&all, &s), BIT(VERDICT_ANSWER) | BIT(VERDICT_TOTAL));
    s.answer = SAMPLE_ANSWER_OTHER;
    assert_int_equal(verdict_of(&all, &s), BIT(VERDICT_ANSWER) | BIT(VERDICT_TTFT) |
                                               BIT(VERDICT_GAP) | BIT(VERDICT_TOTAL));
    assert_int_equal(verdict_of(&none, &s), BIT(VERDICT_ANSWER));
    s.answer = SAMPLE_ANSWER_UNKNOWN;
    assert_int_equal(verdict_of(&none, &s), 0);
    for (enum sample_outcome o = SAMPLE_REFUSED; o <= SAMPLE_FAILED; o++) {
        s.outcome = o;
        assert_int_equal(verdict_of(&all, &s), BIT(VERDICT_OUTCOME));
    }
}

static void test_the_share_and_its_interval(void **state)
{
    const struct verdict_limits l = limits("total=160ms");
    struct verdict_count c = {0};
    struct tally t = {0};
    struct sample s = usual();
    double low, high;
    (void)state;
    assert_true(isnan(verdict_share(&c)));
    for (int i = 0; i < 9; i++)
        tally_add(&t, &s);
    s.end_us++;
    tally_add(&t, &s);
    s.outcome = SAMPLE_PENDING;
    tally_add(&t, &s);
    verdict_add(&c, &l, &t);
    assert_int_equal(c.n, 10);
    assert_int_equal(c.good, 9);
    assert_int_equal(c.failed[VERDICT_TOTAL], 1);
    assert_int_equal(c.failed[VERDICT_OUTCOME], 0);
    verdict_interval(&c, &low, &high); /* 9 of 10, Wilson: 0.596 to 0.982 */
    assert_true(fabs(low - 0.5958) < 1e-4 && fabs(high - 0.9821) < 1e-4);
    c.good = c.n;
    verdict_interval(&c, &low, &high);
    assert_true(fabs(low - 0.7225) < 1e-4 && fabs(high - 1) < 1e-9);
    tally_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits_are_read),
        cmocka_unit_test(test_each_limit_at_its_edge),
        cmocka_unit_test(test_what_is_not_known_is_not_kept),
        cmocka_unit_test(test_whole_and_not_empty),
        cmocka_unit_test(test_the_share_and_its_interval),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
