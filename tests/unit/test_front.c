/* SPDX-License-Identifier: MIT */
#include "wire/front.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cmocka_all.h"
#include "io_rig.h"
#include "wire_peer.h"

#define GET "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
#define POST(length) "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " length "\r\n\r\n"

static struct loop *loop;
static struct front *front;
static struct peer peer;
static struct front_request *owned; /* the request that is with the test */
static unsigned n_requests, n_gone, n_drained;
static void (*serve)(struct front_request *rq); /* NULL: keep it in `owned` */
static struct buf bodies;                       /* of all requests, one after the other */

static struct budget memory; /* of bodies */

static const struct front_options usual = {.head = {1024, 16},
                                           .body_bytes = 1000,
                                           .memory = &memory,
                                           .connections = 4,
                                           .head_ms = 5000,
                                           .body_ms = 5000,
                                           .idle_ms = 5000,
                                           .write_ms = 5000};

static int set_up(void **state)
{
    const int rc = rig_up(state);
    loop = *state;
    n_requests = n_gone = n_drained = 0;
    owned = NULL;
    serve = NULL;
    memory = (struct budget){.max = 1500};
    return rc;
}

static int tear_down(void **state)
{
    front_close(front);
    front = NULL;
    peer_finish(&peer);
    buf_free(&bodies);
    return rig_down(state);
}

/* ---- the owner of requests --------------------------------------------------------- */

static void on_gone(void *arg)
{
    assert_ptr_equal(arg, &front);
    n_gone++;
    owned = NULL;
    loop_stop(loop);
}

static void on_drained(void *arg)
{
    assert_ptr_equal(arg, &front);
    n_drained++;
    loop_stop(loop);
}

static void on_request(void *arg, struct front_request *rq)
{
    static const struct front_events events = {on_gone, on_drained};
    assert_ptr_equal(arg, &peer);
    assert_null(owned); /* one at a time */
    n_requests++;
    buf_append_slice(&bodies, front_body(rq));
    front_set_events(rq, &events, &front);
    if (serve) {
        serve(rq);
    } else {
        owned = rq;
        loop_stop(loop);
    }
}

static void reply_ok(struct front_request *rq)
{
    front_reply(rq, 200, (struct slice){"", 0}, SLICE_LIT("ok"));
}

static void open_with(struct front_options o)
{
    struct addr at;
    struct err e = {0};
    assert_int_equal(addr_resolve(&at, "127.0.0.1:0", &e), 0);
    front = front_open(loop, &at, &o, on_request, &peer, &e);
    assert_non_null(front);
    peer_client(&peer, loop, front_addr(front));
}

static struct front_stats stats(void)
{
    struct front_stats s;
    front_stats(front, &s);
    return s;
}

static void until_owned(void)
{
    while (!owned)
        loop_run(loop);
}

static void until_gone(unsigned n)
{
    while (n_gone < n)
        loop_run(loop);
}

/* A client that sends this and reads all there is until we close. */
static void exchange(const char *bytes)
{
    const struct peer_step script[] = {{PEER_CONNECT, NULL, 0},
                                       {PEER_SEND, bytes, 0},
                                       {PEER_READ_END, NULL, 0},
                                       {PEER_END, NULL, 0}};
    peer_start(&peer, script);
    while (!peer.done)
        loop_run(loop);
}

static bool saw(const char *text)
{
    return strstr(peer_seen(&peer), text) != NULL;
}

static void assert_saw(const char *text)
{
    if (!saw(text))
        fail_msg("\"%s\" is not in:\n%s", text, peer_seen(&peer));
}

static unsigned times(const char *text)
{
    unsigned n = 0;
    for (const char *s = peer_seen(&peer); (s = strstr(s, text)); s += strlen(text))
        n++;
    return n;
}

static void assert_quiet(void)
{
    assert_int_equal(stats().connections, 0);
    assert_int_equal(stats().buffered_bytes, 0);
}

/* ---- requests ---------------------------------------------------------------------- */

static void test_request_is_handed_over_whole(void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_CONNECT, NULL, 0}, {PEER_SEND, POST("6") "abc", 0},
        {PEER_SAY, NULL, 0},     {PEER_WAIT, NULL, 0},
        {PEER_SEND, "def", 0},   {PEER_READ_HEAD, NULL, 0},
        {PEER_READ, NULL, 2},    {PEER_CLOSE, NULL, 0},
        {PEER_END, NULL, 0}};
    open_with(usual);
    peer_start(&peer, script);
    peer_run(&peer);
    rig_idle(loop, 10);
    assert_null(owned); /* half a body is no request */
    peer_go(&peer);
    until_owned();
    assert_true(slice_eq(front_body(owned), SLICE_LIT("abcdef")));
    assert_true(slice_eq(front_head(owned)->method, SLICE_LIT("POST")));
    assert_int_equal(strncmp(front_peer(owned), "127.0.0.1:", 10), 0);
    assert_true(front_received_us(owned) > 0);
    assert_int_equal(stats().buffered_bytes, 256); /* as allocated */
    struct front_request *rq = owned;
    owned = NULL;
    reply_ok(rq);
    while (!peer.done)
        loop_run(loop);
    assert_saw("HTTP/1.1 200 OK\r\n");
    assert_saw("Content-Length: 2\r\n");
    assert_saw("Content-Type: application/json\r\n");
    assert_int_equal(times("Date: "), 1);
    while (stats().connections)
        rig_idle(loop, 2);
    assert_quiet();
    assert_int_equal(n_gone, 0);
}

