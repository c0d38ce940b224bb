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

static const json_t *arm_of(const json_t *doc)
{
    return json_array_get(json_object_get(doc, "arms"), 0);
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
    if (!has_samples(arm_of(doc)))
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

static const json_t *series_of(const json_t *doc, const char *name)
{
    return json_object_get(json_object_get(arm_of(doc), "samples"), name);
}

/* The same requests, by their numbers. */
static bool same_requests(const json_t *a, const json_t *b)
{
    const json_t *x = json_object_get(a, "settings"), *y = json_object_get(b, "settings");
    return json_equal(json_object_get(x, "profile"), json_object_get(y, "profile")) &&
           json_equal(json_object_get(x, "seed"), json_object_get(y, "seed")) &&
           json_equal(series_of(a, "index"), series_of(b, "index"));
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

json_t *compare_documents(const json_t *a, const json_t *b, struct err *e)
{
    if (check(a, "first", e) || check(b, "second", e))
        return NULL;
    const bool paired = same_requests(a, b);
    json_t *whole = json_object();
    for (size_t i = 0; i < N_FIGURES; i++)
        put_pair(whole, figures[i].name,
                 json_object_get(json_object_get(arm_of(a), figures[i].object),
                                 figures[i].name),
                 json_object_get(json_object_get(arm_of(b), figures[i].object),
                                 figures[i].name));
    return json_pack("{s:b, s:o, s:o, s:o}", "paired", paired, "settings",
                     changed_settings(a, b), "figures", whole, "contrasts",
                     contrasts_of(a, b, paired));
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

void compare_print(const json_t *comparison, FILE *out)
{
    json_t *settings = json_object_get(comparison, "settings");
    if (json_object_size(settings)) {
        fprintf(out, "set up differently:\n");
        print_pairs(settings, out);
    }
    fprintf(out, "one figure for each run, so without an interval:\n");
    print_pairs(json_object_get(comparison, "figures"), out);
    fprintf(out, "\n%s\n",
            json_is_true(json_object_get(comparison, "paired"))
                ? "The same requests, compared in pairs."
                : "Different requests, compared as a whole.");
    report_print_contrasts(json_object_get(comparison, "contrasts"), "first", "second",
                           out);
}
