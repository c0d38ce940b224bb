/* SPDX-License-Identifier: MIT */
#include "page_internal.h"

#include <math.h>
#include <stdlib.h>

/* Requests as bars from plan to end, the first ones of a run, and the pace of all. */

#define ROWS 60
#define ROW 9.0 /* pixels */
#define BINS 60 /* at most; fewer of few requests */

static double at(const struct page_arm *a, enum page_column c, size_t i)
{
    return a->column[c][i];
}

/* When it was over; what was not, when the run was. */
static double end_of(const struct page_arm *a, size_t i)
{
    const double end = at(a, PAGE_END_AT, i);
    return isnan(end) ? 1000 * page_number(a->json, "seconds") : end;
}

static size_t rows_of(const struct page_arm *a)
{
    return a->n < ROWS ? a->n : ROWS;
}

/* ---- bars -------------------------------------------------------------------------- */

static void draw_phases(struct plot *plot, const struct page_arm *a, size_t i, double top,
                        const char *tip)
{
    const double planned = at(a, PAGE_PLANNED_AT, i), started = at(a, PAGE_STARTED_AT, i),
                 first = at(a, PAGE_FIRST_AT, i), end = end_of(a, i);
    plot_bar(plot, planned, started, top, ROW - 2, "n", tip);
    if (a->outcome[i] != SAMPLE_COMPLETED) {
        plot_bar(plot, started, end, top, ROW - 2, "x", tip);
        return;
    }
    if (isnan(first)) {
        plot_bar(plot, started, end, top, ROW - 2, "c", tip);
        return;
    }
    plot_bar(plot, started, first, top, ROW - 2, "a", tip);
    plot_bar(plot, first, end, top, ROW - 2, "b", tip);
}

static void draw_request(struct plot *plot, const struct page_arm *a, size_t i,
                         double rows)
{
    char tip[240], planned[SCALE_LABEL], first[SCALE_LABEL], total[SCALE_LABEL];
    scale_label(SCALE_MS, at(a, PAGE_PLANNED_AT, i), planned);
    scale_label(SCALE_MS, at(a, PAGE_FIRST_AT, i) - at(a, PAGE_PLANNED_AT, i), first);
    scale_label(SCALE_MS, end_of(a, i) - at(a, PAGE_PLANNED_AT, i), total);
    snprintf(tip, sizeof(tip),
             "%zu: planned at %s, first token after %s, over after %s, %s", i, planned,
             first, total,
             a->outcome[i] < 0 ? "outcome not known"
                               : reading_outcome((enum sample_outcome)a->outcome[i]));
    draw_phases(plot, a, i, ROW * (double)i + 1, tip);
    if (a->outcome[i] != SAMPLE_COMPLETED)
        plot_mark(plot, end_of(a, i), rows - (double)i - 0.5, PLOT_CROSS, "x s", tip);
}

static void put_keys(struct page *p, const struct page_arm *a)
{
    bool whole = false, phases = false, wrong = false;
    for (size_t i = 0; i < rows_of(a); i++) {
        const bool completed = a->outcome[i] == SAMPLE_COMPLETED;
        wrong = wrong || !completed;
        whole = whole || (completed && isnan(at(a, PAGE_FIRST_AT, i)));
        phases = phases || (completed && !isnan(at(a, PAGE_FIRST_AT, i)));
    }
    page_keys(p->out);
    plot_key(p->out, "n", -1, false, "planned, not started");
    if (phases) {
        plot_key(p->out, "a", -1, false, "started, no token yet");
        plot_key(p->out, "b", -1, false, "tokens come");
    }
    if (whole)
        plot_key(p->out, "c", -1, false, "answer in one piece");
    if (wrong)
        plot_key(p->out, "x", -1, false, "not completed");
    page_keys_end(p->out);
}

static struct scale window_of(const struct page *p)
{
    struct scale_extent e = {0};
    for (size_t k = 0; k < p->n_arms; k++)
        for (size_t i = 0; i < rows_of(&p->arm[k]); i++) {
            const double end = end_of(&p->arm[k], i);
            scale_see(&e, &end, 1);
        }
    return scale_fit(&e, false);
}

static void draw_bars(struct page *p, const struct page_arm *a, struct scale x)
{
    const size_t n = rows_of(a);
    struct plot plot = {.out = p->out,
                        .x = {x, SCALE_MS, "since the beginning"},
                        .y = {scale_exact(0, (double)n), SCALE_COUNT, NULL},
                        .height = (unsigned)ROW * (unsigned)n};
    buf_append_str(p->out, "<div>\n");
    if (p->n_arms > 1)
        page_arm_heading(p->out, a);
    plot_begin(&plot,
               &(struct plot_words){
                   "Requests over time",
                   "A bar for each request from its planned moment to its end, the "
                   "first at the top, in parts: before it was started, before its "
                   "first token, and while tokens come."});
    for (size_t i = 0; i < n; i++)
        draw_request(&plot, a, i, (double)n);
    plot_end(&plot);
    put_keys(p, a);
    page_note(p->out,
              "%zu of %zu requests are shown: the first ones of the plan, one a "
              "row.",
              n, a->n);
    buf_append_str(p->out, "</div>\n");
}

