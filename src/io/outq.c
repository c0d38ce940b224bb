/* SPDX-License-Identifier: MIT */
#include "outq.h"

/*
 *     segments ──► [ own: "HTTP/1.1 200…" ] ──► [ lent ─────► caller's body ] ──► [ own ]
 *                    ▲ dropped at the front                                   grows ▲
 *
 * Small writes share the last segment until it holds SEGMENT_BYTES: larger ones would be
 * moved about while they grow.
 */

#include <assert.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/mem.h"

#define SEGMENT_BYTES ((size_t)64 << 10)

struct segment {
    struct list link;
    struct buf own;    /* empty where the bytes are lent */
    struct slice lent; /* what is left of them */
};

static struct segment *segment_of(struct list *link)
{
    return LIST_ENTRY(link, struct segment, link);
}

static struct slice left_of(const struct segment *s)
{
    return s->lent.len ? s->lent : buf_slice(&s->own);
}

static struct segment *append(struct outq *q)
{
    struct segment *s = mem_zalloc(sizeof(*s));
    list_push_back(&q->segments, &s->link);
    return s;
}

static void drop_segment(struct segment *s)
{
    list_del(&s->link);
    buf_free(&s->own);
    free(s);
}

void outq_init(struct outq *q)
{
    list_init(&q->segments);
    q->len = 0;
}

void outq_clear(struct outq *q)
{
    while (!list_empty(&q->segments))
        drop_segment(segment_of(q->segments.next));
    q->len = 0;
}

void outq_copy(struct outq *q, struct slice bytes)
{
    if (!bytes.len)
        return;
    struct segment *s = list_empty(&q->segments) ? NULL : segment_of(q->segments.prev);
    if (!s || s->lent.len || buf_len(&s->own) >= SEGMENT_BYTES)
        s = append(q);
    buf_append_slice(&s->own, bytes);
    q->len += bytes.len;
}

void outq_borrow(struct outq *q, struct slice bytes)
{
    if (!bytes.len)
        return;
    append(q)->lent = bytes;
    q->len += bytes.len;
}

void outq_own(struct outq *q)
{
    LIST_EACH (it, &q->segments) {
        struct segment *s = segment_of(it);
        buf_append_slice(&s->own, s->lent);
        s->lent = (struct slice){0};
    }
}

int outq_peek(const struct outq *q, struct iovec *iov, int max, size_t max_bytes,
              size_t *bytes)
{
    int n = 0;
    *bytes = 0;
    LIST_EACH (it, &q->segments) {
        if (n == max || *bytes == max_bytes)
            break;
        const struct slice left = left_of(segment_of(it));
        const size_t room = max_bytes - *bytes;
        const size_t len = left.len < room ? left.len : room;
        memcpy(&iov[n].iov_base, &left.ptr, sizeof(void *)); /* the kernel only reads */
        iov[n++].iov_len = len;
        *bytes += len;
    }
    return n;
}

void outq_drop(struct outq *q, size_t n)
{
    assert(n <= q->len);
    q->len -= n;
    while (n) {
        struct segment *s = segment_of(q->segments.next);
        const size_t left = left_of(s).len;
        const size_t part = n < left ? n : left;
        n -= part;
        if (part == left) {
            drop_segment(s);
        } else if (s->lent.len) {
            s->lent.ptr += part;
            s->lent.len -= part;
        } else {
            buf_consume(&s->own, part);
        }
    }
}