static void test_chunked_body_is_handed_over_as_bytes(void **state)
{
    (void)state;
    open_with(usual);
    serve = reply_ok;
    exchange("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: "
             "close\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n");
    assert_true(slice_eq(buf_slice(&bodies), SLICE_LIT("abcde")));
    assert_saw("Connection: close\r\n");
    assert_quiet();
}

static void test_pipelined_requests_are_answered_in_order_one_at_a_time(void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_CONNECT, NULL, 0},
        {PEER_SEND, POST("1") "a" POST("1") "b" POST("1") "c", 0},
        {PEER_READ_HEAD, NULL, 0},
        {PEER_READ, NULL, 1},
        {PEER_READ_HEAD, NULL, 0},
        {PEER_READ, NULL, 1},
        {PEER_READ_HEAD, NULL, 0},
        {PEER_READ, NULL, 1},
        {PEER_END, NULL, 0}};
    open_with(usual);
    peer_start(&peer, script);
    for (unsigned i = 1; i <= 3; i++) {
        until_owned();
        rig_idle(loop, 5);
        assert_int_equal(n_requests, i);
        char body[2] = {(char)('a' + i - 1), '\0'};
        assert_true(slice_eq(front_body(owned), slice_of(body)));
        struct front_request *rq = owned;
        owned = NULL;
        front_reply(rq, 200, (struct slice){"", 0}, slice_of(body));
    }
    while (!peer.done)
        loop_run(loop);
    const char *a = strstr(peer_seen(&peer), "\r\n\r\na"), *b, *c;
    assert_non_null(a);
    assert_non_null(b = strstr(a, "\r\n\r\nb"));
    assert_non_null(c = strstr(b, "\r\n\r\nc"));
}

static void test_pipelined_requests_that_are_answered_at_once(void **state)
{
    (void)state;
    open_with(usual);
    serve = reply_ok;
    exchange(GET GET GET GET GET GET GET
             "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" GET);
    assert_int_equal(n_requests, 8); /* nothing behind the close */
    assert_int_equal(times("HTTP/1.1 200 OK"), 8);
    assert_quiet();
}

static void test_client_that_never_reads_does_not_fill_our_memory(void **state)
{
    (void)state;
    static const struct peer_step script[] = {{PEER_CONNECT, NULL, 0},
                                              {PEER_FLOOD, GET GET GET GET, 100000},
                                              {PEER_RESET, NULL, 0},
                                              {PEER_END, NULL, 0}};
    open_with(usual);
    serve = reply_ok;
    peer_start(&peer, script);
    while (!peer.done)
        loop_run(loop);
    /* As many as the sockets and one output queue hold, not as many as were sent. */
    assert_true(n_requests < 100000);
}

