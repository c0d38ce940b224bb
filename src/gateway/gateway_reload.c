/* SPDX-License-Identifier: MIT */

/*
 * SIGHUP: other options for a gateway that runs.
 *
 *     read and check all of it ─► what cannot change is put back, and named ─► files of
 *     keys ─► engines that are new ─► from here on nothing can fail ─► take effect
 *
 * Until then nothing has changed, so that a file that is wrong leaves everything as it
 * is. Connections and requests under way stay. An engine that is not listed any more
 * gets no new requests and goes when those it has, and its saves, have ended.
 *
 * Files are read on the loop's thread: for that long nothing else happens.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "gateway_internal.h"

#define LEAVE_MS 50 /* how often it is looked whether an engine can go */

/* All that a reload has prepared. */
struct reload {
    struct options *o;
    struct gateway_secrets secrets;
    struct request_target **targets; /* new ones, and those that stay */
    struct buf restart;              /* "a, b": keys that need one */
};

static void note_restart(void *arg, const char *key)
{
    struct buf *b = arg;
    buf_printf(b, "%s%s", buf_len(b) ? ", " : "", key);
}

static struct request_target *find_target(struct request_target **v, size_t n,
                                          const char *url)
{
    for (size_t i = 0; i < n; i++)
        if (v[i] && strcmp(v[i]->url, url) == 0)
            return v[i];
    return NULL;
}

static bool has_ttl(const struct options *o)
{
    bool any = o->store_ttl_ms != 0;
    for (size_t i = 0; i < o->n_tenants; i++)
        any |= o->tenants[i].ttl_ms != 0;
    return any;
}

/* The clock that blocks age by has not run: they would all be too old at once. */
static void settle_ttls(struct reload *rl, const struct options *running)
{
    if (has_ttl(running) || !has_ttl(rl->o))
        return;
    rl->o->store_ttl_ms = 0;
    for (size_t i = 0; i < rl->o->n_tenants; i++)
        rl->o->tenants[i].ttl_ms = 0;
    note_restart(&rl->restart, "store.ttl (there was none)");
}

static int check_admin_key(const struct gateway *g, const struct reload *rl,
                           struct err *e)
{
    if (!g->admin_front || rl->secrets.has_admin_key ||
        addr_is_loopback(front_addr(g->admin_front)))
        return 0;
    return err_set(e, ERR_INVALID,
                   "admin.key_file: the admin side is not on loopback and needs one");
}

static int make_targets(struct gateway *g, struct reload *rl, struct err *e)
{
    char authorization[600];
    struct replica_options ro;
    rl->targets = mem_zalloc(rl->o->n_upstreams * sizeof(struct request_target *));
    for (size_t i = 0; i < rl->o->n_upstreams; i++) {
        const char *url = rl->o->upstreams[i].url;
        if (find_target(g->leaving, g->n_leaving, url))
            return err_set(e, ERR_INVALID,
                           "upstreams.url: %s is still ending what it had before it was "
                           "taken out; try again when that is over",
                           url);
        rl->targets[i] = find_target(g->targets, g->n_targets, url);
        if (!rl->targets[i])
            rl->targets[i] = gateway_target_new(g, rl->o, i, e);
        else if (gateway_replica_options(g, rl->o, i, authorization, &ro, e) != 0)
            return e->code; /* its file of keys */
        if (!rl->targets[i])
            return e->code;
    }
    return 0;
}

static int prepare(struct gateway *g, struct reload *rl, struct err *e)
{
    if (g->source->load(g->source->arg, rl->o, e) != 0)
        return e->code;
    options_settle(rl->o, g->o, note_restart, &rl->restart);
    settle_ttls(rl, g->o);
    if (options_check(rl->o, e) != 0)
        return err_wrap(e, "beside what needs a restart (%.*s)",
                        (int)buf_len(&rl->restart), buf_slice(&rl->restart).ptr);
    if (gateway_read_secrets(rl->o, &rl->secrets, e) != 0 ||
        check_admin_key(g, rl, e) != 0)
        return e->code;
    return make_targets(g, rl, e);
}

/* ---- no way back ------------------------------------------------------------------- */

