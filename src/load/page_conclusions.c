/* SPDX-License-Identifier: MIT */
#include "page_internal.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "base/html.h"

/* What the figures carry. Each line follows from the document; none is always there that
 * depends on it. */

#define FEW 100       /* values below which the p99 is the largest */
#define LAG_TOLD_MS 1 /* as in the table */

static void point(struct page *p, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void point(struct page *p, const char *fmt, ...)
{
    struct buf text = {0};
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(&text, fmt, ap);
    va_end(ap);
    buf_append_str(p->out, "<li>");
    html_text(buf_slice(&text), p->out);
    buf_append_str(p->out, "</li>\n");
    buf_free(&text);
}

static double of_arm(const struct page_arm *a, const char *object, const char *name)
{
    return page_number(json_object_get(a->json, object), name);
}

static double quantile(const struct page_arm *a, const char *time, const char *which)
{
    const json_t *q = json_object_get(a->json, "quantiles");
    return page_number(json_object_get(q, time), which);
}

#define PREFIX (sizeof(((struct page_arm *)0)->name) + 2)

/* "A: " where there are two. */
static const char *prefix(const struct page *p, const struct page_arm *a,
                          char out[PREFIX])
{
    snprintf(out, PREFIX, "%s%s", p->n_arms > 1 ? a->name : "",
             p->n_arms > 1 ? ": " : "");
    return out;
}

static bool is_open(const struct page *p)
{
    const char *loop = page_string(json_object_get(p->doc, "settings"), "loop");
    return loop && strcmp(loop, "open") == 0;
}

/* ---- what can be concluded --------------------------------------------------------- */

static void point_time(struct page *p, const struct page_arm *a, const char *time,
                       const char *what, const char *from)
{
    char p50[SCALE_LABEL], p90[SCALE_LABEL], name[PREFIX];
    const double n = quantile(a, time, "n");
    if (!(n > 0))
        return;
    scale_label(SCALE_MS, quantile(a, time, "p50"), p50);
    scale_label(SCALE_MS, quantile(a, time, "p90"), p90);
    point(p,
          "%sWith this load, half of %.0f completed answers %s within %s, nine of ten "
          "within %s of %s.",
          prefix(p, a, name), n, what, p50, p90, from);
}

static void point_contrast(struct page *p)
{
    const json_t *c = json_object_get(p->contrasts, "ttft_ms"),
                 *m = json_object_get(c, "median");
    char low[SCALE_LABEL], high[SCALE_LABEL];
    if (!json_is_object(m))
        return;
    const double a = page_number(m, "low"), b = page_number(m, "high");
    scale_label(SCALE_MS, a, low);
    scale_label(SCALE_MS, b, high);
    if (json_is_true(json_object_get(m, "seen")))
        point(p,
              "First token, median: %s is %s than %s; the 95 %% interval of the "
              "difference is %s to %s.",
              p->arm[1].name, b < 0 ? "faster" : "slower", p->arm[0].name, low, high);
    else
        point(p,
              "First token, median: no difference seen between %s and %s; the 95 %% "
              "interval is %s to %s. A difference within it may be there.",
              p->arm[0].name, p->arm[1].name, low, high);
}

static void point_knees(struct page *p)
{
    const json_t *knees = json_object_get(p->doc, "knee");
    for (size_t i = 0; i < p->n_arms && i < json_array_size(knees); i++) {
        const json_t *knee = json_array_get(knees, i);
        const double share = 100 * page_number(knee, "share");
        char name[PREFIX], load[PAGE_LOAD];
        page_load_text(p, knee, load);
        if (isnan(share))
            continue;
        if (isnan(page_load_of(knee)))
            point(p, "%sAt no step were %.4g %% of the answers good.",
                  prefix(p, &p->arm[i], name), share);
        else
            point(p, "%s%s: the highest step with at least %.4g %% good answers.",
                  prefix(p, &p->arm[i], name), load, share);
    }
}

/* ---- what cannot ------------------------------------------------------------------- */

static void point_outcomes(struct page *p, const struct page_arm *a)
{
    char name[PREFIX];
    const double sent = of_arm(a, "outcomes", "sent"),
                 completed = of_arm(a, "outcomes", "completed");
    if (completed < sent)
        point(p,
              "%s%.0f of %.0f requests were not completed. Times are of those that "
              "were; the others may have been the slow ones.",
              prefix(p, a, name), sent - completed, sent);
}

static void point_few(struct page *p, const struct page_arm *a)
{
    char name[PREFIX];
    const double n = quantile(a, "ttft_ms", "n"), whole = quantile(a, "total_ms", "n");
    if (whole > 0 && whole < FEW)
        point(p,
              "%sThe p99 of %.0f values is the largest of them: it says little "
              "of the slowest answers.",
              prefix(p, a, name), whole);
    if (n == 0 && whole > 0)
        point(p, "%sAnswers came in one piece, so nothing is known of first tokens.",
              prefix(p, a, name));
    if (isnan(of_arm(a, "tokens", "hit_rate")) && whole > 0)
        point(p,
              "%sThe engine does not tell what it had cached. Whether prompts were "
              "reused cannot be seen here.",
              prefix(p, a, name));
    if (is_open(p) && quantile(a, "lag_ms", "p99") > LAG_TOLD_MS)
        point(p,
              "%sThis program was late with some requests (p99 of its lag: %.1f "
              "ms). Times from plan hold that.",
              prefix(p, a, name), quantile(a, "lag_ms", "p99"));
}

static void point_method(struct page *p)
{
    if (!is_open(p))
        point(p, "A closed loop waits for answers: a slower service got fewer requests. "
                 "These are not times at a rate of arrivals.");
    if (p->second)
        point(p, "The runs were made at different times: what else changed on the "
                 "machines is in the differences too.");
    else if (p->n_arms > 1)
        point(p, "Both services shared the load, and perhaps a machine: throughput is no "
                 "comparison, and each might be faster alone.");
    if (!p->second)
        point(p, "This is one run: how much another one would differ is not known.");
    point(p, "Words are drawn, not real prompts, unless a file gave them%s.",
          json_is_object(json_object_get(p->doc, "output"))
              ? ""
              : "; what was answered is not looked at");
}

static bool was_stopped(const struct page *p)
{
    return json_is_true(json_object_get(p->doc, "stopped")) ||
           json_is_true(json_object_get(p->second, "stopped"));
}

static bool any_completed(const struct page *p)
{
    for (size_t i = 0; i < p->n_arms; i++)
        if (of_arm(&p->arm[i], "outcomes", "completed") > 0)
            return true;
    return false;
}

void page_conclusions(struct page *p)
{
    buf_append_str(p->out,
                   "<section class=\"two\">\n<div><h2>What can be concluded</h2>\n"
                   "<ul>\n");
    if (!any_completed(p))
        point(p, "Nothing was completed: there is no time to tell.");
    for (size_t i = 0; i < p->n_arms; i++) {
        point_time(p, &p->arm[i], "ttft_ms", "had their first token", "sending");
        point_time(p, &p->arm[i], "total_ms", "were whole", "their planned moment");
    }
    if (p->n_arms > 1)
        point_contrast(p);
    point_knees(p);
    buf_append_str(p->out, "</ul></div>\n<div><h2>What cannot</h2>\n<ul>\n");
    if (was_stopped(p))
        point(p, "The run was stopped: this is what was measured until then.");
    for (size_t i = 0; i < p->n_arms; i++) {
        point_outcomes(p, &p->arm[i]);
        point_few(p, &p->arm[i]);
    }
    point_method(p);
    buf_append_str(p->out, "</ul></div>\n");
    page_section_end(p->out);
}
