/* SPDX-License-Identifier: MIT */
#include "wire/ask.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct ask {
    struct call *call;
    struct loop_timer timer;
    char *body;
    struct buf in;
    int status;
    bool too_long;
    ask_cb cb;
    void *arg;
};

static void free_ask(struct ask *a)
{
    timer_fini(&a->timer);
    buf_free(&a->in);
    free(a->body);
    free(a);
}

static void on_head(void *arg, const struct http_head *h)
{
    struct ask *a = arg;
    a->status = h->status;
}

static void on_body(void *arg, struct slice bytes)
{
    struct ask *a = arg;
    a->too_long |= buf_len(&a->in) + bytes.len > ASK_MAX_BYTES;
    if (!a->too_long)
        buf_append_slice(&a->in, bytes);
}

static void on_end(void *arg)
{
    struct ask *a = arg;
    const struct err none = {0};
    const struct slice s = buf_slice(&a->in);
    json_t *doc = a->too_long ? NULL : json_loadb(s.ptr, s.len, JSON_DECODE_ANY, NULL);
    a->call = NULL;
    a->cb(a->arg, a->status, doc, &none);
    json_decref(doc);
    free_ask(a);
}

static void on_fail(void *arg, const struct err *why)
{
    struct ask *a = arg;
    a->call = NULL;
    a->cb(a->arg, 0, NULL, why);
    free_ask(a);
}

static void on_timeout(void *arg)
{
    struct ask *a = arg;
    struct err e = {0};
    err_set(&e, ERR_TIMEOUT, "the engine did not answer a control call in time");
    call_cancel(a->call);
    a->cb(a->arg, 0, NULL, &e);
    free_ask(a);
}

/* An ask without its call. */
static struct ask *new_ask(const char *body, uint64_t timeout_ms, struct loop *l,
                           ask_cb cb, void *arg)
{
    struct ask *a = mem_zalloc(sizeof(*a));
    a->cb = cb;
    a->arg = arg;
    a->body = body ? mem_strdup(body) : NULL;
    timer_init(&a->timer, l, on_timeout, a);
    timer_start(&a->timer, timeout_ms);
    return a;
}

static void send_ask(struct ask *a, struct upstream *u, const char *path,
                     const char *headers, bool once)
{
    static const struct call_events events = {
        .on_head = on_head, .on_body = on_body, .on_end = on_end, .on_fail = on_fail};
    struct buf head = {0};
    buf_printf(&head, "%s %s%s HTTP/1.1\r\nHost: %s\r\nAccept: application/json\r\n%s",
               a->body ? "POST" : "GET", upstream_prefix(u), path, upstream_host(u),
               headers);
    if (a->body)
        buf_printf(&head, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                   strlen(a->body));
    buf_append_str(&head, "\r\n");
    struct call_request rq = {.head = buf_slice(&head), .once = once};
    if (a->body)
        rq.body[0] = slice_of(a->body);
    a->call = call_start(u, &rq, &events, a);
    buf_free(&head);
}

struct ask *ask_json(struct upstream *u, const char *path, const char *body,
                     const char *headers, uint64_t timeout_ms, struct loop *l, ask_cb cb,
                     void *arg)
{
    struct ask *a = new_ask(body, timeout_ms, l, cb, arg);
    send_ask(a, u, path, headers, false);
    return a;
}

struct ask *ask_once(struct upstream *u, const char *path, const char *body,
                     const char *headers, uint64_t timeout_ms, struct loop *l, ask_cb cb,
                     void *arg)
{
    struct ask *a = new_ask(body, timeout_ms, l, cb, arg);
    send_ask(a, u, path, headers, true);
    return a;
}

void ask_cancel(struct ask *a)
{
    if (!a)
        return;
    call_cancel(a->call);
    free_ask(a);
}
