/* SPDX-License-Identifier: MIT */
#include "io/loop.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmocka_all.h"
#include "io_rig.h"

/* What was called, in order, as letters. */
static char trace[64];
static struct loop *loop;

static int up(void **state)
{
    memset(trace, 0, sizeof(trace));
    const int rc = rig_up(state);
    loop = *state;
    return rc;
}

static void note(void *arg)
{
    const size_t n = strlen(trace);
    assert_true(n < sizeof(trace) - 1);
    trace[n] = *(const char *)arg;
}

static void stop(void *arg)
{
    (void)arg;
    loop_stop(loop);
}

#define LETTER(s) ((void *)(uintptr_t)(s))

/* ---- deferred calls ---------------------------------------------------------------- */

static void test_loop_defer_keeps_the_order_and_never_calls_inside(void **state)
{
    (void)state;
    loop_defer(loop, note, LETTER("a"));
    loop_defer(loop, note, LETTER("b"));
    loop_defer(loop, note, LETTER("c"));
    loop_defer(loop, stop, NULL);
    assert_string_equal(trace, "");
    loop_run(loop);
    assert_string_equal(trace, "abc");
}

static void defer_again(void *arg)
{
    note(arg);
    loop_defer(loop, note, LETTER("2"));
    assert_string_equal(trace, "1"); /* not inside */
    loop_defer(loop, stop, NULL);
}

static void test_loop_defer_inside_a_call_waits_for_the_next_turn(void **state)
{
    (void)state;
    loop_defer(loop, defer_again, LETTER("1"));
    loop_defer(loop, note, LETTER("x"));
    loop_run(loop);
    assert_string_equal(trace, "1x2");
}

static bool hog_over;

static void hog(void *arg)
{
    if (!hog_over)
        loop_defer(loop, hog, arg);
    else
        loop_stop(loop);
}

static void end_hog(void *arg)
{
    (void)arg;
    hog_over = true;
}

static void *post_end_hog(void *arg)
{
    loop_post(loop, end_hog, arg);
    return NULL;
}

static void test_loop_defer_without_end_does_not_starve_sockets(void **state)
{
    (void)state;
    pthread_t thread;
    hog_over = false;
    loop_defer(loop, hog, NULL);
    assert_int_equal(pthread_create(&thread, NULL, post_end_hog, NULL), 0);
    loop_run(loop); /* the post comes through a descriptor */
    pthread_join(thread, NULL);
    assert_true(hog_over);
}

static void test_loop_free_makes_the_calls_that_are_left(void **state)
{
    (void)state;
    struct loop *l = loop_new();
    loop_defer(l, note, LETTER("d"));
    loop_post(l, note, LETTER("p"));
    loop_free(l);
    assert_string_equal(trace, "dp");
}

static void test_loop_stop_before_run_is_not_lost(void **state)
{
    (void)state;
    loop_stop(loop);
    loop_run(loop);
    loop_defer(loop, note, LETTER("a"));
    loop_defer(loop, stop, NULL);
    loop_run(loop);
    assert_string_equal(trace, "a");
}

static void test_loop_without_work_sleeps(void **state)
{
    assert_true(rig_idle(*state, 100) < 30);
}

/* ---- posts ------------------------------------------------------------------------- */

#define POSTERS 4
#define POSTS 1000

static unsigned next_of[POSTERS], posted_total;

struct post {
    unsigned thread, n;
};

static void on_post(void *arg)
{
    const struct post *p = arg;
    assert_int_equal(p->n, next_of[p->thread]++);
    if (++posted_total == POSTERS * POSTS)
        loop_stop(loop);
}

static void *post_many(void *arg)
{
    struct post *posts = arg;
    for (unsigned i = 0; i < POSTS; i++)
        loop_post(loop, on_post, &posts[i]);
    return NULL;
}

static void test_loop_post_of_many_threads_is_whole_and_in_order(void **state)
{
    (void)state;
    static struct post posts[POSTERS][POSTS];
    pthread_t threads[POSTERS];
    posted_total = 0;
    memset(next_of, 0, sizeof(next_of));
    for (unsigned t = 0; t < POSTERS; t++) {
        for (unsigned i = 0; i < POSTS; i++)
            posts[t][i] = (struct post){t, i};
        assert_int_equal(pthread_create(&threads[t], NULL, post_many, posts[t]), 0);
    }
    loop_run(loop);
    for (unsigned t = 0; t < POSTERS; t++)
        pthread_join(threads[t], NULL);
    assert_int_equal(posted_total, POSTERS * POSTS);
}

static void test_loop_post_from_the_loop_itself_is_not_called_inside(void **state)
{
    (void)state;
    loop_post(loop, note, LETTER("a"));
    assert_string_equal(trace, "");
    loop_post(loop, stop, NULL);
    loop_run(loop);
    assert_string_equal(trace, "a");
}

/* ---- timers ------------------------------------------------------------------------ */

static struct loop_timer timers[4];

static void init_timers(void)
{
    static const char *const names[] = {"a", "b", "c", "d"};
    for (int i = 0; i < 4; i++)
        timer_init(&timers[i], loop, note, LETTER(names[i]));
}

static void fini_timers(void)
{
    for (int i = 0; i < 4; i++)
        timer_fini(&timers[i]);
}

static void test_timers_fire_in_the_order_of_their_deadlines(void **state)
{
    init_timers();
    timer_start(&timers[2], 30);
    timer_start(&timers[0], 10);
    timer_start(&timers[1], 20);
    timer_start(&timers[3], 0);
    assert_true(timers[2].armed);
    rig_idle(*state, 60);
    assert_string_equal(trace, "dabc");
    assert_false(timers[2].armed);
    fini_timers();
}

static uint64_t began_us, fired_us;

