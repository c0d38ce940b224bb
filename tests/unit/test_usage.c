/* SPDX-License-Identifier: MIT */
#include "load/usage.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cmocka_all.h"
#include "io_rig.h"
#include "wire/front.h"

#define BURNT_US 20000
#define TOUCHED ((size_t)32 << 20)

static struct loop *loop;
static struct usage *usage;
static struct front *front;
static pid_t child;
static int to_child[2], from_child[2];
static unsigned asked; /* how often the admin side was */

/* 'w': burns time and touches memory, which it keeps. */
static void serve_parent(void)
{
    char c;
    while (read(to_child[0], &c, 1) == 1) {
        struct timespec t = {0};
        char *memory = mmap(NULL, TOUCHED, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory != MAP_FAILED)
            memset(memory, 1, TOUCHED);
        const clock_t until = clock() + BURNT_US * (CLOCKS_PER_SEC / 1000000);
        while (clock() < until)
            clock_gettime(CLOCK_MONOTONIC, &t);
        if (write(from_child[1], &c, 1) != 1)
            break;
    }
    _exit(0);
}

static void let_it_work(void)
{
    char c = 'w';
    assert_int_equal(write(to_child[1], &c, 1), 1);
    assert_int_equal(read(from_child[0], &c, 1), 1);
}

static void start_child(void)
{
    assert_int_equal(pipe(to_child), 0);
    assert_int_equal(pipe(from_child), 0);
    child = fork();
    if (child == 0) {
        close(to_child[1]);
        serve_parent();
    }
    close(to_child[0]);
    close(from_child[1]);
}

static int set_up(void **state)
{
    start_child();
    asked = 0;
    const int rc = rig_up(state);
    loop = *state;
    return rc;
}

static void end_child(void)
{
    if (child > 0) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        close(to_child[1]);
        close(from_child[0]);
    }
    child = 0;
}

static int tear_down(void **state)
{
    usage_free(usage);
    usage = NULL;
    if (front)
        front_close(front);
    front = NULL;
    end_child();
    return rig_down(state);
}

static void watch(const struct usage_options *o)
{
    struct err e = {0};
    usage = usage_new(loop, o, &e);
    assert_non_null(usage);
}

static double number(const json_t *o, const char *key)
{
    assert_true(json_is_number(json_object_get(o, key)));
    return json_number_value(json_object_get(o, key));
}

static void test_a_process_that_is_named(void **state)
{
    (void)state;
    watch(&(struct usage_options){.pids = &child, .n_pids = 1});
    let_it_work(); /* before: does not count */
    usage_begin(usage);
    let_it_work();
    json_t *r = usage_end(usage);
    const json_t *p = json_array_get(json_object_get(r, "processes"), 0);
    assert_int_equal(json_array_size(json_object_get(r, "processes")), 1);
    assert_true(number(p, "cpu_s") >= BURNT_US / 1e6);
    assert_true(number(p, "cores") > 0);
    assert_true(number(p, "rss_end_bytes") >= number(p, "rss_begin_bytes") + TOUCHED);
    assert_true(number(r, "rss_peak_bytes") >= number(r, "rss_end_bytes"));
    assert_true(number(r, "cpu_s") == number(p, "cpu_s"));
    assert_string_equal(json_string_value(json_object_get(p, "how")), "named");
    assert_true(json_is_null(json_object_get(r, "kv")));
    json_decref(r);
    usage_begin(usage); /* again, from there */
    r = usage_end(usage);
    assert_true(number(r, "cpu_s") < BURNT_US / 1e6);
    json_decref(r);
}

static void test_a_process_that_ends_has_no_memory_at_the_end(void **state)
{
    (void)state;
    watch(&(struct usage_options){.pids = &child, .n_pids = 1});
    usage_begin(usage);
    end_child();
    json_t *r = usage_end(usage);
    const json_t *p = json_array_get(json_object_get(r, "processes"), 0);
    assert_true(json_is_true(json_object_get(p, "ended")));
    assert_true(json_is_null(json_object_get(p, "rss_end_bytes")));
    assert_true(number(p, "rss_peak_bytes") > 0);
    json_decref(r);
}

