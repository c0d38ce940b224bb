/* SPDX-License-Identifier: MIT */
#include "load/plot.h"

#include <math.h>
#include <stdlib.h>

#include "base/draw.h"
#include "cmocka_all.h"

static struct buf out;

static struct plot plot_of(double x_end, double y_end)
{
    return (struct plot){.out = &out,
                         .x = {scale_exact(0, x_end), SCALE_MS, "time"},
                         .y = {scale_exact(0, y_end), SCALE_COUNT, "things"},
                         .height = 100};
}

static void expect(const char *text)
{
    char *got = buf_take_str(&out);
    if (!strstr(got, text))
        fail_msg("%s is not in %s", text, got);
    free(got);
}

static void test_marks_are_placed_by_percent_and_pixel(void **state)
{
    (void)state;
    struct plot p = plot_of(200, 10);
    plot_mark(&p, 50, 2.5, PLOT_TRIANGLE, "a", NULL);
    expect("<use class=\"m a\" href=\"#tri\" x=\"25.00%\" y=\"75.0\"></use>");
    plot_mark(&p, (double)NAN, 1, PLOT_DOT, "a", NULL);
    plot_mark(&p, 1, (double)NAN, PLOT_DOT, "a", NULL);
    assert_int_equal(buf_len(&out), 0);
}

static void test_bars_can_be_seen(void **state)
{
    (void)state;
    struct plot p = plot_of(200, 10);
    plot_bar(&p, 50, 150, 3, 7, "b", NULL);
    expect("x=\"25.00%\" y=\"3.0\" width=\"50.00%\" height=\"7.0\"");
    plot_bar(&p, 50, 50, 3, 7, "b", NULL);
    expect("width=\"0.20%\"");
    plot_bar(&p, 50, (double)NAN, 3, 7, "b", NULL);
    assert_int_equal(buf_len(&out), 0);
}

static void test_lines_break_where_nothing_is_known(void **state)
{
    (void)state;
    struct plot p = plot_of(100, 10);
    const double x[] = {0, 50, 60, 100}, y[] = {0, 5, (double)NAN, 10};
    plot_line(&p, x, y, 4, false, "a");
    expect("d=\"M0.0 100.0L500.0 50.0M1000.0 0.0\"");
    plot_line(&p, x, y, 2, true, "a");
    expect("d=\"M0.0 100.0H500.0V50.0\"");
}

static void test_words_stay_text(void **state)
{
    (void)state;
    struct plot p = plot_of(1, 1);
    p.x.words = "<b>x";
    p.y.words = "\"&y";
    plot_begin(&p, &(struct plot_words){"</svg><script>", "'>"});
    plot_mark(&p, 0, 0, PLOT_DOT, "a", "<img src=x>");
    plot_label(&p, 10, "</text>");
    plot_end(&p);
    plot_key(&out, "a", PLOT_DOT, true, "<i>");
    char *got = buf_take_str(&out);
    static const char *const wrong[] = {"<script", "<img", "<b>", "<i>", "\"&y", "'>"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_null(strstr(got, wrong[i]));
    assert_non_null(strstr(got, "&lt;b&gt;x"));
    assert_non_null(strstr(got, "<title>&lt;img src=x&gt;</title>"));
    free(got);
}

static void test_few_points_are_all_kept(void **state)
{
    (void)state;
    struct plot p = plot_of(1, 1);
    const double x[] = {0.5, 0.5, (double)NAN}, y[] = {0.5, 0.5, 0.5};
    bool keep[3];
    assert_int_equal(plot_thin(&p, x, y, 3, 2, keep), 2);
    assert_true(keep[0] && keep[1] && !keep[2]);
    assert_int_equal(plot_thin(&p, x, y, 3, 1, keep), 1);
    assert_true(keep[0] && !keep[1] && !keep[2]);
}

static void test_what_lies_apart_stays(void **state)
{
    (void)state;
    enum { N = 50000 };
    struct plot p = plot_of(1, 1);
    double *x = calloc(N, sizeof(*x)), *y = calloc(N, sizeof(*y));
    bool *keep = calloc(N, sizeof(*keep)), *again = calloc(N, sizeof(*again));
    uint64_t state_of_draw = 3;
    for (size_t i = 0; i < N; i++) {
        x[i] = (double)draw_below(&state_of_draw, 1000) / 4000;
        y[i] = (double)draw_below(&state_of_draw, 1000) / 4000;
    }
    x[N - 1] = y[N - 1] = 1;
    const size_t kept = plot_thin(&p, x, y, N, 1000, keep);
    assert_true(keep[N - 1] && keep[0]);
    assert_in_range(kept, 200, 26 * 11 + 1);
    assert_int_equal(plot_thin(&p, x, y, N, 1000, again), kept);
    assert_memory_equal(keep, again, N * sizeof(*keep));
    free(x);
    free(y);
    free(keep);
    free(again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_marks_are_placed_by_percent_and_pixel),
        cmocka_unit_test(test_bars_can_be_seen),
        cmocka_unit_test(test_lines_break_where_nothing_is_known),
        cmocka_unit_test(test_words_stay_text),
        cmocka_unit_test(test_few_points_are_all_kept),
        cmocka_unit_test(test_what_lies_apart_stays),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    buf_free(&out);
    return failed;
}
