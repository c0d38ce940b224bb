/* SPDX-License-Identifier: MIT */
#include "gateway/admin.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/*
 * Prometheus text format 0.0.4. One row a metric; docs/metrics.md has the same rows
 * (`make lint` compares). Base units: seconds, bytes, tokens. What the engine confirmed
 * and what was predicted have different names.
 */

/* A count in one of the structs of a target. */
struct count_row {
    const char *name, *help;
    size_t at; /* of a uint64_t */
};

#define AT(field) offsetof(struct figures, field)
static const struct count_row figures_rows[] = {
    {"incipit_requests_total", "Requests finished.", AT(requests)},
    {"incipit_generations_total", "Requests that generate.", AT(generations)},
    {"incipit_uninspected_total", "Generations whose body was not read.",
     AT(uninspected)},
    {"incipit_ineligible_total", "Generations barred from caching.", AT(ineligible)},
    {"incipit_counted_total", "Completed, with the engine's own token counts.",
     AT(counted)},
    {"incipit_hits_total", "Counted requests that reused at least a block.", AT(hits)},
    {"incipit_short_hits_total",
     "Counted requests that reused something, and less than a block.", AT(short_hits)},
    {"incipit_prompt_tokens_total", "Prompt tokens of counted requests.",
     AT(prompt_tokens)},
    {"incipit_available_tokens_total", "Predicted: shared with an earlier prompt.",
     AT(available_tokens)},
    {"incipit_captured_tokens_total", "Predicted: promised by the plan.",
     AT(captured_tokens)},
    {"incipit_delivered_tokens_total", "Confirmed: reused by the engine.",
     AT(delivered_tokens)},
    {"incipit_resident_tokens_total", "Delivered that the engine still had.",
     AT(resident_tokens)},
    {"incipit_restored_tokens_total", "Delivered after blocks had been put back.",
     AT(restored_tokens)},
    {"incipit_generated_tokens_total", "Tokens generated.", AT(generated_tokens)},
    {"incipit_implausible_total", "Answers with impossible token counts.",
     AT(implausible)},
    {"incipit_unterminated_total", "Whole streams without a terminal event.",
     AT(unterminated)},
};
#undef AT

static void put_head(struct buf *out, const char *name, const char *type,
                     const char *help)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Label values are names of replicas: escape what the format asks for. */
static void put_label(struct buf *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            buf_append_char(out, '\\');
        buf_append_char(out, *s == '\n' ? ' ' : *s);
    }
}

static void put_value(struct buf *out, const char *name, const struct replica *r,
                      const char *label, const char *value, uint64_t n)
{
    buf_printf(out, "%s{replica=\"", name);
    put_label(out, r->name);
    buf_append_char(out, '"');
    if (label)
        buf_printf(out, ",%s=\"%s\"", label, value);
    buf_printf(out, "} %" PRIu64 "\n", n);
}

static const void *figures_of(const struct request_target *t)
{
    return &t->figures;
}

static const void *counters_of(const struct request_target *t)
{
    return &t->replica->n;
}

static const void *scratch_of(const struct request_target *t)
{
    return &t->replica->scratch;
}

static void put_counts(const struct request_world *w, struct buf *out, const char *type,
                       const struct count_row *rows, size_t n_rows,
                       const void *(*of)(const struct request_target *t))
{
    for (size_t i = 0; i < n_rows; i++) {
        put_head(out, rows[i].name, type, rows[i].help);
        for (size_t k = 0; k < w->n_targets; k++) {
            uint64_t v;
            memcpy(&v, (const char *)of(w->targets[k]) + rows[i].at, sizeof(v));
            put_value(out, rows[i].name, w->targets[k]->replica, NULL, NULL, v);
        }
    }
}

