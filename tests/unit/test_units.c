/* SPDX-License-Identifier: MIT */
#include "base/units.h"

#include "cmocka_all.h"

typedef bool (*parse_fn)(const char *text, uint64_t *value);

static void assert_parses(parse_fn parse, const char *text, uint64_t want)
{
    uint64_t got = ~want;
    if (!parse(text, &got) || got != want)
        fail_msg("\"%s\" gives %llu, not %llu", text, (unsigned long long)got,
                 (unsigned long long)want);
}

static void assert_refused(parse_fn parse, const char *const *texts)
{
    uint64_t got;
    for (; *texts; texts++)
        if (parse(*texts, &got))
            fail_msg("\"%s\" gives %llu, not an error", *texts, (unsigned long long)got);
}

static void test_units_bytes_know_binary_and_decimal_units(void **state)
{
    (void)state;
    assert_parses(units_parse_bytes, "0", 0);
    assert_parses(units_parse_bytes, "4096", 4096);
    assert_parses(units_parse_bytes, "7B", 7);
    assert_parses(units_parse_bytes, "1KiB", 1024);
    assert_parses(units_parse_bytes, "64MiB", 64ull << 20);
    assert_parses(units_parse_bytes, "4GiB", 4ull << 30);
    assert_parses(units_parse_bytes, "2TiB", 2ull << 40);
    assert_parses(units_parse_bytes, "1kB", 1000);
    assert_parses(units_parse_bytes, "3MB", 3000000);
    assert_parses(units_parse_bytes, "3GB", 3000000000);
    assert_parses(units_parse_bytes, "3TB", 3000000000000);
    assert_parses(units_parse_bytes, "1.5KiB", 1536);
    assert_parses(units_parse_bytes, "0.000001MB", 1);
}

static void test_units_bytes_refuse_what_they_do_not_know(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      " 1",
                                      "1 ",
                                      "-1",
                                      "+1",
                                      "0x10",
                                      "1e3",
                                      "GiB",
                                      "1 GiB",
                                      "1gib",
                                      "1K",
                                      "1KiBs",
                                      ".5GiB",
                                      "1.KiB",
                                      "1.5",
                                      "0.5B",
                                      "1,5GiB",
                                      "0.0000001GiB",
                                      "1.2.3GiB",
                                      "18446744073709551616",
                                      "16777216TiB",
                                      "99999999999999999999GiB",
                                      NULL};
    assert_refused(units_parse_bytes, bad);
}

static void test_units_bytes_reach_the_largest_number(void **state)
{
    (void)state;
    assert_parses(units_parse_bytes, "18446744073709551615", UINT64_MAX);
    assert_parses(units_parse_bytes, "16777215TiB", 16777215ull << 40);
}

static void test_units_durations_need_a_unit(void **state)
{
    (void)state;
    assert_parses(units_parse_ms, "0", 0);
    assert_parses(units_parse_ms, "0s", 0);
    assert_parses(units_parse_ms, "250ms", 250);
    assert_parses(units_parse_ms, "30s", 30000);
    assert_parses(units_parse_ms, "1.5s", 1500);
    assert_parses(units_parse_ms, "10m", 600000);
    assert_parses(units_parse_ms, "2h", 7200000);
    assert_parses(units_parse_ms, "1d", 86400000);
    static const char *const bad[] = {"",      "30",  "30 s",          "s",     "-1s",
                                      "1.5ms", "00",  "1e3s",          "30sec", "1S",
                                      "1M",    "inf", "213503982335d", NULL};
    assert_refused(units_parse_ms, bad);
}

static void test_units_counts_are_digits_only(void **state)
{
    (void)state;
    assert_parses(units_parse_count, "0", 0);
    assert_parses(units_parse_count, "007", 7);
    assert_parses(units_parse_count, "18446744073709551615", UINT64_MAX);
    static const char *const bad[] = {
        "", "-1", "+1", "1.0", "1k", " 1", "1 ", "0x1", "18446744073709551616", NULL};
    assert_refused(units_parse_count, bad);
}

static void test_units_format_bytes_is_short(void **state)
{
    (void)state;
    char out[24];
    assert_string_equal(units_format_bytes(0, out), "0 B");
    assert_string_equal(units_format_bytes(1023, out), "1023 B");
    assert_string_equal(units_format_bytes(1024, out), "1.0 KiB");
    assert_string_equal(units_format_bytes(1536ull << 20, out), "1.5 GiB");
    assert_string_equal(units_format_bytes(UINT64_MAX, out), "16777216.0 TiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units_bytes_know_binary_and_decimal_units),
        cmocka_unit_test(test_units_bytes_refuse_what_they_do_not_know),
        cmocka_unit_test(test_units_bytes_reach_the_largest_number),
        cmocka_unit_test(test_units_durations_need_a_unit),
        cmocka_unit_test(test_units_counts_are_digits_only),
        cmocka_unit_test(test_units_format_bytes_is_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
