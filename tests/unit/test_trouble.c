/* SPDX-License-Identifier: MIT */
#include "base/trouble.h"

#include "cmocka_all.h"

#define CALM TROUBLE_CALM_US

static void test_it_is_told_when_it_begins_and_when_it_is_over(void **state)
{
    (void)state;
    struct trouble t = {0};
    assert_false(trouble_ends(&t, 1)); /* there was none */
    assert_true(trouble_begins(&t, 5));
    assert_false(trouble_begins(&t, 6));
    assert_false(trouble_begins(&t, 7));
    assert_true(trouble_ends(&t, 7 + CALM));
    assert_int_equal(t.n, 3);
    assert_false(trouble_ends(&t, 8 + CALM));
    assert_true(trouble_begins(&t, 9 + CALM));
    assert_int_equal(t.n, 1);
}

static void test_what_fails_now_and_then_is_one_trouble(void **state)
{
    (void)state;
    struct trouble t = {0};
    assert_true(trouble_begins(&t, 1));
    for (uint64_t now = 2; now < 1 + 3 * CALM; now += CALM / 2) {
        assert_false(trouble_ends(&t, now));
        assert_false(trouble_begins(&t, now));
    }
    assert_false(trouble_ends(&t, t.last_us + CALM - 1));
    assert_true(trouble_ends(&t, t.last_us + CALM));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_is_told_when_it_begins_and_when_it_is_over),
        cmocka_unit_test(test_what_fails_now_and_then_is_one_trouble),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
