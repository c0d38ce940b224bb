/* SPDX-License-Identifier: MIT */
#include "http_reading.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The normal path of a normal path is itself, and goes nowhere else. */
static void check_path(struct slice target)
{
    struct buf once = {0}, twice = {0};
    if (http_normal_path(target, &once)) {
        assert(buf_len(&once) > 0);
        assert(!memmem(buf_slice(&once).ptr, buf_len(&once), "//", 2));
        assert(http_normal_path(buf_slice(&once), &twice));
        assert(slice_eq(buf_slice(&once), buf_slice(&twice)));
    }
    buf_free(&once);
    buf_free(&twice);
}

/* Written down again, the first head reads the same: it has one meaning. */
static void check_rewritten(struct slice in)
{
    struct http_parser *p = http_parser_new(HTTP_REQUEST, READING_LIMITS);
    struct http_parser *again = http_parser_new(HTTP_REQUEST, HTTP_LIMITS_DEFAULT);
    struct reading told = {0}, retold = {0};
    struct buf out = {0};
    size_t used;
    struct slice body;
    if (http_parser_next(p, in, &used, &body) == HTTP_HEAD) {
        const struct http_head *h = http_parser_head(p);
        check_path(h->target);
        buf_printf(&out, "%.*s %.*s HTTP/1.%d\r\n", (int)h->method.len, h->method.ptr,
                   (int)h->target.len, h->target.ptr, h->minor);
        for (size_t i = 0; i < h->n_headers; i++)
            http_write_header(&out, h->headers[i].name, h->headers[i].value);
        buf_append_str(&out, "\r\n");
        assert(http_parser_next(again, buf_slice(&out), &used, &body) == HTTP_HEAD);
        assert(used == buf_len(&out));
        tell_head(&told, h);
        tell_head(&retold, http_parser_head(again));
        assert(slice_eq(buf_slice(&told.log), buf_slice(&retold.log)));
    }
    buf_free(&out);
    buf_free(&told.log);
    buf_free(&retold.log);
    http_parser_free(p);
    http_parser_free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct slice in = {(const char *)data, size};
    struct buf told = read_alike(HTTP_REQUEST, false, in);
    buf_free(&told);
    check_rewritten(in);
    check_path(in);
    return 0;
}
