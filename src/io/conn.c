/* SPDX-License-Identifier: MIT */
#include "io/conn.h"

/*
 *     CONNECTING ──► SHAKING ──► OPEN ──► LINGERING ──► DEAD (freed on the next turn)
 *         └──────────┴──► FAILED ──────────────────────▲
 *
 * SHAKING is the handshake of TLS, and left out without.
 *
 * Every road leads to settle(), which alone tells the owner what has changed and then
 * decides what to wait for. What a conn_ call finds out is told through kick(), on the
 * next turn.
 *
 * An open connection waits in one of two ways:
 *
 *   reading   level-triggered EV_READ | EV_CLOSED, and EV_WRITE while output is queued.
 *             One read for each readiness: what a short read left behind wakes us again.
 *   quiet     edge-triggered EV_CLOSED | EV_WRITE, where nothing may or need be read. The
 *             peer's FIN or reset is one edge and cannot spin. EV_WRITE must be asked
 *             for: libevent tells a reset (EPOLLERR) as readable and writable, never as
 *             closed; who listens for EV_CLOSED alone is woken for ever, never called.
 *
 * Going from one to the other costs two system calls, so a pause takes effect only when
 * something arrives that cannot be used.
 */

#include <assert.h>
#include <errno.h>
#include <event2/event.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "loop_private.h"
#include "outq.h"
#include "tls_stream.h"

#define CONN_MAGIC 0x636f6e6eu
#define READ_MAX ((size_t)64 << 10)
#define SEND_MAX ((size_t)512 << 10) /* at once: a fast peer must not hold up the loop */
#define SEND_PIECES 16
#define ASK_AGAIN_MS 5

enum conn_state {
    STATE_CONNECTING,
    STATE_SHAKING,
    STATE_OPEN,
    STATE_FAILED,
    STATE_LINGERING,
    STATE_DEAD
};

struct conn {
    unsigned magic;
    enum conn_state state;
    struct loop *loop;
    int fd;
    struct tls *tls;           /* NULL: plain */
    struct tls_stream *sealed; /* from SHAKING on, where it is not plain */
    struct event *event;
    short watching; /* flags that `event` is added with, 0 when it is not */
    conn_cb cb;
    void *arg;
    struct loop_timer timer; /* connect, linger */
    uint64_t due_us;         /* connected until then */

    struct buf input;
    size_t input_max;
    struct outq output;

    bool paused, corked;
    bool fresh;       /* input grew */
    bool was_high;    /* owes CONN_DRAINED */
    bool owes_flush;  /* owes CONN_FLUSHED */
    bool kicked;      /* on_kick() is on its way */
    bool peer_closed; /* FIN or reset was noticed, though bytes may be unread */
    bool at_end;      /* nothing is left to read */
    bool broken;      /* nothing can be written */
    bool told_closed, told_ended, told_failed;
    int error;

    uint64_t bytes_in, bytes_out;
    struct addr peer;

    struct loop_orphan orphan; /* linked while lingering */
    uint64_t linger_ms;
    size_t dropped;
    bool half_closed, aborted;
};

static void on_event(evutil_socket_t fd, short what, void *arg);

/* ---- what to wait for -------------------------------------------------------------- */

static bool wants_write(const struct conn *c)
{
    return (c->output.len && !c->corked) || (c->sealed && tls_wants_write(c->sealed));
}

static bool may_read(const struct conn *c)
{
    return c->state == STATE_OPEN && !c->paused && !c->at_end &&
           buf_len(&c->input) < c->input_max;
}

static void on_kick(void *arg);

/* Has settle() run on the next turn. */
static void kick(struct conn *c)
{
    if (!c->kicked)
        loop_defer(c->loop, on_kick, c);
    c->kicked = true;
}

/* Nothing can be written any more; the first error is the one to tell. */
static void set_broken(struct conn *c, int error)
{
    if (!c->error)
        c->error = error;
    c->broken = c->peer_closed = true;
    c->was_high = c->owes_flush = false;
    outq_clear(&c->output);
    kick(c);
}

