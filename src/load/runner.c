/* SPDX-License-Identifier: MIT */
#include "load/runner.h"

/*
 * Happy path:  warm-up → run proper, or each of its steps: start flights → sent, head,
 *              body…, end → the next → nothing under way and nothing to send: the phase
 *              is over.
 * A step:      SETTLING → MEASURED → HELD (closed loops: while measured ones are under
 *              way). A phase that is no step is MEASURED from its start to its end.
 * Failures:    a flight that fails is a sample like others. runner_stop() cancels all
 *              flights; no phase follows.
 */

#include <limits.h>
#include <stdlib.h>
#include <strings.h>

#include "base/draw.h"
#include "base/list.h"
#include "base/mem.h"
#include "io/alarm.h"
#include "load/arrivals.h"
#include "wire/upstream.h"

#define CONNECT_MS 10000
#define IDLE_MS 4000 /* common servers close after 5 s: better not to meet them there */
#define PROGRESS_MS 500
#define WHAT_PAIR 200
#define WHAT_STEP 300
#define PART_SIZE 1000000000u /* requests: more than any part sends */

enum part { SETTLING, MEASURED, HELD };

struct stage {
    struct runner_step load;
    struct tally measured[RUNNER_ARMS], around[RUNNER_ARMS];
    json_t *resources[RUNNER_ARMS];
};

struct runner {
    struct loop *loop;
    const struct workload *workload;
    struct runner_options o;
    struct upstream *upstreams[RUNNER_ARMS];
    unsigned n_arms;
    struct usage *usages[RUNNER_ARMS];
    struct stage warm;
    struct stage *stages; /* the run proper: its steps, or itself */
    size_t n_stages, n_begun;
    void (*tell)(void *arg, const struct runner_progress *p);
    void *tell_arg;
    bool (*ask)(void *arg, size_t step);
    void *ask_arg;
    bool stopped;

    /* Of the phase. */
    struct stage *stage;
    bool open_loop;
    uint64_t requests, sent, ended;
    uint64_t begun_us;
    struct arrivals arrivals;
    uint64_t next_us; /* when the next is due, from begun_us */
    uint64_t first_index, next_index;

    /* Of its part. */
    enum part part;
    uint64_t part_sent, part_planned;
    uint64_t until_us;          /* from begun_us; 0: no end in time */
    uint64_t measured_from_us;  /* as the next one, on the clock; 0: not yet */
    uint64_t measured_until_us; /* the last measured one's end */
    uint64_t measured_flights;

    /* Of a workload whose requests meet. */
    struct flight *host;                 /* the long one that is under way */
    uint64_t host_first_us, host_all_us; /* what the last one alone took */

    struct alarm *alarm;     /* for the plan */
    struct loop_timer ticks; /* for progress */
    struct list flights;
};

struct flight {
    struct list link;
    struct runner *r;
    unsigned arm;
    bool measured;
    bool guest; /* came while a host was under way */
    struct call *call;
    struct call_facts facts;
    struct reading reading;
    struct buf body;
};

static void go_on(struct runner *r);

/* ---- one request ------------------------------------------------------------------- */

static struct tally *tally_of(const struct flight *f)
{
    struct stage *s = f->r->stage;
    return f->measured ? &s->measured[f->arm] : &s->around[f->arm];
}

/* ---- a short request beside a long one --------------------------------------------- */

static void set_kind(struct flight *f, enum kind k)
{
    f->reading.sample.kind = (uint8_t)k;
    f->reading.kind_gaps = tally_gaps(tally_of(f), k);
}

/* A long one is alone until a short one comes; what that one came into shows now. */
static void meet(struct flight *f)
{
    struct flight *host = f->r->host;
    switch ((enum kind)f->reading.sample.kind) {
    case KIND_LONG_ALONE:
    case KIND_LONG_MET:
        set_kind(f, KIND_LONG_ALONE);
        f->r->host = f;
        break;
    case KIND_SHORT_IN_PREFILL:
        f->guest = host != NULL;
        if (!host) {
            set_kind(f, KIND_SHORT_LATE);
            break;
        }
        set_kind(host, KIND_LONG_MET);
        set_kind(f, host->reading.sample.first_us ? KIND_SHORT_IN_ANSWER
                                                  : KIND_SHORT_IN_PREFILL);
        break;
    default:
        break;
    }
}

