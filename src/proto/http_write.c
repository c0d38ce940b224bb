/* SPDX-License-Identifier: MIT */
#include "proto/http.h"

void http_write_header(struct buf *b, struct slice name, struct slice value)
{
    buf_append_slice(b, name);
    buf_append(b, ": ", 2);
    buf_append_slice(b, value);
    buf_append(b, "\r\n", 2);
}

/* The size is written by hand: a stream is made of thousands of small chunks. */
void http_write_chunk(struct buf *b, struct slice data)
{
    char line[sizeof(size_t) * 2 + 2];
    size_t at = sizeof line;
    if (!data.len)
        return;
    line[--at] = '\n';
    line[--at] = '\r';
    for (size_t n = data.len; n; n >>= 4)
        line[--at] = "0123456789abcdef"[n & 15];
    buf_append(b, line + at, sizeof line - at);
    buf_append_slice(b, data);
    buf_append(b, "\r\n", 2);
}

void http_write_last_chunk(struct buf *b)
{
    buf_append_str(b, "0\r\n\r\n");
}
