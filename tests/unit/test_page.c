/* SPDX-License-Identifier: MIT */
#include "load/page.h"

#include <stdlib.h>
#include <string.h>

#include "base/draw.h"
#include "cmocka_all.h"
#include "load/report.h"

static char *page_of(const json_t *doc)
{
    struct buf out = {0};
    page_report(doc, &out);
    return buf_take_str(&out);
}

static json_t *list(size_t n, double from, double step)
{
    json_t *out = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(out, json_real(from + step * (double)i));
    return out;
}

static json_t *repeated(size_t n, const char *text)
{
    json_t *out = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(out, json_string(text));
    return out;
}

/* An arm whose n requests begin each 10 ms and take 100 ms and more. */
static json_t *arm_of(const char *name, size_t n)
{
    json_t *samples = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:[[f,i],[f,i]]}",
        "index", list(n, 0, 1), "outcome", repeated(n, "completed"), "ttft_ms",
        list(n, 40, 0.01), "total_ms", list(n, 100, 0.02), "planned_at", list(n, 0, 10),
        "started_at", list(n, 1, 10), "first_at", list(n, 41, 10.01), "end_at",
        list(n, 100, 10.02), "prompt_tokens", list(n, 100, 1), "cached_tokens",
        list(n, 0, 0.5), "turn", list(n, 0, 0), "gaps", 1.0, 5, 2.0, 7);
    return json_pack("{s:s, s:f, s:{s:i, s:i}, s:{s:{s:i, s:f, s:f, s:f}}, s:o}", "arm",
                     name, "seconds", (double)n / 100, "outcomes", "sent", (int)n,
                     "completed", (int)n, "quantiles", "ttft_ms", "n", (int)n, "p50",
                     41.5, "p90", 43.0, "p99", 44.0, "samples", samples);
}

static json_t *document(size_t n)
{
    return json_pack("{s:s, s:s, s:s, s:{s:s, s:s, s:i}, s:[o]}", "schema", REPORT_SCHEMA,
                     "engine", "an engine", "model", "a model", "settings", "profile",
                     "short", "loop", "closed", "concurrency", 2, "arms", arm_of("A", n));
}

/* ---- what is foreign --------------------------------------------------------------- */

#define HOSTILE "</title><script>alert(1)</script>\" onload='x' \x1b[2J"

/* Every text of a document, its keys too. */
static json_t *with_hostile_texts(json_t *v)
{
    const char *key;
    json_t *x, *out;
    size_t i;
    if (json_is_object(v)) {
        out = json_object();
        json_object_foreach(v, key, x)
            json_object_set_new(out, key, with_hostile_texts(x));
        json_object_set_new(out, HOSTILE, json_integer(1));
        return out;
    }
    if (json_is_array(v)) {
        out = json_array();
        json_array_foreach(v, i, x) json_array_append_new(out, with_hostile_texts(x));
        return out;
    }
    return json_is_string(v) ? json_string(HOSTILE) : json_deep_copy(v);
}

static void expect_harmless(const char *page)
{
    static const char *const wrong[] = {
        "<script", "\x1b", "onload='", "http:", "https:", "src=", "url("};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        if (strstr(page, wrong[i]))
            fail_msg("the page holds %s", wrong[i]);
    }
    assert_non_null(strstr(page, "default-src 'none'"));
    assert_string_equal(page + strlen(page) - 8, "</html>\n");
}

static void test_a_long_name_is_cut(void **state)
{
    (void)state;
    char name[5000];
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    json_t *doc = document(3);
    json_object_set_new(doc, "model", json_string(name));
    char *page = page_of(doc);
    name[201] = '\0';
    assert_null(strstr(page, name));
    name[200] = '\0';
    assert_non_null(strstr(page, name));
    free(page);
    json_decref(doc);
}

/* ---- what is missing --------------------------------------------------------------- */

static void test_what_is_missing_is_not_known(void **state)
{
    (void)state;
    json_t *doc = json_pack("{s:s}", "schema", REPORT_SCHEMA);
    char *page = page_of(doc);
    assert_non_null(strstr(page, "What clients of not known saw"));
    assert_non_null(strstr(page, "Nothing was completed"));
    assert_null(strstr(page, "nan"));
    free(page);
    json_decref(doc);
}

static void test_cached_tokens_that_nobody_told_are_apart(void **state)
{
    (void)state;
    json_t *doc = document(40),
           *samples = json_object_get(json_array_get(json_object_get(doc, "arms"), 0),
                                      "samples");
    char *page = page_of(doc);
    assert_non_null(strstr(page, "(n = 15)")); /* cached: i / 2 of 100 + i, from 10 % */
    assert_null(strstr(page, "not told what was cached"));
    free(page);
    json_object_del(samples, "cached_tokens");
    page = page_of(doc);
    assert_non_null(strstr(page, "not told what was cached (n = 40)"));
    assert_non_null(strstr(page, "no request&#39;s engine told what it had cached"));
    free(page);
    json_object_del(samples, "planned_at");
    page = page_of(doc);
    assert_non_null(strstr(page, "When requests were sent is not in this document."));
    free(page);
    json_decref(doc);
}

/* Each value in turn is something else, and the page is a page. */
static json_t *odd_value(uint64_t *draw)
{
    switch (draw_below(draw, 7)) {
    case 0:
        return json_null();
    case 1:
        return json_real(1e308);
    case 2:
        return json_integer(-9000000000000000000);
    case 3:
        return json_string("x");
    case 4:
        return json_pack("[[], {}, null]");
    case 5:
        return json_real(1e-300);
    default:
        return json_object();
    }
}

