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

/*
 * What is allocated with this size or more is pages of its own: it goes back to the
 * system as soon as it is freed, grows without a copy, and takes memory only where it was
 * written to. (mallopt(3); without mem_setup() the C library raises the bound to 32 MiB
 * as it goes, and what was freed stays with the process in holes.)
 */
#define MEM_PAGES ((size_t)256 << 10)

/* Sees to that. Once, before anything large is allocated and before there are threads. */
void mem_setup(void);

/* Memory that an allocation of `size` bytes takes of which the first `used` were written
 * to: all of a small one, whose place others have used before; pages of a large one. */
size_t mem_held(size_t size, size_t used);

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
