/* SPDX-License-Identifier: MIT */
#include "lab/lesson.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "cmocka_all.h"

static struct lesson lesson;

static int run_once(void **state)
{
    (void)state;
    lesson_run(&lesson);
    return 0;
}

static const char *text_of(struct buf *b)
{
    buf_append_char(b, '\0');
    return buf_slice(b).ptr;
}

/* ---- what is computed -------------------------------------------------------------- */

static void test_153_positions_without_21_with_and_no_difference(void **state)
{
    (void)state;
    assert_int_equal(lesson.without.projections, 153);
    assert_int_equal(lesson.with.projections, 21);
    assert_true(lesson.difference == 0.0);
}

static void test_each_pass_computes_all_without_and_the_new_one_with(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < LESSON_PASSES; i++) {
        const struct lesson_pass *p = &lesson.passes[i];
        const uint32_t n = 13 + i;
        assert_int_equal(p->positions, n);
        assert_int_equal(p->without.projections, n);
        assert_int_equal(p->with.projections, i == 0 ? 13 : 1);
        assert_int_equal(p->without.attended, n * (n + 1) / 2);
        assert_int_equal(p->with.attended, i == 0 ? 91 : n);
        assert_int_equal(p->without.kept_bytes, 0);
        assert_int_equal(p->with.kept_bytes, n * 4096);
        assert_true(p->difference == 0.0);
        assert_true(p->without.ms > 0 && p->with.ms > 0);
        assert_true(p->token < LAB_VOCAB);
    }
}

static void test_prefill_and_decode_are_of_one_long_prompt(void **state)
{
    (void)state;
    assert_int_equal(lesson.prefill.tokens, lesson.requests[0].tokens);
    assert_int_equal(lesson.decode.tokens, LESSON_DECODES);
    assert_true(lesson.prefill.ms > 0 && lesson.decode.ms > 0);
}

static void test_a_request_computes_what_the_one_before_does_not_share(void **state)
{
    (void)state;
    for (int i = 0; i < LESSON_REQUESTS; i++) {
        const struct lesson_request *q = &lesson.requests[i];
        assert_int_equal(q->without.projections, q->tokens);
        assert_int_equal(q->with.projections, q->tokens - q->common);
        assert_true(q->difference == 0.0);
    }
    assert_int_equal(lesson.requests[0].common, 0);
    assert_true(lesson.requests[1].common > lesson.requests[1].tokens * 9 / 10);
}

static void test_one_changed_byte_costs_all_behind_it(void **state)
{
    (void)state;
    const struct lesson_request *before = &lesson.requests[1];
    const struct lesson_request *front = &lesson.requests[2], *end = &lesson.requests[4];
    uint32_t at = 0;
    while (before->front[at] == front->front[at])
        at++;
    assert_string_equal(before->front + at + 1, front->front + at + 1);
    assert_string_equal(before->end, front->end);
    assert_int_equal(front->common, at);
    assert_int_equal(front->with.projections, front->tokens - at);

    assert_int_equal(end->with.projections, 3); /* the digit, a full stop, a line feed */
}

static void test_counts_and_tokens_are_the_same_each_time(void **state)
{
    (void)state;
    static struct lesson again;
    lesson_run(&again);
    for (int i = 0; i < LESSON_PASSES; i++)
        assert_int_equal(again.passes[i].token, lesson.passes[i].token);
    assert_int_equal(again.without.projections, 153);
    assert_int_equal(again.with.attended, lesson.with.attended);
    assert_true(again.with.ms > 0);
}

static void test_tokens_are_readable(void **state)
{
    (void)state;
    char out[8];
    assert_string_equal(lesson_token('a', out), "a");
    assert_string_equal(lesson_token(7, out), "\\x07");
    assert_string_equal(lesson_token(0xff, out), "\\xff");
    assert_string_equal(lesson_token(LAB_BEGIN, out), "<begin>");
    assert_string_equal(lesson_token(LAB_END, out), "<end>");
}

/* ---- how it is shown --------------------------------------------------------------- */

static void test_text_says_the_three_numbers(void **state)
{
    (void)state;
    struct buf b = {0};
    lesson_text(&lesson, &b);
    const char *text = text_of(&b);
    assert_non_null(strstr(text, "13 + 14 + ... + 21 = 153 positions computed"));
    assert_non_null(strstr(text, "13 + 8             =  21 positions computed"));
    assert_non_null(strstr(text, "in all 9 passes: exactly 0."));
    buf_free(&b);
}

/* The widest line in columns, and how many lines. */
static void measure(const char *text, size_t *columns, size_t *lines)
{
    *columns = *lines = 0;
    for (size_t width = 0; *text; text++) {
        if (*text == '\n') {
            *columns = width > *columns ? width : *columns;
            width = 0;
            ++*lines;
        } else {
            width++;
        }
    }
}

static void test_screens_fit_a_terminal(void **state)
{
    (void)state;
    assert_int_equal(lesson_screens(), 1 + 9 + 4);
    for (unsigned i = 0; i < lesson_screens(); i++) {
        struct buf b = {0}, colored = {0};
        size_t columns, lines;
        lesson_screen(&lesson, i, false, &b);
        lesson_screen(&lesson, i, true, &colored);
        assert_true(buf_len(&colored) > buf_len(&b));
        measure(text_of(&b), &columns, &lines);
        if (columns > 80 || lines > 22 || strchr(buf_slice(&b).ptr, '\033'))
            fail_msg("screen %u: %zu columns, %zu lines", i, columns, lines);
        buf_free(&b);
        buf_free(&colored);
    }
}

