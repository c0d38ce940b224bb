/* SPDX-License-Identifier: MIT */
#include "gateway/gateway.h"

/*
 * Puts the parts together and takes them apart again. Stop: the first signal drains (no
 * new connections, running requests finish, saves under way end), the second one, or
 * timeouts.drain, ends at once.
 */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "gateway/admin.h"
#include "gateway/credential.h"

/* For blocks that were asked for again: of the shares from 10 to 70 percent the one that
 * was nowhere worse than plain LRU on the traces of tests/unit/test_tree_traces.c. */
#define PROTECT_PERCENT 30
#define TICK_MS 1000   /* how often it is looked at what has become too old */
#define TICK_SOON_MS 5 /* where there is more of it */
#define QUIET_MS 20    /* how often a stopping gateway looks whether saves have ended */

struct gateway {
    const struct options *o;
    struct loop *loop;
    struct workers *workers;
    struct cache *cache;
    struct tenants *tenants;
    struct keys *keys;
    struct credential_digest admin_key;
    struct loop_timer tick;
    struct front *front, *admin_front;
    struct request_target *targets;
    struct figures total;
    struct outlook *outlook; /* where it only observes */
    struct request_world requests;
    struct admin_world admin;
    struct warm *warm;
    struct loop_timer quiet, deadline;
    bool stopping;
    int result;
};

static struct front_options front_limits(const struct options *o)
{
    return (struct front_options){
        .head = {.head_bytes = o->limits_head_bytes, .headers = o->limits_headers},
        .body_bytes = o->limits_body_bytes,
        .buffered_bytes = o->limits_buffered_bytes,
        .connections = (unsigned)o->limits_connections,
        .per_client = (unsigned)o->limits_connections_per_client,
        .upload_rate = o->limits_upload_rate,
        .download_rate = o->limits_download_rate,
        .pace_ms = o->timeouts_pace_ms,
        .head_ms = o->timeouts_head_ms,
        .body_ms = o->timeouts_body_ms,
        .idle_ms = o->timeouts_idle_ms,
        .write_ms = o->timeouts_write_ms};
}

static void on_request(void *arg, struct front_request *rq)
{
    struct gateway *g = arg;
    request_start(&g->requests, rq);
}

static bool may_ask(void *arg, const struct http_head *h, struct front_refusal *why)
{
    const struct gateway *g = arg;
    return request_may(&g->requests, h, why);
}

static void on_admin_request(void *arg, struct front_request *rq)
{
    struct gateway *g = arg;
    admin_answer(&g->admin, rq);
}

/* ---- start ------------------------------------------------------------------------- */

static int open_cache(struct gateway *g, struct err *e)
{
    const struct options *o = g->o;
    const uint64_t room = *o->store_dir ? o->store_max_bytes : o->store_ram_bytes;
    char password[512], where[256] = "";
    unsigned db = 0;
    if (credential_file("the Redis password", o->store_redis_password_file, password,
                        sizeof(password), e) != 0)
        return e->code;
    if (*o->store_redis_url && store_redis_url(o->store_redis_url, where, &db, e) != 0)
        return e->code;
    const struct store_redis_options redis = {.loop = g->loop,
                                              .where = *where ? where : NULL,
                                              .db = db,
                                              .user = o->store_redis_user,
                                              .password = password,
                                              .prefix = o->store_redis_prefix,
                                              .ttl_ms = o->store_redis_ttl_ms,
                                              .timeout_ms = o->store_redis_timeout_ms,
                                              .max_waiting_bytes =
                                                  o->store_redis_max_waiting};
    const struct cache_options co = {
        .block_tokens = (uint32_t)o->block_tokens,
        .max_blocks = o->tree_max_blocks,
        .max_bytes = room,
        .max_pinned = room / 10000 * o->store_max_pinned,
        .protect_percent = PROTECT_PERCENT,
        .index_bytes = o->index_max_bytes,
        .store = {.dir = *o->store_dir ? o->store_dir : NULL,
                  .key_file = *o->store_key_file ? o->store_key_file : NULL,
                  .ram_bytes = o->store_ram_bytes,
                  .redis = redis}};
    g->cache = cache_open(&co, g->workers, e);
    return g->cache ? 0 : e->code;
}

/* "Authorization: Bearer KEY"; "" where there is none. */
static int read_key(const char *path, char *out, size_t size, struct err *e)
{
    char key[512];
    const int rc = credential_file("the API key", path, key, sizeof(key), e);
    snprintf(out, size, *key ? "Authorization: Bearer %s\r\n" : "%s", key);
    return rc;
}

static void on_tick(void *arg)
{
    struct gateway *g = arg;
    const bool more = cache_tick(g->cache, clock_mono_us() / 1000000,
                                 (int64_t)(clock_wall_ms() / 1000));
    timer_start(&g->tick, more ? TICK_SOON_MS : TICK_MS);
}

