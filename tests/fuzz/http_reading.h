/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_TESTS_HTTP_READING_H
#define INCIPIT_TESTS_HTTP_READING_H

/*
 * Reads bytes as HTTP messages in pieces of random sizes and tells what was seen, so that
 * a fuzz target can compare two readings. What must hold for any input is asserted here.
 */

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>

#include "proto/http.h"

/* Small, so that the fuzzer gets there. */
#define READING_LIMITS ((struct http_limits){512, 8})

struct reading {
    struct buf log;
    uint64_t body; /* bytes of the body under way */
};

/* Nothing that is handed on can end a line or a string early. */
static void check_line(struct slice s)
{
    for (size_t i = 0; i < s.len; i++)
        assert(s.ptr[i] != '\r' && s.ptr[i] != '\n' && s.ptr[i] != '\0');
}

static void tell_head(struct reading *r, const struct http_head *h)
{
    assert(h->n_headers <= READING_LIMITS.headers);
    check_line(h->method);
    check_line(h->target);
    buf_printf(&r->log, "%.*s %.*s %d 1.%d %d %llu %d %d\n", (int)h->method.len,
               h->method.ptr, (int)h->target.len, h->target.ptr, h->status, h->minor,
               h->body, (unsigned long long)h->length, h->keep_alive, h->expect_continue);
    for (size_t i = 0; i < h->n_headers; i++) {
        assert(h->headers[i].name.len > 0);
        check_line(h->headers[i].name);
        check_line(h->headers[i].value);
        http_write_header(&r->log, h->headers[i].name, h->headers[i].value);
    }
    r->body = 0;
}

static void tell_end(struct reading *r, const struct http_head *h)
{
    assert(h->body != HTTP_BODY_NONE || r->body == 0);
    assert(h->body != HTTP_BODY_LENGTH || r->body == h->length);
    buf_append_str(&r->log, "\nend\n");
}

/* False where the parser wants no more. */
static bool read_piece(struct reading *r, struct http_parser *p, struct slice in)
{
    for (;;) {
        size_t used;
        struct slice data;
        const enum http_event event = http_parser_next(p, in, &used, &data);
        assert(used <= in.len);
        if (event == HTTP_HEAD)
            tell_head(r, http_parser_head(p));
        if (event == HTTP_DATA) {
            assert(data.len > 0 && data.ptr + data.len == in.ptr + used);
            buf_append_slice(&r->log, data);
            r->body += data.len;
        }
        in = slice_make(in.ptr + used, in.len - used);
        if (event == HTTP_END) {
            tell_end(r, http_parser_head(p));
            http_parser_reset(p);
        }
        if (event == HTTP_MORE)
            assert(in.len == 0);
        if (event == HTTP_MORE || event == HTTP_ERROR)
            return event == HTTP_MORE;
    }
}

/* `seed` 0: in one piece. Otherwise in pieces of 1 to 16 bytes. */
static struct buf read_all(enum http_kind kind, bool to_head, struct slice in,
                           uint32_t seed)
{
    struct reading r = {0};
    struct http_parser *p = http_parser_new(kind, READING_LIMITS);
    if (to_head)
        http_parser_expect_head(p);
    bool more = true;
    for (size_t at = 0, n; at < in.len && more; at += n) {
        seed = seed * 1664525u + (seed ? 1013904223u : 0);
        n = seed ? 1 + (seed >> 28) : in.len;
        n = n < in.len - at ? n : in.len - at;
        char *copy = malloc(n); /* exact, so that reading past it is seen */
        assert(copy);
        memcpy(copy, in.ptr + at, n);
        more = read_piece(&r, p, slice_make(copy, n));
        free(copy);
    }
    const enum http_event event = http_parser_eof(p);
    if (event == HTTP_END)
        tell_end(&r, http_parser_head(p));
    if (event == HTTP_ERROR) {
        const char *text;
        const int status = http_parser_error(p, &text);
        assert(status >= 400 && status < 600 && text[0]);
        buf_printf(&r.log, "error %d %s\n", status, text);
    }
    http_parser_free(p);
    return r.log;
}

/* All readings of `in` tell the same; returns it, for the caller to free. */
static struct buf read_alike(enum http_kind kind, bool to_head, struct slice in)
{
    struct buf whole = read_all(kind, to_head, in, 0);
    for (uint32_t seed = 1; seed <= 3; seed++) {
        struct buf cut = read_all(kind, to_head, in, seed);
        assert(slice_eq(buf_slice(&cut), buf_slice(&whole)));
        buf_free(&cut);
    }
    return whole;
}

#endif
