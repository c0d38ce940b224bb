/* SPDX-License-Identifier: MIT */
#include "gateway/admin.h"

#include <stdlib.h>
#include <string.h>

#include "base/version.h"
#include "gateway/observe.h"

struct figure {
    const char *name;
    uint64_t value;
};

static void put_figures(json_t *o, const struct figure *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        json_object_set_new(o, v[i].name, json_integer((json_int_t)v[i].value));
}

static json_t *figures(const struct figure *v, size_t n)
{
    json_t *o = json_object();
    put_figures(o, v, n);
    return o;
}

static json_t *replica_json(struct request_target *t)
{
    static const char *const modes[] = {"down", "starting", "observe", "recovering",
                                        "store"};
    const struct replica *r = t->replica;
    json_t *o = stats_json(&t->figures), *failures = json_object();
    json_t *skipped = json_object();
    json_object_set_new(o, "name", json_string(r->name));
    json_object_set_new(o, "address", json_string(upstream_addr(r->up)->text));
    json_object_set_new(o, "driver", json_string(r->driver->name));
    json_object_set_new(o, "mode", json_string(modes[r->mode]));
    json_object_set_new(o, "mode_reason", json_string(r->mode_reason));
    json_object_set_new(o, "in_flight", json_integer(r->in_flight));
    json_object_set_new(o, "queued", json_integer(r->queued));
    json_object_set_new(o, "prefill_ms_per_token", json_real(r->ms_per_token));
    json_object_set_new(o, "text_bytes_per_token", json_real(r->bytes_per_token));
    const struct figure counts[] = {
        {"restores", r->n.restores},           {"saves", r->n.saves},
        {"save_failures", r->n.save_failures}, {"restarts", r->n.restarts},
        {"binds_foreign", r->n.binds_foreign}, {"binds_lost", r->n.binds_lost},
        {"scratch_size", r->scratch.size},     {"scratch_free", r->scratch.free},
        {"scratch_wanted", r->scratch.wanted}};
    put_figures(o, counts, sizeof(counts) / sizeof(counts[0]));
    for (size_t i = 0; i < RESTORE_FAILURE_KINDS; i++)
        json_object_set_new(failures, restore_failure_name((enum restore_failure)i),
                            json_integer((json_int_t)r->n.restore_failures[i]));
    json_object_set_new(o, "restore_failures", failures);
    for (size_t i = 0; i < SAVE_SKIP_KINDS; i++)
        json_object_set_new(skipped, save_skip_name((enum save_skip)i),
                            json_integer((json_int_t)r->n.saves_skipped[i]));
    json_object_set_new(o, "saves_skipped", skipped);
    json_object_set_new(o, "savings",
                        measure_json(&t->measure, r->holdout, r->o.holdout));
    r->driver->describe(r->state, o);
    return o;
}

static json_t *tree_json(struct cache *c)
{
    struct tree_stats s;
    tree_stats(cache_tree(c), &s);
    const struct figure v[] = {
        {"blocks", s.blocks},
        {"nodes", s.nodes},
        {"bytes", s.bytes},
        {"tokens", s.tokens},
        {"inserted", s.inserted},
        {"evicted", s.evicted},
        {"dropped", s.dropped},
        {"collisions", s.collisions},
        {"index_bytes", s.index_bytes},
        {"token_id_bytes", s.token_id_bytes},
        {"expired", s.expired},
        {"hit_blocks", s.hit_blocks},
    };
    return figures(v, sizeof(v) / sizeof(v[0]));
}

static json_t *index_json(struct cache *c)
{
    struct index_stats s;
    index_stats(cache_index(c), &s);
    const struct figure v[] = {
        {"entries", s.entries},
        {"bytes", s.bytes},
        {"evicted", s.evicted},
        {"check_failures", s.check_failures},
    };
    return figures(v, sizeof(v) / sizeof(v[0]));
}

static json_t *redis_json(struct cache *c)
{
    struct store_redis_stats s;
    struct cache_share_stats d;
    store_redis_stats(cache_store(c), &s);
    cache_share_stats(c, &d);
    const struct figure v[] = {
        {"puts", s.puts},         {"put_bytes", s.put_bytes},
        {"gets", s.gets},         {"get_bytes", s.get_bytes},
        {"missing", s.missing},   {"skipped", s.skipped},
        {"values", s.values},     {"waiting_bytes", s.waiting_bytes},
        {"discoveries", d.asked}, {"found", d.found},
        {"blocks", d.blocks},     {"late", d.late},
        {"models", s.models},
    };
    json_t *o = figures(v, sizeof(v) / sizeof(v[0])), *errors = json_object();
    for (size_t i = 0; i < STORE_REDIS_ERROR_KINDS; i++)
        json_object_set_new(errors, store_redis_error_name((enum store_redis_error)i),
                            json_integer((json_int_t)s.errors[i]));
    json_object_set_new(o, "state", json_string(store_redis_state_name(s.state)));
    json_object_set_new(o, "errors", errors);
    return o;
}

