/* SPDX-License-Identifier: MIT */
#include "io/loop.h"

/*
 * A thin skin over libevent's event_base:
 *
 *     loop_defer ──► deferred ──(timer of zero length)──┐
 *     loop_post  ──► posted ────(eventfd)───────────────┼──► one turn: wait, then all
 *     timer_start ─► libevent's heap ───────────────────┤    that is ready, in order
 *     sockets, signals ─────────────────────────────────┘
 *
 * Deferred calls hang on a timer and not on event_active(), because libevent works off
 * what becomes active during a turn in that same turn: sockets would starve.
 *
 * libevent is left with its coarse clock, since the precise one costs a system call each
 * turn. That clock may be some milliseconds behind, so timers keep their own deadline and
 * go back to sleep where they were woken early. The same deadline makes restarting cheap:
 * a timer that is moved to a later time leaves the heap alone and looks again when the
 * earlier time has come.
 */

#include <assert.h>
#include <errno.h>
#include <event2/event.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "loop_private.h"

#define LOOP_MAGIC 0x6c6f6f70u
#define TIMER_MAX_MS ((uint64_t)1 << 40) /* 35 years: keeps sums from overflowing */

struct call {
    loop_cb cb;
    void *arg;
};

struct batch {
    struct call *v;
    size_t n, cap;
};

/* Calls made while `running` is worked off are collected in `filling`. */
struct queue {
    struct batch filling, running;
};

struct loop {
    unsigned magic;
    bool stopping;
    struct event_base *base;
    struct queue deferred;
    struct event *turn; /* zero-length timer: there are deferred calls */

    pthread_mutex_t lock; /* guards posted.filling */
    struct queue posted;
    int wake_fd;
    struct event *wake;

    struct list watched; /* struct watched_signal */
    struct list orphans; /* the oldest first */
    size_t n_orphans;
    struct buf spare;
};

struct watched_signal {
    struct list link;
    struct event *event;
    loop_cb cb;
    void *arg;
};

/* ---- calls ------------------------------------------------------------------------- */

/* True where it is the first of its batch. */
static bool batch_push(struct batch *b, loop_cb cb, void *arg)
{
    if (b->n == b->cap) {
        b->cap = b->cap ? 2 * b->cap : 16;
        b->v = mem_rearray(b->v, b->cap, sizeof(*b->v));
    }
    b->v[b->n++] = (struct call){cb, arg};
    return b->n == 1;
}

static void queue_swap(struct queue *q)
{
    const struct batch taken = q->filling;
    q->filling = q->running;
    q->running = taken;
}

/* Makes the calls that were swapped in; false where there were none. */
static bool queue_run(struct queue *q)
{
    const size_t n = q->running.n;
    for (size_t i = 0; i < n; i++)
        q->running.v[i].cb(q->running.v[i].arg);
    q->running.n = 0;
    return n > 0;
}

static bool run_deferred(struct loop *l)
{
    queue_swap(&l->deferred);
    return queue_run(&l->deferred);
}

static bool run_posted(struct loop *l)
{
    pthread_mutex_lock(&l->lock);
    queue_swap(&l->posted);
    pthread_mutex_unlock(&l->lock);
    return queue_run(&l->posted);
}

static void on_turn(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    run_deferred(arg);
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    uint64_t count;
    (void)what;
    if (read(fd, &count, sizeof(count)) < 0)
        assert(errno == EAGAIN || errno == EINTR);
    run_posted(arg);
}

void loop_defer(struct loop *l, loop_cb cb, void *arg)
{
    static const struct timeval now = {0, 0};
    assert(l->magic == LOOP_MAGIC && cb);
    if (batch_push(&l->deferred.filling, cb, arg))
        event_add(l->turn, &now);
}

void loop_post(struct loop *l, loop_cb cb, void *arg)
{
    static const uint64_t one = 1;
    assert(l->magic == LOOP_MAGIC && cb);
    pthread_mutex_lock(&l->lock);
    const bool first = batch_push(&l->posted.filling, cb, arg);
    pthread_mutex_unlock(&l->lock);
    while (first && write(l->wake_fd, &one, sizeof(one)) < 0)
        assert(errno == EINTR); /* the counter cannot be full: it counts batches */
}

/* ---- life -------------------------------------------------------------------------- */

static void on_libevent_log(int severity, const char *text)
{
    static const enum log_level levels[] = {LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR};
    const int last = (int)(sizeof(levels) / sizeof(levels[0])) - 1;
    log_event(levels[severity < 0 || severity > last ? last : severity], "libevent",
              "text", "%s", text, NULL);
}

/* Without edge triggering and early close a paused connection could not see its peer
 * leave (conn.c). Only one thread touches the base, so it goes without locks. */
static struct event_base *new_base(void)
{
    struct event_config *config = event_config_new();
    event_config_require_features(config, EV_FEATURE_ET | EV_FEATURE_EARLY_CLOSE);
    event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK | EVENT_BASE_FLAG_IGNORE_ENV);
    struct event_base *base = event_base_new_with_config(config);
    event_config_free(config);
    return base;
}

