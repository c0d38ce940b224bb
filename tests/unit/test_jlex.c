/* SPDX-License-Identifier: MIT */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "cmocka_all.h"
#include "proto/jlex.h"

/* Reads all tokens; the last one's type. `n` counts those before it. */
static enum jlex_type read_all(struct jlex *j, struct slice text, size_t *n)
{
    struct jlex_token t;
    jlex_init(j, text);
    for (*n = 0;; ++*n) {
        const enum jlex_type type = jlex_next(j, &t);
        if (type == JLEX_END || type == JLEX_ERROR)
            return type;
    }
}

static bool is_valid(const char *text)
{
    struct jlex j;
    size_t n;
    return read_all(&j, slice_of(text), &n) == JLEX_END;
}

static void assert_why(const char *text, const char *why, size_t at)
{
    struct jlex j;
    size_t n;
    assert_int_equal(read_all(&j, slice_of(text), &n), JLEX_ERROR);
    assert_string_equal(j.why, why);
    assert_int_equal(j.why_at, at);
}

static void test_jlex_names_every_token_and_its_place(void **state)
{
    static const struct {
        enum jlex_type type;
        const char *text;
    } expected[] = {
        {JLEX_OBJECT, "{"},        {JLEX_KEY, "\"a\""},
        {JLEX_ARRAY, "["},         {JLEX_NUMBER, "-1.5e+3"},
        {JLEX_STRING, "\"x\\n\""}, {JLEX_ARRAY_END, "]"},
        {JLEX_KEY, "\"b\""},       {JLEX_TRUE, "true"},
        {JLEX_KEY, "\"c\""},       {JLEX_FALSE, "false"},
        {JLEX_KEY, "\"d\""},       {JLEX_NULL, "null"},
        {JLEX_OBJECT_END, "}"},    {JLEX_END, ""},
    };
    const char *text =
        " {\"a\" : [-1.5e+3 ,\"x\\n\"],\r\n\"b\":true,\"c\":false,\"d\":null}\t";
    struct jlex j;
    struct jlex_token t;
    (void)state;
    jlex_init(&j, slice_of(text));
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        assert_int_equal(jlex_next(&j, &t), expected[i].type);
        assert_int_equal(t.end - t.start, strlen(expected[i].text));
        assert_memory_equal(text + t.start, expected[i].text, t.end - t.start);
        assert_int_equal(t.escaped, strchr(expected[i].text, '\\') != NULL);
    }
}

static void test_jlex_accepts_what_rfc_8259_allows(void **state)
{
    (void)state;
    assert_true(is_valid("0"));
    assert_true(is_valid(" \"\" "));
    assert_true(is_valid("[]"));
    assert_true(is_valid("[[],{}]"));
    assert_true(is_valid("[0,-0,0.0,1e1,1E-1,10.25e+10]"));
    assert_true(is_valid("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e4\\ud83d\\ude42\""));
    assert_true(is_valid("\"\x7f\""));
    assert_true(is_valid("\"\\u0000\""));
    assert_true(is_valid("\"\xf0\x9f\x99\x82 \xc3\xa4 \xed\x9f\xbf\""));
}

static void test_jlex_says_why_and_where_it_refuses(void **state)
{
    (void)state;
    assert_why("", "value expected", 0);
    assert_why("nul", "value expected", 0);
    assert_why("NaN", "value expected", 0);
    assert_why("[-Infinity]", "bad number", 1);
    assert_why("[01]", "bad number", 1);
    assert_why("[1.]", "bad number", 1);
    assert_why("[1e]", "bad number", 1);
    assert_why("[.5]", "value expected", 1);
    assert_why("[+1]", "value expected", 1);
    assert_why("[1 2]", "comma expected", 3);
    assert_why("[1,]", "value expected", 3);
    assert_why("[1}", "comma expected", 2);
    assert_why("{\"a\":1,}", "key expected", 7);
    assert_why("{a:1}", "key expected", 1);
    assert_why("{\"a\" 1}", "colon expected", 5);
    assert_why("[1", "unfinished value", 2);
    assert_why("{}{}", "something behind the value", 2);
    assert_why("\"abc", "unfinished string", 4);
    assert_why("\"a\nb\"", "control character in a string", 2);
    assert_why("\"a\\x\"", "bad escape", 2);
    assert_why("\"\\u12g4\"", "bad escape", 1);
    assert_why("\"\\ud83d\"", "lone surrogate", 1);
    assert_why("\"\\ud83d\\u0041\"", "lone surrogate", 1);
    assert_why("\"\\ude42\"", "lone surrogate", 1);
    assert_why("{\"\\u0000\":1}", "NUL in a key", 9);
    assert_why("\xEF\xBB\xBF{}", "byte-order mark", 0);
}

