/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_BASE_MEM_H
#define INCIPIT_BASE_MEM_H

/*
 * Allocation that does not fail: where the system has no memory left, the process says
 * how much was asked for and aborts. What a client can make large (bodies, blocks) is
 * bounded by configured limits before it is allocated; a request body for which there is
 * no memory all the same is refused (buf_try_reserve()). Free with free().
 */

#include <stddef.h>

void *mem_alloc(size_t size) __attribute__((malloc, returns_nonnull));
void *mem_zalloc(size_t size) __attribute__((malloc, returns_nonnull));
void *mem_realloc(void *ptr, size_t size) __attribute__((returns_nonnull));

/* `count` times `size`; aborts also where the product overflows. */
void *mem_array(size_t count, size_t size) __attribute__((malloc, returns_nonnull));
void *mem_rearray(void *ptr, size_t count, size_t size) __attribute__((returns_nonnull));

char *mem_strdup(const char *s) __attribute__((malloc, returns_nonnull));

/* Copy of `len` bytes with a NUL behind them. */
char *mem_dup(const void *ptr, size_t len) __attribute__((malloc, returns_nonnull));

/* printf into a new string. */
char *mem_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
