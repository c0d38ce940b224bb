/* SPDX-License-Identifier: MIT */
#include "page_internal.h"

#include <math.h>
#include <string.h>

/* What a service does as its load grows: steps of a run, of one arm or two. */

struct series {
    size_t n;
    double x[PAGE_STEPS], y[PAGE_STEPS];
};

typedef double (*of_step)(const json_t *step);

static double member(const json_t *step, const char *object, const char *name)
{
    return page_number(json_object_get(step, object), name);
}

static double requests_per_s(const json_t *step)
{
    return member(step, "throughput", "requests_per_s");
}

static double tokens_per_s(const json_t *step)
{
    return member(step, "throughput", "output_tokens_per_s");
}

static double good_share(const json_t *step)
{
    return member(step, "good", "share");
}

static double good_low(const json_t *step)
{
    return member(step, "good", "low");
}

static double good_high(const json_t *step)
{
    return member(step, "good", "high");
}

static double first_token(const json_t *step, const char *which)
{
    const json_t *q = json_object_get(step, "quantiles");
    return page_number(json_object_get(q, "first_ms"), which);
}

static double first_p50(const json_t *step)
{
    return first_token(step, "p50");
}

static double first_p90(const json_t *step)
{
    return first_token(step, "p90");
}

static double first_p99(const json_t *step)
{
    return first_token(step, "p99");
}

/* ---- series ------------------------------------------------------------------------ */

static bool is_of(const json_t *step, const struct page_arm *a)
{
    const char *arm = page_string(step, "arm");
    return !arm || strncmp(arm, a->name, sizeof(a->name) - 1) == 0;
}

/* In the order of the load, whatever the order of the steps was. */
static void insert(struct series *s, double x, double y)
{
    size_t i = s->n++;
    for (; i > 0 && s->x[i - 1] > x; i--) {
        s->x[i] = s->x[i - 1];
        s->y[i] = s->y[i - 1];
    }
    s->x[i] = x;
    s->y[i] = y;
}

static void take(const struct page *p, const struct page_arm *a, of_step of,
                 struct series *out)
{
    const json_t *step;
    size_t i;
    out->n = 0;
    json_array_foreach(p->steps, i, step)
    {
        const double x = page_load_of(step);
        if (is_of(step, a) && !isnan(x) && out->n < PAGE_STEPS)
            insert(out, x, of(step));
    }
}

/* ---- drawings ---------------------------------------------------------------------- */

struct line {
    of_step of;
    const char *words, *dash;
    enum plot_shape shape;
};

struct chart {
    const char *title, *desc, *y_words;
    enum scale_unit unit;
    struct line line[3]; /* up to the first without `of` */
    bool zero_to_one, may_be_log, diagonal, intervals;
};

static struct scale x_scale(const struct page *p)
{
    struct scale_extent e = {0};
    for (size_t a = 0; a < p->n_arms; a++) {
        struct series s;
        take(p, &p->arm[a], requests_per_s, &s);
        scale_see(&e, s.x, s.n);
    }
    return scale_fit(&e, true);
}

static struct scale y_scale(const struct page *p, const struct chart *c)
{
    struct scale_extent e = {0};
    struct series s;
    if (c->zero_to_one)
        return scale_exact(0, 1);
    for (size_t a = 0; a < p->n_arms; a++)
        for (size_t k = 0; k < 3 && c->line[k].of; k++) {
            take(p, &p->arm[a], c->line[k].of, &s);
            scale_see(&e, s.y, s.n);
        }
    return scale_fit(&e, c->may_be_log);
}

static void draw_intervals(struct plot *plot, const struct page *p,
                           const struct page_arm *a)
{
    struct series low, high;
    char look[16];
    take(p, a, good_low, &low);
    take(p, a, good_high, &high);
    snprintf(look, sizeof(look), "%s thin", a->look);
    for (size_t i = 0; i < low.n; i++)
        plot_rule(plot, low.x[i], low.y[i], low.x[i], high.y[i], look);
}

