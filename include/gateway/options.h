/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_GATEWAY_OPTIONS_H
#define INCIPIT_GATEWAY_OPTIONS_H

/*
 * The configuration: a plain value, made from defaults, a YAML file and the command line,
 * each over the one before. One table in options.c has a row per key (name, type,
 * default, limits, help); reader, printer, `incipit check`, the admin view and the docs
 * all come from it. A field is named like its key, with the unit behind it.
 *
 * Texts are owned by the struct and never NULL; "" means that there is none. Numbers are
 * within the limits of the table: nobody needs to check them again. Those of a running
 * gateway are never changed, but replaced by others (SIGHUP).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "base/slice.h"

#define OPTIONS_MAX_UPSTREAMS 64
#define OPTIONS_MAX_TENANTS 64
#define OPTIONS_MAX_TTLS 8 /* different ones */
#define OPTIONS_MAX_WARM 1024
#define OPTIONS_MAX_KEYS_LISTED 1024 /* in a file there may be more */
#define OPTIONS_MAX_FILE ((size_t)1 << 20)

enum options_driver {
    OPTIONS_DRIVER_AUTO,
    OPTIONS_DRIVER_LLAMACPP,
    OPTIONS_DRIVER_OPENAI
};
enum options_isolation {
    OPTIONS_SHARED,
    OPTIONS_SALT,
    OPTIONS_HEADER,
    OPTIONS_CREDENTIAL
};
enum options_credentials { OPTIONS_PASS, OPTIONS_REMOVE, OPTIONS_REPLACE };
enum options_hidden { OPTIONS_HIDDEN_REMOVE, OPTIONS_HIDDEN_REFUSE, OPTIONS_HIDDEN_PASS };
enum options_forwarded {
    OPTIONS_FORWARDED_CHECK,
    OPTIONS_FORWARDED_APPEND,
    OPTIONS_FORWARDED_REMOVE
};
enum options_admission { OPTIONS_ADMIT_ALL, OPTIONS_SECOND_SIGHT };
enum options_on_disconnect { OPTIONS_ABORT, OPTIONS_LET_END };
enum options_admin_paths { OPTIONS_ADMIN_REFUSE, OPTIONS_ADMIN_RELAY };

struct options_upstream {
    char *url;  /* "http://HOST:PORT[/prefix]", https:// the same, "unix:/path" */
    char *name; /* in logs and metrics */
    int driver; /* enum options_driver */
    char *slot_dir;
    char *api_key_file;
    int credentials; /* enum options_credentials: what becomes of a client's */
    char *tls_ca_file, *tls_name, *tls_cert_file, *tls_key_file; /* io/tls.h */
    bool tls_verify;
};

/* Who may ask. */
struct options_key {
    char *name;
    char *digest; /* SHA-256 in hex */
};

struct options_tenant {
    char *name; /* for people */
    char
        *match; /* by isolation: SHA-256 of the credential in hex, value of the header, or
                    salt; "": those who show nothing */
    uint64_t ttl_ms; /* 0: as store.ttl */
};

/* A prompt start that is computed before anybody asks for it. */
struct options_warm {
    char *file;    /* a request body, or the text of a system prompt */
    char *name;    /* of its pin */
    char *path;    /* of the API; "": by the shape of the body */
    char *model;   /* as clients write it, for a text and a body without one */
    char *replica; /* "": all of them */
    bool public;   /* for prompts of all tenants */
};

struct options {
    char *listen;
    uint64_t listen_mode; /* of the file, for UNIX sockets */
    char *listen_owner;   /* "USER:GROUP"; "": not changed */
    char *admin_listen;   /* "": no admin listener */
    char *admin_key_file;
    uint64_t admin_listen_mode;
    char *admin_listen_owner;
    struct options_key *keys;
    size_t n_keys;
    char *keys_file;
    struct options_upstream *upstreams;
    size_t n_upstreams;
    char *isolation; /* "shared", "salt", "header:NAME", "credential" */
    struct options_tenant *tenants;
    size_t n_tenants;
    struct options_warm *warm;
    size_t n_warm;
    bool warm_before_ready;

