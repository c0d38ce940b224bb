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

static void print_head(const json_t *load, FILE *out)
{
    fprintf(out, "%10s  %6s  %6s  %8s  %8s  %8s  %26s  %17s  %17s\n", "", "", "",
            "requests", "good", "tokens", "first token from plan, ms", "gaps, ms",
            "whole answer, ms");
    fprintf(out, "%10s  %6s  %6s  %8s  %8s  %8s", unit(load), "n", "good %", "a second",
            "a second", "a second");
    fprintf(out, "  %8s  %7s  %7s  %8s  %7s  %8s  %7s\n", "p50", "p90", "p99", "p50",
            "p99", "p50", "p99");
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

static void print_step(const json_t *step, FILE *out)
{
    static const struct {
        const char *name, *p;
        int width;
    } times[] = {
        {"first_ms", "p50", 8}, {"first_ms", "p90", 7}, {"first_ms", "p99", 7},
        {"gaps_ms", "p50", 8},  {"gaps_ms", "p99", 7},  {"total_ms", "p50", 8},
        {"total_ms", "p99", 7},
    };
    const json_t *share = at(step, "good", "share"),
                 *quantiles = json_object_get(step, "quantiles");
    fprintf(out, "%10g", json_number_value(level(json_object_get(step, "load"))));
    put_number(at(step, "good", "n"), 6, 0, out);
    if (json_is_number(share))
        fprintf(out, "  %6.1f", 100 * json_number_value(share));
    else
        fprintf(out, "  %6s", "-");
    put_number(at(step, "throughput", "requests_per_s"), 8, 2, out);
    put_number(at(step, "throughput", "good_per_s"), 8, 2, out);
    put_number(at(step, "throughput", "output_tokens_per_s"), 8, 1, out);
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
        put_number(at(quantiles, times[i].name, times[i].p), times[i].width, 1, out);
    print_failed(step, out);
    fprintf(out, "\n");
}

static void print_knee(const json_t *knee, const char *unit_of_it, FILE *out)
{
    const double percent = 100 * json_number_value(json_object_get(knee, "share"));
    if (json_is_null(json_object_get(knee, "step")))
        fprintf(out, "knee: no step has %g %% of good answers\n", percent);
    else
        fprintf(
            out, "knee: %g %s, the highest step with at least %g %% of good answers\n",
            json_number_value(level(json_object_get(knee, "load"))), unit_of_it, percent);
}

static void print_arm(const json_t *doc, const json_t *knee, FILE *out)
{
    const json_t *steps = json_object_get(doc, "steps"),
                 *arm = json_object_get(knee, "arm");
    const json_t *load = json_object_get(json_array_get(steps, 0), "load");
    size_t i;
    json_t *step;
    fprintf(out, "\n");
    if (json_array_size(json_object_get(doc, "knee")) > 1)
        fprintf(out, "run %s:\n", json_string_value(arm));
    print_head(load, out);
    json_array_foreach(steps, i, step)
    {
        if (json_equal(json_object_get(step, "arm"), arm))
            print_step(step, out);
    }
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
