/* SPDX-License-Identifier: MIT */
#include "wire/upstream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "cmocka_all.h"
#include "io_rig.h"
#include "wire/ask.h"
#include "wire_peer.h"

#define OK_HEAD "HTTP/1.1 200 OK\r\n"
#define OK_5 OK_HEAD "Content-Length: 5\r\n\r\nhello"
#define GET "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

static struct loop *loop;
static struct peer peer;
static struct upstream *up;
static struct buf told; /* what the callbacks said, one word each */
static const char *wanted;
static struct call *call;
static unsigned n_lost;

static int set_up(void **state)
{
    const int rc = rig_up(state);
    loop = *state;
    peer_listen(&peer, loop);
    wanted = NULL;
    n_lost = 0;
    return rc;
}

static int tear_down(void **state)
{
    upstream_free(up);
    up = NULL;
    peer_finish(&peer);
    buf_free(&told);
    return rig_down(state);
}

/* ---- what a call tells ------------------------------------------------------------- */

static bool was_told(const char *word)
{
    return memmem(buf_slice(&told).ptr, buf_len(&told), word, strlen(word)) != NULL;
}

static void tell(const char *word)
{
    buf_append_str(&told, word);
    if (wanted && was_told(wanted))
        loop_stop(loop);
}

static void until(const char *word)
{
    wanted = word;
    while (!was_told(word))
        loop_run(loop);
    wanted = NULL;
}

static void assert_told(const char *all)
{
    const struct slice s = buf_slice(&told);
    if (!slice_eq(s, slice_of(all)))
        fail_msg("told \"%.*s\", expected \"%s\"", (int)s.len, s.ptr, all);
}

static void on_head(void *arg, const struct http_head *h)
{
    char word[32];
    assert_ptr_equal(arg, &peer);
    snprintf(word, sizeof(word), "head:%d ", h->status);
    tell(word);
}

static void on_body(void *arg, struct slice bytes)
{
    (void)arg;
    buf_append_slice(&told, bytes);
    tell(" ");
}

static void on_end(void *arg)
{
    (void)arg;
    call = NULL;
    tell("end ");
    loop_stop(loop);
}

static void on_fail(void *arg, const struct err *why)
{
    char word[64];
    (void)arg;
    call = NULL;
    assert_true(why->text[0]);
    snprintf(word, sizeof(word), "fail:%s ", err_name(why->code));
    tell(word);
    loop_stop(loop);
}

static void on_sent(void *arg)
{
    (void)arg;
    tell("sent ");
}

static void on_lost(void *arg)
{
    (void)arg;
    n_lost++;
}

static const struct call_events plain = {on_head, on_body, on_end, on_fail, NULL};

static void open_with(struct upstream_options o)
{
    char url[64];
    struct err e = {0};
    snprintf(url, sizeof(url), "http://%s", peer.at.text);
    o.url = url;
    up = upstream_new(loop, &o, &e);
    assert_non_null(up);
    upstream_on_lost(up, on_lost, NULL);
}

static const struct upstream_options usual = {.connect_ms = 5000,
                                              .first_byte_ms = 5000,
                                              .stall_ms = 5000,
                                              .pool_idle_ms = 5000,
                                              .pool_max_requests = 100,
                                              .pool_max_idle = 4};

static void send_call(const char *head, const struct call_events *events)
{
    const struct call_request rq = {.head = slice_of(head),
                                    .is_head = strncmp(head, "HEAD", 4) == 0};
    call = call_start(up, &rq, events, &peer);
}

static struct upstream_stats stats(void)
{
    struct upstream_stats s;
    upstream_stats(up, &s);
    return s;
}

/* The engine answers one request with these bytes, and closes. */
static void answers_and_closes(struct upstream_options o, const char *bytes)
{
    const struct peer_step script[] = {{PEER_ACCEPT, NULL, 0},
                                       {PEER_READ_HEAD, NULL, 0},
                                       {PEER_SEND, bytes, 0},
                                       {PEER_CLOSE, NULL, 0},
                                       {PEER_END, NULL, 0}};
    open_with(o);
    peer_start(&peer, script);
}

/* One call whose answer is these bytes. */
static void answer_with(const char *head, const char *bytes)
{
    answers_and_closes(usual, bytes);
    send_call(head, &plain);
    while (call)
        loop_run(loop);
}

/* ---- happy ------------------------------------------------------------------------- */

static void test_call_sends_head_and_slices_and_hands_the_answer_on(void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_ACCEPT, NULL, 0}, {PEER_READ_HEAD, NULL, 0}, {PEER_READ, NULL, 6},
        {PEER_SEND, OK_5, 0},   {PEER_READ_END, NULL, 0},  {PEER_END, NULL, 0}};
    static const struct call_events events = {on_head, on_body, on_end, on_fail, on_sent};
    const struct call_request rq = {
        .head = SLICE_LIT("POST / HTTP/1.1\r\nContent-Length: 6\r\n\r\n"),
        .body = {SLICE_LIT("ab"), SLICE_LIT("cd"), SLICE_LIT("ef")}};
    open_with(usual);
    peer_start(&peer, script);
    call = call_start(up, &rq, &events, &peer);
    assert_told(""); /* never from inside */
    until("end");
    assert_told("sent head:200 hello end ");
    const struct upstream_stats s = stats();
    assert_int_equal(s.calls, 1);
    assert_int_equal(s.active, 0);
    assert_int_equal(s.idle, 1);
    upstream_flush(up);
    assert_int_equal(stats().idle, 0);
    peer_run(&peer);
    assert_string_equal(peer_seen(&peer),
                        "POST / HTTP/1.1\r\nContent-Length: 6\r\n\r\nabcdef");
}

