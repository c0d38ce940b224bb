/* SPDX-License-Identifier: MIT */

/* What is sent, and when: the flags of profiles and files. */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "cmd_bench.h"

#define MIN_SPEED 0.001
#define MAX_SPEED 1000.0

static bool bad(const char *flag, const char *value, const char *wanted)
{
    fprintf(stderr, "incipit bench: %s: \"%s\" is no %s\n", flag, value, wanted);
    return false;
}

static bool exclude(const char *a, const char *b)
{
    fprintf(stderr, "incipit bench: %s and %s exclude each other\n", a, b);
    return false;
}

/* A number, or one over another: "0.125", "1/8". Unchanged where there is none. */
static bool take_ratio(const char *flag, const char *text, double least, double most,
                       double *out)
{
    char wanted[80], *end = NULL;
    const char *rest = text;
    double under = 1;
    if (!text)
        return true;
    double value = strtod(rest, &end);
    bool good = end != rest;
    if (good && *end == '/') {
        rest = end + 1;
        under = strtod(rest, &end);
        good = end != rest;
    }
    value /= under;
    snprintf(wanted, sizeof(wanted), "number from %g to %g", least, most);
    if (!good || *end || !(value >= least && value <= most))
        return bad(flag, text, wanted);
    *out = value;
    return true;
}

static bool take_count(const char *flag, const char *text, uint32_t most, uint32_t *out)
{
    char wanted[80];
    uint64_t n = 0;
    snprintf(wanted, sizeof(wanted), "number from 1 to %" PRIu32, most);
    if (text && (!units_parse_count(text, &n) || n < 1 || n > most))
        return bad(flag, text, wanted);
    *out = (uint32_t)n;
    return true;
}

/* Whether the input has times shows later. */
static bool take_arrivals(const struct bench_input_flags *f, struct runner_options *o)
{
    static const char *const kinds[] = {"poisson", "constant", "trace", "none"};
    size_t k = 0;
    while (f->arrivals && k < 4 && strcmp(f->arrivals, kinds[k]) != 0)
        k++;
    if (k == 4)
        return bad("--arrivals", f->arrivals, "kind: poisson, constant, trace, none");
    o->poisson = k == 0;
    if (f->rate && k >= 2)
        return exclude("--rate", k == 2 ? "--arrivals trace" : "--arrivals none");
    if (f->steps && k == 2)
        return exclude("--steps", "--arrivals trace");
    if (f->speed && (f->rate || f->steps || k == 3))
        return exclude(f->rate    ? "--rate"
                       : f->steps ? "--steps"
                                  : "--arrivals none",
                       "--speed");
    return take_ratio("--speed", f->speed, MIN_SPEED, MAX_SPEED, &o->speed);
}

bool cmd_bench_take_input(const struct bench_input_flags *f, struct workload_options *w,
                          struct runner_options *o)
{
    if (f->profile && f->input)
        return exclude("--profile", "--input");
    w->profile = f->profile;
    w->file = f->input;
    return take_count("--at-once", f->at_once, WORKLOAD_MAX_AT_ONCE, &w->at_once) &&
           take_count("--max-tokens", f->max_tokens, WORKLOAD_MAX_TOKENS,
                      &w->max_tokens) &&
           take_ratio("--scale", f->scale, WORKLOAD_MIN_SCALE, WORKLOAD_MAX_SCALE,
                      &w->scale) &&
           take_arrivals(f, o);
}

/* A trace is sent at its times, unless somebody says otherwise. */
int cmd_bench_choose_times(const struct bench_input_flags *f, const struct workload *w,
                           struct runner_options *o, struct err *e)
{
    const bool timed = workload_timed(w);
    if (!timed && (f->speed || (f->arrivals && strcmp(f->arrivals, "trace") == 0)))
        return err_set(e, ERR_INVALID, "%s is for a trace with times (--input)",
                       f->speed ? "--speed" : "--arrivals trace");
    if (!timed || f->rate || f->steps ||
        (f->arrivals && strcmp(f->arrivals, "none") == 0))
        return 0;
    if (!f->speed)
        o->speed = 1;
    if (!f->concurrency)
        o->concurrency = BENCH_OPEN_CONCURRENCY;
    return 0;
}