static void put_outcomes(const struct request_world *w, struct buf *out)
{
    static const char *const outcomes[STATS_OUTCOMES] = {
        "completed", "refused_by_engine", "client_gone", "upstream_failed", "rejected"};
    put_head(out, "incipit_outcomes_total", "counter", "Requests finished, by outcome.");
    for (size_t k = 0; k < w->n_targets; k++)
        for (size_t i = 0; i < STATS_OUTCOMES; i++)
            put_value(out, "incipit_outcomes_total", w->targets[k]->replica, "outcome",
                      outcomes[i], w->targets[k]->figures.outcome[i]);
    put_head(out, "incipit_misses_total", "counter",
             "Generations without reuse, by reason.");
    for (size_t k = 0; k < w->n_targets; k++)
        for (size_t i = 0; i < STATS_MISS_KINDS; i++)
            put_value(out, "incipit_misses_total", w->targets[k]->replica, "reason",
                      stats_miss_name(i), w->targets[k]->figures.misses[i]);
}

static void put_summary(const struct request_world *w, struct buf *out, const char *name,
                        const char *help, size_t at)
{
    static const double ps[] = {0.5, 0.95};
    put_head(out, name, "summary", help);
    for (size_t k = 0; k < w->n_targets; k++) {
        const struct replica *r = w->targets[k]->replica;
        const struct quantile *q =
            (const void *)((const char *)&w->targets[k]->figures + at);
        for (size_t i = 0; i < 2; i++) {
            const double v = quantile_get(q, ps[i]);
            buf_printf(out, "%s{replica=\"", name);
            put_label(out, r->name);
            buf_printf(out, "\",quantile=\"%g\"} ", ps[i]);
            if (isnan(v))
                buf_append_str(out, "NaN\n");
            else
                buf_printf(out, "%.6f\n", v / 1e3);
        }
        buf_printf(out, "%s_sum{replica=\"", name);
        put_label(out, r->name);
        buf_printf(out, "\"} %.6f\n%s_count{replica=\"", q->sum / 1e3, name);
        put_label(out, r->name);
        buf_printf(out, "\"} %" PRIu64 "\n", q->n);
    }
}

static void put_scratch(const struct request_world *w, struct buf *out)
{
#define AT(field) offsetof(struct replica_scratch, field)
    static const struct count_row rows[] = {
        {"incipit_scratch_size_bytes", "File system of the slot directory.", AT(size)},
        {"incipit_scratch_free_bytes", "Room in it, when looked at last.", AT(free)},
        {"incipit_scratch_wanted_bytes", "A full slot for each, and one more.",
         AT(wanted)},
    };
#undef AT
    put_counts(w, out, "gauge", rows, sizeof(rows) / sizeof(rows[0]), scratch_of);
}

static void put_seconds(struct buf *out, const char *name, const struct replica *r,
                        const char *source, double ms)
{
    buf_printf(out, "%s{replica=\"", name);
    put_label(out, r->name);
    buf_append_char(out, '"');
    if (source)
        buf_printf(out, ",source=\"%s\"", source);
    if (isfinite(ms))
        buf_printf(out, "} %.6f\n", ms / 1e3);
    else
        buf_append_str(out, "} NaN\n");
}

/* A figure in ms of one of these. */
struct real_row {
    const char *name, *help;
    size_t at; /* of a double */
};

/* What each replica has saved, worked out once a page. */
struct gains {
    struct savings_total confirmed[SAVINGS_SOURCES];
    struct holdout_result measured;
};

static struct gains *work_out_gains(const struct request_world *w)
{
    struct gains *all = mem_array(w->n_targets, sizeof(*all));
    for (size_t k = 0; k < w->n_targets; k++) {
        struct request_target *t = w->targets[k];
        for (int i = 0; i < SAVINGS_SOURCES; i++)
            savings_total(&t->measure.confirmed, (enum savings_source)i,
                          &all[k].confirmed[i]);
        holdout_result(t->replica->holdout, &all[k].measured);
    }
    return all;
}

