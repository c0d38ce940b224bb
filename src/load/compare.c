/* SPDX-License-Identifier: MIT */
#include "load/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "load/report.h"

/* Figures of a whole run: one for each, so nothing says whether a change is noise. */
static const struct {
    const char *object, *name, *words;
} figures[] = {
    {"outcomes", "completed", "requests completed"},
    {"outcomes", "refused", "refused"},
    {"outcomes", "interrupted", "interrupted"},
    {"outcomes", "failed", "failed"},
    {"outcomes", "pending", "pending"},
    {"throughput", "requests_per_s", "requests/s"},
    {"throughput", "output_tokens_per_s", "output tokens/s"},
    {"tokens", "hit_rate", "prompt tokens cached, share"},
};
#define N_FIGURES (sizeof(figures) / sizeof(figures[0]))

/* What is compared of a document: its arm A, or A of each of its steps. */
static const json_t *arms_of(const json_t *doc)
{
    const json_t *steps = json_object_get(doc, "steps");
    return json_is_array(steps) ? steps : json_object_get(doc, "arms");
}

static bool has_steps(const json_t *doc)
{
    return json_is_array(json_object_get(doc, "steps"));
}

static bool is_first(const json_t *arm)
{
    const char *name = json_string_value(json_object_get(arm, "arm"));
    return name && strcmp(name, "A") == 0;
}

/* Each series has a value (or null) for each index. */
static bool has_samples(const json_t *arm)
{
    const json_t *s = json_object_get(arm, "samples");
    const size_t n = json_array_size(json_object_get(s, "index"));
    for (const struct report_time *r = report_times; r->name; r++)
        if (!json_is_array(json_object_get(s, r->name)) ||
            json_array_size(json_object_get(s, r->name)) != n)
            return false;
    return json_is_array(json_object_get(s, "index"));
}

static int check(const json_t *doc, const char *which, struct err *e)
{
    if (!report_is(doc))
        return err_set(e, ERR_FORMAT,
                       "%s file: no report of \"incipit bench --json\" (%s)", which,
                       REPORT_SCHEMA);
    const json_t *arms = arms_of(doc), *arm;
    size_t i;
    bool good = json_array_size(arms) > 0;
    json_array_foreach(arms, i, arm) good = good && has_samples(arm);
    if (!good)
        return err_set(e, ERR_FORMAT, "%s file: its samples are missing or damaged",
                       which);
    return 0;
}

static void put_pair(json_t *out, const char *name, const json_t *a, const json_t *b)
{
    json_t *pair = json_array();
    json_array_append_new(pair, a ? json_deep_copy(a) : json_null());
    json_array_append_new(pair, b ? json_deep_copy(b) : json_null());
    json_object_set_new(out, name, pair);
}

static void put_changed(json_t *out, const char *name, const json_t *a, const json_t *b)
{
    if ((a || b) && !(a && b && json_equal(a, b)))
        put_pair(out, name, a, b);
}

static void put_members(json_t *out, json_t *a, json_t *b)
{
    const char *name;
    json_t *v;
    json_object_foreach(a, name, v) put_changed(out, name, v, json_object_get(b, name));
    json_object_foreach(b, name, v) if (!json_object_get(a, name))
        put_changed(out, name, NULL, v);
}

static json_t *changed_settings(const json_t *a, const json_t *b)
{
    static const char *const names[] = {"version", "engine", "model", "stopped"};
    json_t *out = json_object();
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        put_changed(out, names[i], json_object_get(a, names[i]),
                    json_object_get(b, names[i]));
    put_members(out, json_object_get(a, "settings"), json_object_get(b, "settings"));
    put_members(out, json_object_get(a, "machine"), json_object_get(b, "machine"));
    return out;
}

static const json_t *series_of(const json_t *arm, const char *name)
{
    return json_object_get(json_object_get(arm, "samples"), name);
}

static bool equal_at(const json_t *a, const json_t *b, const char *name)
{
    return json_equal(json_object_get(a, name), json_object_get(b, name));
}

