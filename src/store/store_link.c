/* SPDX-License-Identifier: MIT */
#include "store_link.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/mem.h"
#include "io/conn.h"

#define INPUT_MAX ((size_t)256 << 10)
#define SLACK_BYTES ((uint64_t)64 << 10) /* of an answer, around its value */

enum link_state { CLOSED, RESOLVING, CONNECTING, GREETING, READY };

/* A command that was sent and not yet answered. */
struct exchange {
    struct list link;
    uint64_t sent_us;
    uint64_t moved; /* bytes moved before it was sent */
    uint64_t end;   /* where it ends among all bytes written */
    uint64_t max_bytes;
    store_link_cb cb;
    void *arg;
};

struct store_link {
    struct store_link_options o;
    enum link_state state;
    uint64_t n_opened; /* tells one connection from the next */
    struct lookup *lookup;
    struct conn *conn;
    redisReader *reader;
    struct list exchanges;
    struct loop_timer deadline;
    uint64_t written;  /* bytes handed to the connection */
    uint64_t received; /* and bytes that came */
    uint64_t answered; /* of these, the bytes before the answer that is coming in */
};

static void disconnect(struct store_link *l);
static void answer_none(struct store_link *l);

/* The owner knows before those who wait for answers: they may ask again at once. */
static void fail(struct store_link *l, enum store_redis_error kind, const char *why)
{
    char text[200];
    snprintf(text, sizeof(text), "%s", why); /* it may be the reader's */
    disconnect(l);
    l->o.on_failed(l->o.arg, kind, text);
    answer_none(l);
}

/* ---- commands ---------------------------------------------------------------------- */

void store_command_start(struct store_command *c, const char *name, unsigned n_words)
{
    buf_printf(&c->bytes, "*%u\r\n", n_words + 1);
    store_command_word(c, slice_of(name));
}

void store_command_word(struct store_command *c, struct slice word)
{
    buf_printf(&c->bytes, "$%zu\r\n", word.len);
    buf_append_slice(&c->bytes, word);
    buf_append(&c->bytes, "\r\n", 2);
}

void store_command_number(struct store_command *c, uint64_t number)
{
    char text[24];
    const int n = snprintf(text, sizeof(text), "%llu", (unsigned long long)number);
    store_command_word(c, slice_make(text, (size_t)n));
}

void store_command_body(struct store_command *c, struct slice body)
{
    buf_printf(&c->bytes, "$%zu\r\n", body.len);
    c->body = body;
}

/* ---- deadlines --------------------------------------------------------------------- */

static uint64_t moved(const struct store_link *l)
{
    const uint64_t waiting = l->conn ? conn_output_len(l->conn) : 0;
    return l->written - waiting + l->received;
}

static uint64_t due_us(const struct store_link *l, const struct exchange *x)
{
    const double spans = (double)(moved(l) - x->moved) / (double)STORE_LINK_SPAN_BYTES;
    return x->sent_us + (uint64_t)((double)l->o.timeout_ms * 1e3 * (1 + spans));
}

static struct exchange *oldest(const struct store_link *l)
{
    return list_empty(&l->exchanges)
               ? NULL
               : LIST_ENTRY(l->exchanges.next, struct exchange, link);
}

static void watch_oldest(struct store_link *l)
{
    const struct exchange *x = oldest(l);
    if (!x) {
        timer_stop(&l->deadline);
        return;
    }
    const uint64_t now_us = loop_now_us(l->o.loop), due = due_us(l, x);
    timer_start(&l->deadline, due > now_us ? (due - now_us) / 1000 + 1 : 0);
}

static void on_deadline(void *arg)
{
    struct store_link *l = arg;
    if (due_us(l, oldest(l)) > loop_now_us(l->o.loop))
        watch_oldest(l);
    else
        fail(l, STORE_REDIS_TIMEOUT, "its answer is late");
}

/* ---- sending ----------------------------------------------------------------------- */