static void test_call_without_body_says_that_it_is_sent(void **state)
{
    (void)state;
    static const struct peer_step script[] = {{PEER_ACCEPT, NULL, 0},
                                              {PEER_READ_HEAD, NULL, 0},
                                              {PEER_SEND, OK_5, 0},
                                              {PEER_WAIT, NULL, 0},
                                              {PEER_END, NULL, 0}};
    static const struct call_events events = {on_head, on_body, on_end, on_fail, on_sent};
    open_with(usual);
    peer_start(&peer, script);
    send_call(GET, &events);
    until("end");
    assert_told("sent head:200 hello end ");
    peer_go(&peer);
}

static void test_connection_is_used_again_whatever_kind_of_answer(void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_ACCEPT, NULL, 0},
        {PEER_READ_HEAD, NULL, 0},
        {PEER_SEND, OK_5, 0},
        {PEER_READ_HEAD, NULL, 0}, /* the length of HEAD's answer is not followed by it */
        {PEER_SEND, OK_HEAD "Content-Length: 99\r\n\r\n", 0},
        {PEER_READ_HEAD, NULL, 0},
        {PEER_SEND, "HTTP/1.1 204 No\r\n\r\n", 0},
        {PEER_READ_HEAD, NULL, 0},
        {PEER_SEND, "HTTP/1.1 304 Same\r\nContent-Length: 7\r\n\r\n", 0},
        {PEER_READ_HEAD, NULL, 0},
        {PEER_SEND, OK_HEAD "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 0},
        {PEER_READ_HEAD, NULL, 0},
        {PEER_SEND, OK_HEAD "Content-Length: 0\r\n\r\n", 0},
        {PEER_WAIT, NULL, 0},
        {PEER_END, NULL, 0}};
    open_with(usual);
    peer_start(&peer, script);
    for (int i = 0; i < 6; i++) {
        send_call(i == 1 ? "HEAD / HTTP/1.1\r\n\r\n" : GET, &plain);
        loop_run(loop);
        assert_null(call);
    }
    assert_told("head:200 hello end head:200 end head:204 end head:304 end "
                "head:200 abc end head:200 end ");
    assert_int_equal(stats().connects, 1);
    assert_int_equal(stats().idle, 1);
    peer_go(&peer);
}

static void test_interim_answers_are_not_handed_on(void **state)
{
    (void)state;
    answer_with("HEAD / HTTP/1.1\r\n\r\n",
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n"
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
    assert_told("head:200 end ");
}

static void test_until_close_bodies_end_with_the_connection(void **state)
{
    (void)state;
    answer_with(GET, OK_HEAD "\r\nas long as it lasts");
    assert_true(was_told("as long as it lasts"));
    assert_true(was_told("end"));
    assert_int_equal(stats().idle, 0);
}

/* ---- what is not HTTP -------------------------------------------------------------- */

static void test_answer_that_is_cut_short_fails(void **state)
{
    (void)state;
    answer_with(GET, OK_HEAD "Content-Length: 9\r\n\r\nhello");
    assert_told("head:200 hello fail:closed ");
    assert_true(n_lost > 0); /* the engine may have died */
    assert_int_equal(stats().failures, 1);
    assert_int_equal(stats().retries, 0);
}

static void test_chunks_that_do_not_end_fail(void **state)
{
    (void)state;
    answer_with(GET, OK_HEAD "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    assert_told("head:200 hello fail:closed ");
}

static void test_head_that_is_cut_short_fails_without_a_head(void **state)
{
    (void)state;
    answer_with(GET, "HTTP/1.1 200 OK\r\nContent-Le");
    assert_told("fail:closed ");
}

static void test_noise_fails(void **state)
{
    (void)state;
    answer_with(GET, "220 mail.example ESMTP\r\n");
    assert_told("fail:closed ");
}

static void test_protocol_that_nobody_asked_for_fails(void **state)
{
    (void)state;
    answer_with(GET,
                "HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n");
    assert_told("fail:closed ");
}

static void test_bytes_behind_an_answer_spoil_the_connection(void **state)
{
    (void)state;
    answer_with(GET, OK_5 "HTTP/1.1 200 OK\r\n");
    assert_told("head:200 hello end ");
    assert_int_equal(stats().idle, 0);
}

static void test_streams_end_their_connections(void **state)
{
    (void)state;
    answer_with(GET, OK_HEAD "Content-Type: text/event-stream; charset=utf-8\r\n"
                             "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    assert_told("head:200 abc end ");
    assert_int_equal(stats().idle, 0);
}

#define STREAM_3                                                                         \
    OK_HEAD "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"      \
            "3\r\nabc\r\n0\r\n\r\n"

static void call_once(void)
{
    send_call(GET, &plain);
    while (call)
        loop_run(loop);
}

static void test_streams_may_keep_their_connections(void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_ACCEPT, NULL, 0},    {PEER_READ_HEAD, NULL, 0}, {PEER_SEND, STREAM_3, 0},
        {PEER_READ_HEAD, NULL, 0}, {PEER_SEND, STREAM_3, 0},  {PEER_WAIT, NULL, 0},
        {PEER_END, NULL, 0}};
    struct upstream_options o = usual;
    o.keep_streams = true;
    open_with(o);
    peer_start(&peer, script);
    call_once();
    call_once();
    assert_told("head:200 abc end head:200 abc end ");
    assert_int_equal(stats().connects, 1);
    assert_int_equal(stats().idle, 1);
    peer_go(&peer);
}

/* As llama-server does. Documents are pooled all the same. */
static void test_streams_are_not_kept_where_the_engine_closes_behind_them(void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_ACCEPT, NULL, 0},    {PEER_READ_HEAD, NULL, 0}, {PEER_SEND, STREAM_3, 0},
        {PEER_WAIT, NULL, 0},      {PEER_CLOSE, NULL, 0},     {PEER_ACCEPT, NULL, 0},
        {PEER_READ_HEAD, NULL, 0}, {PEER_SEND, STREAM_3, 0},  {PEER_READ_END, NULL, 0},
        {PEER_ACCEPT, NULL, 0},    {PEER_READ_HEAD, NULL, 0}, {PEER_SEND, OK_5, 0},
        {PEER_WAIT, NULL, 0},      {PEER_END, NULL, 0}};
    struct upstream_options o = usual;
    o.keep_streams = true;
    open_with(o);
    peer_start(&peer, script);
    call_once();
    assert_int_equal(stats().idle, 1);
    peer_go(&peer);
    while (!n_lost)
        rig_idle(loop, 2);
    call_once(); /* closed by us */
    assert_int_equal(stats().idle, 0);
    call_once();
    assert_int_equal(stats().idle, 1);
    assert_int_equal(stats().connects, 3);
    assert_int_equal(stats().retries, 0);
    peer_go(&peer);
}

