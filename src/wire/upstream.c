/* SPDX-License-Identifier: MIT */
#include "wire/upstream.h"

/*
 * Happy path:  call_start → (pooled connection | connect) → write head and body →
 *              head → body… → end → connection back to the pool.
 * Failures:    connect refused or late, no answer in time, answer stalls, connection
 *              closed early, answer not HTTP. All end in fail_call().
 * Functions below follow that order in time.
 */

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/mem.h"
#include "io/conn.h"
#include "wire/lookup.h"

#define ANSWER_HEAD_MAX (128 * 1024)
#define AT_ONCE_US 1000000 /* so soon behind a stream it was not for being idle */

struct upstream {
    struct loop *loop;
    struct upstream_options o;
    struct lookup at;
    struct tls *tls; /* NULL: plain */
    char host[256];
    char prefix[256];
    struct list idle;  /* pooled, most recently used first */
    struct list calls; /* under way */
    struct upstream_stats stats;
    bool closes_streams; /* the engine ends connections behind them */
    loop_cb lost;
    void *lost_arg;
};

struct pooled {
    struct list link;
    struct upstream *u;
    struct conn *conn;
    struct loop_timer expiry;
    unsigned served;      /* requests answered on this connection */
    uint64_t streamed_us; /* when its last answer ended, 0 where that was no stream */
};

struct call {
    struct list link;
    struct upstream *u;
    struct call_events on;
    void *arg;
    struct buf head;
    struct slice body[3];
    bool is_head, once;
    bool hold; /* asked for … */
    bool held; /* … and its head has come, and is not handed on yet */
    struct call_facts *facts;

    struct pooled *at; /* the connection in use; NULL: it waits for an address */
    struct http_parser *parser;
    struct loop_timer timer; /* connect and first byte, then stalls */
    bool reused;             /* it came from the pool */
    bool retried;
    bool connected, sent, answered; /* answered: a byte of the answer was seen */
    bool paused;
    bool resuming; /* a deferred look at pending input is on its way */
    bool closing;  /* the connection ended with the answer */
    bool over;     /* detached; what is deferred frees it */
};

static void on_conn(void *arg, struct conn *conn, enum conn_event event);
static void open_call(struct call *c);

/* The parts of "scheme://HOST[:PORT][/prefix]". */
struct url_parts {
    bool tls;
    char name[256];      /* HOST, without brackets */
    char host_port[300]; /* with the scheme's port where none was written */
};

static int refuse_url(const char *url, struct err *e)
{
    return err_set(e, ERR_INVALID,
                   "upstream \"%.160s\": not http://HOST:PORT/prefix, "
                   "https://HOST:PORT/prefix or unix:/path",
                   url);
}

/* Length of the scheme with its slashes; 0 where it is none of ours. */
static size_t scheme_of(const char *url, bool *tls)
{
    static const char plain[] = "http://", sealed[] = "https://";
    *tls = strncasecmp(url, sealed, sizeof(sealed) - 1) == 0;
    if (*tls)
        return sizeof(sealed) - 1;
    return strncasecmp(url, plain, sizeof(plain) - 1) == 0 ? sizeof(plain) - 1 : 0;
}

static int parse_url(struct upstream *u, const char *url, struct url_parts *parts,
                     struct err *e)
{
    const size_t scheme = scheme_of(url, &parts->tls);
    const char *host = url + scheme;
    const size_t n = strcspn(host, "/?#");
    size_t path = strlen(host + n);
    if (scheme == 0 || n == 0 || n >= sizeof(u->host) || path >= sizeof(u->prefix) ||
        strpbrk(host, "?#@ "))
        return refuse_url(url, e);
    memcpy(u->prefix, host + n, path + 1);
    while (path && u->prefix[path - 1] == '/')
        u->prefix[--path] = '\0';
    const char *v6 = memchr(host, ']', n), *port = v6 ? v6 : host;
    const char *colon = memchr(port, ':', (size_t)(host + n - port));
    const bool bracketed = v6 && *host == '[';
    const char *end = bracketed ? v6 : colon ? colon : host + n;
    snprintf(parts->host_port, sizeof(parts->host_port), "%.*s%s", (int)n, host,
             colon        ? ""
             : parts->tls ? ":443"
                          : ":80");
    snprintf(parts->name, sizeof(parts->name), "%.*s", (int)(end - host) - bracketed,
             host + bracketed);
    snprintf(u->host, sizeof(u->host), "%.*s", (int)n, host);
    return 0;
}

