/* SPDX-License-Identifier: MIT */

/*
 * Kinds of option values. Each has a reader, which refuses with the reason and with what
 * would be allowed, and a writer, whose text the reader takes back.
 */

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/units.h"
#include "gateway/cors.h"
#include "io/addr.h"
#include "options_table.h"
#include "store/store.h"

/* ---- limits ------------------------------------------------------------------------ */

static void format_percent(uint64_t hundredths, struct buf *b)
{
    buf_printf(b, "%" PRIu64, hundredths / 100);
    if (hundredths % 100)
        buf_printf(b, ".%02u", (unsigned)(hundredths % 100));
    buf_append_char(b, '%');
}

/* The largest unit that says it exactly, so that what is printed reads back the same. */
static void format_number(enum options_kind_id kind, uint64_t value, struct buf *b)
{
    static const struct {
        enum options_kind_id kind;
        uint64_t factor;
        const char *unit;
    } units[] = {
        {BYTES, TIB, "TiB"}, {BYTES, GIB, "GiB"}, {BYTES, MIB, "MiB"},
        {BYTES, KIB, "KiB"}, {BYTES, 1, "B"},     {TIME, 24 * HOUR, "d"},
        {TIME, HOUR, "h"},   {TIME, 60000, "m"},  {TIME, SECOND, "s"},
        {TIME, 1, "ms"},     {COUNT, 1, ""},      {POWER, 1, ""},
    };
    if (kind == PERCENT || kind == MODE) {
        if (kind == PERCENT)
            format_percent(value, b);
        else
            buf_printf(b, "%04o", (unsigned)value);
        return;
    }
    if (value == 0) {
        buf_append_char(b, '0');
        return;
    }
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (units[i].kind == kind && value % units[i].factor == 0) {
            buf_printf(b, "%" PRIu64 "%s", value / units[i].factor, units[i].unit);
            return;
        }
}

void options_put_limits(const struct options_row *r, struct buf *b)
{
    if (r->kind == CHOICE) {
        for (const char *const *name = r->names; *name; name++)
            buf_printf(b, "%s%s", name == r->names ? "" : ", ", *name);
    } else if (r->kind == ISOLATION) {
        buf_append_str(b, "shared, salt, header:NAME, credential");
    } else if (r->kind == SWITCH) {
        buf_append_str(b, "on, off");
    } else if (r->kind >= COUNT && r->kind <= TIME) {
        format_number(r->kind, r->min, b);
        buf_append_str(b, " to ");
        format_number(r->kind, r->max, b);
    } else {
        buf_printf(b, "%s%" PRIu64 " bytes", r->min ? "" : "empty, to ", r->max);
        if (r->min)
            buf_append_str(b, " at most");
    }
}

/* ---- text to field ----------------------------------------------------------------- */

static int refuse(const struct options_row *r, const char *value, const char *what,
                  struct err *e)
{
    struct buf limits = {0};
    options_put_limits(r, &limits);
    err_set(e, ERR_INVALID, "%s: \"%.60s\" is %s; allowed: %.*s", r->key, value, what,
            (int)buf_len(&limits), buf_slice(&limits).ptr);
    buf_free(&limits);
    return ERR_INVALID;
}

static void replace(char **field, const char *value)
{
    char *copy = mem_strdup(value); /* first: `value` may be the old text */
    free(*field);
    *field = copy;
}

