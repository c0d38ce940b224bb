/* SPDX-License-Identifier: MIT */
#include "gateway/headers.h"

#include <stdio.h>

#include "cmocka_all.h"
#include "gateway/request.h"

static struct loop *loop;
static struct buf out;

static int set_up(void **state)
{
    (void)state;
    loop = loop_new();
    return loop ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    buf_free(&out);
    loop_free(loop);
    return 0;
}

static struct http_parser *parse(enum http_kind kind, const char *text)
{
    size_t used;
    struct slice data;
    struct http_parser *p = http_parser_new(kind, HTTP_LIMITS_DEFAULT);
    assert_int_equal(http_parser_next(p, slice_of(text), &used, &data), HTTP_HEAD);
    return p;
}

static void assert_out(const char *text)
{
    const struct slice s = buf_slice(&out);
    if (!slice_eq(s, slice_of(text)))
        fail_msg("made:\n%.*s\nexpected:\n%s", (int)s.len, s.ptr, text);
}

/* The head that an engine at `url` gets for a client's head, with 9 bytes of body. */
static void to_engine_with(const struct headers_rules *rules, const char *url,
                           const char *text)
{
    char authorization[] = "Authorization: Bearer ours\r\n";
    struct err e = {0};
    const struct upstream_options o = {.url = url};
    struct upstream *u = upstream_new(loop, &o, &e);
    struct http_parser *p = parse(HTTP_REQUEST, text);
    buf_clear(&out);
    const struct replica r = {.up = u, .authorization = authorization};
    headers_to_engine(&out, http_parser_head(p), &r, rules, 9);
    http_parser_free(p);
    upstream_free(u);
}

static void to_engine(const char *url, const char *text)
{
    static const struct headers_rules rules = {.peer = "1.2.3.4:80", .id = "1"};
    to_engine_with(&rules, url, text);
}

static void goes_to(const char *target, const char *forwarded)
{
    char text[256], expected[256];
    snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", target);
    snprintf(expected, sizeof(expected), "GET %s HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n",
             forwarded);
    to_engine("http://127.0.0.1:1", text);
    assert_out(expected);
}

/* ---- to the engine ----------------------------------------------------------------- */

static void test_headers_pass_in_order_with_case_and_repeats(void **state)
{
    (void)state;
    to_engine("http://127.0.0.1:1", "GET /x?y=%20z HTTP/1.1\r\nHost: a\r\nx-B: 1\r\n"
                                    "X-A: two words\r\nx-B: 3\r\nCookie:\r\n\r\n");
    assert_out("GET /x?y=%20z HTTP/1.1\r\nHost: 127.0.0.1:1\r\nx-B: 1\r\n"
               "X-A: two words\r\nx-B: 3\r\nCookie: \r\n\r\n");
}

static void test_headers_of_one_hop_stay(void **state)
{
    (void)state;
    to_engine("http://127.0.0.1:1",
              "POST / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, X-Mine\r\n"
              "X-Mine: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\nTrailer: X\r\n"
              "Upgrade: x\r\nProxy-Authorization: s\r\nExpect: 100-continue\r\n"
              "X-Conversation-Id: 7\r\nTransfer-Encoding: chunked\r\nX-Stays: 1\r\n\r\n");
    assert_out("POST / HTTP/1.1\r\nHost: 127.0.0.1:1\r\nX-Stays: 1\r\n"
               "Content-Length: 9\r\n\r\n");
}

static void test_credentials_pass_go_or_are_replaced(void **state)
{
    (void)state;
    static const char url[] = "http://127.0.0.1:1";
    static const char text[] = "GET / HTTP/1.1\r\nHost: a\r\nauthorization: Bearer x\r\n"
                               "X-API-Key: y\r\nX-Stays: 1\r\n\r\n";
    struct headers_rules rules = {.credentials = OPTIONS_PASS, .peer = "1.2.3.4:80"};
    to_engine_with(&rules, url, text);
    assert_out("GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\nauthorization: Bearer x\r\n"
               "X-API-Key: y\r\nX-Stays: 1\r\n\r\n");
    rules.credentials = OPTIONS_REMOVE;
    to_engine_with(&rules, url, text);
    assert_out("GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\nX-Stays: 1\r\n\r\n");
    rules.credentials = OPTIONS_REPLACE;
    to_engine_with(&rules, url, text);
    assert_out("GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\nAuthorization: Bearer ours\r\n"
               "X-Stays: 1\r\n\r\n");
}

