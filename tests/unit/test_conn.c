/* SPDX-License-Identifier: MIT */
#include "io/conn.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "cmocka_all.h"
#include "io_rig.h"

#define NEVER ((enum conn_event) - 1)

/*
 * An owner that writes down what it is told. Events are letters in `told`: C connected,
 * D data (once for a run of them), R drained, F flushed, X closed, E ended, ! failed.
 */
struct owner {
    struct conn *conn;
    char told[256];
    struct buf data;          /* what was consumed */
    bool keep;                /* leave the input where it is */
    enum conn_event stop_at;  /* ends the loop */
    size_t stop_bytes;        /* ends the loop when so many are consumed */
    enum conn_event close_at; /* closes the connection */
    void (*close)(struct conn *c);
    void (*then)(struct owner *o, enum conn_event event);
    struct slice left; /* for `then` */
};

static struct loop *loop;
static bool inside; /* a callback is running */

static void on_conn(void *arg, struct conn *c, enum conn_event event)
{
    struct owner *o = arg;
    const size_t n = strlen(o->told);
    assert_false(inside); /* never from inside a conn_ call */
    inside = true;
    assert_ptr_equal(c, o->conn);
    assert_true(n < sizeof(o->told) - 1);
    if (event != CONN_DATA || n == 0 || o->told[n - 1] != 'D')
        o->told[n] = "CDRFXE!"[event];
    if (event == CONN_DATA && !o->keep) {
        buf_append_slice(&o->data, conn_input(c));
        conn_consume(c, conn_input(c).len);
    }
    if (o->then)
        o->then(o, event);
    if (event == o->close_at) {
        o->close(c);
        o->conn = NULL;
    }
    if (event == o->stop_at || (o->stop_bytes && buf_len(&o->data) >= o->stop_bytes))
        loop_stop(loop);
    inside = false;
}

static struct owner fresh_owner(void)
{
    return (struct owner){.stop_at = NEVER, .close_at = NEVER};
}

static void own(struct owner *o, int fd)
{
    *o = fresh_owner();
    o->conn = conn_accepted(loop, fd, on_conn, o);
}

static void disown(struct owner *o)
{
    conn_close(o->conn);
    buf_free(&o->data);
}

static int up(void **state)
{
    const int rc = rig_up(state);
    loop = *state;
    inside = false;
    return rc;
}

static void run_until(struct owner *o, enum conn_event event)
{
    o->stop_at = event;
    loop_run(loop);
    o->stop_at = NEVER;
}

static void run_until_bytes(struct owner *o, size_t n)
{
    o->stop_bytes = n;
    if (buf_len(&o->data) < n)
        loop_run(loop);
    o->stop_bytes = 0;
}

/* Nothing more comes, and the loop sleeps meanwhile. */
static void assert_quiet(const struct owner *o)
{
    char before[sizeof(o->told)];
    memcpy(before, o->told, sizeof(before));
    assert_true(rig_idle(loop, 60) < 30);
    assert_string_equal(o->told, before);
}

static struct addr addr_of(unsigned short port)
{
    struct addr a;
    char text[32];
    snprintf(text, sizeof(text), "127.0.0.1:%u", port);
    assert_int_equal(addr_resolve(&a, text, NULL), 0);
    return a;
}

/* The kernel takes little at once. Very little only of UNIX sockets: on TCP such a sender
 * waits for delayed acknowledgements all the time. */
static void small_send_buffer(int fd)
{
    int domain = 0;
    socklen_t len = sizeof(domain);
    getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len);
    const int bytes = domain == AF_UNIX ? 4096 : 65536;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

