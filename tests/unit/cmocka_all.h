/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_TESTS_CMOCKA_ALL_H
#define INCIPIT_TESTS_CMOCKA_ALL_H

/* cmocka.h with what it wants included before it. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

/* TEST_FILTER=NAME runs one test of a program alone ('*' stands for anything). */
__attribute__((constructor)) static void filter_tests(void)
{
    const char *name = getenv("TEST_FILTER");
    if (name)
        cmocka_set_test_filter(name);
}

/* With sanitizers, or under valgrind (tests/run.py), all takes many times as long: what is
 * repeated is repeated less. */
#ifdef __SANITIZE_ADDRESS__
#define SANITIZED 1
#else
#define SANITIZED (getenv("INCIPIT_UNDER") != NULL)
#endif

#endif