static void stamp(void *arg)
{
    (void)arg;
    fired_us = loop_now_us(loop);
    loop_stop(loop);
}

static void test_timer_is_never_early(void **state)
{
    (void)state;
    struct loop_timer t;
    timer_init(&t, loop, stamp, NULL);
    for (uint64_t ms = 0; ms < 12; ms += 3) {
        began_us = loop_now_us(loop);
        timer_start(&t, ms);
        loop_run(loop);
        assert_true(fired_us - began_us >= ms * 1000);
    }
    timer_fini(&t);
}

static void start_late(void *arg)
{
    began_us = loop_now_us(loop);
    while (loop_now_us(loop) < began_us + 20000) {
    }
    began_us = loop_now_us(loop);
    timer_start(arg, 5);
}

static void test_timer_started_late_in_a_turn_is_not_early_either(void **state)
{
    (void)state;
    struct loop_timer t;
    timer_init(&t, loop, stamp, NULL);
    loop_defer(loop, start_late, &t);
    loop_run(loop);
    assert_true(fired_us - began_us >= 5000);
    timer_fini(&t);
}

static void test_timer_restarted_later_fires_once_and_later(void **state)
{
    (void)state;
    struct loop_timer t;
    timer_init(&t, loop, stamp, NULL);
    began_us = loop_now_us(loop);
    timer_start(&t, 5);
    timer_start(&t, 40);
    loop_run(loop);
    assert_true(fired_us - began_us >= 40000);
    fired_us = 0;
    rig_idle(loop, 60);
    assert_int_equal(fired_us, 0);
    timer_fini(&t);
}

static void test_timer_restarted_earlier_fires_earlier(void **state)
{
    init_timers();
    timer_start(&timers[0], 60000);
    timer_start(&timers[0], 5);
    rig_idle(*state, 50);
    assert_string_equal(trace, "a");
    fini_timers();
}

static void test_timer_stopped_stays_silent_and_can_start_again(void **state)
{
    init_timers();
    timer_start(&timers[0], 5);
    timer_stop(&timers[0]);
    assert_false(timers[0].armed);
    rig_idle(*state, 20);
    assert_string_equal(trace, "");
    timer_start(&timers[0], 5);
    rig_idle(*state, 30);
    assert_string_equal(trace, "a");
    fini_timers();
}

static unsigned rearms;

static void rearm(void *arg)
{
    if (++rearms < 5)
        timer_start(arg, 1);
    else
        loop_stop(loop);
}

static void test_timer_may_start_itself_again(void **state)
{
    (void)state;
    struct loop_timer t;
    rearms = 0;
    timer_init(&t, loop, rearm, &t);
    timer_start(&t, 1);
    loop_run(loop);
    assert_int_equal(rearms, 5);
    timer_fini(&t);
}

static void fini_inside(void *arg)
{
    timer_fini(arg);
    loop_stop(loop);
}

static void test_timer_may_be_finished_inside_its_call_and_twice(void **state)
{
    (void)state;
    struct loop_timer t, never = {0};
    timer_init(&t, loop, fini_inside, &t);
    timer_start(&t, 1);
    loop_run(loop);
    timer_fini(&t);
    timer_stop(&never);
    timer_fini(&never);
    assert_false(t.armed);
}

static void test_timer_takes_any_length(void **state)
{
    init_timers();
    timer_start(&timers[0], UINT64_MAX);
    rig_idle(*state, 5);
    assert_string_equal(trace, "");
    assert_true(timers[0].armed);
    fini_timers();
}

/* ---- signals ----------------------------------------------------------------------- */

static void on_user_signal(void *arg)
{
    note(arg);
    loop_stop(loop);
}

static void test_loop_on_signal_calls_on_the_loop_each_time(void **state)
{
    (void)state;
    loop_on_signal(loop, SIGUSR1, on_user_signal, LETTER("u"));
    for (int i = 0; i < 2; i++) {
        raise(SIGUSR1);
        assert_int_equal(strlen(trace), i);
        loop_run(loop);
    }
    assert_string_equal(trace, "uu");
}

static void test_loop_signals_are_ignored_when_it_is_gone(void **state)
{
    struct loop *other = loop_new();
    (void)state;
    loop_on_signal(other, SIGUSR2, on_user_signal, LETTER("u"));
    loop_free(other);
    raise(SIGUSR2); /* its default is to end the process */
    signal(SIGUSR2, SIG_DFL);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, up, rig_down)
    const struct CMUnitTest tests[] = {
        TEST(test_loop_defer_keeps_the_order_and_never_calls_inside),
        TEST(test_loop_defer_inside_a_call_waits_for_the_next_turn),
        TEST(test_loop_defer_without_end_does_not_starve_sockets),
        TEST(test_loop_free_makes_the_calls_that_are_left),
        TEST(test_loop_stop_before_run_is_not_lost),
        TEST(test_loop_without_work_sleeps),
        TEST(test_loop_post_of_many_threads_is_whole_and_in_order),
        TEST(test_loop_post_from_the_loop_itself_is_not_called_inside),
        TEST(test_timers_fire_in_the_order_of_their_deadlines),
        TEST(test_timer_is_never_early),
        TEST(test_timer_started_late_in_a_turn_is_not_early_either),
        TEST(test_timer_restarted_later_fires_once_and_later),
        TEST(test_timer_restarted_earlier_fires_earlier),
        TEST(test_timer_stopped_stays_silent_and_can_start_again),
        TEST(test_timer_may_start_itself_again),
        TEST(test_timer_may_be_finished_inside_its_call_and_twice),
        TEST(test_timer_takes_any_length),
        TEST(test_loop_on_signal_calls_on_the_loop_each_time),
        TEST(test_loop_signals_are_ignored_when_it_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