/* Of a host the gaps behind the one that is under way are those of one alone again. */
static void leave(const struct flight *f)
{
    struct runner *r = f->r;
    const struct sample *s = &f->reading.sample;
    if (f->guest && r->host)
        r->host->reading.then_gaps = tally_gaps(tally_of(r->host), KIND_LONG_ALONE);
    if (f != r->host)
        return;
    r->host = NULL;
    if (s->kind == KIND_LONG_ALONE && s->outcome == SAMPLE_COMPLETED) {
        r->host_all_us = s->end_us - s->started_us;
        r->host_first_us = s->first_us ? s->first_us - s->started_us : r->host_all_us;
    }
}

/* When the next is to be sent, 0: now. */
static uint64_t meeting_us(const struct runner *r)
{
    const double moment = workload_moment(r->workload, r->next_index);
    if (moment <= 0 || !r->host)
        return 0;
    const double first = (double)r->host_first_us,
                 rest = (double)(r->host_all_us - r->host_first_us);
    return r->host->reading.sample.started_us +
           (uint64_t)(moment <= 1 ? moment * first : first + (moment - 1) * rest);
}

/* ---- the end of a request ---------------------------------------------------------- */

static void end_flight(struct flight *f)
{
    struct runner *r = f->r;
    leave(f);
    if (r->o.agree)
        agree_add(r->o.agree, f->arm, &f->reading.sample, f->reading.answer);
    f->reading.sample.connects = f->facts.connects;
    f->reading.sample.retries = f->facts.retries;
    tally_add(tally_of(f), &f->reading.sample);
    r->ended++;
    if (f->measured) {
        r->measured_flights--;
        r->measured_until_us = loop_now_us(r->loop);
    }
    list_del(&f->link);
    reading_fini(&f->reading);
    buf_free(&f->body);
    free(f);
}

static void on_sent(void *arg)
{
    struct flight *f = arg;
    reading_sent(&f->reading, f->facts.sent_us);
}

