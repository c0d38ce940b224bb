/* SPDX-License-Identifier: MIT */
#include "gateway/headers.h"

#include <stdio.h>

#include "base/log.h"
#include "gateway/credential.h"
#include "gateway/forwarded.h"
#include "gateway/request.h"

static bool is(struct slice name, const char *text)
{
    return slice_eq_nocase(name, slice_of(text));
}

/*
 * The absolute form does not choose an engine: what goes on is path and query, and the
 * path is the one that routes_find() saw. (A query may come without a path, and may hold
 * slashes and "://".)
 */
static void put_target(struct buf *out, struct slice target)
{
    size_t at = 0;
    if (target.len && target.ptr[0] != '/') {
        const char *query = memchr(target.ptr, '?', target.len);
        const size_t end = query ? (size_t)(query - target.ptr) : target.len;
        const char *host = memmem(target.ptr, end, "://", 3);
        at = host ? (size_t)(host - target.ptr) + 3 : 0;
        while (host && at < end && target.ptr[at] != '/')
            at++;
        if (host && at == end)
            buf_append_char(out, '/');
    }
    buf_append(out, target.ptr + at, target.len - at);
}

static bool is_ours(const struct http_head *h, struct slice name)
{
    return http_head_hop_by_hop(h, name) || is(name, "Host") || is(name, "Expect") ||
           is(name, "X-Conversation-Id");
}

/* An engine may read it in another way than we do. */
static bool is_doubtful(const struct http_head *h, const struct http_header *x,
                        const struct headers_rules *rules)
{
    if (forwarded_is_header(x->name))
        return !forwarded_is_sound(h);
    return rules->hidden_line_ends != OPTIONS_HIDDEN_PASS &&
           http_value_hides_line_end(x->value);
}

static void tell_removed(const struct headers_rules *rules, struct slice name)
{
    char text[64];
    const size_t n = name.len < sizeof(text) ? name.len : sizeof(text) - 1;
    snprintf(text, sizeof(text), "%.*s", (int)n, name.ptr);
    log_event(LOG_DEBUG, "header-removed", "id", "%s", rules->id, "name", "%s", text,
              NULL);
}

static bool goes_on(const struct http_head *h, const struct http_header *x,
                    const struct headers_rules *rules)
{
    if (is_ours(h, x->name) ||
        (rules->credentials != OPTIONS_PASS && credential_is_header(x->name)) ||
        (rules->forwarded_for == OPTIONS_FORWARDED_REMOVE &&
         forwarded_is_header(x->name)))
        return false;
    const bool doubtful = is_doubtful(h, x, rules);
    if (doubtful)
        tell_removed(rules, x->name);
    return !doubtful;
}

void headers_to_engine(struct buf *out, const struct http_head *h,
                       const struct replica *r, const struct headers_rules *rules,
                       size_t length)
{
    const bool append = rules->forwarded_for == OPTIONS_FORWARDED_APPEND;
    buf_append_slice(out, h->method);
    buf_printf(out, " %s", upstream_prefix(r->up));
    put_target(out, h->target);
    buf_printf(out, " HTTP/1.1\r\nHost: %s\r\n", upstream_host(r->up));
    if (rules->credentials == OPTIONS_REPLACE)
        buf_append_str(out, r->authorization);
    for (size_t i = 0; i < h->n_headers; i++) {
        const struct http_header *x = &h->headers[i];
        if (goes_on(h, x, rules) && !(append && forwarded_is_header(x->name)))
            http_write_header(out, x->name, x->value);
    }
    if (append)
        forwarded_put(out, forwarded_is_sound(h) ? h : NULL, rules->peer);
    if (h->body != HTTP_BODY_NONE)
        buf_printf(out, "Content-Length: %zu\r\n", length);
    buf_append_str(out, "\r\n");
}

bool headers_hide_line_end(const struct http_head *h)
{
    for (size_t i = 0; i < h->n_headers; i++)
        if (http_value_hides_line_end(h->headers[i].value))
            return true;
    return false;
}

void headers_to_client(struct buf *out, const struct http_head *h, bool stream)
{
    bool buffering = false;
    for (size_t i = 0; i < h->n_headers; i++) {
        const struct http_header *x = &h->headers[i];
        buffering |= is(x->name, "X-Accel-Buffering");
        if (!http_head_hop_by_hop(h, x->name))
            http_write_header(out, x->name, x->value);
    }
    if (stream && !buffering)
        buf_append_str(out, "X-Accel-Buffering: no\r\n");
}

void headers_id(struct buf *out, const char *id)
{
    static const char name[] = "X-Request-Id:";
    const struct slice s = buf_slice(out);
    for (size_t i = 0; i + sizeof(name) <= s.len; i++)
        if ((i == 0 || s.ptr[i - 1] == '\n') &&
            strncasecmp(s.ptr + i, name, sizeof(name) - 1) == 0)
            return;
    buf_printf(out, "%s %s\r\n", name, id);
}

void headers_cache_status(struct buf *out, const struct plan *plan, bool cacheable)
{
    const char *fwd = !cacheable ? "bypass" : plan->promised ? "partial" : "miss";
    buf_printf(out, "Cache-Status: incipit; fwd=%s; detail=\"planned=%u%s%s\"\r\n", fwd,
               plan->promised, plan->miss ? " " : "", plan->miss ? plan->miss : "");
}

void headers_server_timing(struct buf *out, const uint64_t *stamp_us)
{
    static const struct {
        enum request_state from;
        const char *name;
    } phases[] = {{REQUEST_SCAN, "scan"},
                  {REQUEST_QUEUE, "queue"},
                  {REQUEST_RESTORE, "restore"},
                  {REQUEST_SEND, "send"},
                  {REQUEST_FIRST_BYTE, "engine"}};
    const char *sep = "Server-Timing: ";
    for (size_t i = 0; i < sizeof(phases) / sizeof(phases[0]); i++) {
        const uint64_t from = stamp_us[phases[i].from];
        uint64_t to = 0;
        for (int s = (int)phases[i].from + 1; from && !to && s <= REQUEST_RELAY; s++)
            to = stamp_us[s];
        if (!to)
            continue;
        buf_printf(out, "%s%s;dur=%.2f", sep, phases[i].name, (double)(to - from) / 1e3);
        sep = ", ";
    }
    if (sep[0] == ',')
        buf_append_str(out, "\r\n");
}

bool headers_are_event_stream(const struct http_head *h)
{
    const struct slice type = http_head_get(h, SLICE_LIT("Content-Type"));
    const struct slice want = SLICE_LIT("text/event-stream");
    return type.ptr && type.len >= want.len &&
           strncasecmp(type.ptr, want.ptr, want.len) == 0;
}

/* HEAD answers announce the length that GET would have; they carry it as a header. */
int64_t headers_length(const struct http_head *h, bool is_head)
{
    if (is_head) {
        const struct slice s = http_head_get(h, SLICE_LIT("Content-Length"));
        int64_t n = 0;
        for (size_t i = 0; s.ptr && i < s.len && n < INT64_MAX / 10 - 9; i++)
            n = s.ptr[i] >= '0' && s.ptr[i] <= '9' ? n * 10 + (s.ptr[i] - '0') : 0;
        return s.ptr ? n : -1;
    }
    if (h->body == HTTP_BODY_LENGTH)
        return (int64_t)h->length;
    return -1;
}
