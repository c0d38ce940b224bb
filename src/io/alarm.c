/* SPDX-License-Identifier: MIT */
#include "io/alarm.h"

#include <assert.h>
#include <errno.h>
#include <event2/event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "loop_private.h"

struct alarm {
    int fd;
    struct event *event;
    loop_cb cb;
    void *arg;
    uint64_t at_us; /* that the descriptor is set to, 0: none */
};

static void set(struct alarm *a, uint64_t at_us)
{
    if (a->at_us == at_us)
        return;
    a->at_us = at_us;
    const struct itimerspec at = {
        .it_value = {.tv_sec = (time_t)(at_us / 1000000),
                     .tv_nsec = (long)(at_us % 1000000 * 1000)}};
    const int rc = timerfd_settime(a->fd, TFD_TIMER_ABSTIME, &at, NULL);
    assert(rc == 0);
    (void)rc;
}

/* Setting it makes the descriptor forget what it had to tell: an empty read is none. */
static void on_event(evutil_socket_t fd, short what, void *arg)
{
    struct alarm *a = arg;
    uint64_t times;
    (void)what;
    if (read(fd, &times, sizeof(times)) != sizeof(times))
        return;
    a->at_us = 0;
    a->cb(a->arg);
}

static struct alarm *none(void)
{
    log_event(LOG_ERROR, "alarm", "errno", "%s", strerror(errno), NULL);
    return NULL;
}

struct alarm *alarm_new(struct loop *l, loop_cb cb, void *arg)
{
    const int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (fd < 0)
        return none();
    struct alarm *a = mem_zalloc(sizeof(*a));
    *a = (struct alarm){.fd = fd, .cb = cb, .arg = arg};
    a->event = event_new(loop_base(l), fd, EV_READ | EV_PERSIST, on_event, a);
    if (event_add(a->event, NULL) != 0) {
        alarm_free(a);
        return none();
    }
    return a;
}

void alarm_free(struct alarm *a)
{
    if (!a)
        return;
    event_free(a->event);
    close(a->fd);
    free(a);
}

void alarm_set(struct alarm *a, uint64_t at_us)
{
    set(a, at_us ? at_us : 1); /* 0 would stop it */
}

void alarm_stop(struct alarm *a)
{
    set(a, 0);
}
