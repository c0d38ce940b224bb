/* SPDX-License-Identifier: MIT */
#include "io/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmocka_all.h"
#include "io_rig.h"

static struct loop *loop;
static struct listener *listener;
static int accepted[256], n_accepted, stop_at;
static bool close_listener;
static int next_listening, next_client;

static int up(void **state)
{
    const int rc = rig_up(state);
    loop = *state;
    n_accepted = stop_at = 0;
    close_listener = false;
    return rc;
}

static int connect_to(const struct addr *a)
{
    const int fd = socket(a->sa.ss_family, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&a->sa, a->len), 0);
    return fd;
}

static int connect_to_port(unsigned short port)
{
    struct addr to;
    char text[32];
    snprintf(text, sizeof(text), "127.0.0.1:%u", port);
    assert_int_equal(addr_resolve(&to, text, NULL), 0);
    return connect_to(&to);
}

static void on_accept(void *arg, int fd)
{
    assert_ptr_equal(arg, &loop);
    accepted[n_accepted++] = fd;
    if (close_listener) {
        unsigned short port;
        listener_close(listener);
        next_listening = rig_listen(1, &port); /* likely under the same number */
        next_client = connect_to_port(port);
    }
    if (n_accepted == stop_at)
        loop_stop(loop);
}

static void close_accepted(void)
{
    while (n_accepted)
        close(accepted[--n_accepted]);
}

static struct listener *listen_at(const char *text, struct err *e)
{
    struct addr at;
    assert_int_equal(addr_resolve(&at, text, NULL), 0);
    return listener = listener_open(loop, &at, on_accept, &loop, e);
}

static void run_until_accepted(int n)
{
    stop_at = n;
    if (n_accepted < n)
        loop_run(loop);
}

static void test_listener_knows_its_port_and_accepts(void **state)
{
    (void)state;
    struct listener *ln = listen_at("127.0.0.1:0", NULL);
    assert_int_not_equal(addr_port(listener_addr(ln)), 0);
    const int fd = connect_to(listener_addr(ln));
    assert_int_equal(n_accepted, 0); /* from the loop alone */
    run_until_accepted(1);
    assert_true(fcntl(accepted[0], F_GETFL) & O_NONBLOCK);
    assert_true(fcntl(accepted[0], F_GETFD) & FD_CLOEXEC);
    listener_close(ln);
    close_accepted();
    close(fd);
}

static void test_listener_accepts_all_of_a_crowd(void **state)
{
    (void)state;
    int fds[200];
    struct listener *ln = listen_at("127.0.0.1:0", NULL);
    for (int i = 0; i < 200; i++)
        fds[i] = connect_to(listener_addr(ln));
    run_until_accepted(200);
    assert_int_equal(n_accepted, 200);
    for (int i = 0; i < 200; i++)
        close(fds[i]);
    close_accepted();
    listener_close(ln);
}

static void test_listener_on_every_v6_address_takes_v4_as_well(void **state)
{
    (void)state;
    struct listener *ln = listen_at("[::]:0", NULL);
    if (!ln)
        skip(); /* a system without IPv6 */
    const int fd = connect_to_port(addr_port(listener_addr(ln)));
    run_until_accepted(1);
    close(fd);
    close_accepted();
    listener_close(ln);
}

static void test_listener_says_that_an_address_is_taken(void **state)
{
    (void)state;
    struct err e = {0};
    struct listener *first = listen_at("127.0.0.1:0", NULL);
    assert_null(listen_at(listener_addr(first)->text, &e));
    assert_int_equal(e.code, ERR_IO);
    assert_non_null(strstr(e.text, listener_addr(first)->text));
    assert_non_null(strstr(e.text, strerror(EADDRINUSE)));
    listener_close(first);
    listener_close(NULL);
}

static void test_listener_may_be_closed_inside_its_callback(void **state)
{
    (void)state;
    struct listener *ln = listen_at("127.0.0.1:0", NULL);
    const int a = connect_to(listener_addr(ln)), b = connect_to(listener_addr(ln));
    close_listener = true;
    run_until_accepted(1);
    rig_idle(loop, 10);
    assert_int_equal(n_accepted, 1); /* neither `b` nor the client of another */
    close(a);
    close(b);
    close(next_listening);
    close(next_client);
    close_accepted();
}

