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

static void put_sample(const struct sample *s, const char *phase, unsigned arm,
                       uint64_t begun_us, FILE *out)
{
    fprintf(out, "%s,%c,%" PRIu64, phase, (char)('A' + arm), s->index);
    put_count(s->group == WORKLOAD_ALONE ? -1 : (int64_t)s->group, out);
    fprintf(out, ",%u,%s", s->turn, reading_outcome(s->outcome));
    put_count(s->status ? s->status : -1, out);
    fprintf(out, ",%s", s->error ? err_name(s->error) : "");
    put_number((double)(s->planned_us - begun_us) / 1000, out);
    put_number(reading_lag_ms(s), out);
    for (const struct report_time *r = report_times; r->name; r++)
        put_number(r->of(s), out);
    put_count((int64_t)s->content_events, out);
    put_count(s->in_tokens ? (int64_t)s->in_tokens : -1, out);
    put_count(s->in_tokens ? (int64_t)s->shared_tokens : -1, out);
    put_count(s->prompt_tokens, out);
    put_count(s->cached_tokens, out);
    put_count(s->output_tokens, out);
    fprintf(out, "\n");
}

void report_csv(const struct report_input *in, FILE *out)
{
    fprintf(out, "phase,arm,index,group,turn,outcome,status,error,planned_ms,lag_ms");
    for (const struct report_time *r = report_times; r->name; r++)
        fprintf(out, ",%s", r->name);
    fprintf(out, ",content_events,aimed_tokens,shared_tokens,prompt_tokens,"
                 "cached_tokens,output_tokens\n");
    for (int warmup = 1; warmup >= 0; warmup--)
        for (unsigned arm = 0; arm < RUNNER_ARMS; arm++) {
            const struct tally *t = runner_tally(in->runner, arm, warmup);
            for (size_t i = 0; i < t->n; i++)
                put_sample(&t->samples[i], warmup ? "warmup" : "run", arm, t->begun_us,
                           out);
        }
}