static int read_text(const struct options_row *r, const char *value, void *field,
                     struct err *e)
{
    const size_t len = strlen(value);
    if (len < r->min || len > r->max)
        return err_set(e, ERR_LIMIT, "%s: %s", r->key,
                       len ? "too long" : "must not be empty");
    for (const char *p = value; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            return err_set(e, ERR_INVALID, "%s: control characters are not allowed",
                           r->key);
    replace(field, value);
    return 0;
}

/* "unix:/path"; a relative path would depend on where the gateway was started. */
static bool is_unix(const char *value)
{
    return strncmp(value, "unix:/", 6) == 0;
}

static int read_unix(const struct options_row *r, const char *value, void *field,
                     struct err *e)
{
    struct addr at;
    const int rc = addr_resolve(&at, value, e); /* its path is not too long */
    if (rc == 0)
        return read_text(r, value, field, e);
    err_wrap(e, "%s", r->key);
    return rc;
}

/* "…:PORT" or "unix:/path". Names are resolved when it is listened on. */
static int read_address(const struct options_row *r, const char *value, void *field,
                        struct err *e)
{
    if (is_unix(value))
        return read_unix(r, value, field, e);
    if (*value) {
        const char *colon = strrchr(value, ':');
        uint64_t port;
        const bool bare_v6 = colon && *value != '[' && strchr(value, ':') != colon;
        if (!colon || bare_v6 || !units_parse_count(colon + 1, &port) || port > 65535)
            return err_set(e, ERR_INVALID,
                           "%s: \"%.60s\" is no address; allowed: HOST:PORT, [V6]:PORT, "
                           ":PORT, unix:/path",
                           r->key, value);
    }
    return read_text(r, value, field, e);
}

static const char name_bytes[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                 "0123456789._:[]-";

/* HOST:PORT, and behind it nothing or a path. It becomes the name of an upstream. */
static bool is_host(const char *text)
{
    const size_t len = strspn(text, name_bytes);
    return len > 0 && *text != ':' && (text[len] == '\0' || text[len] == '/');
}

bool options_is_name_byte(char c)
{
    return c && strchr(name_bytes, c);
}

static int read_url(const struct options_row *r, const char *value, void *field,
                    struct err *e)
{
    const char *host = strncmp(value, "http://", 7) == 0    ? value + 7
                       : strncmp(value, "https://", 8) == 0 ? value + 8
                                                            : NULL;
    if (is_unix(value))
        return read_unix(r, value, field, e);
    if (*value && (!host || !is_host(host) || strpbrk(value, "?#")))
        return err_set(e, ERR_INVALID,
                       "%s: \"%.60s\" is no URL of an engine; allowed: "
                       "http://HOST:PORT[/path], https://HOST:PORT[/path], unix:/path",
                       r->key, value);
    return read_text(r, value, field, e);
}

static int read_redis(const struct options_row *r, const char *value, void *field,
                      struct err *e)
{
    char where[256];
    unsigned db;
    if (*value && store_redis_url(value, where, &db, e) != 0)
        return err_wrap(e, "%s", r->key);
    return read_text(r, value, field, e);
}

static int read_name(const struct options_row *r, const char *value, void *field,
                     struct err *e)
{
    if (value[strspn(value, name_bytes)])
        return err_set(e, ERR_INVALID, "%s: only letters, digits and . _ - : are allowed",
                       r->key);
    return read_text(r, value, field, e);
}

/* "5%" or "0.25%": at most two digits behind the point. */
static bool parse_percent(const char *text, uint64_t *hundredths)
{
    static const char digits[] = "0123456789";
    uint64_t whole = 0, n = strspn(text, digits);
    if (n == 0 || n > 3)
        return false;
    for (uint64_t i = 0; i < n; i++)
        whole = whole * 10 + (uint64_t)(text[i] - '0');
    text += n;
    *hundredths = whole * 100;
    if (*text == '.') {
        n = strspn(++text, digits);
        if (n == 0 || n > 2)
            return false;
        *hundredths += (uint64_t)(text[0] - '0') * 10;
        *hundredths += n == 2 ? (uint64_t)(text[1] - '0') : 0;
        text += n;
    }
    return strcmp(text, "%") == 0;
}

/* Octal, as chmod takes it. */
static bool parse_mode(const char *text, uint64_t *mode)
{
    const size_t n = strlen(text);
    if (n < 3 || n > 4 || text[strspn(text, "01234567")])
        return false;
    *mode = strtoul(text, NULL, 8);
    return true;
}

static int read_number(const struct options_row *r, const char *value, void *field,
                       struct err *e)
{
    static const struct {
        bool (*parse)(const char *text, uint64_t *value);
        const char *what;
    } by_kind[N_KINDS] = {
        [COUNT] = {units_parse_count, "no whole number"},
        [POWER] = {units_parse_count, "no power of two"},
        [PERCENT] = {parse_percent, "no share like 5% or 0.5%"},
        [MODE] = {parse_mode, "no mode of a file like 0660"},
        [BYTES] = {units_parse_bytes, "no size like 64MiB"},
        [TIME] = {units_parse_ms, "no time like 30s (units ms, s, m, h, d)"},
    };
    uint64_t n;
    if (!by_kind[r->kind].parse(value, &n) || (r->kind == POWER && (n & (n - 1))))
        return refuse(r, value, by_kind[r->kind].what, e);
    if (n < r->min || n > r->max)
        return refuse(r, value, "out of range", e);
    memcpy(field, &n, sizeof(n));
    return 0;
}

static int read_switch(const struct options_row *r, const char *value, void *field,
                       struct err *e)
{
    static const char *const words[] = {"off", "on", "false", "true", "no", "yes"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcmp(value, words[i]) == 0) {
            *(bool *)field = i & 1;
            return 0;
        }
    return refuse(r, value, "no switch", e);
}

static int read_choice(const struct options_row *r, const char *value, void *field,
                       struct err *e)
{
    for (int i = 0; r->names[i]; i++)
        if (strcmp(value, r->names[i]) == 0) {
            *(int *)field = i;
            return 0;
        }
    return refuse(r, value, "no choice", e);
}

/* shared, salt, header:NAME, credential */
static int read_isolation(const struct options_row *r, const char *value, void *field,
                          struct err *e)
{
    static const char token[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "0123456789!#$%&'*+-.^_`|~";
    const bool header = strncmp(value, "header:", 7) == 0 && value[7] &&
                        value[7 + strspn(value + 7, token)] == '\0';
    if (!header && strcmp(value, "shared") != 0 && strcmp(value, "salt") != 0 &&
        strcmp(value, "credential") != 0)
        return err_set(e, ERR_INVALID,
                       "%s: \"%.60s\" is no way to tell tenants apart; allowed: shared, "
                       "salt, header:NAME, credential",
                       r->key, value);
    return read_text(r, value, field, e);
}

static int read_origins(const struct options_row *r, const char *value, void *field,
                        struct err *e)
{
    if (!cors_is_list(value))
        return err_set(e, ERR_INVALID,
                       "%s: \"%.60s\" is no list of origins; allowed: *, or "
                       "SCHEME://HOST[:PORT] without a slash behind, with one blank "
                       "between two",
                       r->key, value);
    return read_text(r, value, field, e);
}

/* ---- field to text ----------------------------------------------------------------- */

/* As a double-quoted YAML scalar; control characters cannot be in it. */
static void write_text(const struct options_row *r, const void *field, struct buf *b)
{
    (void)r;
    buf_append_char(b, '"');
    for (const char *p = *(char *const *)field; *p; p++) {
        if (*p == '"' || *p == '\\')
            buf_append_char(b, '\\');
        buf_append_char(b, *p);
    }
    buf_append_char(b, '"');
}

static void write_number(const struct options_row *r, const void *field, struct buf *b)
{
    format_number(r->kind, *(const uint64_t *)field, b);
}

static void write_switch(const struct options_row *r, const void *field, struct buf *b)
{
    (void)r;
    buf_append_str(b, *(const bool *)field ? "on" : "off");
}

static void write_choice(const struct options_row *r, const void *field, struct buf *b)
{
    buf_append_str(b, r->names[*(const int *)field]);
}

const struct options_kind options_kinds[N_KINDS] = {
    [TEXT] = {"text", 0, read_text, write_text},
    [ADDRESS] = {"address", 0, read_address, write_text},
    [URL] = {"URL", 0, read_url, write_text},
    [REDIS] = {"Redis URL", 0, read_redis, write_text},
    [NAME] = {"name", 0, read_name, write_text},
    [COUNT] = {"number", sizeof(uint64_t), read_number, write_number},
    [POWER] = {"power of two", sizeof(uint64_t), read_number, write_number},
    [PERCENT] = {"percent", sizeof(uint64_t), read_number, write_number},
    [MODE] = {"mode", sizeof(uint64_t), read_number, write_number},
    [BYTES] = {"size", sizeof(uint64_t), read_number, write_number},
    [TIME] = {"time", sizeof(uint64_t), read_number, write_number},
    [SWITCH] = {"switch", sizeof(bool), read_switch, write_switch},
    [ISOLATION] = {"isolation", 0, read_isolation, write_text},
    [ORIGINS] = {"origins", 0, read_origins, write_text},
    [CHOICE] = {"choice", sizeof(int), read_choice, write_choice},
};
