/* SPDX-License-Identifier: MIT */
#include "load/agree.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cmocka_all.h"

#define TOKEN(text, logprob)                                                             \
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" text                    \
    "\"},\"logprobs\":"                                                                  \
    "{\"content\":[{\"token\":\"" text "\",\"logprob\":" logprob "}]}}]}\n\n"
#define EVENT(text)                                                                      \
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" text "\"}}]}\n\n"
#define STOP                                                                             \
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"

static struct agree *g;

static int set_up(void **state)
{
    (void)state;
    g = agree_new();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    agree_free(g);
    return 0;
}

static void add(unsigned arm, uint64_t index, int64_t cached, const char *body)
{
    const struct sample s = {.index = index,
                             .outcome = body ? SAMPLE_COMPLETED : SAMPLE_FAILED,
                             .cached_tokens = cached};
    struct answer *a = body ? answer_new(PROMPT_CHAT, true) : NULL;
    if (a) {
        answer_note_units(a);
        answer_feed(a, slice_of(body), 1);
        answer_finish(a);
    }
    agree_add(g, arm, &s, a);
    answer_free(a);
}

static json_int_t count(const json_t *out, const char *group, const char *name)
{
    return json_integer_value(json_object_get(json_object_get(out, group), name));
}

static json_t *pair_at(const json_t *out, size_t i)
{
    return json_array_get(json_object_get(out, "pairs"), i);
}

static void assert_first(const json_t *out, size_t i, json_int_t unit, json_int_t byte)
{
    const json_t *u = json_object_get(pair_at(out, i), "first_unit"),
                 *b = json_object_get(pair_at(out, i), "first_byte");
    assert_int_equal(json_is_null(u) ? -1 : json_integer_value(u), unit);
    assert_int_equal(json_is_null(b) ? -1 : json_integer_value(b), byte);
}

static void test_where_answers_differ_first(void **state)
{
    (void)state;
    add(0, 5, 0, EVENT("ab") EVENT("cd") EVENT("ef") STOP);
    add(1, 5, 0, EVENT("ab") EVENT("cx") EVENT("ef") STOP);
    add(1, 3, 0, EVENT("ab") STOP); /* B may be first */
    add(0, 3, 0, EVENT("ab") EVENT("cd") STOP);
    add(0, 4, 0, EVENT("a") EVENT("b") STOP);
    add(1, 4, 0, EVENT("ab") STOP); /* in other pieces, and equal */
    json_t *out = agree_json(g);
    assert_int_equal(count(out, "same_cached", "n"), 3);
    assert_int_equal(count(out, "same_cached", "equal"), 1);
    assert_int_equal(json_integer_value(json_object_get(pair_at(out, 0), "index")), 3);
    assert_first(out, 0, 1, 2);
    assert_first(out, 1, -1, -1);
    assert_first(out, 2, 1, 3);
    assert_string_equal(json_string_value(json_object_get(out, "unit")), "event");
    const json_t *units = json_object_get(pair_at(out, 0), "units");
    assert_int_equal(json_integer_value(json_array_get(units, 0)), 2);
    assert_int_equal(json_integer_value(json_array_get(units, 1)), 1);
    json_decref(out);
}

static void test_cached_tokens_tell_pairs_apart(void **state)
{
    (void)state;
    add(0, 0, 7, EVENT("a") STOP);
    add(1, 0, 7, EVENT("a") STOP);
    add(0, 1, 7, EVENT("a") STOP);
    add(1, 1, 8, EVENT("a") STOP);
    add(0, 2, -1, EVENT("a") STOP);
    add(1, 2, -1, EVENT("b") STOP);
    add(0, 3, 0, EVENT("a") STOP);
    add(1, 3, -1, EVENT("a") STOP);
    json_t *out = agree_json(g);
    assert_int_equal(count(out, "same_cached", "n"), 1);
    assert_int_equal(count(out, "other_cached", "n"), 1);
    assert_int_equal(count(out, "other_cached", "equal"), 1);
    assert_int_equal(count(out, "cached_unknown", "n"), 2);
    assert_int_equal(count(out, "cached_unknown", "equal"), 1);
    json_decref(out);
}

static void test_what_is_not_read_is_not_equal(void **state)
{
    (void)state;
    add(0, 0, 0, NULL);
    add(1, 0, 0, NULL);
    add(0, 1, 0, EVENT("a") STOP);
    add(1, 1, 0, NULL);
    add(0, 2, 0, EVENT("a")); /* not whole */
    add(1, 2, 0, EVENT("a") STOP);
    add(0, 9, 0, EVENT("a") STOP); /* the other one was never sent */
    json_t *out = agree_json(g);
    assert_int_equal(json_integer_value(json_object_get(out, "unread")), 4);
    assert_int_equal(count(out, "same_cached", "n"), 0);
    assert_true(json_is_null(json_object_get(pair_at(out, 1), "equal")));
    assert_true(json_is_null(json_object_get(out, "unit")));
    json_decref(out);
}

static void test_log_probabilities_up_to_there(void **state)
{
    (void)state;
    add(0, 0, 0, TOKEN("a", "-0.5") TOKEN("b", "-1") TOKEN("c", "-9") STOP);
    add(1, 0, 0, TOKEN("a", "-0.75") TOKEN("b", "-1") TOKEN("x", "-2") STOP);
    json_t *out = agree_json(g);
    const json_t *d =
        json_object_get(json_object_get(out, "same_cached"), "logprob_difference");
    assert_first(out, 0, 2, 2);
    assert_int_equal(json_integer_value(json_object_get(d, "n")), 2);
    assert_true(fabs(json_number_value(json_object_get(d, "mean")) - 0.125) < 1e-9);
    assert_true(fabs(json_number_value(json_object_get(d, "most")) - 0.25) < 1e-9);
    assert_string_equal(json_string_value(json_object_get(out, "unit")), "token");
    json_decref(out);
}

static void test_reasoning_is_no_text(void **state)
{
    (void)state;
    add(0, 0, 0,
        "data: "
        "{\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"a\"}}]}\n\n" STOP);
    add(1, 0, 0, EVENT("a") STOP);
    json_t *out = agree_json(g);
    assert_int_equal(count(out, "same_cached", "equal"), 0);
    json_decref(out);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(where_answers_differ_first),    TEST(cached_tokens_tell_pairs_apart),
        TEST(what_is_not_read_is_not_equal), TEST(log_probabilities_up_to_there),
        TEST(reasoning_is_no_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
