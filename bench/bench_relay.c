/* SPDX-License-Identifier: MIT */

/*
 * What one event of 220 bytes costs on its way through two connections, as it streams to a
 * client:
 *
 *     source ──► in ══ relay, the loop ══► out ──► sink
 *
 * One stream: source and sink are a thread, and the next event is sent when the last has
 * come through. "Way" is from send() to the end of recv(); two threads are woken on it.
 * Many streams: all have an event waiting when the loop looks, as it is under load; only
 * the loop's part is timed.
 */

#include <arpa/inet.h>
#include <assert.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/quantile.h"
#include "io/conn.h"

#define EVENT_BYTES 220
#define WARM_UP 2000
#define EVENTS 100000
#define STREAMS 64
#define ROUNDS 2000

struct stream {
    int source, sink;
    struct conn *in, *out;
};

static struct loop *loop;
static unsigned passed, stop_at; /* events; 0: at the end of the stream */

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Two ends of a TCP connection over loopback. */
static void pair(int fd[2])
{
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);
    const int listening = socket(AF_INET, SOCK_STREAM, 0);
    fd[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listening, (const struct sockaddr *)&sa, sizeof(sa)) != 0 ||
        listen(listening, 1) != 0 ||
        getsockname(listening, (struct sockaddr *)&sa, &len) != 0 ||
        connect(fd[0], (const struct sockaddr *)&sa, sizeof(sa)) != 0)
        perror("loopback");
    fd[1] = accept(listening, NULL, NULL);
    assert(fd[1] >= 0);
    close(listening);
}

static void on_in(void *arg, struct conn *c, enum conn_event event)
{
    struct stream *s = arg;
    if (event == CONN_DATA) {
        const struct slice bytes = conn_input(c);
        conn_write(s->out, bytes);
        conn_consume(c, bytes.len);
        if (++passed == stop_at)
            loop_stop(loop);
    } else if (event == CONN_ENDED) {
        loop_stop(loop);
    }
}

static void on_out(void *arg, struct conn *c, enum conn_event event)
{
    (void)arg;
    (void)c;
    (void)event;
}

static void open_stream(struct stream *s)
{
    int before[2], behind[2];
    pair(before);
    pair(behind);
    *s = (struct stream){.source = before[0], .sink = behind[1]};
    s->in = conn_accepted(loop, before[1], on_in, s);
    s->out = conn_accepted(loop, behind[0], on_out, s);
}

static void close_stream(struct stream *s)
{
    conn_close(s->in);
    conn_close(s->out);
    close(s->source);
    close(s->sink);
}

static void send_event(int fd)
{
    static const char event[EVENT_BYTES] =
        "data: {\"choices\":[{\"delta\":{\"content\":\" word\"}}]}\n\n";
    const ssize_t n = send(fd, event, sizeof(event), 0);
    assert(n == (ssize_t)sizeof(event));
}

static void take_event(int fd)
{
    char event[EVENT_BYTES];
    for (size_t got = 0; got < sizeof(event);) {
        const ssize_t n = recv(fd, event, sizeof(event) - got, 0);
        assert(n > 0);
        got += (size_t)n;
    }
}

/* Median of the way in microseconds. */
static double time_way(int from, int to)
{
    static struct quantile way;
    way = (struct quantile){0};
    for (int i = 0; i < WARM_UP + EVENTS; i++) {
        const double start = seconds(CLOCK_MONOTONIC);
        send_event(from);
        take_event(to);
        if (i >= WARM_UP)
            quantile_add(&way, 1e6 * (seconds(CLOCK_MONOTONIC) - start));
    }
    return quantile_get(&way, 0.5);
}

static double way_us;

static void *drive(void *arg)
{
    const struct stream *s = arg;
    way_us = time_way(s->source, s->sink);
    shutdown(s->source, SHUT_WR);
    return NULL;
}

static void one_stream(void)
{
    struct stream s;
    pthread_t thread;
    open_stream(&s);
    const double cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
    if (pthread_create(&thread, NULL, drive, &s) != 0)
        return;
    loop_run(loop);
    const double cpu_us = 1e6 * (seconds(CLOCK_THREAD_CPUTIME_ID) - cpu);
    pthread_join(thread, NULL);
    close_stream(&s);
    printf("one stream: way through the relay, median    %6.1f us\n", way_us);
    printf("one stream: processor time of the loop       %6.2f us an event\n",
           cpu_us / (WARM_UP + EVENTS));
}

static void no_relay(void)
{
    int fd[2];
    pair(fd);
    printf("no relay, one thread: way, median            %6.1f us\n",
           time_way(fd[0], fd[1]));
    close(fd[0]);
    close(fd[1]);
}

static void many_streams(void)
{
    static struct stream streams[STREAMS];
    static struct quantile round;
    for (int i = 0; i < STREAMS; i++)
        open_stream(&streams[i]);
    stop_at = STREAMS;
    for (int n = 0; n < ROUNDS; n++) {
        for (int i = 0; i < STREAMS; i++)
            send_event(streams[i].source);
        passed = 0;
        const double start = seconds(CLOCK_MONOTONIC);
        loop_run(loop);
        quantile_add(&round, 1e6 * (seconds(CLOCK_MONOTONIC) - start) / STREAMS);
        for (int i = 0; i < STREAMS; i++)
            take_event(streams[i].sink);
    }
    for (int i = 0; i < STREAMS; i++)
        close_stream(&streams[i]);
    printf("%d streams ready at once: the loop, median   %6.2f us an event\n", STREAMS,
           quantile_get(&round, 0.5));
}

int main(void)
{
    loop = loop_new();
    no_relay();
    one_stream();
    many_streams();
    loop_free(loop);
    return 0;
}
