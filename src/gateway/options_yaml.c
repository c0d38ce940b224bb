/* SPDX-License-Identifier: MIT */

/*
 * The configuration file, read event by event because events carry line numbers:
 *
 *     stream = document of one map
 *     map    = (KEY value)…     KEY of an inner map gives "OUTER.KEY"
 *     value  = scalar | map of a group of keys | list of maps ("upstreams", "tenants")
 *
 * Only what the table of options knows is descended into, so depth is bounded.
 */

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/buf.h"
#include "base/mem.h"
#include "options_table.h"

struct reader {
    yaml_parser_t parser;
    yaml_event_t event;
    const char *name;
    struct options *o;
    bool seen[OPTIONS_MAX_KEYS];        /* by row; of a list: in this item */
    bool seen_groups[OPTIONS_MAX_KEYS]; /* by first row */
    struct err *e;
};

/* One entry of an item of the list, kept until the item is whole. */
struct entry {
    char *value;
    size_t line;
};

static size_t line_of(const struct reader *r)
{
    return r->event.start_mark.line + 1;
}

/* Puts file and line before an error that was just set. */
static int at_line(struct reader *r, size_t line)
{
    return err_wrap(r->e, "%.120s:%zu", r->name, line);
}

/* Says what is wrong with the event under way. */
static int __attribute__((format(printf, 2, 3)))
complain(struct reader *r, const char *fmt, ...)
{
    char what[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    err_set(r->e, ERR_FORMAT, "%s", what);
    return at_line(r, line_of(r));
}

static int next(struct reader *r)
{
    yaml_event_delete(&r->event);
    if (yaml_parser_parse(&r->parser, &r->event))
        return 0;
    err_set(r->e, ERR_FORMAT, "%s", r->parser.problem ? r->parser.problem : "no YAML");
    return at_line(r, r->parser.problem_mark.line + 1);
}

/* The scalar under way as a string of its own, or NULL with the error set. */
static char *take_scalar(struct reader *r)
{
    const char *text = (const char *)r->event.data.scalar.value;
    const size_t len = r->event.data.scalar.length;
    if (memchr(text, '\0', len)) {
        complain(r, "a NUL byte is in a value");
        return NULL;
    }
    const bool plain = r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if (plain && (strcmp(text, "~") == 0 || strcmp(text, "null") == 0))
        return mem_strdup("");
    return mem_dup(text, len);
}

/* Reads a key; NULL at the end of the map, with 0 in *rc, or on an error. */
static char *next_key(struct reader *r, const char *outer, int *rc)
{
    *rc = next(r);
    if (*rc != 0 || r->event.type == YAML_MAPPING_END_EVENT)
        return NULL;
    if (r->event.type != YAML_SCALAR_EVENT) {
        *rc = complain(r, "a key is a plain word");
        return NULL;
    }
    char *word = take_scalar(r);
    if (!word) {
        *rc = ERR_FORMAT;
        return NULL;
    }
    char *key = *outer ? mem_printf("%s.%s", outer, word) : mem_strdup(word);
    free(word);
    return key;
}

/* Marks a key as seen; the second time is an error. */
static int note_key(struct reader *r, const char *key)
{
    const int row = options_find(key), group = options_find_group(key);
    if (row < 0 && group < 0) {
        options_unknown(key, r->e);
        return at_line(r, line_of(r));
    }
    bool *seen = row >= 0 ? &r->seen[row] : &r->seen_groups[group];
    if (*seen)
        return complain(r, "\"%.60s\" is given twice", key);
    *seen = true;
    return 0;
}

static int read_list(struct reader *r, const struct options_list *l);
static int read_map(struct reader *r, const char *outer);

static int read_scalar(struct reader *r, const char *key)
{
    const struct options_list *l = options_list_named(key);
    if (l &&
        r->event.data.scalar.length == 0) { /* a list whose items are commented out */
        options_list_clear(r->o, l);
        return 0;
    }
    if (l)
        return complain(
            r, "\"%.60s\" is a list of maps%s", key,
            strcmp(key, "upstreams") == 0 ? "; for one engine write upstream: URL" : "");
    if (options_find(key) < 0)
        return complain(r, "\"%.60s\" is a map of keys, not a value", key);
    char *value = take_scalar(r);
    if (!value)
        return ERR_FORMAT;
    int rc = options_set(r->o, key, value, r->e);
    free(value);
    return rc ? at_line(r, line_of(r)) : 0;
}

/* The value behind `key`. */
static int read_value(struct reader *r, const char *key)
{
    int rc = next(r);
    if (rc != 0)
        return rc;
    const struct options_list *l = options_list_named(key);
    switch ((int)r->event.type) {
    case YAML_SCALAR_EVENT:
        return read_scalar(r, key);
    case YAML_MAPPING_START_EVENT:
        if (!l && options_find_group(key) >= 0)
            return read_map(r, key);
        if (l)
            return complain(r, "\"%.60s\" is a list: write a dash before %s", key,
                            l->one);
        return complain(r, "\"%.60s\" takes one value, not a map", key);
    case YAML_SEQUENCE_START_EVENT:
        return l ? read_list(r, l)
                 : complain(r, "\"%.60s\" takes one value, not a list", key);
    case YAML_ALIAS_EVENT:
        return complain(r, "aliases are not known here");
    }
    return complain(r, "\"%.60s\" has no value", key);
}

static int read_map(struct reader *r, const char *outer)
{
    int rc = 0;
    for (char *key; rc == 0 && (key = next_key(r, outer, &rc)); free(key)) {
        const struct options_list *l = *outer ? NULL : options_list_of(key);
        if (l)
            rc = complain(r, "\"%.60s\" belongs into a list: %s:, and a dash before it",
                          key, l->name);
        if (rc == 0)
            rc = note_key(r, key);
        if (rc == 0)
            rc = read_value(r, key);
    }
    return rc;
}

static int read_entry(struct reader *r, const char *key, struct entry *entries)
{
    int rc = note_key(r, key);
    if (rc == 0)
        rc = next(r);
    if (rc != 0)
        return rc;
    if (r->event.type != YAML_SCALAR_EVENT)
        return complain(r, "\"%.60s\" takes one value", key);
    struct entry *entry = &entries[options_find(key)];
    entry->line = line_of(r);
    entry->value = take_scalar(r);
    return entry->value ? 0 : ERR_FORMAT;
}

/* The key that makes the item goes first, wherever in the item it stood: it is the first
 * of its rows in the table. */
static int apply_entries(struct reader *r, const struct options_list *l,
                         const struct entry *entries, size_t line)
{
    const int first = options_find(l->first);
    if (!entries[first].value) {
        err_set(r->e, ERR_INVALID, "%s without %s", l->item, strchr(l->first, '.') + 1);
        return at_line(r, line);
    }
    struct options_info info;
    for (size_t i = (size_t)first; i < OPTIONS_MAX_KEYS && options_info(i, &info); i++) {
        if (!entries[i].value)
            continue;
        if (options_set(r->o, info.key, entries[i].value, r->e) != 0)
            return at_line(r, entries[i].line);
    }
    return 0;
}

static int read_item(struct reader *r, const struct options_list *l)
{
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return complain(r, "%s is a map with %s, …", l->item, strchr(l->first, '.') + 1);
    struct entry entries[OPTIONS_MAX_KEYS] = {0};
    const size_t line = line_of(r);
    int rc = 0;
    for (char *key; rc == 0 && (key = next_key(r, l->name, &rc)); free(key))
        rc = read_entry(r, key, entries);
    if (rc == 0)
        rc = apply_entries(r, l, entries, line);
    for (size_t i = 0; i < OPTIONS_MAX_KEYS; i++) {
        r->seen[i] = entries[i].value ? false : r->seen[i];
        free(entries[i].value);
    }
    return rc;
}

/* The list replaces what was there; the short form beside it would be ambiguous. */
static int read_list(struct reader *r, const struct options_list *l)
{
    int rc = 0;
    options_list_clear(r->o, l);
    while (rc == 0 && (rc = next(r)) == 0) {
        if (r->event.type == YAML_SEQUENCE_END_EVENT)
            return 0;
        rc = read_item(r, l);
    }
    return rc;
}

static int read_document(struct reader *r)
{
    const bool empty =
        r->event.type == YAML_SCALAR_EVENT && r->event.data.scalar.length == 0;
    if (empty)
        return 0;
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return complain(r, "a configuration is a map: `key: value` lines");
    int rc = read_map(r, "");
    if (rc == 0 && r->seen[options_find("upstream")] &&
        r->seen_groups[options_find_group("upstreams")])
        rc = complain(r, "upstream and upstreams are both given; keep one");
    return rc;
}

static int read_stream(struct reader *r)
{
    int documents = 0;
    int rc = next(r);
    while (rc == 0 && r->event.type != YAML_STREAM_END_EVENT) {
        if (r->event.type == YAML_DOCUMENT_START_EVENT) {
            if (documents++)
                return complain(r, "a second document (---) in one file");
            rc = next(r);
            if (rc == 0)
                rc = read_document(r);
        }
        if (rc == 0)
            rc = next(r);
    }
    return rc;
}

int options_parse(struct options *o, struct slice text, const char *name, struct err *e)
{
    struct err local = {0};
    struct reader r = {.name = name, .o = o, .e = &local};
    if (!yaml_parser_initialize(&r.parser))
        abort(); /* out of memory, as base/mem.h says it */
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text.ptr, text.len);
    int rc = read_stream(&r);
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    return rc ? err_set(e, rc, "%s", local.text) : 0;
}

int options_load(struct options *o, const char *path, struct err *e)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return err_errno(e, "reading the configuration %s", path);
    struct buf text = {0};
    size_t n = 0;
    do {
        n = fread(buf_reserve(&text, 4096), 1, 4096, f);
        buf_commit(&text, n);
    } while (n > 0 && buf_len(&text) <= OPTIONS_MAX_FILE);
    int rc = 0;
    if (ferror(f))
        rc = err_errno(e, "reading the configuration %s", path);
    else if (buf_len(&text) > OPTIONS_MAX_FILE)
        rc = err_set(e, ERR_LIMIT, "%s: larger than 1 MiB, this is no configuration",
                     path);
    else
        rc = options_parse(o, buf_slice(&text), path, e);
    fclose(f);
    buf_free(&text);
    return rc;
}
