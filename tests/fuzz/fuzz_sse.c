/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>

#include "proto/sse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_EVENT 48 /* small, so that the fuzzer gets there */

static void on_event(void *arg, struct slice name, struct slice data)
{
    struct buf *log = arg;
    assert(data.len <= MAX_EVENT && name.len <= MAX_EVENT);
    buf_printf(log, "%zu %zu ", name.len, data.len);
    buf_append_slice(log, name);
    buf_append_slice(log, data);
}

/* `seed` 0: in one piece. Otherwise in pieces of 1 to 16 bytes. */
static struct buf read_all(struct slice in, uint32_t seed)
{
    struct sse s;
    struct buf log = {0};
    sse_init(&s, MAX_EVENT);
    for (size_t at = 0, n; at < in.len; at += n) {
        seed = seed * 1664525u + (seed ? 1013904223u : 0);
        n = seed ? 1 + (seed >> 28) : in.len;
        n = n < in.len - at ? n : in.len - at;
        char *copy = malloc(n); /* exact, so that reading past it is seen */
        assert(copy);
        memcpy(copy, in.ptr + at, n);
        sse_feed(&s, slice_make(copy, n), on_event, &log);
        assert(buf_len(&s.line) <= MAX_EVENT + 1 && buf_len(&s.data) <= MAX_EVENT);
        free(copy);
    }
    buf_printf(&log, "%zu %zu", s.comments, s.dropped);
    sse_free(&s);
    return log;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct slice in = {(const char *)data, size};
    struct buf whole = read_all(in, 0);
    for (uint32_t seed = 1; seed <= 3; seed++) {
        struct buf cut = read_all(in, seed);
        assert(slice_eq(buf_slice(&cut), buf_slice(&whole)));
        buf_free(&cut);
    }
    buf_free(&whole);
    return 0;
}
