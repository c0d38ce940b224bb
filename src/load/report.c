/* SPDX-License-Identifier: MIT */
#include "load/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/version.h"
#include "load/contrast.h"
#include "report_parts.h"

const struct report_time report_times[] = {
    {"ttft_ms", "first token, from sent", reading_ttft_ms},
    {"first_ms", "first token, from plan", reading_first_ms},
    {"total_ms", "whole answer, from plan", reading_total_ms},
    {"gap_ms", "between tokens, of a request", reading_gap_ms},
    {NULL, NULL, NULL},
};

json_t *report_number(double value)
{
    return isfinite(value) ? json_real(round(value * 1e6) / 1e6) : json_null();
}

static json_t *quantiles(double n, double p50, double p90, double p99)
{
    return json_pack("{s:I, s:o, s:o, s:o}", "n", (json_int_t)n, "p50",
                     report_number(p50), "p90", report_number(p90), "p99",
                     report_number(p99));
}

static json_t *quantiles_of(const struct tally *t, double (*of)(const struct sample *))
{
    size_t n;
    double *v = tally_values(t, of, &n);
    json_t *out = quantiles((double)n, tally_quantile(v, n, 0.5),
                            tally_quantile(v, n, 0.9), tally_quantile(v, n, 0.99));
    free(v);
    return out;
}

static json_t *all_quantiles(const struct tally *t)
{
    const struct spread *g = &t->gaps;
    json_t *out = json_object();
    for (const struct report_time *r = report_times; r->of != reading_gap_ms; r++)
        json_object_set_new(out, r->name, quantiles_of(t, r->of));
    json_object_set_new(out, "gaps_ms",
                        quantiles((double)g->n, spread_get(g, 0.5), spread_get(g, 0.9),
                                  spread_get(g, 0.99)));
    json_object_set_new(out, "lag_ms", quantiles_of(t, reading_lag_ms));
    return out;
}

/* ---- outcomes ---------------------------------------------------------------------- */

static void count_up(json_t *counts, const char *name)
{
    const json_int_t n = json_integer_value(json_object_get(counts, name));
    json_object_set_new(counts, name, json_integer(n + 1));
}

json_t *report_outcomes(const struct tally *t)
{
    json_t *statuses = json_object(), *errors = json_object();
    for (size_t i = 0; i < t->n; i++) {
        char status[16];
        snprintf(status, sizeof(status), "%d", t->samples[i].status);
        if (t->samples[i].outcome == SAMPLE_REFUSED)
            count_up(statuses, status);
        if (t->samples[i].outcome == SAMPLE_FAILED)
            count_up(errors, err_name(t->samples[i].error));
    }
    json_t *out = json_pack("{s:I}", "sent", (json_int_t)t->n);
    for (enum sample_outcome o = SAMPLE_PENDING; o <= SAMPLE_FAILED; o++)
        json_object_set_new(out, reading_outcome(o),
                            json_integer((json_int_t)tally_count(t, o)));
    json_object_set_new(out, "statuses", statuses);
    json_object_set_new(out, "errors", errors);
    return out;
}

/* ---- tokens ------------------------------------------------------------------------ */

struct token_sum {
    int64_t n, prompt_told, cached_told, output_told;
    int64_t prompt, cached, output; /* as the engine counted them */
    int64_t both;                   /* prompt tokens of those that told what was cached */
    int64_t aimed, shared;
};

static struct token_sum sum_tokens(const struct tally *t)
{
    struct token_sum k = {0};
    for (size_t i = 0; i < t->n; i++) {
        const struct sample *s = &t->samples[i];
        if (s->outcome != SAMPLE_COMPLETED)
            continue;
        k.n++;
        k.aimed += s->in_tokens;
        k.shared += s->shared_tokens;
        k.prompt_told += s->prompt_tokens >= 0;
        k.prompt += s->prompt_tokens >= 0 ? s->prompt_tokens : 0;
        k.output_told += s->output_tokens >= 0;
        k.output += s->output_tokens >= 0 ? s->output_tokens : 0;
        if (s->cached_tokens >= 0 && s->prompt_tokens >= 0) {
            k.cached_told++;
            k.cached += s->cached_tokens;
            k.both += s->prompt_tokens;
        }
    }
    return k;
}

static double ratio(int64_t part, int64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : (double)NAN;
}

static json_t *known(int64_t value, int64_t told)
{
    return told ? json_integer((json_int_t)value) : json_null();
}

static json_t *tokens(const struct token_sum *k)
{
    return json_pack(
        "{s:o, s:I, s:o, s:I, s:o, s:I, s:o, s:o, s:o}", "prompt",
        known(k->prompt, k->prompt_told), "prompt_told", (json_int_t)k->prompt_told,
        "cached", known(k->cached, k->cached_told), "cached_told",
        (json_int_t)k->cached_told, "output", known(k->output, k->output_told),
        "output_told", (json_int_t)k->output_told, "hit_rate",
        report_number(ratio(k->cached, k->both)), "aimed", known(k->aimed, k->aimed),
        "shared_rate", report_number(ratio(k->shared, k->aimed)));
}

