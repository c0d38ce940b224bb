/* SPDX-License-Identifier: MIT */
#include "base/nearest.h"

#include <string.h>

#include "cmocka_all.h"

static const char *nearest_of(const char *word)
{
    struct nearest n = nearest_to(word);
    nearest_offer(&n, "serve");
    nearest_offer(&n, "check");
    nearest_offer(&n, "upstreams.slot_dir");
    nearest_offer(&n, "go");
    return nearest_get(&n);
}

static void test_nearest_forgives_a_typing_error(void **state)
{
    (void)state;
    assert_string_equal(nearest_of("serve"), "serve");
    assert_string_equal(nearest_of("srve"), "serve");
}

static void test_nearest_counts_inserts_deletes_and_replacements(void **state)
{
    (void)state;
    assert_string_equal(nearest_of("chek"), "check");
    assert_string_equal(nearest_of("checks"), "check");
    assert_string_equal(nearest_of("chack"), "check");
    assert_string_equal(nearest_of("upstream.slotdir"), "upstreams.slot_dir");
    assert_string_equal(nearest_of("g"), "go");
}

static void test_nearest_does_not_guess_wildly(void **state)
{
    (void)state;
    assert_null(nearest_of("banana"));
    assert_null(nearest_of("xy"));
    assert_null(nearest_of("cheese"));
    struct nearest n = nearest_to("x");
    assert_null(nearest_get(&n));
}

static void test_nearest_takes_words_of_any_length(void **state)
{
    (void)state;
    char word[1000];
    memset(word, 'a', sizeof(word) - 1);
    word[sizeof(word) - 1] = '\0';
    assert_null(nearest_of(word));
    assert_null(nearest_of(""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nearest_forgives_a_typing_error),
        cmocka_unit_test(test_nearest_counts_inserts_deletes_and_replacements),
        cmocka_unit_test(test_nearest_does_not_guess_wildly),
        cmocka_unit_test(test_nearest_takes_words_of_any_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