static void on_head(void *arg, const struct http_head *h)
{
    static const char type[] = "text/event-stream";
    struct flight *f = arg;
    if (f->facts.sent_us) /* on_sent() is still to come */
        reading_sent(&f->reading, f->facts.sent_us);
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

/* Which arm the next goes to: of each pair one to each, in drawn order. */
static unsigned next_arm(const struct runner *r)
{
    if (r->n_arms == 1)
        return 0;
    uint64_t state = draw_key(r->o.seed, WHAT_PAIR, r->next_index, 0);
    return (unsigned)(r->part_sent & 1) ^ draw_below(&state, 2);
}

static void make_request(struct flight *f, struct buf *head, uint64_t index)
{
    struct workload_request rq;
    struct runner *r = f->r;
    const struct upstream *u = r->upstreams[f->arm];
    workload_make(r->workload, index, r->o.agree ? 0 : f->arm, &f->body, &rq);
    f->reading.sample = (struct sample){.index = index,
                                        .group = rq.group,
                                        .turn = rq.turn,
                                        .in_tokens = rq.in_tokens,
                                        .kind = (uint8_t)rq.kind,
                                        .shared_tokens = rq.shared_tokens,
                                        .out_tokens = rq.out_tokens};
    reading_init(&f->reading, rq.api, &tally_of(f)->gaps);
    f->reading.kind_gaps = tally_gaps(tally_of(f), rq.kind);
    meet(f);
    f->reading.units = r->o.agree != NULL;
    f->reading.expect = rq.expect;
    buf_printf(head,
               "POST %s%s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
               "%sContent-Length: %zu\r\n\r\n",
               upstream_prefix(u), rq.path, upstream_host(u), r->o.headers,
               buf_len(&f->body));
}

static void note_sent(struct runner *r)
{
    r->sent++;
    r->part_sent++;
    r->measured_flights += r->part == MEASURED;
    r->next_index += r->part_sent % r->n_arms == 0;
}

/* Sends the next request; planned_us 0: it was planned for now. */
static void start_flight(struct runner *r, uint64_t planned_us)
{
    static const struct call_events events = {on_head, on_body, on_end, on_fail, on_sent};
    struct flight *f = mem_zalloc(sizeof(*f));
    struct buf head = {0};
    f->r = r;
    f->arm = next_arm(r);
    f->measured = r->part == MEASURED;
    make_request(f, &head, r->next_index);
    const struct call_request rq = {.head = buf_slice(&head),
                                    .body = {buf_slice(&f->body)},
                                    .once = !r->o.keep_alive,
                                    .facts = &f->facts};
    note_sent(r);
    list_push_back(&r->flights, &f->link);
    f->reading.sample.started_us = loop_now_us(r->loop);
    f->reading.sample.planned_us = planned_us ? planned_us : f->reading.sample.started_us;
    f->call = call_start(r->upstreams[f->arm], &rq, &events, f);
    buf_free(&head);
}

/* ---- the plan ---------------------------------------------------------------------- */

/* When the next request is due. To be asked once for each, in their order. */
static uint64_t next_due_us(struct runner *r)
{
    if (r->stage->load.rate > 0)
        return arrivals_next(&r->arrivals);
    const uint64_t first = workload_due_us(r->workload, r->first_index);
    return (uint64_t)((double)(workload_due_us(r->workload, r->next_index) - first) /
                      r->o.speed);
}

/* With steps each part begins with words that no other part had: at a pass whose number
 * follows from step and part, so that a second run of the seed finds the same. */
static uint64_t first_of_part(const struct runner *r, enum part part)
{
    const uint64_t pass = workload_pass(r->workload), passes = (PART_SIZE - 1) / pass + 1,
                   step = (uint64_t)(r->stage - r->stages);
    return (1 + 2 * step + (part == MEASURED)) * passes * pass;
}

static void begin_part(struct runner *r, enum part part)
{
    const uint64_t planned = part == SETTLING ? r->stage->load.settle : r->requests;
    r->part = part;
    r->part_sent = 0;
    r->part_planned = planned * r->n_arms;
    r->until_us = 0;
    if (part != HELD && r->o.n_steps && r->stage != &r->warm)
        r->next_index = first_of_part(r, part);
    if (part != MEASURED)
        return;
    r->measured_from_us = r->begun_us + r->next_us;
    if (r->o.duration_ms && r->stage != &r->warm)
        r->until_us = r->next_us + r->o.duration_ms * 1000;
}

/* Pairs of two arms stay together. */
static void choose_part(struct runner *r)
{
    if (r->part_sent % r->n_arms)
        return;
    if (r->part == SETTLING && r->part_sent >= r->part_planned &&
        r->next_us >= r->stage->load.settle_ms * 1000)
        begin_part(r, MEASURED);
    if (r->part == MEASURED &&
        (r->part_sent >= r->part_planned || (r->until_us && r->next_us >= r->until_us)))
        begin_part(r, HELD);
}

static bool may_send(struct runner *r)
{
    choose_part(r);
    if (r->stopped)
        return false;
    return r->part != HELD || (r->o.n_steps && !r->open_loop && r->measured_flights);
}

static bool has_room(const struct runner *r)
{
    const uint64_t guests = workload_moment(r->workload, r->next_index) > 0;
    return r->sent - r->ended < r->stage->load.concurrency + guests;
}

static void on_alarm(void *arg)
{
    go_on(arg);
}

static void send_what_is_due(struct runner *r)
{
    while (may_send(r) && has_room(r)) {
        const uint64_t due_us = r->begun_us + r->next_us;
        if (due_us > loop_now_us(r->loop)) {
            alarm_set(r->alarm, due_us);
            return;
        }
        start_flight(r, due_us);
        r->next_us = next_due_us(r);
    }
}

static void keep_busy(struct runner *r)
{
    r->next_us = loop_now_us(r->loop) - r->begun_us;
    while (may_send(r) && has_room(r)) {
        const uint64_t due_us = meeting_us(r);
        if (due_us > loop_now_us(r->loop)) {
            alarm_set(r->alarm, due_us);
            return;
        }
        start_flight(r, due_us);
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

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void on_tick(void *arg)
{
    struct runner *r = arg;
    const uint64_t planned = (r->stage->load.settle + r->requests) * r->n_arms;
    const struct runner_progress p = {.sent = least(r->sent, planned),
                                      .ended = least(r->ended, planned),
                                      .planned = planned,
                                      .elapsed_us = loop_now_us(r->loop) - r->begun_us,
                                      .warmup = r->stage == &r->warm,
                                      .settling = r->part == SETTLING,
                                      .step = r->n_begun ? r->n_begun - 1 : 0};
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
        r->stage->resources[arm] = usage_end(r->usages[arm]);
}

static void begin_phase(struct runner *r, struct stage *stage, uint64_t requests)
{
    const size_t step = stage == &r->warm ? 0 : (size_t)(stage - r->stages);
    r->stage = stage;
    r->requests = requests;
    r->open_loop = stage->load.rate > 0 || (r->o.speed > 0 && stage != &r->warm);
    r->first_index = r->next_index;
    r->sent = r->ended = r->next_us = r->measured_from_us = r->measured_until_us = 0;
    arrivals_init(&r->arrivals, stage->load.rate, r->o.poisson,
                  step ? draw_key(r->o.seed, WHAT_STEP, step, 0) : r->o.seed);
    if (r->open_loop)
        r->next_us = next_due_us(r);
    begin_usage(r);
    r->begun_us = loop_now_us(r->loop);
    begin_part(r, stage->load.settle || stage->load.settle_ms ? SETTLING : MEASURED);
}

static void end_phase(struct runner *r)
{
    const uint64_t now_us = loop_now_us(r->loop);
    for (unsigned arm = 0; arm < r->n_arms; arm++) {
        struct tally *t = &r->stage->measured[arm];
        t->begun_us = r->measured_from_us ? r->measured_from_us : now_us;
        t->ended_us = r->measured_until_us ? r->measured_until_us : now_us;
        r->stage->around[arm].begun_us = r->begun_us;
        r->stage->around[arm].ended_us = now_us;
        tally_sort(t);
        tally_sort(&r->stage->around[arm]);
    }
}

static void run_phase(struct runner *r, struct stage *stage, uint64_t requests)
{
    if (requests == 0 || r->stopped)
        return;
    begin_phase(r, stage, requests);
    if (r->tell)
        timer_start(&r->ticks, PROGRESS_MS);
    alarm_set(r->alarm, r->begun_us);
    loop_run(r->loop);
    alarm_stop(r->alarm);
    timer_stop(&r->ticks);
    end_phase(r);
    end_usage(r);
}

void runner_run(struct runner *r)
{
    run_phase(r, &r->warm, r->o.warmup);
    for (size_t i = 0; i < r->n_stages && !r->stopped; i++) {
        r->n_begun = i + 1;
        run_phase(r, &r->stages[i], r->o.requests);
        if (r->ask && i + 1 < r->n_stages && !r->stopped && !r->ask(r->ask_arg, i))
            break;
    }
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
    return warmup ? &r->warm.measured[arm] : &r->stages[0].measured[arm];
}

size_t runner_steps(const struct runner *r)
{
    return r->o.n_steps ? r->n_begun : 0;
}

const struct tally *runner_step_tally(const struct runner *r, size_t step, unsigned arm,
                                      bool measured)
{
    const struct stage *s = &r->stages[step];
    return measured ? &s->measured[arm] : &s->around[arm];
}

json_t *runner_resources(const struct runner *r, unsigned arm, bool warmup)
{
    return warmup ? r->warm.resources[arm] : r->stages[0].resources[arm];
}

json_t *runner_step_resources(const struct runner *r, size_t step, unsigned arm)
{
    return r->stages[step].resources[arm];
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

/* The warm-up of an open loop is a closed one of one. */
static void plan_stages(struct runner *r)
{
    const struct runner_step plain = {.concurrency = r->o.concurrency, .rate = r->o.rate},
                             *first = r->o.n_steps ? r->o.steps : &plain;
    r->n_stages = r->o.n_steps ? r->o.n_steps : 1;
    r->stages = mem_zalloc(r->n_stages * sizeof(*r->stages));
    for (size_t i = 0; i < r->n_stages; i++)
        r->stages[i].load = first[i];
    r->warm.load.concurrency = first->rate > 0 || r->o.speed > 0 ? 1 : first->concurrency;
}

static void free_stage(struct stage *s)
{
    for (unsigned i = 0; i < RUNNER_ARMS; i++) {
        tally_free(&s->measured[i]);
        tally_free(&s->around[i]);
        json_decref(s->resources[i]);
    }
}

static int check(const struct runner *r, struct err *e)
{
    const struct runner_options *o = &r->o;
    if (!r->alarm)
        return err_set(e, ERR_LIMIT, "no file descriptor is left for a timer");
    if (workload_meets(r->workload) &&
        (o->concurrency != 1 || o->rate > 0 || o->n_steps || o->speed > 0 || o->url[1]))
        return err_set(e, ERR_INVALID,
                       "profile interrupt is a closed loop of 1 with one service: no "
                       "--concurrency, --rate, --steps or --ab");
    return 0;
}

static int open_services(struct runner *r, struct err *e)
{
    const struct runner_options *o = &r->o;
    struct upstream_options uo = {.tls = o->tls,
                                  .connect_ms = CONNECT_MS,
                                  .first_byte_ms = o->timeout_ms,
                                  .stall_ms = o->timeout_ms,
                                  .pool_idle_ms = IDLE_MS,
                                  .pool_max_requests = UINT_MAX,
                                  .pool_max_idle =
                                      o->keep_alive ? RUNNER_MAX_CONCURRENCY : 0,
                                  .keep_streams = true};
    for (unsigned i = 0; i < RUNNER_ARMS && o->url[i]; i++) {
        uo.url = o->url[i];
        r->upstreams[i] = upstream_new(r->loop, &uo, e);
        if (!r->upstreams[i] || !(r->usages[i] = watch(r, i, e)))
            return e->code;
        r->n_arms++;
    }
    return 0;
}

struct runner *runner_new(struct loop *l, const struct workload *w,
                          const struct runner_options *o, struct err *e)
{
    struct runner *r = mem_zalloc(sizeof(*r));
    r->loop = l;
    r->workload = w;
    r->o = *o;
    plan_stages(r);
    list_init(&r->flights);
    timer_init(&r->ticks, l, on_tick, r);
    r->alarm = alarm_new(l, on_alarm, r);
    if (check(r, e) || open_services(r, e)) {
        runner_free(r);
        return NULL;
    }
    return r;
}

void runner_free(struct runner *r)
{
    if (!r)
        return;
    alarm_free(r->alarm);
    timer_fini(&r->ticks);
    for (unsigned i = 0; i < RUNNER_ARMS; i++) {
        upstream_free(r->upstreams[i]);
        usage_free(r->usages[i]);
    }
    free_stage(&r->warm);
    for (size_t i = 0; i < r->n_stages; i++)
        free_stage(&r->stages[i]);
    free(r->stages);
    free(r);
}

void runner_on_progress(struct runner *r,
                        void (*tell)(void *arg, const struct runner_progress *p),
                        void *arg)
{
    r->tell = tell;
    r->tell_arg = arg;
}

void runner_on_step(struct runner *r, bool (*ask)(void *arg, size_t step), void *arg)
{
    r->ask = ask;
    r->ask_arg = arg;
}
