/* SPDX-License-Identifier: MIT */

/*
 * The table of keys, and all that is done with a key whatever its kind.
 *
 *     key → kind, place in struct options, default, limits, names, help
 *
 * A new key is one row here, a field in options.h, a line in conf/incipit.yaml and one in
 * docs/configuration.md; lint and tests insist on all four.
 */

#include "gateway/options.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/nearest.h"
#include "options_table.h"

/* ---- the table --------------------------------------------------------------------- */

#define WEEK (168 * HOUR)
#define YEAR (8760 * HOUR)

#define AT(field) offsetof(struct options, field)
#define UP(field) offsetof(struct options_upstream, field)
#define TN(field) offsetof(struct options_tenant, field)
#define WM(field) offsetof(struct options_warm, field)
#define KY(field) offsetof(struct options_key, field)

static const char *const driver_names[] = {"auto", "llamacpp", "openai", NULL};
static const char *const admission_names[] = {"all", "second-sight", NULL};
static const char *const disconnect_names[] = {"abort", "drain", NULL};
static const char *const admin_names[] = {"refuse", "relay", NULL};
static const char *const credential_names[] = {"pass", "remove", "replace", NULL};
static const char *const hidden_names[] = {"remove", "refuse", "pass", NULL};
static const char *const forwarded_names[] = {"check", "append", "remove", NULL};
static const char *const level_names[] = {"debug", "info", "warn", "error", NULL};

