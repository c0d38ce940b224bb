/* SPDX-License-Identifier: MIT */
#include "gateway/ping.h"

#include <string.h>

struct slice ping_text(void)
{
    return SLICE_LIT(": ping\n\n");
}

/* An empty line ends an event. A CR at the very end may be half of a line end. */
static bool ends_event(const char *tail, size_t n)
{
    if (n == 0)
        return true; /* nothing has gone by yet */
    if (tail[--n] != '\n')
        return false;
    if (n && tail[n - 1] == '\r')
        n--;
    return n && (tail[n - 1] == '\n' || tail[n - 1] == '\r');
}

static void on_silence(void *arg)
{
    struct ping *p = arg;
    timer_start(&p->timer, p->every_ms);
    if (ends_event(p->tail, p->n_tail))
        p->due(p->arg);
}

void ping_start(struct ping *p, struct loop *l, uint64_t every_ms, loop_cb due, void *arg)
{
    if (!every_ms)
        return;
    *p = (struct ping){.every_ms = every_ms, .due = due, .arg = arg};
    timer_init(&p->timer, l, on_silence, p);
    timer_start(&p->timer, every_ms);
}

void ping_note(struct ping *p, struct slice bytes)
{
    if (!p->every_ms || !bytes.len)
        return;
    const size_t room = sizeof(p->tail);
    const size_t more = bytes.len < room ? bytes.len : room;
    const size_t keep = p->n_tail + more > room ? room - more : p->n_tail;
    memmove(p->tail, p->tail + p->n_tail - keep, keep);
    memcpy(p->tail + keep, bytes.ptr + bytes.len - more, more);
    p->n_tail = keep + more;
    timer_start(&p->timer, p->every_ms);
}

void ping_stop(struct ping *p)
{
    timer_fini(&p->timer);
    p->every_ms = 0;
}