/* Series are told apart without colours too. */
static const char *mark_look(const struct page_arm *a)
{
    return a->look[0] == 'a' ? "a" : "b h";
}

static void draw_line(struct plot *plot, const struct page *p, const struct page_arm *a,
                      const struct line *l)
{
    struct series s;
    char look[16], tip[160];
    take(p, a, l->of, &s);
    snprintf(look, sizeof(look), "%s %s", a->look, l->dash);
    plot_line(plot, s.x, s.y, s.n, false, look);
    for (size_t i = 0; i < s.n; i++) {
        char value[SCALE_LABEL];
        scale_label(plot->y.unit, s.y[i], value);
        snprintf(tip, sizeof(tip), "%s%s%s: %s at %.4g %s", p->n_arms > 1 ? a->name : "",
                 p->n_arms > 1 ? ", " : "", l->words, value, s.x[i], page_load_words(p));
        plot_mark(plot, s.x[i], s.y[i], l->shape, mark_look(a), tip);
    }
}

/* The highest step that was good enough. */
static void draw_knees(struct plot *plot, const struct page *p)
{
    const json_t *knees = json_object_get(p->doc, "knee");
    for (size_t a = 0; a < p->n_arms; a++) {
        const double x = page_load_of(json_array_get(knees, a));
        plot_rule(plot, x, plot->y.scale.low, x, plot->y.scale.high,
                  a ? "b d3 thin" : "a d3 thin");
    }
}

static void draw_keys(const struct page *p, const struct chart *c, bool diagonal)
{
    page_keys(p->out);
    for (size_t a = 0; a < p->n_arms; a++)
        for (size_t k = 0; k < 3 && c->line[k].of; k++) {
            char look[16], words[96];
            snprintf(look, sizeof(look), "%s %s", mark_look(&p->arm[a]), c->line[k].dash);
            snprintf(words, sizeof(words), "%s%s%s", p->n_arms > 1 ? p->arm[a].name : "",
                     p->n_arms > 1 ? ", " : "", c->line[k].words);
            plot_key(p->out, look, (int)c->line[k].shape, true, words);
        }
    if (diagonal)
        plot_key(p->out, "n d3", -1, true, "all that was sent");
    page_keys_end(p->out);
}

static void draw(const struct page *p, const struct chart *c)
{
    struct plot plot = {.out = p->out,
                        .x = {x_scale(p), SCALE_COUNT, page_load_words(p)},
                        .y = {y_scale(p, c), c->unit, c->y_words}};
    buf_append_str(p->out, "<div>\n");
    plot_begin(&plot, &(struct plot_words){c->title, c->desc});
    const bool diagonal = c->diagonal && !plot.x.scale.log;
    if (diagonal) {
        const double end = fmin(plot.x.scale.high, plot.y.scale.high);
        const double at[] = {fmax(plot.x.scale.low, 0), end};
        plot_line(&plot, at, at, 2, false, "n d3");
    }
    draw_knees(&plot, p);
    for (size_t a = 0; a < p->n_arms; a++) {
        if (c->intervals)
            draw_intervals(&plot, p, &p->arm[a]);
        for (size_t k = 0; k < 3 && c->line[k].of; k++)
            draw_line(&plot, p, &p->arm[a], &c->line[k]);
    }
    plot_end(&plot);
    draw_keys(p, c, diagonal);
    buf_append_str(p->out, "</div>\n");
}

/* ---- table ------------------------------------------------------------------------- */