    bool observe;
    uint64_t block_tokens;
    uint64_t index_max_bytes;
    uint64_t tree_max_blocks;
    char *store_dir; /* "": RAM only */
    uint64_t store_max_bytes;
    uint64_t store_ram_bytes;
    uint64_t store_max_pinned; /* hundredths of a percent of what may be stored */
    bool store_save;
    uint64_t store_max_stall_ms;
    bool store_save_first;
    char *store_key_file;
    char *store_redis_url; /* "": none */
    char *store_redis_user;
    char *store_redis_password_file;
    char *store_redis_prefix;
    uint64_t store_redis_ttl_ms;
    uint64_t store_redis_timeout_ms;
    uint64_t store_redis_max_waiting;

    uint64_t store_retry_ms;
    uint64_t measure_token_bytes;
    uint64_t measure_holdout; /* hundredths of a percent */
    int store_admission;      /* enum options_admission */
    uint64_t store_min_tokens;
    uint64_t store_ttl_ms; /* 0: no limit */

    uint64_t limits_head_bytes;
    uint64_t limits_headers;
    uint64_t limits_body_bytes;
    uint64_t limits_buffered_bytes;
    uint64_t limits_unpacked_bytes;
    uint64_t limits_connections;
    uint64_t limits_connections_per_client;
    uint64_t limits_upload_rate; /* bytes per second */
    uint64_t limits_download_rate;
    uint64_t limits_queue;

    uint64_t timeouts_head_ms;
    uint64_t timeouts_body_ms;
    uint64_t timeouts_idle_ms;
    uint64_t timeouts_connect_ms;
    uint64_t timeouts_first_byte_ms;
    uint64_t timeouts_stall_ms;
    uint64_t timeouts_queue_ms;
    uint64_t timeouts_slot_ms;
    uint64_t timeouts_write_ms;
    uint64_t timeouts_pace_ms;
    uint64_t timeouts_total_ms;
    uint64_t timeouts_drain_ms;

    uint64_t upstream_pool_idle_ms;
    uint64_t upstream_pool_max_requests;
    uint64_t upstream_pool_max_idle;

    int admin_paths;          /* enum options_admin_paths */
    int on_disconnect;        /* enum options_on_disconnect */
    uint64_t streams_ping_ms; /* 0: none */
    bool headers_cache_status;
    bool headers_server_timing;
    char *headers_allow_origin;   /* "", "*", or origins with blanks between them */
    int headers_hidden_line_ends; /* enum options_hidden */
    int headers_forwarded_for;    /* enum options_forwarded */
    int log_level;                /* enum log_level */
    bool log_access;
    uint64_t workers;
};

/* All defaults. Ends with options_free(). */
void options_default(struct options *o);
void options_free(struct options *o);

/*
 * Puts the keys of a YAML file over what `o` holds. Errors name file and line, and what
 * would be right: unknown key (with the nearest name), duplicate key, wrong type, unit
 * or limit. After an error `o` is still valid, with the keys before it taken over.
 */
int options_load(struct options *o, const char *path, struct err *e);

/* The same for a text in memory; `name` stands for the file in errors. */
int options_parse(struct options *o, struct slice text, const char *name, struct err *e);

/*
 * Sets one key from text, as the file and the command line do. "upstream" makes the list
 * of upstreams that one; "upstreams.url" appends an upstream, and the other keys
 * "upstreams.…" belong to the last one. In the same way "tenants.name" appends a tenant,
 * and "warm.file" what is to be warm.
 */
int options_set(struct options *o, const char *key, const char *value, struct err *e);

enum options_isolation options_isolation(const struct options *o);

/* What no single key can say: an upstream is there, names and listeners differ, tenants
 * can be told apart. */
int options_check(const struct options *o, struct err *e);

/*
 * What of a new configuration can take effect while the gateway runs? Keys that cannot,
 * and differ from `running`, are put back to what they are there, and named to `tell`.
 * Upstreams are compared by URL: they come and go, but one that stays keeps its name,
 * driver and slot directory.
 */
void options_settle(struct options *fresh, const struct options *running,
                    void (*tell)(void *arg, const char *key), void *arg);

/* The effective configuration as YAML that options_load() takes back. */
void options_print(const struct options *o, FILE *out);

/* Whether a change of it takes effect while the gateway runs. */
bool options_is_live(const char *key);

/* A row of the table, for people; `limits` is like "1KiB to 1MiB" or "on, off". */
struct options_info {
    const char *key, *type, *fallback, *help;
    char limits[64];
};

/* Row `i`, counted from 0; false behind the last. */
bool options_info(size_t i, struct options_info *info);

#endif
