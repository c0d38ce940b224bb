/* SPDX-License-Identifier: MIT */
#include "gateway/stats.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

static const char *const miss_names[STATS_MISS_KINDS] = {
#define X(name) name,
    STATS_MISSES(X)
#undef X
};

const char *stats_miss_name(size_t i)
{
    return i < STATS_MISS_KINDS ? miss_names[i] : "";
}

static void add_miss(struct figures *f, const char *miss)
{
    for (size_t i = 0; miss && i < STATS_MISS_KINDS; i++)
        if (strcmp(miss_names[i], miss) == 0)
            f->misses[i]++;
}

static uint64_t known(int64_t v)
{
    return v > 0 ? (uint64_t)v : 0;
}

/* Tokens count only where the engine told both figures of a whole answer. Less than a
 * block is what every prompt begins with: a slot has it whatever a restore did. */
static void add_tokens(struct figures *f, const struct stats_sample *s)
{
    const uint64_t prompt = known(s->prompt_tokens), cached = known(s->cached_tokens);
    f->counted++;
    f->hits += cached >= s->block_tokens;
    f->short_hits += cached > 0 && cached < s->block_tokens;
    f->prompt_tokens += prompt;
    f->delivered_tokens += cached;
    if (s->restored && cached >= s->block_tokens)
        f->restored_tokens += cached;
    else
        f->resident_tokens += cached;
    const uint64_t available = known(s->available), captured = known(s->captured);
    f->available_tokens += available < prompt ? available : prompt;
    f->captured_tokens += captured < prompt ? captured : prompt;
    f->generated_tokens += known(s->generated_tokens);
    if (s->ttft_ms >= 0)
        quantile_add(cached * 2 >= prompt ? &f->ttft_cached_ms : &f->ttft_cold_ms,
                     s->ttft_ms);
    if (!isnan(s->saved_ms))
        quantile_add(&f->saved_ms, s->saved_ms);
}

void stats_add(struct figures *f, const struct stats_sample *s)
{
    f->requests++;
    f->outcome[s->outcome]++;
    f->generations += s->generates;
    f->uninspected += s->uninspected;
    f->ineligible += s->ineligible;
    f->implausible += s->implausible;
    f->unterminated += s->unterminated;
    if (!s->generates)
        return;
    add_miss(f, s->miss);
    if (!s->without_cache && s->outcome == STATS_COMPLETED && s->prompt_tokens > 0 &&
        s->cached_tokens >= 0)
        add_tokens(f, s);
}

static double ratio(uint64_t a, uint64_t b)
{
    return b ? (double)a / (double)b : NAN;
}

double stats_hit_rate_tokens(const struct figures *f)
{
    return ratio(f->delivered_tokens, f->prompt_tokens);
}

double stats_hit_rate_requests(const struct figures *f)
{
    return ratio(f->hits, f->counted);
}

json_t *stats_real(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *quantiles_json(const struct quantile *q)
{
    return json_pack("{s:o,s:o,s:I}", "p50", stats_real(quantile_get(q, 0.5)), "p95",
                     stats_real(quantile_get(q, 0.95)), "n", (json_int_t)q->n);
}

json_t *stats_json(const struct figures *f)
{
    static const struct {
        const char *name;
        size_t at;
    } counts[] = {
#define COUNT(field) {#field, offsetof(struct figures, field)}
        COUNT(requests),         COUNT(generations),      COUNT(uninspected),
        COUNT(ineligible),       COUNT(counted),          COUNT(hits),
        COUNT(prompt_tokens),    COUNT(available_tokens), COUNT(captured_tokens),
        COUNT(delivered_tokens), COUNT(resident_tokens),  COUNT(restored_tokens),
        COUNT(generated_tokens), COUNT(implausible),      COUNT(unterminated),
        COUNT(short_hits),
#undef COUNT
    };
    static const char *const outcomes[STATS_OUTCOMES] = {
        "completed", "refused_by_engine", "client_gone", "upstream_failed", "rejected"};
    json_t *o = json_object(), *misses = json_object();
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        uint64_t v;
        memcpy(&v, (const char *)f + counts[i].at, sizeof(v));
        json_object_set_new(o, counts[i].name, json_integer((json_int_t)v));
    }
    for (size_t i = 0; i < STATS_OUTCOMES; i++)
        json_object_set_new(o, outcomes[i], json_integer((json_int_t)f->outcome[i]));
    for (size_t i = 0; i < STATS_MISS_KINDS; i++)
        json_object_set_new(misses, miss_names[i],
                            json_integer((json_int_t)f->misses[i]));
    json_object_set_new(o, "misses", misses);
    json_object_set_new(o, "hit_rate_tokens", stats_real(stats_hit_rate_tokens(f)));
    json_object_set_new(o, "hit_rate_requests", stats_real(stats_hit_rate_requests(f)));
    json_object_set_new(o, "ttft_cold_ms", quantiles_json(&f->ttft_cold_ms));
    json_object_set_new(o, "ttft_cached_ms", quantiles_json(&f->ttft_cached_ms));
    return o;
}
