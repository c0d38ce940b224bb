/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "proto/sse.h"

/* Events as text: "name|data;", one after the other. */
static void on_event(void *arg, struct slice name, struct slice data)
{
    struct buf *log = arg;
    buf_append_slice(log, name);
    buf_append_char(log, '|');
    buf_append_slice(log, data);
    buf_append_char(log, ';');
}

/* Reads `in` in pieces of `first` bytes, then `piece` each; adds what was counted. */
static char *read_cut(struct slice in, size_t max_event, size_t first, size_t piece)
{
    struct sse s;
    struct buf log = {0};
    sse_init(&s, max_event);
    for (size_t at = 0, n = first; at < in.len; at += n, n = piece) {
        n = n < in.len - at ? n : in.len - at;
        char *copy = malloc(n); /* exact, so that reading past it is seen */
        memcpy(copy, in.ptr + at, n);
        sse_feed(&s, slice_make(copy, n), on_event, &log);
        free(copy);
    }
    buf_printf(&log, "%zu %zu", s.comments, s.dropped);
    sse_free(&s);
    return buf_take_str(&log);
}

static void check_limited(struct slice in, size_t max_event, const char *expected)
{
    for (size_t first = 1; first <= in.len; first++) {
        char *seen = read_cut(in, max_event, first, in.len);
        assert_string_equal(seen, expected);
        free(seen);
    }
    for (size_t piece = 1; piece <= 3; piece++) {
        char *seen = read_cut(in, max_event, piece, piece);
        assert_string_equal(seen, expected);
        free(seen);
    }
}

static void check(const char *in, const char *expected)
{
    check_limited(slice_of(in), 0, expected);
}

/* K01: an event is not a packet. */
static void test_sse_sees_each_event_once_however_it_is_cut(void **state)
{
    (void)state;
    check("data: {\"a\":1}\n\nevent: ping\ndata: {}\n\ndata: [DONE]\n\n",
          "|{\"a\":1};ping|{};|[DONE];0 0");
    check("data: 1\n\ndata: 2\n", "|1;0 0"); /* never ended, so never seen */
    check("data: 1\n\ndata: 2", "|1;0 0");
    check("", "0 0");
    check("\n\n\n", "0 0");
}

/* K02: a letter of three bytes, cut anywhere, comes out as these bytes. */
static void test_sse_does_not_decode_characters(void **state)
{
    (void)state;
    check("data: \xe6\xbc\xa2\xe5\xad\x97\n\n", "|\xe6\xbc\xa2\xe5\xad\x97;0 0");
    check("data: \xff\xfe\x80\n\n", "|\xff\xfe\x80;0 0");
    const struct slice nul = SLICE_LIT("data: a\0b\n\ndata: c\n\n");
    char *seen = read_cut(nul, 0, 9, 4);
    assert_memory_equal(seen, "|a\0b;|c;0 0", 12);
    free(seen);
}

/* K03: all three line ends and both spellings of a field mean the same. */
static void test_sse_takes_every_line_end_and_the_optional_space(void **state)
{
    (void)state;
    static const char *const ends[] = {"\n", "\r\n", "\r"};
    static const char *const spaces[] = {"", " "};
    for (size_t i = 0; i < 6; i++) {
        const char *e = ends[i / 2], *s = spaces[i % 2];
        struct buf b = {0};
        buf_printf(&b, ":%shi%sevent:%sx%sdata:%sa%sdata:%sb%s%s", s, e, s, e, s, e, s, e,
                   e);
        buf_printf(&b, "id:%s7%sretry:%s9%sdata:%sc%s%s", s, e, s, e, s, e, e);
        check_limited(buf_slice(&b), 0, "x|a\nb;|c;1 0");
        buf_free(&b);
    }
    check("data: a\r\n\r\ndata: b\n\ndata: c\r\r", "|a;|b;|c;0 0"); /* mixed */
    check("data: a\n\r\ndata: b\r\n\n", "|a;|b;0 0");
    check("data: a\r\ndata: b\r\n\r\n", "|a\nb;0 0");
}

static void test_sse_keeps_all_but_one_space_of_a_value(void **state)
{
    (void)state;
    check("data:  a \n\n", "| a ;0 0");
    check("data:\ta\n\n", "|\ta;0 0");
    check("data: a: b\n\n", "|a: b;0 0");
}

static void test_sse_joins_data_lines(void **state)
{
    (void)state;
    check("data: a\ndata: b\ndata:\ndata: c\n\n", "|a\nb\n\nc;0 0");
    check("data\ndata\n\n", "|\n;0 0");
    check("data:\n\n", "|;0 0");
    check("data\n\n", "|;0 0");
}

static void test_sse_ignores_what_is_no_event(void **state)
{
    (void)state;
    check(": ping\n\n:\n\n:data: a\n\n", "3 0");
    check("event: x\n\ndata: a\n\n", "|a;0 0"); /* a name alone is forgotten */
    check("id: 1\nretry: 5\nfoo: bar\nfoo\n\n", "0 0");
    check("Data: a\n data: b\ndata : c\nxdata: d\ndatax: e\n\n", "0 0");
    check("data: a\n: between\ndata: b\n\n", "|a\nb;1 0");
}

static void test_sse_takes_the_last_name(void **state)
{
    (void)state;
    check("event: a\nevent: b\ndata: 1\n\ndata: 2\n\n", "b|1;|2;0 0");
    check("event: a\nevent:\ndata: 1\n\n", "|1;0 0");
}

