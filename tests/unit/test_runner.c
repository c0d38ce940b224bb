/* SPDX-License-Identifier: MIT */
#include "load/runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cmocka_all.h"
#include "io_rig.h"
#include "load/arrivals.h"
#include "wire/front.h"

#define STREAM SLICE_LIT("Content-Type: text/event-stream\r\n")
#define TEXT "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n"
#define DONE "data: [DONE]\n\n"
#define MOST 64

/* A service on the runner's loop: each request is served at once, or kept. */
struct service {
    struct front *front;
    char url[64];
    void (*serve)(struct service *s, struct front_request *rq);
    struct front_request *kept[MOST];
    unsigned n_kept, n_requests, most_kept, target;
    char *bodies[MOST];
};

static struct loop *loop;
static struct service services[2];
static struct workload *workload;
static struct runner *runner;
static char order[2 * MOST + 1]; /* who was asked: 'A' and 'B' */

static void on_gone(void *arg)
{
    (void)arg;
}

static void on_request(void *arg, struct front_request *rq)
{
    static const struct front_events none = {.on_gone = on_gone};
    struct service *s = arg;
    const struct slice body = front_body(rq);
    assert_true(s->n_requests < MOST);
    order[strlen(order)] = (char)('A' + (s - services));
    s->bodies[s->n_requests++] = mem_dup(body.ptr, body.len);
    front_set_events(rq, &none, NULL);
    s->serve(s, rq);
}

static void begin_stream(struct front_request *rq)
{
    const struct front_answer a = {.status = 200, .headers = STREAM, .length = -1};
    front_start(rq, &a);
    front_data(rq, SLICE_LIT(TEXT));
}

static void answer(struct front_request *rq)
{
    begin_stream(rq);
    front_data(rq, SLICE_LIT(TEXT DONE));
    front_end(rq);
}

static void serve_whole(struct service *s, struct front_request *rq)
{
    (void)s;
    answer(rq);
}

/* Keeps requests until `target` are there, then answers them all. */
static void serve_together(struct service *s, struct front_request *rq)
{
    s->kept[s->n_kept++] = rq;
    s->most_kept = s->n_kept > s->most_kept ? s->n_kept : s->most_kept;
    if (s->n_kept < s->target)
        return;
    while (s->n_kept)
        answer(s->kept[--s->n_kept]);
}

static void open_service(struct service *s,
                         void (*serve)(struct service *, struct front_request *))
{
    static const struct front_options usual = {.head = {4096, 32},
                                               .body_bytes = 1 << 20,
                                               .buffered_bytes = 16 << 20,
                                               .connections = MOST,
                                               .head_ms = 5000,
                                               .body_ms = 5000,
                                               .idle_ms = 5000,
                                               .write_ms = 5000};
    struct err e = {0};
    struct addr at;
    assert_int_equal(addr_resolve(&at, "127.0.0.1:0", &e), 0);
    s->front = front_open(loop, &at, &usual, on_request, s, &e);
    assert_non_null(s->front);
    s->serve = serve;
    snprintf(s->url, sizeof(s->url), "http://%s/base", front_addr(s->front)->text);
}

static int set_up(void **state)
{
    const struct workload_options o = {.profile = "short,in=5", .stream = true};
    const int rc = rig_up(state);
    struct err e = {0};
    loop = *state;
    workload = workload_new(&o, &e);
    return rc;
}

static int tear_down(void **state)
{
    runner_free(runner);
    runner = NULL;
    for (size_t i = 0; i < 2; i++) {
        if (services[i].front)
            front_close(services[i].front);
        for (size_t k = 0; k < services[i].n_requests; k++)
            free(services[i].bodies[k]);
    }
    memset(services, 0, sizeof(services));
    memset(order, 0, sizeof(order));
    workload_free(workload);
    return rig_down(state);
}

