/* SPDX-License-Identifier: MIT */
#include "page_internal.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

/* What part of the prompts was cached: over the run, and by turn. */

#define TURNS 1000 /* as many as a profile may have */
#define TURN_ROWS 30

struct turn_sum {
    size_t n;
    double prompt, cached, aimed, shared;
};

static double part(double of, double whole)
{
    return whole > 0 ? of / whole : (double)NAN;
}

/* ---- over time --------------------------------------------------------------------- */

static double *reused_parts(const struct page_arm *a)
{
    double *v = mem_array(a->n + 1, sizeof(*v));
    for (size_t i = 0; i < a->n; i++)
        v[i] = page_reused(a, i);
    return v;
}

static void draw_requests(struct plot *plot, const struct page_arm *a, double *y,
                          size_t *there, size_t *drawn)
{
    bool *keep = mem_array(a->n + 1, sizeof(*keep));
    for (size_t i = 0; i < a->n; i++)
        *there += !isnan(y[i]) && !isnan(a->column[PAGE_PLANNED_AT][i]);
    const size_t kept =
        plot_thin(plot, a->column[PAGE_PLANNED_AT], y, a->n, PAGE_MARKS, keep);
    for (size_t i = 0; i < a->n; i++) {
        char tip[160], look[16], turn[PAGE_NUMBER];
        page_format(a->column[PAGE_TURN][i], 0, turn);
        snprintf(tip, sizeof(tip), "%zu, turn %s: %.0f of %.0f tokens cached", i, turn,
                 a->column[PAGE_CACHED][i], a->column[PAGE_PROMPT][i]);
        snprintf(look, sizeof(look), "%s%s", a->look, a->n > PAGE_DENSE ? " many" : "");
        if (keep[i])
            plot_mark(plot, a->column[PAGE_PLANNED_AT][i], y[i],
                      a->look[0] == 'a' ? PLOT_DOT : PLOT_TRIANGLE, look,
                      *there <= PAGE_MARKS ? tip : NULL);
    }
    *drawn += kept;
    free(keep);
}

/* Of all tokens up to each request; thinned to a line of some hundred points. */
static void draw_sum(struct plot *plot, const struct page_arm *a)
{
    const size_t every = a->n / 300 + 1;
    double x[302], y[302], prompt = 0, cached = 0;
    size_t n = 0;
    for (size_t i = 0; i < a->n; i++) {
        if (!isnan(page_reused(a, i))) {
            prompt += a->column[PAGE_PROMPT][i];
            cached += a->column[PAGE_CACHED][i];
        }
        if (i % every == every - 1 || i + 1 == a->n) {
            x[n] = a->column[PAGE_PLANNED_AT][i];
            y[n++] = part(cached, prompt);
        }
    }
    plot_line(plot, x, y, n, false, a->look[0] == 'a' ? "a" : "b d2");
}

static void draw_over_time(struct page *p)
{
    struct scale_extent x = {0};
    size_t there = 0, drawn = 0;
    for (size_t k = 0; k < p->n_arms; k++)
        scale_see(&x, p->arm[k].column[PAGE_PLANNED_AT], p->arm[k].n);
    if (x.n == 0)
        return;
    struct plot plot = {
        .out = p->out,
        .x = {scale_fit(&x, false), SCALE_MS, "planned, since the beginning"},
        .y = {scale_exact(0, 1), SCALE_SHARE, "of the prompt cached"}};
    buf_append_str(p->out, "<div>\n");
    plot_begin(&plot, &(struct plot_words){
                          "Prompt tokens cached over time",
                          "A mark for each request, and a line: the part of all prompt "
                          "tokens until then."});
    for (size_t k = 0; k < p->n_arms; k++) {
        double *y = reused_parts(&p->arm[k]);
        draw_requests(&plot, &p->arm[k], y, &there, &drawn);
        draw_sum(&plot, &p->arm[k]);
        free(y);
    }
    plot_end(&plot);
    page_keys(p->out);
    for (size_t k = 0; k < p->n_arms; k++) {
        char words[80];
        const bool two = p->n_arms > 1;
        snprintf(words, sizeof(words), "%s%sa request", two ? p->arm[k].name : "",
                 two ? ", " : "");
        plot_key(p->out, p->arm[k].look, k ? PLOT_TRIANGLE : PLOT_DOT, false, words);
        snprintf(words, sizeof(words), "%s%sall until then", two ? p->arm[k].name : "",
                 two ? ", " : "");
        plot_key(p->out, k ? "b d2" : "a", -1, true, words);
    }
    page_keys_end(p->out);
    if (drawn < there)
        page_note(p->out,
                  "%zu of %zu marks are drawn: of those that would lie on another, "
                  "the first.",
                  drawn, there);
    buf_append_str(p->out, "</div>\n");
}

/* ---- by turn ----------------------------------------------------------------------- */

static size_t sum_turns(const struct page_arm *a, struct turn_sum *sums)
{
    size_t turns = 0;
    for (size_t i = 0; i < a->n; i++) {
        const double turn = a->column[PAGE_TURN][i], aimed = a->column[PAGE_AIMED][i];
        if (!(turn >= 0 && turn < TURNS) || isnan(page_reused(a, i)))
            continue;
        struct turn_sum *s = &sums[(size_t)turn];
        s->n++;
        s->prompt += a->column[PAGE_PROMPT][i];
        s->cached += a->column[PAGE_CACHED][i];
        if (aimed > 0) {
            s->aimed += aimed;
            s->shared += fmax(a->column[PAGE_SHARED][i], 0);
        }
        turns = (size_t)turn + 1 > turns ? (size_t)turn + 1 : turns;
    }
    return turns;
}

