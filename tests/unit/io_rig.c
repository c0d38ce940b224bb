/* SPDX-License-Identifier: MIT */
#include "io_rig.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "cmocka_all.h"

static struct loop_timer guard;

/* Under valgrind TLS takes tens of seconds for what are milliseconds. */
static int guard_ms(void)
{
    return getenv("INCIPIT_UNDER") ? 20 * RIG_GUARD_MS : RIG_GUARD_MS;
}

static void on_guard(void *arg)
{
    (void)arg;
    fail_msg("the test hangs: nothing happened for %d ms", guard_ms());
}

int rig_up(void **state)
{
    struct loop *l = loop_new();
    if (!l)
        return -1;
    timer_init(&guard, l, on_guard, NULL);
    timer_start(&guard, (uint64_t)guard_ms());
    *state = l;
    return 0;
}

int rig_down(void **state)
{
    timer_fini(&guard);
    loop_free(*state);
    return 0;
}

static void on_idle_over(void *arg)
{
    loop_stop(arg);
}

double rig_idle(struct loop *l, unsigned ms)
{
    struct loop_timer t;
    timer_init(&t, l, on_idle_over, l);
    timer_start(&t, ms);
    const clock_t before = clock();
    loop_run(l);
    const clock_t after = clock();
    timer_fini(&t);
    return (double)(after - before) * 1000 / CLOCKS_PER_SEC;
}

int rig_listen(int backlog, unsigned short *port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&sa, sizeof(sa)), 0);
    assert_int_equal(listen(fd, backlog), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
    *port = ntohs(sa.sin_port);
    return fd;
}

void rig_pair(int fd[2])
{
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    unsigned short port;
    const int listening = rig_listen(1, &port);
    sa.sin_port = htons(port);
    fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd[0], (const struct sockaddr *)&sa, sizeof(sa)), 0);
    fd[1] = accept(listening, NULL, NULL);
    assert_true(fd[1] >= 0);
    close(listening);
}

void rig_reset(int fd)
{
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    close(fd);
}

void rig_send_all(int fd, const void *bytes, size_t n)
{
    const char *at = bytes;
    while (n) {
        const ssize_t sent = send(fd, at, n, MSG_NOSIGNAL);
        assert_true(sent > 0);
        at += sent;
        n -= (size_t)sent;
    }
}

size_t rig_read_all(int fd, void *bytes, size_t n)
{
    size_t got = 0;
    while (got < n) {
        const ssize_t part = read(fd, (char *)bytes + got, n - got);
        if (part <= 0)
            break;
        got += (size_t)part;
    }
    return got;
}

void rig_pattern(char *bytes, size_t n, size_t offset)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = (char)((offset + i) * 2654435761u >> 16);
}