/* The same requests, if their numbers are the same. */
static bool same_workload(const json_t *a, const json_t *b)
{
    const json_t *x = json_object_get(a, "settings"), *y = json_object_get(b, "settings");
    return equal_at(x, y, "profile") && equal_at(x, y, "seed");
}

static double *values_of(const json_t *series, size_t *n)
{
    *n = json_array_size(series);
    double *v = mem_array(*n + 1, sizeof(*v));
    for (size_t i = 0; i < *n; i++) {
        const json_t *x = json_array_get(series, i);
        v[i] = json_is_number(x) ? json_number_value(x) : (double)NAN;
    }
    return v;
}

static json_t *contrasts_of(const json_t *a, const json_t *b, bool paired)
{
    json_t *out = json_object();
    for (const struct report_time *r = report_times; r->name; r++) {
        size_t n, m;
        double *v = values_of(series_of(a, r->name), &n),
               *w = values_of(series_of(b, r->name), &m);
        json_object_set_new(out, r->name, report_contrast(v, n, w, m, paired));
        free(v);
        free(w);
    }
    return out;
}

static json_t *figures_of(const json_t *a, const json_t *b)
{
    json_t *out = json_object();
    for (size_t i = 0; i < N_FIGURES; i++)
        put_pair(out, figures[i].name,
                 json_object_get(json_object_get(a, figures[i].object), figures[i].name),
                 json_object_get(json_object_get(b, figures[i].object), figures[i].name));
    return out;
}

static double real_at(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

/* Difference of two shares: Newcombe's interval of the two Wilson ones (1998, method 10).
 * Null where one of them is not known, or they are shares of different things. */
static json_t *good_of(const json_t *a, const json_t *b, bool same_limits)
{
    const json_t *x = json_object_get(a, "good"), *y = json_object_get(b, "good");
    const double p = real_at(x, "share"), q = real_at(y, "share"), d = q - p,
                 low = d - hypot(q - real_at(y, "low"), real_at(x, "high") - p),
                 high = d + hypot(real_at(y, "high") - q, p - real_at(x, "low"));
    if (!same_limits || isnan(low) || isnan(high))
        return json_null();
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:b}", "a", report_number(p), "b",
                     report_number(q), "difference", report_number(d), "low",
                     report_number(low), "high", report_number(high), "seen",
                     low > 0 || high < 0);
}

/* One arm of each document: a run, or a step. */
static json_t *compare_arms(const json_t *a, const json_t *b, const json_t *doc_a,
                            const json_t *doc_b)
{
    const bool paired = same_workload(doc_a, doc_b) &&
                        json_equal(series_of(a, "index"), series_of(b, "index")),
               same_limits = equal_at(json_object_get(doc_a, "settings"),
                                      json_object_get(doc_b, "settings"), "good");
    return json_pack("{s:b, s:o, s:o, s:o}", "paired", paired, "figures",
                     figures_of(a, b), "good", good_of(a, b, same_limits), "contrasts",
                     contrasts_of(a, b, paired));
}

/* The load of a step as it was asked for. */
static json_t *load_of(const json_t *step)
{
    const json_t *load = json_object_get(step, "load"),
                 *rate = json_object_get(load, "rate");
    return rate
               ? json_pack("{s:O}", "rate", rate)
               : json_pack("{s:O?}", "concurrency", json_object_get(load, "concurrency"));
}

static const json_t *step_with(const json_t *doc, const json_t *load)
{
    const json_t *steps = arms_of(doc), *step;
    size_t i;
    json_array_foreach(steps, i, step)
    {
        json_t *its = is_first(step) ? load_of(step) : NULL;
        const bool found = its && json_equal(its, load);
        json_decref(its);
        if (found)
            return step;
    }
    return NULL;
}

/* Steps of equal load; what only one of the two has is in `alone`. */
static json_t *compare_steps(const json_t *a, const json_t *b, json_t *alone)
{
    const json_t *docs[] = {a, b}, *step;
    json_t *out = json_array();
    size_t i;
    for (int k = 0; k < 2; k++)
        json_array_foreach(arms_of(docs[k]), i, step)
        {
            json_t *load = is_first(step) ? load_of(step) : NULL;
            const json_t *other = load ? step_with(docs[1 - k], load) : NULL;
            if (load && !other)
                json_array_append(alone, load);
            if (other && k == 0) {
                json_t *c = compare_arms(step, other, a, b);
                json_object_set(c, "load", load);
                json_array_append_new(out, c);
            }
            json_decref(load);
        }
    return out;
}

