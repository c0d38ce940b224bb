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

#define AT(field) offsetof(struct options, field)
#define UP(field) offsetof(struct options_upstream, field)

static const char *const driver_names[] = {"auto", "llamacpp", "openai", NULL};
static const char *const admin_names[] = {"refuse", "relay", NULL};
static const char *const level_names[] = {"debug", "info", "warn", "error", NULL};

/* clang-format off */
static const struct options_row rows[] = {
    {"listen", ADDRESS, AT(listen), "127.0.0.1:8090", 1, 120, NULL,
     "Where clients connect: HOST:PORT, [V6]:PORT, :PORT or unix:/path."},
    {"admin.listen", ADDRESS, AT(admin_listen), "127.0.0.1:8091", 0, 120, NULL,
     "Where health, metrics and cache pages are; empty for nowhere."},
    {"upstream", URL, 0, "", 0, 1024, NULL,
     "The one engine, short for a list `upstreams` of one."},
    {"upstreams.url", URL, UP(url), "", 1, 1024, NULL,
     "Address of the engine: http://HOST:PORT, and a path where its API lies below one."},
    {"upstreams.name", NAME, UP(name), "", 0, 64, NULL,
     "Its name in logs and metrics; HOST:PORT of the URL where none is given."},
    {"upstreams.driver", CHOICE, UP(driver), "auto", 0, 0, driver_names,
     "How the engine is spoken to; auto asks it."},
    {"upstreams.slot_dir", TEXT, UP(slot_dir), "", 0, 1024, NULL,
     "The engine's --slot-save-path as seen from here; empty: found on the same host."},
    {"upstreams.api_key_file", TEXT, UP(api_key_file), "", 0, 1024, NULL,
     "File with the key for the gateway's own requests to the engine."},
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
    {"store.max_stall", TIME, AT(store_max_stall_ms), "250ms", 1, HOUR / 60, NULL,
     "Longest save that may make a request wait; longer ones need as long a quiet."},
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
    {"measure.holdout", PERCENT, AT(measure_holdout), "0%", 0, 5000, NULL,
     "Share of the requests that the cache could help that run cold, to measure it."},
    {"limits.head_bytes", BYTES, AT(limits_head_bytes), "32KiB", KIB, MIB, NULL,
     "Longest request line and headers together."},
    {"limits.headers", COUNT, AT(limits_headers), "128", 8, 1024, NULL,
     "Most header fields of a request."},
    {"limits.body_bytes", BYTES, AT(limits_body_bytes), "256MiB", KIB, 4 * GIB, NULL,
     "Largest request body."},
    {"limits.buffered_bytes", BYTES, AT(limits_buffered_bytes), "1GiB", MIB, TIB, NULL,
     "Memory for all request bodies under way; one more is told to come back later."},
    {"limits.connections", COUNT, AT(limits_connections), "1024", 1, 65536, NULL,
     "Most client connections at once."},
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
    {"headers.cache_status", SWITCH, AT(headers_cache_status), "on", 0, 0, NULL,
     "Whether answers carry the header Cache-Status."},
    {"headers.server_timing", SWITCH, AT(headers_server_timing), "on", 0, 0, NULL,
     "Whether answers carry the header Server-Timing."},
    {"log.level", CHOICE, AT(log_level), "info", 0, 0, level_names,
     "Least severity that is logged."},
    {"log.access", SWITCH, AT(log_access), "on", 0, 0, NULL,
     "Whether each finished request is logged."},
    {"workers", COUNT, AT(workers), "2", 1, 64, NULL,
     "Threads for files and for cutting and composing state."},
};
/* clang-format on */

#define N_ROWS (sizeof(rows) / sizeof(rows[0]))
static_assert(N_ROWS <= OPTIONS_MAX_KEYS, "options_yaml.c notes which it has seen");