static void watch(struct conn *c, short what)
{
    if (what == c->watching)
        return;
    if (c->watching)
        event_del(c->event);
    c->watching = what;
    if (!what)
        return;
    event_assign(c->event, loop_base(c->loop), c->fd, (short)(what | EV_PERSIST),
                 on_event, c);
    if (event_add(c->event, NULL) != 0) {
        c->watching = 0;
        set_broken(c, errno);
    }
}

static void rewatch(struct conn *c)
{
    if (may_read(c))
        watch(c, EV_READ | EV_CLOSED | (wants_write(c) ? EV_WRITE : 0));
    else if (c->at_end && c->broken)
        watch(c, 0);
    else
        watch(c, (short)(EV_CLOSED | EV_WRITE | EV_ET));
}

/* ---- moving bytes ------------------------------------------------------------------ */

/* How many of the bytes the socket took. */
static size_t send_pieces(struct conn *c, struct iovec *iov, int n)
{
    const struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)n};
    ssize_t sent;
    do
        sent = c->sealed ? tls_send(c->sealed, iov, n)
                         : sendmsg(c->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent < 0 && errno != EAGAIN)
        set_broken(c, errno);
    if (sent <= 0)
        return 0;
    c->bytes_out += (uint64_t)sent;
    return (size_t)sent;
}

static void send_queued(struct conn *c)
{
    struct iovec iov[SEND_PIECES];
    size_t asked;
    if (!c->output.len || c->corked)
        return;
    const int n = outq_peek(&c->output, iov, SEND_PIECES, SEND_MAX, &asked);
    const size_t sent = send_pieces(c, iov, n);
    if (c->broken)
        return;
    outq_drop(&c->output, sent);
    if (sent == asked && c->output.len)
        kick(c); /* there is room for more, which an edge would not tell again */
}

/* Sends what a connection with an empty queue can send without a copy. */
static size_t send_at_once(struct conn *c, struct slice bytes)
{
    struct iovec iov = {.iov_len = bytes.len < SEND_MAX ? bytes.len : SEND_MAX};
    if (c->state != STATE_OPEN || c->corked || c->output.len || !bytes.len)
        return 0;
    memcpy(&iov.iov_base, &bytes.ptr, sizeof(void *)); /* the kernel only reads */
    const size_t sent = send_pieces(c, &iov, 1);
    if (sent == iov.iov_len && sent < bytes.len)
        kick(c);
    return sent;
}

static ssize_t receive(struct conn *c, void *bytes, size_t n)
{
    return c->sealed ? tls_recv(c->sealed, bytes, n)
                     : recv(c->fd, bytes, n, MSG_DONTWAIT);
}

static void take_room(struct conn *c)
{
    struct buf *spare = loop_spare(c->loop);
    if (c->input.data)
        return;
    c->input = *spare;
    *spare = (struct buf){0};
}

/* Who has nothing to be read needs none: most connections, most of the time. */
static void give_room(struct conn *c)
{
    struct buf *spare = loop_spare(c->loop);
    if (buf_len(&c->input) || !c->input.data)
        return;
    if (spare->data)
        buf_free(&c->input);
    else
        *spare = c->input;
    c->input = (struct buf){0};
}

static void read_once(struct conn *c)
{
    take_room(c);
    const size_t room = c->input_max - buf_len(&c->input);
    const size_t asked = room < READ_MAX ? room : READ_MAX;
    const ssize_t n = receive(c, buf_reserve(&c->input, asked), asked);
    if (n > 0) {
        buf_commit(&c->input, (size_t)n);
        c->bytes_in += (uint64_t)n;
        c->fresh = true;
        /* Behind a FIN no more can come, so a short read was the last; of TLS it was a
         * record, and only its own end is one. */
        c->at_end = c->peer_closed && (size_t)n < asked && !c->sealed;
    } else if (n == 0) {
        c->peer_closed = c->at_end = true;
    } else if (errno == EAGAIN) {
        c->at_end = c->broken;
    } else if (errno != EINTR) {
        set_broken(c, errno);
        c->at_end = true;
    }
}

