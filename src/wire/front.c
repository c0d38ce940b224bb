/* SPDX-License-Identifier: MIT */
#include "wire/front.h"

/*
 * One client connection:
 *
 *     IDLE ── first byte ──► HEAD ── head ──► BODY ── end ──► OWNED ── answer ──► IDLE
 *       │ idle_ms              │ head_ms        │ body_ms        │ write_ms
 *       ▼                      ▼                ▼                ▼
 *     close                   408              408             abort (slow reader)
 *
 * While OWNED nothing is parsed: pipelined bytes stay in the input buffer, which stops
 * growing at its limit. The peer's close is seen all the same (io/conn.h).
 */

#include <assert.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/conn.h"
#include "wire/peers.h"

#define LINGER_MS 2000
#define SHORT_BODY ((uint64_t)64 << 10) /* what a connection reads at once */
#define LONG_BODY ((uint64_t)1 << 20)
#define LOGGED_A_SECOND 20 /* refusals; the others are counted */

enum client_state { CLIENT_IDLE, CLIENT_HEAD, CLIENT_BODY, CLIENT_OWNED, CLIENT_CLOSING };

struct front {
    struct loop *loop;
    struct front_options o;
    struct listener *listener;
    front_request_cb on_request;
    void *arg;
    struct list clients;
    struct peers *peers;
    uint64_t log_second, logged, unlogged; /* refusals */
    struct front_stats stats;
    bool draining;
    loop_cb drained;
    void *drained_arg;
};

/* A client connection and the one request that it may have under way. */
struct front_request {
    struct list link;
    struct front *front;
    struct conn *conn;
    struct http_parser *parser;
    struct peers_client *peer; /* NULL: not counted */
    struct loop_timer timer;
    struct loop_timer pace; /* runs while a body comes, or while output waits */
    uint64_t taken;         /* of the output, when it was looked at for write_ms */
    uint64_t pace_mark;     /* bytes that had come, or gone, when it was started */
    enum client_state state;
    bool headed; /* the parser has the head of the request under way */

    struct buf body;
    uint64_t held; /* by it: its share of the memory for bodies */
    uint64_t received_us;
    struct front_events on;
    void *arg;

    bool started, chunked, bodiless, close_after, congested, gone;
    int64_t left; /* body bytes still owed of a sized answer; -1 unsized */
    uint64_t body_sent;
    bool parsing_queued; /* a deferred look at pipelined input is on its way */
};

static void on_conn(void *arg, struct conn *conn, enum conn_event event);
static void read_request(struct front_request *rq);

static void drop_body(struct front_request *rq)
{
    budget_set(rq->front->o.memory, &rq->held, 0);
    buf_free(&rq->body);
}

static void check_drained(struct front *f)
{
    if (f->draining && list_empty(&f->clients) && f->drained) {
        loop_defer(f->loop, f->drained, f->drained_arg);
        f->drained = NULL;
    }
}

static void free_later(void *arg)
{
    struct front_request *rq = arg;
    timer_fini(&rq->timer);
    timer_fini(&rq->pace);
    http_parser_free(rq->parser);
    free(rq);
}

/* The connection is given up; `how` closes it. The memory goes on the next turn, since
 * callers may be in the middle of it. */
static void end_client(struct front_request *rq, void (*how)(struct conn *))
{
    struct front *f = rq->front;
    rq->state = CLIENT_CLOSING;
    timer_stop(&rq->timer);
    timer_stop(&rq->pace);
    drop_body(rq);
    how(rq->conn);
    peers_leave(f->peers, rq->peer);
    rq->conn = NULL;
    list_del(&rq->link);
    f->stats.connections--;
    if (!rq->parsing_queued)
        loop_defer(f->loop, free_later, rq);
    check_drained(f);
}

static void close_gently(struct conn *c)
{
    conn_close_gently(c, LINGER_MS);
}

/* Between requests; the end of the last answer may still be on its way. */
static void close_idle(struct conn *c)
{
    if (conn_output_len(c))
        close_gently(c);
    else
        conn_close(c);
}

/* ---- refusals ---------------------------------------------------------------------- */

