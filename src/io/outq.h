/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_IO_OUTQ_H
#define INCIPIT_IO_OUTQ_H

/*
 * What a connection has still to write: bytes of its own and bytes that it has borrowed,
 * in order. Invariant: `len` is the sum over the segments, and no segment is empty.
 */

#include <stddef.h>
#include <sys/uio.h>

#include "base/list.h"
#include "base/slice.h"

struct outq {
    struct list segments;
    size_t len;
};

void outq_init(struct outq *q);
void outq_clear(struct outq *q);

void outq_copy(struct outq *q, struct slice bytes);
void outq_borrow(struct outq *q, struct slice bytes);

/* Copies what is borrowed: its owner goes away. */
void outq_own(struct outq *q);

/* The first bytes of the queue, at most `max_bytes`, as up to `max` pieces. Returns how
 * many pieces and sets `bytes` to their sum. */
int outq_peek(const struct outq *q, struct iovec *iov, int max, size_t max_bytes,
              size_t *bytes);

/* Drops `n` bytes at the front. */
void outq_drop(struct outq *q, size_t n);

#endif
