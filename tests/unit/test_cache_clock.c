/* SPDX-License-Identifier: MIT */
#include "../../src/store/cache_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "store_rig.h"

#define HOUR 3600u
#define WALL INT64_C(1700000000)

static struct store_rig rig;
static struct store *store; /* in RAM: keeps the note */
static struct cache_clock clock_;

static int set_up(void **state)
{
    const struct store_options o = {.ram_bytes = 1 << 20};
    struct err e = {0};
    (void)state;
    store_rig_up(&rig, 1);
    store = store_open(&o, rig.workers, &e);
    assert_non_null(store);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    store_rig_settle(&rig);
    store_close(store);
    store_rig_down(&rig);
    return 0;
}

static void start(uint32_t shortest_s, int64_t wall_s)
{
    cache_clock_start(&clock_, store, shortest_s, 0, wall_s);
}

/* As long as the gateway runs, both clocks go on. */
static void run_for(uint32_t seconds, uint32_t step, uint32_t shortest_s, int64_t wall_s)
{
    for (uint32_t s = step; s <= seconds; s += step)
        cache_clock_tick(&clock_, store, shortest_s, s, wall_s + s);
}

static void test_age_is_what_the_wall_clock_says_while_it_is_right(void **state)
{
    (void)state;
    start(HOUR, WALL);
    run_for(HOUR, 10, HOUR, WALL);
    for (uint32_t age = 0; age <= HOUR; age += 60)
        assert_int_equal(clock_.now_s - cache_clock_at(&clock_, WALL + HOUR - age), age);
    assert_int_equal(cache_clock_at(&clock_, WALL - 5), clock_.points[0].at_s);
    assert_int_equal(cache_clock_at(&clock_, WALL + 2 * HOUR), clock_.now_s);
}

/* A year of points of 225 s would be 140 thousand. */
static void test_points_are_bounded_and_reach_back_for_ever(void **state)
{
    const uint32_t year = 365 * 24 * HOUR;
    (void)state;
    start(HOUR, WALL);
    run_for(year, 300, HOUR, WALL);
    assert_int_equal(clock_.n_points, CACHE_CLOCK_POINTS);
    assert_int_equal(clock_.points[0].wall_s, WALL);
    for (size_t i = 1; i < clock_.n_points; i++) {
        assert_true(clock_.points[i].wall_s > clock_.points[i - 1].wall_s);
        assert_true(clock_.points[i].at_s > clock_.points[i - 1].at_s);
    }
    for (size_t i = 1; i < clock_.n_points; i++) { /* far apart only long ago */
        const uint32_t age = clock_.now_s - clock_.points[i].at_s;
        assert_true(clock_.now_s - clock_.points[i - 1].at_s <= 2 * age + 600);
    }
    for (uint32_t age = 0; age <= year; age += 7 * 24 * HOUR)
        assert_int_equal(clock_.now_s - cache_clock_at(&clock_, WALL + year - age), age);
}

static void test_stop_counts_up_to_half_of_a_lifetime(void **state)
{
    static const struct {
        int64_t stopped;
        uint32_t counts;
    } rows[] = {{0, 0},
                {60, 60},
                {HOUR / 2, HOUR / 2},
                {HOUR / 2 + 1, HOUR / 2},
                {365 * 24 * HOUR, HOUR / 2},
                {-500, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        store_note_set(store, "clock", "");
        start(HOUR, WALL);
        run_for(HOUR, 300, HOUR, WALL);
        const uint32_t before = clock_.points[clock_.n_points - 1].at_s;
        start(HOUR, clock_.points[clock_.n_points - 1].wall_s + rows[i].stopped);
        assert_int_equal(clock_.now_s - before, rows[i].counts);
    }
}

static void test_note_that_is_none_is_left_alone(void **state)
{
    static const char *const notes[] = {"nonsense",
                                        "1700000000",
                                        "1700000000 x\n",
                                        "1700000000 4294967295\n",
                                        "1700000000 2000\n1700000001 1999\n",
                                        "1700000000 5\nand more"};
    (void)state;
    start(HOUR, WALL);
    const uint32_t fresh = clock_.now_s;
    for (size_t i = 0; i < sizeof(notes) / sizeof(notes[0]); i++) {
        store_note_set(store, "clock", notes[i]);
        start(HOUR, WALL);
        assert_int_equal(clock_.n_points, 1);
        assert_int_equal(clock_.now_s, fresh);
    }
    store_note_set(store, "clock", "1700000000 2000\n1700000001 2001\n");
    start(HOUR, WALL + 1);
    assert_int_equal(clock_.n_points, 3);
    assert_int_equal(clock_.now_s, 2001);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(age_is_what_the_wall_clock_says_while_it_is_right),
        TEST(points_are_bounded_and_reach_back_for_ever),
        TEST(stop_counts_up_to_half_of_a_lifetime),
        TEST(note_that_is_none_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
