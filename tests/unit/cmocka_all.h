/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_TESTS_CMOCKA_ALL_H
#define INCIPIT_TESTS_CMOCKA_ALL_H

/* cmocka.h with what it wants included before it. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* With sanitizers all takes many times as long: what is repeated is repeated less. */
#ifdef __SANITIZE_ADDRESS__
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#endif
