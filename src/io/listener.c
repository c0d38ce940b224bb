/* SPDX-License-Identifier: MIT */
#include "io/listener.h"

/*
 *     open ──► ready ──► accept4() until nobody waits, BURST at most ──► callback each
 *                │ no descriptors left
 *                ▼
 *              pause ── PAUSE_MS ──► ready
 *
 * A listening socket stays readable while somebody waits. Where accept4() fails for want
 * of descriptors it would wake the loop for ever, hence the pause.
 */

#include <assert.h>
#include <errno.h>
#include <event2/event.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "loop_private.h"

#define LISTENER_MAGIC 0x6c737472u
#define BURST 64
#define PAUSE_MS 100

struct listener {
    unsigned magic;
    struct loop *loop;
    int fd; /* -1 once closed */
    struct event *event;
    struct loop_timer pause;
    listener_cb cb;
    void *arg;
    struct addr addr;
    bool starved; /* told in the log, until an accept succeeds again */
};

/* ---- accepting --------------------------------------------------------------------- */

static void on_pause_over(void *arg)
{
    struct listener *ln = arg;
    event_add(ln->event, NULL);
}

static void pause_accepting(struct listener *ln, int error)
{
    event_del(ln->event);
    timer_start(&ln->pause, PAUSE_MS);
    if (!ln->starved)
        log_event(LOG_WARN, "accept-paused", "listen", "%s", ln->addr.text, "errno", "%s",
                  strerror(error), NULL);
    ln->starved = true;
}

static bool is_starvation(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

static void on_ready(evutil_socket_t fd, short what, void *arg)
{
    struct listener *ln = arg;
    (void)what;
    assert(ln->magic == LISTENER_MAGIC);
    for (int i = 0; i < BURST && ln->fd >= 0; i++) {
        const int client = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (client >= 0) {
            ln->starved = false;
            ln->cb(ln->arg, client);
        } else if (errno == EAGAIN) {
            return;
        } else if (is_starvation(errno)) {
            pause_accepting(ln, errno);
            return;
        } /* else the client has gone before it was accepted: next */
    }
}

/* ---- opening ----------------------------------------------------------------------- */

static const char *unix_path(const struct addr *a)
{
    return ((const struct sockaddr_un *)(const void *)&a->sa)->sun_path;
}

/* Removes a socket file that its process has left behind; never anything else. */
static void remove_stale(const struct addr *at)
{
    struct stat st;
    if (lstat(unix_path(at), &st) != 0 || !S_ISSOCK(st.st_mode))
        return;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    if (connect(fd, (const struct sockaddr *)&at->sa, at->len) != 0 &&
        errno == ECONNREFUSED)
        unlink(unix_path(at));
    close(fd);
}

static int bind_and_listen(int fd, const struct addr *at, struct addr *real)
{
    const int on = 1, off = 0;
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof(sa);
    if (at->sa.ss_family == AF_UNIX)
        remove_stale(at);
    else
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (at->sa.ss_family == AF_INET6) /* "[::]" is IPv4 as well, on every system */
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (bind(fd, (const struct sockaddr *)&at->sa, at->len) != 0 ||
        listen(fd, SOMAXCONN) != 0 || getsockname(fd, (struct sockaddr *)&sa, &len) != 0)
        return -1;
    addr_from_sockaddr(real, (const struct sockaddr *)&sa, len);
    return 0;
}

struct listener *listener_open(struct loop *l, const struct addr *at, listener_cb cb,
                               void *arg, struct err *e)
{
    struct addr real;
    assert(cb);
    const int fd =
        socket(at->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind_and_listen(fd, at, &real) != 0) {
        err_errno(e, "cannot listen on %s", at->text);
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    struct listener *ln = mem_zalloc(sizeof(*ln));
    ln->magic = LISTENER_MAGIC;
    ln->loop = l;
    ln->fd = fd;
    ln->cb = cb;
    ln->arg = arg;
    ln->addr = real;
    ln->event = event_new(loop_base(l), fd, EV_READ | EV_PERSIST, on_ready, ln);
    timer_init(&ln->pause, l, on_pause_over, ln);
    event_add(ln->event, NULL);
    return ln;
}

/* ---- closing ----------------------------------------------------------------------- */

/* on_ready() may be in the middle of its loop, so the memory goes on the next turn. */
static void free_listener(void *arg)
{
    struct listener *ln = arg;
    ln->magic = 0;
    free(ln);
}

void listener_close(struct listener *ln)
{
    if (!ln)
        return;
    assert(ln->magic == LISTENER_MAGIC && ln->fd >= 0);
    timer_fini(&ln->pause);
    event_free(ln->event);
    close(ln->fd);
    ln->fd = -1;
    if (ln->addr.sa.ss_family == AF_UNIX)
        unlink(unix_path(&ln->addr));
    loop_defer(ln->loop, free_listener, ln);
}

const struct addr *listener_addr(const struct listener *ln)
{
    return &ln->addr;
}
