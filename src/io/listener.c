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
#include <grp.h>
#include <netinet/in.h>
#include <pwd.h>
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
    dev_t dev; /* of the socket's file */
    ino_t ino;
    bool starved; /* told in the log, until an accept succeeds again */
};

/* ---- accepting --------------------------------------------------------------------- */

/* Where it cannot be watched again, for want of memory, later. */
static void on_pause_over(void *arg)
{
    struct listener *ln = arg;
    if (event_add(ln->event, NULL) != 0)
        timer_start(&ln->pause, PAUSE_MS);
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

/* ---- owners ------------------------------------------------------------------------ */

static bool is_number(const char *s)
{
    return *s && s[strspn(s, "0123456789")] == '\0' && strlen(s) < 10;
}

static int find_user(uid_t *uid, const char *name, struct err *e)
{
    const struct passwd *pw = getpwnam(name);
    if (!pw && !is_number(name))
        return err_set(e, ERR_NOT_FOUND, "there is no user \"%.60s\"", name);
    *uid = pw ? pw->pw_uid : (uid_t)strtoul(name, NULL, 10);
    return 0;
}

static int find_group(gid_t *gid, const char *name, struct err *e)
{
    const struct group *gr = getgrnam(name);
    if (!gr && !is_number(name))
        return err_set(e, ERR_NOT_FOUND, "there is no group \"%.60s\"", name);
    *gid = gr ? gr->gr_gid : (gid_t)strtoul(name, NULL, 10);
    return 0;
}

int listener_owner(struct listener_file *f, const char *owner, struct err *e)
{
    const char *colon = strchr(owner, ':');
    char *user = mem_dup(owner, colon ? (size_t)(colon - owner) : strlen(owner));
    f->uid = (uid_t)-1;
    f->gid = (gid_t)-1;
    int rc = *user ? find_user(&f->uid, user, e) : 0;
    if (rc == 0 && colon && colon[1])
        rc = find_group(&f->gid, colon + 1, e);
    free(user);
    return rc;
}

/* ---- opening ----------------------------------------------------------------------- */

static const char *unix_path(const struct addr *a)
{
    return ((const struct sockaddr_un *)(const void *)&a->sa)->sun_path;
}

/* Whether somebody listens there; asked without waiting. */
static bool is_listened_on(const struct addr *at)
{
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const bool refused = fd >= 0 &&
                         connect(fd, (const struct sockaddr *)&at->sa, at->len) != 0 &&
                         errno == ECONNREFUSED;
    if (fd >= 0)
        close(fd);
    return !refused;
}

/* Removes a socket file that its process has left behind; never anything else. */
static int make_room(const struct addr *at, struct err *e)
{
    struct stat st;
    if (lstat(unix_path(at), &st) != 0)
        return 0;
    if (!S_ISSOCK(st.st_mode))
        return err_set(e, ERR_INVALID,
                       "cannot listen on %s: a file that is no socket is in its place",
                       at->text);
    if (is_listened_on(at))
        return err_set(e, ERR_IO, "cannot listen on %s: another process listens there",
                       at->text);
    unlink(unix_path(at));
    return 0;
}

static int set_access(const struct addr *at, const struct listener_file *f, struct err *e)
{
    const bool given = f->uid != (uid_t)-1 || f->gid != (gid_t)-1;
    if (given && lchown(unix_path(at), f->uid, f->gid) != 0)
        return err_errno(e, "giving %s to its owner", at->text);
    if (chmod(unix_path(at), f->mode) != 0)
        return err_errno(e, "setting the mode of %s", at->text);
    return 0;
}

static int bind_to(int fd, const struct addr *at, const struct listener_file *f,
                   struct err *e)
{
    const bool is_file = at->sa.ss_family == AF_UNIX;
    const int on = 1, off = 0;
    if (is_file && make_room(at, e) != 0)
        return e->code;
    if (!is_file)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (at->sa.ss_family == AF_INET6) /* "[::]" is IPv4 as well, on every system */
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (bind(fd, (const struct sockaddr *)&at->sa, at->len) != 0)
        return err_errno(e, "cannot listen on %s", at->text);
    if (is_file && f && set_access(at, f, e) != 0) {
        unlink(unix_path(at));
        return e->code;
    }
    return 0;
}

/* A listening socket, or -1. */
static int open_socket(const struct addr *at, const struct listener_file *f,
                       struct addr *real, struct err *e)
{
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof(sa);
    const int fd =
        socket(at->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        err_errno(e, "cannot listen on %s", at->text);
        return -1;
    }
    if (bind_to(fd, at, f, e) == 0) {
        if (listen(fd, SOMAXCONN) == 0 &&
            getsockname(fd, (struct sockaddr *)&sa, &len) == 0) {
            addr_from_sockaddr(real, (const struct sockaddr *)&sa, len);
            return fd;
        }
        err_errno(e, "cannot listen on %s", at->text);
    }
    close(fd);
    return -1;
}

/* Which file it is that our socket has made. */
static void note_file(struct listener *ln)
{
    struct stat st;
    if (ln->addr.sa.ss_family == AF_UNIX && lstat(unix_path(&ln->addr), &st) == 0) {
        ln->dev = st.st_dev;
        ln->ino = st.st_ino;
    }
}

struct listener *listener_open(struct loop *l, const struct addr *at, listener_cb cb,
                               void *arg, struct err *e)
{
    return listener_open_file(l, at, NULL, cb, arg, e);
}

struct listener *listener_open_file(struct loop *l, const struct addr *at,
                                    const struct listener_file *file, listener_cb cb,
                                    void *arg, struct err *e)
{
    struct err why = {0};
    struct addr real;
    assert(cb);
    const int fd = open_socket(at, file, &real, &why);
    if (fd < 0) {
        err_set(e, why.code, "%s", why.text);
        return NULL;
    }
    struct listener *ln = mem_zalloc(sizeof(*ln));
    ln->magic = LISTENER_MAGIC;
    ln->loop = l;
    ln->fd = fd;
    ln->cb = cb;
    ln->arg = arg;
    ln->addr = real;
    note_file(ln);
    ln->event = event_new(loop_base(l), fd, EV_READ | EV_PERSIST, on_ready, ln);
    timer_init(&ln->pause, l, on_pause_over, ln);
    if (event_add(ln->event, NULL) != 0) {
        err_set(e, ERR_IO, "%s: %s", at->text, strerror(errno));
        listener_close(ln);
        return NULL;
    }
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

/* Another process may have put its own there since. */
static void remove_file(const struct listener *ln)
{
    struct stat st;
    if (ln->addr.sa.ss_family == AF_UNIX && lstat(unix_path(&ln->addr), &st) == 0 &&
        st.st_dev == ln->dev && st.st_ino == ln->ino)
        unlink(unix_path(&ln->addr));
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
    remove_file(ln);
    loop_defer(ln->loop, free_listener, ln);
}

const struct addr *listener_addr(const struct listener *ln)
{
    return &ln->addr;
}
