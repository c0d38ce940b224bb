/* SPDX-License-Identifier: MIT */
#include "gateway/ping.h"

#include <stddef.h>
#include <string.h>

#include "cmocka_all.h"

#define EVERY_MS 5

static struct loop *loop;
static struct ping ping;
static unsigned due;

static int set_up(void **state)
{
    (void)state;
    loop = loop_new();
    memset(&ping, 0, sizeof(ping));
    due = 0;
    return loop ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    ping_stop(&ping);
    loop_free(loop);
    return 0;
}

static void on_due(void *arg)
{
    assert_ptr_equal(arg, &due);
    due++;
}

static void stop(void *arg)
{
    loop_stop(arg);
}

/* Looks several times as long as a silence takes. */
static void wait(void)
{
    struct loop_timer t = {0};
    timer_init(&t, loop, stop, loop);
    timer_start(&t, EVERY_MS * 4);
    loop_run(loop);
    timer_fini(&t);
}

static bool is_due_behind(const char *stream, size_t cut)
{
    memset(&ping, 0, sizeof(ping));
    due = 0;
    ping_start(&ping, loop, EVERY_MS, on_due, &due);
    for (size_t at = 0; at < strlen(stream); at += cut) {
        const size_t rest = strlen(stream) - at;
        ping_note(&ping, slice_make(stream + at, cut < rest ? cut : rest));
    }
    wait();
    ping_stop(&ping);
    return due > 0;
}

static void test_a_comment_is_due_between_events_only(void **state)
{
    static const struct {
        const char *stream;
        bool due;
    } rows[] = {{"", true},
                {"data: x\n\n", true},
                {"data: x\r\n\r\n", true},
                {"data: x\n\r\n", true},
                {"data: x\r\r\n", true},
                {": comment\n\n", true},
                {"\n\n", true},
                {"d", false},
                {"data: x", false},
                {"data: x\n", false},
                {"data: x\r\n", false},
                {"data: x\r\n\r", false},
                {"data: x\n\nd", false},
                {"data: x\n\ndata: y\n", false},
                {"\n", false},
                {"\r\n", false}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (size_t cut = 1; cut < 5; cut++)
            assert_int_equal(is_due_behind(rows[i].stream, cut), rows[i].due);
}

static void test_it_comes_again_while_it_is_silent(void **state)
{
    (void)state;
    ping_start(&ping, loop, EVERY_MS, on_due, &due);
    while (due < 3)
        wait();
    const unsigned before = due;
    ping_stop(&ping);
    wait();
    assert_int_equal(due, before);
}

static void test_without_a_time_nothing_is_due(void **state)
{
    (void)state;
    ping_start(&ping, loop, 0, on_due, &due);
    ping_note(&ping, SLICE_LIT("data: x\n\n"));
    wait();
    assert_int_equal(due, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(a_comment_is_due_between_events_only),
                                       TEST(it_comes_again_while_it_is_silent),
                                       TEST(without_a_time_nothing_is_due)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