/* ---- the pool ---------------------------------------------------------------------- */

static void test_answers_that_close_are_not_pooled(void **state)
{
    (void)state;
    answer_with(GET, OK_HEAD "Connection: close\r\nContent-Length: 5\r\n\r\nhello");
    assert_told("head:200 hello end ");
    assert_int_equal(stats().idle, 0);
}

static void served_twice(struct upstream_options o, unsigned connects)
{
    static const struct peer_step two[] = {
        {PEER_ACCEPT, NULL, 0},    {PEER_READ_HEAD, NULL, 0}, {PEER_SEND, OK_5, 0},
        {PEER_READ_END, NULL, 0},  {PEER_SAY, NULL, 0},       {PEER_ACCEPT, NULL, 0},
        {PEER_READ_HEAD, NULL, 0}, {PEER_SEND, OK_5, 0},      {PEER_READ_END, NULL, 0},
        {PEER_END, NULL, 0}};
    open_with(o);
    peer_start(&peer, two);
    send_call(GET, &plain);
    while (call)
        loop_run(loop);
    peer_run(&peer); /* it sees the first connection close */
    send_call(GET, &plain);
    while (call)
        loop_run(loop);
    assert_told("head:200 hello end head:200 hello end ");
    assert_int_equal(stats().connects, connects);
    assert_int_equal(stats().retries, 0);
}

static void test_pool_lets_go_after_so_many_requests(void **state)
{
    (void)state;
    struct upstream_options o = usual;
    o.pool_max_requests = 1;
    served_twice(o, 2);
}

static void test_pool_lets_go_of_idle_connections(void **state)
{
    (void)state;
    struct upstream_options o = usual;
    o.pool_idle_ms = 10;
    served_twice(o, 2);
    while (stats().idle)
        rig_idle(loop, 5);
    assert_int_equal(n_lost, 0); /* we were the ones who closed */
}

static void test_pool_keeps_so_many_at_most(void **state)
{
    (void)state;
    struct upstream_options o = usual;
    o.pool_max_idle = 0;
    served_twice(o, 2);
}

static void test_pooled_connection_that_the_engine_closed_is_not_used(void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_ACCEPT, NULL, 0}, {PEER_READ_HEAD, NULL, 0}, {PEER_SEND, OK_5, 0},
        {PEER_WAIT, NULL, 0},   {PEER_CLOSE, NULL, 0},     {PEER_TELL, NULL, 0},
        {PEER_ACCEPT, NULL, 0}, {PEER_READ_HEAD, NULL, 0}, {PEER_SEND, OK_5, 0},
        {PEER_WAIT, NULL, 0},   {PEER_END, NULL, 0}};
    open_with(usual);
    peer_start(&peer, script);
    send_call(GET, &plain);
    while (call)
        loop_run(loop);
    peer_go(&peer);
    peer_await(&peer); /* the loop stands still: only a look at the socket can tell */
    send_call(GET, &plain);
    while (call)
        loop_run(loop);
    assert_told("head:200 hello end head:200 hello end ");
    assert_int_equal(stats().connects, 2);
    assert_int_equal(stats().retries, 0);
    assert_int_equal(n_lost, 1);
    peer_go(&peer);
}

static void test_connection_that_closes_in_the_pool_is_dropped_and_told(void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_ACCEPT, NULL, 0}, {PEER_READ_HEAD, NULL, 0}, {PEER_SEND, OK_5, 0},
        {PEER_WAIT, NULL, 0},   {PEER_CLOSE, NULL, 0},     {PEER_END, NULL, 0}};
    open_with(usual);
    peer_start(&peer, script);
    send_call(GET, &plain);
    while (call)
        loop_run(loop);
    peer_go(&peer);
    while (!n_lost)
        rig_idle(loop, 2);
    assert_int_equal(stats().idle, 0);
}