/* This process listens too, and is not told as the service. */
static void test_who_listens_is_found(void **state)
{
    unsigned short port;
    (void)state;
    end_child();
    const int fd = rig_listen(1, &port);
    start_child(); /* has it too */
    watch(&(struct usage_options){.port = port});
    usage_begin(usage);
    json_t *r = usage_end(usage);
    const json_t *list = json_object_get(r, "processes");
    assert_int_equal(json_array_size(list), 1);
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(list, 0), "how")), "listens");
    json_decref(r);
    close(fd);
}

static void test_what_is_not_seen_is_unknown(void **state)
{
    (void)state;
    watch(&(struct usage_options){.port = 0});
    usage_begin(usage);
    json_t *r = usage_end(usage);
    assert_int_equal(json_array_size(json_object_get(r, "processes")), 0);
    assert_true(json_is_null(json_object_get(r, "cpu_s")));
    assert_true(json_is_null(json_object_get(r, "cores")));
    assert_true(json_is_null(json_object_get(r, "rss_peak_bytes")));
    assert_true(number(json_object_get(r, "generator"), "cpu_s") >= 0);
    json_decref(r);
}

static void test_who_does_not_exist_is_refused(void **state)
{
    struct err e = {0};
    const pid_t gone = child;
    (void)state;
    end_child();
    const struct usage_options o = {.pids = &gone, .n_pids = 1};
    assert_null(usage_new(loop, &o, &e));
    assert_non_null(strstr(e.text, "no process"));
}

/* ---- the store --------------------------------------------------------------------- */

static void on_gone(void *arg)
{
    (void)arg;
}

/* More each time; none behind the second. */
static void on_request(void *arg, struct front_request *rq)
{
    static const struct front_events none = {.on_gone = on_gone};
    char body[100];
    (void)arg;
    front_set_events(rq, &none, NULL);
    assert_true(slice_eq(front_head(rq)->target, SLICE_LIT("/stats")));
    if (++asked > 2) {
        front_error(rq, 404, "not_found_error", "not here", SLICE_LIT(""));
        return;
    }
    snprintf(body, sizeof(body), "{\"store\":{\"ram_bytes\":%u,\"disk_bytes\":7}}",
             1000 * asked);
    front_reply(rq, 200, SLICE_LIT(""), slice_of(body));
}

static void test_the_store_is_asked_at_both_ends(void **state)
{
    static struct budget memory = {.max = 1 << 20};
    static const struct front_options usual = {.head = {4096, 32},
                                               .body_bytes = 1 << 20,
                                               .memory = &memory,
                                               .connections = 10,
                                               .head_ms = 5000,
                                               .body_ms = 5000,
                                               .idle_ms = 5000,
                                               .write_ms = 5000};
    struct err e = {0};
    struct addr at;
    char url[64];
    (void)state;
    assert_int_equal(addr_resolve(&at, "127.0.0.1:0", &e), 0);
    front = front_open(loop, &at, &usual, on_request, NULL, &e);
    assert_non_null(front);
    snprintf(url, sizeof(url), "http://%s", front_addr(front)->text);
    watch(&(struct usage_options){.admin = url});
    usage_begin(usage);
    json_t *r = usage_end(usage);
    const json_t *ram = json_object_get(json_object_get(r, "kv"), "ram_bytes");
    assert_true(number(ram, "begin") == 1000);
    assert_true(number(ram, "peak") == 2000);
    assert_true(number(ram, "end") == 2000);
    json_decref(r);
    usage_begin(usage); /* no such page */
    r = usage_end(usage);
    ram = json_object_get(json_object_get(r, "kv"), "ram_bytes");
    assert_true(json_is_null(json_object_get(ram, "begin")));
    assert_true(json_is_null(json_object_get(ram, "end")));
    json_decref(r);
}

static void test_the_machine_is_told(void **state)
{
    json_t *m = usage_machine();
    (void)state;
    assert_true(number(m, "cores") >= 1);
    assert_true(number(m, "memory_bytes") > 1 << 20);
    assert_true(json_is_string(json_object_get(m, "kernel")));
    assert_int_equal(json_object_size(m), 4);
    json_decref(m);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_process_that_is_named),
        TEST(a_process_that_ends_has_no_memory_at_the_end),
        TEST(who_listens_is_found),
        TEST(what_is_not_seen_is_unknown),
        TEST(who_does_not_exist_is_refused),
        TEST(the_store_is_asked_at_both_ends),
        TEST(the_machine_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
