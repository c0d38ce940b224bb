/* SPDX-License-Identifier: MIT */
#include "base/hash128.h"

#include "cmocka_all.h"

static void test_hash128_hex_is_high_then_low(void **state)
{
    (void)state;
    char out[HASH128_HEX];
    const struct hash128 h = {.hi = 0x0123456789abcdef, .lo = 0xfedcba9876543210};
    assert_string_equal(hash128_hex(h, out), "0123456789abcdeffedcba9876543210");
    assert_string_equal(hash128_hex((struct hash128){0}, out),
                        "00000000000000000000000000000000");
}

static void test_hash128_parse_reads_what_hex_wrote(void **state)
{
    (void)state;
    struct hash128 h;
    assert_true(hash128_parse("0123456789abcdefFEDCBA9876543210", &h));
    assert_true(hash128_eq(
        h, (struct hash128){.hi = 0x0123456789abcdef, .lo = 0xfedcba9876543210}));
}

static void test_hash128_parse_refuses_all_else_and_leaves_the_value(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "0",
                                      "0123456789abcdeffedcba987654321",
                                      "0123456789abcdeffedcba98765432100",
                                      "0123456789abcdeffedcba987654321g",
                                      "0x23456789abcdeffedcba9876543210",
                                      " 123456789abcdeffedcba9876543210",
                                      "0123456789abcdeffedcba987654321\xe4",
                                      "@123456789abcdeffedcba9876543210"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct hash128 h = {.lo = 7};
        assert_false(hash128_parse(bad[i], &h));
        assert_int_equal(h.lo, 7);
    }
}

static void test_hash128_all_zero_means_none(void **state)
{
    (void)state;
    assert_true(hash128_none((struct hash128){0}));
    assert_false(hash128_none((struct hash128){.lo = 1}));
    assert_false(hash128_none((struct hash128){.hi = 1}));
    assert_false(hash128_eq((struct hash128){.lo = 1}, (struct hash128){.hi = 1}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hash128_hex_is_high_then_low),
        cmocka_unit_test(test_hash128_parse_reads_what_hex_wrote),
        cmocka_unit_test(test_hash128_parse_refuses_all_else_and_leaves_the_value),
        cmocka_unit_test(test_hash128_all_zero_means_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