static void put_step(const struct page *p, const json_t *step)
{
    char name[SCALE_LABEL + 40], load[SCALE_LABEL];
    const char *arm = page_string(step, "arm");
    scale_label(SCALE_COUNT, page_load_of(step), load);
    snprintf(name, sizeof(name), "%s%s%.32s", load, p->n_arms > 1 ? ", " : "",
             p->n_arms > 1 && arm ? arm : "");
    page_row(p->out, name);
    page_cell_number(p->out, member(step, "outcomes", "sent"), 0);
    page_cell_number(p->out, member(step, "outcomes", "completed"), 0);
    page_cell_number(p->out, member(step, "good", "n"), 0);
    page_cell_number(p->out, 100 * good_share(step), 1);
    page_cell_number(p->out, first_p50(step), 1);
    page_cell_number(p->out, first_p90(step), 1);
    page_cell_number(p->out, first_p99(step), 1);
    page_cell_number(p->out, requests_per_s(step), 2);
    page_cell_number(p->out, tokens_per_s(step), 1);
    page_cell_number(p->out, 100 * member(step, "tokens", "hit_rate"), 1);
    page_cell_number(p->out, page_number(step, "seconds"), 1);
    page_counts(p->out, json_object_get(json_object_get(step, "good"), "failed"));
    page_row_end(p->out);
}

static void put_table(const struct page *p)
{
    char columns[240];
    const json_t *step;
    size_t i;
    snprintf(columns, sizeof(columns),
             "%s|sent|completed|judged|good, %%|first token p50, ms|p90|p99|requests/s|"
             "output tokens/s|cached, %%|seconds|not good by",
             page_load_words(p));
    page_table(p->out, "Steps", columns);
    json_array_foreach(p->steps, i, step)
    {
        if (i < PAGE_STEPS)
            put_step(p, step);
    }
    page_table_end(p->out);
}

static void put_method(const struct page *p)
{
    json_t *limits = json_object_get(json_object_get(p->doc, "settings"), "good");
    const char *key;
    json_t *ms;
    struct buf text = {0};
    struct series first = {0};
    if (p->n_arms)
        take(p, &p->arm[0], requests_per_s, &first);
    json_object_foreach(limits, key, ms)
    {
        char value[SCALE_LABEL];
        scale_label(SCALE_MS, page_value(ms), value);
        buf_printf(&text, ", %.20s within %s", key, value);
    }
    char *words = buf_take_str(&text);
    page_note(
        p->out,
        "%zu steps, each with a load of its own. Good: completed with an "
        "answer%.200s. Thin upright lines: 95 %% interval of the share (Wilson); dotted: "
        "the highest step that was good enough. "
        "What was sent while a step settled is not counted.",
        first.n, words);
    free(words);
}

static const struct chart charts[] = {
    {.title = "Throughput over load",
     .desc = "Requests completed each second at each step; the table has the figures.",
     .y_words = "requests/s completed",
     .unit = SCALE_COUNT,
     .line = {{requests_per_s, "completed", "", PLOT_DOT}},
     .diagonal = true},
    {.title = "Good answers over load",
     .desc =
         "Share of answers within the limits at each step; the table has the figures.",
     .y_words = "good answers",
     .unit = SCALE_SHARE,
     .line = {{good_share, "good", "", PLOT_DOT}},
     .zero_to_one = true,
     .intervals = true},
    {.title = "Time to first token over load",
     .desc = "Quantiles of the time to first token at each step; the table has the "
             "figures.",
     .y_words = "first token, from plan",
     .unit = SCALE_MS,
     .line = {{first_p50, "p50", "", PLOT_DOT},
              {first_p90, "p90", "d2", PLOT_SQUARE},
              {first_p99, "p99", "d3", PLOT_TRIANGLE}},
     .may_be_log = true},
    {.title = "Output tokens over load",
     .desc = "Tokens generated each second at each step; the table has the figures.",
     .y_words = "output tokens/s",
     .unit = SCALE_COUNT,
     .line = {{tokens_per_s, "output tokens", "", PLOT_DOT}}},
};

void page_curve(struct page *p)
{
    if (!p->steps)
        return;
    const bool by_rate = page_load_words(p)[9] == 's';
    page_section(p->out, "Service curve");
    put_method(p);
    buf_append_str(p->out, "<div class=\"two\">\n");
    for (size_t i = 0; i < sizeof(charts) / sizeof(charts[0]); i++) {
        struct chart c = charts[i];
        c.diagonal = c.diagonal && by_rate;
        draw(p, &c);
    }
    buf_append_str(p->out, "</div>\n");
    put_table(p);
    page_section_end(p->out);
}