/* ---- retries ----------------------------------------------------------------------- */

static const struct peer_step closes_on_second[] = {
    {PEER_ACCEPT, NULL, 0},    {PEER_READ_HEAD, NULL, 0}, {PEER_SEND, OK_5, 0},
    {PEER_READ_HEAD, NULL, 0}, {PEER_READ, NULL, 4},      {PEER_CLOSE, NULL, 0},
    {PEER_ACCEPT, NULL, 0},    {PEER_READ_HEAD, NULL, 0}, {PEER_READ, NULL, 4},
    {PEER_SEND, OK_5, 0},      {PEER_WAIT, NULL, 0},      {PEER_END, NULL, 0}};

static struct call_facts facts; /* of the second */

static void post_twice(const struct peer_step *script)
{
    const struct call_request rq = {.head = SLICE_LIT("POST / HTTP/1.1\r\n\r\n"),
                                    .body = {SLICE_LIT("body")},
                                    .facts = &facts};
    facts = (struct call_facts){0};
    open_with(usual);
    peer_start(&peer, script);
    send_call(GET, &plain);
    while (call)
        loop_run(loop);
    call = call_start(up, &rq, &plain, &peer);
    while (call)
        loop_run(loop);
}

static void test_pooled_connection_that_dies_is_replaced_once(void **state)
{
    (void)state;
    post_twice(closes_on_second);
    assert_told("head:200 hello end head:200 hello end ");
    assert_int_equal(stats().retries, 1);
    assert_int_equal(stats().connects, 2);
    assert_int_equal(facts.retries, 1);
    assert_int_equal(facts.connects, 1);
    assert_true(facts.sent_us > 0);
    assert_int_equal(stats().calls, 2);
    assert_int_equal(n_lost, 1);
    peer_go(&peer);
    peer_run(&peer);
    assert_string_equal(peer_seen(&peer), GET "POST / HTTP/1.1\r\n\r\nbody"
                                              "POST / HTTP/1.1\r\n\r\nbody");
}

static void test_nothing_is_repeated_twice(void **state)
{
    (void)state;
    struct peer_step script[12];
    memcpy(script, closes_on_second, sizeof(script));
    script[9] = (struct peer_step){PEER_CLOSE, NULL, 0};
    script[10] = (struct peer_step){PEER_END, NULL, 0};
    post_twice(script);
    assert_told("head:200 hello end fail:closed ");
    assert_int_equal(stats().retries, 1);
    assert_int_equal(stats().connects, 2);
}

static void test_nothing_is_repeated_after_a_byte_of_an_answer(void **state)
{
    (void)state;
    struct peer_step script[12];
    memcpy(script, closes_on_second, sizeof(script));
    script[5] = (struct peer_step){PEER_SEND, "H", 0};
    script[6] = (struct peer_step){PEER_CLOSE, NULL, 0};
    script[7] = (struct peer_step){PEER_END, NULL, 0};
    post_twice(script);
    assert_told("head:200 hello end fail:closed ");
    assert_int_equal(stats().retries, 0);
}

static void test_nothing_is_repeated_that_must_not_be(void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_ACCEPT, NULL, 0},    {PEER_READ_HEAD, NULL, 0}, {PEER_SEND, OK_5, 0},
        {PEER_READ_HEAD, NULL, 0}, {PEER_CLOSE, NULL, 0},     {PEER_END, NULL, 0}};
    const struct call_request rq = {.head = slice_of(GET), .once = true};
    open_with(usual);
    peer_start(&peer, script);
    send_call(GET, &plain);
    while (call)
        loop_run(loop);
    call = call_start(up, &rq, &plain, &peer);
    while (call)
        loop_run(loop);
    assert_told("head:200 hello end fail:closed ");
    assert_int_equal(stats().retries, 0);
    assert_int_equal(stats().connects, 1);
}

static void test_nothing_is_repeated_on_a_fresh_connection(void **state)
{
    (void)state;
    answer_with(GET, "");
    assert_told("fail:closed ");
    assert_int_equal(stats().retries, 0);
    assert_int_equal(stats().connects, 1);
}

/* ---- failures ---------------------------------------------------------------------- */

static void test_refused_connection_fails_and_is_told(void **state)
{
    (void)state;
    open_with(usual);
    close(peer.listening);
    peer.listening = -1;
    send_call(GET, &plain);
    assert_told("");
    while (call)
        loop_run(loop);
    assert_told("fail:refused ");
    assert_int_equal(n_lost, 1);
    assert_int_equal(stats().active, 0);
}

static void timed_out(struct upstream_options o, const char *bytes, const char *says)
{
    const struct peer_step script[] = {{PEER_ACCEPT, NULL, 0},
                                       {PEER_READ_HEAD, NULL, 0},
                                       {PEER_SEND, bytes, 0},
                                       {PEER_READ_END, NULL, 0},
                                       {PEER_END, NULL, 0}};
    open_with(o);
    peer_start(&peer, script);
    send_call(GET, &plain);
    while (call)
        loop_run(loop);
    assert_told(says);
}

static void test_engine_that_does_not_answer_is_given_up(void **state)
{
    (void)state;
    struct upstream_options o = usual;
    o.first_byte_ms = 30;
    timed_out(o, "", "fail:timeout ");
}

