/* SPDX-License-Identifier: MIT */
#include "base/mem.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE ((size_t)4096)
#define KEPT_AT_THE_END (1 << 20) /* free bytes there that do not go back */

void mem_setup(void)
{
    mallopt(M_MMAP_THRESHOLD, (int)MEM_PAGES);
    mallopt(M_TRIM_THRESHOLD, KEPT_AT_THE_END);
}

size_t mem_held(size_t size, size_t used)
{
    return size < MEM_PAGES ? size : (used + PAGE - 1) & ~(PAGE - 1);
}

static void *checked(void *ptr, size_t size)
{
    if (!ptr) {
        fprintf(stderr, "incipit: out of memory: %zu bytes\n", size);
        abort();
    }
    return ptr;
}

void *mem_alloc(size_t size)
{
    return checked(malloc(size ? size : 1), size);
}

void *mem_zalloc(size_t size)
{
    return checked(calloc(1, size ? size : 1), size);
}

void *mem_realloc(void *ptr, size_t size)
{
    return checked(realloc(ptr, size ? size : 1), size);
}

static size_t product(size_t count, size_t size)
{
    size_t total;
    if (__builtin_mul_overflow(count, size, &total))
        checked(NULL, (size_t)-1);
    return total;
}

void *mem_array(size_t count, size_t size)
{
    return mem_alloc(product(count, size));
}

void *mem_rearray(void *ptr, size_t count, size_t size)
{
    return mem_realloc(ptr, product(count, size));
}

char *mem_strdup(const char *s)
{
    return mem_dup(s, strlen(s));
}

char *mem_dup(const void *ptr, size_t len)
{
    char *copy = mem_alloc(len + 1);
    if (len)
        memcpy(copy, ptr, len);
    copy[len] = '\0';
    return copy;
}

char *mem_printf(const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    return checked(n < 0 ? NULL : text, 0);
}