static int open_tls(struct upstream *u, const struct url_parts *parts, struct err *e)
{
    struct tls_options o = u->o.tls;
    if (!o.name || !*o.name)
        o.name = parts->name;
    u->tls = tls_new(&o, e);
    if (u->tls)
        return 0;
    err_wrap(e, "upstream https://%s", u->host);
    return ERR_INVALID;
}

static void on_looked_up(void *arg, bool moved);

static int open_address(struct upstream *u, const char *url, struct err *e)
{
    struct url_parts parts = {0};
    const char *where = url;
    int rc = 0;
    if (strncmp(url, "unix:", 5) == 0) {
        snprintf(u->host, sizeof(u->host), "localhost");
    } else {
        rc = parse_url(u, url, &parts, e);
        where = parts.host_port;
    }
    if (rc == 0 && parts.tls)
        rc = open_tls(u, &parts, e);
    if (rc == 0)
        rc = lookup_open(&u->at, u->loop, u->o.names, where, on_looked_up, u, e);
    return rc;
}

struct upstream *upstream_new(struct loop *l, const struct upstream_options *o,
                              struct err *e)
{
    struct upstream *u = mem_zalloc(sizeof(*u));
    u->loop = l;
    u->o = *o;
    list_init(&u->idle);
    list_init(&u->calls);
    if (open_address(u, o->url, e) != 0) {
        tls_free(u->tls);
        free(u);
        return NULL;
    }
    u->o.url = NULL; /* not kept, nor are its files */
    u->o.tls = (struct tls_options){0};
    return u;
}

void upstream_set_options(struct upstream *u, const struct upstream_options *o)
{
    u->o = *o;
    u->o.url = NULL;
    u->o.tls = (struct tls_options){0}; /* that is kept elsewhere */
}

void upstream_on_lost(struct upstream *u, loop_cb lost, void *arg)
{
    u->lost = lost;
    u->lost_arg = arg;
}

/* It may be somewhere else by now. */
static void note_lost(struct upstream *u)
{
    lookup_again(&u->at);
    if (u->lost)
        u->lost(u->lost_arg);
}

static void free_pooled(struct pooled *p)
{
    list_del(&p->link);
    timer_fini(&p->expiry);
    conn_close(p->conn);
    free(p);
}

void upstream_flush(struct upstream *u)
{
    LIST_EACH_SAFE (it, next, &u->idle)
        free_pooled(LIST_ENTRY(it, struct pooled, link));
    u->stats.idle = 0;
}

void upstream_free(struct upstream *u)
{
    if (!u)
        return;
    assert(list_empty(&u->calls));
    upstream_flush(u);
    lookup_close(&u->at);
    tls_free(u->tls);
    free(u);
}

const char *upstream_host(const struct upstream *u)
{
    return u->host;
}

const char *upstream_prefix(const struct upstream *u)
{
    return u->prefix;
}

const struct addr *upstream_addr(const struct upstream *u)
{
    return &u->at.addr;
}

void upstream_stats(const struct upstream *u, struct upstream_stats *out)
{
    *out = u->stats;
}

/* Lets go of the connection: it is closed, whatever state it is in. */
static void drop_connection(struct call *c)
{
    if (c->at)
        free_pooled(c->at);
    c->at = NULL;
}

/* From here on the upstream does not know the call any more, and may be freed. */
static void detach_call(struct call *c)
{
    assert(!c->at && !c->over);
    c->over = true;
    timer_stop(&c->timer);
    list_del(&c->link);
    c->u->stats.active--;
}

static void free_call(void *arg)
{
    struct call *c = arg;
    timer_fini(&c->timer);
    http_parser_free(c->parser);
    buf_free(&c->head);
    free(c);
}

/* The call is over, and nobody up the stack looks at it again. */
static void end_call(struct call *c)
{
    detach_call(c);
    if (!c->resuming) /* else on_resumed() frees it */
        free_call(c);
}

static void fail_call(struct call *c, const struct err *why)
{
    const struct call_events on = c->on;
    void *arg = c->arg;
    const struct err copy = *why;
    c->u->stats.failures++;
    drop_connection(c);
    end_call(c);
    on.on_fail(arg, &copy);
}

