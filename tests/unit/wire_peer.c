/* SPDX-License-Identifier: MIT */
#include "wire_peer.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cmocka_all.h"
#include "io_rig.h"

static void on_said(void *arg)
{
    struct peer *p = arg;
    p->says = true;
    loop_stop(p->loop);
}

static void on_done(void *arg)
{
    struct peer *p = arg;
    p->done = true;
    loop_stop(p->loop);
}

static bool take(struct peer *p, int fd)
{
    p->fd = fd;
    if (fd >= 0)
        p->fds[p->n_fds++] = fd;
    return fd >= 0;
}

static bool connect_out(struct peer *p)
{
    const int fd = socket(p->at.sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return take(p, fd) && connect(fd, (const struct sockaddr *)&p->at.sa, p->at.len) == 0;
}

/* One byte at a time, so that nothing behind what is waited for is taken. */
static bool read_head(struct peer *p)
{
    const size_t before = buf_len(&p->seen);
    for (;;) {
        char c;
        if (recv(p->fd, &c, 1, 0) != 1)
            return false;
        buf_append_char(&p->seen, c);
        const struct slice s = buf_slice(&p->seen);
        if (s.len - before >= 4 && memcmp(s.ptr + s.len - 4, "\r\n\r\n", 4) == 0)
            return true;
    }
}

static bool read_bytes(struct peer *p, size_t n)
{
    while (n) {
        const size_t part = n < 65536 ? n : 65536;
        const ssize_t got = recv(p->fd, buf_reserve(&p->seen, part), part, 0);
        if (got <= 0)
            return false;
        buf_commit(&p->seen, (size_t)got);
        n -= (size_t)got;
    }
    return true;
}

static bool read_end(struct peer *p, bool reset)
{
    errno = 0;
    read_bytes(p, SIZE_MAX);
    return reset ? errno == ECONNRESET : errno == 0;
}

static bool send_text(struct peer *p, const char *text)
{
    for (size_t left = strlen(text); left;) {
        const ssize_t n = send(p->fd, text, left, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        text += n;
        left -= (size_t)n;
    }
    return true;
}

/* A third of a second without room is an end: nobody reads at the other side. */
static void flood(struct peer *p, const char *text, size_t n)
{
    struct pollfd ready = {.fd = p->fd, .events = POLLOUT};
    for (size_t i = 0; i < n && poll(&ready, 1, 300) == 1; i++)
        if (send(p->fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            break;
}

/* -1: nobody has connected, and nobody will. */
static int accept_one(struct peer *p)
{
    struct pollfd v[] = {{.fd = p->listening, .events = POLLIN},
                         {.fd = p->stop, .events = POLLIN}};
    poll(v, 2, -1);
    return v[0].revents ? accept(p->listening, NULL, NULL) : -1;
}

static void drop(struct peer *p)
{
    for (size_t i = 0; i < p->n_fds; i++)
        if (p->fds[i] == p->fd)
            p->fds[i] = -1;
    close(p->fd);
}

static bool run_step(struct peer *p, const struct peer_step *s)
{
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};
    switch (s->op) {
    case PEER_ACCEPT:
        return take(p, accept_one(p));
    case PEER_CONNECT:
        return connect_out(p);
    case PEER_READ_HEAD:
        return read_head(p);
    case PEER_READ:
        return read_bytes(p, s->n);
    case PEER_READ_END:
    case PEER_READ_RESET:
        return read_end(p, s->op == PEER_READ_RESET);
    case PEER_SEND:
        return send_text(p, s->text);
    case PEER_FLOOD:
        flood(p, s->text, s->n);
        return true;
    case PEER_FIN:
        return shutdown(p->fd, SHUT_WR) == 0;
    case PEER_RESET:
        setsockopt(p->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        drop(p);
        return true;
    case PEER_CLOSE:
        drop(p);
        return true;
    case PEER_SAY:
        loop_post(p->loop, on_said, p);
        return true;
    case PEER_TELL:
        return sem_post(&p->told) == 0;
    case PEER_WAIT:
        return sem_wait(&p->go) == 0;
    case PEER_END:
        break;
    }
    return true;
}

static void *run(void *arg)
{
    static const char *const names[] = {"end",   "accept",   "connect",    "read head",
                                        "read",  "read end", "read reset", "send",
                                        "flood", "fin",      "close",      "reset",
                                        "say",   "tell",     "wait"};
    struct peer *p = arg;
    for (const struct peer_step *s = p->script; s->op != PEER_END && !p->failed; s++)
        if (!run_step(p, s))
            p->failed = names[s->op];
    for (size_t i = 0; i < p->n_fds; i++)
        if (p->fds[i] >= 0)
            close(p->fds[i]);
    loop_post(p->loop, on_done, p);
    return NULL;
}

void peer_listen(struct peer *p, struct loop *l)
{
    struct sockaddr_storage sa;
    socklen_t len = sizeof(sa);
    unsigned short port;
    memset(p, 0, sizeof(*p));
    p->loop = l;
    p->listening = rig_listen(8, &port);
    assert_int_equal(getsockname(p->listening, (struct sockaddr *)&sa, &len), 0);
    addr_from_sockaddr(&p->at, (const struct sockaddr *)&sa, len);
}

void peer_client(struct peer *p, struct loop *l, const struct addr *to)
{
    memset(p, 0, sizeof(*p));
    p->loop = l;
    p->listening = -1;
    p->at = *to;
}

void peer_start(struct peer *p, const struct peer_step *script)
{
    assert_false(p->started);
    size_t n = 0;
    while (script[n].op != PEER_END)
        n++;
    assert_true(n < PEER_STEPS);
    memcpy(p->script, script, n * sizeof(*script));
    p->started = true;
    sem_init(&p->go, 0, 0);
    sem_init(&p->told, 0, 0);
    p->stop = eventfd(0, EFD_CLOEXEC);
    assert_true(p->stop >= 0);
    assert_int_equal(pthread_create(&p->thread, NULL, run, p), 0);
}

void peer_go(struct peer *p)
{
    sem_post(&p->go);
}

void peer_await(struct peer *p)
{
    sem_wait(&p->told);
}

void peer_run(struct peer *p)
{
    p->says = false;
    while (!p->says && !p->done)
        loop_run(p->loop);
}

/* What a test that failed has left waiting goes on: nobody will tell it to. */
static void stop(struct peer *p)
{
    const uint64_t one = 1;
    assert_int_equal(write(p->stop, &one, sizeof(one)), sizeof(one));
    for (int i = 0; i < PEER_STEPS; i++)
        sem_post(&p->go);
}

void peer_finish(struct peer *p)
{
    if (p->started)
        stop(p);
    while (p->started && !p->done)
        loop_run(p->loop);
    if (p->started) {
        pthread_join(p->thread, NULL);
        sem_destroy(&p->go);
        sem_destroy(&p->told);
        close(p->stop);
    }
    if (p->listening >= 0)
        close(p->listening);
    buf_free(&p->seen);
    if (p->failed)
        fail_msg("the peer could not: %s", p->failed);
}

const char *peer_seen(struct peer *p)
{
    buf_append_char(&p->seen, '\0');
    p->seen.end--;
    return buf_slice(&p->seen).ptr;
}
