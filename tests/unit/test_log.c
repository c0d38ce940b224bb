/* SPDX-License-Identifier: MIT */
#include "base/log.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmocka_all.h"

/* Standard error goes into a file between catch_start() and catch_end(). */
static FILE *caught;
static int real_stderr;
static char text[1 << 16];

static void catch_start(void)
{
    fflush(stderr);
    caught = tmpfile();
    assert_non_null(caught);
    real_stderr = dup(STDERR_FILENO);
    assert_true(dup2(fileno(caught), STDERR_FILENO) >= 0);
}

static const char *catch_end(void)
{
    dup2(real_stderr, STDERR_FILENO);
    close(real_stderr);
    rewind(caught);
    text[fread(text, 1, sizeof(text) - 1, caught)] = '\0';
    fclose(caught);
    return text;
}

/* The line without its time stamp, whose form is checked. */
static const char *after_stamp(const char *line)
{
    static const char form[] = "ts=dddd-dd-ddTdd:dd:dd.dddZ ";
    for (size_t i = 0; form[i]; i++) {
        if (form[i] == 'd' && i > 2)
            assert_in_range(line[i], '0', '9');
        else
            assert_int_equal(line[i], form[i]);
    }
    return line + strlen(form);
}

static int default_level(void **state)
{
    (void)state;
    log_set_level(LOG_INFO);
    return 0;
}

static void test_log_event_is_one_logfmt_line(void **state)
{
    (void)state;
    catch_start();
    log_event(LOG_WARN, "save", "slot", "%d", 3, "bytes", "%zu", (size_t)1 << 40, "ms",
              "%.1f", 2.25, "who", "%s", "a", "big", "%llu", 18446744073709551615ull, "u",
              "%u", 4294967295u, "l", "%ld", -5L, NULL);
    assert_string_equal(after_stamp(catch_end()),
                        "level=warn event=save slot=3 bytes=1099511627776 ms=2.2 who=a "
                        "big=18446744073709551615 u=4294967295 l=-5\n");
}

static void test_log_values_cannot_break_the_line(void **state)
{
    (void)state;
    catch_start();
    log_event(LOG_INFO, "x", "a", "%s", "two words", "b", "%s", "q\"\\", "c", "%s",
              "\r\n\x7f", "d", "%s", "", "e", "%s", "k=v", "f", "%s", "grün", NULL);
    assert_string_equal(after_stamp(catch_end()),
                        "level=info event=x a=\"two words\" b=\"q\\\"\\\\\" "
                        "c=\"\\x0d\\x0a\\x7f\" d=\"\" e=\"k=v\" f=grün\n");
}

static void test_log_level_drops_lines_below(void **state)
{
    (void)state;
    catch_start();
    log_event(LOG_DEBUG, "no", NULL);
    log_line(LOG_DEBUG, "event=no");
    log_set_level(LOG_ERROR);
    log_event(LOG_WARN, "no", NULL);
    log_event(LOG_ERROR, "yes", NULL);
    assert_string_equal(after_stamp(catch_end()), "level=error event=yes\n");
}

static void test_log_line_adds_time_and_level(void **state)
{
    (void)state;
    catch_start();
    log_line(LOG_INFO, "event=access id=7");
    assert_string_equal(after_stamp(catch_end()), "level=info event=access id=7\n");
}

static void test_log_long_values_are_cut_not_spilled(void **state)
{
    (void)state;
    char big[2000];
    memset(big, 'a', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    catch_start();
    log_event(LOG_INFO, "x", "v", "%s", big, NULL);
    const char *line = after_stamp(catch_end());
    assert_true(strlen(line) < 600);
    assert_int_equal(line[strlen(line) - 1], '\n');
}

static void *log_many(void *arg)
{
    for (int i = 0; i < 200; i++)
        log_event(LOG_INFO, "thread", "n", "%s", (const char *)arg, NULL);
    return NULL;
}

static void test_log_lines_of_threads_do_not_mix(void **state)
{
    (void)state;
    static char names[2][8] = {"aaaaaaa", "bbbbbbb"};
    pthread_t threads[2];
    catch_start();
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, log_many, names[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    int lines = 0;
    char *rest = NULL;
    (void)catch_end();
    for (char *l = strtok_r(text, "\n", &rest); l;
         l = strtok_r(NULL, "\n", &rest), lines++) {
        const char *body = after_stamp(l);
        assert_true(strcmp(body, "level=info event=thread n=aaaaaaa") == 0 ||
                    strcmp(body, "level=info event=thread n=bbbbbbb") == 0);
    }
    assert_int_equal(lines, 400);
}

static void test_log_level_parse_knows_four_names(void **state)
{
    (void)state;
    assert_int_equal(log_level_parse("debug"), LOG_DEBUG);
    assert_int_equal(log_level_parse("info"), LOG_INFO);
    assert_int_equal(log_level_parse("warn"), LOG_WARN);
    assert_int_equal(log_level_parse("error"), LOG_ERROR);
    assert_int_equal(log_level_parse("INFO"), -1);
    assert_int_equal(log_level_parse(""), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_log_event_is_one_logfmt_line, default_level),
        cmocka_unit_test_setup(test_log_values_cannot_break_the_line, default_level),
        cmocka_unit_test_setup(test_log_level_drops_lines_below, default_level),
        cmocka_unit_test_setup(test_log_line_adds_time_and_level, default_level),
        cmocka_unit_test_setup(test_log_long_values_are_cut_not_spilled, default_level),
        cmocka_unit_test_setup(test_log_lines_of_threads_do_not_mix, default_level),
        cmocka_unit_test(test_log_level_parse_knows_four_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