static void on_timeout(void *arg)
{
    struct call *c = arg;
    struct err e = {0};
    if (!c->at && !c->u->at.work)
        err_set(&e, ERR_REFUSED, "the engine was not found: %s", c->u->at.why.text);
    else if (!c->at)
        err_set(&e, ERR_TIMEOUT, "looking up where the engine is took too long");
    else if (c->answered)
        err_set(&e, ERR_TIMEOUT, "the engine stopped in the middle of its answer");
    else if (c->connected)
        err_set(&e, ERR_TIMEOUT, "the engine did not answer in time");
    else
        err_set(&e, ERR_TIMEOUT, "connecting to the engine took too long");
    fail_call(c, &e);
}

/* The engine has closed it. Where it does that behind a stream, all to come are not worth
 * keeping: some would be used in the moment before the close is seen. */
static void note_closed(struct pooled *p)
{
    if (p->streamed_us && loop_now_us(p->u->loop) - p->streamed_us < AT_ONCE_US)
        p->u->closes_streams = true;
}

static void on_idle_expired(void *arg)
{
    struct pooled *p = arg;
    p->u->stats.idle--;
    free_pooled(p);
}

static void on_idle_event(void *arg, struct conn *conn, enum conn_event event)
{
    (void)conn;
    struct upstream *u = ((struct pooled *)arg)->u;
    if (event != CONN_CLOSED && event != CONN_DATA)
        return;
    note_closed(arg);
    on_idle_expired(arg);
    note_lost(u);
}

static bool is_stale(struct pooled *p)
{
    const bool stale = conn_stale(p->conn);
    if (stale)
        note_closed(p);
    return stale;
}

static void to_pool(struct pooled *p)
{
    struct upstream *u = p->u;
    if (p->served >= u->o.pool_max_requests || u->stats.idle >= u->o.pool_max_idle ||
        is_stale(p)) {
        free_pooled(p);
        return;
    }
    conn_set_cb(p->conn, on_idle_event, p);
    conn_resume(p->conn);
    timer_start(&p->expiry, u->o.pool_idle_ms);
    list_push_front(&u->idle, &p->link);
    u->stats.idle++;
}

static struct pooled *from_pool(struct upstream *u)
{
    while (!list_empty(&u->idle)) {
        struct pooled *p = LIST_ENTRY(u->idle.next, struct pooled, link);
        u->stats.idle--;
        list_del(&p->link);
        timer_stop(&p->expiry);
        if (!is_stale(p))
            return p;
        free_pooled(p);
        note_lost(u);
    }
    return NULL;
}

static void note_sent(struct call *c)
{
    if (!c->facts->sent_us)
        c->facts->sent_us = loop_now_us(c->u->loop);
}

static void send_request(struct call *c)
{
    struct conn *conn = c->at->conn;
    c->connected = true;
    timer_start(&c->timer, c->u->o.first_byte_ms);
    conn_cork(conn); /* head and body leave together */
    conn_write_borrowed(conn, buf_slice(&c->head));
    for (size_t i = 0; i < 3; i++)
        conn_write_borrowed(conn, c->body[i]);
    conn_uncork(conn);
    if (!conn_output_len(conn))
        note_sent(c);
}

static void connect_call(struct call *c)
{
    struct upstream *u = c->u;
    struct pooled *p = mem_zalloc(sizeof(*p));
    p->u = u;
    list_init(&p->link);
    timer_init(&p->expiry, u->loop, on_idle_expired, p);
    p->conn = conn_connect_tls(u->loop, &u->at.addr, u->tls, u->o.connect_ms, on_conn, c);
    u->stats.connects++;
    c->facts->connects++;
    c->at = p;
    if (c->paused)
        conn_pause(p->conn);
    timer_start(&c->timer, u->o.connect_ms + 1000); /* conn reports first */
}

/* Until it is known where, or why not. */
static void await_address(struct call *c)
{
    const bool looks = lookup_again(&c->u->at);
    timer_start(&c->timer, looks ? c->u->o.connect_ms : 0);
}

