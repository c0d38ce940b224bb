/* SPDX-License-Identifier: MIT */
#include "wire/lookup.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "io_rig.h"
#include "wire/upstream.h"
#include "wire_peer.h"

#define NAME "engine.test"
#define OK_5 "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"

/* ---- a name server of the test's own ----------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char
    *entry; /* addresses of NAME, with blanks between them; "": no such name */
static unsigned n_asked;
static bool hangs; /* until `answer` is posted */
static sem_t answer;

static void says(const char *addresses)
{
    pthread_mutex_lock(&lock);
    entry = addresses;
    pthread_mutex_unlock(&lock);
}

static unsigned asked(void)
{
    pthread_mutex_lock(&lock);
    const unsigned n = n_asked;
    pthread_mutex_unlock(&lock);
    return n;
}

static struct addrinfo *put_before(struct addrinfo *rest, int family, const void *ip,
                                   uint16_t port)
{
    struct addrinfo *ai = calloc(1, sizeof(*ai) + sizeof(struct sockaddr_in6));
    struct sockaddr_in *v4 = (void *)(ai + 1);
    struct sockaddr_in6 *v6 = (void *)(ai + 1);
    ai->ai_family = family;
    ai->ai_addr = (void *)(ai + 1);
    ai->ai_next = rest;
    if (family == AF_INET) {
        *v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
        memcpy(&v4->sin_addr, ip, 4);
        ai->ai_addrlen = sizeof(*v4);
    } else {
        *v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
        memcpy(&v6->sin6_addr, ip, 16);
        ai->ai_addrlen = sizeof(*v6);
    }
    return ai;
}

/* In the order of the text; NULL where one is no number. */
static struct addrinfo *read_numbers(const char *text, uint16_t port)
{
    char one[64];
    unsigned char ip[16];
    int used = 0;
    if (sscanf(text, " %63s%n", one, &used) != 1)
        return NULL;
    struct addrinfo *rest = read_numbers(text + used, port);
    if (inet_pton(AF_INET, one, ip) == 1)
        return put_before(rest, AF_INET, ip, port);
    if (inet_pton(AF_INET6, one, ip) == 1)
        return put_before(rest, AF_INET6, ip, port);
    return rest;
}

void freeaddrinfo(struct addrinfo *list)
{
    while (list) {
        struct addrinfo *next = list->ai_next;
        free(list);
        list = next;
    }
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **out)
{
    const uint16_t port = (uint16_t)strtoul(service, NULL, 10);
    *out = read_numbers(node, port);
    if (*out || hints->ai_flags & AI_NUMERICHOST)
        return *out ? 0 : EAI_NONAME;
    assert_string_equal(node, NAME);
    pthread_mutex_lock(&lock);
    n_asked++;
    const bool wait = hangs;
    pthread_mutex_unlock(&lock);
    if (wait)
        sem_wait(&answer);
    pthread_mutex_lock(&lock);
    *out = read_numbers(entry, port);
    pthread_mutex_unlock(&lock);
    return *out ? 0 : EAI_NONAME;
}

/* ---- the rig ----------------------------------------------------------------------- */

static struct loop *loop;
static struct workers *names;
static struct lookup at;
static unsigned n_done, n_moved;

static int set_up(void **state)
{
    const int rc = rig_up(state);
    loop = *state;
    names = workers_new(loop, 1);
    n_done = n_moved = n_asked = 0;
    hangs = false;
    entry = "";
    sem_init(&answer, 0, 0);
    return rc;
}

static int tear_down(void **state)
{
    lookup_close(&at);
    sem_post(&answer);
    workers_free(names);
    sem_destroy(&answer);
    return rig_down(state);
}

static void on_done(void *arg, bool moved)
{
    assert_ptr_equal(arg, &at);
    n_done++;
    n_moved += moved;
    loop_stop(loop);
}

static void looks_up(void)
{
    struct err e = {0};
    assert_int_equal(lookup_open(&at, loop, names, NAME ":80", on_done, &at, &e), 0);
    assert_false(lookup_known(&at)); /* never from inside */
    loop_run(loop);
}

/* As if the last one were long ago. */
static void looks_again(void)
{
    const unsigned before = n_done;
    at.ended_us = 0;
    assert_true(lookup_again(&at));
    while (n_done == before)
        loop_run(loop);
}

static void is_at(const char *text)
{
    assert_string_equal(at.addr.text, text);
}

/* ---- one name ---------------------------------------------------------------------- */

static void test_numbers_and_paths_are_known_at_once_and_for_good(void **state)
{
    (void)state;
    static const char *const texts[] = {"127.0.0.1:80", "[::1]:80", "unix:/run/x"};
    for (size_t i = 0; i < 3; i++) {
        struct err e = {0};
        assert_int_equal(lookup_open(&at, loop, names, texts[i], on_done, &at, &e), 0);
        is_at(texts[i]);
        assert_true(lookup_again(&at));
        assert_null(at.work);
        lookup_close(&at);
    }
    assert_int_equal(asked(), 0);
}