static const struct tally *run(struct runner_options o)
{
    struct err e = {0};
    o.headers = "X-Test: 1\r\n";
    o.timeout_ms = 5000;
    if (!o.url[0])
        o.url[0] = services[0].url;
    runner = runner_new(loop, workload, &o, &e);
    assert_non_null(runner);
    runner_run(runner);
    return runner_tally(runner, 0, false);
}

static void test_closed_loop_keeps_so_many_under_way(void **state)
{
    (void)state;
    services[0].target = 3;
    open_service(&services[0], serve_together);
    const struct tally *t =
        run((struct runner_options){.concurrency = 3, .requests = 12});
    assert_int_equal(t->n, 12);
    assert_int_equal(tally_count(t, SAMPLE_COMPLETED), 12);
    assert_int_equal(services[0].most_kept, 3);
    for (size_t i = 0; i < 12; i++) {
        const struct sample *s = &t->samples[i];
        assert_int_equal(s->index, i);
        assert_int_equal(s->content_events, 2);
        assert_int_equal(s->planned_us, s->started_us);
        assert_true(s->started_us <= s->sent_us && s->sent_us <= s->first_us &&
                    s->first_us <= s->last_us && s->last_us <= s->end_us);
        assert_true(s->end_us <= t->ended_us && t->begun_us <= s->planned_us);
    }
}

/* Nothing is answered before the last has come: a loop that waits would never end. */
static void test_open_loop_does_not_wait_for_answers(void **state)
{
    struct arrivals a;
    (void)state;
    services[0].target = 30;
    open_service(&services[0], serve_together);
    const struct tally *t = run((struct runner_options){
        .concurrency = 40, .rate = 2000, .poisson = true, .requests = 30, .seed = 5});
    arrivals_init(&a, 2000, true, 5);
    assert_int_equal(tally_count(t, SAMPLE_COMPLETED), 30);
    for (size_t i = 0; i < 30; i++) {
        assert_int_equal(t->samples[i].planned_us - t->begun_us, arrivals_next(&a));
        assert_true(t->samples[i].started_us >= t->samples[i].planned_us);
    }
}

/* At its limit it starts late, and the wait counts from the plan. */
static void test_open_loop_at_its_limit_is_late_and_says_so(void **state)
{
    (void)state;
    open_service(&services[0], serve_whole);
    const struct tally *t =
        run((struct runner_options){.concurrency = 1, .rate = 100000, .requests = 20});
    assert_int_equal(tally_count(t, SAMPLE_COMPLETED), 20);
    const struct sample *last = &t->samples[19];
    assert_int_equal(last->planned_us - t->begun_us, 190);
    assert_true(last->started_us >= t->samples[18].end_us);
    assert_true(reading_total_ms(last) >= reading_lag_ms(last));
}

static void test_warm_up_is_kept_apart(void **state)
{
    (void)state;
    open_service(&services[0], serve_whole);
    const struct tally *t = run((struct runner_options){
        .concurrency = 2, .requests = 5, .warmup = 3, .rate = 500});
    const struct tally *w = runner_tally(runner, 0, true);
    assert_int_equal(w->n, 3);
    assert_int_equal(t->n, 5);
    assert_int_equal(w->samples[2].index, 2);
    assert_int_equal(t->samples[0].index, 3);
    assert_true(w->ended_us <= t->begun_us);
    assert_true(w->samples[0].end_us <= w->samples[1].started_us); /* one at a time */
}

static void test_pairs_go_to_both_arms_in_an_order_that_is_drawn(void **state)
{
    (void)state;
    open_service(&services[0], serve_whole);
    open_service(&services[1], serve_whole);
    const struct tally *t = run((struct runner_options){
        .url = {services[0].url, services[1].url}, .concurrency = 1, .requests = 30});
    const struct tally *u = runner_tally(runner, 1, false);
    unsigned b_first = 0;
    assert_int_equal(t->n, 30);
    assert_int_equal(u->n, 30);
    for (size_t i = 0; i < 30; i++) {
        assert_int_not_equal(order[2 * i], order[2 * i + 1]);
        b_first += order[2 * i] == 'B';
        assert_int_equal(t->samples[i].in_tokens, u->samples[i].in_tokens);
        assert_string_not_equal(services[0].bodies[i], services[1].bodies[i]);
    }
    assert_in_range(b_first, 5, 25);
}