/* While nothing is read a reset shows only here. */
static void look_for_error(struct conn *c)
{
    int error = 0;
    socklen_t len = sizeof(error);
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error)
        set_broken(c, error);
}

/* ---- telling the owner ------------------------------------------------------------- */

/* False where the owner has closed the connection. */
static bool tell(struct conn *c, enum conn_event event)
{
    c->cb(c->arg, c, event);
    return c->state == STATE_OPEN;
}

static bool once(bool *told)
{
    const bool first = !*told;
    *told = true;
    return first;
}

/* Data first; the close as soon as no more data can be had; the end behind all data. */
static bool tell_input(struct conn *c)
{
    if (c->fresh) {
        c->fresh = false;
        if (!tell(c, CONN_DATA))
            return false;
    }
    if (c->peer_closed && !may_read(c) && once(&c->told_closed) && !tell(c, CONN_CLOSED))
        return false;
    if (!c->told_closed || !c->at_end || c->paused)
        return true;
    if (once(&c->told_ended)) {
        c->told_failed = c->broken;
        return tell(c, CONN_ENDED);
    }
    return !c->broken || !once(&c->told_failed) || tell(c, CONN_FAILED);
}

static bool tell_output(struct conn *c)
{
    if (c->was_high && c->output.len <= CONN_OUTPUT_HIGH / 2) {
        c->was_high = false;
        if (!tell(c, CONN_DRAINED))
            return false;
    }
    if (c->owes_flush && !c->output.len) {
        c->owes_flush = false;
        if (!tell(c, CONN_FLUSHED))
            return false;
    }
    return true;
}

/* There may be something to read that the kernel would not wake us for: whether it does
 * for what is broken depends on what broke it, and it does not know of the rest of a
 * record. */
static bool reads_unasked(const struct conn *c)
{
    return may_read(c) && (c->broken || (c->sealed && tls_pending(c->sealed)));
}

static void settle(struct conn *c)
{
    if (!tell_input(c) || !tell_output(c))
        return;
    give_room(c);
    if (reads_unasked(c))
        kick(c);
    rewatch(c);
}

/* ---- connecting -------------------------------------------------------------------- */

static void fail(struct conn *c, int error)
{
    c->state = STATE_FAILED;
    c->error = error;
    c->broken = true;
    outq_clear(&c->output);
    timer_stop(&c->timer);
    watch(c, 0);
    c->cb(c->arg, c, CONN_FAILED);
}

/* A UNIX socket whose queue is full says so at once, and tells nobody when there is room:
 * it is asked again every ASK_AGAIN_MS until the deadline. */
static void try_connect(struct conn *c, uint64_t left_ms)
{
    const struct addr *to = &c->peer;
    const int rc = connect(c->fd, (const struct sockaddr *)&to->sa, to->len);
    const int error = rc == 0 ? 0 : errno;
    const bool full = error == EAGAIN;
    timer_start(&c->timer, full && left_ms > ASK_AGAIN_MS ? ASK_AGAIN_MS : left_ms);
    if (error && error != EINPROGRESS && error != EINTR && !full)
        set_broken(c, error);
    else if (!full)
        watch(c, EV_WRITE); /* at once, where it is connected already */
}

static void on_connect_timer(void *arg)
{
    struct conn *c = arg;
    const uint64_t now_us = loop_now_us(c->loop);
    if (now_us < c->due_us)
        try_connect(c, (c->due_us - now_us + 999) / 1000);
    else
        fail(c, ETIMEDOUT);
}