static void test_sse_skips_one_byte_order_mark_at_the_start(void **state)
{
    (void)state;
    check("\xef\xbb\xbf"
          "data: a\n\ndata: b\n\n",
          "|a;|b;0 0");
    check("data: a\n\n\xef\xbb\xbf"
          "data: b\n\n",
          "|a;0 0");
    check("\xef\xbb\xbf\n\xef\xbb\xbf"
          "data: b\n\n",
          "0 0");
}

static void test_sse_drops_events_that_are_too_large_and_goes_on(void **state)
{
    (void)state;
    /* At the limit: six bytes of data in a line of eleven; one more is dropped. */
    check_limited(SLICE_LIT("data:123456\n\ndata:1\n\n"), 11, "|123456;|1;0 0");
    check_limited(SLICE_LIT("data:1234567\n\ndata:1\n\n"), 11, "|1;0 1");
    /* Data lines together, the joining LF included. */
    check_limited(SLICE_LIT("data:12345\ndata:12345\n\ndata:1\n\n"), 11,
                  "|12345\n12345;|1;0 0");
    check_limited(SLICE_LIT("data:12345\ndata:123456\n\ndata:1\n\n"), 11, "|1;0 1");
    /* What follows in the dropped event is dropped as well, comments are counted. */
    check_limited(SLICE_LIT("data:123456789\ndata:1\n:c\nevent:x\n\ndata:2\n\n"), 11,
                  "|2;1 1");
    /* A long comment harms nobody. */
    check_limited(SLICE_LIT("data:1\n:a very long comment\n\n"), 11, "|1;1 0");
    check_limited(SLICE_LIT("data:1234567\r\n\r\ndata:1234567\r\rdata:1\r\n\r\n"), 11,
                  "|1;0 2");
}

static void test_sse_bounds_its_memory(void **state)
{
    (void)state;
    struct sse s;
    struct buf log = {0};
    sse_init(&s, 1000);
    sse_feed(&s, SLICE_LIT("data: "), on_event, &log);
    for (int i = 0; i < 10000; i++)
        sse_feed(&s, SLICE_LIT("0123456789"), on_event, &log);
    assert_true(s.line.cap <= 2048);
    sse_feed(&s, SLICE_LIT("\n"), on_event, &log);
    for (int i = 0; i < 10000; i++)
        sse_feed(&s, SLICE_LIT("data: 0123456789\n"), on_event, &log);
    assert_true(s.line.cap + s.data.cap + s.name.cap <= 8192);
    sse_feed(&s, SLICE_LIT("\ndata: x\n\n"), on_event, &log);
    assert_int_equal(s.dropped, 1);
    assert_true(slice_eq(buf_slice(&log), SLICE_LIT("|x;")));
    sse_free(&s);
    buf_free(&log);
}

static void test_sse_keeps_a_mebibyte_by_default(void **state)
{
    (void)state;
    const size_t limit = (size_t)1 << 20;
    for (size_t extra = 0; extra < 2; extra++) {
        struct buf in = {0};
        buf_append_str(&in, "data:");
        while (buf_len(&in) < limit + extra)
            buf_append_char(&in, 'x');
        buf_append_str(&in, "\n\n");
        char *seen = read_cut(buf_slice(&in), 0, 7, 65536);
        assert_string_equal(seen + strlen(seen) - 3, extra ? "0 1" : "0 0");
        assert_int_equal(strlen(seen), extra ? 3 : limit - 5 + 2 + 3);
        free(seen);
        buf_free(&in);
    }
}

/* Streams put together from pieces read alike in any random cut. */
static void test_sse_reads_random_streams_alike_however_they_are_cut(void **state)
{
    (void)state;
    static const char *const pieces[] = {"data",  ":", " ",  "\n",   "\r",      "\r\n",
                                         "event", "x", "yz", "\n\n", "data: a", ":c"};
    for (uint32_t seed = 1; seed <= 3000; seed++) {
        uint32_t r = seed;
        struct buf in = {0};
        for (int n = 0; n < 40; n++) {
            r = r * 1664525u + 1013904223u;
            buf_append_str(&in, pieces[(r >> 8) % (sizeof pieces / sizeof *pieces)]);
        }
        const size_t max_event = 4 + seed % 16;
        char *whole = read_cut(buf_slice(&in), max_event, buf_len(&in), 1);
        char *cut = read_cut(buf_slice(&in), max_event, 1 + r % 7, 1 + r % 5);
        if (strcmp(whole, cut) != 0)
            print_error("seed %u\n", seed);
        assert_string_equal(cut, whole);
        free(whole);
        free(cut);
        buf_free(&in);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sse_sees_each_event_once_however_it_is_cut),
        cmocka_unit_test(test_sse_does_not_decode_characters),
        cmocka_unit_test(test_sse_takes_every_line_end_and_the_optional_space),
        cmocka_unit_test(test_sse_keeps_all_but_one_space_of_a_value),
        cmocka_unit_test(test_sse_joins_data_lines),
        cmocka_unit_test(test_sse_ignores_what_is_no_event),
        cmocka_unit_test(test_sse_takes_the_last_name),
        cmocka_unit_test(test_sse_skips_one_byte_order_mark_at_the_start),
        cmocka_unit_test(test_sse_drops_events_that_are_too_large_and_goes_on),
        cmocka_unit_test(test_sse_bounds_its_memory),
        cmocka_unit_test(test_sse_keeps_a_mebibyte_by_default),
        cmocka_unit_test(test_sse_reads_random_streams_alike_however_they_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
