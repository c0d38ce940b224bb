/* SPDX-License-Identifier: MIT */
#include "http_parts.h"

/*
 * A complete head, taken apart. The scan has already refused what may not stand in any
 * line; here the start line gets its parts, the lines become headers, and the headers
 * decide on the framing (RFC 9112, 6.3). Whatever is forwarded later comes from the same
 * list that was checked here. Absent and empty are different things: an empty length,
 * host or coding is refused.
 */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool starts_nocase(struct slice s, struct slice prefix)
{
    return s.len >= prefix.len && slice_eq_nocase(slice_make(s.ptr, prefix.len), prefix);
}

static struct slice after(struct slice s, size_t n)
{
    return slice_make(s.ptr + n, s.len - n);
}

/* Up to the first `c`, or all. */
static size_t find(struct slice s, char c)
{
    const char *at = s.len ? memchr(s.ptr, c, s.len) : NULL;
    return at ? (size_t)(at - s.ptr) : s.len;
}

/* ---- start lines ------------------------------------------------------------------- */

/* "HTTP/1.1", exactly so long; 1.2 and later are served as 1.1. */
static enum http_fault read_version(struct slice s, int *minor)
{
    if (s.len != 8 || memcmp(s.ptr, "HTTP/", 5) != 0 || !is_digit(s.ptr[5]) ||
        s.ptr[6] != '.' || !is_digit(s.ptr[7]))
        return HTTP_FAULT_START_LINE;
    *minor = s.ptr[7] - '0';
    return s.ptr[5] == '1' ? HTTP_FAULT_NONE : HTTP_FAULT_VERSION;
}

static bool all(struct slice s, bool (*may)(char c))
{
    for (size_t i = 0; i < s.len; i++)
        if (!may(s.ptr[i]))
            return false;
    return s.len > 0;
}

/* A fragment never leaves a client; whoever gets one cuts it, or does not. */
static bool may_be_in_target(char c)
{
    return c > ' ' && c < 127 && c != '#';
}

/* Names and addresses only: '/', '?', '#', '@' and '\' move the path that others see. */
static bool may_be_in_host(char c)
{
    return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
           (c && strchr("-._~%!$&'()*+;=", c));
}

static bool may_be_in_ipv6(char c)
{
    return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') || c == ':' ||
           c == '.';
}

static bool host_valid(struct slice s)
{
    size_t end;
    if (s.len && s.ptr[0] == '[') {
        end = find(s, ']');
        if (end == s.len || !all(slice_make(s.ptr + 1, end - 1), may_be_in_ipv6))
            return false;
        end++;
    } else {
        end = find(s, ':');
        if (!all(slice_make(s.ptr, end), may_be_in_host))
            return false;
    }
    const struct slice port = after(s, end);
    if (port.len == 0)
        return true;
    return port.len <= 6 && port.ptr[0] == ':' &&
           (port.len == 1 || all(after(port, 1), is_digit));
}

/* "/path", "http://host/path", or "*" for OPTIONS (RFC 9112, 3.2). */
static bool target_valid(struct slice method, struct slice s)
{
    static const struct slice schemes[] = {{"http://", 7}, {"https://", 8}};
    if (!all(s, may_be_in_target))
        return false;
    if (s.ptr[0] == '/')
        return true;
    if (s.len == 1 && s.ptr[0] == '*')
        return slice_eq(method, SLICE_LIT("OPTIONS"));
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        if (!starts_nocase(s, schemes[i]))
            continue;
        const struct slice rest = after(s, schemes[i].len);
        const size_t path = find(rest, '/'), query = find(rest, '?');
        return host_valid(slice_make(rest.ptr, path < query ? path : query));
    }
    return false;
}

static enum http_fault read_request_line(struct slice line, struct http_head *h)
{
    const size_t method = find(line, ' ');
    if (method == line.len)
        return HTTP_FAULT_START_LINE;
    const struct slice rest = after(line, method + 1);
    const size_t target = find(rest, ' ');
    if (target == rest.len)
        return HTTP_FAULT_START_LINE;
    h->method = slice_make(line.ptr, method);
    h->target = slice_make(rest.ptr, target);
    if (!all(h->method, http_scan_is_token))
        return HTTP_FAULT_START_LINE;
    const enum http_fault fault = read_version(after(rest, target + 1), &h->minor);
    if (fault)
        return fault;
    if (slice_eq(h->method, SLICE_LIT("CONNECT")))
        return HTTP_FAULT_CONNECT;
    return target_valid(h->method, h->target) ? HTTP_FAULT_NONE : HTTP_FAULT_TARGET;
}

