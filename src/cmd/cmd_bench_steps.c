/* SPDX-License-Identifier: MIT */
#include "cmd_bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "load/levels.h"

#define KNEE 0.95
#define SETTLE_PART 5 /* a fifth of what is measured */
#define LEAST_RATE 0.001
/* A closed loop begins with a burst, and each of it finds a shorter queue than all
 * behind: it has ended when as many have been sent again. */
#define BURSTS 2

static bool bad(const char *flag, const char *value, const char *wanted)
{
    fprintf(stderr, "incipit bench: %s: \"%s\" is no %s\n", flag, value, wanted);
    return false;
}

static bool is_list(const char *rate)
{
    return rate && (strchr(rate, ',') || strstr(rate, ".."));
}

static bool take_levels(const char *flag, const char *text, bool open,
                        struct bench_steps *s, struct runner_options *o)
{
    double levels[RUNNER_MAX_STEPS];
    struct err e = {0};
    if (levels_parse(text, open ? LEAST_RATE : 1,
                     open ? RUNNER_MAX_RATE : RUNNER_MAX_CONCURRENCY, levels,
                     RUNNER_MAX_STEPS, &s->n, &e)) {
        fprintf(stderr, "incipit bench: %s: %s\n", flag, e.text);
        return false;
    }
    for (size_t i = 0; i < s->n; i++) {
        if (!open && levels[i] != floor(levels[i]))
            return bad(flag, text, "list of whole numbers");
        s->steps[i].rate = open ? levels[i] : 0;
        s->steps[i].concurrency = open ? o->concurrency : (unsigned)levels[i];
        if (s->steps[i].concurrency > o->concurrency)
            o->concurrency = s->steps[i].concurrency;
    }
    return true;
}

/* "95%" or "0.95" as a share above 0. */
static bool take_share(const char *flag, const char *text, double *share)
{
    char *end = NULL;
    const double value = strtod(text, &end);
    const bool percent = end != text && strcmp(end, "%") == 0;
    *share = percent ? value / 100 : value;
    if (end == text || (*end && !percent) || !(*share > 0 && *share <= 1))
        return bad(flag, text, "share like 95%");
    return true;
}

static bool take_until(const char *text, double *share)
{
    static const char start[] = "good<";
    if (strncmp(text, start, sizeof(start) - 1) != 0)
        return bad("--until", text, "condition like good<50%");
    return take_share("--until", text + sizeof(start) - 1, share);
}

static bool take_settle(const char *text, struct bench_steps *s)
{
    uint64_t n = 0, ms = 0;
    if (!units_parse_count(text, &n) && !units_parse_ms(text, &ms))
        return bad("--settle", text, "number of requests, and no time like 30s");
    if (n > RUNNER_MAX_REQUESTS)
        return bad("--settle", text, "number up to 1000000");
    for (size_t i = 0; i < s->n; i++) {
        s->steps[i].settle = n;
        s->steps[i].settle_ms = ms;
    }
    s->settle_given = true;
    return true;
}

/* Flags that say something about steps only. */
static bool refuse_alone(const struct bench_step_flags *f)
{
    if (!f->settle && !f->knee && !f->until)
        return true;
    fprintf(stderr, "incipit bench: %s belongs to --steps, or to a list of rates\n",
            f->settle ? "--settle"
            : f->knee ? "--knee"
                      : "--until");
    return false;
}

bool cmd_bench_take_steps(const struct bench_step_flags *f, struct bench_steps *s,
                          struct runner_options *o)
{
    const bool open = is_list(f->rate);
    *s = (struct bench_steps){.knee = KNEE};
    if (f->steps && f->rate) {
        fprintf(stderr, "incipit bench: --steps and --rate exclude each other: a list of "
                        "rates has steps of its own\n");
        return false;
    }
    if (!f->steps && !open)
        return refuse_alone(f);
    if (!take_levels(open ? "--rate" : "--steps", open ? f->rate : f->steps, open, s,
                     o) ||
        (f->settle && !take_settle(f->settle, s)) ||
        (f->knee && !take_share("--knee", f->knee, &s->knee)) ||
        (f->until && !take_until(f->until, &s->until)))
        return false;
    o->steps = s->steps;
    o->n_steps = s->n;
    return true;
}

void cmd_bench_settle(struct bench_steps *s, const struct runner_options *o)
{
    if (s->settle_given)
        return;
    for (size_t i = 0; i < s->n; i++) {
        struct runner_step *step = &s->steps[i];
        const uint64_t part = o->requests / SETTLE_PART;
        step->settle = step->rate > 0 ? 0 : BURSTS * (uint64_t)step->concurrency;
        if (o->duration_ms)
            step->settle_ms = o->duration_ms / SETTLE_PART;
        else if (part > step->settle)
            step->settle = part;
    }
}

static double seconds_of(const struct runner_step *s, const struct runner_options *o,
                         double pace)
{
    const double n = (double)(s->settle + o->requests) * (o->url[1] ? 2 : 1),
                 clock = (double)(s->settle_ms + o->duration_ms) / 1e3,
                 work = n / (s->rate > 0 ? s->rate : pace);
    return o->duration_ms && !(work < clock) ? clock : work;
}

double cmd_bench_seconds_behind(const struct bench_steps *s,
                                const struct runner_options *o,
                                const struct runner_progress *p)
{
    const double pace =
        p->ended ? (double)p->ended * 1e6 / (double)p->elapsed_us : (double)NAN;
    double sum = 0;
    for (size_t i = p->warmup ? 0 : p->step + 1; i < s->n; i++)
        sum += seconds_of(&s->steps[i], o, pace);
    return sum;
}
