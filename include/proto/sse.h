/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PROTO_SSE_H
#define INCIPIT_PROTO_SSE_H

/*
 * Server-sent events out of a byte stream cut anywhere (WHATWG HTML, 9.2). An observer:
 * what is relayed are the bytes as they came, never what this module understood.
 * Line ends LF, CRLF and CR; "data:" with or without a space; several data lines are
 * joined with LF; comment lines are counted and skipped. No character decoding.
 */

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/slice.h"

/* One event: its name ("" where not given) and data, alive during the call only. */
typedef void (*sse_event_cb)(void *arg, struct slice name, struct slice data);

struct sse {
    struct buf line; /* unfinished line */
    struct buf data; /* data lines of the unfinished event */
    struct buf name;
    bool has_data;
    bool after_cr;    /* a LF that follows belongs to the CR before it */
    bool past_start;  /* the first line, which may begin with a BOM, is over */
    bool overflow;    /* the unfinished event was dropped for its size */
    size_t max_event; /* bytes of one event that are kept */
    size_t comments, dropped;
};

/* max_event: larger events are skipped and counted in `dropped` (default 1 MiB for 0). */
void sse_init(struct sse *s, size_t max_event);
void sse_free(struct sse *s);

/* Calls `cb` for each event that these bytes complete. */
void sse_feed(struct sse *s, struct slice bytes, sse_event_cb cb, void *arg);

#endif
