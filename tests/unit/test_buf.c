/* SPDX-License-Identifier: MIT */
#include "base/buf.h"

#include <stdlib.h>

#include "cmocka_all.h"

static void assert_holds(const struct buf *b, const char *want)
{
    assert_true(slice_eq(buf_slice(b), slice_of(want)));
    assert_int_equal(buf_len(b), strlen(want));
}

static void test_buf_zeroed_is_an_empty_buffer(void **state)
{
    (void)state;
    struct buf b = {0};
    assert_holds(&b, "");
    buf_append(&b, NULL, 0);
    buf_append_str(&b, "");
    buf_consume(&b, 0);
    assert_holds(&b, "");
    assert_non_null(buf_slice(&b).ptr);
    buf_free(&b);
}

static void test_buf_appends_in_order(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_append(&b, "ab", 2);
    buf_append_char(&b, 'c');
    buf_append_slice(&b, SLICE_LIT("de"));
    buf_append_str(&b, "f");
    buf_printf(&b, "%d-%s", 12, "x");
    assert_holds(&b, "abcdef12-x");
    buf_free(&b);
    assert_holds(&b, "");
}

static void test_buf_keeps_nul_bytes(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_append(&b, "a\0b", 3);
    assert_int_equal(buf_len(&b), 3);
    assert_memory_equal(buf_slice(&b).ptr, "a\0b", 3);
    buf_free(&b);
}

static void test_buf_consume_drops_the_front_and_starts_over_when_empty(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_append_str(&b, "abcdef");
    buf_consume(&b, 2);
    assert_holds(&b, "cdef");
    buf_consume(&b, 4);
    assert_holds(&b, "");
    assert_int_equal(b.start, 0);
    assert_int_equal(b.end, 0);
    buf_append_str(&b, "x");
    buf_clear(&b);
    assert_holds(&b, "");
    buf_free(&b);
}

static void test_buf_moves_instead_of_growing_when_most_was_consumed(void **state)
{
    (void)state;
    struct buf b = {0};
    char block[256];
    memset(block, 'a', sizeof(block));
    buf_append(&b, block, sizeof(block));
    const size_t cap = b.cap;
    buf_consume(&b, 250);
    buf_append(&b, "0123456789", 10);
    assert_int_equal(b.cap, cap);
    assert_holds(&b, "aaaaaa0123456789");
    buf_free(&b);
}

static void test_buf_reserve_gives_room_that_commit_takes(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_append_str(&b, "x");
    char *at = buf_reserve(&b, 100000);
    memset(at, 'y', 100000);
    buf_commit(&b, 3);
    assert_holds(&b, "xyyy");
    buf_free(&b);
}

static void test_buf_grows_to_what_is_asked_for_or_twice(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_reserve(&b, 1000);
    assert_int_equal(b.cap, 1000);
    assert_int_equal(buf_held(&b), 1000);
    buf_commit(&b, 1000);
    buf_append_char(&b, 'x');
    assert_int_equal(b.cap, 2000);
    buf_reserve(&b, 1 << 20);
    assert_int_equal(b.cap, 1001 + (1 << 20));
    assert_int_equal(buf_held(&b), 4096); /* nobody wrote to the rest */
    buf_free(&b);
    assert_int_equal(buf_held(&b), 0);
}

static void test_buf_printf_takes_long_texts(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_printf(&b, "%5000d", 7);
    assert_int_equal(buf_len(&b), 5000);
    assert_int_equal(buf_slice(&b).ptr[4999], '7');
    buf_free(&b);
}

static void test_buf_take_str_hands_over_and_empties(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_append_str(&b, "abc");
    buf_consume(&b, 1);
    char *s = buf_take_str(&b);
    assert_string_equal(s, "bc");
    assert_holds(&b, "");
    free(s);
    s = buf_take_str(&b);
    assert_string_equal(s, "");
    free(s);
}

/* Random steps against a plain array that does everything the slow way. */
static void test_buf_agrees_with_an_array(void **state)
{
    (void)state;
    static char model[1 << 16];
    size_t len = 0;
    struct buf b = {0};
    unsigned seed = 1;
    for (int step = 0; step < 20000; step++) {
        seed = seed * 1103515245u + 12345u;
        const size_t n = (seed >> 16) % 300;
        if (seed & 0x8000 && len + n <= sizeof(model)) {
            char bytes[300];
            memset(bytes, (int)('a' + step % 26), n);
            memcpy(model + len, bytes, n);
            len += n;
            buf_append(&b, bytes, n);
        } else {
            const size_t drop = n < len ? n : len;
            memmove(model, model + drop, len - drop);
            len -= drop;
            buf_consume(&b, drop);
        }
        assert_true(slice_eq(buf_slice(&b), slice_make(model, len)));
    }
    buf_free(&b);
}

/* Sanitizers end the process instead. */
#ifndef __SANITIZE_ADDRESS__
static void test_try_reserve_leaves_the_contents_where_there_is_no_memory(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_append_str(&b, "kept");
    assert_null(buf_try_reserve(&b, SIZE_MAX / 4));
    assert_int_equal(buf_len(&b), 4);
    assert_memory_equal(buf_slice(&b).ptr, "kept", 4);
    memcpy(buf_try_reserve(&b, 1000), "more", 4);
    buf_commit(&b, 4);
    assert_memory_equal(buf_slice(&b).ptr, "keptmore", 8);
    buf_free(&b);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buf_zeroed_is_an_empty_buffer),
        cmocka_unit_test(test_buf_appends_in_order),
        cmocka_unit_test(test_buf_keeps_nul_bytes),
        cmocka_unit_test(test_buf_consume_drops_the_front_and_starts_over_when_empty),
        cmocka_unit_test(test_buf_moves_instead_of_growing_when_most_was_consumed),
        cmocka_unit_test(test_buf_reserve_gives_room_that_commit_takes),
        cmocka_unit_test(test_buf_grows_to_what_is_asked_for_or_twice),
        cmocka_unit_test(test_buf_printf_takes_long_texts),
        cmocka_unit_test(test_buf_take_str_hands_over_and_empties),
        cmocka_unit_test(test_buf_agrees_with_an_array),
#ifndef __SANITIZE_ADDRESS__
        cmocka_unit_test(test_try_reserve_leaves_the_contents_where_there_is_no_memory),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