static void test_what_is_no_address_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {NAME, NAME ":x", NAME ":70000", "unix:"};
    for (size_t i = 0; i < 4; i++) {
        struct err e = {0};
        assert_int_equal(lookup_open(&at, loop, names, texts[i], on_done, &at, &e),
                         ERR_INVALID);
        assert_true(e.text[0]);
    }
    assert_int_equal(asked(), 0);
}

static void test_without_threads_a_name_is_looked_up_once(void **state)
{
    (void)state;
    struct err e = {0};
    assert_int_equal(lookup_open(&at, loop, NULL, NAME ":80", on_done, &at, &e),
                     ERR_NOT_FOUND);
    assert_true(e.text[0]);
    says("127.0.0.1");
    assert_int_equal(lookup_open(&at, loop, NULL, NAME ":80", on_done, &at, &e), 0);
    is_at("127.0.0.1:80");
    assert_true(lookup_again(&at));
    assert_null(at.work);
    lookup_close(&at);
    assert_int_equal(asked(), 2);
}

static void test_first_of_ipv4_is_taken(void **state)
{
    (void)state;
    says("::1 127.0.0.2 127.0.0.1");
    looks_up();
    is_at("127.0.0.2:80");
    assert_int_equal(n_moved, 0);
}

static void test_name_that_moves_is_followed(void **state)
{
    (void)state;
    says("127.0.0.1");
    looks_up();
    says("127.0.0.2");
    looks_again();
    is_at("127.0.0.2:80");
    assert_int_equal(n_moved, 1);
}

static void test_address_stays_while_the_name_has_it(void **state)
{
    (void)state;
    says("127.0.0.2");
    looks_up();
    says("127.0.0.1 127.0.0.2");
    looks_again();
    is_at("127.0.0.2:80");
    assert_int_equal(n_moved, 0);
}

static void test_where_nobody_answers_the_next_one_is_taken(void **state)
{
    (void)state;
    static const char *const turns[] = {"127.0.0.2:80", "[::1]:80", "127.0.0.1:80"};
    says("127.0.0.1 ::1 127.0.0.2");
    looks_up();
    is_at("127.0.0.1:80");
    for (size_t i = 0; i < 3; i++) {
        at.unreachable = true;
        looks_again();
        is_at(turns[i]);
        assert_false(at.unreachable);
        looks_again(); /* and stays, as far as is known */
        is_at(turns[i]);
    }
    assert_int_equal(n_moved, 3);
}

static void test_name_that_is_not_known_any_more_changes_nothing(void **state)
{
    (void)state;
    looks_up();
    assert_int_equal(at.why.code, ERR_NOT_FOUND);
    assert_false(lookup_known(&at));
    says("127.0.0.1");
    looks_again();
    assert_int_equal(at.why.code, 0);
    says("");
    looks_again();
    assert_int_equal(at.why.code, ERR_NOT_FOUND);
    is_at("127.0.0.1:80");
    assert_int_equal(n_moved, 0);
}

static void test_it_is_not_asked_again_at_once(void **state)
{
    (void)state;
    says("127.0.0.1");
    looks_up();
    assert_false(lookup_again(&at));
    at.ended_us = loop_now_us(loop) - LOOKUP_AGAIN_MS * 1000;
    assert_true(lookup_again(&at));
    assert_true(lookup_again(&at)); /* it is under way */
    loop_run(loop);
    assert_int_equal(asked(), 2);
}

static void test_closed_while_it_is_under_way(void **state)
{
    (void)state;
    struct err e = {0};
    hangs = true;
    says("127.0.0.1");
    assert_int_equal(lookup_open(&at, loop, names, NAME ":80", on_done, &at, &e), 0);
    lookup_close(&at);
    sem_post(&answer);
    workers_free(names);
    names = NULL;
    assert_int_equal(n_done, 0);
}

/* ---- calls to a name --------------------------------------------------------------- */

static struct peer peer;
static struct upstream *up;
static struct call *call;
static int ended; /* 0: not yet, -1: failed, else the status */
static struct err failure;

static void on_head(void *arg, const struct http_head *h)
{
    (void)arg;
    ended = h->status;
}

static void on_body(void *arg, struct slice bytes)
{
    (void)arg;
    (void)bytes;
}

static void on_end(void *arg)
{
    (void)arg;
    call = NULL;
    loop_stop(loop);
}

static void on_fail(void *arg, const struct err *why)
{
    (void)arg;
    failure = *why;
    ended = -1;
    call = NULL;
    loop_stop(loop);
}

