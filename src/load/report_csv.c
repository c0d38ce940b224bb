/* SPDX-License-Identifier: MIT */
#include "load/report.h"

#include <inttypes.h>
#include <math.h>

#include "base/err.h"

static void put_number(double value, FILE *out)
{
    fprintf(out, isnan(value) ? "," : ",%.3f", value);
}

static void put_count(int64_t value, FILE *out)
{
    if (value < 0)
        fprintf(out, ",");
    else
        fprintf(out, ",%" PRId64, value);
}

static void put_sample(const struct sample *s, const char *phase, size_t step,
                       unsigned arm, uint64_t begun_us, FILE *out)
{
    fprintf(out, "%s", phase);
    put_count(step ? (int64_t)step : -1, out);
    fprintf(out, ",%c,%" PRIu64, (char)('A' + arm), s->index);
    put_count(s->group == WORKLOAD_ALONE ? -1 : (int64_t)s->group, out);
    fprintf(out, ",%u,%s", s->turn, reading_outcome(s->outcome));
    put_count(s->status ? s->status : -1, out);
    fprintf(out, ",%s", s->error ? err_name(s->error) : "");
    put_number(((double)s->planned_us - (double)begun_us) / 1000, out);
    put_number(reading_lag_ms(s), out);
    for (const struct report_time *r = report_times; r->name; r++)
        put_number(r->of(s), out);
    put_number(reading_longest_ms(s), out);
    put_count((int64_t)s->content_events, out);
    put_count(s->in_tokens ? (int64_t)s->in_tokens : -1, out);
    put_count(s->in_tokens ? (int64_t)s->shared_tokens : -1, out);
    put_count(s->prompt_tokens, out);
    put_count(s->cached_tokens, out);
    put_count(s->output_tokens, out);
    fprintf(out, ",%s\n", s->kind ? kind_name((enum kind)s->kind) : "");
}

static void put_tally(const struct tally *t, const char *phase, size_t step, unsigned arm,
                      uint64_t begun_us, FILE *out)
{
    for (size_t i = 0; i < t->n; i++)
        put_sample(&t->samples[i], phase, step, arm, begun_us, out);
}

/* Times of both parts count from the beginning of the measured one. */
static void put_steps(const struct report_input *in, FILE *out)
{
    for (size_t i = 0; i < runner_steps(in->runner); i++)
        for (unsigned arm = 0; arm < RUNNER_ARMS; arm++) {
            const struct tally *t = runner_step_tally(in->runner, i, arm, true);
            put_tally(runner_step_tally(in->runner, i, arm, false), "settling", i + 1,
                      arm, t->begun_us, out);
            put_tally(t, "run", i + 1, arm, t->begun_us, out);
        }
}

static void put_phase(const struct report_input *in, bool warmup, FILE *out)
{
    for (unsigned arm = 0; arm < RUNNER_ARMS; arm++) {
        const struct tally *t = runner_tally(in->runner, arm, warmup);
        put_tally(t, warmup ? "warmup" : "run", 0, arm, t->begun_us, out);
    }
}

void report_csv(const struct report_input *in, FILE *out)
{
    fprintf(out,
            "phase,step,arm,index,group,turn,outcome,status,error,planned_ms,lag_ms");
    for (const struct report_time *r = report_times; r->name; r++)
        fprintf(out, ",%s", r->name);
    fprintf(out, ",longest_gap_ms,content_events,aimed_tokens,shared_tokens,"
                 "prompt_tokens,cached_tokens,output_tokens,class\n");
    put_phase(in, true, out);
    if (in->options->n_steps)
        put_steps(in, out);
    else
        put_phase(in, false, out);
}