/* ---- failures ---------------------------------------------------------------------- */

static void serve_badly(struct service *s, struct front_request *rq)
{
    switch (s->n_requests) {
    case 1:
        front_error(rq, 429, "rate_limit", "slow down", SLICE_LIT(""));
        break;
    case 2:
        begin_stream(rq);
        front_abort(rq);
        break;
    case 3:
        front_reset(rq);
        break;
    case 4:
        begin_stream(rq);
        front_end(rq); /* well framed, without its last event */
        break;
    default:
        answer(rq);
    }
}

static void test_each_failure_is_told_apart(void **state)
{
    static const enum sample_outcome expected[] = {SAMPLE_REFUSED, SAMPLE_INTERRUPTED,
                                                   SAMPLE_FAILED, SAMPLE_INTERRUPTED,
                                                   SAMPLE_COMPLETED};
    (void)state;
    open_service(&services[0], serve_badly);
    const struct tally *t = run((struct runner_options){.concurrency = 1, .requests = 5});
    assert_int_equal(t->n, 5);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(t->samples[i].outcome, expected[i]);
    assert_int_equal(t->samples[0].status, 429);
    assert_int_equal(t->samples[2].error, ERR_CLOSED);
    assert_int_equal(t->gaps.n, 1);
}

static void test_nobody_listens(void **state)
{
    unsigned short port;
    char url[64];
    const int fd = rig_listen(1, &port);
    (void)state;
    close(fd);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", port);
    const struct tally *t =
        run((struct runner_options){.url = {url}, .concurrency = 2, .requests = 6});
    assert_int_equal(tally_count(t, SAMPLE_FAILED), 6);
    assert_int_equal(t->samples[0].error, ERR_REFUSED);
}

static void stop(void *arg)
{
    (void)arg;
    runner_stop(runner);
}

static void serve_two(struct service *s, struct front_request *rq)
{
    if (s->n_requests <= 2)
        answer(rq);
    else if (++s->n_kept == 3)
        loop_defer(loop, stop, NULL);
}

static void test_a_stop_keeps_what_was_measured(void **state)
{
    (void)state;
    open_service(&services[0], serve_two);
    const struct tally *t =
        run((struct runner_options){.concurrency = 3, .requests = 50});
    assert_true(runner_stopped(runner));
    assert_int_equal(tally_count(t, SAMPLE_COMPLETED), 2);
    assert_int_equal(tally_count(t, SAMPLE_PENDING), 3);
    assert_int_equal(t->n, 5);
    assert_true(t->ended_us >= t->samples[0].end_us);
}

static void test_duration_ends_the_sending(void **state)
{
    (void)state;
    open_service(&services[0], serve_whole);
    const struct tally *t = run((struct runner_options){
        .concurrency = 4, .rate = 1000, .requests = 1000, .duration_ms = 20});
    assert_int_equal(t->n, 20);
    assert_int_equal(tally_count(t, SAMPLE_COMPLETED), 20);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(closed_loop_keeps_so_many_under_way),
        TEST(open_loop_does_not_wait_for_answers),
        TEST(open_loop_at_its_limit_is_late_and_says_so),
        TEST(warm_up_is_kept_apart),
        TEST(pairs_go_to_both_arms_in_an_order_that_is_drawn),
        TEST(each_failure_is_told_apart),
        TEST(nobody_listens),
        TEST(a_stop_keeps_what_was_measured),
        TEST(duration_ends_the_sending),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
