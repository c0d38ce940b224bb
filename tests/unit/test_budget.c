/* SPDX-License-Identifier: MIT */
#include "base/budget.h"

#include "cmocka_all.h"

static void test_shares_fill_it_and_no_more(void **state)
{
    (void)state;
    struct budget b = {.max = 10};
    uint64_t mine = 0, yours = 0;
    assert_true(budget_set(&b, &mine, 6));
    assert_false(budget_set(&b, &yours, 5));
    assert_int_equal(yours, 0);
    assert_int_equal(b.used, 6);
    assert_true(budget_set(&b, &yours, 4));
    assert_int_equal(b.used, 10);
    assert_false(budget_fits(&b, mine, 7));
    assert_true(budget_set(&b, &mine, 0));
    assert_int_equal(b.used, 4);
}

static void test_amounts_beyond_all_numbers_do_not_fit(void **state)
{
    (void)state;
    struct budget b = {.max = 10};
    uint64_t mine = 0, yours = 0;
    assert_true(budget_set(&b, &mine, 6));
    assert_false(budget_set(&b, &yours, UINT64_MAX));
    assert_false(budget_set(&b, &yours, UINT64_MAX - 6));
    assert_int_equal(b.used, 6);
}

/* A bound that was lowered below what is held. */
static void test_share_may_always_become_smaller(void **state)
{
    (void)state;
    struct budget b = {.max = 10};
    uint64_t mine = 0, yours = 0;
    assert_true(budget_set(&b, &mine, 10));
    b.max = 3;
    assert_false(budget_set(&b, &yours, 1));
    assert_true(budget_set(&b, &mine, 9));
    assert_true(budget_set(&b, &mine, 3));
    assert_false(budget_set(&b, &mine, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares_fill_it_and_no_more),
        cmocka_unit_test(test_amounts_beyond_all_numbers_do_not_fit),
        cmocka_unit_test(test_share_may_always_become_smaller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