static void test_jlex_refuses_what_is_not_utf8(void **state)
{
    static const char *const bad[] = {
        "\x80",
        "\xc3",
        "\xc0\xaf",
        "\xe0\x9f\xbf",
        "\xed\xa0\x80",
        "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80",
        "\xe4\xb8",
        "\xc3(",
        "\xff",
        "\xf0\x9f\x99",
    };
    char text[256];
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        for (int pad = 0; pad < 70; pad += 23) {
            snprintf(
                text, sizeof text, "\"%.*s%s\"", pad,
                "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
                bad[i]);
            assert_why(text, "not UTF-8", (size_t)pad + 1);
        }
    }
}

static void test_jlex_depth_has_a_limit_and_no_recursion(void **state)
{
    char text[2 * JLEX_MAX_DEPTH + 4];
    (void)state;
    memset(text, '[', JLEX_MAX_DEPTH);
    memset(text + JLEX_MAX_DEPTH, ']', JLEX_MAX_DEPTH);
    text[2 * JLEX_MAX_DEPTH] = '\0';
    assert_true(is_valid(text));
    memset(text, '[', JLEX_MAX_DEPTH + 1);
    memset(text + JLEX_MAX_DEPTH + 1, ']', JLEX_MAX_DEPTH + 1);
    text[2 * JLEX_MAX_DEPTH + 2] = '\0';
    assert_why(text, "too deep", JLEX_MAX_DEPTH);
}

/* Escapes, quotes and the end, at every place relative to the blocks of 64. */
static void test_jlex_strings_do_not_depend_on_where_blocks_end(void **state)
{
    static const char *const middles[] = {
        "\\\"",
        "\\\\",
        "\\n",
        "\\\\\\\"",
        "\\\\\\\\",
        "\\u00e4",
        "\\ud83d\\ude42",
        "",
        "\\u0041\\\\\\u0042",
        "\xc3\xa4",
        "\\\\\\\\\\\\\\n",
    };
    char inside[512], text[520];
    (void)state;
    for (size_t m = 0; m < sizeof middles / sizeof *middles; m++) {
        for (int before = 0; before < 140; before++) {
            for (int after = 0; after < 70; after += 3) {
                const int n = snprintf(inside, sizeof inside, "%0*d%s%0*d", before + 1, 0,
                                       middles[m], after + 1, 0);
                snprintf(text, sizeof text, "\"%s\",\"\\\\\"", inside);
                struct jlex j;
                struct jlex_token t;
                jlex_init(&j, slice_of(text));
                assert_int_equal(jlex_next(&j, &t), JLEX_STRING);
                assert_int_equal(t.end, n + 2);
                assert_int_equal(t.escaped, strchr(middles[m], '\\') != NULL);
            }
        }
    }
}

static void test_jlex_finds_errors_wherever_blocks_end(void **state)
{
    static const struct {
        const char *bad, *why;
    } cases[] = {
        {"\\x", "bad escape"},
        {"\\u12g", "bad escape"},
        {"\\ud83d", "lone surrogate"},
        {"\\ud83d\\n", "lone surrogate"},
        {"\\udc00", "lone surrogate"},
        {"\x01", "control character in a string"},
        {"\\\\\x1f", "control character in a string"},
    };
    char text[400];
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        for (int before = 1; before < 140; before++) {
            snprintf(text, sizeof text, "\"%0*d%s%0*d\"", before, 0, cases[c].bad, 80, 0);
            struct jlex j;
            size_t n;
            assert_int_equal(read_all(&j, slice_of(text), &n), JLEX_ERROR);
            assert_string_equal(j.why, cases[c].why);
        }
    }
}

