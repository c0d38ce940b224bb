/* SPDX-License-Identifier: MIT */
#include "base/procs.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cmocka_all.h"
#include "io_rig.h"

#define BURNT_US 20000
#define TOUCHED ((size_t)32 << 20)

static uint64_t own_cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* A child that has done `work`, told through the pipe, and waits for its end. */
static pid_t child_that(void (*work)(void))
{
    int fd[2];
    char c;
    assert_int_equal(pipe(fd), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        work();
        const ssize_t n = write(fd[1], "x", 1);
        for (;;)
            sleep(n > 0 ? 1000 : 1);
    }
    assert_int_equal(read(fd[0], &c, 1), 1);
    close(fd[0]);
    close(fd[1]);
    return pid;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static bool is_in(const pid_t *pids, size_t n, pid_t pid)
{
    for (size_t i = 0; i < n; i++)
        if (pids[i] == pid)
            return true;
    return false;
}

static void nothing(void)
{
}

static void test_procs_listening_finds_all_that_hold_the_socket(void **state)
{
    unsigned short port;
    pid_t pids[8];
    (void)state;
    const int fd = rig_listen(1, &port);
    const pid_t child = child_that(nothing); /* has it from its parent */
    size_t n = procs_listening(port, pids, 8);
    assert_int_equal(n, 2);
    assert_true(is_in(pids, n, getpid()) && is_in(pids, n, child));
    assert_int_equal(procs_listening(port, pids, 1), 1);
    end(child);
    assert_int_equal(procs_listening(port, pids, 8), 1);
    close(fd);
    assert_int_equal(procs_listening(port, pids, 8), 0);
}

static void test_procs_listening_at_a_path(void **state)
{
    static const char path[] = "/tmp/incipit-test procs.sock";
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    pid_t pid;
    (void)state;
    memcpy(un.sun_path, path, sizeof(path));
    unlink(path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&un, sizeof(un)), 0);
    assert_int_equal(procs_listening_at(path, &pid, 1), 0); /* not yet */
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(procs_listening_at(path, &pid, 1), 1);
    assert_int_equal(pid, getpid());
    assert_int_equal(procs_listening_at("/tmp/incipit-test", &pid, 1), 0);
    close(fd);
    unlink(path);
}

/* A connection to the port is no listener. */
static void test_procs_listening_wants_a_listener(void **state)
{
    int fd[2];
    struct sockaddr_in sa;
    socklen_t len = sizeof(sa);
    pid_t pid;
    (void)state;
    rig_pair(fd); /* whose listener is closed */
    assert_int_equal(getsockname(fd[1], (struct sockaddr *)&sa, &len), 0);
    assert_int_equal(procs_listening(ntohs(sa.sin_port), &pid, 1), 0);
    close(fd[0]);
    close(fd[1]);
}

static void have_a_child(void)
{
    if (fork() == 0)
        for (;;)
            sleep(1000);
}

static void test_procs_descendants_are_found_once(void **state)
{
    pid_t pids[8] = {child_that(have_a_child)};
    (void)state;
    size_t n = procs_descendants(pids, 1, 8);
    assert_int_equal(n, 2);
    assert_int_equal(procs_descendants(pids, 2, 8), 2);
    assert_int_equal(procs_descendants(pids, 1, 1), 1);
    const pid_t grandchild = pids[1];
    pids[0] = getpid();
    n = procs_descendants(pids, 1, 8);
    assert_int_equal(n, 3);
    assert_true(is_in(pids, n, grandchild));
    kill(grandchild, SIGKILL);
    end(pids[1] == grandchild ? pids[2] : pids[1]);
}

static void burn_and_touch(void)
{
    volatile unsigned n = 0;
    char *memory = mmap(NULL, TOUCHED, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        _exit(1);
    memset(memory, 1, TOUCHED);
    while (own_cpu_us() < BURNT_US)
        n++;
}

static void test_procs_usage_tells_time_and_memory(void **state)
{
    struct procs_usage u, again;
    (void)state;
    const pid_t pid = child_that(burn_and_touch);
    assert_true(procs_usage(pid, &u));
    assert_true(u.cpu_us >= BURNT_US);
    assert_true(u.rss_bytes >= TOUCHED);
    if (!getenv("INCIPIT_UNDER")) /* where the system knows valgrind's name */
        assert_int_equal(strncmp(u.name, "test_procs", PROCS_NAME - 1), 0);
    assert_true(procs_usage(pid, &again));
    assert_int_equal(again.started, u.started);
    kill(pid, SIGKILL);
    siginfo_t why;
    assert_int_equal(waitid(P_PID, (id_t)pid, &why, WEXITED | WNOWAIT), 0);
    assert_false(procs_usage(pid, &u)); /* a zombie */
    waitpid(pid, NULL, 0);
    assert_false(procs_usage(pid, &u));
    assert_false(procs_usage(0, &u));
    assert_false(procs_usage(-1, &u));
}

static void test_procs_args_are_cut_to_their_room(void **state)
{
    char args[4096], few[8];
    (void)state;
    const size_t len = procs_args(getpid(), args, sizeof(args));
    assert_true(len > 10 && strstr(args, "test_procs"));
    assert_int_equal(procs_args(getpid(), few, sizeof(few)), 7);
    assert_memory_equal(few, args, 7);
    assert_int_equal(few[7], '\0');
    assert_int_equal(procs_args(-1, few, sizeof(few)), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_procs_listening_finds_all_that_hold_the_socket),
        cmocka_unit_test(test_procs_listening_at_a_path),
        cmocka_unit_test(test_procs_listening_wants_a_listener),
        cmocka_unit_test(test_procs_descendants_are_found_once),
        cmocka_unit_test(test_procs_usage_tells_time_and_memory),
        cmocka_unit_test(test_procs_args_are_cut_to_their_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