/* clang-format off */
static const struct options_row rows[] = {
    {"listen", ADDRESS, AT(listen), "127.0.0.1:8090", 1, 120, NULL,
     "Where clients connect: HOST:PORT, [V6]:PORT, :PORT or unix:/path."},
    {"listen_mode", MODE, AT(listen_mode), "0660", 0, 0777, NULL,
     "Mode of the socket file, where it is unix:/path: who may write to it may connect."},
    {"listen_owner", TEXT, AT(listen_owner), "", 0, 128, NULL,
     "USER, USER:GROUP or :GROUP that it is given to; empty: who runs the gateway."},
    {"admin.listen", ADDRESS, AT(admin_listen), "127.0.0.1:8091", 0, 120, NULL,
     "Where health, metrics and cache pages are; empty for nowhere."},
    {"admin.key_file", TEXT, AT(admin_key_file), "", 0, 1024, NULL,
     "File with the key that the admin side asks for; needed off loopback."},
    {"admin.listen_mode", MODE, AT(admin_listen_mode), "0600", 0, 0777, NULL,
     "As listen_mode, of the admin socket."},
    {"admin.listen_owner", TEXT, AT(admin_listen_owner), "", 0, 128, NULL,
     "As listen_owner, of the admin socket."},
    {"upstream", URL, 0, "", 0, 1024, NULL,
     "The one engine, short for a list `upstreams` of one."},
    {"upstreams.url", URL, UP(url), "", 1, 1024, NULL,
     "Address of the engine: http(s)://HOST:PORT, and a path where its API lies below "
     "one; or unix:/path."},
    {"upstreams.name", NAME, UP(name), "", 0, 64, NULL,
     "Its name in logs and metrics; HOST:PORT of the URL where none is given."},
    {"upstreams.driver", CHOICE, UP(driver), "auto", 0, 0, driver_names,
     "How the engine is spoken to; auto asks it."},
    {"upstreams.slot_dir", TEXT, UP(slot_dir), "", 0, 1024, NULL,
     "The engine's --slot-save-path as seen from here; empty: found on the same host."},
    {"upstreams.api_key_file", TEXT, UP(api_key_file), "", 0, 1024, NULL,
     "File with the key for the gateway's own requests to the engine."},
    {"upstreams.credentials", CHOICE, UP(credentials), "pass", 0, 0, credential_names,
     "What becomes of a client's key: pass it on, remove it, or replace it by that key."},
    {"upstreams.tls_ca_file", TEXT, UP(tls_ca_file), "", 0, 1024, NULL,
     "Certificate authorities (PEM) that may vouch for it; empty: the system's."},
    {"upstreams.tls_name", NAME, UP(tls_name), "", 0, 253, NULL,
     "Name that its certificate is for; empty: the host of the URL."},
    {"upstreams.tls_cert_file", TEXT, UP(tls_cert_file), "", 0, 1024, NULL,
     "Certificate of the gateway (PEM, with its chain), where the engine asks for one."},
    {"upstreams.tls_key_file", TEXT, UP(tls_key_file), "", 0, 1024, NULL,
     "Its private key (PEM, without password)."},
    {"upstreams.tls_verify", SWITCH, UP(tls_verify), "on", 0, 0, NULL,
     "Whether the certificate of an https engine is checked; off takes any."},
    {"keys.name", NAME, KY(name), "", 1, 64, NULL,
     "A key that clients may show, and must where there is any: its name, for the log."},
    {"keys.digest", TEXT, KY(digest), "", 0, 64, NULL,
     "SHA-256 of the key in hex, as sha256sum writes it."},
    {"keys_file", TEXT, AT(keys_file), "", 0, 1024, NULL,
     "File with more of them, a line each: NAME DIGEST."},
    {"isolation", ISOLATION, AT(isolation), "credential", 1, 80, NULL,
     "What tells tenants apart, who share nothing; salts separate further in any case."},
    {"tenants.name", NAME, TN(name), "", 1, 64, NULL,
     "A tenant with settings of its own: its name for people."},
    {"tenants.match", TEXT, TN(match), "", 0, 512, NULL,
     "SHA-256 of its credential in hex, or value of the header, or salt; empty: none."},
    {"tenants.ttl", TIME, TN(ttl_ms), "0", 0, 10 * YEAR, NULL,
     "How long its blocks stay without being used; 0: as store.ttl."},
    {"observe", SWITCH, AT(observe), "off", 0, 0, NULL,
     "Only look: pass everything on unchanged and tell what a store would gain."},
    {"block_tokens", POWER, AT(block_tokens), "64", 16, 512, NULL,
     "Tokens per block of the cache, a power of two."},
    {"index.max_bytes", BYTES, AT(index_max_bytes), "256MiB", MIB, TIB, NULL,
     "Memory for what is known about prompts."},
    {"tree.max_blocks", COUNT, AT(tree_max_blocks), "1000000", 1024, 1000000000, NULL,
     "Blocks the tree may know, wherever they are."},
    {"store.dir", TEXT, AT(store_dir), "", 0, 1024, NULL,
     "Folder for saved blocks; empty keeps them in RAM only."},
    {"store.max_bytes", BYTES, AT(store_max_bytes), "4GiB", MIB, 1024 * TIB, NULL,
     "Bytes of saved blocks in that folder; the least recently used go first."},
    {"store.ram_bytes", BYTES, AT(store_ram_bytes), "512MiB", MIB, 16 * TIB, NULL,
     "Bytes of saved blocks in RAM: before the folder, or all there is without one."},
    {"store.save", SWITCH, AT(store_save), "on", 0, 0, NULL,
     "Whether new blocks are saved; off restores what is there and adds nothing."},
    {"store.save_first", SWITCH, AT(store_save_first), "on", 0, 0, NULL,
     "Whether a request waits for the save of what it overwrites, where that pays."},
    {"store.max_stall", TIME, AT(store_max_stall_ms), "250ms", 1, HOUR / 60, NULL,
     "Longest save that may make a request wait; longer ones need as long a quiet."},
    {"store.max_pinned", PERCENT, AT(store_max_pinned), "50%", 0, 10000, NULL,
     "Share of what may be stored that pins may take; a pin beyond it is refused."},
    {"store.admission", CHOICE, AT(store_admission), "all", 0, 0, admission_names,
     "What of prompts is saved: all, or only the start that one before it shared."},
    {"store.min_tokens", COUNT, AT(store_min_tokens), "64", 0, 10000000, NULL,
     "Prompts that are shorter are not saved."},
    {"store.ttl", TIME, AT(store_ttl_ms), "0", 0, 10 * YEAR, NULL,
     "How long blocks stay without being used; 0: until others need the room."},
    {"store.key_file", TEXT, AT(store_key_file), "", 0, 1024, NULL,
     "File of the secret key that gateways which share blocks have in common, made where "
     "there is none; empty: the one in store.dir."},
    {"store.redis.url", REDIS, AT(store_redis_url), "", 0, 250, NULL,
     "Redis or Valkey that several gateways share: redis://HOST:PORT[/DB] or unix:/path; "
     "empty for none."},
    {"store.redis.user", TEXT, AT(store_redis_user), "", 0, 128, NULL,
     "Name of the user there; empty for the default one."},
    {"store.redis.password_file", TEXT, AT(store_redis_password_file), "", 0, 1024, NULL,
     "File with the password of that user, its first line; empty for none."},
    {"store.redis.prefix", NAME, AT(store_redis_prefix), "incipit", 1, 64, NULL,
     "What all keys there begin with."},
    {"store.redis.ttl", TIME, AT(store_redis_ttl_ms), "0", 0, 52 * WEEK, NULL,
     "How long a value lives there behind its last use; 0 for ever."},
    {"store.redis.timeout", TIME, AT(store_redis_timeout_ms), "250ms", 10, 60 * SECOND,
     NULL, "For an answer from there, and again for each 4 MiB that it moves."},
    {"store.redis.max_waiting", BYTES, AT(store_redis_max_waiting), "512MiB", MIB, TIB,
     NULL, "Bytes of blocks on their way there; more are skipped."},
    {"store.retry", TIME, AT(store_retry_ms), "30s", 10, WEEK, NULL,
     "Until an engine that failed to restore is tried again; doubled by each failure."},
    {"measure.token_bytes", BYTES, AT(measure_token_bytes), "0", 0, GIB, NULL,
     "KV bytes of a token, to tell sizes of stores in bytes; 0 where not known."},
    {"measure.holdout", PERCENT, AT(measure_holdout), "0%", 0, 5000, NULL,
     "Share of the requests that the cache could help that run cold, to measure it."},
    {"limits.head_bytes", BYTES, AT(limits_head_bytes), "32KiB", KIB, MIB, NULL,
     "Longest request line and headers together."},
    {"limits.headers", COUNT, AT(limits_headers), "128", 8, 1024, NULL,
     "Most header fields of a request."},
    {"limits.body_bytes", BYTES, AT(limits_body_bytes), "256MiB", KIB, 4 * GIB, NULL,
     "Largest request body."},
    {"limits.buffered_bytes", BYTES, AT(limits_buffered_bytes), "1GiB", MIB, TIB, NULL,
     "Memory for all request bodies under way, and for what is read from them; one more "
     "is told to come back later."},
    {"limits.unpacked_bytes", BYTES, AT(limits_unpacked_bytes), "16MiB", 0, GIB, NULL,
     "Largest copy of a packed (gzip) body that is looked into; larger pass unseen."},
    {"limits.connections", COUNT, AT(limits_connections), "1024", 1, 65536, NULL,
     "Most client connections at once."},
    {"limits.connections_per_client", COUNT, AT(limits_connections_per_client), "256", 1,
     65536, NULL, "Most connections of one IPv4 address, or of one /64 of IPv6."},
    {"limits.upload_rate", BYTES, AT(limits_upload_rate), "1KiB", 0, GIB, NULL,
     "Least bytes of a body a second, over timeouts.pace; 0 for any."},
    {"limits.download_rate", BYTES, AT(limits_download_rate), "1KiB", 0, GIB, NULL,
     "Least bytes a second that a client takes of an answer that waits; 0 for any."},
    {"limits.queue", COUNT, AT(limits_queue), "256", 0, 65536, NULL,
     "Most requests waiting for a slot; one more is told to come back later."},
    {"timeouts.head", TIME, AT(timeouts_head_ms), "10s", 10, WEEK, NULL,
     "For a client to send the head of a request."},
    {"timeouts.body", TIME, AT(timeouts_body_ms), "60s", 10, WEEK, NULL,
     "For a client to send more of a body."},
    {"timeouts.idle", TIME, AT(timeouts_idle_ms), "75s", 10, WEEK, NULL,
     "For a client connection between requests."},
    {"timeouts.connect", TIME, AT(timeouts_connect_ms), "3s", 10, WEEK, NULL,
     "For connecting to the engine."},
    {"timeouts.first_byte", TIME, AT(timeouts_first_byte_ms), "30m", 10, WEEK, NULL,
     "For the engine to begin its answer."},
    {"timeouts.stall", TIME, AT(timeouts_stall_ms), "10m", 10, WEEK, NULL,
     "For the engine between two bytes of an answer."},
    {"timeouts.queue", TIME, AT(timeouts_queue_ms), "10m", 10, WEEK, NULL,
     "For a request that waits for a slot."},
    {"timeouts.slot", TIME, AT(timeouts_slot_ms), "2m", 10, HOUR, NULL,
     "For the engine to save, restore or erase a slot."},
    {"timeouts.write", TIME, AT(timeouts_write_ms), "60s", 10, WEEK, NULL,
     "For a client to take more of an answer."},
    {"timeouts.pace", TIME, AT(timeouts_pace_ms), "30s", 10, HOUR, NULL,
     "Over which the least rates are measured; slower for that long is cut."},
    {"timeouts.total", TIME, AT(timeouts_total_ms), "6h", 10, WEEK, NULL,
     "For a request from its last byte to the end of its answer."},
    {"timeouts.drain", TIME, AT(timeouts_drain_ms), "30s", 0, WEEK, NULL,
     "For requests under way to end when the gateway is stopped."},
    {"upstream_pool.idle", TIME, AT(upstream_pool_idle_ms), "4s", 0, HOUR, NULL,
     "How long an idle connection to the engine is kept; llama-server closes after 5s."},
    {"upstream_pool.max_requests", COUNT, AT(upstream_pool_max_requests), "90",
     1, 1000000, NULL,
     "Requests per connection to the engine; llama-server closes after 100."},
    {"upstream_pool.max_idle", COUNT, AT(upstream_pool_max_idle), "16", 0, 1024, NULL,
     "Most idle connections kept per engine."},
    {"admin_paths", CHOICE, AT(admin_paths), "refuse", 0, 0, admin_names,
     "What clients get that ask for the engine's /slots and the like."},
    {"on_disconnect", CHOICE, AT(on_disconnect), "abort", 0, 0, disconnect_names,
     "When a client leaves: abort its work in the engine, or drain: let that end."},
    {"streams.ping", TIME, AT(streams_ping_ms), "0", 0, HOUR, NULL,
     "Silence in an event stream after which a comment is sent; 0 for never."},
    {"headers.cache_status", SWITCH, AT(headers_cache_status), "on", 0, 0, NULL,
     "Whether answers carry the header Cache-Status."},
    {"headers.server_timing", SWITCH, AT(headers_server_timing), "on", 0, 0, NULL,
     "Whether answers carry the header Server-Timing."},
    {"headers.allow_origin", ORIGINS, AT(headers_allow_origin), "", 0, 1024, NULL,
     "Origins of pages in browsers that may read answers, or *; empty: as engines say."},
    {"headers.hidden_line_ends", CHOICE, AT(headers_hidden_line_ends), "remove", 0, 0,
     hidden_names,
     "Of requests, headers with %0D, %0A or %00 in them: remove, refuse all, or pass."},
    {"headers.forwarded_for", CHOICE, AT(headers_forwarded_for), "check", 0, 0,
     forwarded_names,
     "X-Forwarded-For: as it came where it is a list of addresses, and the client's "
     "behind it (append), or never (remove)."},
    {"log.level", CHOICE, AT(log_level), "info", 0, 0, level_names,
     "Least severity that is logged."},
    {"log.access", SWITCH, AT(log_access), "on", 0, 0, NULL,
     "Whether each finished request is logged."},
    {"workers", COUNT, AT(workers), "2", 1, 64, NULL,
     "Threads for files and for cutting and composing state."},
    {"warm.file", TEXT, WM(file), "", 1, 1024, NULL,
     "Computed, stored and pinned at start: a request body (JSON) or a system prompt."},
    {"warm.name", NAME, WM(name), "", 0, 64, NULL,
     "Name of its pin; the file's, without folder and ending, where none is given."},
    {"warm.path", TEXT, WM(path), "", 0, 120, NULL,
     "Path of the API that the body is for; empty: by its shape."},
    {"warm.model", TEXT, WM(model), "", 0, 256, NULL,
     "Model that clients name, for a system prompt or a body that names none."},
    {"warm.replica", NAME, WM(replica), "", 0, 64, NULL,
     "Upstream that it is for; empty: all."},
    {"warm.public", SWITCH, WM(public), "off", 0, 0, NULL,
     "Whether prompts of all tenants may begin with it; else those who show nothing."},
    {"warm_before_ready", SWITCH, AT(warm_before_ready), "off", 0, 0, NULL,
     "Whether /readyz waits until the list `warm` is done, or has failed."},
};
/* clang-format on */

