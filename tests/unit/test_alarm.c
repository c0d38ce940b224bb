/* SPDX-License-Identifier: MIT */
#include "io/alarm.h"

#include <string.h>

#include "cmocka_all.h"
#include "io_rig.h"

static struct loop *loop;
static struct alarm *alarms[3];
static char rung[8]; /* letters, in order */
static uint64_t rung_us;

static void ring(void *arg)
{
    rung[strlen(rung)] = *(const char *)arg;
    rung_us = loop_now_us(loop);
    if (rung[0] == *(const char *)arg)
        return;
    loop_stop(loop);
}

static int set_up(void **state)
{
    const int rc = rig_up(state);
    loop = *state;
    memset(rung, 0, sizeof(rung));
    for (int i = 0; i < 3; i++)
        alarms[i] = alarm_new(loop, ring, (void *)(uintptr_t) & "abc"[i]);
    return rc;
}

static int tear_down(void **state)
{
    for (int i = 0; i < 3; i++)
        alarm_free(alarms[i]);
    return rig_down(state);
}

static void test_alarms_ring_in_order_and_never_early(void **state)
{
    (void)state;
    const uint64_t at_us = loop_now_us(loop) + 3000;
    alarm_set(alarms[1], at_us);
    alarm_set(alarms[0], at_us - 1500);
    loop_run(loop);
    assert_string_equal(rung, "ab");
    assert_true(rung_us >= at_us);
}

static void test_an_alarm_of_the_past_rings_at_once(void **state)
{
    (void)state;
    alarm_set(alarms[0], 0);
    assert_string_equal(rung, ""); /* not inside */
    alarm_set(alarms[1], loop_now_us(loop) - 1);
    loop_run(loop);
    assert_int_equal(strlen(rung), 2);
}

static void test_an_alarm_is_moved_and_stopped(void **state)
{
    (void)state;
    const uint64_t now_us = loop_now_us(loop);
    alarm_set(alarms[2], 1); /* has rung already, and is not told */
    alarm_stop(alarms[2]);
    alarm_set(alarms[0], 1);
    alarm_set(alarms[0], now_us + 4000);
    alarm_set(alarms[1], now_us + 2000);
    alarm_set(alarms[1], now_us + 6000);
    loop_run(loop);
    assert_string_equal(rung, "ab");
    assert_true(rung_us >= now_us + 6000);
}

static void test_an_alarm_rings_once_and_may_be_set_again(void **state)
{
    (void)state;
    const uint64_t at_us = loop_now_us(loop);
    alarm_set(alarms[0], at_us);
    alarm_set(alarms[1], at_us + 1000);
    loop_run(loop);
    assert_string_equal(rung, "ab");
    alarm_set(alarms[1], at_us); /* the same as before for the first */
    alarm_set(alarms[0], at_us);
    rung[0] = '-';
    rung[1] = '\0';
    loop_run(loop);
    assert_true(strlen(rung) >= 2);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(alarms_ring_in_order_and_never_early),
        TEST(an_alarm_of_the_past_rings_at_once),
        TEST(an_alarm_is_moved_and_stopped),
        TEST(an_alarm_rings_once_and_may_be_set_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