static json_t *store_json(struct cache *c)
{
    struct store_stats s;
    struct tree_stats t;
    store_stats(cache_store(c), &s);
    tree_stats(cache_tree(c), &t);
    const struct figure v[] = {
        {"blocks", t.blocks},
        {"bytes", t.bytes},
        {"ram_blocks", s.ram_blocks},
        {"ram_bytes", s.ram_bytes},
        {"disk_blocks", s.disk_blocks},
        {"disk_bytes", s.disk_bytes},
        {"damaged", s.damaged},
        {"missing", s.missing},
        {"orphans", s.orphans},
        {"evicted", t.evicted},
        {"unwritten_bytes", s.unwritten_bytes},
        {"write_errors", s.write_errors},
        {"read_errors", s.read_errors},
        {"ram_hits", s.ram_hits},
        {"disk_hits", s.disk_hits},
        {"redis_hits", s.redis_hits},
        {"heads_read", s.heads_read},
    };
    json_t *o = figures(v, sizeof(v) / sizeof(v[0]));
    json_object_set_new(o, "recovering", json_boolean(cache_recovers(c)));
    json_object_set_new(o, "redis", redis_json(c));
    return o;
}

static json_t *pins_json(struct cache *c)
{
    struct cache_pin_view v;
    json_t *out = json_array();
    for (size_t i = 0; cache_pin_view(c, i, &v); i++) {
        char hex[HASH128_HEX];
        json_array_append_new(
            out,
            json_pack("{s:s,s:s,s:b,s:b,s:b,s:I,s:I,s:I}", "name", v.name, "fingerprint",
                      hash128_hex(v.fingerprint, hex), "in_use", v.attached, "complete",
                      v.whole, "public", v.public, "tokens", (json_int_t)v.tokens,
                      "bytes", (json_int_t)v.bytes, "hits", (json_int_t)v.hits));
    }
    return out;
}

static json_t *warm_counts_json(const struct warm *warm)
{
    struct warm_counts n = {0};
    if (warm)
        warm_counts(warm, &n);
    const struct figure v[] = {
        {"pending", n.pending},
        {"running", n.running},
        {"done", n.done},
        {"failed", n.failed},
        {"computed_tokens", n.computed_tokens},
    };
    return figures(v, sizeof(v) / sizeof(v[0]));
}

static json_t *reloads_json(const struct admin_reloads *n)
{
    const char *result = !n->last_ms ? "never" : n->failed_last ? "failed" : "done";
    return json_pack("{s:I,s:I,s:s,s:I,s:s,s:s}", "generation", (json_int_t)n->done + 1,
                     "failed_reloads", (json_int_t)n->failed, "last_reload", result,
                     "last_reload_ms", (json_int_t)n->last_ms, "why", n->why,
                     "needs_a_restart", n->restart);
}

static json_t *stats_page(const struct admin_world *w)
{
    const struct request_world *rw = w->requests;
    json_t *replicas = json_array(), *states = json_object();
    json_t *total = stats_json(rw->total);
    struct measure_sum savings = {.unknown = 0};
    unsigned in_flight = 0;
    for (size_t i = 0; i < rw->n_targets; i++) {
        json_array_append_new(replicas, replica_json(rw->targets[i]));
        measure_sum_add(&savings, &rw->targets[i]->measure);
    }
    json_object_set_new(total, "savings", measure_sum_json(&savings));
    for (size_t i = 0; i < REQUEST_STATE_COUNT; i++) {
        in_flight += rw->in_state[i];
        json_object_set_new(states, request_state_name((enum request_state)i),
                            json_integer(rw->in_state[i]));
    }
    json_object_set_new(total, "in_flight", json_integer(in_flight));
    json_object_set_new(total, "states", states);
    return json_pack(
        "{s:s,s:I,s:o,s:o,s:o,s:o,s:o}", "version", INCIPIT_VERSION, "uptime_ms",
        (json_int_t)((loop_now_us(rw->loop) - w->start_us) / 1000), "total", total,
        "replicas", replicas, "store", store_json(rw->cache), "warm",
        warm_counts_json(w->warm), "configuration", reloads_json(w->reloads));
}