static void send_command(struct store_link *l, struct store_command *c,
                         uint64_t max_bytes, store_link_cb cb, void *arg)
{
    struct exchange *x = mem_zalloc(sizeof(*x));
    x->sent_us = loop_now_us(l->o.loop);
    x->moved = moved(l);
    x->max_bytes = max_bytes + SLACK_BYTES;
    x->cb = cb;
    x->arg = arg;
    l->written += buf_len(&c->bytes);
    conn_cork(l->conn);
    conn_write(l->conn, buf_slice(&c->bytes));
    if (c->body.ptr) {
        conn_write_borrowed(l->conn, c->body);
        conn_write(l->conn, SLICE_LIT("\r\n"));
        l->written += c->body.len + 2;
    }
    conn_uncork(l->conn);
    buf_free(&c->bytes);
    x->end = l->written;
    const bool first = list_empty(&l->exchanges);
    list_push_back(&l->exchanges, &x->link);
    if (first)
        watch_oldest(l);
}

void store_link_send(struct store_link *l, struct store_command *c, uint64_t max_bytes,
                     store_link_cb cb, void *arg)
{
    assert(l->state == READY);
    send_command(l, c, max_bytes, cb, arg);
}

void store_link_reject(struct store_link *l, const char *why)
{
    if (l->state != CLOSED)
        fail(l, STORE_REDIS_PROTOCOL, why);
}

/* ---- greeting ---------------------------------------------------------------------- */

/* Each word of the greeting is answered with a status. */
static void on_greeted(void *arg, struct redisReply *answer)
{
    struct store_link *l = arg;
    if (!answer)
        return;
    const bool knows_us =
        answer->type != REDIS_REPLY_ERROR ||
        (strncmp(answer->str, "WRONGPASS", 9) && strncmp(answer->str, "NOAUTH", 6) &&
         strncmp(answer->str, "NOPERM", 6) && !strstr(answer->str, "password"));
    if (answer->type == REDIS_REPLY_ERROR) {
        fail(l, knows_us ? STORE_REDIS_REFUSED : STORE_REDIS_AUTH, answer->str);
    } else if (answer->type != REDIS_REPLY_STATUS) {
        fail(l, STORE_REDIS_PROTOCOL, "it answers a greeting with something else");
    } else if (list_empty(&l->exchanges)) {
        l->state = READY;
        l->o.on_ready(l->o.arg);
    }
    freeReplyObject(answer);
}

static void say(struct store_link *l, struct store_command *c)
{
    send_command(l, c, 0, on_greeted, l);
}

static void greet(struct store_link *l)
{
    struct store_command auth = {0}, select = {0}, ping = {0};
    const bool user = l->o.user && *l->o.user;
    l->state = GREETING;
    if (l->o.password && *l->o.password) {
        store_command_start(&auth, "AUTH", user ? 2 : 1);
        if (user)
            store_command_word(&auth, slice_of(l->o.user));
        store_command_word(&auth, slice_of(l->o.password));
        say(l, &auth);
    }
    if (l->o.db) {
        store_command_start(&select, "SELECT", 1);
        store_command_number(&select, l->o.db);
        say(l, &select);
    }
    store_command_start(&ping, "PING", 0);
    say(l, &ping);
}

/* ---- receiving --------------------------------------------------------------------- */

/* False where the link has ended. */
static bool hand_out(struct store_link *l, struct redisReply *answer)
{
    struct exchange *x = oldest(l);
    const uint64_t opened = l->n_opened;
    if (!x || x->end > l->written - conn_output_len(l->conn)) {
        freeReplyObject(answer);
        fail(l, STORE_REDIS_PROTOCOL, "it answers what was not asked");
        return false;
    }
    list_del(&x->link);
    l->answered = l->received - (l->reader->len - l->reader->pos);
    watch_oldest(l);
    x->cb(x->arg, answer);
    free(x);
    return l->n_opened == opened && l->state != CLOSED;
}