static void open_up(struct conn *c)
{
    timer_stop(&c->timer);
    c->state = STATE_OPEN;
    send_queued(c);
    if (tell(c, CONN_CONNECTED))
        settle(c);
}

static void shake(struct conn *c)
{
    if (tls_handshake(c->sealed) == 0)
        open_up(c);
    else if (errno == EAGAIN)
        watch(c, tls_wants_write(c->sealed) ? EV_WRITE : EV_READ);
    else
        fail(c, errno);
}

static void on_connected(struct conn *c)
{
    int error = 0;
    socklen_t len = sizeof(error);
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0)
        error = errno;
    if (error) {
        fail(c, error);
    } else if (c->tls) {
        c->state = STATE_SHAKING;
        c->sealed = tls_begin(c->tls, c->fd);
        shake(c);
    } else {
        open_up(c);
    }
}

/* ---- lingering --------------------------------------------------------------------- */

static void on_linger_timeout(void *arg)
{
    conn_close(arg);
}

static void drop_orphan(struct loop_orphan *o)
{
    conn_close(LIST_ENTRY(o, struct conn, orphan));
}

static void drop_input(struct conn *c)
{
    char bytes[READ_MAX];
    const ssize_t n = recv(c->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (n > 0)
        c->dropped += (size_t)n;
    else if (n == 0)
        c->at_end = true;
    else if (errno != EAGAIN && errno != EINTR)
        set_broken(c, errno);
}

static void linger(struct conn *c)
{
    const uint64_t before = c->bytes_out;
    send_queued(c);
    if (!c->output.len && !c->half_closed) {
        if (c->sealed)
            tls_say_end(c->sealed);
        shutdown(c->fd, SHUT_WR);
        c->half_closed = true;
        timer_start(&c->timer, c->linger_ms);
    } else if (c->bytes_out > before) {
        timer_start(&c->timer, c->linger_ms);
    }
    if (c->broken || c->dropped > CONN_LINGER_MAX || (c->half_closed && c->at_end))
        conn_close(c);
    else
        watch(c, (c->at_end ? 0 : EV_READ) | (c->output.len ? EV_WRITE : 0));
}

void conn_close_gently(struct conn *c, uint64_t linger_ms)
{
    assert(c->magic == CONN_MAGIC && c->state <= STATE_FAILED);
    if (c->state != STATE_OPEN || c->broken) {
        conn_close(c);
        return;
    }
    outq_own(&c->output);
    buf_free(&c->input);
    c->state = STATE_LINGERING;
    c->corked = false;
    c->linger_ms = linger_ms;
    loop_adopt(c->loop, &c->orphan, CONN_LINGERING);
    timer_fini(&c->timer);
    timer_init(&c->timer, c->loop, on_linger_timeout, c);
    timer_start(&c->timer, linger_ms);
    linger(c);
}

/* ---- from the loop ----------------------------------------------------------------- */

static void on_open_event(struct conn *c, short what)
{
    if (what & EV_CLOSED)
        c->peer_closed = true;
    if (what & EV_WRITE)
        send_queued(c);
    if (!may_read(c))
        look_for_error(c);
    else if ((what & (EV_READ | EV_CLOSED)) || (c->sealed && tls_wants_write(c->sealed)))
        read_once(c);
    settle(c);
}

static void on_event(evutil_socket_t fd, short what, void *arg)
{
    struct conn *c = arg;
    assert(c->magic == CONN_MAGIC && c->fd == fd);
    switch (c->state) {
    case STATE_CONNECTING:
        on_connected(c);
        break;
    case STATE_SHAKING:
        shake(c);
        break;
    case STATE_OPEN:
        on_open_event(c, what);
        break;
    case STATE_LINGERING:
        if (what & EV_READ)
            drop_input(c);
        linger(c);
        break;
    case STATE_FAILED: /* neither is watched */
    case STATE_DEAD:
        break;
    }
}

static void on_kick(void *arg)
{
    struct conn *c = arg;
    assert(c->magic == CONN_MAGIC);
    c->kicked = false;
    switch (c->state) {
    case STATE_CONNECTING: /* connect() refused at once */
    case STATE_SHAKING:
        fail(c, c->error);
        break;
    case STATE_OPEN:
        send_queued(c);
        if (reads_unasked(c))
            read_once(c);
        settle(c);
        break;
    case STATE_LINGERING:
        linger(c);
        break;
    case STATE_FAILED:
    case STATE_DEAD:
        break;
    }
}

/* ---- life -------------------------------------------------------------------------- */

static struct conn *new_conn(struct loop *l, int fd, conn_cb cb, void *arg)
{
    const int on = 1;
    assert(cb);
    struct conn *c = mem_zalloc(sizeof(*c));
    c->magic = CONN_MAGIC;
    c->loop = l;
    c->fd = fd;
    c->cb = cb;
    c->arg = arg;
    c->input_max = CONN_INPUT_MAX;
    c->event = event_new(loop_base(l), fd, 0, on_event, c);
    outq_init(&c->output);
    list_init(&c->orphan.link);
    c->orphan.drop = drop_orphan;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); /* fails on UNIX sockets */
    return c;
}

