/* SPDX-License-Identifier: MIT */
#include "http_parts.h"

/* Names that both headers want to have. */
#define HTTP_HEAD LLHTTP_HEAD
#define HTTP_REQUEST LLHTTP_REQUEST
#define HTTP_RESPONSE LLHTTP_RESPONSE
#include <llhttp.h>
#undef HTTP_HEAD
#undef HTTP_REQUEST
#undef HTTP_RESPONSE

/*
 * A second reading. Smuggling lives on two programs that read one head in two ways, so
 * llhttp reads each head after us, and a head on which both do not agree (the same names,
 * the same values, the same framing) is refused. It can only ever make us stricter: the
 * one difference that fuzzing found is a tab behind a length or a coding.
 *
 * llhttp gets a start line of its own: it knows a fixed list of methods and refuses
 * versions from 1.2 on, both of which we serve. Nor does it see the body (http_chunks.c
 * says why): the reading stops where the headers are complete.
 */

struct reading {
    llhttp_t parser;
    const struct http_head *head;
    size_t line; /* header under way */
};

static struct reading *reading_of(llhttp_t *parser)
{
    return parser->data;
}

static int on_name(llhttp_t *parser, const char *at, size_t len)
{
    const struct reading *r = reading_of(parser);
    if (r->line >= r->head->n_headers)
        return -1;
    const struct slice name = r->head->headers[r->line].name;
    return name.ptr == at && name.len == len ? 0 : -1;
}

static int on_value(llhttp_t *parser, const char *at, size_t len)
{
    const struct reading *r = reading_of(parser);
    const struct slice value = r->head->headers[r->line].value;
    const struct slice seen = slice_trim(slice_make(at, len));
    if (seen.len != value.len || (seen.len && seen.ptr != value.ptr))
        return -1;
    return 0;
}

static int on_value_end(llhttp_t *parser)
{
    reading_of(parser)->line++;
    return 0;
}

static int on_headers(llhttp_t *parser)
{
    const struct reading *r = reading_of(parser);
    const struct slice coding = http_head_get(r->head, SLICE_LIT("Transfer-Encoding"));
    const struct slice length = http_head_get(r->head, SLICE_LIT("Content-Length"));
    const bool chunked = (parser->flags & F_CHUNKED) != 0;
    const bool counted = (parser->flags & F_CONTENT_LENGTH) != 0;
    if (r->line != r->head->n_headers || chunked != (coding.ptr != NULL) ||
        counted != (length.ptr != NULL))
        return -1;
    if (r->head->body == HTTP_BODY_LENGTH && parser->content_length != r->head->length)
        return -1;
    return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
    .on_header_field = on_name,
    .on_header_value = on_value,
    .on_header_value_complete = on_value_end,
    .on_headers_complete = on_headers,
};

bool http_llhttp_agrees(enum http_kind kind, struct slice lines,
                        const struct http_head *h)
{
    const bool request = kind == HTTP_REQUEST;
    const struct slice start =
        request ? SLICE_LIT("GET / HTTP/1.1\r\n") : SLICE_LIT("HTTP/1.1 200 OK\r\n");
    struct reading r = {.head = h};
    llhttp_init(&r.parser, request ? LLHTTP_REQUEST : LLHTTP_RESPONSE, &settings);
    if (!request)
        llhttp_set_lenient_chunked_length(&r.parser, 1); /* an answer may have both */
    r.parser.data = &r;
    return llhttp_execute(&r.parser, start.ptr, start.len) == HPE_OK &&
           llhttp_execute(&r.parser, lines.ptr, lines.len) == HPE_PAUSED;
}