static void on_looked_up(void *arg, bool moved)
{
    struct upstream *u = arg;
    if (moved)
        upstream_flush(u);
    LIST_EACH (it, &u->calls) {
        struct call *c = LIST_ENTRY(it, struct call, link);
        if (c->at)
            continue;
        if (lookup_known(&u->at))
            connect_call(c);
        else
            timer_start(&c->timer, 0);
    }
}

static void open_call(struct call *c)
{
    struct upstream *u = c->u;
    struct pooled *p = c->retried ? NULL : from_pool(u);
    c->reused = p != NULL;
    c->connected = c->sent = c->answered = false;
    if (p) {
        c->at = p;
        conn_set_cb(p->conn, on_conn, c);
        send_request(c);
    } else if (lookup_known(&u->at)) {
        connect_call(c);
    } else {
        await_address(c);
    }
}

struct call *call_start(struct upstream *u, const struct call_request *rq,
                        const struct call_events *events, void *arg)
{
    static struct call_facts nobody_asks;
    struct call *c = mem_zalloc(sizeof(*c));
    c->u = u;
    c->facts = rq->facts ? rq->facts : &nobody_asks;
    c->on = *events;
    c->arg = arg;
    c->is_head = rq->is_head;
    c->once = rq->once;
    c->hold = rq->hold;
    buf_append_slice(&c->head, rq->head);
    memcpy(c->body, rq->body, sizeof(c->body));
    c->parser =
        http_parser_new(HTTP_RESPONSE, (struct http_limits){ANSWER_HEAD_MAX, 256});
    if (c->is_head)
        http_parser_expect_head(c->parser);
    timer_init(&c->timer, u->loop, on_timeout, c);
    list_push_back(&u->calls, &c->link);
    u->stats.calls++;
    u->stats.active++;
    open_call(c);
    return c;
}

/* The connection is gone or useless before the answer was whole. */
static void on_broken(struct call *c, const char *what, const char *why)
{
    struct err e = {0};
    struct upstream *u = c->u;
    /* Before the connection goes, whose text it may be. */
    err_set(&e, c->connected ? ERR_CLOSED : ERR_REFUSED, "%s%s%s", what, *why ? ": " : "",
            why);
    if (c->reused && !c->answered && !c->retried && !c->once) {
        c->retried = true;
        u->stats.retries++;
        c->facts->retries++;
        note_closed(c->at);
        drop_connection(c);
        open_call(c);
        note_lost(u);
        return;
    }
    note_lost(u);
    fail_call(c, &e);
}

static bool is_event_stream(const struct http_head *h)
{
    static const char type[] = "text/event-stream";
    const struct slice v = http_head_get(h, SLICE_LIT("Content-Type"));
    return v.len >= sizeof(type) - 1 && strncasecmp(v.ptr, type, sizeof(type) - 1) == 0;
}

/* llama-server closes the connection behind a stream, whatever its head says. In the pool
 * that would look as if the engine had been lost. */
static bool may_be_kept(const struct call *c, bool stream)
{
    const struct upstream *u = c->u;
    return http_parser_head(c->parser)->keep_alive && !c->closing &&
           (!stream || (u->o.keep_streams && !u->closes_streams)) &&
           conn_output_len(c->at->conn) == 0; /* or the rest would follow */
}

static void finish_call(struct call *c)
{
    const struct call_events on = c->on;
    void *arg = c->arg;
    struct pooled *p = c->at;
    const bool stream = is_event_stream(http_parser_head(c->parser));
    const bool keep = may_be_kept(c, stream);
    p->served++;
    p->streamed_us = stream ? loop_now_us(p->u->loop) : 0;
    c->at = NULL;
    if (keep)
        to_pool(p);
    else
        free_pooled(p);
    end_call(c);
    on.on_end(arg);
}

/* A 1xx head was read: its end follows, then the real answer. */
static bool is_interim(const struct call *c)
{
    const int status = http_parser_head(c->parser)->status;
    return status >= 100 && status < 200;
}

static bool is_success(const struct call *c)
{
    const int status = http_parser_head(c->parser)->status;
    return status >= 200 && status < 300;
}

