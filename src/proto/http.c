/* SPDX-License-Identifier: MIT */
#include "http_parts.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"

/*
 * The parser itself only decides which part reads next. A head is collected in `raw`
 * while http_scan checks its bytes; once it is whole, http_head takes it apart in place,
 * so the slices of the head point into `raw`. Bodies are never copied: HTTP_DATA is a
 * part of the caller's input.
 *
 *     HEAD ──(head whole)── BODY ──(end)── END ──(reset)── HEAD
 *        └─────(fault)───────┴──────────── ERROR
 */

enum state { HEAD, BODY, END, ERROR };

struct http_parser {
    enum http_kind kind;
    struct http_limits limits;
    enum state state;
    enum http_fault fault;
    bool to_head;      /* the next final answer is one to HEAD */
    bool skipped_line; /* an empty line was skipped before this request */
    struct http_scan scan;
    struct buf raw; /* the head's bytes */
    struct http_head head;
    size_t cap_headers;
    uint64_t left; /* of a body with a length */
    struct http_chunks chunks;
};

static const struct {
    int status;
    const char *text;
} faults[] = {
#define X(name, status, text) {status, text},
    HTTP_FAULTS(X)
#undef X
};

struct http_parser *http_parser_new(enum http_kind kind, struct http_limits limits)
{
    struct http_parser *p = mem_zalloc(sizeof *p);
    p->kind = kind;
    p->limits = limits;
    http_parser_reset(p);
    return p;
}

void http_parser_free(struct http_parser *p)
{
    if (!p)
        return;
    buf_free(&p->raw);
    free(p->head.headers);
    free(p);
}

static bool interim(const struct http_head *h)
{
    return h->status >= 100 && h->status < 200;
}

void http_parser_reset(struct http_parser *p)
{
    if (p->state == ERROR)
        return;
    if (!interim(&p->head))
        p->to_head = false;
    p->state = HEAD;
    p->skipped_line = false;
    p->head = (struct http_head){.headers = p->head.headers};
    buf_clear(&p->raw);
    http_scan_init(&p->scan, HTTP_SCAN_START, p->limits);
}

void http_parser_expect_head(struct http_parser *p)
{
    assert(p->kind == HTTP_RESPONSE);
    p->to_head = true;
}

static enum http_event fail(struct http_parser *p, enum http_fault fault)
{
    assert(fault != HTTP_FAULT_NONE);
    p->state = ERROR;
    p->fault = fault;
    return HTTP_ERROR;
}

/*
 * The start line is judged as soon as it is there: a peer that speaks something else may
 * never send an empty line. One empty line before a request is skipped (RFC 9112, 2.2).
 */
static enum http_fault on_start_line(struct http_parser *p)
{
    const struct slice line = {buf_slice(&p->raw).ptr, buf_len(&p->raw) - 2};
    if (line.len == 0 && p->kind == HTTP_REQUEST && !p->skipped_line) {
        p->skipped_line = true;
        buf_clear(&p->raw);
        http_scan_init(&p->scan, HTTP_SCAN_START, p->limits);
        return HTTP_FAULT_NONE;
    }
    return http_head_start(p->kind, line, &p->head);
}

static enum http_event on_head(struct http_parser *p)
{
    if (p->cap_headers < p->scan.lines) {
        p->cap_headers = p->scan.lines;
        p->head.headers =
            mem_rearray(p->head.headers, p->cap_headers, sizeof *p->head.headers);
    }
    const enum http_fault fault =
        http_head_finish(p->kind, buf_slice(&p->raw), p->to_head, &p->head);
    if (fault)
        return fail(p, fault);
    assert(p->head.n_headers == p->scan.lines);
    p->left = p->head.length;
    if (p->head.body == HTTP_BODY_CHUNKED)
        http_chunks_init(&p->chunks, p->limits);
    p->state = BODY;
    return HTTP_HEAD;
}

static enum http_event read_head(struct http_parser *p, struct slice in, size_t *used)
{
    for (;;) {
        size_t n;
        const struct slice rest = {in.ptr + *used, in.len - *used};
        const enum http_scan_stop stop = http_scan_feed(&p->scan, rest, &n);
        buf_append(&p->raw, rest.ptr, n);
        *used += n;
        enum http_fault fault = HTTP_FAULT_NONE;
        switch (stop) {
        case HTTP_SCAN_MORE:
            return HTTP_MORE;
        case HTTP_SCAN_FAULT:
            return fail(p, p->scan.fault);
        case HTTP_SCAN_WHOLE:
            return on_head(p);
        case HTTP_SCAN_LINE_1:
            fault = on_start_line(p);
            break;
        }
        if (fault)
            return fail(p, fault);
    }
}

static enum http_event take(struct slice in, size_t n, size_t *used, struct slice *data)
{
    *used = n;
    *data = slice_make(in.ptr, n);
    return n ? HTTP_DATA : HTTP_MORE;
}

static enum http_event read_body(struct http_parser *p, struct slice in, size_t *used,
                                 struct slice *data)
{
    enum http_event event = HTTP_END;
    switch (p->head.body) {
    case HTTP_BODY_NONE:
        break;
    case HTTP_BODY_LENGTH:
        if (!p->left)
            break;
        event = take(in, p->left < in.len ? (size_t)p->left : in.len, used, data);
        p->left -= *used;
        break;
    case HTTP_BODY_CHUNKED:
        event = http_chunks_next(&p->chunks, in, used, data);
        break;
    case HTTP_BODY_CLOSE:
        event = take(in, in.len, used, data);
        break;
    }
    if (event == HTTP_ERROR)
        return fail(p, p->chunks.fault);
    if (event == HTTP_END)
        p->state = END;
    return event;
}

enum http_event http_parser_next(struct http_parser *p, struct slice in, size_t *used,
                                 struct slice *data)
{
    *used = 0;
    *data = (struct slice){0};
    switch (p->state) {
    case HEAD:
        return read_head(p, in, used);
    case BODY:
        return read_body(p, in, used, data);
    case END:
        return HTTP_END;
    case ERROR:
        break;
    }
    return HTTP_ERROR;
}

enum http_event http_parser_eof(struct http_parser *p)
{
    if (p->state == ERROR)
        return HTTP_ERROR;
    if (!http_parser_busy(p))
        return HTTP_MORE;
    const bool ends = p->head.body == HTTP_BODY_NONE || p->head.body == HTTP_BODY_CLOSE ||
                      (p->head.body == HTTP_BODY_LENGTH && !p->left);
    if (p->state == HEAD || !ends)
        return fail(p, HTTP_FAULT_CUT_SHORT);
    p->state = END;
    return HTTP_END;
}

const struct http_head *http_parser_head(const struct http_parser *p)
{
    return &p->head;
}

bool http_parser_busy(const struct http_parser *p)
{
    return p->state == BODY || (p->state == HEAD && buf_len(&p->raw) > 0);
}

int http_parser_error(const struct http_parser *p, const char **text)
{
    *text = faults[p->fault].text;
    return faults[p->fault].status;
}

const char *http_reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } reasons[] = {
        {100, "Continue"},
        {101, "Switching Protocols"},
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {206, "Partial Content"},
        {301, "Moved Permanently"},
        {302, "Found"},
        {303, "See Other"},
        {304, "Not Modified"},
        {307, "Temporary Redirect"},
        {308, "Permanent Redirect"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {406, "Not Acceptable"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {411, "Length Required"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {421, "Misdirected Request"},
        {422, "Unprocessable Content"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {499, "Client Closed Request"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
        {507, "Insufficient Storage"},
    };
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status)
            return reasons[i].text;
    return "Status";
}
