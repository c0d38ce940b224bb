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
#include "gateway_internal.h"

/* For blocks that were asked for again: of the shares from 10 to 70 percent the one that
 * was nowhere worse than plain LRU on the traces of tests/unit/test_tree_traces.c. */
#define PROTECT_PERCENT 30
#define TICK_MS 1000   /* how often it is looked at what has become too old */
#define TICK_SOON_MS 5 /* where there is more of it */
#define QUIET_MS 20    /* how often a stopping gateway looks whether saves have ended */
#define NAME_THREADS 4 /* names that are looked up at a time */

static void on_request(void *arg, struct front_request *rq)
{
    struct gateway *g = arg;
    request_start(&g->requests, rq);
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

static void on_tick(void *arg)
{
    struct gateway *g = arg;
    const bool more = cache_tick(g->cache, clock_mono_us() / 1000000,
                                 (int64_t)(clock_wall_ms() / 1000));
    timer_start(&g->tick, more ? TICK_SOON_MS : TICK_MS);
}

/* A place to listen at, by its options. */
struct place {
    const char *label, *where, *owner;
    uint64_t mode;
};

static struct front *listen_at(struct gateway *g, const struct place *p,
                               front_request_cb cb, struct err *e)
{
    const bool admin = cb == on_admin_request;
    struct front_options fo = gateway_front_options(g, admin);
    struct listener_file file = {.mode = (mode_t)p->mode};
    struct addr at;
    if (addr_resolve(&at, p->where, e) != 0 || listener_owner(&file, p->owner, e) != 0)
        return NULL;
    if (admin && !*g->o->admin_key_file && !addr_is_loopback(&at)) {
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

static void fill_worlds(struct gateway *g, const struct gateway_secrets *secrets)
{
    uint64_t salt = 0;
    if (getrandom(&salt, sizeof(salt), GRND_NONBLOCK) != sizeof(salt))
        salt = loop_now_us(g->loop); /* only keeps ids of two runs apart */
    if (g->o->observe)
        g->outlook = outlook_new();
    g->requests.loop = g->loop;
    g->requests.cache = g->cache;
    g->requests.total = &g->total;
    g->requests.outlook = g->outlook;
    g->requests.next_id = 1;
    g->requests.id_salt = salt;
    g->admin.requests = &g->requests;
    g->admin.front = g->front;
    g->admin.start_us = loop_now_us(g->loop);
    gateway_apply(g, secrets);
    on_tick(g);
    g->warm = g->admin.warm = warm_open(&g->requests, g->o);
}

static int open_targets(struct gateway *g, struct err *e)
{
    g->targets = mem_zalloc(g->o->n_upstreams * sizeof(*g->targets));
    for (; g->n_targets < g->o->n_upstreams; g->n_targets++) {
        g->targets[g->n_targets] = gateway_target_new(g, g->o, g->n_targets, e);
        if (!g->targets[g->n_targets])
            return e->code;
    }
    return 0;
}

static int start(struct gateway *g, struct err *e)
{
    const struct options *o = g->o;
    struct gateway_secrets secrets;
    if (!g->workers || !g->names)
        return err_set(e, ERR_IO, "there are no threads for files and names");
    if (gateway_read_secrets(o, &secrets, e) != 0)
        return e->code;
    g->keys = secrets.keys;
    if (open_cache(g, e) != 0 || open_targets(g, e) != 0)
        return e->code;
    const struct place clients = {"listening", o->listen, o->listen_owner,
                                  o->listen_mode};
    const struct place admin = {"admin", o->admin_listen, o->admin_listen_owner,
                                o->admin_listen_mode};
    g->front = listen_at(g, &clients, on_request, e);
    if (!g->front)
        return e->code;
    if (*o->admin_listen) {
        g->admin_front = listen_at(g, &admin, on_admin_request, e);
        if (!g->admin_front)
            return e->code;
    }
    fill_worlds(g, &secrets);
    return 0;
}

/* ---- stop -------------------------------------------------------------------------- */

static void on_quiet(void *arg)
{
    struct gateway *g = arg;
    unsigned busy = !list_empty(&g->requests.orphans);
    for (size_t i = 0; i < g->n_targets; i++)
        busy += replica_busy(g->targets[i]->replica);
    for (size_t i = 0; i < g->n_leaving; i++)
        busy += replica_busy(g->leaving[i]->replica);
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
    for (size_t i = 0; i < g->n_targets; i++)
        replica_drain(g->targets[i]->replica);
    front_drain(g->front, on_drained, g);
}

/* What is still under way after the drain deadline is cut: the front tells the requests,
 * they leave their replicas. Saves that hang, and in the end a name server that does not
 * answer, are left to the end of the process. */
static void take_down(struct gateway *g)
{
    unsigned busy = 0;
    stop_warming(g);
    g->requests.drain_gone = false;
    front_close(g->front);
    request_drop_orphans(&g->requests);
    front_close(g->admin_front);
    for (size_t i = 0; i < g->n_targets; i++)
        busy += replica_busy(g->targets[i]->replica);
    for (size_t i = 0; i < g->n_leaving; i++)
        busy += replica_busy(g->leaving[i]->replica);
    if (busy)
        _Exit(0);
    for (size_t i = 0; i < g->n_targets; i++)
        gateway_target_free(g->targets[i]);
    for (size_t i = 0; i < g->n_leaving; i++)
        gateway_target_free(g->leaving[i]);
    if (g->cache)
        cache_part(g->cache);
    workers_free(g->workers);
    outlook_free(g->outlook);
    cache_close(g->cache);
    if (g->names && workers_pending(g->names))
        _Exit(g->result ? 1 : 0);
    workers_free(g->names);
    tenants_free(g->tenants);
    keys_free(g->keys);
    timer_fini(&g->tick);
    timer_fini(&g->quiet);
    timer_fini(&g->deadline);
    timer_fini(&g->leave);
    loop_free(g->loop);
    free(g->targets);
    free(g->leaving);
    if (g->reloaded)
        options_free(g->reloaded);
    free(g->reloaded);
}

int gateway_run(const struct options *o, const struct gateway_source *source)
{
    struct gateway *g = mem_zalloc(sizeof(*g));
    struct err e = {0};
    log_set_level((enum log_level)o->log_level);
    list_init(&g->requests.orphans);
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error of write(), not the end */
    g->o = o;
    g->source = source;
    g->loop = loop_new();
    if (!g->loop) {
        free(g);
        return ERR_IO; /* it said why */
    }
    g->workers = workers_new(g->loop, (unsigned)o->workers);
    g->names = workers_new(g->loop, NAME_THREADS);
    timer_init(&g->tick, g->loop, on_tick, g);
    timer_init(&g->quiet, g->loop, on_quiet, g);
    timer_init(&g->deadline, g->loop, on_deadline, g);
    timer_init(&g->leave, g->loop, gateway_on_leave, g);
    /* Before it says that it listens: who reads that may stop it at once. */
    loop_on_signal(g->loop, SIGTERM, on_stop_signal, g);
    loop_on_signal(g->loop, SIGINT, on_stop_signal, g);
    loop_on_signal(g->loop, SIGHUP, gateway_on_reload, g);
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