/* CVE-2026-45372: engines that decode values behind their checks. */
static void test_values_that_hide_a_line_end_stay_here(void **state)
{
    (void)state;
    static const char url[] = "http://127.0.0.1:1";
    static const char text[] =
        "GET / HTTP/1.1\r\nHost: a\r\nX-A: b%0D%0AX-C: d\r\nCookie: a=%3B%20; "
        "b=%u000a\r\n"
        "Authorization: Bearer %00\r\nReferer: /?q=100%25\r\nCookie: c=%09\r\n\r\n";
    struct headers_rules rules = {.peer = "1.2.3.4:80", .id = "1"};
    to_engine_with(&rules, url, text);
    assert_out("GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\nReferer: /?q=100%25\r\n"
               "Cookie: c=%09\r\n\r\n");
    rules.hidden_line_ends = OPTIONS_HIDDEN_PASS;
    to_engine_with(&rules, url, text);
    assert_out("GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\nX-A: b%0D%0AX-C: d\r\n"
               "Cookie: a=%3B%20; b=%u000a\r\nAuthorization: Bearer %00\r\n"
               "Referer: /?q=100%25\r\nCookie: c=%09\r\n\r\n");
    struct http_parser *p = parse(HTTP_REQUEST, text);
    assert_true(headers_hide_line_end(http_parser_head(p)));
    http_parser_free(p);
    p = parse(HTTP_REQUEST, "GET /%0a HTTP/1.1\r\nHost: a\r\nX-A: %20\r\n\r\n");
    assert_false(headers_hide_line_end(http_parser_head(p)));
    http_parser_free(p);
}

static void forwards(int how, const char *lines, const char *want)
{
    char text[256], expected[256];
    const struct headers_rules rules = {
        .forwarded_for = how, .peer = "1.2.3.4:80", .id = "1"};
    snprintf(text, sizeof(text), "GET / HTTP/1.1\r\nHost: a\r\n%sX-A: b\r\n\r\n", lines);
    snprintf(expected, sizeof(expected), "GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\n%s\r\n",
             want);
    to_engine_with(&rules, "http://127.0.0.1:1", text);
    assert_out(expected);
}

/* CVE-2026-46527: what is no list of addresses never goes on. */
static void test_addresses_of_clients_go_on_as_configured(void **state)
{
    (void)state;
    static const char good[] = "x-forwarded-for: 5.6.7.8\r\nX-Forwarded-For: ::1\r\n";
    static const char bad[] = "X-Forwarded-For: 5.6.7.8\r\nx-forwarded-for: ,\r\n";
    forwards(OPTIONS_FORWARDED_CHECK, "", "X-A: b\r\n");
    forwards(OPTIONS_FORWARDED_CHECK, good,
             "x-forwarded-for: 5.6.7.8\r\nX-Forwarded-For: ::1\r\nX-A: b\r\n");
    forwards(OPTIONS_FORWARDED_CHECK, bad, "X-A: b\r\n");
    forwards(OPTIONS_FORWARDED_APPEND, "", "X-A: b\r\nX-Forwarded-For: 1.2.3.4\r\n");
    forwards(OPTIONS_FORWARDED_APPEND, good,
             "X-A: b\r\nX-Forwarded-For: 5.6.7.8, ::1, 1.2.3.4\r\n");
    forwards(OPTIONS_FORWARDED_APPEND, bad, "X-A: b\r\nX-Forwarded-For: 1.2.3.4\r\n");
    forwards(OPTIONS_FORWARDED_REMOVE, "", "X-A: b\r\n");
    forwards(OPTIONS_FORWARDED_REMOVE, good, "X-A: b\r\n");
    forwards(OPTIONS_FORWARDED_REMOVE, bad, "X-A: b\r\n");
}