static void open_tenants(struct gateway *g)
{
    size_t n;
    g->tenants = tenants_new(g->o, store_key(cache_store(g->cache)));
    const struct cache_lifetime *v = tenants_lifetimes(g->tenants, &n);
    cache_lifetimes(g->cache, (uint32_t)((g->o->store_ttl_ms + 999) / 1000), v, n);
    on_tick(g);
}

static int open_replica(struct gateway *g, size_t i, struct err *e)
{
    static const char *const drivers[] = {"auto", "llamacpp", "openai"};
    const struct options *o = g->o;
    const struct options_upstream *u = &o->upstreams[i];
    char authorization[600];
    if (read_key(u->api_key_file, authorization, sizeof(authorization), e) != 0)
        return e->code;
    const struct replica_options ro = {
        .name = u->name,
        .url = u->url,
        .driver = o->observe ? "openai" : drivers[u->driver],
        .observe = o->observe,
        .slot_dir = u->slot_dir,
        .authorization = authorization,
        .holdout = (double)o->measure_holdout / 1e4,
        .queue_ms = o->timeouts_queue_ms,
        .queue_max = (unsigned)o->limits_queue,
        .save = o->store_save,
        .second_sight = o->store_admission == OPTIONS_SECOND_SIGHT,
        .min_tokens = (uint32_t)o->store_min_tokens,
        .max_stall_ms = o->store_max_stall_ms,
        .save_first = o->store_save_first,
        .retry_ms = o->store_retry_ms,
        .slot_ms = o->timeouts_slot_ms,
        .upstream = {.tls = {.name = u->tls_name,
                             .ca_file = u->tls_ca_file,
                             .cert_file = u->tls_cert_file,
                             .key_file = u->tls_key_file,
                             .no_verify = !u->tls_verify},
                     .connect_ms = o->timeouts_connect_ms,
                     .first_byte_ms = o->timeouts_first_byte_ms,
                     .stall_ms = o->timeouts_stall_ms,
                     .pool_idle_ms = o->upstream_pool_idle_ms,
                     .pool_max_requests = (unsigned)o->upstream_pool_max_requests,
                     .pool_max_idle = (unsigned)o->upstream_pool_max_idle}};
    g->targets[i].credentials = u->credentials;
    if (!u->tls_verify)
        log_event(LOG_WARN, "tls-not-verified", "replica", "%s", u->name, "why", "%s",
                  "upstreams.tls_verify is off: who is in between can read and change "
                  "everything",
                  NULL);
    g->targets[i].replica = replica_new(g->loop, g->workers, g->cache, &ro, e);
    return g->targets[i].replica ? 0 : e->code;
}

/* A place to listen at, by its options. */
struct place {
    const char *label, *where, *owner;
    uint64_t mode;
};

static struct front *listen_at(struct gateway *g, const struct place *p,
                               front_request_cb cb, front_check_cb check, struct err *e)
{
    struct front_options fo = front_limits(g->o);
    fo.check = check;
    struct listener_file file = {.mode = (mode_t)p->mode};
    struct addr at;
    if (addr_resolve(&at, p->where, e) != 0 || listener_owner(&file, p->owner, e) != 0)
        return NULL;
    if (cb == on_admin_request && !*g->o->admin_key_file && !addr_is_loopback(&at)) {
        err_set(e, ERR_INVALID,
                "admin.listen: %s is not on loopback, so everybody would get in: set "
                "admin.key_file, or listen at 127.0.0.1",
                p->where);
        return NULL;
    }
    fo.file = &file;
    struct front *f = front_open(g->loop, &at, &fo, cb, g, e);
    if (f) {
        printf("%s on %s\n", p->label, front_addr(f)->text);
        fflush(stdout);
    }
    return f;
}

static void fill_worlds(struct gateway *g)
{
    uint64_t salt = 0;
    if (getrandom(&salt, sizeof(salt), GRND_NONBLOCK) != sizeof(salt))
        salt = loop_now_us(g->loop); /* only keeps ids of two runs apart */
    if (g->o->observe)
        g->outlook = outlook_new();
    g->requests = (struct request_world){.loop = g->loop,
                                         .cache = g->cache,
                                         .tenants = g->tenants,
                                         .keys = g->keys,
                                         .targets = g->targets,
                                         .n_targets = g->o->n_upstreams,
                                         .total = &g->total,
                                         .outlook = g->outlook,
                                         .total_ms = g->o->timeouts_total_ms,
                                         .relay_admin_paths =
                                             g->o->admin_paths == OPTIONS_ADMIN_RELAY,
                                         .cache_status = g->o->headers_cache_status,
                                         .server_timing = g->o->headers_server_timing,
                                         .access_log = g->o->log_access,
                                         .next_id = 1,
                                         .id_salt = salt};
    g->admin = (struct admin_world){.requests = &g->requests,
                                    .front = g->front,
                                    .token_bytes = g->o->measure_token_bytes,
                                    .start_us = loop_now_us(g->loop),
                                    .key = g->admin_key,
                                    .has_key = *g->o->admin_key_file != '\0',
                                    .listen = g->o->admin_listen};
    g->warm = g->admin.warm = warm_open(&g->requests, g->o);
}

