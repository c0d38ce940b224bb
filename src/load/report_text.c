/* SPDX-License-Identifier: MIT */
#include "report_parts.h"

#include <string.h>

#define LAG_TOLD_MS 1.0

static double real_at(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static json_int_t count_at(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

static const char *text_at(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "not known";
}

static void print_number(const json_t *o, const char *key, FILE *out)
{
    if (json_is_number(json_object_get(o, key)))
        fprintf(out, "  %9.2f", real_at(o, key));
    else
        fprintf(out, "  %9s", "-");
}

static void print_row(const json_t *quantiles, const char *name, const char *words,
                      FILE *out)
{
    const json_t *q = json_object_get(quantiles, name);
    if (count_at(q, "n") == 0)
        return;
    fprintf(out, "  %-28s  %8" JSON_INTEGER_FORMAT, words, count_at(q, "n"));
    print_number(q, "p50", out);
    print_number(q, "p90", out);
    print_number(q, "p99", out);
    fprintf(out, "\n");
}

static void print_times(const json_t *quantiles, bool open, FILE *out)
{
    const json_t *lag = json_object_get(quantiles, "lag_ms");
    fprintf(out, "\n  %-28s  %8s  %9s  %9s  %9s\n", "ms", "n", "p50", "p90", "p99");
    for (const struct report_time *r = report_times; r->name; r++)
        print_row(quantiles, r->name, r->words, out);
    print_row(quantiles, "gaps_ms", "between tokens", out);
    if (open && real_at(lag, "p99") > LAG_TOLD_MS) {
        print_row(quantiles, "lag_ms", "own lag (in the above)", out);
        fprintf(out, "  This program or its limit of concurrency was late: "
                     "times from plan hold its lag.\n");
    }
}

static void print_kind(const char *name, const json_t *kind, FILE *out)
{
    static const char *const times[] = {"ttft_ms", "total_ms", "gaps_ms"};
    const json_t *q = json_object_get(kind, "quantiles");
    fprintf(out, "  %-18s %6" JSON_INTEGER_FORMAT, name, count_at(kind, "completed"));
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        print_number(json_object_get(q, times[i]), "p50", out);
        print_number(json_object_get(q, times[i]), "p99", out);
    }
    fprintf(out, "\n");
}

static void print_kinds(const json_t *arm, FILE *out)
{
    const char *name;
    json_t *kind, *kinds = json_object_get(arm, "classes");
    if (!kinds)
        return;
    fprintf(out, "\n  %-18s %6s  %20s  %20s  %20s\n", "ms", "n", "first token, sent",
            "whole, from plan", "between tokens");
    fprintf(out, "  %-18s %6s", "", "");
    for (int i = 0; i < 3; i++)
        fprintf(out, "  %9s  %9s", "p50", "p99");
    fprintf(out, "\n");
    json_object_foreach(kinds, name, kind) print_kind(name, kind, out);
}

static void print_counts(json_t *counts, FILE *out)
{
    const char *key;
    json_t *n;
    const char *before = " (";
    json_object_foreach(counts, key, n)
    {
        fprintf(out, "%s%s: %" JSON_INTEGER_FORMAT, before, key, json_integer_value(n));
        before = ", ";
    }
    if (before[0] == ',')
        fprintf(out, ")");
}

static void print_outcomes(const json_t *arm, FILE *out)
{
    const json_t *o = json_object_get(arm, "outcomes");
    fprintf(out,
            "%" JSON_INTEGER_FORMAT " sent in %.2f s: %" JSON_INTEGER_FORMAT " completed",
            count_at(o, "sent"), real_at(arm, "seconds"), count_at(o, "completed"));
    fprintf(out, ", %" JSON_INTEGER_FORMAT " refused", count_at(o, "refused"));
    print_counts(json_object_get(o, "statuses"), out);
    fprintf(out,
            ", %" JSON_INTEGER_FORMAT " interrupted, %" JSON_INTEGER_FORMAT " failed",
            count_at(o, "interrupted"), count_at(o, "failed"));
    print_counts(json_object_get(o, "errors"), out);
    fprintf(out, ", %" JSON_INTEGER_FORMAT " pending\n", count_at(o, "pending"));
}

/* Where all went as it should there is nothing to say. */
static void print_retries(const json_t *arm, FILE *out)
{
    const json_int_t n = count_at(json_object_get(arm, "connections"), "retried");
    if (n)
        fprintf(out,
                "  %" JSON_INTEGER_FORMAT " requests met a connection that the service "
                "had closed, and were sent again on another.\n",
                n);
}

static void print_rates(const json_t *arm, FILE *out)
{
    const json_t *r = json_object_get(arm, "throughput");
    fprintf(out, "\n  %.2f requests/s completed", real_at(r, "requests_per_s"));
    if (json_is_number(json_object_get(r, "output_tokens_per_s")))
        fprintf(out, ", %.1f output tokens/s\n", real_at(r, "output_tokens_per_s"));
    else
        fprintf(out, ", output tokens not known of all\n");
}

static void print_tokens(const json_t *arm, FILE *out)
{
    const json_t *t = json_object_get(arm, "tokens");
    const json_int_t completed = count_at(json_object_get(arm, "outcomes"), "completed");
    if (json_is_integer(json_object_get(t, "prompt")))
        fprintf(out, "  prompt tokens: %" JSON_INTEGER_FORMAT, count_at(t, "prompt"));
    else
        fprintf(out, "  prompt tokens: not told");
    if (json_is_integer(json_object_get(t, "aimed")))
        fprintf(out, ", aimed at %" JSON_INTEGER_FORMAT " and the template's",
                count_at(t, "aimed"));
    if (!json_is_number(json_object_get(t, "hit_rate"))) {
        fprintf(out, "; cached: not told\n");
        return;
    }
    fprintf(out, "; cached: %.1f %%", 100 * real_at(t, "hit_rate"));
    if (json_is_number(json_object_get(t, "shared_rate")))
        fprintf(out, " (an earlier request shared %.1f %%)",
                100 * real_at(t, "shared_rate"));
    if (count_at(t, "cached_told") < completed)
        fprintf(out,
                ", told by %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT " requests",
                count_at(t, "cached_told"), completed);
    fprintf(out, "\n");
}

static void print_arms(const json_t *arms, const char *title, bool open, FILE *out)
{
    size_t i;
    json_t *arm;
    json_array_foreach(arms, i, arm)
    {
        fprintf(out, "\n%s", title);
        if (json_array_size(arms) > 1)
            fprintf(out, " %s", text_at(arm, "arm"));
        fprintf(out, ": ");
        print_outcomes(arm, out);
        if (count_at(json_object_get(arm, "outcomes"), "completed") == 0)
            continue;
        print_times(json_object_get(arm, "quantiles"), open, out);
        print_kinds(arm, out);
        print_retries(arm, out);
        print_rates(arm, out);
        print_tokens(arm, out);
        if (json_is_object(json_object_get(arm, "resources")))
            usage_print(json_object_get(arm, "resources"), out);
    }
}

static void print_settings(const json_t *doc, FILE *out)
{
    const json_t *s = json_object_get(doc, "settings"),
                 *m = json_object_get(doc, "machine");
    fprintf(out, "%s, seed %" JSON_INTEGER_FORMAT "; ", text_at(s, "profile"),
            count_at(s, "seed"));
    if (json_object_get(s, "steps"))
        fprintf(out, "%s loop, step by step\n", text_at(s, "loop"));
    else if (json_object_get(s, "speed"))
        fprintf(out,
                "open loop at the trace's times, %g times as fast, at most "
                "%" JSON_INTEGER_FORMAT " under way\n",
                real_at(s, "speed"), count_at(s, "concurrency"));
    else if (strcmp(text_at(s, "loop"), "open") == 0)
        fprintf(out,
                "open loop, %g requests/s (%s), at most %" JSON_INTEGER_FORMAT
                " under way\n",
                real_at(s, "rate"), text_at(s, "arrivals"), count_at(s, "concurrency"));
    else
        fprintf(out, "closed loop of %" JSON_INTEGER_FORMAT "\n",
                count_at(s, "concurrency"));
    fprintf(out, "engine %s, model %s; sent from %" JSON_INTEGER_FORMAT " x %s, %s\n",
            text_at(doc, "engine"), text_at(doc, "model"), count_at(m, "cores"),
            text_at(m, "processor"), text_at(m, "kernel"));
}

/* ---- two arms ---------------------------------------------------------------------- */

static void print_figures(const json_t *f, const char *what, FILE *out)
{
    fprintf(out, "  %-7s %9.2f  %9.2f  %+9.2f  %+9.2f to %+.2f%s\n", what,
            real_at(f, "a"), real_at(f, "b"), real_at(f, "difference"), real_at(f, "low"),
            real_at(f, "high"),
            json_is_true(json_object_get(f, "seen")) ? "" : "  no difference seen");
}

void report_print_contrasts(const json_t *contrasts, const char *a, const char *b,
                            FILE *out)
{
    fprintf(out, "\n%-38s %9s  %9s  %9s  95 %%\n", "ms", a, b, "change");
    for (const struct report_time *r = report_times; r->name; r++) {
        const json_t *c = json_object_get(contrasts, r->name);
        if (!json_is_object(c)) {
            fprintf(out, "%-28s  too few values\n", r->words);
            continue;
        }
        fprintf(out, "%-28s", r->words);
        print_figures(json_object_get(c, "mean"), "mean", out);
        fprintf(out, "%-28s", "");
        print_figures(json_object_get(c, "median"), "median", out);
    }
}

void report_print(const json_t *doc, FILE *out)
{
    const bool open =
        strcmp(text_at(json_object_get(doc, "settings"), "loop"), "open") == 0;
    const json_t *contrasts = json_object_get(doc, "contrasts");
    print_settings(doc, out);
    print_arms(json_object_get(doc, "warmup"), "warm-up", false, out);
    print_arms(json_object_get(doc, "arms"), "run", open, out);
    if (json_object_get(doc, "steps"))
        report_print_steps(doc, out);
    if (contrasts)
        report_print_contrasts(contrasts, "A", "B", out);
    if (json_object_get(doc, "output"))
        agree_print(json_object_get(doc, "output"), out);
    if (json_is_true(json_object_get(doc, "stopped")))
        fprintf(out, "\nStopped by a signal: this is what was measured until then.\n");
}
