/* SPDX-License-Identifier: MIT */
#include "load/runner.h"

/*
 * Happy path:  warm-up → run proper: start flights → sent, head, body…, end → the next →
 *              nothing under way and nothing to send: the phase is over.
 * Failures:    a flight that fails is a sample like others. runner_stop() cancels all
 *              flights; no phase follows.
 */

#include <stdlib.h>
#include <strings.h>

#include "base/list.h"
#include "base/mem.h"
#include "load/arrivals.h"
#include "base/draw.h"
#include "wire/upstream.h"

#define CONNECT_MS 10000
#define PROGRESS_MS 500
#define WHAT_PAIR 200
#define SPIN_US 2500 /* timers are late by up to two milliseconds: from here on look */

struct runner {
    struct loop *loop;
    const struct workload *workload;
    struct runner_options o;
    struct upstream *upstreams[RUNNER_ARMS];
    unsigned n_arms;
    struct usage *usages[RUNNER_ARMS];
    struct tally run[RUNNER_ARMS], warm[RUNNER_ARMS];
    json_t *resources[RUNNER_ARMS][2]; /* of the run, of the warm-up */
    void (*tell)(void *arg, const struct runner_progress *p);
    void *tell_arg;
    bool stopped;

    /* Of the phase. */
    bool warmup, open_loop;
    unsigned concurrency;
    uint64_t first_index, planned, sent, ended;
    uint64_t begun_us, until_us; /* 0: no end in time */
    struct arrivals arrivals;
    uint64_t next_us;        /* when the next is due, from begun_us */
    struct loop_timer timer; /* for the plan */
    struct loop_timer ticks; /* for progress */
    struct list flights;
};

struct flight {
    struct list link;
    struct runner *r;
    unsigned arm;
    struct call *call;
    struct reading reading;
    struct buf body;
};

static void go_on(struct runner *r);

/* ---- one request ------------------------------------------------------------------- */

static struct tally *tally_of(struct runner *r, unsigned arm)
{
    return r->warmup ? &r->warm[arm] : &r->run[arm];
}

static void end_flight(struct flight *f)
{
    struct runner *r = f->r;
    tally_add(tally_of(r, f->arm), &f->reading.sample);
    r->ended++;
    list_del(&f->link);
    reading_fini(&f->reading);
    buf_free(&f->body);
    free(f);
}

static void on_sent(void *arg)
{
    struct flight *f = arg;
    reading_sent(&f->reading, loop_now_us(f->r->loop));
}

static void on_head(void *arg, const struct http_head *h)
{
    static const char type[] = "text/event-stream";
    struct flight *f = arg;
    const struct slice v = http_head_get(h, SLICE_LIT("Content-Type"));
    const bool stream =
        v.len >= sizeof(type) - 1 && strncasecmp(v.ptr, type, sizeof(type) - 1) == 0;
    reading_head(&f->reading, h->status, stream);
}

static void on_body(void *arg, struct slice bytes)
{
    struct flight *f = arg;
    reading_body(&f->reading, bytes, loop_now_us(f->r->loop));
}

static void on_end(void *arg)
{
    struct flight *f = arg;
    struct runner *r = f->r;
    reading_end(&f->reading, loop_now_us(r->loop));
    end_flight(f);
    go_on(r);
}

static void on_fail(void *arg, const struct err *why)
{
    struct flight *f = arg;
    struct runner *r = f->r;
    reading_fail(&f->reading, why->code, loop_now_us(r->loop));
    end_flight(f);
    go_on(r);
}

/* Which arm send number `k` goes to: of each pair one to each, in drawn order. */
static unsigned arm_of(const struct runner *r, uint64_t k)
{
    if (r->n_arms == 1)
        return 0;
    uint64_t state = draw_key(r->o.seed, WHAT_PAIR, r->first_index + k / 2, 0);
    return (unsigned)(k & 1) ^ draw_below(&state, 2);
}

