/* SPDX-License-Identifier: MIT */
#include "gateway/cors.h"

#include <string.h>
#include <strings.h>

static const char allow_origin[] = "Access-Control-Allow-Origin:";

/* An origin is SCHEME://HOST[:PORT], without a slash behind. */
static bool is_origin(const char *s, size_t len)
{
    const char *slashes = memmem(s, len, "://", 3);
    const char *host = slashes ? slashes + 3 : NULL;
    return host && host > s + 3 && host < s + len &&
           !memchr(host, '/', (size_t)(s + len - host)) && !memchr(s, '*', len);
}

bool cors_is_list(const char *origins)
{
    if (strcmp(origins, "*") == 0)
        return true;
    for (const char *p = origins; *p;) {
        const size_t len = strcspn(p, " ");
        if (!is_origin(p, len))
            return false;
        p += len;
        if (*p && !*++p)
            return false;
    }
    return true;
}

static bool is_listed(const char *origins, struct slice origin)
{
    for (const char *p = origins; *p; p += strspn(p, " ")) {
        const size_t len = strcspn(p, " ");
        if (slice_eq_nocase(slice_make(p, len), origin))
            return true;
        p += len;
    }
    return false;
}

static bool has_line(struct slice lines, const char *name)
{
    const size_t n = strlen(name);
    for (size_t i = 0; i + n <= lines.len; i++)
        if ((i == 0 || lines.ptr[i - 1] == '\n') &&
            strncasecmp(lines.ptr + i, name, n) == 0)
            return true;
    return false;
}

/* Of a list only the one that asks is named, so answers differ by who asks. */
static bool put_origin(struct buf *out, const char *origins, const struct http_head *h)
{
    const bool any = strcmp(origins, "*") == 0;
    const struct slice origin =
        h ? http_head_get(h, SLICE_LIT("Origin")) : (struct slice){0};
    if (!any)
        buf_append_str(out, "Vary: Origin\r\n");
    if (!any && (!origin.ptr || !is_listed(origins, origin)))
        return false;
    buf_printf(out, "%s %.*s\r\n", allow_origin, any ? 1 : (int)origin.len,
               any ? "*" : origin.ptr);
    return true;
}

void cors_put(struct buf *out, const char *origins, const struct http_head *h)
{
    if (!*origins || has_line(buf_slice(out), allow_origin))
        return;
    if (put_origin(out, origins, h))
        buf_append_str(out, "Access-Control-Expose-Headers: X-Request-Id, Cache-Status, "
                            "Server-Timing, Retry-After\r\n");
}

bool cors_is_preflight(const struct http_head *h)
{
    return slice_eq(h->method, SLICE_LIT("OPTIONS")) &&
           http_head_get(h, SLICE_LIT("Origin")).ptr &&
           http_head_get(h, SLICE_LIT("Access-Control-Request-Method")).ptr;
}

void cors_put_preflight(struct buf *out, const char *origins, const struct http_head *h)
{
    const struct slice method =
        http_head_get(h, SLICE_LIT("Access-Control-Request-Method"));
    const struct slice headers =
        http_head_get(h, SLICE_LIT("Access-Control-Request-Headers"));
    buf_append_str(out, "Vary: Access-Control-Request-Method, "
                        "Access-Control-Request-Headers\r\n");
    if (!put_origin(out, origins, h))
        return;
    http_write_header(out, SLICE_LIT("Access-Control-Allow-Methods"), method);
    if (headers.ptr) /* "*" would not be Authorization */
        http_write_header(out, SLICE_LIT("Access-Control-Allow-Headers"), headers);
    buf_append_str(out, "Access-Control-Max-Age: 600\r\n");
}