static void error_body(struct buf *b, int status, const char *type, const char *message)
{
    json_t *text = json_string(message); /* NULL where it is not UTF-8 */
    json_t *doc = json_pack("{s:{s:o,s:s,s:i},s:s}", "error", "message",
                            text ? text : json_string("it cannot be told in UTF-8"),
                            "type", type, "code", status, "type", "error");
    char *line = json_dumps(doc, JSON_COMPACT);
    buf_append_str(b, line);
    buf_append_char(b, '\n');
    free(line);
    json_decref(doc);
}

static void count_refusal(struct front *f, int status)
{
    switch (status) {
#define X(code)                                                                          \
    case code:                                                                           \
        f->stats.refused_##code++;                                                       \
        break;
        FRONT_REFUSALS(X)
#undef X
    default:
        f->stats.refused_400++;
    }
}

/* A flood of refusals must not become one of lines. */
static void log_refusal(const struct front_request *rq, const struct front_refusal *why)
{
    struct front *f = rq->front;
    const uint64_t second = loop_now_us(f->loop) / 1000000;
    if (second != f->log_second) {
        if (f->unlogged)
            log_event(LOG_INFO, "refused", "more", "%llu",
                      (unsigned long long)f->unlogged, NULL);
        f->log_second = second;
        f->logged = f->unlogged = 0;
    }
    if (f->logged == LOGGED_A_SECOND) {
        f->unlogged++;
        return;
    }
    f->logged++;
    log_event(LOG_INFO, "refused", "status", "%d", why->status, "peer", "%s",
              conn_peer(rq->conn), "why", "%s", why->message, NULL);
}

/* Answers without an owner and closes: nothing behind it is taken for a request. */
static void refuse_as(struct front_request *rq, const struct front_refusal *why)
{
    struct buf head = {0}, body = {0};
    count_refusal(rq->front, why->status);
    log_refusal(rq, why);
    error_body(&body, why->status, why->type, why->message);
    buf_printf(&head,
               "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: "
               "%zu\r\n%s",
               why->status, http_reason(why->status), buf_len(&body), why->headers);
    if (rq->front->o.refusing)
        rq->front->o.refusing(rq->front->arg,
                              rq->headed ? http_parser_head(rq->parser) : NULL, &head);
    buf_append_str(&head, "Connection: close\r\n\r\n");
    conn_write(rq->conn, buf_slice(&head));
    if (!rq->bodiless) /* it asked for a head */
        conn_write(rq->conn, buf_slice(&body));
    buf_free(&head);
    buf_free(&body);
    end_client(rq, close_gently);
}

static void refuse(struct front_request *rq, int status, const char *message)
{
    const bool later = status == 503 || status == 429;
    const struct front_refusal why = {.status = status,
                                      .type = status == 503   ? "unavailable_error"
                                              : status == 429 ? "rate_limit_error"
                                                              : "invalid_request_error",
                                      .message = message,
                                      .headers = later ? "Retry-After: 1\r\n" : ""};
    refuse_as(rq, &why);
}

/* The client does not read, or too little. */
static void cut_reader(struct front_request *rq, const char *why)
{
    log_event(LOG_INFO, "cut", "peer", "%s", conn_peer(rq->conn), "why", "%s", why, NULL);
    rq->front->stats.slow_readers++;
    rq->gone = true;
    rq->on.on_gone(rq->arg);
    end_client(rq, conn_abort);
}

/* The time in which it has to take something begins again with whatever it takes. */
static void wait_for_reader(struct front_request *rq)
{
    const uint64_t taken = conn_bytes_taken(rq->conn);
    if (taken == rq->taken) {
        cut_reader(rq, "it takes nothing of its answer");
        return;
    }
    rq->taken = taken;
    timer_start(&rq->timer, rq->front->o.write_ms);
}

static void on_timer(void *arg)
{
    struct front_request *rq = arg;
    switch (rq->state) {
    case CLIENT_IDLE:
        end_client(rq, close_idle);
        break;
    case CLIENT_HEAD:
        refuse(rq, 408, "the request head did not arrive in time");
        break;
    case CLIENT_BODY:
        refuse(rq, 408, "the request body did not arrive in time");
        break;
    case CLIENT_OWNED: /* only armed while the client does not read */
        wait_for_reader(rq);
        break;
    case CLIENT_CLOSING:
        break;
    }
}

/* ---- pace -------------------------------------------------------------------------- */