static void put_confirmed(const struct request_world *w, const struct gains *all,
                          struct buf *out)
{
    static const char *const sources[SAVINGS_SOURCES] = {"all", "resident", "restored"};
#define AT(field) offsetof(struct savings_total, field)
    static const struct real_row rows[] = {
        {"incipit_savings_confirmed_seconds", "TTFT saved: cold model less measured.",
         AT(ms)},
        {"incipit_savings_confirmed_low_seconds", "Low end of its 95 % interval.",
         AT(low)},
        {"incipit_savings_confirmed_high_seconds", "High end of its 95 % interval.",
         AT(high)},
    };
#undef AT
    put_head(out, "incipit_savings_confirmed_requests", "gauge",
             "Hits that these savings are of.");
    for (size_t k = 0; k < w->n_targets; k++)
        for (int i = 0; i < SAVINGS_SOURCES; i++)
            put_value(out, "incipit_savings_confirmed_requests", w->targets[k]->replica,
                      "source", sources[i], all[k].confirmed[i].n);
    for (size_t row = 0; row < sizeof(rows) / sizeof(rows[0]); row++) {
        put_head(out, rows[row].name, "gauge", rows[row].help);
        for (size_t k = 0; k < w->n_targets; k++)
            for (int i = 0; i < SAVINGS_SOURCES; i++) {
                double ms;
                memcpy(&ms, (const char *)&all[k].confirmed[i] + rows[row].at,
                       sizeof(ms));
                put_seconds(out, rows[row].name, w->targets[k]->replica, sources[i], ms);
            }
    }
}

static void put_measured(const struct request_world *w, const struct gains *all,
                         struct buf *out)
{
#define AT(field) offsetof(struct holdout_result, field)
    static const struct real_row rows[] = {
        {"incipit_savings_measured_seconds",
         "TTFT saved a request: hold-out less others.", AT(saved_ms)},
        {"incipit_savings_measured_low_seconds", "Low end of its 95 % interval.",
         AT(low)},
        {"incipit_savings_measured_high_seconds", "High end of its 95 % interval.",
         AT(high)},
    };
#undef AT
    put_head(out, "incipit_savings_measured_requests", "gauge",
             "Requests that are compared, by arm.");
    for (size_t k = 0; k < w->n_targets; k++) {
        const struct replica *r = w->targets[k]->replica;
        put_value(out, "incipit_savings_measured_requests", r, "arm", "cold",
                  all[k].measured.n_cold);
        put_value(out, "incipit_savings_measured_requests", r, "arm", "cached",
                  all[k].measured.n_cached);
    }
    for (size_t row = 0; row < sizeof(rows) / sizeof(rows[0]); row++) {
        put_head(out, rows[row].name, "gauge", rows[row].help);
        for (size_t k = 0; k < w->n_targets; k++) {
            double ms;
            memcpy(&ms, (const char *)&all[k].measured + rows[row].at, sizeof(ms));
            put_seconds(out, rows[row].name, w->targets[k]->replica, NULL, ms);
        }
    }
}

static void put_gains(const struct request_world *w, struct buf *out)
{
    struct gains *all = work_out_gains(w);
    put_confirmed(w, all, out);
    put_measured(w, all, out);
    free(all);
}

/* Numbers that a name once had are kept. */
static uint64_t mode_number(enum replica_mode m)
{
    return m == REPLICA_STORE ? 3 : m == REPLICA_RECOVERING ? 4 : (uint64_t)m;
}