static json_int_t number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    assert_true(json_is_integer(v));
    return json_integer_value(v);
}

static void same_cost(const json_t *o, const char *key, const struct lesson_cost *c)
{
    const json_t *v = json_object_get(o, key);
    assert_int_equal(number(v, "projections"), c->projections);
    assert_int_equal(number(v, "pairs"), c->attended);
    assert_int_equal(number(v, "kept_bytes"), c->kept_bytes);
    const double ms = json_real_value(json_object_get(v, "ms"));
    assert_true(ms > c->ms * 0.999 && ms < c->ms * 1.001);
}

static json_t *parse(const char *text)
{
    json_error_t e;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &e);
    if (!root)
        fail_msg("line %d: %s", e.line, e.text);
    return root;
}

static void check_json(const char *text)
{
    json_t *root = parse(text);
    const json_t *total = json_object_get(root, "total");
    same_cost(total, "without", &lesson.without);
    same_cost(total, "with", &lesson.with);
    assert_true(json_real_value(json_object_get(total, "difference")) == 0.0);
    assert_string_equal(json_string_value(json_object_get(root, "prompt")),
                        LESSON_PROMPT);
    const json_t *passes = json_object_get(root, "passes");
    assert_int_equal(json_array_size(passes), LESSON_PASSES);
    for (size_t i = 0; i < LESSON_PASSES; i++) {
        const json_t *p = json_array_get(passes, i);
        assert_int_equal(number(p, "positions"), lesson.passes[i].positions);
        assert_int_equal(number(p, "token"), lesson.passes[i].token);
        same_cost(p, "without", &lesson.passes[i].without);
        same_cost(p, "with", &lesson.passes[i].with);
    }
    const json_t *requests = json_object_get(root, "requests");
    assert_int_equal(json_array_size(requests), LESSON_REQUESTS);
    for (size_t i = 0; i < LESSON_REQUESTS; i++) {
        const json_t *q = json_array_get(requests, i);
        assert_int_equal(number(q, "kept"), lesson.requests[i].common);
        same_cost(q, "with", &lesson.requests[i].with);
        assert_string_equal(json_string_value(json_object_get(q, "front")),
                            lesson.requests[i].front);
    }
    assert_int_equal(number(json_object_get(root, "prefill"), "tokens"),
                     lesson.prefill.tokens);
    assert_int_equal(number(json_object_get(root, "model"), "bytes_per_token"), 4096);
    json_decref(root);
}

static void test_json_says_what_the_lesson_says(void **state)
{
    (void)state;
    struct buf b = {0};
    lesson_json(&lesson, &b);
    check_json(text_of(&b));
    buf_free(&b);
}

static void test_page_carries_the_same_json_and_loads_nothing(void **state)
{
    (void)state;
    static const char *const loads[] = {
        "http:", "https:", "src=", "href=", "url(", "@import", "fetch("};
    static const char open[] = "<script type=\"application/json\" id=\"lesson\">";
    struct buf b = {0}, json = {0};
    lesson_html(&lesson, &b);
    const char *page = text_of(&b);
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++)
        assert_null(strstr(page, loads[i]));
    const char *from = strstr(page, open);
    assert_non_null(from);
    from += strlen(open);
    const char *to = strstr(from, "</script>");
    buf_append(&json, from, (size_t)(to - from));
    check_json(text_of(&json));
    assert_non_null(strstr(page, "exactly 0."));
    buf_free(&json);
    buf_free(&b);
}

static void test_page_survives_tokens_that_look_like_markup(void **state)
{
    (void)state;
    static struct lesson odd;
    struct buf b = {0};
    odd = lesson;
    odd.passes[0].token = '<';
    odd.passes[1].token = LAB_EOS;
    lesson_html(&odd, &b);
    const char *page = text_of(&b), *text = strstr(page, "<pre>") + 5;
    const char *markup = strchr(text, '<');
    assert_int_equal(strncmp(markup, "</pre>", 6), 0);
    assert_non_null(strstr(text, "&lt;eos&gt;"));
    assert_non_null(strstr(page, "\"\\u003ceos>\""));
    buf_free(&b);
}

static void test_walk_needs_a_terminal(void **state)
{
    (void)state;
    int ends[2];
    struct err e = {0};
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(lesson_tui(&lesson, ends[0], ends[1], &e), ERR_IO);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_153_positions_without_21_with_and_no_difference),
        cmocka_unit_test(test_each_pass_computes_all_without_and_the_new_one_with),
        cmocka_unit_test(test_prefill_and_decode_are_of_one_long_prompt),
        cmocka_unit_test(test_a_request_computes_what_the_one_before_does_not_share),
        cmocka_unit_test(test_one_changed_byte_costs_all_behind_it),
        cmocka_unit_test(test_counts_and_tokens_are_the_same_each_time),
        cmocka_unit_test(test_tokens_are_readable),
        cmocka_unit_test(test_text_says_the_three_numbers),
        cmocka_unit_test(test_screens_fit_a_terminal),
        cmocka_unit_test(test_json_says_what_the_lesson_says),
        cmocka_unit_test(test_page_carries_the_same_json_and_loads_nothing),
        cmocka_unit_test(test_page_survives_tokens_that_look_like_markup),
        cmocka_unit_test(test_walk_needs_a_terminal),
    };
    return cmocka_run_group_tests(tests, run_once, NULL);
}