/* "HTTP/1.1 200 OK"; the reason, and the blank before it, may be missing. */
static enum http_fault read_status_line(struct slice line, struct http_head *h)
{
    const size_t version = find(line, ' ');
    const enum http_fault fault = read_version(slice_make(line.ptr, version), &h->minor);
    if (fault)
        return fault;
    const char *code = line.ptr + version + 1;
    if (line.len < version + 4 || !is_digit(code[0]) || !is_digit(code[1]) ||
        !is_digit(code[2]) || (line.len > version + 4 && code[3] != ' '))
        return HTTP_FAULT_START_LINE;
    h->status = (code[0] - '0') * 100 + (code[1] - '0') * 10 + (code[2] - '0');
    if (line.len > version + 4)
        h->reason = slice_trim(slice_make(code + 4, line.len - version - 5));
    return h->status >= 100 && h->status < 600 ? HTTP_FAULT_NONE : HTTP_FAULT_START_LINE;
}

enum http_fault http_head_start(enum http_kind kind, struct slice line,
                                struct http_head *h)
{
    return kind == HTTP_REQUEST ? read_request_line(line, h) : read_status_line(line, h);
}

/* ---- headers ----------------------------------------------------------------------- */

/* `lines`: header lines as the scan lets them through, and the empty one. */
static void split_lines(struct slice lines, struct http_head *h)
{
    h->n_headers = 0;
    while (lines.len > 2) {
        const size_t end = find(lines, '\r');
        const struct slice line = {lines.ptr, end};
        const size_t colon = find(line, ':');
        h->headers[h->n_headers++] = (struct http_header){
            slice_make(line.ptr, colon), slice_trim(after(line, colon + 1))};
        lines = after(lines, end + 2);
    }
}

struct slice http_head_get(const struct http_head *h, struct slice name)
{
    for (size_t i = 0; i < h->n_headers; i++)
        if (slice_eq_nocase(h->headers[i].name, name))
            return h->headers[i].value;
    return (struct slice){0};
}

static size_t count(const struct http_head *h, struct slice name)
{
    size_t n = 0;
    for (size_t i = 0; i < h->n_headers; i++)
        n += slice_eq_nocase(h->headers[i].name, name);
    return n;
}

/* One of the comma-separated elements of `list` is `token`. */
static bool list_has(struct slice list, struct slice token)
{
    while (list.len) {
        const size_t end = find(list, ',');
        if (slice_eq_nocase(slice_trim(slice_make(list.ptr, end)), token))
            return true;
        list = after(list, end < list.len ? end + 1 : end);
    }
    return false;
}

static bool connection_has(const struct http_head *h, struct slice token)
{
    for (size_t i = 0; i < h->n_headers; i++)
        if (slice_eq_nocase(h->headers[i].name, SLICE_LIT("Connection")) &&
            list_has(h->headers[i].value, token))
            return true;
    return false;
}