static void on_data(struct store_link *l)
{
    const struct slice in = conn_input(l->conn);
    void *answer = NULL;
    l->received += in.len;
    redisReaderFeed(l->reader, in.ptr, in.len);
    conn_consume(l->conn, in.len);
    for (;;) {
        if (redisReaderGetReply(l->reader, &answer) != REDIS_OK) {
            fail(l, STORE_REDIS_PROTOCOL, l->reader->errstr);
            return;
        }
        if (!answer)
            break;
        if (!hand_out(l, answer))
            return;
    }
    const struct exchange *x = oldest(l);
    if (l->received - l->answered > (x ? x->max_bytes : 0))
        fail(l, STORE_REDIS_PROTOCOL, "it sends more than was asked for");
}

static void on_conn(void *arg, struct conn *c, enum conn_event event)
{
    struct store_link *l = arg;
    const int error = conn_error(c);
    switch (event) {
    case CONN_CONNECTED:
        greet(l);
        break;
    case CONN_DATA:
        on_data(l);
        break;
    case CONN_FAILED:
        fail(l, l->state == CONNECTING ? STORE_REDIS_CONNECT : STORE_REDIS_CLOSED,
             error ? strerror(error) : "the connection was closed");
        break;
    case CONN_CLOSED:
        fail(l, STORE_REDIS_CLOSED, error ? strerror(error) : "it closed the connection");
        break;
    case CONN_DRAINED:
    case CONN_FLUSHED:
    case CONN_ENDED:
        break;
    }
}

/* ---- life -------------------------------------------------------------------------- */

/* Looks a name up; lives on where the link does not wait for it any more. */
struct lookup {
    struct store_link *link;
    char *where;
    struct addr addr;
    struct err err;
};

static void run_lookup(void *arg)
{
    struct lookup *k = arg;
    addr_resolve(&k->addr, k->where, &k->err);
}

static void on_looked_up(void *arg)
{
    struct lookup *k = arg;
    struct store_link *l = k->link;
    if (l) {
        l->lookup = NULL;
        if (k->err.code) {
            fail(l, STORE_REDIS_CONNECT, k->err.text);
        } else {
            l->state = CONNECTING;
            l->conn = conn_connect(l->o.loop, &k->addr, l->o.timeout_ms, on_conn, l);
            conn_set_input_max(l->conn, INPUT_MAX);
        }
    }
    free(k->where);
    free(k);
}

void store_link_open(struct store_link *l)
{
    assert(l->state == CLOSED);
    l->state = RESOLVING;
    l->n_opened++;
    l->written = l->received = l->answered = 0;
    l->reader = redisReaderCreate();
    l->lookup = mem_zalloc(sizeof(*l->lookup));
    l->lookup->link = l;
    l->lookup->where = mem_strdup(l->o.where);
    workers_submit(l->o.workers, run_lookup, on_looked_up, l->lookup);
}

static void disconnect(struct store_link *l)
{
    l->state = CLOSED;
    if (l->lookup)
        l->lookup->link = NULL;
    l->lookup = NULL;
    conn_close(l->conn);
    l->conn = NULL;
    redisReaderFree(l->reader);
    l->reader = NULL;
    timer_stop(&l->deadline);
}

static void answer_none(struct store_link *l)
{
    while (!list_empty(&l->exchanges)) {
        struct exchange *x = oldest(l);
        list_del(&x->link);
        x->cb(x->arg, NULL);
        free(x);
    }
}

void store_link_close(struct store_link *l)
{
    if (l->state == CLOSED)
        return;
    disconnect(l);
    answer_none(l);
}

struct store_link *store_link_new(const struct store_link_options *o)
{
    struct store_link *l = mem_zalloc(sizeof(*l));
    l->o = *o;
    list_init(&l->exchanges);
    timer_init(&l->deadline, o->loop, on_deadline, l);
    return l;
}

void store_link_free(struct store_link *l)
{
    if (!l)
        return;
    store_link_close(l);
    timer_fini(&l->deadline);
    free(l);
}

bool store_link_ready(const struct store_link *l)
{
    return l->state == READY;
}