static void test_client_that_reads_late_gets_all_its_answers(void **state)
{
    (void)state;
    enum { N = 5000 };
    struct buf all = {0};
    for (int i = 0; i < N; i++)
        buf_append_str(&all, GET);
    buf_append_str(&all, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    char *text = buf_take_str(&all);
    const struct peer_step script[] = {{PEER_CONNECT, NULL, 0},  {PEER_FLOOD, text, 1},
                                       {PEER_SAY, NULL, 0},      {PEER_WAIT, NULL, 0},
                                       {PEER_READ_END, NULL, 0}, {PEER_END, NULL, 0}};
    open_with(usual);
    serve = reply_ok;
    peer_start(&peer, script);
    peer_run(&peer);
    rig_idle(loop, 50);
    assert_true(n_requests > 0);
    peer_go(&peer);
    while (!peer.done)
        loop_run(loop);
    /* The flood sent as much as the socket took at once: cut requests get no answer. */
    assert_int_equal(times("HTTP/1.1 200 OK"), n_requests);
    free(text);
}

/* ---- limits ------------------------------------------------------------------------ */

static void refused(const char *bytes, const char *line)
{
    serve = reply_ok;
    exchange(bytes);
    assert_saw(line);
    assert_saw("Connection: close\r\n");
    assert_saw("{\"error\":{\"message\":\"");
    assert_int_equal(n_requests, 0);
    assert_quiet();
}

/* A request with a head of exactly n bytes that closes behind its answer. */
static char *head_of(size_t n)
{
    static const char start[] = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: ";
    char *text = mem_zalloc(n + 1);
    memset(text, 'x', n);
    memcpy(text, start, sizeof(start) - 1);
    memcpy(text + n - 4, "\r\n\r\n", 4);
    return text;
}

static void test_head_of_the_limit_is_read(void **state)
{
    (void)state;
    char *text = head_of(1024);
    open_with(usual);
    serve = reply_ok;
    exchange(text);
    assert_saw("200 OK");
    free(text);
}

static void test_head_beyond_the_limit_is_431(void **state)
{
    (void)state;
    char *text = head_of(1025);
    open_with(usual);
    refused(text, "HTTP/1.1 431 ");
    assert_int_equal(stats().refused_431, 1);
    free(text);
}

static void test_ambiguous_request_is_400(void **state)
{
    (void)state;
    open_with(usual);
    refused("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: "
            "chunked\r\n\r\n0\r\n\r\n" GET,
            "HTTP/1.1 400 ");
    assert_int_equal(stats().refused_400, 1);
}

/* "POST" with a body of n bytes; closes behind the answer. */
static char *post_of(size_t n, bool chunked)
{
    char *body = mem_zalloc(n + 1);
    memset(body, 'b', n);
    char *text = chunked
                     ? mem_printf("POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                                  "Transfer-Encoding: "
                                  "chunked\r\n\r\n%zx\r\n%.*s\r\n%zx\r\n%s\r\n0\r\n\r\n",
                                  n / 2, (int)(n / 2), body, n - n / 2, body + n / 2)
                     : mem_printf("POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                                  "Content-Length: %zu\r\n\r\n%s",
                                  n, body);
    free(body);
    return text;
}

static void body_at_the_limit(bool chunked)
{
    char *text = post_of(1000, chunked);
    open_with(usual);
    serve = reply_ok;
    exchange(text);
    assert_saw("200 OK");
    assert_int_equal(buf_len(&bodies), 1000);
    assert_quiet();
    free(text);
}

static void body_beyond_the_limit(bool chunked)
{
    char *text = post_of(1001, chunked);
    open_with(usual);
    refused(text, "HTTP/1.1 413 ");
    assert_int_equal(stats().refused_413, 1);
    free(text);
}

static void test_body_of_the_limit_is_read(void **state)
{
    (void)state;
    body_at_the_limit(false);
}

static void test_chunked_body_of_the_limit_is_read(void **state)
{
    (void)state;
    body_at_the_limit(true);
}

static void test_body_beyond_the_limit_is_413(void **state)
{
    (void)state;
    body_beyond_the_limit(false);
}

static void test_chunked_body_beyond_the_limit_is_413(void **state)
{
    (void)state;
    body_beyond_the_limit(true);
}

static void test_announced_length_beyond_all_limits_is_413(void **state)
{
    (void)state;
    open_with(usual);
    refused(POST("9223372036854775807"), "HTTP/1.1 413 ");
}

/* A body of 1000 is under way, of 1500 that there are. */
static void beside_another(size_t n, const char *line)
{
    char *text = mem_printf(POST("1000") "%0800d", 0);
    char *other = post_of(n, false);
    const struct peer_step script[] = {{PEER_CONNECT, NULL, 0},  {PEER_SEND, text, 0},
                                       {PEER_SAY, NULL, 0},      {PEER_WAIT, NULL, 0},
                                       {PEER_CONNECT, NULL, 0},  {PEER_SEND, other, 0},
                                       {PEER_READ_END, NULL, 0}, {PEER_END, NULL, 0}};
    open_with(usual);
    serve = reply_ok;
    peer_start(&peer, script);
    peer_run(&peer);
    while (stats().buffered_bytes < 800)
        rig_idle(loop, 2);
    assert_int_equal(stats().buffered_bytes, 1000); /* what was announced, at once */
    peer_go(&peer);
    while (!peer.done)
        loop_run(loop);
    assert_saw(line);
    while (stats().connections)
        rig_idle(loop, 2);
    assert_quiet();
    free(text);
    free(other);
}

static void test_bodies_together_at_the_limit_are_read(void **state)
{
    (void)state;
    beside_another(500, "200 OK");
    assert_int_equal(n_requests, 1);
}

static void test_bodies_together_beyond_the_limit_are_503(void **state)
{
    (void)state;
    beside_another(501, "HTTP/1.1 503 ");
    assert_saw("Retry-After: 1\r\n");
    assert_saw("too many request bodies are under way at once");
    assert_int_equal(n_requests, 0);
}

static void test_what_the_owner_holds_counts_with_bodies(void **state)
{
    (void)state;
    uint64_t mine = 0;
    assert_true(budget_set(&memory, &mine, 1001));
    open_with(usual);
    exchange(POST("500"));
    assert_saw("HTTP/1.1 503 ");
    assert_int_equal(stats().buffered_bytes, 1001);
    assert_true(budget_set(&memory, &mine, 0));
    assert_quiet();
}

/* Twice as large each time: 512 bytes do not hold 513. */
static void growing_body(size_t n, const char *line)
{
    char *text = mem_printf("POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                            "Transfer-Encoding: chunked\r\n\r\n"
                            "100\r\n%0256d\r\n%zx\r\n%0*d\r\n1\r\nx\r\n0\r\n\r\n",
                            0, n - 257, (int)n - 257, 0);
    memory.max = 1000;
    open_with(usual);
    serve = reply_ok;
    exchange(text);
    assert_saw(line);
    assert_quiet();
    free(text);
}

static void test_body_that_grows_within_the_limit_is_read(void **state)
{
    (void)state;
    growing_body(512, "200 OK");
}

static void test_body_whose_growth_is_beyond_the_limit_is_503(void **state)
{
    (void)state;
    growing_body(513, "HTTP/1.1 503 ");
}

/* Of a long body the pages to which it was written. */
static void test_long_body_counts_with_its_pages(void **state)
{
    (void)state;
    const size_t n = ((size_t)2 << 20) + 1;
    char *text = post_of(n, false);
    struct front_options o = usual;
    o.body_bytes = (uint64_t)4 << 20;
    memory.max = ((uint64_t)2 << 20) + 4096;
    const struct peer_step script[] = {{PEER_CONNECT, NULL, 0},
                                       {PEER_SEND, text, 0},
                                       {PEER_READ_END, NULL, 0},
                                       {PEER_END, NULL, 0}};
    open_with(o);
    peer_start(&peer, script);
    until_owned();
    assert_int_equal(front_body(owned).len, n);
    assert_int_equal(stats().buffered_bytes, memory.max);
    reply_ok(owned);
    while (!peer.done)
        loop_run(loop);
    assert_saw("200 OK");
    assert_quiet();
    free(text);
}

static void test_connection_beyond_the_limit_is_503(void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_CONNECT, NULL, 0}, {PEER_CONNECT, NULL, 0}, {PEER_READ_END, NULL, 0},
        {PEER_SAY, NULL, 0},     {PEER_WAIT, NULL, 0},    {PEER_END, NULL, 0}};
    struct front_options o = usual;
    o.connections = 1;
    open_with(o);
    peer_start(&peer, script);
    peer_run(&peer);
    assert_saw("HTTP/1.1 503 ");
    assert_int_equal(stats().refused_503, 1);
    assert_int_equal(stats().connections, 1); /* the first stays */
    peer_go(&peer);
}