static void damage(json_t *v, uint64_t *draw, unsigned one_of)
{
    const char *key;
    void *next;
    json_t *x;
    json_object_foreach_safe(v, next, key, x)
    {
        if (draw_below(draw, one_of) == 0)
            json_object_set_new(v, key, odd_value(draw));
        else
            damage(x, draw, one_of);
    }
    for (size_t i = 0; i < json_array_size(v); i++) {
        if (draw_below(draw, one_of) == 0)
            json_array_set_new(v, i, odd_value(draw));
        else
            damage(json_array_get(v, i), draw, one_of);
    }
}

static json_t *full_document(void)
{
    json_t *doc = document(12), *step, *contrast;
    contrast = json_pack("{s:i, s:i, s:b, s:{s:f, s:f, s:f, s:f, s:f, s:b}}", "n_a", 12,
                         "n_b", 12, "paired", 1, "mean", "a", 40.0, "b", 30.0,
                         "difference", -10.0, "low", -12.0, "high", -8.0, "seen", 1);
    json_object_set_new(contrast, "median",
                        json_deep_copy(json_object_get(contrast, "mean")));
    json_object_set_new(
        doc, "contrasts",
        json_pack("{s:O, s:o}", "ttft_ms", contrast, "total_ms", contrast));
    json_array_append_new(json_object_get(doc, "arms"), arm_of("B", 12));
    json_object_set_new(doc, "steps", json_array());
    for (int i = 1; i < 5; i++) {
        step = arm_of(i % 2 ? "A" : "B", 5);
        json_object_set_new(step, "step", json_integer((i + 1) / 2));
        json_object_set_new(step, "load", json_pack("{s:i}", "concurrency", (i + 1) / 2));
        json_object_set_new(step, "good",
                            json_pack("{s:i, s:f, s:f, s:f}", "n", 5, "share", 0.9, "low",
                                      0.5, "high", 1.0));
        json_array_append_new(json_object_get(doc, "steps"), step);
    }
    return doc;
}

static void test_foreign_text_stays_text(void **state)
{
    (void)state;
    json_t *two = full_document(), *steps = full_document();
    json_object_set_new(steps, "arms", json_array());
    json_t *const docs[] = {document(20), two, steps};
    for (size_t i = 0; i < 3; i++) {
        json_t *hostile = with_hostile_texts(docs[i]);
        char *page = page_of(hostile);
        expect_harmless(page);
        assert_non_null(strstr(page, "&lt;/title&gt;&lt;script&gt;alert(1)"));
        free(page);
        json_decref(hostile);
        json_decref(docs[i]);
    }
}

static void test_any_damage_still_gives_a_page(void **state)
{
    (void)state;
    uint64_t draw = 11;
    json_t *whole = full_document();
    for (int round = 0; round < (SANITIZED ? 300 : 1500); round++) {
        json_t *doc = json_deep_copy(whole);
        damage(doc, &draw, 2u + (unsigned)round % 60);
        if (round % 3 == 0) /* then the steps are drawn */
            json_object_del(doc, "arms");
        char *page = page_of(doc);
        assert_string_equal(page + strlen(page) - 8, "</html>\n");
        assert_null(strstr(page, "nan"));
        assert_null(strstr(page, "inf%"));
        free(page);
        json_decref(doc);
    }
    json_decref(whole);
}

/* ---- what is much ------------------------------------------------------------------ */

static void test_a_page_is_bounded(void **state)
{
    (void)state;
    json_t *doc = document(60000);
    char *page = page_of(doc);
    assert_in_range(strlen(page), 50000, 1500000);
    assert_non_null(strstr(page, "60 of 60000 requests are shown"));
    assert_non_null(strstr(page, "of 60000 marks are drawn"));
    free(page);
    json_decref(doc);
}

/* ---- what is drawn ----------------------------------------------------------------- */

static void test_differences_are_drawn_with_their_intervals(void **state)
{
    (void)state;
    json_t *doc = full_document();
    char *page = page_of(doc);
    assert_non_null(strstr(page, "first token, from sent, mean: -25 %"));
    assert_non_null(strstr(page, "(95 %: -12.00 to -8.00)"));
    assert_non_null(strstr(page, "B is faster than A"));
    free(page);
    json_decref(doc);
}

static void test_steps_are_drawn_where_there_are_no_arms(void **state)
{
    (void)state;
    json_t *doc = full_document();
    json_object_set_new(doc, "arms", json_array());
    json_object_set_new(doc, "knee",
                        json_pack("[{s:s, s:f, s:i, s:{s:i}}]", "arm", "A", "share", 0.95,
                                  "step", 1, "load", "concurrency", 1));
    char *page = page_of(doc);
    assert_non_null(strstr(page, "Good answers over load"));
    assert_non_null(
        strstr(page, "These figures are of the step at 1 requests under way."));
    assert_non_null(strstr(page, "1 requests under way: the highest step"));
    free(page);
    json_decref(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_foreign_text_stays_text),
        cmocka_unit_test(test_a_long_name_is_cut),
        cmocka_unit_test(test_what_is_missing_is_not_known),
        cmocka_unit_test(test_cached_tokens_that_nobody_told_are_apart),
        cmocka_unit_test(test_any_damage_still_gives_a_page),
        cmocka_unit_test(test_a_page_is_bounded),
        cmocka_unit_test(test_differences_are_drawn_with_their_intervals),
        cmocka_unit_test(test_steps_are_drawn_where_there_are_no_arms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
