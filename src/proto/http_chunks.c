/* SPDX-License-Identifier: MIT */
#include "http_parts.h"

/*
 * A chunked body (RFC 9112, 7.1):
 *
 *     size [; extension] CRLF data CRLF  …  0 CRLF [trailers] CRLF
 *
 * Decoded here and not by llhttp: built without its strict mode, 8.1.0 takes any two
 * bytes for the CRLF behind the data, and a CR with any byte for the end of the body;
 * each is a way to smuggle a request. Trailers pass the same scan as header lines and
 * are dropped, as extensions are.
 */

#define CHUNK_LINE_MAX 256 /* extensions are rare and short; their bytes cost us time */

void http_chunks_init(struct http_chunks *c, struct http_limits limits)
{
    *c = (struct http_chunks){.state = HTTP_CHUNKS_START};
    http_scan_init(&c->trailers, HTTP_SCAN_LINE, limits);
}

static enum http_fault size_byte(struct http_chunks *c, char ch)
{
    const int digit = http_scan_hex(ch);
    if (digit >= 0) {
        if (c->left > HTTP_LENGTH_MAX >> 4)
            return HTTP_FAULT_CHUNK_SIZE;
        c->left = c->left << 4 | (uint64_t)digit;
        c->state = HTTP_CHUNKS_SIZE;
        return HTTP_FAULT_NONE;
    }
    if (c->state == HTTP_CHUNKS_START || (ch != ';' && ch != '\r'))
        return HTTP_FAULT_CHUNK_SIZE;
    c->state = ch == ';' ? HTTP_CHUNKS_EXTENSION : HTTP_CHUNKS_SIZE_LF;
    return HTTP_FAULT_NONE;
}

static enum http_fault extension_byte(struct http_chunks *c, char ch)
{
    if (ch == '\n')
        return HTTP_FAULT_BARE_LF;
    if (ch == '\r')
        c->state = HTTP_CHUNKS_SIZE_LF;
    else if (!http_scan_is_value(ch))
        return HTTP_FAULT_CONTROL;
    return HTTP_FAULT_NONE;
}

/* One byte that is neither data nor trailer. */
static enum http_fault frame_byte(struct http_chunks *c, char ch)
{
    switch (c->state) {
    case HTTP_CHUNKS_START:
    case HTTP_CHUNKS_SIZE:
    case HTTP_CHUNKS_EXTENSION:
        if (++c->line > CHUNK_LINE_MAX)
            return HTTP_FAULT_CHUNK_LINE;
        return c->state == HTTP_CHUNKS_EXTENSION ? extension_byte(c, ch)
                                                 : size_byte(c, ch);
    case HTTP_CHUNKS_SIZE_LF:
        c->state = c->left ? HTTP_CHUNKS_DATA : HTTP_CHUNKS_TRAILERS;
        c->line = 0;
        return ch == '\n' ? HTTP_FAULT_NONE : HTTP_FAULT_BARE_CR;
    case HTTP_CHUNKS_DATA_CR:
        c->state = HTTP_CHUNKS_DATA_LF;
        return ch == '\r' ? HTTP_FAULT_NONE : HTTP_FAULT_CHUNK_END;
    case HTTP_CHUNKS_DATA_LF:
        c->state = HTTP_CHUNKS_START;
        return ch == '\n' ? HTTP_FAULT_NONE : HTTP_FAULT_CHUNK_END;
    case HTTP_CHUNKS_DATA:
    case HTTP_CHUNKS_TRAILERS:
        break; /* the caller's */
    }
    return HTTP_FAULT_NONE;
}

static enum http_event take_data(struct http_chunks *c, struct slice in, size_t *used,
                                 struct slice *data)
{
    const size_t n = c->left < in.len ? (size_t)c->left : in.len;
    *data = slice_make(in.ptr, n);
    *used += n;
    c->left -= n;
    if (!c->left)
        c->state = HTTP_CHUNKS_DATA_CR;
    return HTTP_DATA;
}

static enum http_event take_trailers(struct http_chunks *c, struct slice in, size_t *used)
{
    size_t n;
    const enum http_scan_stop stop = http_scan_feed(&c->trailers, in, &n);
    *used += n;
    c->fault = c->trailers.fault;
    if (stop == HTTP_SCAN_FAULT)
        return HTTP_ERROR;
    return stop == HTTP_SCAN_WHOLE ? HTTP_END : HTTP_MORE;
}

enum http_event http_chunks_next(struct http_chunks *c, struct slice in, size_t *used,
                                 struct slice *data)
{
    while (*used < in.len) {
        const struct slice rest = {in.ptr + *used, in.len - *used};
        if (c->state == HTTP_CHUNKS_DATA)
            return take_data(c, rest, used, data);
        if (c->state == HTTP_CHUNKS_TRAILERS)
            return take_trailers(c, rest, used);
        c->fault = frame_byte(c, rest.ptr[0]);
        if (c->fault)
            return HTTP_ERROR;
        ++*used;
    }
    return HTTP_MORE;
}