#define N_ROWS (sizeof(rows) / sizeof(rows[0]))
static_assert(N_ROWS <= OPTIONS_MAX_KEYS, "options_yaml.c notes which it has seen");

static const struct options_list lists[] = {
    {.name = "upstreams",
     .first = "upstreams.url",
     .item = "an upstream",
     .one = "each engine",
     .items = AT(upstreams),
     .count = AT(n_upstreams),
     .size = sizeof(struct options_upstream),
     .max = OPTIONS_MAX_UPSTREAMS},
    {.name = "tenants",
     .first = "tenants.name",
     .item = "a tenant",
     .one = "each tenant",
     .items = AT(tenants),
     .count = AT(n_tenants),
     .size = sizeof(struct options_tenant),
     .max = OPTIONS_MAX_TENANTS},
    {.name = "keys",
     .first = "keys.name",
     .item = "a key",
     .one = "each key",
     .items = AT(keys),
     .count = AT(n_keys),
     .size = sizeof(struct options_key),
     .max = OPTIONS_MAX_KEYS_LISTED},
    {.name = "warm",
     .first = "warm.file",
     .item = "an entry of warm",
     .one = "each file",
     .items = AT(warm),
     .count = AT(n_warm),
     .size = sizeof(struct options_warm),
     .max = OPTIONS_MAX_WARM},
};
#define N_LISTS (sizeof(lists) / sizeof(lists[0]))

