/* SPDX-License-Identifier: MIT */
#include "base/mem.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmocka_all.h"

static void test_mem_sizes_of_zero_are_allocations(void **state)
{
    (void)state;
    void *p = mem_alloc(0);
    p = mem_realloc(p, 0);
    free(p);
    free(mem_zalloc(0));
    free(mem_array(0, 16));
}

static void test_mem_zalloc_is_zeroed(void **state)
{
    (void)state;
    char *p = mem_zalloc(100);
    for (int i = 0; i < 100; i++)
        assert_int_equal(p[i], 0);
    free(p);
}

static void test_mem_dup_copies_and_terminates(void **state)
{
    (void)state;
    char *p = mem_dup("a\0bc", 3);
    assert_memory_equal(p, "a\0b\0", 4);
    free(p);
    p = mem_dup(NULL, 0);
    assert_string_equal(p, "");
    free(p);
    p = mem_strdup("xyz");
    assert_string_equal(p, "xyz");
    free(p);
    p = mem_printf("%s-%d", "n", 7);
    assert_string_equal(p, "n-7");
    free(p);
}

static void test_mem_held_is_all_of_what_is_small_and_pages_of_what_is_large(void **state)
{
    (void)state;
    assert_int_equal(mem_held(0, 0), 0);
    assert_int_equal(mem_held(1000, 10), 1000);
    assert_int_equal(mem_held(MEM_PAGES - 1, 0), MEM_PAGES - 1);
    assert_int_equal(mem_held(MEM_PAGES, 0), 0);
    assert_int_equal(mem_held(MEM_PAGES, 1), 4096);
    assert_int_equal(mem_held((size_t)1 << 30, 8192), 8192);
    assert_int_equal(mem_held((size_t)1 << 30, 8193), 3 * 4096);
}

static void test_mem_overflowing_product_aborts(void **state)
{
    (void)state;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        close(STDERR_FILENO);
        free(mem_array(SIZE_MAX / 2, 4));
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mem_sizes_of_zero_are_allocations),
        cmocka_unit_test(test_mem_zalloc_is_zeroed),
        cmocka_unit_test(test_mem_dup_copies_and_terminates),
        cmocka_unit_test(
            test_mem_held_is_all_of_what_is_small_and_pages_of_what_is_large),
        cmocka_unit_test(test_mem_overflowing_product_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
