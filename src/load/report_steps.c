/* SPDX-License-Identifier: MIT */
#include "report_parts.h"

#include <math.h>

static bool is_open(const struct runner_step *s)
{
    return s->rate > 0;
}

static json_t *level(const struct runner_step *s)
{
    return is_open(s) ? json_real(s->rate) : json_integer((json_int_t)s->concurrency);
}

void report_step_settings(const struct report_input *in, json_t *settings)
{
    const struct runner_options *o = in->options;
    json_t *levels = json_array(), *settle = json_array();
    for (size_t i = 0; i < o->n_steps; i++) {
        json_array_append_new(levels, level(&o->steps[i]));
        json_array_append_new(settle, json_integer((json_int_t)o->steps[i].settle));
    }
    json_object_set_new(settings, "steps", levels);
    json_object_set_new(settings, "settle", settle);
    json_object_set_new(settings, "settle_s",
                        json_real((double)o->steps[0].settle_ms / 1000));
    json_object_set_new(settings, "knee", json_real(in->knee));
    json_object_set_new(settings, "until",
                        in->until > 0 ? json_real(in->until) : json_null());
}

/* Requests a second that were planned in fact: a Poisson process has its own idea. */
static double offered(const struct tally *t)
{
    const struct sample *first = t->samples, *last = t->samples + t->n - 1;
    if (t->n < 2 || last->planned_us <= first->planned_us)
        return (double)NAN;
    return (double)(t->n - 1) * 1e6 / (double)(last->planned_us - first->planned_us);
}

static json_t *load_of(const struct runner_step *s, const struct tally *t)
{
    if (is_open(s))
        return json_pack("{s:f, s:o}", "rate", s->rate, "offered_per_s",
                         report_number(offered(t)));
    return json_pack("{s:I}", "concurrency", (json_int_t)s->concurrency);
}

static json_t *settling(const struct tally *around)
{
    const double seconds = (double)(around->ended_us - around->begun_us) / 1e6;
    return json_pack("{s:o, s:o}", "step_seconds", report_number(seconds), "outcomes",
                     report_outcomes(around));
}

static json_t *step_of(const struct report_input *in, size_t i, unsigned arm)
{
    const struct tally *t = runner_step_tally(in->runner, i, arm, true),
                       *around = runner_step_tally(in->runner, i, arm, false);
    json_t *out = json_pack("{s:I, s:o}", "step", (json_int_t)(i + 1), "load",
                            load_of(&in->options->steps[i], t)),
           *figures = report_arm(t, around, runner_step_resources(in->runner, i, arm),
                                 report_arm_names[arm], in->good);
    json_object_update(out, figures);
    json_decref(figures);
    json_object_set_new(out, "settling", settling(around));
    return out;
}

/* The highest of the steps with enough good answers. */
static json_t *knee_of(const struct report_input *in, unsigned arm)
{
    const struct runner_step *steps = in->options->steps;
    const size_t n = runner_steps(in->runner);
    size_t best = n;
    for (size_t i = 0; i < n; i++) {
        struct verdict_count c = {0};
        verdict_add(&c, in->good, runner_step_tally(in->runner, i, arm, true));
        if (verdict_share(&c) >= in->knee &&
            (best == n || steps[i].rate > steps[best].rate ||
             steps[i].concurrency > steps[best].concurrency))
            best = i;
    }
    json_t *out =
        json_pack("{s:s, s:f}", "arm", report_arm_names[arm], "share", in->knee);
    json_object_set_new(out, "step",
                        best < n ? json_integer((json_int_t)best + 1) : json_null());
    json_object_set_new(
        out, "load",
        best < n ? load_of(&steps[best], runner_step_tally(in->runner, best, arm, true))
                 : json_null());
    return out;
}

void report_put_steps(const struct report_input *in, json_t *doc)
{
    const bool two = in->options->url[1] != NULL;
    json_t *steps = json_array(), *knees = json_array(), *contrasts = json_array();
    for (size_t i = 0; i < runner_steps(in->runner); i++) {
        for (unsigned arm = 0; arm <= (two ? 1u : 0u); arm++)
            json_array_append_new(steps, step_of(in, i, arm));
        if (two)
            json_array_append_new(
                contrasts, report_contrasts(runner_step_tally(in->runner, i, 0, true),
                                            runner_step_tally(in->runner, i, 1, true)));
    }
    for (unsigned arm = 0; arm <= (two ? 1u : 0u); arm++)
        json_array_append_new(knees, knee_of(in, arm));
    json_object_set_new(doc, "steps", steps);
    json_object_set_new(doc, "knee", knees);
    if (two)
        json_object_set_new(doc, "step_contrasts", contrasts);
    else
        json_decref(contrasts);
}
