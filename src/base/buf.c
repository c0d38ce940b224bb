/* SPDX-License-Identifier: MIT */
#include "base/buf.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

#define FIRST ((size_t)256)

void buf_free(struct buf *b)
{
    free(b->data);
    *b = (struct buf){0};
}

/* NULL where `alloc` says so; the contents stay as they are then. */
static char *reserve(struct buf *b, size_t n, void *(*alloc)(void *ptr, size_t size))
{
    assert(b->start <= b->end && b->end <= b->cap);
    const size_t len = buf_len(b);
    assert(n <= SIZE_MAX / 2 - len);
    if (b->data && b->cap - b->end >= n)
        return b->data + b->end;
    if (b->start && b->start >= len && b->cap - len >= n) {
        memmove(b->data, b->data + b->start, len); /* cheap: most of it was consumed */
    } else {
        const size_t twice = b->cap ? 2 * b->cap : FIRST, need = len + n;
        const size_t cap = twice > need ? twice : need;
        /* What is large is moved by the system, without a copy, where it begins at 0. */
        char *data = alloc(b->start ? NULL : b->data, cap);
        if (!data)
            return NULL;
        if (b->start) {
            memcpy(data, b->data + b->start, len);
            free(b->data);
        }
        b->data = data;
        b->cap = cap;
    }
    b->start = 0;
    b->end = len;
    return b->data + b->end;
}

char *buf_reserve(struct buf *b, size_t n)
{
    return reserve(b, n, mem_realloc);
}

char *buf_try_reserve(struct buf *b, size_t n)
{
    return reserve(b, n, realloc);
}

void buf_commit(struct buf *b, size_t n)
{
    assert(b->cap - b->end >= n);
    b->end += n;
}

void buf_append(struct buf *b, const void *ptr, size_t n)
{
    if (!n)
        return;
    memcpy(buf_reserve(b, n), ptr, n);
    b->end += n;
}

void buf_append_slice(struct buf *b, struct slice s)
{
    buf_append(b, s.ptr, s.len);
}

void buf_append_str(struct buf *b, const char *s)
{
    buf_append(b, s, strlen(s));
}

void buf_append_char(struct buf *b, char c)
{
    buf_append(b, &c, 1);
}

void buf_vprintf(struct buf *b, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    assert(n >= 0);
    char *at = buf_reserve(b, (size_t)n + 1);
    vsnprintf(at, (size_t)n + 1, fmt, again);
    va_end(again);
    b->end += (size_t)n;
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(b, fmt, ap);
    va_end(ap);
}

size_t buf_held(const struct buf *b)
{
    return mem_held(b->cap, b->end);
}

void buf_consume(struct buf *b, size_t n)
{
    assert(n <= buf_len(b));
    b->start += n;
    if (b->start == b->end)
        b->start = b->end = 0;
}

char *buf_take_str(struct buf *b)
{
    buf_append_char(b, '\0');
    char *s = b->data;
    if (b->start)
        memmove(s, s + b->start, buf_len(b));
    *b = (struct buf){0};
    return s;
}
