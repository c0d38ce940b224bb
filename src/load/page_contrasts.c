/* SPDX-License-Identifier: MIT */
#include "page_internal.h"

#include <math.h>

#include "load/report.h"

/* Differences of two arms, as part of the first one's figure: point and interval. */

#define ROW 34.0 /* pixels: a label with its interval below */

struct row {
    const char *words, *which; /* the time; "mean" or "median" */
    double a, b, difference, low, high;
    bool seen;
};

static const char *const kinds[] = {"mean", "median"};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))
#define MOST_ROWS 16
#define MOST_CHANGE 10.0 /* that is drawn: 1,000 %; what is beyond stands at the edge */

static bool take_row(const json_t *contrast, const char *words, const char *which,
                     struct row *out)
{
    const json_t *f = json_object_get(contrast, which);
    *out = (struct row){.words = words,
                        .which = which,
                        .a = page_number(f, "a"),
                        .b = page_number(f, "b"),
                        .difference = page_number(f, "difference"),
                        .low = page_number(f, "low"),
                        .high = page_number(f, "high"),
                        .seen = json_is_true(json_object_get(f, "seen"))};
    return !isnan(out->difference) && !isnan(out->low) && !isnan(out->high);
}

static size_t take_rows(const json_t *contrasts, struct row *rows)
{
    size_t n = 0;
    for (const struct report_time *t = report_times; t->name; t++)
        for (size_t k = 0; k < KINDS && n < MOST_ROWS; k++)
            n += take_row(json_object_get(contrasts, t->name), t->words, kinds[k],
                          &rows[n]);
    return n;
}

/* ---- drawing ----------------------------------------------------------------------- */

static double drawable(double change)
{
    return fmax(-MOST_CHANGE, fmin(MOST_CHANGE, change));
}

static struct scale scale_of_rows(const struct row *rows, size_t n)
{
    struct scale_extent e = {0};
    for (size_t i = 0; i < n; i++)
        if (rows[i].a > 0) {
            const double at[] = {0, drawable(rows[i].low / rows[i].a),
                                 drawable(rows[i].high / rows[i].a)};
            scale_see(&e, at, 3);
        }
    return scale_fit(&e, false);
}

static void draw_row(struct plot *p, const struct row *r, double from_top, double rows)
{
    const double y = rows - from_top - 0.74, a = r->a;
    const char *look = r->seen ? "c" : "n";
    char words[96], change[SCALE_LABEL], tip[160];
    scale_label(SCALE_CHANGE, r->difference / a, change);
    snprintf(words, sizeof(words), "%s, %s: %s", r->words, r->which, change);
    snprintf(tip, sizeof(tip), "%s, %s: %+.2f ms (95 %%: %+.2f to %+.2f)%s", r->words,
             r->which, r->difference, r->low, r->high,
             r->seen ? "" : ", no difference seen");
    plot_label(p, ROW * from_top + 13, words);
    plot_rule(p, r->low / a, y, r->high / a, y, look);
    plot_rule(p, r->low / a, y - 0.12, r->low / a, y + 0.12, look);
    plot_rule(p, r->high / a, y - 0.12, r->high / a, y + 0.12, look);
    plot_mark(p, r->difference / a, y, r->seen ? PLOT_DOT : PLOT_SQUARE,
              r->seen ? "c" : "n h", tip);
}