bool http_head_hop_by_hop(const struct http_head *h, struct slice name)
{
    static const char *const names[] = {
        "Connection", "Content-Length",    "Keep-Alive",          "Proxy-Authenticate",
        "TE",         "Proxy-Connection",  "Proxy-Authorization", "Trailer",
        "Upgrade",    "Transfer-Encoding",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (slice_eq_nocase(name, slice_of(names[i])))
            return true;
    return connection_has(h, name);
}

/* ---- framing ----------------------------------------------------------------------- */

/* Digits and nothing else, by an own parser: others take signs, blanks and octal. */
static enum http_fault read_length(struct slice s, uint64_t *length)
{
    *length = 0;
    if (!all(s, is_digit))
        return HTTP_FAULT_LENGTH;
    for (size_t i = 0; i < s.len; i++) {
        const uint64_t digit = (uint64_t)(s.ptr[i] - '0');
        if (*length > (HTTP_LENGTH_MAX - digit) / 10)
            return HTTP_FAULT_LENGTH;
        *length = *length * 10 + digit;
    }
    return HTTP_FAULT_NONE;
}

/* What the headers say of the body; NONE where they say nothing. */
static enum http_fault read_framing(struct http_head *h)
{
    const size_t lengths = count(h, SLICE_LIT("Content-Length"));
    const size_t codings = count(h, SLICE_LIT("Transfer-Encoding"));
    h->body = HTTP_BODY_NONE;
    if (lengths > 1)
        return HTTP_FAULT_LENGTHS;
    if (lengths) {
        h->body = HTTP_BODY_LENGTH;
        const struct slice value = http_head_get(h, SLICE_LIT("Content-Length"));
        const enum http_fault fault = read_length(value, &h->length);
        if (fault)
            return fault;
    }
    if (codings) {
        h->body = HTTP_BODY_CHUNKED;
        h->length = 0;
        const struct slice value = http_head_get(h, SLICE_LIT("Transfer-Encoding"));
        if (codings > 1 || !slice_eq_nocase(value, SLICE_LIT("chunked")))
            return lengths ? HTTP_FAULT_LENGTH_CHUNKED : HTTP_FAULT_CODING;
    }
    return HTTP_FAULT_NONE;
}

static bool length_and_chunked(const struct http_head *h)
{
    return h->body == HTTP_BODY_CHUNKED &&
           http_head_get(h, SLICE_LIT("Content-Length")).ptr != NULL;
}

static void read_connection(struct http_head *h)
{
    h->keep_alive = !connection_has(h, SLICE_LIT("close")) &&
                    (h->minor > 0 || connection_has(h, SLICE_LIT("keep-alive")));
}

static enum http_fault finish_request(struct http_head *h)
{
    if (length_and_chunked(h))
        return HTTP_FAULT_LENGTH_CHUNKED;
    if (h->body == HTTP_BODY_CHUNKED && h->minor == 0)
        return HTTP_FAULT_CODING_1_0;
    const size_t hosts = count(h, SLICE_LIT("Host"));
    if (hosts > 1 || (hosts == 0 && h->minor > 0) ||
        (hosts && !host_valid(http_head_get(h, SLICE_LIT("Host")))))
        return HTTP_FAULT_HOST;
    const struct slice expect = http_head_get(h, SLICE_LIT("Expect"));
    h->expect_continue =
        h->minor > 0 && slice_eq_nocase(expect, SLICE_LIT("100-continue"));
    return HTTP_FAULT_NONE;
}

/*
 * An answer with both framings, or chunked in HTTP/1.0, is read as chunked, and its
 * connection not used again; so is that of an answer that announces a body where there
 * can be none, since its sender may send one.
 */
static void finish_answer(struct http_head *h, bool to_head)
{
    const bool never = h->status < 200 || h->status == 204;
    const bool announced = h->body == HTTP_BODY_CHUNKED || h->length > 0;
    if ((never && announced) || length_and_chunked(h) ||
        (h->body == HTTP_BODY_CHUNKED && h->minor == 0))
        h->keep_alive = false;
    if (never || to_head || h->status == 304) {
        h->body = HTTP_BODY_NONE;
        h->length = 0;
    } else if (h->body == HTTP_BODY_NONE) {
        h->body = HTTP_BODY_CLOSE;
        h->keep_alive = false;
    }
}

enum http_fault http_head_finish(enum http_kind kind, struct slice raw, bool to_head,
                                 struct http_head *h)
{
    const size_t end = find(raw, '\r');
    enum http_fault fault = http_head_start(kind, slice_make(raw.ptr, end), h);
    if (fault)
        return fault;
    const struct slice lines = after(raw, end + 2);
    split_lines(lines, h);
    fault = read_framing(h);
    if (fault)
        return fault;
    read_connection(h);
    if (kind == HTTP_REQUEST)
        fault = finish_request(h);
    if (fault)
        return fault;
    if (!http_llhttp_agrees(kind, lines, h))
        return HTTP_FAULT_AMBIGUOUS;
    if (kind == HTTP_RESPONSE)
        finish_answer(h, to_head);
    return HTTP_FAULT_NONE;
}