/* Bytes of the body that have come, or of the answer that were taken. */
static uint64_t progress_of(const struct front_request *rq)
{
    return rq->state == CLIENT_BODY ? buf_len(&rq->body) : conn_bytes_taken(rq->conn);
}

static uint64_t least_rate(const struct front_request *rq)
{
    const struct front_options *o = &rq->front->o;
    return rq->state == CLIENT_BODY ? o->upload_rate : o->download_rate;
}

static void start_pace(struct front_request *rq)
{
    if (!least_rate(rq) || !rq->front->o.pace_ms)
        return;
    rq->pace_mark = progress_of(rq);
    timer_start(&rq->pace, rq->front->o.pace_ms);
}

static void on_pace(void *arg)
{
    struct front_request *rq = arg;
    const uint64_t n = progress_of(rq) - rq->pace_mark;
    const bool slow = n < least_rate(rq) * rq->front->o.pace_ms / 1000;
    if (!slow)
        start_pace(rq);
    else if (rq->state == CLIENT_BODY)
        refuse(rq, 408, "the request body arrives too slowly");
    else if (rq->state == CLIENT_OWNED)
        cut_reader(rq, "it takes its answer too slowly");
}

/* While something waits for the client; a client that has taken all is not slow. */
static void pace_reader(struct front_request *rq)
{
    if (!conn_output_len(rq->conn))
        timer_stop(&rq->pace);
    else if (!rq->pace.armed)
        start_pace(rq);
}

/* ---- reading ----------------------------------------------------------------------- */

static void enter(struct front_request *rq, enum client_state state, uint64_t ms)
{
    rq->state = state;
    if (ms)
        timer_start(&rq->timer, ms);
    else
        timer_stop(&rq->timer);
}

static bool refuse_for_now(struct front_request *rq)
{
    refuse(rq, 503, "too many request bodies are under way at once");
    return false;
}

/* False after the request was refused. */
static bool has_room(struct front_request *rq, uint64_t more)
{
    const struct front_options *o = &rq->front->o;
    const uint64_t have = buf_len(&rq->body);
    if (more <= o->body_bytes && have + more <= o->body_bytes) {
        const uint64_t needs = mem_held(have + more, have + more);
        if (budget_fits(o->memory, rq->held, needs))
            return true;
        if (needs <= o->memory->max)
            return refuse_for_now(rq);
    }
    refuse(rq, 413,
           "the request body is larger than limits.body_bytes or limits.buffered_bytes "
           "allows");
    return false;
}

static void on_head(struct front_request *rq)
{
    struct front *f = rq->front;
    const struct http_head *h = http_parser_head(rq->parser);
    struct front_refusal why = {.headers = ""};
    rq->bodiless = slice_eq(h->method, SLICE_LIT("HEAD"));
    if (f->o.check && !f->o.check(f->arg, h, &why)) {
        refuse_as(rq, &why);
        return;
    }
    if (h->body == HTTP_BODY_LENGTH && !has_room(rq, h->length))
        return;
    enter(rq, CLIENT_BODY, f->o.body_ms);
    start_pace(rq);
    if (h->expect_continue && h->minor >= 1 && h->body != HTTP_BODY_NONE)
        conn_write(rq->conn, SLICE_LIT("HTTP/1.1 100 Continue\r\n\r\n"));
}

/* Room for all that was announced: at once for a short body, and for a long one when
 * some of it has come (pages that nobody wrote to take no memory). NULL: none is left. */
static char *room_for(struct front_request *rq, size_t n)
{
    const struct http_head *h = http_parser_head(rq->parser);
    const size_t have = buf_len(&rq->body);
    if (h->body == HTTP_BODY_LENGTH && h->length > have + n &&
        (h->length <= SHORT_BODY || have >= LONG_BODY))
        buf_try_reserve(&rq->body, (size_t)(h->length - have));
    return buf_try_reserve(&rq->body, n);
}

static void on_body(struct front_request *rq, struct slice data)
{
    struct front *f = rq->front;
    if (!has_room(rq, data.len))
        return;
    char *at = room_for(rq, data.len);
    if (!at) {
        refuse(rq, 503, "the gateway has no memory for the request body");
        return;
    }
    memcpy(at, data.ptr, data.len);
    buf_commit(&rq->body, data.len);
    if (budget_set(f->o.memory, &rq->held, buf_held(&rq->body)))
        timer_start(&rq->timer, f->o.body_ms);
    else
        refuse_for_now(rq);
}