static json_t *cache_page(const struct admin_world *w)
{
    struct cache *c = w->requests->cache;
    return json_pack("{s:i,s:o,s:o,s:o,s:I,s:o,s:o}", "block_tokens",
                     (int)cache_block_tokens(c), "tree", tree_json(c), "index",
                     index_json(c), "store", store_json(c), "pinned_bytes",
                     (json_int_t)cache_pinned_bytes(c), "pins", pins_json(c), "warm",
                     w->warm ? warm_json(w->warm) : json_array());
}

void admin_reply(struct front_request *rq, int status, json_t *doc)
{
    char *text = json_dumps(doc, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    struct buf b = {0};
    buf_append_str(&b, text);
    buf_append_char(&b, '\n');
    front_reply(rq, status, (struct slice){"", 0}, buf_slice(&b));
    buf_free(&b);
    free(text);
    json_decref(doc);
}

static void on_healthz(const struct admin_world *w, struct front_request *rq)
{
    (void)w;
    admin_reply(rq, 200, json_pack("{s:s}", "status", "ok"));
}

static void on_readyz(const struct admin_world *w, struct front_request *rq)
{
    bool ready = false;
    for (size_t i = 0; i < w->requests->n_targets; i++)
        ready |= w->requests->targets[i]->replica->mode >= REPLICA_OBSERVE;
    const bool warm = !w->warm || warm_is_ready(w->warm);
    const char *status = w->draining ? "stopping"
                         : !ready    ? "no replica is ready"
                         : warm      ? "ready"
                                     : "warming";
    admin_reply(rq, ready && warm && !w->draining ? 200 : 503,
                json_pack("{s:s}", "status", status));
}

static void on_metrics(const struct admin_world *w, struct front_request *rq)
{
    struct buf b = {0};
    metrics_write(w, &b);
    front_reply(rq, 200, SLICE_LIT("Content-Type: text/plain; version=0.0.4\r\n"),
                buf_slice(&b));
    buf_free(&b);
}

static void on_stats(const struct admin_world *w, struct front_request *rq)
{
    admin_reply(rq, 200, stats_page(w));
}

static void on_observe(const struct admin_world *w, struct front_request *rq)
{
    if (w->requests->outlook)
        admin_reply(rq, 200, observe_json(w->requests->outlook, w->token_bytes));
    else
        front_error(rq, 404, "not_found_error",
                    "the gateway was not started with --observe", (struct slice){"", 0});
}

static void on_cache(const struct admin_world *w, struct front_request *rq)
{
    admin_reply(rq, 200, cache_page(w));
}

static const struct {
    const char *path;
    void (*answer)(const struct admin_world *w, struct front_request *rq);
} pages[] = {{"/healthz", on_healthz}, {"/readyz", on_readyz}, {"/metrics", on_metrics},
             {"/stats", on_stats},     {"/cache", on_cache},   {"/observe", on_observe}};

static void on_gone(void *arg)
{
    (void)arg; /* answers are made in one go: nothing is under way */
}

void admin_answer(const struct admin_world *w, struct front_request *rq)
{
    static const struct front_events events = {on_gone, on_gone};
    const struct http_head *h = front_head(rq);
    struct slice path = h->target;
    const char *query = memchr(path.ptr, '?', path.len);
    if (query)
        path.len = (size_t)(query - path.ptr);
    front_set_events(rq, &events, NULL);
    if (!admin_may(w, path, rq))
        return;
    if (slice_eq(h->method, SLICE_LIT("POST")) &&
        slice_starts(path, SLICE_LIT("/cache/"))) {
        admin_post(w, path, rq);
        return;
    }
    if (admin_is_action(path)) {
        front_error(rq, 405, "invalid_request_error", "this is done with POST",
                    SLICE_LIT("Allow: POST\r\n"));
        return;
    }
    if (!slice_eq(h->method, SLICE_LIT("GET")) &&
        !slice_eq(h->method, SLICE_LIT("HEAD"))) {
        front_error(rq, 405, "invalid_request_error", "the admin pages are read with GET",
                    SLICE_LIT("Allow: GET, HEAD\r\n"));
        return;
    }
    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
        if (slice_eq(path, slice_of(pages[i].path))) {
            pages[i].answer(w, rq);
            return;
        }
    }
    front_error(rq, 404, "not_found_error",
                "pages: /healthz /readyz /metrics /stats /cache", (struct slice){"", 0});
}