static void make_request(struct flight *f, struct buf *head, uint64_t index)
{
    struct workload_request rq;
    struct runner *r = f->r;
    const struct upstream *u = r->upstreams[f->arm];
    workload_make(r->workload, index, f->arm, &f->body, &rq);
    f->reading.sample = (struct sample){.index = index,
                                        .group = rq.group,
                                        .turn = rq.turn,
                                        .in_tokens = rq.in_tokens,
                                        .shared_tokens = rq.shared_tokens,
                                        .out_tokens = rq.out_tokens};
    reading_init(&f->reading, rq.api, &tally_of(r, f->arm)->gaps);
    buf_printf(head,
               "POST %s%s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
               "%sContent-Length: %zu\r\n\r\n",
               upstream_prefix(u), rq.path, upstream_host(u), r->o.headers,
               buf_len(&f->body));
}

/* Sends the next request; planned_us 0: it was planned for now. */
static void start_flight(struct runner *r, uint64_t planned_us)
{
    static const struct call_events events = {on_head, on_body, on_end, on_fail, on_sent};
    struct flight *f = mem_zalloc(sizeof(*f));
    struct buf head = {0};
    f->r = r;
    f->arm = arm_of(r, r->sent);
    make_request(f, &head, r->first_index + r->sent / r->n_arms);
    const struct call_request rq = {
        .head = buf_slice(&head), .body = {buf_slice(&f->body)}, .once = true};
    r->sent++;
    list_push_back(&r->flights, &f->link);
    f->reading.sample.started_us = loop_now_us(r->loop);
    f->reading.sample.planned_us = planned_us ? planned_us : f->reading.sample.started_us;
    f->call = call_start(r->upstreams[f->arm], &rq, &events, f);
    buf_free(&head);
}

/* ---- the plan ---------------------------------------------------------------------- */

static bool may_send(const struct runner *r)
{
    return !r->stopped && r->sent < r->planned &&
           !(r->until_us && r->begun_us + r->next_us >= r->until_us);
}

static bool has_room(const struct runner *r)
{
    return r->sent - r->ended < r->concurrency;
}

static void on_timer(void *arg)
{
    go_on(arg);
}

/* Comes back when the next request is due, not a moment later. */
static void wait_for_due(struct runner *r, uint64_t rest_us)
{
    timer_start(&r->timer, rest_us > SPIN_US ? (rest_us - SPIN_US) / 1000 : 0);
}

static void send_what_is_due(struct runner *r)
{
    while (may_send(r) && has_room(r)) {
        const uint64_t now_us = loop_now_us(r->loop), due_us = r->begun_us + r->next_us;
        if (due_us > now_us) {
            wait_for_due(r, due_us - now_us);
            return;
        }
        start_flight(r, due_us);
        r->next_us = arrivals_next(&r->arrivals);
    }
}

static void keep_busy(struct runner *r)
{
    r->next_us = loop_now_us(r->loop) - r->begun_us;
    while (may_send(r) && has_room(r)) {
        start_flight(r, 0);
        r->next_us = loop_now_us(r->loop) - r->begun_us;
    }
}

static void go_on(struct runner *r)
{
    if (r->open_loop)
        send_what_is_due(r);
    else
        keep_busy(r);
    if (!may_send(r) && r->sent == r->ended)
        loop_stop(r->loop);
}

/* ---- phases ------------------------------------------------------------------------ */

static void on_tick(void *arg)
{
    struct runner *r = arg;
    const struct runner_progress p = {r->sent, r->ended, r->planned,
                                      loop_now_us(r->loop) - r->begun_us, r->warmup};
    r->tell(r->tell_arg, &p);
    timer_start(&r->ticks, PROGRESS_MS);
}

/* From here until end_usage(). */
static void begin_usage(struct runner *r)
{
    for (unsigned arm = 0; arm < r->n_arms; arm++)
        usage_begin(r->usages[arm]);
}

static void end_usage(struct runner *r)
{
    for (unsigned arm = 0; arm < r->n_arms; arm++)
        r->resources[arm][r->warmup] = usage_end(r->usages[arm]);
}