const struct options_list *options_list_named(const char *name)
{
    for (size_t i = 0; i < N_LISTS; i++)
        if (strcmp(lists[i].name, name) == 0)
            return &lists[i];
    return NULL;
}

const struct options_list *options_list_of(const char *key)
{
    for (size_t i = 0; i < N_LISTS; i++) {
        const size_t len = strlen(lists[i].name);
        if (strncmp(key, lists[i].name, len) == 0 && key[len] == '.')
            return &lists[i];
    }
    return NULL;
}

/* The one key without a field of its own. */
static bool is_short_form(const struct options_row *r)
{
    return strcmp(r->key, "upstream") == 0;
}

int options_find(const char *key)
{
    for (size_t i = 0; i < N_ROWS; i++)
        if (strcmp(rows[i].key, key) == 0)
            return (int)i;
    return -1;
}

int options_unknown(const char *key, struct err *e)
{
    struct nearest n = nearest_to(key);
    for (size_t i = 0; i < N_ROWS; i++)
        nearest_offer(&n, rows[i].key);
    const char *near = nearest_get(&n);
    return near ? err_set(e, ERR_NOT_FOUND, "unknown key \"%.60s\"; did you mean \"%s\"?",
                          key, near)
                : err_set(e, ERR_NOT_FOUND, "unknown key \"%.60s\"", key);
}