/* ---- UNIX sockets ------------------------------------------------------------------ */

static char folder[64], path[80], text_of_path[96];

static int up_unix(void **state)
{
    snprintf(folder, sizeof(folder), "/tmp/test_listener.XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof(path), "%s/s", folder);
    snprintf(text_of_path, sizeof(text_of_path), "unix:%s", path);
    return up(state);
}

static int down_unix(void **state)
{
    unlink(path);
    rmdir(folder);
    return rig_down(state);
}

static void test_listener_removes_its_unix_socket(void **state)
{
    (void)state;
    struct stat st;
    struct listener *ln = listen_at(text_of_path, NULL);
    const int fd = connect_to(listener_addr(ln));
    run_until_accepted(1);
    assert_string_equal(listener_addr(ln)->text, text_of_path);
    assert_int_equal(lstat(path, &st), 0);
    listener_close(ln);
    assert_int_equal(lstat(path, &st), -1);
    close(fd);
    close_accepted();
}

static void test_listener_replaces_a_unix_socket_that_nobody_listens_on(void **state)
{
    (void)state;
    struct addr at;
    assert_int_equal(addr_resolve(&at, text_of_path, NULL), 0);
    const int left = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(left, (const struct sockaddr *)&at.sa, at.len), 0);
    close(left);
    struct listener *ln = listen_at(text_of_path, NULL);
    assert_non_null(ln);
    listener_close(ln);
}

static void test_listener_leaves_living_sockets_and_files_alone(void **state)
{
    (void)state;
    struct err e = {0};
    struct stat st;
    struct listener *first = listen_at(text_of_path, NULL);
    assert_null(listen_at(text_of_path, &e));
    assert_non_null(strstr(e.text, "another process listens there"));
    listener_close(first);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    e = (struct err){0};
    assert_null(listen_at(text_of_path, &e));
    assert_non_null(strstr(e.text, "a file that is no socket"));
    assert_int_equal(lstat(path, &st), 0);
    unlink(path);
    assert_int_equal(symlink("/nowhere", path), 0);
    assert_null(listen_at(text_of_path, NULL));
    assert_int_equal(lstat(path, &st), 0);
}

static void test_listener_leaves_the_socket_of_another_alone_at_its_end(void **state)
{
    (void)state;
    struct stat st;
    struct listener *ln = listen_at(text_of_path, NULL);
    unlink(path);
    struct listener *other = listen_at(text_of_path, NULL);
    listener_close(ln);
    assert_int_equal(lstat(path, &st), 0);
    listener_close(other);
    assert_int_equal(lstat(path, &st), -1);
}

static void test_listener_file_has_its_mode_and_owner(void **state)
{
    (void)state;
    struct addr at;
    struct stat st;
    struct listener_file f = {.mode = 0620};
    char owner[40];
    assert_int_equal(addr_resolve(&at, text_of_path, NULL), 0);
    snprintf(owner, sizeof(owner), "%u:%u", getuid(), getgid());
    assert_int_equal(listener_owner(&f, owner, NULL), 0);
    assert_int_equal(f.uid, getuid());
    assert_int_equal(f.gid, getgid());
    struct listener *ln = listener_open_file(loop, &at, &f, on_accept, &loop, NULL);
    assert_int_equal(lstat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0620);
    listener_close(ln);
}

static void test_listener_owner_is_a_user_and_a_group(void **state)
{
    (void)state;
    struct listener_file f;
    struct err e = {0};
    assert_int_equal(listener_owner(&f, "", NULL), 0);
    assert_true(f.uid == (uid_t)-1 && f.gid == (gid_t)-1);
    assert_int_equal(listener_owner(&f, ":root", NULL), 0);
    assert_true(f.uid == (uid_t)-1 && f.gid == 0);
    assert_int_equal(listener_owner(&f, "root", NULL), 0);
    assert_true(f.uid == 0 && f.gid == (gid_t)-1);
    assert_int_equal(listener_owner(&f, "no such one", &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.text, "no user \"no such one\""));
    assert_int_equal(listener_owner(&f, "root:no such one", NULL), ERR_NOT_FOUND);
}