static bool per_upstream(const struct options_row *r)
{
    return strncmp(r->key, "upstreams.", 10) == 0;
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

/* Every field of `base` that belongs to it: all of an upstream, or all others. */
static void set_defaults(void *base, bool upstream)
{
    for (const struct options_row *r = rows; r < rows + N_ROWS; r++) {
        if (per_upstream(r) != upstream || is_short_form(r))
            continue;
        if (options_kinds[r->kind].size == 0) {
            *(char **)field_of(base, r) = mem_strdup(r->fallback);
        } else {
            int rc = options_kinds[r->kind].read(r, r->fallback, field_of(base, r), NULL);
            assert(rc == 0); /* a default is within its own limits */
        }
    }
}

static void free_texts(void *base, bool upstream)
{
    for (const struct options_row *r = rows; r < rows + N_ROWS; r++)
        if (per_upstream(r) == upstream && !is_short_form(r) &&
            options_kinds[r->kind].size == 0)
            free(*(char **)field_of(base, r));
}

void options_default(struct options *o)
{
    *o = (struct options){0};
    set_defaults(o, false);
}

static void drop_upstreams(struct options *o)
{
    for (size_t i = 0; i < o->n_upstreams; i++)
        free_texts(&o->upstreams[i], true);
    free(o->upstreams);
    o->upstreams = NULL;
    o->n_upstreams = 0;
}

void options_free(struct options *o)
{
    drop_upstreams(o);
    free_texts(o, false);
    *o = (struct options){0};
}

/* ---- setting ----------------------------------------------------------------------- */

/* Appends an upstream; the name that nobody gave is HOST:PORT. */
static int add_upstream(struct options *o, const struct options_row *r, const char *url,
                        struct err *e)
{
    if (o->n_upstreams == OPTIONS_MAX_UPSTREAMS)
        return err_set(e, ERR_LIMIT, "%s: more than %d upstreams", r->key,
                       OPTIONS_MAX_UPSTREAMS);
    struct options_upstream up;
    set_defaults(&up, true);
    int rc = options_kinds[URL].read(r, url, &up.url, e);
    if (rc != 0) {
        free_texts(&up, true);
        return rc;
    }
    const char *host = up.url + strlen("http://");
    char *name = mem_dup(host, strcspn(host, "/"));
    name[strnlen(name, 64)] = '\0';
    free(up.name);
    up.name = name;
    o->upstreams = mem_rearray(o->upstreams, o->n_upstreams + 1, sizeof(*o->upstreams));
    o->upstreams[o->n_upstreams++] = up;
    return 0;
}

static int set_short_form(struct options *o, const struct options_row *r, const char *url,
                          struct err *e)
{
    struct options fresh = {0};
    if (*url) {
        int rc = add_upstream(&fresh, r, url, e);
        if (rc != 0)
            return rc;
    }
    drop_upstreams(o);
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
    if (!per_upstream(r))
        return options_kinds[r->kind].read(r, value, field_of(o, r), e);
    if (r->offset == UP(url))
        return add_upstream(o, r, value, e);
    if (o->n_upstreams == 0)
        return err_set(e, ERR_INVALID, "%s: there is no upstream that it belongs to",
                       key);
    return options_kinds[r->kind].read(r, value,
                                       field_of(&o->upstreams[o->n_upstreams - 1], r), e);
}

int options_check(const struct options *o, struct err *e)
{
    if (o->n_upstreams == 0)
        return err_set(e, ERR_INVALID,
                       "no upstream: say where the engine is, with `upstream: "
                       "http://HOST:PORT` in the file or --upstream URL");
    for (size_t i = 0; i < o->n_upstreams; i++)
        for (size_t j = 0; j < i; j++) {
            if (strcmp(o->upstreams[i].name, o->upstreams[j].name) == 0)
                return err_set(e, ERR_INVALID, "upstreams.name: \"%s\" is there twice",
                               o->upstreams[i].name);
            if (strcmp(o->upstreams[i].url, o->upstreams[j].url) == 0)
                return err_set(e, ERR_INVALID, "upstreams.url: \"%.100s\" is there twice",
                               o->upstreams[i].url);
        }
    if (*o->store_redis_url && !*o->store_dir && !*o->store_key_file)
        return err_set(e, ERR_INVALID,
                       "store.redis.url needs a key that outlives the gateway: set "
                       "store.key_file (the same file for all that share) or store.dir");
    const char *port = strrchr(o->listen, ':');
    if (strcmp(o->listen, o->admin_listen) == 0 && port && strcmp(port, ":0") != 0)
        return err_set(e, ERR_INVALID, "listen and admin.listen are the same address: %s",
                       o->listen);
    return 0;
}

/* ---- printing ---------------------------------------------------------------------- */

static void put_upstreams(const struct options *o, struct buf *b)
{
    buf_append_str(b, o->n_upstreams ? "upstreams:\n" : "upstreams: []\n");
    for (size_t i = 0; i < o->n_upstreams; i++) {
        const char *indent = "  - ";
        for (const struct options_row *r = rows; r < rows + N_ROWS; r++) {
            if (!per_upstream(r))
                continue;
            buf_printf(b, "%s%s: ", indent, strchr(r->key, '.') + 1);
            options_kinds[r->kind].write(r, field_of(&o->upstreams[i], r), b);
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
    for (const struct options_row *r = rows; r < rows + N_ROWS; r++) {
        if (per_upstream(r))
            continue;
        if (is_short_form(r)) {
            put_upstreams(o, &b);
            continue;
        }
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
