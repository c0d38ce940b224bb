/* SPDX-License-Identifier: MIT */
#include "proto/sse.h"

#include <assert.h>

/*
 * Bytes become lines, lines become an event, an empty line ends it. A line that lies
 * whole in the input is read in place; only one that is cut waits in `line`. Of a line
 * longer than `max_event` just enough is kept to see that it is too long, so memory is
 * bounded by twice that size, and what is dropped does not depend on the cuts.
 */

#define DEFAULT_MAX_EVENT ((size_t)1 << 20)

void sse_init(struct sse *s, size_t max_event)
{
    *s = (struct sse){.max_event = max_event ? max_event : DEFAULT_MAX_EVENT};
}

void sse_free(struct sse *s)
{
    buf_free(&s->line);
    buf_free(&s->data);
    buf_free(&s->name);
}

/* An event without any data line is none; its name is forgotten all the same. */
static void end_event(struct sse *s, sse_event_cb cb, void *arg)
{
    if (s->overflow)
        s->dropped++;
    else if (s->has_data)
        cb(arg, buf_slice(&s->name), buf_slice(&s->data));
    if (s->overflow)
        buf_free(&s->data); /* rare and large */
    buf_clear(&s->data);
    buf_clear(&s->name);
    s->has_data = s->overflow = false;
}

static void add_data(struct sse *s, struct slice value)
{
    if (buf_len(&s->data) + s->has_data + value.len > s->max_event) {
        s->overflow = true;
        return;
    }
    if (s->has_data)
        buf_append_char(&s->data, '\n');
    buf_append_slice(&s->data, value);
    s->has_data = true;
}

static struct slice without_bom(struct sse *s, struct slice line)
{
    const struct slice bom = SLICE_LIT("\xef\xbb\xbf");
    if (!s->past_start && slice_starts(line, bom))
        line = slice_make(line.ptr + bom.len, line.len - bom.len);
    s->past_start = true;
    return line;
}

static void end_line(struct sse *s, struct slice line, sse_event_cb cb, void *arg)
{
    const bool too_long = line.len > s->max_event;
    line = without_bom(s, line);
    if (!line.len) {
        end_event(s, cb, arg);
        return;
    }
    if (line.ptr[0] == ':') {
        s->comments++;
        return;
    }
    if (too_long)
        s->overflow = true;
    if (s->overflow)
        return;
    const char *colon = memchr(line.ptr, ':', line.len);
    const size_t len = colon ? (size_t)(colon - line.ptr) : line.len;
    const struct slice field = {line.ptr, len};
    struct slice value = {line.ptr + len, line.len - len};
    if (colon)
        value.ptr++, value.len--;
    if (value.len && value.ptr[0] == ' ')
        value.ptr++, value.len--;
    if (slice_eq(field, SLICE_LIT("data"))) {
        add_data(s, value);
    } else if (slice_eq(field, SLICE_LIT("event"))) {
        buf_clear(&s->name);
        buf_append_slice(&s->name, value);
    }
}

/* Keeps a part of a line, up to one byte more than may be. */
static void keep(struct sse *s, struct slice part)
{
    const size_t room = s->max_event + 1 - buf_len(&s->line);
    buf_append(&s->line, part.ptr, part.len < room ? part.len : room);
}

void sse_feed(struct sse *s, struct slice bytes, sse_event_cb cb, void *arg)
{
    const char *at = bytes.ptr, *const end = bytes.ptr + bytes.len;
    while (at < end) {
        if (s->after_cr && *at == '\n')
            at++;
        s->after_cr = false;
        const char *stop = at;
        while (stop < end && *stop != '\n' && *stop != '\r')
            stop++;
        struct slice line = {at, (size_t)(stop - at)};
        if (stop == end || buf_len(&s->line))
            keep(s, line);
        if (stop == end)
            return;
        if (buf_len(&s->line))
            line = buf_slice(&s->line);
        end_line(s, line, cb, arg);
        buf_clear(&s->line);
        s->after_cr = *stop == '\r';
        at = stop + 1;
    }
}