static void test_listener_leaves_a_busy_unix_socket_alone(void **state)
{
    (void)state;
    struct addr at;
    struct stat st;
    int fds[16], n = 0;
    assert_int_equal(addr_resolve(&at, text_of_path, NULL), 0);
    const int busy = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(busy, (const struct sockaddr *)&at.sa, at.len), 0);
    assert_int_equal(listen(busy, 0), 0);
    do {
        assert_true(n < 16);
        fds[n] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    } while (connect(fds[n++], (const struct sockaddr *)&at.sa, at.len) == 0);
    assert_null(listen_at(text_of_path, NULL));
    assert_int_equal(lstat(path, &st), 0);
    while (n)
        close(fds[--n]);
    close(busy);
}

/* ---- no descriptors left ----------------------------------------------------------- */

static void expect(bool ok, int code)
{
    if (!ok)
        _exit(code);
}

/*
 * With no descriptor left somebody waits. The loop must sleep, say so once, and accept
 * when there is one again. In a process of its own, for the limit's sake.
 */
static void starve(void)
{
    struct addr at;
    struct rlimit limit;
    addr_resolve(&at, "127.0.0.1:0", NULL);
    listener = listener_open(loop, &at, on_accept, &loop, NULL);
    const int client = connect_to(listener_addr(listener));
    getrlimit(RLIMIT_NOFILE, &limit);
    const struct rlimit old = limit;
    limit.rlim_cur = (rlim_t)client + 1;
    setrlimit(RLIMIT_NOFILE, &limit);
    expect(rig_idle(loop, 350) < 100, 2); /* processor milliseconds */
    expect(n_accepted == 0, 3);
    setrlimit(RLIMIT_NOFILE, &old);
    run_until_accepted(1);
    expect(n_accepted == 1, 4);
}

static void test_listener_without_descriptors_sleeps_tells_once_and_recovers(void **state)
{
    (void)state;
    int out[2], status;
    char log[2048] = "";
    if (getenv("INCIPIT_UNDER"))
        skip(); /* valgrind lets accept() happen, closes and says EMFILE: nobody waits then */
    assert_int_equal(pipe(out), 0);
    const pid_t child = fork();
    if (child == 0) {
        alarm(RIG_GUARD_MS / 1000); /* the guard stays with the parent's loop */
        dup2(out[1], STDERR_FILENO);
        close(out[0]); /* its number is free: all below must be taken */
        while (dup(out[1]) < out[1]) {
        }
        loop_free(loop);
        loop = loop_new();
        starve();
        _exit(0);
    }
    close(out[1]);
    rig_read_all(out[0], log, sizeof(log) - 1);
    close(out[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    const char *line = strstr(log, "event=accept-paused");
    assert_non_null(line);
    assert_null(strstr(line + 1, "event=accept-paused"));
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, up, rig_down)
#define TEST_UNIX(f) cmocka_unit_test_setup_teardown(f, up_unix, down_unix)
    const struct CMUnitTest tests[] = {
        TEST(test_listener_knows_its_port_and_accepts),
        TEST(test_listener_accepts_all_of_a_crowd),
        TEST(test_listener_on_every_v6_address_takes_v4_as_well),
        TEST(test_listener_says_that_an_address_is_taken),
        TEST(test_listener_may_be_closed_inside_its_callback),
        TEST_UNIX(test_listener_removes_its_unix_socket),
        TEST_UNIX(test_listener_replaces_a_unix_socket_that_nobody_listens_on),
        TEST_UNIX(test_listener_leaves_living_sockets_and_files_alone),
        TEST_UNIX(test_listener_leaves_the_socket_of_another_alone_at_its_end),
        TEST_UNIX(test_listener_file_has_its_mode_and_owner),
        TEST(test_listener_owner_is_a_user_and_a_group),
        TEST_UNIX(test_listener_leaves_a_busy_unix_socket_alone),
        TEST(test_listener_without_descriptors_sleeps_tells_once_and_recovers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
