/* SPDX-License-Identifier: MIT */
#include "report_parts.h"

#include <string.h>

static json_t *at(const json_t *o, const char *a, const char *b)
{
    return json_object_get(json_object_get(o, a), b);
}

static void put_number(const json_t *v, int width, int digits, FILE *out)
{
    if (json_is_number(v))
        fprintf(out, "  %*.*f", width, digits, json_number_value(v));
    else
        fprintf(out, "  %*s", width, "-");
}

static const json_t *level(const json_t *load)
{
    const json_t *rate = json_object_get(load, "rate");
    return rate ? rate : json_object_get(load, "concurrency");
}

static const char *unit(const json_t *load)
{
    return json_object_get(load, "rate") ? "requests/s" : "under way";
}

static void print_limits(const json_t *settings, FILE *out)
{
    const char *name;
    json_t *ms;
    fprintf(out, "\ngood: whole and not empty");
    json_object_foreach(json_object_get(settings, "good"), name, ms)
    {
        const char *words = strcmp(name, "gap") == 0    ? "longest gap"
                            : strcmp(name, "ttft") == 0 ? "first token from plan"
                                                        : "whole answer from plan";
        fprintf(out, ", %s at most %g ms", words, json_number_value(ms));
    }
    fprintf(out, "\n");
}

static void put_percent(const json_t *share, int width, FILE *out)
{
    if (json_is_number(share))
        fprintf(out, "  %*.1f", width, 100 * json_number_value(share));
    else
        fprintf(out, "  %*s", width, "-");
}

static void put_level(const json_t *step, FILE *out)
{
    fprintf(out, "%10g", json_number_value(level(json_object_get(step, "load"))));
}

static void print_failed(const json_t *step, FILE *out)
{
    const char *name, *before = "  not good by ";
    json_t *n;
    json_object_foreach(at(step, "good", "failed"), name, n)
    {
        if (json_integer_value(n) == 0)
            continue;
        fprintf(out, "%s%s: %" JSON_INTEGER_FORMAT, before, name, json_integer_value(n));
        before = ", ";
    }
}

/* ---- what it did ------------------------------------------------------------------- */

static void print_work_head(const json_t *load, FILE *out)
{
    fprintf(out, "%10s  %6s  %6s  %15s  %9s  %9s  %9s  %8s  %6s\n", unit(load), "n",
            "good %", "95 %", "requests/s", "good/s", "tokens/s", "cached %", "cores");
}

static void print_work(const json_t *step, FILE *out)
{
    put_level(step, out);
    put_number(at(step, "good", "n"), 6, 0, out);
    put_percent(at(step, "good", "share"), 6, out);
    put_percent(at(step, "good", "low"), 6, out);
    put_percent(at(step, "good", "high"), 7, out);
    put_number(at(step, "throughput", "requests_per_s"), 10, 2, out);
    put_number(at(step, "throughput", "good_per_s"), 9, 2, out);
    put_number(at(step, "throughput", "output_tokens_per_s"), 9, 1, out);
    put_percent(at(step, "tokens", "hit_rate"), 8, out);
    put_number(at(step, "resources", "cores"), 6, 2, out);
    print_failed(step, out);
    fprintf(out, "\n");
}

/* ---- its times --------------------------------------------------------------------- */

static const struct {
    const char *name, *words;
} times[] = {
    {"ttft_ms", "first token, from sent"},
    {"first_ms", "first token, from plan"},
    {"gaps_ms", "between tokens"},
    {"total_ms", "whole answer, from plan"},
};
#define N_TIMES (sizeof(times) / sizeof(times[0]))

static void print_times_head(const json_t *load, FILE *out)
{
    fprintf(out, "\n%10s", "ms");
    for (size_t i = 0; i < N_TIMES; i++)
        fprintf(out, "  %25s", times[i].words);
    fprintf(out, "\n%10s", unit(load));
    for (size_t i = 0; i < N_TIMES; i++)
        fprintf(out, "  %7s  %7s  %7s", "p50", "p90", "p99");
    fprintf(out, "\n");
}

static void print_times(const json_t *step, FILE *out)
{
    static const char *const points[] = {"p50", "p90", "p99"};
    put_level(step, out);
    for (size_t i = 0; i < N_TIMES; i++)
        for (size_t k = 0; k < 3; k++)
            put_number(at(json_object_get(step, "quantiles"), times[i].name, points[k]),
                       7, 1, out);
    fprintf(out, "\n");
}

/* ---- all --------------------------------------------------------------------------- */

static void each_step(const json_t *doc, const json_t *arm,
                      void (*print)(const json_t *step, FILE *out), FILE *out)
{
    size_t i;
    json_t *step;
    json_array_foreach(json_object_get(doc, "steps"), i, step)
    {
        if (json_equal(json_object_get(step, "arm"), arm))
            print(step, out);
    }
}

static void print_knee(const json_t *knee, const char *unit_of_it, FILE *out)
{
    const double percent = 100 * json_number_value(json_object_get(knee, "share"));
    if (json_is_null(json_object_get(knee, "step")))
        fprintf(out, "\nknee: no step has %g %% of good answers\n", percent);
    else
        fprintf(
            out, "\nknee: %g %s, the highest step with at least %g %% of good answers\n",
            json_number_value(level(json_object_get(knee, "load"))), unit_of_it, percent);
}

static void print_arm(const json_t *doc, const json_t *knee, FILE *out)
{
    const json_t *steps = json_object_get(doc, "steps"),
                 *arm = json_object_get(knee, "arm"),
                 *load = json_object_get(json_array_get(steps, 0), "load");
    fprintf(out, "\n");
    if (json_array_size(json_object_get(doc, "knee")) > 1)
        fprintf(out, "run %s:\n", json_string_value(arm));
    print_work_head(load, out);
    each_step(doc, arm, print_work, out);
    print_times_head(load, out);
    each_step(doc, arm, print_times, out);
    print_knee(knee, unit(load), out);
}

void report_print_steps(const json_t *doc, FILE *out)
{
    const json_t *contrasts = json_object_get(doc, "step_contrasts");
    size_t i;
    json_t *knee, *contrast;
    print_limits(json_object_get(doc, "settings"), out);
    json_array_foreach(json_object_get(doc, "knee"), i, knee) print_arm(doc, knee, out);
    json_array_foreach(contrasts, i, contrast)
    {
        fprintf(out, "\nstep %zu:", i + 1);
        report_print_contrasts(contrast, "A", "B", out);
    }
}