static void test_length_is_that_of_the_body_that_is_sent(void **state)
{
    (void)state;
    to_engine("http://127.0.0.1:1",
              "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n");
    assert_out("POST / HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Length: 9\r\n\r\n");
}

static void test_prefix_of_the_engine_stands_before_the_path(void **state)
{
    (void)state;
    to_engine("http://127.0.0.1:1/api/", "GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_out("GET /api/v1/models HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n");
}

/* What is sent must be the path that the routes saw. */
static void test_absolute_target_becomes_path_and_query(void **state)
{
    (void)state;
    goes_to("/a?http://b/c", "/a?http://b/c");
    goes_to("http://a/b?c", "/b?c");
    goes_to("HTTP://a:80/", "/");
    goes_to("https://a/b", "/b");
    goes_to("http://a", "/");
    goes_to("http://a?b", "/?b");
    goes_to("http://a?/slots", "/?/slots");
    goes_to("http://a?x=http://b/slots", "/?x=http://b/slots");
}

/* ---- to the client ----------------------------------------------------------------- */

static void to_client(const char *text, bool stream)
{
    struct http_parser *p = parse(HTTP_RESPONSE, text);
    buf_clear(&out);
    headers_to_client(&out, http_parser_head(p), stream);
    http_parser_free(p);
}

static void test_answers_lose_their_framing_and_nothing_else(void **state)
{
    (void)state;
    to_client("HTTP/1.1 200 OK\r\nServer: s\r\nContent-Length: 3\r\nconnection: close\r\n"
              "content-type: a/b\r\nSet-Cookie: 1\r\nSet-Cookie: 2\r\n\r\n",
              false);
    assert_out("Server: s\r\ncontent-type: a/b\r\nSet-Cookie: 1\r\nSet-Cookie: 2\r\n");
}

static void test_streams_are_marked_against_buffering(void **state)
{
    (void)state;
    to_client("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", true);
    assert_out("X-Accel-Buffering: no\r\n");
    to_client("HTTP/1.1 200 OK\r\nx-accel-buffering: yes\r\nContent-Length: 3\r\n\r\n",
              true);
    assert_out("x-accel-buffering: yes\r\n");
}

static void test_id_is_added_where_there_is_none(void **state)
{
    (void)state;
    headers_id(&out, "7-1");
    assert_out("X-Request-Id: 7-1\r\n");
    headers_id(&out, "7-2"); /* has one now */
    assert_out("X-Request-Id: 7-1\r\n");
    buf_clear(&out);
    buf_append_str(&out, "A: b\r\nx-request-ID: engine\r\n");
    headers_id(&out, "7-3");
    assert_out("A: b\r\nx-request-ID: engine\r\n");
    buf_clear(&out);
    buf_append_str(&out, "Not-X-Request-Id: a\r\n");
    headers_id(&out, "7-4");
    assert_out("Not-X-Request-Id: a\r\nX-Request-Id: 7-4\r\n");
}

static void cache_status(uint32_t promised, const char *miss, bool cacheable,
                         const char *text)
{
    const struct plan plan = {.promised = promised, .miss = miss};
    buf_clear(&out);
    headers_cache_status(&out, &plan, cacheable);
    assert_out(text);
}

static void test_cache_status_says_what_is_planned(void **state)
{
    (void)state;
    cache_status(128, NULL, true,
                 "Cache-Status: incipit; fwd=partial; detail=\"planned=128\"\r\n");
    cache_status(0, "first-sight", true,
                 "Cache-Status: incipit; fwd=miss; detail=\"planned=0 first-sight\"\r\n");
    cache_status(
        0, "uncacheable", false,
        "Cache-Status: incipit; fwd=bypass; detail=\"planned=0 uncacheable\"\r\n");
}

static void test_server_timing_is_made_of_the_stamps(void **state)
{
    (void)state;
    uint64_t t[REQUEST_STATE_COUNT] = {0};
    headers_server_timing(&out, t);
    assert_out("");
    t[REQUEST_SCAN] = 1000;
    t[REQUEST_PLAN] = 2500;
    t[REQUEST_SEND] = 3000;
    t[REQUEST_FIRST_BYTE] = 3100;
    t[REQUEST_RELAY] = 23100;
    headers_server_timing(&out, t);
    assert_out("Server-Timing: scan;dur=1.50, send;dur=0.10, engine;dur=20.00\r\n");
    buf_clear(&out);
    t[REQUEST_QUEUE] = 2600;
    t[REQUEST_RESTORE] = 2800;
    headers_server_timing(&out, t);
    assert_out("Server-Timing: scan;dur=1.50, queue;dur=0.20, restore;dur=0.20, "
               "send;dur=0.10, engine;dur=20.00\r\n");
}

static void test_server_timing_without_the_moment_of_sending(void **state)
{
    (void)state;
    uint64_t t[REQUEST_STATE_COUNT] = {0};
    t[REQUEST_SCAN] = 1000;
    t[REQUEST_PLAN] = 1000;
    t[REQUEST_SEND] = 3000;
    t[REQUEST_RELAY] = 4000; /* answered before it was sent */
    headers_server_timing(&out, t);
    assert_out("Server-Timing: scan;dur=0.00, send;dur=1.00\r\n");
}

static void test_event_streams_are_known_by_their_type(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        bool is;
    } types[] = {{"Content-Type: text/event-stream", true},
                 {"content-type: Text/Event-Stream; charset=utf-8", true},
                 {"Content-Type: application/json", false},
                 {"Content-Type: text/event", false},
                 {"X: y", false}};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        char text[128];
        snprintf(text, sizeof(text), "HTTP/1.1 200 OK\r\n%s\r\n\r\n", types[i].line);
        struct http_parser *p = parse(HTTP_RESPONSE, text);
        assert_int_equal(headers_are_event_stream(http_parser_head(p)), types[i].is);
        http_parser_free(p);
    }
}