static void test_engine_that_stops_in_mid_answer_is_given_up(void **state)
{
    (void)state;
    struct upstream_options o = usual;
    o.stall_ms = 30;
    timed_out(o, OK_HEAD "Content-Length: 9\r\n\r\nhello",
              "head:200 hello fail:timeout ");
}

static void test_interim_answer_does_not_shorten_the_wait_for_the_real_one(void **state)
{
    (void)state;
    static const struct peer_step script[] = {{PEER_ACCEPT, NULL, 0},
                                              {PEER_READ_HEAD, NULL, 0},
                                              {PEER_SEND, "HTTP/1.1 102 Busy\r\n\r\n", 0},
                                              {PEER_SAY, NULL, 0},
                                              {PEER_WAIT, NULL, 0},
                                              {PEER_SEND, OK_5, 0},
                                              {PEER_WAIT, NULL, 0},
                                              {PEER_END, NULL, 0}};
    struct upstream_options o = usual;
    o.stall_ms = 20;
    open_with(o);
    peer_start(&peer, script);
    send_call(GET, &plain);
    peer_run(&peer);
    rig_idle(loop, 80);
    assert_non_null(call);
    peer_go(&peer);
    until("end");
    assert_told("head:200 hello end ");
    peer_go(&peer);
}

/* ---- back-pressure ----------------------------------------------------------------- */

static void pause_on_body(void *arg, struct slice bytes)
{
    on_body(arg, bytes);
    call_pause(call);
    tell("paused ");
}

static const struct call_events pausing = {on_head, pause_on_body, on_end, on_fail, NULL};

/* The answer is there, the engine has gone, and the call stands still. */
static void paused_with(struct upstream_options o, const char *first, const char *rest)
{
    const struct peer_step script[] = {{PEER_ACCEPT, NULL, 0}, {PEER_READ_HEAD, NULL, 0},
                                       {PEER_SEND, first, 0},  {PEER_WAIT, NULL, 0},
                                       {PEER_SEND, rest, 0},   {PEER_CLOSE, NULL, 0},
                                       {PEER_END, NULL, 0}};
    open_with(o);
    peer_start(&peer, script);
    send_call(GET, &pausing);
    until("paused");
    peer_go(&peer);
    while (!peer.done)
        loop_run(loop);
    rig_idle(loop, 60);
    assert_told("head:200 one paused ");
    assert_non_null(call);
}

static void resume_until(const char *word)
{
    while (!was_told(word)) {
        wanted = "paused";
        buf_free(&told);
        call_resume(call);
        wanted = word;
        while (call && !was_told("paused") && !was_told(word))
            rig_idle(loop, 1);
    }
}

static void test_paused_call_gets_the_rest_though_the_engine_has_closed(void **state)
{
    (void)state;
    struct upstream_options o = usual;
    o.stall_ms = 20; /* no time runs while we are the ones who wait */
    paused_with(o, OK_HEAD "Content-Length: 6\r\n\r\none", "two");
    resume_until("end");
    assert_told("end ");
}

static void test_paused_call_learns_that_its_answer_was_cut_short(void **state)
{
    (void)state;
    paused_with(usual, OK_HEAD "Content-Length: 60\r\n\r\none", "two");
    resume_until("fail");
    assert_told("fail:closed ");
}

static void test_paused_until_close_body_ends_behind_its_last_byte(void **state)
{
    (void)state;
    paused_with(usual, OK_HEAD "\r\none", "two");
    resume_until("two");
    resume_until("end");
    assert_told("end ");
}

static void test_stall_is_timed_again_after_a_pause(void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_ACCEPT, NULL, 0},
        {PEER_READ_HEAD, NULL, 0},
        {PEER_SEND, OK_HEAD "Content-Length: 6\r\n\r\none", 0},
        {PEER_READ_END, NULL, 0},
        {PEER_END, NULL, 0}};
    struct upstream_options o = usual;
    o.stall_ms = 20;
    open_with(o);
    peer_start(&peer, script);
    send_call(GET, &pausing);
    until("paused");
    rig_idle(loop, 60);
    assert_non_null(call);
    call_resume(call);
    until("fail:timeout");
    assert_null(call);
}

/* The answer is there as well as the engine's end of it, and nothing is handed on. */
static void hold_answer(struct upstream_options o, const char *bytes, const char *says)
{
    const struct call_request rq = {.head = SLICE_LIT(GET), .hold = true};
    answers_and_closes(o, bytes);
    call = call_start(up, &rq, &plain, &peer);
    while (!peer.done)
        loop_run(loop);
    rig_idle(loop, 60);
    assert_told(says);
}

static void test_good_answer_is_held_until_it_is_released(void **state)
{
    (void)state;
    struct upstream_options o = usual;
    o.stall_ms = 20; /* no time runs meanwhile */
    hold_answer(o, "HTTP/1.1 103 Early Hints\r\n\r\n" OK_5, "");
    assert_non_null(call);
    call_release(call);
    assert_told("");
    until("end");
    assert_told("head:200 hello end ");
}

static void test_refusal_is_not_held(void **state)
{
    (void)state;
    hold_answer(usual, "HTTP/1.1 400 Bad\r\nContent-Length: 2\r\n\r\nno",
                "head:400 no end ");
}

static void test_held_answer_may_turn_out_to_be_cut_short(void **state)
{
    (void)state;
    hold_answer(usual, OK_HEAD "Content-Length: 60\r\n\r\nhello", "");
    call_release(call);
    until("fail");
    assert_told("head:200 hello fail:closed ");
}