/* ---- one arm ----------------------------------------------------------------------- */

/* What was completed between begin and end of the phase, whatever it is told with. */
struct yield {
    uint64_t n, good, told;
    int64_t output;
};

static void add_yield(struct yield *y, const struct tally *from, const struct tally *t,
                      const struct verdict_limits *l)
{
    for (size_t i = 0; i < from->n; i++) {
        const struct sample *s = &from->samples[i];
        if (s->outcome != SAMPLE_COMPLETED || s->end_us < t->begun_us ||
            s->end_us > t->ended_us)
            continue;
        y->n++;
        y->good += verdict_of(l, s) == 0;
        y->told += s->output_tokens >= 0;
        y->output += s->output_tokens >= 0 ? s->output_tokens : 0;
    }
}

static double a_second(double amount, double seconds)
{
    return seconds > 0 ? amount / seconds : (double)NAN;
}

static json_t *throughput(const struct tally *t, const struct tally *around,
                          const struct verdict_limits *l, double seconds)
{
    struct yield y = {0};
    add_yield(&y, t, t, l);
    if (around)
        add_yield(&y, around, t, l);
    return json_pack(
        "{s:o, s:o, s:o}", "requests_per_s",
        report_number(a_second((double)y.n, seconds)), "good_per_s",
        report_number(a_second((double)y.good, seconds)), "output_tokens_per_s",
        y.n && y.told == y.n ? report_number(a_second((double)y.output, seconds))
                             : json_null());
}

static json_t *good(const struct tally *t, const struct verdict_limits *l)
{
    struct verdict_count c = {0};
    double low, high;
    json_t *failed = json_object();
    verdict_add(&c, l, t);
    verdict_interval(&c, &low, &high);
    for (int by = 0; by < VERDICT_N; by++)
        json_object_set_new(failed, verdict_names[by],
                            json_integer((json_int_t)c.failed[by]));
    return json_pack("{s:I, s:I, s:o, s:o, s:o, s:o}", "n", (json_int_t)c.n, "good",
                     (json_int_t)c.good, "share", report_number(verdict_share(&c)), "low",
                     report_number(low), "high", report_number(high), "failed", failed);
}

static json_t *connections(const struct tally *t)
{
    json_int_t opened = 0, retried = 0;
    for (size_t i = 0; i < t->n; i++) {
        opened += t->samples[i].connects;
        retried += t->samples[i].retries;
    }
    return json_pack("{s:I, s:I}", "opened", opened, "retried", retried);
}

/* Times of each kind of requests, where there are several. */
static void put_kinds(json_t *arm, const struct tally *t)
{
    json_t *out = json_object();
    for (int k = KIND_NONE + 1; k < KINDS; k++) {
        struct tally one = tally_of_kind(t, (enum kind)k);
        if (one.n)
            json_object_set_new(out, kind_name((enum kind)k),
                                json_pack("{s:I, s:I, s:o}", "sent", (json_int_t)one.n,
                                          "completed",
                                          (json_int_t)tally_count(&one, SAMPLE_COMPLETED),
                                          "quantiles", all_quantiles(&one)));
        tally_free(&one);
    }
    if (json_object_size(out))
        json_object_set(arm, "classes", out);
    json_decref(out);
}

json_t *report_arm(const struct tally *t, const struct tally *around, json_t *resources,
                   const char *name, const struct verdict_limits *l)
{
    const struct token_sum k = sum_tokens(t);
    const double seconds = (double)(t->ended_us - t->begun_us) / 1e6;
    json_t *arm = json_pack(
        "{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:O?, s:o}", "arm", name, "seconds",
        report_number(seconds), "outcomes", report_outcomes(t), "connections",
        connections(t), "quantiles", all_quantiles(t), "throughput",
        throughput(t, around, l, seconds), "tokens", tokens(&k), "good", good(t, l),
        "resources", resources, "samples", report_samples(t));
    put_kinds(arm, t);
    return arm;
}

/* ---- two arms ---------------------------------------------------------------------- */

static json_t *figures(const struct contrast *c)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:b}", "a", report_number(c->a), "b",
                     report_number(c->b), "difference", report_number(c->difference),
                     "low", report_number(c->low), "high", report_number(c->high), "seen",
                     c->seen);
}

json_t *report_contrast(const double *a, size_t n_a, const double *b, size_t n_b,
                        bool paired)
{
    struct contrast_result r;
    contrast_of(a, n_a, b, n_b, paired, &r);
    if (!r.known)
        return json_null();
    return json_pack("{s:I, s:I, s:b, s:o, s:o}", "n_a", (json_int_t)r.n_a, "n_b",
                     (json_int_t)r.n_b, "paired", paired, "mean", figures(&r.mean),
                     "median", figures(&r.median));
}

