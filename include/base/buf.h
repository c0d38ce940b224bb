/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_BASE_BUF_H
#define INCIPIT_BASE_BUF_H

/*
 * A growable byte buffer, appended at the end and consumed at the front.
 * Invariant: start <= end <= cap. Contents are `data + start`, `end - start` bytes.
 * {0} is a valid empty buffer. A slice into it dies with the next append.
 */

#include <stdarg.h>
#include <stddef.h>

#include "base/slice.h"

struct buf {
    char *data;
    size_t start, end, cap;
};

void buf_free(struct buf *b);
static inline size_t buf_len(const struct buf *b)
{
    return b->end - b->start;
}
static inline struct slice buf_slice(const struct buf *b)
{
    return (struct slice){b->data ? b->data + b->start : "", b->end - b->start};
}

/* Room for at least `n` more bytes; returns where they go. Commit with buf_commit(). It
 * becomes twice as large, or, where that is too little, just as large as it has to be. */
char *buf_reserve(struct buf *b, size_t n);
/* For what others make large: NULL, and nothing changed, where there is no memory. */
char *buf_try_reserve(struct buf *b, size_t n);
void buf_commit(struct buf *b, size_t n);

void buf_append(struct buf *b, const void *ptr, size_t n);
void buf_append_slice(struct buf *b, struct slice s);
void buf_append_str(struct buf *b, const char *s);
void buf_append_char(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void buf_vprintf(struct buf *b, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0)));

/* Memory that a buffer takes to whose end alone was written (mem_held()). */
size_t buf_held(const struct buf *b);

/* Drops `n` bytes at the front (n <= buf_len); an emptied buffer starts over at 0. */
void buf_consume(struct buf *b, size_t n);
static inline void buf_clear(struct buf *b)
{
    b->start = b->end = 0;
}

/* Contents as a new NUL-terminated string owned by the caller; the buffer is emptied. */
char *buf_take_str(struct buf *b);

#endif
