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
    static struct budget memory = {.max = 16 << 20};
    static const struct front_options usual = {.head = {4096, 32},
                                               .body_bytes = 1 << 20,
                                               .memory = &memory,
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

static unsigned connects(const struct tally *t)
{
    unsigned n = 0;
    for (size_t i = 0; i < t->n; i++)
        n += t->samples[i].connects;
    return n;
}

static void test_connections_are_used_again(void **state)
{
    (void)state;
    services[0].target = 3;
    open_service(&services[0], serve_together);
    const struct tally *t = run(
        (struct runner_options){.concurrency = 3, .requests = 30, .keep_alive = true});
    assert_int_equal(tally_count(t, SAMPLE_COMPLETED), 30);
    assert_int_equal(connects(t), 3);
}

static void test_each_request_may_have_its_own_connection(void **state)
{
    (void)state;
    open_service(&services[0], serve_whole);
    const struct tally *t =
        run((struct runner_options){.concurrency = 2, .requests = 10});
    assert_int_equal(connects(t), 10);
}

/* ---- short ones beside long ones --------------------------------------------------- */

static struct loop_timer alone_for;

static void on_alone_for(void *arg)
{
    struct service *s = arg;
    front_data(s->kept[0], SLICE_LIT(TEXT DONE));
    front_end(s->kept[0]);
}

/* Long ones alone take 30 ms. The first that is met says nothing before the short one has
 * come, the second a token, the others all. */
static void serve_meetings(struct service *s, struct front_request *rq)
{
    const unsigned meeting = (s->n_requests - 1) / 4, at = (s->n_requests - 1) % 4;
    if (at == 0 || (at == 2 && meeting > 1)) {
        answer(rq);
    } else if (at == 1) {
        begin_stream(rq);
        s->kept[0] = rq;
        timer_start(&alone_for, 30);
    } else if (at == 2) {
        s->kept[0] = rq;
        if (meeting == 1)
            begin_stream(rq);
    } else {
        answer(rq);
        if (meeting == 0)
            begin_stream(s->kept[0]);
        if (meeting < 2)
            on_alone_for(s);
    }
}

static void check_meeting(const struct sample *host, const struct sample *guest)
{
    switch ((enum kind)guest->kind) {
    case KIND_SHORT_IN_PREFILL:
        assert_true(guest->started_us <= host->first_us);
        break;
    case KIND_SHORT_IN_ANSWER:
        assert_true(host->first_us <= guest->started_us);
        assert_true(guest->started_us <= host->end_us);
        break;
    default:
        assert_int_equal(guest->kind, KIND_SHORT_LATE);
        assert_true(host->end_us <= guest->started_us);
    }
    assert_int_equal(host->kind,
                     guest->kind == KIND_SHORT_LATE ? KIND_LONG_ALONE : KIND_LONG_MET);
    assert_true(guest->started_us >= guest->planned_us);
}

static void meet_with(struct runner_options o)
{
    const struct workload_options wo = {
        .profile = "interrupt,in=20,out=7,ask=5,reply=3", .stream = true, .seed = 3};
    struct err e = {0};
    workload_free(workload);
    workload = workload_new(&wo, &e);
    timer_init(&alone_for, loop, on_alone_for, &services[0]);
    open_service(&services[0], serve_meetings);
    const struct tally *t = run(o);
    timer_fini(&alone_for);
    assert_int_equal(tally_count(t, SAMPLE_COMPLETED), 16);
    for (size_t i = 0; i < 16; i += 4) {
        const struct sample *s = &t->samples[i];
        assert_int_equal(s[0].kind, KIND_SHORT_ALONE);
        assert_int_equal(s[1].kind, KIND_LONG_ALONE);
        assert_true(s[0].end_us <= s[1].started_us && s[1].end_us <= s[2].started_us);
        check_meeting(&s[2], &s[3]);
    }
    assert_int_equal(t->samples[3].kind, KIND_SHORT_IN_PREFILL);
    assert_int_not_equal(t->samples[7].kind, KIND_SHORT_LATE);
    struct tally met = tally_of_kind(t, KIND_LONG_MET);
    assert_true(met.n >= 2 && met.gaps.n >= 2);
    tally_free(&met);
}

static void test_a_short_one_comes_while_a_long_one_is_under_way(void **state)
{
    (void)state;
    meet_with((struct runner_options){.concurrency = 1, .requests = 16});
}

static void test_meetings_are_of_one_service_and_a_closed_loop(void **state)
{
    static const struct runner_step step = {.concurrency = 1};
    const struct workload_options wo = {.profile = "interrupt"};
    struct err e = {0};
    (void)state;
    open_service(&services[0], serve_whole);
    struct workload *meets = workload_new(&wo, &e);
    const struct runner_options bad[] = {
        {.concurrency = 2, .requests = 1},
        {.concurrency = 1, .rate = 1, .requests = 1},
        {.concurrency = 1, .steps = &step, .n_steps = 1, .requests = 1},
        {.concurrency = 1, .url = {NULL, services[0].url}, .requests = 1}};
    for (size_t i = 0; i < 4; i++) {
        struct runner_options o = bad[i];
        o.url[0] = services[0].url;
        o.headers = "";
        assert_null(runner_new(loop, meets, &o, &e));
        assert_non_null(strstr(e.text, "closed loop of 1"));
    }
    workload_free(meets);
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

/* ---- steps ------------------------------------------------------------------------- */

static void use_profile(const char *profile)
{
    const struct workload_options o = {.profile = profile, .stream = true};
    struct err e = {0};
    workload_free(workload);
    workload = workload_new(&o, &e);
    assert_non_null(workload);
}

static const struct tally *measured(size_t step)
{
    return runner_step_tally(runner, step, 0, true);
}

static const struct tally *around(size_t step)
{
    return runner_step_tally(runner, step, 0, false);
}

/* How many were under way at once, at most. */
static unsigned most_at_once(const struct tally *a, const struct tally *b)
{
    const struct tally *both[] = {a, b};
    unsigned most = 0;
    for (size_t x = 0; x < a->n; x++) {
        unsigned n = 0;
        for (size_t k = 0; k < 2; k++)
            for (size_t i = 0; i < both[k]->n; i++)
                n += both[k]->samples[i].started_us <= a->samples[x].started_us &&
                     both[k]->samples[i].end_us > a->samples[x].started_us;
        most = n > most ? n : most;
    }
    return most;
}

static void test_each_step_has_its_load(void **state)
{
    static const struct runner_step steps[] = {{.concurrency = 1, .settle = 2},
                                               {.concurrency = 3, .settle = 3},
                                               {.concurrency = 5, .settle = 5}};
    (void)state;
    open_service(&services[0], serve_whole);
    run((struct runner_options){.steps = steps, .n_steps = 3, .requests = 6});
    assert_int_equal(runner_steps(runner), 3);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(measured(i)->n, 6);
        assert_int_equal(tally_count(measured(i), SAMPLE_COMPLETED), 6);
        assert_true(around(i)->n >= steps[i].settle);
        assert_true(most_at_once(measured(i), around(i)) <= steps[i].concurrency);
        assert_true(most_at_once(around(i), measured(i)) == steps[i].concurrency);
        assert_true(i == 0 || around(i)->begun_us >= measured(i - 1)->ended_us);
    }
}

/* The last measured request is not answered before three more have come. */
static void serve_sixth_last(struct service *s, struct front_request *rq)
{
    if (s->n_requests == 6)
        s->kept[0] = rq;
    else
        answer(rq);
    if (s->n_requests == 9)
        answer(s->kept[0]);
}

static void test_a_closed_loop_is_kept_up_until_the_last_has_ended(void **state)
{
    static const struct runner_step step = {.concurrency = 2, .settle = 2};
    (void)state;
    open_service(&services[0], serve_sixth_last);
    run((struct runner_options){.steps = &step, .n_steps = 1, .requests = 4});
    assert_int_equal(tally_count(measured(0), SAMPLE_COMPLETED), 4);
    assert_true(around(0)->n >= 2 + 3);
    assert_int_equal(tally_count(around(0), SAMPLE_COMPLETED), around(0)->n);
    assert_true(measured(0)->begun_us <= measured(0)->samples[0].planned_us);
    assert_true(measured(0)->ended_us >= measured(0)->samples[3].end_us);
}

static void test_each_part_begins_a_pass_of_its_own(void **state)
{
    static const struct runner_step steps[] = {{.concurrency = 1, .settle = 1},
                                               {.concurrency = 2, .settle = 3},
                                               {.concurrency = 3, .settle = 4}};
    uint64_t next = 0;
    (void)state;
    use_profile("shared,documents=2,questions=2,in=4,ask=2");
    open_service(&services[0], serve_whole);
    run((struct runner_options){
        .steps = steps, .n_steps = 3, .requests = 4, .warmup = 3});
    for (size_t i = 0; i < 3; i++) {
        const struct tally *t = measured(i);
        assert_true(around(i)->samples[0].index >= next);
        assert_int_equal(around(i)->samples[0].index % 4, 0);
        assert_int_equal(t->samples[0].index, (2 + 2 * i) * 1000000000);
        assert_true(t->samples[0].index > around(i)->samples[0].index);
        for (size_t k = 0; k < 4; k++)
            assert_int_equal(t->samples[k].turn, k / 2);
        next = (around(i)->samples[around(i)->n - 1].index + 4) / 4 * 4;
    }
}

static void test_open_steps_go_on_by_the_plan(void **state)
{
    static const struct runner_step steps[] = {
        {.concurrency = 20, .rate = 1000, .settle = 5},
        {.concurrency = 20, .rate = 2000, .settle_ms = 4}};
    (void)state;
    open_service(&services[0], serve_whole);
    run((struct runner_options){.steps = steps, .n_steps = 2, .requests = 10});
    assert_int_equal(around(0)->n, 5);
    assert_int_equal(around(1)->n, 8);
    for (size_t i = 0; i < 10; i++) {
        assert_int_equal(measured(0)->samples[i].planned_us - around(0)->begun_us,
                         5000 + 1000 * i);
        assert_int_equal(measured(1)->samples[i].planned_us - around(1)->begun_us,
                         4000 + 500 * i);
    }
}

static void test_the_duration_is_of_the_measured_part(void **state)
{
    static const struct runner_step step = {
        .concurrency = 20, .rate = 1000, .settle = 3, .settle_ms = 5};
    (void)state;
    open_service(&services[0], serve_whole);
    run((struct runner_options){
        .steps = &step, .n_steps = 1, .requests = 50, .duration_ms = 10});
    assert_int_equal(around(0)->n, 5);
    assert_int_equal(measured(0)->n, 10);
}

static void test_arrivals_of_steps_are_drawn_apart(void **state)
{
    static const struct runner_step steps[] = {{.concurrency = 20, .rate = 2000},
                                               {.concurrency = 20, .rate = 2000}};
    (void)state;
    open_service(&services[0], serve_whole);
    run((struct runner_options){
        .steps = steps, .n_steps = 2, .requests = 10, .poisson = true});
    assert_int_not_equal(measured(0)->samples[9].planned_us - measured(0)->begun_us,
                         measured(1)->samples[9].planned_us - measured(1)->begun_us);
}

static void test_arms_have_each_step(void **state)
{
    static const struct runner_step steps[] = {{.concurrency = 3, .settle = 2},
                                               {.concurrency = 4, .settle = 1}};
    (void)state;
    open_service(&services[0], serve_whole);
    open_service(&services[1], serve_whole);
    run((struct runner_options){.url = {services[0].url, services[1].url},
                                .steps = steps,
                                .n_steps = 2,
                                .requests = 5});
    for (size_t i = 0; i < 2; i++) {
        const struct tally *b = runner_step_tally(runner, i, 1, true);
        assert_int_equal(b->n, 5);
        for (size_t k = 0; k < 5; k++)
            assert_int_equal(b->samples[k].index, measured(i)->samples[k].index);
    }
}

static void test_pairs_stay_together_at_the_end_of_a_part(void **state)
{
    static const struct runner_step step = {
        .concurrency = 20, .rate = 1000, .settle_ms = 3};
    (void)state;
    open_service(&services[0], serve_whole);
    open_service(&services[1], serve_whole);
    run((struct runner_options){.url = {services[0].url, services[1].url},
                                .steps = &step,
                                .n_steps = 1,
                                .requests = 20,
                                .duration_ms = 5});
    assert_int_equal(around(0)->n, 2);
    assert_int_equal(runner_step_tally(runner, 0, 1, false)->n, 2);
    assert_int_equal(measured(0)->n, 3);
    assert_int_equal(runner_step_tally(runner, 0, 1, true)->n, 3);
}

static bool only_first(void *arg, size_t step)
{
    *(unsigned *)arg += 1;
    return step < 1;
}

static void test_no_step_behind_one_that_was_too_much(void **state)
{
    static const struct runner_step steps[] = {
        {.concurrency = 1}, {.concurrency = 2}, {.concurrency = 3}};
    struct err e = {0};
    unsigned asked = 0;
    (void)state;
    open_service(&services[0], serve_whole);
    const struct runner_options o = {.url = {services[0].url},
                                     .headers = "",
                                     .steps = steps,
                                     .n_steps = 3,
                                     .requests = 2,
                                     .timeout_ms = 5000};
    runner = runner_new(loop, workload, &o, &e);
    runner_on_step(runner, only_first, &asked);
    runner_run(runner);
    assert_int_equal(asked, 2);
    assert_int_equal(runner_steps(runner), 2);
    assert_int_equal(measured(1)->n, 2);
}

static void test_a_stop_keeps_whole_steps_and_the_begun_one(void **state)
{
    static const struct runner_step steps[] = {
        {.concurrency = 1, .rate = 1000}, {.concurrency = 3}, {.concurrency = 3}};
    (void)state;
    open_service(&services[0], serve_two);
    run((struct runner_options){.steps = steps, .n_steps = 3, .requests = 2});
    assert_true(runner_stopped(runner));
    assert_int_equal(runner_steps(runner), 2);
    assert_int_equal(tally_count(measured(0), SAMPLE_COMPLETED), 2);
    assert_int_equal(tally_count(measured(1), SAMPLE_PENDING), 2);
    assert_int_equal(tally_count(around(1), SAMPLE_PENDING), 1);
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
        TEST(a_short_one_comes_while_a_long_one_is_under_way),
        TEST(meetings_are_of_one_service_and_a_closed_loop),
        TEST(connections_are_used_again),
        TEST(each_request_may_have_its_own_connection),
        TEST(each_failure_is_told_apart),
        TEST(nobody_listens),
        TEST(a_stop_keeps_what_was_measured),
        TEST(duration_ends_the_sending),
        TEST(each_step_has_its_load),
        TEST(a_closed_loop_is_kept_up_until_the_last_has_ended),
        TEST(each_part_begins_a_pass_of_its_own),
        TEST(open_steps_go_on_by_the_plan),
        TEST(the_duration_is_of_the_measured_part),
        TEST(arrivals_of_steps_are_drawn_apart),
        TEST(arms_have_each_step),
        TEST(pairs_stay_together_at_the_end_of_a_part),
        TEST(no_step_behind_one_that_was_too_much),
        TEST(a_stop_keeps_whole_steps_and_the_begun_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
