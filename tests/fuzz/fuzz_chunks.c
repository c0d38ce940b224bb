/* SPDX-License-Identifier: MIT */

/*
 * Chunked bodies that we write ourselves: cut in any way (an instruction is a length, then
 * the bytes), sent as a request and as an answer, and read again in pieces of another
 * size, they are the same bytes, and end where they end.
 */

#include <assert.h>
#include <stdint.h>

#include "proto/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define NEXT "next message" /* which is not looked at */

/* The body of what is read in pieces of `step`, and where it ended. */
static struct buf read_body(enum http_kind kind, struct slice in, size_t step,
                            size_t *end)
{
    struct http_parser *p = http_parser_new(kind, HTTP_LIMITS_DEFAULT);
    struct buf body = {0};
    enum http_event event = HTTP_MORE;
    size_t at = 0, upto = 0;
    while (event != HTTP_END) {
        size_t used;
        struct slice part;
        if (event == HTTP_MORE) {
            assert(upto < in.len);
            upto = in.len - upto < step ? in.len : upto + step;
        }
        event = http_parser_next(p, slice_make(in.ptr + at, upto - at), &used, &part);
        at += used;
        assert(event != HTTP_ERROR);
        if (event == HTTP_HEAD)
            assert(http_parser_head(p)->body == HTTP_BODY_CHUNKED);
        if (event == HTTP_DATA)
            buf_append_slice(&body, part);
    }
    *end = at;
    http_parser_free(p);
    return body;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const heads[] = {
        [HTTP_REQUEST] =
            "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
        [HTTP_RESPONSE] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"};
    struct buf plain = {0}, chunks = {0};
    if (size == 0)
        return 0;
    const size_t step = 1 + data[0];
    for (size_t at = 1; at < size;) {
        size_t n = data[at++];
        n = n < size - at ? n : size - at;
        const struct slice part = slice_make((const char *)data + at, n);
        buf_append_slice(&plain, part);
        http_write_chunk(&chunks, part);
        at += n;
    }
    http_write_last_chunk(&chunks);
    for (enum http_kind kind = HTTP_REQUEST; kind <= HTTP_RESPONSE; kind++) {
        struct buf sent = {0};
        size_t end;
        buf_append_str(&sent, heads[kind]);
        buf_append_slice(&sent, buf_slice(&chunks));
        buf_append_str(&sent, NEXT);
        struct buf body = read_body(kind, buf_slice(&sent), step, &end);
        assert(slice_eq(buf_slice(&body), buf_slice(&plain)));
        assert(end == buf_len(&sent) - strlen(NEXT));
        buf_free(&body);
        buf_free(&sent);
    }
    buf_free(&plain);
    buf_free(&chunks);
    return 0;
}