static void draw(struct page *page, const struct row *rows, size_t n)
{
    size_t shown = 0;
    for (size_t i = 0; i < n; i++)
        shown += rows[i].a > 0;
    if (shown == 0)
        return;
    struct plot p = {
        .out = page->out,
        .x = {scale_of_rows(rows, n), SCALE_CHANGE, "change from first to second, of it"},
        .y = {scale_exact(0, (double)shown), SCALE_COUNT, NULL},
        .height = (unsigned)(ROW * (double)shown)};
    char words[128];
    snprintf(words, sizeof(words), "change from %s to %s, as part of %s",
             page->arm[0].name, page->arm[1].name, page->arm[0].name);
    p.x.words = words;
    plot_begin(&p, &(struct plot_words){
                       "Differences with 95 % intervals",
                       "A point with an interval for each time; the table below has the "
                       "same figures. Left of zero is faster; what is beyond "
                       "1,000 % stands at the edge."});
    plot_rule(&p, 0, 0, 0, (double)shown, "n thin");
    size_t at = 0;
    for (size_t i = 0; i < n; i++)
        if (rows[i].a > 0)
            draw_row(&p, &rows[i], (double)at++, (double)shown);
    plot_end(&p);
    page_keys(page->out);
    plot_key(page->out, "c", PLOT_DOT, true, "a difference: the interval is beside 0");
    plot_key(page->out, "n h", PLOT_SQUARE, false, "no difference seen");
    page_keys_end(page->out);
}

/* ---- table ------------------------------------------------------------------------- */

static void put_row(struct buf *out, const struct row *r)
{
    char name[96];
    snprintf(name, sizeof(name), "%s, %s", r->words, r->which);
    page_row(out, name);
    page_cell_number(out, r->a, 2);
    page_cell_number(out, r->b, 2);
    page_cell_number(out, r->difference, 2);
    page_cell_number(out, r->low, 2);
    page_cell_number(out, r->high, 2);
    page_cell(out, "%s", r->seen ? "yes" : "no difference seen");
    page_row_end(out);
}

static void put_table(struct page *page, const struct row *rows, size_t n)
{
    char columns[160];
    snprintf(columns, sizeof(columns), "|%s|%s|change|95 %% from|to|seen",
             page->arm[0].name, page->arm[1].name);
    page_table(page->out, "Differences in ms", columns);
    for (size_t i = 0; i < n; i++)
        put_row(page->out, &rows[i]);
    page_table_end(page->out);
}

static void put_method(struct page *page)
{
    const json_t *c = json_object_get(page->contrasts, "total_ms");
    const double n_a = page_number(c, "n_a"), n_b = page_number(c, "n_b");
    if (isnan(n_a) || isnan(n_b))
        page_note(page->out, "Too few values of whole answers for an interval.");
    else
        page_note(
            page->out,
            "Whole answers%s%s: n = %.0f and %.0f, %s. Means: bootstrap-t; medians: "
            "percentile bootstrap; 95 %% intervals. Of twenty such intervals one "
            "is wrong by chance.",
            *page->of ? " of " : "", page->of, n_a, n_b,
            json_is_true(json_object_get(c, "paired"))
                ? "compared in pairs of the same request"
                : "different requests, compared as a whole");
}

static void put_good(struct page *page)
{
    const json_t *g = page->good;
    char low[SCALE_LABEL], high[SCALE_LABEL], a[SCALE_LABEL], b[SCALE_LABEL];
    if (!json_is_object(g))
        return;
    scale_label(SCALE_SHARE, page_number(g, "a"), a);
    scale_label(SCALE_SHARE, page_number(g, "b"), b);
    scale_label(SCALE_CHANGE, page_number(g, "low"), low);
    scale_label(SCALE_CHANGE, page_number(g, "high"), high);
    page_note(page->out,
              "Good answers: %s and %s; the 95 %% interval of the difference of shares "
              "(Newcombe) is %s to %s: %s.",
              a, b, low, high,
              json_is_true(json_object_get(g, "seen")) ? "a difference"
                                                       : "no difference seen");
}

void page_contrasts(struct page *page)
{
    struct row rows[MOST_ROWS];
    if (!json_is_object(page->contrasts) || page->n_arms < 2)
        return;
    const size_t n = take_rows(page->contrasts, rows);
    page_section(page->out, "Differences");
    put_method(page);
    draw(page, rows, n);
    put_table(page, rows, n);
    put_good(page);
    page_section_end(page->out);
}