static void test_connection_of_a_client_that_has_enough_is_429(void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_CONNECT, NULL, 0},  {PEER_CONNECT, NULL, 0}, {PEER_CONNECT, NULL, 0},
        {PEER_READ_END, NULL, 0}, {PEER_SAY, NULL, 0},     {PEER_WAIT, NULL, 0},
        {PEER_CLOSE, NULL, 0},    {PEER_END, NULL, 0}};
    struct front_options o = usual;
    o.per_client = 2;
    open_with(o);
    peer_start(&peer, script);
    peer_run(&peer);
    assert_saw("HTTP/1.1 429 ");
    assert_saw("Retry-After: 1\r\n");
    assert_int_equal(stats().refused_429, 1);
    assert_int_equal(stats().connections, 2); /* those before stay */
    peer_go(&peer);
}

static bool only_get(void *arg, const struct http_head *h, struct front_refusal *why)
{
    assert_ptr_equal(arg, &peer);
    *why =
        (struct front_refusal){401, "authentication_error", "no key", "X-Why: key\r\n"};
    return slice_eq(h->method, SLICE_LIT("GET"));
}

static void test_head_is_checked_before_its_body_is_wanted(void **state)
{
    (void)state;
    struct front_options o = usual;
    o.check = only_get;
    open_with(o);
    serve = reply_ok;
    exchange(GET "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                 "Content-Length: 9\r\n\r\n");
    assert_saw("200 OK");
    assert_saw("HTTP/1.1 401 ");
    assert_saw("X-Why: key\r\n");
    assert_saw("\"type\":\"authentication_error\"");
    assert_false(saw("100 Continue"));
    assert_int_equal(stats().refused_401, 1);
    assert_int_equal(n_requests, 1);
    assert_quiet();
}

static void test_refusal_of_a_HEAD_has_no_body(void **state)
{
    (void)state;
    struct front_options o = usual;
    o.check = only_get;
    open_with(o);
    serve = reply_ok;
    exchange("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_saw("HTTP/1.1 401 ");
    assert_saw("Content-Length: ");
    assert_false(saw("error\":"));
    assert_quiet();
}

static void test_body_that_all_memory_would_not_hold_is_413(void **state)
{
    (void)state;
    memory.max = 500;
    open_with(usual);
    refused(POST("501"), "HTTP/1.1 413 "); /* to come back later would not help */
}

static void test_other_limits_hold_from_then_on(void **state)
{
    (void)state;
    struct front_options o = usual;
    open_with(usual);
    o.body_bytes = 5;
    front_set_options(front, &o);
    refused(POST("6") "abcdef", "HTTP/1.1 413 ");
}

static void test_continue_is_said_only_where_a_body_is_wanted(void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_CONNECT, NULL, 0},
        {PEER_SEND,
         "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: "
         "2\r\n\r\n",
         0},
        {PEER_READ_HEAD, NULL, 0},
        {PEER_SEND, "hi", 0},
        {PEER_READ_HEAD, NULL, 0},
        {PEER_READ, NULL, 2},
        {PEER_SEND,
         "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: "
         "2000\r\n\r\n",
         0},
        {PEER_READ_END, NULL, 0},
        {PEER_END, NULL, 0}};
    open_with(usual);
    serve = reply_ok;
    peer_start(&peer, script);
    while (!peer.done)
        loop_run(loop);
    assert_int_equal(times("100 Continue"), 1);
    assert_saw("200 OK");
    assert_saw("413 ");
}

/* ---- time -------------------------------------------------------------------------- */

static void too_late(struct front_options o, const char *bytes, const char *line)
{
    open_with(o);
    exchange(bytes);
    if (line)
        assert_saw(line);
    else
        assert_string_equal(peer_seen(&peer), "");
    assert_int_equal(n_requests, 0);
    assert_quiet();
}

static void test_head_that_comes_too_slowly_is_408(void **state)
{
    (void)state;
    struct front_options o = usual;
    o.head_ms = 20;
    too_late(o, "GET / HT", "HTTP/1.1 408 ");
    assert_int_equal(stats().refused_408, 1);
}

static void test_body_that_comes_too_slowly_is_408(void **state)
{
    (void)state;
    struct front_options o = usual;
    o.body_ms = 20;
    too_late(o, POST("9") "abc", "HTTP/1.1 408 ");
}