int options_find_group(const char *name)
{
    const size_t len = strlen(name);
    for (size_t i = 0; i < N_ROWS; i++)
        if (strncmp(rows[i].key, name, len) == 0 && rows[i].key[len] == '.')
            return (int)i;
    return -1;
}

/* ---- life cycle -------------------------------------------------------------------- */

static void *field_of(void *base, const struct options_row *r)
{
    return (char *)base + r->offset;
}

/* Every field of `base` that belongs to it: all of an item of a list, or, with NULL, all
 * that are in none. */
static void set_defaults(void *base, const struct options_list *l)
{
    for (const struct options_row *r = rows; r < rows + N_ROWS; r++) {
        if (options_list_of(r->key) != l || is_short_form(r))
            continue;
        if (options_kinds[r->kind].size == 0) {
            *(char **)field_of(base, r) = mem_strdup(r->fallback);
        } else {
            int rc = options_kinds[r->kind].read(r, r->fallback, field_of(base, r), NULL);
            assert(rc == 0); /* a default is within its own limits */
        }
    }
}

static void free_texts(void *base, const struct options_list *l)
{
    for (const struct options_row *r = rows; r < rows + N_ROWS; r++)
        if (options_list_of(r->key) == l && !is_short_form(r) &&
            options_kinds[r->kind].size == 0)
            free(*(char **)field_of(base, r));
}

void options_default(struct options *o)
{
    *o = (struct options){0};
    set_defaults(o, NULL);
}

/* The array of a list, and how many are in it. */
static char **items_of(struct options *o, const struct options_list *l)
{
    return (char **)(void *)((char *)o + l->items);
}

static size_t *count_of(struct options *o, const struct options_list *l)
{
    return (size_t *)(void *)((char *)o + l->count);
}

void options_list_clear(struct options *o, const struct options_list *l)
{
    for (size_t i = 0; i < *count_of(o, l); i++)
        free_texts(*items_of(o, l) + i * l->size, l);
    free(*items_of(o, l));
    *items_of(o, l) = NULL;
    *count_of(o, l) = 0;
}

void options_free(struct options *o)
{
    for (size_t i = 0; i < N_LISTS; i++)
        options_list_clear(o, &lists[i]);
    free_texts(o, NULL);
    *o = (struct options){0};
}

/* ---- setting ----------------------------------------------------------------------- */

/* The name that nobody gave is HOST:PORT, or that of the socket file. */
static void name_upstream(struct options_upstream *up)
{
    const char *slashes = strstr(up->url, "://");
    const char *host = slashes ? slashes + 3 : strrchr(up->url, '/') + 1;
    char *name = mem_dup(host, strcspn(host, "/"));
    for (char *p = name; *p; p++)
        if (!options_is_name_byte(*p))
            *p = '-';
    name[strnlen(name, 64)] = '\0';
    free(up->name);
    up->name = name;
}

/* Appends an item to a list, made by its first key. */
static int add_item(struct options *o, const struct options_list *l,
                    const struct options_row *r, const char *value, struct err *e)
{
    const size_t n = *count_of(o, l);
    if (n == l->max)
        return err_set(e, ERR_LIMIT, "%s: more than %zu %s", r->key, l->max, l->name);
    const struct options_row *first = &rows[options_find(l->first)];
    struct options grown = {0};
    *items_of(&grown, l) = mem_zalloc((n + 1) * l->size);
    char *item = *items_of(&grown, l) + n * l->size;
    set_defaults(item, l);
    const int rc = options_kinds[first->kind].read(r, value, field_of(item, first), e);
    if (rc != 0) {
        free_texts(item, l);
        free(*items_of(&grown, l));
        return rc;
    }
    if (strcmp(l->first, "upstreams.url") == 0)
        name_upstream((struct options_upstream *)(void *)item);
    if (n)
        memcpy(*items_of(&grown, l), *items_of(o, l), n * l->size);
    free(*items_of(o, l));
    *items_of(o, l) = *items_of(&grown, l);
    *count_of(o, l) = n + 1;
    return 0;
}

