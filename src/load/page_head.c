/* SPDX-License-Identifier: MIT */
#include "page_internal.h"

#include <math.h>
#include <string.h>

/* ---- title ------------------------------------------------------------------------- */

static void put_load(struct page *p, const json_t *settings)
{
    const char *loop = page_string(settings, "loop");
    const bool open = loop && strcmp(loop, "open") == 0;
    char level[SCALE_LABEL];
    const bool trace = open && !json_object_get(settings, "rate");
    scale_label(SCALE_COUNT,
                page_number(settings, trace  ? "speed"
                                      : open ? "rate"
                                             : "concurrency"),
                level);
    struct buf text = {0};
    if (p->steps)
        buf_printf(&text, "%.20s loop in %zu steps", loop ? loop : "not known",
                   json_array_size(json_object_get(settings, "steps")));
    else if (trace)
        buf_printf(&text, "open loop, a trace at %s of its speed", level);
    else if (open)
        buf_printf(&text, "open loop, %s requests/s", level);
    else
        buf_printf(&text, "closed loop of %s", level);
    char *words = buf_take_str(&text);
    page_text(p->out, words);
    free(words);
}

static void put_origin(struct page *p, const json_t *doc)
{
    const json_t *s = json_object_get(doc, "settings"),
                 *m = json_object_get(doc, "machine");
    const char *processor = page_string(m, "processor");
    char seed[PAGE_NUMBER], cores[PAGE_NUMBER];
    page_format(page_number(m, "cores"), 0, cores);
    snprintf(seed, sizeof(seed), "%" JSON_INTEGER_FORMAT,
             json_integer_value(json_object_get(s, "seed")));
    buf_printf(p->out, "; seed %s; sent from %s cores",
               json_is_integer(json_object_get(s, "seed")) ? seed : "not known", cores);
    if (processor) {
        buf_append_str(p->out, " (");
        page_text(p->out, processor);
        buf_append_str(p->out, ")");
    }
}

static void put_line(struct page *p, const json_t *doc)
{
    struct buf *out = p->out;
    const json_t *s = json_object_get(doc, "settings");
    buf_append_str(out, "engine ");
    page_text(out, page_string(doc, "engine"));
    buf_append_str(out, ", model ");
    page_text(out, page_string(doc, "model"));
    buf_append_str(out, "; requests ");
    page_text(out, page_string(s, "profile"));
    buf_append_str(out, "; ");
    put_load(p, s);
    put_origin(p, doc);
}

static void put_title(struct page *p)
{
    struct buf *out = p->out;
    buf_append_str(out, "<h1>What clients of ");
    page_text(out, page_string(p->doc, "model"));
    buf_append_str(out, p->second ? " saw, in two runs</h1>\n" : " saw</h1>\n");
    buf_append_str(out, "<p class=\"sub\">");
    if (p->second)
        buf_append_str(out, "First: ");
    put_line(p, p->doc);
    if (p->second) {
        buf_append_str(out, "<br>Second: ");
        put_line(p, p->second);
    }
    buf_append_str(out, ". By incipit ");
    page_text(out, page_string(p->doc, "version"));
    buf_append_str(out, ".</p>\n");
}

/* ---- figures ----------------------------------------------------------------------- */

struct figure {
    const char *words, *object, *name, *part; /* part: of a quantile, or NULL */
    enum scale_unit unit;
};

static const struct figure figures[] = {
    {"first token (TTFT), median", "quantiles", "ttft_ms", "p50", SCALE_MS},
    {"first token, 9 of 10 within", "quantiles", "ttft_ms", "p90", SCALE_MS},
    {"between tokens, median", "quantiles", "gaps_ms", "p50", SCALE_MS},
    {"whole answer, median", "quantiles", "total_ms", "p50", SCALE_MS},
    {"good answers", "good", "share", NULL, SCALE_SHARE},
    {"requests/s completed", "throughput", "requests_per_s", NULL, SCALE_COUNT},
    {"output tokens/s", "throughput", "output_tokens_per_s", NULL, SCALE_COUNT},
    {"of prompt tokens cached", "tokens", "hit_rate", NULL, SCALE_SHARE},
};

