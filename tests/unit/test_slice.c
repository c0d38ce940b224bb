/* SPDX-License-Identifier: MIT */
#include "base/slice.h"

#include "cmocka_all.h"

static void test_slice_of_knows_the_length(void **state)
{
    (void)state;
    assert_int_equal(slice_of("abc").len, 3);
    assert_int_equal(slice_of("").len, 0);
    assert_int_equal(slice_of(NULL).len, 0);
    assert_int_equal(SLICE_LIT("a\0b").len, 3);
    assert_int_equal(slice_make("abc", 2).len, 2);
}

static void test_slice_eq_compares_bytes(void **state)
{
    (void)state;
    assert_true(slice_eq(slice_of("ab"), slice_make("abc", 2)));
    assert_false(slice_eq(slice_of("ab"), slice_of("abc")));
    assert_false(slice_eq(slice_of("ab"), slice_of("aB")));
    assert_false(slice_eq(SLICE_LIT("a\0b"), SLICE_LIT("a\0c")));
    assert_true(slice_eq(slice_of(NULL), slice_of("")));
}

static void test_slice_eq_nocase_is_for_ascii(void **state)
{
    (void)state;
    assert_true(slice_eq_nocase(slice_of("Content-Type"), slice_of("content-TYPE")));
    assert_false(slice_eq_nocase(slice_of("ab"), slice_of("ac")));
    assert_false(slice_eq_nocase(slice_of("ab"), slice_of("abc")));
    assert_true(slice_eq_nocase(slice_of(NULL), slice_of("")));
}

static void test_slice_starts_with_its_prefix(void **state)
{
    (void)state;
    assert_true(slice_starts(slice_of("/v1/models"), slice_of("/v1/")));
    assert_true(slice_starts(slice_of("abc"), slice_of("abc")));
    assert_true(slice_starts(slice_of("abc"), slice_of("")));
    assert_true(slice_starts(slice_of(NULL), slice_of(NULL)));
    assert_false(slice_starts(slice_of("ab"), slice_of("abc")));
    assert_false(slice_starts(slice_of("xbc"), slice_of("abc")));
}

static void test_slice_trim_takes_spaces_and_tabs_only(void **state)
{
    (void)state;
    assert_true(slice_eq(slice_trim(slice_of(" \t a b\t ")), slice_of("a b")));
    assert_true(slice_eq(slice_trim(slice_of("\na\r")), slice_of("\na\r")));
    assert_int_equal(slice_trim(slice_of(" \t ")).len, 0);
    assert_int_equal(slice_trim(slice_of(NULL)).len, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slice_of_knows_the_length),
        cmocka_unit_test(test_slice_eq_compares_bytes),
        cmocka_unit_test(test_slice_eq_nocase_is_for_ascii),
        cmocka_unit_test(test_slice_starts_with_its_prefix),
        cmocka_unit_test(test_slice_trim_takes_spaces_and_tabs_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