static void open_upstream(void)
{
    char url[64];
    struct err e = {0};
    peer_listen(&peer, loop);
    snprintf(url, sizeof(url), "http://" NAME ":%u", addr_port(&peer.at));
    const struct upstream_options o = {.url = url,
                                       .names = names,
                                       .connect_ms = 300,
                                       .first_byte_ms = 5000,
                                       .stall_ms = 5000,
                                       .pool_idle_ms = 5000,
                                       .pool_max_requests = 100,
                                       .pool_max_idle = 4};
    up = upstream_new(loop, &o, &e);
    assert_non_null(up);
}

static void close_upstream(void)
{
    upstream_free(up);
    peer_finish(&peer);
}

static void serve_one(void)
{
    static const struct peer_step script[] = {{PEER_ACCEPT, NULL, 0},
                                              {PEER_READ_HEAD, NULL, 0},
                                              {PEER_SEND, OK_5, 0},
                                              {PEER_CLOSE, NULL, 0},
                                              {PEER_END, NULL, 0}};
    peer_start(&peer, script);
}

static void start_call(void)
{
    static const struct call_events events = {on_head, on_body, on_end, on_fail, NULL};
    const struct call_request rq = {.head = SLICE_LIT("GET / HTTP/1.1\r\n\r\n")};
    ended = 0;
    call = call_start(up, &rq, &events, NULL);
}

static int result_of_a_call(void)
{
    start_call();
    assert_int_equal(ended, 0); /* never from inside */
    while (call)
        loop_run(loop);
    return ended;
}

static void test_calls_wait_for_the_first_lookup(void **state)
{
    (void)state;
    hangs = true;
    says("127.0.0.1");
    open_upstream();
    serve_one();
    start_call();
    assert_int_equal(upstream_addr(up)->len, 0);
    sem_post(&answer);
    while (call)
        loop_run(loop);
    assert_int_equal(ended, 200);
    close_upstream();
}

static void test_calls_to_a_name_that_nobody_knows_fail_and_say_so(void **state)
{
    (void)state;
    open_upstream();
    for (int i = 0; i < 2; i++) { /* the second one at once: it was asked just before */
        assert_int_equal(result_of_a_call(), -1);
        assert_int_equal(failure.code, ERR_REFUSED);
        assert_non_null(strstr(failure.text, NAME));
    }
    assert_in_range(asked(), 1, 2);
    close_upstream();
}

static void test_calls_do_not_wait_for_ever(void **state)
{
    (void)state;
    hangs = true;
    open_upstream();
    assert_int_equal(result_of_a_call(), -1);
    assert_int_equal(failure.code, ERR_TIMEOUT);
    sem_post(&answer);
    close_upstream();
}

static void test_waiting_calls_can_be_paused_resumed_and_cancelled(void **state)
{
    (void)state;
    hangs = true;
    says("127.0.0.1");
    open_upstream();
    start_call();
    call_cancel(call);
    start_call();
    call_pause(call);
    sem_post(&answer);
    serve_one();
    while (!upstream_addr(up)->len)
        rig_idle(loop, 10);
    rig_idle(loop, 100);
    assert_int_equal(ended, 0);
    call_resume(call);
    while (call)
        loop_run(loop);
    assert_int_equal(ended, 200);
    close_upstream();
}

static void test_resumed_before_it_has_an_address(void **state)
{
    (void)state;
    hangs = true;
    says("127.0.0.1");
    open_upstream();
    serve_one();
    start_call();
    call_pause(call);
    call_resume(call);
    rig_idle(loop, 20);
    sem_post(&answer);
    while (call)
        loop_run(loop);
    assert_int_equal(ended, 200);
    close_upstream();
}

static void test_engine_that_has_moved_is_found(void **state)
{
    (void)state;
    says("127.0.0.2"); /* nobody listens there */
    open_upstream();
    assert_int_equal(result_of_a_call(), -1);
    says("127.0.0.1");
    serve_one();
    for (int i = 0; i < 100 && ended != 200; i++) { /* the name is asked once a second */
        result_of_a_call();
        rig_idle(loop, 50);
    }
    assert_int_equal(ended, 200);
    assert_in_range(asked(), 2, 20); /* not with each call */
    close_upstream();
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(numbers_and_paths_are_known_at_once_and_for_good),
        TEST(what_is_no_address_is_refused),
        TEST(without_threads_a_name_is_looked_up_once),
        TEST(first_of_ipv4_is_taken),
        TEST(name_that_moves_is_followed),
        TEST(address_stays_while_the_name_has_it),
        TEST(where_nobody_answers_the_next_one_is_taken),
        TEST(name_that_is_not_known_any_more_changes_nothing),
        TEST(it_is_not_asked_again_at_once),
        TEST(closed_while_it_is_under_way),
        TEST(calls_wait_for_the_first_lookup),
        TEST(calls_to_a_name_that_nobody_knows_fail_and_say_so),
        TEST(calls_do_not_wait_for_ever),
        TEST(waiting_calls_can_be_paused_resumed_and_cancelled),
        TEST(resumed_before_it_has_an_address),
        TEST(engine_that_has_moved_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