static void test_jlex_skip_takes_a_whole_value(void **state)
{
    const char *text = "[{\"a\":[1,{\"b\":[]}],\"c\":\"]}\"},2]";
    struct jlex j;
    struct jlex_token t;
    (void)state;
    jlex_init(&j, slice_of(text));
    jlex_next(&j, &t);
    assert_int_equal(jlex_next(&j, &t), JLEX_OBJECT);
    assert_true(jlex_skip(&j, &t));
    assert_int_equal(t.start, 1);
    assert_int_equal(t.end, strlen(text) - 3);
    assert_int_equal(jlex_next(&j, &t), JLEX_NUMBER);
    assert_true(jlex_skip(&j, &t));
    assert_int_equal(jlex_next(&j, &t), JLEX_ARRAY_END);
}

static void test_jlex_skip_shows_errors_inside(void **state)
{
    struct jlex j;
    struct jlex_token t;
    (void)state;
    jlex_init(&j, SLICE_LIT("[[1,[2,x]]]"));
    jlex_next(&j, &t);
    jlex_next(&j, &t);
    assert_false(jlex_skip(&j, &t));
    assert_int_equal(j.why_at, 7);
}

static bool int_of(const char *text, int64_t *out)
{
    struct jlex j;
    struct jlex_token t;
    jlex_init(&j, slice_of(text));
    jlex_next(&j, &t);
    return jlex_int(&j, &t, out);
}

static void test_jlex_int_takes_exactly_what_fits(void **state)
{
    int64_t n;
    (void)state;
    assert_true(int_of("0", &n) && n == 0);
    assert_true(int_of("-0", &n) && n == 0);
    assert_true(int_of("9223372036854775807", &n) && n == INT64_MAX);
    assert_true(int_of("-9223372036854775808", &n) && n == INT64_MIN);
    assert_false(int_of("9223372036854775808", &n));
    assert_false(int_of("-9223372036854775809", &n));
    assert_false(int_of("123456789012345678901234567890", &n));
    assert_false(int_of("1e3", &n));
    assert_false(int_of("1.0", &n));
    assert_false(int_of("\"1\"", &n));
}

static void test_jlex_double_takes_finite_numbers(void **state)
{
    struct jlex j;
    struct jlex_token t;
    double d = 0;
    (void)state;
    jlex_init(&j, SLICE_LIT("[1e3,-2.5,1e999]"));
    jlex_next(&j, &t);
    jlex_next(&j, &t);
    assert_true(jlex_double(&j, &t, &d) && d == 1000);
    jlex_next(&j, &t);
    assert_true(jlex_double(&j, &t, &d) && d == -2.5);
    jlex_next(&j, &t);
    assert_false(jlex_double(&j, &t, &d));
}

static void test_jlex_text_decodes_only_what_is_escaped(void **state)
{
    const char *text = "[\"plain\",\"\\u0061\\u00e4\\ud83d\\ude42\\n\"]";
    char tmp[128], small[16];
    struct jlex j;
    struct jlex_token t;
    (void)state;
    jlex_init(&j, slice_of(text));
    jlex_next(&j, &t);
    jlex_next(&j, &t);
    assert_ptr_equal(jlex_text(&j, &t, small, sizeof small).ptr, text + 2);
    jlex_next(&j, &t);
    const struct slice s = jlex_text(&j, &t, tmp, sizeof tmp);
    assert_true(slice_eq(s, SLICE_LIT("a\xc3\xa4\xf0\x9f\x99\x82\n")));
    assert_null(jlex_text(&j, &t, small, sizeof small).ptr);
}

