/* SPDX-License-Identifier: MIT */
#include "gateway/cors.h"

#include <string.h>

#include "cmocka_all.h"

static struct buf out;
static struct http_parser *parser;

static int finish(void **state)
{
    (void)state;
    buf_free(&out);
    http_parser_free(parser);
    parser = NULL;
    return 0;
}

/* The head of a request with these lines. */
static const struct http_head *head(const char *first, const char *lines)
{
    struct buf text = {0};
    struct slice data;
    size_t used;
    http_parser_free(parser);
    parser = http_parser_new(HTTP_REQUEST, (struct http_limits){10000, 50});
    buf_printf(&text, "%s HTTP/1.1\r\nHost: x\r\n%s\r\n", first, lines);
    assert_int_equal(http_parser_next(parser, buf_slice(&text), &used, &data), HTTP_HEAD);
    buf_free(&text);
    return http_parser_head(parser);
}

static void says(const char *want)
{
    assert_true(slice_eq(buf_slice(&out), slice_of(want)));
    buf_clear(&out);
}

#define EXPOSED                                                                          \
    "Access-Control-Expose-Headers: X-Request-Id, Cache-Status, Server-Timing, "         \
    "Retry-After\r\n"

static void test_cors_lists(void **state)
{
    (void)state;
    static const char *const good[] = {"", "*", "https://a.example",
                                       "http://localhost:3000 https://a.example",
                                       "app://x"};
    static const char *const bad[] = {
        "a.example",   "https://",   "https://a/", "https://a b", "* https://a",
        "https://*.a", "https://a ", " https://a", "://a",        "https://a  https://b"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        if (!cors_is_list(good[i]))
            fail_msg("refused: \"%s\"", good[i]);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (cors_is_list(bad[i]))
            fail_msg("taken: \"%s\"", bad[i]);
}

static void test_cors_answers(void **state)
{
    (void)state;
    static const char two[] = "https://a.example https://b.example";
    const struct http_head *h = head("GET /", "Origin: https://b.example\r\n");
    cors_put(&out, "", h);
    says("");
    cors_put(&out, "*", h);
    says("Access-Control-Allow-Origin: *\r\n" EXPOSED);
    cors_put(&out, "*", NULL);
    says("Access-Control-Allow-Origin: *\r\n" EXPOSED);
    cors_put(&out, two, h);
    says("Vary: Origin\r\nAccess-Control-Allow-Origin: https://b.example\r\n" EXPOSED);
    cors_put(&out, two, NULL);
    says("Vary: Origin\r\n");
    cors_put(&out, two, head("GET /", ""));
    says("Vary: Origin\r\n");
    cors_put(&out, two, head("GET /", "Origin: https://a.example.evil\r\n"));
    says("Vary: Origin\r\n");
    cors_put(&out, two, head("GET /", "Origin: https://a.example https://b.example\r\n"));
    says("Vary: Origin\r\n");
}

static void test_cors_what_the_engine_says_stays(void **state)
{
    (void)state;
    static const char lines[] = "X: 1\r\naccess-control-allow-origin: \r\n";
    buf_append_str(&out, lines);
    cors_put(&out, "*", NULL);
    says(lines);
}

static void test_cors_preflights(void **state)
{
    (void)state;
    const char *asks = "Origin: https://a.example\r\n"
                       "Access-Control-Request-Method: PUT\r\n"
                       "Access-Control-Request-Headers: authorization, x-a\r\n";
    assert_false(cors_is_preflight(head("OPTIONS /", "Origin: https://a.example\r\n")));
    assert_false(cors_is_preflight(head("GET /", asks)));
    const struct http_head *h = head("OPTIONS /v1/models", asks);
    assert_true(cors_is_preflight(h));
#define VARIES "Vary: Access-Control-Request-Method, Access-Control-Request-Headers\r\n"
    cors_put_preflight(&out, "https://a.example", h);
    says(VARIES "Vary: Origin\r\nAccess-Control-Allow-Origin: https://a.example\r\n"
                "Access-Control-Allow-Methods: PUT\r\n"
                "Access-Control-Allow-Headers: authorization, x-a\r\n"
                "Access-Control-Max-Age: 600\r\n");
    cors_put_preflight(&out, "https://other.example", h);
    says(VARIES "Vary: Origin\r\n");
}

int main(void)
{
#define TEST(f) cmocka_unit_test_teardown(f, finish)
    const struct CMUnitTest tests[] = {
        TEST(test_cors_lists),
        TEST(test_cors_answers),
        TEST(test_cors_what_the_engine_says_stays),
        TEST(test_cors_preflights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