static int set_short_form(struct options *o, const struct options_row *r, const char *url,
                          struct err *e)
{
    struct options fresh = {0};
    if (*url) {
        int rc = add_item(&fresh, options_list_named("upstreams"), r, url, e);
        if (rc != 0)
            return rc;
    }
    options_list_clear(o, options_list_named("upstreams"));
    o->upstreams = fresh.upstreams;
    o->n_upstreams = fresh.n_upstreams;
    return 0;
}

int options_set(struct options *o, const char *key, const char *value, struct err *e)
{
    const int i = options_find(key);
    if (i < 0)
        return options_unknown(key, e);
    const struct options_row *r = &rows[i];
    if (is_short_form(r))
        return set_short_form(o, r, value, e);
    const struct options_list *l = options_list_of(key);
    if (!l)
        return options_kinds[r->kind].read(r, value, field_of(o, r), e);
    if (strcmp(key, l->first) == 0)
        return add_item(o, l, r, value, e);
    if (*count_of(o, l) == 0)
        return err_set(e, ERR_INVALID, "%s: there is no %s that it belongs to", key,
                       strchr(l->item, ' ') + 1);
    return options_kinds[r->kind].read(
        r, value, field_of(*items_of(o, l) + (*count_of(o, l) - 1) * l->size, r), e);
}

enum options_isolation options_isolation(const struct options *o)
{
    return strcmp(o->isolation, "shared") == 0 ? OPTIONS_SHARED
           : strcmp(o->isolation, "salt") == 0 ? OPTIONS_SALT
           : strchr(o->isolation, ':')         ? OPTIONS_HEADER
                                               : OPTIONS_CREDENTIAL;
}

static int check_tenant(const struct options *o, size_t i, struct err *e)
{
    const struct options_tenant *t = &o->tenants[i];
    const bool by_sum = options_isolation(o) == OPTIONS_CREDENTIAL;
    if (by_sum && *t->match &&
        (strlen(t->match) != 64 || strspn(t->match, "0123456789abcdef") != 64))
        return err_set(e, ERR_INVALID,
                       "tenants.match of \"%s\": with isolation: credential it is the "
                       "SHA-256 of the credential, 64 digits 0-9a-f (printf %%s KEY | "
                       "sha256sum)",
                       t->name);
    for (size_t k = 0; k < i; k++) {
        if (strcmp(o->tenants[k].name, t->name) == 0)
            return err_set(e, ERR_INVALID, "tenants.name: \"%s\" is there twice",
                           t->name);
        if (strcmp(o->tenants[k].match, t->match) == 0)
            return err_set(e, ERR_INVALID, "tenants.match: \"%s\" and \"%s\" are one",
                           o->tenants[k].name, t->name);
    }
    return 0;
}

/* One of its blocks goes at the old end of an order of use for each. */
static int check_ttls(const struct options *o, struct err *e)
{
    uint64_t seen[OPTIONS_MAX_TENANTS + 1] = {o->store_ttl_ms};
    size_t n = 1;
    for (size_t i = 0; i < o->n_tenants; i++) {
        size_t k = 0;
        while (k < n && o->tenants[i].ttl_ms && seen[k] != o->tenants[i].ttl_ms)
            k++;
        if (k == n)
            seen[n++] = o->tenants[i].ttl_ms;
    }
    return n <= OPTIONS_MAX_TTLS
               ? 0
               : err_set(e, ERR_LIMIT, "tenants.ttl: more than %d different times",
                         OPTIONS_MAX_TTLS);
}

static int check_tenants(const struct options *o, struct err *e)
{
    if (o->n_tenants && options_isolation(o) == OPTIONS_SHARED)
        return err_set(e, ERR_INVALID, "tenants: with isolation: shared there are none");
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < o->n_tenants; i++)
        rc = check_tenant(o, i, e);
    return rc ? rc : check_ttls(o, e);
}

static int check_tls(const struct options_upstream *u, struct err *e)
{
    const bool tls = strncmp(u->url, "https://", 8) == 0;
    if (!tls && (*u->tls_ca_file || *u->tls_name || *u->tls_cert_file ||
                 *u->tls_key_file || !u->tls_verify))
        return err_set(e, ERR_INVALID, "upstreams.tls_…: \"%.100s\" is not https://",
                       u->url);
    if (!*u->tls_cert_file != !*u->tls_key_file)
        return err_set(e, ERR_INVALID,
                       "upstreams.tls_cert_file and upstreams.tls_key_file of \"%.100s\" "
                       "go together: one of them is missing",
                       u->url);
    return 0;
}