/* 40 bytes in each 40 ms. */
static const struct front_options paced = {.head = {1024, 16},
                                           .body_bytes = 1000,
                                           .memory = &memory,
                                           .connections = 4,
                                           .head_ms = 5000,
                                           .body_ms = 5000,
                                           .idle_ms = 5000,
                                           .write_ms = 5000,
                                           .upload_rate = 1000,
                                           .download_rate = 1000,
                                           .pace_ms = 40};

static uint64_t slow_upload(const char *bytes)
{
    const uint64_t start_us = loop_now_us(loop);
    too_late(paced, bytes, "HTTP/1.1 408 ");
    assert_saw("arrives too slowly");
    assert_int_equal(stats().refused_408, 1);
    return loop_now_us(loop) - start_us;
}

static void test_upload_below_the_rate_is_408(void **state)
{
    (void)state;
    assert_true(slow_upload(POST("99") "39 bytes: one less than there should be") >=
                40000);
}

static void test_upload_at_the_rate_gets_another_span(void **state)
{
    (void)state;
    assert_true(slow_upload(POST("99") "40 bytes: exactly as many as there must.") >=
                80000);
}

static void test_connection_without_a_request_is_closed_silently(void **state)
{
    (void)state;
    struct front_options o = usual;
    o.idle_ms = 20;
    too_late(o, "", NULL);
    assert_int_equal(stats().refused_408, 0);
}

static void test_owner_has_all_the_time_it_wants(void **state)
{
    (void)state;
    struct front_options o = usual;
    o.head_ms = o.body_ms = o.idle_ms = o.write_ms = 20;
    static const struct peer_step script[] = {{PEER_CONNECT, NULL, 0},
                                              {PEER_SEND, POST("1") "a", 0},
                                              {PEER_READ_END, NULL, 0},
                                              {PEER_END, NULL, 0}};
    open_with(o);
    peer_start(&peer, script);
    until_owned();
    rig_idle(loop, 60);
    assert_non_null(owned);
    reply_ok(owned);
    owned = NULL;
    while (!peer.done)
        loop_run(loop);
    assert_saw("200 OK");
    assert_int_equal(n_gone, 0);
}

/* ---- answers ----------------------------------------------------------------------- */

static void stream_two(struct front_request *rq)
{
    const struct front_answer a = {.status = 201,
                                   .reason = SLICE_LIT("Made"),
                                   .headers = SLICE_LIT("date: then\r\nX-Date: no\r\n"),
                                   .length = -1};
    front_start(rq, &a);
    front_data(rq, SLICE_LIT("one"));
    front_data(rq, (struct slice){"", 0}); /* is not the end */
    front_data(rq, SLICE_LIT("two"));
    assert_int_equal(front_sent_bytes(rq), 6);
    front_end(rq);
}