static void run_phase(struct runner *r, bool warmup)
{
    r->warmup = warmup;
    r->open_loop = !warmup && r->o.rate > 0;
    r->concurrency = warmup && r->o.rate > 0 ? 1 : r->o.concurrency;
    r->first_index = warmup ? 0 : r->o.warmup;
    r->planned = (warmup ? r->o.warmup : r->o.requests) * r->n_arms;
    r->sent = r->ended = r->next_us = 0;
    if (r->planned == 0 || r->stopped)
        return;
    arrivals_init(&r->arrivals, r->o.rate, r->o.poisson, r->o.seed);
    if (r->open_loop)
        r->next_us = arrivals_next(&r->arrivals);
    begin_usage(r);
    r->begun_us = loop_now_us(r->loop);
    r->until_us = !warmup && r->o.duration_ms ? r->begun_us + r->o.duration_ms * 1000 : 0;
    if (r->tell)
        timer_start(&r->ticks, PROGRESS_MS);
    timer_start(&r->timer, 0);
    loop_run(r->loop);
    timer_stop(&r->timer);
    timer_stop(&r->ticks);
    for (unsigned arm = 0; arm < r->n_arms; arm++) {
        tally_of(r, arm)->begun_us = r->begun_us;
        tally_of(r, arm)->ended_us = loop_now_us(r->loop);
        tally_sort(tally_of(r, arm));
    }
    end_usage(r);
}

void runner_run(struct runner *r)
{
    run_phase(r, true);
    run_phase(r, false);
}

void runner_stop(struct runner *r)
{
    r->stopped = true;
    LIST_EACH_SAFE (it, next, &r->flights) {
        struct flight *f = LIST_ENTRY(it, struct flight, link);
        call_cancel(f->call);
        end_flight(f);
    }
    loop_stop(r->loop);
}

bool runner_stopped(const struct runner *r)
{
    return r->stopped;
}

const struct tally *runner_tally(const struct runner *r, unsigned arm, bool warmup)
{
    return warmup ? &r->warm[arm] : &r->run[arm];
}

json_t *runner_resources(const struct runner *r, unsigned arm, bool warmup)
{
    return r->resources[arm][warmup];
}

/* ---- life -------------------------------------------------------------------------- */

/* The service is on this machine where its address says so. */
static struct usage *watch(struct runner *r, unsigned arm, struct err *e)
{
    struct usage_options uo = r->o.watch[arm];
    const struct addr *at = upstream_addr(r->upstreams[arm]);
    if (addr_is_loopback(at))
        uo.port = addr_port(at);
    return usage_new(r->loop, &uo, e);
}

struct runner *runner_new(struct loop *l, const struct workload *w,
                          const struct runner_options *o, struct err *e)
{
    struct runner *r = mem_zalloc(sizeof(*r));
    r->loop = l;
    r->workload = w;
    r->o = *o;
    list_init(&r->flights);
    timer_init(&r->timer, l, on_timer, r);
    timer_init(&r->ticks, l, on_tick, r);
    for (unsigned i = 0; i < RUNNER_ARMS && o->url[i]; i++) {
        const struct upstream_options uo = {.url = o->url[i],
                                            .connect_ms = CONNECT_MS,
                                            .first_byte_ms = o->timeout_ms,
                                            .stall_ms = o->timeout_ms};
        r->upstreams[i] = upstream_new(l, &uo, e);
        if (!r->upstreams[i] || !(r->usages[i] = watch(r, i, e))) {
            runner_free(r);
            return NULL;
        }
        r->n_arms++;
    }
    return r;
}

void runner_free(struct runner *r)
{
    if (!r)
        return;
    timer_fini(&r->timer);
    timer_fini(&r->ticks);
    for (unsigned i = 0; i < RUNNER_ARMS; i++) {
        upstream_free(r->upstreams[i]);
        usage_free(r->usages[i]);
        json_decref(r->resources[i][0]);
        json_decref(r->resources[i][1]);
        tally_free(&r->run[i]);
        tally_free(&r->warm[i]);
    }
    free(r);
}

void runner_on_progress(struct runner *r,
                        void (*tell)(void *arg, const struct runner_progress *p),
                        void *arg)
{
    r->tell = tell;
    r->tell_arg = arg;
}