static void unix_pair(int fd[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
}

#define assert_bytes(b, n, offset)                                                       \
    do {                                                                                 \
        char *want = mem_alloc(n);                                                       \
        rig_pattern(want, n, offset);                                                    \
        assert_int_equal(buf_len(b), n);                                                 \
        assert_memory_equal(buf_slice(b).ptr, want, n);                                  \
        free(want);                                                                      \
    } while (0)

/* ---- bytes in ---------------------------------------------------------------------- */

static void test_conn_delivers_data_then_closed_then_ended(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    rig_pair(fd);
    own(&o, fd[0]);
    rig_send_all(fd[1], "hello", 5);
    close(fd[1]);
    run_until(&o, CONN_ENDED);
    assert_string_equal(o.told, "DXE");
    assert_int_equal(conn_error(o.conn), 0);
    assert_memory_equal(o.data.data, "hello", 5);
    assert_int_equal(conn_bytes_in(o.conn), 5);
    assert_quiet(&o);
    disown(&o);
}

static void test_conn_delivers_all_data_before_the_close_behind_it(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    char bytes[20000];
    rig_pattern(bytes, sizeof(bytes), 0);
    rig_pair(fd);
    own(&o, fd[0]);
    conn_set_input_max(o.conn, 4096); /* takes several reads */
    rig_send_all(fd[1], bytes, sizeof(bytes));
    close(fd[1]);
    run_until(&o, CONN_ENDED);
    assert_string_equal(o.told, "DXE");
    assert_bytes(&o.data, sizeof(bytes), 0);
    disown(&o);
}

static void test_conn_stops_reading_at_its_limit_until_consumed(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    char bytes[10000];
    rig_pair(fd);
    own(&o, fd[0]);
    o.keep = true;
    conn_set_input_max(o.conn, 1000);
    rig_pattern(bytes, sizeof(bytes), 0);
    rig_send_all(fd[1], bytes, sizeof(bytes));
    run_until(&o, CONN_DATA);
    assert_quiet(&o);
    assert_int_equal(conn_input(o.conn).len, 1000);
    assert_memory_equal(conn_input(o.conn).ptr, bytes, 1000);
    conn_consume(o.conn, 400);
    run_until(&o, CONN_DATA);
    assert_int_equal(conn_input(o.conn).len, 1000);
    assert_memory_equal(conn_input(o.conn).ptr, bytes + 400, 1000);
    o.keep = false;
    conn_consume(o.conn, 1000);
    run_until_bytes(&o, sizeof(bytes) - 1400);
    assert_bytes(&o.data, sizeof(bytes) - 1400, 1400);
    disown(&o);
    close(fd[1]);
}

static void pause_at_data(struct owner *o, enum conn_event event)
{
    if (event == CONN_DATA)
        conn_pause(o->conn);
}

static void test_conn_paused_inside_a_callback_reads_no_more(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    const size_t n = 1 << 20;
    char *bytes = mem_alloc(n);
    rig_pattern(bytes, n, 0);
    rig_pair(fd);
    own(&o, fd[0]);
    o.then = pause_at_data;
    rig_send_all(fd[1], bytes, n);
    run_until(&o, CONN_DATA);
    const size_t got = buf_len(&o.data);
    assert_in_range(got, 1, CONN_INPUT_MAX);
    assert_quiet(&o);
    assert_int_equal(buf_len(&o.data), got);
    o.then = NULL;
    conn_resume(o.conn);
    run_until_bytes(&o, n);
    assert_bytes(&o.data, n, 0);
    disown(&o);
    close(fd[1]);
    free(bytes);
}

/* ---- the peer leaves --------------------------------------------------------------- */

static void test_conn_sees_a_fin_while_paused_once_and_does_not_spin(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    rig_pair(fd);
    own(&o, fd[0]);
    conn_pause(o.conn);
    rig_send_all(fd[1], "unread", 6);
    assert_quiet(&o); /* now it waits for nothing but the end */
    shutdown(fd[1], SHUT_WR);
    run_until(&o, CONN_CLOSED);
    assert_string_equal(o.told, "X");
    assert_int_equal(conn_error(o.conn), 0);
    assert_quiet(&o);
    conn_resume(o.conn);
    run_until(&o, CONN_ENDED);
    assert_string_equal(o.told, "XDE");
    assert_memory_equal(o.data.data, "unread", 6);
    assert_quiet(&o);
    disown(&o);
    close(fd[1]);
}

static void test_conn_sees_a_fin_that_comes_with_bytes_while_paused(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    rig_pair(fd);
    own(&o, fd[0]);
    conn_pause(o.conn);
    rig_send_all(fd[1], "unread", 6);
    shutdown(fd[1], SHUT_WR);
    run_until(&o, CONN_CLOSED);
    assert_string_equal(o.told, "X");
    assert_quiet(&o);
    disown(&o);
    close(fd[1]);
}

static void test_conn_sees_a_fin_behind_a_full_input(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    rig_pair(fd);
    own(&o, fd[0]);
    o.keep = true;
    conn_set_input_max(o.conn, 4);
    rig_send_all(fd[1], "12345678", 8);
    close(fd[1]);
    run_until(&o, CONN_CLOSED);
    assert_string_equal(o.told, "DX");
    assert_quiet(&o);
    conn_consume(o.conn, 4);
    run_until(&o, CONN_DATA);
    assert_memory_equal(conn_input(o.conn).ptr, "5678", 4);
    assert_quiet(&o);
    conn_consume(o.conn, 4);
    run_until(&o, CONN_ENDED);
    assert_string_equal(o.told, "DXDE");
    disown(&o);
}

static void test_conn_paused_while_the_last_bytes_are_told_ends_after_resume(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    rig_pair(fd);
    own(&o, fd[0]);
    o.then = pause_at_data;
    rig_send_all(fd[1], "last", 4);
    close(fd[1]);
    run_until(&o, CONN_CLOSED);
    assert_quiet(&o);
    assert_string_equal(o.told, "DX");
    conn_resume(o.conn);
    run_until(&o, CONN_ENDED);
    assert_string_equal(o.told, "DXE");
    disown(&o);
}

static void test_conn_sees_a_reset_while_paused_once_and_does_not_spin(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    rig_pair(fd);
    own(&o, fd[0]);
    conn_pause(o.conn);
    rig_send_all(fd[1], "unread", 6);
    assert_quiet(&o);
    rig_reset(fd[1]);
    run_until(&o, CONN_CLOSED);
    assert_string_equal(o.told, "X");
    assert_int_equal(conn_error(o.conn), ECONNRESET);
    assert_quiet(&o);
    conn_resume(o.conn);
    run_until(&o, CONN_ENDED);
    assert_int_equal(conn_error(o.conn), ECONNRESET);
    assert_quiet(&o);
    disown(&o);
}

static void test_conn_paused_before_anything_came_sees_a_reset(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    rig_pair(fd);
    own(&o, fd[0]);
    conn_pause(o.conn);
    rig_reset(fd[1]);
    run_until(&o, CONN_CLOSED);
    assert_int_equal(conn_error(o.conn), ECONNRESET);
    assert_quiet(&o);
    assert_string_equal(o.told, "X");
    disown(&o);
}

static void test_conn_sees_a_reset_that_comes_with_bytes(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    rig_pair(fd);
    own(&o, fd[0]);
    rig_send_all(fd[1], "bytes", 5);
    rig_reset(fd[1]);
    run_until(&o, CONN_ENDED);
    assert_int_equal(conn_error(o.conn), ECONNRESET);
    assert_string_equal(o.told, "DXE");
    assert_quiet(&o);
    disown(&o);
}

static void test_conn_tells_a_reset_while_writing_and_drops_the_rest(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    const size_t n = 8 << 20;
    char *bytes = mem_zalloc(n);
    rig_pair(fd);
    own(&o, fd[0]);
    conn_write_borrowed(o.conn, slice_make(bytes, n));
    assert_true(conn_output_high(o.conn));
    rig_reset(fd[1]);
    run_until(&o, CONN_ENDED);
    assert_string_equal(o.told, "XE");
    assert_int_equal(conn_error(o.conn), ECONNRESET);
    assert_int_equal(conn_output_len(o.conn), 0);
    conn_write(o.conn, SLICE_LIT("into the void"));
    assert_quiet(&o);
    disown(&o);
    free(bytes);
}

static void test_conn_finds_a_reset_inside_write_and_tells_it_later(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    rig_pair(fd);
    own(&o, fd[0]);
    rig_send_all(fd[1], "answer", 6);
    rig_reset(fd[1]);
    conn_write(o.conn, SLICE_LIT("x")); /* no SIGPIPE */
    assert_string_equal(o.told, "");
    run_until(&o, CONN_ENDED);
    assert_string_equal(o.told, "DXE"); /* what the peer said first is not lost */
    assert_memory_equal(o.data.data, "answer", 6);
    disown(&o);
}

static void test_conn_paused_finds_a_reset_inside_write(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    rig_pair(fd);
    own(&o, fd[0]);
    conn_pause(o.conn);
    rig_reset(fd[1]);
    conn_write(o.conn, SLICE_LIT("x"));
    run_until(&o, CONN_CLOSED);
    assert_quiet(&o);
    conn_resume(o.conn);
    run_until(&o, CONN_ENDED);
    assert_string_equal(o.told, "XE");
    disown(&o);
}

/* A UNIX socket can refuse bytes without being closed: nothing but the write tells. */
static void refuse_writes(size_t bytes_before, const char *told)
{
    static const char bytes[2 * CONN_INPUT_MAX]; /* two reads, neither of them short */
    const int room = sizeof(bytes);
    struct owner o;
    int fd[2];
    unix_pair(fd);
    setsockopt(fd[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
    own(&o, fd[0]);
    o.keep = true;
    conn_set_input_max(o.conn, 2 * sizeof(bytes));
    rig_send_all(fd[1], bytes, bytes_before);
    shutdown(fd[1], SHUT_RD);
    conn_write(o.conn, SLICE_LIT("x"));
    run_until(&o, CONN_ENDED);
    assert_int_equal(conn_error(o.conn), EPIPE);
    assert_string_equal(o.told, told);
    assert_int_equal(conn_input(o.conn).len, bytes_before);
    disown(&o);
    close(fd[1]);
}

static void test_conn_whose_peer_reads_no_more_ends(void **state)
{
    (void)state;
    refuse_writes(0, "XE");
    refuse_writes(2 * CONN_INPUT_MAX, "DXE");
}

static void end_loop(void *arg)
{
    (void)arg;
    loop_stop(loop);
}

static void *read_everything(void *arg)
{
    struct buf *b = arg;
    const int fd = (int)b->end;
    *b = (struct buf){0};
    ssize_t n;
    while ((n = read(fd, buf_reserve(b, 65536), 65536)) > 0)
        buf_commit(b, (size_t)n);
    close(fd);
    loop_post(loop, end_loop, NULL);
    return NULL;
}

/* A blocking peer that reads until the end, in a thread; then it stops the loop. */
static pthread_t start_reader(struct buf *b, int fd)
{
    pthread_t thread;
    *b = (struct buf){.end = (size_t)fd};
    assert_int_equal(pthread_create(&thread, NULL, read_everything, b), 0);
    return thread;
}

static void test_conn_answers_a_peer_that_has_half_closed(void **state)
{
    (void)state;
    struct owner o;
    struct buf got;
    int fd[2];
    const size_t n = 4 << 20;
    char *bytes = mem_alloc(n);
    rig_pattern(bytes, n, 0);
    rig_pair(fd);
    small_send_buffer(fd[0]);
    own(&o, fd[0]);
    rig_send_all(fd[1], "ask", 3);
    shutdown(fd[1], SHUT_WR);
    run_until(&o, CONN_ENDED);
    conn_write(o.conn, slice_make(bytes, n));
    const pthread_t reader = start_reader(&got, fd[1]);
    run_until(&o, CONN_FLUSHED);
    assert_string_equal(o.told, "DXERF");
    disown(&o);
    pthread_join(reader, NULL);
    assert_bytes(&got, n, 0);
    buf_free(&got);
    free(bytes);
}

static void test_conn_tells_when_a_half_closed_peer_goes_for_good(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    rig_pair(fd);
    own(&o, fd[0]);
    close(fd[1]); /* looks like a half-close until something is written */
    run_until(&o, CONN_ENDED);
    conn_write(o.conn, SLICE_LIT("x"));
    run_until(&o, CONN_FAILED);
    assert_string_equal(o.told, "XE!");
    assert_int_not_equal(conn_error(o.conn), 0);
    assert_quiet(&o);
    disown(&o);
}

/* ---- bytes out --------------------------------------------------------------------- */

static void write_on(struct owner *o, enum conn_event event)
{
    (void)event;
    while (o->left.len && !conn_output_high(o->conn)) {
        size_t n = 1 + o->left.len % 5000;
        n = n < o->left.len ? n : o->left.len;
        conn_write(o->conn, slice_make(o->left.ptr, n));
        o->left.ptr += n;
        o->left.len -= n;
        assert_true(conn_output_len(o->conn) <= CONN_OUTPUT_HIGH + 5000);
    }
}

/* Sends 4 MiB through, held back and let go on again and again. */
static void transfer(void (*pair)(int fd[2]), size_t input_max, bool paused)
{
    struct owner a, b;
    int fd[2];
    const size_t n = 4 << 20;
    char *bytes = mem_alloc(n);
    rig_pattern(bytes, n, 0);
    pair(fd);
    small_send_buffer(fd[0]);
    own(&a, fd[0]);
    own(&b, fd[1]);
    a.left = slice_make(bytes, n);
    a.then = write_on;
    if (paused)
        conn_pause(a.conn);
    conn_set_input_max(b.conn, input_max);
    write_on(&a, CONN_DRAINED);
    assert_true(conn_output_high(a.conn));
    run_until_bytes(&b, n);
    assert_bytes(&b.data, n, 0);
    assert_int_equal(conn_bytes_out(a.conn), n);
    while (conn_bytes_taken(a.conn) < n) /* an acknowledgement may be on its way */
        rig_idle(loop, 1);
    assert_int_equal(conn_bytes_taken(a.conn), n);
    assert_int_equal(conn_bytes_in(b.conn), n);
    assert_int_equal(a.left.len, 0);
    assert_non_null(strchr(a.told, 'R'));
    if (a.told[strlen(a.told) - 1] != 'F')
        run_until(&a, CONN_FLUSHED);
    assert_int_equal(conn_output_len(a.conn), 0);
    assert_quiet(&a);
    disown(&a);
    disown(&b);
    free(bytes);
}

static void test_conn_keeps_the_order_through_a_small_send_buffer(void **state)
{
    (void)state;
    transfer(rig_pair, CONN_INPUT_MAX, false);
    transfer(unix_pair, CONN_INPUT_MAX, false);
}

static void test_conn_keeps_the_order_into_a_small_input(void **state)
{
    (void)state;
    transfer(rig_pair, 777, false);
}

static void test_conn_paused_goes_on_writing(void **state)
{
    (void)state;
    transfer(rig_pair, CONN_INPUT_MAX, true);
    transfer(unix_pair, CONN_INPUT_MAX, true);
}

static void test_conn_paused_with_unread_bytes_writes_into_a_roomy_socket(void **state)
{
    (void)state;
    struct owner o;
    struct buf got;
    int fd[2];
    const size_t n = 8 << 20;
    char *bytes = mem_alloc(n);
    rig_pattern(bytes, n, 0);
    rig_pair(fd);
    own(&o, fd[0]);
    conn_pause(o.conn);
    rig_send_all(fd[1], "unread", 6);
    assert_quiet(&o);
    conn_write_borrowed(o.conn, slice_make(bytes, n));
    const pthread_t reader = start_reader(&got, fd[1]);
    run_until(&o, CONN_FLUSHED);
    assert_string_equal(o.told, "RF");
    conn_close_gently(o.conn, 5000);
    loop_run(loop); /* until the reader has seen the end */
    pthread_join(reader, NULL);
    assert_bytes(&got, n, 0);
    buf_free(&got);
    free(bytes);
}

static void test_conn_tells_drained_at_half_and_flushed_at_nothing(void **state)
{
    (void)state;
    struct owner o;
    struct buf got;
    int fd[2];
    const size_t n = 8 << 20;
    char *bytes = mem_alloc(n);
    rig_pattern(bytes, n, 0);
    rig_pair(fd);
    small_send_buffer(fd[0]);
    own(&o, fd[0]);
    conn_write_borrowed(o.conn, slice_make(bytes, n));
    assert_true(conn_output_high(o.conn));
    assert_quiet(&o);
    const pthread_t reader = start_reader(&got, fd[1]);
    run_until(&o, CONN_DRAINED);
    assert_in_range(conn_output_len(o.conn), 0, CONN_OUTPUT_HIGH / 2);
    if (o.told[strlen(o.told) - 1] != 'F')
        run_until(&o, CONN_FLUSHED);
    assert_string_equal(o.told, "RF");
    disown(&o);
    pthread_join(reader, NULL);
    assert_bytes(&got, n, 0);
    buf_free(&got);
    free(bytes);
}

static void test_conn_tells_once_when_borrowed_bytes_are_free(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    char got[8] = "";
    rig_pair(fd);
    own(&o, fd[0]);
    conn_write(o.conn, SLICE_LIT("a"));
    assert_quiet(&o); /* written at once: there is nothing to tell */
    assert_string_equal(o.told, "");
    conn_write_borrowed(o.conn, SLICE_LIT("b"));
    conn_write_borrowed(o.conn, SLICE_LIT("c"));
    assert_string_equal(o.told, "");
    assert_int_equal(rig_read_all(fd[1], got, 3), 3); /* before the loop ran */
    assert_string_equal(got, "abc");
    run_until(&o, CONN_FLUSHED);
    assert_quiet(&o);
    assert_string_equal(o.told, "F");
    disown(&o);
    close(fd[1]);
}

static void test_conn_mixes_copied_and_borrowed_bytes_in_order(void **state)
{
    (void)state;
    struct owner a, b;
    int fd[2];
    const size_t n = 3 << 20;
    char *bytes = mem_alloc(n);
    rig_pattern(bytes, n, 0);
    rig_pair(fd);
    small_send_buffer(fd[0]);
    own(&a, fd[0]);
    own(&b, fd[1]);
    for (size_t at = 0, i = 0; at < n; i++) {
        size_t part = (i * 7919) % 40000;
        part = part < n - at ? part : n - at;
        if (i % 3 == 0)
            conn_write_borrowed(a.conn, slice_make(bytes + at, part));
        else
            conn_write(a.conn, slice_make(bytes + at, part));
        at += part;
    }
    run_until_bytes(&b, n);
    assert_bytes(&b.data, n, 0);
    disown(&a);
    disown(&b);
    free(bytes);
}

static void test_conn_corked_sends_head_and_body_together(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    char got[16] = "";
    rig_pair(fd);
    own(&o, fd[0]);
    conn_cork(o.conn);
    conn_write(o.conn, SLICE_LIT("head "));
    conn_write_borrowed(o.conn, SLICE_LIT("body"));
    rig_idle(loop, 10);
    assert_int_equal(recv(fd[1], got, sizeof(got), MSG_DONTWAIT), -1);
    assert_string_equal(o.told, "");
    conn_uncork(o.conn);
    assert_int_equal(read(fd[1], got, sizeof(got)), 9);
    assert_string_equal(got, "head body");
    run_until(&o, CONN_FLUSHED);
    assert_string_equal(o.told, "F");
    disown(&o);
    close(fd[1]);
}

/* ---- connecting -------------------------------------------------------------------- */

static void test_conn_connect_sends_what_was_written_before(void **state)
{
    (void)state;
    struct owner o = fresh_owner();
    unsigned short port;
    char got[8] = "";
    const int listening = rig_listen(1, &port);
    const struct addr to = addr_of(port);
    o.conn = conn_connect(loop, &to, 5000, on_conn, &o);
    conn_write(o.conn, SLICE_LIT("ea"));
    conn_write_borrowed(o.conn, SLICE_LIT("rly"));
    assert_int_equal(conn_output_len(o.conn), 5);
    run_until(&o, CONN_FLUSHED);
    assert_string_equal(o.told, "CF");
    const int fd = accept(listening, NULL, NULL);
    assert_int_equal(rig_read_all(fd, got, 5), 5);
    assert_string_equal(got, "early");
    assert_string_equal(conn_peer(o.conn), to.text);
    disown(&o);
    close(fd);
    close(listening);
}

static void test_conn_connect_to_nobody_fails_from_the_loop(void **state)
{
    (void)state;
    struct owner o = fresh_owner();
    unsigned short port;
    close(rig_listen(1, &port));
    const struct addr to = addr_of(port);
    o.conn = conn_connect(loop, &to, 5000, on_conn, &o);
    conn_write(o.conn, SLICE_LIT("lost"));
    assert_string_equal(o.told, "");
    run_until(&o, CONN_FAILED);
    assert_int_equal(conn_error(o.conn), ECONNREFUSED);
    assert_true(conn_stale(o.conn));
    conn_write(o.conn, SLICE_LIT("lost"));
    assert_quiet(&o);
    assert_string_equal(o.told, "!");
    disown(&o);
}

static void test_conn_connect_that_is_refused_at_once_fails_from_the_loop(void **state)
{
    (void)state;
    struct owner o = fresh_owner();
    struct addr to;
    assert_int_equal(addr_resolve(&to, "unix:/nowhere/at/all", NULL), 0);
    o.conn = conn_connect(loop, &to, 5000, on_conn, &o);
    assert_string_equal(o.told, "");
    run_until(&o, CONN_FAILED);
    assert_int_equal(conn_error(o.conn), ENOENT);
    assert_string_equal(o.told, "!");
    disown(&o);
}

/* Nobody is told when the queue of a UNIX socket has room again. */
static void test_conn_connect_waits_for_room_at_a_unix_socket(void **state)
{
    (void)state;
    struct owner o = fresh_owner();
    struct addr to;
    char path[] = "/tmp/incipit-conn-XXXXXX", text[64];
    int fds[16], n = 0;
    close(mkstemp(path));
    unlink(path);
    snprintf(text, sizeof(text), "unix:%s", path);
    assert_int_equal(addr_resolve(&to, text, NULL), 0);
    const int listening = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(listening, (const struct sockaddr *)&to.sa, to.len), 0);
    assert_int_equal(listen(listening, 0), 0);
    do {
        assert_true(n < 16);
        fds[n] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    } while (connect(fds[n++], (const struct sockaddr *)&to.sa, to.len) == 0);
    o.conn = conn_connect(loop, &to, 60, on_conn, &o);
    run_until(&o, CONN_FAILED);
    assert_int_equal(conn_error(o.conn), ETIMEDOUT);
    disown(&o);
    o = fresh_owner();
    o.conn = conn_connect(loop, &to, 15000, on_conn, &o);
    conn_write(o.conn, SLICE_LIT("early"));
    assert_true(rig_idle(loop, 30) < 20);
    assert_string_equal(o.told, "");
    for (int i = 0; i < n - 1; i++)
        close(accept(listening, NULL, NULL));
    run_until(&o, CONN_CONNECTED);
    const int fd = accept(listening, NULL, NULL);
    char got[8] = "";
    assert_int_equal(rig_read_all(fd, got, 5), 5);
    assert_string_equal(got, "early");
    disown(&o);
    close(fd);
    while (n)
        close(fds[--n]);
    close(listening);
    unlink(path);
}

/* Connects until nobody answers: the queue of the listener is full then. */
static size_t fill_backlog(unsigned short port, int *fds, size_t max)
{
    const struct addr to = addr_of(port);
    for (size_t i = 0; i < max; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connect(fds[i], (const struct sockaddr *)&to.sa, to.len);
        struct pollfd p = {.fd = fds[i], .events = POLLOUT};
        if (poll(&p, 1, 100) == 0)
            return i + 1;
    }
    fail_msg("the backlog does not fill");
    return 0;
}

static void test_conn_connect_gives_up_in_time(void **state)
{
    (void)state;
    struct owner o = fresh_owner();
    unsigned short port;
    int fds[16];
    const int listening = rig_listen(0, &port);
    const size_t n = fill_backlog(port, fds, 16);
    const struct addr to = addr_of(port);
    const uint64_t before = loop_now_us(loop);
    o.conn = conn_connect(loop, &to, 50, on_conn, &o);
    run_until(&o, CONN_FAILED);
    const uint64_t took_us = loop_now_us(loop) - before;
    assert_int_equal(conn_error(o.conn), ETIMEDOUT);
    assert_in_range(took_us, 50000, 500000);
    assert_string_equal(o.told, "!");
    disown(&o);
    for (size_t i = 0; i < n; i++)
        close(fds[i]);
    close(listening);
}

/* ---- pools ------------------------------------------------------------------------- */

static void test_conn_stale_sees_bytes_and_ends_without_the_loop(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    rig_pair(fd);
    own(&o, fd[0]);
    assert_false(conn_stale(o.conn));
    rig_send_all(fd[1], "x", 1);
    assert_true(conn_stale(o.conn));
    run_until_bytes(&o, 1);
    assert_false(conn_stale(o.conn)); /* consumed */
    close(fd[1]);
    assert_true(conn_stale(o.conn));
    run_until(&o, CONN_ENDED);
    assert_true(conn_stale(o.conn));
    disown(&o);
}

static void test_conn_stale_sees_unread_input(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    rig_pair(fd);
    own(&o, fd[0]);
    o.keep = true;
    rig_send_all(fd[1], "x", 1);
    run_until(&o, CONN_DATA);
    assert_true(conn_stale(o.conn));
    disown(&o);
    close(fd[1]);
}

static struct owner next_owner;

static void hand_over(struct owner *o, enum conn_event event)
{
    if (event != CONN_DATA)
        return;
    next_owner.conn = o->conn;
    conn_set_cb(o->conn, on_conn, &next_owner);
}

static void test_conn_set_cb_tells_the_next_owner_what_follows(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    rig_pair(fd);
    own(&o, fd[0]);
    next_owner = fresh_owner();
    o.then = hand_over;
    rig_send_all(fd[1], "x", 1);
    close(fd[1]); /* comes in the same turn as the byte */
    run_until(&next_owner, CONN_ENDED);
    assert_string_equal(o.told, "D");
    assert_string_equal(next_owner.told, "XE");
    disown(&o);
}

/* ---- closing ----------------------------------------------------------------------- */

static void gently(struct conn *c)
{
    conn_close_gently(c, 5000);
}

/*
 * The peer sends, half-closes and reads until the end, so that every event comes. The
 * connection is closed inside one of them; nothing may be told or touched after it.
 */
static void close_at(enum conn_event event, void (*how)(struct conn *c))
{
    struct owner o = fresh_owner();
    struct buf got = {0};
    pthread_t reader;
    unsigned short port;
    const size_t n = 8 << 20;
    char *bytes = mem_alloc(n);
    const int listening = rig_listen(1, &port);
    const struct addr to = addr_of(port);
    rig_pattern(bytes, n, 0);
    if (event == CONN_FAILED)
        close(listening);
    o.close = how;
    o.close_at = event;
    o.conn = conn_connect(loop, &to, 5000, on_conn, &o);
    conn_write_borrowed(o.conn, slice_make(bytes, n));
    if (event != CONN_FAILED) {
        const int peer = accept(listening, NULL, NULL);
        rig_send_all(peer, "data", 4);
        shutdown(peer, SHUT_WR);
        reader = start_reader(&got, peer);
        close(listening);
    }
    run_until(&o, event);
    const size_t told = strlen(o.told);
    assert_int_equal(o.told[told - 1], "CDRFXE!"[event]);
    assert_null(o.conn);
    free(bytes);
    if (event != CONN_FAILED) {
        loop_run(loop); /* until the reader has seen the end */
        pthread_join(reader, NULL);
    }
    if (how == gently && event != CONN_FAILED)
        assert_bytes(&got, n, 0);
    rig_idle(loop, 10);
    assert_int_equal(strlen(o.told), told);
    buf_free(&got);
    buf_free(&o.data);
}

static void test_conn_close_is_safe_inside_every_callback(void **state)
{
    (void)state;
    for (int event = CONN_CONNECTED; event <= CONN_FAILED; event++)
        close_at((enum conn_event)event, conn_close);
}

static void test_conn_abort_is_safe_inside_every_callback(void **state)
{
    (void)state;
    for (int event = CONN_CONNECTED; event <= CONN_FAILED; event++)
        close_at((enum conn_event)event, conn_abort);
}

static void test_conn_close_gently_inside_every_callback_sends_all(void **state)
{
    (void)state;
    for (int event = CONN_CONNECTED; event <= CONN_FAILED; event++)
        close_at((enum conn_event)event, gently);
}

static void test_conn_close_silences_what_is_on_its_way(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    rig_pair(fd);
    own(&o, fd[0]);
    conn_write_borrowed(o.conn, SLICE_LIT("owes a flush"));
    rig_send_all(fd[1], "x", 1);
    conn_close(o.conn);
    assert_quiet(&o);
    assert_string_equal(o.told, "");
    conn_close(NULL);
    close(fd[1]);
}

static void test_conn_close_while_connecting(void **state)
{
    (void)state;
    struct owner o = fresh_owner();
    unsigned short port;
    const int listening = rig_listen(1, &port);
    const struct addr to = addr_of(port);
    for (int i = 0; i < 3; i++) {
        void (*const how[])(struct conn *) = {conn_close, conn_abort, gently};
        o.conn = conn_connect(loop, &to, 5000, on_conn, &o);
        conn_write(o.conn, SLICE_LIT("never sent"));
        how[i](o.conn);
    }
    assert_quiet(&o);
    assert_string_equal(o.told, "");
    close(listening);
}

static void test_conn_abort_resets_the_peer(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    char byte;
    rig_pair(fd);
    own(&o, fd[0]);
    conn_abort(o.conn);
    assert_int_equal(read(fd[1], &byte, 1), -1);
    assert_int_equal(errno, ECONNRESET);
    close(fd[1]);
}

/* ---- closing gently ---------------------------------------------------------------- */

#define ANSWER "HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n"

struct late_reader {
    int fd;
    size_t bytes; /* writes so many before it reads */
    bool wrote_all;
    char got[128];
};

static void *write_then_read(void *arg)
{
    struct late_reader *p = arg;
    static const char zeros[65536];
    size_t left = p->bytes;
    while (left) {
        const size_t part = left < sizeof(zeros) ? left : sizeof(zeros);
        const ssize_t n = send(p->fd, zeros, part, MSG_NOSIGNAL);
        if (n <= 0)
            break;
        left -= (size_t)n;
    }
    p->wrote_all = left == 0;
    p->got[rig_read_all(p->fd, p->got, sizeof(p->got) - 1)] = '\0';
    close(p->fd);
    loop_post(loop, end_loop, NULL);
    return NULL;
}

static void refuse(struct owner *o, enum conn_event event)
{
    if (event == CONN_DATA)
        conn_write(o->conn, SLICE_LIT(ANSWER));
}

/* A peer that has much to say is refused at its first bytes. */
static struct late_reader refuse_peer(size_t bytes, void (*how)(struct conn *c))
{
    struct owner o;
    pthread_t thread;
    int fd[2];
    rig_pair(fd);
    struct late_reader peer = {.fd = fd[1], .bytes = bytes};
    own(&o, fd[0]);
    o.then = refuse;
    o.close_at = CONN_DATA;
    o.close = how;
    assert_int_equal(pthread_create(&thread, NULL, write_then_read, &peer), 0);
    loop_run(loop);
    pthread_join(thread, NULL);
    buf_free(&o.data);
    return peer;
}

static void test_conn_close_gently_leaves_a_refusal_readable(void **state)
{
    (void)state;
    const struct late_reader peer = refuse_peer(32 << 20, gently);
    assert_true(peer.wrote_all);
    assert_string_equal(peer.got, ANSWER);
}

static void test_conn_close_gently_drops_no_more_than_its_limit(void **state)
{
    (void)state;
    const struct late_reader peer = refuse_peer(CONN_LINGER_MAX + (32 << 20), gently);
    assert_false(peer.wrote_all);
}

/* Talks until it is told that nobody is there. */
static void talk(void *arg)
{
    struct owner *o = arg;
    conn_write(o->conn, SLICE_LIT("."));
    if (!strchr(o->told, '!'))
        loop_defer(loop, talk, o);
}

static void test_conn_close_gently_waits_no_longer_than_asked(void **state)
{
    (void)state;
    struct owner peer;
    int fd[2];
    rig_pair(fd);
    struct owner o;
    own(&o, fd[0]);
    own(&peer, fd[1]);
    const uint64_t before = loop_now_us(loop);
    conn_close_gently(o.conn, 300);
    run_until(&peer, CONN_ENDED); /* its half-close */
    assert_true(loop_now_us(loop) - before < 250000);
    talk(&peer);
    run_until(&peer, CONN_FAILED);
    assert_in_range(loop_now_us(loop) - before, 300000, 2000000);
    assert_string_equal(o.told, "");
    rig_idle(loop, 5); /* the last talk() */
    disown(&peer);
}

/* A peer that reads a little now and then, and all at once in the end. */
struct slow_reader {
    struct conn *conn;
    struct loop_timer timer;
    size_t got;
    uint64_t slow_until_us;
};

static void on_slow(void *arg, struct conn *c, enum conn_event event)
{
    struct slow_reader *r = arg;
    r->got += conn_input(c).len;
    conn_consume(c, conn_input(c).len);
    if (event == CONN_ENDED)
        loop_stop(loop);
    if (loop_now_us(loop) < r->slow_until_us) {
        conn_pause(c);
        timer_start(&r->timer, 4);
    }
}

static void read_a_little(void *arg)
{
    struct slow_reader *r = arg;
    conn_resume(r->conn);
}

static void test_conn_close_gently_sends_on_while_the_peer_takes_something(void **state)
{
    (void)state;
    struct slow_reader r = {.slow_until_us = loop_now_us(loop) + 700000};
    struct owner o;
    int fd[2];
    const size_t n = 8 << 20;
    char *bytes = mem_zalloc(n);
    unix_pair(fd);
    small_send_buffer(fd[0]);
    own(&o, fd[0]);
    r.conn = conn_accepted(loop, fd[1], on_slow, &r);
    timer_init(&r.timer, loop, read_a_little, &r);
    conn_write(o.conn, slice_make(bytes, n));
    conn_close_gently(o.conn, 500);
    loop_run(loop);
    assert_true(loop_now_us(loop) > r.slow_until_us);
    assert_int_equal(r.got, n);
    conn_close(r.conn);
    timer_fini(&r.timer);
    free(bytes);
}

static bool may_send(int fd)
{
    return send(fd, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

static void test_conn_close_gently_cuts_the_oldest_of_too_many(void **state)
{
    (void)state;
    static int others[CONN_LINGERING + 1];
    struct rlimit files;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    const struct rlimit wanted = {files.rlim_max, files.rlim_max};
    if (files.rlim_max < 2 * CONN_LINGERING + 100 || setrlimit(RLIMIT_NOFILE, &wanted)) {
        print_message("needs %d descriptors\n", 2 * CONN_LINGERING + 100);
        skip();
    }
    for (int i = 0; i <= CONN_LINGERING; i++) {
        struct owner o;
        int fd[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
        own(&o, fd[0]);
        others[i] = fd[1];
        if (i == CONN_LINGERING)
            assert_true(may_send(others[0]));
        conn_close_gently(o.conn, 60000);
    }
    assert_false(may_send(others[0]));
    assert_true(may_send(others[1]));
    assert_true(may_send(others[CONN_LINGERING]));
    for (int i = 0; i <= CONN_LINGERING; i++)
        close(others[i]);
    rig_idle(loop, 5);
    setrlimit(RLIMIT_NOFILE, &files);
}

static void test_loop_free_cuts_what_lingers(void **state)
{
    (void)state;
    struct owner o;
    struct loop *const before = loop;
    int fd[2];
    char byte;
    rig_pair(fd);
    loop = loop_new();
    own(&o, fd[0]);
    conn_close_gently(o.conn, 60000);
    loop_free(loop);
    loop = before;
    assert_int_equal(read(fd[1], &byte, 1), 0);
    assert_int_equal(send(fd[1], "x", 1, MSG_NOSIGNAL), 1);
    assert_int_equal(send(fd[1], "x", 1, MSG_NOSIGNAL), -1); /* nobody is there */
    close(fd[1]);
}

/* ---- other sockets ----------------------------------------------------------------- */

static void test_conn_works_on_unix_sockets(void **state)
{
    (void)state;
    struct owner o;
    int fd[2];
    char got[8] = "";
    unix_pair(fd);
    own(&o, fd[0]);
    assert_string_equal(conn_peer(o.conn), "unix:");
    conn_write(o.conn, SLICE_LIT("ping"));
    assert_int_equal(rig_read_all(fd[1], got, 4), 4);
    conn_pause(o.conn);
    rig_send_all(fd[1], "pong", 4);
    close(fd[1]);
    run_until(&o, CONN_CLOSED);
    assert_quiet(&o);
    conn_resume(o.conn);
    run_until(&o, CONN_ENDED);
    assert_string_equal(o.told, "XDE");
    assert_int_equal(buf_len(&o.data), 4);
    disown(&o);
}

static void test_conn_knows_its_peer(void **state)
{
    (void)state;
    struct owner o;
    struct sockaddr_in sa;
    socklen_t len = sizeof(sa);
    int fd[2];
    char want[32];
    rig_pair(fd);
    getsockname(fd[1], (struct sockaddr *)&sa, &len);
    snprintf(want, sizeof(want), "127.0.0.1:%u", ntohs(sa.sin_port));
    own(&o, fd[0]);
    assert_string_equal(conn_peer(o.conn), want);
    disown(&o);
    close(fd[1]);
}

static void test_conn_sets_nodelay(void **state)
{
    (void)state;
    struct owner o;
    int fd[2], on = 0;
    socklen_t len = sizeof(on);
    rig_pair(fd);
    own(&o, fd[0]);
    assert_int_equal(getsockopt(fd[0], IPPROTO_TCP, TCP_NODELAY, &on, &len), 0);
    assert_true(on);
    disown(&o);
    close(fd[1]);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, up, rig_down)
    const struct CMUnitTest tests[] = {
        TEST(test_conn_delivers_data_then_closed_then_ended),
        TEST(test_conn_delivers_all_data_before_the_close_behind_it),
        TEST(test_conn_stops_reading_at_its_limit_until_consumed),
        TEST(test_conn_paused_inside_a_callback_reads_no_more),
        TEST(test_conn_sees_a_fin_while_paused_once_and_does_not_spin),
        TEST(test_conn_sees_a_fin_that_comes_with_bytes_while_paused),
        TEST(test_conn_sees_a_fin_behind_a_full_input),
        TEST(test_conn_paused_while_the_last_bytes_are_told_ends_after_resume),
        TEST(test_conn_sees_a_reset_while_paused_once_and_does_not_spin),
        TEST(test_conn_paused_before_anything_came_sees_a_reset),
        TEST(test_conn_sees_a_reset_that_comes_with_bytes),
        TEST(test_conn_tells_a_reset_while_writing_and_drops_the_rest),
        TEST(test_conn_finds_a_reset_inside_write_and_tells_it_later),
        TEST(test_conn_paused_finds_a_reset_inside_write),
        TEST(test_conn_whose_peer_reads_no_more_ends),
        TEST(test_conn_answers_a_peer_that_has_half_closed),
        TEST(test_conn_tells_when_a_half_closed_peer_goes_for_good),
        TEST(test_conn_keeps_the_order_through_a_small_send_buffer),
        TEST(test_conn_keeps_the_order_into_a_small_input),
        TEST(test_conn_paused_goes_on_writing),
        TEST(test_conn_paused_with_unread_bytes_writes_into_a_roomy_socket),
        TEST(test_conn_tells_drained_at_half_and_flushed_at_nothing),
        TEST(test_conn_tells_once_when_borrowed_bytes_are_free),
        TEST(test_conn_mixes_copied_and_borrowed_bytes_in_order),
        TEST(test_conn_corked_sends_head_and_body_together),
        TEST(test_conn_connect_sends_what_was_written_before),
        TEST(test_conn_connect_to_nobody_fails_from_the_loop),
        TEST(test_conn_connect_that_is_refused_at_once_fails_from_the_loop),
        TEST(test_conn_connect_waits_for_room_at_a_unix_socket),
        TEST(test_conn_connect_gives_up_in_time),
        TEST(test_conn_stale_sees_bytes_and_ends_without_the_loop),
        TEST(test_conn_stale_sees_unread_input),
        TEST(test_conn_set_cb_tells_the_next_owner_what_follows),
        TEST(test_conn_close_is_safe_inside_every_callback),
        TEST(test_conn_abort_is_safe_inside_every_callback),
        TEST(test_conn_close_gently_inside_every_callback_sends_all),
        TEST(test_conn_close_silences_what_is_on_its_way),
        TEST(test_conn_close_while_connecting),
        TEST(test_conn_abort_resets_the_peer),
        TEST(test_conn_close_gently_leaves_a_refusal_readable),
        TEST(test_conn_close_gently_drops_no_more_than_its_limit),
        TEST(test_conn_close_gently_waits_no_longer_than_asked),
        TEST(test_conn_close_gently_sends_on_while_the_peer_takes_something),
        TEST(test_conn_close_gently_cuts_the_oldest_of_too_many),
        TEST(test_loop_free_cuts_what_lingers),
        TEST(test_conn_works_on_unix_sockets),
        TEST(test_conn_knows_its_peer),
        TEST(test_conn_sets_nodelay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