static void send_away(struct gateway *g, struct request_target *t)
{
    struct request_target **grown = mem_zalloc((g->n_leaving + 1) * sizeof(*grown));
    if (g->n_leaving)
        memcpy(grown, g->leaving, g->n_leaving * sizeof(*grown));
    grown[g->n_leaving++] = t;
    free(g->leaving);
    g->leaving = grown;
    log_event(LOG_INFO, "upstream-leaves", "replica", "%s", t->replica->name, "in_flight",
              "%u", t->replica->in_flight, NULL);
    warm_part(g->warm, t->replica);
    replica_drain(t->replica);
    timer_start(&g->leave, LEAVE_MS);
}

void gateway_on_leave(void *arg)
{
    struct gateway *g = arg;
    size_t n = 0;
    for (size_t i = 0; i < g->n_leaving; i++) {
        struct request_target *t = g->leaving[i];
        if (t->replica->in_flight || replica_busy(t->replica)) {
            g->leaving[n++] = t;
            continue;
        }
        log_event(LOG_INFO, "upstream-left", "replica", "%s", t->replica->name, NULL);
        gateway_target_free(t);
    }
    g->n_leaving = n;
    if (n)
        timer_start(&g->leave, LEAVE_MS);
}

static void take_targets(struct gateway *g, struct reload *rl)
{
    const size_t n = rl->o->n_upstreams, n_before = g->n_targets;
    struct request_target **before = g->targets;
    g->targets = rl->targets;
    g->n_targets = n;
    g->requests.targets = g->targets;
    g->requests.n_targets = n;
    for (size_t i = 0; i < n_before; i++)
        if (!find_target(g->targets, n, before[i]->url))
            send_away(g, before[i]);
    for (size_t i = 0; i < n; i++) {
        char authorization[600];
        struct replica_options ro;
        struct request_target *t = g->targets[i];
        struct err e = {0};
        if (!find_target(before, n_before, t->url))
            warm_join(g->warm, rl->o, t->replica);
        else if (gateway_replica_options(g, rl->o, i, authorization, &ro, &e) == 0)
            replica_set_options(t->replica, &ro);
        t->credentials = rl->o->upstreams[i].credentials;
    }
    free(before);
    rl->targets = NULL;
}

static void take_effect(struct gateway *g, struct reload *rl)
{
    struct options *before = g->reloaded;
    take_targets(g, rl);
    g->o = g->reloaded = rl->o;
    rl->o = NULL;
    gateway_apply(g, &rl->secrets);
    rl->secrets.keys = NULL;
    warm_set_save(g->warm, g->o->store_save);
    const struct front_options clients = gateway_front_options(g, false),
                               admin = gateway_front_options(g, true);
    front_set_options(g->front, &clients);
    if (g->admin_front)
        front_set_options(g->admin_front, &admin);
    if (before) {
        options_free(before);
        free(before);
    }
}

/* What was prepared and did not take effect. */
static void drop(struct gateway *g, struct reload *rl)
{
    for (size_t i = 0; rl->targets && i < rl->o->n_upstreams; i++)
        if (rl->targets[i] && !find_target(g->targets, g->n_targets, rl->targets[i]->url))
            gateway_target_free(rl->targets[i]);
    free(rl->targets);
    keys_free(rl->secrets.keys);
    if (rl->o)
        options_free(rl->o);
    free(rl->o);
    buf_free(&rl->restart);
}

static void note_result(struct gateway *g, const struct reload *rl, const struct err *e)
{
    struct admin_reloads *n = &g->reloads;
    const char *restart = buf_slice(&rl->restart).ptr;
    n->last_ms = clock_wall_ms();
    n->failed_last = e->code != 0;
    n->done += e->code == 0;
    n->failed += e->code != 0;
    snprintf(n->why, sizeof(n->why), "%s", e->text);
    snprintf(n->restart, sizeof(n->restart), "%.*s",
             e->code ? 0 : (int)buf_len(&rl->restart), restart);
    if (e->code)
        log_event(LOG_WARN, "reload-failed", "why", "%s", e->text, "still", "%s",
                  "the configuration of before", NULL);
    else
        log_event(LOG_INFO, "reload", "generation", "%llu",
                  (unsigned long long)n->done + 1, "needs_a_restart", "%s",
                  *n->restart ? n->restart : "-", NULL);
}

void gateway_on_reload(void *arg)
{
    struct gateway *g = arg;
    struct reload rl = {.o = NULL};
    struct err e = {0};
    if (g->stopping)
        return;
    rl.o = mem_zalloc(sizeof(*rl.o));
    options_default(rl.o);
    if (prepare(g, &rl, &e) == 0)
        take_effect(g, &rl);
    note_result(g, &rl, &e);
    drop(g, &rl);
}