static void on_whole(struct front_request *rq)
{
    struct front *f = rq->front;
    f->stats.requests++;
    timer_stop(&rq->pace);
    enter(rq, CLIENT_OWNED, 0);
    rq->received_us = loop_now_us(f->loop);
    rq->started = rq->chunked = rq->bodiless = rq->congested = false;
    rq->close_after = f->draining || !http_parser_head(rq->parser)->keep_alive;
    rq->body_sent = 0;
    f->on_request(f->arg, rq);
}

static void on_parse_error(struct front_request *rq)
{
    const char *text;
    const int status = http_parser_error(rq->parser, &text);
    refuse(rq, status, text);
}

/* Reads as far as one request goes; the owner's answer brings us back. While the answers
 * before it are not taken, no request is: who never reads must not fill our memory. */
static void read_request(struct front_request *rq)
{
    while (rq->state < CLIENT_OWNED) {
        struct slice in = conn_input(rq->conn), data = {0};
        size_t used = 0;
        if (!in.len && rq->state != CLIENT_BODY) /* there the end may follow the head */
            return;
        if (rq->state == CLIENT_IDLE) {
            if (conn_output_high(rq->conn))
                return;
            rq->bodiless = false;
            enter(rq, CLIENT_HEAD, rq->front->o.head_ms);
            rq->headed = false;
        }
        switch (http_parser_next(rq->parser, in, &used, &data)) {
        case HTTP_MORE:
            conn_consume(rq->conn, used);
            return;
        case HTTP_HEAD:
            conn_consume(rq->conn, used);
            rq->headed = true;
            on_head(rq);
            break;
        case HTTP_DATA:
            on_body(rq, data);
            if (rq->state == CLIENT_BODY)
                conn_consume(rq->conn, used);
            break;
        case HTTP_END:
            conn_consume(rq->conn, used);
            on_whole(rq);
            break;
        case HTTP_ERROR:
            on_parse_error(rq);
            break;
        }
    }
}

static void on_next_turn(void *arg)
{
    struct front_request *rq = arg;
    rq->parsing_queued = false;
    if (rq->state == CLIENT_CLOSING)
        free_later(rq);
    else
        read_request(rq);
}

static void on_closed(struct front_request *rq)
{
    if (rq->state == CLIENT_OWNED) {
        rq->gone = true;
        rq->on.on_gone(rq->arg);
    }
    if (rq->state != CLIENT_CLOSING)
        end_client(rq, rq->gone ? conn_close : close_idle);
}

static void on_drained(struct front_request *rq)
{
    if (rq->state == CLIENT_OWNED)
        pace_reader(rq);
    if (conn_output_high(rq->conn))
        return;
    if (rq->state == CLIENT_IDLE) {
        read_request(rq);
    } else if (rq->state == CLIENT_OWNED && rq->congested) {
        rq->congested = false;
        timer_stop(&rq->timer);
        rq->on.on_drained(rq->arg);
    }
}

static void on_conn(void *arg, struct conn *conn, enum conn_event event)
{
    struct front_request *rq = arg;
    (void)conn;
    switch (event) {
    case CONN_DATA:
        read_request(rq);
        break;
    case CONN_DRAINED:
    case CONN_FLUSHED:
        on_drained(rq);
        break;
    case CONN_CLOSED:
        on_closed(rq);
        break;
    case CONN_CONNECTED:
    case CONN_ENDED:
    case CONN_FAILED:
        break;
    }
}

/* ---- accepting --------------------------------------------------------------------- */

static void on_accept(void *arg, int fd)
{
    struct front *f = arg;
    struct front_request *rq = mem_zalloc(sizeof(*rq));
    rq->front = f;
    rq->conn = conn_accepted(f->loop, fd, on_conn, rq);
    rq->parser = http_parser_new(HTTP_REQUEST, f->o.head);
    timer_init(&rq->timer, f->loop, on_timer, rq);
    timer_init(&rq->pace, f->loop, on_pace, rq);
    list_push_back(&f->clients, &rq->link);
    f->stats.accepted++;
    f->stats.connections++;
    bool full;
    rq->peer = peers_enter(f->peers, conn_peer_addr(rq->conn),
                           f->o.per_client ? f->o.per_client : UINT_MAX, &full);
    if (f->stats.connections > f->o.connections)
        refuse(rq, 503, "too many connections");
    else if (full)
        refuse(rq, 429, "too many connections from this address");
    else
        enter(rq, CLIENT_IDLE, f->o.idle_ms);
}