static void put_replicas(const struct request_world *w, struct buf *out)
{
    static const struct count_row rows[] = {
#define AT(field) offsetof(struct replica_counters, field)
        {"incipit_restores_total", "Restores done.", AT(restores)},
        {"incipit_saves_total", "Slots saved into blocks.", AT(saves)},
        {"incipit_save_failures_total", "Saves that failed.", AT(save_failures)},
        {"incipit_engine_restarts_total", "Restarts noticed.", AT(restarts)},
#undef AT
    };
    put_counts(w, out, "counter", rows, sizeof(rows) / sizeof(rows[0]), counters_of);
    put_head(out, "incipit_restore_failures_total", "counter", "Restores that failed.");
    for (size_t k = 0; k < w->n_targets; k++)
        for (size_t i = 0; i < RESTORE_FAILURE_KINDS; i++)
            put_value(out, "incipit_restore_failures_total", w->targets[k]->replica,
                      "reason", restore_failure_name((enum restore_failure)i),
                      w->targets[k]->replica->n.restore_failures[i]);
    put_head(out, "incipit_saves_skipped_total", "counter", "Slots that were not saved.");
    for (size_t k = 0; k < w->n_targets; k++)
        for (size_t i = 0; i < SAVE_SKIP_KINDS; i++)
            put_value(out, "incipit_saves_skipped_total", w->targets[k]->replica,
                      "reason", save_skip_name((enum save_skip)i),
                      w->targets[k]->replica->n.saves_skipped[i]);
    put_scratch(w, out);
    put_head(out, "incipit_replica_mode", "gauge",
             "0 down, 1 starting, 2 observe, 3 store, 4 recovering.");
    for (size_t k = 0; k < w->n_targets; k++)
        put_value(out, "incipit_replica_mode", w->targets[k]->replica, NULL, NULL,
                  mode_number(w->targets[k]->replica->mode));
    put_head(out, "incipit_replica_in_flight", "gauge", "Requests with this replica.");
    for (size_t k = 0; k < w->n_targets; k++)
        put_value(out, "incipit_replica_in_flight", w->targets[k]->replica, NULL, NULL,
                  w->targets[k]->replica->in_flight);
}

static void put_one(struct buf *out, const char *name, const char *type, const char *help,
                    uint64_t n)
{
    put_head(out, name, type, help);
    buf_printf(out, "%s %" PRIu64 "\n", name, n);
}

static void put_cache(struct cache *c, struct buf *out)
{
    struct tree_stats t;
    struct index_stats x;
    struct store_stats s;
    tree_stats(cache_tree(c), &t);
    index_stats(cache_index(c), &x);
    store_stats(cache_store(c), &s);
    put_one(out, "incipit_tree_blocks", "gauge", "Blocks known.", t.blocks);
    put_one(out, "incipit_tree_bytes", "gauge", "Bytes of their rows.", t.bytes);
    put_one(out, "incipit_tree_evicted_total", "counter", "Blocks evicted.", t.evicted);
    put_one(out, "incipit_index_entries", "gauge", "Prompt boundaries known.", x.entries);
    put_one(out, "incipit_index_bytes", "gauge", "Memory of the prompt index.", x.bytes);
    put_one(out, "incipit_store_ram_bytes", "gauge", "Bytes of blocks in RAM.",
            s.ram_bytes);
    put_one(out, "incipit_store_disk_bytes", "gauge", "Bytes of blocks on disk.",
            s.disk_bytes);
    put_one(out, "incipit_store_unwritten_bytes", "gauge", "On their way to the disk.",
            s.unwritten_bytes);
    put_one(out, "incipit_store_recovering", "gauge",
            "1 while what is on disk is not known yet.", cache_recovers(c));
    put_one(out, "incipit_store_damaged_total", "counter", "Blocks put aside as damaged.",
            s.damaged);
    put_one(out, "incipit_store_missing_total", "counter", "Blocks gone when asked for.",
            s.missing);
    put_one(out, "incipit_store_write_errors_total", "counter",
            "Blocks kept in RAM only.", s.write_errors);
    put_one(out, "incipit_store_read_errors_total", "counter",
            "Reads of blocks that failed and may work again.", s.read_errors);
}