/* Acts on one parser event; false when the call is over or paused. */
static bool step(struct call *c, enum http_event event, struct slice data)
{
    const char *text;
    switch (event) {
    case HTTP_MORE:
        return false;
    case HTTP_HEAD:
        if (http_parser_head(c->parser)->status == 101) {
            on_broken(c, "the engine switched protocols, unasked", "");
            return false;
        }
        if (is_interim(c))
            break;
        if (c->hold && is_success(c)) {
            c->held = true;
            call_pause(c);
            return false;
        }
        c->on.on_head(c->arg, http_parser_head(c->parser));
        break;
    case HTTP_DATA:
        c->on.on_body(c->arg, data);
        break;
    case HTTP_END:
        if (is_interim(c)) {
            http_parser_reset(c->parser);
            timer_start(&c->timer, c->u->o.first_byte_ms);
            if (c->is_head)
                http_parser_expect_head(c->parser);
            break;
        }
        finish_call(c);
        return false;
    case HTTP_ERROR:
        http_parser_error(c->parser, &text);
        on_broken(c, text, "");
        return false;
    }
    return true;
}

/*
 * The callbacks may cancel the call in the middle; cancelled calls are freed by the
 * loop on its next turn, so `c` stays readable here.
 */
static void read_answer(struct call *c)
{
    while (!c->over && !c->paused) {
        struct slice in = conn_input(c->at->conn), data = {0};
        size_t used = 0;
        if (!in.len && !c->answered) /* once it has begun, the end may follow the head */
            return;
        if (!c->answered) {
            c->answered = true;
            timer_start(&c->timer, c->u->o.stall_ms);
        }
        const enum http_event event = http_parser_next(c->parser, in, &used, &data);
        const bool last = event == HTTP_END && !is_interim(c);
        if (event == HTTP_DATA) { /* data points into the input: hand it on first */
            step(c, event, data);
            if (!c->over)
                conn_consume(c->at->conn, used);
            continue;
        }
        conn_consume(c->at->conn, used);
        if (!step(c, event, data) || last)
            return;
    }
}

static void on_ended(struct call *c, const char *why)
{
    if (!c->answered || *why || http_parser_eof(c->parser) != HTTP_END) {
        on_broken(c, "the engine closed the connection before its answer was complete",
                  why);
        return;
    }
    c->closing = true;
    finish_call(c);
}

static void on_conn(void *arg, struct conn *conn, enum conn_event event)
{
    struct call *c = arg;
    switch (event) {
    case CONN_CONNECTED:
        c->u->at.unreachable = false;
        send_request(c);
        break;
    case CONN_DATA:
        if (c->answered && !c->paused)
            timer_start(&c->timer, c->u->o.stall_ms);
        read_answer(c);
        break;
    case CONN_DRAINED:
        break;
    case CONN_FLUSHED:
        note_sent(c);
        if (!c->sent && c->on.on_sent)
            c->on.on_sent(c->arg);
        c->sent = true;
        break;
    case CONN_CLOSED: /* what it sent before may still be on its way here */
        break;
    case CONN_ENDED:
        on_ended(c, conn_why(conn));
        break;
    case CONN_FAILED:
        c->u->at.unreachable = true;
        on_broken(c, "connecting to the engine failed", conn_why(conn));
        break;
    }
}

bool call_release_body(struct call *c)
{
    if (!c->sent)
        return false;
    memset(c->body, 0, sizeof(c->body));
    return c->once = true;
}

void call_pause(struct call *c)
{
    c->paused = true;
    if (c->at)
        conn_pause(c->at->conn);
    timer_stop(&c->timer);
}

static void on_resumed(void *arg)
{
    struct call *c = arg;
    c->resuming = false;
    if (c->over) {
        free_call(c);
        return;
    }
    if (c->paused || !c->at)
        return;
    conn_resume(c->at->conn);
    if (c->held) {
        c->held = false;
        c->on.on_head(c->arg, http_parser_head(c->parser));
    }
    read_answer(c);
}

void call_resume(struct call *c)
{
    c->paused = false;
    timer_start(&c->timer, c->u->o.stall_ms);
    if (!c->resuming) {
        c->resuming = true;
        loop_defer(c->u->loop, on_resumed, c);
    }
}

void call_release(struct call *c)
{
    c->hold = false;
    if (c->held)
        call_resume(c);
}

void call_cancel(struct call *c)
{
    if (c->over)
        return;
    drop_connection(c);
    detach_call(c);
    if (!c->resuming) /* else on_resumed() frees it */
        loop_defer(c->u->loop, free_call, c);
}