static void test_answer_of_unknown_length_is_chunked(void **state)
{
    (void)state;
    open_with(usual);
    serve = stream_two;
    exchange("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_saw("HTTP/1.1 201 Made\r\n");
    assert_saw("\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n");
    assert_int_equal(times("ate: "), 2); /* ours is not added to the engine's */
}

static void test_answer_of_unknown_length_to_1_0_ends_with_the_connection(void **state)
{
    (void)state;
    open_with(usual);
    serve = stream_two;
    exchange("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_saw("Connection: close\r\n");
    assert_saw("\r\n\r\nonetwo");
    assert_false(saw("chunked"));
}

static void sized(struct front_request *rq)
{
    const bool is_head = slice_eq(front_head(rq)->method, SLICE_LIT("HEAD"));
    const struct front_answer a = {.status = 200, .length = 5, .bodiless = is_head};
    front_start(rq, &a);
    front_data(rq, SLICE_LIT("hello"));
    front_end(rq);
}

static void test_answer_to_head_has_a_length_and_no_body(void **state)
{
    (void)state;
    open_with(usual);
    serve = sized;
    exchange("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n"
             "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_int_equal(times("Content-Length: 5\r\n"), 2);
    assert_int_equal(times("hello"), 1);
}

static void nothing_204(struct front_request *rq)
{
    const struct front_answer a = {.status = 204, .length = -1, .bodiless = true};
    front_start(rq, &a);
    front_end(rq);
}

static void test_answer_without_body_has_no_framing(void **state)
{
    (void)state;
    open_with(usual);
    serve = nothing_204;
    exchange(GET "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_int_equal(times("HTTP/1.1 204 No Content\r\n"), 2);
    assert_false(saw("Content-Length"));
    assert_false(saw("chunked"));
}

static void error_reply(struct front_request *rq)
{
    front_error(rq, 502, "upstream_error", "gone", SLICE_LIT("X-Request-Id: 7\r\n"));
}

static void quoting_reply(struct front_request *rq)
{
    front_error(rq, 400, "invalid_request_error", "no \"a\\b\"\n", (struct slice){"", 0});
}

static void test_error_stays_JSON_whatever_it_says(void **state)
{
    (void)state;
    open_with(usual);
    serve = quoting_reply;
    exchange("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_saw("{\"message\":\"no \\\"a\\\\b\\\"\\n\",");
}

static void test_error_has_the_shape_of_the_api(void **state)
{
    (void)state;
    open_with(usual);
    serve = error_reply;
    exchange("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_saw("HTTP/1.1 502 ");
    assert_saw("X-Request-Id: 7\r\n");
    assert_saw(
        "{\"error\":{\"message\":\"gone\",\"type\":\"upstream_error\",\"code\":502},"
        "\"type\":\"error\"}");
}

static void cut_chunks(struct front_request *rq)
{
    const struct front_answer a = {.status = 200, .length = -1};
    front_start(rq, &a);
    front_data(rq, SLICE_LIT("half"));
    front_abort(rq);
}

static void test_aborted_chunks_arrive_without_their_end(void **state)
{
    (void)state;
    open_with(usual);
    serve = cut_chunks;
    exchange(GET GET);
    assert_saw("4\r\nhalf\r\n");
    assert_false(saw("0\r\n\r\n"));
    assert_int_equal(n_requests, 1);
    assert_quiet();
}

static void test_aborted_answer_that_only_a_close_would_end_is_reset(void **state)
{
    (void)state;
    static const struct peer_step script[] = {{PEER_CONNECT, NULL, 0},
                                              {PEER_SEND, "GET / HTTP/1.0\r\n\r\n", 0},
                                              {PEER_READ_RESET, NULL, 0},
                                              {PEER_END, NULL, 0}};
    open_with(usual);
    serve = cut_chunks;
    peer_start(&peer, script);
    while (!peer.done)
        loop_run(loop);
}

/* ---- clients that leave ------------------------------------------------------------ */

static void leaves(enum peer_op how)
{
    const struct peer_step script[] = {{PEER_CONNECT, NULL, 0},
                                       {PEER_SEND, POST("1") "a" GET, 0},
                                       {PEER_WAIT, NULL, 0},
                                       {how, NULL, 0},
                                       {PEER_END, NULL, 0}};
    open_with(usual);
    peer_start(&peer, script);
    until_owned();
    peer_go(&peer);
    until_gone(1);
    assert_int_equal(n_requests, 1); /* what was pipelined is not served */
    rig_idle(loop, 5);
    assert_int_equal(n_gone, 1);
    assert_quiet();
}

static void test_client_that_closes_is_gone(void **state)
{
    (void)state;
    leaves(PEER_CLOSE);
}

static void test_client_that_resets_is_gone(void **state)
{
    (void)state;
    leaves(PEER_RESET);
}

static void test_client_that_half_closes_is_gone(void **state)
{
    (void)state;
    leaves(PEER_FIN);
}

static void test_client_that_leaves_in_an_answer_is_gone(void **state)
{
    (void)state;
    static const struct peer_step script[] = {{PEER_CONNECT, NULL, 0},
                                              {PEER_SEND, GET, 0},
                                              {PEER_READ_HEAD, NULL, 0},
                                              {PEER_CLOSE, NULL, 0},
                                              {PEER_END, NULL, 0}};
    const struct front_answer a = {.status = 200, .length = -1};
    open_with(usual);
    peer_start(&peer, script);
    until_owned();
    front_start(owned, &a);
    until_gone(1);
    assert_quiet();
}

static void test_client_that_leaves_before_its_request_is_whole_is_no_request(
    void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_CONNECT, NULL, 0}, {PEER_SEND, "GET / H", 0},      {PEER_CLOSE, NULL, 0},
        {PEER_CONNECT, NULL, 0}, {PEER_SEND, POST("5") "ab", 0}, {PEER_RESET, NULL, 0},
        {PEER_CONNECT, NULL, 0}, {PEER_CLOSE, NULL, 0},          {PEER_END, NULL, 0}};
    open_with(usual);
    peer_start(&peer, script);
    while (!peer.done || stats().accepted < 3 || stats().connections)
        rig_idle(loop, 2);
    assert_int_equal(n_requests, 0);
    assert_int_equal(n_gone, 0);
    assert_quiet();
}

static void test_client_that_closes_with_its_request_is_handed_over_and_gone(void **state)
{
    (void)state;
    static const struct peer_step script[] = {{PEER_CONNECT, NULL, 0},
                                              {PEER_SEND, GET, 0},
                                              {PEER_CLOSE, NULL, 0},
                                              {PEER_TELL, NULL, 0},
                                              {PEER_END, NULL, 0}};
    open_with(usual);
    peer_start(&peer, script);
    peer_await(&peer); /* request and close arrive in one turn */
    until_gone(1);
    assert_int_equal(n_requests, 1);
    assert_quiet();
}

static void test_answer_that_ends_in_the_turn_of_the_close_is_over(void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_CONNECT, NULL, 0}, {PEER_SEND, GET, 0},  {PEER_WAIT, NULL, 0},
        {PEER_CLOSE, NULL, 0},   {PEER_TELL, NULL, 0}, {PEER_END, NULL, 0}};
    open_with(usual);
    peer_start(&peer, script);
    until_owned();
    peer_go(&peer);
    peer_await(&peer);
    struct front_request *rq = owned;
    owned = NULL;
    reply_ok(rq);
    while (stats().connections)
        rig_idle(loop, 2);
    assert_int_equal(n_gone, 0);
    assert_quiet();
}

/* ---- clients that do not read ------------------------------------------------------ */

static char block[65536];

/* Sends until the client's side is full. */
static size_t send_until_congested(void)
{
    size_t n = 0;
    for (; !front_congested(owned); n++) {
        assert_true(n < 1000);
        front_data(owned, slice_make(block, sizeof(block)));
    }
    return n * sizeof(block);
}

static void test_congestion_is_told_and_drained(void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_CONNECT, NULL, 0}, {PEER_SEND, GET, 0},      {PEER_READ_HEAD, NULL, 0},
        {PEER_WAIT, NULL, 0},    {PEER_READ_END, NULL, 0}, {PEER_END, NULL, 0}};
    const struct front_answer a = {.status = 200, .length = (int64_t)1 << 40};
    open_with(usual);
    peer_start(&peer, script);
    until_owned();
    front_start(owned, &a);
    const size_t n = send_until_congested();
    rig_idle(loop, 20);
    assert_int_equal(n_drained, 0);
    peer_go(&peer);
    while (!n_drained)
        loop_run(loop);
    assert_false(front_congested(owned));
    assert_int_equal(front_sent_bytes(owned), n);
    front_abort(owned);
}