struct conn *conn_accepted(struct loop *l, int fd, conn_cb cb, void *arg)
{
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof(sa);
    assert(fd >= 0);
    struct conn *c = new_conn(l, fd, cb, arg);
    c->state = STATE_OPEN;
    if (getpeername(fd, (struct sockaddr *)&sa, &len) == 0)
        addr_from_sockaddr(&c->peer, (const struct sockaddr *)&sa, len);
    rewatch(c);
    return c;
}

struct conn *conn_connect(struct loop *l, const struct addr *to, uint64_t timeout_ms,
                          conn_cb cb, void *arg)
{
    return conn_connect_tls(l, to, NULL, timeout_ms, cb, arg);
}

struct conn *conn_connect_tls(struct loop *l, const struct addr *to, struct tls *tls,
                              uint64_t timeout_ms, conn_cb cb, void *arg)
{
    const int fd =
        socket(to->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const int error = fd < 0 ? errno : 0;
    struct conn *c = new_conn(l, fd, cb, arg);
    c->state = STATE_CONNECTING;
    c->peer = *to;
    c->tls = tls;
    timer_init(&c->timer, l, on_connect_timer, c);
    c->due_us = loop_now_us(l) + timeout_ms * 1000;
    if (error)
        set_broken(c, error);
    else
        try_connect(c, timeout_ms);
    return c;
}

static void free_conn(void *arg)
{
    struct conn *c = arg;
    c->magic = 0;
    free(c);
}

/* Calls that kick() has deferred stand before this one, so free_conn() is the last. */
void conn_close(struct conn *c)
{
    if (!c)
        return;
    assert(c->magic == CONN_MAGIC && c->state != STATE_DEAD);
    c->state = STATE_DEAD;
    loop_disown(c->loop, &c->orphan);
    timer_fini(&c->timer);
    event_free(c->event);
    if (c->sealed && !c->aborted && !c->half_closed)
        tls_say_end(c->sealed);
    tls_end(c->sealed);
    if (c->fd >= 0)
        close(c->fd);
    outq_clear(&c->output);
    buf_free(&c->input);
    loop_defer(c->loop, free_conn, c);
}

void conn_abort(struct conn *c)
{
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    c->aborted = true;
    conn_close(c);
}

void conn_set_cb(struct conn *c, conn_cb cb, void *arg)
{
    assert(c->magic == CONN_MAGIC && cb);
    c->cb = cb;
    c->arg = arg;
}

/* ---- the owner's side -------------------------------------------------------------- */

struct slice conn_input(const struct conn *c)
{
    assert(c->magic == CONN_MAGIC && c->state != STATE_DEAD);
    return buf_slice(&c->input);
}

/* Reading may have become possible, and the end may be told that a pause held back. */
static void read_on(struct conn *c)
{
    if (may_read(c) && !(c->watching & EV_READ))
        rewatch(c);
    if ((c->peer_closed && !c->told_ended) || reads_unasked(c))
        kick(c);
}

void conn_consume(struct conn *c, size_t n)
{
    assert(c->magic == CONN_MAGIC && c->state != STATE_DEAD);
    buf_consume(&c->input, n);
    read_on(c);
}

void conn_set_input_max(struct conn *c, size_t bytes)
{
    assert(bytes > 0);
    c->input_max = bytes;
    read_on(c);
}

void conn_pause(struct conn *c)
{
    c->paused = true;
}

void conn_resume(struct conn *c)
{
    c->paused = false;
    read_on(c);
}

static bool takes_output(const struct conn *c)
{
    assert(c->magic == CONN_MAGIC && c->state <= STATE_FAILED);
    return !c->broken;
}

/* Bytes were left over where the socket did not take all. */
static void after_write(struct conn *c)
{
    if (c->broken || c->corked || !c->output.len)
        return;
    c->owes_flush = true;
    c->was_high |= c->output.len > CONN_OUTPUT_HIGH;
    if (c->state == STATE_OPEN)
        rewatch(c);
}

void conn_write(struct conn *c, struct slice bytes)
{
    if (!takes_output(c))
        return;
    const size_t sent = send_at_once(c, bytes);
    if (!c->broken)
        outq_copy(&c->output, slice_make(bytes.ptr + sent, bytes.len - sent));
    after_write(c);
}

void conn_write_borrowed(struct conn *c, struct slice bytes)
{
    if (!takes_output(c))
        return;
    const size_t sent = send_at_once(c, bytes);
    if (c->broken)
        return;
    outq_borrow(&c->output, slice_make(bytes.ptr + sent, bytes.len - sent));
    c->owes_flush = true;
    if (!c->output.len)
        kick(c);
    after_write(c);
}

void conn_cork(struct conn *c)
{
    c->corked = true;
}

void conn_uncork(struct conn *c)
{
    c->corked = false;
    if (c->state == STATE_OPEN)
        send_queued(c);
    if (c->owes_flush && !c->output.len)
        kick(c);
    after_write(c);
}

size_t conn_output_len(const struct conn *c)
{
    return c->output.len;
}

bool conn_output_high(const struct conn *c)
{
    return c->output.len > CONN_OUTPUT_HIGH;
}

bool conn_stale(const struct conn *c)
{
    char byte;
    if (c->state != STATE_OPEN || c->peer_closed || buf_len(&c->input))
        return true;
    if (c->sealed)
        return !tls_is_quiet(c->sealed);
    const ssize_t n = recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n >= 0 || (errno != EAGAIN && errno != EINTR);
}

int conn_error(const struct conn *c)
{
    return c->error;
}

const char *conn_why(const struct conn *c)
{
    if (c->state == STATE_FAILED && c->error == ETIMEDOUT && c->sealed)
        return "the TLS handshake took too long (does it speak http:// there?)";
    if (c->error && c->sealed && tls_why(c->sealed)[0])
        return tls_why(c->sealed);
    return c->error ? strerror(c->error) : "";
}

const char *conn_peer(const struct conn *c)
{
    return c->peer.text;
}

const struct addr *conn_peer_addr(const struct conn *c)
{
    return &c->peer;
}

uint64_t conn_bytes_in(const struct conn *c)
{
    return c->bytes_in;
}

uint64_t conn_bytes_out(const struct conn *c)
{
    return c->bytes_out;
}

uint64_t conn_bytes_taken(const struct conn *c)
{
    int queued = 0;
    if (c->fd < 0 || ioctl(c->fd, SIOCOUTQ, &queued) != 0 || queued < 0)
        queued = 0;
    return (uint64_t)queued < c->bytes_out ? c->bytes_out - (uint64_t)queued : 0;
}