static void test_answer_that_comes_after_its_release_is_not_held(void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_ACCEPT, NULL, 0}, {PEER_READ_HEAD, NULL, 0}, {PEER_WAIT, NULL, 0},
        {PEER_SEND, OK_5, 0},   {PEER_READ_END, NULL, 0},  {PEER_END, NULL, 0}};
    const struct call_request rq = {.head = SLICE_LIT(GET), .hold = true};
    open_with(usual);
    peer_start(&peer, script);
    call = call_start(up, &rq, &plain, &peer);
    call_release(call);
    peer_go(&peer);
    until("end");
    assert_told("head:200 hello end ");
}

static void test_held_answer_can_be_cancelled(void **state)
{
    (void)state;
    hold_answer(usual, OK_5, "");
    call_cancel(call);
    call = NULL;
    rig_idle(loop, 20);
    assert_told("");
}

static void test_long_answer_is_passed_on_whole_with_many_pauses(void **state)
{
    (void)state;
    char *text = mem_zalloc(300001);
    memset(text, 'x', 300000);
    char *bytes = mem_printf(OK_HEAD "Content-Length: 300000\r\n\r\n%s", text);
    const struct peer_step script[] = {{PEER_ACCEPT, NULL, 0},
                                       {PEER_READ_HEAD, NULL, 0},
                                       {PEER_SEND, bytes, 0},
                                       {PEER_READ_END, NULL, 0},
                                       {PEER_END, NULL, 0}};
    size_t n = 0;
    open_with(usual);
    peer_start(&peer, script);
    send_call(GET, &pausing);
    until("paused");
    while (call) {
        for (size_t i = 0; i < buf_len(&told); i++)
            n += buf_slice(&told).ptr[i] == 'x';
        buf_free(&told);
        call_resume(call);
        while (call && !was_told("paused"))
            rig_idle(loop, 1);
    }
    assert_int_equal(n, 300000);
    assert_told("end ");
    upstream_flush(up);
    free(bytes);
    free(text);
}

/* ---- cancelling -------------------------------------------------------------------- */

static void give_up(void)
{
    call_cancel(call);
    call = NULL;
    tell("cancelled ");
}

static void head_cancels(void *arg, const struct http_head *h)
{
    on_head(arg, h);
    give_up();
    assert_int_equal(h->status, 200); /* it stays readable until we return */
}

static void body_cancels(void *arg, struct slice bytes)
{
    on_body(arg, bytes);
    give_up();
}

static void sent_cancels(void *arg)
{
    on_sent(arg);
    give_up();
}

static void body_resumes_and_cancels(void *arg, struct slice bytes)
{
    on_body(arg, bytes);
    call_pause(call);
    call_resume(call);
    give_up();
}

static void cancels(const struct call_events *events, const char *says)
{
    static const struct peer_step script[] = {
        {PEER_ACCEPT, NULL, 0},
        {PEER_READ_HEAD, NULL, 0},
        {PEER_SEND, OK_HEAD "Content-Length: 9\r\n\r\nhello", 0},
        {PEER_READ_END, NULL, 0},
        {PEER_END, NULL, 0}};
    open_with(usual);
    peer_start(&peer, script);
    send_call(GET, events);
    until("cancelled");
    assert_int_equal(stats().active, 0);
    peer_run(&peer); /* it sees the close */
    rig_idle(loop, 5);
    assert_told(says);
}

static void test_call_can_be_cancelled_in_on_head(void **state)
{
    (void)state;
    const struct call_events events = {head_cancels, on_body, on_end, on_fail, NULL};
    cancels(&events, "head:200 cancelled ");
}

static void test_call_can_be_cancelled_in_on_body(void **state)
{
    (void)state;
    const struct call_events events = {on_head, body_cancels, on_end, on_fail, NULL};
    cancels(&events, "head:200 hello cancelled ");
}

static void test_call_can_be_cancelled_while_it_resumes(void **state)
{
    (void)state;
    const struct call_events events = {on_head, body_resumes_and_cancels, on_end, on_fail,
                                       NULL};
    cancels(&events, "head:200 hello cancelled ");
}

static void test_call_can_be_cancelled_in_on_sent(void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_ACCEPT, NULL, 0}, {PEER_READ_END, NULL, 0}, {PEER_END, NULL, 0}};
    const struct call_events events = {on_head, on_body, on_end, on_fail, sent_cancels};
    open_with(usual);
    peer_start(&peer, script);
    send_call(GET, &events);
    until("cancelled");
    peer_run(&peer);
    assert_told("sent cancelled ");
}

static void test_cancelled_calls_may_outlive_their_upstream(void **state)
{
    (void)state;
    open_with(usual);
    send_call(GET, &plain);
    call_cancel(call);
    upstream_free(up);
    up = NULL;
    rig_idle(loop, 5);
    assert_told("");
}

static void end_starts_another(void *arg)
{
    on_end(arg);
    send_call(GET, &plain);
}

static void test_end_of_a_call_may_start_the_next_on_the_same_connection(void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_ACCEPT, NULL, 0},    {PEER_READ_HEAD, NULL, 0}, {PEER_SEND, OK_5, 0},
        {PEER_READ_HEAD, NULL, 0}, {PEER_SEND, OK_5, 0},      {PEER_WAIT, NULL, 0},
        {PEER_END, NULL, 0}};
    const struct call_events events = {on_head, on_body, end_starts_another, on_fail,
                                       NULL};
    open_with(usual);
    peer_start(&peer, script);
    send_call(GET, &events);
    until("end head:200 hello end");
    assert_int_equal(stats().connects, 1);
    peer_go(&peer);
}