static void test_client_that_does_not_read_is_cut(void **state)
{
    (void)state;
    static const struct peer_step script[] = {{PEER_CONNECT, NULL, 0},
                                              {PEER_SEND, GET, 0},
                                              {PEER_WAIT, NULL, 0},
                                              {PEER_END, NULL, 0}};
    const struct front_answer a = {.status = 200, .length = -1};
    struct front_options o = usual;
    o.write_ms = 30;
    open_with(o);
    peer_start(&peer, script);
    until_owned();
    front_start(owned, &a);
    send_until_congested();
    until_gone(1);
    assert_quiet();
    peer_go(&peer);
}

/* It takes a little in each write_ms, so that is never over; nor is it below the rate. */
static void test_client_that_reads_a_little_at_a_time_is_not_cut(void **state)
{
    (void)state;
    enum { PIECE = 100000, PIECES = 5 };
    struct peer_step script[4 + 3 * PIECES + 2] = {
        {PEER_CONNECT, NULL, 0}, {PEER_SEND, GET, 0}, {PEER_READ_HEAD, NULL, 0}};
    size_t n = 3;
    for (int i = 0; i < PIECES; i++) {
        script[n++] = (struct peer_step){PEER_READ, NULL, PIECE};
        script[n++] = (struct peer_step){PEER_SAY, NULL, 0};
        script[n++] = (struct peer_step){PEER_WAIT, NULL, 0};
    }
    script[n++] = (struct peer_step){PEER_RESET, NULL, 0};
    script[n] = (struct peer_step){PEER_END, NULL, 0};
    const struct front_answer a = {.status = 200, .length = -1};
    struct front_options o = usual;
    o.write_ms = 1000;
    open_with(o);
    peer_start(&peer, script);
    until_owned();
    front_start(owned, &a);
    send_until_congested();
    for (int i = 0; i < PIECES; i++) {
        peer_run(&peer);
        rig_idle(loop, 250);
        assert_int_equal(n_gone, 0);
        if (!front_congested(owned))
            send_until_congested();
        peer_go(&peer);
    }
    until_gone(1);
    assert_int_equal(stats().slow_readers, 0);
}

/* It has write_ms left, but is below the rate. */
static void test_client_that_reads_too_slowly_is_cut(void **state)
{
    (void)state;
    static const struct peer_step script[] = {{PEER_CONNECT, NULL, 0},
                                              {PEER_SEND, GET, 0},
                                              {PEER_WAIT, NULL, 0},
                                              {PEER_END, NULL, 0}};
    const struct front_answer a = {.status = 200, .length = -1};
    open_with(paced);
    peer_start(&peer, script);
    until_owned();
    front_start(owned, &a);
    send_until_congested();
    until_gone(1);
    assert_int_equal(stats().slow_readers, 1);
    assert_quiet();
    peer_go(&peer);
}

static void test_client_that_has_all_there_is_is_not_slow(void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_CONNECT, NULL, 0},
        {PEER_SEND, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 0},
        {PEER_READ_HEAD, NULL, 0},
        {PEER_READ, NULL, 2},
        {PEER_SAY, NULL, 0},
        {PEER_READ_END, NULL, 0},
        {PEER_END, NULL, 0}};
    const struct front_answer a = {.status = 200, .length = 3};
    open_with(paced);
    peer_start(&peer, script);
    until_owned();
    front_start(owned, &a);
    front_data(owned, SLICE_LIT("ab"));
    peer_run(&peer);
    rig_idle(loop, 150); /* several spans */
    assert_int_equal(n_gone, 0);
    front_data(owned, SLICE_LIT("c"));
    front_end(owned);
    owned = NULL;
    while (!peer.done)
        loop_run(loop);
}

/* The answer is whole for its owner, but most of it lies in the output queue. */
static void test_slow_reader_of_a_whole_answer_gets_all_of_it(void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_CONNECT, NULL, 0}, {PEER_SEND, GET, 0},      {PEER_READ_HEAD, NULL, 0},
        {PEER_WAIT, NULL, 0},    {PEER_READ_END, NULL, 0}, {PEER_END, NULL, 0}};
    const struct front_answer a = {.status = 200, .length = -1};
    struct front_options o = usual;
    o.idle_ms = 20;
    open_with(o);
    peer_start(&peer, script);
    until_owned();
    front_start(owned, &a);
    send_until_congested();
    front_end(owned);
    owned = NULL;
    while (stats().connections) /* until idle_ms has passed */
        rig_idle(loop, 5);
    peer_go(&peer);
    while (!peer.done)
        loop_run(loop);
    const struct slice seen = buf_slice(&peer.seen);
    assert_memory_equal(seen.ptr + seen.len - 7, "\r\n0\r\n\r\n", 7);
}