json_t *compare_documents(const json_t *a, const json_t *b, struct err *e)
{
    if (check(a, "first", e) || check(b, "second", e))
        return NULL;
    if (has_steps(a) != has_steps(b)) {
        err_set(e, ERR_MISMATCH,
                "one of the two has steps and the other has none: there is nothing to "
                "compare");
        return NULL;
    }
    json_t *out, *alone = json_array();
    if (has_steps(a)) {
        json_t *steps = compare_steps(a, b, alone);
        out = json_pack("{s:o, s:O}", "steps", steps, "alone", alone);
    } else {
        out = compare_arms(json_array_get(arms_of(a), 0), json_array_get(arms_of(b), 0),
                           a, b);
    }
    json_decref(alone);
    json_object_set_new(out, "settings", changed_settings(a, b));
    return out;
}

static void print_value(const json_t *v, FILE *out)
{
    char *text = json_is_null(v)
                     ? mem_strdup("-")
                     : json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(5));
    fprintf(out, "  %12s", text);
    free(text);
}

static void print_pairs(json_t *pairs, FILE *out)
{
    const char *name;
    json_t *pair;
    json_object_foreach(pairs, name, pair)
    {
        const char *words = name;
        for (size_t i = 0; i < N_FIGURES; i++)
            if (strcmp(figures[i].name, name) == 0)
                words = figures[i].words;
        fprintf(out, "  %-28s", words);
        print_value(json_array_get(pair, 0), out);
        print_value(json_array_get(pair, 1), out);
        fprintf(out, "\n");
    }
}

static void print_good(const json_t *good, FILE *out)
{
    if (!json_is_object(good))
        return;
    fprintf(out, "  %-28s  %10.1f %%  %10.1f %%  %+.1f, 95 %%: %+.1f to %+.1f%s\n",
            "good answers", 100 * real_at(good, "a"), 100 * real_at(good, "b"),
            100 * real_at(good, "difference"), 100 * real_at(good, "low"),
            100 * real_at(good, "high"),
            json_is_true(json_object_get(good, "seen")) ? "" : "  no difference seen");
}

static void print_arms(const json_t *c, FILE *out)
{
    fprintf(out, "one figure for each run, so without an interval:\n");
    print_pairs(json_object_get(c, "figures"), out);
    print_good(json_object_get(c, "good"), out);
    fprintf(out, "\n%s\n",
            json_is_true(json_object_get(c, "paired"))
                ? "The same requests, compared in pairs."
                : "Different requests, compared as a whole.");
    report_print_contrasts(json_object_get(c, "contrasts"), "first", "second", out);
}

static void print_load(const json_t *load, FILE *out)
{
    const double rate = real_at(load, "rate");
    fprintf(out, "%g %s", isnan(rate) ? real_at(load, "concurrency") : rate,
            isnan(rate) ? "under way" : "requests/s");
}

static void print_steps(const json_t *comparison, FILE *out)
{
    const json_t *c, *load;
    size_t i;
    json_array_foreach(json_object_get(comparison, "steps"), i, c)
    {
        fprintf(out, "\n---- ");
        print_load(json_object_get(c, "load"), out);
        fprintf(out, " ----\n");
        print_arms(c, out);
    }
    json_array_foreach(json_object_get(comparison, "alone"), i, load)
    {
        fprintf(out, "%s", i ? ", " : "\nin one of the two only: ");
        print_load(load, out);
    }
    if (i)
        fprintf(out, "\n");
}

void compare_print(const json_t *comparison, FILE *out)
{
    json_t *settings = json_object_get(comparison, "settings");
    if (json_object_size(settings)) {
        fprintf(out, "set up differently:\n");
        print_pairs(settings, out);
    }
    if (json_object_get(comparison, "steps"))
        print_steps(comparison, out);
    else
        print_arms(comparison, out);
}
