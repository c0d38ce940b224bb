/* SPDX-License-Identifier: MIT */
#include "gateway/measure.h"

#include <math.h>

#include "gateway/stats.h"

static const char confirmed_method[] = "cold model of this engine less measured time to "
                                       "first token, over hits that no other "
                                       "prefill overlapped; 95 % prediction interval";
static const char measured_method[] = "randomised hold-out, balanced within groups of "
                                      "prompts that start alike and adjusted "
                                      "to equal length; 95 % bootstrap-t interval";

static double saved_ms(struct ttft_model *model, const struct measure_request *rq)
{
    struct ttft_estimate cold;
    if (rq->cached_tokens < 1 || !ttft_predict(model, 0, rq->prompt_tokens, &cold) ||
        cold.extrapolated)
        return NAN;
    return cold.ms - rq->ttft_ms;
}

double measure_add(struct measure *m, struct ttft_model *model, struct holdout *h,
                   const struct measure_request *rq)
{
    const double fresh = rq->prompt_tokens - rq->cached_tokens;
    const double ms = rq->ttft_ms - rq->before_ms;
    const bool hit = rq->cached_tokens >= rq->block_tokens;
    const enum savings_source source = !hit           ? SAVINGS_COLD
                                       : rq->restored ? SAVINGS_RESTORED
                                                      : SAVINGS_RESIDENT;
    if (rq->ttft_ms < 0) {
        m->unknown += hit;
        return NAN;
    }
    if (rq->drawn)
        holdout_add(h, rq->group, rq->held_out, rq->prompt_tokens, rq->ttft_ms);
    if (rq->overlapped) {
        m->overlapped += hit;
        return NAN;
    }
    ttft_add(model, rq->cached_tokens, fresh, ms);
    savings_add(&m->confirmed, source, rq->cached_tokens, fresh, ms, rq->before_ms);
    return saved_ms(model, rq);
}

/* ---- telling ----------------------------------------------------------------------- */

static json_t *total_json(const struct savings_total *t)
{
    return json_pack("{s:I,s:o,s:o,s:o,s:I}", "n", (json_int_t)t->n, "saved_ms",
                     stats_real(t->ms), "low", stats_real(t->low), "high",
                     stats_real(t->high), "unjudged", (json_int_t)t->unjudged);
}

void measure_sum_add(struct measure_sum *sum, struct measure *m)
{
    for (int i = 0; i < SAVINGS_SOURCES; i++) {
        struct savings_total t;
        savings_total(&m->confirmed, (enum savings_source)i, &t);
        savings_total_add(&sum->by[i], &t);
    }
    sum->unknown += m->unknown;
    sum->overlapped += m->overlapped;
}

static json_t *confirmed_json(const struct measure_sum *sum)
{
    json_t *o = total_json(&sum->by[SAVINGS_COLD]);
    json_object_set_new(o, "resident", total_json(&sum->by[SAVINGS_RESIDENT]));
    json_object_set_new(o, "restored", total_json(&sum->by[SAVINGS_RESTORED]));
    json_object_set_new(o, "overlapped", json_integer((json_int_t)sum->overlapped));
    json_object_set_new(o, "without_ttft", json_integer((json_int_t)sum->unknown));
    json_object_set_new(o, "method", json_string(confirmed_method));
    return o;
}

static json_t *measured_json(struct holdout *h, double share)
{
    struct holdout_result r;
    holdout_result(h, &r);
    return json_pack("{s:f,s:I,s:I,s:I,s:i,s:o,s:o,s:o,s:o,s:o,s:s}", "share", share,
                     "n_cold", (json_int_t)r.n_cold, "n_cached", (json_int_t)r.n_cached,
                     "waiting", (json_int_t)r.waiting, "groups", (int)r.groups, "cold_ms",
                     stats_real(r.cold_ms), "cached_ms", stats_real(r.cached_ms),
                     "saved_ms_per_request", stats_real(r.saved_ms), "low",
                     stats_real(r.low), "high", stats_real(r.high), "method",
                     measured_method);
}

json_t *measure_sum_json(const struct measure_sum *sum)
{
    return json_pack("{s:o}", "confirmed", confirmed_json(sum));
}

json_t *measure_json(struct measure *m, struct holdout *h, double share)
{
    struct measure_sum sum = {.unknown = 0};
    measure_sum_add(&sum, m);
    json_t *o = measure_sum_json(&sum);
    json_object_set_new(o, "measured", share > 0 ? measured_json(h, share) : json_null());
    return o;
}