/* ---- stopping ---------------------------------------------------------------------- */

static bool stopped;

static void on_stopped(void *arg)
{
    assert_ptr_equal(arg, &front);
    assert_false(stopped);
    stopped = true;
    loop_stop(loop);
}

static void test_drain_without_clients_is_done_at_once(void **state)
{
    (void)state;
    stopped = false;
    open_with(usual);
    front_drain(front, on_stopped, &front);
    assert_false(stopped); /* not from inside */
    while (!stopped)
        loop_run(loop);
}

static void test_drain_closes_idle_and_lets_running_requests_end(void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_CONNECT, NULL, 0}, {PEER_SEND, POST("1") "a", 0},
        {PEER_WAIT, NULL, 0},    {PEER_CONNECT, NULL, 0},
        {PEER_SAY, NULL, 0},     {PEER_READ_END, NULL, 0},
        {PEER_SAY, NULL, 0},     {PEER_END, NULL, 0}};
    stopped = false;
    open_with(usual);
    peer_start(&peer, script);
    until_owned();
    peer_go(&peer);
    peer_run(&peer);
    while (stats().connections < 2)
        rig_idle(loop, 2);
    front_drain(front, on_stopped, &front);
    peer_run(&peer); /* the idle one was closed */
    assert_false(stopped);
    assert_non_null(owned);
    struct front_request *rq = owned;
    owned = NULL;
    reply_ok(rq);
    while (!stopped)
        loop_run(loop);
    assert_int_equal(n_gone, 0);
    assert_quiet();
}

static void test_close_tells_the_owners(void **state)
{
    (void)state;
    static const struct peer_step script[] = {{PEER_CONNECT, NULL, 0},
                                              {PEER_SEND, GET, 0},
                                              {PEER_READ_RESET, NULL, 0},
                                              {PEER_END, NULL, 0}};
    open_with(usual);
    peer_start(&peer, script);
    until_owned();
    front_close(front);
    front = NULL;
    assert_int_equal(n_gone, 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(request_is_handed_over_whole),
        TEST(chunked_body_is_handed_over_as_bytes),
        TEST(pipelined_requests_are_answered_in_order_one_at_a_time),
        TEST(pipelined_requests_that_are_answered_at_once),
        TEST(client_that_never_reads_does_not_fill_our_memory),
        TEST(client_that_reads_late_gets_all_its_answers),
        TEST(head_of_the_limit_is_read),
        TEST(head_beyond_the_limit_is_431),
        TEST(ambiguous_request_is_400),
        TEST(body_of_the_limit_is_read),
        TEST(chunked_body_of_the_limit_is_read),
        TEST(body_beyond_the_limit_is_413),
        TEST(chunked_body_beyond_the_limit_is_413),
        TEST(announced_length_beyond_all_limits_is_413),
        TEST(bodies_together_at_the_limit_are_read),
        TEST(bodies_together_beyond_the_limit_are_503),
        TEST(what_the_owner_holds_counts_with_bodies),
        TEST(body_that_grows_within_the_limit_is_read),
        TEST(body_whose_growth_is_beyond_the_limit_is_503),
        TEST(long_body_counts_with_its_pages),
        TEST(connection_beyond_the_limit_is_503),
        TEST(connection_of_a_client_that_has_enough_is_429),
        TEST(head_is_checked_before_its_body_is_wanted),
        TEST(refusal_of_a_HEAD_has_no_body),
        TEST(body_that_all_memory_would_not_hold_is_413),
        TEST(other_limits_hold_from_then_on),
        TEST(upload_below_the_rate_is_408),
        TEST(upload_at_the_rate_gets_another_span),
        TEST(error_stays_JSON_whatever_it_says),
        TEST(client_that_reads_a_little_at_a_time_is_not_cut),
        TEST(client_that_reads_too_slowly_is_cut),
        TEST(client_that_has_all_there_is_is_not_slow),
        TEST(continue_is_said_only_where_a_body_is_wanted),
        TEST(head_that_comes_too_slowly_is_408),
        TEST(body_that_comes_too_slowly_is_408),
        TEST(connection_without_a_request_is_closed_silently),
        TEST(owner_has_all_the_time_it_wants),
        TEST(answer_of_unknown_length_is_chunked),
        TEST(answer_of_unknown_length_to_1_0_ends_with_the_connection),
        TEST(answer_to_head_has_a_length_and_no_body),
        TEST(answer_without_body_has_no_framing),
        TEST(error_has_the_shape_of_the_api),
        TEST(aborted_chunks_arrive_without_their_end),
        TEST(aborted_answer_that_only_a_close_would_end_is_reset),
        TEST(client_that_closes_is_gone),
        TEST(client_that_resets_is_gone),
        TEST(client_that_half_closes_is_gone),
        TEST(client_that_leaves_in_an_answer_is_gone),
        TEST(client_that_leaves_before_its_request_is_whole_is_no_request),
        TEST(client_that_closes_with_its_request_is_handed_over_and_gone),
        TEST(answer_that_ends_in_the_turn_of_the_close_is_over),
        TEST(congestion_is_told_and_drained),
        TEST(client_that_does_not_read_is_cut),
        TEST(slow_reader_of_a_whole_answer_gets_all_of_it),
        TEST(drain_without_clients_is_done_at_once),
        TEST(drain_closes_idle_and_lets_running_requests_end),
        TEST(close_tells_the_owners),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
