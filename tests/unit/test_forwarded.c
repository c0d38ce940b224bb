/* SPDX-License-Identifier: MIT */
#include "gateway/forwarded.h"

#include <stdlib.h>

#include "cmocka_all.h"

static struct http_parser *parser;
static struct buf out;

static int finish(void **state)
{
    (void)state;
    http_parser_free(parser);
    parser = NULL;
    buf_free(&out);
    return 0;
}

/* The head of a request with these lines. */
static const struct http_head *head(const char *lines)
{
    struct buf text = {0};
    struct slice data;
    size_t used;
    http_parser_free(parser);
    parser = http_parser_new(HTTP_REQUEST, HTTP_LIMITS_DEFAULT);
    buf_printf(&text, "GET / HTTP/1.1\r\nHost: x\r\n%s\r\n", lines);
    assert_int_equal(http_parser_next(parser, buf_slice(&text), &used, &data), HTTP_HEAD);
    buf_free(&text);
    return http_parser_head(parser);
}

static bool is_sound(const char *value)
{
    struct buf line = {0};
    buf_printf(&line, "x-forwarded-FOR: %s\r\n", value);
    char *text = buf_take_str(&line);
    const bool sound = forwarded_is_sound(head(text));
    free(text);
    return sound;
}

/* CVE-2026-46527 */
static void test_lists_of_addresses(void **state)
{
    (void)state;
    static const char *const good[] = {"1.2.3.4",
                                       "1.2.3.4, 5.6.7.8",
                                       "1.2.3.4,5.6.7.8,\t::1",
                                       "1.2.3.4:5678",
                                       "2001:db8::17",
                                       "[2001:db8::17]",
                                       "[2001:db8::17]:65535, 10.0.0.1",
                                       "::ffff:1.2.3.4",
                                       "unknown, 1.2.3.4",
                                       "Unknown"};
    static const char *const bad[] = {
        "",
        ",",
        ", ,",
        "1.2.3.4,",
        ",1.2.3.4",
        "1.2.3.4,,::1",
        "a",
        "1.2.3",
        "1.2.3.4.5",
        "1.2.3.256",
        "1.2.3.4:",
        "1.2.3.4:x",
        "1.2.3.4:123456",
        "[::1",
        "[]",
        "[1.2.3.4]",
        "[::1]x",
        "[::1]:",
        "::1]",
        "localhost",
        "1.2.3.4 5.6.7.8",
        "1.2.3.4;5.6.7.8",
        "1.2.3.4%2C5.6.7.8",
        "fe80::1%eth0",
        "<a>",
        "0000:0000:0000:0000:0000:0000:0000:0000:0000:0000"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        if (!is_sound(good[i]))
            fail_msg("refused: \"%s\"", good[i]);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (is_sound(bad[i]))
            fail_msg("taken: \"%s\"", bad[i]);
}

static void test_one_bad_line_spoils_all(void **state)
{
    (void)state;
    assert_true(forwarded_is_sound(head("")));
    assert_true(forwarded_is_sound(head("X-Forwarded-Host: a\r\nX-Real-IP: b\r\n")));
    assert_true(forwarded_is_sound(
        head("X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 5.6.7.8\r\n")));
    assert_false(
        forwarded_is_sound(head("X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: a\r\n")));
}

static void puts_line(const char *lines, const char *peer, const char *want)
{
    buf_clear(&out);
    forwarded_put(&out, head(lines), peer);
    if (!slice_eq(buf_slice(&out), slice_of(want)))
        fail_msg("for %s: %.*s", peer, (int)buf_len(&out), buf_slice(&out).ptr);
}

static void test_the_client_comes_last(void **state)
{
    (void)state;
    puts_line("", "1.2.3.4:80", "X-Forwarded-For: 1.2.3.4\r\n");
    puts_line("", "[2001:db8::17]:80", "X-Forwarded-For: 2001:db8::17\r\n");
    puts_line("", "[::ffff:1.2.3.4]:80", "X-Forwarded-For: 1.2.3.4\r\n");
    puts_line("", "[fe80::1%eth0]:80", "X-Forwarded-For: fe80::1\r\n");
    puts_line("X-Forwarded-For: 9.9.9.9, ::1\r\nx-forwarded-for: 8.8.8.8\r\n",
              "1.2.3.4:80", "X-Forwarded-For: 9.9.9.9, ::1, 8.8.8.8, 1.2.3.4\r\n");
}

static void test_sockets_without_address_add_nothing(void **state)
{
    (void)state;
    static const char *const peers[] = {"unix:", "unix:/run/x.sock", "?", ""};
    for (size_t i = 0; i < sizeof(peers) / sizeof(peers[0]); i++) {
        puts_line("", peers[i], "");
        puts_line("X-Forwarded-For: 9.9.9.9\r\n", peers[i],
                  "X-Forwarded-For: 9.9.9.9\r\n");
    }
    buf_clear(&out);
    forwarded_put(&out, NULL, "1.2.3.4:80"); /* what came is not to be passed on */
    assert_true(slice_eq(buf_slice(&out), SLICE_LIT("X-Forwarded-For: 1.2.3.4\r\n")));
}

#define TEST(name) cmocka_unit_test_teardown(test_##name, finish)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(lists_of_addresses),
        TEST(one_bad_line_spoils_all),
        TEST(the_client_comes_last),
        TEST(sockets_without_address_add_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