/* ---- pace -------------------------------------------------------------------------- */

struct pace {
    double completed[BINS], under_way[BINS]; /* a second; on the average */
};

/* The whole run, in parts that hold some requests each. */
struct bins {
    size_t n;
    double until, wide; /* ms */
};

/* How much of [from, to] is in bin `b` of bins of `wide` ms. */
static double overlap(double from, double to, size_t b, double wide)
{
    const double low = fmax(from, (double)b * wide),
                 high = fmin(to, (double)(b + 1) * wide);
    return high > low ? high - low : 0;
}

static void take_pace(const struct page_arm *a, const struct bins *bins, struct pace *out)
{
    const double wide = bins->wide, most = (double)(bins->n - 1);
    *out = (struct pace){0};
    for (size_t i = 0; i < a->n; i++) {
        const double from = at(a, PAGE_STARTED_AT, i),
                     to = fmin(end_of(a, i), bins->until);
        if (isnan(from) || isnan(to) || to < 0)
            continue;
        const size_t last = (size_t)fmin(to / wide, most);
        if (a->outcome[i] == SAMPLE_COMPLETED)
            out->completed[last] += 1000 / wide;
        for (size_t b = (size_t)fmax(fmin(from / wide, most), 0); b <= last; b++)
            out->under_way[b] += overlap(from, to, b, wide) / wide;
    }
}

static struct bins bins_of(const struct page *p)
{
    struct bins out = {.n = BINS};
    size_t requests = 0;
    for (size_t k = 0; k < p->n_arms; k++) {
        for (size_t i = 0; i < p->arm[k].n; i++)
            out.until = fmax(out.until, end_of(&p->arm[k], i));
        requests = p->arm[k].n > requests ? p->arm[k].n : requests;
    }
    if (requests / 4 < BINS)
        out.n = requests / 4 + 1;
    out.wide = out.until / (double)out.n;
    return out;
}

static void put_arm_keys(struct page *p)
{
    if (p->n_arms < 2)
        return;
    page_keys(p->out);
    plot_key(p->out, "a", -1, true, p->arm[0].name);
    plot_key(p->out, "b d2", -1, true, p->arm[1].name);
    page_keys_end(p->out);
}

static void draw_pace(struct page *p, const double *v[PAGE_ARMS], const struct bins *bins,
                      const char *title, const char *words)
{
    struct scale_extent y = {0};
    double x[BINS + 1], level[BINS + 1];
    for (size_t k = 0; k < p->n_arms; k++)
        scale_see(&y, v[k], bins->n);
    struct plot plot = {
        .out = p->out,
        .x = {scale_exact(0, bins->until), SCALE_MS, "since the beginning"},
        .y = {scale_fit(&y, false), SCALE_COUNT, words},
        .height = 130};
    buf_append_str(p->out, "<div>\n");
    plot_begin(&plot, &(struct plot_words){title, "A level for each part of the run."});
    for (size_t k = 0; k < p->n_arms; k++) {
        for (size_t b = 0; b <= bins->n; b++) {
            x[b] = bins->wide * (double)b;
            level[b] = v[k][b < bins->n ? b : bins->n - 1];
        }
        plot_line(&plot, x, level, bins->n + 1, true, k ? "b d2" : "a");
    }
    plot_end(&plot);
    put_arm_keys(p);
    buf_append_str(p->out, "</div>\n");
}

static void draw_paces(struct page *p)
{
    const struct bins bins = bins_of(p);
    struct pace pace[PAGE_ARMS];
    const double *completed[PAGE_ARMS], *under_way[PAGE_ARMS];
    if (!(bins.wide > 0))
        return;
    for (size_t k = 0; k < p->n_arms; k++) {
        take_pace(&p->arm[k], &bins, &pace[k]);
        completed[k] = pace[k].completed;
        under_way[k] = pace[k].under_way;
    }
    char length[SCALE_LABEL];
    scale_label(SCALE_MS, bins.wide, length);
    page_note(p->out, "Below: all requests, in %zu equal parts of the run, of %s each.",
              bins.n, length);
    buf_append_str(p->out, "<div class=\"two\">\n");
    draw_pace(p, completed, &bins, "Requests completed over time", "completed, a second");
    draw_pace(p, under_way, &bins, "Requests under way over time", "requests under way");
    buf_append_str(p->out, "</div>\n");
}

void page_timeline(struct page *p)
{
    bool any = false;
    for (size_t i = 0; i < p->n_arms; i++)
        any = any || page_known(&p->arm[i], PAGE_PLANNED_AT) > 0;
    if (p->n_arms == 0)
        return;
    page_section(p->out, "Over time");
    if (!any) {
        page_note(p->out, "When requests were sent is not in this document.");
    } else {
        if (*p->of)
            page_note(p->out, "Of %s.", p->of);
        buf_append_str(p->out, p->n_arms > 1 ? "<div class=\"two\">\n" : "<div>\n");
        for (size_t i = 0; i < p->n_arms; i++)
            draw_bars(p, &p->arm[i], window_of(p));
        buf_append_str(p->out, "</div>\n");
        draw_paces(p);
    }
    page_section_end(p->out);
}