static void put_redis(struct cache *c, struct buf *out)
{
    struct store_redis_stats s;
    struct cache_share_stats d;
    store_redis_stats(cache_store(c), &s);
    cache_share_stats(c, &d);
    put_one(out, "incipit_redis_state", "gauge", "0 off, 1 down, 2 read-only, 3 up.",
            (uint64_t)s.state);
    put_one(out, "incipit_redis_models", "gauge", "Models that are shared there.",
            s.models);
    put_one(out, "incipit_redis_put_blocks_total", "counter", "Blocks written there.",
            s.puts);
    put_one(out, "incipit_redis_put_bytes_total", "counter", "Bytes of them.",
            s.put_bytes);
    put_one(out, "incipit_redis_got_blocks_total", "counter", "Blocks that came from it.",
            s.gets);
    put_one(out, "incipit_redis_got_bytes_total", "counter", "Bytes of them.",
            s.get_bytes);
    put_one(out, "incipit_redis_missing_total", "counter", "Blocks gone when asked for.",
            s.missing);
    put_one(out, "incipit_redis_skipped_total", "counter", "Blocks not written there.",
            s.skipped);
    put_one(out, "incipit_redis_waiting_bytes", "gauge", "On their way there.",
            s.waiting_bytes);
    put_one(out, "incipit_redis_discoveries_total", "counter",
            "Prompts that others were asked about.", d.asked);
    put_one(out, "incipit_redis_found_total", "counter",
            "Of these, known deeper by another gateway.", d.found);
    put_one(out, "incipit_redis_late_total", "counter",
            "Of these, not answered within the timeout.", d.late);
    put_head(out, "incipit_redis_errors_total", "counter", "Errors, by kind.");
    for (size_t i = 0; i < STORE_REDIS_ERROR_KINDS; i++)
        buf_printf(out, "incipit_redis_errors_total{kind=\"%s\"} %" PRIu64 "\n",
                   store_redis_error_name((enum store_redis_error)i), s.errors[i]);
}

static void put_front(const struct front *f, struct buf *out)
{
    struct front_stats s;
    front_stats(f, &s);
    const struct {
        const char *status;
        uint64_t n;
    } refused[] = {
#define X(code) {#code, s.refused_##code},
        FRONT_REFUSALS(X)
#undef X
    };
    put_one(out, "incipit_client_connections", "gauge", "Client connections open.",
            s.connections);
    put_one(out, "incipit_client_accepted_total", "counter",
            "Client connections accepted.", s.accepted);
    put_one(out, "incipit_body_buffered_bytes", "gauge",
            "Memory of request bodies and of what was read.", s.buffered_bytes);
    put_one(out, "incipit_slow_readers_total", "counter",
            "Clients cut because they took too little of an answer.", s.slow_readers);
    put_head(out, "incipit_refused_total", "counter", "Refused by the front, by status.");
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        buf_printf(out, "incipit_refused_total{status=\"%s\"} %" PRIu64 "\n",
                   refused[i].status, refused[i].n);
}

void metrics_write(const struct admin_world *w, struct buf *out)
{
    const struct request_world *rw = w->requests;
    put_counts(rw, out, "counter", figures_rows,
               sizeof(figures_rows) / sizeof(figures_rows[0]), figures_of);
    put_outcomes(rw, out);
    put_summary(rw, out, "incipit_ttft_cold_seconds",
                "Time to first token, under half of the prompt reused.",
                offsetof(struct figures, ttft_cold_ms));
    put_summary(rw, out, "incipit_ttft_cached_seconds",
                "Time to first token, half of the prompt or more reused.",
                offsetof(struct figures, ttft_cached_ms));
    put_summary(rw, out, "incipit_ttft_saved_seconds",
                "Estimate: cold model less measured TTFT.",
                offsetof(struct figures, saved_ms));
    put_gains(rw, out);
    put_replicas(rw, out);
    put_cache(rw->cache, out);
    put_redis(rw->cache, out);
    put_front(w->front, out);
    put_one(out, "incipit_configuration_generation", "gauge",
            "1 with that of the start, one more for each reload.", w->reloads->done + 1);
    put_one(out, "incipit_reload_failures_total", "counter",
            "Configurations that were read again and not taken.", w->reloads->failed);
    put_head(out, "incipit_requests_in_state", "gauge", "Requests under way, by state.");
    for (size_t i = 0; i < REQUEST_STATE_COUNT; i++)
        buf_printf(out, "incipit_requests_in_state{state=\"%s\"} %u\n",
                   request_state_name((enum request_state)i), rw->in_state[i]);
}
