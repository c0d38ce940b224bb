/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_SRC_GATEWAY_OPTIONS_TABLE_H
#define INCIPIT_SRC_GATEWAY_OPTIONS_TABLE_H

/*
 * What the three bodies of gateway/options.h share:
 *
 *     options.c        the table of keys; setting, checking, printing
 *     options_kinds.c  what kinds of values there are: text to field and back
 *     options_yaml.c   the file
 */

#include "base/buf.h"
#include "gateway/options.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define TIB ((uint64_t)1 << 40)
#define SECOND ((uint64_t)1000) /* times are in milliseconds */
#define HOUR (3600 * SECOND)

enum options_kind_id {
    TEXT,
    ADDRESS, /* of a listener */
    URL,     /* of an engine */
    REDIS,   /* URL of a Redis server */
    NAME,
    COUNT,
    POWER,   /* of two */
    PERCENT, /* hundredths of a percent */
    MODE,    /* of a file, in octal */
    BYTES,
    TIME,
    SWITCH,
    CHOICE,
    ISOLATION,
    ORIGINS, /* of pages in browsers */
    N_KINDS
};

struct options_row {
    const char *key;
    enum options_kind_id kind;
    size_t offset; /* in struct options, or in an item for "upstreams.…", "tenants.…" */
    const char *fallback;
    uint64_t min, max;        /* of the number, or of the length of the text */
    const char *const *names; /* of a CHOICE, ended by NULL */
    const char *help;
};

struct options_kind {
    const char *name;
    size_t size; /* of the field; 0: an owned text */
    int (*read)(const struct options_row *r, const char *value, void *field,
                struct err *e);
    void (*write)(const struct options_row *r, const void *field, struct buf *b);
};

extern const struct options_kind options_kinds[N_KINDS];

/* A list of maps. The keys of its items are "NAME.…"; one of them makes an item. */
struct options_list {
    const char *name, *first; /* "upstreams", "upstreams.url" */
    const char *item, *one;   /* for people: "an upstream", "each engine" */
    size_t items, count;      /* in struct options */
    size_t size, max;         /* of an item; how many */
};

/* The list of that name, or NULL. */
const struct options_list *options_list_named(const char *name);

/* The list that a key like "upstreams.url" belongs to, or NULL. */
const struct options_list *options_list_of(const char *key);

void options_list_clear(struct options *o, const struct options_list *l);

/* What a row allows, for people: "1KiB to 1MiB", "on, off". */
void options_put_limits(const struct options_row *r, struct buf *b);

/* Number of the key in the table, or -1. */
int options_find(const char *key);

/* Number of the first key "NAME.…", or -1 where NAME is no group of keys. */
int options_find_group(const char *name);

/* What names may be made of. */
bool options_is_name_byte(char c);

/* ERR_NOT_FOUND with "did you mean". */
int options_unknown(const char *key, struct err *e);

#define OPTIONS_MAX_KEYS 128 /* more than the table has */

#endif