struct front *front_open(struct loop *l, const struct addr *at,
                         const struct front_options *o, front_request_cb on_request,
                         void *arg, struct err *e)
{
    struct front *f = mem_zalloc(sizeof(*f));
    f->loop = l;
    f->o = *o;
    f->on_request = on_request;
    f->arg = arg;
    list_init(&f->clients);
    f->peers = peers_new();
    f->o.file = NULL; /* not kept */
    f->listener = listener_open_file(l, at, o->file, on_accept, f, e);
    if (!f->listener) {
        peers_free(f->peers);
        free(f);
        return NULL;
    }
    return f;
}

const struct addr *front_addr(const struct front *f)
{
    return listener_addr(f->listener);
}

void front_stats(const struct front *f, struct front_stats *out)
{
    *out = f->stats;
    out->buffered_bytes = f->o.memory->used;
}

void front_set_options(struct front *f, const struct front_options *o)
{
    struct budget *memory = f->o.memory; /* there are shares in it */
    f->o = *o;
    f->o.memory = memory;
}

void front_drain(struct front *f, loop_cb done, void *arg)
{
    f->draining = true;
    f->drained = done;
    f->drained_arg = arg;
    listener_close(f->listener);
    f->listener = NULL;
    LIST_EACH_SAFE (it, next, &f->clients) {
        struct front_request *rq = LIST_ENTRY(it, struct front_request, link);
        rq->close_after = true;
        if (rq->state == CLIENT_IDLE)
            end_client(rq, close_idle);
    }
    check_drained(f);
}

void front_close(struct front *f)
{
    if (!f)
        return;
    f->drained = NULL;
    listener_close(f->listener);
    while (!list_empty(&f->clients)) {
        struct front_request *rq =
            LIST_ENTRY(f->clients.next, struct front_request, link);
        if (rq->state == CLIENT_OWNED && !rq->gone) {
            rq->gone = true;
            rq->on.on_gone(rq->arg);
        }
        end_client(rq, conn_abort);
    }
    peers_free(f->peers);
    loop_defer(f->loop, free, f); /* behind the clients' own free_later */
}

/* ---- the owner's side -------------------------------------------------------------- */

const struct http_head *front_head(const struct front_request *rq)
{
    return http_parser_head(rq->parser);
}

struct slice front_body(const struct front_request *rq)
{
    return buf_slice(&rq->body);
}

const char *front_peer(const struct front_request *rq)
{
    return conn_peer(rq->conn);
}

uint64_t front_received_us(const struct front_request *rq)
{
    return rq->received_us;
}

void front_set_events(struct front_request *rq, const struct front_events *ev, void *arg)
{
    rq->on = *ev;
    rq->arg = arg;
}

/* The lines have a header of this name, whatever its letter case. */
static bool has_header(struct slice lines, struct slice name)
{
    while (lines.len) {
        const char *end = memchr(lines.ptr, '\n', lines.len);
        const size_t len = end ? (size_t)(end - lines.ptr) + 1 : lines.len;
        if (len > name.len && lines.ptr[name.len] == ':' &&
            strncasecmp(lines.ptr, name.ptr, name.len) == 0)
            return true;
        lines = slice_make(lines.ptr + len, lines.len - len);
    }
    return false;
}

static void put_date(struct buf *b)
{
    char text[64];
    struct tm tm;
    const time_t now = (time_t)(clock_wall_ms() / 1000);
    gmtime_r(&now, &tm);
    strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &tm);
    buf_printf(b, "Date: %s\r\n", text);
}

