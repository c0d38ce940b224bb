/* SPDX-License-Identifier: MIT */
#include "base/err.h"

#include <errno.h>
#include <string.h>

#include "cmocka_all.h"

static void test_err_first_error_wins(void **state)
{
    (void)state;
    struct err e = {0};
    assert_int_equal(err_set(&e, ERR_LIMIT, "%d too many", 3), ERR_LIMIT);
    assert_int_equal(err_set(&e, ERR_IO, "later"), ERR_IO);
    assert_int_equal(e.code, ERR_LIMIT);
    assert_string_equal(e.text, "3 too many");
}

static void test_err_details_are_optional(void **state)
{
    (void)state;
    assert_int_equal(err_set(NULL, ERR_FORMAT, "x"), ERR_FORMAT);
    assert_int_equal(err_errno(NULL, "x"), ERR_IO);
    assert_int_equal(err_wrap(NULL, "x"), ERR_NONE);
}

static void test_err_errno_says_what_the_system_said(void **state)
{
    (void)state;
    struct err e = {0};
    errno = ENOENT;
    assert_int_equal(err_errno(&e, "opening %s", "/x"), ERR_IO);
    assert_string_equal(e.text, "opening /x: No such file or directory");
}

static void test_err_wrap_puts_context_in_front(void **state)
{
    (void)state;
    struct err e = {0};
    assert_int_equal(err_wrap(&e, "nothing happened"), ERR_NONE);
    assert_string_equal(e.text, "");
    err_set(&e, ERR_CHECKSUM, "damaged");
    assert_int_equal(err_wrap(&e, "block %d", 7), ERR_CHECKSUM);
    assert_int_equal(err_wrap(&e, "reading %s", "/x"), ERR_CHECKSUM);
    assert_string_equal(e.text, "reading /x: block 7: damaged");
}

static void test_err_long_texts_are_cut_and_terminated(void **state)
{
    (void)state;
    char big[1000];
    memset(big, 'a', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    for (size_t n = 310; n < 330; n++) {
        struct err e = {0};
        err_set(&e, ERR_IO, "%.*s", 300, big);
        err_wrap(&e, "%.*s", (int)n, big);
        assert_int_equal(strnlen(e.text, sizeof(e.text)), sizeof(e.text) - 1);
    }
    struct err e = {0};
    err_set(&e, ERR_IO, "%s", "why");
    err_wrap(&e, "%.*s", 315, big);
    assert_string_equal(e.text + 315, ": wh");
}

static void test_err_name_is_short_and_known(void **state)
{
    (void)state;
    assert_string_equal(err_name(ERR_INVALID), "invalid");
    assert_string_equal(err_name(ERR_UNSUPPORTED), "unsupported");
    assert_string_equal(err_name(ERR_NONE), "none");
    assert_string_equal(err_name(42), "unknown");
}

static void test_err_codes_are_negative(void **state)
{
    (void)state;
#define X(code, name) assert_true((code) < 0);
    ERR_CODES(X)
#undef X
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_err_first_error_wins),
        cmocka_unit_test(test_err_details_are_optional),
        cmocka_unit_test(test_err_errno_says_what_the_system_said),
        cmocka_unit_test(test_err_wrap_puts_context_in_front),
        cmocka_unit_test(test_err_long_texts_are_cut_and_terminated),
        cmocka_unit_test(test_err_name_is_short_and_known),
        cmocka_unit_test(test_err_codes_are_negative),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
