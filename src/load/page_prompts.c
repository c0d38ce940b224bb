/* SPDX-License-Identifier: MIT */
#include "page_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Time to first token over the length of the prompt, and over what of it was computed. */

#define REUSED_FROM 0.1 /* of the prompt: a template's few tokens are no reuse */

enum kind { COLD, REUSED, UNTOLD, KINDS };

static const struct {
    const char *look, *words;
    enum plot_shape shape;
} kinds[KINDS] = {
    [COLD] = {"b", "cold: less than 10 % of the prompt cached", PLOT_DOT},
    [REUSED] = {"a", "10 % or more cached", PLOT_TRIANGLE},
    [UNTOLD] = {"n s", "not told what was cached", PLOT_CROSS},
};

static enum kind kind_of(const struct page_arm *a, size_t i)
{
    const double reused = page_reused(a, i);
    return isnan(reused) ? UNTOLD : reused < REUSED_FROM ? COLD : REUSED;
}

/* ---- lengths ----------------------------------------------------------------------- */

struct chart {
    const char *title, *words;
    double (*of)(const struct page_arm *a, size_t i);
};

static double prompt_tokens(const struct page_arm *a, size_t i)
{
    return a->column[PAGE_PROMPT][i];
}

static double computed_tokens(const struct page_arm *a, size_t i)
{
    return a->column[PAGE_PROMPT][i] - a->column[PAGE_CACHED][i];
}

static double aimed_tokens(const struct page_arm *a, size_t i)
{
    return a->column[PAGE_AIMED][i];
}

static double *lengths(const struct page_arm *a, const struct chart *c)
{
    double *x = mem_array(a->n + 1, sizeof(*x));
    for (size_t i = 0; i < a->n; i++)
        x[i] = isnan(a->column[PAGE_TTFT][i]) ? (double)NAN : c->of(a, i);
    return x;
}

/* ---- drawing ----------------------------------------------------------------------- */

static void draw_mark(struct plot *plot, const struct page_arm *a, size_t i, double x,
                      bool tips, enum kind kind)
{
    char tip[200], time[SCALE_LABEL], look[16];
    scale_label(SCALE_MS, a->column[PAGE_TTFT][i], time);
    snprintf(tip, sizeof(tip), "first token after %s; prompt %.0f tokens, cached %.0f",
             time, a->column[PAGE_PROMPT][i], a->column[PAGE_CACHED][i]);
    if (kind == UNTOLD)
        snprintf(tip, sizeof(tip), "first token after %s; cached: not told", time);
    snprintf(look, sizeof(look), "%s%s", kinds[kind].look,
             a->n > PAGE_DENSE ? " many" : "");
    plot_mark(plot, x, a->column[PAGE_TTFT][i], kinds[kind].shape, look,
              tips ? tip : NULL);
}

/* Cold ones first, so that a few others among them are not hidden. */
static size_t draw_marks(struct plot *plot, const struct page_arm *a, const double *x,
                         size_t count[KINDS])
{
    bool *keep = mem_array(a->n + 1, sizeof(*keep));
    size_t there = 0, drawn = 0;
    for (size_t i = 0; i < a->n; i++)
        there += isnan(x[i]) ? 0 : 1;
    for (enum kind k = COLD; k < KINDS; k++) {
        double *of_kind = mem_array(a->n + 1, sizeof(*of_kind));
        for (size_t i = 0; i < a->n; i++) {
            of_kind[i] = kind_of(a, i) == k ? x[i] : (double)NAN;
            count[k] += isnan(of_kind[i]) ? 0 : 1;
        }
        drawn += plot_thin(plot, of_kind, a->column[PAGE_TTFT], a->n,
                           there > PAGE_MARKS ? 0 : PAGE_MARKS, keep);
        for (size_t i = 0; i < a->n; i++)
            if (keep[i])
                draw_mark(plot, a, i, x[i], there <= PAGE_MARKS, k);
        free(of_kind);
    }
    free(keep);
    return drawn;
}

static void put_keys(struct page *p, const size_t count[KINDS])
{
    page_keys(p->out);
    for (enum kind k = COLD; k < KINDS; k++) {
        char words[96];
        snprintf(words, sizeof(words), "%s (n = %zu)", kinds[k].words, count[k]);
        if (count[k])
            plot_key(p->out, kinds[k].look, (int)kinds[k].shape, false, words);
    }
    page_keys_end(p->out);
}

static void draw_arm(struct page *p, const struct page_arm *a, const struct chart *c,
                     struct scale x_scale, struct scale y_scale)
{
    struct plot plot = {.out = p->out,
                        .x = {x_scale, SCALE_COUNT, c->words},
                        .y = {y_scale, SCALE_MS, "first token, from sent"}};
    size_t count[KINDS] = {0};
    double *x = lengths(a, c);
    buf_append_str(p->out, "<div>\n");
    if (p->n_arms > 1)
        page_arm_heading(p->out, a);
    plot_begin(&plot,
               &(struct plot_words){
                   c->title, "A mark for each completed request. The tables at the "
                             "end have quantiles of the times."});
    const size_t drawn = draw_marks(&plot, a, x, count);
    plot_end(&plot);
    put_keys(p, count);
    const size_t there = count[COLD] + count[REUSED] + count[UNTOLD];
    if (drawn < there)
        page_note(p->out,
                  "%zu of %zu marks are drawn: of those that would lie on another "
                  "of their kind, the first.",
                  drawn, there);
    else if (there < a->n)
        page_note(p->out, "%zu of %zu requests have both figures.", there, a->n);
    buf_append_str(p->out, "</div>\n");
    free(x);
}

static void draw(struct page *p, const struct chart *c)
{
    struct scale_extent x = {0}, y = {0};
    for (size_t i = 0; i < p->n_arms; i++) {
        double *v = lengths(&p->arm[i], c);
        scale_see(&x, v, p->arm[i].n);
        scale_see(&y, p->arm[i].column[PAGE_TTFT], p->arm[i].n);
        free(v);
    }
    if (x.n == 0)
        return;
    for (size_t i = 0; i < p->n_arms; i++)
        draw_arm(p, &p->arm[i], c, scale_fit(&x, true), scale_fit(&y, true));
}

static size_t known(const struct page *p, enum page_column c)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n_arms; i++)
        n += page_known(&p->arm[i], c);
    return n;
}

void page_prompts(struct page *p)
{
    static const struct chart by_prompt = {"Time to first token over prompt length",
                                           "prompt tokens, as the engine counted",
                                           prompt_tokens},
                              by_computed = {"Time to first token over tokens computed",
                                             "prompt tokens that were not cached",
                                             computed_tokens},
                              by_aimed = {"Time to first token over prompt length",
                                          "prompt tokens, as aimed at", aimed_tokens};
    const bool told = known(p, PAGE_PROMPT) > 0;
    if (known(p, PAGE_TTFT) == 0)
        return;
    page_section(p->out, "First token and length of the prompt");
    if (!told && known(p, PAGE_AIMED) == 0) {
        page_note(p->out, "How long the prompts were is not known.");
    } else {
        page_note(p->out,
                  "Completed requests%s%s, one mark each. What was cached is what the "
                  "engine says of the request.%s",
                  *p->of ? " of " : "", p->of,
                  told ? ""
                       : " The engine does not count prompts: lengths are those "
                         "aimed at.");
        buf_append_str(p->out, "<div class=\"two\">\n");
        draw(p, told ? &by_prompt : &by_aimed);
        if (told && known(p, PAGE_CACHED) > 0)
            draw(p, &by_computed);
        buf_append_str(p->out, "</div>\n");
    }
    page_section_end(p->out);
}