void front_start(struct front_request *rq, const struct front_answer *a)
{
    const struct http_head *h = front_head(rq);
    struct buf b = {0};
    assert(rq->state == CLIENT_OWNED && !rq->started);
    rq->started = true;
    rq->bodiless = a->bodiless;
    rq->left = a->length;
    rq->chunked = a->length < 0 && !a->bodiless && h->minor >= 1;
    rq->close_after |= a->length < 0 && !a->bodiless && h->minor < 1;
    buf_printf(&b, "HTTP/1.1 %d ", a->status);
    if (a->reason.len)
        buf_append_slice(&b, a->reason);
    else
        buf_append_str(&b, http_reason(a->status));
    buf_append_str(&b, "\r\n");
    buf_append_slice(&b, a->headers);
    if (!has_header(a->headers, SLICE_LIT("Date")))
        put_date(&b);
    if (rq->chunked)
        buf_append_str(&b, "Transfer-Encoding: chunked\r\n");
    else if (a->length >= 0)
        buf_printf(&b, "Content-Length: %lld\r\n", (long long)a->length);
    if (rq->close_after)
        buf_append_str(&b, "Connection: close\r\n");
    else if (h->minor == 0)
        buf_append_str(&b, "Connection: keep-alive\r\n");
    buf_append_str(&b, "\r\n");
    conn_write(rq->conn, buf_slice(&b));
    buf_free(&b);
}

static void note_congestion(struct front_request *rq)
{
    if (!rq->congested && conn_output_high(rq->conn)) {
        rq->congested = true;
        rq->taken = conn_bytes_taken(rq->conn);
        timer_start(&rq->timer, rq->front->o.write_ms);
    }
}

void front_data(struct front_request *rq, struct slice bytes)
{
    assert(rq->state == CLIENT_OWNED && rq->started);
    if (rq->bodiless || !bytes.len)
        return;
    if (rq->chunked) {
        struct buf b = {0};
        http_write_chunk(&b, bytes);
        conn_write(rq->conn, buf_slice(&b));
        buf_free(&b);
    } else {
        conn_write(rq->conn, bytes);
    }
    if (rq->left >= 0) {
        assert((int64_t)bytes.len <= rq->left);
        rq->left -= (int64_t)bytes.len;
    }
    rq->body_sent += bytes.len;
    note_congestion(rq);
    pace_reader(rq);
}

/* The answer is out: the connection goes on with what was pipelined, or closes. */
void front_end(struct front_request *rq)
{
    assert(rq->state == CLIENT_OWNED && rq->started);
    assert(rq->bodiless || rq->left <= 0);
    if (rq->chunked) {
        struct buf b = {0};
        http_write_last_chunk(&b);
        conn_write(rq->conn, buf_slice(&b));
        buf_free(&b);
    }
    if (rq->close_after || rq->front->draining) {
        end_client(rq, close_gently);
        return;
    }
    timer_stop(&rq->pace);
    drop_body(rq);
    http_parser_reset(rq->parser);
    enter(rq, CLIENT_IDLE, rq->front->o.idle_ms);
    if (conn_input(rq->conn).len && !rq->parsing_queued) {
        rq->parsing_queued = true;
        loop_defer(rq->front->loop, on_next_turn, rq);
    }
}

void front_abort(struct front_request *rq)
{
    assert(rq->state == CLIENT_OWNED);
    /* A missing last chunk or missing bytes tell by themselves, and what was queued still
     * arrives. An answer that ends with the connection needs a reset. */
    const bool tells = rq->chunked || rq->left > 0;
    end_client(rq, rq->started && !tells ? conn_abort : close_gently);
}

void front_reset(struct front_request *rq)
{
    assert(rq->state == CLIENT_OWNED);
    end_client(rq, conn_abort);
}

void front_reply(struct front_request *rq, int status, struct slice headers,
                 struct slice body)
{
    const bool is_head = slice_eq(front_head(rq)->method, SLICE_LIT("HEAD"));
    struct buf all = {0};
    buf_append_slice(&all, headers);
    if (!has_header(headers, SLICE_LIT("Content-Type")))
        buf_append_str(&all, "Content-Type: application/json\r\n");
    const struct front_answer a = {.status = status,
                                   .headers = buf_slice(&all),
                                   .length = (int64_t)body.len,
                                   .bodiless = is_head};
    front_start(rq, &a);
    buf_free(&all);
    front_data(rq, body);
    front_end(rq);
}

void front_error(struct front_request *rq, int status, const char *type,
                 const char *message, struct slice headers)
{
    struct buf body = {0};
    error_body(&body, status, type, message);
    front_reply(rq, status, headers, buf_slice(&body));
    buf_free(&body);
}

bool front_congested(const struct front_request *rq)
{
    return rq->congested;
}

uint64_t front_sent_bytes(const struct front_request *rq)
{
    return rq->body_sent;
}