static int check_upstream(const struct options *o, size_t i, struct err *e)
{
    const struct options_upstream *u = &o->upstreams[i];
    if (u->credentials == OPTIONS_REPLACE && !*u->api_key_file)
        return err_set(e, ERR_INVALID,
                       "upstreams.credentials of \"%s\": to replace a key needs "
                       "upstreams.api_key_file",
                       u->name);
    for (size_t k = 0; k < i; k++) {
        if (strcmp(u->name, o->upstreams[k].name) == 0)
            return err_set(e, ERR_INVALID, "upstreams.name: \"%s\" is there twice",
                           u->name);
        if (strcmp(u->url, o->upstreams[k].url) == 0)
            return err_set(e, ERR_INVALID, "upstreams.url: \"%.100s\" is there twice",
                           u->url);
    }
    return check_tls(u, e);
}

static int check_warm(const struct options *o, struct err *e)
{
    for (size_t i = 0; i < o->n_warm; i++) {
        const struct options_warm *w = &o->warm[i];
        bool known = !*w->replica;
        for (size_t k = 0; k < o->n_upstreams; k++)
            known |= strcmp(o->upstreams[k].name, w->replica) == 0;
        if (!known)
            return err_set(e, ERR_INVALID, "warm.replica: no upstream is named \"%s\"",
                           w->replica);
        for (size_t k = 0; k < i; k++)
            if (*w->name && strcmp(o->warm[k].name, w->name) == 0)
                return err_set(e, ERR_INVALID, "warm.name: \"%s\" is there twice",
                               w->name);
    }
    return 0;
}

int options_check(const struct options *o, struct err *e)
{
    if (o->n_upstreams == 0)
        return err_set(e, ERR_INVALID,
                       "no upstream: say where the engine is, with `upstream: "
                       "http://HOST:PORT` in the file or --upstream URL");
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < o->n_upstreams; i++)
        rc = check_upstream(o, i, e);
    if (rc != 0)
        return rc;
    if (*o->store_redis_url && !*o->store_dir && !*o->store_key_file)
        return err_set(e, ERR_INVALID,
                       "store.redis.url needs a key that outlives the gateway: set "
                       "store.key_file (the same file for all that share) or store.dir");
    const char *port = strrchr(o->listen, ':');
    if (strcmp(o->listen, o->admin_listen) == 0 && port && strcmp(port, ":0") != 0)
        return err_set(e, ERR_INVALID, "listen and admin.listen are the same address: %s",
                       o->listen);
    rc = check_warm(o, e);
    return rc ? rc : check_tenants(o, e);
}

/* ---- replacing those of a running gateway ------------------------------------------ */

/* Keys that take effect at once, or all that begin with these. */
static const char *const live[] = {"admin.key_file",
                                   "admin_paths",
                                   "headers.",
                                   "keys.",
                                   "keys_file",
                                   "limits.",
                                   "log.",
                                   "measure.token_bytes",
                                   "on_disconnect",
                                   "store.admission",
                                   "store.max_stall",
                                   "store.min_tokens",
                                   "store.retry",
                                   "store.save",
                                   "store.save_first",
                                   "store.ttl",
                                   "streams.",
                                   "tenants.",
                                   "timeouts.",
                                   "upstream_pool.",
                                   "upstreams.api_key_file",
                                   "upstreams.credentials"};

bool options_is_live(const char *key)
{
    for (size_t i = 0; i < sizeof(live) / sizeof(live[0]); i++) {
        const size_t len = strlen(live[i]);
        if (live[i][len - 1] == '.' ? strncmp(key, live[i], len) == 0
                                    : strcmp(key, live[i]) == 0)
            return true;
    }
    return false;
}

static bool same_field(const struct options_row *r, const void *a, const void *b)
{
    struct buf x = {0}, y = {0};
    options_kinds[r->kind].write(r, a, &x);
    options_kinds[r->kind].write(r, b, &y);
    const bool same = slice_eq(buf_slice(&x), buf_slice(&y));
    buf_free(&x);
    buf_free(&y);
    return same;
}

static void copy_field(const struct options_row *r, void *to, const void *from)
{
    if (options_kinds[r->kind].size) {
        memcpy(to, from, options_kinds[r->kind].size);
        return;
    }
    free(*(char **)to);
    *(char **)to = mem_strdup(*(char *const *)from);
}

