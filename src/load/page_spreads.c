/* SPDX-License-Identifier: MIT */
#include "page_internal.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

/* How times spread: which part of the values is at most so long (ECDF). */

#define STEPS 400 /* of a line; of more values every so many */

struct spread_line {
    size_t n; /* values that it stands for */
    size_t points;
    double x[STEPS + 2], y[STEPS + 2];
};

static int by_number(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void add(struct spread_line *l, double x, double y)
{
    l->x[l->points] = x;
    l->y[l->points++] = y;
}

/* From 0 at the smallest value; the largest is always there. */
static void of_column(const struct page_arm *a, enum page_column c,
                      struct spread_line *out)
{
    double *v = mem_array(a->n + 1, sizeof(*v));
    *out = (struct spread_line){0};
    for (size_t i = 0; i < a->n; i++)
        if (!isnan(a->column[c][i]))
            v[out->n++] = a->column[c][i];
    qsort(v, out->n, sizeof(*v), by_number);
    const size_t steps = out->n < STEPS ? out->n : STEPS;
    if (out->n)
        add(out, v[0], 0);
    for (size_t i = 1; i <= steps; i++) {
        const size_t rank = (i * out->n + steps - 1) / steps; /* 1 … n */
        add(out, v[rank - 1], (double)rank / (double)out->n);
    }
    free(v);
}

/* Pairs of ms and how many, rising. */
static void of_gaps(const struct page_arm *a, struct spread_line *out)
{
    const json_t *gaps = json_object_get(json_object_get(a->json, "samples"), "gaps"),
                 *pair;
    double all = 0, seen = 0, told = 0;
    size_t i;
    *out = (struct spread_line){0};
    json_array_foreach(gaps, i, pair)
    {
        const double n = page_value(json_array_get(pair, 1));
        all += n > 0 ? n : 0;
    }
    json_array_foreach(gaps, i, pair)
    {
        const double ms = page_value(json_array_get(pair, 0)),
                     n = page_value(json_array_get(pair, 1));
        if (isnan(ms) || !(n > 0))
            continue;
        if (out->points == 0)
            add(out, ms, 0);
        seen += n;
        if (seen / all - told < 1.0 / STEPS && seen < all)
            continue;
        told = seen / all;
        if (out->points < STEPS + 2)
            add(out, ms, told);
    }
    out->n = (size_t)all;
}

/* ---- drawing ----------------------------------------------------------------------- */

struct chart {
    const char *title, *words;
    int column; /* -1: gaps */
};

static void take(const struct page_arm *a, const struct chart *c, struct spread_line *out)
{
    if (c->column < 0)
        of_gaps(a, out);
    else
        of_column(a, (enum page_column)c->column, out);
}

static void put_keys(struct page *p, const struct spread_line *lines)
{
    page_keys(p->out);
    for (size_t i = 0; i < p->n_arms; i++) {
        char words[80], look[16];
        snprintf(words, sizeof(words), "%s%sn = %zu", p->n_arms > 1 ? p->arm[i].name : "",
                 p->n_arms > 1 ? ", " : "", lines[i].n);
        snprintf(look, sizeof(look), "%s%s", p->arm[i].look, i ? " d2" : "");
        plot_key(p->out, look, -1, true, words);
    }
    page_keys_end(p->out);
}

static void draw(struct page *p, const struct chart *c)
{
    struct spread_line *lines = mem_array(PAGE_ARMS, sizeof(*lines));
    struct scale_extent x = {0};
    for (size_t i = 0; i < p->n_arms; i++) {
        take(&p->arm[i], c, &lines[i]);
        scale_see(&x, lines[i].x, lines[i].points);
    }
    if (x.n) {
        struct plot plot = {.out = p->out,
                            .x = {scale_fit(&x, true), SCALE_MS, c->words},
                            .y = {scale_exact(0, 1), SCALE_SHARE, "part of the values"}};
        buf_append_str(p->out, "<div>\n");
        plot_begin(&plot, &(struct plot_words){
                              c->title, "A rising line: how many of the values are at "
                                        "most so long. The tables have quantiles."});
        for (size_t i = 0; i < p->n_arms; i++)
            plot_line(&plot, lines[i].x, lines[i].y, lines[i].points, true,
                      i ? "b d2" : "a");
        plot_end(&plot);
        put_keys(p, lines);
        buf_append_str(p->out, "</div>\n");
    }
    free(lines);
}

void page_spreads(struct page *p)
{
    static const struct chart charts[] = {
        {"Times to first token", "first token, from sent", PAGE_TTFT},
        {"Gaps between tokens", "between two tokens, every gap", -1},
        {"Times of whole answers", "whole answer, from plan", PAGE_TOTAL}};
    bool any = false;
    for (size_t i = 0; i < p->n_arms; i++)
        any = any || page_known(&p->arm[i], PAGE_TOTAL) > 0;
    if (!any)
        return;
    page_section(p->out, "How times spread");
    page_note(p->out,
              "Completed requests%s%s; gaps of all answers. A line shows which part of "
              "the values is at most so long: its middle is the median. Of more than %d "
              "values every so many is drawn, and the largest; gaps are in buckets of "
              "1 %%. On a log axis 0 is at the left end.",
              *p->of ? " of " : "", p->of, STEPS);
    buf_append_str(p->out, "<div class=\"three\">\n");
    for (size_t i = 0; i < sizeof(charts) / sizeof(charts[0]); i++)
        draw(p, &charts[i]);
    buf_append_str(p->out, "</div>\n");
    page_section_end(p->out);
}