struct loop *loop_new(void)
{
    event_set_mem_functions(mem_alloc, mem_realloc, free);
    event_set_log_callback(on_libevent_log);
    struct event_base *base = new_base();
    const int wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    struct loop *l = mem_zalloc(sizeof(*l));
    struct event *wake =
        base ? event_new(base, wake_fd, EV_READ | EV_PERSIST, on_wake, l) : NULL;
    if (wake_fd < 0 || !wake || event_add(wake, NULL) != 0) {
        log_event(LOG_ERROR, "loop", "errno", "%s", strerror(errno), NULL);
        if (wake)
            event_free(wake);
        if (base)
            event_base_free(base);
        if (wake_fd >= 0)
            close(wake_fd);
        free(l);
        return NULL;
    }
    l->magic = LOOP_MAGIC;
    l->base = base;
    l->wake_fd = wake_fd;
    l->turn = event_new(base, -1, 0, on_turn, l);
    l->wake = wake;
    pthread_mutex_init(&l->lock, NULL);
    list_init(&l->watched);
    list_init(&l->orphans);
    return l;
}

static void free_signals(struct loop *l)
{
    LIST_EACH_SAFE (it, next, &l->watched) {
        struct watched_signal *s = LIST_ENTRY(it, struct watched_signal, link);
        event_free(s->event);
        free(s);
    }
}

static void queue_free(struct queue *q)
{
    free(q->filling.v);
    free(q->running.v);
}

static void drop_oldest(struct loop *l)
{
    struct loop_orphan *o = LIST_ENTRY(l->orphans.next, struct loop_orphan, link);
    o->drop(o);
}

void loop_free(struct loop *l)
{
    if (!l)
        return;
    assert(l->magic == LOOP_MAGIC);
    while (!list_empty(&l->orphans))
        drop_oldest(l);
    while (run_deferred(l) || run_posted(l)) {
    }
    free_signals(l);
    event_free(l->turn);
    event_free(l->wake);
    event_base_free(l->base);
    close(l->wake_fd);
    pthread_mutex_destroy(&l->lock);
    queue_free(&l->deferred);
    queue_free(&l->posted);
    buf_free(&l->spare);
    l->magic = 0;
    free(l);
}

void loop_run(struct loop *l)
{
    assert(l->magic == LOOP_MAGIC);
    while (!l->stopping)
        event_base_loop(l->base, EVLOOP_NO_EXIT_ON_EMPTY);
    l->stopping = false;
}

void loop_stop(struct loop *l)
{
    l->stopping = true;
    event_base_loopbreak(l->base);
}

uint64_t loop_now_us(const struct loop *l)
{
    (void)l;
    return clock_mono_us();
}

struct buf *loop_spare(struct loop *l)
{
    return &l->spare;
}

struct event_base *loop_base(struct loop *l)
{
    assert(l->magic == LOOP_MAGIC);
    return l->base;
}

void loop_adopt(struct loop *l, struct loop_orphan *o, size_t max)
{
    list_push_back(&l->orphans, &o->link);
    if (++l->n_orphans > max)
        drop_oldest(l);
}

void loop_disown(struct loop *l, struct loop_orphan *o)
{
    l->n_orphans -= !list_empty(&o->link);
    list_del(&o->link);
}

/* ---- signals ----------------------------------------------------------------------- */

static void on_signal(evutil_socket_t signo, short what, void *arg)
{
    const struct watched_signal *s = arg;
    (void)signo;
    (void)what;
    s->cb(s->arg);
}

void loop_on_signal(struct loop *l, int signo, loop_cb cb, void *arg)
{
    struct watched_signal *s = mem_zalloc(sizeof(*s));
    s->cb = cb;
    s->arg = arg;
    signal(signo, SIG_IGN); /* what libevent puts back when the event goes */
    s->event = event_new(l->base, signo, EV_SIGNAL | EV_PERSIST, on_signal, s);
    if (event_add(s->event, NULL) != 0) {
        log_event(LOG_ERROR, "signal", "errno", "%s", strerror(errno), NULL);
        signal(signo, SIG_DFL);
    }
    list_push_back(&l->watched, &s->link);
}

/* ---- timers ------------------------------------------------------------------------ */

/* Asks libevent to look at the deadline when it has come. */
static void sleep_until_due(struct loop_timer *t, uint64_t now_us)
{
    const uint64_t rest_us = t->due_us > now_us ? t->due_us - now_us : 0;
    const struct timeval rest = {.tv_sec = (time_t)(rest_us / 1000000),
                                 .tv_usec = (suseconds_t)(rest_us % 1000000)};
    t->wake_us = t->due_us;
    event_add(t->event, &rest);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct loop_timer *t = arg;
    (void)fd;
    (void)what;
    t->wake_us = 0;
    if (!t->armed)
        return;
    const uint64_t now_us = clock_mono_us();
    if (now_us < t->due_us) {
        sleep_until_due(t, now_us);
        return;
    }
    t->armed = false;
    t->cb(t->arg);
}

void timer_init(struct loop_timer *t, struct loop *l, loop_cb cb, void *arg)
{
    assert(l->magic == LOOP_MAGIC && cb);
    *t = (struct loop_timer){.loop = l, .cb = cb, .arg = arg};
    t->event = event_new(l->base, -1, 0, on_timer, t);
}

void timer_start(struct loop_timer *t, uint64_t ms)
{
    assert(t->event);
    const uint64_t now_us = clock_mono_us();
    t->due_us = now_us + (ms < TIMER_MAX_MS ? ms : TIMER_MAX_MS) * 1000;
    t->armed = true;
    if (!t->wake_us || t->wake_us > t->due_us)
        sleep_until_due(t, now_us);
}

void timer_stop(struct loop_timer *t)
{
    t->armed = false;
}

void timer_fini(struct loop_timer *t)
{
    if (t->event)
        event_free(t->event);
    *t = (struct loop_timer){0};
}