static int open_secrets(struct gateway *g, struct err *e)
{
    char key[512];
    g->keys = keys_new(g->o, e);
    if (!g->keys ||
        credential_file("the admin key", g->o->admin_key_file, key, sizeof(key), e) != 0)
        return e->code;
    g->admin_key = credential_digest(slice_of(key));
    return 0;
}

static int start(struct gateway *g, struct err *e)
{
    const struct options *o = g->o;
    if (!g->workers)
        return err_set(e, ERR_IO, "there are no threads for files");
    if (open_secrets(g, e) != 0 || open_cache(g, e) != 0)
        return e->code;
    open_tenants(g);
    g->targets = mem_zalloc(o->n_upstreams * sizeof(*g->targets));
    for (size_t i = 0; i < o->n_upstreams; i++)
        if (open_replica(g, i, e) != 0)
            return e->code;
    const struct place clients = {"listening", o->listen, o->listen_owner,
                                  o->listen_mode};
    const struct place admin = {"admin", o->admin_listen, o->admin_listen_owner,
                                o->admin_listen_mode};
    g->front = listen_at(g, &clients, on_request, may_ask, e);
    if (!g->front)
        return e->code;
    if (*o->admin_listen) {
        g->admin_front = listen_at(g, &admin, on_admin_request, NULL, e);
        if (!g->admin_front)
            return e->code;
    }
    fill_worlds(g);
    return 0;
}

/* ---- stop -------------------------------------------------------------------------- */

static void on_quiet(void *arg)
{
    struct gateway *g = arg;
    unsigned busy = 0;
    for (size_t i = 0; i < g->o->n_upstreams; i++)
        busy += replica_busy(g->targets[i].replica);
    if (busy || store_busy(cache_store(g->cache)))
        timer_start(&g->quiet, QUIET_MS);
    else
        loop_stop(g->loop);
}

static void on_drained(void *arg)
{
    on_quiet(arg);
}

static void on_deadline(void *arg)
{
    struct gateway *g = arg;
    log_event(LOG_WARN, "drain-ended", "why", "%s", "timeouts.drain has passed", NULL);
    loop_stop(g->loop);
}

/* Nobody waits for what is being warmed. */
static void stop_warming(struct gateway *g)
{
    warm_close(g->warm);
    g->warm = g->admin.warm = NULL;
}

static void on_stop_signal(void *arg)
{
    struct gateway *g = arg;
    if (g->stopping) {
        log_event(LOG_WARN, "stop", "how", "%s", "at once", NULL);
        _Exit(1);
    }
    g->stopping = g->admin.draining = true;
    log_event(LOG_INFO, "stop", "how", "%s", "draining", NULL);
    stop_warming(g);
    timer_start(&g->deadline, g->o->timeouts_drain_ms);
    for (size_t i = 0; i < g->o->n_upstreams; i++)
        replica_drain(g->targets[i].replica);
    front_drain(g->front, on_drained, g);
}

/* What is still under way after the drain deadline is cut: the front tells the requests,
 * they leave their replicas. Saves that hang are left to the end of the process. */
static void take_down(struct gateway *g)
{
    unsigned busy = 0;
    stop_warming(g);
    front_close(g->front);
    front_close(g->admin_front);
    for (size_t i = 0; g->targets && i < g->o->n_upstreams; i++)
        busy += g->targets[i].replica ? replica_busy(g->targets[i].replica) : 0;
    if (busy)
        _Exit(0);
    for (size_t i = 0; g->targets && i < g->o->n_upstreams; i++)
        replica_free(g->targets[i].replica);
    if (g->cache)
        cache_part(g->cache);
    workers_free(g->workers);
    outlook_free(g->outlook);
    cache_close(g->cache);
    tenants_free(g->tenants);
    keys_free(g->keys);
    timer_fini(&g->tick);
    timer_fini(&g->quiet);
    timer_fini(&g->deadline);
    loop_free(g->loop);
    free(g->targets);
}

int gateway_run(const struct options *o)
{
    struct gateway *g = mem_zalloc(sizeof(*g));
    struct err e = {0};
    log_set_level((enum log_level)o->log_level);
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error of write(), not the end */
    g->o = o;
    g->loop = loop_new();
    if (!g->loop) {
        free(g);
        return ERR_IO; /* it said why */
    }
    g->workers = workers_new(g->loop, (unsigned)o->workers);
    timer_init(&g->tick, g->loop, on_tick, g);
    timer_init(&g->quiet, g->loop, on_quiet, g);
    timer_init(&g->deadline, g->loop, on_deadline, g);
    /* Before it says that it listens: who reads that may stop it at once. */
    loop_on_signal(g->loop, SIGTERM, on_stop_signal, g);
    loop_on_signal(g->loop, SIGINT, on_stop_signal, g);
    if (start(g, &e) != 0) {
        log_event(LOG_ERROR, "start-failed", "why", "%s", e.text, NULL);
        g->result = e.code;
    } else {
        loop_run(g->loop);
    }
    const int result = g->result;
    take_down(g);
    free(g);
    return result;
}
