/* SPDX-License-Identifier: MIT */
#include "load/levels.h"

#include <math.h>
#include <string.h>

#include "cmocka_all.h"

#define MOST 6

static double out[MOST];

static size_t parse(const char *text, double low, struct err *e)
{
    size_t n = 0;
    memset(e, 0, sizeof(*e));
    return levels_parse(text, low, 1000, out, MOST, &n, e) ? 0 : n;
}

static void test_lists_and_ranges(void **state)
{
    static const struct {
        const char *text;
        size_t n;
        double levels[MOST];
    } cases[] = {
        {"4", 1, {4}},
        {"1,2,8", 3, {1, 2, 8}},
        {"8,2", 2, {8, 2}},
        {"1..32x2", 6, {1, 2, 4, 8, 16, 32}},
        {"1..20x3", 3, {1, 3, 9}},
        {"2..10+4", 3, {2, 6, 10}},
        {"2..9+4", 2, {2, 6}},
        {"5..5+1", 1, {5}},
        {"0.1..0.5+0.1", 5, {0.1, 0.2, 0.3, 0.4, 0.5}},
        {"0.5..2x2,10", 4, {0.5, 1, 2, 10}},
        {"1000", 1, {1000}},
    };
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (parse(cases[i].text, 0.001, &e) != cases[i].n)
            fail_msg("%s: %s", cases[i].text, e.text);
        for (size_t k = 0; k < cases[i].n; k++)
            assert_true(fabs(out[k] - cases[i].levels[k]) < 1e-9);
    }
}

static void test_what_is_wrong_is_said(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "\"\": no number"},
        {"1,,2", "no number"},
        {"-1", "no number"},
        {"nan", "no number"},
        {"0", "0 is not from 1"},
        {"1001", "not from 1 to 1000"},
        {"1..8", "no range like"},
        {"1..8x", "no range like"},
        {"1..8*2", "no range like"},
        {"1..8x2x", "no range like"},
        {"8..1x2", "goes up"},
        {"1..8x1", "goes up"},
        {"1..8+0", "goes up"},
        {"1..7+1", "at most 6"},
        {"1,2,3,4,5,6,7", "at most 6"},
        {"1 ", "no range like"},
    };
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (parse(cases[i].text, 1, &e) != 0 || !strstr(e.text, cases[i].says))
            fail_msg("\"%s\": %s", cases[i].text, e.text);
    }
    assert_int_equal(parse("1,2,3,4,5,6", 1, &e), 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists_and_ranges),
        cmocka_unit_test(test_what_is_wrong_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