/* Values by their number in the workload, NAN where there is none. */
static double *by_index(const struct tally *t, uint64_t first, size_t n,
                        double (*of)(const struct sample *))
{
    double *v = mem_array(n + 1, sizeof(*v));
    for (size_t i = 0; i < n; i++)
        v[i] = (double)NAN;
    for (size_t i = 0; i < t->n; i++)
        v[t->samples[i].index - first] = of(&t->samples[i]);
    return v;
}

static uint64_t first_of(const struct tally *t)
{
    return t->n ? t->samples[0].index : UINT64_MAX;
}

static uint64_t behind_last(const struct tally *t)
{
    return t->n ? t->samples[t->n - 1].index + 1 : 0;
}

json_t *report_contrasts(const struct tally *a, const struct tally *b)
{
    const uint64_t x = behind_last(a), y = behind_last(b), end = x > y ? x : y,
                   v0 = first_of(a), w0 = first_of(b), first = v0 < w0 ? v0 : w0;
    const size_t n = end > first ? (size_t)(end - first) : 0;
    json_t *out = json_object();
    for (const struct report_time *r = report_times; r->name; r++) {
        double *v = by_index(a, first, n, r->of), *w = by_index(b, first, n, r->of);
        json_object_set_new(out, r->name, report_contrast(v, n, w, n, true));
        free(v);
        free(w);
    }
    return out;
}

/* ---- all --------------------------------------------------------------------------- */

static json_t *limits(const struct verdict_limits *l)
{
    json_t *out = json_object();
    for (int by = VERDICT_TTFT; by < VERDICT_N; by++)
        if (l->ms[by] > 0)
            json_object_set_new(out, verdict_names[by], json_real(l->ms[by]));
    return out;
}

static json_t *settings(const struct report_input *in)
{
    const struct runner_options *o = in->options;
    const bool at_rate = (o->n_steps ? o->steps[0].rate : o->rate) > 0;
    json_t *out = json_pack(
        "{s:s, s:I, s:s, s:I, s:I, s:o, s:I, s:b, s:b, s:f, s:o}", "profile",
        workload_name(in->workload), "seed", (json_int_t)o->seed, "loop",
        at_rate || o->speed > 0 ? "open" : "closed", "concurrency",
        (json_int_t)o->concurrency, "requests", (json_int_t)o->requests, "duration_s",
        o->duration_ms ? json_real((double)o->duration_ms / 1000) : json_null(), "warmup",
        (json_int_t)o->warmup, "stream", in->stream, "keep_alive", o->keep_alive,
        "timeout_s", (double)o->timeout_ms / 1000, "good", limits(in->good));
    if (at_rate)
        json_object_set_new(out, "arrivals",
                            json_string(o->poisson ? "poisson" : "constant"));
    if (o->n_steps)
        report_step_settings(in, out);
    else if (at_rate)
        json_object_set_new(out, "rate", json_real(o->rate));
    if (o->speed > 0) {
        json_object_set_new(out, "speed", json_real(o->speed));
        json_object_set_new(out, "arrivals", json_string("trace"));
    }
    return out;
}

const char *const report_arm_names[RUNNER_ARMS] = {"A", "B"};

static json_t *arms(const struct report_input *in, bool warmup)
{
    json_t *out = json_array();
    for (unsigned i = 0; i < RUNNER_ARMS && in->options->url[i]; i++)
        json_array_append_new(out, report_arm(runner_tally(in->runner, i, warmup), NULL,
                                              runner_resources(in->runner, i, warmup),
                                              report_arm_names[i], in->good));
    return out;
}

json_t *report_json(const struct report_input *in)
{
    json_t *out = json_pack(
        "{s:s, s:s, s:s?, s:s?, s:o, s:o, s:b}", "schema", REPORT_SCHEMA, "version",
        INCIPIT_VERSION, "engine", in->engine, "model", in->model, "settings",
        settings(in), "machine", usage_machine(), "stopped", runner_stopped(in->runner));
    const bool steps = in->options->n_steps > 0;
    json_object_set_new(out, "warmup",
                        in->options->warmup ? arms(in, true) : json_null());
    json_object_set_new(out, "arms", steps ? json_array() : arms(in, false));
    if (steps)
        report_put_steps(in, out);
    else if (in->options->url[1])
        json_object_set_new(out, "contrasts",
                            report_contrasts(runner_tally(in->runner, 0, false),
                                             runner_tally(in->runner, 1, false)));
    if (in->agree)
        json_object_set_new(out, "output", agree_json(in->agree));
    return out;
}

bool report_is(const json_t *doc)
{
    const char *schema = json_string_value(json_object_get(doc, "schema"));
    return schema && strcmp(schema, REPORT_SCHEMA) == 0;
}