/* ---- early answers ----------------------------------------------------------------- */

static void test_answer_before_all_is_sent_is_handed_on(void **state)
{
    (void)state;
    static const struct peer_step script[] = {
        {PEER_ACCEPT, NULL, 0},
        {PEER_READ_HEAD, NULL, 0},
        {PEER_SEND, "HTTP/1.1 413 Large\r\nContent-Length: 5\r\n\r\nhello", 0},
        {PEER_WAIT, NULL, 0},
        {PEER_END, NULL, 0}};
    static const struct call_events events = {on_head, on_body, on_end, on_fail, on_sent};
    const size_t n = (size_t)32 << 20; /* more than sockets hold */
    char *body = mem_zalloc(n);
    const struct call_request rq = {.head = SLICE_LIT("POST / HTTP/1.1\r\n\r\n"),
                                    .body = {slice_make(body, n)}};
    open_with(usual);
    peer_start(&peer, script);
    call = call_start(up, &rq, &events, &peer);
    until("end");
    assert_told("head:413 hello end ");
    assert_int_equal(stats().idle, 0); /* the rest would follow */
    free(body);
    peer_go(&peer);
}

/* ---- addresses --------------------------------------------------------------------- */

static void opens(const char *url, const char *host, const char *prefix,
                  unsigned short port)
{
    struct upstream_options o = usual;
    struct err e = {0};
    o.url = url;
    struct upstream *u = upstream_new(loop, &o, &e);
    if (!u)
        fail_msg("%s: %s", url, e.text);
    assert_string_equal(upstream_host(u), host);
    assert_string_equal(upstream_prefix(u), prefix);
    assert_int_equal(addr_port(upstream_addr(u)), port);
    upstream_free(u);
}

static void test_url_gives_host_prefix_and_port(void **state)
{
    (void)state;
    opens("http://127.0.0.1:8080", "127.0.0.1:8080", "", 8080);
    opens("http://127.0.0.1:8080/", "127.0.0.1:8080", "", 8080);
    opens("HTTP://127.0.0.1:8080/a/b//", "127.0.0.1:8080", "/a/b", 8080);
    opens("http://127.0.0.1", "127.0.0.1", "", 80);
    opens("http://[::1]:8080/x", "[::1]:8080", "/x", 8080);
    opens("http://[::1]/x", "[::1]", "/x", 80);
    opens("https://127.0.0.1", "127.0.0.1", "", 443);
    opens("https://[::1]:8443/a/", "[::1]:8443", "/a", 8443);
    opens("unix:/run/engine.sock", "localhost", "", 0);
}

static void test_url_that_is_none_is_refused(void **state)
{
    (void)state;
    static const char *const urls[] = {"",
                                       "127.0.0.1:80",
                                       "ftp://127.0.0.1:80",
                                       "unix:",
                                       "https://",
                                       "https://[::1",
                                       "http://",
                                       "http:///x",
                                       "http://u@127.0.0.1/",
                                       "http://127.0.0.1/?a",
                                       "http://127.0.0.1/#a",
                                       "http://a b",
                                       "http://127.0.0.1:x",
                                       "http://127.0.0.1:99999"};
    for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
        struct upstream_options o = usual;
        struct err e = {0};
        o.url = urls[i];
        if (upstream_new(loop, &o, &e))
            fail_msg("taken: \"%s\"", urls[i]);
        assert_true(e.text[0]);
    }
}

/* ---- questions with JSON ----------------------------------------------------------- */

static int answered; /* status, -1 not yet */
static bool had_doc;

static void on_answer(void *arg, int status, json_t *doc, const struct err *err)
{
    assert_ptr_equal(arg, &peer);
    assert_true(status || err->text[0]);
    answered = status;
    had_doc = doc != NULL;
    loop_stop(loop);
}

static struct ask *ask(const char *body, uint64_t timeout_ms, const char *bytes)
{
    static struct peer_step script[8];
    size_t n = 0;
    script[n++] = (struct peer_step){PEER_ACCEPT, NULL, 0};
    script[n++] = (struct peer_step){PEER_READ_HEAD, NULL, 0};
    script[n++] = (struct peer_step){PEER_READ, NULL, body ? strlen(body) : 0};
    script[n++] = (struct peer_step){PEER_SEND, bytes, 0};
    script[n++] = (struct peer_step){PEER_READ_END, NULL, 0};
    script[n++] = (struct peer_step){PEER_END, NULL, 0};
    answered = -1;
    had_doc = false;
    open_with(usual);
    peer_start(&peer, script);
    return ask_json(up, "/props", body, "X-Key: 1\r\n", timeout_ms, loop, on_answer,
                    &peer);
}

static void await_answer(int status, bool doc)
{
    while (answered < 0)
        loop_run(loop);
    assert_int_equal(answered, status);
    assert_int_equal(had_doc, doc);
    upstream_flush(up);
    peer_run(&peer);
}

static void test_ask_gets_json(void **state)
{
    (void)state;
    ask(NULL, 5000, OK_HEAD "Content-Length: 7\r\n\r\n{\"a\":1}");
    await_answer(200, true);
    assert_non_null(strstr(peer_seen(&peer), "GET /props HTTP/1.1\r\n"));
    assert_non_null(strstr(peer_seen(&peer), "\r\nX-Key: 1\r\n"));
}