/* The rows of `l` (NULL: those in no list) that are not live. True: they agree. */
static bool settle_fields(const struct options_list *l, void *fresh, const void *running,
                          void (*tell)(void *arg, const char *key), void *arg)
{
    bool same = true;
    for (const struct options_row *r = rows; r < rows + N_ROWS; r++) {
        if (options_list_of(r->key) != l || is_short_form(r) || options_is_live(r->key))
            continue;
        const void *was = (const char *)running + r->offset;
        if (same_field(r, field_of(fresh, r), was))
            continue;
        same = false;
        copy_field(r, field_of(fresh, r), was);
        if (tell)
            tell(arg, r->key);
    }
    return same;
}

/* The whole list as it was. */
static void settle_warm(struct options *fresh, const struct options *running,
                        void (*tell)(void *arg, const char *key), void *arg)
{
    const struct options_list *l = options_list_named("warm");
    bool same = fresh->n_warm == running->n_warm;
    for (size_t i = 0; same && i < fresh->n_warm; i++)
        same = settle_fields(l, &fresh->warm[i], &running->warm[i], NULL, NULL);
    if (same)
        return;
    tell(arg, "warm");
    options_list_clear(fresh, l);
    fresh->warm = mem_zalloc((running->n_warm + 1) * sizeof(*fresh->warm));
    fresh->n_warm = running->n_warm;
    for (size_t i = 0; i < fresh->n_warm; i++) {
        set_defaults(&fresh->warm[i], l);
        settle_fields(l, &fresh->warm[i], &running->warm[i], NULL, NULL);
    }
}

void options_settle(struct options *fresh, const struct options *running,
                    void (*tell)(void *arg, const char *key), void *arg)
{
    const struct options_list *l = options_list_named("upstreams");
    settle_fields(NULL, fresh, running, tell, arg);
    settle_warm(fresh, running, tell, arg);
    for (size_t i = 0; i < fresh->n_upstreams; i++)
        for (size_t k = 0; k < running->n_upstreams; k++)
            if (strcmp(fresh->upstreams[i].url, running->upstreams[k].url) == 0)
                settle_fields(l, &fresh->upstreams[i], &running->upstreams[k], tell, arg);
}

/* ---- printing ---------------------------------------------------------------------- */

static void put_list(struct options *o, const struct options_list *l, struct buf *b)
{
    const size_t n = *count_of(o, l);
    buf_printf(b, n ? "%s:\n" : "%s: []\n", l->name);
    for (size_t i = 0; i < n; i++) {
        const char *indent = "  - ";
        for (const struct options_row *r = rows; r < rows + N_ROWS; r++) {
            if (options_list_of(r->key) != l)
                continue;
            buf_printf(b, "%s%s: ", indent, strchr(r->key, '.') + 1);
            options_kinds[r->kind].write(r, field_of(*items_of(o, l) + i * l->size, r),
                                         b);
            buf_append_char(b, '\n');
            indent = "    ";
        }
    }
}

/* Opens the maps of `key` that the key before it was not in, and indents. */
static const char *put_maps(struct buf *b, const char *before, const char *key)
{
    int depth = 0;
    for (const char *dot; (dot = strchr(key, '.')); key = dot + 1, depth++) {
        const size_t len = (size_t)(dot - key) + 1;
        const bool same = before && strncmp(before, key, len) == 0;
        if (!same)
            buf_printf(b, "%*s%.*s:\n", 2 * depth, "", (int)len - 1, key);
        before = same ? before + len : NULL;
    }
    buf_printf(b, "%*s", 2 * depth, "");
    return key;
}

void options_print(const struct options *o, FILE *out)
{
    struct buf b = {0};
    const char *before = NULL;
    struct options copy = *o; /* not to write to: lists are found in it */
    for (const struct options_row *r = rows; r < rows + N_ROWS; r++) {
        const struct options_list *l = options_list_of(r->key);
        if (l && strcmp(r->key, l->first) == 0)
            put_list(&copy, l, &b);
        if (l || is_short_form(r))
            continue;
        buf_printf(&b, "%s: ", put_maps(&b, before, r->key));
        before = r->key;
        options_kinds[r->kind].write(r, (const char *)o + r->offset, &b);
        buf_append_char(&b, '\n');
    }
    fwrite(buf_slice(&b).ptr, 1, buf_len(&b), out);
    buf_free(&b);
}

bool options_info(size_t i, struct options_info *info)
{
    if (i >= N_ROWS)
        return false;
    const struct options_row *r = &rows[i];
    struct buf limits = {0};
    options_put_limits(r, &limits);
    *info = (struct options_info){.key = r->key,
                                  .type = options_kinds[r->kind].name,
                                  .fallback = r->fallback,
                                  .help = r->help};
    snprintf(info->limits, sizeof(info->limits), "%.*s", (int)buf_len(&limits),
             buf_slice(&limits).ptr);
    buf_free(&limits);
    return true;
}
