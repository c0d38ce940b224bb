/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "gateway_internal.h"

int gateway_read_secrets(const struct options *o, struct gateway_secrets *out,
                         struct err *e)
{
    char key[512];
    *out = (struct gateway_secrets){.keys = keys_new(o, e)};
    if (!out->keys)
        return e->code;
    if (credential_file("the admin key", o->admin_key_file, key, sizeof(key), e) != 0) {
        keys_free(out->keys);
        out->keys = NULL;
        return e->code;
    }
    out->has_admin_key = *key != '\0';
    out->admin_key = credential_digest(slice_of(key));
    return 0;
}

/* "Authorization: Bearer KEY"; "" where there is none. */
static int read_key(const char *path, char *out, size_t size, struct err *e)
{
    char key[512];
    const int rc = credential_file("the API key", path, key, sizeof(key), e);
    snprintf(out, size, *key ? "Authorization: Bearer %s\r\n" : "%s", key);
    return rc;
}

int gateway_replica_options(const struct gateway *g, const struct options *o, size_t i,
                            char authorization[600], struct replica_options *out,
                            struct err *e)
{
    static const char *const drivers[] = {"auto", "llamacpp", "openai"};
    const struct options_upstream *u = &o->upstreams[i];
    if (read_key(u->api_key_file, authorization, 600, e) != 0)
        return e->code;
    *out = (struct replica_options){
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
                     .names = g->names,
                     .connect_ms = o->timeouts_connect_ms,
                     .first_byte_ms = o->timeouts_first_byte_ms,
                     .stall_ms = o->timeouts_stall_ms,
                     .pool_idle_ms = o->upstream_pool_idle_ms,
                     .pool_max_requests = (unsigned)o->upstream_pool_max_requests,
                     .pool_max_idle = (unsigned)o->upstream_pool_max_idle}};
    return 0;
}

struct request_target *gateway_target_new(struct gateway *g, const struct options *o,
                                          size_t i, struct err *e)
{
    char authorization[600];
    struct replica_options ro;
    if (gateway_replica_options(g, o, i, authorization, &ro, e) != 0)
        return NULL;
    if (!o->upstreams[i].tls_verify)
        log_event(LOG_WARN, "tls-not-verified", "replica", "%s", o->upstreams[i].name,
                  "why", "%s",
                  "upstreams.tls_verify is off: who is in between can read and change "
                  "everything",
                  NULL);
    struct request_target *t = mem_zalloc(sizeof(*t));
    t->replica = replica_new(g->loop, g->workers, g->cache, &ro, e);
    if (!t->replica) {
        free(t);
        return NULL;
    }
    t->url = mem_strdup(o->upstreams[i].url);
    t->credentials = o->upstreams[i].credentials;
    return t;
}

void gateway_target_free(struct request_target *t)
{
    if (!t)
        return;
    replica_free(t->replica);
    free(t->url);
    free(t);
}

static bool may_ask(void *arg, const struct http_head *h, struct front_refusal *why)
{
    const struct gateway *g = arg;
    return request_may(&g->requests, h, why);
}

static void refusing(void *arg, const struct http_head *h, struct buf *headers)
{
    const struct gateway *g = arg;
    request_refusing(&g->requests, h, headers);
}

struct front_options gateway_front_options(struct gateway *g, bool admin)
{
    const struct options *o = g->o;
    return (struct front_options){
        .head = {.head_bytes = o->limits_head_bytes, .headers = o->limits_headers},
        .body_bytes = o->limits_body_bytes,
        .memory = admin ? &g->admin_memory : &g->requests.memory,
        .connections = (unsigned)o->limits_connections,
        .per_client = (unsigned)o->limits_connections_per_client,
        .upload_rate = o->limits_upload_rate,
        .download_rate = o->limits_download_rate,
        .head_ms = o->timeouts_head_ms,
        .body_ms = o->timeouts_body_ms,
        .idle_ms = o->timeouts_idle_ms,
        .write_ms = o->timeouts_write_ms,
        .pace_ms = o->timeouts_pace_ms,
        .check = admin ? NULL : may_ask,
        .refusing = admin ? NULL : refusing};
}

/* New names of tenants are those of before: the key and what tells them apart stay. */
static void set_tenants(struct gateway *g)
{
    size_t n;
    struct tenants *before = g->tenants;
    g->tenants = tenants_new(g->o, store_key(cache_store(g->cache)));
    tenants_free(before);
    const struct cache_lifetime *v = tenants_lifetimes(g->tenants, &n);
    cache_lifetimes(g->cache, (uint32_t)((g->o->store_ttl_ms + 999) / 1000), v, n);
}

void gateway_apply(struct gateway *g, const struct gateway_secrets *s)
{
    const struct options *o = g->o;
    struct request_world *w = &g->requests;
    log_set_level((enum log_level)o->log_level);
    if (g->keys != s->keys)
        keys_free(g->keys);
    g->keys = s->keys;
    set_tenants(g);
    w->keys = g->keys;
    w->tenants = g->tenants;
    w->targets = g->targets;
    w->n_targets = g->n_targets;
    w->unpack_bytes = o->limits_unpacked_bytes;
    w->memory.max = g->admin_memory.max = o->limits_buffered_bytes;
    w->total_ms = o->timeouts_total_ms;
    w->relay_admin_paths = o->admin_paths == OPTIONS_ADMIN_RELAY;
    w->drain_gone = o->on_disconnect == OPTIONS_LET_END;
    w->ping_ms = o->streams_ping_ms;
    w->cache_status = o->headers_cache_status;
    w->allow_origin = o->headers_allow_origin;
    w->hidden_line_ends = o->headers_hidden_line_ends;
    w->forwarded_for = o->headers_forwarded_for;
    w->server_timing = o->headers_server_timing;
    w->access_log = o->log_access;
    g->admin.key = s->admin_key;
    g->admin.has_key = s->has_admin_key;
    g->admin.token_bytes = o->measure_token_bytes;
    g->admin.listen = o->admin_listen;
    g->admin.reloads = &g->reloads;
}