static void test_jlex_decode_never_writes_beyond_its_room(void **state)
{
    const char *inside =
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\\u00e4bbbbbbbbbbbbbbbbbbbbbbbb\\n"
        "cccccccccccccccccccccc\\ud83d\\ude42dddddddddddddddddddddddddddddddd";
    const char *decoded =
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\xc3\xa4"
        "bbbbbbbbbbbbbbbbbbbbbbbb\ncccccccccccccccccccccc\xf0\x9f\x99\x82"
        "dddddddddddddddddddddddddddddddd";
    (void)state;
    for (size_t cap = JLEX_DECODE_ROOM; cap < 2 * JLEX_DECODE_ROOM + 9; cap++) {
        struct slice rest = slice_of(inside);
        struct buf all = {0};
        while (rest.len) {
            char *out = malloc(cap); /* exact, for the sanitizer */
            const size_t n = jlex_decode(&rest, out, cap);
            assert_true(n > 0 && n <= cap);
            buf_append(&all, out, n);
            free(out);
        }
        assert_true(slice_eq(buf_slice(&all), slice_of(decoded)));
        buf_free(&all);
    }
}

/* ---- against jansson --------------------------------------------------------------- */

static uint64_t seed = 20261005;

static unsigned dice(unsigned sides)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(seed >> 33) % sides;
}

static void test_jlex_accepts_nothing_that_jansson_refuses(void **state)
{
    static const char bytes[] = "{}[]\",:\\u0081daf \n\tntrue-+.eE1/\x01\xc3\xa4\x80";
    static const char *const starts[] = {
        "{\"a\":[1,2.5,\"x\\u00e4\"],\"b\":{\"c\":null}}",
        "[true,false,null,-0.5e-3,\"\\ud83d\\ude42\"]",
        "\"a string that is somewhat longer than sixty-four bytes, with \\\\\\\" in it\"",
    };
    (void)state;
    for (int round = 0; round < 200000; round++) {
        char text[128];
        snprintf(text, sizeof text, "%s", starts[dice(3)]);
        const size_t len = strlen(text);
        for (unsigned i = dice(3) + 1; i > 0; i--)
            text[dice((unsigned)len)] = bytes[dice(sizeof bytes - 1)];
        struct jlex j;
        size_t n;
        const bool ours = read_all(&j, slice_make(text, len), &n) == JLEX_END;
        json_error_t error;
        json_t *tree = json_loadb(text, len, JSON_ALLOW_NUL | JSON_DECODE_ANY, &error);
        const bool theirs =
            tree || json_error_code(&error) == json_error_numeric_overflow;
        json_decref(tree);
        if (ours != theirs && !(theirs && !strcmp(j.why, "NUL in a key")))
            fail_msg("%s: %s", text, ours ? "only jlex reads it" : j.why);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_jlex_names_every_token_and_its_place),
        cmocka_unit_test(test_jlex_accepts_what_rfc_8259_allows),
        cmocka_unit_test(test_jlex_says_why_and_where_it_refuses),
        cmocka_unit_test(test_jlex_refuses_what_is_not_utf8),
        cmocka_unit_test(test_jlex_depth_has_a_limit_and_no_recursion),
        cmocka_unit_test(test_jlex_strings_do_not_depend_on_where_blocks_end),
        cmocka_unit_test(test_jlex_finds_errors_wherever_blocks_end),
        cmocka_unit_test(test_jlex_skip_takes_a_whole_value),
        cmocka_unit_test(test_jlex_skip_shows_errors_inside),
        cmocka_unit_test(test_jlex_int_takes_exactly_what_fits),
        cmocka_unit_test(test_jlex_double_takes_finite_numbers),
        cmocka_unit_test(test_jlex_text_decodes_only_what_is_escaped),
        cmocka_unit_test(test_jlex_decode_never_writes_beyond_its_room),
        cmocka_unit_test(test_jlex_accepts_nothing_that_jansson_refuses),
    };
    return cmocka_run_group_tests_name("jlex", tests, NULL, NULL);
}