static int64_t length_of(const char *lines, bool is_head)
{
    char text[160];
    size_t used;
    struct slice data;
    snprintf(text, sizeof(text), "HTTP/1.1 200 OK\r\n%s\r\n", lines);
    struct http_parser *p = http_parser_new(HTTP_RESPONSE, HTTP_LIMITS_DEFAULT);
    if (is_head)
        http_parser_expect_head(p);
    assert_int_equal(http_parser_next(p, slice_of(text), &used, &data), HTTP_HEAD);
    const int64_t n = headers_length(http_parser_head(p), is_head);
    http_parser_free(p);
    return n;
}

static void test_length_is_announced_as_the_engine_did(void **state)
{
    (void)state;
    assert_int_equal(length_of("Content-Length: 12\r\n", false), 12);
    assert_int_equal(length_of("Content-Length: 0\r\n", false), 0);
    assert_int_equal(length_of("Transfer-Encoding: chunked\r\n", false), -1);
    assert_int_equal(length_of("", false), -1);
    assert_int_equal(length_of("Content-Length: 12\r\n", true), 12);
    assert_int_equal(length_of("", true), -1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_credentials_pass_go_or_are_replaced, set_up,
                                        tear_down),
        TEST(headers_pass_in_order_with_case_and_repeats),
        TEST(headers_of_one_hop_stay),
        TEST(values_that_hide_a_line_end_stay_here),
        TEST(addresses_of_clients_go_on_as_configured),
        TEST(length_is_that_of_the_body_that_is_sent),
        TEST(prefix_of_the_engine_stands_before_the_path),
        TEST(absolute_target_becomes_path_and_query),
        TEST(answers_lose_their_framing_and_nothing_else),
        TEST(streams_are_marked_against_buffering),
        TEST(id_is_added_where_there_is_none),
        TEST(cache_status_says_what_is_planned),
        TEST(server_timing_is_made_of_the_stamps),
        TEST(server_timing_without_the_moment_of_sending),
        TEST(event_streams_are_known_by_their_type),
        TEST(length_is_announced_as_the_engine_did),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