static void test_ask_posts_a_body(void **state)
{
    (void)state;
    ask("{\"b\":2}", 5000, "HTTP/1.1 501 No\r\nContent-Length: 2\r\n\r\n[]");
    await_answer(501, true);
    assert_non_null(strstr(peer_seen(&peer), "POST /props HTTP/1.1\r\n"));
    assert_non_null(strstr(peer_seen(&peer), "Content-Length: 7\r\n"));
    assert_non_null(strstr(peer_seen(&peer), "\r\n\r\n{\"b\":2}"));
}

static void test_ask_takes_no_noise_for_json(void **state)
{
    (void)state;
    ask(NULL, 5000, OK_HEAD "Content-Length: 5\r\n\r\n<htm>");
    await_answer(200, false);
}

static void test_ask_takes_an_empty_answer(void **state)
{
    (void)state;
    ask(NULL, 5000, OK_HEAD "Content-Length: 0\r\n\r\n");
    await_answer(200, false);
}

static void test_ask_gives_up_in_time(void **state)
{
    (void)state;
    ask(NULL, 30, OK_HEAD "Content-Length: 5\r\n\r\n[");
    await_answer(0, false);
}

static void test_ask_can_be_cancelled(void **state)
{
    (void)state;
    open_with(usual);
    answered = -1;
    ask_cancel(ask_json(up, "/props", NULL, "", 10, loop, on_answer, &peer));
    rig_idle(loop, 30);
    assert_int_equal(answered, -1);
    ask_cancel(NULL);
}

static void test_ask_does_not_read_a_part_of_what_is_too_long(void **state)
{
    (void)state;
    /* The second half alone would be a document. */
    const size_t half = ASK_MAX_BYTES;
    char *text = mem_zalloc(half + 3);
    memset(text, ' ', half);
    memcpy(text + half, "[]", 2);
    char *bytes = mem_printf(OK_HEAD "Content-Length: %zu\r\n\r\n%s", half + 2, text);
    ask(NULL, 20000, bytes);
    await_answer(200, false);
    free(bytes);
    free(text);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(call_sends_head_and_slices_and_hands_the_answer_on),
        TEST(call_without_body_says_that_it_is_sent),
        TEST(connection_is_used_again_whatever_kind_of_answer),
        TEST(interim_answers_are_not_handed_on),
        TEST(until_close_bodies_end_with_the_connection),
        TEST(answer_that_is_cut_short_fails),
        TEST(chunks_that_do_not_end_fail),
        TEST(head_that_is_cut_short_fails_without_a_head),
        TEST(noise_fails),
        TEST(protocol_that_nobody_asked_for_fails),
        TEST(bytes_behind_an_answer_spoil_the_connection),
        TEST(answers_that_close_are_not_pooled),
        TEST(streams_end_their_connections),
        TEST(streams_may_keep_their_connections),
        TEST(streams_are_not_kept_where_the_engine_closes_behind_them),
        TEST(pool_lets_go_after_so_many_requests),
        TEST(pool_lets_go_of_idle_connections),
        TEST(pool_keeps_so_many_at_most),
        TEST(pooled_connection_that_the_engine_closed_is_not_used),
        TEST(connection_that_closes_in_the_pool_is_dropped_and_told),
        TEST(pooled_connection_that_dies_is_replaced_once),
        TEST(nothing_is_repeated_twice),
        TEST(nothing_is_repeated_after_a_byte_of_an_answer),
        TEST(nothing_is_repeated_that_must_not_be),
        TEST(nothing_is_repeated_on_a_fresh_connection),
        TEST(refused_connection_fails_and_is_told),
        TEST(engine_that_does_not_answer_is_given_up),
        TEST(engine_that_stops_in_mid_answer_is_given_up),
        TEST(interim_answer_does_not_shorten_the_wait_for_the_real_one),
        TEST(paused_call_gets_the_rest_though_the_engine_has_closed),
        TEST(paused_call_learns_that_its_answer_was_cut_short),
        TEST(paused_until_close_body_ends_behind_its_last_byte),
        TEST(stall_is_timed_again_after_a_pause),
        TEST(good_answer_is_held_until_it_is_released),
        TEST(refusal_is_not_held),
        TEST(held_answer_may_turn_out_to_be_cut_short),
        TEST(answer_that_comes_after_its_release_is_not_held),
        TEST(held_answer_can_be_cancelled),
        TEST(long_answer_is_passed_on_whole_with_many_pauses),
        TEST(call_can_be_cancelled_in_on_head),
        TEST(call_can_be_cancelled_in_on_body),
        TEST(call_can_be_cancelled_while_it_resumes),
        TEST(call_can_be_cancelled_in_on_sent),
        TEST(cancelled_calls_may_outlive_their_upstream),
        TEST(end_of_a_call_may_start_the_next_on_the_same_connection),
        TEST(answer_before_all_is_sent_is_handed_on),
        TEST(url_gives_host_prefix_and_port),
        TEST(url_that_is_none_is_refused),
        TEST(ask_gets_json),
        TEST(ask_posts_a_body),
        TEST(ask_takes_no_noise_for_json),
        TEST(ask_takes_an_empty_answer),
        TEST(ask_gives_up_in_time),
        TEST(ask_can_be_cancelled),
        TEST(ask_does_not_read_a_part_of_what_is_too_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