static double figure_of(const struct figure *f, const json_t *arm)
{
    const json_t *o = json_object_get(arm, f->object);
    return f->part ? page_number(json_object_get(o, f->name), f->part)
                   : page_number(o, f->name);
}

static void put_value(struct page *p, const struct page_arm *a, const char *text)
{
    buf_append_str(p->out, "<b>");
    if (p->n_arms > 1) {
        buf_append_str(p->out, "<small>");
        page_text(p->out, a->name);
        buf_append_str(p->out, "</small> ");
    }
    page_text(p->out, text);
    buf_append_str(p->out, "</b>");
}

static void put_figure(struct page *p, const struct figure *f)
{
    buf_append_str(p->out, "<div class=\"card\">");
    for (size_t i = 0; i < p->n_arms; i++) {
        char text[SCALE_LABEL];
        const double v = figure_of(f, p->arm[i].json);
        scale_label(f->unit, v, text);
        put_value(p, &p->arm[i], isnan(v) ? "not known" : text);
    }
    buf_append_str(p->out, "<span>");
    page_text(p->out, f->words);
    buf_append_str(p->out, "</span></div>\n");
}

static void put_completed(struct page *p)
{
    buf_append_str(p->out, "<div class=\"card\">");
    for (size_t i = 0; i < p->n_arms; i++) {
        char completed[PAGE_NUMBER], sent[PAGE_NUMBER], text[2 * PAGE_NUMBER + 8];
        const json_t *o = json_object_get(p->arm[i].json, "outcomes");
        page_format(page_number(o, "completed"), 0, completed);
        page_format(page_number(o, "sent"), 0, sent);
        snprintf(text, sizeof(text), "%s of %s", completed, sent);
        put_value(p, &p->arm[i], text);
    }
    buf_append_str(p->out, "<span>requests completed</span></div>\n");
}

/* ---- outcomes ---------------------------------------------------------------------- */

static void put_outcomes(struct page *p, const json_t *arm, const char *name)
{
    static const char *const names[] = {"sent",        "completed", "refused",
                                        "interrupted", "failed",    "pending"};
    const json_t *o = json_object_get(arm, "outcomes");
    page_row(p->out, name);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        page_cell_number(p->out, page_number(o, names[i]), 0);
    page_counts(p->out, json_object_get(o, "statuses"));
    page_counts(p->out, json_object_get(o, "errors"));
    page_cell_number(p->out, page_number(arm, "seconds"), 2);
    page_row_end(p->out);
}

static void put_all_outcomes(struct page *p)
{
    const json_t *warmup = json_object_get(p->doc, "warmup"), *arm;
    char name[96];
    size_t i;
    page_table(p->out, "What became of the requests",
               "|sent|completed|refused|interrupted|failed|pending|statuses of those "
               "refused|errors of those failed|seconds");
    json_array_foreach(warmup, i, arm)
    {
        if (i == PAGE_ARMS || p->second)
            break;
        snprintf(name, sizeof(name), "warm-up %.32s", page_string(arm, "arm"));
        put_outcomes(p, arm, name);
    }
    for (i = 0; i < p->n_arms; i++) {
        snprintf(name, sizeof(name), "%s%s%s", p->of, *p->of ? ", " : "run ",
                 p->arm[i].name);
        put_outcomes(p, p->arm[i].json, name);
    }
    page_table_end(p->out);
}

void page_head(struct page *p)
{
    put_title(p);
    if (*p->of)
        page_note(p->out, "These figures are of %s.", p->of);
    buf_append_str(p->out, p->n_arms > 1 ? "<div class=\"cards pair\">\n"
                                         : "<div class=\"cards\">\n");
    put_completed(p);
    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++)
        put_figure(p, &figures[i]);
    buf_append_str(p->out, "</div>\n<section>\n<h2>Outcomes</h2>\n");
    put_all_outcomes(p);
    page_section_end(p->out);
}