static void draw_turns(struct plot *plot, const struct page_arm *a,
                       const struct turn_sum *sums, size_t turns)
{
    double *x = mem_array(turns + 1, sizeof(*x)), *y = mem_array(turns + 1, sizeof(*y));
    const bool first = a->look[0] == 'a';
    for (size_t t = 0; t < turns; t++) {
        x[t] = (double)t;
        y[t] = part(sums[t].cached, sums[t].prompt);
    }
    plot_line(plot, x, y, turns, false, first ? "a" : "b d2");
    for (size_t t = 0; t < turns; t++) {
        char tip[120];
        snprintf(tip, sizeof(tip), "turn %zu, n = %zu: %.1f %% cached", t, sums[t].n,
                 100 * y[t]);
        if (first)
            plot_mark(plot, x[t], part(sums[t].shared, sums[t].aimed), PLOT_DIAMOND,
                      "n h", NULL);
        plot_mark(plot, x[t], y[t], first ? PLOT_DOT : PLOT_TRIANGLE, a->look, tip);
    }
    free(x);
    free(y);
}

static void put_turns(struct page *p, struct turn_sum *sums[PAGE_ARMS], size_t turns)
{
    char columns[200];
    snprintf(columns, sizeof(columns), "turn|n %s|cached %s, %%%s%s%s%s%s|shared, %%",
             p->arm[0].name, p->arm[0].name, p->n_arms > 1 ? "|n " : "",
             p->n_arms > 1 ? p->arm[1].name : "", p->n_arms > 1 ? "|cached " : "",
             p->n_arms > 1 ? p->arm[1].name : "", p->n_arms > 1 ? ", %" : "");
    page_table(p->out, "Prompt tokens cached, by turn", columns);
    for (size_t t = 0; t < turns && t < TURN_ROWS; t++) {
        char name[16];
        snprintf(name, sizeof(name), "%zu", t);
        page_row(p->out, name);
        for (size_t k = 0; k < p->n_arms; k++) {
            page_cell_number(p->out, (double)sums[k][t].n, 0);
            page_cell_number(p->out, 100 * part(sums[k][t].cached, sums[k][t].prompt), 1);
        }
        page_cell_number(p->out, 100 * part(sums[0][t].shared, sums[0][t].aimed), 1);
        page_row_end(p->out);
    }
    page_table_end(p->out);
    if (turns > TURN_ROWS)
        page_note(p->out, "The first %d of %zu turns are listed.", TURN_ROWS, turns);
}

static void draw_by_turn(struct page *p)
{
    struct turn_sum *sums[PAGE_ARMS];
    size_t turns = 0;
    for (size_t k = 0; k < p->n_arms; k++) {
        sums[k] = mem_zalloc(TURNS * sizeof(*sums[k]));
        const size_t n = sum_turns(&p->arm[k], sums[k]);
        turns = n > turns ? n : turns;
    }
    if (turns > 1) {
        struct plot plot = {
            .out = p->out,
            .x = {scale_exact(0, (double)(turns - 1)), SCALE_COUNT, "turn of its group"},
            .y = {scale_exact(0, 1), SCALE_SHARE, "of all prompt tokens cached"}};
        buf_append_str(p->out, "<div>\n");
        plot_begin(&plot, &(struct plot_words){"Prompt tokens cached by turn",
                                               "A point for each turn; the table has the "
                                               "figures."});
        for (size_t k = 0; k < p->n_arms; k++)
            draw_turns(&plot, &p->arm[k], sums[k], turns);
        plot_end(&plot);
        page_keys(p->out);
        for (size_t k = 0; k < p->n_arms; k++)
            plot_key(p->out, k ? "b d2" : "a", k ? PLOT_TRIANGLE : PLOT_DOT, true,
                     p->n_arms > 1 ? p->arm[k].name : "cached");
        plot_key(p->out, "n h", PLOT_DIAMOND, false,
                 "an earlier request shared so much (as aimed at)");
        page_keys_end(p->out);
        put_turns(p, sums, turns);
        buf_append_str(p->out, "</div>\n");
    }
    for (size_t k = 0; k < p->n_arms; k++)
        free(sums[k]);
}

void page_reuse(struct page *p)
{
    size_t known = 0, n = 0;
    for (size_t k = 0; k < p->n_arms; k++) {
        known += page_known(&p->arm[k], PAGE_CACHED);
        n += p->arm[k].n;
    }
    if (p->n_arms == 0)
        return;
    page_section(p->out, "Prompt tokens reused");
    if (known == 0) {
        page_note(p->out, "Not known: no request's engine told what it had cached.");
    } else {
        page_note(
            p->out,
            "By the engine's own count, told of %zu of %zu requests%s%s. Turn 0 of a "
            "group (a document, a chat) shares nothing.",
            known, n, *p->of ? " of " : "", p->of);
        buf_append_str(p->out, "<div class=\"two\">\n");
        draw_over_time(p);
        draw_by_turn(p);
        buf_append_str(p->out, "</div>\n");
    }
    page_section_end(p->out);
}
